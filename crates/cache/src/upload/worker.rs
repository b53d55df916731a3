//! The upload threads. They start when there is work, and end after a while without any.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use base::time;
use blob::{BlobError, Sums};
use parking_lot::MutexGuard;

use super::queue::{Fault, Job, Next};
use super::{Shared, State};

/// How long an idle worker stays.
const IDLE: Duration = Duration::from_secs(10);

/// The outcome of an attempt.
enum Outcome {
    Sent,
    /// The origin had it already.
    Found,
    /// The blob cannot be read here, and nothing refers to it.
    Nobodys(String),
    Failed(Fault),
}

impl Shared {
    /// Starts as many workers as there is work for, and wakes them.
    pub(super) fn staff(self: &Arc<Self>, state: &mut State) {
        let wanted = state.queue.hands();
        while state.workers < wanted && !state.stop {
            let shared = Arc::clone(self);
            // If no thread can be started, the others do the work, or the next call starts one.
            match base::thread::spawn("covey-upload", move || shared.run()) {
                Ok(_) => state.workers += 1,
                Err(_) => break,
            }
        }
        self.work.notify_all();
    }

    fn run(self: Arc<Self>) {
        let mut state = self.state.lock();
        while !state.stop {
            let now = time::monotonic();
            match state.queue.take(now) {
                Next::Job(job) => {
                    let outcome = MutexGuard::unlocked(&mut state, || self.attempt(&job));
                    self.finish(&mut state, &job, outcome);
                }
                Next::At(at) => {
                    self.work.wait_for(&mut state, at.saturating_duration_since(now));
                }
                Next::Nothing => {
                    let timed_out = self.work.wait_for(&mut state, IDLE).timed_out();
                    if timed_out && (state.queue.is_idle() || state.workers > 1) {
                        break;
                    }
                }
            }
        }
        state.workers -= 1;
        self.moved.notify_all();
    }

    fn attempt(&self, job: &Job) -> Outcome {
        catch_unwind(AssertUnwindSafe(|| self.send(job))).unwrap_or_else(|_| {
            Outcome::Failed(Fault::Local("the attempt ended by a panic; the log has its line".to_owned()))
        })
    }

    fn send(&self, job: &Job) -> Outcome {
        if job.ask_first {
            match self.has(job) {
                Ok(true) => return Outcome::Found,
                Ok(false) => {}
                Err(error) => return Outcome::Failed(fault_of(error)),
            }
        }
        let (sums, bytes) = match self.read(job) {
            Ok(read) => read,
            Err(why) => {
                return match self.needed.get() {
                    Some(needed) if !needed(&job.id) => Outcome::Nobodys(why),
                    _ => Outcome::Failed(Fault::Local(why)),
                };
            }
        };
        match self.remote.put_shared(&job.id, &sums, Arc::new(bytes)) {
            Ok(()) => Outcome::Sent,
            Err(error) => Outcome::Failed(fault_of(error)),
        }
    }

    /// Whether the origin has the blob. Verifies a copy that this run did not send: a damaged one is sent
    /// again.
    fn has(&self, job: &Job) -> Result<bool, BlobError> {
        if self.remote.size(&job.id)? != Some(job.size) {
            return Ok(false);
        }
        if !job.compare {
            return Ok(true);
        }
        match self.remote.verify(&job.id) {
            Ok(()) => Ok(true),
            Err(BlobError::Damaged { .. } | BlobError::Missing(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The blob's bytes, compared with its name.
    fn read(&self, job: &Job) -> Result<(Sums, Vec<u8>), String> {
        let bytes = self.notes.read(&job.id).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "its file in the folder of uploads is gone".to_owned(),
            _ => format!("its file in the folder of uploads cannot be read ({error})"),
        })?;
        if bytes.len() > base::size::BLOB_MAX as usize {
            return Err("its file in the folder of uploads is larger than any blob".to_owned());
        }
        let sums = Sums::of(&bytes);
        if sums.id() == job.id {
            return Ok((sums, bytes));
        }
        Err(format!("its file in the folder of uploads is damaged (it has the hash {})", sums.id()))
    }

    fn finish(self: &Arc<Self>, state: &mut MutexGuard<'_, State>, job: &Job, outcome: Outcome) {
        let sent = matches!(outcome, Outcome::Sent);
        let (event, line) = match outcome {
            Outcome::Sent | Outcome::Found => {
                let (done, event) = state.queue.succeeded(job, sent, time::monotonic());
                if done {
                    // If a note cannot be removed, the next open finds it, and then finds the blob in the
                    // origin.
                    let _ = self.notes.unlink(&job.id);
                }
                (event, None)
            }
            Outcome::Nobodys(why) => {
                state.queue.is_nobodys(job);
                if !state.queue.wants(&job.id) {
                    let _ = self.notes.unlink(&job.id);
                }
                let id = job.id;
                (None, Some(format!("blob {id} is not uploaded: {why}, and nothing refers to it")))
            }
            Outcome::Failed(fault) => {
                let (now, today) = (time::monotonic(), time::now());
                (state.queue.failed(job, fault, now, today, base::random::u64()), None)
            }
        };
        self.count(state);
        self.staff(state);
        self.moved.notify_all();
        MutexGuard::unlocked(state, || {
            event.iter().for_each(|event| self.say(event));
            line.iter().for_each(|line| (self.report)(line));
            self.reopen();
        });
    }
}

/// What an origin's error means for further attempts.
fn fault_of(error: BlobError) -> Fault {
    let why = error.to_string();
    match error {
        BlobError::Unavailable(_) => Fault::Away(why),
        BlobError::Io(error) => match error.kind() {
            io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotFound
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::Unsupported
            | io::ErrorKind::ReadOnlyFilesystem => Fault::Refused(why),
            _ => Fault::Away(why),
        },
        BlobError::Full => Fault::Full(why),
        BlobError::Refused(_) | BlobError::Stale(_) | BlobError::Missing(_) | BlobError::Damaged { .. } => {
            Fault::Refused(why)
        }
    }
}
