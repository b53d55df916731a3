//! Waiting for the bytes of an in-flight fetch without holding a thread.
//!
//! ```text
//!   reader ── coming(range, then) ──► cache ──► fleet: a blob that is being received
//!                                       │            │ the bytes have arrived and are verified
//!                                       ▼            ▼
//!                                     then(Ok(bytes)), on the thread that received them
//! ```
//!
//! [`BlobSource::read_at`](crate::BlobSource::read_at) is always possible. A reader whose bytes are being
//! fetched can register a completion here instead. It may run before the whole blob has arrived.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::BlobError;

/// Why the expected bytes did not arrive.
#[derive(Debug)]
pub enum Missed {
    /// A read may still find them: in another copy, or wherever they are by now.
    Read,
    /// The fetch failed, and a read would fail with the same error.
    Failed(BlobError),
}

/// The argument of a completion.
pub type Told<'a> = Result<&'a [u8], Missed>;

/// A completion: called at most once, on any thread. It must not block. Returns whether the bytes were of
/// use.
pub type Then = Box<dyn FnOnce(Told<'_>) -> bool + Send>;

/// The answer to a request for bytes of an in-flight fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// Nothing is known about them, or they are already here: read. The completion will not be called.
    No,
    /// A fetch has begun and will call the completion.
    Begun,
    /// No fetch has begun yet, so the caller has to read. If the fetch that this read starts brings the bytes
    /// before the read ends, the completion is called with them.
    Unbegun,
}

/// A completion shared by several sources. The first one to have a result calls it.
#[derive(Clone)]
pub struct Rider(Arc<Mutex<Option<Then>>>);

impl Rider {
    /// Wraps a completion.
    pub fn new(then: Then) -> Rider {
        Rider(Arc::new(Mutex::new(Some(then))))
    }

    /// Calls it, unless it was called before. True: the bytes were of use.
    pub fn tell(&self, told: Told<'_>) -> bool {
        let then = self.0.lock().take();
        then.is_some_and(|then| then(told))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_shared_completion_is_called_once() {
        let received = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&received);
        let completion = Rider::new(Box::new(move |result| {
            count.fetch_add(result.map_or(0, <[u8]>::len), Ordering::Relaxed);
            true
        }));
        let other = completion.clone();
        assert!(other.tell(Ok(b"abc")));
        assert!(!completion.tell(Ok(b"abcdef")) && !other.tell(Err(Missed::Read)));
        assert_eq!(received.load(Ordering::Relaxed), 3);
    }
}
