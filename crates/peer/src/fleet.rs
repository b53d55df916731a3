//! A node of a fleet: an origin that asks the worker next door before it asks the one behind it.
//!
//! ```text
//!   the node's cache ──fetch──► Fleet ──plan──► tracker: who has it?
//!         ▲                       │              ├── SERVE, GO: from a node's file
//!         │ files                 │              ├── WAIT: from a node that is fetching it, as it comes
//!   the transport ◄── Holdings ───┘              └── LEASE: from the depot, or the origin, for everybody
//! ```
//!
//! [`Fleet`] is a [`blob::Origin`], so the cache above it knows nothing of the fleet: it asks once for all who want a blob, and keeps what
//! comes. In return it says what it keeps and what it lets go ([`Fleet::came`], [`Fleet::went`]), and lends its files ([`Holdings`]).
//! Everything but fetching goes through to the origin.
//!
//! - **Who reads a little gets a part** from a node that has the blob, and nothing follows; of a blob that nobody has the whole is fetched behind.
//! - **Who reads what is coming is answered by the loop that receives it**, from where it was received, and no thread waits ([`blob::coming`]).
//! - **What is known is soft.** When who is there changes, each node tells new trackers what it has, some thousand blobs a second.
//! - `asker`: one blob's way here; `inflow`: from the origin, as it comes; `parts`: that of a part; `questions`: what is asked together. `service`: what is done for others.
//!   `telling`: what others hear of what is here. `transit`: what is on its way. `notes`, [`groups`].
//! - `finding`: by trackers, or, to measure them, by a table on every node. [`warm`]: depots are asked to fetch before anybody reads. `keeper`: a node that only lends its disk keeps a copy of what it tracks.

mod asker;
mod counters;
mod finding;
pub mod groups;
mod inflow;
mod keeper;
mod line;
mod lively;
mod notes;
mod origin;
mod parts;
mod questions;
mod service;
mod telling;
#[cfg(test)]
mod tests;
mod transit;
pub mod warm;

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::BlobId;
use blob::Origin;
use parking_lot::Mutex;

use crate::arriving::Verify;
use crate::hello::Identity;
use crate::id::{Member, NodeId, Role, Seen, Zone};
use crate::members::{Change, Contact, Event, Members, NodeHome, Roster, Setup};
use crate::message::What;
use crate::net::{self, Net, Peer, Roll};
use crate::placement::{Placed, Placement};
use crate::plan::{Latencies, Silence, Tier};
use crate::seam::Holdings;
use crate::secret::Secret;
use crate::tls::Tls;
use crate::tracker::{Limits, Tracker};

use counters::Counters;
use keeper::Keeper;
use line::Line;
use lively::Lively;
use notes::Notes;
use questions::Questions;
use service::{Filling, Serving};
use transit::Transit;

pub use counters::FleetCounts;
pub use finding::Finding;
pub use groups::Groups;

/// Between two rounds of the housekeeping: notes wait so long for company.
const ROUND: Duration = Duration::from_millis(100);
/// A tracker that does not hear notes within this is left without them.
const TELLING: Duration = Duration::from_secs(2);
/// Where the last blobs came from is remembered until the cache has written them.
const REMEMBERED: usize = 1024;

/// Where lines for the operator go.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// What a node joins a fleet with.
pub struct FleetParts {
    /// What makes it itself again after a restart.
    pub home: Arc<NodeHome>,
    /// What all nodes of the fleet know.
    pub secret: Secret,
    /// With what its connections are encrypted; none leaves them in the clear.
    pub tls: Option<Tls>,
    /// The volume whose trees the fleet reads.
    pub volume: [u8; 16],
    /// Where it listens, TCP and UDP; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the others reach it, if that is another address.
    pub advertise: Option<SocketAddr>,
    /// Whom it joins by.
    pub contacts: Vec<Contact>,
    /// Where it is.
    pub zone: Zone,
    /// What it is there for.
    pub role: Role,
    /// It only lends its disk, and keeps copies of what it tracks as soon as it can ([`Fleet::keep_with`]).
    pub keeps: bool,
    /// Its share of what is tracked, and of what depots hold.
    pub weight: u16,
    /// How what comes from others is checked.
    pub verify: Verify,
    /// How it finds who has a blob: all nodes of a fleet in the same way.
    pub finding: Finding,
    /// Where blobs stay for good.
    pub origin: Arc<dyn Origin>,
    /// How long a blob may take, from wherever: somewhat less than those who read it wait.
    pub deadline: Duration,
    /// What is known of groups.
    pub groups: Groups,
    /// Where lines for the operator go.
    pub report: Report,
}

/// Why a node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// Its port cannot be used for membership.
    #[error(
        "cannot listen on UDP {address}: {error}; choose another address with --listen, or end what uses it"
    )]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// The transport.
    #[error(transparent)]
    Net(#[from] net::StartError),
    /// Membership.
    #[error(transparent)]
    Members(#[from] crate::members::StartError),
    /// No thread could be started.
    #[error("the system has no room for another thread: {0}")]
    Thread(std::io::Error),
}

/// Where the blobs came from that the cache is about to write.
#[derive(Default)]
struct Origins(HashMap<BlobId, Tier>);

impl Origins {
    fn put(&mut self, id: BlobId, tier: Tier) {
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        self.0.insert(id, tier);
    }
}

/// What the node's threads share.
struct Inner {
    own: NodeId,
    zone: Zone,
    role: Role,
    finding: Finding,
    began: Instant,
    deadline: Duration,
    origin: Arc<dyn Origin>,
    groups: Groups,
    report: Report,
    holdings: OnceLock<Arc<dyn Holdings>>,
    filler: OnceLock<Weak<dyn Origin>>,
    net: OnceLock<Net>,
    members: OnceLock<Members>,
    tracker: Mutex<Tracker>,
    placed: Mutex<Placed>,
    /// The placement before the one that is current: whoever tracked then need not be told again.
    before: Mutex<Option<Placement>>,
    /// Where nodes listened when this was last looked at: of who has left nothing else says so.
    addresses: Mutex<HashMap<NodeId, SocketAddr>>,
    /// Who came since all was told last: a node that was restarted tracks what it tracked, and has forgotten it.
    fresh: Mutex<HashSet<NodeId>>,
    /// Blobs that new trackers are still to be told of.
    untold: Mutex<Vec<BlobId>>,
    latencies: Mutex<Latencies>,
    /// Which trackers do not answer; guards nothing else, and nothing is taken while it is held.
    silence: Mutex<Silence>,
    /// Who has sent anything lately.
    lively: Lively,
    line: Line,
    /// Parts that are being fetched.
    parts: AtomicUsize,
    origins: Mutex<Origins>,
    transit: Arc<Transit>,
    notes: Notes,
    questions: Questions<asker::Asking>,
    filling: Filling,
    /// What depots fetch because somebody warms them.
    warming: Filling,
    keeper: Keeper,
    /// Whole blobs that the cache is about to ask for: see [`parts`].
    handed: Mutex<HashMap<BlobId, asker::Whole>>,
    counters: Counters,
    free: AtomicU32,
    closed: AtomicBool,
}

/// A node of a fleet. See the [module](self).
pub struct Fleet {
    inner: Arc<Inner>,
    housekeeping: Mutex<Option<JoinHandle<()>>>,
}

impl Fleet {
    /// Begins to listen and to join. Nothing can be given away before [`Fleet::lend`].
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn start(parts: FleetParts) -> Result<Fleet, FleetError> {
        let own = parts.home.node();
        let inner = Arc::new(Inner::new(&parts));
        let (net, socket) = listen(&parts, &inner)?;
        let address = parts.advertise.or(net.address()).unwrap_or(parts.listen);
        let _ = inner.net.set(net);
        let me = Member {
            node: own,
            generation: parts.home.generation(),
            address,
            zone: parts.zone,
            role: parts.role,
            weight: parts.weight,
            free: 0,
            load: 0,
        };
        inner.place(&Roster::new(0, vec![me.clone()]));
        let setup = Setup {
            me,
            contacts: parts.contacts,
            secret: parts.secret,
            fleet: parts.volume,
            home: Some(parts.home),
        };
        let watcher = Arc::downgrade(&inner);
        let members = Members::start(setup, socket, move |event| {
            if let Some(inner) = watcher.upgrade() {
                inner.happened(event);
            }
        })?;
        inner.place(&members.roster());
        let _ = inner.members.set(members);
        let keeper = Arc::downgrade(&inner);
        let work = move || {
            while keeper.upgrade().is_some_and(|inner| inner.round()) {
                std::thread::sleep(ROUND);
            }
        };
        let housekeeping = base::thread::spawn("covey-fleet", work).map_err(FleetError::Thread)?;
        Ok(Fleet { inner, housekeeping: Mutex::new(Some(housekeeping)) })
    }

    /// From now on blobs are given away, and trackers told of those that are here.
    pub fn lend(&self, holdings: Arc<dyn Holdings>) {
        let _ = self.inner.holdings.set(holdings);
        self.inner.tell_all();
    }

    /// The cache above a node's fleet, or a depot's, which keeps what it fetches. A depot fetches with it what others ask for and is not
    /// here; a node the rest of a blob of which a part was wanted and that it alone is to fetch.
    pub fn fill_from(&self, cache: &Arc<dyn Origin>) {
        let _ = self.inner.filler.set(Arc::downgrade(cache));
    }

    /// Of a node that only lends its disk ([`FleetParts::keeps`]): a copy is kept of what it tracks, fetched with this, as long as there is room.
    /// What it was told of since it joined is copied now.
    ///
    /// # Errors
    /// The system has no room for its threads, or the node was not started as one that keeps.
    pub fn keep_with(&self, cache: &Arc<dyn Origin>) -> std::io::Result<()> {
        keeper::start(&self.inner, cache)
    }

    /// The cache has put a blob on the disk.
    pub fn came(&self, id: &BlobId) {
        self.inner.came(id);
    }

    /// The cache has let go of a blob.
    pub fn went(&self, id: &BlobId) {
        if let Some(net) = self.inner.net() {
            net.let_go(id);
        }
        self.inner.transit.forget(id);
        self.inner.note_first(id, What::Gone);
    }

    /// Where a blob came from that the cache is about to write: what fetching it again will cost.
    pub fn came_from(&self, id: &BlobId) -> Option<Tier> {
        self.inner.origins.lock().0.remove(id)
    }

    /// What the cache could still take, in MiB.
    pub fn set_free(&self, mib: u32) {
        self.inner.free.store(mib, Ordering::Relaxed);
    }

    /// This node's name.
    pub fn node(&self) -> NodeId {
        self.inner.own
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.inner.net().and_then(Net::address)
    }

    /// Whether its connections are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.inner.net().is_some_and(Net::is_encrypted)
    }

    /// Where it is.
    pub fn zone(&self) -> &Zone {
        &self.inner.zone
    }

    /// Who is there, in the order of their names.
    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen()
    }

    /// What came of fetches.
    pub fn counts(&self) -> FleetCounts {
        self.inner.counters.now()
    }

    /// What the transport did.
    pub fn net_counts(&self) -> net::Counts {
        self.inner.net().map(Net::counters).unwrap_or_default()
    }

    /// What this node did as a tracker.
    pub fn tracker_counts(&self) -> crate::tracker::Counts {
        self.inner.tracker.lock().counts()
    }

    /// Blobs on their way here now.
    pub fn under_way(&self) -> usize {
        self.inner.transit.len()
    }

    /// Says farewell and ends all connections. The second call does nothing.
    pub fn close(&self) {
        if self.inner.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(members) = self.inner.members.get() {
            members.leave();
        }
        if let Some(net) = self.inner.net() {
            net.close();
        }
        if let Some(thread) = self.housekeeping.lock().take() {
            let _ = thread.join();
        }
        self.inner.transit.close();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.close();
    }
}

/// Listens for both, on one port.
fn listen(parts: &FleetParts, inner: &Arc<Inner>) -> Result<(Net, UdpSocket), FleetError> {
    let identity = Identity { node: parts.home.node(), role: parts.role, volume: parts.volume };
    // A free TCP port is not always a free UDP port.
    let tries = if parts.listen.port() == 0 { 16 } else { 1 };
    let mut tried = 0;
    loop {
        tried += 1;
        let options = net::Options {
            identity,
            secret: parts.secret.clone(),
            tls: parts.tls.clone(),
            listen: Some(parts.listen),
            verify: parts.verify,
            limits: net::Limits::default(),
            without: net::Without::default(),
        };
        let service = Arc::new(Serving(Arc::downgrade(inner)));
        let net = Net::start(options, service, Arc::clone(&parts.report))?;
        let address = net.address().unwrap_or(parts.listen);
        match UdpSocket::bind(address) {
            Ok(socket) => return Ok((net, socket)),
            Err(_) if tried < tries => net.close(),
            Err(error) => return Err(FleetError::Listen { address, error }),
        }
    }
}

impl Inner {
    fn new(parts: &FleetParts) -> Inner {
        let own = parts.home.node();
        Inner {
            own,
            zone: parts.zone.clone(),
            role: parts.role,
            finding: parts.finding,
            began: base::time::monotonic(),
            deadline: parts.deadline,
            origin: Arc::clone(&parts.origin),
            groups: parts.groups.clone(),
            report: Arc::clone(&parts.report),
            holdings: OnceLock::new(),
            filler: OnceLock::new(),
            net: OnceLock::new(),
            members: OnceLock::new(),
            tracker: Mutex::new(Tracker::new(own, base::random::u64(), Limits::default())),
            placed: Mutex::default(),
            before: Mutex::new(None),
            addresses: Mutex::default(),
            fresh: Mutex::default(),
            untold: Mutex::default(),
            latencies: Mutex::default(),
            silence: Mutex::default(),
            lively: Lively::default(),
            line: Line::default(),
            parts: AtomicUsize::new(0),
            origins: Mutex::default(),
            transit: Arc::new(Transit::new(parts.verify)),
            notes: Notes::default(),
            questions: Questions::default(),
            filling: Filling::default(),
            warming: Filling::default(),
            keeper: Keeper::new(parts.keeps),
            handed: Mutex::default(),
            counters: Counters::default(),
            free: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Microseconds since the start, as the state machines count.
    fn now(&self) -> u64 {
        let since = base::time::monotonic().saturating_duration_since(self.began);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen_after(NodeId([0; 16]), usize::MAX).members
    }

    /// At most so many of the members after this one. No more than these are looked at: others ask for it.
    fn seen_after(&self, after: NodeId, most: usize) -> Roll {
        let Some(members) = self.members.get() else { return Roll::default() };
        let seen = |member: &Member| Seen {
            is_own: member.node == self.own,
            is_suspect: members.is_suspect(member.node),
            member: member.clone(),
        };
        let roster = members.roster();
        let from = roster.members.partition_point(|member| member.node <= after);
        let rest = roster.members.get(from..).unwrap_or(&[]);
        Roll { more: rest.len() > most, members: rest.iter().take(most).map(seen).collect() }
    }

    fn net(&self) -> Option<&Net> {
        self.net.get()
    }

    fn holdings(&self) -> Option<&Arc<dyn Holdings>> {
        self.holdings.get()
    }

    /// A node that is there and has answered lately.
    fn peer(&self, node: NodeId) -> Option<Peer> {
        let members = self.members.get()?;
        if members.is_suspect(node) {
            return None;
        }
        Some(asker::peer(members.roster().get(node)?.address, node))
    }

    /// Whether somebody else could have anything.
    fn is_alone(&self) -> bool {
        self.members.get().is_none_or(|members| members.roster().members.len() < 2)
    }

    fn happened(self: &Arc<Inner>, event: Event) {
        match event {
            Event::Changed(change) => self.changed(&change),
            Event::Alone { addresses } => (self.report)(&format!(
                "fleet: nobody answers at {addresses} addresses; going on alone, and knocking"
            )),
            Event::Found => (self.report)("fleet: there is somebody now"),
            Event::Twin { address } => (self.report)(&format!(
                "fleet: the node at {address} has this node's id: its cache folder was copied; remove the file \"node\" in one of the two"
            )),
        }
    }

    fn changed(&self, change: &Change) {
        let roster = self.members.get().map(Members::roster);
        let left = self.addresses.lock().clone();
        if let Some(net) = self.net() {
            change.gone.iter().filter_map(|node| left.get(node)).for_each(|address| net.forget(*address));
        }
        {
            let mut tracker = self.tracker.lock();
            change.gone.iter().for_each(|node| tracker.member_gone(node));
        }
        change.gone.iter().for_each(|node| self.notes.forget(node));
        self.fresh.lock().extend(change.joined.iter().map(|member| member.node));
        if let Some(roster) = roster {
            self.place(&roster);
            self.tell_all();
        }
    }

    fn place(&self, roster: &Roster) {
        *self.addresses.lock() = roster.members.iter().map(|member| (member.node, member.address)).collect();
        let placement = Placement::new(roster.epoch, &self.zone, &roster.members);
        let mut placed = self.placed.lock();
        if !placed.placement().is_empty() && placed.placement().epoch() != placement.epoch() {
            self.before.lock().get_or_insert_with(|| placed.placement().clone());
        }
        placed.update(placement);
    }

    fn came(&self, id: &BlobId) {
        self.note_first(id, What::Have);
        self.transit.kept(id);
        if self.is_alone() {
            // Nobody will ask for it.
            self.transit.forget(id);
        }
    }

    /// One round of what is done now and then. False when the node ends.
    fn round(self: &Arc<Inner>) -> bool {
        if self.closed.load(Ordering::Acquire) {
            return false;
        }
        self.tell_some();
        let Some(net) = self.net() else { return true };
        for (tracker, notes) in self.notes.take() {
            let Some(peer) = self.peer(tracker) else { continue };
            Counters::add(&self.counters.notes, notes.len() as u64);
            let call = net.notes(peer, &notes, TELLING);
            net.spawn(async move {
                let _ = call.await;
            });
        }
        self.transit.tidy(base::time::monotonic());
        self.tracker.lock().tick(self.now());
        if let Some(members) = self.members.get() {
            members.set_vitals(self.free.load(Ordering::Relaxed), net.backlog());
        }
        true
    }
}
