//! Nodes of a shared volume, in one process: an engine, an origin, and the sessions that last.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use base::PackNo;
use blob::failing::{FailingOrigin, Faults};
use blob::{BlobError, Kept, Origin};
use cache::KeptPacks;
use meta::key::KeyRange;
use meta::lease::{Holder, Leases, Loan, LoanAsk, Nodes};
use meta::shared::{Named, SharedStore, Term};
use meta::store::{CommitError, Rows, Snapshot, StoreError, Value};
use meta::{Commit, Key};

use super::*;
use crate::api::Locks;
use crate::shared::{FromOwner, Keep, KeepRange, Keeping, Others, SessionId, Sharing, owner};
use crate::volume::Fsync;

/// What all nodes use.
pub(super) struct Cluster {
    pub rows: Arc<meta::Memory>,
    pub origin: Arc<origin::Memory>,
    pub sessions: Mutex<Vec<SessionId>>,
    pub lines: Arc<Mutex<Vec<String>>>,
    places: Mutex<Vec<Weak<Place>>>,
    delay: Duration,
}

/// A node.
pub(super) struct Node {
    pub volume: Option<Arc<Volume>>,
    pub faults: Arc<Faults>,
    pub place: Arc<Place>,
    _leases: Arc<Leases>,
}

impl std::ops::Deref for Node {
    type Target = Volume;
    fn deref(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }
}

/// What a node knows of the others, and they of it.
pub(super) struct Place {
    cluster: Arc<Cluster>,
    node: u32,
    epoch: AtomicU64,
    pub term: Arc<Term>,
    leases: Mutex<Weak<Leases>>,
    volume: Mutex<Weak<Volume>>,
    /// Copies of other nodes' packs.
    pub kept: Arc<KeptPacks>,
    _folder: tempfile::TempDir,
    /// The node stops when a commit has doomed a blob, and before it learns that.
    pub stops: AtomicBool,
    /// The node has stopped.
    pub stopped: AtomicBool,
    /// The database may lack what it confirmed.
    pub lacks: AtomicBool,
    /// How often this node read the row of a pack.
    pub pack_looks: AtomicU64,
    /// How often this node asked another one for a lease.
    pub recalls: AtomicU64,
    /// Is done once after this thread has read the list of sessions.
    pub after_alive: Mutex<Option<OnThread>>,
}

/// What a thread is to do.
type OnThread = (std::thread::ThreadId, Box<dyn FnOnce() + Send>);

/// How long a session would last without being renewed; rounds are half as long apart.
const LEASE: Duration = Duration::from_millis(100);
const LONG: Duration = Duration::from_secs(3600);
/// How long a small pack waits for more bytes.
const SEAL_SMALL: Duration = Duration::from_millis(50);

impl Cluster {
    pub fn new(delay: Duration) -> Arc<Cluster> {
        let cluster = Arc::new(Cluster {
            rows: Arc::new(meta::Memory::new()),
            origin: Arc::new(origin::Memory::new()),
            sessions: Mutex::default(),
            lines: Arc::default(),
            places: Mutex::default(),
            delay,
        });
        let origin: Arc<dyn Origin> = cluster.origin.clone();
        let packs = Arc::new(cache::MemoryPacks::new(origin.clone()));
        let source = Arc::new(OriginSource(origin.clone()));
        let parts = Parts { store: cluster.rows.clone(), packs, source, origin };
        Volume::format(&parts, &FormatRequest::default()).unwrap();
        cluster
    }

    /// A node joins.
    pub fn join(self: &Arc<Cluster>) -> Node {
        self.join_with(None, true, SEAL_SMALL)
    }

    /// A node joins whose small packs stay open until they are uploaded.
    pub fn join_sealing_late(self: &Arc<Cluster>) -> Node {
        self.join_with(None, true, LONG)
    }

    /// A node joins whose fsync(2) waits for another node, or the origin.
    pub fn join_copying(self: &Arc<Cluster>) -> Node {
        self.join_with(Some(Arc::default()), true, SEAL_SMALL)
    }

    /// A node joins that deletes inodes without a name only when the test calls for it.
    pub fn join_without_reaper(self: &Arc<Cluster>) -> Node {
        self.join_with(None, false, SEAL_SMALL)
    }

    fn join_with(
        self: &Arc<Cluster>,
        keeping: Option<Arc<Keeping>>,
        reaps: bool,
        seal_small: Duration,
    ) -> Node {
        let mut places = self.places.lock();
        let node = places.len() as u32 + 1;
        let (term, faults, folder) = (Arc::new(Term::default()), Faults::new(), tempfile::tempdir().unwrap());
        term.extend(base::time::boot(), LONG);
        self.sessions.lock().push(SessionId { node, epoch: 1 });
        let place = Arc::new(Place {
            cluster: self.clone(),
            node,
            epoch: 1.into(),
            term: term.clone(),
            leases: Mutex::default(),
            volume: Mutex::default(),
            after_alive: Mutex::default(),
            kept: Arc::new(KeptPacks::open(folder.path(), u64::MAX, 0).unwrap()),
            _folder: folder,
            stops: false.into(),
            stopped: false.into(),
            lacks: false.into(),
            pack_looks: 0.into(),
            recalls: 0.into(),
        });
        places.push(Arc::downgrade(&place));
        drop(places);
        let origin: Arc<dyn Origin> = Arc::new(FailingOrigin::new(self.origin.clone(), faults.clone()));
        let packs: Arc<dyn PackStore> = Arc::new(cache::MemoryPacks::new(origin.clone()));
        let engine = Arc::new(Fence(place.clone()));
        let named = keeping.clone().map(|keeping| keeping as Arc<dyn Named>);
        let store = Arc::new(SharedStore::new(engine, packs.clone(), term.clone()).telling(named));
        let leases = Leases::start(store, term, place.clone()).unwrap();
        *place.leases.lock() = Arc::downgrade(&leases);
        let source = Arc::new(OriginSource(origin.clone()));
        let parts = Parts { store: leases.clone(), packs, source, origin };
        let sharing = Sharing {
            node,
            others: place.clone(),
            lease: LEASE,
            delay: self.delay,
            locks: Locks::Local,
            leases: Some(leases.clone()),
            keeping: keeping.clone(),
            kept: Some(place.kept.clone()),
        };
        let lines = self.lines.clone();
        let options = Options {
            names_local: false,
            fsync: if keeping.is_some() { Fsync::Peer(LONG) } else { Fsync::Here },
            shared: Some(sharing),
            reaps,
            commit: Duration::from_millis(50),
            seal_small,
            report: Arc::new(move |line| lines.lock().push(format!("node {node}: {line}"))),
            ..Options::default()
        };
        let volume = Arc::new(Volume::open(parts, options).unwrap());
        *place.volume.lock() = Arc::downgrade(&volume);
        Node { volume: Some(volume), faults, place, _leases: leases }
    }

    /// The blobs in the origin.
    pub fn blobs(&self) -> Vec<BlobId> {
        let mut all = Vec::new();
        self.origin
            .list(&mut |blob, _| {
                all.push(blob);
                true
            })
            .unwrap();
        all.sort();
        all
    }

    pub fn count(&self, tag: u8) -> usize {
        self.rows.scan(&Key::kind(tag), usize::MAX).unwrap().len()
    }

    /// Every blob that a row names is in the origin.
    pub fn assert_whole(&self) {
        let blobs = self.blobs();
        for (key, row) in self.rows.scan(&Key::kind(tags::BLOB_PACK), usize::MAX).unwrap() {
            let (blob, pack) = key.as_blob_pack().unwrap();
            assert!(
                blobs.binary_search(&blob).is_ok(),
                "{pack:?} is the blob {blob}, which is gone: {row:?}"
            );
        }
    }

    fn lasts(&self, node: u32, epoch: u64) -> bool {
        self.sessions.lock().contains(&SessionId { node, epoch })
    }
}

impl Drop for Node {
    /// A test that fails must not wait for a node that is stopped.
    fn drop(&mut self) {
        self.faults.heal();
        self.place.stops.store(false, Ordering::SeqCst);
    }
}

impl Node {
    /// The session ends, as the database sees it. The node does not know.
    pub fn end_session(&self) {
        self.place.cluster.sessions.lock().retain(|session| session.node != self.place.node);
    }

    /// The node notices that its session has ended, and joins again.
    pub fn join_again(&self) {
        self.place.term.end();
        self._leases.session_ended();
        let epoch = self.place.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        self.place.cluster.sessions.lock().push(SessionId { node: self.place.node, epoch });
        self.place.term.extend(base::time::boot(), LONG);
        self.joined_again();
    }

    /// What was written becomes a blob in the origin.
    pub fn upload(&self) {
        self.volume.as_ref().unwrap().sync().unwrap();
        self.seal_now(Duration::from_secs(60)).unwrap();
    }

    /// A round now, whenever one is due.
    pub fn round(&self) {
        self.core.collect_shared(self.core.options.shared.as_ref().unwrap(), &mut |_| ()).unwrap();
    }
}

impl Place {
    /// The other nodes whose sessions last.
    fn others(&self) -> Vec<Arc<Place>> {
        let places: Vec<Arc<Place>> = self.cluster.places.lock().iter().filter_map(Weak::upgrade).collect();
        let lasts = |place: &Arc<Place>| self.cluster.lasts(place.node, place.epoch.load(Ordering::SeqCst));
        places.into_iter().filter(|place| place.node != self.node && lasts(place)).collect()
    }

    fn read_owner(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<FromOwner, BlobError> {
        let gone = || BlobError::Unavailable("its node is gone".to_owned());
        let place = self.cluster.places.lock().get(owner(pack) as usize - 1).and_then(Weak::upgrade);
        let place = place.filter(|place| self.cluster.lasts(place.node, place.epoch.load(Ordering::SeqCst)));
        let volume = place.and_then(|place| place.volume.lock().upgrade()).ok_or_else(gone)?;
        let read = volume.read_own_pack(pack, offset, buf, |_| false);
        read.map_err(|error| BlobError::Unavailable(error.to_string()))
    }
}

impl Others for Place {
    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<FromOwner, BlobError> {
        self.read_owner(pack, offset, buf).or_else(|error| {
            let others = self.others();
            let mut stores = std::iter::once(&self.kept).chain(others.iter().map(|place| &place.kept));
            let found = stores.any(|kept| kept.read(pack, offset, buf).unwrap());
            found.then_some(FromOwner::Bytes).ok_or(error)
        })
    }

    fn keepers(&self) -> Result<Vec<SessionId>, StoreError> {
        let session =
            |place: &Arc<Place>| SessionId { node: place.node, epoch: place.epoch.load(Ordering::SeqCst) };
        Ok(self.others().iter().map(session).collect())
    }

    fn keep(&self, node: SessionId, ranges: &[KeepRange]) -> Result<u64, String> {
        let others = self.others();
        let kept = &others.iter().find(|place| place.node == node.node).ok_or("it is gone")?.kept;
        for KeepRange { pack, offset, what, bytes } in ranges {
            let done = match what {
                Keep::Drop => kept.remove(*pack, None),
                Keep::Write => kept.write(*pack, *offset, bytes),
                Keep::Sync if bytes.is_empty() => kept.sync(*pack),
                Keep::Sync => kept.write(*pack, *offset, bytes).and_then(|()| kept.sync(*pack)),
            };
            done.map_err(|error| error.to_string())?;
        }
        Ok(kept.run())
    }

    fn alive(&self) -> Result<Vec<SessionId>, StoreError> {
        let alive = self.cluster.sessions.lock().clone();
        let thread = std::thread::current().id();
        let work = self.after_alive.lock().take_if(|(of, _)| *of == thread);
        work.into_iter().for_each(|(_, work)| work());
        Ok(alive)
    }

    fn check_engine(&self, _: Duration) -> Result<(), StoreError> {
        let lacks = self.lacks.load(Ordering::SeqCst);
        (!lacks).then_some(()).ok_or_else(|| StoreError::Unavailable("it began anew".to_owned()))
    }

    fn epoch(&self) -> Option<u64> {
        Some(self.epoch.load(Ordering::SeqCst))
    }
}

impl Nodes for Place {
    fn me(&self) -> Option<Holder> {
        Some(Holder { node: self.node, epoch: self.epoch.load(Ordering::SeqCst) })
    }

    fn alive(&self) -> Result<Vec<Holder>, StoreError> {
        let sessions = self.cluster.sessions.lock();
        Ok(sessions.iter().map(|session| Holder { node: session.node, epoch: session.epoch }).collect())
    }

    fn recall(&self, node: u32, unit: Ino, seq: u64) -> Result<(), String> {
        self.recalls.fetch_add(1, Ordering::SeqCst);
        let place = self.cluster.places.lock().get(node as usize - 1).and_then(Weak::upgrade);
        let place = place.filter(|place| self.cluster.lasts(node, place.epoch.load(Ordering::SeqCst)));
        let leases = place.and_then(|place| place.leases.lock().upgrade()).ok_or("it is gone")?;
        leases.recall(unit, seq).map_err(|error| error.to_string())
    }

    fn borrow(&self, node: u32, ask: &LoanAsk) -> Result<Option<Loan>, String> {
        let place = self.cluster.places.lock().get(node as usize - 1).and_then(Weak::upgrade);
        let place = place.filter(|place| self.cluster.lasts(node, place.epoch.load(Ordering::SeqCst)));
        let leases = place.and_then(|place| place.leases.lock().upgrade()).ok_or("it is gone")?;
        leases.lend(self.node, ask).map_err(|error| error.to_string())
    }

    fn report(&self, line: &str) {
        self.cluster.lines.lock().push(line.to_owned());
    }
}

/// The engine of one node: commits of a session that has ended are refused.
struct Fence(Arc<Place>);

impl Fence {
    fn note_looks(&self, keys: &[Key]) {
        let looks = keys.iter().filter(|key| key.tag() == tags::PACK).count() as u64;
        self.0.pack_looks.fetch_add(looks, Ordering::SeqCst);
    }
}

impl MetaStore for Fence {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.note_looks(std::slice::from_ref(key));
        self.0.cluster.rows.get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.note_looks(keys);
        self.0.cluster.rows.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.0.cluster.rows.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        let sessions = self.0.cluster.sessions.lock();
        let (node, epoch) = (self.0.node, self.0.epoch.load(Ordering::SeqCst));
        if !sessions.contains(&SessionId { node, epoch }) {
            return Err(StoreError::Fenced("the session has ended".to_owned()).into());
        }
        let dooms = commit.puts.iter().any(|(key, _)| key.tag() == tags::DOOMED);
        self.0.cluster.rows.commit(commit)?;
        drop(sessions);
        while dooms && self.0.stops.load(Ordering::SeqCst) {
            self.0.stopped.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.0.cluster.rows.snapshot()
    }
}
