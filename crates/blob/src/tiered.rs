//! Several sources that are tried in order: this node's disk, peers, the origin.
//!
//! Local sources that have the blob are tried first, in their order, then the others. Any copy is as good as
//! the original, so any error of one source leads to the next. A damaged copy is also reported, so that it
//! can be dropped and counted. Only a range past the blob's end is refused at once.

use std::io;
use std::sync::Arc;

use base::{BlobId, Must};

use crate::access::Access;
use crate::source::{BlobError, BlobSource};

/// Called with a source's index in the list, the blob, and a description.
pub type OnDamage = Box<dyn Fn(usize, &BlobId, &str) + Send + Sync>;

/// A list of sources. See the [module](self).
pub struct Tiered {
    sources: Vec<Arc<dyn BlobSource>>,
    on_damage: OnDamage,
}

impl Tiered {
    /// `sources` in order, from the nearest to the one that has everything.
    ///
    /// # Panics
    /// When there are more than 64.
    pub fn new(sources: Vec<Arc<dyn BlobSource>>, on_damage: OnDamage) -> Tiered {
        (sources.len() <= 64).then_some(()).must("a node has a handful of sources");
        Tiered { sources, on_damage }
    }
}

impl BlobSource for Tiered {
    /// If no source had the bytes, this returns the last error that says more than "missing".
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read_as(id, offset, buf, Access::Normal)
    }

    fn read_as(&self, id: &BlobId, offset: u32, buf: &mut [u8], access: Access) -> Result<(), BlobError> {
        let mut last_error = BlobError::Missing(*id);
        // One bit for each source that was local at first. It is tried once, even if that changes meanwhile.
        let mut local = 0u64;
        for remote in [false, true] {
            for (index, source) in self.sources.iter().enumerate() {
                let bit = 1u64 << index;
                if !remote && source.is_near(id) {
                    local |= bit;
                }
                if (local & bit != 0) == remote {
                    continue;
                }
                match source.read_as(id, offset, buf, access) {
                    Ok(()) => return Ok(()),
                    Err(BlobError::Missing(_)) => {}
                    Err(BlobError::Io(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                        return Err(error.into());
                    }
                    Err(error) => {
                        if let BlobError::Damaged { what, .. } = &error {
                            (self.on_damage)(index, id, what);
                        }
                        last_error = error;
                    }
                }
            }
        }
        Err(last_error)
    }

    fn is_near(&self, id: &BlobId) -> bool {
        self.sources.iter().any(|source| source.is_near(id))
    }

    /// The hint goes to the source that would be tried first.
    fn will_need(&self, id: &BlobId) {
        let local = self.sources.iter().find(|source| source.is_near(id));
        if let Some(source) = local.or(self.sources.first()) {
            source.will_need(id);
        }
    }

    fn will_need_part(&self, id: &BlobId, offset: u32, len: u32) {
        let local = self.sources.iter().find(|source| source.is_near(id));
        if let Some(source) = local.or(self.sources.first()) {
            source.will_need_part(id, offset, len);
        }
    }
}

#[cfg(test)]
mod tests;
