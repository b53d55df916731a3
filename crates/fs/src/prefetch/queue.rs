//! The prefetch queue for remote names: reading names may wait for the network, and a thread that receives
//! requests must not wait.
//!
//! One thread of a volume with remote names works through the queue. An entry that finds the queue full is
//! dropped, because every prefetch is optional.

use std::collections::VecDeque;

use base::Ino;
use parking_lot::{Condvar, Mutex};

use super::files::Following;
use super::pattern::Wanted;

/// The capacity of the queue.
const MOST: usize = 64;

/// The prefetches that one read asks for.
pub(super) struct Todo {
    pub(super) ino: Ino,
    pub(super) wanted: Wanted,
    pub(super) following: Option<Following>,
}

impl Todo {
    pub(super) fn is_empty(&self) -> bool {
        self.wanted.pages.is_empty() && self.wanted.places.is_empty() && self.following.is_none()
    }
}

#[derive(Default)]
struct Queue {
    todo: VecDeque<Todo>,
    closed: bool,
}

/// The queue. See the [module](self).
#[derive(Default)]
pub(crate) struct Prefetches {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Prefetches {
    pub(super) fn push(&self, todo: Todo) {
        let mut queue = self.queue.lock();
        if queue.todo.len() < MOST {
            queue.todo.push_back(todo);
            self.more.notify_one();
        }
    }

    /// Waits for the next entry; none after [`Prefetches::close`].
    pub(super) fn next(&self) -> Option<Todo> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(todo) = queue.todo.pop_front() {
                return Some(todo);
            }
            self.more.wait(&mut queue);
        }
    }

    /// Makes the thread end after its current entry.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.more.notify_all();
    }
}
