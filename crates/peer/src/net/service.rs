//! What a node does for others: what [`Net`](super::Net) is handed and calls when a question arrives.

use std::sync::Arc;

use base::BlobId;

use crate::arriving::Arriving;
use crate::id::{NodeId, Seen};
use crate::message::{Answer, Ask, Note};
use crate::seam::Held;

/// A blob that can be given away.
#[derive(Clone)]
pub enum Content {
    /// It lies in a file, whole.
    Held(Held),
    /// It is being received: what has been verified is passed on, the rest as it comes.
    Arriving(Arc<Arriving>),
}

/// The blobs whose names begin with some bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The first four bytes of a name, big-endian; bits past `bits` are zero.
    pub value: u32,
    /// How many of them count, 0 to 32; 0 means every blob.
    pub bits: u8,
}

impl Prefix {
    /// Every blob.
    pub const ALL: Prefix = Prefix { value: 0, bits: 0 };

    /// Whether the name begins so.
    pub fn holds(self, id: &BlobId) -> bool {
        let [a, b, c, d, ..] = id.0;
        let mask = u32::MAX.checked_shl(32 - u32::from(self.bits.min(32))).unwrap_or(0);
        (u32::from_be_bytes([a, b, c, d]) ^ self.value) & mask == 0
    }
}

/// What a node has, as far as it fits in one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Some blobs of the prefix.
    pub blobs: Vec<BlobId>,
    /// There are more: ask with longer prefixes.
    pub more: bool,
}

/// Who is there, as far as it fits in one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// Nodes in the order of their names.
    pub members: Vec<Seen>,
    /// There are more: ask for those after the last of these.
    pub more: bool,
}

/// What came of fetching a blob for somebody who does not want its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Filled {
    /// It was there.
    Here = 0,
    /// It has come from the origin, and is there now.
    Fetched = 1,
}

/// Why a blob was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfilled {
    /// Only depots fetch for others.
    #[error("this node is no depot")]
    NoDepot,
    /// Too much is being fetched: later.
    #[error("too much is being fetched: ask again")]
    Busy,
    /// The origin did not give it, or the disk did not take it.
    #[error("{0}")]
    Failed(String),
}

/// What came of comparing a blob's copy with its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// It is not here.
    Absent,
    /// The copy is the blob.
    Sound,
    /// It was not, and is dropped.
    Damaged,
}

/// Is called once, on any thread, with the end of [`Service::fill`].
pub type Then = Box<dyn FnOnce(Result<Filled, Unfilled>) + Send>;

/// What a node does for others. All but [`Service::list`] and [`Service::suspect`] are called on the threads that serve connections and must be quick: no
/// waiting for a network or for whatever may take longer than opening a file.
pub trait Service: Send + Sync {
    /// "Where do I get these?": one answer for each blob, in their order.
    fn ask(&self, from: NodeId, ask: Ask) -> Vec<Answer>;

    /// What became of blobs at `from`.
    fn notes(&self, from: NodeId, notes: Vec<Note>);

    /// The blob, if it is here or on its way here.
    fn content(&self, id: &BlobId) -> Option<Content>;

    /// Fetches the blob and keeps it, if this node is there for that. Returns at once; `then` hears what came of it.
    fn fill(&self, _: &BlobId, then: Then) {
        then(Err(Unfilled::NoDepot));
    }

    /// At most `most` of the nodes whose names come after this one.
    fn members(&self, _: NodeId, _: usize) -> Roll {
        Roll::default()
    }

    /// Somebody got bytes that are not the blob's: compare the copy with its name, and drop it if it differs. May take its time; called by
    /// one thread at a time.
    fn suspect(&self, id: &BlobId) -> CopyState;

    /// Whether a member of the fleet is at this address: places are kept for those.
    fn is_member(&self, _: std::net::IpAddr) -> bool {
        false
    }

    /// At most `most` blobs that are here and begin so. May take its time.
    fn list(&self, prefix: Prefix, most: usize) -> Listed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_counts_its_bits_only() {
        let id = BlobId([0xab; 32]);
        for (value, bits, holds) in [
            (0, 0, true),
            (0xab00_0000, 8, true),
            (0xabab_abab, 32, true),
            (0xabab_abaa, 32, false),
            (0xabab_abaa, 31, true),
            (0x8000_0000, 1, true),
            (0, 1, false),
        ] {
            assert_eq!(Prefix { value, bits }.holds(&id), holds, "{value:x}/{bits}");
        }
    }
}
