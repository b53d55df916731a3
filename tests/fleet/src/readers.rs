//! Readers on many nodes at once, which compare every byte and have a deadline.
//!
//! Each reader picks a node, a file and a range at random (from its seed), reads it without the kernel's page
//! cache, and compares. The results are counted by node: right bytes, an error with its number, wrong bytes;
//! and the longest time. [`Readers::join`] notices a read that does not return: the test then kills the
//! nodes, so that the read returns and the test can end.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use covey_tests::Rng;

use crate::tree::{self, Tree};

/// The results of reads on one node.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Reads that gave right bytes.
    pub right: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Reads that gave an error, by its number.
    pub errors: BTreeMap<i32, u64>,
    /// Reads that gave other bytes than the file has: file and offset.
    pub wrong: Vec<String>,
    /// The longest time that a read took.
    pub slowest: Duration,
    /// The longest time of a single call that failed.
    pub slowest_error: Duration,
}

/// What the kernel may add to the deadline of a request. A call that fails is at most two requests, as the
/// kernel asks again for a single page when it could not get a row of pages. The rest is for a busy machine,
/// and for waiting on a page that another reader has locked.
const ASKED: u32 = 2;
const SLACK: Duration = Duration::from_secs(8);

/// The time within which a failing call returns on a mount with this `deadline`.
pub fn fails_within(deadline: Duration) -> Duration {
    ASKED * deadline + SLACK
}

/// Errors that a call may return on a mount whose daemon was killed, besides EIO: it was cut off, it was
/// cancelled (over io_uring), there is no daemon, or the mountpoint is empty.
const GONE: [i32; 4] = [libc::ECONNABORTED, libc::ECANCELED, libc::ENOTCONN, libc::ENOENT];

/// The results by node, in order.
#[derive(Clone, Debug)]
pub struct Report(pub Vec<Outcome>);

impl Report {
    /// Checks that no read gave a wrong byte or took longer than `within`.
    pub fn must_be_true(&self, within: Duration, hint: &str) {
        for (node, outcome) in self.0.iter().enumerate() {
            assert!(outcome.wrong.is_empty(), "{hint}: node {node} read wrong bytes: {:?}", outcome.wrong);
            assert!(outcome.slowest <= within, "{hint}: node {node} took {:?}\n{self:?}", outcome.slowest);
        }
    }

    /// Checks that errors are as promised: EIO, within the deadline that the mount gives a request (`-o
    /// deadline`); for a `killed` daemon, also the errors that the kernel returns for a mount without a
    /// daemon.
    pub fn must_fail_as_promised(&self, deadline: Duration, killed: &[usize], hint: &str) {
        let within = fails_within(deadline);
        for (node, outcome) in self.0.iter().enumerate() {
            let known = |errno: &i32| *errno == libc::EIO || killed.contains(&node) && GONE.contains(errno);
            assert!(outcome.errors.keys().all(known), "{hint}: node {node}, killed {killed:?}: {self:?}");
            assert!(outcome.slowest_error <= within, "{hint}: node {node} failed after {within:?}: {self:?}");
        }
    }

    /// Checks that these nodes had no error and read something.
    pub fn must_be_whole(&self, nodes: impl IntoIterator<Item = usize>, hint: &str) {
        for node in nodes {
            let outcome = &self.0[node];
            assert!(outcome.errors.is_empty() && outcome.right > 0, "{hint}: node {node}: {outcome:?}");
        }
    }

    /// The same for nodes that are so slow that some may have had no read at all: together they read
    /// something.
    pub fn must_have_no_error(&self, nodes: impl IntoIterator<Item = usize>, hint: &str) {
        let mut right = 0;
        for node in nodes {
            let outcome = &self.0[node];
            assert!(outcome.errors.is_empty(), "{hint}: node {node}: {outcome:?}");
            right += outcome.right;
        }
        assert!(right > 0, "{hint}: nothing was read: {self:?}");
    }

    /// Reads with right bytes, on all nodes.
    pub fn right(&self) -> u64 {
        self.0.iter().map(|outcome| outcome.right).sum()
    }

    /// Reads with an error, on all nodes.
    pub fn errors(&self) -> u64 {
        self.0.iter().flat_map(|outcome| outcome.errors.values()).sum()
    }

    /// Adds another report.
    pub fn add(&mut self, other: &Report) {
        self.0.resize(self.0.len().max(other.0.len()), Outcome::default());
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            sum.right += more.right;
            sum.bytes += more.bytes;
            more.errors.iter().for_each(|(errno, count)| *sum.errors.entry(*errno).or_default() += count);
            sum.wrong.extend(more.wrong.iter().cloned());
            sum.slowest = sum.slowest.max(more.slowest);
            sum.slowest_error = sum.slowest_error.max(more.slowest_error);
        }
    }
}

struct Shared {
    ending: AtomicBool,
    outcomes: Mutex<Vec<Outcome>>,
}

/// Running readers. See the [module](self).
pub struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The start time.
    pub begun: Instant,
}

/// What the readers do.
#[derive(Clone)]
pub struct Plan {
    /// Mountpoints, by node.
    pub mounts: Vec<PathBuf>,
    /// The nodes on which they read.
    pub nodes: Vec<usize>,
    /// The number of threads.
    pub readers: u64,
    /// The seed of their choices.
    pub seed: u64,
    /// The number of reads of each; with none, until they are told to end.
    pub reads: Option<u64>,
}

impl Readers {
    /// Starts the readers.
    pub fn start(tree: &'static Tree, plan: &Plan) -> Readers {
        let outcomes = vec![Outcome::default(); plan.mounts.len()];
        let shared = Arc::new(Shared { ending: AtomicBool::new(false), outcomes: Mutex::new(outcomes) });
        let threads = (0..plan.readers).map(|number| {
            let (shared, plan) = (shared.clone(), plan.clone());
            std::thread::spawn(move || work(tree, &plan, number, &shared))
        });
        Readers { begun: Instant::now(), threads: threads.collect(), shared }
    }

    /// The number of reads so far, with any result.
    pub fn done(&self) -> u64 {
        let report = self.so_far();
        report.right() + report.errors()
    }

    /// The results so far.
    pub fn so_far(&self) -> Report {
        Report(self.shared.outcomes.lock().unwrap().clone())
    }

    /// Waits until all are done; readers without a number of reads are told to end. Returns the readers if a
    /// read did not return in time.
    pub fn join(self, limit: Duration) -> Result<Report, Readers> {
        let end = Instant::now() + limit;
        self.shared.ending.store(true, Ordering::SeqCst);
        while self.threads.iter().any(|thread| !thread.is_finished()) {
            if Instant::now() > end {
                return Err(self);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        Ok(Report(std::mem::take(&mut *self.shared.outcomes.lock().unwrap())))
    }
}

fn work(tree: &'static Tree, plan: &Plan, number: u64, shared: &Shared) {
    let mut rng = Rng::new(plan.seed.wrapping_mul(1_000_003).wrapping_add(number));
    let mut left = plan.reads;
    loop {
        match &mut left {
            Some(0) => return,
            Some(left) => *left -= 1,
            None if shared.ending.load(Ordering::SeqCst) => return,
            None => {}
        }
        let node = *rng.pick(&plan.nodes);
        // Half of the reads are in large files, of which there are few.
        let files = tree.files();
        let large = tree.large().count() as u64;
        let file = if rng.one_in(2) { &files[rng.below(large) as usize] } else { rng.pick(files) };
        let (from, len) = range(&mut rng, file);
        let begun = Instant::now();
        let read = read_timed(&plan.mounts[node], file, from, len);
        let spent = begun.elapsed();
        let mut outcomes = shared.outcomes.lock().unwrap();
        let outcome = &mut outcomes[node];
        outcome.slowest = outcome.slowest.max(spent);
        match read {
            Ok(bytes) if bytes.len() == len => match file.differs(from, &bytes) {
                None => {
                    outcome.right += 1;
                    outcome.bytes += len as u64;
                }
                Some(at) => {
                    outcome.wrong.push(format!("{} at {at}, read {len} from {from}", file.path.display()))
                }
            },
            Ok(bytes) => {
                let what =
                    format!("{}: {} bytes from {from} instead of {len}", file.path.display(), bytes.len());
                outcome.wrong.push(what);
            }
            Err((errno, after)) => {
                outcome.slowest_error = outcome.slowest_error.max(after);
                *outcome.errors.entry(errno).or_default() += 1;
                drop(outcomes);
                // A read that fails at once would otherwise be repeated a million times.
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Whole files, long ranges and short ones.
fn range(rng: &mut Rng, file: &tree::File) -> (u64, usize) {
    if rng.one_in(4) {
        return (0, file.size as usize);
    }
    let from = rng.below(file.size);
    let most = file.size - from;
    (from, (1 + rng.length(most.min(2 << 20))).min(most) as usize)
}

/// Reads a range without the kernel's page cache: the file's cached pages are dropped first.
pub fn read(mount: &std::path::Path, file: &tree::File, from: u64, len: usize) -> Result<Vec<u8>, i32> {
    read_timed(mount, file, from, len).map_err(|(errno, _)| errno)
}

/// The same. An error comes with the duration of the call that failed, without earlier calls.
fn read_timed(
    mount: &std::path::Path,
    file: &tree::File,
    from: u64,
    len: usize,
) -> Result<Vec<u8>, (i32, Duration)> {
    let open = timed(|| File::open(mount.join(&file.path)))?;
    timed(|| Ok(rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed)?))?;
    let mut bytes = vec![0; len];
    let mut got = 0;
    while got < len {
        match timed(|| open.read_at(&mut bytes[got..], from + got as u64))? {
            0 => break,
            more => got += more,
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}

fn timed<T>(call: impl FnOnce() -> std::io::Result<T>) -> Result<T, (i32, Duration)> {
    let begun = Instant::now();
    call().map_err(|error| (error.raw_os_error().unwrap_or(libc::EIO), begun.elapsed()))
}
