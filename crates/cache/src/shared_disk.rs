//! Open packs on a disk that they share with the cache of blobs. Space that the cache can free counts as
//! free.
//!
//! New data takes precedence over cached copies. So space is reported as free while the cache holds copies of
//! blobs that the origin has. The cache is asked to free space before it is needed. A write that finds the
//! disk full anyway waits briefly for the cache.

use std::sync::Arc;
use std::time::Duration;

use base::{BlobId, PackNo, time};
use blob::{BlobError, PackStore, Space};

use crate::NodeCache;

/// How long a write waits for the cache to make room.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const LOOK: Duration = Duration::from_millis(10);

/// Something that keeps copies on the same disk.
pub trait Reclaim: Send + Sync {
    /// Bytes that it could free.
    fn reclaimable(&self) -> u64;

    /// Begins to free some. Returns at once.
    fn make_room(&self);
}

impl Reclaim for NodeCache {
    fn reclaimable(&self) -> u64 {
        NodeCache::reclaimable(self)
    }

    fn make_room(&self) {
        NodeCache::make_room(self);
    }
}

/// Packs that share a disk. See the [module](self).
pub struct SharedDisk<P> {
    packs: P,
    cache: Arc<dyn Reclaim>,
    /// With less free space than this, the cache is asked to make room.
    floor: u64,
}

impl<P: PackStore> SharedDisk<P> {
    /// Packs beside a cache. The cache is asked to make room when less than `floor` bytes are free.
    pub fn new(packs: P, cache: Arc<dyn Reclaim>, floor: u64) -> SharedDisk<P> {
        SharedDisk { packs, cache, floor }
    }

    /// Runs `work`, which takes disk space. If the disk is full, retries while the cache makes room.
    fn with_room<T>(&self, work: impl Fn() -> Result<T, BlobError>) -> Result<T, BlobError> {
        let first = work();
        let Err(BlobError::Full) = first else { return first };
        let began = time::monotonic();
        while self.cache.reclaimable() > 0 && time::monotonic().saturating_duration_since(began) < PATIENCE {
            self.cache.make_room();
            std::thread::sleep(LOOK);
            match work() {
                Err(BlobError::Full) => {}
                done => return done,
            }
        }
        work()
    }
}

impl<P: PackStore> PackStore for SharedDisk<P> {
    fn create(&self, pack: PackNo) -> Result<(), BlobError> {
        self.with_room(|| self.packs.create(pack))
    }

    fn write(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError> {
        self.with_room(|| self.packs.write(pack, offset, bytes))
    }

    fn write_summed(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<u32, BlobError> {
        self.with_room(|| self.packs.write_summed(pack, offset, bytes))
    }

    fn prove(&self, pack: PackNo, offset: u32, len: u32, crc: u32) -> Result<bool, BlobError> {
        self.packs.prove(pack, offset, len, crc)
    }

    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.packs.read(pack, offset, buf)
    }

    fn sync(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        self.packs.sync(packs)
    }

    fn seal(&self, pack: PackNo, len: u32) -> Result<BlobId, BlobError> {
        self.with_room(|| self.packs.seal(pack, len))
    }

    fn retire(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        self.packs.retire(packs)
    }

    fn discard(&self, pack: PackNo) -> Result<(), BlobError> {
        self.packs.discard(pack)
    }

    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError> {
        self.packs.open_packs()
    }

    fn space(&self) -> Result<Space, BlobError> {
        let space = self.packs.space()?;
        if space.available < self.floor {
            self.cache.make_room();
        }
        let available = space.available.saturating_add(self.cache.reclaimable()).min(space.total);
        Ok(Space { available, ..space })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use blob::failing::{FailingPacks, Faults};

    use super::*;
    use crate::MemoryPacks;
    use crate::tests::origins::InMemory;

    /// Frees some of what it holds at each call.
    struct Copies {
        faults: Arc<Faults>,
        held: AtomicU64,
    }

    impl Reclaim for Copies {
        fn reclaimable(&self) -> u64 {
            self.held.load(Ordering::SeqCst)
        }

        fn make_room(&self) {
            if self.held.swap(0, Ordering::SeqCst) > 0 {
                self.faults.full_after(1 << 20);
            }
        }
    }

    #[test]
    fn a_write_to_a_full_disk_waits_for_the_cache_to_make_room() {
        let faults = Faults::new();
        let inner: Arc<dyn PackStore> = Arc::new(MemoryPacks::new(Arc::new(InMemory::default())));
        let copies = Arc::new(Copies { faults: faults.clone(), held: AtomicU64::new(1 << 20) });
        let packs = SharedDisk::new(FailingPacks::new(inner, faults.clone()), copies.clone(), 0);
        packs.create(PackNo(1)).unwrap();
        faults.full_after(0);
        assert!(packs.space().unwrap().available >= 1 << 20);
        packs.write(PackNo(1), 0, &[7; 4096]).unwrap();
        assert_eq!(copies.reclaimable(), 0);
        faults.full_after(0);
        assert!(
            matches!(packs.write(PackNo(1), 4096, &[7; 4096]), Err(BlobError::Full)),
            "nothing to wait for"
        );
    }
}
