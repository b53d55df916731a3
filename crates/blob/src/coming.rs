//! Bytes that are on their way: whoever brings them hands them over, and nobody's thread waits.
//!
//! ```text
//!   reader ── coming(range, then) ──► cache ──► fleet: a blob that is being received
//!                                       │            │ the bytes are here, and right
//!                                       ▼            ▼
//!                                     then(Ok(bytes)), on the thread that brought them
//! ```
//!
//! [`BlobSource::read_at`](crate::BlobSource::read_at) is the rule, and always possible; this is the way of a reader who comes while somebody
//! fetches what he wants. He may be told before all of the blob is here.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::BlobError;

/// Why bytes that were on their way are not here.
#[derive(Debug)]
pub enum Missed {
    /// They may be had by reading: another copy, or from where they are by now.
    Read,
    /// Whoever was to bring them could not, and a read would hear the same.
    Failed(BlobError),
}

/// What it was told.
pub type Told<'a> = Result<&'a [u8], Missed>;

/// Is told at most once, on any thread, and does not wait there. True: the bytes were of use.
pub type Then = Box<dyn FnOnce(Told<'_>) -> bool + Send>;

/// What was said to one who asked for bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// Nothing is known of them, or they are here: read. Nobody will tell.
    No,
    /// Somebody brings them, and will tell.
    Begun,
    /// Nobody does yet. Whoever asked has to read; if what he begins by that brings the bytes before it ends, he is told of them.
    Unbegun,
}

/// One who is told by whichever comes first of several.
#[derive(Clone)]
pub struct Rider(Arc<Mutex<Option<Then>>>);

impl Rider {
    /// For several to tell.
    pub fn new(then: Then) -> Rider {
        Rider(Arc::new(Mutex::new(Some(then))))
    }

    /// Tells, if nobody has. True: it was of use.
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
    fn a_rider_is_told_once() {
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let rider = Rider::new(Box::new(move |told| {
            count.fetch_add(told.map_or(0, <[u8]>::len), Ordering::Relaxed);
            true
        }));
        let other = rider.clone();
        assert!(other.tell(Ok(b"abc")));
        assert!(!rider.tell(Ok(b"abcdef")) && !other.tell(Err(Missed::Read)));
        assert_eq!(told.load(Ordering::Relaxed), 3);
    }
}
