//! Calls that may wait, and signals.
//!
//! Python only notes a signal. Its handlers run on the main thread, between two instructions of Python, so a
//! native call would delay Ctrl-C until it returns. Therefore the work of a call on the main thread is done
//! by a second thread, and the main thread looks for signals while it waits. If a handler raises an
//! exception, the call ends with it, and nobody waits for the work any more. It ends by itself within its
//! deadline.
//!
//! So the work owns everything that it uses, and does not write to memory of the program.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pyo3::prelude::*;
use rustix::process::getpid;
use rustix::thread::gettid;

use crate::process::Process;

/// How often the main thread looks for signals.
const LOOK: Duration = Duration::from_millis(100);

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// The second thread, while it has nothing to do. Only the main thread has one.
    static IDLE: Cell<Option<(Process, Sender<Job>)>> = const { Cell::new(None) };
}

/// Whether signals of Python are handled on this thread: it is the main one.
pub fn has_signals() -> bool {
    gettid() == getpid()
}

/// Does work that may wait, without the interpreter's lock.
///
/// # Errors
/// The exception of a signal's handler, such as `KeyboardInterrupt`. The work goes on without a caller.
pub fn wait<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> T + Send + 'static) -> PyResult<T> {
    if !has_signals() {
        return Ok(py.detach(work));
    }
    let (answer, mut answers) = channel();
    let job: Job = Box::new(move || {
        // An error means that nobody waits any more.
        let _ = answer.send(catch_unwind(AssertUnwindSafe(work)));
    });
    let worker = match hand_over(job) {
        Ok(worker) => worker,
        // The system has no more threads. The call is not interrupted then.
        Err(job) => {
            py.detach(job);
            None
        }
    };
    loop {
        let (back, answered) = py.detach(move || await_one(answers));
        answers = back;
        match answered {
            Ok(done) => {
                IDLE.set(worker);
                return Ok(done.unwrap_or_else(|panic| resume_unwind(panic)));
            }
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let panic: Box<dyn Any + Send> = Box::new("the thread of a call ended without an answer");
                resume_unwind(panic)
            }
        }
    }
}

type Answered<T> = Result<std::thread::Result<T>, RecvTimeoutError>;

fn await_one<T>(
    answers: Receiver<std::thread::Result<T>>,
) -> (Receiver<std::thread::Result<T>>, Answered<T>) {
    let answered = answers.recv_timeout(LOOK);
    (answers, answered)
}

/// Gives a job to the idle thread, or to a new one. Returns the job if there can be none.
fn hand_over(job: Job) -> Result<Option<(Process, Sender<Job>)>, Job> {
    let job = match IDLE.take() {
        Some((process, jobs)) if process == Process::this() => match jobs.send(job) {
            Ok(()) => return Ok(Some((process, jobs))),
            Err(unsent) => unsent.0,
        },
        // That of the parent, which a forked process does not have. A lock inside may stay locked.
        Some(other) => {
            std::mem::forget(other);
            job
        }
        None => job,
    };
    let (jobs, work) = channel::<Job>();
    let started = base::thread::spawn("covey-call", move || work.into_iter().for_each(|job| job()));
    match started {
        Ok(_) => match jobs.send(job) {
            Ok(()) => Ok(Some((Process::this(), jobs))),
            Err(unsent) => Err(unsent.0),
        },
        Err(_) => Err(job),
    }
}
