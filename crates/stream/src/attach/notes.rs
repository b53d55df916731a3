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
    /// A notification of the server, and its number. 0: of a server that is gone.
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
    /// Queues a note. Returns false if the server sent more than it may. On a new connection it sends again
    /// what was not acknowledged, also if that is still here.
    pub fn push(&self, note: Note) -> bool {
        let mut queue = self.queue.lock();
        if let Note::Server(seq, _) = note {
            if queue.notes.iter().any(|other| matches!(other, Note::Server(same, _) if *same == seq)) {
                return true;
            }
            if queue.from_server == MOST {
                return false;
            }
            queue.from_server += 1;
        }
        queue.notes.push_back(note);
        self.changed.notify_one();
        true
    }

    /// Another server takes over, and numbers its notifications anew.
    pub fn begin_anew(&self) {
        let mut queue = self.queue.lock();
        queue.from_server = 0;
        for note in &mut queue.notes {
            if let Note::Server(seq, _) = note {
                *seq = 0;
            }
        }
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
                if let Note::Server(1.., _) = note {
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
                    if seq > 0 {
                        self.send_somewhere(&Head { seq, ..Head::plain(Kind::Noted) }, &[]);
                    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that was slow to tell its kernel took what the server sent again for more than 64, and cut the
    /// connection; the next one began with the same.
    #[test]
    fn regression_what_is_sent_again_counts_once() {
        let notes = Notes::default();
        let server = |seq| Note::Server(seq, vec![0; 16]);
        let waiting = || notes.queue.lock().notes.len();
        let all = 1..=MOST as u64;
        assert!(all.clone().all(|seq| notes.push(server(seq))) && !notes.push(server(99)));
        assert!(all.clone().all(|seq| notes.push(server(seq))) && waiting() == MOST);
        notes.begin_anew();
        assert!(all.clone().all(|seq| notes.push(server(seq))) && waiting() == 2 * MOST);
        assert!(!notes.push(server(99)));
        for _ in 0..2 * MOST {
            assert!(notes.next().is_some());
        }
        assert!(all.clone().all(|seq| notes.push(server(seq))) && waiting() == MOST);
    }
}
