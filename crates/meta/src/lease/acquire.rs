//! How this node gets a lease: it replaces the lease row by one that names it, after the nodes that stand in
//! the way have given theirs back.

use std::time::{Duration, Instant};

use base::Ino;
use base::time::BootTime;

use super::fetch::{Loaded, NAMES_MAX, Seen};
use super::lend::LENT_END;
use super::loan::Lent;
use super::row::{Holder, Mode, Row};
use super::state::{State, Unit, Wanted};
use super::{Core, PATIENCE, TURN, not_joined};
use crate::key::Key;
use crate::plan::nothing;
use crate::store::{Commit, CommitError, Expect, StoreError, Value};

/// How long this node waits before it asks a node again that does not give its lease back.
const AGAIN: Duration = Duration::from_millis(200);

/// How many failures are remembered for threads that waited too.
const FAILED_MAX: usize = 1000;

/// A lease row that names this node.
pub(super) struct Got {
    pub mode: Mode,
    pub seq: u64,
    pub lease: Value,
    /// No other node had it.
    pub was_free: bool,
    /// The rows of the unit, if they are known.
    pub seen: Option<Seen>,
}

/// How a lease is wanted.
struct How {
    mode: Mode,
    /// The unit may be borrowed instead.
    borrows: bool,
    /// For writing, if no other node keeps its own.
    alone: bool,
    /// The row of a contended unit that this node may replace: it is quiet.
    quiet: Option<Value>,
    /// How many sessions had ended.
    sessions: u64,
}

/// What taking a lease back from other nodes was like.
struct Crowd {
    began: Instant,
    /// How long the others took to give theirs back.
    waited: Duration,
    /// How often in a row the unit went to another writer.
    turns: u32,
    /// Whether this node wants to change the unit.
    changes: bool,
    /// Whether this node has nothing of the unit.
    is_new: bool,
}

impl Crowd {
    fn new(changes: bool, is_new: bool) -> Crowd {
        Crowd { began: base::time::monotonic(), waited: Duration::ZERO, turns: 0, changes, is_new }
    }
}

/// How a lease is wanted, which node may lend the unit, and the number and row of the lease so far.
type Wants = (How, Option<u32>, Option<(u64, Value)>);

impl Core {
    /// Gets a lease, or waits for another thread that does. The caller looks again.
    pub(super) fn acquire(&self, unit: Ino, mode: Mode, began: Instant) -> Result<(), StoreError> {
        if !self.nodes.may_take() {
            self.changed.wait_for(&mut self.state.lock(), TURN);
            return Ok(());
        }
        let Some((how, lender, before)) = self.want(unit, mode, began)? else { return Ok(()) };
        let sessions = how.sessions;
        if lender.is_some_and(|node| self.borrow(node, unit, sessions)) {
            self.state.lock().wanted.remove(&unit);
            self.changed.notify_all();
            return Ok(());
        }
        let asked = base::time::monotonic();
        let keeps = before.as_ref().map(|(seq, _)| *seq);
        let mut got = self.obtain(unit, how, before.map(|(_, lease)| lease));
        // A lease for reading that grew keeps what was read under it.
        let is_new = |state: &State| keeps.is_none() || state.units.get(&unit).map(|held| held.seq) != keeps;
        let is_fresh = matches!(got, Ok(Some(_))) && is_new(&self.state.lock());
        let loaded = match &mut got {
            Ok(Some(got)) if is_fresh => self.load_one(unit, got.seen.take()),
            _ => Ok(Loaded::default()),
        };
        let mut state = self.state.lock();
        let recalled = state.wanted.remove(&unit).map_or(0, |wanted| wanted.recalled);
        self.changed.notify_all();
        let (got, loaded) = match (got, loaded) {
            (Ok(Some(got)), Ok(loaded)) => (got, loaded),
            // It was borrowed, or is contended.
            (Ok(None), _) => return Ok(()),
            // It is read without.
            (Err(StoreError::NoSpace(_)), _) if mode == Mode::Read => {
                state.note_loose(unit);
                return Ok(());
            }
            (Err(error), _) | (_, Err(error)) => {
                if state.failed.len() >= FAILED_MAX {
                    state.failed.clear();
                }
                state.failed.insert(unit, (base::time::monotonic(), error.to_string()));
                return Err(error);
            }
        };
        if state.sessions != sessions || got.seq <= recalled {
            return Ok(());
        }
        if is_new(&state) {
            if !is_fresh {
                // What was remembered has been given back meanwhile.
                return Ok(());
            }
            let mut held = Unit::new(got.mode, got.seq, got.lease);
            held.cost = held.since.saturating_duration_since(asked);
            held.was_free = got.was_free;
            state.units.insert(unit, held);
            state.note_taken(unit);
            loaded.install(&mut state, unit, None);
            if mode == Mode::Read {
                state.note_visited(unit);
            }
        } else if let Some(held) = state.units.get_mut(&unit) {
            (held.mode, held.seq, held.lease) = (got.mode, got.seq, got.lease);
            (held.since, held.used, held.was_free) = (base::time::monotonic(), false, false);
        }
        Ok(())
    }

    /// Notes that this thread gets a lease: how, which node may lend the unit, and what this node has of it.
    /// `None`: there is nothing to get, or another thread does it.
    fn want(&self, unit: Ino, mode: Mode, began: Instant) -> Result<Option<Wants>, StoreError> {
        let mut state = self.state.lock();
        // Under the lock: after a session has ended, and before the node has joined again, a lease row would
        // name the session that has ended.
        self.term.check()?;
        if let Some((when, why)) = state.failed.get(&unit)
            && *when > began
        {
            return Err(StoreError::no_space_in(why).unwrap_or_else(|| StoreError::Unavailable(why.clone())));
        }
        let is_waiting = state.wanted.contains_key(&unit);
        let mut stale = Vec::new();
        match state.units.get(&unit) {
            _ if is_waiting => return self.wait(&mut state),
            None if mode == Mode::Read && state.is_coming(unit) => return self.wait(&mut state),
            Some(held) if held.leaving || held.busy => return self.wait(&mut state),
            Some(held) if held.mode >= mode && held.lasts() => return Ok(None),
            Some(held) if held.loan.is_some() => stale = self.end_loan(&mut state, unit),
            None if state.contended.is_direct(unit) => return Ok(None),
            _ => {}
        }
        state.wanted.insert(unit, Wanted::default());
        let before = state.units.get(&unit).map(|held| (held.seq, held.lease.clone()));
        let (may_borrow, lender) = state.note_wanted(unit, mode);
        let quiet = state.contended(unit).cloned();
        let lender = lender.filter(|_| quiet.is_none());
        let borrows = may_borrow && lender.is_none();
        let alone = mode == Mode::Write || !may_borrow || quiet.is_some() && state.is_changing(unit);
        let how = How { mode, borrows, alone, quiet, sessions: state.sessions };
        drop(state);
        self.look_again(&stale);
        Ok(Some((how, lender, before)))
    }

    fn wait(&self, state: &mut parking_lot::MutexGuard<'_, State>) -> Result<Option<Wants>, StoreError> {
        self.changed.wait_for(state, TURN);
        Ok(None)
    }

    /// The lease row names this node now. From here on a recall of it waits until the lease was used.
    pub(super) fn won(&self, unit: Ino, seq: u64) {
        self.state.lock().wanted.get_mut(&unit).into_iter().for_each(|wanted| wanted.won = Some(seq));
    }

    /// Looks at a unit. The names of a directory that had too many are not read again.
    fn look_at_one(&self, unit: Ino) -> Result<Option<Seen>, StoreError> {
        if self.state.lock().is_large(unit) {
            return Ok(self.look_at(&[unit], 0)?.pop());
        }
        let seen = self.look_at(&[unit], NAMES_MAX)?.pop();
        if seen.as_ref().is_some_and(|seen| !seen.is_whole()) {
            self.state.lock().note_large(unit);
        }
        Ok(seen)
    }

    fn load_one(&self, unit: Ino, seen: Option<Seen>) -> Result<Loaded, StoreError> {
        let seen = match seen {
            Some(seen) => Some(seen),
            None => self.look_at_one(unit)?,
        };
        let loaded = self.load(seen.map(|seen| (unit, seen)).into_iter().collect())?.pop();
        Ok(loaded.map(|(_, loaded)| loaded).unwrap_or_default())
    }

    /// Replaces the lease row. `lease`: how this node last saw it, if it has a lease already.
    /// `None`: the unit was borrowed instead, or is contended.
    fn obtain(&self, unit: Ino, mut how: How, lease: Option<Value>) -> Result<Option<Got>, StoreError> {
        let (key, mode, mut shared) = (Key::lease(unit), how.mode, false);
        let mut crowd = Crowd::new(how.alone, lease.is_none() && how.quiet.is_none());
        // What is seen before the lease is taken is still so afterwards, if no node had a lease that forbids
        // this one, nor a commit of this node is on its way.
        let mut seen = match lease {
            Some(_) => None,
            None => self.look_at_one(unit)?,
        };
        let mut lease = lease.or_else(|| seen.as_ref().and_then(Seen::lease));
        loop {
            let me = self.nodes.me().ok_or_else(not_joined)?;
            let mut row = lease.as_deref().and_then(Row::decode);
            if let (Some(row), Some(lease)) = (&row, &lease)
                && row.mode == Mode::Contended
            {
                if how.quiet.as_ref() != Some(lease) {
                    self.state.lock().note_contended(unit, lease);
                    return Ok(None);
                }
                // Until the row is replaced, other nodes may change the unit.
                seen = None;
            } else if let Some(row) = row.as_mut().filter(|row| !row.admits(mode, me)) {
                seen = None;
                if let (true, Mode::Write, [holder]) =
                    (std::mem::take(&mut how.borrows), row.mode, &row.holders[..])
                    && self.borrow(holder.node, unit, how.sessions)
                {
                    return Ok(None);
                }
                shared |= self.take_back_all(unit, row, me, &mut crowd)?;
            }
            if row.as_ref().is_some_and(|row| row.is_of_former(me)) {
                self.state.lock().note_former(unit, self.former_end());
            }
            if row.as_ref().is_some_and(|row| row.may_change(me)) {
                seen = None;
            }
            // Where this node has just taken a lease for reading from another node, both want to read.
            let is_free = row.as_ref().is_none_or(|row| row.is_free(me));
            let next = match is_free && self.is_crowded(unit, &crowd) {
                true => Row::contended(row.as_ref()),
                false => Row::joined(row.as_ref(), me, !how.alone && (shared || how.quiet.is_some())),
            };
            let new = next.encode();
            let commit = Commit {
                checks: vec![(key.clone(), lease.map_or(Expect::Absent, Expect::Is))],
                puts: vec![(key.clone(), new.clone())],
                ..Commit::default()
            };
            match self.replace_leases(commit) {
                Ok(()) if next.mode == Mode::Contended => {
                    self.state.lock().note_contended(unit, &new);
                    return Ok(None);
                }
                Ok(()) => {
                    self.won(unit, next.seq);
                    let was_free = !shared && how.quiet.is_none() && next.is_free(me);
                    let (mode, seq) = (next.mode, next.seq);
                    return Ok(Some(Got { mode, seq, lease: new, was_free, seen }));
                }
                Err(CommitError::Conflict { rows, .. }) => {
                    seen = None;
                    lease = rows.into_iter().find(|(other, _)| *other == key).and_then(|(_, value)| value);
                }
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
    }

    /// Makes the holders of a lease give it back, and removes them from the row. Returns whether one of them
    /// is alive.
    fn take_back_all(
        &self,
        unit: Ino,
        row: &mut Row,
        me: Holder,
        crowd: &mut Crowd,
    ) -> Result<bool, StoreError> {
        let asked = base::time::monotonic();
        let mut shared = false;
        for holder in std::mem::take(&mut row.holders) {
            let is_alive = holder.node != me.node && self.take_back(holder, unit, row.seq)?;
            shared |= is_alive;
            if holder.node != me.node && !is_alive && row.mode == Mode::Write {
                // What it has lent is in use for longer than it was there. This node may be asked for the
                // lease as soon as the row is changed, so it is noted before.
                let end = base::time::boot().plus(LENT_END);
                self.state.lock().note_former(unit, end);
            }
        }
        let now = base::time::monotonic();
        crowd.waited += now.saturating_duration_since(asked);
        if row.mode == Mode::Write && shared && crowd.changes {
            crowd.turns = crowd.turns.max(self.state.lock().note_turn(unit, now));
        }
        Ok(shared)
    }

    /// Whether a unit becomes contended instead of leased to this node.
    fn is_crowded(&self, unit: Ino, crowd: &Crowd) -> bool {
        let state = self.state.lock();
        let rules = state.contended.rules;
        // A node that is gone may have lent it. Only this node would wait for that.
        let is_lent = state.lent.get(&unit).is_some_and(Lent::is_lent);
        let own = crowd.began.elapsed().saturating_sub(crowd.waited);
        // A change without a lease takes about as long as the look at the unit, and this commit.
        let is_slow = crowd.waited > own || rules.turns == 0;
        crowd.changes && crowd.is_new && !is_lent && crowd.turns >= rules.turns && is_slow
    }

    /// Until when loans of an earlier process of this node may be in use.
    pub(super) fn former_end(&self) -> BootTime {
        self.started.plus(LENT_END)
    }

    /// Makes another node give back its lease, or waits until its session has ended. Returns whether that
    /// node is alive.
    fn take_back(&self, holder: Holder, unit: Ino, seq: u64) -> Result<bool, StoreError> {
        let mut wishes = false;
        let done = self.wait_for(holder, unit, seq, &mut wishes);
        if wishes {
            // If it stays, a node gives back a lease that no node wants.
            let _ = self.change(Commit { dels: vec![Key::wish(unit)], ..Commit::default() });
        }
        done
    }

    fn wait_for(&self, holder: Holder, unit: Ino, seq: u64, wishes: &mut bool) -> Result<bool, StoreError> {
        let began = base::time::monotonic();
        loop {
            self.term.check()?;
            let Err(why) = self.nodes.recall(holder.node, unit, seq) else { return Ok(true) };
            if let Some(error) = StoreError::no_space_in(&why) {
                return Err(error);
            }
            if !self.nodes.alive()?.contains(&holder) {
                return Ok(false);
            }
            // It may be that only the way to it is cut. Then it hears by the database.
            if !*wishes {
                *wishes = true;
                self.change(Commit { puts: vec![(Key::wish(unit), nothing())], ..Commit::default() })?;
            }
            if self
                .inner
                .get(&Key::lease(unit))?
                .as_deref()
                .and_then(Row::decode)
                .is_none_or(|row| row.seq != seq)
            {
                return Ok(true);
            }
            if began.elapsed() > PATIENCE {
                return Err(StoreError::Unavailable(format!(
                    "the node {} does not give back its lease: {why}",
                    holder.node
                )));
            }
            if self.state.lock().stopping {
                return Err(StoreError::Unavailable("the volume is being closed".to_owned()));
            }
            std::thread::sleep(AGAIN);
        }
    }
}
