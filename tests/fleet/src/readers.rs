//! Who reads on many nodes at once, compares every byte, and has a deadline.
//!
//! Each reader picks a node, a file and a range by its own seed, reads it past the kernel's pages, and compares. What can come of a
//! read is counted by node: right bytes, an error with its number, wrong bytes; and how long the slowest took. A read that does not
//! return is noticed by whoever [joins](Readers::join): it kills the nodes, so that the read returns and the test can end.

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

/// What came of reads on one node.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Reads that gave right bytes.
    pub right: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Reads that gave an error, by its number.
    pub errors: BTreeMap<i32, u64>,
    /// Reads that gave something else than is in the file: file, and where.
    pub wrong: Vec<String>,
    /// The longest time that a read took.
    pub slowest: Duration,
    /// The longest time that a single call took which then gave an error.
    pub slowest_error: Duration,
}

/// What the kernel may add to the time that a mount gives a request: a call that fails is at most two requests, as the kernel asks for the
/// one page again when it could not have a row of them; the rest is for a busy machine, and for whoever waits for somebody else's page.
const ASKED: u32 = 2;
const SLACK: Duration = Duration::from_secs(8);

/// A call that fails has failed by then, on a mount that gives a request this `deadline`.
pub fn fails_within(deadline: Duration) -> Duration {
    ASKED * deadline + SLACK
}

/// What a call may say on a mount whose daemon was killed, besides EIO: it was cut off, there is nobody, and the mountpoint is empty.
const GONE: [i32; 3] = [libc::ECONNABORTED, libc::ENOTCONN, libc::ENOENT];

/// By node, in their order.
#[derive(Clone, Debug)]
pub struct Report(pub Vec<Outcome>);

impl Report {
    /// Nobody read a wrong byte, and nobody waited longer than this.
    pub fn must_be_true(&self, within: Duration, hint: &str) {
        for (node, outcome) in self.0.iter().enumerate() {
            assert!(outcome.wrong.is_empty(), "{hint}: node {node} read wrong bytes: {:?}", outcome.wrong);
            assert!(outcome.slowest <= within, "{hint}: node {node} took {:?}\n{self:?}", outcome.slowest);
        }
    }

    /// Errors are what is promised: EIO, within what the mount gives a request (`-o deadline`); where a daemon was `killed`, also what the
    /// kernel says of a mount without one.
    pub fn must_fail_as_promised(&self, deadline: Duration, killed: &[usize], hint: &str) {
        let within = fails_within(deadline);
        for (node, outcome) in self.0.iter().enumerate() {
            let known = |errno: &i32| *errno == libc::EIO || killed.contains(&node) && GONE.contains(errno);
            assert!(outcome.errors.keys().all(known), "{hint}: node {node}, killed {killed:?}: {self:?}");
            assert!(outcome.slowest_error <= within, "{hint}: node {node} failed after {within:?}: {self:?}");
        }
    }

    /// These nodes had no error, and read something.
    pub fn must_be_whole(&self, nodes: impl IntoIterator<Item = usize>, hint: &str) {
        for node in nodes {
            let outcome = &self.0[node];
            assert!(outcome.errors.is_empty() && outcome.right > 0, "{hint}: node {node}: {outcome:?}");
        }
    }

    /// The same of nodes that are so slow that chance may have sent nobody to one of them: all of them together read something.
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

    /// Adds what another saw.
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

/// Readers at work. See the [module](self).
pub struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Since when.
    pub begun: Instant,
}

/// What readers read.
#[derive(Clone)]
pub struct Plan {
    /// Mountpoints, by node.
    pub mounts: Vec<PathBuf>,
    /// Which of them are read.
    pub nodes: Vec<usize>,
    /// Threads.
    pub readers: u64,
    /// What they choose by.
    pub seed: u64,
    /// So many reads each, or until they are told to end.
    pub reads: Option<u64>,
}

impl Readers {
    /// Sets them to work.
    pub fn start(tree: &'static Tree, plan: &Plan) -> Readers {
        let outcomes = vec![Outcome::default(); plan.mounts.len()];
        let shared = Arc::new(Shared { ending: AtomicBool::new(false), outcomes: Mutex::new(outcomes) });
        let threads = (0..plan.readers).map(|number| {
            let (shared, plan) = (shared.clone(), plan.clone());
            std::thread::spawn(move || work(tree, &plan, number, &shared))
        });
        Readers { begun: Instant::now(), threads: threads.collect(), shared }
    }

    /// How many reads are done so far, well or not.
    pub fn done(&self) -> u64 {
        let report = self.so_far();
        report.right() + report.errors()
    }

    /// What came of reads so far.
    pub fn so_far(&self) -> Report {
        Report(self.shared.outcomes.lock().unwrap().clone())
    }

    /// Waits until all are done; whoever reads until told to is told. `None`: somebody's read did not return in time, and still has
    /// not.
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
        // Half of the reads are in large files: there are few of them.
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
                // What fails at once would fail a million times.
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

/// Reads a range past the kernel's pages: what it has of the file is let go of before.
pub fn read(mount: &std::path::Path, file: &tree::File, from: u64, len: usize) -> Result<Vec<u8>, i32> {
    read_timed(mount, file, from, len).map_err(|(errno, _)| errno)
}

/// The same. An error comes with the time of the call that it is the answer to, without that of the calls before.
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
