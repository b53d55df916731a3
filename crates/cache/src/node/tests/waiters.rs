//! Readers that are notified when their range has arrived, and hold no thread until then.

use std::sync::mpsc::{Receiver, channel};

use blob::completion::{Arrival, Missed, Start};

use super::*;

const LARGE: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

impl Home {
    /// Begins a read and returns a channel for the result.
    fn start(&self, id: &BlobId, at: usize, len: usize) -> (Start, Receiver<Result<Vec<u8>, Missed>>) {
        let (sender, receiver) = channel();
        let completion = move |arrival: Arrival<'_>| sender.send(arrival.map(<[u8]>::to_vec)).is_ok();
        let range = at as u32..(at + len) as u32;
        (self.cache().start_read(id, range, Access::Normal, Box::new(completion)), receiver)
    }

    /// Begins a read of bytes that are in flight, and returns a channel for the result.
    fn follow(&self, id: &BlobId, at: usize, len: usize) -> Receiver<Result<Vec<u8>, Missed>> {
        let (start, receiver) = self.start(id, at, len);
        assert!(start.is_pending(), "{start:?}");
        receiver
    }

    /// Begins a fetch that gets no answer before [`Home::go_on`].
    fn begin(&self, id: &BlobId) {
        self.far.held.store(true, Ordering::SeqCst);
        self.cache().will_need(id);
        self.until("it is under way", |stats| stats.in_flight > 0);
    }

    fn go_on(&self) {
        self.far.held.store(false, Ordering::SeqCst);
    }
}

#[test]
fn who_comes_while_it_is_fetched_is_told_when_it_lands() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, LARGE).remove(0);
    assert!(matches!(home.start(&id, 0, LARGE).0, Start::Lead(_)));
    home.begin(&id);
    let told: Vec<_> = (0..40).map(|n| (n * 1000, home.follow(&id, n * 1000, 4096))).collect();
    home.go_on();
    for (at, told) in told {
        assert_eq!(told.recv_timeout(LONG).unwrap().unwrap(), bytes[at..at + 4096]);
    }
    assert_eq!(home.far.requests(), (0, 1));
    // A reader is notified before it is counted.
    home.until("all are counted", |stats| stats.far_reads == 40);
    let stats = home.stats();
    assert_eq!((stats.far_reads, stats.far_bytes, stats.shared_fetches), (40, 40 * 4096, 40), "{stats:?}");
    // Once the blob is on the disk there is nothing to wait for: the reader reads it.
    home.rest();
    assert!(matches!(home.start(&id, 0, LARGE).0, Start::Read));
}

#[test]
fn what_cannot_be_had_is_said() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, LARGE).remove(0);
    let began = Instant::now();
    home.begin(&id);
    home.far.away.store(true, Ordering::SeqCst);
    let told = home.follow(&id, 0, 4096);
    home.go_on();
    let told = told.recv_timeout(LONG).unwrap();
    let is_failed = matches!(told, Err(Missed::Failed(BlobError::Unavailable(_))));
    // After a fetch that has lasted a second, a waiter is to read once more.
    let is_late = matches!(told, Err(Missed::Read)) && began.elapsed() >= Duration::from_secs(1);
    assert!(is_failed || is_late, "{told:?}");
    home.far.away.store(false, Ordering::SeqCst);
    // A fetch notifies its waiters of its end before it is removed from the table.
    home.rest();
    home.begin(&id);
    let wrong = home.follow(&id, LARGE - 10, 4096);
    home.go_on();
    assert!(
        matches!(wrong.recv_timeout(LONG).unwrap(), Err(Missed::Read)),
        "a range past the blob's end should be an error"
    );
    assert_eq!(home.stats().far_reads, 0, "no reader should have got bytes");
    assert_eq!(home.read(&id, 0, LARGE).unwrap(), bytes);
}

#[test]
fn what_was_given_before_it_landed_does_not_wait_in_memory_for_its_reader() {
    let home = Home::new();
    let blobs = far_blobs(&home, 2, LARGE);
    for (n, (id, _)) in blobs.iter().enumerate() {
        home.begin(id);
        // All of the first blob, and half of the second.
        let told: Vec<_> =
            (0..4 / (n + 1)).map(|part| home.follow(id, part * LARGE / 4, LARGE / 4)).collect();
        home.go_on();
        told.iter().for_each(|told| assert!(told.recv_timeout(LONG).unwrap().is_ok()));
        home.rest();
    }
    assert_eq!(home.stats().in_memory_bytes, LARGE as u64, "only the second blob should stay in memory");
}

/// The completion's bytes and the state of the origin after a read that nothing was in flight for.
#[test]
fn a_read_that_begins_a_fetch_gets_a_task_that_completes_it() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, 2 * LARGE).remove(0);
    let lead = |start: Start| match start {
        Start::Lead(task) => task,
        other => panic!("{other:?}"),
    };
    let (start, first) = home.start(&id, 70_000, 4096);
    let task = lead(start);
    assert!(first.try_recv().is_err() && task());
    assert_eq!(first.try_recv().unwrap().unwrap(), bytes[70_000..74_096]);
    // From memory, without a thread.
    let part = home.follow(&id, 66_000, 100).try_recv().unwrap().unwrap();
    assert_eq!(part, bytes[66_000..66_100]);
    // A part is in flight: a second reader of it needs no task, one of more does.
    home.far.delay_ms.store(200, Ordering::SeqCst);
    let (start, mine) = home.start(&id, LARGE, 131_072);
    let running = std::thread::spawn(lead(start));
    home.until("it is under way", |stats| stats.in_flight > 0);
    let theirs = home.follow(&id, LARGE + 5, 131_000);
    let (more, all) = home.start(&id, LARGE - 10, 131_072);
    assert!(lead(more)());
    assert_eq!(all.try_recv().unwrap().unwrap(), bytes[LARGE - 10..LARGE - 10 + 131_072]);
    assert!(running.join().unwrap());
    assert_eq!(mine.try_recv().unwrap().unwrap(), bytes[LARGE..LARGE + 131_072]);
    assert_eq!(theirs.recv_timeout(LONG).unwrap().unwrap(), bytes[LARGE + 5..LARGE + 131_005]);
    assert_eq!(home.far.requests(), (3, 0), "each group should be fetched once");
    // An origin that is away is an error, and a blob that is gone is to be read: its bytes may have moved.
    home.far.away.store(true, Ordering::SeqCst);
    let (start, failed) = home.start(&id, 2 * LARGE - 10, 10);
    assert!(lead(start)());
    assert!(matches!(failed.try_recv().unwrap(), Err(Missed::Failed(BlobError::Unavailable(_)))));
    home.far.away.store(false, Ordering::SeqCst);
    let (start, gone) = home.start(&BlobId([9; 32]), 0, 10);
    assert!(!lead(start)() && gone.try_recv().is_err());
}
