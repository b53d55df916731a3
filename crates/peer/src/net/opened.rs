//! Blobs of which small ranges were asked for lately: open, with what of them has been compared with their sums.
//!
//! To find a blob and open it is dearer than to send 4 KiB of it, and so is comparing: for any byte the whole segment of 32 KiB around it is
//! read. So a blob stays open for [`KEPT`], and a segment that was compared meanwhile is not compared again as long as its bytes are
//! in memory; what has to come from the disk again is.
//!
//! - Bounded: [`OPEN_MAX`] blobs, none for longer than [`KEPT`] and a tenth of it, then it is opened and compared anew. So a file that the cache removed takes
//!   room no longer than that; where the cache says that it went ([`super::Net::let_go`]), not even so long.
//! - What that gives up: a byte that rots on the disk within [`KEPT`] after it was compared is passed on, if meanwhile its page left
//!   memory and another reader brought it back.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::BlobId;
use base::size::{BLOB_MAX, SEGMENT};
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::socket;
use crate::seam::Held;

/// So long a blob stays open, and what was compared is believed.
pub(super) const KEPT: Duration = Duration::from_secs(10);
/// Each is a file descriptor, and some kilobytes of sums; half of the descriptors that a process has where nobody gave it more.
const OPEN_MAX: usize = 512;
/// Segments of a blob, a bit each.
const WORDS: usize = (BLOB_MAX / SEGMENT).div_ceil(64) as usize;

#[derive(Default)]
pub(super) struct Opened(Mutex<HashMap<BlobId, Arc<Open>>>);

/// One of them.
pub(super) struct Open {
    pub(super) held: Held,
    since: Instant,
    /// Segments that have been compared. Set after the comparison; no order with anything else is needed, the bytes are the file's.
    compared: [AtomicU64; WORDS],
}

impl Opened {
    /// The blob, if it is open.
    pub(super) fn get(&self, id: &BlobId) -> Option<Arc<Open>> {
        // How long it has been open [`Opened::tidy`] looks at: a clock read for each range would be dearer than all else here.
        self.0.lock().get(id).cloned()
    }

    /// Keeps it open for a while.
    pub(super) fn put(&self, id: BlobId, held: Held) -> Arc<Open> {
        let open = Arc::new(Open::new(held));
        let mut all = self.0.lock();
        if all.len() >= OPEN_MAX
            && let Some(other) = all.keys().next().copied()
        {
            // Any: who is asked for often is back at once.
            all.remove(&other);
        }
        all.insert(id, Arc::clone(&open));
        open
    }

    /// Lets go of one.
    pub(super) fn remove(&self, id: &BlobId) {
        self.0.lock().remove(id);
    }

    /// Lets go of what has had its time; for who calls it ten times in [`KEPT`].
    pub(super) fn tidy(&self) {
        self.0.lock().retain(|_, open| open.since.elapsed() < KEPT);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Open {
    pub(super) fn new(held: Held) -> Open {
        Open { held, since: base::time::monotonic(), compared: Default::default() }
    }

    fn bits(start: u32, end: u32) -> impl Iterator<Item = (usize, u64)> {
        (start / SEGMENT..end.div_ceil(SEGMENT)).map(|segment| (segment as usize / 64, 1 << (segment % 64)))
    }

    fn is_compared(&self, start: u32, end: u32) -> bool {
        let is = |word: usize| self.compared.get(word).map_or(0, |word| word.load(Ordering::Relaxed));
        Open::bits(start, end).all(|(word, bit)| is(word) & bit != 0)
    }

    fn set_compared(&self, start: u32, end: u32) {
        for (word, bit) in Open::bits(start, end) {
            if let Some(word) = self.compared.get(word) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Puts a range behind what is in `out`, if it can be had without waiting for a disk. False: it cannot, and `out` is as it was.
    ///
    /// # Errors
    /// The file cannot be read, or its bytes are not what they were; `out` is as it was then, too.
    pub(super) fn now(&self, start: u32, end: u32, out: &mut Vec<u8>) -> io::Result<bool> {
        let (held, at) = (&self.held, out.len());
        let known = self.is_compared(start, end);
        let (from, to) = if known { (start, end) } else { segments(held, start, end) };
        if !socket::append_now(&held.file, out, (to - from) as usize, held.offset + u64::from(from))? {
            return Ok(false);
        }
        if !known {
            if let Err(wrong) = held.sums.check(from, &out[at..]) {
                out.truncate(at);
                return Err(io::Error::other(wrong));
            }
            self.set_compared(from, to);
            let before = at + (start - from) as usize;
            out.copy_within(before..before + (end - start) as usize, at);
            out.truncate(at + (end - start) as usize);
        }
        Ok(true)
    }

    /// The same range, waiting for the disk; always compared.
    ///
    /// # Errors
    /// As [`Open::now`].
    pub(super) fn later(&self, start: u32, end: u32) -> io::Result<Vec<u8>> {
        let bytes = part(&self.held, start, end)?;
        self.set_compared(start, end);
        Ok(bytes)
    }
}

/// The whole segments around a range.
fn segments(held: &Held, start: u32, end: u32) -> (u32, u32) {
    (start - start % SEGMENT, end.next_multiple_of(SEGMENT).min(held.sums.size()))
}

/// Bytes of a blob's file, checked by the segments that they lie in.
///
/// # Errors
/// The file cannot be read, or its bytes are not what they were.
pub(super) fn part(held: &Held, start: u32, end: u32) -> io::Result<Vec<u8>> {
    let (from, to) = segments(held, start, end);
    let mut bytes = vec![0; (to - from) as usize];
    held.file.read_exact_at(&mut bytes, held.offset + u64::from(from))?;
    held.sums.check(from, &bytes).map_err(io::Error::other)?;
    bytes.truncate((end - from) as usize);
    bytes.drain(..(start - from) as usize);
    Ok(bytes)
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
                // None where the filesystem does not say what is in memory.
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
        // In the second segment, and not in what is asked for.
        (&*open.held.file).flush().unwrap();
        open.held.file.write_all_at(&[8], 40_000).unwrap();
        assert!(open.later(50_000, 50_001).is_err());
        assert!(
            now(&open, 50_000, 50_001).is_ok_and(|got| got.is_none()) || now(&open, 50_000, 50_001).is_err()
        );
        assert!(open.later(99_000, 100_000).is_ok());
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
