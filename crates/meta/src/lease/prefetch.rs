//! Takes the leases of several directories at once, before they are asked for.
//!
//! A program that lists a directory mostly looks at the directories in it, and then may list them. So their
//! leases and attributes are had together, in two round trips for many directories. Their names are read when
//! they are wanted, or a little before ([`super::ahead`]).
//!
//! A node that has some of these leases for writing is asked for all of them at once. Directories that have
//! changed a moment ago are left to it: it is most likely still at work there, and lends them when they are
//! listed.

use std::time::Duration;

use base::Ino;
use hashbrown::HashMap;

use super::Core;
use super::acquire::Got;
use super::fetch::Seen;
use super::lend::LENT_END;
use super::row::{Holder, Mode, Row};
use super::state::{Unit, Wanted};
use crate::key::Key;
use crate::record::InodeRecord;
use crate::store::{Commit, CommitError, Expect, StoreError};

/// How many directories are had together.
const AT_ONCE: usize = 64;
/// A directory that has changed within this time is left to the node that changes it.
const RECENT: Duration = Duration::from_secs(2);

impl Core {
    /// See [`crate::MetaStore::prefetch`].
    pub(super) fn prefetch(&self, parent: Ino) -> Result<(), StoreError> {
        if !base::thread::may_wait() {
            return Ok(());
        }
        let dirs: Vec<Ino> = {
            let mut state = self.state.lock();
            if state.units.get(&parent).is_none_or(|held| !held.has_names || held.has_dirs) {
                return Ok(());
            }
            let dirs: Vec<Ino> = state.dirs_in(parent).into_iter().map(|(_, dir)| dir).collect();
            if state.reads_below(&dirs) {
                state.units.get_mut(&parent).into_iter().for_each(|unit| unit.has_dirs = true);
                return Ok(());
            }
            dirs
        };
        dirs.chunks(AT_ONCE).try_for_each(|dirs| self.prefetch_some(dirs, None))?;
        self.state.lock().units.get_mut(&parent).into_iter().for_each(|unit| unit.has_dirs = true);
        Ok(())
    }

    /// Takes the leases of directories that this node has none of, and reads their attributes. `names`: those
    /// of directories with at most so many names are read too.
    pub(super) fn prefetch_some(&self, dirs: &[Ino], names: Option<usize>) -> Result<(), StoreError> {
        let (dirs, sessions) = {
            let mut state = self.state.lock();
            // Under the lock: see [`Core::want`].
            self.term.check()?;
            let is_new = |dir: &&Ino| !state.units.contains_key(*dir) && !state.wanted.contains_key(*dir);
            let dirs: Vec<Ino> = dirs.iter().filter(is_new).copied().collect();
            dirs.iter().for_each(|dir| _ = state.wanted.insert(*dir, Wanted::default()));
            (dirs, state.sessions)
        };
        if dirs.is_empty() {
            return Ok(());
        }
        let got = self.take_together(&dirs, names).and_then(|mut got| {
            let seen = got.iter_mut().filter_map(|(dir, got)| Some((*dir, got.seen.take()?)));
            let seen = seen.collect();
            Ok((got, self.load(seen)?))
        });
        let mut state = self.state.lock();
        let recalled = |dir: &Ino| state.wanted.remove(dir).map_or(0, |wanted| wanted.recalled);
        let recalled: Vec<u64> = dirs.iter().map(recalled).collect();
        self.changed.notify_all();
        let (got, loaded) = got?;
        if state.sessions != sessions {
            return Ok(());
        }
        for (dir, got) in got {
            let at = dirs.iter().position(|other| *other == dir);
            if at.and_then(|at| recalled.get(at)).is_some_and(|recalled| got.seq > *recalled) {
                let mut unit = Unit::new(got.mode, got.seq, got.lease);
                // Nothing waits for it.
                (unit.used, unit.was_free, unit.is_bare) = (true, got.was_free, true);
                state.units.insert(dir, unit);
                state.note_leased(dir);
            }
        }
        for (dir, loaded) in loaded {
            if state.units.contains_key(&dir) {
                loaded.install(&mut state, dir, None);
                state.units.get_mut(&dir).into_iter().for_each(|unit| unit.is_bare = !unit.has_names);
            }
        }
        Ok(())
    }

    /// The holders in these rows whose sessions have ended.
    fn gone_holders(&self, rows: &[Seen], me: Holder) -> Result<Vec<Holder>, StoreError> {
        let rows = rows.iter().filter_map(|seen| Row::decode(&seen.lease()?));
        let mut others: Vec<Holder> = rows.flat_map(|row| row.holders).collect();
        others.retain(|holder| holder.node != me.node && self.nodes.may_be_gone(*holder));
        if !others.is_empty() {
            let alive = self.nodes.alive()?;
            others.retain(|holder| !alive.contains(holder));
        }
        Ok(others)
    }

    /// Asks the nodes that have these leases for writing to give them back, each for all of its own at once.
    /// Returns which ones have been given back, with their `seq`.
    fn ask_for(&self, dirs: &[Ino], rows: &[Seen], gone: &[Holder], me: Holder) -> HashMap<Ino, u64> {
        let now = base::time::now().0;
        let is_at_work = |seen: &Seen| {
            let record = seen.inode().and_then(|row| InodeRecord::decode(&row).ok());
            record.is_none_or(|record| (now - record.ctime.0).unsigned_abs() < RECENT.as_nanos())
        };
        let ask = |(dir, seen): (&Ino, &Seen)| {
            let row = Row::decode(&seen.lease()?).filter(|row| row.mode == Mode::Write)?;
            let [holder] = row.holders[..] else { return None };
            let is_other = holder.node != me.node && !gone.contains(&holder);
            (is_other && !is_at_work(seen)).then_some((holder.node, *dir, row.seq))
        };
        let asks: Vec<_> = dirs.iter().zip(rows).filter_map(ask).collect();
        if asks.is_empty() {
            return HashMap::new();
        }
        let given = self.nodes.recall_all(&asks).into_iter().zip(asks);
        given.filter(|(is_given, _)| *is_given).map(|(_, (_, dir, seq))| (dir, seq)).collect()
    }

    /// Takes the leases that are free, and those that other nodes give back. `names`: see
    /// [`Core::prefetch_some`].
    fn take_together(&self, dirs: &[Ino], names: Option<usize>) -> Result<Vec<(Ino, Got)>, StoreError> {
        if !self.nodes.may_take() {
            return Ok(Vec::new());
        }
        let me = self.nodes.me().ok_or_else(super::not_joined)?;
        let (mut commit, mut got) = (Commit::default(), Vec::new());
        let look = || names.map_or_else(|| self.look_at_rows(dirs), |names| self.look_at(dirs, names));
        let mut rows = look()?;
        let gone = self.gone_holders(&rows, me)?;
        let given = self.ask_for(dirs, &rows, &gone, me);
        if !gone.is_empty() || !given.is_empty() {
            // They may have changed something after the look.
            rows = look()?;
        }
        for (dir, seen) in dirs.iter().zip(rows) {
            let mut row = seen.lease().as_deref().and_then(Row::decode);
            // A change of this node whose answer was lost may come in after the look.
            let is_sure = row.as_ref().is_none_or(|row| !row.may_change(me));
            let is_given = row.as_ref().is_some_and(|row| given.get(dir) == Some(&row.seq));
            if let Some(row) = row.as_mut().filter(|_| is_given) {
                row.holders.clear();
            }
            if let Some(row) = &mut row {
                let holders = row.holders.len();
                row.holders.retain(|holder| !gone.contains(holder));
                if row.holders.len() < holders && row.mode == Mode::Write {
                    // See [`Core::take_back_all`].
                    self.state.lock().note_former(*dir, base::time::boot().plus(LENT_END));
                }
            }
            // A contended one admits no lease.
            if row.as_ref().is_some_and(|row| !row.admits(Mode::Read, me)) {
                continue;
            }
            if row.as_ref().is_some_and(|row| row.is_of_former(me)) {
                self.state.lock().note_former(*dir, self.former_end());
            }
            let next = Row::joined(row.as_ref(), me, is_given);
            let lease = next.encode();
            commit.checks.push((Key::lease(*dir), seen.lease().map_or(Expect::Absent, Expect::Is)));
            commit.puts.push((Key::lease(*dir), lease.clone()));
            let (mode, seq, was_free) = (next.mode, next.seq, !is_given && next.is_free(me));
            got.push((*dir, Got { mode, seq, lease, was_free, seen: is_sure.then_some(seen) }));
        }
        match self.replace_leases(commit) {
            Ok(()) => {
                got.iter().for_each(|(dir, got)| self.won(*dir, got.seq));
                Ok(got)
            }
            // Another node was faster with one of them.
            Err(CommitError::Conflict { .. }) => Ok(Vec::new()),
            Err(CommitError::Store(error)) => Err(error),
        }
    }
}
