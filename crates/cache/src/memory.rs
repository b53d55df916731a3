//! Open packs in memory.
//!
//! Each pack is an anonymous mapping of 4 MiB. The kernel allocates its pages only when they are written.
//! Sealing a pack hands its mapping to the origin ([`blob::Origin::put_shared`]). An origin in memory keeps
//! that mapping as the blob, so no byte is held twice. Any other origin copies it, and the mapping is freed
//! when the pack is retired.
//!
//! No new pack is created when the machine, or this program's control group, is short of memory. So a full
//! volume reports ENOSPC, as a disk does, and does not invoke the kernel's OOM killer.

mod room;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use base::phase::{self, Phase};
use base::size::BLOB_MAX;
use base::{BlobId, PackNo};
use blob::{BlobError, Origin, PackStore, SharedBytes, Space, Sums};
use memmap2::{Advice, MmapMut};
use parking_lot::RwLock;

use crate::{end_of, exists_already, no_such_pack, too_short};
use room::Room;

/// How much memory a program that keeps bytes in memory may still take.
///
/// # Errors
/// The system does not report its memory.
pub fn memory_room() -> Result<Space, BlobError> {
    Room::new().space()
}

/// A node's open packs in memory. See the [module](self).
pub struct MemoryPacks {
    packs: RwLock<HashMap<PackNo, Arc<RwLock<Pack>>>>,
    origin: Arc<dyn Origin>,
    room: Room,
}

struct Pack {
    /// Shared with the origin once sealed. Until then this is the only reference, which writes require.
    region: Arc<Region>,
    sealed: bool,
}

/// The memory of one pack.
struct Region {
    map: MmapMut,
    /// The end of the last byte written. After sealing, the blob's size.
    len: usize,
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl MemoryPacks {
    /// Starts without packs. Sealed packs go to `origin`.
    pub fn new(origin: Arc<dyn Origin>) -> MemoryPacks {
        MemoryPacks { packs: RwLock::default(), origin, room: Room::new() }
    }

    fn get(&self, no: PackNo) -> Result<Arc<RwLock<Pack>>, BlobError> {
        self.packs.read().get(&no).map(Arc::clone).ok_or_else(|| no_such_pack(no))
    }
}

impl PackStore for MemoryPacks {
    fn create(&self, no: PackNo) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        if self.room.space()?.available < u64::from(BLOB_MAX) {
            return Err(BlobError::Full);
        }
        let map = MmapMut::map_anon(BLOB_MAX as usize).map_err(|error| match error.kind() {
            io::ErrorKind::OutOfMemory => BlobError::Full,
            _ => error.into(),
        })?;
        // A huge page could hold up to 2 MiB that nobody wrote. A kernel without huge pages refuses the
        // advice, which is harmless.
        let _ = map.advise(Advice::NoHugePage);
        let pack = Pack { region: Arc::new(Region { map, len: 0 }), sealed: false };
        let mut packs = self.packs.write();
        if packs.contains_key(&no) {
            return Err(exists_already(no));
        }
        packs.insert(no, Arc::new(RwLock::new(pack)));
        Ok(())
    }

    fn write(&self, no: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        let end = end_of(no, offset, bytes.len())? as usize;
        let pack = self.get(no)?;
        let mut pack = pack.write();
        let sealed = pack.sealed;
        match Arc::get_mut(&mut pack.region).filter(|_| !sealed) {
            Some(region) => {
                region.map[offset as usize..end].copy_from_slice(bytes);
                region.len = region.len.max(end);
                Ok(())
            }
            None => Err(io::Error::other(format!("pack {no} is sealed and cannot be written to")).into()),
        }
    }

    fn read(&self, no: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        let end = end_of(no, offset, buf.len())?;
        let pack = self.get(no)?;
        let pack = pack.read();
        let bytes = (*pack.region).as_ref();
        let range = offset as usize..end as usize;
        buf.copy_from_slice(bytes.get(range).ok_or_else(|| too_short(no, end, bytes.len() as u64))?);
        Ok(())
    }

    fn sync(&self, _: &[PackNo]) -> Result<(), BlobError> {
        Ok(())
    }

    fn seal(&self, no: PackNo, len: u32) -> Result<BlobId, BlobError> {
        let _phase = phase::enter(Phase::Cache);
        end_of(no, 0, len as usize)?;
        let pack = self.get(no)?;
        let region = {
            let mut pack = pack.write();
            let holds = pack.region.len;
            if holds < len as usize {
                return Err(too_short(no, len, holds as u64));
            }
            if let Some(region) = Arc::get_mut(&mut pack.region) {
                region.len = len as usize;
            } else if holds != len as usize {
                return Err(too_short(no, len, holds as u64));
            }
            pack.sealed = true;
            Arc::clone(&pack.region)
        };
        // Hashes without the lock, so that reads can continue.
        let sums = Sums::of((*region).as_ref());
        let stored = self.origin.put_shared(&sums.id(), &sums, region as SharedBytes);
        if stored.is_err() {
            pack.write().sealed = false;
        }
        stored.map(|()| sums.id())
    }

    fn retire(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        self.origin.sync()?;
        packs.iter().try_for_each(|pack| self.discard(*pack))
    }

    fn discard(&self, pack: PackNo) -> Result<(), BlobError> {
        let removed = self.packs.write().remove(&pack);
        // Free the memory after the lock is released.
        drop(removed);
        Ok(())
    }

    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError> {
        let all = self.packs.read();
        let mut all: Vec<_> = all.iter().map(|(no, pack)| (*no, pack.read().region.len as u64)).collect();
        all.sort();
        Ok(all)
    }

    fn space(&self) -> Result<Space, BlobError> {
        self.room.space()
    }
}
