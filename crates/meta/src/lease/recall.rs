//! How this node gives a lease back: because another node asks for it, or to save memory.

use std::time::{Duration, Instant};

use base::Ino;

use super::behind::Upto;
use super::row::{Holder, Row};
use super::state::{State, Unit};
use super::{Core, TURN};
use crate::key::{Key, tags};
use crate::store::{Commit, CommitError, Expect, StoreError, Value};

/// A lease that this node has just got is kept until it was used, but no longer than this.
const UNUSED: Duration = Duration::from_millis(50);
/// A lease is kept while rows are read under it, and until they were used, but no longer than this after this
/// node got it.
const READING: Duration = Duration::from_secs(1);
/// A lease that is in use is kept for as long as it took to get it, within these bounds. So several
/// operations share its cost.
const BUSY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// A loan that is on its way is waited for, and a loan is kept until it was used, but no longer than this.
const COMING: Duration = Duration::from_millis(10);
/// A lease is no longer in use if no operation has come for this long.
const QUIET: Duration = Duration::from_micros(500);
/// How long changes may take to be written back for another node.
const PATIENCE: Duration = Duration::from_secs(8);
/// How often this node looks for what it no longer needs.
const EVERY: Duration = Duration::from_secs(1);
/// How often this node looks for wishes of nodes that cannot reach it. The first time is later than the end
/// of what an earlier process has lent.
const WISHES: Duration = Duration::from_secs(3);
/// How many rows are remembered: some 330 bytes each with what belongs to them.
const ROWS_MAX: usize = 300_000;

impl Core {
    /// See [`super::Leases::recall`].
    pub(super) fn recall(&self, unit: Ino, seq: u64) -> Result<(), StoreError> {
        let began = base::time::monotonic();
        let until = began + PATIENCE;
        let mut state = self.state.lock();
        state.note_recalled(unit);
        let is_held = loop {
            let now = base::time::monotonic();
            let wanted = state.wanted.get_mut(&unit);
            // This node got the lease just now and reads the rows. If it gave the lease back unused, and the
            // next node did the same, none would ever get on.
            let is_new = wanted.as_ref().is_some_and(|wanted| wanted.won.is_some_and(|won| won <= seq));
            // The loan that is to be given back is on its way.
            let is_coming = wanted.as_ref().is_some_and(|wanted| wanted.borrows);
            let is_coming = is_coming && now.saturating_duration_since(began) < COMING;
            if !is_new && !is_coming {
                wanted.into_iter().for_each(|wanted| wanted.recalled = wanted.recalled.max(seq));
            }
            let is_read = state.reading.contains_key(&unit);
            let is_kept = state.letting_go > 0;
            // What the engine may lack is sent again first, under this lease.
            let lacks =
                state.lacking.as_ref().map_or(state.is_suspect, |lacking| lacking.contains_key(&unit));
            let pause = match state.units.get_mut(&unit) {
                _ if is_new || lacks => TURN,
                _ if is_coming => COMING,
                // The kernel may keep something of it.
                None if is_kept => TURN,
                None => break false,
                // The other node has seen an older row, and will see that.
                Some(held) if held.seq > seq => return Ok(()),
                Some(held) if held.leaving || held.busy => TURN,
                Some(held) => match keeps_for(held, is_read, now) {
                    Some(pause) => pause,
                    None => {
                        held.leaving = true;
                        if held.loan.is_none() && held.changed.is_some() {
                            state.note_lost(unit, now);
                        }
                        break true;
                    }
                },
            };
            if now > until {
                return Err(StoreError::Unavailable("the lease is in use".to_owned()));
            }
            self.changed.wait_for(&mut state, pause);
        };
        drop(state);
        if !is_held {
            // It may have been lent before it was forgotten, or by an earlier process.
            self.call_back_all(unit);
            std::thread::sleep(self.former_end().since(base::time::boot()));
            return Ok(());
        }
        self.stop_using(unit, until)?;
        self.forget(unit);
        Ok(())
    }

    /// Stops using a lease that is marked as leaving: writes back, and makes the kernel forget.
    fn stop_using(&self, unit: Ino, until: Instant) -> Result<(), StoreError> {
        let (upto, names) = {
            let mut state = self.state.lock();
            state.recalls += 1;
            let Some(held) = state.units.get(&unit) else { return Ok(()) };
            (Upto { batch: held.batch, sessions: state.sessions }, held.names_until)
        };
        let done = self.drain(upto, until).and_then(|()| {
            self.call_back_all(unit);
            // Replies that permit the kernel to keep something have been sent by now.
            drop(self.replies.write());
            let (told, files) = {
                let state = self.state.lock();
                let told = state.units.get(&unit).map(|held| held.told.clone());
                (told.unwrap_or_default(), self.open_files_of(&state, unit))
            };
            self.look_again(&files);
            self.kernel_lets_go(&told, names)
        });
        if done.is_err() {
            // It is used again.
            let mut state = self.state.lock();
            // After another session began, it is another lease.
            if state.sessions == upto.sessions {
                state.units.get_mut(&unit).into_iter().for_each(|held| held.leaving = false);
            }
            self.changed.notify_all();
        }
        done
    }

    fn forget(&self, unit: Ino) {
        self.state.lock().forget(unit);
        self.changed.notify_all();
    }

    /// Gives back the leases that other nodes want and cannot ask for, because the way between them is cut.
    fn grant_wishes(&self) -> Result<(), StoreError> {
        for (key, _) in self.inner.scan(&Key::kind(tags::WISH), usize::MAX)? {
            let unit = Ino(key.number().unwrap_or_default());
            let row = self.inner.get(&Key::lease(unit))?;
            let held = {
                let mut state = self.state.lock();
                if state.wanted.contains_key(&unit) {
                    continue;
                }
                match state.units.get_mut(&unit) {
                    Some(held) if held.leaving || held.busy => continue,
                    Some(held) => {
                        held.leaving = true;
                        true
                    }
                    None => false,
                }
            };
            let is_given = if held {
                self.give_up(unit, false)
            } else {
                // It may have been lent before it was forgotten.
                self.call_back_all(unit);
                self.leave_row(unit, row, false, false)?
            };
            if is_given {
                // The node that wishes it still says so again.
                self.change(Commit { dels: vec![key], ..Commit::default() })?;
            }
        }
        Ok(())
    }

    /// Removes this node from a lease row, which was seen as `row`. `tries`: also from a later one. Returns
    /// whether the row named this node and does not any more. A row that names no node stays, unless
    /// `is_dead`: another node that saw no row may take the lease, and must not miss that there was one
    /// meanwhile.
    fn leave_row(
        &self,
        unit: Ino,
        mut row: Option<Value>,
        tries: bool,
        is_dead: bool,
    ) -> Result<bool, StoreError> {
        let Some(me) = self.nodes.me() else { return Ok(false) };
        loop {
            let Some(seen) = row.as_deref().and_then(Row::decode) else { return Ok(false) };
            let holders: Vec<Holder> =
                seen.holders.iter().filter(|holder| holder.node != me.node).copied().collect();
            if holders.len() == seen.holders.len() {
                return Ok(false);
            }
            let checks = vec![(Key::lease(unit), Expect::Is(row.unwrap_or_default()))];
            let mut commit = Commit { checks, ..Commit::default() };
            if holders.is_empty() && is_dead {
                commit.dels.push(Key::lease(unit));
            } else {
                let rest = Row { mode: seen.mode, seq: Row::next_seq(Some(&seen)), holders };
                commit.puts.push((Key::lease(unit), rest.encode()));
            }
            match self.replace_leases(commit) {
                Ok(()) => return Ok(true),
                Err(CommitError::Conflict { .. }) if !tries => return Ok(false),
                Err(CommitError::Conflict { rows, .. }) => {
                    row = rows.into_iter().next().and_then(|(_, row)| row)
                }
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
    }

    /// A commit that checks nothing.
    pub(super) fn change(&self, commit: Commit) -> Result<(), StoreError> {
        match self.inner.commit(commit) {
            Ok(()) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    /// The thread that gives back leases that are no longer needed, or take too much memory.
    pub(super) fn tidy(&self) {
        let mut looked = base::time::monotonic();
        loop {
            let mut state = self.state.lock();
            if !state.stopping {
                self.changed.wait_for(&mut state, EVERY);
            }
            if state.stopping {
                return;
            }
            state.tidy_lent(base::time::monotonic());
            if state.is_suspect {
                drop(state);
                std::thread::sleep(EVERY / 10);
                continue;
            }
            let mut leaving: Vec<(Ino, bool)> = Vec::new();
            for unit in std::mem::take(&mut state.dead) {
                if let Some(held) = state.units.get_mut(&unit).filter(|held| !held.leaving && !held.busy) {
                    held.leaving = true;
                    leaving.push((unit, true));
                }
            }
            let mut rows: usize = state.units.values().map(|unit| unit.rows.len() + 1).sum();
            // Those without names give little memory back, and a program may be about to list them.
            let rank = |(ino, unit): (&Ino, &Unit)| (unit.is_bare, unit.last, *ino, unit.rows.len() + 1);
            let mut units: Vec<(bool, Instant, Ino, usize)> =
                if rows > ROWS_MAX { state.units.iter().map(rank).collect() } else { Vec::new() };
            units.sort_unstable();
            for (.., ino, has) in units {
                if rows <= ROWS_MAX / 4 * 3 {
                    break;
                }
                if let Some(held) = state.units.get_mut(&ino).filter(|held| !held.leaving && !held.busy) {
                    held.leaving = true;
                    leaving.push((ino, false));
                    rows -= has;
                }
            }
            drop(state);
            leaving.into_iter().for_each(|(unit, is_dead)| _ = self.give_up(unit, is_dead));
            // Without the database there is nothing to tidy.
            let _ = self.tidy_contended();
            let now = base::time::monotonic();
            if self.term.lasts() && now.saturating_duration_since(looked) > WISHES {
                looked = now;
                // If the database cannot be asked, there is another time.
                let _ = self.grant_wishes();
            }
            std::thread::sleep(EVERY / 10);
        }
    }

    /// Gives a lease back that no node asked for, with its row. Call it when it is marked as leaving. Returns
    /// whether it was given back. `is_dead`: nothing is left that the lease could be for.
    fn give_up(&self, unit: Ino, is_dead: bool) -> bool {
        if self.stop_using(unit, base::time::monotonic() + PATIENCE).is_err() {
            return false;
        }
        let held =
            |state: &State| state.units.get(&unit).filter(|held| held.leaving).map(|held| held.lease.clone());
        let lease = held(&self.state.lock());
        // If the row stays, the next node asks this one, which has it no longer.
        let is_given = self.leave_row(unit, lease, true, is_dead).unwrap_or(false);
        self.forget(unit);
        is_given
    }
}

/// How long this node keeps a lease although another one wants it. `is_read`: rows of the unit are being
/// read.
fn keeps_for(held: &Unit, is_read: bool, now: Instant) -> Option<Duration> {
    let age = now.saturating_duration_since(held.since);
    let quiet = now.saturating_duration_since(held.last);
    if held.loan.is_some() {
        return (!held.used && age < COMING).then_some(Duration::from_millis(1));
    }
    if !held.used && age < UNUSED {
        return Some(Duration::from_millis(1));
    }
    if is_read && age < READING {
        return Some(TURN);
    }
    if held.read.is_some_and(|read| now.saturating_duration_since(read) < UNUSED) && age < READING {
        return Some(Duration::from_millis(1));
    }
    let busy = held.cost.clamp(BUSY[0], BUSY[1]);
    (held.used && age < busy && quiet < QUIET).then_some(QUIET)
}
