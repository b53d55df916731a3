//! `mem:`: an origin in memory.
//!
//! Each blob is in an anonymous mapping of its own, not on the heap. So removing it returns its memory to the
//! kernel at once, whatever else was allocated around it. A pack that was sealed in memory is not copied: the
//! mapping it was written to *becomes* the blob ([`Origin::put_shared`]). Only small blobs go to the heap,
//! where they waste no part of a page.
//!
//! Bytes in memory are not verified when they are read; [`Origin::verify`] compares them with their name.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use base::BlobId;
use base::phase::{self, Phase};
use blob::folder::past_end;
use blob::records::RecordMap;
use blob::{BlobError, BlobSource, Origin, Records, SharedBytes, Sums};
use memmap2::{Advice, MmapMut};
use parking_lot::RwLock;

/// Blobs smaller than this many bytes are kept on the heap.
const MAPPED_MIN: usize = 64 << 10;

/// An origin in memory. See the [module](self).
#[derive(Default)]
pub struct Memory {
    blobs: RwLock<HashMap<BlobId, SharedBytes>>,
    records: RecordMap,
}

impl Memory {
    /// An empty origin.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// The total bytes of all blobs.
    pub fn bytes(&self) -> u64 {
        self.blobs.read().values().map(|blob| (**blob).as_ref().len() as u64).sum()
    }

    fn get(&self, id: &BlobId) -> Result<SharedBytes, BlobError> {
        self.blobs.read().get(id).map(Arc::clone).ok_or(BlobError::Missing(*id))
    }

    fn keep(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        let len = (*bytes).as_ref().len();
        if sums.id() != *id || sums.size() as usize != len {
            let what = format!("the sums of {} do not belong to the {len} bytes of {id}", sums.id());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        // What it replaces has the same name and so the same bytes. It is freed after the lock is released.
        let _same = self.blobs.write().insert(*id, bytes);
        Ok(())
    }
}

impl BlobSource for Memory {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        let blob = self.get(id)?;
        let bytes = (*blob).as_ref();
        let range = Range { start: offset as usize, end: offset as usize + buf.len() };
        buf.copy_from_slice(bytes.get(range).ok_or_else(|| past_end(id, bytes.len() as u32))?);
        Ok(())
    }

    fn is_local(&self, _: &BlobId) -> bool {
        true
    }
}

impl Records for Memory {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.records.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.records.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.records.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.records.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.records.records(folder)
    }
}

impl Origin for Memory {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        let file = File::open(file)?;
        let fill = |buf: &mut [u8]| file.read_exact_at(buf, 0);
        self.keep(id, sums, filled(sums.size() as usize, fill)?)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        let fill = |buf: &mut [u8]| {
            buf.copy_from_slice(bytes);
            Ok(())
        };
        self.keep(id, sums, filled(bytes.len(), fill)?)
    }

    fn put_shared(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        if (*bytes).as_ref().len() < MAPPED_MIN {
            return self.put(id, sums, (*bytes).as_ref());
        }
        self.keep(id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        Ok(())
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        let removed = self.blobs.write().remove(id);
        drop(removed);
        Ok(())
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        Ok(self.blobs.read().get(id).map(|blob| (**blob).as_ref().len() as u64))
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        // A copy of the names, so that `each` may remove blobs.
        let all: Vec<(BlobId, u64)> =
            self.blobs.read().iter().map(|(id, blob)| (*id, (**blob).as_ref().len() as u64)).collect();
        all.into_iter().all(|(id, size)| each(id, size));
        Ok(())
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        let blob = self.get(id)?;
        let found = Sums::of((*blob).as_ref()).id();
        if found == *id {
            return Ok(());
        }
        Err(BlobError::Damaged { id: *id, what: format!("its bytes in memory have the hash {found}") })
    }

    fn describe(&self) -> String {
        "mem:".to_owned()
    }
}

/// Memory of the kind that suits `len`, filled by `fill`.
fn filled(len: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> Result<SharedBytes, BlobError> {
    if len < MAPPED_MIN {
        let mut bytes = vec![0; len];
        fill(&mut bytes)?;
        return Ok(Arc::new(bytes));
    }
    let mut map = MmapMut::map_anon(len).map_err(|error| match error.kind() {
        io::ErrorKind::OutOfMemory => BlobError::Full,
        _ => error.into(),
    })?;
    // A huge page would occupy up to 2 MiB that were never written. Kernels without huge pages refuse the
    // advice, which does no harm.
    let _ = map.advise(Advice::NoHugePage);
    fill(&mut map)?;
    Ok(Arc::new(map))
}
