//! The other side of a loan ([`super::lend`]): a node that reads a unit which another one changes.

use std::time::Duration;

use base::Ino;

use super::Core;
use super::fetch::Loaded;
use super::loan::{Borrowed, LoanAsk};
use super::row::Mode;
use super::state::{State, Unit};
use crate::key::{Key, tags};

/// A node that wanted to change a unit within this time does not borrow it. Otherwise each change would begin
/// with a loan that is of no use.
const WRITES: Duration = Duration::from_secs(1);
/// A loan is given back by itself if no operation has used it for this long.
const QUIET: Duration = Duration::from_micros(150);
/// Once loans of a unit were called back so often when no longer in use, they are given back by themselves.
const RETURNS: i32 = 2;
/// More are not counted.
const SCORE_MAX: i32 = 4;
/// What one return for nothing takes away.
const MISTAKE: i32 = 4;
/// Rows that are read one by one follow one another if they are no further apart than this.
const SINGLES: Duration = Duration::from_millis(250);
/// After so many, all are read.
const SINGLES_MAX: u32 = 16;
/// How many rows are asked for by name.
const ASKED: usize = 8;

impl State {
    /// Notes that a lease is wanted. Returns whether the unit may be borrowed instead, and the node that lent
    /// it last.
    pub fn note_wanted(&mut self, unit: Ino, mode: Mode) -> (bool, Option<u32>) {
        let now = base::time::monotonic();
        if mode == Mode::Write {
            self.borrowing.wrote.of(unit).insert(now);
            return (false, None);
        }
        let may = self
            .borrowing
            .wrote
            .0
            .get(&unit)
            .is_none_or(|last| now.saturating_duration_since(*last) > WRITES);
        (may, self.borrowing.lenders.0.get(&unit).copied().filter(|_| may))
    }

    /// Notes that a row was looked for, of a unit that this node has no lease of.
    pub fn note_asked(&mut self, unit: Ino, key: &Key) {
        let asked = self.borrowing.asked.of(unit).or_default();
        if asked.len() < ASKED && !asked.contains(key) {
            asked.push(key.clone());
        }
    }

    /// Notes that rows of a unit are asked for one by one. Returns whether it is lent, and so many were that
    /// all names and inodes are read instead: a program lists the directory, and a loan ends soon. So what
    /// that takes depends on how often the directory changes meanwhile, and not on how many files are in it.
    pub fn wants_all(&mut self, unit: Ino, keys: &[Key]) -> bool {
        let is_listing = keys.iter().all(|key| matches!(key.tag(), tags::DENTRY | tags::INODE));
        let is_lent = self.units.get(&unit).is_some_and(|held| held.loan.is_some() && !held.has_names);
        if !is_listing || !is_lent || self.is_large(unit) {
            return false;
        }
        let now = base::time::monotonic();
        let (last, count) = self.borrowing.single.of(unit).or_insert((now, 0));
        *count = if now.saturating_duration_since(*last) < SINGLES { *count + 1 } else { 1 };
        *last = now;
        *count > SINGLES_MAX
    }

    /// The holder calls a loan back. If it was not in use any more, the next ones are given back earlier.
    pub fn note_recalled(&mut self, unit: Ino) {
        let Some(held) = self.units.get(&unit).filter(|held| held.loan.is_some()) else { return };
        if held.used && held.last.elapsed() >= QUIET {
            let habit = self.borrowing.habits.of(unit).or_default();
            habit.score = (habit.score + 1).min(SCORE_MAX);
        }
    }

    /// A unit that is to be given back now, or how long until there is one.
    fn next_return(&mut self) -> Result<Ino, Option<Duration>> {
        let State { borrowing, units, .. } = self;
        let mut soonest = None;
        let is_loan = |held: &&Unit| held.loan.is_some_and(|loan| loan.returns) && !held.leaving;
        borrowing.returning.retain(|unit| units.get(unit).filter(is_loan).is_some());
        for unit in &borrowing.returning {
            let Some(held) = units.get(unit) else { continue };
            let quiet = held.last.elapsed();
            if held.used && quiet >= QUIET {
                return Ok(*unit);
            }
            let left = if held.used { QUIET.saturating_sub(quiet) } else { 4 * QUIET };
            let left = left.max(QUIET / 5);
            soonest = Some(soonest.map_or(left, |soonest: Duration| soonest.min(left)));
        }
        Err(soonest)
    }
}

impl Core {
    /// Borrows a unit from a node. True: look again. False: that node does not lend it.
    pub(super) fn borrow(&self, node: u32, unit: Ino, sessions: u64) -> bool {
        let asked = {
            let mut state = self.state.lock();
            state.wanted.get_mut(&unit).into_iter().for_each(|wanted| wanted.borrows = true);
            let keys = state.borrowing.asked.0.remove(&unit).unwrap_or_default();
            let habit = state.borrowing.habits.0.get(&unit);
            LoanAsk { unit, returns: habit.is_some_and(|habit| habit.score >= RETURNS), keys }
        };
        // Its time begins before it is given.
        let began = base::time::boot();
        let lent = self.nodes.borrow(node, &asked);
        let mut state = self.state.lock();
        let recalled = state.wanted.get_mut(&unit).map_or(0, |wanted| {
            wanted.borrows = false;
            wanted.recalled
        });
        let Ok(Some(loan)) = lent else {
            state.borrowing.lenders.0.remove(&unit);
            return false;
        };
        state.borrowing.lenders.of(unit).insert(node);
        if state.sessions != sessions || loan.seq <= recalled {
            return true;
        }
        let habit = state.borrowing.habits.of(unit).or_default();
        if std::mem::replace(&mut habit.version, loan.version) == loan.version && asked.returns {
            // The last one was given back for nothing.
            habit.score -= MISTAKE;
        }
        state.borrowing.count += 1;
        let mut held = Unit::new(Mode::Read, loan.seq, Vec::new().into());
        let until = began.plus(loan.lasts);
        let (from, returns) = ((node, loan.number), asked.returns);
        held.loan = Some(Borrowed { number: state.borrowing.count, until, from, returns });
        if returns {
            state.borrowing.returning.push(unit);
            self.returns.notify_one();
        }
        state.units.insert(unit, held);
        Loaded::new(loan.rows, loan.has_names).install(&mut state, unit, None);
        true
    }

    /// The thread that gives loans back which the holder would call back soon.
    pub(super) fn return_loans(&self) {
        let mut state = self.state.lock();
        while !state.stopping {
            match state.next_return() {
                Ok(unit) => {
                    let loan = state.units.get(&unit).and_then(|held| held.loan);
                    let files = self.end_loan(&mut state, unit);
                    drop(state);
                    self.look_again(&files);
                    self.changed.notify_all();
                    if let Some(Borrowed { from: (node, number), .. }) = loan {
                        self.nodes.give_back(node, unit, number);
                    }
                    state = self.state.lock();
                }
                Err(Some(pause)) => _ = self.returns.wait_for(&mut state, pause),
                Err(None) => self.returns.wait(&mut state),
            }
        }
    }
}
