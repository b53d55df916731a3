//! `covey snapshotter`: layers of a folder of images for containerd, without unpacking them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Context, Failure, Result};
use fuse::Unmount;
use fuse::mount::ANSWER_WITHIN;
use node::{limits, log, mounts, notify, signals};
use serde::Serialize;
use snapshotter::server::{Bound, Server};
use snapshotter::snapshots::Snapshots;
use snapshotter::store::Store;

use crate::images::overlay::Overlay;
use crate::images::{images_at, tree, users};
use crate::reading::split;
use crate::term::Term;

mod keeping;

use keeping::{Keeping, OnMount, State};

/// How often the mount of the tree is looked at.
const LOOK: Duration = Duration::from_secs(3);

/// Gives containerd the layers of a folder of images, so that it neither fetches nor unpacks them
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey snapshotter --source s3://bucket/prefix@images\n  \
    covey snapshotter --source s3://bucket/prefix@images -- --follow --join 10.0.0.1:7500 \\\n    \
    --secret-file /etc/covey/secret\n  \
    covey snapshotter --source /mnt/covey/images --root /srv/snapshots\n\n\
    In containerd's config.toml:\n  [proxy_plugins.covey]\n    type = \"snapshot\"\n    \
    address = \"/run/covey-snapshotter.sock\"\n\n\
    Kubernetes and nerdctl then start containers from images whose layers are there at once. A layer\n\
    that is not there is fetched and unpacked below --root, as by any snapshotter.\n\
    docs/CONTAINERS.md says more.")]
pub struct Args {
    /// Where containerd finds it: unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "unix:/run/covey-snapshotter.sock")]
    on: String,
    /// The folder of images on a mount; or ORIGIN@NAME, which is mounted below --root
    #[arg(long, value_name = "PLACE")]
    source: PathBuf,
    /// Where to keep snapshots and what is written to them; on a disk that overlayfs can write to
    #[arg(long, value_name = "DIR", default_value = "/var/lib/covey/snapshotter")]
    root: PathBuf,
    /// More arguments for covey mount of ORIGIN@NAME, such as --follow and --join
    #[arg(last = true, value_name = "ARGUMENTS")]
    more: Vec<String>,
}

#[derive(Serialize)]
struct Serving {
    address: String,
    #[serde(with = "api::raw_path")]
    source: PathBuf,
    #[serde(with = "api::raw_path")]
    root: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    if api::caller::euid() != 0 {
        return Err(Failure::new("not-permitted", "a snapshotter runs as root")
            .why("layers have owners and attributes that only root can set")
            .next("run it as root (or with sudo)"));
    }
    let socket = socket(&args.on)?;
    signals::block();
    limits::check(limits::For::Daemon)?;
    crate::images::made::private_folder(&args.root)?;
    let root = mounts::absolute(&args.root)?;
    check_overlay(&root)?;
    // It locks the folder, so that two programs do not mount at one place.
    let store = Store::open(&root)?;
    let source = Source::reach(args, &root)?;
    let served = start(store, &socket, &source);
    let ended = served.map(|(server, snapshots)| {
        let keeping = Keeping::new(source.tree.clone(), &args.more);
        stay(server, &snapshots, keeping, &socket, args, term);
        snapshots.layers_in_use()
    });
    // Layers in use keep the mount: the next start goes on with it, and containers read from it meanwhile.
    let closed = source.close(ended.as_ref().is_ok_and(|layers| *layers == 0) || ended.is_err());
    ended?;
    closed?;
    Ok(0)
}

fn socket(text: &str) -> Result<PathBuf> {
    match text.strip_prefix("unix:").filter(|path| Path::new(path).is_absolute()) {
        Some(path) => Ok(PathBuf::from(path)),
        None => Err(Failure::usage(format!("{text} is no address of a unix socket"))
            .why("containerd asks a snapshotter at a unix socket of its machine")
            .next("write --on unix:/run/covey-snapshotter.sock")),
    }
}

fn start(store: Store, socket: &Path, source: &Source) -> Result<(Server, Arc<Snapshots>)> {
    store.point_at(&source.images)?;
    let layers = OnMount::new(source.images.clone(), source.mount()?);
    let snapshots = Arc::new(Snapshots::new(store, Box::new(layers), log::warn)?);
    let server = Bound::new(socket)?.serve(Arc::clone(&snapshots))?;
    Ok((server, snapshots))
}

/// The folder of images.
struct Source {
    images: PathBuf,
    /// The published tree that is mounted for it, and where.
    tree: Option<(String, PathBuf)>,
}

impl Source {
    fn reach(args: &Args, root: &Path) -> Result<Source> {
        let Some((name, inner)) = split(&args.source) else {
            let images = tree::on_mount(&args.source, &args.more)?;
            return with_images(Source { images, tree: None }, &args.source);
        };
        let at = root.join("tree");
        let tree = Some((name.to_owned(), at.clone()));
        let mut lives = false;
        if let Some(mount) = mounts::at(&at)? {
            let ours = mounts::is_covey(&mount);
            let ours_is = keeping::state(&at, ANSWER_WITHIN);
            let same = api::source::tree(&mount.source) == Some(name);
            if ours && ours_is == State::Dead {
                keeping::detach(&at)?;
            } else if ours && ours_is == State::Silent && same {
                // Images that need nothing of it can be used. It may answer again later.
                log::warn(&format!("the mount at {} does not answer", at.display()));
                let images = fs::read_link(root.join("source")).ok().filter(|path| path.starts_with(&at));
                let images = images.unwrap_or_else(|| at.join(inner.trim_start_matches('/')));
                return Ok(Source { images, tree });
            } else if ours && same {
                log::line(&format!("goes on with the mount at {}, as it is", at.display()));
                lives = true;
            } else {
                return Err(Failure::new(
                    "in-use",
                    format!("{} is mounted at {}", mount.source, at.display()),
                )
                .why(format!("{name} would be mounted there"))
                .next(format!(
                    "unmount it, or name another folder with --root: covey umount {}",
                    at.display()
                )));
            }
        }
        if !lives {
            tree::mount(name, &args.more, &at)?;
        }
        let images = images_at(&at.join(inner.trim_start_matches('/')));
        with_images(Source { images, tree }, &args.source)
    }

    /// Where the mount is that the images are on.
    fn mount(&self) -> Result<Option<PathBuf>> {
        match &self.tree {
            Some((_, at)) => Ok(Some(at.clone())),
            None => Ok(mounts::covey_of(&self.images)?.map(|mount| mount.path)),
        }
    }

    /// Unmounts the tree if `idle` and if no overlay uses it.
    fn close(self, idle: bool) -> Result<()> {
        let Some((_, at)) = self.tree else { return Ok(()) };
        match keeping::state(&at, ANSWER_WITHIN) {
            State::Lives | State::Gone => {}
            State::Dead => {
                let _ = fuse::unmount(&at, Unmount::Lazy);
                return Ok(());
            }
            State::Silent => {
                log::line(&format!("{} stays mounted: it does not answer", at.display()));
                return Ok(());
            }
        }
        let user = users::overlays()?.into_iter().find(|overlay| overlay.uses(&at));
        if !idle || user.is_some() {
            let by = user.map_or("snapshots".to_owned(), |user| user.at.display().to_string());
            log::line(&format!("{} stays mounted: it is used by {by}", at.display()));
            return Ok(());
        }
        if let Some(mount) = mounts::at(&at)?.filter(mounts::is_covey) {
            crate::cmd::umount::end_idle(&mount)?;
        }
        fs::remove_dir(&at).at("remove", &at)
    }
}

fn with_images(source: Source, text: &Path) -> Result<Source> {
    if source.images.join("layers").is_dir() {
        return Ok(source);
    }
    let failure = Failure::new("not-found", format!("{} holds no images", text.display()))
        .next("import one first: covey import docker://HOST/NAME:TAG /mnt/covey/images; then publish it")
        .next("or name the folder of images: ORIGIN@NAME:/PATH, or a path on a mount");
    source.close(true)?;
    Err(failure)
}

/// Mounts a small overlay, because containerd's message would say only that a mount is invalid.
fn check_overlay(root: &Path) -> Result<()> {
    let below = root.join(".check");
    crate::images::made::remove_tree(&below)?;
    let [lower, upper, work, at] = ["lower", "upper", "work", "at"].map(|name| below.join(name));
    [&lower, &upper, &work, &at]
        .into_iter()
        .try_for_each(|folder| fs::create_dir_all(folder).at("make", folder))?;
    let overlay = Overlay { lower: &[lower], upper: &upper, work: &work, temporary: true };
    let mounted = overlay.mount(&at).map_err(|failure| {
        Failure::new("unsupported", format!("no overlay can be written below {}", root.display()))
            .why(failure.in_one_line())
            .next("name a folder on ext4, XFS or tmpfs: --root DIR")
    });
    if mounted.is_ok() {
        crate::images::overlay::end(&at).at("unmount", &at)?;
    }
    let removed = crate::images::made::remove_tree(&below);
    mounted.and(removed)
}

/// Answers until a signal arrives.
fn stay(server: Server, snapshots: &Snapshots, mut keeping: Keeping, socket: &Path, args: &Args, term: Term) {
    let line = format!("gives containerd the layers of {} at {}", args.source.display(), socket.display());
    notify::ready(&line);
    if term.is_json() {
        let (address, source, root) = (args.on.clone(), args.source.clone(), args.root.clone());
        term.result(&Serving { address, source, root }, String::new);
    } else {
        log::line(&format!("{line}; Ctrl-C ends it"));
    }
    while keeping.look(snapshots) && !signals::next_within(Some(LOOK)) {}
    log::line("a signal: ending");
    notify::stopping();
    drop(server);
}
