//! Looking ahead where it may have to wait: the names of what is wanted next may be far away, and whoever reads requests must not wait for them.
//!
//! One thread of a volume with far names does it for all; what finds its queue full is dropped, as every hint may be.

use std::collections::VecDeque;

use base::Ino;
use parking_lot::{Condvar, Mutex};

use super::files::Following;
use super::pattern::Wanted;
use crate::volume::Core;

/// So much waits at most.
const MOST: usize = 64;

/// What one read showed to be wanted.
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

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Later {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Later {
    pub(super) fn push(&self, todo: Todo) {
        let mut queue = self.queue.lock();
        if queue.todo.len() < MOST {
            queue.todo.push_back(todo);
            self.more.notify_one();
        }
    }

    /// Waits for the next; none at the end.
    fn next(&self) -> Option<Todo> {
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

    /// The thread ends with what it does.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.more.notify_all();
    }
}

impl Core {
    /// The life of that thread.
    pub(crate) fn looker(&self) {
        while let Some(todo) = self.streams.later.next() {
            self.want(&todo);
        }
    }
}
