//! Locks of two nodes that share one store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

use base::PackNo;
use blob::BlobError;
use meta::key::KeyRange;
use meta::store::{CommitError, Rows, StoreError, Value};
use meta::{Commit, Key};

use super::*;
use crate::api::{Lock, LockKind, LockOwner, LockRange, LockStyle, LockWait, Locks};
use crate::shared::{FromOwner, Others, SessionId, Sharing};

const FILE: Ino = Ino(77);
const SOON: Duration = Duration::from_secs(60);

/// A store that can be away, or lose the answer of a commit.
struct Store {
    inner: meta::Memory,
    away: AtomicBool,
    loses_answers: AtomicBool,
    /// Is done when the next lock was granted, before the answer is lost.
    granted: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

fn unreachable() -> StoreError {
    StoreError::Unavailable("away".to_owned())
}

impl Store {
    fn look(&self) -> Result<(), StoreError> {
        if self.away.load(Ordering::SeqCst) { Err(unreachable()) } else { Ok(()) }
    }
}

impl MetaStore for Store {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.look().and_then(|()| self.inner.get(key))
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.look().and_then(|()| self.inner.get_many(keys))
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.look().and_then(|()| self.inner.scan(range, limit))
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        self.look()?;
        let grants = commit.puts.iter().any(|(key, _)| *key == Key::lock(FILE));
        self.inner.commit(commit)?;
        if grants && let Some(work) = self.granted.lock().take() {
            work();
            return Err(unreachable().into());
        }
        if self.loses_answers.load(Ordering::SeqCst) { Err(unreachable().into()) } else { Ok(()) }
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What one node knows of the sessions.
struct Fake {
    sessions: Arc<Mutex<Vec<SessionId>>>,
    epoch: AtomicU64,
}

impl Others for Fake {
    fn read(&self, _: PackNo, _: u32, _: &mut [u8]) -> Result<FromOwner, BlobError> {
        Ok(FromOwner::Gone)
    }

    fn alive(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(self.sessions.lock().clone())
    }

    fn epoch(&self) -> Option<u64> {
        Some(self.epoch.load(Ordering::SeqCst))
    }
}

struct Two {
    nodes: [Arc<Volume>; 2],
    others: [Arc<Fake>; 2],
    sessions: Arc<Mutex<Vec<SessionId>>>,
    store: Arc<Store>,
    world: World,
}

impl Two {
    fn new() -> Two {
        let world = World::new();
        let (away, loses_answers) = (AtomicBool::new(false), AtomicBool::new(false));
        let store =
            Arc::new(Store { inner: meta::Memory::new(), away, loses_answers, granted: Mutex::default() });
        let parts = Parts { store: store.clone(), ..world.parts.clone() };
        Volume::format(&parts, &FormatRequest::default()).unwrap();
        let sessions = Arc::new(Mutex::new([1, 2].map(|node| SessionId { node, epoch: 1 }).to_vec()));
        let others = [(); 2].map(|()| Arc::new(Fake { sessions: sessions.clone(), epoch: 1.into() }));
        let open = |at: usize| {
            let sharing = Sharing {
                node: at as u32 + 1,
                others: others[at].clone(),
                lease: Duration::from_millis(200),
                delay: Duration::from_secs(300),
                locks: Locks::Fleet,
                leases: None,
                keeping: None,
                kept: None,
            };
            let options = Options { names_local: false, shared: Some(sharing), ..world.options() };
            Arc::new(Volume::open(parts.clone(), options).unwrap())
        };
        Two { nodes: [open(0), open(1)], others, sessions, store, world }
    }

    fn row(&self) -> Option<Value> {
        self.store.inner.get(&Key::lock(FILE)).unwrap()
    }

    /// The session of a node ends. `again`: the node joins again.
    fn end_session(&self, at: usize, again: bool) {
        let node = at as u32 + 1;
        let mut sessions = self.sessions.lock();
        let old = sessions.iter().find(|session| session.node == node).unwrap().epoch;
        sessions.retain(|session| session.node != node);
        if again {
            sessions.push(SessionId { node, epoch: old + 1 });
            self.others[at].epoch.store(old + 1, Ordering::SeqCst);
            drop(sessions);
            self.nodes[at].joined_again();
        }
    }
}

fn range(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
    let range = LockRange { start, end };
    Lock { owner: LockOwner(owner), style: LockStyle::Range, range, kind, pid: owner as u32 }
}

fn whole(owner: u64, style: LockStyle, kind: LockKind) -> Lock {
    Lock { owner: LockOwner(owner), style, range: LockRange::ALL, kind, pid: owner as u32 }
}

fn write(owner: u64) -> Lock {
    whole(owner, LockStyle::Range, LockKind::Write)
}

fn unlock(owner: u64) -> Lock {
    whole(owner, LockStyle::Range, LockKind::Unlock)
}

type Waited = Receiver<Result<(), Errno>>;

fn wait(volume: &Volume, lock: &Lock, number: u64) -> Waited {
    let (send, receive) = channel();
    volume.wait_lock(FILE, lock, LockWait(number), Box::new(move |result| send.send(result).unwrap()));
    receive
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_nodes_exclude_each_other() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    assert_eq!((a.locks(), a.would_wait(crate::api::Waiting::Lock)), (Locks::Fleet, true));
    for style in [LockStyle::Range, LockStyle::Flock] {
        let [read, write, unlock] =
            [LockKind::Read, LockKind::Write, LockKind::Unlock].map(|kind| whole(5, style, kind));
        a.set_lock(FILE, &read).unwrap();
        b.set_lock(FILE, &read).unwrap();
        assert_eq!(a.set_lock(FILE, &write), Err(Errno::EAGAIN), "{style:?}");
        b.set_lock(FILE, &unlock).unwrap();
        a.set_lock(FILE, &write).unwrap();
        assert_eq!(b.set_lock(FILE, &read), Err(Errno::EAGAIN));
        assert_eq!(b.test_lock(FILE, &read).unwrap().unwrap().pid, 0, "the process is on another node");
        let other = Lock { owner: LockOwner(6), ..read };
        assert_eq!(a.test_lock(FILE, &other).unwrap().unwrap().pid, 5);
        a.release_locks(FILE, LockOwner(5), style).unwrap();
        assert_eq!(two.row(), None);
        assert_eq!(b.test_lock(FILE, &write), Ok(None));
        b.set_lock(FILE, &write).unwrap();
        b.release_locks(FILE, LockOwner(5), style).unwrap();
    }
    assert_eq!(two.row(), None);
}

#[test]
fn ranges_are_split_and_merged_between_nodes() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    a.set_lock(FILE, &range(1, LockKind::Write, 100, 199)).unwrap();
    a.set_lock(FILE, &range(1, LockKind::Unlock, 140, 159)).unwrap();
    b.set_lock(FILE, &range(1, LockKind::Write, 140, 159)).unwrap();
    assert_eq!(b.set_lock(FILE, &range(1, LockKind::Read, 139, 139)), Err(Errno::EAGAIN));
    let held = b.test_lock(FILE, &range(2, LockKind::Read, 160, 300)).unwrap().unwrap();
    assert_eq!(held.range, LockRange { start: 160, end: 199 });
    b.set_lock(FILE, &unlock(1)).unwrap();
    a.set_lock(FILE, &range(1, LockKind::Write, 140, 159)).unwrap();
    let held = b.test_lock(FILE, &range(2, LockKind::Read, 0, 300)).unwrap().unwrap();
    assert_eq!(held.range, LockRange { start: 100, end: 199 });
    two.nodes[0].unmounted();
    assert_eq!(two.row(), None, "locks end with their mount");
}

#[test]
fn a_waiting_request_is_granted_when_the_holder_unlocks() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    a.set_lock(FILE, &write(1)).unwrap();
    let [there, here] = [wait(b, &write(1), 1), wait(a, &write(2), 2)];
    assert!(there.recv_timeout(Duration::from_millis(100)).is_err() && here.try_recv().is_err());
    let began = Instant::now();
    a.set_lock(FILE, &unlock(1)).unwrap();
    assert_eq!(here.try_recv(), Ok(Ok(())), "one of this node is granted at once");
    a.release_locks(FILE, LockOwner(2), LockStyle::Range).unwrap();
    assert_eq!(there.recv_timeout(SOON), Ok(Ok(())));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(a.set_lock(FILE, &write(1)), Err(Errno::EAGAIN));
}

#[test]
fn a_request_that_waits_can_be_withdrawn() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    a.set_lock(FILE, &write(1)).unwrap();
    let waits = wait(b, &write(1), 1);
    b.cancel_lock(LockWait(1));
    assert_eq!(waits.try_recv(), Ok(Err(Errno::EINTR)));
    b.cancel_lock(LockWait(1));
    let [closed, ended] = [wait(b, &write(1), 2), wait(b, &write(2), 3)];
    b.release_locks(FILE, LockOwner(1), LockStyle::Range).unwrap();
    assert_eq!(closed.try_recv(), Ok(Err(Errno::EINTR)), "its file was closed");
    b.close().unwrap();
    assert_eq!(ended.try_recv(), Ok(Err(Errno::EIO)));
    a.set_lock(FILE, &unlock(1)).unwrap();
    assert_eq!(two.row(), None);
}

/// Both would wait for the other if a flock kept its lock while it waits for a better one.
#[test]
fn two_flocks_that_want_more_do_not_wait_for_each_other() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    let [read, write] = [LockKind::Read, LockKind::Write].map(|kind| whole(1, LockStyle::Flock, kind));
    a.set_lock(FILE, &read).unwrap();
    b.set_lock(FILE, &read).unwrap();
    let [first, second] = [wait(a, &write, 1), wait(b, &write, 1)];
    assert_eq!(second.recv_timeout(SOON), Ok(Ok(())));
    assert!(first.try_recv().is_err());
    b.release_locks(FILE, LockOwner(1), LockStyle::Flock).unwrap();
    assert_eq!(first.recv_timeout(SOON), Ok(Ok(())));
}

#[test]
fn locks_of_a_node_that_is_gone_do_not_count() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    b.set_lock(FILE, &write(1)).unwrap();
    let waits = wait(a, &write(1), 1);
    assert!(waits.recv_timeout(Duration::from_millis(50)).is_err());
    two.end_session(1, false);
    assert_eq!(waits.recv_timeout(SOON), Ok(Ok(())));
    a.set_lock(FILE, &unlock(1)).unwrap();
    assert_eq!(two.row(), None);
    // In a row that nobody uses any more.
    b.set_lock(FILE, &write(1)).unwrap();
    until("the row is removed", || two.row().is_none());
}

#[test]
fn a_node_that_joins_again_has_lost_its_locks() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    b.set_lock(FILE, &write(1)).unwrap();
    a.set_lock(Ino(78), &write(1)).unwrap();
    let waits = {
        let (send, receive) = channel();
        b.wait_lock(Ino(78), &write(2), LockWait(9), Box::new(move |result| send.send(result).unwrap()));
        receive
    };
    two.end_session(1, true);
    assert_eq!(waits.try_recv(), Ok(Err(Errno::EIO)));
    assert!(two.world.lines.lock().iter().any(|line| line.contains("locks of this node ended")));
    a.set_lock(FILE, &write(1)).unwrap();
    a.set_lock(FILE, &unlock(1)).unwrap();
    assert_eq!(b.set_lock(FILE, &write(1)), Err(Errno::EIO));
    assert_eq!(b.set_lock(FILE, &range(1, LockKind::Unlock, 0, 5)), Err(Errno::EIO));
    assert_eq!(b.set_lock(FILE, &unlock(1)), Err(Errno::EIO));
    b.set_lock(FILE, &write(1)).unwrap();
    b.release_locks(FILE, LockOwner(1), LockStyle::Range).unwrap();
    b.set_lock(FILE, &write(2)).unwrap();
    two.end_session(1, true);
    assert_eq!(wait(b, &write(2), 3).try_recv(), Ok(Err(Errno::EIO)));
    b.release_locks(FILE, LockOwner(2), LockStyle::Range).unwrap();
    b.set_lock(FILE, &write(3)).unwrap();
}

#[test]
fn no_release_is_lost_while_the_database_is_away() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    a.set_lock(FILE, &range(1, LockKind::Write, 0, 9)).unwrap();
    a.set_lock(FILE, &range(2, LockKind::Write, 10, 19)).unwrap();
    two.store.away.store(true, Ordering::SeqCst);
    a.release_locks(FILE, LockOwner(1), LockStyle::Range).unwrap();
    a.set_lock(FILE, &unlock(2)).unwrap();
    assert_eq!(a.set_lock(FILE, &write(3)), Err(Errno::EIO));
    assert!(two.row().is_some());
    two.store.away.store(false, Ordering::SeqCst);
    until("both are released", || two.row().is_none());
    // The same if it is applied, and the answer lost: of a lock, too.
    two.store.loses_answers.store(true, Ordering::SeqCst);
    assert_eq!(b.set_lock(FILE, &write(1)), Err(Errno::EIO));
    two.store.loses_answers.store(false, Ordering::SeqCst);
    until("what was not acknowledged is released", || two.row().is_none());
    a.set_lock(FILE, &write(1)).unwrap();
    assert_eq!(b.set_lock(FILE, &write(1)), Err(Errno::EAGAIN));
}

/// A request whose grant has no known outcome is withdrawn: its lock must not stay.
#[test]
fn a_withdrawn_request_leaves_nothing_locked() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    a.set_lock(FILE, &write(1)).unwrap();
    let waits = wait(b, &write(1), 1);
    two.store.loses_answers.store(true, Ordering::SeqCst);
    a.set_lock(FILE, &unlock(1)).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    b.cancel_lock(LockWait(1));
    two.store.loses_answers.store(false, Ordering::SeqCst);
    let answer = waits.recv_timeout(SOON).unwrap();
    if answer.is_ok() {
        b.release_locks(FILE, LockOwner(1), LockStyle::Range).unwrap();
    }
    until("nothing stays locked", || two.row().is_none());
}

/// Withdraws a request while its grant is committed, and the answer of the commit is lost. The file stayed
/// locked as long as the node was mounted.
#[test]
fn regression_a_request_that_is_withdrawn_as_it_is_granted_leaves_nothing_locked() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    a.set_lock(FILE, &write(1)).unwrap();
    let waits = wait(b, &write(1), 1);
    let node = b.clone();
    *two.store.granted.lock() = Some(Box::new(move || node.cancel_lock(LockWait(1))));
    a.set_lock(FILE, &unlock(1)).unwrap();
    assert_eq!(waits.recv_timeout(SOON).unwrap(), Err(Errno::EINTR));
    b.release_locks(FILE, LockOwner(1), LockStyle::Range).unwrap();
    until("nothing stays locked", || two.row().is_none());
}

/// A request that waited for another one of the file was granted in the name of the session before. So the
/// next node got the same lock.
#[test]
fn regression_no_lock_is_granted_in_the_name_of_an_ended_session() {
    let two = Two::new();
    let [a, b] = &two.nodes;
    let (asks, asked) = channel();
    let (second, sessions, others) = (a.clone(), two.sessions.clone(), two.others[0].clone());
    // As long as this commit lasts, the second request waits.
    *two.store.granted.lock() = Some(Box::new(move || {
        let lock = range(3, LockKind::Write, 50, 60);
        std::thread::spawn(move || asks.send(second.set_lock(FILE, &lock)));
        std::thread::sleep(Duration::from_millis(300));
        sessions.lock()[0].epoch = 2;
        others.epoch.store(2, Ordering::SeqCst);
    }));
    a.set_lock(FILE, &range(2, LockKind::Write, 0, 10)).unwrap_err();
    let is_granted = asked.recv_timeout(SOON).unwrap().is_ok();
    let next = b.set_lock(FILE, &range(4, LockKind::Write, 50, 60));
    assert_eq!(next, if is_granted { Err(Errno::EAGAIN) } else { Ok(()) }, "granted: {is_granted}");
}

#[test]
fn there_are_never_two_holders() {
    let two = Two::new();
    let (holders, done) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let volume = &two.nodes[thread as usize % 2];
            let (holders, done) = (&holders, &done);
            scope.spawn(move || {
                for round in 0..40 {
                    let owner = 1 + thread * 100 + round;
                    if (thread + round) % 3 == 0 {
                        while volume.set_lock(FILE, &write(owner)) == Err(Errno::EAGAIN) {
                            std::thread::yield_now();
                        }
                    } else {
                        assert_eq!(wait(volume, &write(owner), owner).recv_timeout(SOON), Ok(Ok(())));
                    }
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    std::thread::yield_now();
                    holders.fetch_sub(1, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                    volume.release_locks(FILE, LockOwner(owner), LockStyle::Range).unwrap();
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::SeqCst), 320);
    assert_eq!(two.row(), None);
}

#[test]
fn a_damaged_row_is_an_error_and_not_a_lock() {
    let two = Two::new();
    let commit = Commit { puts: vec![(Key::lock(FILE), [9, 9][..].into())], ..Commit::default() };
    two.store.inner.commit(commit).unwrap();
    assert_eq!(two.nodes[0].set_lock(FILE, &write(1)), Err(Errno::EIO));
    assert_eq!(wait(&two.nodes[1], &write(1), 1).try_recv(), Ok(Err(Errno::EIO)));
}
