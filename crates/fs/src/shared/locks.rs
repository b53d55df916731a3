//! Locks that all nodes of a shared volume respect.
//!
//! ```text
//!   calls.rs: set, wait, release ──► change ──► one conditional commit of the row `16 ino`
//!                    │                 ▲
//!                    └── has to wait ──► waits.rs: tries again, after 5 ms at first, up to every 250 ms
//! ```
//!
//! - **A row holds all locks on one file** ([`crate::locks::row`]). Each change is one commit over the value
//!   that was seen. After a conflict it is made again, over the fresh value.
//! - **A lock ends with the session in which it was taken.** The node that meets a lock of an ended session
//!   removes it. The list of sessions is read after the row. So a session that is missing in the list has
//!   ended, and the database refuses what it still sends.
//! - **A node that joins again has lost its locks.** Until their owner closes the file or unlocks all of it,
//!   its lock calls on that file fail with EIO, and so do reads and writes through the files that it locked
//!   (`has_lost_locks`).
//! - **No release is lost.** What cannot be released now is released by the next change of the row, or by the
//!   thread of [`super::waits`].
//! - **A request whose commit has no known outcome** fails with EIO. If its owner held nothing before, the
//!   lock is released again. Otherwise it may have been taken, until the owner closes the file.
//!
//! A lock says nothing about the pages in the kernel. A read(2) after it sees what others wrote before it:
//! the kernel asks for the attributes first. A mapping does not: the program has to read or map again.

mod calls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Ino, time};
use hashbrown::{HashMap, HashSet};
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key};
use parking_lot::Mutex;

use super::waits::{Answers, Queue};
use super::{SessionId, Sharing};
use crate::api::{Lock, LockKind, LockOwner, LockRange, LockStyle, LockWait};
use crate::errno::{Errno, Error};
use crate::locks::row::{self, Owner, Table};
use crate::volume::Core;

/// How long a session counts as alive after it was seen to be.
const KNOWN: Duration = Duration::from_secs(1);
const STYLES: [LockStyle; 2] = [LockStyle::Range, LockStyle::Flock];

/// What this node knows of locks.
#[derive(Default)]
pub(crate) struct FleetLocks {
    files: Mutex<HashMap<Ino, Arc<Mutex<File>>>>,
    sessions: Mutex<Sessions>,
    pub(crate) queue: Queue,
}

#[derive(Default)]
struct Sessions {
    ended: HashSet<SessionId>,
    alive: HashSet<SessionId>,
    seen: Option<Instant>,
}

/// The row of a file, as far as it is known.
#[derive(Default)]
enum Seen {
    /// Nothing of it is known, and this node has no locks in it. Most likely there is no row.
    #[default]
    Nothing,
    /// A commit has no known outcome.
    Unsure,
    Row(Option<Value>),
}

/// What this node knows of one file.
#[derive(Default)]
pub(super) struct File {
    seen: Seen,
    /// The owners that hold locks, each with the epoch of the session in which it took them.
    held: HashMap<(LockOwner, LockStyle), u64>,
    /// What has to be released still.
    unlocks: Vec<Lock<Owner>>,
}

impl File {
    fn is_idle(&self) -> bool {
        // As long as an outcome is unknown, something may be locked that must be released.
        self.held.is_empty() && self.unlocks.is_empty() && !matches!(self.seen, Seen::Unsure)
    }

    pub(super) fn has_unlocks(&self) -> bool {
        !self.unlocks.is_empty()
    }

    /// What this node holds by the row that was just committed or read.
    fn note(&mut self, table: &Table, own: SessionId) {
        self.held.retain(|_, epoch| *epoch != own.epoch);
        for style in STYLES {
            let mine = table.of(style).iter().filter(|held| is_of(&held.owner, own));
            self.held.extend(mine.map(|held| ((LockOwner(held.owner.number), style), own.epoch)));
        }
    }

    fn release_later(&mut self, owner: Owner, style: LockStyle) {
        self.unlocks.push(Lock { owner, style, range: LockRange::ALL, kind: LockKind::Unlock, pid: 0 });
    }

    /// Releases what may have been taken for a request that is over. What its owner held before stays.
    pub(super) fn undo(&mut self, lock: &Lock<Owner>) {
        if !self.held.contains_key(&(LockOwner(lock.owner.number), lock.style)) {
            self.release_later(lock.owner, lock.style);
        }
    }
}

fn is_of(owner: &Owner, session: SessionId) -> bool {
    (owner.node, owner.epoch) == (session.node, session.epoch)
}

/// A request that is part of a change.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    lock: &'a Lock<Owner>,
    /// The request will wait if it conflicts.
    waits: bool,
}

/// What one change did.
struct Changed {
    /// The request conflicts with another owner's lock.
    conflicts: bool,
    /// Requests that waited and are granted.
    granted: Answers,
}

/// Why a change was not made.
pub(super) enum Failed {
    Store(StoreError),
    TooMany,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Store(error)
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Error {
        match failed {
            Failed::Store(error) => error.into(),
            Failed::TooMany => Errno::ENOLCK.into(),
        }
    }
}

/// A try of a change: what the row would be.
struct Draft {
    table: Table,
    conflict: Option<Owner>,
    granted: Vec<LockWait>,
    /// Owners of locks that requests wait for.
    blockers: Vec<Owner>,
}

/// What a try comes to.
enum Step {
    /// The try is good enough. The row is to have this value.
    Good(Option<Value>),
    /// The row has to be read first.
    Look,
    /// A session was found to have ended, so it is tried again.
    Again,
}

fn ended() -> StoreError {
    StoreError::Fenced("the session ended in which the lock was taken".to_owned())
}

/// Returns this node's session.
pub(super) fn own_session(sharing: &Sharing) -> Result<SessionId, StoreError> {
    sharing.others.epoch().map(|epoch| SessionId { node: sharing.node, epoch }).ok_or_else(ended)
}

fn commit(ino: Ino, old: Option<Value>, new: Option<Value>) -> Commit {
    let key = Key::lock(ino);
    let mut commit = Commit::default();
    commit.checks.push((key.clone(), old.map_or(Expect::Absent, Expect::Is)));
    match new {
        Some(new) => commit.puts.push((key, new)),
        None => commit.dels.push(key),
    }
    commit
}

impl Core {
    /// Calls `work` with what is known of a file. One call at a time for each file.
    pub(super) fn with_locks<T>(&self, ino: Ino, work: impl FnOnce(&mut File) -> T) -> T {
        let file = self.fleet_locks.files.lock().entry(ino).or_default().clone();
        let done = work(&mut file.lock());
        let mut files = self.fleet_locks.files.lock();
        // The map has one reference and this call the other: nobody else is about to use it.
        if Arc::strong_count(&file) == 2 && file.lock().is_idle() && !self.fleet_locks.queue.waits_for(ino) {
            files.remove(&ino);
        }
        done
    }

    /// Whether the session of a lock has ended. The lock must have been read before this call.
    fn has_ended(&self, sharing: &Sharing, own: SessionId, owner: Owner) -> Result<bool, StoreError> {
        let session = SessionId { node: owner.node, epoch: owner.epoch };
        if session.node == own.node {
            return Ok(session.epoch != own.epoch);
        }
        let mut sessions = self.fleet_locks.sessions.lock();
        if sessions.ended.contains(&session) {
            return Ok(true);
        }
        let now = time::monotonic();
        let is_new = sessions.seen.is_some_and(|seen| now.saturating_duration_since(seen) < KNOWN);
        if !is_new || !sessions.alive.contains(&session) {
            sessions.alive = sharing.others.alive()?.into_iter().collect();
            sessions.seen = Some(now);
        }
        let ended = !sessions.alive.contains(&session);
        if ended {
            sessions.ended.insert(session);
        }
        Ok(ended)
    }

    fn is_known_to_have_ended(&self, own: SessionId, owner: Owner) -> bool {
        let session = SessionId { node: owner.node, epoch: owner.epoch };
        match session.node == own.node {
            true => session.epoch != own.epoch,
            false => self.fleet_locks.sessions.lock().ended.contains(&session),
        }
    }

    /// The locks of a row, without those that are known to have ended.
    fn read_locks(&self, ino: Ino, value: Option<&Value>, own: SessionId) -> Result<Table, StoreError> {
        let Some(value) = value else { return Ok(Table::default()) };
        let damaged = |_| StoreError::Damaged(format!("the row of locks of {ino:?}"));
        let mut table = row::decode(value).map_err(damaged)?;
        for style in STYLES {
            table.release(style, |owner| self.is_known_to_have_ended(own, owner));
        }
        Ok(table)
    }

    /// What the row would be after everything that is to be done to it now.
    fn draft(
        &self,
        ino: Ino,
        file: &File,
        value: Option<&Value>,
        own: SessionId,
        wanted: Option<Wanted<'_>>,
    ) -> Result<Draft, StoreError> {
        let mut table = self.read_locks(ino, value, own)?;
        for unlock in file.unlocks.iter().filter(|unlock| is_of(&unlock.owner, own)) {
            // Releasing never conflicts.
            let _ = table.set(unlock);
        }
        let mut conflict = None;
        if let Some(Wanted { lock, waits }) = wanted {
            conflict = table.of(lock.style).conflict(lock).map(|held| held.owner);
            match conflict {
                None => drop(table.set(lock)),
                Some(_) if waits && lock.style == LockStyle::Flock => {
                    table.release(LockStyle::Flock, |owner| owner == lock.owner);
                }
                Some(_) => {}
            }
        }
        let (granted, mut blockers) = self.fleet_locks.queue.grant(ino, &mut table, own);
        blockers.extend(conflict);
        Ok(Draft { table, conflict, granted, blockers })
    }

    /// Changes the row of a file: releases what is to be released, does what is wanted, and grants the
    /// requests that wait and no longer conflict. `look`: the row is read first.
    fn change_locks(
        &self,
        sharing: &Sharing,
        ino: Ino,
        file: &mut File,
        wanted: Option<Wanted<'_>>,
        mut look: bool,
    ) -> Result<Changed, Failed> {
        let own = own_session(sharing)?;
        if wanted.is_some_and(|wanted| wanted.lock.owner.epoch != own.epoch) {
            // It waited for another change of this file. A lock of that session would count for no node.
            let why = "the session in which the lock was asked for has ended".to_owned();
            return Err(StoreError::Fenced(why).into());
        }
        let queue = &self.fleet_locks.queue;
        let mut is_fresh = false;
        loop {
            if look || matches!(file.seen, Seen::Unsure) {
                let row = self.parts.store.get(&Key::lock(ino));
                file.seen = row.map(Seen::Row).inspect_err(|_| file.seen = Seen::Unsure)?;
                (look, is_fresh) = (false, true);
            }
            let value = match &file.seen {
                Seen::Row(value) => value.clone(),
                Seen::Nothing | Seen::Unsure => None,
            };
            let draft = self.draft(ino, file, value.as_ref(), own, wanted)?;
            let step = self.step(sharing, &draft, value.as_ref(), is_fresh, wanted, own);
            let new = match step {
                Ok(Step::Good(new)) => new,
                step => {
                    queue.keep(ino, &draft.granted, false);
                    look = matches!(step?, Step::Look);
                    continue;
                }
            };
            if new == value {
                return self.changed(sharing, ino, file, draft, own);
            }
            match self.parts.store.commit(commit(ino, value, new.clone())) {
                Ok(()) => {
                    file.seen = Seen::Row(new);
                    return self.changed(sharing, ino, file, draft, own);
                }
                Err(CommitError::Conflict { rows, .. }) => {
                    queue.keep(ino, &draft.granted, false);
                    let row = rows.into_iter().find(|(key, _)| *key == Key::lock(ino));
                    file.seen = row.map_or(Seen::Unsure, |(_, value)| Seen::Row(value));
                    is_fresh = true;
                }
                Err(CommitError::Store(error)) => {
                    queue.keep(ino, &draft.granted, true);
                    file.seen = Seen::Unsure;
                    return Err(error.into());
                }
            }
        }
    }

    /// Decides about a try. What was seen of the row earlier is good enough to grant what it allows, because
    /// the commit checks it. It takes a fresh look to refuse a request, and to grant one without a commit.
    fn step(
        &self,
        sharing: &Sharing,
        draft: &Draft,
        value: Option<&Value>,
        is_fresh: bool,
        wanted: Option<Wanted<'_>>,
        own: SessionId,
    ) -> Result<Step, Failed> {
        let new = row::encode(&draft.table).map_err(|_| Failed::TooMany)?.map(Value::from);
        if is_fresh {
            for owner in draft.blockers.iter().filter(|owner| owner.node != own.node) {
                if self.has_ended(sharing, own, *owner)? {
                    return Ok(Step::Again);
                }
            }
            return Ok(Step::Good(new));
        }
        let takes = wanted.is_some_and(|wanted| wanted.lock.kind != LockKind::Unlock);
        let look = match draft.conflict {
            Some(owner) => owner.node != own.node,
            None => takes && new.as_ref() == value,
        };
        Ok(if look { Step::Look } else { Step::Good(new) })
    }

    /// A change was made. It counts only if the session is still the one in which it was made.
    fn changed(
        &self,
        sharing: &Sharing,
        ino: Ino,
        file: &mut File,
        draft: Draft,
        own: SessionId,
    ) -> Result<Changed, Failed> {
        file.note(&draft.table, own);
        file.unlocks.clear();
        let is_over = sharing.others.epoch() != Some(own.epoch);
        let result = if is_over { Err(Errno::EIO) } else { Ok(()) };
        let granted = self.fleet_locks.queue.remove(ino, &draft.granted, result);
        if is_over {
            granted.send();
            return Err(ended().into());
        }
        Ok(Changed { conflicts: draft.conflict.is_some(), granted })
    }

    /// Tries a file again, for the thread. Returns the answers, and whether anything is left to release.
    pub(super) fn retry_locks(
        &self,
        sharing: &Sharing,
        ino: Ino,
        undo: &[Lock<Owner>],
    ) -> (Result<Answers, Failed>, bool) {
        self.with_locks(ino, |file| {
            undo.iter().for_each(|lock| file.undo(lock));
            let done = self.change_locks(sharing, ino, file, None, true);
            (done.map(|changed| changed.granted), file.has_unlocks())
        })
    }
}
