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
//! EIO, until one answers. What the kernel has given back meanwhile is told to the server then ([`held`],
//! [`locks`]).

pub mod command;
pub mod device;
pub mod ear;
pub mod flight;
mod giving_up;
pub mod greet;
mod held;
mod link;
mod locks;
mod notes;
pub mod rooms;
pub mod status;
pub mod trace;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use base::secret::Secret;
use parking_lot::{Condvar, Mutex};

use crate::address::Address;
use crate::frame::{Head, Kind};
use crate::hello::{Id, Keys, Sharing};
use crate::request::{self, Asked, op};
use device::{Device, Flags, MountError, Received};
use flight::{Entered, Flight, New, NoSlot};
use greet::{Trouble, greet};
use held::Held;
use link::Link;
use locks::Locks;
use notes::Notes;
use rooms::{Kept, Rooms};
use status::Figures;
use trace::Tracer;

/// How long the server may take to make everything durable when the mount ends.
const GOODBYE: Duration = Duration::from_secs(60);
/// How often a thread that waits looks whether to give up.
const LOOK: Duration = Duration::from_millis(100);

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
    /// The caller gave up.
    #[error("it was stopped before {0} had answered; nothing is mounted")]
    Stopped(Address),
}

/// What is known of the session with the server.
struct Session {
    id: Id,
    /// Counts sessions: a new one has the next number.
    number: u64,
    source: Id,
    boot: Id,
}

struct Shared {
    options: Options,
    keys: Keys,
    flight: Flight,
    links: Vec<Link>,
    session: Mutex<Session>,
    /// What the kernel holds. Taken alone.
    held: Mutex<Held>,
    /// The server decides locks for all guests. This and the next two are so as long as the mount lasts.
    has_locks: bool,
    sharing: Sharing,
    read_only: bool,
    /// Which programs hold locks. Taken alone.
    locks: Mutex<Locks>,
    /// Signals to callers of requests that no thread had entered. Taken alone.
    early: Mutex<VecDeque<u64>>,
    figures: Figures,
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
    /// Since when there is one.
    up_since: Option<Instant>,
    /// What the server says of itself. Empty: it says nothing.
    about: String,
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
    /// Connects to the server and mounts what it serves. Returns when the mount can be used. `stops` says
    /// whether to give up, and is asked several times a second.
    ///
    /// # Errors
    /// [`AttachError`]. Nothing is left mounted then.
    pub fn attach(
        options: Options,
        mountpoint: &Path,
        log: Log,
        stops: &dyn Fn() -> bool,
    ) -> Result<Attached, AttachError> {
        let path = device::check(mountpoint)?;
        let keys = Keys::new(options.secret.as_ref());
        let greeted = first_greeting(&options, stops)?;
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
        let devices = one_for_each(device, readers).map_err(MountError::Io)?;
        let session = Session { id: welcome.session, number: 1, source: welcome.source, boot: welcome.boot };
        let shared = Arc::new(Shared {
            keys,
            flight: Flight::default(),
            links: (0..options.connections.max(1)).map(|_| Link::default()).collect(),
            session: Mutex::new(session),
            held: Mutex::default(),
            has_locks: greeted.locks,
            sharing: welcome.sharing,
            read_only: welcome.read_only,
            locks: Mutex::default(),
            early: Mutex::default(),
            figures: Figures::default(),
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
        shared.flight.grant(welcome.slots, welcome.bytes, greeted.locks);
        shared.links[0].set_times(greeted.times);
        shared.state.lock().about.clone_from(&greeted.about);
        if shared.options.trace > 0 {
            let say = move |line: &str| {
                log(line);
                true
            };
            shared.tracer.listen(shared.options.trace, Box::new(say));
        }
        let attached = Attached { shared, path: path.clone(), name };
        attached.start(greeted.receiver, readers)?;
        attached.shared.wait_for_init(stops)?;
        device::set_read_ahead(&path);
        let asked = ear::Asked { shared: Arc::clone(&attached.shared), name: attached.name.clone() };
        if let Err(error) = ear::open(&path, asked) {
            log(&format!("`covey trace` and `covey status` cannot reach this mount: {error}"));
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

/// Greets the server for the first time. A server that accepts and says nothing can make that long, so a
/// thread does it, and this one looks whether to give up.
fn first_greeting(options: &Options, stops: &dyn Fn() -> bool) -> Result<greet::Greeted, AttachError> {
    let (tell, told) = sync_channel(1);
    let (address, secret) = (options.address.clone(), options.secret.clone());
    let work = move || drop(tell.send(greet(&address, &Keys::new(secret.as_ref()), [0; 16], 0)));
    base::thread::spawn("attach-greet", work).map_err(AttachError::Thread)?;
    let failed = |why: String| AttachError::Server { address: options.address.clone(), why };
    loop {
        match told.recv_timeout(LOOK) {
            Ok(greeted) => return greeted.map_err(|trouble: Trouble| failed(trouble.text)),
            Err(RecvTimeoutError::Timeout) if stops() => {
                return Err(AttachError::Stopped(options.address.clone()));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(failed("the greeting failed".to_owned())),
        }
    }
}

/// The device, and clones of it for further readers.
fn one_for_each(device: Device, readers: usize) -> std::io::Result<Vec<Device>> {
    let mut devices = (1..readers).map(|_| device.cloned()).collect::<std::io::Result<Vec<Device>>>()?;
    devices.insert(0, device);
    Ok(devices)
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

    fn wait_for_init(&self, stops: &dyn Fn() -> bool) -> Result<(), AttachError> {
        let mut state = self.state.lock();
        let until = base::Deadline::after(self.options.wait.max(Duration::from_secs(10)));
        while state.init.is_none() && !until.is_over() {
            if stops() {
                return Err(AttachError::Stopped(self.options.address.clone()));
            }
            self.changed.wait_for(&mut state, until.left().min(LOOK));
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
        let mut said = false;
        while !self.ended.load(Ordering::Acquire) {
            match device.receive(&mut room) {
                Ok(Received::Request(len)) => {
                    self.relay(index, &mut room, len);
                    while self.flight.is_crowded(LOOK) {}
                }
                Ok(Received::Nothing) => {}
                Ok(Received::Gone) => break,
                // Such as too little memory: it passes. Programs wait for what this thread does not read.
                Err(error) => {
                    if !said {
                        (self.log)(&format!(
                            "reading the kernel's requests failed, and is tried again: {error}"
                        ));
                    }
                    said = true;
                    std::thread::sleep(LOOK);
                }
            }
        }
        self.flight.close();
        self.advance();
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
        self.figures.asked(&asked, len);
        let kept = Arc::new(Kept::of(&self.rooms, room, len));
        if self.has_locks
            && let Some(lock) = request::lock_asked(&asked, &kept)
            && self.locks.lock().asks(asked.node, &lock).is_err()
        {
            let _ = self.reply(device, &request::error_reply(asked.unique, libc::EIO));
            return;
        }
        let ended = request::lock_ended(&asked, &kept).filter(|_| self.has_locks);
        let ends_locks = ended.is_some_and(|holder| self.locks.lock().ends(asked.node, holder));
        let new = New { asked, device, request: kept, cost, traced, ends_locks, signalled: false };
        match self.flight.enter(new.clone()) {
            Ok(None) => self.entered(&asked),
            Ok(Some(entered)) => self.begin(&new, Ok(entered)),
            Err(why) => self.begin(&new, Err(why)),
        }
    }

    /// A request has a slot, and is sent, or it will have none, and is refused.
    fn begin(&self, new: &New, entered: Entered) {
        let error = match entered {
            Ok((slot, seq)) => {
                new.traced.inspect(|read| self.tracer.entered(slot, seq, *read));
                self.push(slot, seq);
                if new.signalled {
                    self.interrupt(new.asked.unique);
                }
                return self.entered(&new.asked);
            }
            Err(NoSlot::Closed) => libc::ENOTCONN,
            Err(NoSlot::Locks) => libc::ENOLCK,
            Err(NoSlot::Failing) => libc::EIO,
        };
        self.refuse(new, error);
    }

    /// Answers a request with an error that has no slot. The server is told later what the kernel gave back.
    fn refuse(&self, new: &New, error: i32) {
        self.held.lock().owe(&request::forgotten(&new.asked, &new.request));
        if new.ends_locks {
            self.locks.lock().keep_unsent(new.asked, Arc::clone(&new.request));
        }
        if new.asked.wants_reply() {
            let _ = self.reply(new.device, &request::error_reply(new.asked.unique, error));
        }
    }

    /// Sends the requests of the line for which there are slots now. Refuses all if requests are refused.
    fn advance(&self) {
        while let Some((new, entered)) = self.flight.next() {
            self.begin(&new, entered);
        }
    }
}

#[cfg(test)]
mod tests;
