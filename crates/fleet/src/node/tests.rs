//! Nodes on loopback over a store that counts: which node fetches what, and what readers get when parts fail.

mod keeper;
mod parts;
mod slack;

use std::collections::HashMap;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use base::BlobId;
use base::size::GROUP;
use blob::folder::past_end;
use blob::{BlobError, BlobFolder, BlobSource, Buffer, Origin, Part, Records, Sums};
use fetch::{Completed, Ended, Join, Purpose, Subscriber, Table, Tier, Verify};
use net::id::{Role, Zone};
use net::message::Group;
use net::seam::{CopyState, Held, Holdings};
use net::secret::Secret;
use net::transport::{Fail, Filled, Peer};
use parking_lot::Mutex;

use super::warm::NotWarmed;
use super::{Fleet, FleetParts, Groups, Transport};
use crate::members::{Contact, NodeHome};

/// The origin: blobs in memory, and how many times each was fetched.
#[derive(Default)]
struct Store {
    blobs: Mutex<HashMap<BlobId, Vec<u8>>>,
    fetched: Mutex<HashMap<BlobId, u64>>,
    /// Parts that were fetched, and their bytes.
    parts: Mutex<(u64, u64)>,
    away: AtomicBool,
}

impl Store {
    fn with(count: u64, size: usize) -> (Arc<Store>, Vec<BlobId>) {
        let store = Store::default();
        let ids = (0..count).map(|seed| {
            let bytes = noise(size, seed);
            let id = Sums::of(&bytes).id();
            store.blobs.lock().insert(id, bytes);
            id
        });
        let ids = ids.collect();
        (Arc::new(store), ids)
    }

    fn fetches(&self) -> u64 {
        self.fetched.lock().values().sum()
    }

    fn most(&self) -> u64 {
        self.fetched.lock().values().copied().max().unwrap_or(0)
    }
}

fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().update(&seed.to_be_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

type Done<T> = Result<T, BlobError>;

fn no<T>() -> Done<T> {
    Err(BlobError::Unavailable("the store of this test does not do that".to_owned()))
}

impl BlobSource for Store {
    fn read_at(&self, _: &BlobId, _: u32, _: &mut [u8]) -> Done<()> {
        no()
    }

    fn is_local(&self, _: &BlobId) -> bool {
        false
    }
}

impl Records for Store {
    fn record(&self, _: &str) -> Done<Option<Vec<u8>>> {
        no()
    }

    fn put_record(&self, _: &str, _: &[u8]) -> Done<()> {
        no()
    }

    fn create_record(&self, _: &str, _: &[u8]) -> Done<bool> {
        no()
    }

    fn remove_record(&self, _: &str) -> Done<()> {
        no()
    }

    fn records(&self, _: &str) -> Done<Vec<String>> {
        no()
    }
}

impl Origin for Store {
    fn adopt(&self, _: &BlobId, _: &Sums, _: &Path) -> Done<()> {
        no()
    }

    fn put(&self, _: &BlobId, _: &Sums, _: &[u8]) -> Done<()> {
        no()
    }

    fn sync(&self) -> Done<()> {
        Ok(())
    }

    fn remove(&self, _: &BlobId) -> Done<()> {
        no()
    }

    fn size(&self, _: &BlobId) -> Done<Option<u64>> {
        no()
    }

    fn list(&self, _: &mut dyn FnMut(BlobId, u64) -> bool) -> Done<()> {
        no()
    }

    fn verify(&self, _: &BlobId) -> Done<()> {
        no()
    }

    fn fetch(&self, id: &BlobId) -> Done<(Sums, Buffer)> {
        *self.fetched.lock().entry(*id).or_default() += 1;
        // A store is distant. Requests in the meantime must find the fetch in flight.
        std::thread::sleep(Duration::from_millis(30));
        if self.away.load(Ordering::SeqCst) {
            return Err(BlobError::Unavailable("the store is away".to_owned()));
        }
        let bytes = self.blobs.lock().get(id).cloned().ok_or(BlobError::Missing(*id))?;
        Ok((Sums::of(&bytes), bytes.into()))
    }

    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Done<Part> {
        let bytes = self.blobs.lock().get(id).cloned().ok_or(BlobError::Missing(*id))?;
        let end = offset.saturating_add(len);
        if end as usize > bytes.len() {
            return Err(past_end(id, bytes.len() as u32));
        }
        let (from, to) = (offset - offset % GROUP, (end.next_multiple_of(GROUP) as usize).min(bytes.len()));
        let part = Part { sums: Sums::of(&bytes), offset: from, bytes: bytes[from as usize..to].into() };
        let mut parts = self.parts.lock();
        *parts = (parts.0 + 1, parts.1 + part.bytes.len() as u64);
        Ok(part)
    }

    fn describe(&self) -> String {
        "test:".to_owned()
    }
}

/// A node's disk, as other nodes see it.
struct Disk(BlobFolder, Mutex<HashMap<BlobId, Held>>);

impl Holdings for Disk {
    fn open(&self, id: &BlobId) -> Option<Held> {
        if let Some(lie) = self.1.lock().get(id) {
            return Some(lie.clone());
        }
        let sums = self.0.sums(id).ok()?;
        Some(Held { file: Arc::new(File::open(self.0.file(id)).ok()?), offset: 0, sums: Arc::new(sums) })
    }

    fn suspect(&self, id: &BlobId) -> CopyState {
        if self.0.verify(id).is_err() {
            self.0.remove(id).unwrap();
            return CopyState::Damaged;
        }
        CopyState::Sound
    }

    fn list(&self, each: &mut dyn FnMut(&BlobId) -> bool) {
        self.0.list(&mut |id, _| each(&id)).unwrap();
    }
}

/// A cache above a fleet, which keeps every whole blob that arrives.
struct Cache {
    disk: Arc<Disk>,
    fleet: OnceLock<Weak<Fleet>>,
    /// Blobs that wait while the cache writes nothing.
    waiting: Mutex<Option<Vec<Completed>>>,
}

impl Cache {
    fn write(&self, mut completed: Completed) {
        let Completed { id, part, .. } = &completed;
        self.disk.0.keep(id, &part.sums, &part.bytes).unwrap();
        if let Some(fleet) = self.fleet.get().and_then(Weak::upgrade) {
            fleet.inserted(id);
        }
        completed.kept();
    }

    /// Writes what waits, and from now on what arrives.
    fn go_on(&self) {
        let waiting = self.waiting.lock().take();
        waiting.into_iter().flatten().for_each(|completed| self.write(completed));
    }
}

impl Subscriber for Cache {
    fn completed(&self, completed: Completed) {
        let mut waiting = self.waiting.lock();
        match &mut *waiting {
            Some(waiting) => waiting.push(completed),
            None => {
                drop(waiting);
                self.write(completed);
            }
        }
    }

    fn failed(&self, _: &BlobId, _: Purpose, _: &BlobError) {}
}

/// A node with a cache that keeps everything.
struct Node {
    fleet: Arc<Fleet>,
    table: Arc<Table>,
    disk: Arc<Disk>,
    cache: Arc<Cache>,
    _folder: tempfile::TempDir,
}

const SECRET: &str = "a secret of sixteen letters and more";

impl Node {
    fn start(store: &Arc<Store>, role: Role, join: Option<&Node>) -> Node {
        Node::changed(store, role, join, |_| {})
    }

    /// Starts a node with changed parts.
    fn changed(
        store: &Arc<Store>,
        role: Role,
        join: Option<&Node>,
        change: impl FnOnce(&mut FleetParts),
    ) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let table = Table::new(Verify::Blake3, 64 << 20);
        let join = join.map(|node| node.fleet.address().unwrap().to_string()).unwrap_or_default();
        let mut parts = FleetParts {
            transport: Transport::Own {
                home: Arc::new(NodeHome::open(folder.path()).unwrap()),
                tls: None,
                listen: "127.0.0.1:0".parse().unwrap(),
            },
            secret: Secret::from_text(SECRET).unwrap(),
            volume: [7; 16],
            advertise: None,
            contacts: Contact::parse(&join).unwrap(),
            zone: Zone::default(),
            role,
            keeps: false,
            weight: 100,
            table: table.clone(),
            origin: store.clone(),
            deadline: Duration::from_secs(55),
            groups: Groups::new(),
            report: Arc::new(|line| println!("{line}")),
        };
        change(&mut parts);
        let fleet = Arc::new(Fleet::start(parts).unwrap());
        let disk =
            Arc::new(Disk(BlobFolder::create(&folder.path().join("blobs")).unwrap(), Mutex::default()));
        fleet.lend(disk.clone());
        let cache = Cache { disk: disk.clone(), fleet: OnceLock::new(), waiting: Mutex::default() };
        let cache = Arc::new(cache);
        let _ = cache.fleet.set(Arc::downgrade(&fleet));
        let subscriber = Arc::downgrade(&cache);
        table.subscribe(subscriber);
        Node { fleet, table, disk, cache, _folder: folder }
    }

    /// Fetches a whole blob, as a cache does that does not have it.
    fn fetch(&self, id: &BlobId) -> Done<Arc<Part>> {
        match self.table.join_whole(id, Purpose::Read) {
            Join::Leader(lead) => {
                let whole = self.fleet.whole(&lead).map(|(sums, bytes)| Part { sums, offset: 0, bytes });
                lead.finish(whole)
            }
            Join::Follower(fetch) => ended(fetch.wait()),
        }
    }

    /// Fetches a range of a blob, as a cache does that does not have it.
    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Done<Arc<Part>> {
        let end = offset.saturating_add(len);
        match self.table.join_part(id, offset / GROUP..end.div_ceil(GROUP)) {
            Join::Leader(lead) => {
                let part = self.fleet.part(&lead, offset, len);
                lead.finish(part, |_| {})
            }
            Join::Follower(fetch) => {
                let part = ended(fetch.wait())?;
                let is_in_it = u64::from(offset) + u64::from(len) <= u64::from(part.sums.size());
                is_in_it.then_some(part.clone()).ok_or_else(|| past_end(id, part.sums.size()))
            }
        }
    }

    fn fleet_of(store: &Arc<Store>, count: usize) -> Vec<Node> {
        let mut nodes = vec![Node::start(store, Role::Node, None)];
        while nodes.len() < count {
            nodes.push(Node::start(store, Role::Node, nodes.first()));
        }
        see_each_other(&nodes);
        nodes
    }

    fn read(&self, id: &BlobId) -> Done<Vec<u8>> {
        if let Some(held) = self.disk.open(id) {
            let mut bytes = vec![0; held.sums.size() as usize];
            std::os::unix::fs::FileExt::read_exact_at(&*held.file, &mut bytes, held.offset).unwrap();
            return Ok(bytes);
        }
        let part = self.fetch(id)?;
        assert_eq!((part.sums.id(), Sums::of(&part.bytes).id()), (*id, *id));
        Ok(part.bytes.to_vec())
    }

    fn evict(&self, id: &BlobId) {
        self.disk.0.remove(id).unwrap();
        self.table.forget(id);
        self.fleet.evicted(id);
    }
}

fn ended(outcome: fetch::Outcome) -> Done<Arc<Part>> {
    outcome.map_err(|ended| match ended {
        Ended::Failed(error) => error,
        Ended::GivenUp => BlobError::Unavailable("its leader gave it up".to_owned()),
    })
}

fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = base::time::monotonic() + Duration::from_secs(30);
    while !holds() {
        assert!(base::time::monotonic() < end, "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// So many nodes, and blobs that the origin has.
fn fleet_with(nodes: usize, count: u64, size: usize) -> (Arc<Store>, Vec<BlobId>, Vec<Node>) {
    let (store, ids) = Store::with(count, size);
    let nodes = Node::fleet_of(&store, nodes);
    (store, ids, nodes)
}

fn see_each_other(nodes: &[Node]) {
    soon("all see all", || nodes.iter().all(|node| node.fleet.seen().len() == nodes.len()));
}

#[test]
fn a_node_that_is_alone_asks_the_origin() {
    let (store, ids) = Store::with(3, 100_000);
    let node = Node::start(&store, Role::Node, None);
    for id in &ids {
        assert_eq!(node.read(id).unwrap(), store.blobs.lock()[id]);
    }
    let in_memory = |id: &BlobId| node.table.has_whole(id);
    assert!(!ids.iter().any(in_memory), "no node gets anything from here");
    assert_eq!((store.fetches(), node.fleet.counts().origin_told), (3, 3));
    let unknown = BlobId([9; 32]);
    assert!(matches!(node.read(&unknown), Err(BlobError::Missing(id)) if id == unknown));
    store.away.store(true, Ordering::SeqCst);
    node.evict(&ids[0]);
    let error = node.read(&ids[0]).unwrap_err();
    assert!(
        error.to_string().contains("the store is away"),
        "the origin's own error is what a reader sees: {error}"
    );
    assert_eq!(node.fleet.under_way(), 0);
}

/// A member was listed before its place was known. A node that waited for it could ask the wrong tracker.
#[test]
fn regression_a_member_is_listed_once_it_has_its_place() {
    let (_store, _, nodes) = fleet_with(2, 1, 1000);
    let inner = &nodes[0].fleet.inner;
    inner.addresses.lock().clear();
    let seen = nodes[0].fleet.seen();
    assert!(seen.len() == 1 && seen[0].is_own, "{seen:?}");
    inner.place(&inner.members.get().unwrap().roster());
    assert_eq!(nodes[0].fleet.seen().len(), 2);
}

/// How many times a blob may have been fetched once more than necessary. On a busy machine trackers are late,
/// a fetch may take longer than its lease lasts, and a holder may send nothing for a second.
fn troubles(nodes: &[Node]) -> u64 {
    let of = |node: &Node| node.fleet.counts().troubles() + node.fleet.tracker_counts().again();
    nodes.iter().map(of).sum()
}

/// Checks what nodes do that get their answers in time. If something takes longer than a node waits for it,
/// the node does something else instead. A busy machine causes that now and then, and it is counted. So a
/// check that fails beside a trouble is made again, with other nodes.
fn undisturbed<T>(
    start: impl Fn() -> (Arc<Store>, Vec<BlobId>, Vec<Node>),
    check: impl Fn(&Arc<Store>, &[BlobId], &[Node]) -> T,
) -> T {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let (store, ids, nodes) = start();
        let checked = catch_unwind(AssertUnwindSafe(|| check(&store, &ids, &nodes)));
        let hedges: u64 = nodes.iter().map(|node| node.fleet.counts().hedges).sum();
        match checked {
            Ok(done) => return done,
            Err(why) if attempts == 5 || troubles(&nodes) + hedges == 0 => resume_unwind(why),
            Err(_) => println!("{} troubles and {hedges} hedges: once more", troubles(&nodes)),
        }
    }
}

/// Waits until the first trackers of these blobs know that so many of the nodes have them.
fn known(nodes: &[Node], ids: &[BlobId], holders: usize) {
    let holders_of = |id: &BlobId| {
        let inner = &nodes[0].fleet.inner;
        let first = inner.trackers(inner.groups.of(id)).first().copied();
        let tracker = nodes.iter().find(|node| Some(node.fleet.node()) == first);
        tracker.map_or(0, |node| node.fleet.inner.tracker.lock().holders(id))
    };
    soon("trackers know the holders", || ids.iter().all(|id| holders_of(id) >= holders));
}

#[test]
fn who_comes_later_gets_it_from_a_node_and_never_from_the_origin() {
    let (store, ids) = Store::with(12, 300_000);
    let nodes = Node::fleet_of(&store, 3);
    for node in &nodes {
        for id in &ids {
            assert_eq!(node.read(id).unwrap(), store.blobs.lock()[id]);
        }
    }
    let is_as_wanted = |fetches: u64| (12..=12 + troubles(&nodes)).contains(&fetches);
    assert!(is_as_wanted(store.fetches()), "{} fetches: {:?}", store.fetches(), nodes[2].fleet.counts());
    let from_nodes = |node: &Node| node.fleet.counts().peer_blobs + node.fleet.counts().stream_blobs;
    assert!(from_nodes(&nodes[1]) + from_nodes(&nodes[2]) + troubles(&nodes) >= 24);
    // A node gets an evicted blob back from the others, once their trackers know that they have it. While
    // they are believed to be fetching it from this node, they cannot be named.
    known(&nodes, &ids, 3);
    nodes[0].evict(&ids[0]);
    assert_eq!(nodes[0].read(&ids[0]).unwrap(), store.blobs.lock()[&ids[0]]);
    let counts = || nodes.iter().map(|node| node.fleet.counts()).collect::<Vec<_>>();
    assert!(is_as_wanted(store.fetches()), "{} fetches: {:?}", store.fetches(), counts());
    // The origin is away. What a node has can be read. What none has is an error that says why.
    store.away.store(true, Ordering::SeqCst);
    nodes[1].evict(&ids[5]);
    assert_eq!(nodes[1].read(&ids[5]).unwrap(), store.blobs.lock()[&ids[5]]);
    nodes.iter().for_each(|node| node.evict(&ids[7]));
    std::thread::sleep(Duration::from_millis(300));
    let error = nodes[1].read(&ids[7]).unwrap_err();
    assert!(error.to_string().contains("away"), "{error}");
}

/// A node's questions name its upstream, and trackers name that node again (`tracker`). Otherwise the choice
/// for each blob would be random.
#[test]
fn a_node_is_sent_to_its_upstream_again() {
    undisturbed(
        || fleet_with(3, 10, 100_000),
        |_, ids, nodes| {
            nodes[..2].iter().for_each(|node| ids.iter().for_each(|id| drop(node.read(id).unwrap())));
            known(nodes, ids, 2);
            let inner = &nodes[2].fleet.inner;
            let [other, sender] = [0, 1].map(|at: usize| nodes[at].fleet.node());
            for id in ids {
                // So much that it is the upstream for some seconds.
                inner.activity.heard(inner.now(), sender, 1 << 30);
                nodes[2].read(id).unwrap();
                // Until its tracker knows that the blob arrived, the sender counts as busy with it.
                known(nodes, &[*id], 3);
            }
            assert!(inner.activity.last(other).is_none(), "{:?}", nodes[2].fleet.counts());
        },
    );
}

/// Between a blob's last byte and its file, its tracker believed it gone, and a requester was given a lease:
/// 18 fetches of these 12.
#[test]
fn regression_what_the_cache_is_writing_is_not_fetched_again() {
    let (store, ids) = Store::with(12, 300_000);
    let nodes = Node::fleet_of(&store, 2);
    for id in &ids {
        *nodes[0].cache.waiting.lock() = Some(Vec::new());
        let part = nodes[0].fetch(id).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| nodes[1].read(id).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            nodes[0].cache.go_on();
            assert!(part.bytes == other.join().unwrap());
        });
    }
    assert!((12..=12 + troubles(&nodes)).contains(&store.fetches()), "{} fetches", store.fetches());
}

#[test]
fn a_crowd_that_comes_at_once_costs_one_fetch_from_the_origin() {
    let (store, ids) = Store::with(8, 1 << 20);
    let nodes = Node::fleet_of(&store, 3);
    // A cache asks once for all its readers of a blob.
    let flights: Vec<Vec<Mutex<()>>> =
        nodes.iter().map(|_| ids.iter().map(|_| Mutex::default()).collect()).collect();
    std::thread::scope(|scope| {
        for (number, node) in nodes.iter().enumerate() {
            for half in 0..2 {
                let (ids, store, flights) = (ids.clone(), store.clone(), &flights[number]);
                scope.spawn(move || {
                    // Each reads them from another starting point, and two threads of a node want the same.
                    for turn in 0..ids.len() {
                        let at = (turn + number * 3 + half) % ids.len();
                        let (id, _flight) = (&ids[at], flights[at].lock());
                        assert_eq!(node.read(id).unwrap(), store.blobs.lock()[id]);
                    }
                });
            }
        }
    });
    let counts: Vec<_> =
        nodes.iter().map(|node| (node.fleet.counts(), node.fleet.tracker_counts())).collect();
    assert!(store.fetches() <= 8 + troubles(&nodes), "{} fetches: {counts:?}", store.fetches());
}

#[test]
fn a_depot_fetches_once_for_all_and_keeps_it() {
    undisturbed(
        || with_depot(6, 200_000),
        |store, ids, nodes| {
            for id in ids {
                assert_eq!(nodes[1].read(id).unwrap(), store.blobs.lock()[id]);
            }
            assert_eq!(nodes[1].fleet.counts().depot_blobs, 6);
            assert_eq!((store.fetches(), nodes[1].fleet.counts().origin_blobs), (6, 0));
            // A depot counts a blob after it has sent it.
            soon("the depot counts all", || nodes[0].fleet.counts().filled == 6);
        },
    );
}

/// A depot and a node.
fn with_depot(count: u64, size: usize) -> (Arc<Store>, Vec<BlobId>, Vec<Node>) {
    let (store, ids) = Store::with(count, size);
    let depot = Node::start(&store, Role::Depot, None);
    let node = Node::start(&store, Role::Node, Some(&depot));
    let nodes = vec![depot, node];
    see_each_other(&nodes);
    (store, ids, nodes)
}

/// A depot that is also a blob's tracker answers SERVE. The blob was counted, and recorded, as another
/// node's.
#[test]
fn regression_what_a_depot_gives_as_a_tracker_came_from_the_depot() {
    undisturbed(
        || with_depot(12, 50_000),
        |store, ids, nodes| {
            for id in ids {
                let bytes = store.blobs.lock()[id].clone();
                nodes[0].disk.0.put(id, &Sums::of(&bytes), &bytes).unwrap();
                assert_eq!(nodes[1].read(id).unwrap(), bytes);
            }
            let counts = nodes[1].fleet.counts();
            assert_eq!(
                (counts.depot_blobs, counts.peer_blobs, counts.origin_blobs),
                (12, 0, 0),
                "{counts:?}"
            );
        },
    );
}

#[test]
fn a_depot_that_is_warmed_says_what_came_of_it() {
    let (store, ids) = Store::with(2, 100_000);
    let depot = Node::start(&store, Role::Depot, None);
    let node = Node::start(&store, Role::Node, Some(&depot));
    assert!(matches!(
        Node::start(&store, Role::Node, None).fleet.warm_depot(&ids[0]),
        Err(NotWarmed::NoDepot)
    ));
    let nodes = [depot, node];
    see_each_other(&nodes);
    let [depot, node] = &nodes;
    assert_eq!(node.fleet.depots(), 1);
    depot.read(&ids[0]).unwrap();
    assert_eq!(node.fleet.warm_depot(&ids[0]).unwrap(), Filled::Here);
    store.away.store(true, Ordering::SeqCst);
    let failed = node.fleet.warm_depot(&ids[1]).unwrap_err().to_string();
    assert!(failed.contains("the store is away") && failed.contains("the depot at 127.0.0.1"), "{failed}");
    // A node that is not a depot fetches for no other node, and says so when asked.
    let peer = Peer { address: node.fleet.address().unwrap(), node: None };
    let refused = depot.fleet.inner.net().unwrap().fill(peer, &ids[1], Duration::from_secs(60)).wait();
    assert_eq!(refused, Err(Fail::Unable("this node is no depot".to_owned())));
    assert_eq!(node.fleet.counts().origin_blobs + node.fleet.counts().depot_blobs, 0, "it carries no bytes");
}

#[test]
fn a_node_that_vanishes_costs_time_and_no_bytes() {
    let (store, ids) = Store::with(10, 100_000);
    let mut nodes = Node::fleet_of(&store, 3);
    ids.iter().for_each(|id| drop(nodes[0].read(id).unwrap()));
    known(&nodes, &ids, 1);
    let gone = nodes.remove(0);
    gone.fleet.close();
    for id in &ids {
        assert_eq!(nodes[0].read(id).unwrap(), store.blobs.lock()[id]);
        assert_eq!(nodes[1].read(id).unwrap(), store.blobs.lock()[id]);
    }
    let most = 2 + troubles(&nodes);
    assert!(store.most() <= most, "once for the node that is gone, once more for those that stay");
}

#[test]
fn a_copy_that_rots_is_found_dropped_and_had_from_elsewhere() {
    let (store, ids) = Store::with(4, 300_000);
    let nodes = Node::fleet_of(&store, 2);
    // The first of them last, because it is in memory for some seconds only.
    for id in ids.iter().rev() {
        nodes[0].read(id).unwrap();
        let path = nodes[0].disk.0.file(id);
        let mut permissions = std::fs::metadata(&path).unwrap().permissions();
        #[allow(clippy::permissions_set_readonly_false, reason = "the file goes with the test")]
        permissions.set_readonly(false);
        std::fs::set_permissions(&path, permissions).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[150_000] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    // A recently received blob is sent from memory, and the disk is not read.
    assert_eq!(nodes[1].read(&ids[0]).unwrap(), store.blobs.lock()[&ids[0]]);
    assert_eq!(nodes[1].fleet.net_counts().corrupt, 0);
    nodes[0].table.tidy(base::time::monotonic() + Duration::from_secs(60));
    for id in &ids[1..] {
        assert_eq!(nodes[1].read(id).unwrap(), store.blobs.lock()[id]);
    }
    // After the first of them the node is not asked for a while, so it is told of that one only.
    soon("a bad copy is dropped", || ids.iter().any(|id| !nodes[0].disk.0.file(id).exists()));
}

/// Between the last byte and the file on the disk a blob was requested again, here for the other of two parts
/// that were wanted at once. The tracker believed that this node had it, cannot send a node to itself, and so
/// had it fetched from the origin once more.
#[test]
fn regression_what_has_just_landed_is_not_fetched_again() {
    let (store, ids) = Store::with(1, 100_000);
    let nodes = Node::fleet_of(&store, 2);
    *nodes[0].cache.waiting.lock() = Some(Vec::new());
    let part = nodes[0].fetch(&ids[0]).unwrap();
    assert!(nodes[0].fetch(&ids[0]).unwrap().bytes == part.bytes);
    assert!(nodes[0].fetch_part(&ids[0], 70_000, 10).unwrap().bytes == part.bytes);
    nodes[0].cache.go_on();
    assert_eq!((store.fetches(), store.parts.lock().0), (1, 0));
}

#[test]
fn regression_a_node_that_lies_costs_a_fetch_and_never_a_wrong_byte() {
    let (store, ids) = Store::with(3, 300_000);
    let nodes = Node::fleet_of(&store, 2);
    let size = 300_000u32;
    for (number, id) in ids.iter().enumerate() {
        let bytes = nodes[0].read(id).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        let lie = match number {
            // Other bytes, with matching CRCs.
            0 => {
                let mut other = bytes.clone();
                other[70_000] ^= 1;
                std::io::Write::write_all(&mut file, &other).unwrap();
                let fits = Sums::of(&other);
                forged(&Sums::of(&bytes), |sums| {
                    let from = sums.len() - fits.segments().len() * 4;
                    let crcs: Vec<u8> = fits.segments().iter().flat_map(|crc| crc.to_le_bytes()).collect();
                    sums[from..].copy_from_slice(&crcs);
                })
            }
            // Right bytes, with CRCs that do not match.
            1 => {
                std::io::Write::write_all(&mut file, &bytes).unwrap();
                forged(&Sums::of(&bytes), |sums| *sums.last_mut().unwrap() ^= 1)
            }
            // One byte too many.
            _ => {
                std::io::Write::write_all(&mut file, &[&bytes[..], b"x"].concat()).unwrap();
                forged(&Sums::of(&bytes), |sums| sums[8..12].copy_from_slice(&(size + 1).to_le_bytes()))
            }
        };
        assert_eq!(lie.id(), *id, "the id does not show it");
        let held = Held { file: Arc::new(file), offset: 0, sums: Arc::new(lie) };
        nodes[0].disk.1.lock().insert(*id, held);
    }
    soon("the tracker knows their holders", || nodes[0].fleet.under_way() == 0);
    std::thread::sleep(Duration::from_millis(100));
    for id in &ids {
        assert!(nodes[1].read(id).unwrap() == store.blobs.lock()[id]);
        assert_eq!(nodes[1].disk.0.sums(id).unwrap(), Sums::of(&store.blobs.lock()[id]));
    }
}

fn forged(sums: &Sums, change: impl FnOnce(&mut Vec<u8>)) -> Sums {
    let mut bytes = sums.encode();
    bytes.truncate(bytes.len() - 4);
    change(&mut bytes);
    let own = blob::sums::crc32c(&bytes);
    bytes.extend_from_slice(&own.to_le_bytes());
    Sums::decode(&bytes).unwrap()
}

/// A tracker knew a node that the requester did not know. The fetch failed at once, and the requester was
/// given a second lease instead.
#[test]
fn regression_a_node_that_is_named_before_it_is_known_is_waited_for() {
    let (store, _) = Store::with(1, 1_000);
    let first = Node::start(&store, Role::Node, None);
    let second = Node::start(&store, Role::Node, Some(&first));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let named = |node, seconds| {
        let limit = Duration::from_secs(seconds);
        runtime.block_on(first.fleet.inner.introduced_within(node, limit))
    };
    assert!(named(second.fleet.node(), 60).is_some_and(|peer| peer.node == Some(second.fleet.node())));
    assert!(named(net::id::NodeId([9; 16]), 1).is_none(), "the wait ends");
}
