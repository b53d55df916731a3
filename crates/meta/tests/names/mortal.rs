//! A node of a shared volume whose process is killed and started again, in front of a database that loses
//! answers and gets commits late.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use base::Ino;
use meta::engine::Memory;
use meta::key::{KeyRange, tags};
use meta::lease::{Holder, Journal, Leases, Left, Nodes, OldSession, Replayed, replay};
use meta::shared::Term;
use meta::store::{CommitError, Limit, Rows, StoreError};
use meta::{Commit, Key, MetaStore, Names, Value};
use parking_lot::Mutex;

use crate::support::{Dice, SimPacks};

pub const NODE: [u8; 16] = [7; 16];
pub const LONG: Duration = Duration::from_secs(3600);

/// A database. It refuses commits of sessions that are over. What was sent on a connection that has died may
/// still arrive, later.
#[derive(Default)]
pub struct Engine {
    pub memory: Memory,
    pub epoch: AtomicU64,
    pub late: Mutex<Vec<(u64, Commit)>>,
    pub dice: Mutex<Option<Dice>>,
    pub away: AtomicBool,
    /// One of so many batches is lost and may arrive later, and of so many another is not answered.
    pub lose: AtomicU64,
    pub limit: Option<Limit>,
}

impl Engine {
    pub fn below(&self, n: u64) -> u64 {
        self.dice.lock().as_mut().map_or(1, |dice| dice.below(n))
    }

    pub fn apply(&self, epoch: u64, commit: Commit) -> Result<(), CommitError> {
        if self.epoch.load(Ordering::SeqCst) != epoch {
            return Err(StoreError::Fenced("the session is over".to_owned()).into());
        }
        self.memory.commit(commit)
    }

    /// Something that was sent long ago arrives.
    pub fn arrive(&self) {
        let mut late = self.late.lock();
        if !late.is_empty() && self.below(3) == 0 {
            let at = self.below(late.len() as u64) as usize;
            let (epoch, commit) = late.swap_remove(at);
            let _ = self.apply(epoch, commit);
        }
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("it is away".to_owned())
}

/// A process's connection to the database.
pub struct Wire {
    pub engine: Arc<Engine>,
    pub epoch: Arc<AtomicU64>,
}

impl Wire {
    pub fn new(engine: Arc<Engine>, epoch: u64) -> Wire {
        Wire { engine, epoch: Arc::new(AtomicU64::new(epoch)) }
    }
}

impl MetaStore for Wire {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.engine.memory.get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.engine.memory.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.engine.memory.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        let is_batch = commit.puts.iter().any(|(key, _)| key.tag() == tags::BATCH);
        if is_batch && self.engine.away.load(Ordering::SeqCst) {
            return Err(unavailable().into());
        }
        let epoch = self.epoch.load(Ordering::SeqCst);
        if !is_batch {
            return self.engine.apply(epoch, commit);
        }
        self.engine.arrive();
        std::thread::sleep(Duration::from_micros(self.engine.below(2) * 500));
        match self.engine.below(self.engine.lose.load(Ordering::SeqCst).max(2)) {
            0 => {
                self.engine.late.lock().push((epoch, commit));
                Err(unavailable().into())
            }
            1 => self.engine.apply(epoch, commit).and(Err(unavailable().into())),
            _ => self.engine.apply(epoch, commit),
        }
    }

    fn commit_limit(&self) -> Limit {
        self.engine.limit.unwrap_or(Limit::NONE)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Alone(Arc<AtomicU64>);

impl Nodes for Alone {
    fn me(&self) -> Option<Holder> {
        Some(Holder { node: 1, epoch: self.0.load(Ordering::SeqCst) })
    }

    fn alive(&self) -> Result<Vec<Holder>, StoreError> {
        Ok(self.me().into_iter().collect())
    }

    fn recall(&self, _: u32, _: Ino, _: u64) -> Result<(), String> {
        Err("there is no other".to_owned())
    }

    fn report(&self, line: &str) {
        println!("{line}");
    }
}

/// A session that is renewed as this says, and is ended for good when it is over.
pub struct Old<F>(pub F);

impl<F: Fn() -> Result<(), StoreError>> OldSession for Old<F> {
    fn renew(&self) -> Result<(), StoreError> {
        self.0()
    }

    fn resume(&self) -> Result<(), StoreError> {
        Err(StoreError::Fenced("the session was ended".to_owned()))
    }
}

/// A node whose process is killed now and then, and started again.
pub struct Mortal {
    pub engine: Arc<Engine>,
    pub dir: tempfile::TempDir,
    pub packs: SimPacks,
    pub process: RwLock<Option<Arc<Leases>>>,
    /// The epoch of the process's session.
    pub epoch: Mutex<Arc<AtomicU64>>,
    /// One of so many commits is followed by a kill. 0: none is.
    pub kills: u64,
    pub killed: AtomicU64,
    pub outstanding: AtomicU64,
}

impl Mortal {
    pub fn new(seed: Option<u64>, kills: u64, limit: Option<Limit>) -> Arc<Mortal> {
        let engine =
            Engine { limit, epoch: AtomicU64::new(1), lose: AtomicU64::new(24), ..Engine::default() };
        *engine.dice.lock() = seed.map(|seed| Dice(seed * 7 + 3));
        let node = Mortal {
            engine: Arc::new(engine),
            dir: tempfile::tempdir().unwrap(),
            packs: SimPacks::default(),
            process: RwLock::default(),
            epoch: Mutex::default(),
            kills,
            killed: AtomicU64::new(0),
            outstanding: AtomicU64::new(0),
        };
        node.start();
        Arc::new(node)
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn wire(&self) -> Wire {
        Wire::new(self.engine.clone(), self.engine.epoch.load(Ordering::SeqCst))
    }

    /// The process begins, in the session of the engine.
    pub fn start(&self) {
        let wire = self.wire();
        let term = Arc::new(Term::default());
        term.extend(base::time::boot(), LONG);
        let journal = Journal::open(self.dir(), NODE).unwrap();
        let nodes = Arc::new(Alone(wire.epoch.clone()));
        *self.epoch.lock() = wire.epoch.clone();
        let leases = Leases::with_journal(Arc::new(wire), term, nodes, Some(journal)).unwrap();
        *self.process.write().unwrap() = Some(leases);
    }

    pub fn kill(&self) {
        self.killed.fetch_add(1, Ordering::SeqCst);
        // It writes nothing back.
        drop(self.process.write().unwrap().take());
    }

    pub fn left(&self) -> Left {
        Left::read(self.dir(), NODE).unwrap()
    }

    pub fn replay(&self) -> Replayed {
        replay(self.left(), &self.wire(), &self.packs, &Old(|| Ok(()))).unwrap()
    }

    /// What it has acknowledged is stored, then it joins again.
    pub fn again(&self) {
        self.outstanding.fetch_add(self.left().len() as u64, Ordering::SeqCst);
        // The process that stores it may be killed too.
        let batches = Cell::new(self.engine.below(3));
        let killed = Old(|| {
            batches.set(batches.get().checked_sub(1).ok_or(StoreError::Full)?);
            Ok(())
        });
        if let Ok(done) = replay(self.left(), &self.wire(), &self.packs, &killed) {
            assert_eq!(done.line(), None);
        }
        for _ in 0..1 + self.engine.below(2) {
            let done = self.replay();
            assert_eq!(done.line(), None);
        }
        self.join();
    }

    pub fn join(&self) {
        self.engine.epoch.fetch_add(1, Ordering::SeqCst);
        self.start();
    }

    /// Its session has ended, and the same process joins again.
    pub fn rejoin(&self) {
        let epoch = self.engine.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        self.process().session_ended();
        self.epoch.lock().store(epoch, Ordering::SeqCst);
    }

    pub fn process(&self) -> Arc<Leases> {
        self.process.read().unwrap().clone().unwrap()
    }

    pub fn names(self: &Arc<Mortal>) -> Names {
        Names::leased(self.clone())
    }
}

impl MetaStore for Mortal {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.process().get(key)
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.process().is_at_hand(key)
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.process().get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.process().scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        let done = self.process().commit(commit);
        if done.is_ok() && self.kills > 0 && self.engine.below(self.kills) == 0 {
            self.kill();
            self.again();
        }
        done
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.process().flush()
    }
}
