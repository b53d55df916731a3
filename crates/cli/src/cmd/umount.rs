//! `covey umount`: ends a mount and waits until its volume is closed.
//!
//! A mount can be removed cleanly only if no process uses it. If the kernel reports it busy, the processes
//! that use it are named. The mount of a dead daemon can always be removed. If a daemon runs and does not
//! answer, its mount is removed only with `--force`, because the daemon may continue.
//!
//! After unmounting, the daemon still writes out its data. The command returns when the volume's lock is
//! free. So a following copy or mount finds a complete volume. Other holders of the mount are named
//! ([`node::others`]).
//!
//! `--wait` is one limit for everything: the flush before, the unmount, and the closing after it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::control::{ControlAddress, Request};
use api::error::{Failure, Result};
use api::raw_path::RawPath;
use api::text::span;
use base::Deadline;
use fuse::mount::{ANSWER_WITHIN, Life, Mounted};
use fuse::{Unmount, UnmountError};
use node::control;
use node::mounts;
use node::opened::Node;
use node::options::NodeOptions;
use node::others::Others;
use node::remote_side;
use node::volume_dir::VolumeDir;
use serde::Serialize;

use crate::cmd::clone::show;
use crate::cmd::flush;
use crate::term::Term;

/// How long to retry if the mount is busy but no process can be named.
const PASSING: Duration = Duration::from_secs(2);
/// How long to wait for the volume to close, unless a limit is given.
const CLOSING: Duration = Duration::from_secs(120);
/// How long the daemon may take to store what was written, before the mount is removed.
const STORING: Duration = Duration::from_secs(15);
/// How long to wait for the volume to close if something else still has the mount. It may be about to end,
/// like a container that stops.
const LEAVING: Duration = Duration::from_secs(5);

/// Unmounts a volume and waits until it is closed
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey umount /mnt/covey\n  covey umount --lazy /mnt/covey      detach now, end when its last user is gone\n  \
    covey umount --flush /mnt/covey     only when everything is in the origin"
)]
pub struct Args {
    /// Where it is mounted (or the volume's folder)
    mountpoint: PathBuf,
    /// Detach it from the tree at once; it ends when its last user is gone
    #[arg(long, short, conflicts_with = "force")]
    lazy: bool,
    /// End it even if its daemon does not answer or other mount namespaces have it: requests under way fail,
    /// what was not handed over is lost
    #[arg(long, short)]
    force: bool,
    /// Wait first until everything is in the origin; without it what is not uploaded yet stays on this disk
    /// for the next mount
    #[arg(long, conflicts_with_all = ["lazy", "force"])]
    flush: bool,
    /// Give up after so many seconds, with --flush too [default: 120 for the volume to be closed; a flush
    /// takes as long as it takes]
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    /// Only if the daemon is dead; otherwise does nothing and succeeds
    #[arg(long, conflicts_with_all = ["force", "lazy"])]
    stale: bool,
}

#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(with = "api::raw_path")]
    mountpoint: PathBuf,
    volume: String,
    was_dead: bool,
    closed: bool,
    seconds: f64,
    not_uploaded_blobs: u64,
    not_uploaded_bytes: u64,
    /// Why something that was written is not stored. `null`: all of it is.
    not_stored: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let started = base::time::monotonic();
    let deadline = Deadline::after_if(args.wait.map(Duration::from_secs));
    if args.stale && !is_stale(&args.mountpoint)? {
        let outcome =
            serde_json::json!({ "mountpoint": RawPath::from(&*args.mountpoint), "was_dead": false });
        term.result(&outcome, || format!("There is no dead mount at {}.", args.mountpoint.display()));
        return Ok(0);
    }
    let mount = match find(&args.mountpoint)? {
        Found::Mounted(mount) => mount,
        Found::Elsewhere(dir) => return end_elsewhere(&dir, args, deadline, term),
    };
    let life = mount.life(deadline.within(ANSWER_WITHIN));
    if life == Life::Silent && !args.force && !args.lazy {
        return Err(control::silent(&ControlAddress::of_source(Path::new(&mount.source)), ANSWER_WITHIN));
    }
    let was_dead = life == Life::Dead;
    let how = match args {
        _ if was_dead => Unmount::Lazy,
        Args { force: true, .. } => Unmount::Force,
        Args { lazy: true, .. } => Unmount::Lazy,
        _ => Unmount::Polite,
    };
    if args.flush && !was_dead {
        let mut progress = term.progress("flush");
        flush::mounted(&mount, deadline, &mut |tick| show(&mut progress, tick))?;
        progress.done();
    }
    let stored = if how == Unmount::Polite { store(&mount, deadline) } else { Ok(()) };
    detach(&mount.path, how)?;
    let closed = wait_closed(&mount, args, deadline, term)?;
    if args.flush {
        flush_rest(&mount, deadline, term)?;
    }
    let (not_uploaded_blobs, not_uploaded_bytes) = if closed { not_uploaded(&mount) } else { (0, 0) };
    let outcome = Outcome {
        mountpoint: mount.path.clone(),
        volume: mount.source.clone(),
        was_dead,
        closed,
        seconds: (base::time::monotonic() - started).as_secs_f64(),
        not_uploaded_blobs,
        not_uploaded_bytes,
        not_stored: stored.err().map(|failure| failure.in_one_line()),
    };
    term.result(&outcome, || {
        let place = outcome.mountpoint.display();
        let done = match (was_dead, closed) {
            (true, _) => format!("Took away the dead mount at {place}."),
            (false, true) => format!("Unmounted {place}; the volume is closed ({}).", span(outcome.seconds)),
            (false, false) => format!("Detached {place}; the volume closes when its last user is gone."),
        };
        let done = match not_uploaded_blobs {
            0 => done,
            blobs => format!("{done}\n{}.", remote_side::not_uploaded(blobs, not_uploaded_bytes)),
        };
        match &outcome.not_stored {
            None => done,
            Some(why) => format!("{done}\nNot everything that was written is stored: {why}"),
        }
    });
    Ok(u8::from(outcome.not_stored.is_some()))
}

/// Has the daemon store what programs have written. What it cannot store now, it most likely cannot store
/// when it ends, and then nobody would be told.
fn store(mount: &Mounted, deadline: Deadline) -> Result<()> {
    let within = deadline.sooner(Deadline::after(STORING));
    fuse::mount::hand_over(&mount.path, within.within(flush::HAND_OVER).left());
    let address = ControlAddress::of_source(Path::new(&mount.source));
    match within.scope(|| control::ask::<()>(&address, &Request::Flush, &mut |_| {})) {
        // It does not speak to this user, or serves a guest.
        Err(failure) if matches!(&*failure.code, "not-permitted" | "no-answer") => Ok(()),
        done => done,
    }
}

/// Flushes the rest: data written after the first flush, or left by a daemon that died.
fn flush_rest(mount: &Mounted, deadline: Deadline, term: Term) -> Result<()> {
    let Some(dir) = volume_dir(mount).filter(|dir| dir.not_uploaded().0 > 0) else { return Ok(()) };
    let mut progress = term.progress("flush");
    deadline.scope(|| {
        let node = Node::open(&dir, &NodeOptions::writing("flush"))?;
        flush::closed(&node, deadline, &mut |tick| show(&mut progress, &tick))
    })?;
    progress.done();
    Ok(())
}

fn volume_dir(mount: &Mounted) -> Option<VolumeDir> {
    mounts::volume_of(mount).and_then(|path| VolumeDir::open(&path).ok())
}

/// Blobs and bytes that the origin does not have yet.
fn not_uploaded(mount: &Mounted) -> (u64, u64) {
    volume_dir(mount).map_or((0, 0), |dir| dir.not_uploaded())
}

/// Unmounts. If the mount is busy but no process can be named, the cause is often a program that briefly
/// looked at every mount, as df does. So this is retried for a moment.
fn detach(mountpoint: &Path, how: Unmount) -> Result<()> {
    let until = base::time::monotonic() + PASSING;
    loop {
        match fuse::unmount(mountpoint, how) {
            Err(UnmountError::Busy(_))
                if base::time::monotonic() < until && mounts::users_of(mountpoint).is_empty() =>
            {
                std::thread::sleep(Duration::from_millis(50));
            }
            other => return other.map_err(|error| refused(mountpoint, error)),
        }
    }
}

/// Unmounts a volume that no program uses, and waits until it is closed.
pub fn end_idle(mount: &Mounted) -> Result<()> {
    detach(&mount.path, Unmount::Polite)?;
    let Some(dir) = volume_dir(mount) else { return Ok(()) };
    match dir.wait_free(CLOSING)? {
        true => Ok(()),
        false => Err(not_closed(&dir, &Others::of_volume(dir.path()), &mount.path, CLOSING)?),
    }
}

/// Waits until a daemon that keeps its mount has closed its volume. Returns true.
pub fn wait_closed_by_daemon(dir: &VolumeDir, mount: &Mounted) -> Result<bool> {
    match dir.wait_free(CLOSING)? {
        true => Ok(true),
        false => Err(not_closed(dir, &Others::none(), &mount.path, CLOSING)?),
    }
}

/// What a path refers to.
#[derive(Debug)]
enum Found {
    /// A mount here.
    Mounted(Mounted),
    /// A volume that is mounted only in other mount namespaces.
    Elsewhere(VolumeDir),
}

/// The source of a mount of an image, in the table of mounts.
pub const IMAGE: &str = "covey-image";

/// The mount at the path, or the mount of the volume at the path.
fn find(path: &Path) -> Result<Found> {
    let shown = path.display();
    let found = match mounts::at(path)? {
        None => mounts::of_volume(&mounts::absolute(path)?),
        found => found,
    };
    match found {
        Some(mount) if mounts::is_covey(&mount) => Ok(Found::Mounted(mount)),
        // Its record and the folder for what was written would stay.
        Some(mount) if mount.source == IMAGE => {
            Err(Failure::new("not-mounted", format!("the mount at {shown} is one of an image"))
                .next(format!("covey image umount {shown}")))
        }
        Some(mount) => Err(Failure::new("not-mounted", format!("what is mounted at {shown} is not Covey's"))
            .why(format!("it is of type {}", mount.kind))
            .next(format!("umount {shown}"))),
        None => {
            if mounts::entered(path).is_none()
                && let Ok(dir) = VolumeDir::open(path)
                && dir.holder()?.is_some_and(|holder| holder.mountpoint.is_some())
            {
                return Ok(Found::Elsewhere(dir));
            }
            let failure = Failure::new("not-mounted", format!("nothing is mounted at {shown}"));
            Err(match mounts::entered(path) {
                Some((mount, _)) => failure
                    .why("it is inside a mount, not its top")
                    .next(format!("covey umount {}", mount.path.display())),
                None => failure.next("covey df lists what is mounted"),
            })
        }
    }
}

/// Whether a Covey mount is there and its daemon is dead.
fn is_stale(mountpoint: &Path) -> Result<bool> {
    Ok(mounts::at(mountpoint)?.is_some_and(|mount| {
        mounts::is_covey(&mount) && mount.life(Deadline::after(ANSWER_WITHIN)) == Life::Dead
    }))
}

/// The failure for an unmount that did not succeed.
pub fn refused(mountpoint: &Path, error: UnmountError) -> Failure {
    let place = mountpoint.display();
    match error {
        UnmountError::Busy(_) => busy(mountpoint),
        UnmountError::Io { source, .. } => Failure::io(format!("cannot unmount {place}"), &source),
        other => Failure::new("not-mounted", other.to_string()).next("covey df lists what is mounted"),
    }
}

/// The failure "busy", with the processes that use the mount.
pub fn busy(mountpoint: &Path) -> Failure {
    const NAMED: usize = 5;
    let place = mountpoint.display();
    let mut failure = Failure::new("busy", format!("{place} is busy"));
    let users = mounts::users_of(mountpoint);
    for user in users.iter().take(NAMED) {
        failure = failure.why(format!("process {} ({}) has it as {}", user.pid, user.name, user.holds));
    }
    if users.len() > NAMED {
        failure = failure.why(format!("and {} more processes", users.len() - NAMED));
    }
    if users.is_empty() {
        failure = failure
            .why("something uses it that this user may not see, or another filesystem is mounted below it");
    }
    failure
        .next("leave that folder or end those processes, then unmount again")
        .next(format!("or detach it now, to end with its last user: covey umount --lazy {place}"))
}

/// Ends the mount of a volume that only other mount namespaces still have.
fn end_elsewhere(dir: &VolumeDir, args: &Args, deadline: Deadline, term: Term) -> Result<u8> {
    let started = base::time::monotonic();
    let closing = deadline.sooner(Deadline::after(CLOSING));
    if !args.force || !dir.wait_free(Duration::ZERO)? {
        let others = Others::of_volume(dir.path());
        if !args.force || others.is_empty() {
            if dir.wait_free(closing.within(LEAVING).left())? {
                return Ok(0);
            }
            return Err(not_closed(dir, &others, dir.path(), started.elapsed())?);
        }
        others.end(closing)?;
        if !dir.wait_free(closing.left())? {
            return Err(not_closed(dir, &Others::of_volume(dir.path()), dir.path(), started.elapsed())?);
        }
    }
    let (not_uploaded_blobs, not_uploaded_bytes) = dir.not_uploaded();
    let outcome = Outcome {
        mountpoint: args.mountpoint.clone(),
        volume: dir.path().display().to_string(),
        was_dead: false,
        closed: true,
        seconds: started.elapsed().as_secs_f64(),
        not_uploaded_blobs,
        not_uploaded_bytes,
        not_stored: None,
    };
    term.result(&outcome, || {
        format!(
            "Ended the mounts of {} in other mount namespaces; the volume is closed.",
            dir.path().display()
        )
    });
    Ok(0)
}

/// Waits until the volume is closed. If something else still has the mount, the wait is short, and the
/// failure names it.
fn wait_closed(mount: &Mounted, args: &Args, deadline: Deadline, term: Term) -> Result<bool> {
    let Some(dir) = volume_dir(mount) else {
        // A volume in memory or a published tree has nothing to write out.
        if args.force {
            Others::of_mount(mount).end(deadline)?;
        }
        return Ok(true);
    };
    let started = base::time::monotonic();
    let quick = Duration::from_millis(1_500);
    if dir.wait_free(quick)? {
        return Ok(true);
    }
    if args.lazy {
        return Ok(false);
    }
    let closing = deadline.sooner(Deadline::after(CLOSING));
    let mut others = Others::of_mount(mount);
    if args.force && !others.is_empty() {
        others.end(closing)?;
        others = Others::none();
    }
    if !others.is_empty() || is_stopped(&dir)?.is_some() {
        if dir.wait_free(closing.within(LEAVING).left())? {
            return Ok(true);
        }
    } else {
        term.say(format_args!("Unmounted; waiting for the daemon to write down the rest ..."));
        if dir.wait_free(closing.left())? {
            return Ok(true);
        }
    }
    Err(not_closed(&dir, &others, &mount.path, started.elapsed())?)
}

/// The process that holds the volume, if it is stopped.
fn is_stopped(dir: &VolumeDir) -> Result<Option<u32>> {
    let pid = dir.holder()?.map(|holder| holder.pid);
    Ok(pid.filter(|pid| api::control::state(*pid).is_some_and(|state| matches!(state, 'T' | 't'))))
}

/// The failure "unmounted but not closed", with the cause.
fn not_closed(dir: &VolumeDir, others: &Others, place: &Path, waited: Duration) -> Result<Failure> {
    let pid = dir.holder()?.map_or(0, |holder| holder.pid);
    let volume = dir.path();
    let what = format!("{} is unmounted here, but its volume is not closed yet", place.display());
    let failure = Failure::new("busy", what);
    if !others.is_empty() {
        return Ok(others.explain(failure, volume));
    }
    if let Some(pid) = is_stopped(dir)? {
        return Ok(failure
            .why(format!("process {pid} still has it, and is stopped (by a signal, or by a debugger)"))
            .next(format!("let it go on: kill -CONT {pid}"))
            .next(format!("or end it; the volume is sound all the same: kill -KILL {pid}")));
    }
    let log = dir.log();
    Ok(failure.why(format!("process {pid} still has it, after {:.0} s", waited.as_secs_f64())).next(format!(
        "look at {} and wait; the volume is sound even if that process is killed",
        log.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_left_alone() {
        assert_eq!(find(Path::new("/proc")).unwrap_err().code, "not-mounted");
        assert!(find(Path::new("/proc")).unwrap_err().next[0].starts_with("umount "));
        assert_eq!(find(Path::new("/proc/self")).unwrap_err().code, "not-mounted");
    }

    #[test]
    fn the_busy_are_named() {
        // A folder that no other process uses: only five are named.
        let folder = tempfile::tempdir().unwrap();
        let _held = std::fs::File::create(folder.path().join("held")).unwrap();
        let failure = busy(folder.path());
        assert!(failure.to_string().contains(&format!("process {}", std::process::id())), "{failure}");
    }
}
