//! Stepping aside: a ring's thread does not stand in the way of the program that it answers.
//!
//! ```text
//!   as the scheduler has it                       stepping aside
//!   CPU 0: ring answers ── wakes program ─┐       CPU 0: ring ─ SCHED_IDLE ─ answers ─ program runs on ─ asks ─ ring ...
//!   CPU 1: (asleep) ◄── woken from afar ──┘       CPU 1: (asleep)
//! ```
//!
//! A program that is woken looks for a CPU that is idle. The one that it waited on is not: the ring's thread runs there, just about to
//! sleep. So the program moves to another CPU, which has to be woken from afar, its next request goes to another ring, and so on with
//! every single request; on a virtual machine each of these wakings costs more than the request. A CPU on which only threads of the
//! class `SCHED_IDLE` run counts as idle, though (`sched_idle_cpu` in the kernel's fair.c). So a ring's thread takes that class on
//! before it hands an answer over, and its own again as soon as it is back with the next request. The program is woken where it was, runs
//! at once, and finds the ring ready when it asks again.
//!
//! **What must not happen** is that a thread in that class starves with a request before it, because other programs compute on its CPU.
//! So it is in that class only inside of the system call that hands over and waits, and never while it serves. A [`Keeper`] looks every
//! [`TICK`] at who is aside for longer than that, and brings them back: idle or not, a ring that has nothing to do soon waits in its
//! own class. One that waited for a CPU when it was fetched, and comes back with work without having slept, has starved for it: then it
//! stays in its class for [`PAUSE`], twice as long each time. An idle mount has no ticks.
//!
//! Where every CPU has something to do there is none that a program could move to, so nothing is gained by stepping aside, and the next
//! request waits for whoever computes. The keeper counts who wants a CPU (`/proc/loadavg`), and nobody steps aside while these are about
//! as many as there are CPUs: a build with `make -j` took a sixth longer without that.
//!
//! Leaving the class needs CAP_SYS_NICE, so a [`Keeper`] first tries with itself whether it may.
//! [`Options::aside`](crate::Options::aside) turns it off.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use base::time::monotonic;
use parking_lot::Mutex;

/// The longest that a ring's thread may be aside without anybody having looked.
const TICK: Duration = Duration::from_millis(2);
/// After so many ticks without anybody aside the keeper sleeps until there is.
const QUIET: u32 = 8;
/// For how long a ring that has starved does not step aside.
const PAUSE: Duration = Duration::from_millis(100);
/// The most that becomes of it.
const PAUSE_MAX: Duration = Duration::from_millis(3200);
/// Turns without starving after which a pause is a short one again.
const GOOD: u32 = 20_000;
/// What happened so long ago counts a third in how crowded the CPUs are.
const MEMORY: Duration = Duration::from_millis(16);
/// The seat of a ring that was brought back; turns are never this, nor 0.
const BACK: u64 = u64::MAX;

/// Where a ring's thread says that it is aside.
struct Seat {
    thread: libc::pid_t,
    /// 0: in its own class. [`BACK`]: put there by the keeper. Else the number of the turn that it is aside for.
    turn: AtomicU64,
    /// How often it had slept when the keeper last brought it back, if it did not sleep then but waited for a CPU.
    waited: Mutex<Option<u64>>,
}

/// What rings and the keeper's thread share.
struct Shared {
    seats: Mutex<Vec<Arc<Seat>>>,
    resting: AtomicBool,
    closed: AtomicBool,
    /// All CPUs are in use.
    crowded: AtomicBool,
    /// How often a ring would have stepped aside.
    answers: AtomicU64,
}

/// Brings rings' threads back; its own thread ends with it.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Thread,
}

/// Of one ring, and used by its thread only.
pub(super) struct Aside {
    shared: Arc<Shared>,
    seat: Arc<Seat>,
    keeper: Thread,
    turn: u64,
    good: u32,
    pause: Duration,
    /// It has starved: not before then.
    not_before: Option<Instant>,
}

/// Gives a thread of this process (0: the caller) another class of the fair scheduler; its nice value stays.
fn set_class(thread: libc::pid_t, class: libc::c_int) -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live through the call; it changes nothing but how a thread is scheduled.
    match unsafe { libc::sched_setscheduler(thread, class, &raw const none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How often this thread has slept.
fn sleeps() -> u64 {
    // SAFETY: the kernel fills the room, which is as large as it has to be; all zeros is a value of it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nvcsw as u64
    }
}

/// The same of another thread that has no CPU but wants one; none if it sleeps.
fn waits(thread: libc::pid_t) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    field("State:")?.starts_with('R').then(|| field("voluntary_ctxt_switches:")?.parse().ok()).flatten()
}

/// Whether this thread is of the usual class, and may leave it and come back.
fn may_come_back() -> bool {
    // SAFETY: the call takes a number only.
    let usual = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    usual && set_class(0, libc::SCHED_IDLE).is_ok() && set_class(0, libc::SCHED_OTHER).is_ok()
}

impl Keeper {
    /// None where threads could not come back.
    pub(super) fn start() -> Option<Keeper> {
        let shared = Arc::new(Shared {
            seats: Mutex::default(),
            resting: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            crowded: AtomicBool::new(false),
            answers: AtomicU64::new(0),
        });
        let (ours, (said, allowed)) = (Arc::clone(&shared), std::sync::mpsc::channel());
        let thread = base::thread::spawn("fuse-keeper", move || {
            let may = may_come_back();
            let _ = said.send(may);
            if may {
                ours.keep();
            }
        })
        .ok()?;
        allowed.recv().is_ok_and(|may| may).then(|| Keeper { shared, thread: thread.thread().clone() })
    }

    /// For the ring whose thread calls this.
    pub(super) fn aside(&self) -> Aside {
        // SAFETY: the call takes nothing and cannot fail.
        let thread = unsafe { libc::gettid() };
        let seat = Arc::new(Seat { thread, turn: AtomicU64::new(0), waited: Mutex::new(None) });
        self.shared.seats.lock().push(Arc::clone(&seat));
        let (shared, keeper) = (Arc::clone(&self.shared), self.thread.clone());
        Aside { shared, seat, keeper, turn: 0, good: 0, pause: PAUSE, not_before: None }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// How many threads want a CPU, of the whole machine: the fourth word of /proc/loadavg, up to its slash.
fn wanting(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().nth(3)?.split('/').next()?.parse().ok()
}

/// How many programs want a CPU, averaged over [`MEMORY`].
struct Crowd {
    cpus: f64,
    average: f64,
    last: Instant,
}

impl Crowd {
    fn new() -> Crowd {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // The first look decides.
        Crowd { cpus: cpus as f64, average: 0.0, last: monotonic() }
    }

    /// With so many now. Whether no CPU is left.
    fn is_all(&mut self, now: f64) -> bool {
        let since = self.last.elapsed();
        self.last += since;
        let old = (-since.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        self.average = now + old * (self.average - now);
        self.average > self.cpus - 0.5
    }
}

impl Shared {
    fn keep(&self) {
        let (mut seen, mut quiet, mut answers, mut crowd) = (Vec::new(), 0, 0, Crowd::new());
        while !self.closed.load(Ordering::SeqCst) {
            let aside = self.look(&mut seen);
            let loadavg = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
            // This thread is one of them, and so is who is aside, or sleeps and is none: it hardly matters then.
            let now = wanting(&loadavg).map_or(0.0, |all| all - 1.0 - aside as f64);
            self.crowded.store(crowd.is_all(now.max(0.0)), Ordering::SeqCst);
            let before = std::mem::replace(&mut answers, self.answers.load(Ordering::SeqCst));
            quiet = if aside > 0 || before != answers { 0 } else { quiet + 1 };
            if quiet < QUIET {
                std::thread::park_timeout(TICK);
                continue;
            }
            // Who answers from now on sees it and wakes us; who did just before is seen by one more look.
            self.resting.store(true, Ordering::SeqCst);
            if self.answers.load(Ordering::SeqCst) == answers && !self.closed.load(Ordering::SeqCst) {
                std::thread::park();
            }
            self.resting.store(false, Ordering::SeqCst);
            quiet = 0;
        }
        // Nobody will look any more, and nobody steps aside any more.
        self.seats.lock().iter().for_each(|seat| drop(set_class(seat.thread, libc::SCHED_OTHER)));
    }

    /// Brings back who was aside for the same turn at the last look. How many are aside.
    fn look(&self, seen: &mut Vec<u64>) -> usize {
        let seats = self.seats.lock();
        let before = std::mem::take(seen);
        let mut aside = 0;
        for (at, seat) in seats.iter().enumerate() {
            let turn = seat.turn.load(Ordering::SeqCst);
            seen.push(turn);
            if turn == 0 || turn == BACK {
                continue;
            }
            aside += 1;
            if before.get(at) == Some(&turn) {
                *seat.waited.lock() = waits(seat.thread);
                if seat.turn.compare_exchange(turn, BACK, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                    // The seat is still taken, under this lock, so the thread is still that one.
                    let _ = set_class(seat.thread, libc::SCHED_OTHER);
                }
            }
        }
        aside
    }
}

impl Aside {
    /// Before an answer is handed over.
    pub(super) fn step(&mut self) {
        let shared = &self.shared;
        shared.answers.fetch_add(1, Ordering::SeqCst);
        if shared.resting.load(Ordering::SeqCst) {
            self.keeper.unpark();
        }
        if shared.crowded.load(Ordering::SeqCst)
            || shared.closed.load(Ordering::SeqCst)
            || self.not_before.is_some_and(|then| monotonic() < then)
        {
            return;
        }
        self.not_before = None;
        self.turn = self.turn % (BACK - 1) + 1;
        self.seat.turn.store(self.turn, Ordering::SeqCst);
        let _ = set_class(0, libc::SCHED_IDLE);
        if self.seat.turn.load(Ordering::SeqCst) == BACK {
            // Others took the CPU right then.
            self.back();
        }
    }

    /// As soon as there is something to do again.
    pub(super) fn back(&mut self) {
        let found = self.seat.turn.swap(0, Ordering::SeqCst);
        if found == 0 {
            return;
        }
        let _ = set_class(0, libc::SCHED_OTHER);
        let waited = if found == BACK { self.seat.waited.lock().take() } else { None };
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

impl Drop for Aside {
    fn drop(&mut self) {
        self.back();
        self.shared.seats.lock().retain(|seat| !Arc::ptr_eq(seat, &self.seat));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> libc::c_int {
        // SAFETY: the call takes a number only.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// Without the right to come back there is no keeper, and nothing to try.
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
            assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether or not the machine is busy.
    fn stepped(aside: &mut Aside) {
        let turn = aside.turn;
        until("it steps aside", || {
            aside.shared.crowded.store(false, Ordering::SeqCst);
            aside.step();
            aside.turn > turn
        });
    }

    #[test]
    fn a_ring_is_aside_only_between_its_answer_and_its_next_request() {
        let Some(keeper) = keeper() else { return };
        let mut aside = keeper.aside();
        for _ in 0..100 {
            keeper.shared.crowded.store(false, Ordering::SeqCst);
            aside.step();
            aside.back();
            assert_eq!(class(), libc::SCHED_OTHER);
        }
        aside.not_before = None;
        aside.step();
        // Unless it was fetched just now, or the machine is busy.
        assert!(class() == libc::SCHED_IDLE || aside.seat.turn.load(Ordering::SeqCst) != aside.turn);
        drop(aside);
        assert_eq!(class(), libc::SCHED_OTHER);
        assert!(keeper.shared.seats.lock().is_empty());
    }

    #[test]
    fn who_stays_aside_is_brought_back_and_who_had_work_then_pauses() {
        let Some(keeper) = keeper() else { return };
        let mut aside = keeper.aside();
        for (round, wait) in [PAUSE, 2 * PAUSE].into_iter().enumerate() {
            aside.not_before = None;
            stepped(&mut aside);
            until("it is brought back", || class() == libc::SCHED_OTHER);
            // As if it had waited for a CPU and returned with work.
            *aside.seat.waited.lock() = Some(sleeps());
            aside.seat.turn.store(BACK, Ordering::SeqCst);
            aside.back();
            let left = aside.not_before.unwrap() - monotonic();
            assert!(left <= wait && aside.pause == 2 * wait, "round {round}: {left:?} of {wait:?}");
            // Longer than a busy machine keeps this thread from its next line.
            aside.not_before = Some(monotonic() + Duration::from_secs(60));
            aside.step();
            assert_eq!(class(), libc::SCHED_OTHER, "not before its pause has ended");
        }
        // The keeper rests, and wakes for the next.
        until("the keeper rests", || keeper.shared.resting.load(Ordering::SeqCst));
        aside.not_before = None;
        stepped(&mut aside);
        until("it is brought back again", || class() == libc::SCHED_OTHER);
    }

    #[test]
    fn who_slept_in_between_has_not_starved() {
        let Some(keeper) = keeper() else { return };
        let mut aside = keeper.aside();
        stepped(&mut aside);
        until("it is brought back", || class() == libc::SCHED_OTHER);
        *aside.seat.waited.lock() = Some(sleeps());
        aside.seat.turn.store(BACK, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        aside.back();
        assert_eq!(aside.not_before, None);
        // The kernel says of this thread that it wants its CPU, and the same number; of one that sleeps nothing.
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
    fn where_no_cpu_is_left_nobody_steps_aside() {
        assert_eq!(wanting("0.00 0.01 0.05 3/104 10778\n"), Some(3.0));
        assert_eq!(wanting(""), None);
        let mut crowd = Crowd { cpus: 2.0, average: 0.0, last: monotonic() };
        let after = |crowd: &mut Crowd, ms, now| {
            crowd.last = monotonic().checked_sub(Duration::from_millis(ms)).unwrap();
            crowd.is_all(now)
        };
        assert!(!after(&mut crowd, 2, 2.0), "one look at a crowd is none");
        assert!(after(&mut crowd, 100, 2.0));
        assert!(after(&mut crowd, 2, 1.0), "nor is one look at less");
        assert!(!after(&mut crowd, 100, 1.0));
        let Some(keeper) = keeper() else { return };
        let mut aside = keeper.aside();
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
            while kept < 20 && begun.elapsed() < Duration::from_secs(20) {
                aside.step();
                kept = if class() == libc::SCHED_OTHER { kept + 1 } else { 0 };
                aside.back();
                std::thread::sleep(Duration::from_millis(2));
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(kept, 20);
        });
    }

    #[test]
    fn without_a_keeper_nobody_steps_aside() {
        let Some(keeper) = keeper() else { return };
        let mut aside = keeper.aside();
        drop(keeper);
        aside.step();
        assert_eq!((class(), aside.turn), (libc::SCHED_OTHER, 0));
    }
}
