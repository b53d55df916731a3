//! What a node does for other nodes: the interface that [`Net`](super::Net) calls when a request arrives.

use std::sync::Arc;

use base::BlobId;

use crate::frame::{KeepAsk, LendAsk, LoanPart, PackAsk, PackPart, RecallAsk, Returned};
use crate::id::{NodeId, Seen};
use crate::message::{Answer, Ask, Note};
use crate::seam::Held;
use fetch::Arriving;

/// A blob that can be sent.
#[derive(Clone)]
pub enum Content {
    /// A whole blob in a file.
    Held(Held),
    /// A blob that is being received. What has been verified is passed on, the rest as it arrives.
    Arriving(Arc<Arriving>),
}

/// The blobs whose ids begin with certain bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The first four bytes of an id, big-endian. Bits past `bits` are zero.
    pub value: u32,
    /// How many of them count, 0 to 32. 0 means every blob.
    pub bits: u8,
}

impl Prefix {
    /// Every blob.
    pub const ALL: Prefix = Prefix { value: 0, bits: 0 };

    /// Whether the id begins so.
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
    /// There are more. Ask with longer prefixes.
    pub more: bool,
}

/// The members, as far as they fit in one answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roll {
    /// Nodes in the order of their ids.
    pub members: Vec<Seen>,
    /// There are more. Ask for those after the last of these.
    pub more: bool,
}

/// The result of fetching a blob for a node that does not want its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Filled {
    /// The blob was already here.
    Here = 0,
    /// The blob has been fetched from the origin, and is here now.
    Fetched = 1,
}

/// Why a blob was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfilled {
    /// Only depots fetch for others.
    #[error("this node is no depot")]
    NoDepot,
    /// Too many fetches are in flight. Ask later.
    #[error("too much is being fetched: ask again")]
    Busy,
    /// The origin did not deliver it, or the disk did not store it.
    #[error("{0}")]
    Failed(String),
}

/// The result of comparing a blob's copy with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// The blob is not here.
    Absent,
    /// The copy matches.
    Sound,
    /// The copy did not match and was dropped.
    Damaged,
}

/// Called once, on any thread, with the result of [`Service::fill`].
pub type Then = Box<dyn FnOnce(Result<Filled, Unfilled>) + Send>;

/// What a node does for other nodes. All methods but [`Service::lend`], [`Service::list`], [`Service::pack`],
/// [`Service::recall`] and [`Service::suspect`] are called on the threads that serve connections and must be
/// quick: no waiting for a network, or for anything that may take longer than opening a file.
pub trait Service: Send + Sync {
    /// "Where do I get these?": one answer for each blob, in their order.
    fn ask(&self, from: NodeId, ask: Ask) -> Vec<Answer>;

    /// What happened to blobs at `from`.
    fn notes(&self, from: NodeId, notes: Vec<Note>);

    /// The blob, if it is here or in flight to this node.
    fn content(&self, id: &BlobId) -> Option<Content>;

    /// Fetches the blob and keeps it, if that is this node's task. Returns at once. `then` is called with the
    /// result.
    fn fill(&self, _: &BlobId, then: Then) {
        then(Err(Unfilled::NoDepot));
    }

    /// At most `most` of the nodes whose ids come after this one.
    fn members(&self, _: NodeId, _: usize) -> Roll {
        Roll::default()
    }

    /// Another node received bytes that are not the blob's. Compares the copy with its id, and drops it if it
    /// differs. May take long. One thread at a time calls it.
    fn suspect(&self, id: &BlobId) -> CopyState;

    /// Whether a member of the fleet has this address. Some connections are reserved for members.
    fn is_member(&self, _: std::net::IpAddr) -> bool {
        false
    }

    /// Bytes of a pack that this node writes. May take long. The error is a sentence.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn pack(&self, _: PackAsk) -> Result<PackPart, String> {
        Ok(PackPart::Gone)
    }

    /// Gives back a lease. May take long. The error is a sentence.
    ///
    /// # Errors
    /// This node cannot give it back now.
    fn recall(&self, _: RecallAsk) -> Result<(), String> {
        Ok(())
    }

    /// Keeps bytes of a pack that `from` writes. Returns the number of this node's run, which differs after
    /// each start. May take long. The error is a sentence.
    ///
    /// # Errors
    /// This node does not keep them.
    fn keep(&self, _from: NodeId, _: KeepAsk) -> Result<u64, String> {
        Err("this node keeps no packs of other nodes".to_owned())
    }

    /// Lends a unit that this node has a lease of. `None`: it does not. May take long. The error is a
    /// sentence.
    ///
    /// # Errors
    /// This node cannot lend it now.
    fn lend(&self, _: LendAsk) -> Result<Option<LoanPart>, String> {
        Ok(None)
    }

    /// A loan of this node is no longer used.
    fn returned(&self, _: Returned) {}

    /// At most `most` blobs that are here and match the prefix. May take long.
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
