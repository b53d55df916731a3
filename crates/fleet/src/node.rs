//! A node of a fleet: a source of blobs that asks other nodes before it asks the origin.
//!
//! ```text
//!   the node's cache ──fetch──► Fleet ──plan──► tracker: which nodes have it?
//!         ▲                       │              ├── SERVE, GO: from a node's file
//!         │ files                 │              ├── WAIT: from a node that is fetching it, as it arrives
//!   the transport ◄── Holdings ───┘              └── LEASE: from the depot, or the origin, for all nodes
//! ```
//!
//! [`Fleet`] is a [`fetch::Tier`], so the cache above it knows nothing of the fleet. Both have the same table
//! of in-flight fetches ([`fetch::table`]). The cache leads the fetches for its readers, and the fleet fills
//! them. The fleet itself leads what it fetches for other nodes. The cache keeps whatever arrives. In return
//! it reports what it inserts and evicts ([`Fleet::inserted`], [`Fleet::evicted`]), and lends its files
//! ([`Holdings`]).
//!
//! - **A small read gets a part** from a node that has the blob, and nothing else is fetched. If no node has
//!   the blob, the whole is fetched behind the part.
//! - **A read of a blob in flight is answered by the loop that receives the blob**, from the receive buffer,
//!   and no thread waits ([`fetch::Waiter`]).
//! - **All knowledge is soft.** When the membership changes, each node tells the new trackers what it has,
//!   some thousand blobs a second.
//! - `driver`: drives the fetch of one blob. `inflow`: passes on what the origin sends as it arrives.
//!   `parts`: fetches a part. `questions`: merges questions. `service`: what the node does for other nodes.
//!   `reporting`: tells trackers what the node has. `tier`: the fleet as the cache sees it. `notes`,
//!   [`groups`].
//! - [`warm`]: asks depots to fetch before a reader does. `keeper`: a node that only lends its disk keeps a
//!   copy of what it tracks.

pub mod activity;
pub mod capacity;
mod counters;
mod driver;
pub mod groups;
mod inflow;
mod keeper;
mod notes;
mod parts;
mod presence;
mod questions;
mod reporting;
mod service;
#[cfg(test)]
mod tests;
mod tier;
pub mod warm;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::BlobId;
use blob::Origin;
use fetch::Table;
use net::id::{Member, NodeId, Role, Seen, Zone};
use net::message::What;
use net::seam::Holdings;
use net::secret::Secret;
use net::transport::{Net, Peer, Roll, Service};
use parking_lot::Mutex;

use crate::directory::{self, Directory, Holder, Keys, Mirror};
use crate::members::{Change, Contact, Event, Members, Roster, Setup};
use crate::placement::{Placed, Placement};
use crate::plan::{Latencies, Silence, Tier};
use crate::tracker::{Limits, Tracker};

use activity::Activity;
use capacity::Capacity;
use counters::Counters;
use keeper::Keeper;
use notes::Notes;
use questions::Questions;
use service::{Filling, Serving};

pub use counters::FleetCounts;
pub use groups::Groups;
pub use presence::Transport;

/// The time between two rounds of the periodic work. Notes wait this long, so that several go together.
const ROUND: Duration = Duration::from_millis(100);
/// A tracker that does not receive notes within this time does not get them.
const TELLING: Duration = Duration::from_secs(2);
/// How many blobs' sources are remembered until the cache has written the blobs.
const REMEMBERED: usize = 1024;

/// Receives lines for the operator.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// What a node needs to join a fleet.
pub struct FleetParts {
    /// Which node it is, and its transport.
    pub transport: Transport,
    /// What all nodes of the fleet know.
    pub secret: Secret,
    /// The volume whose blobs the fleet reads.
    pub volume: [u8; 16],
    /// The address at which other nodes reach it, if it is another one.
    pub advertise: Option<SocketAddr>,
    /// The addresses through which it joins.
    pub contacts: Vec<Contact>,
    /// The zone it is in.
    pub zone: Zone,
    /// Whether it is a node or a depot.
    pub role: Role,
    /// Whether the node only lends its disk, and keeps copies of what it tracks as soon as it can
    /// ([`Fleet::keep_copies`]).
    pub keeps: bool,
    /// The node's share of what is tracked, and of what depots hold.
    pub weight: u16,
    /// The in-flight fetches of this node. Its cache has the same table. It says how data from other nodes is
    /// verified.
    pub table: Arc<Table>,
    /// The origin, where blobs are stored permanently.
    pub origin: Arc<dyn Origin>,
    /// How long a blob may take, from any source. Somewhat less than its readers wait.
    pub deadline: Duration,
    /// What is known about groups.
    pub groups: Groups,
    /// Receives lines for the operator.
    pub report: Report,
}

/// Why a node cannot join.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The node's port cannot be used for membership.
    #[error(
        "cannot listen on UDP {address}: {error}; choose another address with --listen, or end what uses it"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// The transport failed.
    #[error(transparent)]
    Net(#[from] net::transport::StartError),
    /// The membership failed.
    #[error(transparent)]
    Members(#[from] crate::members::StartError),
    /// A thread could not be started.
    #[error("the system has no room for another thread: {0}")]
    Thread(std::io::Error),
}

/// The sources of blobs that the cache is about to write.
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

/// The state that the node's threads share.
struct Inner {
    own: NodeId,
    zone: Zone,
    role: Role,
    began: Instant,
    deadline: Duration,
    origin: Arc<dyn Origin>,
    groups: Groups,
    report: Report,
    holdings: OnceLock<Arc<dyn Holdings>>,
    net: OnceLock<Net>,
    members: OnceLock<Members>,
    tracker: Mutex<Tracker>,
    placed: Mutex<Placed>,
    /// The placement of the last complete report to trackers. Nodes that tracked a group then need not be
    /// told again.
    before: Mutex<Option<Placement>>,
    /// Addresses of the members that have their places. A node that has left is no longer in the roster, so
    /// its address is taken from here.
    addresses: Mutex<HashMap<NodeId, SocketAddr>>,
    /// Nodes that joined since all trackers were told. A restarted node tracks the same groups, but has
    /// forgotten everything.
    fresh: Mutex<HashSet<NodeId>>,
    /// Blobs that new trackers must still be told about.
    unreported: Mutex<reporting::Unreported>,
    latencies: Mutex<Latencies>,
    /// Trackers that do not answer. The lock guards nothing else, and no other lock is taken while it is
    /// held.
    silence: Mutex<Silence>,
    /// Nodes that sent something recently.
    activity: Activity,
    capacity: Capacity,
    /// The number of parts that are being fetched.
    parts: AtomicUsize,
    origins: Mutex<Origins>,
    table: Arc<Table>,
    notes: Notes,
    questions: Questions<driver::Asking>,
    filling: Filling,
    /// Fetches of a depot that were requested by warming.
    warming: Filling,
    keeper: Keeper,
    directory: Arc<Directory>,
    counters: Counters,
    free: AtomicU32,
    closed: AtomicBool,
}

/// A node of a fleet. See the [module](self).
pub struct Fleet {
    inner: Arc<Inner>,
    owns_net: bool,
    housekeeping: Mutex<Option<JoinHandle<()>>>,
}

impl Fleet {
    /// Begins to listen and to join. No blob can be sent before [`Fleet::lend`].
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn start(parts: FleetParts) -> Result<Fleet, FleetError> {
        let own = parts.transport.node();
        let owns_net = matches!(parts.transport, Transport::Own { .. });
        let inner = Arc::new(Inner::new(&parts));
        let (net, socket) = presence::listen(&parts, &inner)?;
        let address = parts.advertise.or(net.address()).unwrap_or(presence::NOWHERE);
        let _ = inner.net.set(net);
        let me = Member {
            node: own,
            generation: parts.transport.generation(),
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
            home: match parts.transport {
                Transport::Own { home, .. } => Some(home),
                Transport::Shared { .. } => None,
            },
            directory: Arc::clone(&inner.directory),
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
        Ok(Fleet { inner, owns_net, housekeeping: Mutex::new(Some(housekeeping)) })
    }

    /// Answers requests about blobs that come by a transport which serves other requests too.
    pub fn service(&self) -> Arc<dyn Service> {
        Arc::new(Serving(Arc::downgrade(&self.inner)))
    }

    /// From now on blobs are sent to other nodes, and trackers are told which ones are here.
    pub fn lend(&self, holdings: Arc<dyn Holdings>) {
        holdings.list(&mut |id| {
            self.inner.directory.insert(id);
            true
        });
        let _ = self.inner.holdings.set(holdings);
        self.inner.report_all();
    }

    /// For a node that only lends its disk ([`FleetParts::keeps`]): keeps a copy of what it tracks, as
    /// long as there is room. Call it when its cache is open. Blobs that it was told about since it joined
    /// are copied now.
    ///
    /// # Errors
    /// The system cannot start its threads, or the node was not started as one that keeps.
    pub fn keep_copies(&self) -> std::io::Result<()> {
        keeper::start(&self.inner)
    }

    /// The cache has written a blob to the disk.
    pub fn inserted(&self, id: &BlobId) {
        self.inner.directory.insert(id);
        self.inner.note_first(id, What::Have);
    }

    /// The cache has evicted a blob.
    pub fn evicted(&self, id: &BlobId) {
        self.inner.directory.remove(id);
        self.inner.note_first(id, What::Gone);
    }

    /// Keeps a copy of the names of this node's blobs there, which answers other nodes' questions about them.
    pub fn mirror(&self, mirror: Box<dyn Mirror>) {
        self.inner.directory.mirror(mirror);
    }

    /// How many of these blobs are on this node's disk.
    pub fn holds(&self, blobs: &[BlobId]) -> usize {
        self.inner.directory.count(blobs)
    }

    /// Asks every other member which of these blobs it has, at most [`directory::QUESTIONS_MAX`].
    ///
    /// # Errors
    /// There is no socket, or the system refuses to send.
    pub fn holders(&self, blobs: &[BlobId]) -> std::io::Result<Vec<Holder>> {
        let others = self.seen().into_iter().filter(|seen| !seen.is_own);
        let nodes: Vec<_> = others.map(|seen| (seen.member.node, seen.member.address)).collect();
        directory::ask(self.inner.directory.keys(), &nodes, blobs)
    }

    /// The source of a blob that the cache is about to write: it tells what fetching it again will cost.
    pub fn came_from(&self, id: &BlobId) -> Option<Tier> {
        self.inner.origins.lock().0.remove(id)
    }

    /// How much more the cache could store, in MiB.
    pub fn set_free(&self, mib: u32) {
        self.inner.free.store(mib, Ordering::Relaxed);
    }

    /// Returns this node's id.
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

    /// The zone it is in.
    pub fn zone(&self) -> &Zone {
        &self.inner.zone
    }

    /// The members, in the order of their ids.
    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen()
    }

    /// The results of fetches.
    pub fn counts(&self) -> FleetCounts {
        FleetCounts { direct: self.inner.table.served_early(), ..self.inner.counters.now() }
    }

    /// What the transport did.
    pub fn net_counts(&self) -> net::transport::Counts {
        self.inner.net().map(Net::counters).unwrap_or_default()
    }

    /// Bytes of blobs from and to each node.
    pub fn flows(&self) -> std::collections::HashMap<NodeId, net::transport::Bytes> {
        self.inner.net().map(Net::flows).unwrap_or_default()
    }

    /// What this node did as a tracker.
    pub fn tracker_counts(&self) -> crate::tracker::Counts {
        self.inner.tracker.lock().counts()
    }

    /// The number of blobs in flight to this node.
    pub fn under_way(&self) -> usize {
        self.inner.table.arriving()
    }

    /// Leaves the fleet, and ends all connections of its own transport. A second call does nothing.
    pub fn close(&self) {
        if self.inner.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(members) = self.inner.members.get() {
            members.leave();
        }
        if let Some(net) = self.inner.net().filter(|_| self.owns_net) {
            net.close();
        }
        if let Some(thread) = self.housekeeping.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn new(parts: &FleetParts) -> Inner {
        let own = parts.transport.node();
        Inner {
            own,
            zone: parts.zone.clone(),
            role: parts.role,
            began: base::time::monotonic(),
            deadline: parts.deadline,
            origin: Arc::clone(&parts.origin),
            groups: parts.groups.clone(),
            report: Arc::clone(&parts.report),
            holdings: OnceLock::new(),
            net: OnceLock::new(),
            members: OnceLock::new(),
            tracker: Mutex::new(Tracker::new(own, base::random::u64(), Limits::default())),
            placed: Mutex::default(),
            before: Mutex::new(None),
            addresses: Mutex::default(),
            fresh: Mutex::default(),
            unreported: Mutex::default(),
            latencies: Mutex::default(),
            silence: Mutex::default(),
            activity: Activity::default(),
            capacity: Capacity::default(),
            parts: AtomicUsize::new(0),
            origins: Mutex::default(),
            table: Arc::clone(&parts.table),
            notes: Notes::default(),
            questions: Questions::default(),
            filling: Filling::default(),
            warming: Filling::default(),
            keeper: Keeper::new(parts.keeps),
            directory: Arc::new(Directory::new(Keys::new(&parts.secret, &parts.volume))),
            counters: Counters::default(),
            free: AtomicU32::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// Microseconds since the start, the time of the state machines.
    fn now(&self) -> u64 {
        let since = base::time::monotonic().saturating_duration_since(self.began);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen_after(NodeId([0; 16]), usize::MAX).members
    }

    /// At most `most` of the members after this one. Hardly more are examined, because other nodes can call
    /// it. A member without a place yet is left out: until then the wrong trackers would be asked.
    fn seen_after(&self, after: NodeId, most: usize) -> Roll {
        let Some(members) = self.members.get() else { return Roll::default() };
        let seen = |member: &Member| Seen {
            is_own: member.node == self.own,
            is_suspect: members.is_suspect(member.node),
            member: member.clone(),
        };
        let roster = members.roster();
        let from = roster.members.partition_point(|member| member.node <= after);
        let placed = self.addresses.lock();
        let is_placed = |member: &&Member| member.node == self.own || placed.contains_key(&member.node);
        let mut rest = roster.members.get(from..).unwrap_or(&[]).iter().filter(is_placed);
        let members = rest.by_ref().take(most).map(seen).collect();
        Roll { more: rest.next().is_some(), members }
    }

    fn net(&self) -> Option<&Net> {
        self.net.get()
    }

    fn holdings(&self) -> Option<&Arc<dyn Holdings>> {
        self.holdings.get()
    }

    /// A member that is not suspected of having failed.
    fn peer(&self, node: NodeId) -> Option<Peer> {
        let members = self.members.get()?;
        if members.is_suspect(node) {
            return None;
        }
        Some(driver::peer(members.roster().get(node)?.address, node))
    }

    /// Whether there is no other node that could have anything.
    fn is_alone(&self) -> bool {
        self.members.get().is_none_or(|members| members.roster().members.len() < 2)
    }

    fn happened(self: &Arc<Inner>, event: Event) {
        match event {
            Event::Changed(change) => self.changed(&change),
            Event::Alone { addresses } => (self.report)(&format!(
                "fleet: no node answers at {addresses} addresses; continuing alone, and trying again"
            )),
            Event::Found => (self.report)("fleet: another node answers now"),
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
            self.report_all();
        }
    }

    fn place(&self, roster: &Roster) {
        // A node that is alone has no other node to keep blobs in memory for.
        self.table.remember(roster.members.len() > 1);
        let placement = Placement::new(roster.epoch, &self.zone, &roster.members);
        let mut placed = self.placed.lock();
        if !placed.placement().is_empty() && placed.placement().epoch() != placement.epoch() {
            self.before.lock().get_or_insert_with(|| placed.placement().clone());
        }
        placed.update(placement);
        drop(placed);
        *self.addresses.lock() = roster.members.iter().map(|member| (member.node, member.address)).collect();
    }

    /// One round of the periodic work. False when the node ends.
    fn round(self: &Arc<Inner>) -> bool {
        if self.closed.load(Ordering::Acquire) {
            return false;
        }
        self.report_some();
        let Some(net) = self.net() else { return true };
        for (tracker, notes) in self.notes.take() {
            let Some(peer) = self.peer(tracker) else { continue };
            Counters::add(&self.counters.notes, notes.len() as u64);
            let call = net.notes(peer, &notes, TELLING);
            net.spawn(async move {
                let _ = call.await;
            });
        }
        self.table.tidy(base::time::monotonic());
        self.tracker.lock().tick(self.now());
        if let Some(members) = self.members.get() {
            members.set_vitals(self.free.load(Ordering::Relaxed), net.backlog());
        }
        true
    }
}
