//! The extents of one *page*: a 4 MiB range of a file.
//!
//! A page is a sorted list of extents that stay within the page and do not overlap. What no extent covers is
//! a hole and reads as zeros. Neighbours that continue one another in the file and in the same pack are
//! always one extent, so equal contents have equal pages and equal encodings. Pages are values. Every change
//! returns what it removed, so that the packs' live bytes can be counted.
//!
//! ```text
//!   at:   0        64K       1M                    4M
//!         [ pack 7 ][  hole  ][ pack 9, offset 128K ]
//! ```
//!
//! # On disk
//!
//! ```text
//!   version: 1 byte, 1
//!   count:   varint
//!   for each extent, in order:
//!     hole before it: varint      (from the end of the one before, or from the page's start)
//!     length:         varint
//!     pack:           varint      (zigzag of the difference to the pack before; the first to 0)
//!     offset:         varint
//! ```
//!
//! A varint is little-endian base 128 in its shortest form. Decoding checks every invariant above, so a
//! decoded page can be trusted like a page that was built.

mod code;
#[cfg(test)]
mod tests;

use base::size::BLOB_MAX;
use base::{Must, PackNo};

/// A piece of a file: `len` bytes at `at` (from the page's start), found in `pack` from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First byte, counted from the page's start. `at + len` is at most 4 MiB.
    pub at: u32,
    /// Length in bytes; never 0.
    pub len: u32,
    /// The pack that holds the bytes.
    pub pack: PackNo,
    /// The offset of the bytes in the pack. `offset + len` is at most 4 MiB.
    pub offset: u32,
}

impl Extent {
    /// The first byte after it, counted from the page's start.
    pub fn end(&self) -> u32 {
        self.at + self.len
    }

    /// Whether `next` continues this extent, in the file and in the pack.
    fn continues_in(&self, next: &Extent) -> bool {
        self.end() == next.at && self.pack == next.pack && self.offset + self.len == next.offset
    }

    /// The part of it within `from..to`, which it must touch.
    fn cut(&self, from: u32, to: u32) -> Extent {
        let at = self.at.max(from);
        let end = self.end().min(to);
        Extent { at, len: end - at, pack: self.pack, offset: self.offset + (at - self.at) }
    }

    fn is_sound(&self) -> bool {
        let fits = |start: u32| start.checked_add(self.len).is_some_and(|end| end <= ExtentPage::SPAN);
        self.len > 0 && fits(self.at) && fits(self.offset)
    }
}

/// The extents of one 4 MiB range of a file, sorted, not overlapping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentPage {
    extents: Vec<Extent>,
}

/// A part of a page as a reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Zeros.
    Hole {
        /// First byte, counted from the page's start.
        at: u32,
        /// Length in bytes.
        len: u32,
    },
    /// Bytes of a pack.
    Data(Extent),
}

/// The bytes are not a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an extent page is damaged: {0}")]
pub struct BadPage(pub &'static str);

impl ExtentPage {
    /// How much of a file one page covers, in bytes: as much as the largest blob holds.
    pub const SPAN: u32 = BLOB_MAX;

    /// A page without data.
    pub fn new() -> ExtentPage {
        ExtentPage::default()
    }

    /// All extents, in order.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Whether the whole page is a hole.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// How many bytes of the page are data.
    pub fn covered_bytes(&self) -> u32 {
        self.extents.iter().map(|extent| extent.len).sum()
    }

    /// The parts of the range `at..at + len`, in order and without gaps, cut to the range. Bytes past the
    /// page's end are left out.
    pub fn parts(&self, at: u32, len: u32) -> Parts<'_> {
        let end = at.saturating_add(len).min(Self::SPAN);
        Parts { extents: &self.extents[self.first_ending_after(at)..], at: at.min(end), end }
    }

    /// The first byte of data at or after `at`; none if only a hole follows.
    pub fn next_data(&self, at: u32) -> Option<u32> {
        self.extents.get(self.first_ending_after(at)).map(|extent| extent.at.max(at))
    }

    /// The first byte of a hole at or after `at`; none if all the rest of the page is data (or `at` is past
    /// its end).
    pub fn next_hole(&self, at: u32) -> Option<u32> {
        let mut at = at;
        for extent in &self.extents[self.first_ending_after(at)..] {
            if extent.at > at {
                break;
            }
            at = extent.end();
        }
        (at < Self::SPAN).then_some(at)
    }

    /// Replaces the range of `extent` with it. Returns what was removed, cut to the range. An extent of
    /// length 0 changes nothing.
    ///
    /// # Panics
    /// When the extent reaches past 4 MiB in the page or in its pack.
    pub fn insert(&mut self, extent: Extent) -> Vec<Extent> {
        if extent.len == 0 {
            return Vec::new();
        }
        extent.is_sound().then_some(()).must("an extent lies within its page and its pack");
        self.replace(extent.at, extent.end(), Some(extent))
    }

    /// Makes the range `at..at + len` a hole. Returns what was removed, cut to the range.
    pub fn punch(&mut self, at: u32, len: u32) -> Vec<Extent> {
        let end = at.saturating_add(len).min(Self::SPAN);
        if at >= end {
            return Vec::new();
        }
        self.replace(at, end, None)
    }

    /// Makes everything from `len` on a hole. Returns what was removed.
    pub fn truncate(&mut self, len: u32) -> Vec<Extent> {
        self.punch(len, Self::SPAN - len.min(Self::SPAN))
    }

    /// The index of the first extent that has a byte at or after `at`.
    fn first_ending_after(&self, at: u32) -> usize {
        self.extents.partition_point(|extent| extent.end() <= at)
    }

    /// Removes `from..to` and inserts `new`, which fills exactly that range.
    fn replace(&mut self, from: u32, to: u32, new: Option<Extent>) -> Vec<Extent> {
        let mut first = self.first_ending_after(from);
        let mut last = first + self.extents[first..].partition_point(|extent| extent.at < to);
        let touched = &self.extents[first..last];
        let removed: Vec<Extent> = touched.iter().map(|extent| extent.cut(from, to)).collect();
        let mut before = touched.first().filter(|e| e.at < from).map(|e| e.cut(0, from));
        let mut after = touched.last().filter(|e| e.end() > to).map(|e| e.cut(to, Self::SPAN));

        let mut middle = new;
        if let Some(extent) = &mut middle {
            // Only a piece that was not cut can directly follow an untouched neighbour.
            if before.is_none() && first > 0 && self.extents[first - 1].continues_in(extent) {
                first -= 1;
                before = Some(self.extents[first]);
            }
            if after.is_none() && self.extents.get(last).is_some_and(|next| extent.continues_in(next)) {
                after = Some(self.extents[last]);
                last += 1;
            }
            if let Some(left) = before.filter(|left| left.continues_in(extent)) {
                *extent = Extent { len: left.len + extent.len, ..left };
                before = None;
            }
            if let Some(right) = after.filter(|right| extent.continues_in(right)) {
                extent.len += right.len;
                after = None;
            }
        }
        self.extents.splice(first..last, [before, middle, after].into_iter().flatten());
        removed
    }
}

/// Iterates over a range of a page: see [`ExtentPage::parts`].
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    /// The extents that end after `at`.
    extents: &'a [Extent],
    at: u32,
    end: u32,
}

impl Iterator for Parts<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        if self.at >= self.end {
            return None;
        }
        let at = self.at;
        match self.extents.split_first() {
            Some((extent, rest)) if extent.at <= at => {
                let data = extent.cut(at, self.end);
                self.extents = rest;
                self.at = data.end();
                Some(Part::Data(data))
            }
            next => {
                let end = next.map_or(self.end, |(extent, _)| extent.at.min(self.end));
                self.at = end;
                Some(Part::Hole { at, len: end - at })
            }
        }
    }
}
