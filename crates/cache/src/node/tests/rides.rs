//! Readers who are told when what they want has come, and hold no thread until then.

use std::sync::mpsc::{Receiver, channel};

use blob::coming::Coming;

use super::*;

const LARGE: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(20);

impl Home {
    /// Asks for a range, and hears of it here; what was said is compared.
    fn ride(&self, id: &BlobId, at: usize, len: usize, said: &str) -> Receiver<Option<Vec<u8>>> {
        let (tell, told) = channel();
        let then = move |bytes: Option<&[u8]>| tell.send(bytes.map(<[u8]>::to_vec)).unwrap();
        let answer = match self.cache().coming(id, at as u32, len as u32, Box::new(then)) {
            Coming::No(_) => "no",
            Coming::Begun => "begun",
            Coming::Unbegun => "unbegun",
        };
        assert_eq!(answer, said);
        told
    }

    /// Begins a fetch that takes a while.
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
    drop(home.ride(&id, 0, LARGE, "no"));
    home.begin(&id);
    let told: Vec<_> = (0..40).map(|n| (n * 1000, home.ride(&id, n * 1000, 4096, "begun"))).collect();
    for (at, told) in told {
        assert_eq!(told.recv_timeout(LONG).unwrap().unwrap(), bytes[at..at + 4096]);
    }
    assert_eq!(home.far.requests(), (0, 1));
    let stats = home.stats();
    assert_eq!((stats.far_reads, stats.far_bytes, stats.shared_fetches), (40, 40 * 4096, 40), "{stats:?}");
    // Until it is on the disk it is told of at once, and then read.
    home.rest();
    drop(home.ride(&id, 0, LARGE, "no"));
}

#[test]
fn what_cannot_be_had_is_left_to_a_read() {
    let home = Home::new();
    let (id, bytes) = far_blobs(&home, 1, LARGE).remove(0);
    home.begin(&id);
    home.far.away.store(true, Ordering::SeqCst);
    let (right, wrong) = (home.ride(&id, 0, 4096, "begun"), home.ride(&id, LARGE - 10, 4096, "begun"));
    assert_eq!((right.recv_timeout(LONG), wrong.recv_timeout(LONG)), (Ok(None), Ok(None)));
    home.far.away.store(false, Ordering::SeqCst);
    home.begin(&id);
    let wrong = home.ride(&id, LARGE - 10, 4096, "begun");
    assert_eq!(wrong.recv_timeout(LONG), Ok(None), "no such range");
    assert_eq!(home.stats().far_reads, 0, "nobody was given anything");
    assert_eq!(home.read(&id, 0, LARGE).unwrap(), bytes);
}

#[test]
fn what_was_given_before_it_landed_does_not_wait_in_memory_for_its_reader() {
    let home = Home::new();
    let blobs = far_blobs(&home, 2, LARGE);
    for (n, (id, _)) in blobs.iter().enumerate() {
        home.begin(id);
        // All of the first, and half of the second.
        let told: Vec<_> =
            (0..4 / (n + 1)).map(|part| home.ride(id, part * LARGE / 4, LARGE / 4, "begun")).collect();
        told.iter().for_each(|told| assert!(told.recv_timeout(LONG).unwrap().is_some()));
        home.rest();
    }
    assert_eq!(home.stats().in_memory_bytes, LARGE as u64, "of the second there is more to read");
}
