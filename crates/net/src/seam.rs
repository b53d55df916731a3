//! The interface through which this crate gets the blobs that a node can send.

use std::fs::File;
use std::sync::Arc;

use base::BlobId;
use blob::Sums;

pub use crate::transport::CopyState;

/// A whole blob in a file, from its first byte on.
#[derive(Clone)]
pub struct Held {
    /// Open for reading. Nothing changes it.
    pub file: Arc<File>,
    /// Where in the file the blob begins.
    pub offset: u64,
    /// For verification. Their size is the blob's.
    pub sums: Arc<Sums>,
}

/// The blobs on a node's disk.
pub trait Holdings: Send + Sync {
    /// The blob, if it is here. Must be quick: it is called for each request.
    fn open(&self, id: &BlobId) -> Option<Held>;

    /// Another node says that what was sent is not the blob. Compares it with its id and drops it if it
    /// differs.
    fn suspect(&self, id: &BlobId) -> CopyState;

    /// Calls `each` with every blob that is here, until it returns false. For trackers that lost what they
    /// knew.
    fn list(&self, each: &mut dyn FnMut(&BlobId) -> bool);
}
