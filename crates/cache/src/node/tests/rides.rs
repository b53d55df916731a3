//! Readers that are notified when their range has arrived, and hold no thread until then.

use std::sync::mpsc::{Receiver, channel};

use blob::coming::{Coming, Missed, Told};

use super::*;

const LARGE: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(20);

impl Home {
    /// Requests a range and returns a channel for the result. Asserts the immediate answer.
    fn ride(&self, id: &BlobId, at: usize, len: usize, said: Coming) -> Receiver<Result<Vec<u8>, Missed>> {
        let (tell, told) = channel();
        let then = move |told: Told<'_>| tell.send(told.map(<[u8]>::to_vec)).is_ok();
        assert_eq!(self.cache().coming(id, at as u32, len as u32, Box::new(then)), said);
        told
    }

    /// Begins a slow fetch.
    fn begin(&self, id: &BlobId) {
        self.far.delay_ms.store(300, Ordering::SeqCst);
        self.cache().will_need(id);
        self.until("it is under way", |stats| stats.in_flight > 0);
    }
}

#[test]
fn who_comes_while_it_is_fetched_is_told_when_it_lands() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, LARGE).remove(0);
    drop(home.ride(&id, 0, LARGE, Coming::No));
    home.begin(&id);
    let told: Vec<_> = (0..40).map(|n| (n * 1000, home.ride(&id, n * 1000, 4096, Coming::Begun))).collect();
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
    drop(home.ride(&id, 0, LARGE, Coming::No));
}

#[test]
fn what_cannot_be_had_is_said() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, LARGE).remove(0);
    home.begin(&id);
    home.far.away.store(true, Ordering::SeqCst);
    let told = home.ride(&id, 0, 4096, Coming::Begun).recv_timeout(LONG).unwrap();
    assert!(matches!(told, Err(Missed::Failed(BlobError::Unavailable(_)))), "{told:?}");
    home.far.away.store(false, Ordering::SeqCst);
    // A fetch notifies its waiters of its end before it is removed from the table.
    home.rest();
    home.begin(&id);
    let wrong = home.ride(&id, LARGE - 10, 4096, Coming::Begun);
    assert!(matches!(wrong.recv_timeout(LONG).unwrap(), Err(Missed::Read)), "no such range");
    assert_eq!(home.stats().far_reads, 0, "nobody was given anything");
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
            (0..4 / (n + 1)).map(|part| home.ride(id, part * LARGE / 4, LARGE / 4, Coming::Begun)).collect();
        told.iter().for_each(|told| assert!(told.recv_timeout(LONG).unwrap().is_ok()));
        home.rest();
    }
    assert_eq!(home.stats().in_memory_bytes, LARGE as u64, "of the second there is more to read");
}
