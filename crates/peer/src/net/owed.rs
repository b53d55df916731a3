//! How much others wait for: bytes of blobs that were asked for here and have not been handed to the kernel.
//!
//! A request owes its bytes from the moment it is taken, as soon as the blob's size is known, until they are sent or the request ends in
//! whatever way. Trackers choose the less busy of several holders by the sum ([`super::Net::backlog`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sum, in bytes.
#[derive(Default)]
pub(super) struct Owed(AtomicU64);

impl Owed {
    /// Rounded to the nearest; who owes more than 65535 MiB says that.
    pub(super) fn mebibytes(&self) -> u16 {
        u16::try_from((self.0.load(Ordering::Relaxed) + (1 << 19)) >> 20).unwrap_or(u16::MAX)
    }
}

/// What one request has in it. Dropping it takes that out.
pub(super) struct Debt {
    all: Arc<Owed>,
    left: u64,
}

impl Debt {
    /// Nothing yet.
    pub(super) fn new(all: &Arc<Owed>) -> Debt {
        Debt { all: Arc::clone(all), left: 0 }
    }

    /// So many bytes are left to be sent.
    pub(super) fn set(&mut self, left: u64) {
        if left >= self.left {
            self.all.0.fetch_add(left - self.left, Ordering::Relaxed);
        } else {
            self.all.0.fetch_sub(self.left - left, Ordering::Relaxed);
        }
        self.left = left;
    }
}

impl Drop for Debt {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_rounded_and_goes_with_its_request() {
        let all = Arc::new(Owed::default());
        let (mut one, mut other) = (Debt::new(&all), Debt::new(&all));
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
