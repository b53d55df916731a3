//! What an archive or an image may ask for. Compressed data can stand for any amount: a megabyte of gzip for
//! a gigabyte, a megabyte of zstd for a terabyte.
//!
//! - **Bytes.** It may unpack to as much as is free where it goes, or to [`RATIO`] times its own size,
//!   whichever is more. Every byte counts that comes out of the decompression, also one that no file
//!   gets. Holes do not.
//! - **Members.** At most [`ENTRIES_MAX`]: each one is kept in memory until the end.
//! - **Depth.** At most [`DEPTH_MAX`](crate::read::DEPTH_MAX) names in a path. The reader checks that.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use api::error::{Failure, Result};
use api::text::{bytes, count};

use super::unpack::Bytes;

/// What an archive may unpack to, as a multiple of its own size. Text of programs has 10, and logs have 30.
pub const RATIO: u64 = 100;
/// The most members.
pub const ENTRIES_MAX: u64 = 10_000_000;

/// The bounds of one import. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Bounds(Arc<State>);

#[derive(Debug)]
struct State {
    /// The archive's name for people.
    name: String,
    free: u64,
    /// The bounds that the user gives.
    size: Option<u64>,
    entries_max: u64,
    packed: AtomicU64,
    unpacked: AtomicU64,
    entries: AtomicU64,
    refused: OnceLock<Failure>,
}

impl Bounds {
    /// So many bytes are `free` where everything goes. A user may give a bound of bytes, and one of entries.
    /// `name` is the archive's name for people.
    pub fn new(name: &str, free: u64, size: Option<u64>, entries: Option<u64>) -> Bounds {
        let name = name.to_owned();
        let entries_max = entries.unwrap_or(ENTRIES_MAX);
        let (packed, unpacked, entries) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let refused = OnceLock::new();
        Bounds(Arc::new(State { name, free, size, entries_max, packed, unpacked, entries, refused }))
    }

    /// Counts bytes of the archive itself: all of them if their number is known before, else as they are
    /// read.
    pub fn packed(&self, len: u64) {
        self.0.packed.fetch_add(len, Ordering::Relaxed);
    }

    /// Counts a member.
    ///
    /// # Errors
    /// There are too many.
    pub fn entry(&self) -> Result<()> {
        let most = self.0.entries_max;
        if self.0.entries.fetch_add(1, Ordering::Relaxed) < most {
            return Ok(());
        }
        Err(self.refuse(|| {
            Failure::new(
                "too-large",
                format!("{} has too many members: more than {}", self.0.name, count(most)),
            )
            .why("each of them takes memory until the import ends")
            .next("if you trust it, raise the bound: --max-entries NUMBER")
        }))
    }

    /// Asks whether so many bytes of a member may follow.
    ///
    /// # Errors
    /// They are too many.
    pub fn member(&self, len: u64) -> Result<()> {
        let unpacked = self.0.unpacked.load(Ordering::Relaxed);
        if unpacked.saturating_add(len) <= self.most() { Ok(()) } else { Err(self.too_large()) }
    }

    /// What was refused. The error of a reader says only that.
    pub fn refusal(&self) -> Option<Failure> {
        self.0.refused.get().cloned()
    }

    fn most(&self) -> u64 {
        let packed = self.0.packed.load(Ordering::Relaxed);
        self.0.size.unwrap_or_else(|| self.0.free.max(packed.saturating_mul(RATIO)))
    }

    fn too_large(&self) -> Failure {
        let most = self.most();
        self.refuse(|| {
            let failure =
                Failure::new("too-large", format!("{} unpacks to more than {}", self.0.name, bytes(most)));
            match self.0.size {
                Some(_) => failure.why("that is what --max-size allows"),
                None if most == self.0.free => {
                    failure.why(format!("that is what is free, and more than {RATIO} times its own size"))
                }
                None => failure.why(format!("that is {RATIO} times its own size, and more than is free")),
            }
            .next("if you trust it, raise the bound: --max-size BYTES")
        })
    }

    fn refuse(&self, failure: impl FnOnce() -> Failure) -> Failure {
        self.0.refused.get_or_init(failure).clone()
    }

    /// Returns a reader of the same bytes, which end with an error at the bound.
    pub(super) fn reader(&self, inner: Bytes) -> Bytes {
        Box::new(Bounded { inner, bounds: self.clone() })
    }
}

struct Bounded {
    inner: Bytes,
    bounds: Bounds,
}

impl Read for Bounded {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        let len = got as u64;
        let unpacked = self.bounds.0.unpacked.fetch_add(len, Ordering::Relaxed) + len;
        if unpacked > self.bounds.most() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, self.bounds.too_large().what));
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few kilobytes filled the disk, or kept the import busy for days.
    #[test]
    fn regression_bytes_end_at_the_bound() {
        let read = |bounds: &Bounds, len: u64| {
            io::copy(&mut bounds.reader(Box::new(io::repeat(0).take(len))), &mut io::sink()).ok()
        };
        let bounds = Bounds::new("x", 1 << 20, None, None);
        assert_eq!((read(&bounds, 1 << 20), bounds.refusal().is_none()), (Some(1 << 20), true));
        assert_eq!((read(&bounds, 1), bounds.refusal().unwrap().code.as_ref()), (None, "too-large"));
        // The archive itself may be larger than what is free.
        let bounds = Bounds::new("x", 1 << 20, None, None);
        bounds.packed(1 << 20);
        assert_eq!(read(&bounds, RATIO << 20), Some(RATIO << 20));
        assert_eq!(read(&bounds, 1), None);
        // A bound that the user gives takes the place of both.
        let bounds = Bounds::new("x", 1 << 20, Some(10), None);
        bounds.packed(1 << 20);
        assert!(bounds.member(10).is_ok() && bounds.refusal().is_none());
        assert!(bounds.member(11).unwrap_err().next[0].contains("--max-size"));
    }

    #[test]
    fn members_are_counted() {
        let bounds = Bounds::new("x", 0, None, Some(2));
        assert!(bounds.entry().is_ok() && bounds.clone().entry().is_ok());
        assert!(bounds.entry().unwrap_err().next[0].contains("--max-entries"));
    }
}
