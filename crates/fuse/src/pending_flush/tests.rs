use std::process::{Child, Command};

use super::*;

#[derive(Default)]
struct Cleared(Arc<Mutex<Vec<Ino>>>);

impl ClearError for Cleared {
    fn clear(&self, ino: Ino) -> bool {
        self.0.lock().push(ino);
        true
    }
}

fn flushes() -> (Arc<PendingFlushes>, Arc<Mutex<Vec<Ino>>>) {
    let cleared = Cleared::default();
    let list = Arc::clone(&cleared.0);
    (PendingFlushes::start(Box::new(cleared)).unwrap(), list)
}

fn until(what: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(120), "not in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ended() -> Child {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child
}

#[test]
fn the_error_of_a_flush_that_does_not_come_is_cleared_when_its_thread_is_gone() {
    let (flushes, cleared) = flushes();
    flushes.watch_for(ended().id(), Touched([Some(Ino(5)), Some(Ino(6))]));
    until(|| flushes.cleared() == 2);
    assert_eq!(*cleared.lock(), [Ino(5), Ino(6)]);
    until(|| flushes.state.lock().pending.is_empty());
    // The thread sleeps, or soon will. The next flush must wake it.
    until(|| flushes.state.lock().asleep);
    flushes.watch_for(ended().id(), Touched::one(Ino(7)));
    until(|| cleared.lock().last() == Some(&Ino(7)));
    flushes.close();
}

#[test]
fn a_flush_that_arrived_is_not_watched_for() {
    let (flushes, cleared) = flushes();
    let (one, other) = (ended().id(), std::process::id());
    {
        // Under one lock, so that nothing is checked in between.
        let mut state = flushes.state.lock();
        let now = base::time::monotonic();
        let pending = |number, ino, thread| Pending { number, ino, thread, since: now, look_at: now };
        state.pending = vec![pending(0, Ino(5), one), pending(1, Ino(5), other), pending(2, Ino(6), one)];
        state.pending.retain(|pending| (pending.ino, pending.thread) != (Ino(5), one));
        assert_eq!(state.pending.len(), 2, "a flush by another thread should not count");
        // On a slow machine the thread sleeps by now.
        flushes.changed.notify_all();
    }
    until(|| flushes.cleared() == 1);
    assert_eq!(*cleared.lock(), [Ino(6)]);
    flushes.arrived(other, Ino(5));
    assert!(flushes.state.lock().pending.is_empty());
    flushes.close();
}

/// A program must learn of a write that failed, whatever else was killed.
#[test]
fn a_real_error_is_never_cleared() {
    let (flushes, cleared) = flushes();
    flushes.write_failed(Ino(5));
    flushes.write_begins(Ino(6));
    flushes.write_begins(Ino(7));
    flushes.write_done(Ino(7));
    let gone = ended().id();
    (5..8).for_each(|ino| flushes.watch_for(gone, Touched::one(Ino(ino))));
    until(|| flushes.state.lock().pending.is_empty());
    assert_eq!(*cleared.lock(), [Ino(7)]);
    flushes.close();
}

#[test]
fn failed_writes_are_remembered_within_a_bound() {
    let (flushes, cleared) = flushes();
    (0..FAILED_MOST as u64 + 10).for_each(|ino| flushes.write_failed(Ino(ino)));
    assert!(flushes.state.lock().writes.len() <= FAILED_MOST);
    flushes.watch_for(ended().id(), Touched::one(Ino(1 << 40)));
    until(|| flushes.state.lock().pending.is_empty());
    assert!(cleared.lock().is_empty());
    flushes.close();
}
