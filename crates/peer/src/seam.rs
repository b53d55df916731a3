//! What this crate is handed from outside: the blobs that a node can give away.

use std::fs::File;
use std::sync::Arc;

use base::BlobId;
use blob::Sums;

pub use crate::net::CopyState;

/// A whole blob in a file, from its first byte on.
#[derive(Clone)]
pub struct Held {
    /// Open for reading; nobody changes it.
    pub file: Arc<File>,
    /// Where in the file the blob begins.
    pub offset: u64,
    /// What it can be checked with; its size is the blob's.
    pub sums: Arc<Sums>,
}

/// The blobs of a node's disk.
pub trait Holdings: Send + Sync {
    /// The blob, if it is here. Quick: asked for each request.
    fn open(&self, id: &BlobId) -> Option<Held>;

    /// Somebody says that what was sent is not the blob: compare it with its name and drop it if that is so.
    fn suspect(&self, id: &BlobId) -> CopyState;

    /// Calls `each` with every blob that is here, until it answers false: for trackers that lost what they knew.
    fn list(&self, each: &mut dyn FnMut(&BlobId) -> bool);
}

/// Where nothing is held.
pub struct Nothing;

impl Holdings for Nothing {
    fn open(&self, _: &BlobId) -> Option<Held> {
        None
    }

    fn suspect(&self, _: &BlobId) -> CopyState {
        CopyState::Absent
    }

    fn list(&self, _: &mut dyn FnMut(&BlobId) -> bool) {}
}
