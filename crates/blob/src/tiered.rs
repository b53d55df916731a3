//! Several sources asked one after the other: this node's disk, peers, the origin.
//!
//! The nearest that has the blob is asked first: those that answer without a network, in their order, then the others.
//! Any copy is as good as the original, so an error of one source is a reason to ask the next, whatever the error; a
//! damaged copy is also reported, so that it can be dropped and counted. Only a range that the blob does not have is
//! refused at once.

use std::io;
use std::sync::Arc;

use base::BlobId;

use crate::source::{BlobError, BlobSource};

/// Called with a source's place in the list, the blob, and what was seen.
pub type OnDamage = Box<dyn Fn(usize, &BlobId, &str) + Send + Sync>;

/// A list of sources. See the [module](self).
pub struct Tiered {
    sources: Vec<Arc<dyn BlobSource>>,
    on_damage: OnDamage,
}

impl Tiered {
    /// `sources` from the nearest to the one that has everything.
    pub fn new(sources: Vec<Arc<dyn BlobSource>>, on_damage: OnDamage) -> Tiered {
        Tiered { sources, on_damage }
    }

    /// The places of the sources in the order in which to ask them for this blob.
    fn order(&self, id: &BlobId) -> Vec<usize> {
        let (mut order, far): (Vec<usize>, Vec<usize>) =
            (0..self.sources.len()).partition(|place| self.sources[*place].is_near(id));
        order.extend(far);
        order
    }
}

impl BlobSource for Tiered {
    /// The error, if nobody had the bytes, is the last that said more than "not here".
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let mut told = BlobError::Missing(*id);
        for place in self.order(id) {
            match self.sources[place].read_at(id, offset, buf) {
                Ok(()) => return Ok(()),
                Err(BlobError::Missing(_)) => {}
                Err(BlobError::Io(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                    return Err(error.into());
                }
                Err(error) => {
                    if let BlobError::Damaged { what, .. } = &error {
                        (self.on_damage)(place, id, what);
                    }
                    told = error;
                }
            }
        }
        Err(told)
    }

    fn is_near(&self, id: &BlobId) -> bool {
        self.sources.iter().any(|source| source.is_near(id))
    }
}

#[cfg(test)]
mod tests;
