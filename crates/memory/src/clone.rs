//! A clone: a virtual machine whose memory comes from the snapshot.
//!
//! ```text
//!   missing ──claim──► in flight ──bytes in their place──► done
//! ```
//!
//! Each block passes these states once. A fault of a missing block claims it, with some blocks behind it if
//! those before it are there already, because then the clone reads on. A fault of a block in flight waits for
//! it. A fault of a block that is done means that its page was given back: it gets zeros.
//!
//! The threads of a clone take turns. One waits for the kernel; it collects what the kernel says, lets the
//! next one wait, and serves a fault itself. So no fault costs a handover between threads, and a fault that
//! waits for a store holds up no other as long as a thread is free.
//!
//! **The order of events.** When a clone gives pages back, its madvise(2) waits until this server has read
//! the event, and only then the kernel drops the pages. Bytes of the snapshot that were put there later would
//! be wrong. So events are read under the lock of [`Removed`] for writing, and bytes are put in their place
//! under the same lock for reading: a page that is given back is either filled before, and dropped by the
//! kernel, or known here as given back. While an event waits, the kernel refuses copies (EAGAIN). The thread
//! that gets this reads the events itself, so a clone of which all threads copy does not stand still.

mod fill;
mod install;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::time::monotonic;
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::handshake::Region;
use crate::layout::Layout;
use crate::list::{List, Span};
use crate::removed::Removed;
use crate::source::Source;
use crate::uffd::{Event, Uffd};

/// A read that takes so long is reported, and again after [`REPORT_AGAIN`].
const SLOW_READ: Duration = Duration::from_secs(3);
const REPORT_AGAIN: Duration = Duration::from_secs(30);
/// The pause before a descriptor that could not be read is read again.
const UNREADABLE: Duration = Duration::from_millis(100);
/// What is touched for so long after the start goes to the list. Later touches are the work of the clone, and
/// say little about the next one.
pub const WINDOW: Duration = Duration::from_secs(30);

const MISSING: u8 = 0;
const IN_FLIGHT: u8 = 1;
const DONE: u8 = 2;

/// The importance of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// An event.
    Info,
    /// Something was handled that should not happen.
    Warn,
    /// A clone has ended by it.
    Error,
}

/// Receives the lines of the log.
pub type Log = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// What all clones share.
pub struct Common {
    /// The snapshot.
    pub source: Arc<dyn Source>,
    /// How long the source may fail before a clone is given up.
    pub patience: Duration,
    /// The log.
    pub log: Log,
    /// Buffers that are not in use.
    pub buffers: Buffers,
}

/// Buffers for bytes on their way, kept for the next use.
#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// So many are kept.
    const KEPT: usize = 32;

    fn take(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        if buffer.len() < len {
            buffer = vec![0; len];
        }
        buffer
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut kept = self.0.lock();
        if kept.len() < Buffers::KEPT {
            kept.push(buffer);
        }
    }
}

/// Why a clone is served no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The clone's VMM is gone.
    Gone,
    /// The clone cannot be served, for this reason.
    Failed(String),
    /// The server ends.
    Stopped,
}

/// The clone is served no more. The reason is in [`Clone::end`].
#[derive(Debug)]
pub(crate) struct Over;

/// What was done for a clone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Page faults.
    pub faults: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes of zeros, which take no memory of the VMM as long as it only reads them.
    pub zeros: u64,
    /// Of both, bytes that were there before a fault asked for them.
    pub ahead: u64,
}

/// What only the thread that waits for the kernel needs.
#[derive(Default)]
struct Turn {
    /// The process of the VMM, which becomes readable when it has ended. `None`: not known, or it has ended
    /// and its memory lives on in another process.
    process: Option<OwnedFd>,
}

#[derive(Default)]
struct Counters {
    faults: AtomicU64,
    copied: AtomicU64,
    zeros: AtomicU64,
    ahead: AtomicU64,
}

/// A clone. See the [module](self).
pub struct Clone {
    /// The clone's number, for the log.
    pub number: u64,
    common: Arc<Common>,
    uffd: Uffd,
    layout: Layout,
    states: Vec<AtomicU8>,
    /// Held for writing while events are read, and for reading while bytes are put in their place.
    removed: RwLock<Removed>,
    /// Addresses of faults that no thread has taken yet.
    pending: Mutex<VecDeque<u64>>,
    /// Addresses of faults in blocks in flight. A block becomes done under this lock.
    late: Mutex<Vec<u64>>,
    /// Held by the thread that waits for the kernel.
    turn: Mutex<Turn>,
    /// The reads of the snapshot that are under way: since when, and from which offset on.
    reading: Mutex<BTreeSet<(Instant, u64)>>,
    /// When a slow read was last reported.
    reported: Mutex<Option<Instant>>,
    /// Wakes that thread.
    wake: OwnedFd,
    over: AtomicBool,
    end: OnceLock<End>,
    /// What it touched in its first time. `None`: that time is over.
    touched: Mutex<Option<List>>,
    began: Instant,
    counters: Counters,
}

impl Clone {
    /// A clone with these regions, which passed [`crate::handshake::check`].
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn new(number: u64, regions: &[Region], uffd: Uffd, common: Arc<Common>) -> std::io::Result<Clone> {
        let layout = Layout::new(regions);
        Ok(Clone {
            number,
            common,
            uffd,
            states: (0..layout.blocks()).map(|_| AtomicU8::new(MISSING)).collect(),
            layout,
            removed: RwLock::default(),
            pending: Mutex::default(),
            late: Mutex::default(),
            turn: Mutex::default(),
            reading: Mutex::default(),
            reported: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            over: AtomicBool::new(false),
            end: OnceLock::new(),
            touched: Mutex::new(Some(List::default())),
            began: monotonic(),
            counters: Counters::default(),
        })
    }

    /// Adds the VMM's process, if it is known, by a descriptor of pidfd_open(2). Its end is then noticed at
    /// once, and not only when something calls [`Clone::look`].
    #[must_use]
    pub fn with_process(mut self, process: Option<OwnedFd>) -> Clone {
        self.turn.get_mut().process = process;
        self
    }

    /// The number of regions, and of bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.layout.regions(), self.layout.bytes())
    }

    /// The figures.
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { faults, copied, zeros, ahead } = &self.counters;
        Counts { faults: of(faults), copied: of(copied), zeros: of(zeros), ahead: of(ahead) }
    }

    /// Why it is served no more. `None`: it is served.
    pub fn end(&self) -> Option<&End> {
        self.end.get()
    }

    /// What it touched so far, and whether that is all for the list.
    pub fn touched(&self) -> (List, bool) {
        let over = self.is_over() || self.began.elapsed() >= WINDOW;
        let mut touched = self.touched.lock();
        match over {
            true => (touched.take().unwrap_or_default(), true),
            false => (touched.as_ref().map(List::clone).unwrap_or_default(), false),
        }
    }

    /// Whether its first time is going on, so that it still says what it touches.
    pub fn is_young(&self) -> bool {
        self.touched.lock().is_some()
    }

    /// Ends it, as soon as what it reads has come. Only the first reason counts.
    pub fn stop(&self, why: End) {
        let _ = self.end.set(why);
        self.over.store(true, Ordering::Release);
        self.notify();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Makes the thread that waits for the kernel look at what there is to do.
    fn notify(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// The body of each thread of a clone.
    pub fn work(&self) {
        while !self.is_over() {
            let next = self.pending.lock().pop_front();
            match next {
                Some(address) => self.fault(address),
                None => self.wait(),
            }
        }
    }

    /// Waits for the kernel, in turn with the other threads.
    fn wait(&self) {
        let mut turn = self.turn.lock();
        if self.is_over() || !self.pending.lock().is_empty() {
            return;
        }
        let wake = self.wake.as_fd();
        let process = turn.process.as_ref().map_or(wake, AsFd::as_fd);
        let mut on = [self.uffd.as_fd(), wake, process].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = poll(&mut on, None);
        let has_ended = turn.process.is_some() && !on[2].revents().is_empty();
        let is_broken = on[0].revents().contains(PollFlags::ERR);
        // At the end it stays set, for all threads.
        if !on[1].revents().is_empty() && !self.is_over() {
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if has_ended {
            turn.process = None;
            if self.uffd.is_gone() {
                return self.stop(End::Gone);
            }
        }
        if is_broken {
            // It cannot be waited for any more.
            return self.unreadable("it blocks now, or is not set up");
        }
        self.collect();
    }

    /// To be called now and then: notices that the VMM is gone, and reports reads that take long.
    pub fn look(&self) {
        if self.uffd.is_gone() {
            return self.stop(End::Gone);
        }
        let Some((since, offset)) = self.reading.lock().first().copied() else { return };
        let mut reported = self.reported.lock();
        if since.elapsed() >= SLOW_READ && reported.is_none_or(|at| at.elapsed() >= REPORT_AGAIN) {
            *reported = Some(monotonic());
            let (number, waited) = (self.number, since.elapsed().as_secs());
            let line =
                format!("clone {number} has waited {waited} s for the snapshot's bytes from {offset} on");
            (self.common.log)(Level::Warn, &line);
        }
    }

    /// Reads what the kernel has to say.
    fn collect(&self) {
        let mut removed = self.removed.write();
        let mut pending = self.pending.lock();
        let mut strange = None;
        let pages = (self.layout.bytes() / 4096) as usize;
        let read = self.uffd.events(&mut |event| match event {
            Event::Fault(address) => pending.push_back(address),
            Event::Removed(from, to) => {
                self.layout.bits(from, to).into_iter().for_each(|bits| removed.mark(bits, pages));
            }
            Event::Other(what) => strange = Some(what),
        });
        let some = !pending.is_empty();
        drop((pending, removed));
        match (read, strange) {
            (Err(error), _) => self.unreadable(&error.to_string()),
            (Ok(()), Some(what)) => self.fail(what),
            // Another thread may be waiting for the kernel.
            (Ok(()), None) if some => self.notify(),
            (Ok(()), None) => {}
        }
    }

    /// The descriptor cannot be read. Polling it would end at once, again and again.
    fn unreadable(&self, why: &str) {
        self.fail(&format!("the descriptor that it sent cannot be read: {why}"));
        if self.uffd.is_broken() {
            // The kernel says nothing more on it.
            self.over.store(true, Ordering::Release);
            self.notify();
        } else if !self.is_over() {
            // The kernel cannot poison pages, so the descriptor stays open.
            std::thread::sleep(UNREADABLE);
        }
    }

    /// Gives the clone up, so that it never sees other bytes than the snapshot's.
    fn fail(&self, why: &str) {
        if self.end.set(End::Failed(why.to_owned())).is_err() {
            return;
        }
        let number = self.number;
        (self.common.log)(Level::Error, &format!("clone {number} cannot go on: {why}"));
        if self.poison() {
            let line =
                format!("clone {number}: its VMM gets SIGBUS where it touches memory that is not there");
            (self.common.log)(Level::Error, &line);
            self.over.store(true, Ordering::Release);
        } else {
            // Its descriptor stays open until the VMM is gone. If it were closed, the kernel could give the
            // VMM zeros instead.
            let line = format!(
                "clone {number}: its VMM waits for ever where it touches memory that is not there, because this \
                 kernel cannot poison pages (Linux 6.6 can): end it"
            );
            (self.common.log)(Level::Error, &line);
        }
        self.notify();
    }

    fn note(&self, span: Span) {
        if let Some(list) = self.touched.lock().as_mut() {
            list.push(span);
        }
    }
}
