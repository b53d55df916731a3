//! A few threads that create small files, each one whole. While one waits for the daemon, another prepares
//! its next request.
//!
//! The first failure is kept. Later jobs are skipped, and the next call of `send` or `settle` returns the
//! failure.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use api::error::{Failure, Result};
use parking_lot::{Condvar, Mutex};

use super::rules::{Dir, Replace, Rules};
use crate::import::Item;

/// A file to create.
pub(super) struct Job {
    /// The folder of the file.
    pub dir: Arc<Dir>,
    /// The item.
    pub item: Item,
    /// Whether it may replace an existing file.
    pub replace: Replace,
    /// The file's bytes: pieces with their offsets.
    pub pieces: Vec<(u64, Vec<u8>)>,
}

/// Capacity of the queue in jobs. Each holds less than one piece.
const QUEUE: usize = 32;

#[derive(Default)]
struct State {
    /// Jobs sent and not done.
    pending: usize,
    failure: Option<Failure>,
}

struct Shared {
    rules: Arc<Rules>,
    state: Mutex<State>,
    done: Condvar,
}

/// The threads. They end when this is dropped.
pub(super) struct Workers {
    shared: Arc<Shared>,
    queue: Option<SyncSender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts two threads per core, at least 2 and at most 16.
    pub(super) fn start(rules: Arc<Rules>) -> Result<Workers> {
        let count = std::thread::available_parallelism().map_or(2, |cores| (cores.get() * 2).clamp(2, 16));
        let shared = Arc::new(Shared { rules, state: Mutex::default(), done: Condvar::new() });
        let (queue, jobs) = sync_channel(QUEUE);
        let jobs = Arc::new(Mutex::new(jobs));
        let mut workers = Workers { shared: shared.clone(), queue: Some(queue), threads: Vec::new() };
        for _ in 0..count {
            let (jobs, shared) = (jobs.clone(), shared.clone());
            let thread = base::thread::spawn("covey-file", move || shared.work(&jobs));
            workers.threads.push(thread.map_err(|error| Failure::io("cannot start a thread", &error))?);
        }
        Ok(workers)
    }

    /// Sends a job. Returns the failure of an earlier job, if there is one.
    pub(super) fn send(&self, job: Job) -> Result<()> {
        let mut state = self.shared.state.lock();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        state.pending += 1;
        drop(state);
        let sent = self.queue.as_ref().is_some_and(|queue| queue.send(job).is_ok());
        if sent { Ok(()) } else { Err(Failure::new("io", "the threads of the import are gone")) }
    }

    /// Waits until all jobs are done. Returns the failure of one, if there is one.
    pub(super) fn settle(&self) -> Result<()> {
        let mut state = self.shared.state.lock();
        while state.pending > 0 {
            self.shared.done.wait(&mut state);
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let next = jobs.lock().recv();
            let Ok(job) = next else { return };
            let failed = self.state.lock().failure.is_some();
            let outcome = if failed { Ok(()) } else { self.make(job) };
            let mut state = self.state.lock();
            state.pending -= 1;
            if let Err(failure) = outcome {
                state.failure.get_or_insert(failure);
            }
            self.done.notify_all();
        }
    }

    fn make(&self, Job { dir, item, replace, pieces }: Job) -> Result<()> {
        let mut made = self.rules.create(&dir, item, replace)?;
        for (at, bytes) in pieces {
            self.rules.write(&mut made, at, &bytes)?;
        }
        self.rules.complete(made)
    }
}
