//! One mount from beginning to end.
//!
//! [`Session::mount`] mounts and answers INIT. It then starts a reader thread per core, each with its own
//! descriptor of /dev/fuse, or a ring per CPU and one reader ([`crate::uring`]). The session ends when the
//! kernel reports that the mount is gone: by umount, by a forced umount, or by an abort through
//! /sys/fs/fuse/connections. The last thread that sees the end makes the filesystem durable
//! ([`Filesystem::sync`]) and tells it that the kernel is gone ([`Filesystem::unmounted`]), once.
//! [`Session::wait`] returns after that.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use base::Ino;
use fs::api::{Coherence, Filesystem, Locks};
use fs::{Errno, api};
use parking_lot::{Condvar, Mutex};

use crate::Log;
use crate::abi::init::{Agreed, Wishes, flag};
use crate::buffer::{PageBuf, RequestBuf};
use crate::channel::{Device, Received, Sink, Source};
use crate::counts::{Counts, Moved};
use crate::defer::{PendingTable, Pool};
use crate::dispatch::{Dispatcher, Parts, late_line};
use crate::mount::{self, Mount, MountError, MountFlags, Unmount, UnmountError};
use crate::notify::Notifier;
use crate::pending_flush::PendingFlushes;
use crate::refresh::Refresher;
use crate::seek::Pushers;
use crate::shared::SharedMount;
use crate::swap::Swap;
use crate::through::ThroughMount;
use crate::uring::{self, Fallback, Host, Rings, Transport};
use crate::watch::Watch;

mod handshake;
mod replacing;
mod rings;
pub(crate) use handshake::{handshake, negotiate, serves_dot};

use rings::start_rings;

/// The most writes that wait for space at a time. Further writes queue behind them.
const WRITERS: usize = 8;
/// The most writes that wait at a time on a shared mount, where each write waits for other machines.
const WRITERS_SHARED: usize = 32;
/// The most releases of locks at a time.
const UNLOCKERS: usize = 8;

/// How to mount and serve.
#[derive(Clone)]
pub struct Options {
    /// The flags of the mount.
    pub mount: MountFlags,
    /// Let the kernel hold written bytes back until close or fsync (writeback cache). `None`: yes, if the
    /// mount is exclusive and writable. A shared mount never does.
    pub writeback: Option<bool>,
    /// The mount has extended attributes and ACLs.
    pub xattrs: bool,
    /// How requests arrive and replies leave.
    pub transport: Transport,
    /// The number of threads that read requests from /dev/fuse. 0: one per core. With io_uring there is one,
    /// for the few requests that still arrive that way.
    pub readers: usize,
    /// With io_uring, ring threads yield the CPU to the program that they answer, so the program stays on its
    /// CPU. Turn this off only to compare.
    pub yields: bool,
    /// The most worker threads for pending requests.
    pub workers: usize,
    /// A pending request is answered EIO after this time.
    pub deadline: Duration,
    /// The kernel's read-ahead in KiB. `None` leaves the kernel's own value (128).
    pub read_ahead_kib: Option<u32>,
    /// The filesystem changes only through this mount, and may be replaced by a shared one
    /// ([`Session::resume`]). The kernel is told what it is told of a shared mount.
    pub replaceable: bool,
    /// Receives the lines of the log: a panic in a handler, a request that missed its deadline.
    pub log: Log,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mount: MountFlags { source: "covey".into(), ..MountFlags::default() },
            writeback: None,
            xattrs: true,
            transport: Transport::Auto,
            readers: 0,
            yields: true,
            workers: 32,
            deadline: Duration::from_secs(60),
            read_ahead_kib: Some(1024),
            replaceable: false,
            log: Arc::new(|line| base::out::complaint(line)),
        }
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The connection was cut while it was mounted. Data that the kernel had not sent by then is lost.
    pub aborted: bool,
    /// Whether everything that the kernel sent is durable.
    pub synced: api::Result<()>,
}

struct Shared {
    fs: Arc<Swap>,
    mount: Arc<Mount>,
    /// The kernel's end.
    sink: Arc<dyn Sink>,
    shared_mount: Option<Arc<SharedMount>>,
    counts: Arc<Counts>,
    watch: Arc<Watch>,
    pending_table: Arc<PendingTable>,
    pools: [Arc<Pool>; 4],
    flushes: Option<Arc<PendingFlushes>>,
    notifier: Notifier,
    refresher: Option<Arc<Refresher>>,
    dispatcher: Dispatcher,
    log: Log,
    /// Reader and ring threads that have not ended, plus one while threads are being started.
    threads_left: AtomicUsize,
    rings: OnceLock<Rings>,
    aborted: AtomicBool,
    ended: Mutex<Option<Ended>>,
    changed: Condvar,
}

/// A mounted filesystem. Dropping it unmounts, by force if the mount is in use.
pub struct Session {
    shared: Arc<Shared>,
    agreed: Agreed,
    warnings: Vec<String>,
}

/// Unmounts a session from another thread. Clones are equivalent.
#[derive(Clone)]
pub struct Unmounter(Arc<Mount>, Weak<Shared>);

impl Unmounter {
    /// Unmounts. Returns when the mount is no longer visible. [`Session::wait`] returns when everything is
    /// done.
    ///
    /// # Errors
    /// [`UnmountError::Busy`] if `how` is polite and the mount is in use, or the system's error.
    pub fn unmount(&self, how: Unmount) -> Result<(), UnmountError> {
        if let Some(shared) = self.1.upgrade() {
            return shared.unmount(how);
        }
        self.0.unmount(how)
    }

    /// The mountpoint.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Session {
    /// Mounts `fs` on the directory `mountpoint` and serves it from its own threads.
    ///
    /// # Errors
    /// A [`MountError`], whose text says what to do. Nothing is left mounted then.
    pub fn mount(
        fs: Arc<dyn Filesystem>,
        mountpoint: &Path,
        mut options: Options,
    ) -> Result<Session, MountError> {
        let path = mount::check_mountpoint(mountpoint)?;
        let root = fs.getattr(Ino::ROOT).map_err(MountError::Root)?;
        let coherence = fs.coherence();
        let (frozen, shared) =
            (coherence == Coherence::Frozen, coherence == Coherence::Shared || options.replaceable);
        let locks = shared && fs.locks() == Locks::Fleet;
        if locks && options.transport == Transport::Auto {
            options.transport = Transport::Classic;
        }
        options.mount.read_only |= frozen;
        let writable = !options.mount.read_only;
        let mut remarks = Vec::new();
        let uring = uring::decide(options.transport, &mut remarks)?;
        let mut wishes = Wishes { uring, locks, ..handshake::wishes(&*fs, &options, shared) };
        let root_mode = root.kind.mode_bits() | u32::from(root.perm);
        let (device, mount) = mount::mount(&path, &options.mount, root_mode)?;
        let guard = MountGuard(Arc::new(mount));
        let fallback = if uring { uring::prepare(options.transport, &device, &mut remarks)? } else { None };
        wishes.uring = fallback.is_some();
        let agreed = handshake(&device, &wishes)?;
        // A kernel without these flags keeps locks to itself, and FLUSH must be refused as ever.
        let locks = agreed.has(flag::POSIX_LOCKS | flag::FLOCK_LOCKS);
        let shared = shared.then(|| SharedMount::new(locks, fs.leases()));
        let shared = shared.map(|shared| if options.replaceable { shared.alone() } else { shared });
        let how = How { agreed, writable, shared: shared.map(Arc::new) };
        let fs = if options.replaceable { Swap::replaceable(fs) } else { Swap::fixed(fs) };
        let mut session = start(fs, Arc::clone(&guard.0), device, how, fallback, &options)?;
        std::mem::forget(guard);
        if wishes.uring && !agreed.has(flag::OVER_IO_URING) {
            remarks.push(uring::fallback_line("this kernel did not offer it"));
        }
        session.warnings.splice(0..0, remarks);
        session.set_read_ahead(options.read_ahead_kib);
        Ok(session)
    }

    /// Waits until the mount has ended and the filesystem has been told.
    pub fn wait(&self) -> Ended {
        let mut ended = self.shared.ended.lock();
        loop {
            if let Some(ended) = *ended {
                return ended;
            }
            self.shared.changed.wait(&mut ended);
        }
    }

    /// Waits as [`Session::wait`] does, but no longer than `at_most`. `None` if the session has not ended.
    pub fn wait_for(&self, at_most: Duration) -> Option<Ended> {
        let mut ended = self.shared.ended.lock();
        self.shared.changed.wait_while_for(&mut ended, |ended| ended.is_none(), at_most);
        *ended
    }

    /// Unmounts. After success [`Session::wait`] returns soon. After a lazy unmount it returns when the last
    /// program has closed its files.
    ///
    /// # Errors
    /// As [`Unmounter::unmount`].
    pub fn unmount(&self, how: Unmount) -> Result<(), UnmountError> {
        self.shared.unmount(how)
    }

    /// A handle that can unmount from another thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(Arc::clone(&self.shared.mount), Arc::downgrade(&self.shared))
    }

    /// The handle that sends invalidations to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.shared.notifier.clone()
    }

    /// The number of requests so far, by kind. Kinds without a request are left out.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.counts.totals()
    }

    /// The number of these that were answered with an error.
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        self.shared.counts.failures()
    }

    /// The bytes that requests moved.
    pub fn moved(&self) -> Moved {
        self.shared.counts.moved()
    }

    /// The measurement of how long requests take.
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.shared.watch)
    }

    /// Writeback errors that the kernel stored because a program was killed, and that were cleared: see
    /// [`crate::pending_flush`].
    pub fn errors_cleared(&self) -> u64 {
        self.shared.flushes.as_ref().map_or(0, |flushes| flushes.cleared())
    }

    /// Flushes of timestamps that the kernel has not sent yet, of living programs and of programs that were
    /// killed.
    pub fn flushes_pending(&self) -> usize {
        self.shared.flushes.as_ref().map_or(0, |flushes| flushes.pending())
    }

    /// The number of pending requests.
    pub fn waiting(&self) -> usize {
        self.shared.pending_table.waiting()
    }

    /// The number of requests that wait for a lock.
    pub fn lock_waits(&self) -> usize {
        self.shared.dispatcher.lock_waits()
    }

    /// What could not be set up, as text. The mount works without it.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What INIT negotiated with the kernel.
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// How requests arrive: [`Transport::Uring`] or [`Transport::Classic`].
    pub fn transport(&self) -> Transport {
        if self.shared.rings.get().is_some() { Transport::Uring } else { Transport::Classic }
    }

    /// The mountpoint, absolute.
    pub fn mountpoint(&self) -> &Path {
        self.shared.mount.path()
    }

    fn set_read_ahead(&mut self, kib: Option<u32>) {
        let Some(kib) = kib else { return };
        if let Err(error) = self.shared.mount.set_read_ahead(kib) {
            let dev = self.shared.mount.dev();
            let (major, minor) = (libc::major(dev), libc::minor(dev));
            self.warnings.push(format!(
                "readahead stays at the kernel's 128 KiB ({error}); as root: \
                 echo {kib} > /sys/class/bdi/{major}:{minor}/read_ahead_kb"
            ));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.unmount(Unmount::Polite).is_err()
            && let Err(error) = self.unmount(Unmount::Force)
        {
            (self.shared.log)(&format!("fuse: {error}"));
            return;
        }
        // A lazily detached mount lives as long as its users. Do not wait for them.
        if self.wait_for(Duration::from_secs(10)).is_none() {
            (self.shared.log)(
                "fuse: a program still holds files of a detached mount; it is served until it closes them",
            );
        }
    }
}

/// Unmounts again if the setup fails.
struct MountGuard(Arc<Mount>);

impl Drop for MountGuard {
    fn drop(&mut self) {
        let _ = self.0.unmount(Unmount::Lazy);
    }
}

/// What the threads must know of the mount.
struct How {
    agreed: Agreed,
    writable: bool,
    shared: Option<Arc<SharedMount>>,
}

/// Starts all threads.
fn start(
    fs: Swap,
    mount: Arc<Mount>,
    device: Device,
    how: How,
    fallback: Option<Fallback>,
    options: &Options,
) -> Result<Session, MountError> {
    let How { agreed, writable, shared: shared_mount } = how;
    let failed = MountError::io("starting threads");
    let (device, fs) = (Arc::new(device), Arc::new(fs));
    let readers = if options.readers == 0 { cores() } else { options.readers };
    let (sink, log): (Arc<dyn Sink>, Log) = (Arc::clone(&device) as _, Arc::clone(&options.log));
    let notifier = Notifier::start(Arc::clone(&sink)).map_err(&failed)?;
    let pending_table =
        PendingTable::start(options.deadline, move |waited| log(&late_line(waited))).map_err(&failed)?;
    let pools = pools(options.workers, shared_mount.is_some());
    let [workers, writers, seeker, unlockers] = pools.each_ref().map(Arc::clone);
    let through = ThroughMount::new(&mount).map_err(&failed)?;
    let flushes = pending_flushes(&agreed, &through).map_err(&failed)?;
    let refresher = refresher(shared_mount.as_ref(), &through).map_err(&failed)?;
    let lanes = readers.max(1 + uring::possible_cpus());
    let (counts, watch) = (Arc::new(Counts::new(lanes)), Watch::new(lanes + 1));
    let dispatcher = Dispatcher::new(Parts {
        fs: Arc::clone(&fs),
        agreed,
        pending_table: Arc::clone(&pending_table),
        workers,
        writers,
        seeker,
        unlockers,
        shared: shared_mount.clone(),
        untold: None,
        dirty: writable.then(|| Pushers::over(&through)),
        flushes: flushes.clone(),
        notifier: notifier.clone(),
        counts: Arc::clone(&counts),
        watch: Arc::clone(&watch),
        log: Arc::clone(&options.log),
    });
    let shared = Arc::new(Shared {
        fs,
        mount,
        sink,
        shared_mount,
        counts,
        watch,
        pending_table,
        pools,
        flushes,
        notifier,
        refresher,
        dispatcher,
        log: Arc::clone(&options.log),
        threads_left: AtomicUsize::new(1),
        rings: OnceLock::new(),
        aborted: AtomicBool::new(false),
        ended: Mutex::new(None),
        changed: Condvar::new(),
    });
    shared.obey(shared.fs.now().leases());
    let fallback = fallback.filter(|_| agreed.has(flag::OVER_IO_URING));
    let warnings = fallback.and_then(|fallback| start_rings(&shared, &device, fallback, options));
    let warnings = warnings.into_iter().collect();
    let readers = if shared.rings.get().is_some() { 1 } else { readers };
    let started = read_from(&shared, devices(device, readers));
    shared.leave();
    started.map_err(failed)?;
    Ok(Session { shared, agreed, warnings })
}

/// The pools for requests that wait, writes, seeks and the ends of locks.
pub(crate) fn pools(workers: usize, shared: bool) -> [Arc<Pool>; 4] {
    let writers = if shared { WRITERS_SHARED } else { WRITERS };
    [
        Pool::new("fuse-wait", workers),
        Pool::new("fuse-write", writers),
        Pool::new("fuse-seek", 2),
        Pool::new("fuse-unlock", UNLOCKERS),
    ]
}

/// Starts the watch for flushes of timestamps that never arrive. Only a kernel with a writeback cache keeps
/// timestamps and flushes them.
fn pending_flushes(agreed: &Agreed, through: &ThroughMount) -> std::io::Result<Option<Arc<PendingFlushes>>> {
    if !agreed.has(flag::WRITEBACK_CACHE) {
        return Ok(None);
    }
    PendingFlushes::start(Box::new(through.clone())).map(Some)
}

/// Starts the thread that looks again at what other machines may have changed.
fn refresher(
    shared: Option<&Arc<SharedMount>>,
    through: &ThroughMount,
) -> std::io::Result<Option<Arc<Refresher>>> {
    shared.map(|shared| Refresher::start(Arc::clone(shared), through.clone())).transpose()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts the reader threads. Fewer threads than wanted are enough, but there must be one.
fn read_from(shared: &Arc<Shared>, devices: Vec<Arc<Device>>) -> std::io::Result<()> {
    for (index, device) in devices.into_iter().enumerate() {
        shared.begins();
        let reader = Arc::clone(shared);
        let spawned = base::thread::spawn(&format!("fuse-{index}"), move || reader.read(index, &device));
        if let Err(error) = spawned {
            shared.leave();
            if index == 0 {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// A descriptor for each reader. Readers share the first one if `share` is set, or if no other can be opened.
fn devices(first: Arc<Device>, readers: usize) -> Vec<Arc<Device>> {
    let mut devices = vec![Arc::clone(&first)];
    while devices.len() < readers {
        let own = first.cloned().ok();
        devices.push(own.map_or_else(|| Arc::clone(&first), Arc::new));
    }
    devices
}

impl Shared {
    fn unmount(&self, how: Unmount) -> Result<(), UnmountError> {
        if how == Unmount::Force {
            // By force the kernel's data is handed over first, which waits for a moment without unanswered
            // requests.
            self.dispatcher.end_lock_waits();
        }
        self.mount.unmount(how)
    }

    /// The body of a reader thread.
    fn read(&self, index: usize, device: &Arc<Device>) {
        base::thread::must_not_wait();
        let sink: Arc<dyn Sink> = Arc::clone(device) as _;
        let mut request = RequestBuf::new();
        let mut reply = PageBuf::for_reply();
        let aborted = loop {
            match device.receive(request.bytes()) {
                Ok(Received::Request(len)) => {
                    self.dispatcher.serve(index, &request.bytes()[..len], reply.bytes(), &sink);
                    self.let_forgets_batch();
                }
                Ok(Received::Nothing) => {}
                Ok(Received::Unmounted) => break false,
                Ok(Received::Aborted) => break true,
                Err(error) => {
                    (self.log)(&format!("fuse: reading requests failed, so this thread ends: {error}"));
                    break true;
                }
            }
        };
        if aborted {
            self.aborted.store(true, Ordering::Release);
        }
        // A ring whose requests are all pending does not notice the end by itself.
        if let Some(rings) = self.rings.get() {
            rings.stop();
        }
        self.leave();
    }

    /// A thread has ended. The last one ends the session.
    fn leave(&self) {
        if self.threads_left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        base::thread::may_wait_again();
        self.pending_table.close();
        self.pools.iter().for_each(|pool| pool.close());
        self.dispatcher.end_lock_waits();
        self.flushes.iter().for_each(|flushes| flushes.close());
        self.notifier.close();
        self.refresher.iter().for_each(|refresher| refresher.close());
        // After an abort the dead mount is still in its place.
        let dead = self.mount.end();
        // While the filesystem is being replaced, nothing is served, and all was made durable before.
        let synced = match self.fs.is_paused() {
            true => Ok(()),
            false => {
                let fs = self.fs.to_keep();
                let synced = catch_unwind(AssertUnwindSafe(|| fs.sync())).unwrap_or(Err(Errno::EIO));
                let _ = catch_unwind(AssertUnwindSafe(|| fs.unmounted()));
                synced
            }
        };
        *self.ended.lock() = Some(Ended { aborted: self.aborted.load(Ordering::Acquire) || dead, synced });
        self.changed.notify_all();
    }
}
