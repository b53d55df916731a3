//! What nodes say to one another about blobs.
//!
//! Neighbouring blobs of a file form a **group**. One node of the zone, chosen by hashing, *tracks* a group: it knows who has its blobs
//! and who is fetching them, and need not have them itself. Whoever misses a blob asks the tracker of its group, once for up to
//! [`ASK_MAX`] blobs of it, and is told for each where to get it:
//!
//! - [`Answer::Serve`]: from me.
//! - [`Answer::Go`]: from one of these.
//! - [`Answer::Lease`]: you fetch it, from the depot or the origin, nobody else does meanwhile; until then.
//! - [`Answer::Wait`]: that node is fetching it; take it from there as it arrives.
//!
//! What a node has got, dropped or failed to get it tells the trackers in batches ([`Note`]). A tracker knows nothing for good:
//! a new one is told again by the holders.

use std::time::Duration;

use base::BlobId;

use crate::id::NodeId;

/// At most so many blobs in one question.
pub const ASK_MAX: usize = 16;

/// At most so many notes in one message.
pub const NOTES_MAX: usize = 256;

/// A group of neighbouring blobs, by a number that all who read the same tree agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u64);

impl Group {
    /// Where nothing is known of a blob's neighbours it is a group of its own.
    pub fn alone(id: &BlobId) -> Group {
        let [a, b, c, d, e, f, g, h, ..] = id.0;
        Group(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// "Where do I get these?"
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The group that all of `blobs` belong to.
    pub group: Group,
    /// 1 to [`ASK_MAX`] blobs.
    pub blobs: Vec<BlobId>,
    /// How much the asker has to send itself, in MiB: trackers choose the less busy of several holders.
    pub backlog: u16,
    /// Holders of whom the asker has just had an error or no answer, at most 8: not these.
    pub not: Vec<NodeId>,
    /// Who sends the asker most now, if anybody does: named again rather than an equal.
    pub sender: Option<NodeId>,
    /// Only a part of each is wanted: who is sent to a node will not have the blob, and takes none of its slots. A lease is one all the same.
    pub part: bool,
}

/// What is said of one blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The tracker has it.
    Serve,
    /// These have it, the better one first.
    Go {
        /// Ask this one.
        first: NodeId,
        /// And that one, when the first does not answer in time.
        second: Option<NodeId>,
    },
    /// The asker fetches it from the depot or the origin.
    Lease {
        /// To be named when it is done or has failed.
        lease: u64,
        /// How long nobody else is sent there.
        time: Duration,
    },
    /// That one is fetching it.
    Wait {
        /// Stream it from there.
        parent: NodeId,
        /// When the fetch should have ended.
        time: Duration,
    },
    /// The one who was asked does not track this group, as far as it knows who is there.
    NotMine,
}

/// What a node tells a tracker without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The blob's group.
    pub group: Group,
    /// Which blob.
    pub blob: BlobId,
    /// What of it.
    pub what: What,
}

/// What became of a blob at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It has it, and can give it away.
    Have,
    /// Another tracker gave it the lease, and it is fetching it: told once, to the trackers behind that one, who would otherwise give a second lease to whoever
    /// asks when the first has died. As good as having it: what comes is passed on as it comes.
    Fetching,
    /// It does not have it any more.
    Gone,
    /// It was to fetch it and could not: the lease is free.
    Failed {
        /// Which.
        lease: u64,
    },
    /// It was sent to this node for it, and did not get it there.
    Refused {
        /// By whom.
        by: NodeId,
    },
    /// It was sent to this node for it, and has waited for its first byte unusually long: it may be dead, or only busy.
    Silent {
        /// Who.
        by: NodeId,
    },
}
