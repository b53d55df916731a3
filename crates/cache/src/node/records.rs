//! The records of the origin. They change, so they are not cached.

use blob::{BlobError, Records};

use super::NodeCache;

impl Records for NodeCache {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.core.remote.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.core.remote.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.core.remote.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.core.remote.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.core.remote.records(folder)
    }
}
