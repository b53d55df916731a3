//! What the other caches of a volume on this machine have.
//!
//! Processes that use one folder of caches have a cache each, because a cache has one writer. A process of a
//! pool of workers would begin with an empty cache, and fetch what its parent has on the same disk. So a read
//! looks into the folders of the others before it fetches:
//!
//! ```text
//!   own cache ──has it not──► the folders beside it ──have it not──► own cache: in flight, peers, the origin
//! ```
//!
//! - Nothing is written there. Bytes are verified as in the own folder, and are not copied into it.
//! - The writer of a folder may evict a blob at any time. A file that is open here stays readable, and is not
//!   overwritten ([`blob::BlobFolder`]). At most 256 files of each folder are kept open.
//! - Folders that appear later are not seen.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::BlobId;
use blob::completion::{Completion, Start};
use blob::{Access, BlobError, BlobFolder, BlobSource, Sums};

use crate::NodeCache;

/// A cache, and the folders of others beside it. See the [module](self).
pub struct Beside {
    own: Arc<NodeCache>,
    others: Vec<BlobFolder>,
    bytes: AtomicU64,
}

impl Beside {
    /// Reads from these folders of blobs too. A folder that cannot be opened is left out.
    pub fn new(own: Arc<NodeCache>, folders: &[PathBuf]) -> Beside {
        let others = folders.iter().filter_map(|folder| BlobFolder::open(folder).ok()).collect();
        Beside { own, others, bytes: AtomicU64::new(0) }
    }

    /// Bytes that were read from the other folders.
    pub fn read_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The first of the other folders that has the blob, if the own cache has it not.
    fn other(&self, id: &BlobId) -> Option<&BlobFolder> {
        if self.others.is_empty() || self.own.is_local(id) {
            return None;
        }
        self.others.iter().find(|other| other.is_local(id))
    }
}

impl BlobSource for Beside {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read_as(id, offset, buf, Access::Normal)
    }

    fn read_as(&self, id: &BlobId, offset: u32, buf: &mut [u8], access: Access) -> Result<(), BlobError> {
        // A copy that was evicted just now, or is damaged, is no error: its own cache deals with it.
        if let Some(other) = self.other(id)
            && other.read_at(id, offset, buf).is_ok()
        {
            self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        self.own.read_as(id, offset, buf, access)
    }

    fn is_local(&self, id: &BlobId) -> bool {
        self.own.is_local(id) || self.others.iter().any(|other| other.is_local(id))
    }

    fn will_need(&self, id: &BlobId) {
        match self.other(id) {
            Some(other) => other.will_need(id),
            None => self.own.will_need(id),
        }
    }

    fn will_need_part(&self, id: &BlobId, offset: u32, len: u32) {
        if self.other(id).is_none() {
            self.own.will_need_part(id, offset, len);
        }
    }

    fn evict_last(&self, id: &BlobId) {
        self.own.evict_last(id);
    }

    fn evict_as_usual(&self) {
        self.own.evict_as_usual();
    }

    fn in_use(&self, id: &BlobId) -> bool {
        self.own.in_use(id)
    }

    fn start_read(&self, id: &BlobId, range: Range<u32>, access: Access, completion: Completion) -> Start {
        match self.other(id) {
            Some(_) => Start::Read,
            None => self.own.start_read(id, range, access, completion),
        }
    }

    fn file_of(&self, id: &BlobId) -> Option<(File, Sums)> {
        self.own.file_of(id).or_else(|| self.other(id)?.file_of(id))
    }
}
