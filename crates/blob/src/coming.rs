//! Bytes that are on their way: whoever brings them hands them over, and nobody's thread waits.
//!
//! ```text
//!   reader ── coming(range, then) ──► cache ──► fleet: a blob that is being received
//!                                       │            │ the bytes are here, and right
//!                                       ▼            ▼
//!                                     then(bytes), on the thread that brought them
//! ```
//!
//! [`BlobSource::read_at`](crate::BlobSource::read_at) is the rule, and always possible; this is the way of a reader who comes while somebody
//! fetches what he wants. He may be told before all of the blob is here.

use std::sync::Arc;

use parking_lot::Mutex;

/// Is told once, on any thread, and does not wait there: the bytes, or none, and then the range has to be read.
pub type Then = Box<dyn FnOnce(Option<&[u8]>) + Send>;

/// What was said to one who asked for bytes on their way.
pub enum Coming {
    /// Nothing is known of them, or they are here: read.
    No(Then),
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

    /// Tells, if nobody has.
    pub fn tell(&self, bytes: Option<&[u8]>) {
        let then = self.0.lock().take();
        if let Some(then) = then {
            then(bytes);
        }
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
        let rider = Rider::new(Box::new(move |bytes| {
            count.fetch_add(bytes.map_or(0, <[u8]>::len), Ordering::Relaxed);
        }));
        let other = rider.clone();
        other.tell(Some(b"abc"));
        rider.tell(Some(b"abcdef"));
        other.tell(None);
        assert_eq!(told.load(Ordering::Relaxed), 3);
    }
}
