//! The fleet as the cache sees it: a tier that fetches for the leaders of the table that both have.

use base::BlobId;
use blob::{BlobError, Buffer, Part, Sums};
use fetch::{PartLead, Tier, WholeLead};

use super::Fleet;

impl Tier for Fleet {
    fn whole(&self, lead: &WholeLead) -> Result<(Sums, Buffer), BlobError> {
        self.inner.whole(lead)
    }

    fn part(&self, lead: &PartLead, offset: u32, len: u32) -> Result<Part, BlobError> {
        if self.inner.is_alone() {
            return self.inner.origin.fetch_part(lead.id(), offset, len);
        }
        self.inner.obtain_part(lead, offset, len)
    }

    fn rest_by_parts(&self, id: &BlobId) -> bool {
        self.inner.is_alone() || self.inner.wants_alone(id)
    }

    fn prefetches(&self) -> usize {
        if self.inner.is_alone() { usize::MAX } else { self.inner.capacity.prefetches() }
    }
}
