//! Which blobs a reader will want next, so that they are on their way before he asks.
//!
//! For each file that is read there is a [`pattern::Pattern`]: a value that sees runs forward and backward and steps at one distance, and says
//! which pages and ranges come next. Where blobs are far away every page is a request for 4 MiB, and one that nobody wants is paid for; so
//! what is fetched ahead is bounded by what was read. At a file's end it goes on into the files that follow, if it is one of several that are read
//! one after another ([`files::Files`]). Several requests are under way at once, so several holders of
//! a file send at the same time, and a link is filled.
//!
//! That a page's blob has arrived would be a sign too (somebody came this way before), and is not looked at: while it is still on its way, or just being
//! put on the disk, the next ones must have been asked for already, and where half of a file is here every single read would look like a stream.
//!
//! Where names are far as well, a thread of its own looks ahead for those who must not wait ([`later`]).
//!
//! Where all blobs are near, on this machine's disk, nothing is remembered: at the beginning of each page the disk is told of the next ones.

mod files;
mod later;
mod pattern;

use base::size::BLOB_MAX;
use base::{BlobId, Ino};
use blob::Access;
use parking_lot::Mutex;

use crate::bytes::page_of;
use crate::packs::table::Place;
use crate::volume::Core;
use files::{Files, Following, Found};
use later::{Later, Todo};
use pattern::{Pattern, Read, Wanted};

/// A read of at least so many bytes may be part of a stream.
const STREAM_MIN: usize = 128 << 10;
/// Pages that such a reader will want next, where they are near, and how many of each one's extents are looked at.
const PAGES_AHEAD: u32 = 3;
const EXTENTS_AHEAD: usize = 4;
/// Files whose readers are remembered, some 300 bytes each; more share a place, and then begin again now and then.
const FILES: usize = 64;
/// Pages of files that follow that are looked at, at a time.
const FOLLOWING_AT_ONCE: usize = 64;

/// Who reads which file how. See the [module](self).
pub(crate) struct Streams {
    within: [Mutex<(u64, Pattern)>; FILES],
    across: Mutex<Files>,
    pub(crate) later: Later,
}

impl Streams {
    pub(crate) fn new() -> Streams {
        Streams {
            within: std::array::from_fn(|_| Mutex::default()),
            across: Mutex::default(),
            later: Later::default(),
        }
    }

    fn read(&self, ino: Ino, read: &Read, stream: bool) -> Wanted {
        let mut file = self.within[ino.0 as usize % FILES].lock();
        if file.0 != ino.0 {
            *file = (ino.0, Pattern::default());
        }
        file.1.read(read, stream)
    }
}

impl Core {
    /// Bytes of a file of this size are about to be read, at least one: says which blobs will be wanted after them. What cannot be told
    /// now, the read itself will find out.
    pub(crate) fn look_ahead(&self, ino: Ino, (offset, len): (u64, usize), size: u64, access: Access) {
        let source = &self.parts.source;
        if self.options.near {
            let (page, at) = page_of(offset);
            // As a stream begins a page; a read over a page's end begins the next.
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
        if self.options.names_near || base::thread::may_wait() {
            self.want(&todo);
        } else if !todo.is_empty() {
            self.streams.later.push(todo);
        }
    }

    /// Says which blobs that are. Waits for names, if they are far.
    fn want(&self, todo: &Todo) {
        let Todo { ino, wanted, following } = todo;
        let (ino, source) = (*ino, &self.parts.source);
        for (n, page) in (0..).zip(wanted.pages.clone()) {
            self.each_blob_of(ino, page, |blob| {
                // Of what is here, the disk is told of the next ones only; the first is being read.
                if (1..=PAGES_AHEAD).contains(&n) || !source.is_near(blob) {
                    source.will_need(blob);
                }
            });
        }
        wanted.places.iter().for_each(|(offset, len)| self.want_place(ino, *offset, *len));
        if let Some(following) = following {
            self.want_following(following);
        }
    }

    /// The files that are read one after another go on with others.
    fn want_following(&self, following: &Following) {
        let (ino, page) = following.from;
        let Ok(rows) = self.names.extents_after(ino, page, FOLLOWING_AT_ONCE) else { return };
        let mut found = Found::default();
        let mut before = following.but;
        for (ino, page, extents) in rows.iter().take_while(|(ino, ..)| ino.0 < following.before) {
            for extent in extents.extents().iter().take(EXTENTS_AHEAD) {
                let Ok(Some(Place::Blob(blob))) = self.place_of(extent.pack) else { continue };
                if before.replace(blob) != Some(blob) && !self.parts.source.is_near(&blob) {
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
                && let Ok(Some(Place::Blob(blob))) = self.place_of(pack)
            {
                each(&blob);
            }
        }
    }

    /// A small range will be read, and not what is around it. Of one that reaches into the next page, what is in the first.
    fn want_place(&self, ino: Ino, offset: u64, len: u32) {
        let (page, at) = page_of(offset);
        let until = at.saturating_add(len).min(BLOB_MAX);
        let Ok(extents) = self.names.extents(ino, page) else { return };
        let in_range = extents.extents().iter().filter(|extent| extent.at < until && extent.end() > at);
        for extent in in_range.take(EXTENTS_AHEAD) {
            let (from, to) = (extent.at.max(at), extent.end().min(until));
            if let Ok(Some(Place::Blob(blob))) = self.place_of(extent.pack)
                && !self.parts.source.is_near(&blob)
            {
                self.parts.source.will_need_part(&blob, extent.offset + (from - extent.at), to - from);
            }
        }
    }
}

// A page is the unit of what is wanted: what is far is one blob for each.
const _: () = assert!(STREAM_MIN < BLOB_MAX as usize);
