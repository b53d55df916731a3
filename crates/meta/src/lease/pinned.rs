//! Work that counts in one session of this node only: what a program does through a file on which it took a
//! lock in that session. When the session ends the lock ends too, and another node may have it. So what the
//! program still wants to do must not be done in the next session of this node.
//!
//! As a [`Deadline`](base::Deadline), the number of the session goes with the thread: [`in_session`] sets it,
//! and the leases look at it after each wait, right before they answer or change something.

use std::cell::Cell;

use super::Holder;
use crate::store::StoreError;

thread_local! {
    static SESSION: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Restore(Option<u64>);

impl Drop for Restore {
    fn drop(&mut self) {
        SESSION.set(self.0);
    }
}

/// Runs work that counts only as long as this node's session has this epoch. Otherwise it fails with
/// [`StoreError::Fenced`], and changes nothing.
pub fn in_session<T>(epoch: u64, work: impl FnOnce() -> T) -> T {
    let _restore = Restore(SESSION.replace(Some(epoch)));
    work()
}

/// # Errors
/// The work of this thread counts in another session than that of `me`.
pub(super) fn check(me: impl FnOnce() -> Option<Holder>) -> Result<(), StoreError> {
    let Some(wanted) = SESSION.get() else { return Ok(()) };
    match me().is_some_and(|me| me.epoch == wanted) {
        true => Ok(()),
        false => Err(StoreError::Fenced("the session ended in which the file was locked".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_an_ended_session_fails_and_other_work_does_not() {
        let me = |epoch| move || Some(Holder { node: 1, epoch });
        assert!(check(me(7)).is_ok() && check(|| None).is_ok(), "it counts in any session");
        in_session(7, || {
            assert!(check(me(7)).is_ok());
            assert!(matches!(check(me(8)), Err(StoreError::Fenced(_))));
            assert!(matches!(check(|| None), Err(StoreError::Fenced(_))));
        });
        let panicked = std::panic::catch_unwind(|| in_session(7, || panic!("as work might")));
        assert!(panicked.is_err() && check(me(8)).is_ok(), "the next work of the thread is free of it");
    }
}
