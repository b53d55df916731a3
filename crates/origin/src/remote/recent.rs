//! The sums of blobs of which parts were read recently, so that the next part needs one request instead of
//! two.
//!
//! Two generations: an entry that is used moves to the young one, and when that is full the old one is
//! dropped. So it is bounded (about 2.6 KiB for each entry), and entries in frequent use stay.

use std::collections::HashMap;
use std::sync::Arc;

use base::BlobId;
use blob::Sums;
use parking_lot::Mutex;

/// A generation has at most this many entries.
const GENERATION: usize = 1024;

#[derive(Default)]
struct Generations {
    young: HashMap<BlobId, Arc<Sums>>,
    old: HashMap<BlobId, Arc<Sums>>,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Recent {
    all: Mutex<Generations>,
}

impl Recent {
    pub(crate) fn get(&self, id: &BlobId) -> Option<Arc<Sums>> {
        let mut all = self.all.lock();
        if let Some(sums) = all.young.get(id) {
            return Some(Arc::clone(sums));
        }
        let sums = all.old.remove(id)?;
        all.keep(*id, Arc::clone(&sums));
        Some(sums)
    }

    pub(crate) fn put(&self, id: &BlobId, sums: &Sums) {
        self.all.lock().keep(*id, Arc::new(sums.clone()));
    }

    pub(crate) fn forget(&self, id: &BlobId) {
        let mut all = self.all.lock();
        all.young.remove(id);
        all.old.remove(id);
    }
}

impl Generations {
    fn keep(&mut self, id: BlobId, sums: Arc<Sums>) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id, sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_goes() {
        let recent = Recent::default();
        let sums = |i: u32| Sums::of(&i.to_le_bytes());
        let used = sums(0);
        for i in 0..5 * GENERATION as u32 {
            recent.put(&sums(i).id(), &sums(i));
            assert!(recent.get(&used.id()).is_some());
        }
        assert!(recent.get(&sums(1).id()).is_none());
        let all = recent.all.lock();
        assert!(all.young.len() + all.old.len() <= 2 * GENERATION);
    }
}
