//! A node's disk, as blob numbers: all blobs that ever arrived, or as many as fit, by the node cache's own
//! policy.

use std::fmt;

use ::cache::residency::{Cost, Policy, charge};

use crate::model::{BLOB, blob_id, blob_no};

/// See the module.
pub enum Cache {
    /// A bit for each blob.
    All(Vec<u64>),
    /// The policy decides. It counts time in seconds.
    Some(Box<Policy>),
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cache::All(_) => f.write_str("All"),
            Cache::Some(policy) => write!(f, "Some({})", policy.len()),
        }
    }
}

fn seconds(now: u64) -> u32 {
    (now / 1_000_000) as u32
}

impl Cache {
    /// A disk for everything.
    pub fn all(blobs: u32) -> Cache {
        Cache::All(vec![0; blobs as usize / 64 + 1])
    }

    /// A disk for this many blobs.
    pub fn of(room: u32) -> Cache {
        Cache::Some(Box::new(Policy::new(u64::from(room) * charge(BLOB as u32))))
    }

    /// Whether it is there.
    pub fn has(&self, blob: u32) -> bool {
        match self {
            Cache::All(bits) => bits[blob as usize / 64] >> (blob % 64) & 1 == 1,
            Cache::Some(policy) => policy.contains(&blob_id(blob)),
        }
    }

    /// A read at `now`, in microseconds. Returns whether the blob was there.
    pub fn read(&mut self, blob: u32, now: u64) -> bool {
        match self {
            Cache::All(_) => self.has(blob),
            Cache::Some(policy) => policy.touch(&blob_id(blob), seconds(now)),
        }
    }

    /// Stores it, with the cost of fetching it again. Returns what was evicted for it.
    pub fn keep(&mut self, blob: u32, cost: Cost, now: u64) -> Option<u32> {
        match self {
            Cache::All(bits) => {
                bits[blob as usize / 64] |= 1 << (blob % 64);
                None
            }
            // All have one size, so at most one is evicted.
            Cache::Some(policy) => {
                policy.insert(&blob_id(blob), BLOB as u32, cost, seconds(now));
                policy.take_ranked();
                let full = policy.bytes() > policy.budget();
                full.then(|| policy.victim(&|_| false)).flatten().map(|gone| blob_no(&gone.id))
            }
        }
    }

    /// Calls `each` with all blobs, in a deterministic order.
    pub fn each(&self, mut each: impl FnMut(u32)) {
        match self {
            Cache::All(bits) => {
                let all = 0..bits.len() as u32 * 64;
                all.filter(|blob| self.has(*blob)).for_each(each);
            }
            Cache::Some(policy) => policy.each(|id, _, _, _| each(blob_no(id))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the order of arrival: the only copy is spared while there are others.
    #[test]
    fn a_blob_from_a_peer_goes_before_one_from_the_origin() {
        for (first, second) in
            [(Cost::Origin, Cost::Peer), (Cost::Peer, Cost::Origin), (Cost::Depot, Cost::Origin)]
        {
            let mut cache = Cache::of(2);
            assert_eq!((cache.keep(1, first, 0), cache.keep(2, second, 0)), (None, None));
            let gone = if first == Cost::Origin { 2 } else { 1 };
            assert_eq!(cache.keep(3, Cost::Origin, 1_000_000), Some(gone), "{first:?} and {second:?}");
        }
        let mut same = Cache::of(2);
        assert_eq!((same.keep(1, Cost::Origin, 0), same.keep(2, Cost::Origin, 0)), (None, None));
        assert_eq!(
            same.keep(3, Cost::Origin, 1_000_000),
            Some(1),
            "if all cost the same the oldest is evicted"
        );
    }
}
