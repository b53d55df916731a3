//! The requesting end of a connection: requests go out merged, and each answer goes to its waiter.
//!
//! A lane exists before its connection. Requests made in the meantime are sent after the handshake, or fail
//! with it. One task reads. A request that finds nothing else in flight is written at once by its caller. All
//! other callers leave their bytes for the task, which writes what has accumulated.
//!
//! Lock order: `waiting` before `out`. With either held, nothing is called that could call back into the
//! lane.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::BlobId;
use base::size::GROUP;
use blob::Sums;
use blob::sums::Mismatch;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::call::{Reply, Slot, Undo};
use super::counters::Counters;
use super::fail::Fail;
use super::flows::Flow;
use super::link::Link;
use crate::frame::{self, HEADER, Header, Type};
use crate::hello::Class;
use fetch::Arriving;

/// Where bytes of blobs go.
#[derive(Clone)]
pub(crate) enum Sink {
    /// The answer has none.
    None,
    /// The blob, and how many bytes of it have come from this source.
    Blob(Arc<Arriving>, Arc<AtomicU64>),
    Groups(Arc<Mutex<Gather>>),
}

/// Whole groups of a blob, with its sums, that are being assembled.
pub(crate) struct Gather {
    pub(crate) blob: BlobId,
    /// The requested range.
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// Where the bytes begin: at the group around `offset`.
    pub(crate) from: u32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) sums: Option<Sums>,
    /// The bytes are also compared with the hashes of their groups.
    pub(crate) hashed: bool,
}

impl Gather {
    /// Verifies the bytes and returns them.
    pub(super) fn finish_groups(&mut self) -> Result<Reply, Fail> {
        let protocol = |what: &str| Fail::Protocol(what.to_owned());
        let sums = self.sums.take().ok_or_else(|| protocol("the sums did not come"))?;
        let end = self.offset.saturating_add(self.len);
        if end > sums.size() {
            return Err(protocol("the range is not in the blob"));
        }
        let until = end.next_multiple_of(GROUP).min(sums.size());
        if self.bytes.len() != (until - self.from) as usize {
            return Err(protocol("other bytes came than were asked for"));
        }
        let corrupt = |wrong: Mismatch| Fail::Corrupt(wrong.to_string());
        if self.hashed {
            sums.check_group(self.from, &self.bytes).map_err(corrupt)?;
        }
        // Even after the hashes match: the receiver that keeps the sums compares the bytes with these CRCs.
        sums.check(self.from, &self.bytes).map_err(corrupt)?;
        Ok(Reply::Groups(sums, std::mem::take(&mut self.bytes)))
    }
}

/// A request in flight.
pub(super) struct Waits {
    slot: Arc<Slot>,
    sink: Sink,
    until: Instant,
    time: Duration,
}

#[derive(Default)]
struct Waiting {
    next: u32,
    all: HashMap<u32, Waits>,
}

/// The requesting end of one connection.
pub(crate) struct Lane {
    pub(crate) class: Class,
    pub(crate) counters: Arc<Counters>,
    /// Of the node that is asked.
    pub(crate) flow: Arc<Flow>,
    most: usize,
    born: Instant,
    used_ms: AtomicU64,
    over: AtomicBool,
    waiting: Mutex<Waiting>,
    out: Mutex<Vec<u8>>,
    pub(super) stream: OnceLock<Arc<Link>>,
    pub(super) wake: Notify,
}

impl Lane {
    pub(crate) fn new(class: Class, counters: Arc<Counters>, flow: Arc<Flow>, most: usize) -> Arc<Lane> {
        Arc::new(Lane {
            class,
            counters,
            flow,
            most,
            born: base::time::monotonic(),
            used_ms: AtomicU64::new(0),
            over: AtomicBool::new(false),
            waiting: Mutex::default(),
            out: Mutex::default(),
            stream: OnceLock::new(),
            wake: Notify::new(),
        })
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn under_way(&self) -> usize {
        self.waiting.lock().all.len()
    }

    /// How long no request has been made.
    pub(super) fn idle(&self) -> Duration {
        self.born.elapsed().saturating_sub(Duration::from_millis(self.used_ms.load(Ordering::Relaxed)))
    }

    /// Sends a request. Its result goes to the slot.
    ///
    /// # Errors
    /// It cannot be sent, and the slot gets nothing.
    pub(crate) fn submit(
        &self,
        header: (Type, u8),
        payload: &[u8],
        slot: &Arc<Slot>,
        sink: Sink,
        time: Duration,
    ) -> Result<u32, Fail> {
        let mut waiting = self.waiting.lock();
        if self.is_over() {
            return Err(Fail::Gone("it ended just now".to_owned()));
        }
        if waiting.all.len() >= self.most {
            self.counters.fail(&Fail::Busy);
            return Err(Fail::Busy);
        }
        let alone = waiting.all.is_empty();
        // At most `most` requests are in flight, so their numbers never collide.
        let request = waiting.next;
        waiting.next = request.wrapping_add(1);
        let now = base::time::monotonic();
        waiting.all.insert(request, Waits { slot: Arc::clone(slot), sink, until: now + time, time });
        let used = now.saturating_duration_since(self.born);
        self.used_ms.store(used.as_millis() as u64, Ordering::Relaxed);
        Counters::one(&self.counters.asked);
        let head = Header { flags: header.1, ..Header::with(header.0, request, payload) };
        let mut out = self.out.lock();
        drop(waiting);
        out.extend_from_slice(&head.encode());
        out.extend_from_slice(payload);
        let sent = if alone { self.write(&mut out) } else { Ok(false) };
        drop(out);
        Counters::one(&self.counters.frames_out);
        if alone || !matches!(sent, Ok(true)) {
            // Even if everything is sent: the task then checks deadlines more often.
            self.wake.notify_one();
        }
        Ok(request)
    }

    /// Adds a frame that has no answer.
    pub(super) fn say(&self, kind: Type, request: u32, payload: &[u8]) {
        frame::put(&mut self.out.lock(), kind, request, payload);
        Counters::one(&self.counters.frames_out);
        self.wake.notify_one();
    }

    /// Answers a PING.
    ///
    /// # Errors
    /// `Protocol` if much waits to be sent already: a node that reads nothing must not make this one hold
    /// more and more answers.
    pub(super) fn pong(&self) -> Result<(), Fail> {
        if self.out.lock().len() > UNSENT_MAX {
            return Err(Fail::Protocol("it sends PINGs and does not read the answers".to_owned()));
        }
        self.say(Type::Pong, 0, &[]);
        Ok(())
    }

    /// Writes what has accumulated. True: nothing is left.
    pub(super) fn flush(&self) -> io::Result<bool> {
        self.write(&mut self.out.lock())
    }

    fn write(&self, out: &mut Vec<u8>) -> io::Result<bool> {
        let Some(stream) = self.stream.get() else { return Ok(false) };
        while !out.is_empty() {
            match stream.try_write(out) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    Counters::one(&self.counters.writes);
                    Counters::add(&self.counters.bytes_out, count as u64);
                    out.drain(..count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        stream.is_flushed()
    }

    /// Where an answer's bytes go. None if nobody waits any more.
    pub(super) fn sink(&self, request: u32) -> Option<Sink> {
        self.waiting.lock().all.get(&request).map(|waits| waits.sink.clone())
    }

    /// Whether a request of this number can have been made here.
    pub(super) fn has_asked(&self, request: u32) -> bool {
        let back = self.waiting.lock().next.wrapping_sub(request);
        (1..u32::MAX / 2).contains(&back)
    }

    pub(super) fn end_one(&self, request: u32, result: Result<Reply, Fail>) {
        let Some(waits) = self.waiting.lock().all.remove(&request) else { return };
        if let Err(fail) = &result {
            self.counters.fail(fail);
        }
        waits.slot.put(result);
    }

    /// Ends requests whose time is over. True: others are left.
    pub(super) fn sweep(&self) -> bool {
        let now = base::time::monotonic();
        let mut waiting = self.waiting.lock();
        let late: Vec<u32> =
            waiting.all.iter().filter(|(_, waits)| waits.until <= now).map(|(request, _)| *request).collect();
        let ended: Vec<_> = late.iter().filter_map(|request| waiting.all.remove(request)).collect();
        let left = !waiting.all.is_empty();
        drop(waiting);
        for (request, waits) in late.iter().zip(ended) {
            self.say(Type::Cancel, *request, &[]);
            Counters::one(&self.counters.late);
            waits.slot.put(Err(Fail::Late(waits.time)));
        }
        left
    }

    /// Closes the lane. All waiters get this error.
    pub(crate) fn end(&self, why: &Fail) {
        let mut waiting = self.waiting.lock();
        self.over.store(true, Ordering::Release);
        let all = std::mem::take(&mut waiting.all);
        drop(waiting);
        for (_, waits) in all {
            self.counters.fail(why);
            waits.slot.put(Err(why.clone()));
        }
        self.wake.notify_one();
    }
}

impl Undo for Lane {
    fn undo(&self, request: u32) {
        let gone = self.waiting.lock().all.remove(&request);
        if gone.is_some() {
            Counters::one(&self.counters.cancelled);
            self.say(Type::Cancel, request, &[]);
        }
    }
}

/// While more than this waits to be sent, no PING is answered.
const UNSENT_MAX: usize = 64 << 10;

/// The most that is read at once while frames are small.
pub(super) const READ: usize = frame::SMALL_MAX as usize + HEADER;
