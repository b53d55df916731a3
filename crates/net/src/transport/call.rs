//! A request in flight, and how its result reaches the waiter.
//!
//! No task runs for a request. The requester leaves a [`Slot`] with the connection. The loop that reads the
//! connection puts the answer into it and wakes a waker or a thread. So the same [`Call`] can be awaited, or
//! waited for on a thread. Dropping it before its end gives the request up: the connection forgets it and
//! tells the other side.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use blob::Sums;
use parking_lot::{Condvar, Mutex};

use super::fail::Fail;
use super::service::{Filled, Listed, Roll};
use crate::frame::{LoanPart, PackPart};
use crate::message::Answer;

/// The content of an answer.
#[derive(Debug)]
pub(crate) enum Reply {
    Answers(Vec<Answer>),
    Listed(Listed),
    Filled(Filled),
    Roll(Roll),
    Pack(PackPart),
    Kept(u64),
    Loan(Option<LoanPart>),
    Groups(Sums, Vec<u8>),
    Done,
}

/// Receives a request's result.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
    /// Waited on only by [`Call::wait`].
    ended: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Result<Reply, Fail>>,
    over: bool,
    waker: Option<Waker>,
    arrival: Option<OnArrival>,
}

/// Is called with the bytes that arrived.
type OnArrival = Box<dyn FnOnce(&[u8]) + Send>;

impl Slot {
    pub(crate) fn put(&self, result: Result<Reply, Fail>) {
        let arrival = self.state.lock().arrival.take();
        if let (Some(arrival), Ok(Reply::Groups(_, bytes))) = (arrival, &result) {
            arrival(bytes);
        }
        let mut state = self.state.lock();
        if state.over {
            return;
        }
        state.over = true;
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Gives a request up.
pub(crate) trait Undo: Send + Sync {
    fn undo(&self, request: u32);
}

/// A request in flight: await it, or [`Call::wait`] for it on a thread that may block. Dropping it gives it
/// up.
#[must_use = "dropping it gives the request up"]
pub struct Call<T> {
    slot: Arc<Slot>,
    take: fn(Reply) -> Option<T>,
    undo: Option<(Arc<dyn Undo>, u32)>,
    began: Instant,
    time: Duration,
}

impl<T> Call<T> {
    pub(crate) fn new(
        slot: Arc<Slot>,
        take: fn(Reply) -> Option<T>,
        undo: (Arc<dyn Undo>, u32),
        began: Instant,
        time: Duration,
    ) -> Call<T> {
        Call { slot, take, undo: Some(undo), began, time }
    }

    /// A request that failed before it began.
    pub(crate) fn failed(fail: Fail) -> Call<T> {
        let slot = Arc::new(Slot::default());
        slot.put(Err(fail));
        let time = Duration::ZERO;
        Call { slot, take: |_| None, undo: None, began: base::time::monotonic(), time }
    }

    /// Waits on this thread, at most for the request's time.
    ///
    /// # Errors
    /// [`Fail`].
    pub fn wait(mut self) -> Result<T, Fail> {
        let until = self.began + self.time;
        let mut state = self.slot.state.lock();
        while !state.over {
            if self.slot.ended.wait_until(&mut state, until).timed_out() && !state.over {
                // The drop below gives the request up.
                drop(state);
                return Err(Fail::Late(self.time));
            }
        }
        let result = state.result.take();
        drop(state);
        self.undo = None;
        self.finish(result)
    }

    /// Registers a function for groups that arrive. The loop that receives them calls it before any waiter is
    /// woken. It is not called if they have already arrived.
    pub fn on_arrival(&self, call: impl FnOnce(&[u8]) + Send + 'static) {
        let mut state = self.slot.state.lock();
        if !state.over {
            state.arrival = Some(Box::new(call));
        }
    }

    /// Whether the result is there, so that waiting takes no time.
    pub fn is_over(&self) -> bool {
        self.slot.state.lock().over
    }

    /// Lets the request continue without a waiter.
    pub fn detach(mut self) {
        self.undo = None;
    }

    fn finish(&self, result: Option<Result<Reply, Fail>>) -> Result<T, Fail> {
        let reply = result.ok_or(Fail::Closed)??;
        (self.take)(reply).ok_or_else(|| Fail::Protocol("the answer is one to another question".to_owned()))
    }
}

/// The deadline is checked about every 20 ms, so a missing answer becomes [`Fail::Late`] that much later.
impl<T> Future for Call<T> {
    type Output = Result<T, Fail>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = Arc::clone(&self.slot);
        let mut state = slot.state.lock();
        if !state.over {
            match &mut state.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let result = state.result.take();
        drop(state);
        self.undo = None;
        Poll::Ready(self.finish(result))
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        if let Some((undo, request)) = self.undo.take() {
            undo.undo(request);
        }
    }
}

pub(crate) fn answers(reply: Reply) -> Option<Vec<Answer>> {
    if let Reply::Answers(answers) = reply { Some(answers) } else { None }
}

pub(crate) fn listed(reply: Reply) -> Option<Listed> {
    if let Reply::Listed(listed) = reply { Some(listed) } else { None }
}

pub(crate) fn filled(reply: Reply) -> Option<Filled> {
    if let Reply::Filled(filled) = reply { Some(filled) } else { None }
}

pub(crate) fn roll(reply: Reply) -> Option<Roll> {
    if let Reply::Roll(roll) = reply { Some(roll) } else { None }
}

pub(crate) fn pack(reply: Reply) -> Option<PackPart> {
    if let Reply::Pack(part) = reply { Some(part) } else { None }
}

pub(crate) fn kept(reply: Reply) -> Option<u64> {
    if let Reply::Kept(run) = reply { Some(run) } else { None }
}

pub(crate) fn loan(reply: Reply) -> Option<Option<LoanPart>> {
    if let Reply::Loan(loan) = reply { Some(loan) } else { None }
}

pub(crate) fn groups(reply: Reply) -> Option<(Sums, Vec<u8>)> {
    if let Reply::Groups(sums, bytes) = reply { Some((sums, bytes)) } else { None }
}

pub(crate) fn done(reply: Reply) -> Option<()> {
    matches!(reply, Reply::Done).then_some(())
}
