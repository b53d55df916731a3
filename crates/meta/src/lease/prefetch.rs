//! Takes the leases of several directories at once, before they are asked for.
//!
//! A program that lists a directory mostly looks at the directories in it, and then may list them. So their
//! leases and attributes are had together, in two round trips for many directories. Their names are read when
//! they are wanted, or a little before ([`super::ahead`]). What another node has a lease for is left out: it
//! is asked when it is needed, unless it is gone.

use base::Ino;

use super::Core;
use super::acquire::Got;
use super::fetch::Seen;
use super::lend::LENT_END;
use super::row::{Holder, Mode, Row};
use super::state::{Unit, Wanted};
use crate::key::{Key, tags};
use crate::record::Dentry;
use crate::store::{Commit, CommitError, Expect, StoreError};

/// How many directories are had together.
const AT_ONCE: usize = 64;

impl Core {
    /// See [`crate::MetaStore::prefetch`].
    pub(super) fn prefetch(&self, parent: Ino) -> Result<(), StoreError> {
        if !base::thread::may_wait() {
            return Ok(());
        }
        let dirs: Vec<Ino> = {
            let state = self.state.lock();
            let Some(held) = state.units.get(&parent).filter(|held| held.has_names && !held.has_dirs) else {
                return Ok(());
            };
            let names = held.rows.range(Key::dentries(parent, 0).start..).map_while(|(key, value)| {
                (key.tag() == tags::DENTRY).then(|| Dentry::decode(value.as_deref()?).ok())
            });
            names.flatten().filter(Dentry::is_dir).map(|dentry| dentry.ino).collect()
        };
        dirs.chunks(AT_ONCE).try_for_each(|dirs| self.prefetch_some(dirs))?;
        self.state.lock().units.get_mut(&parent).into_iter().for_each(|unit| unit.has_dirs = true);
        Ok(())
    }

    fn prefetch_some(&self, dirs: &[Ino]) -> Result<(), StoreError> {
        self.term.check()?;
        let (dirs, sessions) = {
            let mut state = self.state.lock();
            let is_new = |dir: &&Ino| !state.units.contains_key(*dir) && !state.wanted.contains_key(*dir);
            let dirs: Vec<Ino> = dirs.iter().filter(is_new).copied().collect();
            dirs.iter().for_each(|dir| _ = state.wanted.insert(*dir, Wanted::default()));
            (dirs, state.sessions)
        };
        if dirs.is_empty() {
            return Ok(());
        }
        let got = self.take_free(&dirs).and_then(|mut got| {
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
        loaded.into_iter().for_each(|(dir, loaded)| loaded.install(&mut state, dir, None));
        Ok(())
    }

    /// The holders in these rows whose sessions have ended.
    fn gone_holders(&self, rows: &[Seen], me: Holder) -> Result<Vec<Holder>, StoreError> {
        let rows = rows.iter().filter_map(|seen| Row::decode(&seen.lease()?));
        let mut others: Vec<Holder> = rows.flat_map(|row| row.holders).collect();
        others.retain(|holder| holder.node != me.node);
        if !others.is_empty() {
            let alive = self.nodes.alive()?;
            others.retain(|holder| !alive.contains(holder));
        }
        Ok(others)
    }

    /// Takes the leases that no other node must give back.
    fn take_free(&self, dirs: &[Ino]) -> Result<Vec<(Ino, Got)>, StoreError> {
        let me = self.nodes.me().ok_or_else(super::not_joined)?;
        let (mut commit, mut got) = (Commit::default(), Vec::new());
        let mut rows = self.look_at_rows(dirs)?;
        let gone = self.gone_holders(&rows, me)?;
        if !gone.is_empty() {
            // They may have changed something after the look.
            rows = self.look_at_rows(dirs)?;
        }
        for (dir, seen) in dirs.iter().zip(rows) {
            let mut row = seen.lease().as_deref().and_then(Row::decode);
            // A change of this node whose answer was lost may come in after the look.
            let is_sure = row.as_ref().is_none_or(|row| !row.may_change(me));
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
            let next = Row::joined(row.as_ref(), me, false);
            let lease = next.encode();
            commit.checks.push((Key::lease(*dir), seen.lease().map_or(Expect::Absent, Expect::Is)));
            commit.puts.push((Key::lease(*dir), lease.clone()));
            let (mode, seq, was_free) = (next.mode, next.seq, next.is_free(me));
            got.push((*dir, Got { mode, seq, lease, was_free, seen: is_sure.then_some(seen) }));
        }
        match self.inner.commit(commit) {
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
