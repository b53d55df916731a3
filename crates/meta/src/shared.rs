//! The names of a shared volume, as one of its nodes sees them: an engine that all nodes use, behind a fence.
//!
//! - **A node whose session may have ended answers nothing**, neither from the engine nor from anything that
//!   it remembers ([`Term`]). The engine refuses the commits of such a session too, by its epoch. A commit
//!   belongs to the session in which it was begun, even if the node joins again before the engine gets it.
//! - **Totals are spread over several rows.** Every new file adds to the volume's totals. A row that all
//!   commits add to would let only one of them proceed at a time, until it is on the database's disk.
//! - **Bytes before names.** All nodes see a commit at once, and it survives a power cut of this node. So the
//!   packs that it mentions for the first time are synced before it.

pub mod outage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::PackNo;
use base::time::BootTime;
use blob::{BlobError, PackStore};

use crate::key::{Key, KeyRange, tags};
use crate::store::{
    Commit, CommitError, FreshData, Limit, Linked, Looked, MetaStore, Rows, Session, Snapshot, StoreError,
    Value,
};
use outage::Outage;

/// Until when a node's session lasts for certain, by this node's own clock. That clock goes on while the
/// machine sleeps, because other nodes go on too: they may have ended the session and changed its files.
#[derive(Debug)]
pub struct Term {
    clock: fn() -> BootTime,
    start: BootTime,
    /// Microseconds after `start`. 0: it has ended.
    until: AtomicU64,
}

impl Default for Term {
    /// A term that has not begun.
    fn default() -> Term {
        Term::by(base::time::boot)
    }
}

impl Term {
    /// Returns a term that has not begun, by this clock.
    fn by(clock: fn() -> BootTime) -> Term {
        Term { clock, start: clock(), until: AtomicU64::new(0) }
    }

    /// The session lasts for `time` from `from` on.
    pub fn extend(&self, from: BootTime, time: Duration) {
        let until = from.since(self.start) + time;
        self.until.store(until.as_micros().try_into().unwrap_or(u64::MAX), Ordering::Release);
    }

    /// The session has ended.
    pub fn end(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Whether the session lasts.
    pub fn lasts(&self) -> bool {
        (self.clock)().since(self.start).as_micros() < u128::from(self.until.load(Ordering::Acquire))
    }

    /// How long the session lasts for certain.
    pub fn left(&self) -> Duration {
        let now = (self.clock)().since(self.start);
        Duration::from_micros(self.until.load(Ordering::Acquire)).saturating_sub(now)
    }

    /// # Errors
    /// `Fenced` if the session may have ended.
    pub fn check(&self) -> Result<(), StoreError> {
        self.lasts().then_some(()).ok_or_else(|| {
            StoreError::Fenced(
                "this node could not renew its session in time, so it answers nothing".to_owned(),
            )
        })
    }
}

/// How many rows each total is spread over.
const SPREAD: u64 = 32;

/// The totals of a volume, by name.
pub(crate) const TOTALS: [&str; 2] = ["inodes", "bytes"];

/// Adds to one of the rows of a total, or of what counts for a quota, and not to the first.
fn spread(commit: &mut Commit) {
    for (key, _) in &mut commit.adds {
        if key.tag() == tags::QUOTA_USED {
            *key = key.part((base::random::u64() % SPREAD) as u8);
            continue;
        }
        let total = TOTALS.iter().find(|name| *key == Key::volume(name));
        if let Some(name) = total {
            *key = Key::volume(&format!("{name} {:02}", base::random::u64() % SPREAD));
        }
    }
}

/// Is told which ranges of this node's packs are about to be named for the first time.
pub trait Named: Send + Sync {
    /// Called before the commit. It may fail, or have succeeded with an unknown outcome.
    fn named(&self, fresh: &[FreshData]);
}

/// The store of one node. See the [module](self).
pub struct SharedStore {
    engine: Arc<dyn MetaStore>,
    packs: Arc<dyn PackStore>,
    term: Arc<Term>,
    named: Option<Arc<dyn Named>>,
    outage: Arc<Outage>,
}

impl SharedStore {
    /// Puts the fence in front of an engine. `packs` are this node's own.
    pub fn new(engine: Arc<dyn MetaStore>, packs: Arc<dyn PackStore>, term: Arc<Term>) -> SharedStore {
        SharedStore { engine, packs, term, named: None, outage: Arc::default() }
    }

    /// Tells this which ranges are named. See [`Named`].
    pub fn telling(self, named: Option<Arc<dyn Named>>) -> SharedStore {
        SharedStore { named, ..self }
    }

    /// Notes there whether the engine answers.
    pub fn noting(self, outage: Arc<Outage>) -> SharedStore {
        SharedStore { outage, ..self }
    }

    /// An answer counts only if the session lasted when it arrived.
    fn fenced<T>(&self, ask: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.term.check()?;
        let answer = ask();
        self.outage.note(&answer);
        let answer = answer?;
        self.term.check()?;
        Ok(answer)
    }
}

impl MetaStore for SharedStore {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.fenced(|| self.engine.get(key))
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.fenced(|| self.engine.get_many(keys))
    }

    fn get_linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        self.fenced(|| self.engine.get_linked(from, also, tags))
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.fenced(|| self.engine.scan(range, limit))
    }

    fn look(&self, keys: &[Key], ranges: &[KeyRange], limit: usize) -> Result<Looked, StoreError> {
        self.fenced(|| self.engine.look(keys, ranges, limit))
    }

    fn commit(&self, mut commit: Commit) -> Result<(), CommitError> {
        // Before the check, and before all that waits.
        commit.session = commit.session.or_else(|| self.engine.current_session());
        self.term.check()?;
        spread(&mut commit);
        let packs: BTreeSet<PackNo> = commit.fresh.iter().map(|fresh| fresh.pack).collect();
        if !packs.is_empty() {
            let packs: Vec<PackNo> = packs.into_iter().collect();
            self.packs.sync(&packs).map_err(|error| match error {
                BlobError::Full => StoreError::Full,
                error => StoreError::Unavailable(format!("bytes could not be made durable: {error}")),
            })?;
        }
        if let Some(named) = self.named.as_ref().filter(|_| !commit.fresh.is_empty()) {
            named.named(&commit.fresh);
        }
        // The engine itself refuses a session that has ended.
        let done = self.engine.commit(commit);
        self.outage.note_commit(&done);
        done
    }

    fn current_session(&self) -> Option<Session> {
        self.engine.current_session()
    }

    fn commit_limit(&self) -> Limit {
        self.engine.commit_limit()
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.engine.flush()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.fenced(|| self.engine.snapshot())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_ends_by_itself() {
        let term = Term::default();
        assert!(!term.lasts(), "it has not begun");
        let now = base::time::boot();
        term.extend(now, Duration::from_secs(3600));
        assert!(term.lasts() && term.check().is_ok());
        term.end();
        assert!(matches!(term.check(), Err(StoreError::Fenced(_))));
        term.extend(now, Duration::ZERO);
        assert!(!term.lasts(), "it ended before now");
    }

    /// The monotonic clock stops during a suspend. So a node that slept for minutes answered from leases that
    /// others had taken meanwhile.
    #[test]
    fn regression_a_term_goes_on_while_the_machine_sleeps() {
        static SLEPT: AtomicU64 = AtomicU64::new(0);
        let clock = || base::time::boot().plus(Duration::from_secs(SLEPT.load(Ordering::SeqCst)));
        let term = Term::by(clock);
        term.extend(clock(), Duration::from_secs(60));
        assert!(term.lasts() && term.left() > Duration::from_secs(50));
        SLEPT.store(61, Ordering::SeqCst);
        assert!(!term.lasts() && term.left().is_zero());
        assert!(matches!(term.check(), Err(StoreError::Fenced(_))));
        term.extend(clock(), Duration::from_secs(60));
        assert!(term.lasts(), "it was renewed");
    }
}
