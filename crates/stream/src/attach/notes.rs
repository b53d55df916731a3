//! What the kernel must drop from its caches.
//!
//! Such a message waits for locks of the kernel, which a program may hold while it waits for a reply. So a
//! thread of its own sends them, and never the thread that receives replies.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

use super::Shared;
use crate::frame::{Head, Kind};
use crate::request::{self, Doubt};

/// The most notifications of the server that wait. It sends no more before these are acknowledged.
pub const MOST: usize = 64;

/// Something to drop.
pub enum Note {
    /// A notification of the server, and its number.
    Server(u64, Vec<u8>),
    /// What is in doubt after a request whose result is unknown. There is at most one per slot.
    Doubts(Vec<Doubt>),
    /// All attributes and pages, because another server may have changed them.
    Everything,
}

#[derive(Default)]
struct Queue {
    notes: VecDeque<Note>,
    from_server: usize,
    closed: bool,
}

/// The queue in front of the thread.
#[derive(Default)]
pub struct Notes {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Notes {
    /// Queues a note. Returns false if the server sent more than it may.
    pub fn push(&self, note: Note) -> bool {
        let mut queue = self.queue.lock();
        if let Note::Server(..) = note {
            if queue.from_server == MOST {
                return false;
            }
            queue.from_server += 1;
        }
        queue.notes.push_back(note);
        self.changed.notify_one();
        true
    }

    /// Ends the thread.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_one();
    }

    fn next(&self) -> Option<Note> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(note) = queue.notes.pop_front() {
                if let Note::Server(..) = note {
                    queue.from_server -= 1;
                }
                return Some(note);
            }
            self.changed.wait(&mut queue);
        }
    }
}

impl Shared {
    /// The body of the thread.
    pub(super) fn run_notes(&self) {
        while let Some(note) = self.notes.next() {
            // An error means that the kernel does not hold the object: nothing is left to drop.
            match note {
                Note::Server(seq, message) => {
                    let _ = self.tell_kernel(&message);
                    self.send_somewhere(&Head { seq, ..Head::plain(Kind::Noted) }, &[]);
                }
                Note::Doubts(doubts) => doubts.iter().for_each(|doubt| {
                    let _ = self.tell_kernel(&request::notification(doubt));
                }),
                Note::Everything => {
                    let held = self.held.lock().nodes();
                    for node in held.into_iter().chain([1]) {
                        let _ = self.tell_kernel(&request::notification(&Doubt::Inode(node)));
                    }
                }
            }
        }
    }
}
