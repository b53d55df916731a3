//! The sums of open packs: a CRC32C of every range that was written, cut at segments of 32 KiB.
//!
//! A sealed blob has its sums beside it. An open pack has none yet, although its bytes are on a disk too. So
//! each write records its sums here, each read compares them, and sealing compares them before it names the
//! bytes by their hash. Adjacent ranges within a segment are joined. So a pack that is written from front to
//! back has one sum for each segment, and a small read checks at most a few of them.
//!
//! **After a crash** the sums are those in the file `sums` beside the packs. A sync appends the sums recorded
//! since the last sync, in the same step in which it makes the packs durable. Recovery of the log of names
//! adds the ranges that it proves anew ([`PackStore::prove`](blob::PackStore::prove)). So every range that a
//! name can refer to has its sum.
//!
//! ```text
//!   "covW"  magic            4 bytes
//!   version 1                u32, big-endian, as all numbers here
//!   zeros                    16 bytes
//!   for each range:
//!     pack                   u64
//!     offset, length         u32 each; within one segment
//!     CRC32C of the bytes    u32
//!     CRC32C of the above    u32
//! ```
//!
//! Records are only appended. A torn or damaged record is skipped. Its range is then read unchecked, as are
//! ranges that an older version wrote. Sums are never joined in the file, nor when they are loaded from it: a
//! power cut may keep a record and lose its bytes, and that must not invalidate the records beside it. An
//! older version joined them. So when recovery writes or proves a range, a loaded sum that overlaps it and
//! does not match is dropped.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::PackNo;
use base::size::SEGMENT;
use blob::sums::{Crc32c, crc32c, crc32c_join};
use parking_lot::Mutex;

const NAME: &str = "sums";
const NEW: &str = "sums.new";
const HEAD: [u8; RECORD] = *b"covW\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const RECORD: usize = 24;
/// At this many records, those of removed packs are taken out: once for every half gibibyte written.
const MANY: u64 = 16 << 10;

/// The sum of a range that lies within one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) crc: u32,
}

impl Piece {
    fn end(&self) -> u32 {
        self.offset + self.len
    }

    fn segment(&self) -> u32 {
        self.offset / SEGMENT
    }

    /// Whether the piece's bytes are correct. `bytes` begin at offset `start` and contain the whole piece.
    fn fits(&self, start: u32, bytes: &[u8]) -> bool {
        let from = (self.offset - start) as usize;
        crc32c(&bytes[from..from + self.len as usize]) == self.crc
    }
}

/// The pieces of bytes that lie at `offset`, and the CRC32C of all of them.
pub(super) fn pieces_of(offset: u32, bytes: &[u8]) -> (Vec<Piece>, u32) {
    let mut pieces = Vec::with_capacity(bytes.len() / SEGMENT as usize + 2);
    let (mut at, mut rest, mut all) = (offset, bytes, 0);
    while !rest.is_empty() {
        let len = ((SEGMENT - at % SEGMENT) as usize).min(rest.len());
        let (now, later) = rest.split_at(len);
        let crc = crc32c(now);
        all = crc32c_join(all, crc, len as u32);
        pieces.push(Piece { offset: at, len: len as u32, crc });
        (at, rest) = (at + len as u32, later);
    }
    (pieces, all)
}

/// The sums of one pack, ordered by offset. No two overlap.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces(Vec<Piece>);

impl Pieces {
    /// Adds a piece, unless it overlaps one that exists. `join`: merges it with adjacent pieces.
    fn add(&mut self, piece: Piece, join: bool) {
        let mut at = self.0.partition_point(|other| other.end() <= piece.offset);
        if self.0.get(at).is_some_and(|other| other.offset < piece.end()) {
            return;
        }
        self.0.insert(at, piece);
        if !join {
            return;
        }
        if at > 0 && self.join(at - 1) {
            at -= 1;
        }
        self.join(at);
    }

    /// Merges a piece with the next one, if they are adjacent and in one segment.
    fn join(&mut self, at: usize) -> bool {
        let (Some(first), Some(next)) = (self.0.get(at).copied(), self.0.get(at + 1).copied()) else {
            return false;
        };
        let joins = first.end() == next.offset && first.segment() == next.segment();
        if joins {
            let crc = crc32c_join(first.crc, next.crc, next.len);
            self.0[at] = Piece { len: first.len + next.len, crc, ..first };
            self.0.remove(at + 1);
        }
        joins
    }

    /// The pieces that overlap this range.
    fn around(&self, from: u32, to: u32) -> &[Piece] {
        let first = self.0.partition_point(|piece| piece.end() <= from);
        let count = self.0[first..].partition_point(|piece| piece.offset < to);
        &self.0[first..first + count]
    }

    /// The first piece that lies within these bytes and does not match them. The bytes begin at offset
    /// `start`.
    pub(super) fn wrong(&self, start: u32, bytes: &[u8]) -> Option<Piece> {
        let end = start + bytes.len() as u32;
        let inside = |piece: &&Piece| piece.offset >= start && piece.end() <= end;
        self.around(start, end).iter().filter(inside).find(|piece| !piece.fits(start, bytes)).copied()
    }
}

/// The sums of one pack, and those that are not in the file yet.
#[derive(Debug, Default)]
pub(super) struct PackSums {
    pieces: Pieces,
    unsaved: Pieces,
}

impl PackSums {
    /// The sums in the file, for a pack of `len` bytes. Drops those of bytes that a power cut took.
    pub(super) fn loaded(mut pieces: Pieces, len: u64) -> PackSums {
        pieces.0.retain(|piece| u64::from(piece.end()) <= len);
        PackSums { pieces, unsaved: Pieces::default() }
    }

    /// Records that these ranges now hold their bytes.
    pub(super) fn add(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            self.pieces.add(*piece, true);
            self.unsaved.add(*piece, false);
        }
    }

    /// The sums that overlap these, and are not among them.
    fn overlapping(&self, pieces: &[Piece]) -> Vec<Piece> {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Vec::new() };
        let around = self.pieces.around(first.offset, last.end()).iter();
        around.filter(|other| !pieces.contains(other)).copied().collect()
    }

    /// Takes the sums that must be saved to the file.
    pub(super) fn take_unsaved(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.unsaved.0)
    }

    /// Returns sums that could not be saved.
    pub(super) fn put_back(&mut self, pieces: &[Piece]) {
        pieces.iter().for_each(|piece| self.unsaved.add(*piece, false));
    }

    pub(super) fn all(&self) -> Pieces {
        self.pieces.clone()
    }
}

thread_local! {
    /// Buffers that a read needs beside its own.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[derive(Default)]
struct Scratch {
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
}

/// Reads a range of a pack's file and compares it with the sums.
///
/// # Errors
/// The outer one is the system's error. The inner one is the damaged piece.
pub(super) fn read(
    file: &File,
    sums: &Mutex<PackSums>,
    offset: u32,
    buf: &mut [u8],
) -> io::Result<Result<(), Piece>> {
    let end = offset + buf.len() as u32;
    SCRATCH.with_borrow_mut(|Scratch { pieces, bytes }| {
        pieces.clear();
        // A copy suffices: the bytes that these pieces cover are written and do not change, even if pieces
        // are joined meanwhile.
        pieces.extend_from_slice(sums.lock().pieces.around(offset, end));
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return file.read_exact_at(buf, u64::from(offset)).map(Ok);
        };
        let (start, stop) = (first.offset.min(offset), last.end().max(end));
        if (start, stop) == (offset, end) {
            file.read_exact_at(buf, u64::from(offset))?;
            return Ok(pieces
                .iter()
                .find(|piece| !piece.fits(start, buf))
                .map_or(Ok(()), |piece| Err(*piece)));
        }
        let (head, tail) = ((offset - start) as usize, (stop - end) as usize);
        if buf.len() <= SEGMENT as usize {
            bytes.resize((stop - start) as usize, 0);
            file.read_exact_at(bytes, u64::from(start))?;
            buf.copy_from_slice(&bytes[head..head + buf.len()]);
            return Ok(pieces
                .iter()
                .find(|piece| !piece.fits(start, bytes))
                .map_or(Ok(()), |piece| Err(*piece)));
        }
        bytes.resize(head + tail, 0);
        let (before, after) = bytes.split_at_mut(head);
        file.read_exact_at(before, u64::from(start))?;
        file.read_exact_at(buf, u64::from(offset))?;
        file.read_exact_at(after, u64::from(end))?;
        let parts = [(start, &*before), (offset, &*buf), (end, &*after)];
        Ok(pieces
            .iter()
            .find(|piece| crc_over(piece, parts) != piece.crc)
            .map_or(Ok(()), |piece| Err(*piece)))
    })
}

/// Records that these ranges of a pack's file now hold their bytes. Only recovery writes or proves a range
/// that has a sum already. If the old sum does not match, a power cut took some of its bytes.
pub(super) fn renew(file: &File, sums: &Mutex<PackSums>, pieces: &[Piece]) {
    let mut sums = sums.lock();
    for old in sums.overlapping(pieces) {
        let mut bytes = vec![0; old.len as usize];
        let read = file.read_exact_at(&mut bytes, u64::from(old.offset));
        if read.is_err() || !old.fits(old.offset, &bytes) {
            sums.pieces.0.retain(|piece| *piece != old);
        }
    }
    sums.add(pieces);
}

/// Prepares to cut a pack to `len` bytes: drops the sums of the bytes behind, and shortens the piece that
/// crosses the end.
///
/// # Errors
/// As [`read`].
pub(super) fn cut(file: &File, sums: &Mutex<PackSums>, len: u32) -> io::Result<Result<(), Piece>> {
    let mut sums = sums.lock();
    let sums = &mut *sums;
    let last =
        sums.pieces.around(len.saturating_sub(1), len).first().filter(|piece| piece.end() > len).copied();
    let shorter = match last {
        Some(piece) => {
            let mut bytes = vec![0; piece.len as usize];
            file.read_exact_at(&mut bytes, u64::from(piece.offset))?;
            if !piece.fits(piece.offset, &bytes) {
                return Ok(Err(piece));
            }
            let kept = len - piece.offset;
            Some(Piece { len: kept, crc: crc32c(&bytes[..kept as usize]), ..piece })
        }
        None => None,
    };
    for pieces in [&mut sums.pieces, &mut sums.unsaved] {
        pieces.0.retain(|piece| piece.end() <= len);
    }
    shorter.iter().for_each(|piece| sums.pieces.add(*piece, true));
    Ok(Ok(()))
}

/// The CRC32C of a piece whose bytes lie in several consecutive parts.
fn crc_over(piece: &Piece, parts: [(u32, &[u8]); 3]) -> u32 {
    let mut crc = Crc32c::new();
    for (start, bytes) in parts {
        let from = piece.offset.max(start);
        let to = piece.end().min(start + bytes.len() as u32);
        if from < to {
            crc.update(&bytes[(from - start) as usize..(to - start) as usize]);
        }
    }
    crc.finish()
}

/// The file of sums. See the [module](self).
pub(super) struct SumsFile {
    dir: PathBuf,
    /// The file, and the offset of its next record.
    state: Mutex<Option<(File, u64)>>,
}

impl SumsFile {
    pub(super) fn new(dir: &Path) -> SumsFile {
        SumsFile { dir: dir.to_owned(), state: Mutex::new(None) }
    }

    /// The sums in the file, by pack.
    pub(super) fn load(&self) -> io::Result<HashMap<PackNo, Pieces>> {
        let mut all: HashMap<PackNo, Pieces> = HashMap::new();
        for record in records(&self.dir.join(NAME))? {
            if let Some((pack, piece)) = decode(&record) {
                all.entry(pack).or_default().add(piece, false);
            }
        }
        Ok(all)
    }

    /// Appends records and makes them durable.
    pub(super) fn save(&self, batch: &[(PackNo, Vec<Piece>)]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (pack, pieces) in batch {
            pieces.iter().for_each(|piece| bytes.extend_from_slice(&encode(*pack, *piece)));
        }
        let mut state = self.state.lock();
        let (file, end) = match &mut *state {
            Some(open) => open,
            none => none.insert(self.open()?),
        };
        let written = file.write_all_at(&bytes, *end).and_then(|()| file.sync_data());
        match written {
            Ok(()) => *end += bytes.len() as u64,
            // Open it anew next time: the kernel may call pages clean that it could not write.
            Err(_) => *state = None,
        }
        written
    }

    fn open(&self) -> io::Result<(File, u64)> {
        let path = self.dir.join(NAME);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        let mut head = [0; RECORD];
        if file.read_exact_at(&mut head, 0).is_err() || head != HEAD {
            file.set_len(0)?;
            file.write_all_at(&HEAD, 0)?;
            File::open(&self.dir)?.sync_all()?;
        }
        let len = file.metadata()?.len();
        // A crash may have left a partial record.
        Ok((file, len - len % RECORD as u64))
    }

    /// Removes all records if no pack is open. Checks under the lock, so that a pack created meanwhile adds
    /// its records after this.
    pub(super) fn clear_if(&self, none_is_open: impl FnOnce() -> bool) -> io::Result<()> {
        let mut state = self.state.lock();
        if !none_is_open() || state.is_none() && !self.dir.join(NAME).exists() {
            return Ok(());
        }
        let (file, end) = match &mut *state {
            Some(open) => open,
            none => none.insert(self.open()?),
        };
        if *end > RECORD as u64 {
            file.set_len(RECORD as u64)?;
            *end = RECORD as u64;
        }
        Ok(())
    }

    /// Whether removing obsolete records is worthwhile.
    pub(super) fn is_long(&self) -> bool {
        self.state.lock().as_ref().is_some_and(|(_, end)| *end > MANY * RECORD as u64)
    }

    /// Rewrites the file with the records of those packs for which `is_open` is true.
    pub(super) fn shorten(&self, is_open: impl Fn(PackNo) -> bool) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut bytes = HEAD.to_vec();
        let kept = records(&self.dir.join(NAME))?;
        let kept = kept.iter().filter(|record| decode(record).is_some_and(|(pack, _)| is_open(pack)));
        kept.for_each(|record| bytes.extend_from_slice(record));
        let new = self.dir.join(NEW);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()?;
        fs::rename(&new, self.dir.join(NAME))?;
        *state = Some((file, bytes.len() as u64));
        File::open(&self.dir)?.sync_all()
    }
}

/// The records of a file of sums. Empty if the file is absent or of another version.
fn records(path: &Path) -> io::Result<Vec<[u8; RECORD]>> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes?,
    };
    let records = bytes.as_chunks::<RECORD>().0;
    Ok(if records.first() == Some(&HEAD) { records[1..].to_vec() } else { Vec::new() })
}

fn encode(pack: PackNo, piece: Piece) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    out[..8].copy_from_slice(&pack.0.to_be_bytes());
    for (to, word) in out[8..20].chunks_exact_mut(4).zip([piece.offset, piece.len, piece.crc]) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    let own = crc32c(&out[..20]);
    out[20..].copy_from_slice(&own.to_be_bytes());
    out
}

fn decode(record: &[u8; RECORD]) -> Option<(PackNo, Piece)> {
    let word = |at: usize| record[at..at + 4].try_into().map(u32::from_be_bytes).ok();
    let pack = record[..8].try_into().map(u64::from_be_bytes).ok()?;
    let piece = Piece { offset: word(8)?, len: word(12)?, crc: word(16)? };
    let within =
        piece.len > 0 && u64::from(piece.offset % SEGMENT) + u64::from(piece.len) <= u64::from(SEGMENT);
    (word(20)? == crc32c(&record[..20]) && within && piece.offset < base::size::BLOB_MAX)
        .then_some((PackNo(pack), piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_within_a_segment_and_in_any_order() {
        let bytes: Vec<u8> = (0..100_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        let mut sums = PackSums::default();
        for (from, to) in [(40_000, 70_000), (0, 10), (10, 40_000), (70_000, 100_000)] {
            let (pieces, all) = pieces_of(from, &bytes[from as usize..to as usize]);
            assert_eq!(all, crc32c(&bytes[from as usize..to as usize]));
            sums.add(&pieces);
        }
        let ends: Vec<u32> = sums.pieces.0.iter().map(Piece::end).collect();
        assert_eq!(ends, [SEGMENT, 2 * SEGMENT, 3 * SEGMENT, 100_000]);
        assert_eq!(sums.all().wrong(0, &bytes), None);
        let mut rotten = bytes.clone();
        rotten[50_000] ^= 1;
        assert_eq!(sums.all().wrong(0, &rotten).unwrap().offset, SEGMENT);
        // An existing sum is not replaced.
        sums.add(&pieces_of(49_000, &rotten[49_000..51_000]).0);
        assert_eq!(sums.all().wrong(0, &bytes), None);
    }

    #[test]
    fn the_file_says_what_was_saved_and_passes_over_what_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let file = SumsFile::new(dir.path());
        assert!(file.load().unwrap().is_empty());
        let piece = |n: u32| Piece { offset: n * 100, len: 100, crc: n };
        file.save(&[(PackNo(1), vec![piece(0), piece(1)]), (PackNo(2), vec![piece(7)])]).unwrap();
        file.save(&[(PackNo(1), vec![piece(2)])]).unwrap();
        let mut bytes = fs::read(dir.path().join(NAME)).unwrap();
        assert_eq!(bytes.len(), 5 * RECORD);
        bytes[2 * RECORD] ^= 1;
        bytes.extend_from_slice(b"torn");
        fs::write(dir.path().join(NAME), bytes).unwrap();
        let file = SumsFile::new(dir.path());
        file.save(&[(PackNo(3), vec![piece(9)])]).unwrap();
        let all = file.load().unwrap();
        assert_eq!(all[&PackNo(1)].0, [piece(0), piece(2)], "not joined");
        assert_eq!((&all[&PackNo(2)].0[..], &all[&PackNo(3)].0[..]), (&[piece(7)][..], &[piece(9)][..]));
        file.shorten(|pack| pack == PackNo(3)).unwrap();
        file.save(&[(PackNo(4), vec![piece(1)])]).unwrap();
        let mut left: Vec<PackNo> = file.load().unwrap().into_keys().collect();
        left.sort();
        assert_eq!(left, [PackNo(3), PackNo(4)]);
    }
}
