//! Units that several nodes change all the time: no node has a lease of them.
//!
//! Where a lease goes from writer to writer, each change may wait for the turns of all other nodes. So such a
//! unit becomes *contended*: its lease row says so, and names no node.
//!
//! **What is always true of a contended unit**: no node remembers rows of it, has changes of it that are not
//! in the engine, has lent it, or lets its kernel keep anything of it. So every node may read its rows from
//! the engine, if it finds the lease row beside them unchanged, and may change them by a commit that checks
//! the lease row ([`super::direct`]).
//!
//! - **Into it**: a node gets the lease for a change, after all others have given theirs back. If it lost the
//!   unit to another writer several times in a row, it writes the row of a contended unit instead
//!   ([`super::acquire`]). Readers are not counted: they borrow ([`super::lend`]).
//! - **Out of it**: a node that has used the unit often, and has seen no change of another node for some
//!   time, replaces the row by its lease. From then on the commits of the others fail, because they check the
//!   row, and they look again. What this node reads under its lease it reads afterwards: until the row was
//!   replaced, others could change the unit.
//!
//! Whether another node changes the unit is a guess, by the row with the time of the directory's last change.
//! A wrong guess costs time and is never wrong about rows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::Ino;
use hashbrown::HashMap;

use super::Core;
use super::loan::Notes;
use super::row::Row;
use super::state::State;
use crate::key::Key;
use crate::record::decode_u64;
use crate::store::{Commit, Expect, StoreError, Value};

/// Turns that are further apart than this do not follow one another.
const TURNS: Duration = Duration::from_secs(1);
/// How often a node uses a contended unit before it takes a lease of it.
const USES: u32 = 8;
/// A unit that became contended again so soon after this node took the lease has to be quiet for longer.
const AGAIN: Duration = Duration::from_secs(60);
/// How often that time is doubled.
const DOUBLED: u32 = 5;
/// How many units are noted as contended. If there are more, all are looked at again.
const NOTED: usize = 4096;
/// How many of this node's own changes are told from those of other nodes.
const OWN: usize = 64;

/// When a unit becomes contended, and when it is leased again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contention {
    /// How often a node loses the lease of a unit to another writer, one time soon after the other, before it
    /// makes the unit contended. 0: whenever it wants to change the unit.
    pub turns: u32,
    /// For how long no other node may have changed a contended unit before this node takes a lease of it.
    pub quiet: Duration,
}

impl Default for Contention {
    fn default() -> Contention {
        Contention { turns: 4, quiet: Duration::from_secs(2) }
    }
}

/// How a unit went from writer to writer.
#[derive(Default)]
pub(super) struct Turns {
    count: u32,
    last: Option<Instant>,
    /// When this node had changed it and gave it back.
    lost: Option<Instant>,
}

/// A unit that this node knows to be contended.
struct Noted {
    /// The lease row.
    row: Value,
    /// Since when only this node changes it, as far as is known, and how often it has used and changed it.
    since: Instant,
    uses: u32,
    changes: u32,
    /// How long that has to last.
    quiet: Duration,
    /// The time of the directory's last change, as it was seen last.
    seen: Option<u64>,
    /// The times that this node's commits gave it.
    own: VecDeque<u64>,
}

/// What this node knows of contended units.
#[derive(Default)]
pub(super) struct Contended {
    pub rules: Contention,
    noted: HashMap<Ino, Noted>,
    turns: Notes<Turns>,
    /// When this node took leases of contended units, and how often in a row.
    taken: Notes<(Instant, u32)>,
    /// Contended directories of which nothing may be left.
    dead: Vec<Ino>,
}

impl Noted {
    fn is_quiet(&self) -> bool {
        self.uses >= USES && self.since.elapsed() >= self.quiet
    }
}

impl Contended {
    /// Whether a unit is to be used without a lease.
    pub fn is_direct(&self, unit: Ino) -> bool {
        self.noted.get(&unit).is_some_and(|noted| !noted.is_quiet())
    }
}

impl State {
    /// Notes that this node had changed the unit, and gives it back because another one asks.
    pub fn note_lost(&mut self, unit: Ino, now: Instant) {
        self.contended.turns.of(unit).or_default().lost = Some(now);
    }

    /// Notes that this node wants to change a unit, and another one has the lease for writing. Returns how
    /// often in a row the unit went from this node to another writer.
    pub fn note_turn(&mut self, unit: Ino, now: Instant) -> u32 {
        let turns = self.contended.turns.of(unit).or_default();
        let is_soon = |when: Instant| now.saturating_duration_since(when) < TURNS;
        if turns.lost.take().is_none_or(|lost| !is_soon(lost)) {
            return 0;
        }
        turns.count = if turns.last.is_some_and(is_soon) { turns.count + 1 } else { 1 };
        turns.last = Some(now);
        turns.count
    }

    /// The lease row of a unit that is contended, as far as is known. `None`: it needs a lease.
    pub fn contended(&self, unit: Ino) -> Option<&Value> {
        self.contended.noted.get(&unit).map(|noted| &noted.row)
    }

    /// Whether this node changes it.
    pub fn is_changing(&self, unit: Ino) -> bool {
        self.contended.noted.get(&unit).is_some_and(|noted| noted.changes > 0)
    }

    /// The unit's lease row is this one, which says that it is contended.
    pub fn note_contended(&mut self, unit: Ino, row: &Value) {
        let Contended { rules, noted, taken, .. } = &mut self.contended;
        if noted.get(&unit).is_some_and(|noted| noted.row == *row) {
            return;
        }
        if noted.len() >= NOTED {
            noted.clear();
        }
        let times =
            taken.0.get(&unit).filter(|(when, _)| when.elapsed() < AGAIN).map_or(0, |(_, times)| *times);
        let quiet = rules.quiet * (1 << times.min(DOUBLED));
        let (row, since) = (row.clone(), base::time::monotonic());
        let (uses, changes, seen, own) = (0, 0, None, VecDeque::new());
        noted.insert(unit, Noted { row, since, uses, changes, quiet, seen, own });
    }

    /// Notes that this node has a lease of the unit now.
    pub fn note_taken(&mut self, unit: Ino) {
        if self.contended.noted.remove(&unit).is_none() {
            return;
        }
        let now = base::time::monotonic();
        let (when, times) = self.contended.taken.of(unit).or_insert((now, 0)).to_owned();
        let times = if now.saturating_duration_since(when) < AGAIN { times + 1 } else { 1 };
        self.contended.taken.of(unit).insert((now, times));
    }

    /// Compares the lease row of a unit that was read as contended with the one that is there. False: it is
    /// not contended any more, or is so again.
    pub fn is_still(&mut self, unit: Ino, before: &Value, now: Option<&Value>) -> bool {
        if now == Some(before) {
            return true;
        }
        match now.filter(|row| Row::is_contended(row)) {
            Some(row) => self.note_contended(unit, row),
            // Another thread may have noted a later row.
            None if self.contended(unit) == Some(before) => _ = self.contended.noted.remove(&unit),
            None => {}
        }
        false
    }

    /// The unit is not contended after all.
    pub fn note_leased(&mut self, unit: Ino) {
        self.contended.noted.remove(&unit);
    }

    /// Notes that this node has read rows of a contended unit, and beside them the time of its last change.
    pub fn note_use(&mut self, unit: Ino, changed: Option<&Value>) {
        let Some(noted) = self.contended.noted.get_mut(&unit) else { return };
        let changed = decode_u64(changed.map(|value| &**value)).unwrap_or(0);
        noted.uses = noted.uses.saturating_add(1);
        let before = noted.seen.replace(changed);
        if before.is_some_and(|before| before != changed) && !noted.own.contains(&changed) {
            (noted.since, noted.uses, noted.changes) = (base::time::monotonic(), 0, 0);
        }
    }

    /// Notes that this node is about to change a contended unit.
    pub fn note_direct(&mut self, unit: Ino, commit: &Commit) {
        let Some(noted) = self.contended.noted.get_mut(&unit) else { return };
        (noted.uses, noted.changes) = (noted.uses.saturating_add(1), noted.changes.saturating_add(1));
        let key = Key::dir_changed(unit);
        for (_, to) in commit.maxs.iter().filter(|(other, _)| *other == key) {
            noted.own.push_front(*to);
            noted.own.truncate(OWN);
        }
    }

    /// A directory that has lost its last row may leave its lease row behind.
    pub fn note_dead_direct(&mut self, unit: Ino) {
        self.contended.dead.push(unit);
    }

    /// Forgets what is contended: the session has ended.
    pub fn forget_contended(&mut self) {
        self.contended.noted.clear();
    }
}

impl Core {
    /// Removes the lease rows of contended directories that are no more.
    pub(super) fn tidy_contended(&self) -> Result<(), StoreError> {
        let dead = std::mem::take(&mut self.state.lock().contended.dead);
        for unit in dead {
            let lease = Key::lease(unit);
            let Some(row) = self.inner.get(&lease)?.filter(|row| Row::is_contended(row)) else { continue };
            let gone = [Key::inode(unit), Key::orphan(unit), Key::trash(unit)];
            let mut checks = vec![(lease.clone(), Expect::Is(row))];
            checks.extend(gone.map(|key| (key, Expect::Absent)));
            self.change(Commit { checks, dels: vec![lease], ..Commit::default() })?;
            self.state.lock().note_leased(unit);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Mode;
    use super::*;
    use crate::record::encode_u64;

    fn times(time: u64) -> Commit {
        Commit { maxs: vec![(Key::dir_changed(Ino(7)), time)], ..Commit::default() }
    }

    #[test]
    fn only_turns_that_follow_one_another_count() {
        let (mut state, start, unit) = (State::default(), base::time::monotonic(), Ino(7));
        let at = |ms: u64| start + Duration::from_millis(ms);
        assert_eq!(state.note_turn(unit, at(0)), 0, "it was never lost");
        for turn in 1..4u64 {
            state.note_lost(unit, at(100 * turn));
            assert_eq!(state.note_turn(unit, at(100 * turn + 50)), turn as u32);
        }
        assert_eq!(state.note_turn(unit, at(360)), 0, "it was not lost since");
        state.note_lost(unit, at(5_000));
        assert_eq!(state.note_turn(unit, at(5_050)), 1, "the others are long ago");
        state.note_lost(unit, at(6_000));
        assert_eq!(state.note_turn(unit, at(9_000)), 0, "this node did not want it for long");
    }

    #[test]
    fn what_only_this_node_changes_becomes_quiet() {
        let (mut state, unit) = (State::default(), Ino(7));
        state.contended.rules.quiet = Duration::ZERO;
        let row = |seq| Row { mode: Mode::Contended, seq, holders: Vec::new() }.encode();
        state.note_contended(unit, &row(1));
        state.note_use(unit, Some(&encode_u64(50)));
        for time in 51..60 {
            assert!(state.contended.is_direct(unit) || time > 54);
            state.note_direct(unit, &times(time));
            state.note_use(unit, Some(&encode_u64(time)));
        }
        assert!(!state.contended.is_direct(unit) && state.is_changing(unit));
        state.note_use(unit, Some(&encode_u64(1_000)));
        assert!(state.contended.is_direct(unit), "another node has changed it");
        assert!(!state.is_changing(unit));
        assert!(state.is_still(unit, &row(1), Some(&row(1))));
        assert!(!state.is_still(unit, &row(1), Some(&row(2))));
        assert_eq!(state.contended(unit), Some(&row(2)), "it is contended again");
        assert!(!state.is_still(unit, &row(1), None));
        assert_eq!(state.contended(unit), Some(&row(2)), "the later row is kept");
        assert!(!state.is_still(unit, &row(2), None));
        assert_eq!(state.contended(unit), None);
    }

    #[test]
    fn what_becomes_contended_again_has_to_be_quiet_for_longer() {
        let (mut state, unit) = (State::default(), Ino(7));
        let second = Duration::from_secs(1);
        state.contended.rules.quiet = second;
        let row = |seq| Row { mode: Mode::Contended, seq, holders: Vec::new() }.encode();
        for times in 0..9 {
            state.note_contended(unit, &row(times));
            assert_eq!(state.contended.noted[&unit].quiet, second * (1 << times.min(5)));
            state.note_taken(unit);
        }
    }
}
