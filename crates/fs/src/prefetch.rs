//! Prefetch: predicts which blobs a reader will need next, so that they are in flight before it reads them.
//!
//! Each file that is being read has a [`pattern::Pattern`]. It recognizes runs forward and backward, and
//! steps at a constant distance, and predicts the next pages and ranges. Where blobs are remote, every page
//! is a request for 4 MiB, and each wasted request has a cost. So prefetch is bounded by what was read. At a
//! file's end it continues with the next files, if the file is one of several that are read one after another
//! ([`files::Files`]). Several requests are in flight at once, so that several holders of a file send at the
//! same time and fill the link.
//!
//! It would be another sign of a stream that a page's blob is local already (another reader read it). It is
//! not used, for two reasons. While the blob is still in flight or being written to the disk, the next ones
//! must be requested already. And where half of a file is local, every single read would look like a stream.
//!
//! Where names are remote as well, a separate thread prefetches for threads that must not wait ([`queue`]).
//! In a shared volume, a file may change between the prefetch and the read. That wastes a fetch and shows
//! nothing old: the read looks up the names itself, and a pack's bytes never change.
//!
//! Where all blobs are local, nothing is remembered: at the beginning of each page, the disk is told of the
//! next pages.

mod files;
mod pattern;
mod queue;
pub(crate) mod streams;

use base::size::BLOB_MAX;
use base::{BlobId, Ino};
use blob::Access;

use crate::page::page_of;
use crate::volume::Core;
use files::{Following, Found};
use pattern::{Read, STREAM_MIN};
use queue::Todo;

/// How many pages such a reader will want next, where blobs are local, and how many extents of each page are
/// looked at.
const PAGES_AHEAD: u32 = 3;
const EXTENTS_AHEAD: usize = 4;
/// The number of pages of the next files that are looked at in one step.
const FOLLOWING_AT_ONCE: usize = 64;

impl Core {
    /// Called before a read of at least one byte of a file of this size: prefetches the blobs that will be
    /// wanted after it. If that cannot be told now, nothing is prefetched.
    pub(crate) fn look_ahead(&self, ino: Ino, offset: u64, len: usize, size: u64, access: Access) {
        let source = &self.parts.source;
        if self.options.local {
            let (page, at) = page_of(offset);
            // A stream begins a page here. A read across a page's end begins the next page.
            let next = u64::from(at) + len as u64 > u64::from(BLOB_MAX);
            if len >= STREAM_MIN && ((at as usize) < len || next) {
                let pages = (1..=PAGES_AHEAD).filter_map(|n| page.checked_add(n + u32::from(next)));
                pages.for_each(|page| self.each_blob_of(ino, page, |blob| source.will_need(blob)));
            }
            return;
        }
        let Ok(len) = u32::try_from(len) else { return };
        if access == Access::Random {
            return;
        }
        let read = Read { offset, len, size };
        let wanted = self.streams.read(ino, &read, access == Access::Stream);
        let following = self.streams.across.lock().read(ino, &read);
        let todo = Todo { ino, wanted, following };
        // In a shared volume, the names ahead may each be a round trip to the database.
        if self.options.names_local || !self.is_shared() && base::thread::may_wait() {
            self.want(&todo);
        } else if !todo.is_empty() {
            self.streams.queue.push(todo);
        }
    }

    /// The body of the prefetch thread.
    pub(crate) fn prefetcher(&self) {
        while let Some(todo) = self.streams.queue.next() {
            self.want(&todo);
        }
    }

    /// Requests the predicted blobs. Waits for names if they are remote.
    fn want(&self, todo: &Todo) {
        let Todo { ino, wanted, following } = todo;
        let (ino, source) = (*ino, &self.parts.source);
        for (n, page) in (0..).zip(wanted.pages.clone()) {
            self.each_blob_of(ino, page, |blob| {
                // Of local pages, the disk is told only of the next ones; the first is being read.
                if (1..=PAGES_AHEAD).contains(&n) || !source.is_local(blob) {
                    source.will_need(blob);
                }
            });
        }
        wanted.places.iter().for_each(|(offset, len)| self.want_place(ino, *offset, *len));
        if let Some(following) = following {
            self.want_following(following);
        }
    }

    /// Prefetches the files that follow in a sequence of files.
    fn want_following(&self, following: &Following) {
        let (ino, page) = following.from;
        let Ok(rows) = self.names.extents_after(ino, page, FOLLOWING_AT_ONCE) else { return };
        let mut found = Found::default();
        let mut before = following.but;
        for (ino, page, extents) in rows.iter().take_while(|(ino, ..)| ino.0 < following.before) {
            for extent in extents.extents().iter().take(EXTENTS_AHEAD) {
                let Some(blob) = self.blob_ahead(extent.pack) else { continue };
                if before.replace(blob) != Some(blob) && !self.parts.source.is_local(&blob) {
                    self.parts.source.will_need(&blob);
                    found.begin.push(*ino);
                }
            }
            found.last = Some((*ino, *page, before));
            if found.begin.len() >= following.blobs {
                break;
            }
        }
        self.streams.across.lock().told(following, found);
    }

    fn each_blob_of(&self, ino: Ino, page: u32, each: impl Fn(&BlobId)) {
        let Ok(extents) = self.names.extents(ino, page) else { return };
        let mut last = None;
        for pack in extents.extents().iter().take(EXTENTS_AHEAD).map(|extent| extent.pack) {
            if last.replace(pack) != Some(pack)
                && let Some(blob) = self.blob_ahead(pack)
            {
                each(&blob);
            }
        }
    }

    /// Prefetches a small range, without the data around it. If it reaches into the next page, only the part
    /// in the first page.
    fn want_place(&self, ino: Ino, offset: u64, len: u32) {
        let (page, at) = page_of(offset);
        let until = at.saturating_add(len).min(BLOB_MAX);
        let Ok(extents) = self.names.extents(ino, page) else { return };
        let in_range = extents.extents().iter().filter(|extent| extent.at < until && extent.end() > at);
        for extent in in_range.take(EXTENTS_AHEAD) {
            let (from, to) = (extent.at.max(at), extent.end().min(until));
            if let Some(blob) = self.blob_ahead(extent.pack)
                && !self.parts.source.is_local(&blob)
            {
                self.parts.source.will_need_part(&blob, extent.offset + (from - extent.at), to - from);
            }
        }
    }
}
