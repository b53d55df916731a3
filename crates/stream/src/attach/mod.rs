//! The guest's side: it mounts, and relays the kernel's requests to a server.
//!
//! ```text
//!   kernel ─► /dev/fuse ─► reader threads ─► a slot ─► a connection ─────► server
//!     ▲                                        │            │
//!     └───── reply ◄── the connection's thread ┴────────────┘
//! ```
//!
//! A reader thread enters a request in a slot ([`flight`]) and sends it. It does not wait for the reply, so
//! few threads are enough for many requests. The thread of the connection ([`link`]) receives the reply and
//! writes it to the kernel unchanged.
//!
//! **When a connection breaks**, its thread connects again and sends everything that has no reply again. The
//! server executes nothing twice ([`crate::slots`]). If the server itself was restarted, it cannot know what
//! was executed. Then only requests are sent again that change nothing. The others are answered EIO.
//!
//! **When no server answers** for longer than [`Options::wait`], requests in flight and new ones are answered
//! EIO, until one answers.

pub mod command;
pub mod device;
pub mod ear;
pub mod flight;
pub mod greet;
mod link;
mod notes;
pub mod rooms;
pub mod trace;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::secret::Secret;
use parking_lot::{Condvar, Mutex};

use crate::address::Address;
use crate::frame::{Head, Kind};
use crate::hello::{Id, Keys, Sharing};
use crate::request::{self, Asked, op};
use device::{Device, Flags, MountError, Received};
use flight::{Entry, Flight, NoSlot};
use greet::{Trouble, greet};
use link::Link;
use notes::Notes;
use rooms::{Kept, Rooms};
use trace::Tracer;

/// How often the clock thread looks.
const TICK: Duration = Duration::from_millis(100);
/// How long the server may take to release a caller that is being killed.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// How long the server may take to make everything durable when the mount ends.
const GOODBYE: Duration = Duration::from_secs(60);

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server.
    pub address: Address,
    /// What both ends know. Without it, the permissions of the server's socket decide.
    pub secret: Option<Secret>,
    /// Threads that read requests from /dev/fuse. 0: as many as CPUs, at most 8.
    pub readers: usize,
    /// Connections.
    pub connections: usize,
    /// How long requests wait while no server answers.
    pub wait: Duration,
    /// The flags of the mount.
    pub flags: Flags,
    /// Every so many requests, one is traced in the log. 0: none.
    pub trace: u32,
}

/// Receives the lines of the log.
pub type Log = fn(&str);

/// Why attaching failed.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No server, or it refused.
    #[error("{address}: {why}")]
    Server {
        /// The server.
        address: Address,
        /// For people.
        why: String,
    },
    /// Mounting failed.
    #[error("{0}")]
    Mount(#[from] MountError),
    /// No thread could be started.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
}

/// What is known of the session with the server.
struct Session {
    id: Id,
    /// Counts sessions: a new one has the next number.
    number: u64,
    source: Id,
    boot: Id,
    read_only: bool,
    sharing: Sharing,
}

struct Shared {
    options: Options,
    keys: Keys,
    flight: Flight,
    links: Vec<Link>,
    session: Mutex<Session>,
    /// What the kernel holds, and how often.
    held: Mutex<HashMap<u64, u64>>,
    /// One for each reader. The kernel takes a reply only on the descriptor that delivered the request.
    devices: Vec<Device>,
    rooms: Arc<Rooms>,
    notes: Notes,
    state: Mutex<State>,
    changed: Condvar,
    next_link: AtomicU64,
    failing: AtomicBool,
    ended: AtomicBool,
    /// A request that changes something was sent.
    wrote: AtomicBool,
    readers_left: AtomicUsize,
    tracer: Tracer,
    log: Log,
}

#[derive(Default)]
struct State {
    /// What INIT agreed, or its error.
    init: Option<Result<(u32, u64), i32>>,
    /// Whether the kernel can be told to look all names up again.
    drops_names: bool,
    /// When the last connection was lost. `None`: there is one.
    down_since: Option<Instant>,
    /// What the server said at the end: an error number.
    bye: Option<i32>,
    gone: bool,
}

/// A mount that a server serves.
pub struct Attached {
    shared: Arc<Shared>,
    path: PathBuf,
    name: String,
}

/// How a mount ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything that was written is durable at the server.
    Synced,
    /// The server reports this error number: data may be lost.
    Failed(i32),
    /// No server answered: it is unknown what is durable.
    Unknown,
}

impl Attached {
    /// Connects to the server and mounts what it serves. Returns when the mount can be used.
    ///
    /// # Errors
    /// [`AttachError`]. Nothing is left mounted then.
    pub fn attach(options: Options, mountpoint: &Path, log: Log) -> Result<Attached, AttachError> {
        let path = device::check(mountpoint)?;
        let keys = Keys::new(options.secret.as_ref());
        let failed =
            |trouble: Trouble| AttachError::Server { address: options.address.clone(), why: trouble.text };
        let greeted = greet(&options.address, &keys, [0; 16], 0).map_err(failed)?;
        let welcome = &greeted.welcome;
        let mut flags = options.flags.clone();
        flags.read_only |= welcome.read_only;
        let name = welcome.name.clone();
        let source = format!("{}", options.address);
        let device = device::mount(&path, &source, &flags, welcome.root_mode)?;
        let guard = Detach(&path);
        let readers = match options.readers {
            0 => std::thread::available_parallelism().map_or(1, usize::from).min(8),
            readers => readers,
        };
        let mut devices = vec![device];
        while devices.len() < readers {
            devices.push(devices[0].cloned().map_err(MountError::Io)?);
        }
        let session = Session {
            id: welcome.session,
            number: 1,
            source: welcome.source,
            boot: welcome.boot,
            read_only: welcome.read_only,
            sharing: welcome.sharing,
        };
        let shared = Arc::new(Shared {
            keys,
            flight: Flight::default(),
            links: (0..options.connections.max(1)).map(|_| Link::default()).collect(),
            session: Mutex::new(session),
            held: Mutex::default(),
            devices,
            rooms: Arc::default(),
            notes: Notes::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            next_link: AtomicU64::new(1),
            failing: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            wrote: AtomicBool::new(false),
            readers_left: AtomicUsize::new(readers),
            tracer: Tracer::default(),
            options,
            log,
        });
        shared.flight.grant(welcome.slots, welcome.bytes);
        shared.links[0].set_times(greeted.times);
        if shared.options.trace > 0 {
            let say = move |line: &str| {
                log(line);
                true
            };
            shared.tracer.listen(shared.options.trace, Box::new(say));
        }
        let attached = Attached { shared, path: path.clone(), name };
        attached.start(greeted.receiver, readers)?;
        attached.shared.wait_for_init()?;
        device::set_read_ahead(&path);
        let shared = Arc::clone(&attached.shared);
        if let Err(error) = ear::open(&path, shared) {
            log(&format!("`covey trace` cannot reach this mount: {error}"));
        }
        std::mem::forget(guard);
        Ok(attached)
    }

    fn start(&self, receiver: crate::socket::Receiver, readers: usize) -> Result<(), AttachError> {
        let mut first = Some(receiver);
        for index in 0..self.shared.links.len() {
            let (shared, first) = (Arc::clone(&self.shared), first.take());
            base::thread::spawn("attach-link", move || shared.run_link(index, first))
                .map_err(AttachError::Thread)?;
        }
        let shared = Arc::clone(&self.shared);
        base::thread::spawn("attach-notify", move || shared.run_notes()).map_err(AttachError::Thread)?;
        let shared = Arc::clone(&self.shared);
        base::thread::spawn("attach-clock", move || shared.run_clock()).map_err(AttachError::Thread)?;
        for index in 0..readers {
            let shared = Arc::clone(&self.shared);
            base::thread::spawn(&format!("attach-{index}"), move || shared.read_device(index))
                .map_err(AttachError::Thread)?;
        }
        Ok(())
    }

    /// What the server calls what it serves.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The mountpoint, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until the mount is gone, but no longer than `at_most`. Returns whether it is.
    pub fn wait_gone(&self, at_most: Duration) -> bool {
        let mut state = self.shared.state.lock();
        if !state.gone {
            self.shared.changed.wait_for(&mut state, at_most);
        }
        state.gone
    }

    /// Unmounts. `lazy`: also while programs use it.
    ///
    /// # Errors
    /// The system's error.
    pub fn unmount(&self, lazy: bool) -> std::io::Result<()> {
        device::unmount(&self.path, lazy)
    }

    /// Says goodbye to the server, after the mount is gone. The server makes everything durable first.
    pub fn finish(self) -> Ended {
        let shared = &self.shared;
        shared.ended.store(true, Ordering::Release);
        shared.tracer.end();
        let said = shared.send_somewhere(&Head::plain(Kind::Bye), &[]);
        let mut state = shared.state.lock();
        let until = base::Deadline::after(GOODBYE);
        while said && state.bye.is_none() && state.down_since.is_none() && !until.is_over() {
            shared.changed.wait_for(&mut state, until.left());
        }
        let bye = state.bye;
        drop(state);
        shared.links.iter().for_each(Link::cut);
        shared.notes.close();
        match bye {
            Some(0) => Ended::Synced,
            Some(error) => Ended::Failed(error),
            None => Ended::Unknown,
        }
    }
}

/// Unmounts again if the setup fails.
struct Detach<'a>(&'a Path);

impl Drop for Detach<'_> {
    fn drop(&mut self) {
        let _ = device::unmount(self.0, true);
    }
}

impl Shared {
    /// Gives the kernel a notification.
    fn tell_kernel(&self, message: &[u8]) -> std::io::Result<()> {
        self.devices[0].send(message)
    }

    /// Gives the kernel a reply.
    fn reply(&self, device: usize, message: &[u8]) -> std::io::Result<()> {
        let sent = self.devices[device].send(message);
        if let Err(error) = &sent
            && !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV))
        {
            (self.log)(&format!("the kernel refused a reply: {error}"));
        }
        sent
    }

    fn wait_for_init(&self) -> Result<(), AttachError> {
        let mut state = self.state.lock();
        let until = base::Deadline::after(self.options.wait.max(Duration::from_secs(10)));
        while state.init.is_none() && !until.is_over() {
            self.changed.wait_for(&mut state, until.left());
        }
        match state.init {
            Some(Ok(_)) => {
                drop(state);
                // A kernel without it refuses. Then a restarted server cannot be followed in every case.
                let drops = self.tell_kernel(&request::drop_all_names()).is_ok();
                self.state.lock().drops_names = drops;
                Ok(())
            }
            Some(Err(error)) => Err(MountError::Init(std::io::Error::from_raw_os_error(error)).into()),
            None => Err(AttachError::Server {
                address: self.options.address.clone(),
                why: "it did not answer the kernel's first request".to_owned(),
            }),
        }
    }

    /// The body of a thread that reads requests from the kernel.
    fn read_device(&self, index: usize) {
        let device = &self.devices[index];
        let mut room = self.rooms.take();
        loop {
            match device.receive(&mut room) {
                Ok(Received::Request(len)) => self.relay(index, &mut room, len),
                Ok(Received::Nothing) => {}
                Ok(Received::Gone) => break,
                Err(error) => {
                    (self.log)(&format!("reading the kernel's requests failed, so the mount ends: {error}"));
                    break;
                }
            }
        }
        self.flight.close();
        if self.readers_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.state.lock().gone = true;
            self.changed.notify_all();
        }
    }

    /// Sends a request to the server: the first `len` bytes of `room`.
    fn relay(&self, device: usize, room: &mut Vec<u8>, len: usize) {
        let request = &room[..len];
        let Some(asked) = Asked::read(request) else { return };
        if asked.opcode == op::INTERRUPT {
            let target = request.get(request::IN_HEADER..).and_then(<[u8]>::first_chunk);
            if let Some(target) = target {
                self.interrupt(u64::from_ne_bytes(*target));
            }
            return;
        }
        let (traced, cost) = (self.tracer.wants(), request::cost(&asked, request));
        let kept = Kept::of(&self.rooms, room, len);
        match self.flight.enter(asked, device, Arc::new(kept), cost) {
            Ok((slot, seq)) => {
                traced.inspect(|read| self.tracer.entered(slot, seq, *read));
                self.push(slot, seq);
            }
            Err(NoSlot::Failing) if asked.wants_reply() => {
                let _ = self.reply(device, &request::error_reply(asked.unique, libc::EIO));
            }
            Err(NoSlot::Failing) => self.release(&asked, &[]),
            Err(NoSlot::Closed) => {}
        }
    }

    /// The kernel reports a signal to the caller of a request.
    fn interrupt(&self, unique: u64) {
        let Some(entry) = self.flight.by_unique(unique) else { return };
        self.flight.change(entry.slot, entry.seq, |entry| entry.signalled = true);
        self.pass_signal(&entry, false);
    }

    /// Tells the server of a signal. A caller that is being killed is released at once if there is no server.
    fn pass_signal(&self, entry: &Entry, only_if_killed: bool) {
        let killed = device::is_being_killed(entry.asked.pid);
        if only_if_killed && !killed {
            return;
        }
        let head = Head::of_slot(Kind::Interrupt, entry.slot, entry.seq);
        let now = base::time::monotonic();
        let late = entry.killed.is_some_and(|since| now.duration_since(since) >= KILL_PATIENCE);
        let said = !late && self.send_somewhere(&Head { flags: u8::from(killed), ..head }, &[]);
        if killed && !said {
            return self.give_up(entry, libc::EINTR);
        }
        if killed && entry.killed.is_none() {
            self.flight.change(entry.slot, entry.seq, |entry| entry.killed = Some(now));
        }
    }

    /// Answers a request with an error, because it cannot be known when it will be answered.
    fn give_up(&self, entry: &Entry, error: i32) {
        let mut first = false;
        let mark = |entry: &mut Entry| first = !std::mem::replace(&mut entry.given_up, true);
        if !self.flight.change(entry.slot, entry.seq, mark) || !first {
            return;
        }
        if entry.asked.wants_reply() {
            let _ = self.reply(entry.device, &request::error_reply(entry.asked.unique, error));
        }
        if entry.sent.is_none() {
            self.flight.end(entry.slot, entry.seq);
        }
    }

    /// The kernel dropped references: they need not be restored at another server.
    fn release(&self, asked: &Asked, message: &[u8]) {
        let mut held = self.held.lock();
        for (node, count) in request::forgotten(asked, message) {
            if let Some(has) = held.get_mut(&node) {
                *has = has.saturating_sub(count);
                if *has == 0 {
                    held.remove(&node);
                }
            }
        }
    }

    /// Pings, gives up, and looks after callers that had a signal.
    fn run_clock(&self) {
        while !self.ended.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            self.links.iter().for_each(|link| link.tick());
            let over = self
                .state
                .lock()
                .down_since
                .is_some_and(|since| base::time::monotonic().duration_since(since) >= self.options.wait);
            if over && !self.failing.swap(true, Ordering::AcqRel) {
                self.flight.set_failing(true);
                (self.log)(&format!(
                    "no server at {} for {} s: requests fail with EIO until one answers",
                    self.options.address,
                    self.options.wait.as_secs()
                ));
            }
            let failing = self.failing.load(Ordering::Acquire);
            for entry in self.flight.all().iter().filter(|entry| !entry.given_up) {
                if failing {
                    self.give_up(entry, libc::EIO);
                } else if entry.signalled {
                    self.pass_signal(entry, true);
                }
            }
        }
    }
}
