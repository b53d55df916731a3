//! Requests for locks that must not be served like others: those that wait for a lock, and those that end
//! locks. Both have no deadline. The latter are never given up, or the locks would stay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use base::Ino;
use fs::Errno;
use fs::api::{LockWait, Waiting};

use super::{Dispatcher, Timed};
use crate::abi::header::Header;
use crate::abi::ops::{LockRequest, Op};
use crate::channel::Sink;
use crate::defer::PendingRequest;
use crate::locks::{Ended, Interrupted, LockRequests};
use crate::shared::SharedMount;
use crate::swap::Pass;
use crate::watch::{Outcome, Span};

/// The right to reply to a request for a lock.
pub(crate) struct LockReply {
    this: Dispatcher,
    lane: usize,
    span: Option<Span>,
    header: Header,
    sink: Arc<dyn Sink>,
}

impl LockReply {
    fn send(self, result: Result<(), Errno>) {
        let answered = self.this.0.watch.completed(self.span);
        let error = result.err().map_or(0, |error| error.0);
        // It fails if the kernel is gone. Then the filesystem is told that all locks of this mount are void.
        let _ = self.sink.reply(self.header.unique, -error, &[]);
        let outcome = Outcome { bytes: 0, error: error.unsigned_abs() };
        self.this.0.counts.lane(self.lane).ended(self.header.opcode, outcome);
        self.this.0.watch.end(self.this.0.watch.workers(), answered, &self.header, outcome);
    }
}

impl Dispatcher {
    pub(super) fn locks(&self) -> Option<&LockRequests> {
        self.0.shared.as_deref().and_then(SharedMount::locks)
    }

    fn may_wait_for_locks(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.0.fs.now().would_wait(Waiting::Lock))).unwrap_or(false)
    }

    /// Serves a request that waits for a lock or ends locks. Returns false if it is neither.
    pub(super) fn serve_lock(
        &self,
        timed: &Timed,
        header: &Header,
        op: &Op<'_>,
        sink: &Arc<dyn Sink>,
    ) -> bool {
        let Some(locks) = self.locks() else { return false };
        let reply = || {
            let (this, sink) = (self.clone(), Arc::clone(sink));
            LockReply { this, lane: timed.lane, span: timed.span, header: *header, sink }
        };
        match *op {
            Op::Setlk { lock, wait: true } => {
                sink.has_no_deadline(header.unique);
                self.0.watch.suspend(timed.span);
                self.wait_for_lock(locks, lock, timed.pass.clone(), reply());
                true
            }
            Op::Flush { .. } | Op::Release { .. } => {
                let ended = match *op {
                    Op::Flush { owner } => locks.flushed(header.ino, owner),
                    Op::Release { handle } => locks.released(handle),
                    _ => Vec::new(),
                };
                if ended.is_empty() {
                    return false;
                }
                sink.has_no_deadline(header.unique);
                self.0.watch.suspend(timed.span);
                self.end_locks(ended, timed.pass.clone(), reply());
                true
            }
            _ => false,
        }
    }

    fn end_locks(&self, ended: Vec<Ended>, pass: Pass, reply: LockReply) {
        let this = self.clone();
        let unique = reply.header.unique;
        let sink = Arc::clone(&reply.sink);
        let work = move || {
            let release = |ended: Ended| {
                let call = || this.0.fs.now().release_locks(ended.ino, ended.owner, ended.style);
                catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno::EIO))
            };
            // One that fails keeps none of the others.
            let result = ended.into_iter().map(release).fold(Ok(()), Result::and);
            reply.send(result);
            drop(pass);
        };
        if !self.may_wait_for_locks() {
            return work();
        }
        let pending = self.0.pending_table.outside(unique, Some(Waiting::Lock), &sink);
        self.0.unlockers.push(pending, Box::new(move |_, _| work()));
    }

    /// The pass lasts until the filesystem has seen the request. What it waits for then may have no end.
    fn wait_for_lock(&self, locks: &LockRequests, lock: LockRequest, pass: Pass, reply: LockReply) {
        let (unique, ino, sink) = (reply.header.unique, reply.header.ino, Arc::clone(&reply.sink));
        let id = match locks.waits.enter(unique, reply.lane, reply) {
            Ok(id) => id,
            Err((error, reply)) => return reply.send(Err(error)),
        };
        if !self.may_wait_for_locks() {
            return self.begin_wait(unique, id, ino, &lock);
        }
        let this = self.clone();
        let pending = self.0.pending_table.outside(unique, Some(Waiting::Lock), &sink);
        let begin = move |_: &PendingRequest, _: &mut [u8]| {
            this.begin_wait(unique, id, ino, &lock);
            drop(pass);
        };
        self.0.workers.push(pending, Box::new(begin));
    }

    fn begin_wait(&self, unique: u64, id: LockWait, ino: Ino, request: &LockRequest) {
        let Some(locks) = self.locks().filter(|locks| locks.waits.begin(unique, id)) else { return };
        let lock = match locks.lock(ino, request, self.0.fs.now().lock_session()) {
            Ok(lock) => lock,
            Err(error) => return self.end_wait(unique, id, Err(error)),
        };
        let this = self.clone();
        let answer = move |result| this.end_wait(unique, id, result);
        let begin = || self.0.fs.now().wait_lock(ino, &lock, id, Box::new(answer));
        if catch_unwind(AssertUnwindSafe(begin)).is_err() {
            (self.0.log)(&format!("fuse: SETLKW of inode {ino} panicked and was answered EIO"));
            self.end_wait(unique, id, Err(Errno::EIO));
        }
        if locks.waits.begun(unique, id) {
            self.cancel(id);
        }
        if !locks.has(ino, request, lock.owner) {
            // The file was closed meanwhile. This releases the lock, and withdraws the request.
            let release = || self.0.fs.now().release_locks(ino, lock.owner, lock.style);
            let _ = catch_unwind(AssertUnwindSafe(release));
        }
    }

    fn end_wait(&self, unique: u64, id: LockWait, result: Result<(), Errno>) {
        if let Some(reply) = self.locks().and_then(|locks| locks.waits.end(unique, id)) {
            reply.send(result);
        }
    }

    /// A signal reached the caller of a request, at a kernel whose processes this machine cannot see.
    /// `killed`: the caller is being killed. Without that only a request that waits for a lock is
    /// interrupted.
    pub fn interrupt(&self, unique: u64, killed: bool) {
        if !self.interrupt_lock(unique) && killed {
            self.0.pending_table.interrupt(unique);
        }
    }

    /// The kernel reports a signal to the caller of a request. Returns false if it does not wait for a lock.
    pub(super) fn interrupt_lock(&self, unique: u64) -> bool {
        let Some(locks) = self.locks() else { return false };
        match locks.waits.interrupt(unique) {
            Interrupted::Unknown => return false,
            Interrupted::Queued(reply) => reply.send(Err(Errno::EINTR)),
            Interrupted::Begun(id) => self.cancel(id),
            Interrupted::Noted => {}
        }
        true
    }

    /// The number of requests that wait for a lock.
    pub(crate) fn lock_waits(&self) -> usize {
        self.locks().map_or(0, |locks| locks.waits.len())
    }

    /// Limits the requests per ring that wait for a lock.
    pub(crate) fn limit_lock_waits(&self, most: usize) {
        self.locks().into_iter().for_each(|locks| locks.waits.limit(most));
    }

    /// The mount ends: answers the requests that wait for a lock, and makes the filesystem forget them.
    pub(crate) fn end_lock_waits(&self) {
        let waits = self.locks().map(|locks| locks.waits.close()).unwrap_or_default();
        for (id, reply) in waits {
            self.cancel(id);
            reply.send(Err(Errno::EIO));
        }
    }

    fn cancel(&self, id: LockWait) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.0.fs.now().cancel_lock(id)));
    }
}
