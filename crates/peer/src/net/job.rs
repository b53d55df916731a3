//! A body that was asked for on a connection, and how far sending it came.

use base::BlobId;

use super::guests::Promised;
use super::owed::Debt;
use super::service::Content;
use super::slice::Slice;
use crate::frame::{Get, SLICE};

/// A request for bytes.
pub(super) struct Job {
    pub(super) request: u32,
    pub(super) blob: BlobId,
    pub(super) content: Content,
    /// The next byte to send, and where it ends once the size is known.
    pub(super) at: u32,
    pub(super) get: Get,
    pub(super) sums: bool,
    /// A slice whose header has been made: what is left of its body in the content.
    pub(super) slice: Option<Slice>,
    pub(super) debt: Debt,
    /// Its place among all that was promised; given back when it goes.
    pub(super) _promised: Promised,
}

impl Job {
    /// Where it ends, if the blob's size is known by now. None as well where the range is not in the blob.
    pub(super) fn end(&self) -> Option<u32> {
        let size = match &self.content {
            Content::Held(held) => held.sums.size(),
            Content::Arriving(arriving) => arriving.size()?,
        };
        // A request for the sums too cannot know the size yet.
        let rest = size.saturating_sub(self.get.offset);
        let len = if self.sums { self.get.len.min(rest) } else { self.get.len };
        Get { len, ..self.get }.range(size).map(|(_, end)| end)
    }

    /// Whether one slice ends it.
    pub(super) fn is_short(&self) -> bool {
        self.end().is_some_and(|end| end.saturating_sub(self.get.offset) <= SLICE)
    }

    /// Says how much of it is still to be sent.
    pub(super) fn owe(&mut self) {
        let left = self.end().map_or(0, |end| end.saturating_sub(self.at));
        self.debt.set(u64::from(left));
    }
}
