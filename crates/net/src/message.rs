//! What nodes tell each other about blobs.
//!
//! Neighbouring blobs of a file form a **group**. One node of the zone, chosen by hashing, *tracks* a group:
//! it knows which nodes have its blobs and which nodes are fetching them. It need not have them itself. A
//! node that misses a blob asks the tracker of its group, once for up to [`ASK_MAX`] blobs of it. The tracker
//! says for each where to get it:
//!
//! - [`Answer::Serve`]: from the tracker itself.
//! - [`Answer::Go`]: from one of these nodes.
//! - [`Answer::Lease`]: fetch it from the depot or the origin. No other node does so until the lease ends.
//! - [`Answer::Wait`]: that node is fetching it. Take it from there as it arrives.
//!
//! A node tells the trackers in batches ([`Note`]) which blobs it got, dropped or failed to get. A tracker
//! keeps nothing permanently. The holders tell a new one again.

use std::time::Duration;

use base::BlobId;

use crate::id::NodeId;

/// Upper bound on the blobs in one question.
pub const ASK_MAX: usize = 16;

/// Upper bound on the notes in one message.
pub const NOTES_MAX: usize = 256;

/// A group of neighbouring blobs, by a number that all readers of the same tree agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u64);

impl Group {
    /// If nothing is known about a blob's neighbours, it is a group of its own.
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
    /// How much the requester itself has to send, in MiB. Of several holders, trackers choose the less busy
    /// one.
    pub backlog: u16,
    /// Holders that just gave the requester an error or no answer, at most 8. They must not be named.
    pub not: Vec<NodeId>,
    /// The requester's upstream, if any: the node that sends it the most now. It is preferred among equals.
    pub sender: Option<NodeId>,
    /// Only a part of each blob is wanted. The requester will not have the blob, and takes no slot of the
    /// node that it is sent to. A lease is a normal lease.
    pub part: bool,
}

/// What a tracker says about one blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The tracker has it.
    Serve,
    /// One or two nodes have the blob, the better one first.
    Go {
        /// Ask this one.
        first: NodeId,
        /// Ask this one if the first does not answer in time.
        second: Option<NodeId>,
    },
    /// The requester fetches it from the depot or the origin.
    Lease {
        /// To be named when the fetch is done or has failed.
        lease: u64,
        /// How long no other node is sent there.
        time: Duration,
    },
    /// The node `parent` is fetching the blob.
    Wait {
        /// Stream it from there.
        parent: NodeId,
        /// When the fetch should have ended.
        time: Duration,
    },
    /// The answering node does not track this group, according to its own membership.
    NotMine,
}

/// What a node tells a tracker without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// The blob's group.
    pub group: Group,
    /// Which blob.
    pub blob: BlobId,
    /// What happened to it.
    pub what: What,
}

/// What happened to a blob at a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The node has it, and can send it.
    Have,
    /// Another tracker gave the node the lease, and it is fetching. It says so once, to the trackers after
    /// that one. If the first tracker has died, they would otherwise give a second lease. It counts like
    /// having the blob, because the node passes on what arrives.
    Fetching,
    /// The node does not have it any more.
    Gone,
    /// The node was to fetch it and could not. The lease is free.
    Failed {
        /// Which.
        lease: u64,
    },
    /// The node was sent to `by` for it, and did not get it there.
    Refused {
        /// The node that did not deliver.
        by: NodeId,
    },
    /// The node was sent to `by` for it, and has waited unusually long for its first byte. `by` may be dead,
    /// or only busy.
    Silent {
        /// The silent node.
        by: NodeId,
    },
}
