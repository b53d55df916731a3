//! Invalidates what the kernel has cached.
//!
//! A notification waits for kernel locks. A program may hold such a lock while it waits for a reply from us.
//! A thread that answers requests could therefore end up waiting for itself. So notifications have their own
//! thread, with a queue in front of it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::Ino;
use fs::gc::Forgets;
use parking_lot::{Condvar, Mutex};

use crate::abi::header::notify;
use crate::channel::Sink;

/// One notification.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Note {
    Inode { ino: Ino, offset: i64, len: i64 },
    Entry { parent: Ino, name: Vec<u8> },
    Deleted { parent: Ino, child: Ino, name: Vec<u8> },
    Unused { inos: Vec<Ino> },
}

/// How many inodes one notification is about.
const UNUSED: usize = 1024;

#[derive(Default)]
struct Queue {
    notes: VecDeque<Note>,
    sending: bool,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    sink: Arc<dyn Sink>,
}

/// Sends notifications to the kernel, in order, from its own thread. Clones share the queue.
#[derive(Clone)]
pub struct Notifier(Arc<Shared>);

impl Notifier {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub fn start(sink: Arc<dyn Sink>) -> io::Result<Notifier> {
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new(), sink });
        let worker = Arc::clone(&shared);
        base::thread::spawn("fuse-notify", move || worker.run())?;
        Ok(Notifier(shared))
    }

    /// The kernel drops an inode's attributes and its pages from `offset` on (`len` bytes, 0: all). It writes
    /// dirty pages back first. A negative `offset` leaves the pages alone.
    pub fn inval_inode(&self, ino: Ino, offset: i64, len: i64) {
        self.push(Note::Inode { ino, offset, len });
    }

    /// The kernel drops a name, positive or negative.
    pub fn inval_entry(&self, parent: Ino, name: &[u8]) {
        self.push(Note::Entry { parent, name: name.to_vec() });
    }

    /// The kernel treats a name as removed if it stood for this child.
    pub fn deleted(&self, parent: Ino, child: Ino, name: &[u8]) {
        self.push(Note::Deleted { parent, child, name: name.to_vec() });
    }

    /// The kernel forgets these inodes, except those that programs use. A kernel before Linux 6.18 does not
    /// know this notification, and remembers them until it needs the memory.
    pub fn forget_unused(&self, inos: &[Ino]) {
        inos.chunks(UNUSED).for_each(|inos| self.push(Note::Unused { inos: inos.to_vec() }));
    }

    /// Waits until everything queued so far has reached the kernel. Never call it while answering a request.
    pub fn settle(&self) {
        let mut queue = self.0.queue.lock();
        while !queue.closed && (queue.sending || !queue.notes.is_empty()) {
            self.0.changed.wait(&mut queue);
        }
    }

    /// Waits as [`Notifier::settle`] does, but no longer than `at_most`. So it may be called while answering
    /// a request.
    pub(crate) fn settle_within(&self, at_most: Duration) {
        let until = base::time::monotonic() + at_most;
        let mut queue = self.0.queue.lock();
        while !queue.closed && (queue.sending || !queue.notes.is_empty()) {
            if self.0.changed.wait_until(&mut queue, until).timed_out() {
                return;
            }
        }
    }

    /// Ends the thread. Notifications still in the queue are dropped, because the kernel is gone.
    pub(crate) fn close(&self) {
        self.0.queue.lock().closed = true;
        self.0.changed.notify_all();
    }

    fn push(&self, note: Note) {
        let mut queue = self.0.queue.lock();
        if !queue.closed {
            queue.notes.push_back(note);
            self.0.changed.notify_all();
        }
    }
}

impl Forgets for Notifier {
    fn forget(&self, inos: Vec<Ino>) {
        self.forget_unused(&inos);
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let note = {
                let mut queue = self.queue.lock();
                queue.sending = false;
                self.changed.notify_all();
                loop {
                    if queue.closed {
                        return;
                    }
                    if let Some(note) = queue.notes.pop_front() {
                        queue.sending = true;
                        break note;
                    }
                    self.changed.wait(&mut queue);
                }
            };
            // An error means that the kernel does not hold the object, or is gone. Either way nothing is left
            // to invalidate.
            let _ = self.send(&note);
        }
    }

    fn send(&self, note: &Note) -> io::Result<()> {
        match note {
            Note::Inode { ino, offset, len } => inval_inode(&*self.sink, *ino, *offset, *len),
            Note::Entry { parent, name } => {
                let fixed = [u64::to_ne_bytes(parent.0), two(name.len() as u32, 0)];
                self.sink.notify(notify::INVAL_ENTRY, &[fixed.as_flattened(), name, &[0]])
            }
            Note::Deleted { parent, child, name } => {
                let fixed = [parent.0.to_ne_bytes(), child.0.to_ne_bytes(), two(name.len() as u32, 0)];
                self.sink.notify(notify::DELETE, &[fixed.as_flattened(), name, &[0]])
            }
            Note::Unused { inos } => {
                let fixed = [two(inos.len() as u32, 0), [0; 8]];
                let inos: Vec<[u8; 8]> = inos.iter().map(|ino| ino.0.to_ne_bytes()).collect();
                self.sink.notify(notify::PRUNE, &[fixed.as_flattened(), inos.as_flattened()])
            }
        }
    }
}

/// Sends [`Notifier::inval_inode`] at once, on this thread. Only for a thread that answers nothing that the
/// kernel could be waiting for.
pub(crate) fn inval_inode(sink: &dyn Sink, ino: Ino, offset: i64, len: i64) -> io::Result<()> {
    let fixed = [ino.0.to_ne_bytes(), offset.to_ne_bytes(), len.to_ne_bytes()];
    sink.notify(notify::INVAL_INODE, &[fixed.as_flattened()])
}

fn two(first: u32, second: u32) -> [u8; 8] {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first.to_ne_bytes());
    both[4..].copy_from_slice(&second.to_ne_bytes());
    both
}
