//! Loans: a node that changes a directory again and again lends it to nodes that only read it.
//!
//! The lease stays where it is, and so does its row. The holder stores what it has changed, and answers with
//! the rows that are likely to be needed. Until the loan is over, it changes nothing in the unit. So the
//! borrower may use the loan like a lease for reading. A turn of a file that one node writes and another
//! reads takes two messages and one commit, which begins with the write. Without loans the lease row would
//! change twice in each turn.
//!
//! - **Before the holder changes the unit**, it makes the borrowers give their loans back, by the same
//!   message as for a lease. It waits for a borrower that does not answer until its loan is over by itself
//!   ([`LASTS`]).
//! - **A loan is no row.** A node that takes over the lease of a holder that is gone does not know of its
//!   loans. So it changes nothing for as long as there could be one ([`LENT_END`]).
//! - **No commit rests on a loan**, and the kernel keeps nothing of it.
//! - **The holder's kernel keeps nothing of a lent unit either.** It learns of a change by the reply, and the
//!   borrower may see the change before. So the holder waits until its kernel has the reply, or keeps nothing
//!   from before ([`REPLIED`]), and permits nothing new while it lends the unit.
//! - **A node that changes the unit too does not borrow it** ([`super::borrow`]).

use std::time::{Duration, Instant};

use base::Ino;
use base::time::BootTime;

use super::behind::Upto;
use super::change::Survey;
use super::loan::{Lent, Loan, LoanAsk, Loaned};
use super::row::Mode;
use super::state::State;
use super::{Core, TURN};
use crate::key::{Key, tags};
use crate::record::Dentry;
use crate::store::{Commit, StoreError, Value};

/// How long a loan may be used, from the moment it was asked for.
pub(super) const LASTS: Duration = Duration::from_millis(250);
/// How long after it was given a loan may still be in use, by the clock of another machine.
pub(super) const LENT_END: Duration = Duration::from_millis(350);
/// A unit is lent if it has changed within this time. Otherwise the lease itself is given back.
const RECENT: Duration = Duration::from_secs(1);
/// How long a request for a loan waits at most.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long after a change the kernel has its reply, and the program that asked for it has run.
const REPLIED: Duration = Duration::from_millis(100);
/// When loans were given back for a change, the unit is not lent again before the change, for this long.
const DUE: Duration = Duration::from_millis(10);
/// For this long after loans were given back, the unit is not lent while it is changing.
const BUSY: Duration = Duration::from_millis(5);
/// A unit is not changing if no change has come for this long.
const QUIET: Duration = Duration::from_micros(300);
/// Of a unit with at most this many rows, all are sent.
const ROWS_MAX: usize = 64;
/// The bytes of the rows that are sent.
const BYTES_MAX: usize = 24 << 10;
/// A loan that its borrower gives back by itself is waited for at most so long.
const BACK_MAX: Duration = Duration::from_millis(50);
/// How many inodes are noted that changed last.
const RECENT_INOS: usize = 16;

/// Whether a unit can be lent.
enum Lends {
    Now,
    After(Duration),
    Never,
}

impl State {
    fn lends(&mut self, unit: Ino, now: Instant) -> Lends {
        let since = |when: Instant| now.saturating_duration_since(when);
        let Some(held) = self.units.get(&unit).filter(|_| !self.is_suspect) else { return Lends::Never };
        let Some(changed) = held.changed.map(since).filter(|changed| *changed < RECENT) else {
            return Lends::Never;
        };
        if held.mode != Mode::Write || held.leaving {
            return Lends::Never;
        }
        let lent = self.lent.entry(unit).or_default();
        let called = lent.called.map_or(Duration::MAX, since);
        match held.busy || lent.calling {
            true => Lends::After(TURN),
            // Otherwise the thread that waited for the loans would wait for the next one too.
            false if lent.is_due && called < DUE => Lends::After(Duration::from_millis(1)),
            // Several changes share the cost.
            false if called < BUSY && changed < QUIET => Lends::After(QUIET),
            false => Lends::Now,
        }
    }

    /// Whether this node lends a unit, or did a moment ago.
    pub fn lends_now(&self, unit: Ino, now: Instant) -> bool {
        self.lent.get(&unit).is_some_and(|lent| {
            // A loan is over before that. Those of a former holder do not count: until they are over, this
            // node changes nothing.
            let lately = lent.last.is_some_and(|last| now.saturating_duration_since(last) < RECENT);
            lately || lent.is_changing()
        })
    }

    /// Notes that units have changed. Returns whether another node is likely to ask for it at once.
    pub fn note_changes(&mut self, commit: &Commit, survey: &Survey, now: Instant) -> bool {
        let mut is_wanted = false;
        for unit in survey.writes.iter().chain(survey.born.values()) {
            self.units.get_mut(unit).into_iter().for_each(|held| held.changed = Some(now));
            let Some(lent) = self.lent.get_mut(unit) else { continue };
            (lent.is_due, lent.version) = (false, lent.version + 1);
            is_wanted |= lent.last.is_some_and(|last| now.saturating_duration_since(last) < RECENT);
            for (key, _) in commit.puts.iter().filter(|(key, _)| key.tag() == tags::INODE) {
                let ino = Ino(key.number().unwrap_or_default());
                if lent.recent.front() != Some(&ino) {
                    lent.recent.retain(|other| *other != ino);
                    lent.recent.push_front(ino);
                    lent.recent.truncate(RECENT_INOS);
                }
            }
        }
        // A file that is cut is written next. So the batch waits for what has bytes.
        let has_bytes =
            !commit.fresh.is_empty() || commit.puts.iter().any(|(key, _)| key.tag() == tags::INLINE);
        is_wanted && has_bytes
    }

    /// Another node may have lent this unit before this node got its lease.
    pub fn note_former(&mut self, unit: Ino, until: BootTime) {
        if until > base::time::boot() {
            let given = base::time::monotonic();
            let loan = Loaned { node: None, number: 0, given, returns: false, seq: 0, until };
            self.lent.entry(unit).or_default().loans.push(loan);
        }
    }

    /// Forgets loans that are over.
    pub fn tidy_lent(&mut self, now: Instant) {
        self.lent.retain(|_, lent| {
            let is_old = lent.last.is_none_or(|last| now.saturating_duration_since(last) > 10 * RECENT);
            !is_old || lent.lending > 0 || lent.calling || lent.is_lent()
        });
    }

    /// The rows of a loan, with the extents that changed last, and whether all names are among them.
    fn rows_to_lend(&self, unit: Ino, asked: &[Key]) -> ToLend {
        let Some(held) = self.units.get(&unit) else { return Default::default() };
        let size = |(key, value): (&Key, &Option<Value>)| {
            8 + key.as_bytes().len() + value.as_ref().map_or(0, |value| value.len())
        };
        let recent: Vec<Ino> = self.lent.get(&unit).iter().flat_map(|lent| &lent.recent).copied().collect();
        let of_file = |ino: &Ino| [Key::inode(*ino), Key::inline(*ino), Key::extents(*ino, 0)];
        let mut fresh: Vec<Key> = recent.iter().map(|ino| Key::extents(*ino, 0)).collect();
        let is_small = held.rows.len() <= ROWS_MAX && held.rows.iter().map(size).sum::<usize>() <= BYTES_MAX;
        if is_small {
            fresh.retain(|key| held.rows.contains_key(key));
            let rows = held.rows.iter().map(|(key, value)| (key.clone(), value.clone()));
            return (rows.collect(), fresh, held.has_names);
        }
        let mut keys = vec![Key::inode(unit), Key::dir_changed(unit), Key::subdirs(unit), Key::orphan(unit)];
        for key in asked {
            keys.push(key.clone());
            match key.tag() {
                tags::DENTRY => {
                    let child = held.rows.get(key).and_then(Option::as_deref).map(Dentry::decode);
                    child.and_then(Result::ok).iter().for_each(|child| keys.extend(of_file(&child.ino)));
                }
                _ => keys.extend(key.number().iter().flat_map(|ino| of_file(&Ino(*ino)))),
            }
        }
        keys.extend(recent.iter().flat_map(of_file));
        keys.sort_unstable();
        keys.dedup();
        let (mut rows, mut bytes) = (Vec::new(), 0);
        for key in keys {
            let value = match held.rows.get(&key) {
                Some(value) => value.clone(),
                None if key.tag() == tags::DENTRY && held.has_names => None,
                None => continue,
            };
            bytes += size((&key, &value));
            if bytes > BYTES_MAX {
                break;
            }
            rows.push((key, value));
        }
        fresh.retain(|key| rows.iter().any(|(other, _)| other == key));
        (rows, fresh, false)
    }
}

/// Rows, which of them have changed last, and whether all names are among them.
type ToLend = (Vec<(Key, Option<Value>)>, Vec<Key>, bool);

impl Core {
    /// See [`super::Leases::lend`].
    pub(super) fn lend(&self, to: u32, ask: &LoanAsk) -> Result<Option<Loan>, StoreError> {
        let unit = ask.unit;
        let until = base::time::monotonic() + PATIENCE;
        let upto = {
            let mut state = self.state.lock();
            loop {
                self.term.check()?;
                let now = base::time::monotonic();
                let pause = match state.lends(unit, now) {
                    Lends::Now => break,
                    Lends::After(pause) if now < until && !state.stopping => pause,
                    _ => return Ok(None),
                };
                self.changed.wait_for(&mut state, pause);
            }
            let batch = state.units.get(&unit).map_or(0, |held| held.batch);
            state.lent.entry(unit).or_default().lending += 1;
            Upto { batch, sessions: state.sessions }
        };
        // What another node has seen must not be lost with this one.
        let stored = self.drain(upto, until).and_then(|()| self.settle(unit));
        let mut state = self.state.lock();
        state.lent.entry(unit).or_default().lending -= 1;
        self.changed.notify_all();
        stored?;
        let lasts = LASTS.min(self.term.left());
        // If the lease is being given back, its loans may have been called back already.
        let held =
            state.units.get(&unit).filter(|held| held.mode == Mode::Write && !held.leaving && !held.busy);
        let Some(seq) =
            held.map(|held| held.seq).filter(|_| state.sessions == upto.sessions && !lasts.is_zero())
        else {
            return Ok(None);
        };
        let (rows, fresh, has_names) = state.rows_to_lend(unit, &ask.keys);
        let (now, given) = (base::time::boot(), base::time::monotonic());
        let micros = u64::try_from(base::time::now().0 / 1000).unwrap_or(0);
        // A loan of an earlier process has a lower number.
        state.loans = micros.max(state.loans + 1);
        let number = state.loans;
        let lent = state.lent.entry(unit).or_default();
        lent.loans.retain(|loan| loan.until > now && loan.node != Some(to));
        let until = now.plus(LENT_END);
        lent.loans.push(Loaned { node: Some(to), number, given, returns: ask.returns, seq, until });
        lent.last = Some(given);
        let version = lent.version;
        Ok(Some(Loan { seq, number, version, lasts, has_names, rows, fresh }))
    }

    /// Returns when the kernel keeps nothing of a unit that is older than its last change. The unit is being
    /// lent, so it does not change, and the kernel may keep nothing new.
    fn settle(&self, unit: Ino) -> Result<(), StoreError> {
        // Replies that permit the kernel to keep something have been sent by now.
        drop(self.replies.write());
        let (told, names, changed) = {
            let state = self.state.lock();
            let Some(held) = state.units.get(&unit) else { return Ok(()) };
            (held.told.clone(), held.names_until, held.changed)
        };
        let names = names.zip(changed).map(|(names, changed)| names.min(changed + REPLIED));
        self.kernel_lets_go(&told, names)?;
        if !told.is_empty()
            && let Some(held) = self.state.lock().units.get_mut(&unit)
        {
            held.told.retain(|ino| !told.contains(ino));
        }
        Ok(())
    }

    /// Returns when no loan of this unit is in use. New ones may have been given, unless the lease is being
    /// given back or is gone.
    pub(super) fn call_back(&self, unit: Ino) {
        let loans = {
            let mut state = self.state.lock();
            let Some(lent) = state.lent.get_mut(&unit) else { return };
            // A loan that is given just now would not be among them.
            if lent.is_changing() {
                self.changed.wait_for(&mut state, TURN);
                return;
            }
            if !lent.is_lent() {
                return;
            }
            lent.calling = true;
            lent.loans.clone()
        };
        for loan in loans {
            let is_back = self.comes_back(unit, &loan);
            let left = loan.until.since(base::time::boot());
            if let Some(node) = loan.node.filter(|_| !is_back && !left.is_zero())
                && self.nodes.call_back(node, unit, loan.seq, left).is_ok()
            {
                self.returned(unit, node, loan.number);
            }
        }
        let mut state = self.state.lock();
        while let Some(left) = state.lent.get(&unit).and_then(Lent::left) {
            if state.stopping {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        if let Some(lent) = state.lent.get_mut(&unit) {
            (lent.calling, lent.is_due, lent.called) = (false, true, Some(base::time::monotonic()));
        }
        self.changed.notify_all();
    }

    /// Waits for a loan that its borrower gives back by itself, for a little longer than the last one took.
    /// Then that message is on its way already, and takes half as long as a question. Returns whether it
    /// came.
    fn comes_back(&self, unit: Ino, loan: &Loaned) -> bool {
        let mut state = self.state.lock();
        let is_there = |state: &State| state.lent.get(&unit).is_some_and(|lent| lent.loans.contains(loan));
        let back = state.lent.get(&unit).and_then(|lent| lent.back).filter(|_| loan.returns);
        let until = loan.given + back.map_or(Duration::ZERO, |back| (back + back / 2).min(BACK_MAX));
        while is_there(&state) && !state.stopping && base::time::monotonic() < until {
            self.changed.wait_until(&mut state, until);
        }
        !is_there(&state)
    }

    /// See [`super::Leases::returned`].
    pub(super) fn returned(&self, unit: Ino, from: u32, number: u64) {
        let mut state = self.state.lock();
        let Some(lent) = state.lent.get_mut(&unit) else { return };
        let is_it = |loan: &Loaned| loan.node == Some(from) && loan.number == number;
        let Some(at) = lent.loans.iter().position(is_it) else { return };
        let loan = lent.loans.remove(at);
        if loan.returns {
            lent.back = Some(loan.given.elapsed());
        }
        self.changed.notify_all();
    }

    /// Returns when no loan of this unit is in use, where no new ones can be given. Waits also for what an
    /// earlier process of this node may have lent.
    pub(super) fn call_back_all(&self, unit: Ino) {
        let is_lent = || {
            let state = self.state.lock();
            !state.stopping && state.lent.get(&unit).is_some_and(|lent| lent.calling || lent.is_lent())
        };
        while is_lent() {
            self.call_back(unit);
        }
    }
}
