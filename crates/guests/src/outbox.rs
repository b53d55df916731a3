//! What goes to one guest over one connection.
//!
//! A thread that has a reply sends it at once if the socket takes it. Otherwise the rest waits in a queue for
//! the connection's own thread, so that a guest that does not read delays nothing but itself. The queue is
//! bounded: credits bound the replies, and a guest that makes it grow in another way is cut off.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};
use stream::frame::{self, Head};
use stream::socket::Socket;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The connection's thread is sending.
    busy: bool,
    closed: bool,
}

/// See the [module](self).
pub struct Outbox {
    socket: Socket,
    queue: Mutex<Queue>,
    changed: Condvar,
    most: usize,
}

impl Outbox {
    /// An empty queue in front of a socket. It holds at most so many bytes.
    pub fn new(socket: Socket, most: usize) -> Outbox {
        Outbox { socket, queue: Mutex::default(), changed: Condvar::new(), most }
    }

    /// Sends a frame, or queues it. Frames leave in the order of the calls.
    pub fn send(&self, head: &Head, payload: &[u8]) {
        self.send_parts(head, payload, &[]);
    }

    /// Sends a frame with a payload in two parts, or queues it. The parts need not be copied together if the
    /// socket takes them.
    pub fn send_parts(&self, head: &Head, first: &[u8], second: &[u8]) {
        let header = frame::encode(head, &[first, second]);
        let parts = [&header[..], first, second];
        let mut queue = self.queue.lock();
        if queue.closed {
            return;
        }
        let mut sent = 0;
        if !queue.busy && queue.waiting.is_empty() {
            match self.socket.send_now(parts) {
                Ok(count) => sent = count,
                Err(_) => return self.close(&mut queue),
            }
        }
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        if sent == whole {
            return;
        }
        let rest = parts.map(|part| {
            let (done, rest) = part.split_at(sent.min(part.len()));
            sent -= done.len();
            rest
        });
        let rest = rest.concat();
        queue.bytes += rest.len();
        queue.waiting.push_back(rest);
        if queue.bytes > self.most {
            return self.close(&mut queue);
        }
        self.changed.notify_one();
    }

    fn close(&self, queue: &mut Queue) {
        queue.closed = true;
        queue.waiting.clear();
        self.socket.cut();
        self.changed.notify_all();
    }

    /// Ends the connection. What waits is dropped.
    pub fn cut(&self) {
        self.close(&mut self.queue.lock());
    }

    /// Waits until everything has been sent, but no longer than `time`.
    pub fn drain(&self, time: std::time::Duration) {
        let until = base::Deadline::after(time);
        let mut queue = self.queue.lock();
        while !queue.closed && (queue.busy || !queue.waiting.is_empty()) && !until.is_over() {
            self.changed.wait_for(&mut queue, until.left());
        }
    }

    /// The body of the connection's thread: sends what waits, until the connection ends.
    pub fn run(&self) {
        let mut queue = self.queue.lock();
        while !queue.closed {
            let Some(next) = queue.waiting.pop_front() else {
                self.changed.notify_all();
                self.changed.wait(&mut queue);
                continue;
            };
            queue.busy = true;
            let sent = parking_lot::MutexGuard::unlocked(&mut queue, || self.socket.send_bytes(&next));
            queue.busy = false;
            queue.bytes = queue.bytes.saturating_sub(next.len());
            if sent.is_err() {
                self.close(&mut queue);
            }
        }
    }
}
