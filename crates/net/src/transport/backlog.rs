//! The backlog: bytes of blobs that were requested from this node and have not been passed to the kernel.
//!
//! A request owes its bytes from the moment it is accepted, as soon as the blob's size is known, until they
//! are sent or the request ends in any way. Of several holders, trackers choose one with a smaller sum
//! ([`super::Net::backlog`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sum, in bytes.
#[derive(Default)]
pub(super) struct Backlog(AtomicU64);

impl Backlog {
    /// Rounded to the nearest. More than 65535 MiB is reported as 65535.
    pub(super) fn mebibytes(&self) -> u16 {
        u16::try_from((self.0.load(Ordering::Relaxed) + (1 << 19)) >> 20).unwrap_or(u16::MAX)
    }
}

/// The part of one request. Dropping it subtracts it.
pub(super) struct BacklogShare {
    all: Arc<Backlog>,
    left: u64,
}

impl BacklogShare {
    /// Begins with zero.
    pub(super) fn new(all: &Arc<Backlog>) -> BacklogShare {
        BacklogShare { all: Arc::clone(all), left: 0 }
    }

    /// Sets how many bytes remain to be sent.
    pub(super) fn set(&mut self, left: u64) {
        if left >= self.left {
            self.all.0.fetch_add(left - self.left, Ordering::Relaxed);
        } else {
            self.all.0.fetch_sub(self.left - left, Ordering::Relaxed);
        }
        self.left = left;
    }
}

impl Drop for BacklogShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_rounded_and_goes_with_its_request() {
        let all = Arc::new(Backlog::default());
        let (mut one, mut other) = (BacklogShare::new(&all), BacklogShare::new(&all));
        one.set(4 << 20);
        other.set(3 << 19);
        assert_eq!(all.mebibytes(), 6, "five and a half");
        one.set(1 << 20);
        assert_eq!(all.mebibytes(), 3);
        drop(other);
        assert_eq!(all.mebibytes(), 1);
        one.set(u64::MAX >> 1);
        assert_eq!(all.mebibytes(), u16::MAX);
        drop(one);
        assert_eq!(all.mebibytes(), 0);
    }
}
