//! The machine's hands: a socket, one thread, the monotonic clock.
//!
//! The thread receives, with a timeout until the machine's next moment, and sends what the machine wants sent. Who calls from outside
//! ([`Members::leave`], [`Members::set_vitals`]) takes the same lock for a moment and sends by itself. It is a thread and no task of a
//! runtime, because a runtime whose workers are all busy would make a healthy node look dead.
//!
//! Names are looked up by a second thread, which there is only if a name was given: a resolver can hang for long.
//!
//! Locks: `state` may be taken while nothing else is held; the watcher is called with none.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::contacts::Contact;
use super::home::NodeHome;
use super::machine::{Event, Machine};
use super::roster::Roster;
use super::seal::{DATAGRAM_MAX, Heard, Seal, Sealed};
use crate::id::{Member, NodeId};
use crate::secret::Secret;

/// The longest the thread sleeps: so soon it sees that it shall end.
const SLEEP_MAX: Duration = Duration::from_millis(200);
/// How long a node that the data path had no answer from is suspected.
const SUSPECT: Duration = Duration::from_secs(10);
/// Names are looked up so often while nobody answers, and when somebody does.
const LOOK_ALONE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(60);
/// The others' addresses go to the disk at most so often.
const KEEP: Duration = Duration::from_secs(30);

/// What a node joins with.
pub struct Setup {
    /// Its own record: `address` is where the others reach it.
    pub me: Member,
    /// Whom it joins by. Nobody: it waits to be joined.
    pub contacts: Vec<Contact>,
    /// The fleet's secret.
    pub secret: Secret,
    /// Which fleet: the volume's id.
    pub fleet: [u8; 16],
    /// Where the others' addresses are kept, and taken from at the start.
    pub home: Option<Arc<NodeHome>>,
}

/// Why membership cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The record's address is no place.
    #[error(
        "{0} is no address at which the others could reach this node: name one with --listen or --advertise"
    )]
    Address(SocketAddr),
    /// The socket or a thread.
    #[error("membership cannot start: {0}")]
    Io(#[from] io::Error),
}

/// What went by, since the start. Bytes are of UDP's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams that were ours.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// What could not be sent.
    pub unsent: u64,
    /// How often the socket refused to be read.
    pub unheard: u64,
    /// Datagrams sealed with another secret, for another fleet, or changed on the way.
    pub strangers: u64,
    /// Datagrams of another version, or of an impossible length.
    pub foreign: u64,
    /// Datagrams of this fleet that were received before.
    pub replayed: u64,
    /// Datagrams of this fleet that hold what they cannot.
    pub malformed: u64,
    /// How often this node was declared down while it lived.
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
    kept: AtomicU64,
    look: (Mutex<()>, Condvar),
}

/// Membership in a fleet. Dropped without [`Members::leave`] it goes silent, and the others find out.
pub struct Members {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Members {
    /// Begins to knock, on a socket that is bound, and calls `watcher` with what happens: on the thread of the gossip, so it must not wait.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        setup: Setup,
        socket: UdpSocket,
        watcher: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Members, StartError> {
        let Setup { me, contacts, secret, fleet, home } = setup;
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

    /// Who is there, this node included.
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.shared.roster.lock())
    }

    /// What this node's cache could still take, and what it is about to send, both in MiB. The others hear of it within some seconds.
    pub fn set_vitals(&self, free: u32, load: u16) {
        self.shared.state.lock().machine.vitals(free, load);
    }

    /// Had no answer from this node: for some seconds [`Members::is_suspect`] says so. Nobody else is told.
    pub fn suspect(&self, node: NodeId) {
        let now = base::time::monotonic();
        let mut suspects = self.shared.suspects.lock();
        suspects.retain(|_, until| *until > now);
        suspects.insert(node, now + SUSPECT);
    }

    /// It has answered after all.
    pub fn trust(&self, node: NodeId) {
        self.shared.suspects.lock().remove(&node);
    }

    /// Whether this node had no answer from that one lately.
    pub fn is_suspect(&self, node: NodeId) -> bool {
        let suspects = self.shared.suspects.lock();
        !suspects.is_empty() && suspects.get(&node).is_some_and(|until| *until > base::time::monotonic())
    }

    /// What went by.
    pub fn stats(&self) -> Stats {
        let state = self.shared.state.lock();
        Stats { malformed: state.machine.malformed(), returns: state.machine.returns(), ..state.stats }
    }

    /// Says farewell, and waits until it is sent and the threads have ended.
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
        // Under its lock: the thread has either seen the mark or is waiting.
        drop(self.shared.look.0.lock());
        self.shared.look.1.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = std::thread::current().id();
        for thread in threads {
            // The watcher may be who drops this; and a resolver that hangs is not waited for.
            let names = thread.thread().name() == Some("covey-names");
            if thread.thread().id() != me && (!names || thread.is_finished()) {
                // A panic there has been printed; there is nothing to add.
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
        // One byte more than can be: what is longer is seen as longer.
        let mut buffer = [0; DATAGRAM_MAX + 1];
        while !self.stopped() {
            let wait = self.state.lock().machine.next().saturating_sub(self.now());
            let arrived = if wait.is_zero() { Ok(None) } else { self.wait(wait, &mut buffer) };
            let events = {
                let mut state = self.state.lock();
                let now = self.now();
                match arrived {
                    Ok(Some(len)) => self.open(&mut state, now, buffer.get_mut(..len).unwrap_or_default()),
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

    /// A datagram's length, or nothing within the time.
    fn wait(&self, time: Duration, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // The kernel's clock tick is coarse, and zero would mean for ever.
        self.socket.set_read_timeout(Some(time.clamp(Duration::from_millis(1), SLEEP_MAX)))?;
        match self.socket.recv_from(buffer) {
            Ok((len, _)) => Ok(Some(len)),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(error) => {
                // An interface that went may come back. Until then this must not be a loop that burns.
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
                // Lost, like others on their way: SWIM lives with that.
                Err(_) => state.stats.unsent += 1,
            }
        }
    }

    /// Keeps the others' addresses on the disk, if it is time.
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
            // A hint: the contacts are there without it.
            home.keep_peers(&peers).ok();
        }
    }

    fn look_up(&self, contacts: &[Contact]) {
        while !self.stopped() {
            let found: Vec<SocketAddr> =
                contacts.iter().filter_map(|contact| contact.addresses().ok()).flatten().collect();
            let alone = {
                let mut state = self.state.lock();
                // A resolver that has nothing to say today does not make yesterday's answer wrong.
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
