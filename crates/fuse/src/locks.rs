//! Locks on their way to the filesystem: who owns them, and which requests wait.
//!
//! **Owners.** The kernel names an owner by a number that it gives to another owner later: a process (POSIX
//! locks) or an open file (flock, OFD locks). RELEASE, which ends the locks of an open file, arrives after
//! close(2) has returned. By then the same number may lock the same file for its next owner. So the
//! filesystem sees numbers of our own, which are never used twice. A number ends when FLUSH or RELEASE
//! arrives, before the locks are released. If it ends while a request of it is served, the request ends what
//! it got itself.
//!
//! - POSIX locks end with FLUSH: with the first descriptor of the file that their process closes.
//! - flock and OFD locks end with RELEASE. The request for an OFD lock looks like that for a POSIX lock, so
//!   RELEASE ends all owners that locked through the open file and had no FLUSH. What remains: if one thread
//!   takes the RELEASE from the kernel and stops there, while another thread already serves an OFD lock of
//!   the next owner with the same number, that lock ends too.
//!
//! **Requests that wait** (SETLKW) wait outside of [`defer`](crate::defer): without a deadline, and without a
//! thread. The filesystem calls back when the lock is granted. INTERRUPT withdraws the request, for whatever
//! signal, and the program sees EINTR or the kernel repeats the request, as on a disk. INTERRUPT can arrive
//! before the request itself, because another thread or another queue brings it. So unknown numbers are
//! remembered for a while. A forced unmount answers them EIO. When the mount ends, the filesystem is told to
//! forget them.
//!
//! Over io_uring a request holds its ring entry while it waits, and the request that would release the lock
//! needs an entry of the same ring. So only half of a ring's entries may wait for locks. A further request
//! gets ENOLCK.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Ino;
use fs::Errno;
use fs::api::{Lock, LockOwner, LockStyle, LockWait};
use parking_lot::Mutex;

use crate::abi::ops::LockRequest;

/// The most open files through which owners may have locked, each counted once per owner. A guest's kernel
/// may lie, and this bounds the table.
const HANDLES_MOST: usize = 1 << 18;
/// The most INTERRUPTs that are remembered for requests that have not arrived.
const EARLY_MOST: usize = 256;

/// How the kernel names an owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// By its number, for a process or an OFD lock.
    Number(u64),
    /// By our number of the open file, for a flock.
    Handle(u64),
}

impl Key {
    fn of(lock: &LockRequest) -> Key {
        match lock.style {
            LockStyle::Range => Key::Number(lock.owner),
            LockStyle::Flock => Key::Handle(lock.handle),
        }
    }

    fn style(self) -> LockStyle {
        match self {
            Key::Number(_) => LockStyle::Range,
            Key::Handle(_) => LockStyle::Flock,
        }
    }
}

/// All locks of one owner and style on one file: those that end, or may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) ino: Ino,
    pub(crate) owner: LockOwner,
    pub(crate) style: LockStyle,
}

/// An owner that may hold locks.
struct Known {
    /// Our number.
    owner: LockOwner,
    /// The open files through which it locked.
    handles: Vec<u64>,
    /// The session in which it held its locks for certain ([`Filesystem::lock_session`]).
    ///
    /// [`Filesystem::lock_session`]: fs::api::Filesystem::lock_session
    session: Option<u64>,
}

/// The owners that may hold locks.
#[derive(Default)]
struct Owners {
    last: u64,
    known: HashMap<(Ino, Key), Known>,
    by_handle: HashMap<u64, Vec<(Ino, Key)>>,
    /// The open files of all owners.
    handles: usize,
}

impl Owners {
    fn number(&mut self, ino: Ino, lock: &LockRequest, session: Option<u64>) -> Result<LockOwner, Errno> {
        if self.handles >= HANDLES_MOST {
            return Err(Errno::ENOLCK);
        }
        let key = (ino, Key::of(lock));
        let known = self.known.entry(key).or_insert_with(|| {
            self.last += 1;
            Known { owner: LockOwner(self.last), handles: Vec::new(), session }
        });
        if !known.handles.contains(&lock.handle) {
            known.handles.push(lock.handle);
            self.handles += 1;
            self.by_handle.entry(lock.handle).or_default().push(key);
        }
        Ok(known.owner)
    }

    fn end(&mut self, key: (Ino, Key)) -> Option<Ended> {
        let Known { owner, handles, .. } = self.known.remove(&key)?;
        self.handles -= handles.len();
        for handle in handles {
            if let Some(keys) = self.by_handle.get_mut(&handle) {
                keys.retain(|other| *other != key);
                if keys.is_empty() {
                    self.by_handle.remove(&handle);
                }
            }
        }
        Some(Ended { ino: key.0, owner, style: key.1.style() })
    }
}

/// What an INTERRUPT did.
pub(crate) enum Interrupted<R> {
    /// No lock request of this number waits.
    Unknown,
    /// The filesystem has not seen the request: reply.
    Queued(R),
    /// The filesystem must withdraw the request.
    Begun(LockWait),
    /// The thread that begins the request withdraws it.
    Noted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    Beginning { interrupted: bool },
    Begun,
}

struct Wait<R> {
    id: LockWait,
    lane: usize,
    stage: Stage,
    reply: R,
}

/// The requests that wait for a lock. `R` is the right to reply to one.
pub(crate) struct Waits<R> {
    state: Mutex<State<R>>,
    /// The most requests that may wait per lane.
    most: AtomicUsize,
}

struct State<R> {
    last: u64,
    /// By the number of the request.
    waits: HashMap<u64, Wait<R>>,
    early: VecDeque<u64>,
}

impl<R> Default for Waits<R> {
    fn default() -> Waits<R> {
        let state = State { last: 0, waits: HashMap::new(), early: VecDeque::new() };
        Waits { state: Mutex::new(state), most: AtomicUsize::new(usize::MAX) }
    }
}

impl<R> Waits<R> {
    /// Limits the requests per lane.
    pub(crate) fn limit(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }

    /// Enters a request.
    ///
    /// # Errors
    /// `EINTR` if it was interrupted already, `ENOLCK` if too many wait; and the right to reply.
    pub(crate) fn enter(&self, unique: u64, lane: usize, reply: R) -> Result<LockWait, (Errno, R)> {
        let mut state = self.state.lock();
        if let Some(at) = state.early.iter().position(|early| *early == unique) {
            state.early.remove(at);
            return Err((Errno::EINTR, reply));
        }
        let most = self.most.load(Ordering::Relaxed);
        if most != usize::MAX && state.waits.values().filter(|wait| wait.lane == lane).count() >= most {
            return Err((Errno::ENOLCK, reply));
        }
        state.last += 1;
        let id = LockWait(state.last);
        state.waits.insert(unique, Wait { id, lane, stage: Stage::Queued, reply });
        Ok(id)
    }

    /// The filesystem is about to see the request. Returns false if it has been answered.
    pub(crate) fn begin(&self, unique: u64, id: LockWait) -> bool {
        let mut state = self.state.lock();
        let found = state.waits.get_mut(&unique).filter(|wait| wait.id == id);
        found.map(|wait| wait.stage = Stage::Beginning { interrupted: false }).is_some()
    }

    /// The filesystem has seen the request. Returns whether it must withdraw it.
    pub(crate) fn begun(&self, unique: u64, id: LockWait) -> bool {
        let mut state = self.state.lock();
        let Some(wait) = state.waits.get_mut(&unique).filter(|wait| wait.id == id) else { return false };
        std::mem::replace(&mut wait.stage, Stage::Begun) == Stage::Beginning { interrupted: true }
    }

    /// Removes a request that is over. `None` if it was over before.
    pub(crate) fn end(&self, unique: u64, id: LockWait) -> Option<R> {
        let mut state = self.state.lock();
        let is_it = state.waits.get(&unique).is_some_and(|wait| wait.id == id);
        if is_it { state.waits.remove(&unique).map(|wait| wait.reply) } else { None }
    }

    /// The kernel reports a signal to the caller of a request.
    pub(crate) fn interrupt(&self, unique: u64) -> Interrupted<R> {
        let mut state = self.state.lock();
        let Some(wait) = state.waits.get_mut(&unique) else {
            if state.early.len() == EARLY_MOST {
                state.early.pop_front();
            }
            state.early.push_back(unique);
            return Interrupted::Unknown;
        };
        match &mut wait.stage {
            Stage::Begun => Interrupted::Begun(wait.id),
            Stage::Beginning { interrupted } => {
                *interrupted = true;
                Interrupted::Noted
            }
            Stage::Queued => {
                let wait = state.waits.remove(&unique);
                wait.map_or(Interrupted::Unknown, |wait| Interrupted::Queued(wait.reply))
            }
        }
    }

    /// The number of requests that wait.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().waits.len()
    }

    /// Removes all requests, because the mount ends.
    pub(crate) fn close(&self) -> Vec<(LockWait, R)> {
        self.state.lock().waits.drain().map(|(_, wait)| (wait.id, wait.reply)).collect()
    }
}

/// All of it for one mount.
#[derive(Default)]
pub(crate) struct LockRequests {
    owners: Mutex<Owners>,
    pub(crate) waits: Waits<crate::dispatch::LockReply>,
}

impl LockRequests {
    /// The lock as the filesystem sees it. Its owner may hold locks from now on, of `session` or a later one.
    ///
    /// # Errors
    /// `ENOLCK` if there are too many owners.
    pub(crate) fn lock(&self, ino: Ino, request: &LockRequest, session: Option<u64>) -> Result<Lock, Errno> {
        let owner = self.owners.lock().number(ino, request, session)?;
        Ok(with_owner(request, owner))
    }

    /// Returns the lock as the filesystem sees it, without a promise to hold anything. `None` if the owner
    /// holds nothing.
    pub(crate) fn known(&self, ino: Ino, request: &LockRequest) -> Option<Lock> {
        let owners = self.owners.lock();
        owners.known.get(&(ino, Key::of(request))).map(|known| with_owner(request, known.owner))
    }

    /// The owners that locked through these open files, and the session in which they held their locks for
    /// certain.
    pub(crate) fn through(&self, handles: impl Iterator<Item = u64>) -> Vec<(Ended, Option<u64>)> {
        let owners = self.owners.lock();
        let keys = handles.filter_map(|handle| owners.by_handle.get(&handle)).flatten();
        let found = keys.filter_map(|key| {
            let known = owners.known.get(key)?;
            Some((Ended { ino: key.0, owner: known.owner, style: key.1.style() }, known.session))
        });
        found.collect()
    }

    /// Notes that an owner has lost nothing until this session.
    pub(crate) fn keeps(&self, holder: Ended, session: Option<u64>) {
        let mut owners = self.owners.lock();
        let known = owners.known.iter_mut().find(|(_, known)| known.owner == holder.owner);
        known.into_iter().for_each(|(_, known)| known.session = session);
    }

    /// Whether an owner has not ended since it got its number.
    pub(crate) fn has(&self, ino: Ino, request: &LockRequest, owner: LockOwner) -> bool {
        self.known(ino, request).is_some_and(|lock| lock.owner == owner)
    }

    /// As [`LockRequests::known`], for a question.
    pub(crate) fn question(&self, ino: Ino, request: &LockRequest) -> Lock {
        self.known(ino, request).unwrap_or_else(|| with_owner(request, LockOwner::NOBODY))
    }

    /// A descriptor was closed by the process that owns these POSIX locks.
    pub(crate) fn flushed(&self, ino: Ino, owner: u64) -> Vec<Ended> {
        self.owners.lock().end((ino, Key::Number(owner))).into_iter().collect()
    }

    /// An open file is gone.
    pub(crate) fn released(&self, handle: u64) -> Vec<Ended> {
        let mut owners = self.owners.lock();
        let keys = owners.by_handle.remove(&handle).unwrap_or_default();
        keys.into_iter().filter_map(|key| owners.end(key)).collect()
    }
}

fn with_owner(request: &LockRequest, owner: LockOwner) -> Lock {
    let LockRequest { style, range, kind, pid, .. } = *request;
    Lock { owner, style, range, kind, pid }
}

#[cfg(test)]
mod tests;
