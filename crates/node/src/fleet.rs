//! The wiring of a node in a fleet: its options, the cache whose files it lends, its figures.
//!
//! ```text
//!   Volume ──► NodeCache ──miss──► Fleet ──► nodes, depots, the origin
//!                 │  ▲              ▲ │
//!                 │  └── files ─────┼─┘ Lender
//!                 ├── inserted, evicted ───┤   CacheEvents
//!                 └──────► Table ◄──┘   of in-flight fetches
//! ```
//!
//! The cache owns the fleet, from which it fetches. So the other direction has only weak references. Both own
//! the table, which tells the cache of whole blobs that the fleet has fetched for others.

#[cfg(feature = "ebpf")]
pub mod in_driver;
#[cfg(not(feature = "ebpf"))]
#[path = "fleet/no_driver.rs"]
pub mod in_driver;
pub mod lender;
pub mod lent;
pub mod look;
pub mod options;
pub mod shown;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use api::error::{Failure, Result};
use api::status::fleet::FleetStatus;
use base::{BlobId, PackNo};
use blob::Origin;
use cache::NodeCache;
use cache::residency::Cost;
use fetch::Table;
use fleet::members::{HomeError, NodeHome};
use fleet::node::{Fleet, FleetError, FleetParts, Groups, Transport};
use fleet::plan::Tier;
use meta::key::{KeyRange, tags};
use meta::store::{Commit, CommitError, Limit, Rows, StoreError, Value};
use meta::{Key, MetaStore, PackRow};
use net::id::Role;
use net::seam::{CopyState, Held, Holdings};
use tree::Tree;

use crate::log;
use in_driver::InDriver;
use options::FleetOptions;

/// How long a mount waits until it meets another node.
const MEETING: Duration = Duration::from_secs(3);
/// Once it has met one, it waits until it has heard of no new node for this long. This is longer than gossip
/// takes from one node to the next. Without this wait, nodes that start together and know different halves of
/// the fleet would ask different trackers, and each of these would grant a lease for the first blobs.
const CALM: Duration = Duration::from_millis(300);
/// A mount that has met a node waits no longer than this, because in a large fleet new nodes always arrive.
const CALMING: Duration = Duration::from_secs(1);

/// Joins a fleet as the owner of a cache: with the origin and the table of in-flight fetches of that cache.
/// `None`: the node is in no fleet.
pub type Join<'a> = &'a dyn Fn(Arc<dyn Origin>, Arc<Table>) -> Option<Joined>;

/// A node that has joined a fleet, before its cache is open.
pub struct Joined {
    /// The fleet, which becomes the origin of the cache.
    pub fleet: Arc<Fleet>,
    /// The groups of blobs, as far as they are known.
    pub groups: Groups,
    /// The interface whose driver is to answer questions about blobs.
    xdp: Option<String>,
    in_driver: OnceLock<InDriver>,
}

impl Joined {
    /// A node whose fleet has begun.
    pub fn new(fleet: Fleet, groups: Groups, xdp: Option<String>) -> Joined {
        Joined { fleet: Arc::new(fleet), groups, xdp, in_driver: OnceLock::new() }
    }

    /// From now on the cache's files are sent to other nodes.
    pub fn lend(&self, cache: &Arc<NodeCache>) {
        self.fleet.lend(Arc::new(Lender(Arc::downgrade(cache))));
        tell_free(&self.fleet, cache);
        if let Some(program) = self.xdp.as_deref().and_then(|xdp| InDriver::start(&self.fleet, xdp)) {
            let _ = self.in_driver.set(program);
        }
    }

    /// Where a cache fetches blobs instead of the origin.
    pub fn tier(&self) -> Arc<dyn fetch::Tier> {
        self.fleet.clone()
    }

    /// What a cache tells of the blobs on its disk.
    pub fn watch(&self) -> Arc<dyn cache::Watch> {
        Arc::new(CacheEvents(Arc::downgrade(&self.fleet)))
    }

    /// Returns the node's figures, with those of a cache.
    pub fn status(&self, cache: &Arc<NodeCache>) -> FleetStatus {
        let in_driver = self.in_driver.get().map(InDriver::status);
        FleetStatus { in_driver, ..shown::of(&self.fleet, cache) }
    }
}

/// Joins a fleet. `keeps` means a node that only lends its disk. `folder` holds the node's identity. `volume`
/// is the volume whose trees the fleet reads. `table` is the one that its cache will have. `patience` is the
/// time after which a read fails.
pub fn join(
    options: &FleetOptions,
    role: Role,
    keeps: bool,
    folder: &Path,
    volume: [u8; 16],
    (origin, table): (Arc<dyn Origin>, Arc<Table>),
    patience: Duration,
) -> Result<Joined> {
    let secret = options.secret()?;
    let tls = options.tls.load()?;
    let contacts = options.contacts()?;
    let listen = options.listen(&contacts)?;
    let home = Arc::new(NodeHome::open(folder).map_err(home_failure)?);
    let groups = Groups::new();
    let parts = FleetParts {
        transport: Transport::Own { home, tls, listen },
        secret,
        volume,
        advertise: options.advertise,
        contacts,
        zone: options.zone()?,
        role,
        keeps,
        weight: options.weight,
        table,
        origin,
        // The fleet's error says why. So it must come before the reader's timeout, which says nothing.
        deadline: patience * 11 / 12,
        groups: groups.clone(),
        report: log::sink(),
    };
    let fleet = Fleet::start(parts).map_err(|error| fleet_failure(&error, listen))?;
    if let Some(address) = fleet.address() {
        log::line(&format!("fleet: node {} listens on {address}", fleet.node()));
        clear_line(address, fleet.is_encrypted()).iter().for_each(|line| log::warn(line));
    }
    if options.join.is_some() && !meets_somebody(&fleet) {
        log::warn(
            "fleet: no node of --join has answered yet; this node works alone and keeps trying. A node with another secret or another volume \
             does not answer either: compare --secret-file and the volume's id (covey info)",
        );
    }
    Ok(Joined::new(fleet, groups, options.xdp.clone()))
}

/// Whether others can read and change the traffic to this address. Traffic within this machine is safe.
pub fn is_in_the_clear(address: SocketAddr, is_encrypted: bool) -> bool {
    !is_encrypted && !address.ip().to_canonical().is_loopback()
}

/// The log line about unencrypted traffic.
fn clear_line(address: SocketAddr, is_encrypted: bool) -> Option<String> {
    is_in_the_clear(address, is_encrypted).then(|| {
        format!(
            "fleet: connections to {address} are not encrypted: who is on the way reads the bytes, and can answer falsely; give all nodes \
             --tls-cert, --tls-key and --tls-ca, or keep the fleet inside a VPN"
        )
    })
}

/// Waits briefly for other nodes. Without this wait, every node that starts now would read from the origin.
fn meets_somebody(fleet: &Fleet) -> bool {
    let until = base::time::monotonic() + MEETING;
    while fleet.seen().len() < 2 {
        if base::time::monotonic() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Waits until no new node is heard of, if any node has been met. Call this when the node serves, because
/// other nodes rely on it as soon as they know it.
pub fn calm(fleet: &Fleet) {
    let nodes = calmed(|| fleet.seen().len(), base::time::monotonic, std::thread::sleep);
    if nodes > 1 {
        log::line(&format!("fleet: {nodes} nodes are known, this one among them"));
    }
}

/// Waits until `seen`, which counts this node too, has not changed for [`CALM`]. Returns the last value.
/// `now` is a clock, and `pause` lets time pass.
fn calmed(seen: impl Fn() -> usize, now: impl Fn() -> Instant, pause: impl Fn(Duration)) -> usize {
    let (mut nodes, met) = (seen(), now());
    let mut changed = met;
    while nodes > 1 && now() < (changed + CALM).min(met + CALMING) {
        pause(Duration::from_millis(10));
        let current = seen();
        if std::mem::replace(&mut nodes, current) != current {
            changed = now();
        }
    }
    nodes
}

fn home_failure(error: HomeError) -> Failure {
    Failure::new("no-node", "this node cannot be itself")
        .why(error.to_string())
        .next("name a folder of its own: --cache DIR")
}

fn fleet_failure(error: &FleetError, listen: SocketAddr) -> Failure {
    Failure::new("not-joined", format!("cannot take part in the fleet on {listen}"))
        .why(error.to_string())
        .next("name an address of this machine and a free port: --listen ADDRESS:PORT")
}

/// Lends the cache's files to other nodes.
pub struct Lender(pub Weak<NodeCache>);

impl Holdings for Lender {
    fn open(&self, id: &BlobId) -> Option<Held> {
        let (file, sums) = self.0.upgrade()?.lend(id)?;
        Some(Held { file: Arc::new(file), offset: 0, sums: Arc::new(sums) })
    }

    fn suspect(&self, id: &BlobId) -> CopyState {
        match self.0.upgrade().and_then(|cache| cache.suspect(id)) {
            None => CopyState::Absent,
            Some(true) => CopyState::Sound,
            Some(false) => CopyState::Damaged,
        }
    }

    fn list(&self, each: &mut dyn FnMut(&BlobId) -> bool) {
        let all = self.0.upgrade().map(|cache| cache.lendable()).unwrap_or_default();
        all.iter().all(each);
    }
}

/// Tells the fleet which blobs enter and leave the cache.
pub struct CacheEvents(pub Weak<Fleet>);

impl cache::Watch for CacheEvents {
    fn inserted(&self, id: &BlobId) {
        if let Some(fleet) = self.0.upgrade() {
            fleet.inserted(id);
        }
    }

    fn evicted(&self, id: &BlobId) {
        if let Some(fleet) = self.0.upgrade() {
            fleet.evicted(id);
        }
    }

    /// A blob that came from another node can come from one again.
    fn cost(&self, id: &BlobId) -> Cost {
        match self.0.upgrade().and_then(|fleet| fleet.came_from(id)) {
            Some(Tier::Peer | Tier::Stream) => Cost::Peer,
            Some(Tier::Depot) => Cost::Depot,
            Some(Tier::Origin) | None => Cost::Origin,
        }
    }
}

/// A tree that reports, for every pack that is looked up, which blob it is. So groups are known before the
/// blob is requested.
pub struct Grouped {
    tree: Arc<Tree>,
    groups: Groups,
}

impl Grouped {
    /// Wraps a tree. A background thread goes through all its packs, so that a node that finds blobs in its
    /// cache also knows their groups.
    pub fn over(tree: Arc<Tree>, groups: Groups) -> Grouped {
        let (walked, learns) = (tree.clone(), groups.clone());
        // Without a thread, groups are learned when packs are looked up.
        let _ = base::thread::spawn("covey-groups", move || {
            let walk = walked
                .rows(&Key::kind(tags::PACK), &mut |key, row| learn(&learns, &Key::from_bytes(key), row));
            if let Err(error) = walk {
                log::debug(|| format!("fleet: not all packs could be gone through: {error}"));
            }
        });
        Grouped { tree, groups }
    }
}

fn learn(groups: &Groups, key: &Key, row: &[u8]) -> bool {
    match (key.tag(), key.number(), PackRow::decode(row)) {
        (tags::PACK, Some(pack), Ok(PackRow::Sealed { blob, .. })) => groups.learn(&blob, PackNo(pack).0),
        _ => true,
    }
}

type Stored<T> = std::result::Result<T, StoreError>;

impl MetaStore for Grouped {
    fn get(&self, key: &Key) -> Stored<Option<Value>> {
        let row = self.tree.get(key)?;
        if let Some(row) = row.as_ref().filter(|_| key.tag() == tags::PACK) {
            learn(&self.groups, key, row);
        }
        Ok(row)
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.tree.is_at_hand(key)
    }

    fn get_many(&self, keys: &[Key]) -> Stored<Vec<Option<Value>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Stored<Rows> {
        self.tree.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> std::result::Result<(), CommitError> {
        self.tree.commit(commit)
    }

    fn commit_limit(&self) -> Limit {
        self.tree.commit_limit()
    }

    fn flush(&self) -> Stored<()> {
        self.tree.flush()
    }
}

/// Tells the fleet at intervals how much space the cache has left, until the cache is closed.
pub fn tell_free(fleet: &Arc<Fleet>, cache: &Arc<NodeCache>) {
    let (fleet, cache) = (Arc::downgrade(fleet), Arc::downgrade(cache));
    let _ = base::thread::spawn("covey-vitals", move || {
        while let (Some(fleet), Some(cache)) = (fleet.upgrade(), cache.upgrade()) {
            fleet.set_free(u32::try_from(cache.free() >> 20).unwrap_or(u32::MAX));
            drop((fleet, cache));
            std::thread::sleep(Duration::from_secs(1));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The result, and the time that it took on a clock that only pauses move.
    fn time_of(seen: impl Fn() -> usize) -> (usize, Duration) {
        let (began, passed) = (base::time::monotonic(), Cell::new(Duration::ZERO));
        let nodes = calmed(seen, || began + passed.get(), |pause| passed.set(passed.get() + pause));
        (nodes, passed.get())
    }

    #[test]
    fn regression_a_fleet_in_the_clear_beyond_this_machine_is_said() {
        let is = |address: &str, tls| clear_line(address.parse().unwrap(), tls).is_some();
        assert!(is("10.0.0.1:7171", false) && is("0.0.0.0:7171", false) && is("[::]:7171", false));
        assert!(!is("10.0.0.1:7171", true) && !is("127.0.0.1:7171", false) && !is("[::1]:7171", false));
        assert!(!is("[::ffff:127.0.0.1]:7171", false));
    }

    #[test]
    fn a_mount_waits_while_others_are_still_coming() {
        assert_eq!(time_of(|| 1), (1, Duration::ZERO), "a node that has met no other should not wait");
        let looks = Cell::new(0);
        let look = |of: fn(usize) -> usize| {
            looks.set(looks.get() + 1);
            of(looks.get())
        };
        // Ten milliseconds per poll. The third node appears after a third of the wait.
        let late = time_of(|| look(|looks| if looks < 11 { 2 } else { 3 }));
        assert_eq!(late, (3, CALM + Duration::from_millis(100)), "each new node should start the wait again");
        looks.set(0);
        let (nodes, time) = time_of(|| look(|looks| looks + 1));
        assert!(nodes > 2 && time == CALMING, "the wait should have an end: {nodes} nodes, {time:?}");
    }
}
