//! A mount from beginning to end: open the volume, mount it, listen, wait, unmount, close.
//!
//! ```text
//!   foreground   says that it is mounted, shows a status line (up), ends with the mount
//!   background   the same program again, in a session of its own, messages in VOLUME/covey.log; its parent waits on a
//!                pipe until it says "ready" or what went wrong, and tells the user
//! ```
//!
//! **Signals** are blocked in all threads and taken by one, so no handler ever runs in the middle of anything. The first asks
//! politely; when the mount is busy that thread says who keeps it so. A second one detaches it, a third ends the program. Without
//! a terminal (SIGTERM from a service manager) these steps follow one another by themselves, so that a stop always ends.

mod background;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blob::Access;
use fuse::{MountError, Session, Unmount, UnmountError, Unmounter};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::{self, Backend};
use crate::cmd::umount;
use crate::control::{Ear, Listener, Request, Serve, Tick, Wire};
use crate::error::{Failure, Result};
use crate::node::{Node, NodeOptions, Source};
use crate::options::MountOptions;
use crate::publish::{self, Every};
use crate::status::{Memory, Mode, Served, Status};
use crate::sys::Trimmer;
use crate::table::{bytes, count};
use crate::term::{self, Term};
use crate::watch::{self, Shown, Wish};
use crate::{limits, log, metrics, mounts, notify, origins, signals};

use background::{News, tell};
pub use background::{Parent, in_background, with_parent};

/// A mount to be made.
#[derive(Debug)]
pub struct Plan {
    /// What.
    pub source: Source,
    /// Where.
    pub mountpoint: PathBuf,
    /// How.
    pub options: MountOptions,
    /// How requests come and replies go.
    pub transport: Transport,
    /// Show a status line on a terminal.
    pub status_line: bool,
    /// What the daemon shows of itself while it serves.
    pub shown: Shown,
    /// What is published while it is mounted.
    pub every: Every,
    /// Claim the origin for this folder, although another folder may have it.
    pub take_over: bool,
}

/// How the kernel's requests reach the daemon.
#[derive(Clone, Debug, clap::Args)]
pub struct Transport {
    /// How requests come: uring (FUSE over io_uring; root turns the kernel's switch on), classic (/dev/fuse), or auto:
    /// uring where the switch is on
    #[arg(
        id = "transport",
        long = "transport",
        value_name = "HOW",
        default_value_t,
        env = "COVEY_FUSE_TRANSPORT",
        hide_env = true
    )]
    kind: fuse::Transport,
    /// Threads that read requests from /dev/fuse [default: one per core]
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        env = "COVEY_FUSE_READERS",
        hide_env = true
    )]
    readers: usize,
    /// Over io_uring, keep each program on the CPU where it asks (on, off)
    #[arg(
        long,
        value_name = "ON",
        action = clap::ArgAction::Set,
        value_parser = clap::builder::BoolishValueParser::new(),
        default_value = "on",
        hide_possible_values = true,
        env = "COVEY_FUSE_ASIDE",
        hide_env = true
    )]
    aside: bool,
    /// The kernel keeps nothing: for measuring the daemon
    #[arg(long, hide = true)]
    uncached: bool,
}

/// A mount that is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mounted {
    volume: String,
    #[serde(with = "crate::raw_path")]
    mountpoint: PathBuf,
    mode: Mode,
    pid: u32,
    /// What a person should know of how it was mounted.
    remarks: Vec<String>,
}

/// Mounts and stays until the mount has ended and the volume is closed.
pub fn run(plan: Plan, parent: Option<Parent>, term: Term) -> Result<u8> {
    let interactive = parent.is_none() && term::is_terminal();
    signals::block();
    limits::check(limits::For::Daemon)?;
    limits::leave_no_core();
    let mountpoint = mounts::absolute(&plan.mountpoint)?;
    if let Some((mount, below)) = mounts::entered(&mountpoint)
        && !below.as_os_str().is_empty()
    {
        mounts::life(&mount)?;
    }
    check_places(&plan.source, &mountpoint)?;
    let page =
        plan.shown.metrics.as_deref().map(|at| metrics::bind(at, plan.shown.metrics_public)).transpose()?;
    if let Some(dir) = plan.source.dir() {
        log::of_volume(&dir.path().display().to_string());
    }
    log::debug(|| format!("opening {}", plan.source.name().display()));
    let node = backend::open(&plan.source, &node_options(&plan, &mountpoint))?;
    log::of_volume(&node.name());
    let endpoint = node.node().and_then(Node::endpoint);
    origins::clear_line(endpoint.as_deref()).iter().for_each(|line| log::warn(line));
    let session = match Session::mount(node.filesystem(), &mountpoint, session_options(&plan, &*node)) {
        Ok(session) => Arc::new(session),
        Err(error) => {
            node.close()?;
            return Err(not_mounted(error));
        }
    };
    session.warnings().iter().for_each(|warning| log::warn(warning));
    let served = Arc::new(Daemon { node: node.clone(), session: session.clone() });
    let ear = Ear::of_source(Path::new(&node.name()));
    let listener = match Listener::start(ear, served.clone()) {
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
    start_signals(session.unmounter(), node.clone(), ended.clone(), interactive)?;
    let publishing = plan.every.start(&node, &mountpoint)?;
    let following = node.follow(session.notifier())?;
    ready(&*node, &session, parent, term);
    wait(&served, plan.status_line && interactive);
    drop((publishing, following));
    finish(&*node, &session, listener, &ended, term)
}

/// Begins to show what was asked for. The mount is there already and does not end for want of a thread.
fn show(shown: &Shown, page: Option<metrics::Page>, served: &Daemon) {
    let traced = match shown.trace_rate {
        0 => Ok(()),
        every => watch::write_every(&served.session, every),
    };
    let page = page.map_or(Ok(()), |page| page.serve(served.node.clone(), served.session.clone()));
    for failure in [traced, page].into_iter().filter_map(Result::err) {
        log::error(&failure.to_string());
    }
}

fn ready(node: &dyn Backend, session: &Session, parent: Option<Parent>, term: Term) {
    let remarks = session.warnings().iter().cloned().chain(node.node().and_then(Node::remark)).collect();
    let mounted = Mounted {
        volume: node.name(),
        mountpoint: session.mountpoint().to_owned(),
        mode: node.mode(),
        pid: std::process::id(),
        remarks,
    };
    let place = mounted.mountpoint.display();
    notify::ready(&format!("{} is mounted at {place}", mounted.volume));
    match parent {
        Some(Parent(pipe)) => {
            log::line(&format!("mounted {} at {place} ({:?})", mounted.volume, mounted.mode));
            tell(pipe, &News::Ready(mounted));
        }
        None if term.is_json() => term.result(&mounted, String::new),
        None if log::is_for_programs() => {
            log::line(&format!("mounted {} at {place} ({:?})", mounted.volume, mounted.mode));
        }
        None => term.say(format_args!("Mounted {} at {place}. Ctrl-C unmounts.", mounted.volume)),
    }
}

/// Waits for the mount's end, with a status line if one is wanted.
fn wait(served: &Daemon, status_line: bool) {
    let mut before = served.requests();
    let mut trimmer = Trimmer::new();
    loop {
        if served.session.wait_for(Duration::from_secs(1)).is_some() {
            break;
        }
        trimmer.tick();
        if status_line {
            let now = served.requests();
            if let Some(short) = served.node.in_short() {
                term::status_line(&format!(
                    "{} files   {}   stored {}   {} requests/s   memory {}",
                    count(short.files),
                    bytes(short.bytes),
                    bytes(short.stored_bytes),
                    count(now.saturating_sub(before)),
                    bytes(Memory::now().now),
                ));
            }
            before = now;
        }
    }
    if status_line {
        term::clear_status_line();
    }
}

fn finish(
    node: &dyn Backend,
    session: &Session,
    listener: Listener,
    ended: &AtomicBool,
    term: Term,
) -> Result<u8> {
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
    let place = session.mountpoint().display();
    if !term.is_json() {
        log::line(&format!("unmounted {place}; the volume is closed"));
    }
    Ok(u8::from(end.aborted))
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
        access: options.access.clone(),
        far: options.far.clone(),
        salvage: None,
        take_over: plan.take_over,
    }
}

fn session_options(plan: &Plan, node: &dyn Backend) -> fuse::Options {
    let options = &plan.options;
    let defaults = fuse::Options::default();
    fuse::Options {
        mount: fuse::MountFlags {
            source: node.name(),
            read_only: options.read_only || options.frozen || matches!(plan.source, Source::Published(_)),
            allow_other: options.allow_other,
            nosuid: options.nosuid(plan.source.is_foreign()),
            nodev: options.nodev(plan.source.is_foreign()),
            noexec: options.noexec,
        },
        writeback: options.writeback,
        transport: plan.transport.kind,
        readers: plan.transport.readers,
        aside: plan.transport.aside,
        uncached: plan.transport.uncached,
        deadline: options.deadline,
        read_ahead_kib: Some(options.read_ahead_kib.unwrap_or_else(|| read_ahead(options, node))),
        workers: limits::workers(defaults.workers),
        log: log::sink(),
        ..defaults
    }
}

/// How far the kernel reads ahead, in KiB, where nobody said. A fault in a mapping makes it read such a window around it: before a remote origin
/// each window is a request, and the daemon prefetches a stream itself.
fn read_ahead(options: &MountOptions, node: &dyn Backend) -> u32 {
    const LOCAL: u32 = 1024;
    const REMOTE: u32 = 128;
    const PAGE: u32 = 4;
    match (node.node().is_some_and(Node::is_remote), options.access.default) {
        (false, _) | (true, Access::Stream) => LOCAL,
        (true, Access::Normal) => REMOTE,
        (true, Access::Random) => PAGE,
    }
}

/// Neither may hide the other, and no mount may hide what its own daemon reads: that would wait for itself.
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
        Source::Folder(dir) => dir.origin(),
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

/// The same for an origin that is a folder.
fn below_origin(origin: &str, below: impl Fn(&str, &Path) -> Result<()>) -> Result<()> {
    origin.strip_prefix("file:").map_or(Ok(()), |folder| below("the origin", Path::new(folder)))
}

fn not_mounted(error: MountError) -> Failure {
    match error {
        MountError::NoDevice => Failure::new("no-fuse", "cannot mount: there is no /dev/fuse")
            .next("load the kernel's module: modprobe fuse (as root)")
            .next("in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN"),
        MountError::NotAllowed(why) => Failure::io("this user may not mount", &why)
            .next("or install fusermount3, with which every user may mount: apt-get install fuse3"),
        MountError::NoMountpoint(path) => {
            Failure::new("no-mountpoint", format!("the mountpoint {} is not there", path.display()))
                .next(format!("make it: mkdir -p {}", path.display()))
        }
        MountError::NotADirectory(path) => {
            Failure::new("no-mountpoint", format!("the mountpoint {} is not a folder", path.display()))
                .next("name a folder, best an empty one")
        }
        MountError::DeadMount(path) => {
            Failure::new("stale-mount", format!("a dead mount is at {}", path.display()))
                .why("its daemon is gone")
                .next(format!("take it away: covey umount {}", path.display()))
        }
        MountError::InUse { path, source_name } => {
            Failure::new("mountpoint-in-use", format!("the mountpoint {} is in use", path.display()))
                .why(format!("{source_name} is mounted there"))
                .next(format!("unmount that first: covey umount {}", path.display()))
                .next("or name another folder")
        }
        other => Failure::new("not-mounted", "cannot mount")
            .why(other.to_string())
            .next("covey doctor looks for the cause"),
    }
}

/// What is served while mounted.
struct Daemon {
    node: Arc<dyn Backend>,
    session: Arc<Session>,
}

impl Daemon {
    fn requests(&self) -> u64 {
        self.session.counts().iter().map(|(_, count)| count).sum()
    }

    fn status(&self) -> Result<Status> {
        let mut status = self.node.status()?;
        status.served = Some(Served {
            mountpoint: self.session.mountpoint().to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.node.age().as_secs(),
            requests: self.requests(),
            requests_by_kind: self
                .session
                .counts()
                .into_iter()
                .map(|(kind, n)| (kind.to_owned(), n))
                .collect(),
            waiting: self.session.waiting() as u64,
            transport: self.session.transport().to_string(),
        });
        Ok(status)
    }
}

impl Serve for Daemon {
    fn serve(&self, request: Request, tick: &mut dyn FnMut(Tick)) -> Result<Value> {
        let value = match request {
            Request::Status => serde_json::to_value(self.status()?),
            Request::Metrics => serde_json::to_value(metrics::text(&*self.node, &self.session)),
            Request::Info { path, list } => serde_json::to_value(self.node.info(&PathBuf::from(path), list)?),
            Request::Publish { path, name, afresh } => {
                let order = (PathBuf::from(path), name, afresh);
                serde_json::to_value(publish::for_caller(&self.node, order, tick)?)
            }
            Request::Unpublish { name } => {
                self.node.unpublish(&name)?;
                serde_json::to_value(())
            }
            Request::Gc => serde_json::to_value(self.node.gc(tick)?),
            Request::Flush => serde_json::to_value(self.node.flush()?),
            Request::Settle { seconds } => {
                serde_json::to_value(self.node.settle(seconds.map(Duration::from_secs), tick)?)
            }
            Request::Evict { to } => serde_json::to_value(self.node.evict(to)?),
            Request::Warm { paths, depot } => {
                let paths: Vec<PathBuf> = paths.into_iter().map(PathBuf::from).collect();
                serde_json::to_value(self.node.warm(&paths, depot, tick)?)
            }
            Request::Clone { from, to } => {
                let cloned = self.node.clone_tree(&PathBuf::from(from), &PathBuf::from(to), tick)?;
                // The kernel believes that the new name is not there, and keeps the folder's listing and times.
                let notifier = self.session.notifier();
                notifier.inval_entry(cloned.parent, &cloned.name);
                notifier.inval_inode(cloned.parent, 0, 0);
                notifier.settle();
                serde_json::to_value(cloned.summary)
            }
            Request::Peers => serde_json::to_value(self.node.peers()?),
            Request::Watch { .. } => return Err(Failure::usage("this is not answered at once")),
        };
        value.map_err(|error| Failure::new("io", "the answer cannot be written").why(error.to_string()))
    }

    fn watch(&self, wish: &Wish, wire: &Wire<'_>) -> Result<Value> {
        watch::serve(&*self.node, &self.session, wish, wire)
    }
}

fn start_signals(
    unmounter: Unmounter,
    node: Arc<dyn Backend>,
    ended: Arc<AtomicBool>,
    interactive: bool,
) -> Result<()> {
    let ender = Ender { unmounter, node, ended };
    base::thread::spawn("covey-signals", move || match interactive {
        true => ender.ask_each_time(),
        false => ender.insist(),
    })
    .map(drop)
    .map_err(|error| Failure::io("cannot start a thread", &error))
}

struct Ender {
    unmounter: Unmounter,
    node: Arc<dyn Backend>,
    ended: Arc<AtomicBool>,
}

impl Ender {
    /// With a person at the terminal: each Ctrl-C goes one step further.
    fn ask_each_time(&self) {
        signals::next();
        log::line("unmounting ...");
        loop {
            match self.unmounter.unmount(Unmount::Polite) {
                Err(UnmountError::Busy(path)) => {
                    let failure = umount::busy(&path);
                    log::line(&failure.to_string().replacen("covey: ", "", 1));
                    log::line("Ctrl-C again detaches it now; it then ends with its last user");
                }
                Err(error) => log::line(&error.to_string()),
                Ok(()) => {}
            }
            signals::next();
            if self.unmounter.unmount(Unmount::Lazy).is_ok() {
                break;
            }
        }
        log::line("detached; it ends when its last user is gone. Ctrl-C once more ends it at once");
        signals::next();
        self.end_now();
    }

    /// With nobody there: every step by itself, so that it ends in any case.
    fn insist(&self) {
        let signal = signals::next();
        log::line(&format!("signal {signal}: unmounting"));
        for _ in 0..30 {
            match self.unmounter.unmount(Unmount::Polite) {
                Err(UnmountError::Busy(_)) => std::thread::sleep(Duration::from_millis(100)),
                Err(error) => {
                    log::error(&error.to_string());
                    break;
                }
                Ok(()) => return self.wait_then_end(Duration::from_secs(120)),
            }
        }
        log::line("busy for 3 s: detaching");
        let _ = self.unmounter.unmount(Unmount::Lazy);
        self.wait_then_end(Duration::from_secs(7));
    }

    fn wait_then_end(&self, patience: Duration) {
        let end = base::time::monotonic() + patience;
        while !self.ended.load(Ordering::SeqCst) {
            if base::time::monotonic() >= end {
                return self.end_now();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends under the feet of whoever still uses it. What was handed over is made durable first.
    fn end_now(&self) {
        if self.ended.load(Ordering::SeqCst) {
            return;
        }
        log::line("ending now");
        if let Err(failure) = self.node.flush() {
            log::error(&failure.to_string());
        }
        std::process::exit(1);
    }
}
