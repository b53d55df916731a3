//! `covey mount`: mounts a volume, in the foreground or with `-d` in the background.

use std::path::PathBuf;

use api::error::{Failure, Result};
use node::frozen::Interval;
use node::opened::Source;
use node::running::Plan;
use node::shared::making;
use node::volume_dir::VolumeDir;

use crate::args::fleet::Fleet;
use crate::args::s3::S3;
use crate::args::ui::Ui;
use crate::args::{Accept, Every, Lists, Reach, Shown, Transport};
use crate::beside::Beside;
use crate::daemon;
use crate::term::Term;

/// Mounts a volume; stays until it is unmounted or Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = format!(
    "Examples:\n  covey mount /srv/volume /mnt/covey\n  covey mount -d -o ro,nosuid /srv/volume /mnt/covey\n  \
     covey mount mem: /mnt/scratch      a volume that lives in memory\n  \
     covey mount -o frozen /srv/volume /mnt/covey      one whose tree stays as it is while it is mounted\n  \
     covey mount file:/srv/volume/blobs@nightly /mnt/n      a tree that was published, as it was then\n  \
     covey mount --s3 127.0.0.1:9878 --s3-keys keys.toml /srv/volume /mnt/covey      also for S3 clients\n  \
     covey mount corpus:7,1000,64K /mnt/c   1,000 files of 64 KiB, derived from the seed 7, named by their SHA-256\n\nMount options:\n{}", node::options::help()))]
pub struct Args {
    /// The volume's folder; ORIGIN@NAME for a published tree; mem: for a volume that lives in memory;
    /// corpus:SEED,N,SIZE for N random files of a seed; the second and the last are read-only;
    /// postgres://USER@HOST/DATABASE?volume=NAME or etcd://HOST:2379/?volume=NAME for a shared volume
    volume: PathBuf,
    /// An existing folder
    mountpoint: PathBuf,
    /// Stay in the background once it is mounted; messages go to VOLUME/covey.log, those of a published tree
    /// to log/TREE.log in its cache folder
    #[arg(long, short = 'd')]
    background: bool,
    #[command(flatten)]
    options: Lists,
    #[command(flatten)]
    transport: Transport,
    #[command(flatten)]
    shown: Shown,
    #[command(flatten)]
    every: Every,
    #[command(flatten)]
    accept: Accept,
    #[command(flatten)]
    reach: Reach,
    /// Of a tree in an object store: where to keep what was fetched [default: covey/trees in the user's cache
    /// folder]. Of a shared volume: this node's folder [default: covey/shared/ID in the user's state folder]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Of a published tree: move to what is published under its name next; looks every so many seconds
    /// [default with --follow: 10]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "10")]
    follow: Option<Interval>,
    /// With --follow: a folder that is removed keeps its files for programs and overlays that hold it
    #[arg(long)]
    keep_removed: bool,
    #[command(flatten)]
    fleet: Fleet,
    #[command(flatten)]
    s3: S3,
    #[command(flatten)]
    ui: Ui,
    /// Make the origin this folder's to write to, though another folder has claimed it since or this one is a
    /// copy or from a backup: the other may only be read from then on, and must not be in use any more
    #[arg(long)]
    take_over: bool,
    /// Look whether it could be mounted, and do not mount it
    #[arg(long, hide = true)]
    fake: bool,
    /// The descriptor on which a parent waits for news
    #[arg(long, hide = true)]
    ready_fd: Option<i32>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    daemon::with_parent(args.ready_fd, |parent| {
        let fleet = args.fleet.options();
        let source = match Source::by_word(&args.volume)? {
            Some(Source::Published(tree)) => {
                let tree = tree.accepting(&args.accept.accept())?;
                Source::Published(
                    tree.reached(&args.reach.reach(), args.cache.as_deref())?
                        .following(args.follow)?
                        .keeping(args.keep_removed)
                        .in_fleet(&fleet)?,
                )
            }
            Some(_) if fleet.is_on() => return Err(no_fleet()),
            Some(_) if args.follows() => return Err(nothing_to_follow()),
            Some(source) => source,
            None if making::is_address(&args.volume) => {
                Source::in_folder(making::node_folder(&args.volume, args.cache.as_deref())?, fleet)
            }
            None if fleet.is_on() => match VolumeDir::open(&args.volume)? {
                dir if dir.is_shared() => Source::in_folder(dir, fleet),
                _ => return Err(no_fleet()),
            },
            None if args.follows() => return Err(nothing_to_follow()),
            None => Source::in_folder(VolumeDir::open(&args.volume)?, fleet),
        };
        let plan = Plan {
            source,
            mountpoint: args.mountpoint.clone(),
            options: args.options.parse()?,
            transport: args.transport.transport(),
            shown: args.shown.shown(),
            every: args.every.every(),
            take_over: args.take_over,
        };
        let claims = matches!(plan.source, Source::Folder(_));
        if plan.take_over && (!claims || plan.options.read_only || plan.options.frozen) {
            return Err(nothing_to_take_over());
        }
        if args.fake {
            return Ok(0);
        }
        let beside = Beside { s3: args.s3.clone(), ui: args.ui.clone() };
        if args.background {
            daemon::in_background(&plan, &beside, term)
        } else {
            daemon::run(&plan, &beside, parent, term)
        }
    })
}

fn no_fleet() -> Failure {
    Failure::usage("only nodes that mount a published tree or a shared volume are a fleet")
        .why("this volume is one node's at a time")
        .next("publish it, and mount ORIGIN@NAME with --join on every node")
}

fn nothing_to_take_over() -> Failure {
    Failure::usage("only a volume that is mounted for writing can take its origin over")
        .next("leave --take-over out, or mount a volume's folder without -o ro")
}

impl Args {
    /// Whether something is asked for that only a name can give.
    fn follows(&self) -> bool {
        self.follow.is_some() || self.keep_removed
    }
}

fn nothing_to_follow() -> Failure {
    Failure::usage("only the name of a published tree can be followed")
        .next("mount ORIGIN@NAME; covey published ORIGIN lists the names")
}
