//! From a request's bytes to its reply.
//!
//! A reader thread calls [`Dispatcher::serve`] with one request. It looks the opcode up in the table, decodes
//! the arguments, and calls the filesystem on the same thread. If the call would wait, a worker of
//! [`defer`](crate::defer) makes it instead. Every request that expects a reply gets exactly one. The reply
//! to a malformed request is EIO or EINVAL, and the reply to a request whose handler panicked is EIO.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use base::Ino;
use fs::Errno;
use fs::api::{FetchTask, Fetched, Lock, LockKind, Part, ReadPlan, Start, Touched, Waiting};

use crate::Log;
use crate::abi::header::Header;
use crate::abi::init::Agreed;
use crate::abi::opcodes::{self, Mounted, Policy, wants_reply};
use crate::abi::ops::{Op, forget_pairs};
use crate::channel::Sink;
use crate::counts::Counts;
use crate::defer::{PendingRequest, PendingTable, Pool};
use crate::execute::{self, Client, Done};
use crate::late::Wait;
use crate::notify::{self, Notifier};
use crate::pending_flush::PendingFlushes;
use crate::shared::SharedMount;
use crate::swap::{Pass, Swap};
use crate::watch::{Outcome, Span, Watch};

mod holding;
mod keeping;
mod locking;
mod panics;
pub(crate) use locking::LockReply;
use panics::panic_text;

/// Makes the kernel send the dirty pages that it holds of a file.
pub trait PushDirty: Send + Sync {
    /// Sends all dirty pages of one file. The caller drops the returned value after it has replied.
    fn push(&self, sink: &dyn Sink, ino: Ino) -> Box<dyn std::any::Any>;
}

/// The parts that a dispatcher works with.
pub struct Parts {
    /// The filesystem that serves the requests.
    pub fs: Arc<Swap>,
    /// What INIT negotiated.
    pub agreed: Agreed,
    /// The table of pending requests.
    pub pending_table: Arc<PendingTable>,
    /// The worker threads for pending requests.
    pub workers: Arc<Pool>,
    /// The worker threads for writes that must wait. They are separate, so that reads never queue behind
    /// writes.
    pub writers: Arc<Pool>,
    /// The threads for SEEK_DATA and SEEK_HOLE. A seek first waits until WRITEs have been answered, so WRITEs
    /// must never queue behind a seek.
    pub seeker: Arc<Pool>,
    /// The threads that release locks. They are separate, so that nothing that waits delays a release.
    pub unlockers: Arc<Pool>,
    /// The state of a shared mount. `None` for an exclusive or frozen one.
    pub shared: Option<Arc<SharedMount>>,
    /// The kernel cannot be told what to drop from its caches. It may keep names and attributes for so long.
    pub untold: Option<Duration>,
    /// How to flush the kernel's dirty pages. `None` if the kernel cannot hold any.
    pub dirty: Option<Arc<dyn PushDirty>>,
    /// Flushes of timestamps that the kernel has not sent yet. `None` if the kernel keeps no timestamps.
    pub flushes: Option<Arc<PendingFlushes>>,
    /// Sends invalidations to the kernel.
    pub notifier: Notifier,
    /// Counts the requests.
    pub counts: Arc<Counts>,
    /// Measures how long requests take. Its last lane belongs to the workers.
    pub watch: Arc<Watch>,
    /// Receives the lines of the log.
    pub log: Log,
}

/// Where a request is counted and measured.
struct Timed {
    /// The thread that received it.
    lane: usize,
    span: Option<Span>,
    /// Held until the reply.
    pass: Pass,
}

/// Serves the requests of one mount. All threads of the mount share it.
#[derive(Clone)]
pub struct Dispatcher(Arc<Parts>);

impl Dispatcher {
    /// A dispatcher of these parts.
    pub fn new(parts: Parts) -> Dispatcher {
        Dispatcher(Arc::new(parts))
    }

    /// Serves one request: replies on `sink`, or hands the request to a worker that will reply. `lane` is the
    /// number of the calling thread. `room` is the buffer for the reply's body.
    pub fn serve(&self, lane: usize, request: &[u8], room: &mut [u8], sink: &Arc<dyn Sink>) {
        let work = || self.serve_request(lane, request, room, sink);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.answer_panic(request, &*panic, &**sink);
        }
    }

    fn serve_request(&self, lane: usize, request: &[u8], room: &mut [u8], sink: &Arc<dyn Sink>) {
        let span = self.0.watch.begin(lane);
        let (header, arguments) = match Header::split(request) {
            Ok(parts) => parts,
            Err(error) => {
                self.0.watch.suspend(span);
                (self.0.log)("fuse: a request arrived without a complete header");
                if let Some(unique) = Header::unique_of(request) {
                    let _ = sink.reply(unique, -error.0, &[]);
                }
                return;
            }
        };
        self.0.counts.lane(lane).count(header.opcode);
        let (op, pass) = match self.admit(&header, arguments) {
            Ok(admitted) => admitted,
            Err(error) => return self.refuse(lane, span, &header, error, &**sink),
        };
        if let Op::Interrupt { unique } = op {
            self.0.watch.suspend(span);
            if !self.interrupt_lock(unique) {
                self.0.pending_table.interrupt(unique);
            }
            return;
        }
        let span = span.map(|span| match op {
            Op::Read { offset, .. } | Op::Write { offset, .. } => span.at_offset(offset),
            _ => span,
        });
        self.note_closed(&header, &op);
        let timed = Timed { lane, span, pass };
        if self.serve_lock(&timed, &header, &op, sink) {
            return;
        }
        let plan = self.plan(&header, &op);
        if self.defer(&timed, &header, &op, plan.as_ref(), request, sink) {
            self.0.watch.suspend(span);
            return;
        }
        let mark = self.mark();
        let result = self.run(request, &header, &op, plan.as_ref(), room);
        if let Err(Errno::WAITS) = result {
            let op = (&op, op.waiting_shared(header.ino));
            self.hand_over(&timed, &header, op, None, request, sink);
            return self.0.watch.suspend(span);
        }
        self.note_flushes(&header, &op, &result);
        let answered = self.0.watch.answering(span);
        if wants_reply(header.opcode) {
            invalidate_mode(&result, &**sink);
            self.tell_of_bytes(&result);
            let sent = match &result {
                Ok(done) => self.deliver(mark, done, room, |body| sink.reply(header.unique, 0, body)),
                Err(error) => sink.reply(header.unique, -error.0, &[]),
            };
            if sent.is_err() {
                self.undeliverable(&header, &op, &result, sent);
            }
        }
        let outcome = outcome(&op, &result);
        self.0.counts.lane(lane).ended(header.opcode, outcome);
        self.0.watch.end(lane, answered, &header, outcome);
    }

    /// Answers a request that is not served with an error.
    fn refuse(&self, lane: usize, span: Option<Span>, header: &Header, error: Errno, sink: &dyn Sink) {
        let answered = self.0.watch.answering(span);
        if wants_reply(header.opcode) {
            let _ = sink.reply(header.unique, -error.0, &[]);
        }
        let outcome = Outcome { bytes: 0, error: error.0 as u32 };
        self.0.counts.lane(lane).ended(header.opcode, outcome);
        self.0.watch.end(lane, answered, header, outcome);
    }

    /// Decodes the operation if the opcode table allows it, and waits until the filesystem is served.
    fn admit<'a>(&self, header: &Header, arguments: &'a [u8]) -> Result<(Op<'a>, Pass), Errno> {
        let Some(pass) = self.0.fs.enter() else {
            self.forget_later(header, arguments);
            return Err(Errno::EIO);
        };
        let mounted = self.0.shared.as_deref().map_or(Mounted::Alone, SharedMount::mounted);
        match opcodes::policy(header.opcode, mounted) {
            Some(Policy::Served) => Ok((Op::read(header, arguments, &self.0.agreed)?, pass)),
            Some(Policy::Refused(error)) => Err(Errno(error)),
            Some(Policy::Kernel) | None => Err(Errno::ENOSYS),
        }
    }

    /// There is no filesystem now. What the kernel forgets meanwhile is told to the next one.
    fn forget_later(&self, header: &Header, arguments: &[u8]) {
        match Op::read(header, arguments, &self.0.agreed) {
            Ok(Op::Forget { count }) => self.0.fs.forget_later(header.ino, count),
            Ok(Op::BatchForget { pairs }) => {
                forget_pairs(pairs).for_each(|(ino, count)| self.0.fs.forget_later(ino, count));
            }
            _ => {}
        }
    }

    /// Looks a read's names up. If this panics, the read panics too, and is answered there.
    fn plan(&self, header: &Header, op: &Op<'_>) -> Option<ReadPlan> {
        let Op::Read { offset, len } = *op else { return None };
        catch_unwind(AssertUnwindSafe(|| self.0.fs.now().plan_read(header.ino, offset, len))).ok()
    }

    fn is_at_hand(&self, parts: &[Part<'_>], change: bool) -> bool {
        // The same panic occurs again when the request is served, and is answered there.
        catch_unwind(AssertUnwindSafe(|| self.0.fs.now().is_at_hand(parts, change))).unwrap_or(true)
    }

    /// Calls the filesystem. A panic becomes EIO and a line in the log.
    fn run(
        &self,
        request: &[u8],
        header: &Header,
        op: &Op<'_>,
        plan: Option<&ReadPlan>,
        room: &mut [u8],
    ) -> Result<Done, Errno> {
        let client = Client { shared: self.0.shared.as_deref(), limited: self.0.untold.is_some() };
        let work = || {
            let fs = self.0.fs.now();
            self.holding(&*fs, request, || execute::run(&*fs, client, header, op, plan, room))
        };
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            let name = opcodes::find(header.opcode).map_or("?", |line| line.name);
            let why = panic_text(&*panic);
            (self.0.log)(&format!(
                "fuse: {name} of inode {} panicked and was answered EIO: {why}",
                header.ino
            ));
            Err(Errno::EIO)
        })
    }

    /// Hands the request to a worker if it must wait. Returns true if it did, or if the request failed at
    /// once because it may not wait.
    fn defer(
        &self,
        timed: &Timed,
        header: &Header,
        op: &Op<'_>,
        plan: Option<&ReadPlan>,
        request: &[u8],
        sink: &Arc<dyn Sink>,
    ) -> bool {
        let seek = matches!(op, Op::Seek { .. }) && self.0.dirty.is_some();
        let waiting = match self.0.shared {
            Some(_) => op.waiting_shared(header.ino),
            None => op.waiting(header.ino),
        };
        // Under leases: whether what the operation needs is in memory.
        let at_hand = self
            .leases()
            .map(|_| op.parts(header.ino).is_some_and(|(parts, change)| self.is_at_hand(&parts, change)));
        let waits = |waiting| match (waiting, plan) {
            (Waiting::Read { .. }, plan) => plan.is_some_and(|plan| plan.waits),
            (Waiting::Look | Waiting::Change, _) if at_hand.is_some() => at_hand == Some(false),
            (Waiting::Write, _) if at_hand == Some(false) => true,
            // The same panic occurs again when the request is served, and is answered there.
            _ => catch_unwind(AssertUnwindSafe(|| self.0.fs.now().would_wait(waiting))).unwrap_or(false),
        };
        if !seek && !waiting.is_some_and(waits) {
            return false;
        }
        self.hand_over(timed, header, (op, waiting), plan, request, sink);
        true
    }

    /// Hands a request that has to wait to a worker, or answers it if it may not wait.
    fn hand_over(
        &self,
        timed: &Timed,
        header: &Header,
        (op, waiting): (&Op<'_>, Option<Waiting>),
        plan: Option<&ReadPlan>,
        request: &[u8],
        sink: &Arc<dyn Sink>,
    ) {
        let Timed { lane, span, ref pass } = *timed;
        let wait = self.0.pending_table.may_wait(waiting);
        if wait == Wait::Never {
            if let (Op::Write { .. }, Some(flushes)) = (op, &self.0.flushes) {
                flushes.write_failed(header.ino);
            }
            return self.refuse(lane, span, header, Errno::EIO, &**sink);
        }
        if let (Op::Write { .. }, Some(flushes)) = (op, &self.0.flushes) {
            flushes.write_begins(header.ino);
        }
        let (unique, caller) = (header.unique, header.caller.pid);
        let pending = match self.must_be_told(op) {
            // Its reply may not come early, because its pages could then stay wrong in the kernel for ever.
            true => self.0.pending_table.outside(unique, waiting, sink),
            false => self.0.pending_table.enter_with(unique, caller, waiting, wait, sink),
        };
        let pool = match waiting {
            _ if matches!(op, Op::Seek { .. }) && self.0.dirty.is_some() => &self.0.seeker,
            Some(Waiting::Write) => &self.0.writers,
            _ => &self.0.workers,
        };
        let deferred = Deferred {
            this: self.clone(),
            lane,
            span,
            pass: pass.clone(),
            worker: Arc::default(),
            pending,
            request: request.into(),
            sink: Arc::clone(sink),
        };
        match plan {
            Some(plan) => deferred.start_read(plan),
            None => deferred.push(pool),
        }
    }

    /// What a worker does with a request.
    fn finish(
        &self,
        timed: &Timed,
        pending: &PendingRequest,
        request: &[u8],
        room: &mut [u8],
        sink: &dyn Sink,
    ) {
        let Timed { lane, span, .. } = *timed;
        // The reader thread has decoded the same bytes before, so this cannot fail.
        let Ok((header, arguments)) = Header::split(request) else {
            return;
        };
        let Ok(op) = Op::read(&header, arguments, &self.0.agreed) else {
            return;
        };
        let pushed = match (&op, &self.0.dirty) {
            (Op::Seek { .. }, Some(dirty)) => Some(dirty.push(sink, header.ino)),
            _ => None,
        };
        let mark = self.mark();
        let result = pending.deadline().scope(|| self.run(request, &header, &op, None, room));
        self.note_flushes(&header, &op, &result);
        let answered = self.0.watch.answering(span);
        invalidate_mode(&result, sink);
        self.tell_of_bytes(&result);
        self.0.pending_table.remove(pending);
        let delivered = pending.claim()
            && match &result {
                Ok(done) => self.deliver(mark, done, room, |body| pending.answer(0, body)),
                Err(error) => pending.answer(-error.0, &[]),
            };
        if pending.is_served() {
            // The completion of the fetch has replied and has counted the request.
            return;
        }
        // The deadline or an interrupt replied first. Whatever the result is, the program saw an error.
        let late = Outcome { bytes: 0, error: libc::EIO as u32 };
        let outcome = if delivered { outcome(&op, &result) } else { late };
        self.0.counts.lane(lane).ended(header.opcode, outcome);
        self.0.watch.end(self.0.watch.workers(), answered, &header, outcome);
        if let (true, Ok(_), Op::Write { .. }, Some(flushes)) = (delivered, &result, &op, &self.0.flushes) {
            flushes.write_done(header.ino);
        }
        if !delivered {
            self.undo(&header, &op, &result);
        }
        drop(pushed);
    }

    /// Called before the reply. Records the flushes of timestamps that the kernel will send after it, notes
    /// that such a flush has arrived, or marks an inode whose stored error must stay.
    fn note_flushes(&self, header: &Header, op: &Op<'_>, result: &Result<Done, Errno>) {
        let Some(flushes) = &self.0.flushes else { return };
        match (op, result) {
            (Op::Setattr(_), _) => flushes.arrived(header.caller.pid, header.ino),
            (Op::Write { .. }, Err(_)) => flushes.write_failed(header.ino),
            (_, Ok(done)) if done.touched != Touched::default() => {
                flushes.watch_for(header.caller.pid, done.touched);
            }
            _ => {}
        }
    }

    /// The kernel did not take a reply.
    fn undeliverable(
        &self,
        header: &Header,
        op: &Op<'_>,
        result: &Result<Done, Errno>,
        sent: std::io::Result<()>,
    ) {
        // ENOENT: the request was withdrawn. ENODEV: unmounted. Anything else is a defect here, and the
        // caller still waits.
        let ours =
            sent.is_err_and(|error| !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)));
        if ours {
            let name = opcodes::find(header.opcode).map_or("?", |line| line.name);
            (self.0.log)(&format!("fuse: the kernel refused the reply to {name} of inode {}", header.ino));
        }
        self.undo(header, op, result);
    }

    /// The kernel never learned of a result. Gives back the references, and invalidates what may now be wrong
    /// in the kernel's caches.
    fn undo(&self, header: &Header, op: &Op<'_>, result: &Result<Done, Errno>) {
        let Ok(done) = result else { return };
        for ino in done.references(op) {
            let forget = || self.0.fs.now().forget(ino, 1);
            let _ = catch_unwind(AssertUnwindSafe(forget));
        }
        if let Some(lock) = &done.locked {
            let unlock = Lock { kind: LockKind::Unlock, ..*lock };
            let _ = catch_unwind(AssertUnwindSafe(|| self.0.fs.now().set_lock(header.ino, &unlock)));
        }
        if op.waiting(header.ino) != Some(Waiting::Change) {
            return;
        }
        let notifier = &self.0.notifier;
        match *op {
            Op::Mknod { name, .. }
            | Op::Create { name, .. }
            | Op::Mkdir { name, .. }
            | Op::Symlink { name, .. }
            | Op::Unlink { name }
            | Op::Rmdir { name } => notifier.inval_entry(header.ino, name),
            Op::Link { ino, name } => {
                notifier.inval_entry(header.ino, name);
                notifier.inval_inode(ino, -1, 0);
            }
            Op::Rename { name, to, to_name, .. } => {
                notifier.inval_entry(header.ino, name);
                notifier.inval_entry(to, to_name);
                notifier.inval_inode(to, 0, 0);
            }
            Op::CopyRange { to, .. } => notifier.inval_inode(to, 0, 0),
            _ => {}
        }
        // This drops the cached listing of a directory, and the attributes and pages of a file.
        notifier.inval_inode(header.ino, 0, 0);
    }
}

/// A request that has left the thread that received it.
#[derive(Clone)]
struct Deferred {
    this: Dispatcher,
    lane: usize,
    span: Option<Span>,
    pass: Pass,
    /// The worker that fetches for it, with the span as it continues there.
    worker: Arc<OnceLock<(ThreadId, Option<Span>)>>,
    pending: Arc<PendingRequest>,
    request: Arc<[u8]>,
    sink: Arc<dyn Sink>,
}

impl Deferred {
    fn timed(&self, span: Option<Span>) -> Timed {
        Timed { lane: self.lane, span, pass: self.pass.clone() }
    }

    /// Queues the request for a worker. The worker serves it unless it has been answered by then.
    fn push(self, pool: &Arc<Pool>) {
        let pending = Arc::clone(&self.pending);
        let work = move |pending: &PendingRequest, room: &mut [u8]| {
            let span = self.this.0.watch.resume(self.span);
            self.this.finish(&self.timed(span), pending, &self.request, room, &*self.sink);
        };
        pool.push(pending, Box::new(work));
    }

    /// Defers a read. If the data is in flight, or a worker can fetch it, its completion replies, once.
    /// Otherwise a worker serves the read.
    fn start_read(self, plan: &ReadPlan) {
        let (fs, workers) = (self.this.0.fs.to_keep(), Arc::clone(&self.this.0.workers));
        let waiter = self.clone();
        let answer = move |came: Fetched<'_>| match came {
            Ok(bytes) => waiter.serve(0, bytes),
            Err(Some(error)) => waiter.serve(-error.0, &[]),
            Err(None) => {
                let workers = Arc::clone(&waiter.this.0.workers);
                waiter.push(&workers);
                false
            }
        };
        // If this panics, the same panic occurs again where the read is served, and is answered there.
        let start = catch_unwind(AssertUnwindSafe(|| fs.start_read(plan, Box::new(answer))));
        match start {
            Ok(Start::Pending) => {}
            Ok(Start::Lead(task)) => self.push_task(&workers, task),
            Ok(Start::Read) | Err(_) => self.push(&workers),
        }
    }

    /// Queues the fetch of a read for a worker. If it ends without a reply, the same worker serves the read.
    fn push_task(self, pool: &Arc<Pool>, task: FetchTask) {
        let pending = Arc::clone(&self.pending);
        let work = move |pending: &PendingRequest, room: &mut [u8]| {
            let span = self.this.0.watch.resume(self.span);
            let _ = self.worker.set((std::thread::current().id(), span));
            let fetch = || catch_unwind(AssertUnwindSafe(task)).unwrap_or(false);
            match pending.deadline().scope(fetch) {
                true if pending.is_served() => self.this.0.watch.suspend(span),
                true => self.end_late(span),
                false => self.this.finish(&self.timed(span), pending, &self.request, room, &*self.sink),
            }
        };
        pool.push(pending, Box::new(work));
    }

    /// Counts a fetched read to which the deadline or an interrupt replied first.
    fn end_late(&self, span: Option<Span>) {
        let Parts { watch, counts, .. } = &*self.this.0;
        let Ok((header, _)) = Header::split(&self.request) else { return };
        let answered = watch.answering(span);
        let late = Outcome { bytes: 0, error: libc::EIO as u32 };
        counts.lane(self.lane).ended(header.opcode, late);
        watch.end(watch.workers(), answered, &header, late);
    }

    /// Replies with the data that arrived, or with an error. Returns true if this was the reply to the
    /// request.
    fn serve(&self, error: i32, bytes: &[u8]) -> bool {
        let (error, bytes) = match error == 0 && self.this.has_lost_locks(&self.request) {
            true => (-Errno::EIO.0, &[][..]),
            false => (error, bytes),
        };
        let Parts { watch, pending_table, counts, .. } = &*self.this.0;
        let Ok((header, _)) = Header::split(&self.request) else { return false };
        pending_table.remove(&self.pending);
        if !self.pending.serve() {
            return false;
        }
        let answered = match self.worker.get() {
            // The phases of this thread belong to the request.
            Some((worker, span)) if *worker == std::thread::current().id() => watch.answering(*span),
            _ => watch.completed(self.span),
        };
        let taken = self.pending.answer(error, bytes);
        let outcome = match (taken, error) {
            (true, 0) => Outcome { bytes: bytes.len() as u32, error: 0 },
            (true, error) => Outcome { bytes: 0, error: error.unsigned_abs() },
            (false, _) => Outcome { bytes: 0, error: libc::EIO as u32 },
        };
        counts.lane(self.lane).ended(header.opcode, outcome);
        watch.end(watch.workers(), answered, &header, outcome);
        // A worker may still be busy with this request. Nobody needs its result now.
        self.pending.orphan_worker();
        true
    }
}

/// Makes the kernel ask for the attributes again before it learns of the write that changed the mode.
fn invalidate_mode(result: &Result<Done, Errno>, sink: &dyn Sink) {
    if let Ok(Done { mode_changed: Some(ino), .. }) = *result {
        // This invalidates the attributes alone, because that takes no lock that the request holds. It fails
        // if the kernel has dropped the inode.
        let _ = notify::inval_inode(sink, ino, -1, 0);
    }
}

/// How a result is counted.
fn outcome(op: &Op<'_>, result: &Result<Done, Errno>) -> Outcome {
    match (op, result) {
        (_, Err(error)) => Outcome { bytes: 0, error: error.0 as u32 },
        (Op::Read { .. }, Ok(done)) => Outcome { bytes: done.len as u32, error: 0 },
        (Op::Write { data, .. }, Ok(_)) => Outcome { bytes: data.len() as u32, error: 0 },
        _ => Outcome::default(),
    }
}

/// The log line for a request that missed its deadline.
pub fn late_line(waited: Duration) -> String {
    format!("fuse: a request was not served within {:.1} s and was answered EIO", waited.as_secs_f64())
}

#[cfg(test)]
mod tests;
