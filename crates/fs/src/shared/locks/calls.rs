//! The calls on locks, and what happens to locks without a call.

use std::sync::Arc;

use base::Ino;
use hashbrown::HashSet;
use meta::Key;
use meta::key::tags;
use meta::store::{CommitError, StoreError, Value};
use parking_lot::Mutex;

use super::{Failed, File, STYLES, Seen, Wanted, commit, own_session};
use crate::api::{Lock, LockAnswer, LockKind, LockOwner, LockRange, LockStyle, LockWait};
use crate::errno::{Errno, Error};
use crate::locks::row::{self, Owner};
use crate::shared::waits::Answers;
use crate::shared::{SessionId, Sharing};
use crate::volume::{Core, Volume};

fn owned(lock: &Lock, own: SessionId) -> Lock<Owner> {
    lock.owned_by(Owner { node: own.node, epoch: own.epoch, number: lock.owner.0 })
}

impl File {
    /// # Errors
    /// EIO for an owner whose locks on this file ended with a session of this node. If it unlocks all of the
    /// file, that is the last time.
    fn check_lost(&mut self, lock: &Lock, own: SessionId) -> Result<(), Error> {
        let key = (lock.owner, lock.style);
        if self.held.get(&key).is_none_or(|epoch| *epoch == own.epoch) {
            return Ok(());
        }
        if lock.kind == LockKind::Unlock && lock.range == LockRange::ALL {
            self.held.remove(&key);
        }
        Err(Error::Errno(Errno::EIO))
    }
}

impl Core {
    fn sharing(&self) -> Result<&Sharing, Error> {
        self.options.shared.as_ref().ok_or(Error::Errno(Errno::ENOSYS))
    }

    pub(crate) fn test_lock(&self, ino: Ino, lock: &Lock) -> Result<Option<Lock>, Error> {
        let sharing = self.sharing()?;
        let own = own_session(sharing)?;
        let wanted = owned(lock, own);
        let value = self.parts.store.get(&Key::lock(ino))?;
        loop {
            let table = self.read_locks(ino, value.as_ref(), own)?;
            match table.of(lock.style).conflict(&wanted) {
                Some(held) if self.has_ended(sharing, own, held.owner)? => {}
                held => {
                    return Ok(held.map(|held| {
                        let pid = if held.owner.node == own.node { held.pid } else { 0 };
                        Lock { pid, ..held.owned_by(LockOwner(held.owner.number)) }
                    }));
                }
            }
        }
    }

    pub(crate) fn set_lock(self: &Arc<Core>, ino: Ino, lock: &Lock) -> Result<(), Error> {
        let sharing = self.sharing()?;
        let own = own_session(sharing)?;
        let wanted = owned(lock, own);
        let done = self.with_locks(ino, |file| {
            file.check_lost(lock, own)?;
            let ask = Wanted { lock: &wanted, waits: false };
            let done = self.change_locks(sharing, ino, file, Some(ask), false);
            self.note_failure(ino, file, &wanted, &done);
            Ok::<_, Error>(done)
        })?;
        match done {
            Ok(changed) => {
                changed.granted.send();
                if changed.conflicts { Err(Errno::EAGAIN.into()) } else { Ok(()) }
            }
            // It is released as soon as the database is back.
            Err(Failed::Store(StoreError::Unavailable(_))) if lock.kind == LockKind::Unlock => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    /// Sees to it that a request whose change failed leaves nothing locked.
    fn note_failure<T>(
        self: &Arc<Core>,
        ino: Ino,
        file: &mut File,
        lock: &Lock<Owner>,
        done: &Result<T, Failed>,
    ) {
        if !matches!(done, Err(Failed::Store(_))) {
            return;
        }
        match lock.kind {
            LockKind::Unlock => file.unlocks.push(*lock),
            _ if matches!(file.seen, Seen::Unsure) => file.undo(lock),
            _ => {}
        }
        if file.has_unlocks() {
            self.poll_soon(ino);
        }
    }

    pub(crate) fn wait_lock(self: &Arc<Core>, ino: Ino, lock: &Lock, wait: LockWait, answer: LockAnswer) {
        let mut answer = Some(answer);
        let mut ask = || {
            let sharing = self.sharing()?;
            let own = own_session(sharing)?;
            let wanted = owned(lock, own);
            self.with_locks(ino, |file| {
                file.check_lost(lock, own)?;
                let ask = Wanted { lock: &wanted, waits: true };
                let done = self.change_locks(sharing, ino, file, Some(ask), false);
                self.note_failure(ino, file, &wanted, &done);
                let changed = done?;
                if changed.conflicts {
                    // Before anybody else changes this file, so that no release is missed.
                    answer.take().into_iter().for_each(|answer| {
                        self.fleet_locks.queue.push(ino, wanted, wait, answer);
                    });
                    self.poll_soon(ino);
                }
                Ok::<_, Error>(changed.granted)
            })
        };
        let done: Result<Answers, Error> = ask();
        let result = done.map(Answers::send).map_err(|error| self.answer("lock", ino, error));
        if let Some(answer) = answer {
            answer(result);
        }
    }

    /// Releases all locks of an owner on a file: now, or as soon as that can be done.
    pub(crate) fn release_locks(
        self: &Arc<Core>,
        ino: Ino,
        owner: LockOwner,
        style: LockStyle,
    ) -> Result<(), Error> {
        let sharing = self.sharing()?;
        // Nobody would release what is granted to this owner from now on.
        let over = self.fleet_locks.queue.abandon(ino, owner, style);
        let granted = self.with_locks(ino, |file| {
            // Without a session there are no locks.
            let Ok(own) = own_session(sharing) else { return Answers::default() };
            if file.held.get(&(owner, style)).is_some_and(|epoch| *epoch != own.epoch) {
                file.held.remove(&(owner, style));
                return Answers::default();
            }
            let owner = Owner { node: own.node, epoch: own.epoch, number: owner.0 };
            file.release_later(owner, style);
            match self.change_locks(sharing, ino, file, None, false) {
                Ok(changed) => changed.granted,
                Err(_) => {
                    self.poll_soon(ino);
                    Answers::default()
                }
            }
        });
        over.send();
        granted.send();
        Ok(())
    }

    /// The session in which locks are granted now.
    pub(crate) fn lock_session(&self) -> Option<u64> {
        own_session(self.options.shared.as_ref()?).ok().map(|own| own.epoch)
    }

    /// Whether locks of this owner ended with a session of this node.
    pub(crate) fn has_lost_locks(&self, ino: Ino, owner: LockOwner, style: LockStyle) -> Result<bool, Errno> {
        let Some(epoch) = self.lock_session() else { return Ok(false) };
        let Some(file) = self.fleet_locks.files.lock().get(&ino).cloned() else { return Ok(false) };
        let file = match file.try_lock() {
            Some(file) => file,
            // A call on these locks waits for the database.
            None if !base::thread::may_wait() => return Err(Errno::WAITS),
            None => file.lock(),
        };
        Ok(file.held.get(&(owner, style)).is_some_and(|held| *held != epoch))
    }

    /// Releases all that this node holds, because its mount ended. What fails ends with the session.
    pub(crate) fn release_all_locks(&self) {
        let Ok(sharing) = self.sharing() else { return };
        let files: Vec<Ino> = self.fleet_locks.files.lock().keys().copied().collect();
        for ino in files {
            let done = self.with_locks(ino, |file| {
                for ((owner, style), epoch) in std::mem::take(&mut file.held) {
                    file.release_later(Owner { node: sharing.node, epoch, number: owner.0 }, style);
                }
                self.change_locks(sharing, ino, file, None, false)
            });
            match done {
                Ok(changed) => changed.granted.send(),
                Err(_) => return,
            }
        }
    }

    /// Removes locks of ended sessions from all rows.
    pub(crate) fn sweep_locks(&self, sharing: &Sharing) -> Result<(), StoreError> {
        let own = own_session(sharing)?;
        // Read before the list of sessions, so what is locked meanwhile is not in these rows.
        let rows = self.parts.store.scan(&Key::kind(tags::LOCK), usize::MAX)?;
        for (key, value) in rows {
            let Some((ino, mut table)) = key.as_lock().zip(row::decode(&value).ok()) else { continue };
            let owners: HashSet<Owner> =
                STYLES.iter().flat_map(|style| table.of(*style).iter().map(|held| held.owner)).collect();
            let mut gone = HashSet::new();
            for owner in owners {
                if self.has_ended(sharing, own, owner)? {
                    gone.insert(owner);
                }
            }
            if gone.is_empty() {
                continue;
            }
            STYLES.iter().for_each(|style| table.release(*style, |owner| gone.contains(&owner)));
            let Ok(new) = row::encode(&table) else { continue };
            match self.parts.store.commit(commit(ino, Some(value), new.map(Value::from))) {
                // Somebody else changed the row, and may have removed these locks.
                Ok(()) | Err(CommitError::Conflict { .. }) => {}
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Volume {
    /// Notes that this node's session ended and the node joined again: its locks are gone. Call it after each
    /// such join.
    pub fn joined_again(&self) {
        let core = &self.core;
        let own = core.options.shared.as_ref().and_then(|sharing| own_session(sharing).ok());
        let Some(own) = own else { return };
        core.fleet_locks.queue.fail_old(None, own).send();
        let files: Vec<_> = core.fleet_locks.files.lock().values().cloned().collect();
        // A file that is being changed now is not counted. Its requests notice for themselves.
        let is_lost = |file: &&Arc<Mutex<File>>| {
            file.try_lock().is_some_and(|file| file.held.values().any(|epoch| *epoch != own.epoch))
        };
        let lost = files.iter().filter(is_lost).count();
        if lost > 0 {
            core.report(&format!(
                "the locks of this node ended with its session, on {lost} files: other nodes may hold them now"
            ));
        }
    }
}
