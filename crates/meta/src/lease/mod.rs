//! Leases: what a node of a shared volume may answer and change in memory.
//!
//! ```text
//!   Names ──► Leases ──► SharedStore ──► engine
//!               │  rows under leases          lease rows, batches of changes
//!               └── Nodes: the other nodes, which give leases back when they are asked
//! ```
//!
//! Without a lease every look at a name is a round trip to the database. With one, this node knows that no
//! other node changes the rows, so it answers reads from memory. With a lease for writing it also decides
//! changes in memory, acknowledges them, and writes them to the engine a little later, in batches. So a
//! directory that only one node uses is as fast as on an exclusive mount.
//!
//! - **What a lease covers** is a unit ([`state`]): a directory with its names and its files, or one inode
//!   that several directories name.
//! - **The holders of a lease** are a row of the engine ([`row`]), which changes by conditional commits
//!   ([`acquire`]). A directory that this node makes is leased to it by the commit that makes it.
//! - **A node that needs a lease of another node asks it** ([`recall`]). The holder stops using it, writes
//!   back, makes its kernel forget, and answers. A holder that does not answer is waited for until its
//!   session has ended.
//! - **A node that changes a unit again and again lends it** to nodes that only read it, and keeps the lease
//!   ([`lend`], [`borrow`]).
//! - **Nothing depends on a lease alone.** Each batch checks the lease rows of its units. A node that was
//!   stopped for long finds them changed, and its batch is refused. It answers nothing once its session may
//!   have ended ([`Term`](crate::shared::Term)).
//! - **Changes that no lease covers** (a commit that checks the row of a pack) are decided by the engine,
//!   while the units wait ([`foreign`]).
//! - **A unit that several nodes change all the time is contended** ([`contend`]). No node has a lease of it:
//!   its rows are read from the engine, and each change is a commit of its own ([`direct`], [`foreign`]).
//! - **An engine that has no space** is read without leases ([`space`]).
//! - **An engine that has forgotten what it confirmed** gets it once more ([`forgot`]).
//! - **A snapshot of the engine lacks what is in no batch yet.** Before one that must lack nothing, every
//!   node writes back ([`everywhere`]).
//! - **What is acknowledged is in a journal on this node's disk before** ([`journal`]), so a process that is
//!   killed loses nothing: the next one stores it first ([`replay`]). The journal is not synced. So a power
//!   cut loses what is in no batch yet. [`MetaStore::flush`] waits until all of it is in the engine. What the
//!   end of a session makes of acknowledged changes is told once to fsync(2) of the file
//!   ([`MetaStore::take_lost`]).
//!
//! Leases for parts of a tree that are recalled by the next user are known as delegations in NFSv4 (RFC 8881,
//! 10.2), and as capabilities in Ceph.

mod acquire;
mod ahead;
mod behind;
mod borrow;
mod change;
mod contend;
mod decide;
mod direct;
mod everywhere;
mod fetch;
mod foreign;
mod forgot;
mod free;
mod journal;
mod lend;
mod loan;
mod moves;
mod own_packs;
mod pages;
mod pinned;
mod prefetch;
mod promise;
mod queue;
mod recall;
mod replay;
mod retake;
mod row;
mod space;
mod state;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::time::BootTime;
use base::{Deadline, Ino};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::key::{Key, KeyRange, tags};
use crate::shared::Term;
use crate::shared::outage::counted;
use crate::store::{Commit, CommitError, Limit, Linked, MetaStore, Rows, Snapshot, StoreError, Value};
use change::{is_covered, is_of_inode};
pub use contend::Contention;
pub use journal::{Journal, Left};
pub use loan::{Loan, LoanAsk};
pub use pinned::in_session;
pub use promise::{KernelCache, Promise};
pub use replay::{OldSession, Replayed, replay};
pub use row::{Holder, Mode};
use state::{Need, State};

/// How long an operation waits for leases in total. Longer than a session lasts, so that the lease of a dead
/// node is taken over before.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a thread waits for another one before it looks again.
const TURN: Duration = Duration::from_millis(100);

/// The other nodes of a volume.
pub trait Nodes: Send + Sync {
    /// Returns this node's session. `None`: the node has not joined.
    fn me(&self) -> Option<Holder>;

    /// The sessions that have not ended.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn alive(&self) -> Result<Vec<Holder>, StoreError>;

    /// Whether a session may have ended. If not, it had not ended a moment ago.
    fn may_be_gone(&self, _: Holder) -> bool {
        true
    }

    /// Whether leases may be taken. Not while another node may have to send once more what the engine has
    /// forgotten, also of leases.
    fn may_take(&self) -> bool {
        true
    }

    /// Whether nothing may be condemned or deleted: another node may have to send once more what refers to
    /// it. This asks nobody. It is known before the engine first answers anything of that kind.
    fn keeps_all(&self) -> bool {
        false
    }

    /// Asks a node to give back its lease on a unit. Returns when it has.
    ///
    /// # Errors
    /// A sentence: it does not answer, or cannot give the lease back now.
    fn recall(&self, node: u32, unit: Ino, seq: u64) -> Result<(), String>;

    /// Asks nodes to give back leases: of a unit, and with this `seq`. Returns when all have answered, and
    /// which of them have given it back.
    fn recall_all(&self, asks: &[(u32, Ino, u64)]) -> Vec<bool> {
        asks.iter().map(|(node, unit, seq)| self.recall(*node, *unit, *seq).is_ok()).collect()
    }

    /// Asks for a loan of this node, which is over by itself after this time.
    ///
    /// # Errors
    /// See [`Nodes::recall`].
    fn call_back(&self, node: u32, unit: Ino, seq: u64, _within: Duration) -> Result<(), String> {
        self.recall(node, unit, seq)
    }

    /// Asks a node to lend a unit ([`Leases::lend`]). `None`: it does not.
    ///
    /// # Errors
    /// A sentence: it does not answer.
    fn borrow(&self, _node: u32, _ask: &LoanAsk) -> Result<Option<Loan>, String> {
        Ok(None)
    }

    /// Gives a loan back to the node that has lent it ([`Leases::returned`]). Nothing depends on it.
    fn give_back(&self, _node: u32, _unit: Ino, _number: u64) {}

    /// A line for the log.
    fn report(&self, line: &str);
}

/// The leases of this node. See the [module](self).
pub struct Leases {
    core: Arc<Core>,
    thread: Mutex<Vec<JoinHandle<()>>>,
}

struct Core {
    inner: Arc<dyn MetaStore>,
    term: Arc<Term>,
    nodes: Arc<dyn Nodes>,
    state: Mutex<State>,
    /// Something has changed for which a thread may wait.
    changed: Condvar,
    /// There is something to write.
    work: Condvar,
    /// There are loans to give back.
    returns: Condvar,
    /// Replies that permit the kernel to keep something are sent under this lock.
    replies: RwLock<()>,
    kernel: RwLock<Option<Arc<dyn KernelCache>>>,
    started: BootTime,
}

impl Leases {
    /// Leases in front of the store of one node, whose session lasts for `term`.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        inner: Arc<dyn MetaStore>,
        term: Arc<Term>,
        nodes: Arc<dyn Nodes>,
    ) -> std::io::Result<Arc<Leases>> {
        Leases::with_journal(inner, term, nodes, None)
    }

    /// Starts leases as [`Leases::start`] does. Changes are in the journal before they are acknowledged, so
    /// that a kill loses none.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn with_journal(
        inner: Arc<dyn MetaStore>,
        term: Arc<Term>,
        nodes: Arc<dyn Nodes>,
        journal: Option<Journal>,
    ) -> std::io::Result<Arc<Leases>> {
        Leases::with_rules(inner, term, nodes, journal, Contention::default())
    }

    /// Starts leases as [`Leases::with_journal`] does. `rules` say when a unit is contended.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn with_rules(
        inner: Arc<dyn MetaStore>,
        term: Arc<Term>,
        nodes: Arc<dyn Nodes>,
        journal: Option<Journal>,
        rules: Contention,
    ) -> std::io::Result<Arc<Leases>> {
        let mut state = State::new(inner.commit_limit());
        (state.journal, state.contended.rules) = (journal, rules);
        let core = Arc::new(Core {
            inner,
            term,
            nodes,
            state: Mutex::new(state),
            changed: Condvar::new(),
            work: Condvar::new(),
            returns: Condvar::new(),
            replies: RwLock::new(()),
            kernel: RwLock::default(),
            started: base::time::boot(),
        });
        let [behind, tidier, returner, reader] = std::array::from_fn(|_| core.clone());
        let threads = vec![
            base::thread::spawn("covey-behind", move || behind.write_behind())?,
            base::thread::spawn("covey-leases", move || tidier.tidy())?,
            base::thread::spawn("covey-loans", move || returner.return_loans())?,
            base::thread::spawn("covey-ahead", move || reader.read_ahead())?,
        ];
        Ok(Arc::new(Leases { core, thread: Mutex::new(threads) }))
    }

    /// Gives a lease back to another node, which saw the lease row with this `seq`. Returns when this node
    /// uses the lease no longer. If the unit has the number 0, nothing is given back: it returns when what
    /// this node has acknowledged is in the engine.
    ///
    /// # Errors
    /// Its changes could not be written back in time. Nothing is given back then.
    pub fn recall(&self, unit: Ino, seq: u64) -> Result<(), StoreError> {
        match unit {
            everywhere::EVERYTHING => self.core.drain_all(),
            unit => self.core.recall(unit, seq),
        }
    }

    /// Lends a unit to the node `to`. It is up to that node to give it back when it is asked to
    /// ([`Leases::recall`]). `None`: this node does not lend it, so ask for the lease.
    ///
    /// # Errors
    /// This node's changes could not be stored in time.
    pub fn lend(&self, to: u32, ask: &LoanAsk) -> Result<Option<Loan>, StoreError> {
        self.core.lend(to, ask)
    }

    /// The node `from` no longer uses the loan with this number.
    pub fn returned(&self, unit: Ino, from: u32, number: u64) {
        self.core.returned(unit, from, number);
    }

    /// Notes that this node's session has ended: nothing that the node remembers may be used any more. Call
    /// it before the node joins again.
    pub fn session_ended(&self) {
        self.core.session_ended();
    }

    /// Whether a directory can be listed from memory, with what a listing asks for beside its names.
    pub fn has_listing(&self, dir: Ino) -> bool {
        let held =
            |state: &mut State| state.held(dir, Mode::Read).is_ok_and(|unit| unit.has_names && unit.has_dirs);
        let mut state = self.core.state.lock();
        self.core.term.lasts() && !state.is_suspect && held(&mut state)
    }

    /// Whether acknowledged changes are not in the engine yet.
    pub fn is_behind(&self) -> bool {
        let state = self.core.state.lock();
        state.queue.done < state.queue.last()
    }

    /// Writes everything back and ends the threads.
    ///
    /// # Errors
    /// Not everything could be written within `patience`.
    pub fn close(&self, patience: Duration) -> Result<(), StoreError> {
        let last = self.core.state.lock().last();
        let done = self.core.drain(last, base::time::monotonic() + patience);
        self.stop();
        done
    }

    fn stop(&self) {
        let mut state = self.core.state.lock();
        state.stopping = true;
        state.ahead.clear();
        state.ahead.wakes.notify_all();
        drop(state);
        self.core.changed.notify_all();
        self.core.work.notify_all();
        self.core.returns.notify_all();
        for thread in self.thread.lock().drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Leases {
    /// Like a kill: what is not written yet is lost.
    fn drop(&mut self) {
        self.stop();
    }
}

impl Core {
    /// Looks at what is remembered, and gets what is missing, until the look finds all. The operation has
    /// begun at `began`.
    fn with<T>(
        &self,
        began: Instant,
        mut look: impl FnMut(&mut State) -> Result<T, Need>,
    ) -> Result<T, StoreError> {
        loop {
            self.term.check()?;
            let mut state = self.state.lock();
            let found = if state.is_suspect { Err(Need::Turn) } else { look(&mut state) };
            drop(state);
            match found {
                Ok(found) => {
                    self.term.check()?;
                    pinned::check(|| self.nodes.me())?;
                    return Ok(found);
                }
                Err(need) => self.meet(need, began)?,
            }
        }
    }

    /// Gets what is missing.
    fn meet(&self, need: Need, began: Instant) -> Result<(), StoreError> {
        if !base::thread::may_wait() {
            // Giving a lease back waits for the replies of such a thread.
            return Err(StoreError::Waits);
        }
        if began.elapsed() > PATIENCE || Deadline::current().is_over() {
            let why = "the leases for this operation could not be had in time";
            return Err(StoreError::Unavailable(why.to_owned()));
        }
        match need {
            Need::Lease(unit, mode) => self.acquire(unit, mode, began),
            Need::Loans(unit) => {
                self.call_back(unit);
                Ok(())
            }
            Need::Turn => {
                let mut state = self.state.lock();
                if !state.stopping {
                    self.changed.wait_for(&mut state, TURN);
                }
                Ok(())
            }
            Need::Homes(inos) => self.find_homes(&inos),
            Need::Rows(unit, keys) => self.fetch(unit, keys),
            Need::Names(dir) => self.fetch_names(dir),
            Need::Whole(unit, ino) => self.fetch_whole(unit, ino),
            Need::Engine(_) | Need::Direct(_) => {
                Err(StoreError::Damaged("a row without a lease was looked for".to_owned()))
            }
        }
    }

    /// Reads from the engine, while this node has the leases of these units, and after its own changes.
    /// `None`: one of them is contended.
    fn through<T>(
        &self,
        units: &[Ino],
        began: Instant,
        ask: impl Fn(&dyn MetaStore) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        loop {
            let _reading = self.reading(units);
            let marks = self.with(began, |state| {
                match units.iter().try_for_each(|unit| state.held(*unit, Mode::Read).map(drop)) {
                    Err(Need::Direct(_)) => Ok(None),
                    held => held.map(|()| Some(self.marks(state, units))),
                }
            })?;
            let Some(marks) = marks else { return Ok(None) };
            self.drain_before(units)?;
            let answer = ask(&*self.inner)?;
            if self.marks(&mut self.state.lock(), units) == marks {
                return Ok(Some(answer));
            }
        }
    }

    fn marks(&self, state: &mut State, units: &[Ino]) -> Marks {
        // Two loans may have the same `seq`.
        let of = |held: &state::Unit| (held.seq, held.loan.map_or(0, |loan| loan.number));
        let seq = |unit: &Ino| state.units.get(unit).filter(|held| !held.leaving && held.lasts()).map(of);
        (state.sessions, units.iter().map(seq).collect())
    }
}

/// How many sessions have ended, and which leases or loans there are.
type Marks = (u64, Vec<Option<(u64, u64)>>);

fn not_joined() -> StoreError {
    StoreError::Fenced("this node has not joined the volume".to_owned())
}

impl MetaStore for Leases {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        if is_of_inode(key) {
            let began = base::time::monotonic();
            let found = self.core.with(began, |state| match state.value(key) {
                Err(Need::Direct(_)) => Ok(None),
                value => value.map(Some),
            })?;
            return match found {
                Some(value) => Ok(value),
                None => Ok(self.core.values(std::slice::from_ref(key))?.pop().flatten()),
            };
        }
        if key.tag() == tags::PACK_LIVE {
            self.core.drain_all()?;
        }
        self.core.inner.get(key)
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        is_of_inode(key) && self.core.term.lasts() && self.core.state.lock().value(key).is_ok()
    }

    fn is_changeable(&self, key: &Key) -> bool {
        if !is_of_inode(key) || !self.core.term.lasts() {
            return false;
        }
        let mut state = self.core.state.lock();
        if behind::is_late(&state.queue) || state.journal.as_ref().is_some_and(Journal::is_broken) {
            return false;
        }
        let Ok(Some(unit)) = state.unit_of(key) else { return false };
        state.held(unit, Mode::Write).is_ok()
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        let (covered, others): (Vec<Key>, Vec<Key>) = keys.iter().cloned().partition(is_of_inode);
        if others.is_empty() {
            return self.core.values(keys);
        }
        if others.iter().any(|key| key.tag() == tags::PACK_LIVE) {
            self.core.drain_all()?;
        }
        let mut others = self.core.inner.get_many(&others)?.into_iter();
        let mut covered = self.core.values(&covered)?.into_iter();
        let next = |key: &Key| if is_of_inode(key) { covered.next() } else { others.next() }.flatten();
        Ok(keys.iter().map(next).collect())
    }

    fn peek(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        self.core.inner.get_many(keys)
    }

    fn are_free(&self, inos: &[Ino], quiet: Duration) -> Result<Vec<bool>, StoreError> {
        let here = |ino: &Ino| self.is_changeable(&Key::inode(*ino));
        self.core.are_free(inos, &here, quiet)
    }

    fn get_linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        self.core.linked(from, also, tags)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        let began = base::time::monotonic();
        loop {
            let found = self.core.with(began, |state| match state.range(range, limit) {
                Err(need @ (Need::Engine(_) | Need::Direct(_))) => Ok(Err(need)),
                rows => rows.map(Ok),
            })?;
            let rows = match found {
                Ok(rows) => Some(rows),
                Err(Need::Direct(unit)) => self.core.range_direct(unit, range, limit)?,
                // Which inodes have no name is asked before each renewal of the session, so it must not wait
                // for changes that are under way. The others are in no batch. Without what has no space, what
                // statfs(2) tells is nearly right.
                Err(_)
                    if matches!(
                        range.start.tag(),
                        tags::ORPHAN | tags::HOLD | tags::LOCK | tags::BATCH | tags::CONDEMNED | tags::DOOMED
                    ) || range.start.tag() == tags::VOLUME && self.core.lacks_space() =>
                {
                    Some(self.core.inner.scan(range, limit)?)
                }
                Err(Need::Engine(units)) => {
                    self.core.through(&units, began, |engine| engine.scan(range, limit))?
                }
                Err(_) => None,
            };
            if let Some(rows) = rows {
                return Ok(rows);
            }
        }
    }

    fn prefetch(&self, parent: Ino) -> Result<(), StoreError> {
        self.core.prefetch(parent)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        if is_covered(&commit) {
            return self.core.commit(&commit);
        }
        let keys = || commit.puts.iter().map(|(key, _)| key).chain(&commit.dels);
        let deletes = keys().any(|key| matches!(key.tag(), tags::CONDEMNED | tags::DOOMED));
        if deletes && self.core.nodes.keeps_all() {
            // It rests on what the engine has just told.
            let why = "the database has begun anew, and may lack changes that nodes send to it again";
            return Err(StoreError::Unavailable(why.to_owned()).into());
        }
        let noted = keys().any(|key| key.tag() == tags::PACK).then(|| commit.clone());
        counted(self.core.inner.commit(commit))?;
        noted.iter().for_each(|commit| self.core.state.lock().own_packs.note(commit));
        Ok(())
    }

    fn commit_limit(&self) -> Limit {
        self.core.inner.commit_limit()
    }

    /// Everything that was acknowledged is in the engine when this returns.
    fn flush(&self) -> Result<(), StoreError> {
        self.core.drain_all()?;
        self.core.inner.flush()
    }

    fn take_lost(&self, ino: Ino) -> bool {
        self.core.state.lock().lost.remove(&ino)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.core.drain_all()?;
        self.core.inner.snapshot()
    }
}
