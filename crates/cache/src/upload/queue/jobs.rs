//! What the queue of uploads takes and gives.

use std::time::Instant;

use base::{BlobId, Timestamp};

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The origin did not answer.
    Away(String),
    /// The origin answered and refused the blob.
    Refused(String),
    /// The origin has no room.
    Full(String),
    /// The blob's bytes cannot be read here.
    Local(String),
}

/// What keeps uploads from succeeding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Since when.
    pub since: Timestamp,
    /// True if the origin answers and refuses; false if it does not answer.
    pub refused: bool,
    /// The last error, in one line.
    pub why: String,
}

/// A blob that the origin does not have yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The blob's name.
    pub id: BlobId,
    /// The blob's size in bytes.
    pub size: u64,
    /// Since when it waits.
    pub since: Timestamp,
    /// Whether it is being sent at the moment.
    pub under_way: bool,
    /// Attempts that failed.
    pub attempts: u32,
    /// Why the last one failed.
    pub failure: Option<String>,
}

/// An event that is reported to the operator once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Uploads stopped succeeding.
    Trouble(Trouble),
    /// Uploads succeed again.
    Over(Trouble),
    /// A blob cannot be read here.
    Unreadable(BlobId, String),
}

/// An attempt to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: BlobId,
    pub(crate) size: u64,
    /// The origin may have the blob already.
    pub(crate) ask_first: bool,
    /// If the origin has the blob, this run did not send it, so its bytes must be verified.
    pub(crate) compare: bool,
    pub(super) begun: Instant,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Make this attempt.
    Job(Job),
    /// Nothing before this time.
    At(Instant),
    /// Nothing until something changes.
    Nothing,
}

/// Counted since the node was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent_blobs: u64,
    pub(crate) sent_bytes: u64,
    /// Blobs that the origin turned out to have already.
    pub(crate) found_blobs: u64,
    pub(crate) failures: u64,
}
