//! Passes on a blob from the origin group by group. Waiters get each group as soon as it is verified, and not
//! only after the last one. On a link that a dozen blobs share, the last one comes seconds later, and the
//! waiters' own links would have been idle until then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use blob::Sums;
use blob::source::Onto;
use fetch::Arriving;

/// What an origin writes into. It does not keep the blob alive: the waiter does. When nobody wants the blob
/// any more, everything is accepted and discarded.
pub(super) struct Inflow {
    arriving: Weak<Arriving>,
    came: Arc<AtomicU64>,
}

impl Inflow {
    /// Writes into `arriving` and counts the bytes in `came`.
    pub(super) fn new(arriving: &Arc<Arriving>, came: &Arc<AtomicU64>) -> Inflow {
        Inflow { arriving: Arc::downgrade(arriving), came: Arc::clone(came) }
    }
}

impl Onto for Inflow {
    fn came(&self, bytes: u64) {
        self.came.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take(&self, sums: &Sums, offset: u32, bytes: &[u8]) -> bool {
        let Some(arriving) = self.arriving.upgrade() else { return true };
        // Once is enough. Sums that are already there, perhaps from a node, never change.
        let same = offset > 0 || arriving.begin(sums.clone()).is_ok();
        same && arriving.take(offset, bytes).is_ok()
    }

    fn is_whole(&self) -> bool {
        self.arriving.upgrade().is_none_or(|arriving| arriving.is_whole())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fetch::Verify;

    #[test]
    fn what_comes_is_verified_and_free_at_once() {
        let bytes: Vec<u8> = (0..200_000u64).map(|n| ((n * n) >> 7) as u8).collect();
        let sums = Sums::of(&bytes);
        let (arriving, came) = (Arriving::new(sums.id(), Verify::Blake3), Arc::default());
        let inflow = Inflow::new(&arriving, &came);
        assert!(inflow.take(&sums, 0, &[]) && arriving.sums().is_some());
        assert!(inflow.take(&sums, 0, &bytes[..70_000]));
        assert_eq!((arriving.verified(), inflow.is_whole()), (65_536, false));
        assert!(!inflow.take(&sums, 80_000, &bytes[80_000..]), "some are missing");
        // A second request begins at offset 0.
        assert!(inflow.take(&sums, 0, &bytes[..100]) && inflow.take(&sums, 100, &bytes[100..140_000]));
        let mut wrong = bytes[140_000..].to_vec();
        wrong[0] ^= 1;
        assert!(!inflow.take(&sums, 140_000, &wrong));
        assert!(inflow.take(&sums, 131_072, &bytes[131_072..]) && inflow.is_whole());
        inflow.came(5);
        assert_eq!(came.load(Ordering::Relaxed), 5);
        assert_eq!(arriving.into_parts().unwrap().1, bytes);
        assert!(inflow.take(&sums, 7, b"x") && inflow.is_whole(), "no longer wanted");
    }

    #[test]
    fn sums_that_a_node_made_up_are_not_filled_from_the_origin() {
        let bytes = vec![3; 100_000];
        let sums = Sums::of(&bytes);
        // The length of the last group is not proved by the id.
        let mut longer = sums.encode();
        longer[8..12].copy_from_slice(&100_001u32.to_le_bytes());
        longer.truncate(longer.len() - 4);
        longer.extend_from_slice(&blob::sums::crc32c(&longer).to_le_bytes());
        let arriving = Arriving::new(sums.id(), Verify::Blake3);
        arriving.begin(Sums::decode(&longer).unwrap()).unwrap();
        let inflow = Inflow::new(&arriving, &Arc::default());
        assert!(!inflow.take(&sums, 0, &bytes) && !inflow.is_whole());
    }
}
