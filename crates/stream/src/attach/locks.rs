//! Which programs of this guest hold locks at the server, and what has to be told to it about their ends.
//!
//! - **Another run of the server knows no locks.** What was held is lost then. Until its holder closes the
//!   file or unlocks all of it, the holder's lock calls on that file fail with EIO. Reads and writes go on.
//!   So no program believes that it holds what another one may have by now.
//! - **A FLUSH or RELEASE that cannot be sent** is kept, because the server would keep the locks for ever. It
//!   is sent before anything else when a server answers.

use std::collections::HashMap;
use std::sync::Arc;

use super::rooms::Kept;
use crate::request::{Asked, Holder, LockAsked};

/// What is known of a holder on an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The holder asked, and may hold something.
    Asked,
    /// The holder holds something.
    Holds,
    /// A server that is gone had granted it something.
    Lost,
}

#[derive(Debug)]
struct Known {
    state: State,
    /// The open files through which it locked.
    handles: Vec<u64>,
}

/// The holder's locks ended with the server that had granted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Locks {
    known: HashMap<(u64, Holder), Known>,
    /// FLUSH and RELEASE that the server must get.
    unsent: Vec<(Asked, Arc<Kept>)>,
}

impl Locks {
    /// A request about a lock is about to be sent.
    ///
    /// # Errors
    /// [`Lost`]: the program must be told.
    pub fn asks(&mut self, node: u64, lock: &LockAsked) -> Result<(), Lost> {
        let key = (node, lock.holder);
        if self.known.get(&key).is_some_and(|known| known.state == State::Lost) {
            if lock.unlocks && lock.whole {
                self.known.remove(&key);
            }
            return Err(Lost);
        }
        if !lock.unlocks {
            let new = || Known { state: State::Asked, handles: Vec::new() };
            let known = self.known.entry(key).or_insert_with(new);
            if !known.handles.contains(&lock.handle) {
                known.handles.push(lock.handle);
            }
        }
        Ok(())
    }

    /// The server has done what was asked.
    pub fn done(&mut self, node: u64, lock: &LockAsked) {
        let key = (node, lock.holder);
        match (lock.unlocks, lock.whole) {
            (true, true) => drop(self.known.remove(&key)),
            (true, false) => {}
            (false, _) => {
                if let Some(known) = self.known.get_mut(&key).filter(|known| known.state == State::Asked) {
                    known.state = State::Holds;
                }
            }
        }
    }

    /// A holder ends, by FLUSH or RELEASE. Returns whether the server must know.
    pub fn ends(&mut self, node: u64, holder: Holder) -> bool {
        match holder {
            Holder::Owner(_) => self.known.remove(&(node, holder)).is_some(),
            Holder::Handle(handle) => {
                let before = self.known.len();
                self.known.retain(|_, known| !known.handles.contains(&handle));
                self.known.len() < before
            }
        }
    }

    /// Whether a holder's locks were lost.
    pub fn is_lost(&self, node: u64, holder: Holder) -> bool {
        self.known.get(&(node, holder)).is_some_and(|known| known.state == State::Lost)
    }

    /// The server is another one. Returns on how many files locks were lost.
    pub fn lose(&mut self) -> usize {
        let mut files = std::collections::HashSet::new();
        for ((node, _), known) in &mut self.known {
            if known.state == State::Holds {
                known.state = State::Lost;
                files.insert(*node);
            }
        }
        files.len()
    }

    /// The end of a holder could not be sent.
    pub fn keep_unsent(&mut self, asked: Asked, request: Arc<Kept>) {
        self.unsent.push((asked, request));
    }

    /// The next one that has to be sent.
    pub fn next_unsent(&mut self) -> Option<(Asked, Arc<Kept>)> {
        if self.unsent.is_empty() { None } else { Some(self.unsent.remove(0)) }
    }

    /// There was no slot for it.
    pub fn put_back(&mut self, unsent: (Asked, Arc<Kept>)) {
        self.unsent.insert(0, unsent);
    }

    /// On how many files programs hold locks, and on how many they have lost them.
    pub fn figures(&self) -> (usize, usize) {
        let count = |state| self.known.values().filter(|known| known.state == state).count();
        (count(State::Holds), count(State::Lost))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posix(unlocks: bool, handle: u64) -> LockAsked {
        LockAsked { holder: Holder::Owner(50), handle, unlocks, whole: true }
    }

    #[test]
    fn what_was_held_is_lost_with_its_server_until_the_file_is_closed() {
        let mut locks = Locks::default();
        let flock = LockAsked { holder: Holder::Handle(2), handle: 2, unlocks: false, whole: true };
        for lock in [posix(false, 1), flock] {
            assert_eq!(locks.asks(7, &lock), Ok(()));
            locks.done(7, &lock);
        }
        assert_eq!(locks.asks(8, &posix(false, 3)), Ok(()), "it only asks");
        assert_eq!((locks.lose(), locks.figures()), (1, (0, 2)));
        assert_eq!(locks.asks(7, &posix(false, 1)), Err(Lost));
        assert_eq!(locks.asks(8, &posix(false, 3)), Ok(()));
        assert!(locks.is_lost(7, Holder::Handle(2)) && !locks.is_lost(8, Holder::Owner(50)));
        // An unlock of all is told once, and a FLUSH or RELEASE ends it as well.
        assert_eq!(locks.asks(7, &posix(true, 1)), Err(Lost));
        assert_eq!(locks.asks(7, &posix(false, 1)), Ok(()));
        assert!(locks.ends(7, Holder::Handle(2)) && !locks.ends(7, Holder::Handle(2)));
        assert_eq!(locks.asks(7, &flock), Ok(()));
    }

    #[test]
    fn an_open_file_that_is_gone_ends_all_that_locked_through_it() {
        let mut locks = Locks::default();
        assert_eq!(locks.asks(7, &posix(false, 1)), Ok(()));
        assert_eq!(locks.asks(7, &posix(false, 2)), Ok(()));
        assert!(locks.ends(7, Holder::Handle(2)) && locks.known.is_empty());
        assert!(!locks.ends(7, Holder::Owner(50)), "nothing to tell");
        locks.asks(7, &posix(false, 1)).unwrap();
        locks.done(7, &posix(false, 1));
        locks.done(7, &posix(true, 1));
        assert_eq!((locks.known.len(), locks.lose()), (0, 0));
    }
}
