//! Which pages deduplication has to examine: those that were written to since it last did ([`Fresh`]), and
//! those in several pieces that it examined, by their hash ([`Scattered`]).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use base::size::{BLOB_MAX, MIB};
use base::{BlobId, Ino, time};
use hashbrown::HashMap;
use meta::plan::op::Piece;
use parking_lot::{Condvar, Mutex};

use crate::page::page_of;

/// How long a page must not have been written to.
pub(super) const QUIET: Duration = Duration::from_secs(1);
/// A page of which this much was written is looked at as soon as its file is synced. Smaller ones wait for
/// [`QUIET`], because a database syncs a few bytes at a time.
const LARGE: u32 = MIB as u32;
/// Pages remembered, of some 48 bytes each. Pages beyond that may be stored twice.
pub(super) const PAGES_MAX: usize = 256 << 10;
/// Pages in several pieces that are remembered, of some 60 bytes each.
const SCATTERED_MAX: usize = 64 << 10;
/// Files that were written whole are remembered only while there are fewer pages than this.
const WHOLE_MAX: usize = 64 << 10;

/// Which pages are examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Pages that were not written to for a while.
    Quiet,
    /// Also those that were written just now.
    Now,
    /// Pages as for [`When::Now`], without any request to the network.
    Closing,
    /// Also those of which little was written.
    All,
}

/// What was written to a page.
#[derive(Clone, Copy)]
pub(super) struct Written {
    /// Bytes written since the page was last examined.
    pub(super) bytes: u32,
    /// The page is worth examining from this many bytes on.
    enough: u32,
    last: Instant,
    /// The page is a whole file that came in one write and was looked up then.
    whole: bool,
    /// A large page whose file was synced since.
    pub(super) synced: bool,
}

impl Written {
    /// A page that is examined as a whole, once it has been quiet.
    pub(super) fn all() -> Written {
        Written { bytes: BLOB_MAX, enough: 0, last: time::monotonic(), whole: false, synced: false }
    }
}

#[derive(Default)]
struct Pages {
    all: HashMap<(Ino, u32), Written>,
    /// Pages of which [`LARGE`] bytes or more were written.
    large: BTreeSet<(Ino, u32)>,
    /// A file with large pages was synced since the last wait.
    due: bool,
    /// The volume is being closed.
    closed: bool,
}

/// Pages in several pieces, by the hash of their bytes at the time of examination. Bounded: when it is full,
/// an arbitrary entry is dropped.
#[derive(Default)]
pub(crate) struct Scattered(Mutex<HashMap<BlobId, (Ino, u32)>>);

impl Scattered {
    /// Remembers the page. Returns another page that had these bytes, if any.
    pub(super) fn meet(&self, hash: BlobId, page: (Ino, u32)) -> Option<(Ino, u32)> {
        let mut pages = self.0.lock();
        if pages.len() >= SCATTERED_MAX
            && let Some(any) = pages.keys().next().copied()
        {
            pages.remove(&any);
        }
        pages.insert(hash, page).filter(|other| *other != page)
    }

    /// Removes and returns the page that had these bytes.
    pub(super) fn take(&self, hash: &BlobId) -> Option<(Ino, u32)> {
        self.0.lock().remove(hash)
    }
}

/// Pages that were written to and not examined since. Bounded.
#[derive(Default)]
pub(crate) struct Fresh {
    pages: Mutex<Pages>,
    /// A file with large pages was synced, or the volume is being closed.
    synced: Condvar,
}

impl Fresh {
    /// Records that these pieces of a file were written.
    pub(crate) fn note(&self, ino: Ino, pieces: &[Piece]) {
        let now = time::monotonic();
        let mut pages = self.pages.lock();
        for piece in pieces {
            let page = (ino, page_of(piece.at).0);
            if pages.all.len() >= PAGES_MAX && !pages.all.contains_key(&page) {
                continue;
            }
            let new = Written { bytes: 0, enough: 0, last: now, whole: false, synced: false };
            let written = pages.all.entry(page).or_insert(new);
            written.bytes = written.bytes.saturating_add(piece.len);
            (written.last, written.whole, written.synced) = (now, false, false);
            if written.bytes >= LARGE {
                pages.large.insert(page);
            }
        }
    }

    /// Records that a file was synced: its large pages are examined without waiting for them to be quiet.
    pub(crate) fn synced(&self, ino: Ino) {
        let mut pages = self.pages.lock();
        let Pages { all, large, .. } = &mut *pages;
        let mut any = false;
        for page in large.range((ino, 0)..=(ino, u32::MAX)) {
            if let Some(written) = all.get_mut(page) {
                (written.synced, any) = (true, true);
            }
        }
        if any {
            pages.due = true;
            self.synced.notify_all();
        }
    }

    /// Waits until a file with large pages is synced after the last wait, and no longer than `time`.
    pub(super) fn wait_for_sync(&self, time: Duration) {
        let mut pages = self.pages.lock();
        if !pages.due && !pages.closed {
            self.synced.wait_for(&mut pages, time);
        }
        pages.due = false;
    }

    /// Ends the waits, also later ones.
    pub(crate) fn close(&self) {
        self.pages.lock().closed = true;
        self.synced.notify_all();
    }

    /// Records that a file was written whole and was looked up. If more is written, the page must be examined
    /// as a whole.
    pub(crate) fn note_whole(&self, ino: Ino, len: u32) {
        let now = time::monotonic();
        let mut pages = self.pages.lock();
        if pages.all.len() < WHOLE_MAX {
            pages
                .all
                .insert((ino, 0), Written { bytes: len, enough: 0, last: now, whole: true, synced: false });
        }
    }

    /// Whether no page is left to examine.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.pages.lock().all.is_empty()
    }

    /// Takes pages that are worth examining, with the record of each.
    pub(super) fn take(&self, when: When, count: usize) -> Vec<((Ino, u32), Written)> {
        let now = time::monotonic();
        let mut found = Vec::new();
        let mut pages = self.pages.lock();
        let Pages { all, large, .. } = &mut *pages;
        all.retain(|page, written| {
            let young = now.saturating_duration_since(written.last) < QUIET;
            if when == When::Quiet && young && !written.synced {
                return true;
            }
            let looks = !written.whole && (when == When::All || written.bytes >= written.enough);
            if looks && found.len() < count {
                found.push((*page, *written));
                return false;
            }
            !written.whole
        });
        large.retain(|page| all.contains_key(page));
        found
    }

    /// Puts a page back, to be examined when `enough` bytes of it were written.
    pub(super) fn put_back(&self, page: (Ino, u32), before: &Written, enough: u32) {
        let mut pages = self.pages.lock();
        if pages.all.len() >= PAGES_MAX {
            return;
        }
        let new = Written { bytes: 0, last: time::monotonic(), ..*before };
        let written = pages.all.entry(page).or_insert(new);
        written.bytes = written.bytes.saturating_add(before.bytes);
        written.enough = enough;
    }
}
