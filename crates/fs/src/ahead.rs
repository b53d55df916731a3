//! Which blobs a reader will want next, so that they are on their way before he asks.
//!
//! A reader goes through a large file from page to page, and the kernel asks for it in pieces, several at a time and not always in
//! order. For each file the page begun last is remembered, and how many were begun one after the other before it ([`Streams`]). The longer the
//! run, the further the look goes: where blobs are far away every one of them is a request for 4 MiB, and one that nobody wants is paid for.
//!
//! That a page's blob has arrived is a sign too (somebody came this way before), and is not needed: while it is still on its way, or just being put
//! on the disk, the next ones must have been asked for already.

use base::size::BLOB_MAX;
use base::{BlobId, Ino};
use parking_lot::Mutex;

use crate::packs::table::Place;
use crate::volume::Core;

/// A read of at least so many bytes at the beginning of a page may be part of a stream.
const STREAM_MIN: usize = 128 << 10;
/// Pages that such a reader will want next, and how many of each one's extents are looked at.
const PAGES_AHEAD: u32 = 3;
/// The most, where blobs come from far away: a network needs as many requests under way as it takes to fill it. A cache has room for
/// so many on their way beside those that somebody waits for.
const PAGES_AHEAD_FAR: u32 = 12;
const EXTENTS_AHEAD: usize = 4;
/// Files whose readers are remembered; more share a place, and then begin again now and then.
const FILES: usize = 64;
/// The kernel's pieces come out of order by at most so many pages.
const DISORDER: u32 = 2;

/// What the beginning of a page says of its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// The file's first page: it may be a stream.
    Beginning,
    /// So many pages were begun one after the other before this one, at least 1.
    Run(u32),
    /// Nothing.
    Lone,
}

#[derive(Clone, Copy, Default)]
struct Reader {
    ino: u64,
    page: u32,
    run: u32,
}

/// Who reads what from page to page. See the [module](self).
pub(crate) struct Streams([Mutex<Reader>; FILES]);

impl Streams {
    pub(crate) fn new() -> Streams {
        Streams(std::array::from_fn(|_| Mutex::default()))
    }

    /// The beginning of a page of this file is read.
    fn begin(&self, ino: Ino, page: u32) -> Sign {
        let mut reader = self.0[ino.0 as usize % FILES].lock();
        if reader.ino != ino.0 || page == 0 {
            *reader = Reader { ino: ino.0, page, run: 0 };
            return if page == 0 { Sign::Beginning } else { Sign::Lone };
        }
        let (last, run) = (reader.page, reader.run);
        if page > last && page - last <= DISORDER {
            (reader.page, reader.run) = (page, run.saturating_add(page - last));
        } else if page > last || last - page > DISORDER {
            (reader.page, reader.run) = (page, 0);
        }
        if reader.run == 0 { Sign::Lone } else { Sign::Run(reader.run) }
    }
}

impl Core {
    /// Whether a read of `len` bytes at this place of a page begins the page as a stream does.
    pub(crate) fn begins_page(at: u32, len: usize) -> bool {
        len >= STREAM_MIN && (at as usize) < len
    }

    /// Somebody seems to read a large file from one page to the next: says which blobs will be wanted. What cannot be told
    /// now, the read itself will find out.
    pub(crate) fn look_ahead(&self, ino: Ino, page: u32) {
        let source = &self.parts.source;
        let pages = if self.options.near {
            PAGES_AHEAD
        } else {
            match self.streams.begin(ino, page) {
                Sign::Beginning => PAGES_AHEAD,
                Sign::Run(run) => run.saturating_add(1).saturating_mul(PAGES_AHEAD).min(PAGES_AHEAD_FAR),
                Sign::Lone if page > 0 && !self.is_page_far(ino, page - 1) => PAGES_AHEAD_FAR,
                Sign::Lone => 0,
            }
        };
        for (n, next) in (1..=pages).filter_map(|n| Some((n, page.checked_add(n)?))) {
            self.each_blob_of(ino, next, |blob| {
                if n <= PAGES_AHEAD || !source.is_near(blob) {
                    source.will_need(blob);
                }
            });
        }
    }

    fn is_page_far(&self, ino: Ino, page: u32) -> bool {
        let far = std::cell::Cell::new(false);
        self.each_blob_of(ino, page, |blob| far.set(far.get() || !self.parts.source.is_near(blob)));
        far.get()
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
}

// A page is the unit of the runs: what is far is one blob for each.
const _: () = assert!(STREAM_MIN < BLOB_MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_grows_with_each_page_and_bears_a_little_disorder() {
        let streams = Streams::new();
        let signs =
            |pages: &[u32]| -> Vec<Sign> { pages.iter().map(|page| streams.begin(Ino(7), *page)).collect() };
        use Sign::{Beginning, Lone, Run};
        assert_eq!(signs(&[0, 1, 2]), [Beginning, Run(1), Run(2)]);
        assert_eq!(signs(&[4, 3, 5]), [Run(4), Run(4), Run(5)], "the kernel asked for 4 before 3");
        assert_eq!(signs(&[90, 91]), [Lone, Run(1)], "a stream may begin anywhere");
        assert_eq!(signs(&[10, 5, 80]), [Lone, Lone, Lone], "here and there");
        assert_eq!(signs(&[0]), [Beginning]);
    }

    #[test]
    fn a_file_that_shares_its_place_with_another_only_begins_again() {
        let streams = Streams::new();
        let other = Ino(7 + FILES as u64);
        streams.begin(Ino(7), 3);
        assert_eq!(streams.begin(Ino(7), 4), Sign::Run(1));
        assert_eq!(streams.begin(other, 5), Sign::Lone);
        assert_eq!(streams.begin(Ino(7), 5), Sign::Lone);
        assert_eq!(streams.begin(Ino(7), 6), Sign::Run(1));
    }
}
