//! Yielding to the caller: a ring's thread gives up its CPU to the program that it answers (SCHED_IDLE).
//!
//! ```text
//!   without yielding                           with yielding
//!   CPU 0: ring answers ── wakes program ─┐    CPU 0: ring ─ SCHED_IDLE ─ replies ─ program ─ asks ─ ring
//!   CPU 1: (asleep) ◄── IPI wakes CPU 1 ──┘    CPU 1: (asleep)
//! ```
//!
//! The scheduler looks for an idle CPU for a woken program. The CPU that the program waited on is not idle:
//! the ring's thread still runs there, about to sleep. So the program moves to another CPU, which has to be
//! woken by an interrupt. Its next request goes to another ring, and the same happens with every request. On
//! a virtual machine each of these wake-ups costs more than the request. However, a CPU that runs only
//! `SCHED_IDLE` threads counts as idle (`sched_idle_cpu` in the kernel's fair.c). So a ring's thread enters
//! this class before it hands over a reply, and leaves it as soon as it returns with the next request. The
//! program is woken on its own CPU, runs at once, and finds the ring ready when it asks again.
//!
//! **What must not happen** is that a thread in this class starves with a request to serve, because other
//! programs compute on its CPU. So it is in the class only during the system call that hands over and waits,
//! and never while it serves. A [`Keeper`] checks every [`TICK`] which threads have yielded for longer than
//! that, and moves them back to their own class. A thread that was idle loses nothing: a ring without work
//! soon waits in its own class. A thread that was waiting for a CPU when it was moved back, and returns with
//! work without having slept, has starved. Then it does not yield for [`PAUSE`], twice as long each time. An
//! idle mount has no ticks.
//!
//! If every CPU is busy, there is no idle CPU that a program could move to. Then yielding gains nothing, and
//! the next request waits for a program that computes. The keeper counts the threads that want a CPU
//! (`/proc/loadavg`), and no ring yields while there are about as many of them as CPUs. Without this rule a
//! build with `make -j` took a sixth longer.
//!
//! Leaving the class needs CAP_SYS_NICE, so a [`Keeper`] first tries it on itself.
//! [`Options::yields`](crate::Options::yields) turns yielding off.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use base::time::monotonic;
use parking_lot::Mutex;

/// The longest time that a ring's thread may have yielded without a check.
const TICK: Duration = Duration::from_millis(2);
/// After this many ticks without a yielding thread, the keeper sleeps until there is one.
const QUIET: u32 = 8;
/// How long a ring that has starved does not yield.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(3200);
/// After this many turns without starving, the pause is short again.
const GOOD: u32 = 20_000;
/// The time constant of the average of runnable threads: after this time a sample has a third of its weight.
const MEMORY: Duration = Duration::from_millis(16);
/// The value of `turn` when the keeper has moved the thread back. A turn never has this number, nor 0.
const MOVED_BACK: u64 = u64::MAX;

/// Where a ring's thread says that it has yielded.
struct YieldState {
    thread: libc::pid_t,
    /// 0: in its own class. [`MOVED_BACK`]: moved back by the keeper. Otherwise the number of the turn for
    /// which it has yielded.
    turn: AtomicU64,
    /// How often the thread had slept when the keeper last moved it back, if it was waiting for a CPU then.
    waited: Mutex<Option<u64>>,
}

/// What the rings and the keeper's thread share.
struct Shared {
    states: Mutex<Vec<Arc<YieldState>>>,
    resting: AtomicBool,
    closed: AtomicBool,
    /// All CPUs are busy.
    cpus_busy: AtomicBool,
    /// How often a ring was about to yield.
    answers: AtomicU64,
}

/// Moves rings' threads back to their own class. Its thread ends when this is dropped.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Thread,
}

/// The state of one ring, used by its thread only.
pub(super) struct Yielder {
    shared: Arc<Shared>,
    state: Arc<YieldState>,
    keeper: Thread,
    turn: u64,
    good: u32,
    pause: Duration,
    /// The ring has starved, and must not yield before this time.
    not_before: Option<Instant>,
}

/// Gives a thread of this process (0: the caller) another class of the fair scheduler. Its nice value stays.
fn set_class(thread: libc::pid_t, class: libc::c_int) -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live through the call. It changes only how a thread is scheduled.
    match unsafe { libc::sched_setscheduler(thread, class, &raw const none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How often this thread has slept.
fn sleeps() -> u64 {
    // SAFETY: the kernel fills `usage`, which has the right size. All zeros is a value of it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw as u64
    }
}

/// Returns how often another thread has slept, if it is runnable. `None` if it sleeps.
fn waits(thread: libc::pid_t) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    field("State:")?.starts_with('R').then(|| field("voluntary_ctxt_switches:")?.parse().ok()).flatten()
}

/// Whether this thread is in the usual class, and may leave it and return to it.
fn may_return() -> bool {
    // SAFETY: the call takes a number only.
    let usual = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    usual && set_class(0, libc::SCHED_IDLE).is_ok() && set_class(0, libc::SCHED_OTHER).is_ok()
}

impl Keeper {
    /// Starts the thread. `None` if threads could not leave the class again.
    pub(super) fn start() -> Option<Keeper> {
        let shared = Arc::new(Shared {
            states: Mutex::default(),
            resting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            cpus_busy: AtomicBool::new(false),
            answers: AtomicU64::new(0),
        });
        let (ours, (said, allowed)) = (Arc::clone(&shared), std::sync::mpsc::channel());
        let thread = base::thread::spawn("fuse-keeper", move || {
            let may = may_return();
            let _ = said.send(may);
            if may {
                ours.keep();
            }
        })
        .ok()?;
        allowed.recv().is_ok_and(|may| may).then(|| Keeper { shared, thread: thread.thread().clone() })
    }

    /// The state for the ring whose thread calls this.
    pub(super) fn yielder(&self) -> Yielder {
        // SAFETY: the call takes nothing and cannot fail.
        let thread = unsafe { libc::gettid() };
        let state = Arc::new(YieldState { thread, turn: AtomicU64::new(0), waited: Mutex::new(None) });
        self.shared.states.lock().push(Arc::clone(&state));
        let (shared, keeper) = (Arc::clone(&self.shared), self.thread.clone());
        Yielder { shared, state, keeper, turn: 0, good: 0, pause: PAUSE, not_before: None }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// How many threads of the machine want a CPU: the fourth field of /proc/loadavg, up to its slash.
fn runnable(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// How many threads want a CPU, averaged over [`MEMORY`].
struct Load {
    cpus: f64,
    average: f64,
    last: Instant,
}

impl Load {
    fn new() -> Load {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // The CPUs count as free at first.
        Load { cpus: cpus as f64, average: 0.0, last: monotonic() }
    }

    /// Adds a sample. Returns whether no CPU is left.
    fn is_full(&mut self, now: f64) -> bool {
        let since = self.last.elapsed();
        self.last += since;
        let old = (-since.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        self.average = now + old * (self.average - now);
        self.average > self.cpus - 0.5
    }
}

impl Shared {
    fn keep(&self) {
        let (mut seen, mut quiet, mut answers, mut load) = (Vec::new(), 0, 0, Load::new());
        while !self.closed.load(Ordering::SeqCst) {
            let yielded = self.look(&mut seen);
            let loadavg = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
            // This thread is counted, and so is every thread that has yielded. A yielding thread that sleeps
            // is not counted, but then it hardly matters.
            let now = runnable(&loadavg).map_or(0.0, |all| all - 1.0 - yielded as f64);
            self.cpus_busy.store(load.is_full(now.max(0.0)), Ordering::SeqCst);
            let before = std::mem::replace(&mut answers, self.answers.load(Ordering::SeqCst));
            quiet = if yielded > 0 || before != answers { 0 } else { quiet + 1 };
            if quiet < QUIET {
                std::thread::park_timeout(TICK);
                continue;
            }
            // A ring that answers after this store sees it and wakes this thread. The check below sees one
            // that answered just before.
            self.resting.store(true, Ordering::SeqCst);
            if self.answers.load(Ordering::SeqCst) == answers && !self.closed.load(Ordering::SeqCst) {
                std::thread::park();
            }
            self.resting.store(false, Ordering::SeqCst);
            quiet = 0;
        }
        // No thread will be moved back after this, and none yields any more.
        self.states.lock().iter().for_each(|state| drop(set_class(state.thread, libc::SCHED_OTHER)));
    }

    /// Moves back the threads that have yielded for the same turn since the last check. Returns how many have
    /// yielded.
    fn look(&self, seen: &mut Vec<u64>) -> usize {
        let states = self.states.lock();
        let before = std::mem::take(seen);
        let mut yielded = 0;
        for (at, state) in states.iter().enumerate() {
            let turn = state.turn.load(Ordering::SeqCst);
            seen.push(turn);
            if turn == 0 || turn == MOVED_BACK {
                continue;
            }
            yielded += 1;
            if before.get(at) == Some(&turn) {
                *state.waited.lock() = waits(state.thread);
                if state.turn.compare_exchange(turn, MOVED_BACK, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    // The state still belongs to the thread while this lock is held, so the id is still that
                    // thread's.
                    let _ = set_class(state.thread, libc::SCHED_OTHER);
                }
            }
        }
        yielded
    }
}

impl Yielder {
    /// Yields. Call it before a reply is handed over.
    pub(super) fn yield_cpu(&mut self) {
        let shared = &self.shared;
        shared.answers.fetch_add(1, Ordering::SeqCst);
        if shared.resting.load(Ordering::SeqCst) {
            self.keeper.unpark();
        }
        if shared.cpus_busy.load(Ordering::SeqCst)
            || shared.closed.load(Ordering::SeqCst)
            || self.not_before.is_some_and(|then| monotonic() < then)
        {
            return;
        }
        self.not_before = None;
        self.turn = self.turn % (MOVED_BACK - 1) + 1;
        self.state.turn.store(self.turn, Ordering::SeqCst);
        let _ = set_class(0, libc::SCHED_IDLE);
        if self.state.turn.load(Ordering::SeqCst) == MOVED_BACK {
            // The keeper moved the thread back in this very moment, because other programs took the CPU.
            self.resume();
        }
    }

    /// Returns to the own class. Call it as soon as there is work again.
    pub(super) fn resume(&mut self) {
        let found = self.state.turn.swap(0, Ordering::SeqCst);
        if found == 0 {
            return;
        }
        let _ = set_class(0, libc::SCHED_OTHER);
        let waited = if found == MOVED_BACK { self.state.waited.lock().take() } else { None };
        if waited.is_some_and(|then| then == sleeps()) {
            self.not_before = Some(monotonic() + self.pause);
            self.pause = (2 * self.pause).min(PAUSE_MAX);
            self.good = 0;
            return;
        }
        self.good += 1;
        if self.good >= GOOD {
            (self.good, self.pause) = (0, PAUSE);
        }
    }
}

impl Drop for Yielder {
    fn drop(&mut self) {
        self.resume();
        self.shared.states.lock().retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> libc::c_int {
        // SAFETY: the call takes a number only.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// Without the privilege there is no keeper, and nothing to test.
    fn keeper() -> Option<Keeper> {
        let keeper = Keeper::start();
        if keeper.is_none() {
            println!("skipped: needs CAP_SYS_NICE");
        }
        keeper
    }

    fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let begun = monotonic();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Yields once, whether or not the machine is busy.
    fn stepped(yielder: &mut Yielder) {
        let turn = yielder.turn;
        until("it yields", || {
            yielder.shared.cpus_busy.store(false, Ordering::SeqCst);
            yielder.yield_cpu();
            yielder.turn > turn
        });
    }

    #[test]
    fn a_ring_yields_only_between_its_reply_and_its_next_request() {
        let Some(keeper) = keeper() else { return };
        let mut yielder = keeper.yielder();
        for _ in 0..100 {
            keeper.shared.cpus_busy.store(false, Ordering::SeqCst);
            yielder.yield_cpu();
            yielder.resume();
            assert_eq!(class(), libc::SCHED_OTHER);
        }
        yielder.not_before = None;
        yielder.yield_cpu();
        // The keeper may have moved it back just now, or the machine may be busy.
        assert!(class() == libc::SCHED_IDLE || yielder.state.turn.load(Ordering::SeqCst) != yielder.turn);
        drop(yielder);
        assert_eq!(class(), libc::SCHED_OTHER);
        assert!(keeper.shared.states.lock().is_empty());
    }

    #[test]
    fn a_ring_that_yields_too_long_is_moved_back_and_pauses_if_it_had_work() {
        let Some(keeper) = keeper() else { return };
        let mut yielder = keeper.yielder();
        for (round, wait) in [PAUSE, 2 * PAUSE].into_iter().enumerate() {
            yielder.not_before = None;
            stepped(&mut yielder);
            until("it is moved back", || class() == libc::SCHED_OTHER);
            // As if it had waited for a CPU and returned with work. On a busy machine it may have done so
            // while it stepped, and its pause is longer by now.
            *yielder.state.waited.lock() = Some(sleeps());
            yielder.state.turn.store(MOVED_BACK, Ordering::SeqCst);
            yielder.pause = wait;
            yielder.resume();
            let left = yielder.not_before.unwrap() - monotonic();
            assert!(left <= wait && yielder.pause == 2 * wait, "round {round}: {left:?} of {wait:?}");
            // Longer than a busy machine keeps this thread from its next line.
            yielder.not_before = Some(monotonic() + Duration::from_secs(60));
            yielder.yield_cpu();
            assert_eq!(class(), libc::SCHED_OTHER, "not before its pause has ended");
        }
        // The keeper rests, and wakes for the next turn.
        until("the keeper rests", || keeper.shared.resting.load(Ordering::SeqCst));
        yielder.not_before = None;
        stepped(&mut yielder);
        until("it is moved back again", || class() == libc::SCHED_OTHER);
    }

    #[test]
    fn a_ring_that_slept_meanwhile_has_not_starved() {
        let Some(keeper) = keeper() else { return };
        let mut yielder = keeper.yielder();
        stepped(&mut yielder);
        until("it is moved back", || class() == libc::SCHED_OTHER);
        *yielder.state.waited.lock() = Some(sleeps());
        yielder.state.turn.store(MOVED_BACK, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        yielder.resume();
        assert_eq!(yielder.not_before, None);
        // The kernel reports for this thread that it wants its CPU, and the same number. For a sleeping
        // thread it reports nothing.
        // SAFETY: the call takes nothing and cannot fail.
        assert_eq!(waits(unsafe { libc::gettid() }), Some(sleeps()));
        let (say, said) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::spawn(move || {
            // SAFETY: as above.
            say.send(unsafe { libc::gettid() }).unwrap();
            let _ = ended.recv();
        });
        let thread = said.recv().unwrap();
        until("it sleeps", || waits(thread).is_none());
        drop(end);
        sleeper.join().unwrap();
    }

    #[test]
    fn no_ring_yields_when_no_cpu_is_left() {
        assert_eq!(runnable("0.00 0.01 0.05 3/104 10778\n"), Some(3.0));
        assert_eq!(runnable(""), None);
        let mut load = Load { cpus: 2.0, average: 0.0, last: monotonic() };
        let after = |load: &mut Load, ms, now| {
            load.last = monotonic().checked_sub(Duration::from_millis(ms)).unwrap();
            load.is_full(now)
        };
        assert!(!after(&mut load, 2, 2.0), "one crowded sample is not enough");
        assert!(after(&mut load, 100, 2.0));
        assert!(after(&mut load, 2, 1.0), "one quieter sample is not enough either");
        assert!(!after(&mut load, 100, 1.0));
        let Some(keeper) = keeper() else { return };
        let mut yielder = keeper.yielder();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let cpus = std::thread::available_parallelism().unwrap().get();
            for _ in 0..2 * cpus {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let begun = monotonic();
            let mut kept = 0;
            while kept < 20 && begun.elapsed() < Duration::from_secs(120) {
                yielder.yield_cpu();
                kept = if class() == libc::SCHED_OTHER { kept + 1 } else { 0 };
                yielder.resume();
                std::thread::sleep(Duration::from_millis(2));
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(kept, 20);
        });
    }

    #[test]
    fn no_ring_yields_without_a_keeper() {
        let Some(keeper) = keeper() else { return };
        let mut yielder = keeper.yielder();
        drop(keeper);
        yielder.yield_cpu();
        assert_eq!((class(), yielder.turn), (libc::SCHED_OTHER, 0));
    }
}
