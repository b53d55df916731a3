//! Minimal origins for these tests: one links files, the other shares memory. The real ones are in a crate
//! that this one does not depend on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blob::records::RecordMap;
use blob::{BlobFolder, BlobSource, Records, SharedBytes, Sums};
use parking_lot::RwLock;

use super::*;

/// An origin that links files.
pub(crate) struct InFolder(BlobFolder, RecordMap);

impl InFolder {
    pub(crate) fn new(home: &Path) -> InFolder {
        InFolder(BlobFolder::create(&home.join("blobs")).unwrap(), RecordMap::default())
    }

    pub(crate) fn path(&self, id: &BlobId) -> PathBuf {
        self.0.dir().join(format!("{:02x}/{id}", id.0[0]))
    }
}

impl BlobSource for InFolder {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.0.read_at(id, offset, buf)
    }

    fn is_local(&self, id: &BlobId) -> bool {
        self.0.is_local(id)
    }
}

impl Records for InFolder {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.1.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.1.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.1.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.1.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.1.records(folder)
    }
}

impl Origin for InFolder {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        self.0.adopt(id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.0.put(id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        self.0.sync()
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.0.remove(id)
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        self.0.size(id)
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.0.list(each)
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.0.verify(id)
    }

    fn describe(&self) -> String {
        format!("file:{}", self.0.dir().display())
    }
}

/// An origin that keeps the memory it is given, and copies only what comes in a file.
#[derive(Default)]
pub(crate) struct InMemory(RwLock<HashMap<BlobId, SharedBytes>>, RecordMap);

impl BlobSource for InMemory {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let blob = self.0.read().get(id).cloned().ok_or(BlobError::Missing(*id))?;
        let bytes = &(*blob).as_ref()[offset as usize..];
        buf.copy_from_slice(&bytes[..buf.len()]);
        Ok(())
    }

    fn is_local(&self, _: &BlobId) -> bool {
        true
    }
}

impl Records for InMemory {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.1.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.1.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.1.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.1.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.1.records(folder)
    }
}

impl Origin for InMemory {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        self.put(id, sums, &fs::read(file)?)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.put_shared(id, sums, Arc::new(bytes.to_vec()))
    }

    fn put_shared(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        assert_eq!((sums.id(), sums.size() as usize), (*id, (*bytes).as_ref().len()));
        self.0.write().insert(*id, bytes);
        Ok(())
    }

    fn sync(&self) -> Result<(), BlobError> {
        Ok(())
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.0.write().remove(id);
        Ok(())
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        Ok(self.0.read().get(id).map(|bytes| (**bytes).as_ref().len() as u64))
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.0.read().iter().all(|(id, bytes)| each(*id, (**bytes).as_ref().len() as u64));
        Ok(())
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        let blob = self.0.read().get(id).cloned().ok_or(BlobError::Missing(*id))?;
        assert_eq!(Sums::of((*blob).as_ref()).id(), *id);
        Ok(())
    }

    fn describe(&self) -> String {
        "mem:".to_owned()
    }
}
