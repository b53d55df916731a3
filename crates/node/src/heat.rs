//! Which parts of files are read most, and what follows for the cache.
//!
//! ```text
//!   the kernel's counters and events (crate watch) ──┐
//!   or the daemon's records of requests ─────────────┴─► one thread, chunks of 1 MiB
//!                                                          ├─► blobs in use: the cache keeps them longer
//!                                                          └─► answers to `covey heat`
//! ```
//!
//! The eBPF programs also count reads that the page cache answers. No such read reaches the daemon, so the
//! blobs look unused to the cache. The thread tells the cache that they are in use: at once when a chunk
//! becomes hot, and every ten seconds while it is accessed. Without the programs, every access that is
//! counted has reached the cache, so nothing follows.
//!
//! - [`counters`]: the daemon's own counters.
//! - [`kernel`]: those of the eBPF programs.
//! - [`report`]: the answer.

mod counters;
#[cfg(feature = "ebpf")]
mod kernel;
#[cfg(not(feature = "ebpf"))]
#[path = "heat/absent.rs"]
mod kernel;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use api::error::{Failure, Result};
use api::heat::Heat;
use base::size::MIB;
use base::time::{monotonic, monotonic_ns};
use base::{Deadline, Ino};
use fuse::Session;

use self::counters::{Counters, Rule};
use self::kernel::Kernel;
use crate::log;
use crate::mount::Mount;

/// What counts accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// eBPF programs if the kernel permits them, else the daemon.
    Auto,
    /// The daemon.
    Daemon,
}

impl std::fmt::Display for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Counting::Auto => "auto",
            Counting::Daemon => "daemon",
        })
    }
}

/// How long the thread waits for an event of the kernel. Questions and the end wait as long.
const TURN: Duration = Duration::from_millis(50);
/// How often the daemon's records are read. At 100,000 requests a second the rings last eight times as long.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the cache is told which chunks were accessed. It counts reads within this time once.
const PASS_EVERY: Duration = Duration::from_secs(10);
/// For how long the kernel then measures the programs. To measure always would double what they cost.
const MEASURED: Duration = Duration::from_secs(1);
/// How much of a file is fetched when it is read in order and the page cache has the beginning.
const AHEAD: u64 = 8 * MIB;
/// The longest time for one pass. Names that are not on this machine can take long.
const PASS_WITHIN: Duration = Duration::from_secs(2);
/// How long a question waits for its answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

struct Question {
    path: Option<PathBuf>,
    top: usize,
    answer: SyncSender<Result<Heat>>,
}

/// Counts the accesses of a mount until it is dropped.
pub struct Heating {
    questions: Sender<Question>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Heating {
    /// Starts counting. The mount already answers. What happens after this returns is counted.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(mount: &Arc<Mount>, session: &Arc<Session>, counting: Counting) -> Result<Heating> {
        let rule = Rule::default();
        let (questions, asked) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (mount, session, stopped) = (mount.clone(), session.clone(), stop.clone());
        let (ready, counts) = sync_channel(1);
        let run = move || {
            let (source, unseen) = Source::start(&session, counting, rule);
            unseen.iter().for_each(|line| log::warn(line));
            let _ = ready.send(());
            let (events, delay, protected, ahead, passed) = (0, 0, 0, 0, monotonic_ns());
            let mut work = Work { mount, source, unseen, rule, events, delay, protected, ahead, passed };
            work.run(&asked, &stopped);
        };
        let thread = base::thread::spawn("covey-heat", run)
            .map_err(|error| Failure::io("cannot start a thread that counts accesses", &error))?;
        // The programs look at the mount, which may not answer.
        let _ = counts.recv_timeout(ANSWER_WITHIN);
        Ok(Heating { questions, stop, thread: Some(thread) })
    }

    /// The hottest chunks: `top` of all, of one file, or of the files below a folder.
    ///
    /// # Errors
    /// The path does not exist, or the counters cannot be read.
    pub fn answer(&self, path: Option<PathBuf>, top: usize) -> Result<Heat> {
        let silent = || Failure::new("no-answer", "the counters of accesses do not answer").next("try again");
        let (answer, answered) = sync_channel(1);
        self.questions.send(Question { path, top, answer }).map_err(|_| silent())?;
        answered.recv_timeout(ANSWER_WITHIN).map_err(|_| silent())?
    }
}

impl Drop for Heating {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where accesses are counted.
enum Source {
    Kernel(Kernel),
    Daemon(Counters),
}

impl Source {
    /// The source, and lines that say what it does not see.
    fn start(session: &Session, counting: Counting, rule: Rule) -> (Source, Vec<String>) {
        let daemon = || Source::Daemon(Counters::new(session, rule));
        if counting == Counting::Daemon {
            return (daemon(), vec![report::PAGE_CACHE_UNSEEN.to_owned()]);
        }
        match Kernel::start(session.mountpoint(), rule) {
            Ok((kernel, unseen)) => (Source::Kernel(kernel), unseen),
            Err(why) => (daemon(), vec![format!("{}: {why}", report::PAGE_CACHE_UNSEEN)]),
        }
    }
}

/// What the kernel said in a moment, as inodes and chunks.
#[derive(Default)]
struct Noticed {
    /// Chunks that became hot and may look unused to the cache.
    hot: Vec<(u64, u32)>,
    /// How far files are read in order.
    streams: Vec<(u64, u32)>,
    /// The longest time until an event arrived, in nanoseconds.
    delay: u64,
}

/// One chunk, as the kernel's programs know it.
struct Seen {
    inode: u64,
    mib: u32,
    /// Accesses, where older ones count less, at the last access.
    score: f64,
    /// The last access, in nanoseconds of the monotonic clock.
    last: u64,
    /// Whether it was hot then.
    hot: bool,
    reads: u64,
    maps: u64,
    faults: u64,
    /// Pages in the page cache.
    pages: u64,
}

/// The thread's state.
struct Work {
    mount: Arc<Mount>,
    source: Source,
    unseen: Vec<String>,
    rule: Rule,
    /// Chunks that became hot.
    events: u64,
    /// The longest time until an event arrived, in nanoseconds.
    delay: u64,
    /// Blobs of which the cache was told.
    protected: u64,
    /// Blobs that were wanted ahead of a reader.
    ahead: u64,
    /// When the last pass began, on the monotonic clock.
    passed: u64,
}

impl Work {
    fn run(&mut self, asked: &Receiver<Question>, stop: &AtomicBool) {
        let mut next = monotonic() + PASS_EVERY;
        let mut measured = monotonic() + MEASURED;
        while !stop.load(Ordering::Acquire) {
            let Noticed { hot, streams, .. } = self.wait();
            self.tell(&hot);
            self.fetch_ahead(&streams);
            if monotonic() >= next {
                next = monotonic() + PASS_EVERY;
                measured = monotonic() + MEASURED;
                self.measure(true);
                self.pass();
            } else if monotonic() >= measured {
                self.measure(false);
            }
            while let Ok(Question { path, top, answer }) = asked.try_recv() {
                let _ = answer.send(self.report(path.as_deref(), top));
            }
        }
    }

    /// Has the kernel measure the programs, or not. A kernel that refuses is no reason to stop counting.
    fn measure(&mut self, on: bool) {
        if let Source::Kernel(kernel) = &mut self.source {
            kernel.measure(on);
        }
    }

    /// Waits for a moment.
    fn wait(&mut self) -> Noticed {
        match &mut self.source {
            Source::Kernel(kernel) => {
                let noticed = kernel.wait(TURN);
                self.delay = self.delay.max(noticed.delay);
                self.events += noticed.hot.len() as u64;
                noticed
            }
            Source::Daemon(counters) => {
                std::thread::sleep(LOOK_EVERY);
                self.events += counters.look();
                Noticed::default()
            }
        }
    }

    /// Tells the cache of all chunks that were accessed since the last pass.
    fn pass(&mut self) {
        let Source::Kernel(kernel) = &self.source else { return };
        let since = std::mem::replace(&mut self.passed, monotonic_ns());
        let used = kernel.used(since);
        self.tell(&used);
    }

    /// Fetches what readers in order will want. Their reads so far were answered by the page cache, so that
    /// the daemon's own prefetch knows nothing of them.
    fn fetch_ahead(&mut self, streams: &[(u64, u32)]) {
        let Some(node) = self.mount.as_node().filter(|node| node.is_remote()) else { return };
        let volume = node.shown();
        let deadline = Deadline::after(PASS_WITHIN);
        deadline.scope(|| {
            for (ino, chunk) in streams.iter().take_while(|_| !deadline.is_over()) {
                self.ahead += volume.will_read(Ino(*ino), (u64::from(*chunk) + 1) * MIB, AHEAD);
            }
        });
    }

    fn tell(&mut self, used: &[(u64, u32)]) {
        let Some(node) = self.mount.as_node().filter(|node| node.is_remote()) else { return };
        let volume = node.shown();
        let deadline = Deadline::after(PASS_WITHIN);
        deadline.scope(|| {
            for (ino, chunk) in used.iter().take_while(|_| !deadline.is_over()) {
                // A file that is gone, or whose names do not come in time, has nothing to protect.
                self.protected += volume.in_use(Ino(*ino), u64::from(*chunk) * MIB, MIB).unwrap_or(0);
            }
        });
    }
}
