//! A waiter: a range of a blob and the completion that wants it. Several sources may share it. The first one
//! that has the bytes completes it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use blob::completion::{Arrival, Completion};
use parking_lot::Mutex;

/// See the [module](self).
pub struct Waiter {
    range: Range<u32>,
    completion: Mutex<Option<Completion>>,
    /// Counts the bytes that were of use.
    taken: OnceLock<Arc<AtomicUsize>>,
}

impl Waiter {
    /// A waiter for this range of a blob.
    pub fn new(range: Range<u32>, completion: Completion) -> Arc<Waiter> {
        Arc::new(Waiter { range, completion: Mutex::new(Some(completion)), taken: OnceLock::new() })
    }

    /// The range that it wants.
    pub fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    /// Completes it, unless that was done before. True: the bytes were of use.
    pub fn complete(&self, arrival: Arrival<'_>) -> bool {
        let completion = self.completion.lock().take();
        let bytes = arrival.as_ref().map_or(0, |bytes| bytes.len());
        let used = completion.is_some_and(|completion| completion(arrival));
        if let Some(taken) = self.taken.get().filter(|_| used) {
            taken.fetch_add(bytes, Ordering::Relaxed);
        }
        used
    }

    /// Whether it still has to be completed.
    pub fn is_open(&self) -> bool {
        self.completion.lock().is_some()
    }

    /// From now on, counts the bytes that are of use to it. The first counter stays.
    pub(crate) fn count_in(&self, taken: &Arc<AtomicUsize>) {
        let _ = self.taken.set(Arc::clone(taken));
    }
}

#[cfg(test)]
mod tests {
    use blob::completion::Missed;

    use super::*;

    #[test]
    fn a_shared_waiter_is_completed_once() {
        let (received, taken) = (Arc::new(AtomicUsize::new(0)), Arc::default());
        let count = Arc::clone(&received);
        let waiter = Waiter::new(
            0..3,
            Box::new(move |arrival| {
                count.fetch_add(arrival.map_or(0, <[u8]>::len), Ordering::Relaxed);
                true
            }),
        );
        waiter.count_in(&taken);
        let other = Arc::clone(&waiter);
        assert!(waiter.is_open() && other.complete(Ok(b"abc")) && !waiter.is_open());
        assert!(!waiter.complete(Ok(b"abcdef")) && !other.complete(Err(Missed::Read)));
        assert_eq!((received.load(Ordering::Relaxed), taken.load(Ordering::Relaxed)), (3, 3));
    }
}
