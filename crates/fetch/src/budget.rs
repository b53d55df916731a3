//! The memory budget of fetches in flight.

use std::sync::Arc;

use base::Deadline;
use blob::BlobError;
use parking_lot::{Condvar, Mutex};

/// A budget of bytes. Each fetch takes some and gives them back.
pub struct Budget {
    most: u64,
    used: Mutex<u64>,
    freed: Condvar,
}

impl Budget {
    /// A budget of this many bytes.
    pub fn new(most: u64) -> Arc<Budget> {
        Arc::new(Budget { most, used: Mutex::new(0), freed: Condvar::new() })
    }

    /// Waits for room, until the deadline of the thread's work. A prefetch leaves a quarter of the budget to
    /// fetches that a reader waits for.
    ///
    /// # Errors
    /// `Unavailable`: the deadline has passed.
    pub fn take(self: &Arc<Budget>, bytes: u64, prefetch: bool) -> Result<Permit, BlobError> {
        let most = if prefetch { self.most / 4 * 3 } else { self.most };
        let deadline = Deadline::current();
        let mut used = self.used.lock();
        // A fetch larger than the budget runs alone.
        while *used > 0 && *used + bytes > most {
            if deadline.is_over() {
                let what = "fetches in flight take all the memory there is for them, and none ended in time";
                return Err(BlobError::Unavailable(what.to_owned()));
            }
            match deadline.is_bounded() {
                true => _ = self.freed.wait_for(&mut used, deadline.left()),
                false => self.freed.wait(&mut used),
            }
        }
        *used += bytes;
        Ok(Permit { budget: Arc::clone(self), bytes })
    }

    /// The bytes that are taken now.
    pub fn used(&self) -> u64 {
        *self.used.lock()
    }
}

/// Bytes taken from a budget, until dropped.
pub struct Permit {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Permit {
    /// Gives back the surplus over `bytes`.
    pub fn shrink(&mut self, bytes: u64) {
        let surplus = self.bytes.saturating_sub(bytes);
        self.bytes -= surplus;
        *self.budget.used.lock() -= surplus;
        self.budget.freed.notify_all();
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.budget.used.lock() -= self.bytes;
        self.budget.freed.notify_all();
    }
}
