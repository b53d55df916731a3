//! The server: it listens, greets, and serves each guest from threads of its own.
//!
//! ```text
//!   guest-accept ─► guest-N: greets, then N threads take turns: one receives a frame, hands the socket on to
//!                   the next, and serves the request itself
//!                   guest-send: what the socket did not take at once
//! ```
//!
//! A request is served on the thread that received it, as in a local mount. So a single program costs no
//! handover between threads, and many programs use all of them. What must wait moves on to the dispatcher's
//! workers. Each guest has its own workers and queues: a guest that floods or stops reading delays itself.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use base::Ino;
use base::places::{Limits, Places};
use base::secret::Secret;
use fs::Errno;
use fs::api::{Coherence, Filesystem, Locks};
use fuse::buffer::{PageBuf, RequestBuf};
use parking_lot::Mutex;
use stream::address::Address;
use stream::frame::{Head, Kind, PAYLOAD_MAX};
use stream::hello::{
    self, ABOUT, Challenge, Found, Hello, Id, Keys, LOCKS, Refusal, Sharing, TIMES, VERSION, Welcome,
    encode_refusal,
};
use stream::socket::{Listener, Lost, Receiver, Socket};

use crate::counted::{Appending, Counted};
use crate::guest::{Cut, Guest};
use crate::locks::Numbers;
use crate::outbox::Outbox;

mod sessions;
mod strangers;
#[cfg(test)]
mod tests;
mod visit;
use strangers::Strangers;
pub use visit::{Door, Visit};

/// How long a stranger may take for the whole greeting, if nothing else is said.
const GREETING: Duration = Duration::from_secs(10);
/// How long a guest may take to read, when it has been sent something.
const SEND_PATIENCE: Duration = Duration::from_secs(30);
/// How long a guest's machine may answer nothing over TCP.
const SILENCE: Duration = Duration::from_secs(30);
/// How often sessions without connections are looked at.
const TICK: Duration = Duration::from_millis(200);
/// The most connections of all guests together. Strangers are counted apart ([`Strangers`]).
const LINKS_MOST: usize = 1024;
/// How long requests may go on when the server ends.
const ENDING: Duration = Duration::from_secs(10);

/// How long a guest that has not mounted is remembered without a connection, at most.
const UNUSED_LINGER: Duration = Duration::from_secs(5);

/// How long a guest without a connection is remembered, if nothing else is said.
pub const LINGER: Duration = Duration::from_secs(60);

/// How to serve.
#[derive(Clone)]
pub struct Options {
    /// What guests must know. Without it, whatever may connect is a guest.
    pub secret: Option<Secret>,
    /// How long a guest's kernel may keep things, and so how many guests there may be.
    pub sharing: Sharing,
    /// Refuse changes.
    pub read_only: bool,
    /// The kernel of a guest may hold written bytes back until close or fsync. Only with [`Sharing::One`].
    pub writeback: bool,
    /// Locks exclude the programs of all guests. Only with [`Sharing::Many`], and if the filesystem takes
    /// locks.
    pub locks: bool,
    /// What the server says it is, for people.
    pub about: String,
    /// Credit of each guest: requests in flight.
    pub slots: u16,
    /// Credit of each guest: bytes in flight.
    pub bytes: u32,
    /// Threads for each connection.
    pub threads: usize,
    /// The most connections of a guest.
    pub connections: usize,
    /// The most guests.
    pub guests: usize,
    /// The most worker threads of each guest, for requests that wait.
    pub workers: usize,
    /// A request that waits is answered EIO after this time.
    pub deadline: Duration,
    /// How long a guest without a connection is remembered.
    pub linger: Duration,
    /// How long a guest's machine may answer nothing over TCP until its connection counts as broken.
    pub silence: Duration,
    /// How long the greeting of a new connection may take.
    pub greeting: Duration,
    /// What is served: the same bytes for the same volume, tree or folder.
    pub source: Id,
    /// The name of what is served, for people.
    pub name: String,
    /// Receives the lines of the log.
    pub log: fuse::Log,
}

impl Options {
    /// The defaults for something of this name. `source` tells it from anything else.
    pub fn new(name: &str, source: &[u8], log: fuse::Log) -> Options {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            secret: None,
            sharing: Sharing::One,
            read_only: false,
            writeback: false,
            locks: false,
            about: String::new(),
            slots: 128,
            bytes: 32 << 20,
            threads: cores.clamp(2, 4),
            connections: 8,
            guests: 256,
            workers: 32,
            deadline: Duration::from_secs(60),
            linger: LINGER,
            silence: SILENCE,
            greeting: GREETING,
            source: id_of("covey guest stream source", source),
            name: name.to_owned(),
            log,
        }
    }

    /// The number of threads that serve one guest at most.
    pub fn lanes(&self) -> usize {
        self.threads * self.connections
    }
}

fn id_of(context: &str, bytes: &[u8]) -> Id {
    let mut id = [0; 16];
    id.copy_from_slice(&blake3::derive_key(context, bytes)[..16]);
    id
}

struct Shared {
    fs: Arc<dyn Filesystem>,
    options: Arc<Options>,
    keys: Keys,
    instance: Id,
    boot: Id,
    root_mode: u32,
    appending: Arc<Appending>,
    lock_numbers: Arc<Numbers>,
    guests: Mutex<HashMap<Id, Arc<Guest>>>,
    /// Guests that came by another way ([`Door`]). It changes under the lock of `guests`.
    visits: AtomicUsize,
    last_guest: AtomicU64,
    /// Connections, greeted or not.
    links: AtomicUsize,
    strangers: Strangers,
    /// Of guests, whatever way they came. One without a connection gives its place up for another.
    places: Places,
    ended: AtomicBool,
}

/// Serves one filesystem to guests.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Arc<Listener>>,
}

impl Server {
    /// A server that does not listen yet.
    ///
    /// # Errors
    /// The root directory cannot be read, or no thread can be started.
    pub fn start(fs: Arc<dyn Filesystem>, mut options: Options) -> io::Result<Server> {
        let root = fs.getattr(Ino::ROOT).map_err(|Errno(error)| io::Error::from_raw_os_error(error))?;
        match fs.coherence() {
            Coherence::Frozen => (options.sharing, options.read_only) = (Sharing::Frozen, true),
            Coherence::Shared => options.sharing = Sharing::Many,
            Coherence::Exclusive => {}
        }
        options.locks &= options.sharing == Sharing::Many && fs.locks() == Locks::Fleet;
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let places = Places::new(Limits::keeping_work(options.guests));
        let shared = Arc::new(Shared {
            fs,
            keys: Keys::new(options.secret.as_ref()),
            options: Arc::new(options),
            instance: base::random::id16(),
            boot: id_of("covey guest stream boot", &boot),
            root_mode: root.kind.mode_bits() | u32::from(root.perm),
            appending: Arc::default(),
            lock_numbers: Arc::default(),
            guests: Mutex::default(),
            visits: AtomicUsize::new(0),
            last_guest: AtomicU64::new(0),
            links: AtomicUsize::new(0),
            strangers: Strangers::default(),
            places,
            ended: AtomicBool::new(false),
        });
        let clock = Arc::clone(&shared);
        base::thread::spawn("guest-clock", move || clock.run_clock())?;
        Ok(Server { shared, listeners: Vec::new() })
    }

    /// Listens at one more address. Returns the address as a guest writes it.
    ///
    /// # Errors
    /// The system's error.
    pub fn listen(&mut self, address: &Address) -> io::Result<Address> {
        let listener = Arc::new(Listener::bind(address)?);
        let (shared, accepting) = (Arc::clone(&self.shared), Arc::clone(&listener));
        base::thread::spawn("guest-accept", move || shared.accept(&accepting))?;
        let bound = listener.address(address);
        self.listeners.push(listener);
        Ok(bound)
    }

    /// What the guests are told of how long they may keep things.
    pub fn sharing(&self) -> Sharing {
        self.shared.options.sharing
    }

    /// Whether changes are refused.
    pub fn read_only(&self) -> bool {
        self.shared.options.read_only
    }

    /// Whether locks exclude the programs of all guests.
    pub fn has_locks(&self) -> bool {
        self.shared.options.locks
    }

    /// The number of guests.
    pub fn guests(&self) -> usize {
        let guests = self.shared.guests.lock();
        guests.len() + self.shared.visits.load(Ordering::Acquire)
    }

    /// Ends: takes no more guests, finishes what runs, and cuts the connections.
    pub fn end(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.listeners.drain(..).for_each(|listener| listener.close());
        self.shared.strangers.cut_all();
        let guests: Vec<Arc<Guest>> = self.shared.guests.lock().drain().map(|(_, guest)| guest).collect();
        let until = base::Deadline::after(ENDING);
        let why = encode_refusal(Refusal::Ending, "the server ends");
        for guest in guests {
            while guest.running() > 0 && !until.is_over() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let said_goodbye = guest.has_ended();
            guest.say(&Head::plain(Kind::Refuse), &why);
            if said_goodbye { guest.end() } else { guest.end_with_server() }
        }
        while self.shared.links.load(Ordering::Acquire) > 0 && !until.is_over() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.shared.ended.load(Ordering::Acquire) {
            self.end();
        }
    }
}

/// What is received on one connection. The threads of the connection take turns with it.
struct Turn {
    receiver: Receiver,
    over: bool,
}

/// A connection after the greeting.
struct Link {
    guest: Arc<Guest>,
    outbox: Arc<Outbox>,
    turn: Mutex<Turn>,
    threads: AtomicUsize,
}

impl Shared {
    fn log(&self, line: &str) {
        (self.options.log)(line);
    }

    /// The body of a thread that accepts connections.
    fn accept(self: &Arc<Self>, listener: &Listener) {
        while !self.ended.load(Ordering::Acquire) {
            let socket = match listener.accept() {
                Ok(socket) => socket,
                Err(_) if self.ended.load(Ordering::Acquire) => return,
                Err(error) => {
                    // Such as too many open files: it passes, or goes on, and must not fill the log at once.
                    self.log(&format!("accepting a guest failed: {error}"));
                    std::thread::sleep(Duration::from_secs(1));
                    continue;
                }
            };
            // Without a second handle it cannot be cut: too many files are open.
            let Ok(entered) = self.strangers.enter(&socket, self.options.greeting) else { continue };
            if let Some(line) = entered.news {
                self.log(&line);
            }
            self.links.fetch_add(1, Ordering::AcqRel);
            let (shared, number) = (Arc::clone(self), entered.number);
            let spawned = base::thread::spawn("guest-hello", move || {
                shared.serve(socket, number);
                shared.links.fetch_sub(1, Ordering::AcqRel);
            });
            if spawned.is_err() {
                self.strangers.leave(number);
                self.links.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// One connection from beginning to end.
    fn serve(self: &Arc<Self>, socket: Socket, number: u64) {
        let mut receiver = Receiver::new(socket);
        let greeted = self.greet(&mut receiver, number);
        self.strangers.leave(number);
        match greeted {
            Ok((guest, outbox)) => {
                let turn = Mutex::new(Turn { receiver, over: false });
                let link = Arc::new(Link { guest, outbox, turn, threads: AtomicUsize::new(1) });
                self.run(&link);
            }
            Err(Some(why)) => self.log(&format!("a guest was refused: {why}")),
            Err(None) => {}
        }
        // Its frames may still be on their way.
    }

    fn run(self: &Arc<Self>, link: &Arc<Link>) {
        let outbox = Arc::clone(&link.outbox);
        let sender = base::thread::spawn("guest-send", move || outbox.run());
        for index in 1..self.options.threads {
            let (shared, mine) = (Arc::clone(self), Arc::clone(link));
            link.threads.fetch_add(1, Ordering::AcqRel);
            if base::thread::spawn(&format!("guest-{index}"), move || shared.take_turns(&mine)).is_err() {
                link.threads.fetch_sub(1, Ordering::AcqRel);
            }
        }
        if sender.is_ok() {
            self.take_turns(link);
        } else {
            link.outbox.cut();
        }
        // The last thread that serves this connection ends it. This one waits, because it counts connections.
        while link.threads.load(Ordering::Acquire) > 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        link.outbox.drain(Duration::from_secs(5));
        link.guest.leave(&link.outbox);
        if link.guest.has_ended() {
            self.forget(&link.guest, "detached");
        }
    }

    /// The body of a thread that serves a connection.
    fn take_turns(&self, link: &Link) {
        base::thread::must_not_wait();
        let lane = link.guest.next_lane();
        let mut request = RequestBuf::new();
        let mut reply = PageBuf::for_reply();
        loop {
            let mut turn = link.turn.lock();
            if turn.over {
                break;
            }
            let received = turn.receiver.receive(request.bytes());
            turn.over = received.is_err();
            drop(turn);
            let head = match received {
                Ok(head) => head,
                Err(lost) => {
                    self.lost(link, &lost);
                    break;
                }
            };
            let payload = &mut request.bytes()[..head.len];
            if let Err(cut) = link.guest.take(lane, &head, payload, reply.bytes(), &link.outbox) {
                self.cut_off(link, &cut);
                break;
            }
            if link.guest.has_ended() {
                link.outbox.drain(Duration::from_secs(5));
                link.outbox.cut();
                break;
            }
        }
        base::thread::may_wait_again();
        link.threads.fetch_sub(1, Ordering::AcqRel);
    }

    fn lost(&self, link: &Link, lost: &Lost) {
        match lost {
            Lost::Bad(bad) => self.cut_off(link, &Cut::Frame(*bad)),
            _ if link.guest.has_ended() => {}
            _ => self.log(&format!("guest {}: a connection ended: {lost}", link.guest.number)),
        }
    }

    /// The guest broke the rules. Its other connections and other guests go on.
    fn cut_off(&self, link: &Link, cut: &Cut) {
        self.log(&format!("guest {}: cut off: {cut}", link.guest.number));
        let why = encode_refusal(Refusal::Broken, &cut.to_string());
        link.outbox.send(&Head::plain(Kind::Refuse), &why);
        link.outbox.drain(Duration::from_millis(200));
        link.outbox.cut();
    }

    /// Greets. The error is what to log, or nothing for a connection that said nothing.
    fn greet(
        self: &Arc<Self>,
        receiver: &mut Receiver,
        number: u64,
    ) -> Result<(Arc<Guest>, Arc<Outbox>), Option<String>> {
        let io = |error: io::Error| Some(error.to_string());
        let proven = self.prove(receiver);
        // One that was cut has its line in the log.
        if !self.strangers.leave(number) {
            return Err(None);
        }
        let (hello, proof) = proven?;
        if self.links.load(Ordering::Acquire).saturating_sub(self.strangers.count()) > LINKS_MOST {
            let say = format!("{LINKS_MOST} connections are served, and no more are allowed");
            return Err(Some(refuse(receiver.socket(), Refusal::Full, &say)));
        }
        let (guest, found) = self
            .find(&hello, receiver.socket().peer())
            .map_err(|(why, say)| Some(refuse(receiver.socket(), why, &say)))?;
        receiver.socket().limit(None, Some(SEND_PATIENCE)).map_err(io)?;
        receiver.socket().notice_silence(self.options.silence);
        let most = 2 * self.options.bytes as usize + (8 << 20);
        let outbox = Arc::new(Outbox::new(receiver.socket().cloned().map_err(io)?, most));
        if !guest.join(&outbox) {
            let say = format!("it has {} connections, and no more are allowed", self.options.connections);
            return Err(Some(refuse(receiver.socket(), Refusal::Full, &say)));
        }
        if hello.features & ABOUT != 0 {
            outbox.send(&Head::plain(Kind::About), self.options.about.as_bytes());
        }
        outbox.send(&Head::plain(Kind::Welcome), &self.welcome(proof, &guest, found).encode());
        guest.remind(&outbox);
        Ok((guest, outbox))
    }

    /// Lets a stranger prove that it may attach. Returns its greeting, and the server's own proof.
    fn prove(&self, receiver: &mut Receiver) -> Result<(Hello, [u8; 32]), Option<String>> {
        let io = |error: io::Error| Some(error.to_string());
        let mut room = vec![0; PAYLOAD_MAX];
        // For each step. The clock ends the greeting as a whole, until the server ends.
        let time = Some(self.options.greeting);
        receiver.socket().limit(time, time).map_err(io)?;
        let got = match receiver.receive_kind(Kind::Hello, &mut room) {
            Ok(got) if got.kind == Kind::Hello => got,
            Ok(_) | Err(Lost::Closed) => return Err(None),
            Err(lost) => return Err(Some(format!("it did not greet: {lost}"))),
        };
        let hello_bytes = room[..got.len].to_vec();
        let hello = Hello::decode(&hello_bytes).ok_or(Some("its greeting makes no sense".to_owned()))?;
        let mut nonce = [0; 32];
        base::random::fill(&mut nonce);
        let secret = self.keys.has_secret();
        let features = TIMES | ABOUT | if self.options.locks { LOCKS } else { 0 };
        let challenge =
            Challenge { version: VERSION, features, instance: self.instance, nonce, secret }.encode();
        receiver.socket().send(&Head::plain(Kind::Challenge), &[&challenge]).map_err(io)?;
        if hello.version != VERSION {
            let say = format!(
                "it speaks version {} of the protocol, and this server version {VERSION}: bring both to one \
                 release",
                hello.version
            );
            return Err(Some(refuse(receiver.socket(), Refusal::Version, &say)));
        }
        let got = receiver.receive_kind(Kind::Proof, &mut room).map_err(|lost| match lost {
            Lost::Closed => Some("it ended the greeting: it has no secret, or another version".to_owned()),
            lost => Some(format!("it proved nothing: {lost}")),
        })?;
        let proof = room[..got.len].try_into().map_err(|_| Some("its proof makes no sense".to_owned()))?;
        if !hello::same(&proof, &self.keys.guest(&hello_bytes, &challenge)) {
            let say = "the secret is wrong: give both ends the same file";
            return Err(Some(refuse(receiver.socket(), Refusal::Secret, say)));
        }
        if self.options.locks && hello.features & LOCKS == 0 {
            let say = "it knows no locks of the server, and its programs would exclude no others: bring both \
                       ends to one release, or serve with --locks local";
            return Err(Some(refuse(receiver.socket(), Refusal::Version, say)));
        }
        let proof = self.keys.server(&hello_bytes, &challenge);
        Ok((hello, proof))
    }

    fn welcome(&self, proof: [u8; 32], guest: &Guest, found: Found) -> Welcome {
        let options = &self.options;
        Welcome {
            proof,
            session: guest.id(),
            found,
            slots: options.slots,
            bytes: options.bytes,
            root_mode: self.root_mode,
            read_only: options.read_only,
            sharing: options.sharing,
            source: options.source,
            boot: self.boot,
            name: options.name.clone(),
        }
    }

    /// A new guest's view of what is served. `locks`: the guest may be asked to send its locks.
    fn view(&self, locks: bool) -> Counted {
        let (options, appending) = (&self.options, Arc::clone(&self.appending));
        let fs = Counted::new(Arc::clone(&self.fs), options.sharing, options.read_only, appending);
        if locks && options.locks { fs.with_locks(Arc::clone(&self.lock_numbers)) } else { fs }
    }

    /// Ends greetings that last too long, and forgets guests that have had no connection for long.
    fn run_clock(&self) {
        while !self.ended.load(Ordering::Acquire) {
            std::thread::sleep(TICK);
            let late = self.strangers.cut_late();
            if late > 0 {
                let seconds = self.options.greeting.as_secs();
                self.log(&format!("{late} connections were ended: they did not greet within {seconds} s"));
            }
            let now = base::time::monotonic();
            let over = |guest: &&Arc<Guest>| {
                // What has no kernel yet holds nothing that could be missed.
                let linger = self.options.linger;
                let linger = if guest.has_begun() { linger } else { linger.min(UNUSED_LINGER) };
                guest.alone_since().is_some_and(|since| now.duration_since(since) >= linger)
            };
            let gone: Vec<Arc<Guest>> = self.guests.lock().values().filter(over).cloned().collect();
            for guest in gone {
                self.forget(&guest, "did not come back, and is forgotten");
            }
        }
    }
}

/// Says why, and ends the connection. Returns what to log.
fn refuse(socket: &Socket, why: Refusal, say: &str) -> String {
    let _ = socket.send(&Head::plain(Kind::Refuse), &[&encode_refusal(why, say)]);
    say.to_owned()
}
