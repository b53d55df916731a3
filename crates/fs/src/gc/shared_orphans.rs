//! Inodes without a name in a shared volume: they live while any node's kernel refers to them.
//!
//! ```text
//!   every node, before it renews its session:     its hold rows say which nameless inodes it refers to
//!   the node that has the lease, the last node that held one, or, later, the node with the lowest number:
//!                                                 deletes the inodes that nobody holds
//! ```
//!
//! A session that is alive was renewed less than one lease ago, and its hold rows were written before that.
//! An inode that has had no name for two leases can therefore not be found by anybody any more, and each node
//! that refers to it has said so. So it is deleted if it has no hold row then. The commit that deletes it
//! checks that once more. The rows of nodes that have died are removed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Ino, time};
use hashbrown::{HashMap, HashSet};
use meta::key::tags;
use meta::plan::{Op, Refusal};
use meta::store::{CommitError, StoreError};
use meta::{Commit, Expect, Key};

use super::reap_queue::Forgets;
use crate::errno::Error;
use crate::shared::Sharing;
use crate::volume::{Core, Volume};

/// How much longer the first node waits for the node that has the lease.
const LATE: u32 = 4;
/// Rows read at a time.
const BATCH: usize = 4096;
/// How many held inodes one commit is about.
const HOLDS: usize = 1000;
/// How long lookups in progress may delay a renewal.
const FIND: Duration = Duration::from_millis(500);
/// How often the thread looks whether it should end.
const LOOK: Duration = Duration::from_millis(250);

impl Volume {
    /// Says in the names which inodes without a name this node refers to. Call it before each renewal of the
    /// session: what was not said until then may be deleted.
    ///
    /// # Errors
    /// An error of the store.
    pub fn note_held_orphans(&self) -> Result<(), StoreError> {
        self.core.options.shared.as_ref().map_or(Ok(()), |sharing| self.core.note_held(sharing))
    }

    /// Before each renewal the kernel is asked to forget the inodes without a name. A kernel remembers an
    /// inode until it needs the memory or looks for the name again. On a node that has read a file which
    /// another node removes, neither may ever happen, and the file's bytes would stay.
    pub fn asks_the_kernel(&self, kernel: Arc<dyn Forgets>) {
        self.core.reaper.set_kernel(kernel);
    }
}

impl Core {
    fn note_held(&self, sharing: &Sharing) -> Result<(), StoreError> {
        let orphans = self.all_orphans()?;
        let mut unheld = orphans.clone();
        if !self.refs.unheld_within(&mut unheld, FIND) {
            // A lookup waits for another node, and the renewal must not wait for it. Whatever it finds counts
            // as held.
            unheld.clear();
        }
        let unheld: HashSet<Ino> = unheld.into_iter().collect();
        let held: HashSet<Ino> = orphans.into_iter().filter(|ino| !unheld.contains(ino)).collect();
        let said: HashSet<Ino> = self
            .all_holds()?
            .into_iter()
            .filter(|(_, node)| *node == sharing.node)
            .map(|(ino, _)| ino)
            .collect();
        // What it forgets is let go before the next renewal.
        self.reaper.ask(held.iter().copied().collect());
        self.note_holds(held.difference(&said).copied().collect(), sharing.node)?;
        let over: Vec<Ino> = said.difference(&held).copied().collect();
        self.remove_holds(over.iter().map(|ino| Key::hold(*ino, sharing.node)).collect())?;
        self.reaper.let_go(over);
        Ok(())
    }

    /// Says that this node holds inodes without a name. There may be thousands, and the session must be
    /// renewed in time, so many are said at once.
    fn note_holds(&self, mut inos: Vec<Ino>, node: u32) -> Result<(), StoreError> {
        let limit = self.parts.store.commit_limit();
        let most = limit.rows.min(limit.checks).clamp(1, HOLDS);
        while !inos.is_empty() {
            let some: Vec<Ino> = inos.split_off(inos.len().saturating_sub(most));
            let commit = Commit {
                checks: some.iter().map(|ino| (Key::orphan(*ino), Expect::Exists)).collect(),
                puts: some.iter().map(|ino| (Key::hold(*ino, node), [][..].into())).collect(),
                ..Commit::default()
            };
            match self.parts.store.commit(commit) {
                Ok(()) => {}
                Err(CommitError::Conflict { rows, .. }) => {
                    // These got a name again, or are collected.
                    let gone: HashSet<Key> = rows.into_iter().map(|(key, _)| key).collect();
                    let rest = some.iter().filter(|ino| !gone.contains(&Key::orphan(**ino)));
                    if !gone.is_empty() {
                        inos.extend(rest);
                    }
                }
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes rows of nodes that no longer need them.
    pub(super) fn remove_holds(&self, dels: Vec<Key>) -> Result<(), StoreError> {
        if dels.is_empty() {
            return Ok(());
        }
        match self.parts.store.commit(Commit { dels, ..Commit::default() }) {
            Ok(()) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    fn all_orphans(&self) -> Result<Vec<Ino>, StoreError> {
        let (mut from, mut all) = (Ino(0), Vec::new());
        loop {
            let found = self.names.orphans(from, BATCH)?;
            let Some(last) = found.last().filter(|_| !self.stopping()) else { return Ok(all) };
            from = Ino(last.0.saturating_add(1));
            all.extend(found);
        }
    }

    fn all_holds(&self) -> Result<Vec<(Ino, u32)>, StoreError> {
        let rows = self.parts.store.scan(&Key::kind(tags::HOLD), usize::MAX)?;
        Ok(rows.iter().filter_map(|(key, _)| key.as_hold()).collect())
    }

    /// The reaper's thread in a shared volume.
    pub(crate) fn reap_shared(&self, sharing: &Sharing) {
        let mut since: HashMap<Ino, Instant> = HashMap::new();
        let mut mine: HashSet<Ino> = HashSet::new();
        let (mut next, mut complained) = (time::monotonic(), false);
        while !self.stopping() {
            // The rows say more than this queue, which knows only what this node removed.
            self.reaper.clear();
            self.sweep.pause(LOOK);
            if time::monotonic() < next && !self.reaper.has_let_go() {
                continue;
            }
            mine.extend(self.reaper.take_let_go());
            next = time::monotonic() + sharing.lease / 2;
            let done = self.reap_round(sharing, &mut since, &mut mine).and_then(|()| self.trash_round());
            if let Err(error) = &done
                && !complained
            {
                self.report(&format!(
                    "inodes without a name cannot be removed now; this will be repeated: {error}"
                ));
            }
            complained = done.is_err();
        }
    }

    /// `since`: when this node saw first that an inode has no name. `mine`: the inodes that it held until
    /// lately.
    pub(crate) fn reap_round(
        &self,
        sharing: &Sharing,
        since: &mut HashMap<Ino, Instant>,
        mine: &mut HashSet<Ino>,
    ) -> Result<(), Error> {
        let alive = |sharing: &Sharing| -> Result<Vec<u32>, Error> {
            Ok(sharing.others.alive()?.iter().map(|session| session.node).collect())
        };
        let is_first = alive(sharing)?.iter().min() == Some(&sharing.node);
        if is_first {
            // Read before the list of sessions: a node that joins meanwhile is in the list.
            let holds = self.all_holds()?;
            let alive = alive(sharing)?;
            let dead = holds.into_iter().filter(|(_, node)| !alive.contains(node));
            self.remove_holds(dead.map(|(ino, node)| Key::hold(ino, node)).collect())?;
            self.sweep_locks(sharing)?;
            self.remove_batches(sharing)?;
        }
        let (orphans, now) = (self.all_orphans()?, time::monotonic());
        let there: HashSet<Ino> = orphans.iter().copied().collect();
        since.retain(|ino, _| there.contains(ino));
        mine.retain(|ino| there.contains(ino));
        for ino in orphans {
            let first = *since.entry(ino).or_insert(now);
            let age = now.saturating_duration_since(first);
            let reaps = mine.contains(&ino) || self.reaps(sharing, ino, is_first, age);
            if age < 2 * sharing.lease || !reaps {
                continue;
            }
            if self.stopping() {
                return Ok(());
            }
            match self.reap(ino) {
                Ok(()) => {}
                // Another node holds it, and deletes it when it lets it go.
                Err(Error::Refused(Refusal::Busy)) => drop(mine.remove(&ino)),
                Err(Error::Refused(refusal)) => {
                    self.report(&format!("{ino:?} has no name and could not be removed: {refusal}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether this node deletes an inode that nobody holds, and that it did not hold itself. The node that
    /// has the lease does it, because any other would take the lease away from it. But a node that reads the
    /// inode has taken that lease away, so a node that held it deletes it as soon as it lets it go. The first
    /// node deletes what nobody else does.
    fn reaps(&self, sharing: &Sharing, ino: Ino, is_first: bool, age: Duration) -> bool {
        self.names.is_changeable(&Key::inode(ino)) || is_first && age >= 2 * LATE * sharing.lease
    }

    /// Removes what sessions that have ended said of the batches that they wrote.
    pub(crate) fn remove_batches(&self, sharing: &Sharing) -> Result<(), Error> {
        // Read before the list of sessions. Without its row, a session that begins meanwhile would lose all
        // that it acknowledges.
        let rows = self.parts.store.scan(&Key::kind(tags::BATCH), usize::MAX)?;
        let alive: HashSet<(u32, u64)> =
            sharing.others.alive()?.iter().map(|session| (session.node, session.epoch)).collect();
        let ended = |key: &Key| key.as_batch().is_some_and(|session| !alive.contains(&session));
        let dels = rows.into_iter().map(|(key, _)| key).filter(ended).collect();
        Ok(self.remove_holds(dels)?)
    }

    /// The operation that deletes an inode without a name.
    pub(super) fn reap_op(&self, ino: Ino) -> Op<'static> {
        if self.is_shared() { Op::ReapShared { ino } } else { Op::Reap { ino } }
    }
}
