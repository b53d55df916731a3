//! Where a leader gets the bytes that are on no disk of this machine.

use std::sync::Arc;

use base::BlobId;
use blob::{BlobError, Buffer, Origin, Part, Sums};

use crate::lead::{PartLead, WholeLead};

/// A source of blobs behind a network.
pub trait Tier: Send + Sync {
    /// Fetches the whole blob. May fill the lead's buffer, so that waiters get the beginning before the end
    /// has arrived.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn whole(&self, lead: &WholeLead) -> Result<(Sums, Buffer), BlobError>;

    /// Fetches at least the groups that contain the `len` bytes from `offset` on.
    ///
    /// # Errors
    /// See [`BlobError`].
    fn part(&self, lead: &PartLead, offset: u32, len: u32) -> Result<Part, BlobError>;

    /// Whether a cache that has parts of a blob and wants all of it should fetch the missing parts only. If
    /// not, it fetches the whole blob, because other nodes want it too.
    fn rest_by_parts(&self, _id: &BlobId) -> bool {
        true
    }

    /// How many blobs are worth prefetching in parallel. More would only compete for the same line.
    fn prefetches(&self) -> usize {
        usize::MAX
    }
}

/// The origin itself.
pub struct Direct(pub Arc<dyn Origin>);

impl Tier for Direct {
    fn whole(&self, lead: &WholeLead) -> Result<(Sums, Buffer), BlobError> {
        self.0.fetch(lead.id())
    }

    fn part(&self, lead: &PartLead, offset: u32, len: u32) -> Result<Part, BlobError> {
        self.0.fetch_part(lead.id(), offset, len)
    }
}
