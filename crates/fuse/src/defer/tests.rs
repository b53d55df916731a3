use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use super::*;

/// Records answers by error.
#[derive(Default)]
struct Kept(Mutex<Vec<(u64, i32)>>);

impl Sink for Kept {
    fn reply(&self, unique: u64, error: i32, _: &[u8]) -> io::Result<()> {
        self.0.lock().push((unique, error));
        Ok(())
    }

    fn notify(&self, _: i32, _: &[&[u8]]) -> io::Result<()> {
        Ok(())
    }
}

fn parts(deadline: Duration) -> (Arc<Kept>, Arc<dyn Sink>, Arc<PendingTable>) {
    let kept = Arc::new(Kept::default());
    let sink = Arc::clone(&kept) as Arc<dyn Sink>;
    (kept, sink, PendingTable::start(deadline, |_| ()).unwrap())
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_request_is_answered_once_by_the_first_claimant() {
    let (kept, sink, pending_table) = parts(LONG);
    let pending = pending_table.enter(1, 0, Some(Waiting::Sync), &sink);
    assert!(pending.start());
    pending_table.interrupt(1);
    assert!(!pending.claim(), "the interrupt was first");
    pending_table.interrupt(1);
    assert_eq!(*kept.0.lock(), [(1, -libc::EINTR)]);
    assert_eq!(pending_table.waiting(), 0);
}

#[test]
fn a_change_under_way_is_not_interrupted_but_a_queued_one_is() {
    let (kept, sink, pending_table) = parts(LONG);
    let running = pending_table.enter(1, 0, Some(Waiting::Change), &sink);
    assert!(running.start());
    pending_table.interrupt(1);
    assert!(running.claim(), "its result must be delivered");
    let queued = pending_table.enter(2, 0, Some(Waiting::Change), &sink);
    pending_table.interrupt(2);
    assert!(!queued.start(), "it never runs");
    assert_eq!(*kept.0.lock(), [(2, -libc::EINTR)]);
}

#[test]
fn regression_a_signal_that_kills_nobody_interrupts_nothing() {
    let (kept, sink, pending_table) = parts(LONG);
    // SAFETY: gettid takes nothing and cannot fail.
    let me = unsafe { libc::gettid() } as u32;
    for waiting in [Waiting::Sync, Waiting::Change] {
        let pending = pending_table.enter(1, me, Some(waiting), &sink);
        pending_table.interrupt(1);
        std::thread::sleep(3 * LOOK_AGAIN);
        assert!(pending.claim(), "the caller lives and waits");
        pending_table.remove(&pending);
    }
    assert!(kept.0.lock().is_empty());
}

#[test]
fn a_caller_killed_after_another_signal_is_released() {
    let (kept, sink, pending_table) = parts(LONG);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    pending_table.enter(1, child.id(), Some(Waiting::Sync), &sink);
    pending_table.interrupt(1);
    assert_eq!(pending_table.waiting(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = base::time::monotonic();
    while pending_table.waiting() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(*kept.0.lock(), [(1, -libc::EINTR)]);
}

/// Over io_uring the kernel sends INTERRUPT by another way than its request.
#[test]
fn regression_an_interrupt_that_is_earlier_than_its_request_counts() {
    let (kept, sink, pending_table) = parts(LONG);
    for unique in 1..=EARLY_MOST as u64 + 1 {
        pending_table.interrupt(unique);
    }
    let forgotten = pending_table.enter(1, 0, Some(Waiting::Sync), &sink);
    pending_table.enter(2, 0, Some(Waiting::Sync), &sink);
    let begun = base::time::monotonic();
    while pending_table.waiting() > 1 {
        assert!(begun.elapsed() < LONG / 2, "the deadline would end it");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(*kept.0.lock(), [(2, -libc::EINTR)]);
    // The number is known once only.
    let again = pending_table.enter(2, 0, Some(Waiting::Sync), &sink);
    assert!(!again.interrupted.load(Ordering::Acquire) && forgotten.claim());
}

#[test]
fn the_deadline_answers_what_is_queued_and_what_is_stuck() {
    let (kept, sink, pending_table) = parts(Duration::from_millis(80));
    let pool = Pool::new("test", 1);
    let (release, wait) = mpsc::channel::<()>();
    let begun = base::time::monotonic();
    pool.push(pending_table.enter(1, 0, None, &sink), Box::new(move |_, _| assert!(wait.recv().is_err())));
    pool.push(
        pending_table.enter(2, 0, None, &sink),
        Box::new(|_, _| panic!("never runs: its deadline has passed")),
    );
    while kept.0.lock().len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() >= Duration::from_millis(80));
    let mut answers = kept.0.lock().clone();
    answers.sort_unstable();
    assert_eq!(answers, [(1, -libc::EIO), (2, -libc::EIO)]);
    drop(release);
}

/// Work that is not done when its caller is answered must know when that is.
#[test]
fn what_changes_something_knows_when_it_is_given_up() {
    let (_, sink, pending_table) = parts(LONG);
    for waiting in [Waiting::Write, Waiting::Change, Waiting::Look] {
        let left = pending_table.enter(1, 0, Some(waiting), &sink).deadline().left();
        assert!(left < LONG && left > LONG / 2, "{waiting:?}: {left:?}");
    }
    assert!(!pending_table.enter(1, 0, Some(Waiting::Sync), &sink).deadline().is_bounded());
}

#[test]
fn a_reused_number_is_not_confused_with_the_old_request() {
    let (_, sink, pending_table) = parts(LONG);
    let old = pending_table.enter(1, 0, None, &sink);
    let new = pending_table.enter(1, 0, None, &sink);
    pending_table.remove(&old);
    assert_eq!(pending_table.waiting(), 1, "the new request stays");
    pending_table.remove(&new);
    assert_eq!(pending_table.waiting(), 0);
}

#[test]
fn workers_are_as_many_as_needed_and_never_more_than_allowed() {
    let (_, sink, pending_table) = parts(LONG);
    let pool = Pool::new("test", 3);
    let (at_once, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (done, wait) = mpsc::channel();
    for unique in 0..20 {
        let (at_once, most, done) = (Arc::clone(&at_once), Arc::clone(&most), done.clone());
        let work = move |_: &PendingRequest, _: &mut [u8]| {
            let now = at_once.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            // The first one waits until there are as many workers as are allowed.
            let begun = base::time::monotonic();
            while most.load(Ordering::SeqCst) < 3 && begun.elapsed() < LONG / 2 {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(10));
            at_once.fetch_sub(1, Ordering::SeqCst);
            done.send(()).unwrap();
        };
        pool.push(pending_table.enter(unique, 0, None, &sink), Box::new(work));
    }
    for _ in 0..20 {
        wait.recv_timeout(LONG).unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

/// Nor does its request wait for ever: a request that has left the table has no deadline any more.
#[test]
fn regression_a_panic_in_a_worker_does_not_use_it_up() {
    let (kept, sink, pending_table) = parts(LONG);
    let pool = Pool::new("test", 1);
    let (done, wait) = mpsc::channel();
    let pending = pending_table.enter(1, 0, None, &sink);
    pending_table.remove(&pending);
    pool.push(pending, Box::new(|_, _| panic!("on purpose")));
    pool.push(pending_table.enter(2, 0, None, &sink), Box::new(move |_, _| done.send(()).unwrap()));
    wait.recv_timeout(LONG).unwrap();
    assert_eq!(*kept.0.lock(), [(1, -libc::EIO)]);
}

#[test]
fn a_completion_serves_although_a_worker_is_running() {
    let (kept, sink, pending_table) = parts(LONG);
    let pending = pending_table.enter(1, 0, None, &sink);
    assert!(pending.start() && pending.serve() && pending.is_served());
    assert!(!pending.claim() && !pending.serve(), "a request should be claimed only once");
    assert!(pending.is_served() && kept.0.lock().is_empty());
    let pending = pending_table.enter(2, 0, None, &sink);
    assert!(pending.claim() && !pending.serve() && !pending.is_served(), "the first party gets it");
}

/// Reads of data that was nowhere kept all workers busy for longer than the kernel waited for them. Meanwhile
/// data that could be had was not read.
#[test]
fn regression_workers_stuck_with_answered_requests_are_replaced() {
    base::trial::at_some_scale(|scale| stuck_workers(scale * Duration::from_millis(100))).unwrap();
}

/// An error if a request missed this deadline before a worker took it, as on a busy machine.
fn stuck_workers(deadline: Duration) -> Result<(), String> {
    let (kept, sink, pending_table) = parts(deadline);
    let pool = Pool::new("test", 2);
    let (release, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let stuck = |unique| {
        let wait = Arc::clone(&wait);
        pool.push(
            pending_table.enter(unique, 0, None, &sink),
            Box::new(move |_, _| assert!(wait.lock().recv().is_err())),
        );
    };
    let until = |what: &str, is: &dyn Fn() -> bool| {
        let begun = base::time::monotonic();
        while !is() {
            if begun.elapsed() > Duration::from_secs(20) {
                return Err(format!("not within 20 s: {what}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    };
    for round in 0..REPLACEMENTS as u64 {
        (0..2).for_each(|n| stuck(10 * round + n));
        until("the clock answers", &|| kept.0.lock().len() as u64 == 2 * (round + 1))?;
        let (done, ran) = mpsc::channel();
        let work = move |pending: &PendingRequest, _: &mut [u8]| done.send(pending.claim()).unwrap();
        pool.push(pending_table.enter(10 * round + 5, 0, None, &sink), Box::new(work));
        if ran.recv_timeout(Duration::from_secs(20)) != Ok(true) {
            return Err("another worker should run the next request".to_owned());
        }
    }
    // The replacements have a limit: these take the last two places.
    (0..2).for_each(|n| stuck(100 + n));
    until("the clock answers", &|| kept.0.lock().len() == 2 * REPLACEMENTS + 2)?;
    until("all places are taken", &|| pool.state.lock().orphaned == 2 * REPLACEMENTS + 2)?;
    assert!(pool.state.lock().threads <= 2 + 2 * REPLACEMENTS);
    drop(release);
    until("the workers are back", &|| pool.state.lock().orphaned == 0)
}
