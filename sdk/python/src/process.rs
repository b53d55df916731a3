//! The open tree of this process.
//!
//! A forked process inherits memory, but none of its parent's threads. A lock that one of these held stays
//! locked, and a fetch that one of them led never ends. So a child uses nothing of its parent: it leaves the
//! parent's tree in memory, unused and never dropped, and opens its own at the first call. Which process made
//! a slot is decided without a lock.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use node::reader::Reader;

use crate::heat::Heat;

/// Forks that lead to this process, as far as Python made them. Two processes in different PID namespaces may
/// have the same number.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Notes that this process is a forked child.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::SeqCst);
}

/// The number of these forks.
pub fn forks() -> u64 {
    FORKS.load(Ordering::SeqCst)
}

/// A process, and not one that was forked from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    forks: u64,
}

impl Process {
    /// This one.
    pub fn this() -> Process {
        Process { pid: std::process::id(), forks: forks() }
    }
}

/// A tree that is open in this process.
pub struct Opened {
    reader: Reader,
    /// What this process reads of it.
    pub heat: Heat,
}

impl std::ops::Deref for Opened {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

/// The trees that processes have opened. Nobody waits for the lock, because it may stay locked in a child.
static OPENED: Mutex<Vec<(Process, Weak<Opened>)>> = Mutex::new(Vec::new());

fn remember(reader: &Arc<Opened>) {
    if let Ok(mut opened) = OPENED.try_lock() {
        opened.retain(|(_, reader)| reader.strong_count() > 0);
        opened.push((Process::this(), Arc::downgrade(reader)));
    }
}

/// Closes every tree that this process has open, when the interpreter ends: a node of a fleet says that it
/// leaves.
pub fn close_all() {
    let opened = OPENED.try_lock().map(|mut opened| std::mem::take(&mut *opened)).unwrap_or_default();
    let own = opened.iter().filter(|(process, _)| *process == Process::this());
    for reader in own.filter_map(|(_, reader)| reader.upgrade()) {
        // Nobody is left to hear of a failure. The cache is one that a killed process leaves.
        let _ = reader.close();
    }
}

enum State {
    Unopened,
    Open(Arc<Opened>),
    Closed,
}

struct Slot {
    made_by: Process,
    /// Held while the tree is opened.
    state: Mutex<State>,
}

impl Slot {
    fn new(state: State) -> *mut Slot {
        Box::into_raw(Box::new(Slot { made_by: Process::this(), state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tree that each process opens for itself. See the [module](self).
pub struct PerProcess {
    slot: AtomicPtr<Slot>,
}

impl PerProcess {
    /// Nothing is opened yet.
    pub fn unopened() -> PerProcess {
        PerProcess { slot: AtomicPtr::new(Slot::new(State::Unopened)) }
    }

    /// This process's slot. A child replaces its parent's.
    fn slot(&self) -> &Slot {
        let mut now = self.slot.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer comes from `Box::into_raw`. It is freed only in `drop`, which has the only
            // reference to `self`. A replaced slot is never freed.
            let slot = unsafe { &*now };
            if slot.made_by == Process::this() {
                return slot;
            }
            let own = Slot::new(State::Unopened);
            match self.slot.compare_exchange(now, own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => now = own,
                Err(other) => {
                    // SAFETY: the exchange failed, so nothing else has this pointer.
                    drop(unsafe { Box::from_raw(own) });
                    now = other;
                }
            }
        }
    }

    /// The tree, if it is open and nothing has to be waited for.
    pub fn at_hand(&self) -> Option<Arc<Opened>> {
        match &*self.slot().state.try_lock().ok()? {
            State::Open(reader) => Some(reader.clone()),
            State::Unopened | State::Closed => None,
        }
    }

    /// The open tree; opened by `open` if this process has not done that yet. `None` once it was closed.
    pub fn get<E>(&self, open: impl FnOnce() -> Result<Reader, E>) -> Result<Option<Arc<Opened>>, E> {
        let mut state = self.slot().state();
        if let State::Unopened = &*state {
            let reader = Arc::new(Opened { reader: open()?, heat: Heat::default() });
            remember(&reader);
            *state = State::Open(reader);
        }
        Ok(match &*state {
            State::Open(reader) => Some(reader.clone()),
            State::Unopened | State::Closed => None,
        })
    }

    /// Closes the tree of this process. Returns it, if it was open.
    pub fn close(&self) -> Option<Arc<Opened>> {
        match std::mem::replace(&mut *self.slot().state(), State::Closed) {
            State::Open(reader) => Some(reader),
            State::Unopened | State::Closed => None,
        }
    }

    /// Whether this process closed the tree. While it is being opened, it is not closed.
    pub fn is_closed(&self) -> bool {
        self.slot().state.try_lock().is_ok_and(|state| matches!(*state, State::Closed))
    }
}

impl Drop for PerProcess {
    fn drop(&mut self) {
        let slot = *self.slot.get_mut();
        // SAFETY: as in `slot`; and this is the only reference to it.
        if unsafe { &*slot }.made_by == Process::this() {
            // SAFETY: the pointer comes from `Box::into_raw`, and nothing uses it after this.
            drop(unsafe { Box::from_raw(slot) });
        }
    }
}
