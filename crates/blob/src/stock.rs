//! Large buffers that are used again.
//!
//! A stream from far away needs a buffer of a blob's size for every 4 MiB. From the allocator each of them would be fresh pages, which the kernel has
//! to find, clear and take back: on a virtual machine that costs more than the copy into them. A few that were given back are kept, and
//! [`tidy`] lets go of them when nothing goes on.

use std::sync::atomic::{AtomicBool, Ordering};

use base::size::BLOB_MAX;
use parking_lot::Mutex;

/// Smaller ones are the allocator's business.
const LEAST: usize = 1 << 20;
/// What a new one has room for: a blob and what is stored behind it.
const SIZE: usize = BLOB_MAX as usize + (16 << 10);
/// So many are kept.
const KEPT: usize = 4;

static TAKEN: AtomicBool = AtomicBool::new(false);
static STOCK: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// An empty buffer with room for at least so many bytes.
pub fn take(bytes: usize) -> Vec<u8> {
    if !(LEAST..=SIZE).contains(&bytes) {
        return Vec::with_capacity(bytes);
    }
    TAKEN.store(true, Ordering::Relaxed);
    let kept = STOCK.lock().pop();
    kept.unwrap_or_else(|| Vec::with_capacity(SIZE))
}

/// A buffer that is needed no more.
pub fn give(mut buffer: Vec<u8>) {
    if buffer.capacity() < SIZE {
        return;
    }
    buffer.clear();
    let mut stock = STOCK.lock();
    if stock.len() < KEPT {
        stock.push(buffer);
    }
}

/// Lets go of those that are kept, if none was taken since this was last called. For who calls it every second or so.
pub fn tidy() {
    if !TAKEN.swap(false, Ordering::Relaxed) {
        let all = std::mem::take(&mut *STOCK.lock());
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_taken_again_within_a_bound() {
        assert_eq!(take(100).capacity(), 100);
        assert!(take(SIZE + 1).capacity() > SIZE);
        let mut full: Vec<Vec<u8>> = (0..10).map(|_| take(3 << 20)).collect();
        full.iter_mut().for_each(|buffer| buffer.push(7));
        full.into_iter().for_each(give);
        give(Vec::with_capacity(LEAST));
        assert!(STOCK.lock().len() <= KEPT);
        let again = take(LEAST);
        assert!(again.is_empty() && again.capacity() >= SIZE);
        tidy();
        assert!(STOCK.lock().len() < KEPT, "one was taken just now, the others stay");
        tidy();
        assert!(STOCK.lock().is_empty());
    }
}
