//! Runs the machine: a socket, one thread, the monotonic clock.
//!
//! The thread receives, with a timeout until the machine's next event, and sends what the machine wants to
//! send. Calls from outside ([`Members::leave`], [`Members::set_vitals`]) take the same lock briefly and send
//! by themselves. It is a thread and not a task of a runtime, because a runtime whose workers are all busy
//! would make a healthy node look dead.
//!
//! A second thread looks up names. It exists only if a name was given, because a resolver can hang for long.
//!
//! Locks: `state` is taken only while no other lock is held. The watcher is called without any lock.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use net::id::{Member, NodeId};
use net::secret::Secret;
use parking_lot::{Condvar, Mutex};

use crate::directory::Directory;

use super::contacts::Contact;
use super::home::NodeHome;
use super::machine::{Event, Machine};
use super::roster::Roster;
use super::seal::{DATAGRAM_MAX, Heard, Seal, Sealed};

/// The longest sleep of the thread. It bounds how soon the thread notices that it must end.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// How long a node is suspected after the data path had no answer from it.
const SUSPECT: Duration = Duration::from_secs(10);
/// The interval of name lookups while no node answers, and otherwise.
const LOOK_ALONE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(60);
/// The shortest interval at which the other nodes' addresses are written to the disk.
const KEEP: Duration = Duration::from_secs(30);

/// What a node needs to join.
pub struct Setup {
    /// The node's own record. `address` is where other nodes reach it.
    pub me: Member,
    /// The addresses through which it joins. Without any, it waits for other nodes.
    pub contacts: Vec<Contact>,
    /// The fleet's secret.
    pub secret: Secret,
    /// Which fleet: the volume's id.
    pub fleet: [u8; 16],
    /// Where the other nodes' addresses are kept, and read at the start.
    pub home: Option<Arc<NodeHome>>,
    /// Answers questions about blobs, which come to the same socket.
    pub directory: Arc<Directory>,
}

/// Why membership cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address in the record is not usable.
    #[error(
        "{0} is no address at which the others could reach this node: name one with --listen or --advertise"
    )]
    Address(SocketAddr),
    /// The socket or a thread failed.
    #[error("membership cannot start: {0}")]
    Io(#[from] io::Error),
}

/// Counters since the start. Bytes are those of UDP payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Valid datagrams of this fleet.
    pub received: u64,
    /// Bytes of valid datagrams of this fleet.
    pub received_bytes: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Bytes of datagrams sent.
    pub sent_bytes: u64,
    /// Datagrams that could not be sent.
    pub unsent: u64,
    /// Failed reads of the socket.
    pub unheard: u64,
    /// Datagrams with another secret, of another fleet, or changed on the way.
    pub strangers: u64,
    /// Datagrams of another version, or of an impossible length.
    pub foreign: u64,
    /// Datagrams of this fleet that were received before.
    pub replayed: u64,
    /// Datagrams of this fleet with invalid contents.
    pub malformed: u64,
    /// How often this node was declared down while it was alive.
    pub returns: u64,
}

struct State {
    machine: Machine,
    seal: Seal,
    heard: Heard,
    stats: Stats,
}

struct Shared {
    state: Mutex<State>,
    socket: UdpSocket,
    start: Instant,
    stop: AtomicBool,
    roster: Mutex<Arc<Roster>>,
    suspects: Mutex<HashMap<NodeId, Instant>>,
    watcher: Box<dyn Fn(Event) + Send + Sync>,
    home: Option<Arc<NodeHome>>,
    directory: Arc<Directory>,
    kept: AtomicU64,
    look: (Mutex<()>, Condvar),
}

/// The membership of a node in a fleet. If it is dropped without [`Members::leave`], the node goes silent,
/// and the others find out.
pub struct Members {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Members {
    /// Begins to knock, on a bound socket. `watcher` is called with events on the gossip thread, so it must
    /// not wait.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        setup: Setup,
        socket: UdpSocket,
        watcher: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Members, StartError> {
        let Setup { me, contacts, secret, fleet, home, directory } = setup;
        if me.address.port() == 0 || me.address.ip().is_unspecified() || me.address.ip().is_multicast() {
            return Err(StartError::Address(me.address));
        }
        socket.set_nonblocking(false)?;
        let fixed = contacts.iter().filter_map(|contact| match contact {
            Contact::Address(address) => Some(*address),
            Contact::Name(_) => None,
        });
        let mut machine = Machine::new(&me, fixed.collect(), base::random::u64(), Duration::ZERO);
        machine.remember(home.as_ref().map(|home| home.peers()).unwrap_or_default());
        let shared = Arc::new(Shared {
            roster: Mutex::new(machine.roster()),
            state: Mutex::new(State {
                machine,
                seal: Seal::new(&secret, &fleet),
                heard: Heard::default(),
                stats: Stats::default(),
            }),
            socket,
            start: base::time::monotonic(),
            stop: AtomicBool::new(false),
            suspects: Mutex::default(),
            watcher: Box::new(watcher),
            home,
            directory,
            kept: AtomicU64::new(0),
            look: (Mutex::new(()), Condvar::new()),
        });
        let members = Members { shared: Arc::clone(&shared), threads: Mutex::default() };
        let gossip = base::thread::spawn("covey-gossip", {
            let shared = Arc::clone(&shared);
            move || shared.run()
        })?;
        members.threads.lock().push(gossip);
        if contacts.iter().any(|contact| matches!(contact, Contact::Name(_))) {
            members
                .threads
                .lock()
                .push(base::thread::spawn("covey-names", move || shared.look_up(&contacts))?);
        }
        Ok(members)
    }

    /// The members, including this node.
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.shared.roster.lock())
    }

    /// Sets how much this node's cache could still store, and how much it is about to send, both in MiB.
    /// Other nodes learn it within some seconds.
    pub fn set_vitals(&self, free: u32, load: u16) {
        self.shared.state.lock().machine.vitals(free, load);
    }

    /// Records that a node did not answer. For some seconds [`Members::is_suspect`] says so. No other node is
    /// told.
    pub fn suspect(&self, node: NodeId) {
        let now = base::time::monotonic();
        let mut suspects = self.shared.suspects.lock();
        suspects.retain(|_, until| *until > now);
        suspects.insert(node, now + SUSPECT);
    }

    /// Records that it has answered after all.
    pub fn trust(&self, node: NodeId) {
        self.shared.suspects.lock().remove(&node);
    }

    /// Whether that node recently failed to answer this one.
    pub fn is_suspect(&self, node: NodeId) -> bool {
        let suspects = self.shared.suspects.lock();
        !suspects.is_empty() && suspects.get(&node).is_some_and(|until| *until > base::time::monotonic())
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        let state = self.shared.state.lock();
        Stats { malformed: state.machine.malformed(), returns: state.machine.returns(), ..state.stats }
    }

    /// Says farewell, and waits until that is sent and the threads have ended.
    pub fn leave(&self) {
        {
            let mut state = self.shared.state.lock();
            state.machine.leave(self.shared.now());
            self.shared.send(&mut state);
        }
        self.shared.keep(true);
        self.end();
    }

    fn end(&self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Taken so that the thread has either seen the flag or is waiting.
        drop(self.shared.look.0.lock());
        self.shared.look.1.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = std::thread::current().id();
        for thread in threads {
            // The watcher may be what drops this. A resolver that hangs is not waited for.
            let names = thread.thread().name() == Some("covey-names");
            if thread.thread().id() != me && (!names || thread.is_finished()) {
                // A panic there has already been printed.
                thread.join().ok();
            }
        }
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn now(&self) -> Duration {
        base::time::monotonic().saturating_duration_since(self.start)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn run(&self) {
        // One byte more than the maximum, so that longer datagrams are recognized.
        let mut buffer = [0; DATAGRAM_MAX + 1];
        while !self.stopped() {
            let wait = self.state.lock().machine.next().saturating_sub(self.now());
            let arrived = if wait.is_zero() { Ok(None) } else { self.wait(wait, &mut buffer) };
            let events = {
                let mut state = self.state.lock();
                let now = self.now();
                match arrived {
                    Ok(Some((len, from))) => {
                        let datagram = buffer.get_mut(..len).unwrap_or_default();
                        match self.directory.answer(datagram) {
                            // A lost answer is asked for again.
                            Some(answer) => drop(self.socket.send_to(&answer, from)),
                            None => self.open(&mut state, now, datagram),
                        }
                    }
                    Ok(None) => {}
                    Err(_) => state.stats.unheard += 1,
                }
                state.machine.tick(now);
                self.send(&mut state);
                *self.roster.lock() = state.machine.roster();
                state.machine.events()
            };
            events.into_iter().for_each(|event| (self.watcher)(event));
            self.keep(false);
        }
    }

    /// The length of the received datagram and its source, or None after the time.
    fn wait(&self, time: Duration, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        // The kernel's clock tick is coarse, and zero would mean to wait without an end.
        self.socket.set_read_timeout(Some(time.clamp(Duration::from_millis(1), SLEEP_MAX)))?;
        match self.socket.recv_from(buffer) {
            Ok(received) => Ok(Some(received)),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(error) => {
                // An interface that vanished may come back. Until then this must not be a busy loop.
                std::thread::sleep(Duration::from_millis(50));
                Err(error)
            }
        }
    }

    fn open(&self, state: &mut State, now: Duration, datagram: &mut [u8]) {
        let len = datagram.len() as u64;
        match state.seal.open(datagram) {
            Ok((_, mark)) if !state.heard.is_new(mark) => state.stats.replayed += 1,
            Ok((plain, _)) => {
                state.stats.received += 1;
                state.stats.received_bytes += len;
                state.machine.receive(now, plain);
            }
            Err(Sealed::Stranger) => state.stats.strangers += 1,
            Err(Sealed::Length | Sealed::Version(_)) => state.stats.foreign += 1,
        }
    }

    fn send(&self, state: &mut State) {
        for (to, plain) in state.machine.sends() {
            let datagram = state.seal.seal(&plain);
            match self.socket.send_to(&datagram, to) {
                Ok(_) => {
                    state.stats.sent += 1;
                    state.stats.sent_bytes += datagram.len() as u64;
                }
                // Lost, as others are on the network. SWIM tolerates that.
                Err(_) => state.stats.unsent += 1,
            }
        }
    }

    /// Writes the other nodes' addresses to the disk, if it is time.
    fn keep(&self, last: bool) {
        let Some(home) = &self.home else {
            return;
        };
        let (now, kept) = (self.now().as_secs(), self.kept.load(Ordering::Relaxed));
        if !last && now < kept + KEEP.as_secs() {
            return;
        }
        self.kept.store(now, Ordering::Relaxed);
        let peers = self.state.lock().machine.remembered();
        if !peers.is_empty() {
            // Only a hint. The contacts exist without it.
            home.keep_peers(&peers).ok();
        }
    }

    fn look_up(&self, contacts: &[Contact]) {
        while !self.stopped() {
            let found: Vec<SocketAddr> =
                contacts.iter().filter_map(|contact| contact.addresses().ok()).flatten().collect();
            let alone = {
                let mut state = self.state.lock();
                // If the resolver has no answer now, its earlier answer is still valid.
                if !found.is_empty() {
                    state.machine.contacts(found);
                }
                state.machine.roster().members.len() < 2
            };
            let mut look = self.look.0.lock();
            if !self.stopped() {
                self.look.1.wait_for(&mut look, if alone { LOOK_ALONE } else { LOOK });
            }
        }
    }
}
