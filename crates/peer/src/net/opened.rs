//! Open blobs from which small ranges were requested recently, and which of their segments have been compared
//! with their sums.
//!
//! Finding and opening a blob costs more than sending 4 KiB of it. So does comparing: for any byte the whole
//! segment of 32 KiB around it is read. So a blob stays open for [`KEPT`], and a segment that was compared in
//! that time is not compared again while its bytes are in memory. What must come from the disk again is
//! compared again.
//!
//! A blob that is requested again is mapped as well, and the sums of its blocks of 4 KiB are then known.
//! Whole blocks are lent ([`Lent`]) to the connection: the kernel copies them from the mapping into the
//! socket, and this process reads neither the bytes nor their sum. This process never reads a mapping itself:
//! a disk error or a truncated file would be a signal there. In the system call that sends, it is an error.
//!
//! ```text
//!   copied: file ──preadv2, compared──► out ──send──► socket   first range of a segment, parts of blocks
//!   lent:   file ──────────────sendmsg──────────────► socket   whole blocks of a compared segment
//! ```
//!
//! - The thread that answers ranges must not wait for a disk. A page that left memory within [`KEPT`] would
//!   have to come from there, but that happens only if memory is very short. After one such case nothing is
//!   lent for [`KEPT`] ([`Opened::lends`]). Ranges are copied instead if they are in memory.
//! - It is bounded: [`OPEN_MAX`] blobs, and none for longer than [`KEPT`] plus a tenth of it. Then the blob
//!   is opened and compared anew. So a file that the cache removed takes space no longer than that, or less
//!   if the cache reports the eviction ([`super::Net::close_file`]).
//! - The price: suppose that a byte rots on the disk within [`KEPT`] after it was compared, that its page
//!   left memory, and that another process read it back. If it is then copied, it is passed on. What is lent
//!   is sent with its earlier sum, so the receiver notices.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::BlobId;
use base::size::{BLOB_MAX, SEGMENT};
use blob::sums::{Mismatch, crc32c, crc32c_join};
use hashbrown::HashMap;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;

use super::socket;
use crate::seam::Held;

/// How long a blob stays open and its comparisons are trusted.
pub(super) const KEPT: Duration = Duration::from_secs(10);
/// Each takes a file descriptor and some kilobytes of sums. It is half of the default limit of descriptors of
/// a process.
const OPEN_MAX: usize = 512;
/// One bit for each segment of a blob.
const WORDS: usize = (BLOB_MAX / SEGMENT).div_ceil(64) as usize;
/// The size of blocks that are lent: a page, which is what a mount requests.
const BLOCK: u32 = 4 << 10;
/// How many times [`Opened::tidy`] is called within [`KEPT`].
const TIDIED: u8 = 10;

#[derive(Default)]
pub(super) struct Opened {
    all: Mutex<HashMap<BlobId, Arc<Open>>>,
    /// How many calls of [`Opened::tidy`] remain until ranges are lent again.
    short: AtomicU8,
}

/// An open blob.
pub(super) struct Open {
    pub(super) held: Held,
    since: Instant,
    /// Segments that have been compared. Set after the comparison. No ordering with other data is needed: the
    /// bytes are the file's.
    compared: [AtomicU64; WORDS],
    /// CRC32C of the blocks of these segments. Written before the segment's bit is set, and always with the
    /// same value.
    blocks: OnceLock<Box<[AtomicU32]>>,
    /// None: it cannot be mapped.
    mapped: OnceLock<Option<MmapRaw>>,
}

/// Whole blocks of a blob that are sent from where they are.
pub(super) struct Lent {
    open: Arc<Open>,
    from: u32,
    end: u32,
    /// The CRC of all of it.
    pub(super) crc: u32,
}

impl Opened {
    /// The blob, if it is open.
    pub(super) fn get(&self, id: &BlobId) -> Option<Arc<Open>> {
        // [`Opened::tidy`] checks its age. Reading the clock for each range would cost more than all else
        // here.
        self.all.lock().get(id).cloned()
    }

    /// Keeps it open for a while.
    pub(super) fn put(&self, id: BlobId, held: Held) -> Arc<Open> {
        let open = Arc::new(Open::new(held));
        let mut all = self.all.lock();
        if all.len() >= OPEN_MAX
            && let Some(other) = all.keys().next().copied()
        {
            // Any one: a blob that is requested often is soon back.
            all.remove(&other);
        }
        all.insert(id, Arc::clone(&open));
        open
    }

    /// Closes one.
    pub(super) fn remove(&self, id: &BlobId) {
        self.all.lock().remove(id);
    }

    /// Whether ranges may be lent.
    pub(super) fn lends(&self) -> bool {
        self.short.load(Ordering::Relaxed) == 0
    }

    /// A lent range had to come from the disk. This must not happen again for a while.
    pub(super) fn is_short(&self) {
        self.short.store(TIDIED, Ordering::Relaxed);
    }

    /// Closes the blobs whose time is over. To be called ten times within [`KEPT`].
    pub(super) fn tidy(&self) {
        let _ = self.short.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        self.all.lock().retain(|_, open| open.since.elapsed() < KEPT);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.all.lock().len()
    }
}

impl Open {
    pub(super) fn new(held: Held) -> Open {
        Open {
            held,
            since: base::time::monotonic(),
            compared: Default::default(),
            blocks: OnceLock::new(),
            mapped: OnceLock::new(),
        }
    }

    fn bits(start: u32, end: u32) -> impl Iterator<Item = (usize, u64)> {
        (start / SEGMENT..end.div_ceil(SEGMENT)).map(|segment| (segment as usize / 64, 1 << (segment % 64)))
    }

    fn is_compared(&self, start: u32, end: u32) -> bool {
        let is = |word: usize| self.compared.get(word).map_or(0, |word| word.load(Ordering::Acquire));
        Open::bits(start, end).all(|(word, bit)| is(word) & bit != 0)
    }

    /// Compares whole segments, and keeps the sums of their blocks.
    fn compare(&self, from: u32, bytes: &[u8]) -> io::Result<()> {
        let size = self.held.sums.size();
        let blocks =
            self.blocks.get_or_init(|| (0..size.div_ceil(BLOCK)).map(|_| AtomicU32::new(0)).collect());
        for (offset, bytes) in (from..).step_by(SEGMENT as usize).zip(bytes.chunks(SEGMENT as usize)) {
            let mut sums = [0; (SEGMENT / BLOCK) as usize];
            let mut whole = 0;
            for (sum, block) in sums.iter_mut().zip(bytes.chunks(BLOCK as usize)) {
                *sum = crc32c(block);
                whole = crc32c_join(whole, *sum, block.len() as u32);
            }
            if self.held.sums.segments().get((offset / SEGMENT) as usize) != Some(&whole) {
                return Err(io::Error::other(Mismatch::Segment { offset, len: bytes.len() as u32 }));
            }
            let first = (offset / BLOCK) as usize;
            blocks.iter().skip(first).zip(sums).for_each(|(block, sum)| block.store(sum, Ordering::Relaxed));
            for (word, bit) in Open::bits(offset, offset + 1) {
                if let Some(word) = self.compared.get(word) {
                    word.fetch_or(bit, Ordering::Release);
                }
            }
        }
        Ok(())
    }

    /// The range, to be sent from where it is. None: it does not consist of whole blocks, was not compared,
    /// or cannot be mapped.
    pub(super) fn lend(self: &Arc<Self>, start: u32, end: u32) -> Option<Lent> {
        let size = self.held.sums.size();
        let whole = start.is_multiple_of(BLOCK) && (end.is_multiple_of(BLOCK) || end == size);
        if !whole || end > size || !self.is_compared(start, end) {
            return None;
        }
        self.map()?;
        let blocks = self.blocks.get()?.get((start / BLOCK) as usize..end.div_ceil(BLOCK) as usize)?;
        let lens = (start..end).step_by(BLOCK as usize).map(|at| BLOCK.min(end - at));
        let sums = blocks.iter().map(|block| block.load(Ordering::Relaxed));
        let crc = sums.zip(lens).fold(0, |crc, (next, len)| crc32c_join(crc, next, len));
        Some(Lent { open: Arc::clone(self), from: start, end, crc })
    }

    fn map(&self) -> Option<&MmapRaw> {
        let Held { file, offset, sums } = &self.held;
        let map = || MmapOptions::new().offset(*offset).len(sums.size() as usize).map_raw_read_only(&**file);
        self.mapped.get_or_init(|| map().ok()).as_ref()
    }

    /// Appends a range to `out` if that needs no disk. False: it would, and `out` is unchanged.
    ///
    /// # Errors
    /// The file cannot be read, or its bytes are damaged. `out` is unchanged then, too.
    pub(super) fn now(&self, start: u32, end: u32, out: &mut Vec<u8>) -> io::Result<bool> {
        let (held, at) = (&self.held, out.len());
        let known = self.is_compared(start, end);
        let (from, to) = if known { (start, end) } else { segments(held, start, end) };
        if !socket::append_now(&held.file, out, (to - from) as usize, held.offset + u64::from(from))? {
            return Ok(false);
        }
        if !known {
            if let Err(wrong) = self.compare(from, &out[at..]) {
                out.truncate(at);
                return Err(wrong);
            }
            let before = at + (start - from) as usize;
            out.copy_within(before..before + (end - start) as usize, at);
            out.truncate(at + (end - start) as usize);
        }
        Ok(true)
    }

    /// The same range, read from the disk if necessary, and always compared.
    ///
    /// # Errors
    /// As [`Open::now`].
    pub(super) fn later(&self, start: u32, end: u32) -> io::Result<Vec<u8>> {
        let (from, mut bytes) = whole(&self.held, start, end)?;
        self.compare(from, &bytes)?;
        cut(&mut bytes, (start - from, end - from));
        Ok(bytes)
    }
}

impl Lent {
    /// How many bytes are left.
    pub(super) fn len(&self) -> usize {
        (self.end - self.from) as usize
    }

    /// The blob they belong to.
    pub(super) fn blob(&self) -> BlobId {
        self.open.held.sums.id()
    }

    /// Counts sent bytes.
    pub(super) fn advance(&mut self, gone: usize) {
        self.from = self.end.min(self.from.saturating_add(u32::try_from(gone).unwrap_or(u32::MAX)));
    }

    /// Where the bytes are. Only the kernel may read them, and only while this exists: see the
    /// [module](self).
    pub(super) fn place(&self) -> libc::iovec {
        let at = self.open.mapped.get().and_then(Option::as_ref);
        let at = at.map_or(std::ptr::null(), |mapped| mapped.as_ptr().wrapping_add(self.from as usize));
        libc::iovec { iov_base: at.cast_mut().cast(), iov_len: self.len() }
    }
}

/// The whole segments around a range.
fn segments(held: &Held, start: u32, end: u32) -> (u32, u32) {
    (start - start % SEGMENT, end.next_multiple_of(SEGMENT).min(held.sums.size()))
}

/// Bytes of a blob's file, verified by the segments around them.
///
/// # Errors
/// The file cannot be read, or its bytes are damaged.
pub(super) fn part(held: &Held, start: u32, end: u32) -> io::Result<Vec<u8>> {
    let (from, mut bytes) = whole(held, start, end)?;
    held.sums.check(from, &bytes).map_err(io::Error::other)?;
    cut(&mut bytes, (start - from, end - from));
    Ok(bytes)
}

/// The segments around a range, and where they begin. Not compared.
fn whole(held: &Held, start: u32, end: u32) -> io::Result<(u32, Vec<u8>)> {
    let (from, to) = segments(held, start, end);
    let mut bytes = vec![0; (to - from) as usize];
    held.file.read_exact_at(&mut bytes, held.offset + u64::from(from))?;
    Ok((from, bytes))
}

fn cut(bytes: &mut Vec<u8>, (start, end): (u32, u32)) {
    bytes.truncate(end as usize);
    bytes.drain(..start as usize);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use blob::Sums;

    use super::*;

    fn open(bytes: &[u8]) -> Open {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Open::new(Held { file: Arc::new(file), offset: 0, sums: Arc::new(Sums::of(bytes)) })
    }

    fn now(open: &Open, start: u32, end: u32) -> io::Result<Option<Vec<u8>>> {
        let mut out = b"before".to_vec();
        let got = open.now(start, end, &mut out)?;
        let bytes = out.split_off(6);
        assert!(out == b"before" && (got || bytes.is_empty()));
        Ok(got.then_some(bytes))
    }

    #[test]
    fn ranges_are_right_the_first_time_and_later() {
        let bytes: Vec<u8> = (0..BLOB_MAX).map(|n| (n / 7) as u8).collect();
        let open = open(&bytes);
        let last = BLOB_MAX;
        for (start, end) in [(0, 1), (5, 4096), (32_767, 32_769), (60_000, 120_000), (last - 3, last)] {
            let right = &bytes[start as usize..end as usize];
            assert!(!open.is_compared(start, end) || start < 4096);
            assert_eq!(open.later(start, end).unwrap(), right);
            for _ in 0..2 {
                // None if the filesystem does not say what is in memory.
                assert!(now(&open, start, end).unwrap().is_none_or(|got| got == right), "{start}..{end}");
            }
            assert!(open.is_compared(start, end));
        }
        assert!(!open.is_compared(200_000, 200_001) && !open.is_compared(100_000, 200_000));
    }

    #[test]
    fn what_was_not_compared_is_compared_whole() {
        let bytes = vec![7; 100_000];
        let open = open(&bytes);
        open.later(0, 10).unwrap();
        // In the second segment, but not in the requested range.
        (&*open.held.file).flush().unwrap();
        open.held.file.write_all_at(&[8], 40_000).unwrap();
        assert!(open.later(50_000, 50_001).is_err());
        assert!(
            now(&open, 50_000, 50_001).is_ok_and(|got| got.is_none()) || now(&open, 50_000, 50_001).is_err()
        );
        assert!(open.later(99_000, 100_000).is_ok());
    }

    #[test]
    fn what_is_lent_is_of_whole_blocks_that_were_compared() {
        let bytes = vec![7; 100_000];
        let open = Arc::new(open(&bytes));
        assert!(open.lend(0, 4096).is_none(), "not compared");
        open.later(0, 10).unwrap();
        open.later(99_000, 100_000).unwrap();
        assert_eq!(
            open.lend(4096, 12_288).map(|lent| (lent.len(), lent.crc)),
            Some((8192, crc32c(&[7; 8192])))
        );
        assert_eq!(open.lend(98_304, 100_000).map(|lent| lent.crc), Some(crc32c(&[7; 1696])));
        for (start, end) in [(0, 4095), (1, 4096), (28_672, 36_864), (32_768, 36_864), (98_304, 102_400)] {
            assert!(open.lend(start, end).is_none(), "{start}..{end}");
        }
    }

    #[test]
    fn nothing_is_lent_for_a_while_once_it_was_not_in_memory() {
        let opened = Opened::default();
        assert!(opened.lends());
        opened.is_short();
        for _ in 0..TIDIED {
            assert!(!opened.lends());
            opened.tidy();
        }
        assert!(opened.lends());
    }

    #[test]
    fn only_so_many_are_open_and_none_that_went() {
        let opened = Opened::default();
        let held = open(b"abc").held;
        for n in 0..OPEN_MAX as u32 + 50 {
            let mut id = BlobId([0; 32]);
            id.0[..4].copy_from_slice(&n.to_le_bytes());
            opened.put(id, held.clone());
            assert!(opened.get(&id).is_some());
            if n % 2 == 0 {
                opened.remove(&id);
                assert!(opened.get(&id).is_none());
            }
        }
        assert!(opened.len() <= OPEN_MAX);
        opened.tidy();
        assert!(opened.len() > 0, "none of them had its time");
    }
}
