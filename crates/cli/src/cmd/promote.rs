//! `covey promote`: makes a shared volume of a volume of one node.
//!
//! The work is in [`node::shared::promoting`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::control::{ControlAddress, Request, Tick};
use api::error::{Failure, Result};
use api::text::{bytes, count};
use base::Deadline;
use fuse::mount::Mounted;
use node::control;
use node::mounts;
use node::running::replacing::NOT_PROMOTABLE;
use node::shared::making;
use node::shared::promoting::handover::Handover;
use node::shared::promoting::{self, Promoted};
use node::volume_dir::VolumeDir;
use serde::Serialize;

use crate::cmd::clone::show;
use crate::cmd::{flush, umount};
use crate::target::{Target, resolve_volume};
use crate::term::Term;

/// How often programs that use the volume are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How long a daemon may take to mount again.
const BACK: Duration = Duration::from_secs(60);

/// Moves the names of a volume into a database, so that many machines can write to it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey promote /srv/volume 'postgres://covey@db/covey?volume=work'\n  \
    covey mount -d /srv/volume /mnt/work                                  then on this machine\n  \
    covey mount -d 'postgres://covey@db/covey?volume=work' /mnt/work      and on every other one\n\n\
    Its origin must be one that all machines reach. No blob is copied. Inode numbers, times and\n\
    published trees stay. If the volume is mounted, its names are copied while programs use it. Then,\n\
    if it is mounted with -o promotable, programs wait while what changed meanwhile is copied, and go\n\
    on with the shared volume: open files, mappings and locks stay. Any other mount is unmounted for\n\
    that moment, which needs that no program has it open (--wait), and mounted again. Until the last\n\
    step the volume is as it was. An interrupted command can be run again. The only way back is to publish the shared volume, and to restore\n\
    that into a folder.")]
pub struct Args {
    /// The volume's folder, or where it is mounted. The folder becomes that of this node
    folder: PathBuf,
    /// If a program has the volume open, wait up to so many seconds until none has
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Where the names go: postgres://USER@HOST/DATABASE?volume=NAME or etcd://HOST:2379/?volume=NAME. The
    /// name must be free
    #[arg(value_name = "ADDRESS")]
    address: PathBuf,
}

#[derive(Debug, Serialize)]
struct Outcome {
    /// The address of the shared volume.
    volume: String,
    #[serde(with = "api::raw_path")]
    folder: PathBuf,
    id: String,
    origin: String,
    /// Rows of names that were copied.
    rows: u64,
    /// Rows that a shared volume does not have.
    left_out: u64,
    /// Blobs that the names need, which are all in the origin.
    blobs: u64,
    blob_bytes: u64,
    /// Rows that were copied before, while the volume was mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_while_mounted: Option<u64>,
    /// Where it was mounted.
    #[serde(with = "api::raw_path::option", skip_serializing_if = "Option::is_none")]
    mountpoint: Option<PathBuf>,
    /// Whether the shared volume is mounted there now.
    #[serde(skip_serializing_if = "Option::is_none")]
    mounted_again: Option<bool>,
    /// Whether programs went on using the mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    stayed_mounted: Option<bool>,
    /// How long programs waited, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_seconds: Option<f64>,
    /// An earlier promotion was interrupted after its last step but one, and only that step was left.
    was_finished: bool,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let started = base::time::monotonic();
    if !making::is_address(&args.address) {
        return Err(Failure::usage(format!("{} is no address of a shared volume", args.address.display()))
            .next("write postgres://USER@HOST/DATABASE?volume=NAME"));
    }
    let (dir, mount) = find(args)?;
    let mut progress = term.progress("promote");
    let mut tick = |tick: &Tick| show(&mut progress, tick);
    let mut copied = None;
    let mut daemon = None;
    if let Some(mount) = &mount {
        copied = Some(copy_while_mounted(mount, args, &mut tick)?);
        daemon = Some(Returning::after(mount, &dir, args, &mut tick)?);
    }
    let live = daemon.as_ref().is_some_and(|daemon| daemon.stays);
    let since = base::time::monotonic();
    let done = promoting::promote(&dir, &args.address, live, &mut |now| tick(&now));
    let is_back = daemon.map(|daemon| daemon.comes_back(&mut tick));
    progress.done();
    let waited = live.then(|| (base::time::monotonic() - since).as_secs_f64());
    let done = done.map_err(|failure| is_unmounted(failure, &dir, mount.as_ref(), is_back == Some(true)));
    let Promoted { made, rows, left_out, blobs, blob_bytes, was_finished } = done?;
    let stayed_mounted = mount.is_some().then_some(live);
    let outcome = Outcome {
        volume: made.names,
        folder: dir.path().to_owned(),
        id: made.id,
        origin: made.origin,
        rows,
        left_out,
        blobs,
        blob_bytes,
        rows_while_mounted: copied,
        mountpoint: mount.map(|mount| mount.path),
        mounted_again: is_back,
        stayed_mounted,
        waited_seconds: waited,
        was_finished,
        seconds: (base::time::monotonic() - started).as_secs_f64(),
    };
    term.result(&outcome, || text(&outcome));
    Ok(0)
}

/// The volume's folder, and its mount if it is mounted.
fn find(args: &Args) -> Result<(VolumeDir, Option<Mounted>)> {
    if making::is_address(&args.folder) {
        return Err(Failure::usage("the names of that volume are in a database already")
            .next("name the folder of a volume first, then the address"));
    }
    let whole = |dir: &VolumeDir| {
        Failure::usage("a volume is promoted as a whole")
            .next(format!("name its folder: {}", dir.path().display()))
    };
    match resolve_volume(&args.folder)? {
        Target::Closed { dir, inner } if inner.as_os_str().is_empty() => Ok((dir, None)),
        Target::Closed { dir, .. } => Err(whole(&dir)),
        Target::Mounted(place) => {
            let source = place.mount.source.clone();
            let dir = mounts::volume_of(&place.mount).ok_or_else(|| node::refused::not_a_volume(&source))?;
            let dir = VolumeDir::open(&dir)?;
            match place.inner().as_os_str().is_empty() {
                true if dir.is_shared() => Ok((dir, None)),
                true => Ok((dir, Some(place.mount))),
                false => Err(whole(&dir)),
            }
        }
    }
}

/// Copies the names, and uploads what is on this disk only, while programs use the volume.
fn copy_while_mounted(mount: &Mounted, args: &Args, tick: &mut dyn FnMut(&Tick)) -> Result<u64> {
    let address = args.address.to_string_lossy().into_owned();
    let daemon = ControlAddress::of_source(Path::new(&mount.source));
    let copied = control::ask(&daemon, &Request::CopyNames { address }, tick);
    let copied = copied.map_err(|failure: Failure| match &*failure.code {
        "no-database" => {
            failure.why("the daemon of the mount asked, with the environment that it was started with")
        }
        _ => failure,
    })?;
    flush::mounted(mount, Deadline::after_if(None), tick)?;
    Ok(copied)
}

fn still_used(failure: Failure, args: &Args) -> Failure {
    let (folder, address) = (args.folder.display(), args.address.display());
    failure
        .why("the names are copied, and the last changes move when no program uses the volume")
        .map_next(format!("end those programs, then go on: covey promote {folder} '{address}'"))
}

/// Unmounts as soon as no program uses the volume, at the latest after `--wait`.
fn end_idle(mount: &Mounted, args: &Args, tick: &mut dyn FnMut(&Tick)) -> Result<()> {
    let until = Deadline::after(Duration::from_secs(args.wait.unwrap_or(0)));
    loop {
        let failure = match umount::end_idle(mount) {
            Ok(()) => return Ok(()),
            Err(failure) if &*failure.code == "busy" && !until.is_over() => failure,
            Err(failure) => return Err(still_used(failure, args)),
        };
        let users = failure.why.join("; ");
        tick(&Tick {
            done: 0,
            of: 0,
            what: format!("waiting until no program has the volume open: {users}"),
        });
        std::thread::sleep(LOOK);
    }
}

/// A daemon whose mount was ended, and that mounts again after the promotion.
struct Returning<'a> {
    mount: &'a Mounted,
    pid: Option<u32>,
    handover: Handover,
    /// Whether the daemon keeps the mount, and programs wait.
    stays: bool,
}

impl<'a> Returning<'a> {
    /// Has the daemon close the volume, or unmounts it.
    fn after(
        mount: &'a Mounted,
        dir: &VolumeDir,
        args: &Args,
        tick: &mut dyn FnMut(&Tick),
    ) -> Result<Returning<'a>> {
        let pid = dir.holder()?.map(|holder| holder.pid).filter(|pid| *pid > 0);
        let handover = Handover::begin(dir)?;
        let daemon = ControlAddress::of_source(Path::new(&mount.source));
        let stays = match control::ask::<()>(&daemon, &Request::HandOver, tick) {
            Ok(()) => umount::wait_closed_by_daemon(dir, mount)?,
            Err(failure) if &*failure.code == NOT_PROMOTABLE => {
                end_idle(mount, args, tick)?;
                false
            }
            Err(failure) => return Err(failure),
        };
        Ok(Returning { mount, pid, handover, stays })
    }

    /// Lets the daemon mount again, and waits until it has, or has ended.
    fn comes_back(self, tick: &mut dyn FnMut(&Tick)) -> bool {
        let Returning { mount, pid, handover, stays } = self;
        drop(handover);
        tick(&Tick { done: 0, of: 0, what: "mounting it again".to_owned() });
        let until = Deadline::after(BACK);
        // A process that has ended may still have an entry, until its parent has seen that.
        let lives = || pid.is_some_and(|pid| api::control::state(pid).is_some_and(|state| state != 'Z'));
        let daemon = ControlAddress::of_source(Path::new(&mount.source));
        while !until.is_over() {
            // The mount of a daemon that stays must not be looked at: that would wait for the daemon.
            if stays && control::ask::<serde_json::Value>(&daemon, &Request::Status, &mut |_| ()).is_ok() {
                return true;
            }
            if !stays
                && mounts::at(&mount.path).is_ok_and(|now| now.is_some_and(|now| mounts::is_covey(&now)))
            {
                return true;
            }
            if !lives() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

/// A failure after the volume was unmounted.
fn is_unmounted(failure: Failure, dir: &VolumeDir, mount: Option<&Mounted>, is_back: bool) -> Failure {
    let Some(mount) = mount else { return failure };
    let (folder, place) = (dir.path().display(), mount.path.display());
    if is_back {
        return failure.next(format!("the volume is mounted at {place} again, as it was"));
    }
    failure.next(format!("the volume is not mounted now; to use it as it is: covey mount {folder} {place}"))
}

fn text(outcome: &Outcome) -> String {
    let (folder, address) = (outcome.folder.display(), &outcome.volume);
    let done = match outcome.was_finished {
        true => format!("Finished the promotion of {folder}, which had been interrupted."),
        false => format!(
            "Promoted {folder} in {:.1} s: {} rows of names; {} blobs ({}) stay in {}.",
            outcome.seconds,
            count(outcome.rows),
            count(outcome.blobs),
            bytes(outcome.blob_bytes),
            outcome.origin
        ),
    };
    if let (Some(true), Some(place)) = (outcome.mounted_again, &outcome.mountpoint) {
        let place = place.display();
        if let Some(waited) = outcome.waited_seconds {
            return format!(
                "{done}\nPrograms at {place} waited for {waited:.1} s, and go on with it; on other machines: covey mount '{address}' MOUNTPOINT"
            );
        }
        return format!(
            "{done}\nIt is mounted at {place} again; on other machines: covey mount '{address}' MOUNTPOINT"
        );
    }
    let place = outcome.mountpoint.as_ref().map_or("MOUNTPOINT".into(), |place| place.display().to_string());
    format!(
        "{done}\nNext, here: covey mount {folder} {place}; on other machines: covey mount '{address}' MOUNTPOINT"
    )
}
