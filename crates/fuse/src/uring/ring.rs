//! The thread of one ring: fetch, serve, commit.
//!
//! All entries of a ring belong to the thread that registered them: the kernel copies requests and replies in
//! that thread's name, and a commit from another thread would move the entry to another ring. So any other
//! thread leaves its reply in the [`Mailbox`]. An eventfd, on which the ring polls, wakes the owner.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use parking_lot::{Condvar, Mutex};

use super::entry::{Body, Entry, Region};
use super::yielding::Yielder;
use crate::abi::opcodes::wants_reply;
use crate::buffer::PageBuf;
use crate::channel::{Device, Sink};

type Uring = IoUring<squeue::Entry128, cqueue::Entry>;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Marks the completion of the poll on the eventfd. Entries are marked by their index.
const WOKEN: u64 = u64::MAX;
/// How long a ring that ends waits for the kernel to hand back its entries.
const PATIENCE: Duration = Duration::from_secs(5);

/// A ring with the settings of this transport. Works only if the system allows io_uring at all.
///
/// # Errors
/// The system's error.
pub(super) fn create(depth: usize) -> io::Result<Uring> {
    let mut builder = Uring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_cqsize(depth as u32 * 2 + 2).setup_clamp();
    builder.dontfork();
    // At most one submission per entry and one poll are under way, so the queue never overflows.
    builder.build(depth as u32 + 2)
}

/// Tries whether the system allows io_uring at all. A thread of its own makes the ring, for the reason that
/// [`Fallback`] gives.
///
/// # Errors
/// The system's error.
pub(super) fn allowed() -> io::Result<()> {
    let thread = base::thread::spawn("fuse-probe", || create(1).map(drop))?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that tried it failed")))
}

/// Gives up rings again: makes the kernel stop waiting for them and serve the mount through /dev/fuse alone.
/// It does so by a registration that fails.
///
/// It is made before INIT promises rings, because making it may be the step that fails (no descriptor is
/// left, or io_uring is forbidden). It has its own thread, because closing a ring interrupts the thread that
/// made it some time later. If the mounting thread made it, one of that thread's later system calls would end
/// with EINTR.
pub(crate) struct Fallback {
    take: mpsc::Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Fallback {
    /// Prepares it for the mount of this device.
    ///
    /// # Errors
    /// The system's error. Then there will be no rings either.
    pub(crate) fn prepare(device: &Device) -> io::Result<Fallback> {
        let number = device.number();
        let (ready, made) = mpsc::channel();
        let (take, taken) = mpsc::channel::<()>();
        let thread = base::thread::spawn("fuse-way-back", move || {
            let ring = create(1).and_then(|ring| ring.submitter().register_files(&[number]).map(|()| ring));
            let (mut ring, outcome) = match ring {
                Ok(ring) => (Some(ring), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let _ = ready.send(outcome);
            if let Some(ring) = &mut ring
                && taken.recv().is_ok()
            {
                fail_to_register(ring);
            }
        })?;
        made.recv().map_err(io::Error::other).flatten()?;
        Ok(Fallback { take, thread: Some(thread) })
    }

    /// Gives up rings. After this the kernel serves the mount through /dev/fuse.
    pub(super) fn take(mut self) {
        let _ = self.take.send(());
        // Wait until it is done, so that the next reader of /dev/fuse gets requests.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Asks for a queue that no machine has.
fn fail_to_register(ring: &mut Uring) {
    // SAFETY: the command names no memory.
    let pushed = unsafe { ring.submission().push(&command(REGISTER, u16::MAX, 0, None)) };
    if pushed.is_ok() {
        // If the wait is interrupted, the command was submitted all the same. Its refusal is all that
        // matters.
        let _ = ring.submit_and_wait(1);
    }
}

/// A command to the kernel's FUSE. `pieces` are only for registering.
fn command(kind: u32, queue: u16, unique: u64, pieces: Option<&[libc::iovec; 2]>) -> squeue::Entry128 {
    let mut arguments = [0; 80];
    arguments[8..16].copy_from_slice(&unique.to_ne_bytes());
    arguments[16..18].copy_from_slice(&queue.to_ne_bytes());
    let address = pieces.map(|pieces| pieces.as_ptr() as u64);
    let mut entry = opcode::UringCmd80::new(Fixed(0), kind).cmd(arguments).addr(address).build();
    if let Some(pieces) = pieces {
        const { assert!(size_of::<squeue::Entry128>() == 128) };
        const LEN: usize = 24;
        // SAFETY: a submission entry is 128 plain bytes. The length (32 bits) is at this offset, which the
        // kernel has fixed for ever. The builder has no method to set it.
        unsafe { (&raw mut entry).cast::<u8>().add(LEN).cast::<u32>().write(pieces.len() as u32) };
    }
    entry
}

/// One reply on its way to the ring thread.
pub(super) struct Answer {
    index: usize,
    unique: u64,
    error: i32,
    body: Body,
}

/// Where replies wait for the ring thread.
pub(super) struct Mailbox {
    answers: Mutex<Vec<Answer>>,
    wake: File,
    woken: AtomicBool,
    closed: AtomicBool,
    unused: AtomicBool,
    owner: OnceLock<ThreadId>,
    /// How often it was asked whether all replies have been submitted, and up to which question they have.
    asked: AtomicU64,
    settled: Mutex<u64>,
    settles: Condvar,
}

impl Mailbox {
    fn new() -> io::Result<Mailbox> {
        // SAFETY: eventfd takes numbers only.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Mailbox {
            answers: Mutex::default(),
            // SAFETY: the call has just created this descriptor, and nobody else has it.
            wake: unsafe { File::from_raw_fd(fd) },
            woken: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unused: AtomicBool::new(false),
            owner: OnceLock::new(),
            asked: AtomicU64::new(0),
            settled: Mutex::default(),
            settles: Condvar::new(),
        })
    }

    /// Leaves a reply. The ring thread itself needs no wake-up, because it looks here after each request.
    pub(super) fn post(&self, index: usize, unique: u64, error: i32, body: Body) {
        self.answers.lock().push(Answer { index, unique, error, body });
        if self.owner.get() != Some(&std::thread::current().id()) {
            self.wake();
        }
    }

    /// Waits until the replies that were left so far have been submitted to the kernel. False: that takes
    /// longer.
    pub(super) fn settle(&self, at_most: Duration) -> bool {
        let question = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.wake();
        let mut settled = self.settled.lock();
        let waits = |settled: &mut u64| *settled < question && !self.is_closed();
        !self.settles.wait_while_for(&mut settled, waits, at_most).timed_out()
    }

    /// All replies that were left before this question have been submitted.
    fn settle_up_to(&self, question: u64) {
        *self.settled.lock() = question;
        self.settles.notify_all();
    }

    /// Ends the ring.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends the ring before it was ever used. The connection lives on without it.
    pub(super) fn give_up(&self) {
        self.unused.store(true, Ordering::Release);
        self.close();
    }

    fn is_unused(&self) -> bool {
        self.unused.load(Ordering::Acquire)
    }

    /// Whether the ring has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.wake_again();
        }
    }

    /// Wakes the ring thread, even if it has not seen yet that it was woken.
    pub(super) fn wake_again(&self) {
        // This fails only if the counter is full, and then the thread is woken anyway.
        let _ = (&self.wake).write(&1_u64.to_ne_bytes());
    }

    fn awake(&self) {
        let _ = (&self.wake).read(&mut [0; 8]);
        self.woken.store(false, Ordering::Release);
    }
}

/// What a ring thread works with.
pub(super) struct Ring {
    queue: u16,
    uring: Uring,
    mailbox: Arc<Mailbox>,
    entries: Vec<Arc<Entry>>,
    sinks: Vec<Arc<dyn Sink>>,
    /// Which entries the kernel holds.
    with_kernel: Vec<bool>,
    /// Completions: mark and result.
    completions: Vec<(u64, i32)>,
    region: Arc<Region>,
}

impl Ring {
    /// Makes the ring of one queue and registers its entries. Call it on the thread that will run the ring.
    ///
    /// # Errors
    /// The system's error. If the first entry is accepted and a further one is refused, the ring only has
    /// less depth.
    pub(super) fn register(queue: u16, depth: usize, device: &Arc<Device>) -> io::Result<Ring> {
        let uring = create(depth)?;
        uring.submitter().register_files(&[device.number()])?;
        let mailbox = Arc::new(Mailbox::new()?);
        let _ = mailbox.owner.set(std::thread::current().id());
        let region = Region::new(depth)?;
        let entries: Vec<_> =
            (0..depth).map(|index| Arc::new(Entry::new(&region, index, &mailbox, device))).collect();
        let sinks = entries.iter().map(|entry| Arc::clone(entry) as _).collect();
        let mut ring = Ring {
            queue,
            uring,
            mailbox,
            entries,
            sinks,
            with_kernel: vec![false; depth],
            completions: Vec::new(),
            region,
        };
        let refused = ring.register_entries()?;
        match refused {
            Some(error) if !ring.with_kernel.contains(&true) => Err(error),
            _ => Ok(ring),
        }
    }

    pub(super) fn mailbox(&self) -> Arc<Mailbox> {
        Arc::clone(&self.mailbox)
    }

    pub(super) fn entries(&self) -> Vec<Weak<Entry>> {
        self.entries.iter().map(Arc::downgrade).collect()
    }

    fn register_entries(&mut self) -> io::Result<Option<io::Error>> {
        let pieces: Vec<_> = self.entries.iter().map(|entry| entry.pieces()).collect();
        for (index, pieces) in pieces.iter().enumerate() {
            self.push(&command(REGISTER, self.queue, 0, Some(pieces)).user_data(index as u64));
            self.with_kernel[index] = true;
        }
        self.poll();
        // The kernel reads the pieces while it takes the submissions, that is, before this call returns. A
        // refusal is there at once. An accepted entry completes when a request arrives.
        self.uring.submit()?;
        self.collect();
        let mut refused = None;
        // Requests arrive as soon as the last queue is registered. Those stay for `run`.
        self.completions.retain(|&(mark, result)| {
            if mark == WOKEN || result >= 0 {
                return true;
            }
            self.with_kernel[mark as usize] = false;
            refused = Some(io::Error::from_raw_os_error(-result));
            false
        });
        Ok(refused)
    }

    /// Takes what has completed.
    fn collect(&mut self) {
        let completed = self.uring.completion().map(|done| (done.user_data(), done.result()));
        self.completions.extend(completed);
    }

    /// Serves until the mount or the transport has ended.
    ///
    /// # Errors
    /// The system's error, if the ring cannot continue although neither has ended.
    pub(super) fn run(
        mut self,
        mut yielder: Option<Yielder>,
        mut serve: impl FnMut(&[u8], &mut [u8], &Arc<dyn Sink>),
    ) -> io::Result<()> {
        let mut scratch = PageBuf::for_reply();
        let mut batch = Vec::with_capacity(self.with_kernel.len());
        let mut settled = 0;
        let end = loop {
            std::mem::swap(&mut batch, &mut self.completions);
            let mut lost = None;
            for (mark, result) in batch.drain(..) {
                if mark == WOKEN {
                    self.mailbox.awake();
                    self.poll();
                    continue;
                }
                self.with_kernel[mark as usize] = false;
                if result < 0 {
                    lost = Some(io::Error::from_raw_os_error(-result));
                } else {
                    self.serve(mark as usize, scratch.bytes(), &mut serve);
                }
            }
            let question = self.mailbox.asked.load(Ordering::Acquire);
            let answered = self.commit();
            if question != settled && self.uring.submit().is_ok() {
                settled = question;
                self.mailbox.settle_up_to(question);
            }
            if let Some(error) = lost {
                match error.raw_os_error() {
                    Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED) => break Ok(()),
                    // ENOENT: the request was withdrawn with the connection. The end of the connection shows
                    // next, unless no entry is left that could show it.
                    Some(libc::ENOENT) if !self.is_dead() => {}
                    _ => break Err(error),
                }
            }
            if self.mailbox.is_closed() {
                break Ok(());
            }
            // Yield only for a single reply. With several, the other programs would wait until the first one
            // waits.
            if answered == 1 {
                yielder.iter_mut().for_each(Yielder::yield_cpu);
            }
            let waited = self.uring.submit_and_wait(1);
            yielder.iter_mut().for_each(Yielder::resume);
            match waited {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {}
                Err(error) => break Err(error),
            }
            self.collect();
        };
        self.retire();
        end
    }

    /// Serves the request in an entry.
    ///
    /// The kernel takes an entry back only with a commit, also for a request that gets no reply. It sends a
    /// FORGET this way if a listing names an inode that it cannot link, such as a folder that would be its
    /// own ancestor. The program that lists waits until that FORGET is committed, and no signal ends this
    /// wait.
    fn serve(
        &self,
        index: usize,
        scratch: &mut [u8],
        serve: &mut impl FnMut(&[u8], &mut [u8], &Arc<dyn Sink>),
    ) {
        let entry = &self.entries[index];
        // SAFETY: this is the ring thread, and the kernel has just handed over the entry.
        let (unique, request, room) = unsafe { entry.open() };
        if request.is_empty() {
            let _ = entry.reply(unique, -libc::EIO, &[]);
        } else {
            serve(request, room.unwrap_or(scratch), &self.sinks[index]);
            if !wants_reply(entry.opcode()) {
                let _ = entry.reply(unique, 0, &[]);
            }
        }
        entry.park();
    }

    /// Whether no request can arrive any more.
    fn is_dead(&self) -> bool {
        !self.with_kernel.contains(&true) && self.entries.iter().all(|entry| entry.held().is_none())
    }

    /// Puts a commit for every reply in the mailbox into the submission queue. Returns how many.
    fn commit(&mut self) -> usize {
        let answers = std::mem::take(&mut *self.mailbox.answers.lock());
        for answer in &answers {
            let Answer { index, unique, error, body } = answer;
            // SAFETY: this is the ring thread, and a reply is posted once between a fetch and its commit.
            unsafe { self.entries[*index].seal(*unique, *error, body) };
            let commit = command(COMMIT_AND_FETCH, self.queue, *unique, None).user_data(*index as u64);
            self.push(&commit);
            self.with_kernel[*index] = true;
        }
        answers.len()
    }

    fn poll(&mut self) {
        let wake = io_uring::types::Fd(self.mailbox.wake.as_raw_fd());
        let poll = opcode::PollAdd::new(wake, libc::POLLIN as u32).build().user_data(WOKEN);
        self.push(&poll.into());
    }

    /// Waits for the entries that the kernel still holds. When a connection ends, it hands all of them back.
    fn retire(&mut self) {
        self.mailbox.closed.store(true, Ordering::Release);
        let begun = base::time::monotonic();
        let pause = Timespec::new().nsec(20_000_000);
        while self.with_kernel.contains(&true) && !self.mailbox.is_unused() && begun.elapsed() < PATIENCE {
            let _ = self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&pause));
            self.collect();
            for (mark, _) in self.completions.drain(..).filter(|(mark, _)| *mark != WOKEN) {
                self.with_kernel[mark as usize] = false;
            }
        }
    }

    fn push(&mut self, entry: &squeue::Entry128) {
        // SAFETY: what an entry names (pieces when registering, the descriptors) outlives the submission. The
        // descriptors are this ring's, and an entry's memory is freed only after the kernel has handed it
        // back.
        let pushed = unsafe { self.uring.submission().push(entry) };
        debug_assert!(pushed.is_ok(), "the queue has space for every entry and the poll");
    }
}

impl Drop for Ring {
    /// The memory of an entry that is not handed back is never freed, because the kernel might write to it.
    fn drop(&mut self) {
        if self.with_kernel.contains(&true) {
            std::mem::forget(Arc::clone(&self.region));
        }
    }
}
