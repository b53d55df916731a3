//! Blobs that are given to their receiver as they arrive.

use std::sync::Arc;

use blob::source::Onto;
use parking_lot::Mutex;

use super::*;
use crate::remote::layout::HEAD;

/// Receives a blob as it arrives.
#[derive(Default)]
struct Growing {
    came: AtomicU64,
    bytes: Mutex<Vec<u8>>,
    size: AtomicU64,
    refuses: bool,
}

impl Onto for Growing {
    fn came(&self, bytes: u64) {
        self.came.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take(&self, sums: &Sums, offset: u32, bytes: &[u8]) -> bool {
        let mut all = self.bytes.lock();
        assert!(offset as usize <= all.len(), "the bytes before it have arrived");
        self.size.store(u64::from(sums.size()), Ordering::Relaxed);
        let new = (all.len() - offset as usize).min(bytes.len());
        all.extend_from_slice(&bytes[new..]);
        !self.refuses
    }

    fn is_whole(&self) -> bool {
        let all = self.bytes.lock();
        !self.refuses && all.len() as u64 == self.size.load(Ordering::Relaxed) && !all.is_empty()
    }
}

/// Many GETs that share a line are all slow: each was hedged, and the line became even slower.
#[test]
fn regression_what_comes_slowly_is_not_asked_for_twice() {
    // If nothing comes for a second, a second GET is right. A busy machine may cause that, or show the test
    // nothing before the end, but not each time.
    at_some_scale(|_| comes_slowly()).unwrap();
}

fn comes_slowly() -> Result<(), String> {
    let (proxy, remote, id, bytes) = behind(13, Limits::default());
    proxy.add(Rule::new(Fault::Trickle(100_000)).only(Method::GET).times(1));
    let growing = Arc::new(Growing::default());
    let onto: Arc<dyn Onto> = growing.clone();
    let begin = Instant::now();
    let is_hedged = || remote.stats().hedges > 0;
    let (begins, whole) = std::thread::scope(|scope| {
        let fetched = scope.spawn(|| remote.fetch_onto(&id, &onto).unwrap());
        while growing.bytes.lock().len() < 50_000 && !fetched.is_finished() {
            assert!(begin.elapsed() < Duration::from_secs(120));
            std::thread::sleep(Duration::from_millis(5));
        }
        let begins = !fetched.is_finished() && !onto.is_whole();
        (begins, fetched.join().unwrap())
    });
    if is_hedged() || !begins {
        return Err(format!("hedged: {}; the beginning is here before the end: {begins}", is_hedged()));
    }
    assert!(whole.is_none(), "the fetch should leave all bytes to the receiver");
    assert!(begin.elapsed() > Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(*growing.bytes.lock() == bytes);
    assert_eq!(
        growing.came.load(Ordering::Relaxed),
        300_000 + u64::from(HEAD),
        "and a waiter can see it arrive"
    );
    Ok(())
}

#[test]
fn a_blob_that_nobody_takes_as_it_comes_is_given_whole() {
    let (proxy, remote, id, bytes) = behind(14, unhedged());
    let refusing: Arc<dyn Onto> = Arc::new(Growing { refuses: true, ..Growing::default() });
    let before = remote.stats().requests(Kind::Get);
    assert!(remote.fetch_onto(&id, &refusing).unwrap().unwrap().1 == bytes);
    assert_eq!(remote.stats().requests(Kind::Get) - before, 1);
    // The first answer is corrupt, in the sums or in the bytes: the second is compared as a whole.
    for fault in [Fault::Flip, Fault::Shorten(1000)] {
        proxy.add(Rule::new(fault).only(Method::GET).times(1));
        let onto: Arc<dyn Onto> = Arc::new(Growing::default());
        let whole = remote.fetch_onto(&id, &onto).unwrap();
        assert!(whole.is_none_or(|whole| whole.1 == bytes));
        proxy.faults().clear();
    }
}

/// The lease went to another node meanwhile, because nothing seemed to arrive.
#[test]
fn regression_the_second_answer_after_a_spoilt_one_is_seen_to_come() {
    let (proxy, remote, id, bytes) = behind(16, unhedged());
    proxy.add(Rule::new(Fault::Flip).only(Method::GET).times(1));
    let growing = Arc::new(Growing { refuses: true, ..Growing::default() });
    let onto: Arc<dyn Onto> = growing.clone();
    assert!(remote.fetch_onto(&id, &onto).unwrap().unwrap().1 == bytes);
    assert_eq!(growing.came.load(Ordering::Relaxed), 2 * (300_000 + u64::from(HEAD)));
}
