//! A body that was requested on a connection, and how much of it has been sent.

use base::BlobId;

use super::backlog::BacklogShare;
use super::clients::Promised;
use super::service::Content;
use super::slice::Slice;
use crate::frame::{Get, SLICE};

/// A request for bytes.
pub(super) struct Job {
    pub(super) request: u32,
    pub(super) blob: BlobId,
    pub(super) content: Content,
    /// The next byte to send.
    pub(super) at: u32,
    pub(super) get: Get,
    pub(super) sums: bool,
    /// A slice whose header has been made: the rest of its body, within the content.
    pub(super) slice: Option<Slice>,
    pub(super) share: BacklogShare,
    /// The request's share of the bound on promised bodies, which is returned on drop.
    pub(super) _promised: Promised,
}

impl Job {
    /// Where it ends, if the blob's size is known yet. None too if the range is not in the blob.
    pub(super) fn end(&self) -> Option<u32> {
        let size = match &self.content {
            Content::Held(held) => held.sums.size(),
            Content::Arriving(arriving) => arriving.size()?,
        };
        // A request that also asks for the sums cannot know the size yet.
        let rest = size.saturating_sub(self.get.offset);
        let len = if self.sums { self.get.len.min(rest) } else { self.get.len };
        Get { len, ..self.get }.range(size).map(|(_, end)| end)
    }

    /// Whether one slice ends it.
    pub(super) fn is_short(&self) -> bool {
        self.end().is_some_and(|end| end.saturating_sub(self.get.offset) <= SLICE)
    }

    /// Records how much of it remains to be sent.
    pub(super) fn update_share(&mut self) {
        let left = self.end().map_or(0, |end| end.saturating_sub(self.at));
        self.share.set(u64::from(left));
    }
}
