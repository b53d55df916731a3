//! A mount from beginning to end: open the volume, mount it, listen, wait, unmount, close.
//!
//! ```text
//!   Running::start   the volume is open, the kernel sends requests, the control socket answers
//!   Running::go_on   publishing and following begin
//!   Running::wait    until the mount has ended
//!   Running::finish  what the kernel handed over is durable, the volume is closed
//! ```
//!
//! A front end prints, takes signals and ends the mount by a [`Handle`]. Nothing here knows terminals.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::control::{ControlAddress, Listener, Publishers};
use api::error::{Failure, Result};
use api::status::{Endpoint, Mode, Status};
use blob::Access;
use fs::api::{Filesystem, Locks};
use fuse::{Session, Unmount, UnmountError, Unmounter};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::again::{Every, Publishing};
use crate::follow::Watching;
use crate::heat::Heating;
use crate::kernel::Kernel;
use crate::memory::Trimmer;
use crate::mount::{Mount, Short, Slot};
use crate::opened::{Node, Source};
use crate::options::{MountOptions, NodeOptions};
use crate::refused::not_mounted;
use crate::watch::{self, Shown};
use crate::{limits, log, metrics, mounts, notify, origins, signals, trash};

pub mod replacing;
mod serving;

use serving::Daemon;

/// A mount to create.
#[derive(Debug)]
pub struct Plan {
    /// The source.
    pub source: Source,
    /// The mountpoint.
    pub mountpoint: PathBuf,
    /// The mount options.
    pub options: MountOptions,
    /// How requests arrive and replies leave.
    pub transport: Transport,
    /// What the daemon publishes about itself while it serves.
    pub shown: Shown,
    /// Repeated publication while it is mounted.
    pub every: Every,
    /// Claim the origin for this folder, even if another folder holds the claim.
    pub take_over: bool,
}

impl Plan {
    /// A mount with the usual options.
    pub fn of(source: Source, mountpoint: &Path) -> Plan {
        Plan {
            source,
            mountpoint: mountpoint.to_owned(),
            options: MountOptions::default(),
            transport: Transport::default(),
            shown: Shown::default(),
            every: Every::never(),
            take_over: false,
        }
    }
}

/// How the kernel's requests reach the daemon.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// Over io_uring or /dev/fuse.
    pub kind: fuse::Transport,
    /// Threads that read requests from /dev/fuse. 0 means one per core.
    pub readers: usize,
    /// Over io_uring, each program stays on the CPU where it sends its requests.
    pub yields: bool,
}

impl Default for Transport {
    fn default() -> Transport {
        Transport { kind: fuse::Transport::default(), readers: 0, yields: true }
    }
}

/// What is known about an existing mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mounted {
    /// The mount's source: the volume's folder, or a word such as `mem:<id>`.
    pub volume: String,
    /// The mountpoint.
    #[serde(with = "api::raw_path")]
    pub mountpoint: PathBuf,
    /// What it guarantees about changes.
    pub mode: Mode,
    /// The process that serves it.
    pub pid: u32,
    /// What a user should know about how it was mounted.
    pub remarks: Vec<String>,
}

/// A mount that is being served.
pub struct Running {
    publishing: Option<Publishing>,
    following: Option<Watching>,
    /// None while the volume is being replaced.
    listener: Option<Listener>,
    served: Arc<Daemon>,
    ended: Arc<AtomicBool>,
    every: Every,
}

/// How often a daemon looks whether its volume is to be replaced.
const LOOK: Duration = Duration::from_millis(100);

/// How a mount ended.
#[derive(Clone, Debug)]
pub struct End {
    /// The mount was ended by force. What the kernel had not handed over is lost.
    pub aborted: bool,
    /// The mountpoint.
    pub mountpoint: PathBuf,
}

impl Running {
    /// Opens the source, mounts it, and answers on its control socket.
    pub fn start(plan: &Plan) -> Result<Running> {
        let mountpoint = mounts::absolute(&plan.mountpoint)?;
        if let Some((mount, below)) = mounts::entered(&mountpoint)
            && !below.as_os_str().is_empty()
        {
            mounts::life(&mount)?;
        }
        check_places(&plan.source, &mountpoint)?;
        check_locks(plan)?;
        let publishers = publishers(plan)?;
        let page = plan
            .shown
            .metrics
            .as_deref()
            .map(|at| metrics::bind(at, plan.shown.metrics_public))
            .transpose()?;
        if let Some(dir) = plan.source.dir() {
            log::of_volume(&dir.path().display().to_string());
        }
        log::debug(|| format!("opening {}", plan.source.name().display()));
        let open = || Mount::open(&plan.source, &node_options(plan, &mountpoint));
        let node = Arc::new(signals::ending(&format!("opening {}", plan.source.name().display()), open)?);
        log::of_volume(&node.name());
        trash::keep(&node, plan.options.trash)?;
        let endpoint = node.as_node().and_then(Node::endpoint);
        origins::clear_line(endpoint.as_deref()).iter().for_each(|line| log::warn(line));
        let session = match Session::mount(node.filesystem(), &mountpoint, session_options(plan, &node)) {
            Ok(session) => Arc::new(session),
            Err(error) => {
                node.close()?;
                return Err(not_mounted(error));
            }
        };
        session.warnings().iter().for_each(|warning| log::warn(warning));
        if let Some(node) = node.as_node() {
            node.shown().asks_the_kernel(Arc::new(session.notifier()));
        }
        let served = Arc::new(Daemon {
            mount: Arc::new(Slot::new(node.clone())),
            session: session.clone(),
            s3: Mutex::default(),
            ui: Mutex::default(),
            heating: Mutex::default(),
            is_replaceable: is_replaceable(plan),
            is_leaving: AtomicBool::new(false),
        });
        let listener = match listen(&served, publishers) {
            Ok(listener) => listener,
            Err(failure) => {
                let _ = session.unmount(Unmount::Lazy);
                session.wait_for(Duration::from_secs(5));
                node.close()?;
                return Err(failure);
            }
        };
        show(&plan.shown, page, &served);
        let ended = Arc::new(AtomicBool::new(false));
        let every = plan.every.clone();
        Ok(Running { publishing: None, following: None, listener: Some(listener), served, ended, every })
    }

    /// Starts what runs beside the mount: repeated publication and following. Then tells a service manager
    /// that the mount is ready.
    pub fn go_on(&mut self) -> Result<()> {
        let (node, session) = (self.served.node(), &self.served.session);
        self.publishing = self.every.start(&node, session.mountpoint())?;
        self.following = node.follow(session.notifier())?;
        let mounted = self.mounted();
        notify::ready(&format!("{} is mounted at {}", mounted.volume, mounted.mountpoint.display()));
        Ok(())
    }

    /// The source and the mountpoint.
    pub fn mounted(&self) -> Mounted {
        let (node, session) = (self.served.node(), &self.served.session);
        Mounted {
            volume: node.name(),
            mountpoint: session.mountpoint().to_owned(),
            mode: node.mode(),
            pid: std::process::id(),
            remarks: session
                .warnings()
                .iter()
                .cloned()
                .chain(node.as_node().map(Node::remarks).into_iter().flatten())
                .collect(),
        }
    }

    /// A handle that another thread uses to look after the mount.
    pub fn handle(&self) -> Handle {
        Handle {
            unmounter: self.served.session.unmounter(),
            mount: self.served.mount.clone(),
            ended: self.ended.clone(),
        }
    }

    /// The filesystem, for another front end in this process. Its changes must be told to
    /// [`Running::kernel`].
    pub fn filesystem(&self) -> Arc<dyn Filesystem> {
        self.served.node().filesystem()
    }

    /// Says in the status that the mount is also served to S3 clients.
    pub fn also_at(&self, s3: Endpoint) {
        *self.served.s3.lock() = Some(s3);
    }

    /// Says in the status that the mount is also shown in a browser, at this URL.
    pub fn also_in_browser(&self, url: String) {
        *self.served.ui.lock() = Some(url);
    }

    /// The kernel's caches. `None` for a mount that is no volume, and so cannot be changed.
    pub fn kernel(&self) -> Option<Kernel> {
        Some(Kernel::new(self.served.node().as_node()?.shown(), self.served.session.notifier()))
    }

    /// The number of requests that the kernel has sent.
    pub fn requests(&self) -> u64 {
        self.served.requests()
    }

    /// The few figures that are available at once.
    pub fn in_short(&self) -> Option<Short> {
        self.served.node().in_short()
    }

    /// All figures.
    pub fn status(&self) -> Result<Status> {
        self.served.status()
    }

    /// Waits for the end of the mount, or until its volume is to be replaced ([`Running::is_leaving`]). Calls
    /// `each` about once a second.
    pub fn wait(&self, each: &mut dyn FnMut()) {
        let mut trimmer = Trimmer::new();
        let mut next = base::time::monotonic();
        while self.served.session.wait_for(LOOK).is_none() && !self.is_leaving() {
            if base::time::monotonic() >= next {
                next += Duration::from_secs(1);
                trimmer.tick();
                each();
            }
        }
    }

    /// Waits until the kernel has handed everything over, and closes the volume.
    pub fn finish(self) -> Result<End> {
        let Running { publishing, following, listener, served, ended, .. } = self;
        drop((publishing, following));
        let Daemon { session, heating, .. } = &*served;
        let node = served.node();
        drop(heating.lock().take());
        ended.store(true, Ordering::SeqCst);
        notify::stopping();
        let end = session.wait();
        drop(listener);
        let closed = node.close();
        if end.aborted {
            log::warn(
                "the mount was cut off by force; what the kernel had not handed over is lost, all else is here",
            );
        }
        closed?;
        if let Err(errno) = end.synced {
            return Err(Failure::new("io", "the volume could not be made durable at the end of the mount")
                .why(errno.to_string())
                .next(format!("check it: covey fsck {}", node.name())));
        }
        Ok(End { aborted: end.aborted, mountpoint: session.mountpoint().to_owned() })
    }
}

/// A handle by which a thread ends a mount.
pub struct Handle {
    unmounter: Unmounter,
    mount: Arc<Slot>,
    ended: Arc<AtomicBool>,
}

impl Handle {
    /// Unmounts the volume.
    pub fn unmount(&self, how: Unmount) -> std::result::Result<(), UnmountError> {
        self.unmounter.unmount(how)
    }

    /// Makes everything written so far survive a power cut.
    pub fn flush(&self) -> Result<()> {
        self.mount.get().flush()
    }

    /// Whether the mount has ended and [`Running::finish`] is closing the volume.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

fn listen(served: &Arc<Daemon>, publishers: Option<Publishers>) -> Result<Listener> {
    let address = ControlAddress::of_source(Path::new(&served.node().name()));
    let mut listener = Listener::start(address, served.clone())?;
    publishers.map_or(Ok(()), |group| listener.admit(group, served.clone()))?;
    Ok(listener)
}

/// Starts tracing, metrics and the counters of accesses if they are wanted. The mount already exists and does
/// not end because a thread cannot start.
fn show(shown: &Shown, page: Option<metrics::Page>, served: &Daemon) {
    let traced = match shown.trace_rate {
        0 => Ok(()),
        every => watch::write_every(&served.session, every),
    };
    let page = page.map_or(Ok(()), |page| page.serve(served.mount.clone(), served.session.clone()));
    for failure in [traced, page].into_iter().filter_map(Result::err) {
        log::error(&failure.to_string());
    }
    show_heat(shown, served);
}

/// Starts the counters of accesses if they are wanted.
fn show_heat(shown: &Shown, served: &Daemon) {
    let Some(counting) = shown.heat else { return };
    match Heating::start(&served.node(), &served.session, counting) {
        Ok(heating) => *served.heating.lock() = Some(heating),
        Err(failure) => log::error(&failure.to_string()),
    }
}

fn node_options(plan: &Plan, mountpoint: &Path) -> NodeOptions {
    let options = &plan.options;
    NodeOptions {
        does: "mount",
        mountpoint: Some(mountpoint.to_owned()),
        read_only: options.read_only || options.frozen,
        frozen: options.frozen,
        relatime: options.relatime,
        commit: options.commit,
        deadline: options.deadline,
        locks: options.locks,
        many_kernels: false,
        orphans_stay: Duration::ZERO,
        gc_delay: options.gc_delay,
        lanes: options.lanes,
        access: options.access.clone(),
        remote_side: options.remote_side.clone(),
        salvage: None,
        take_over: plan.take_over,
        beside: false,
        promotable: options.promotable,
        handed: None,
    }
}

/// Whether the volume can become a shared one below its mount.
fn is_replaceable(plan: &Plan) -> bool {
    let MountOptions { promotable, read_only, frozen, .. } = plan.options;
    promotable && !read_only && !frozen && matches!(plan.source, Source::Folder(_))
}

/// Only in a shared volume is there more than one machine to lock against.
fn check_locks(plan: &Plan) -> Result<()> {
    let is_shared = matches!(plan.source, Source::Shared(..));
    let may_be = plan.options.promotable && matches!(plan.source, Source::Folder(_));
    if plan.options.locks != Some(Locks::Fleet) || is_shared || may_be {
        return Ok(());
    }
    Err(Failure::usage("locks=fleet is for shared volumes: any other volume has one machine that writes")
        .next("leave locks=fleet out, or add promotable to a volume that will be promoted"))
}

/// The group that may publish, by the name or number in the options.
fn publishers(plan: &Plan) -> Result<Option<Publishers>> {
    let Some(name) = plan.options.publish_group.clone() else { return Ok(None) };
    if !matches!(plan.source, Source::Folder(_)) {
        return Err(
            Failure::usage("only a volume in a folder can be published").next("leave publish_group out")
        );
    }
    match name.parse().ok().or_else(|| archive::sys::people::group(&name)) {
        Some(gid) => Ok(Some(Publishers { gid, name })),
        None => Err(Failure::usage(format!("there is no group {name}, which publish_group names"))
            .next(format!("name another one, or make it: groupadd {name}"))),
    }
}

fn session_options(plan: &Plan, node: &Mount) -> fuse::Options {
    let options = &plan.options;
    fuse::Options {
        mount: fuse::MountFlags {
            source: node.name(),
            read_only: options.read_only || options.frozen || matches!(plan.source, Source::Published(_)),
            allow_other: options.allow_other,
            nosuid: options.nosuid(plan.source.is_foreign()),
            nodev: options.nodev(plan.source.is_foreign()),
            noexec: options.noexec,
        },
        writeback: options.writeback.or(options.without_xattrs.then_some(false)),
        xattrs: !options.without_xattrs,
        transport: plan.transport.kind,
        readers: plan.transport.readers,
        yields: plan.transport.yields,
        replaceable: is_replaceable(plan),
        deadline: options.deadline,
        read_ahead_kib: Some(options.read_ahead_kib.unwrap_or_else(|| read_ahead(options, node))),
        workers: limits::workers(fuse::Options::default().workers),
        log: log::sink(),
    }
}

/// The kernel's read-ahead, in KiB, if no option sets it. A fault in a mapping makes the kernel read a window
/// of this size around it. With a remote origin each window is a request, and the daemon prefetches streams
/// itself.
fn read_ahead(options: &MountOptions, node: &Mount) -> u32 {
    const LOCAL: u32 = 1024;
    const REMOTE: u32 = 128;
    const PAGE: u32 = 4;
    match (node.as_node().is_some_and(Node::is_remote), options.access.default) {
        (false, _) | (true, Access::Stream) => LOCAL,
        (true, Access::Normal) => REMOTE,
        (true, Access::Random) => PAGE,
    }
}

/// The source and the mountpoint must not hide each other. A mount must not hide what its own daemon reads,
/// because the daemon would wait for itself.
fn check_places(source: &Source, mountpoint: &Path) -> Result<()> {
    let place = mountpoint.display();
    let below = |what: &str, path: &Path| {
        let hidden = mounts::absolute(path).is_ok_and(|path| path.starts_with(mountpoint));
        let failure = || {
            Failure::usage(format!("{what} {} lies below the mountpoint {place}", path.display()))
                .why("once mounted, it would be hidden from its own daemon")
                .next("name a mountpoint elsewhere")
        };
        if hidden { Err(failure()) } else { Ok(()) }
    };
    let origin = match source {
        Source::Published(tree) => {
            tree.cache.as_deref().map_or(Ok(()), |cache| below("the cache", cache))?;
            tree.home.origin.clone()
        }
        Source::Folder(dir) | Source::Shared(dir, _) => dir.origin(),
        Source::Memory | Source::Corpus(_) => String::new(),
    };
    let Some(dir) = source.dir() else { return below_origin(&origin, below) };
    below("the volume", dir.path())?;
    below_origin(&origin, below)?;
    if mountpoint.starts_with(dir.path()) {
        return Err(Failure::usage(format!("the mountpoint {place} lies in the volume's own folder"))
            .next("name a mountpoint elsewhere"));
    }
    if dir.path().to_str().is_none() {
        let volume = dir.path().display();
        return Err(Failure::usage(format!("the path of the volume {volume} is not UTF-8"))
            .why("the kernel's table of mounts, by which commands find a volume, is given it as text")
            .next("rename that folder: mv FOLDER NEW-NAME"));
    }
    Ok(())
}

/// Checks with `below` that an origin that is a folder does not lie below the mountpoint.
fn below_origin(origin: &str, below: impl Fn(&str, &Path) -> Result<()>) -> Result<()> {
    origin.strip_prefix("file:").map_or(Ok(()), |folder| below("the origin", Path::new(folder)))
}
