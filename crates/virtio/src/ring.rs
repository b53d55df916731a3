//! One virtqueue that runs: its threads, what is in flight, and how it stops.
//!
//! ```text
//!   kick ─► epoll ─► an idle thread takes one chain ─► serves it itself ─► used ring ─► call
//!                        └─ more there, and a thread is idle: wakes that one first
//! ```
//!
//! A single program costs no handover between threads, and many programs use all threads. Kicks stay enabled
//! while a request is served, so a request that takes long delays no other. What must wait for more than this
//! machine's disk moves to the dispatcher's workers, and its reply comes from there, in any order.
//!
//! **A queue that breaks the rules stops**, with a line in the log. The guest's other queues and other guests
//! go on. No rule depends on the guest's memory staying as it was when it was looked at.
//!
//! **Stopping.** The VMM stops a queue when the guest pauses, reboots or ends. Requests that were taken are
//! finished first, because a guest that only paused still waits for them. After that, nothing is written to
//! the guest's memory any more.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::Deadline;
use fs::Errno;
use fuse::abi::header::{Header, OUT_HEADER, out_header};
use fuse::buffer::{PageBuf, RequestBuf};
use fuse::channel::Sink;
use parking_lot::{Condvar, Mutex, RwLock};
use virtio_queue::{Queue, QueueT};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::chain::{self, BadChain, BadRing, Chain};
use crate::memory::Memory;
use crate::session::Session;

/// The memory of a guest, which the VMM may change.
pub type MemoryPlace = Arc<RwLock<Arc<Memory>>>;
/// Where to notify the guest. The VMM changes it while the queue runs.
pub type CallPlace = Arc<RwLock<Option<Arc<File>>>>;

/// What a queue needs to run.
pub struct Setup {
    /// The queue's number: 0 is the queue of FORGETs.
    pub index: usize,
    /// The rings, in the guest's addresses, and the number of descriptors.
    pub queue: Queue,
    /// Where the guest says that there is something.
    pub kick: File,
    /// Where to notify the guest.
    pub call: CallPlace,
    /// The guest's memory.
    pub memory: MemoryPlace,
    /// The guest.
    pub session: Arc<Session>,
    /// Numbers for threads, of all queues of the guest.
    pub lanes: Arc<AtomicUsize>,
    /// The number of threads.
    pub threads: usize,
}

/// Why a queue stopped by itself.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Chain(#[from] BadChain),
    #[error("{0}")]
    Ring(#[from] BadRing),
    #[error("more requests are in flight than it has descriptors")]
    Flood,
    #[error("waiting for its guest failed: {0}")]
    Io(#[from] io::Error),
}

/// Requests that were taken and have no reply, and the threads that take them.
#[derive(Default)]
struct Flight {
    requests: usize,
    bytes: usize,
    threads: usize,
}

struct Shared {
    index: usize,
    /// The right to take from the available ring and to append to the used ring. Nothing else is locked or
    /// waited for while it is held.
    queue: Mutex<Queue>,
    memory: MemoryPlace,
    call: CallPlace,
    session: Arc<Session>,
    epoll: Epoll,
    /// Registered with `epoll`, so it must live as long.
    _kick: File,
    /// Wakes one idle thread.
    more: EventFd,
    /// Wakes all threads, for ever.
    quit: EventFd,
    /// Threads that wait, or are about to.
    idle: AtomicUsize,
    stopped: AtomicBool,
    /// Whether the guest's memory may be written to. Held while it is.
    open: RwLock<bool>,
    flight: Mutex<Flight>,
    landed: Condvar,
}

/// A queue that runs. [`Ring::stop`] it before it is dropped.
pub struct Ring(Arc<Shared>);

impl Ring {
    /// Starts the threads.
    ///
    /// # Errors
    /// The rings are not in the guest's memory, the kick is nothing to wait for, or the system's error.
    pub fn start(setup: Setup) -> io::Result<Ring> {
        let Setup { index, mut queue, kick, call, memory, session, lanes, threads } = setup;
        let mapped = Arc::clone(&memory.read());
        queue.set_ready(true);
        if !queue.is_valid(&*mapped) {
            return Err(io::Error::other(format!("queue {index} is outside of the guest's memory")));
        }
        // What is in flight at a pause has a reply before it, so the two rings agree.
        let used = queue.used_idx(&*mapped, Ordering::Acquire).map_err(io::Error::other)?;
        queue.set_next_used(used.0);
        let event = || EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK);
        let (epoll, more, quit) = (Epoll::new()?, event()?, event()?);
        let edge = EventSet::IN | EventSet::EDGE_TRIGGERED;
        for (fd, events) in
            [(kick.as_raw_fd(), edge), (more.as_raw_fd(), edge), (quit.as_raw_fd(), EventSet::IN)]
        {
            epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(events, 0))?;
        }
        let ring = Ring(Arc::new(Shared {
            index,
            queue: Mutex::new(queue),
            memory,
            call,
            session,
            epoll,
            _kick: kick,
            more,
            quit,
            idle: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            open: RwLock::new(true),
            flight: Mutex::default(),
            landed: Condvar::new(),
        }));
        for _ in 0..threads.max(1) {
            if let Err(error) = ring.spawn(lanes.fetch_add(1, Ordering::Relaxed)) {
                ring.stop(Duration::ZERO);
                return Err(error);
            }
        }
        Ok(ring)
    }

    fn spawn(&self, lane: usize) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        shared.flight.lock().threads += 1;
        let index = shared.index;
        let spawned = base::thread::spawn(&format!("guest-ring-{index}"), move || shared.work(lane));
        if spawned.is_err() {
            self.0.flight.lock().threads -= 1;
        }
        spawned.map(drop)
    }

    /// Stops it: what was taken is finished within this time, or its replies are dropped. Returns the
    /// position of the first request that was not taken.
    pub fn stop(&self, patience: Duration) -> u16 {
        let (shared, until) = (&self.0, Deadline::after(patience));
        shared.halt();
        let mut flight = shared.flight.lock();
        while (flight.requests > 0 || flight.threads > 0) && !until.is_over() {
            shared.landed.wait_for(&mut flight, until.left());
        }
        let left = flight.requests;
        drop(flight);
        *shared.open.write() = false;
        if left > 0 && !patience.is_zero() {
            shared.session.log(&format!("queue {} stopped, and {left} requests have no reply", shared.index));
        }
        shared.queue.lock().next_avail()
    }
}

impl Shared {
    /// Takes no more requests.
    fn halt(&self) {
        self.stopped.store(true, Ordering::Release);
        let _ = self.quit.write(1);
        let _flight = self.flight.lock();
        self.landed.notify_all();
    }

    /// The guest broke the rules.
    fn give_up(&self, why: &Broken) {
        if !self.stopped.load(Ordering::Acquire) {
            self.session.complain(&format!("queue {} stopped for good: {why}", self.index));
        }
        self.halt();
    }

    /// The body of a thread.
    fn work(self: &Arc<Self>, lane: usize) {
        base::thread::must_not_wait();
        let lane = lane % self.session.door().options().lanes();
        let (mut request, mut room) = (RequestBuf::new(), PageBuf::for_reply());
        while !self.stopped.load(Ordering::Acquire) {
            match self.next() {
                Ok(Some(chain)) => self.serve(lane, chain, request.bytes(), room.bytes()),
                Ok(None) => {}
                Err(why) => self.give_up(&why),
            }
        }
        let mut flight = self.flight.lock();
        flight.threads -= 1;
        self.landed.notify_all();
    }

    /// Waits for a request. `None`: look whether the queue was stopped.
    fn next(&self) -> Result<Option<Chain>, Broken> {
        self.wait_for_room();
        // It counts as idle before it looks for the last time. So a thread that sees more requests wakes
        // this one, or this one sees them.
        self.idle.fetch_add(1, Ordering::SeqCst);
        let popped = self.pop();
        if let Ok((None, false)) = popped {
            let mut events = [EpollEvent::default()];
            let waited = self.epoll.wait(-1, &mut events);
            self.idle.fetch_sub(1, Ordering::SeqCst);
            return match waited {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
                _ => Ok(None),
            };
        }
        self.idle.fetch_sub(1, Ordering::SeqCst);
        let (chain, more) = popped?;
        if more && self.idle.load(Ordering::SeqCst) > 0 {
            let _ = self.more.write(1);
        }
        Ok(chain)
    }

    /// The bytes in flight are bounded. More requests of this queue wait in the guest.
    fn wait_for_room(&self) {
        let most = self.session.door().options().bytes as usize;
        let mut flight = self.flight.lock();
        while flight.bytes >= most && !self.stopped.load(Ordering::Acquire) {
            self.landed.wait(&mut flight);
        }
    }

    /// Takes the next request, if there is one, and says whether there are more.
    fn pop(&self) -> Result<(Option<Chain>, bool), Broken> {
        let memory = Arc::clone(&self.memory.read());
        let (descriptors, more, size) = {
            let mut queue = self.queue.lock();
            let (descriptors, more) = chain::take(&mut queue, &memory)?;
            (descriptors, more, queue.size())
        };
        let Some(descriptors) = descriptors else { return Ok((None, more)) };
        let chain = Chain::read(descriptors, memory)?;
        let mut flight = self.flight.lock();
        // A driver that works has a descriptor for each. So requests that wait take bounded memory.
        if flight.requests >= size.into() {
            return Err(Broken::Flood);
        }
        flight.requests += 1;
        flight.bytes += chain.cost();
        Ok((Some(chain), more))
    }

    fn serve(self: &Arc<Self>, lane: usize, chain: Chain, request: &mut [u8], room: &mut [u8]) {
        let asked = chain.asked();
        let len = chain.gather(request);
        let unique = Header::unique_of(&request[..len]);
        let replying =
            Arc::new(Replying { ring: Arc::clone(self), chain, unique, done: AtomicBool::new(false) });
        if len < asked {
            self.session.complain(&format!("a request has {asked} bytes, which is more than any may have"));
            return;
        }
        self.session.serve(lane, &mut request[..len], room, &(replying as Arc<dyn Sink>));
    }

    /// Ends a request: its reply is copied to the guest, and the guest is notified.
    fn finish(&self, chain: &Chain, reply: [&[u8]; 2]) -> io::Result<()> {
        let open = self.open.read();
        self.land(chain.cost());
        if !*open {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let written = chain.scatter(reply);
        let memory = Arc::clone(&self.memory.read());
        let used = {
            let mut queue = self.queue.lock();
            let used = queue.add_used(&*memory, chain.head(), written as u32);
            used.and_then(|()| queue.needs_notification(&*memory))
        };
        match used {
            Ok(true) => self.notify(),
            Ok(false) => {}
            Err(error) => {
                self.give_up(&Broken::Ring(error.into()));
                return Err(io::ErrorKind::NotConnected.into());
            }
        }
        Ok(())
    }

    fn land(&self, bytes: usize) {
        let mut flight = self.flight.lock();
        flight.requests = flight.requests.saturating_sub(1);
        flight.bytes = flight.bytes.saturating_sub(bytes);
        self.landed.notify_all();
    }

    fn notify(&self) {
        let call = self.call.read().clone();
        // A guest that polls has no call. One that is full is as good as written.
        call.iter().for_each(|call| _ = (&**call).write(&1_u64.to_ne_bytes()));
    }
}

/// Takes the reply to one request. A request that gets none, as FORGET, ends when this is dropped.
struct Replying {
    ring: Arc<Shared>,
    chain: Chain,
    unique: Option<u64>,
    done: AtomicBool,
}

impl Sink for Replying {
    fn reply(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        if self.done.swap(true, Ordering::AcqRel) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if OUT_HEADER + body.len() <= self.chain.room() {
            return self.ring.finish(&self.chain, [&out_header(body.len(), error, unique), body]);
        }
        self.ring.session.complain("a request has too little room for its reply");
        let header = out_header(0, -Errno::EIO.0, unique);
        let header: &[u8] = if self.chain.takes_reply() { &header } else { &[] };
        self.ring.finish(&self.chain, [header, &[]])?;
        Err(io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// The kernel of this guest cannot be told anything.
    fn notify(&self, _: i32, _: &[&[u8]]) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Replying {
    fn drop(&mut self) {
        if self.done.load(Ordering::Acquire) {
            return;
        }
        match self.unique {
            Some(unique) if self.chain.takes_reply() => _ = self.reply(unique, -Errno::EIO.0, &[]),
            _ => _ = self.ring.finish(&self.chain, [&[], &[]]),
        }
    }
}
