//! Recognizes files that are read one after another, and decides how much of the next ones is wanted: a value
//! without I/O, of a fixed size.
//!
//! ```text
//!   inodes    7 ▓▓▓▓   8 ▓▓▓▓   9 ▓▓░░   10 ░░░░   11 ░░░░   a row of files: shards, samples, source files
//! ```
//!
//! Inode numbers are allocated in order. So files that were written one after another have neighbouring
//! numbers, also if they came from an archive or were published. A reader that goes through them by name
//! mostly follows the same order. The order of a directory listing is that of hashes, and says nothing.
//!
//! - **A row** is a sequence of files, identified by the highest inode number that was read. A file whose
//!   number is within [`NEAR`] of it belongs to it: numbers in between belong to other folders, links and
//!   files too small to have blobs, and several readers of one row do not always stay in order. [`ROWS`] rows
//!   are remembered.
//! - A file enters a row by a read of its beginning, and counts as read when half of its bytes were read. So
//!   a program that reads only the heads or the ends of a thousand files causes no useless fetches.
//! - **Rows are read again.** When a reader has reached the end of a row, where nothing follows, and begins
//!   another file, or when it begins the row's first file, that file starts a row too (one epoch after
//!   another). The row need not be recognized anew, so fetches continue without a pause. And where each of
//!   several readers began at another place, a row that began in the middle may continue at the beginning. So
//!   the first [`ROUND`] blobs from there are wanted before its end is reached.
//! - What is wanted is **bounded by what was read**, as within one file ([`TIMES`], [`MOST`]), and only by
//!   what the current file does not use up itself.
//! - What is wanted **must prove right**. A new row wants [`TRIAL`] blobs. It wants more when a file with
//!   such a blob was begun, and nothing as long as readers skip most of these files: shards that are read in
//!   random order have neighbouring numbers, too. [`IN_ORDER`] files in order begin the trial anew.

use base::{BlobId, Ino};

use super::pattern::{MOST, PAGE, Read, TIMES};

/// Numbers within this distance belong together.
const NEAR: u64 = 16;
/// The number of rows that are remembered.
const ROWS: usize = 4;
/// The number of files that make a row.
const FILES_MIN: u32 = 2;
/// How many numbers beyond the last one read are looked at, where nothing is wanted because everything is
/// local.
const LOOK_MOST: u64 = 256;
/// After that, no more is looked at until it is only so many numbers beyond the last one read. Otherwise each
/// file would be a look at the names, which may be a round trip.
const LOOK_AGAIN: u64 = 128;

/// How many blobs before the row's first file are wanted when the row comes to its end.
const ROUND: usize = 2;
/// How many blobs a row wants until a file with one of them is begun.
const TRIAL: usize = 1;
/// A row that proved wrong begins anew after this many files in order.
const IN_ORDER: u8 = 4;
/// The position after the last file: nothing follows.
const OVER: (u64, u32) = (u64::MAX, 0);

/// Files with neighbouring numbers that are read one after another.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// The first number of the row, and the highest that was read.
    first: u64,
    last: u64,
    /// The number of files, and the sum of their sizes without the last one's.
    files: u32,
    sizes: u64,
    /// The size of the last file.
    size: u64,
    /// Bytes read of them.
    read: u64,
    /// When it was last used, as a count of reads; 0: never.
    used: u64,
    /// The first page (file and page) that was not looked at yet.
    next: (u64, u32),
    /// The last blob that was looked at.
    blob: Option<BlobId>,
    /// The last look ended beyond [`LOOK_MOST`].
    rests: bool,
    /// The blobs before its beginning were wanted already.
    round: bool,
    /// The files in which wanted blobs begin, as far as they are not read yet, lowest first.
    told: Announced,
    /// The skipped files in which wanted blobs begin. A reader that is a little behind may still read them.
    skipped: Announced,
    /// How many blobs of files that were begun had been wanted, and how many of files that were skipped.
    right: u32,
    wrong: u32,
    /// Files that were begun in order since the last one that was not.
    in_order: u8,
}

/// A few inode numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Announced {
    files: [u64; (MOST / PAGE) as usize],
    len: usize,
}

impl Announced {
    fn push(&mut self, ino: u64) {
        if let Some(place) = self.files.get_mut(self.len) {
            *place = ino;
            self.len += 1;
        }
    }

    fn files(&self) -> &[u64] {
        self.files.get(..self.len).unwrap_or_default()
    }

    /// Removes the files for which this holds. Returns how many there were.
    fn take(&mut self, is_taken: impl Fn(u64) -> bool) -> usize {
        let mut rest = Announced::default();
        self.files().iter().filter(|ino| !is_taken(**ino)).for_each(|ino| rest.push(*ino));
        let taken = self.len - rest.len;
        *self = rest;
        taken
    }
}

/// A request for blobs of the next files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Following {
    /// Start at this page of this file ...
    pub(super) from: (Ino, u32),
    /// ... and take this many blobs ...
    pub(super) blobs: usize,
    /// ... except this one, with which the previous request ended ...
    pub(super) but: Option<BlobId>,
    /// ... and none in a file with this number or a higher one.
    pub(super) before: u64,
    row: usize,
}

/// The result of such a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// The files in which the found blobs begin, lowest first.
    pub(super) begin: Vec<Ino>,
    /// The last page that was looked at, and the blob with which it ends. None: there are no more pages.
    pub(super) last: Option<(Ino, u32, Option<BlobId>)>,
}

/// The rows that are being read. See the [module](self).
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    rows: [Row; ROWS],
    reads: u64,
}

impl Row {
    fn takes(&self, ino: Ino, begins: bool) -> bool {
        self.used > 0 && (ino.0 == self.last || begins && ino.0.abs_diff(self.last) <= NEAR)
    }

    /// Whether a reader that begins this file continues the row there. See the [module](self).
    fn goes_on_at(&self, ino: Ino) -> bool {
        let is_over = self.next == OVER && self.told.len == 0;
        let is_row = self.files >= FILES_MIN && self.read * 2 >= self.sizes;
        self.used > 0 && is_row && (is_over || ino.0 == self.first)
    }

    /// A row that begins with this read.
    fn begin(ino: Ino, read: &Read, used: u64) -> Row {
        let next = (ino.0.saturating_add(1), 0);
        let (first, size, read) = (ino.0, read.size, u64::from(read.len));
        Row { first, last: first, files: 1, size, read, used, next, ..Row::default() }
    }

    fn add(&mut self, ino: Ino, read: &Read, used: u64) {
        let begins = read.offset == 0;
        if ino.0 > self.last {
            self.judge(ino.0);
            (self.last, self.files, self.sizes) =
                (ino.0, self.files.saturating_add(1), self.sizes + self.size);
            self.size = read.size;
            self.next = self.next.max((ino.0.saturating_add(1), 0));
        } else if ino.0 < self.last && begins {
            // A reader that is behind, or no order at all.
            let late = self.skipped.take(|skipped| skipped == ino.0) as u32;
            self.right += late;
            self.wrong = self.wrong.saturating_sub(late);
            self.in_order = 0;
        }
        self.read += u64::from(read.len);
        self.used = used;
    }

    /// Compares what was wanted with the file that is begun, which has a higher number than all before.
    fn judge(&mut self, ino: u64) {
        let skipped = |told: u64| told < ino;
        self.told.files().iter().filter(|told| skipped(**told)).for_each(|told| self.skipped.push(*told));
        self.wrong += self.told.take(skipped) as u32;
        self.right += self.told.take(|told| told == ino) as u32;
        self.in_order = self.in_order.saturating_add(1);
        if self.is_wrong() && self.in_order >= IN_ORDER {
            (self.right, self.wrong, self.in_order) = (0, 0, 0);
            self.skipped = Announced::default();
        }
    }

    /// Whether readers skip most of the files of which blobs were wanted.
    fn is_wrong(&self) -> bool {
        self.wrong > 2 * self.right
    }

    /// How many more blobs of the next files are wanted after this read of the last file.
    fn wanted(&self, read: &Read) -> usize {
        let heads_only = self.read * 2 < self.sizes;
        let beyond = self.next.0.saturating_sub(self.last);
        if self.files < FILES_MIN || heads_only || beyond > LOOK_MOST || self.rests && beyond > LOOK_AGAIN {
            return 0;
        }
        let rest = read.size.saturating_sub(read.end()).div_ceil(PAGE);
        let blobs = ((self.read * TIMES).min(MOST) / PAGE).saturating_sub(rest) as usize;
        let most = match (self.right, self.wrong) {
            (0, 0) => TRIAL,
            _ if self.is_wrong() => 0,
            _ => blobs,
        };
        blobs.min(most).saturating_sub(self.told.len)
    }

    /// The request for these blobs. `at` is the row's index.
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
    /// Records a read of a file. A request is returned again and again until [`Files::told`] reports its
    /// result.
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
            // As if a page had been read: some blobs are wanted at once, and more as they are read.
            // The order is known, so there is no trial.
            *row = Row { files: FILES_MIN, read: new.read + PAGE, right: 1, ..new };
            return row.following(at, read);
        }
        if let Some(oldest) = self.rows.iter_mut().min_by_key(|row| row.used) {
            *oldest = new;
        }
        None
    }

    /// Records the result of a request, so that it is not made again.
    pub(super) fn told(&mut self, following: &Following, found: Found) {
        let row = &mut self.rows[following.row];
        if following.before < u64::MAX {
            row.round |= row.first == following.before;
            return;
        }
        // Another reader of the row was faster, or another row has replaced it.
        if row.next != (following.from.0.0, following.from.1) {
            return;
        }
        found.begin.iter().for_each(|ino| row.told.push(ino.0));
        row.next = OVER;
        if let Some((ino, page, blob)) = found.last {
            row.next = (ino.0, page.saturating_add(1));
            row.blob = blob;
        }
        row.rests = row.next.0.saturating_sub(row.last) > LOOK_MOST;
    }
}

#[cfg(test)]
mod tests;
