//! Byte-range locks and whole-file locks: their types, and the table of one file's locks.
//!
//! The table is pure: it knows neither clocks nor threads. [`Ranges`] holds locks that were granted, with the
//! semantics of fcntl(2): a new lock replaces what its owner held in the range, so locks are split, merged,
//! upgraded and downgraded. [`FileLocks`] adds the second style of lock, and the requests that wait. [`row`]
//! is the form in which all nodes of a shared volume see a file's locks.
//!
//! **Deadlocks are not detected.** Two owners that wait for each other wait until one is interrupted. A table
//! of one file cannot see a cycle through several files, so `EDEADLK` is never returned.

pub(crate) mod own;
pub mod row;

use crate::errno::Errno;

/// Where locks are decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locks {
    /// In the kernel of this machine. No lock reaches the filesystem.
    #[default]
    Local,
    /// In the filesystem, for all machines that mount it.
    Fleet,
}

/// The owner of locks: a process, or an open file. A mount never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

impl LockOwner {
    /// An owner that never holds a lock. It asks what holds a range.
    pub const NOBODY: LockOwner = LockOwner(0);
}

/// A range of bytes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte. [`LockRange::END`] also stands for all bytes that the file may get later.
    pub end: u64,
}

impl LockRange {
    /// The last byte that a file can have.
    pub const END: u64 = i64::MAX as u64;
    /// The whole file, however long it becomes.
    pub const ALL: LockRange = LockRange { start: 0, end: LockRange::END };

    /// Whether the two share a byte.
    pub fn overlaps(self, other: LockRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Whether together they are one range without a gap.
    fn touches(self, other: LockRange) -> bool {
        self.start <= other.end.saturating_add(1) && other.start <= self.end.saturating_add(1)
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// Takes a shared lock.
    Read,
    /// Takes an exclusive lock.
    Write,
    /// Releases the range.
    Unlock,
}

/// The two styles of locks. A lock never conflicts with a lock of the other style.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockStyle {
    /// A range of bytes, by fcntl(2). The owner is a process (POSIX locks) or an open file (OFD locks). The
    /// protocol does not tell these two apart: only the moments differ at which their locks end.
    Range,
    /// The whole file, by flock(2). The owner is an open file.
    Flock,
}

/// A lock, or the request for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lock<O = LockOwner> {
    /// The owner.
    pub owner: O,
    /// The style.
    pub style: LockStyle,
    /// What is locked. [`LockRange::ALL`] for [`LockStyle::Flock`].
    pub range: LockRange,
    /// What is requested. A lock that is held is never [`LockKind::Unlock`].
    pub kind: LockKind,
    /// The process, in this machine's PID namespace, for `F_GETLK`; 0: not visible here, or on another
    /// machine.
    pub pid: u32,
}

impl<O> Lock<O> {
    /// Returns the lock with an owner of another type, such as the pair of a machine and an owner there.
    pub fn owned_by<P>(self, owner: P) -> Lock<P> {
        Lock { owner, style: self.style, range: self.range, kind: self.kind, pid: self.pid }
    }
}

/// The number of a request that waits for a lock. A mount never uses a number twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockWait(pub u64);

/// Completes a request that waits for a lock: granted, or the error. Called once, on any thread. It does not
/// block.
pub type LockAnswer = Box<dyn FnOnce(Result<(), Errno>) + Send>;

/// The granted locks of one style on one file.
///
/// In order of their first byte. Locks of one owner never overlap, and neighbours of the same kind are one
/// lock.
#[derive(Clone, Debug)]
pub struct Ranges<O>(Vec<Lock<O>>);

impl<O> Default for Ranges<O> {
    fn default() -> Ranges<O> {
        Ranges(Vec::new())
    }
}

impl<O: Copy + PartialEq> Ranges<O> {
    /// The first lock that keeps this one from being granted.
    pub fn conflict(&self, wanted: &Lock<O>) -> Option<&Lock<O>> {
        let excludes = |held: &&Lock<O>| {
            held.owner != wanted.owner
                && held.range.overlaps(wanted.range)
                && (held.kind == LockKind::Write || wanted.kind == LockKind::Write)
        };
        match wanted.kind {
            LockKind::Unlock => None,
            _ => self.0.iter().find(excludes),
        }
    }

    /// Takes or releases a lock, at once. Nothing changes if it conflicts.
    ///
    /// # Errors
    /// The lock that it conflicts with.
    pub fn set(&mut self, wanted: &Lock<O>) -> Result<(), Lock<O>> {
        if let Some(held) = self.conflict(wanted) {
            return Err(*held);
        }
        let mut new = *wanted;
        let mut kept = Vec::with_capacity(self.0.len() + 2);
        for held in self.0.drain(..) {
            if held.owner != new.owner {
                kept.push(held);
            } else if held.kind == new.kind && held.range.touches(new.range) {
                new.range.start = new.range.start.min(held.range.start);
                new.range.end = new.range.end.max(held.range.end);
            } else if held.range.overlaps(new.range) {
                let cut = |start, end| Lock { range: LockRange { start, end }, ..held };
                if held.range.start < new.range.start {
                    kept.push(cut(held.range.start, new.range.start - 1));
                }
                if held.range.end > new.range.end {
                    kept.push(cut(new.range.end + 1, held.range.end));
                }
            } else {
                kept.push(held);
            }
        }
        if new.kind != LockKind::Unlock {
            kept.push(new);
        }
        kept.sort_by_key(|held| held.range.start);
        self.0 = kept;
        Ok(())
    }

    /// Releases all locks of the owners for which `gone` is true. Returns whether there were any.
    pub fn release(&mut self, gone: impl Fn(O) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|held| !gone(held.owner));
        self.0.len() < before
    }

    /// The locks, in order of their first byte.
    pub fn iter(&self) -> impl Iterator<Item = &Lock<O>> {
        self.0.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// All locks on one file, and the requests that wait for one. `W` is what the caller knows a waiting request
/// by.
///
/// After each change that can free a range, call [`FileLocks::wake`] and complete what it returns.
#[derive(Debug)]
pub struct FileLocks<O, W> {
    ranges: Ranges<O>,
    flocks: Ranges<O>,
    waiting: Vec<(Lock<O>, W)>,
}

impl<O, W> Default for FileLocks<O, W> {
    fn default() -> FileLocks<O, W> {
        FileLocks { ranges: Ranges::default(), flocks: Ranges::default(), waiting: Vec::new() }
    }
}

impl<O: Copy + PartialEq, W> FileLocks<O, W> {
    /// The locks of one style.
    pub fn of(&self, style: LockStyle) -> &Ranges<O> {
        match style {
            LockStyle::Range => &self.ranges,
            LockStyle::Flock => &self.flocks,
        }
    }

    fn of_mut(&mut self, style: LockStyle) -> &mut Ranges<O> {
        match style {
            LockStyle::Range => &mut self.ranges,
            LockStyle::Flock => &mut self.flocks,
        }
    }

    /// Whether the file has at most `most` locks of this style, also after this one was taken or released.
    pub fn has_room_for(&self, wanted: &Lock<O>, most: usize) -> bool {
        let locks = self.of(wanted.style);
        // A lock that is divided becomes three.
        if locks.0.len() + 2 <= most {
            return true;
        }
        let mut after = locks.clone();
        after.set(wanted).is_err() || after.0.len() <= most
    }

    /// Takes or releases a lock, at once. Nothing changes if it conflicts.
    ///
    /// # Errors
    /// `EAGAIN` if it conflicts.
    pub fn set(&mut self, wanted: &Lock<O>) -> Result<(), Errno> {
        self.of_mut(wanted.style).set(wanted).map_err(|_| Errno::EAGAIN)
    }

    /// Takes a lock, or makes the request wait. Returns `waiter` if the lock was granted at once.
    ///
    /// A flock that has to wait gives up the lock that its owner held, as flock(2) says. Otherwise two owners
    /// of shared locks that both want an exclusive one would wait for each other. So call
    /// [`FileLocks::wake`] afterwards.
    pub fn wait(&mut self, wanted: &Lock<O>, waiter: W) -> Option<W> {
        if self.set(wanted).is_ok() {
            return Some(waiter);
        }
        if wanted.style == LockStyle::Flock {
            self.flocks.release(|owner| owner == wanted.owner);
        }
        self.waiting.push((*wanted, waiter));
        None
    }

    /// Withdraws the first waiting request for which `is_it` is true.
    pub fn cancel(&mut self, is_it: impl Fn(&W) -> bool) -> Option<W> {
        let at = self.waiting.iter().position(|(_, waiter)| is_it(waiter))?;
        Some(self.waiting.remove(at).1)
    }

    /// Releases all locks of one style of the owners for which `gone` is true.
    pub fn release(&mut self, style: LockStyle, gone: impl Fn(O) -> bool) {
        self.of_mut(style).release(gone);
    }

    /// Withdraws the waiting requests of the owners for which `gone` is true, and returns them.
    pub fn abandon(&mut self, gone: impl Fn(O) -> bool) -> Vec<W> {
        self.waiting.extract_if(.., |(wanted, _)| gone(wanted.owner)).map(|(_, waiter)| waiter).collect()
    }

    /// Grants the waiting requests that no longer conflict, the oldest first, and returns them. A request
    /// that still conflicts does not hold up younger ones.
    pub fn wake(&mut self) -> Vec<W> {
        let mut granted = Vec::new();
        for (wanted, waiter) in std::mem::take(&mut self.waiting) {
            match self.set(&wanted) {
                Ok(()) => granted.push(waiter),
                Err(_) => self.waiting.push((wanted, waiter)),
            }
        }
        granted
    }

    /// Whether there is neither a lock nor a waiting request.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.flocks.is_empty() && self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests;
