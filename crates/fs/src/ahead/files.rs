//! Which files are read one after another, and how much of those that follow is wanted: a value without I/O, of a fixed size.
//!
//! ```text
//!   inodes    7 ▓▓▓▓   8 ▓▓▓▓   9 ▓▓░░   10 ░░░░   11 ░░░░      a row of files: shards, samples, the sources of a program
//! ```
//!
//! Numbers are given out in order, so files that were written one after another have neighbouring ones, also where they came from an archive or
//! were published; who reads them by their names mostly goes the same way. A listing's own order is that of hashes, and says nothing.
//!
//! - **A row** is known by the highest number that was read. A file whose number is within [`NEAR`] of it belongs to it: between the files of a folder lie
//!   other folders, links and files too small to have blobs, and several readers of one row are not always in order. [`ROWS`] of them are
//!   remembered.
//! - A file comes into a row by a read of its beginning, and counts as one that was read when half of its bytes were. So who looks at the heads of a thousand
//!   files, or at their ends, has nothing fetched in vain.
//! - **Rows are read again**: whoever has come to the end of a row, where nothing follows, and begins another file, or begins the row's first one, reads a row
//!   there too (an epoch after the other). It need not be found out anew, and nothing stands still meanwhile. And a row that began in the middle may go
//!   on at the beginning, where each of several readers has begun elsewhere: of that the first [`ROUND`] blobs are wanted, before its end is reached.
//! - What is wanted is **bounded by what was read** as in one file ([`TIMES`], [`MOST`]), and only what the file being read does not take itself.

use base::{BlobId, Ino};

use super::pattern::{MOST, PAGE, Read, TIMES};

/// Numbers within so many of one another are near.
const NEAR: u64 = 16;
/// Rows that are remembered.
const ROWS: usize = 4;
/// Before this many files were read there is no row.
const FILES_MIN: u32 = 2;
/// Numbers that are looked at ahead of the last one that was read, where nothing is wanted of them because it is here.
const LOOK_MOST: u64 = 256;

/// So many blobs of what lies before a row are wanted when it comes to its end.
const ROUND: usize = 2;
/// Nothing follows.
const OVER: (u64, u32) = (u64::MAX, 0);

/// Files with neighbouring numbers that are read one after another.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// The number with which it began, and the highest that was read.
    first: u64,
    last: u64,
    /// Files, and their sizes together without the last one's.
    files: u32,
    sizes: u64,
    /// The last one's.
    size: u64,
    /// Bytes that were read of them.
    read: u64,
    /// When it was used last, in the count of reads; 0: never.
    used: u64,
    /// From this page of this file on nothing was looked at yet.
    next: (u64, u32),
    /// The blob that was looked at last.
    blob: Option<BlobId>,
    /// What lies before it was wanted, too.
    round: bool,
    /// The files in which blobs begin that were wanted, those not yet read, lowest first.
    told: Told,
}

/// Numbers, a few.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    files: [u64; (MOST / PAGE) as usize],
    len: usize,
}

impl Told {
    fn push(&mut self, ino: u64) {
        if let Some(place) = self.files.get_mut(self.len) {
            *place = ino;
            self.len += 1;
        }
    }

    /// Those up to this one have been read.
    fn drop_up_to(&mut self, ino: u64) {
        let gone = self.files[..self.len].iter().take_while(|told| **told <= ino).count();
        self.files.copy_within(gone..self.len, 0);
        self.len -= gone;
    }
}

/// Files that follow are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Following {
    /// From this page of this file on ...
    pub(super) from: (Ino, u32),
    /// ... as many blobs as this ...
    pub(super) blobs: usize,
    /// ... of which this, with which the one before ended, is none.
    pub(super) but: Option<BlobId>,
    /// Nor any in a file with such a number, or a higher one.
    pub(super) before: u64,
    row: usize,
}

/// What came of looking for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// The files in which those blobs begin, lowest first.
    pub(super) begin: Vec<Ino>,
    /// What was looked at last: a page of a file, and the blob with which it ends. None: there are no more.
    pub(super) last: Option<(Ino, u32, Option<BlobId>)>,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    rows: [Row; ROWS],
    reads: u64,
}

impl Row {
    fn takes(&self, ino: Ino, begins: bool) -> bool {
        self.used > 0 && (ino.0 == self.last || begins && ino.0.abs_diff(self.last) <= NEAR)
    }

    /// Whether one who begins this file goes on so there: see the [module](self).
    fn goes_on_at(&self, ino: Ino) -> bool {
        let is_over = self.next == OVER && self.told.len == 0;
        let is_row = self.files >= FILES_MIN && self.read * 2 >= self.sizes;
        self.used > 0 && is_row && (is_over || ino.0 == self.first)
    }

    /// One that begins with this read.
    fn begin(ino: Ino, read: &Read, used: u64) -> Row {
        let next = (ino.0.saturating_add(1), 0);
        let (first, size, read) = (ino.0, read.size, u64::from(read.len));
        Row { first, last: first, files: 1, size, read, used, next, ..Row::default() }
    }

    fn add(&mut self, ino: Ino, read: &Read, used: u64) {
        if ino.0 > self.last {
            (self.last, self.files, self.sizes) =
                (ino.0, self.files.saturating_add(1), self.sizes + self.size);
            self.size = read.size;
            self.next = self.next.max((ino.0.saturating_add(1), 0));
            self.told.drop_up_to(ino.0);
        }
        self.read += u64::from(read.len);
        self.used = used;
    }

    /// How many blobs more of the files that follow are wanted, now that this was read of the last one.
    fn wanted(&self, read: &Read) -> usize {
        let heads_only = self.read * 2 < self.sizes;
        if self.files < FILES_MIN || heads_only || self.next.0 > self.last.saturating_add(LOOK_MOST) {
            return 0;
        }
        let rest = read.size.saturating_sub(read.end()).div_ceil(PAGE);
        let blobs = ((self.read * TIMES).min(MOST) / PAGE).saturating_sub(rest) as usize;
        blobs.saturating_sub(self.told.len)
    }

    /// The same, and from where on. It is the `at`th row.
    fn following(&self, at: usize, read: &Read) -> Option<Following> {
        if self.next == OVER && !self.round && self.files >= FILES_MIN && self.read * 2 >= self.sizes {
            let (from, blobs) = ((Ino(0), 0), ROUND);
            return Some(Following { from, blobs, but: self.blob, before: self.first, row: at });
        }
        let (from, blobs) = ((Ino(self.next.0), self.next.1), self.wanted(read));
        (blobs > 0).then_some(Following { from, blobs, but: self.blob, before: u64::MAX, row: at })
    }
}

impl Files {
    /// Takes in a read of a file. What is wanted is said again until [`Files::told`] says that it was looked for.
    pub(super) fn read(&mut self, ino: Ino, read: &Read) -> Option<Following> {
        self.reads += 1;
        let (reads, begins) = (self.reads, read.offset == 0);
        let takes = |(_, row): &(usize, &mut Row)| row.takes(ino, begins);
        let found = self.rows.iter_mut().enumerate().filter(takes).max_by_key(|(_, row)| row.used);
        if let Some((at, row)) = found {
            row.add(ino, read, reads);
            return row.following(at, read);
        }
        if !begins {
            return None;
        }
        let new = Row::begin(ino, read, reads);
        let before = self.rows.iter_mut().enumerate().filter(|(_, row)| row.goes_on_at(ino));
        if let Some((at, row)) = before.max_by_key(|(_, row)| row.used) {
            // As if a page had been read: some are wanted at once, and more as they are read.
            *row = Row { files: FILES_MIN, read: new.read + PAGE, ..new };
            return row.following(at, read);
        }
        if let Some(oldest) = self.rows.iter_mut().min_by_key(|row| row.used) {
            *oldest = new;
        }
        None
    }

    /// Takes in what came of looking for what was wanted, so that it is not wanted again.
    pub(super) fn told(&mut self, following: &Following, found: Found) {
        let row = &mut self.rows[following.row];
        if following.before < u64::MAX {
            row.round |= row.first == following.before;
            return;
        }
        // Another reader of the row was quicker, or there is another row in its place by now.
        if row.next != (following.from.0.0, following.from.1) {
            return;
        }
        found.begin.iter().for_each(|ino| row.told.push(ino.0));
        row.next = OVER;
        if let Some((ino, page, blob)) = found.last {
            row.next = (ino.0, page.saturating_add(1));
            row.blob = blob;
        }
    }
}

#[cfg(test)]
mod tests;
