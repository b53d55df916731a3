//! Events that programs write into their ring buffer: `struct event` of `bpf/kernel.h`.

use std::os::fd::AsFd;
use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::WatchError;

/// Bytes of an event.
const SIZE: usize = 64;

/// Something that a program noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A chunk became hot.
    Hot {
        /// The inode, or the hash of the object's path.
        object: u64,
        /// Which MiB.
        chunk: u32,
        /// When, in nanoseconds of the kernel's monotonic clock.
        at: u64,
        /// The chunk's accesses so far.
        count: u64,
        /// The chunk's score in thousandths.
        score: u32,
    },
    /// A thread reads a file in order, and the page cache does not have what follows.
    Stream {
        /// The inode.
        object: u64,
        /// The MiB that it has reached.
        chunk: u32,
        /// How many before it were read in order.
        run: u64,
    },
    /// A process ended and had not synced files that it wrote.
    Unsynced {
        /// The process.
        pid: u32,
        /// The name of its program, at most 15 bytes.
        name: String,
        /// Files.
        files: u64,
        /// Pages of 4 KiB.
        pages: u64,
    },
}

/// Decodes an event. `None`: of a kind that this version does not know.
pub fn decode(bytes: &[u8]) -> Option<Event> {
    let bytes: &[u8; SIZE] = bytes.get(..SIZE)?.try_into().ok()?;
    let u32_at = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let u64_at = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let (kind, chunk, object, at) = (u32_at(0)?, u32_at(4)?, u64_at(8)?, u64_at(16)?);
    let (count, value, score, pid) = (u64_at(24)?, u64_at(32)?, u32_at(40)?, u32_at(44)?);
    match kind {
        1 => Some(Event::Hot { object, chunk, at, count, score }),
        4 => Some(Event::Stream { object, chunk, run: count }),
        3 => {
            let name = bytes.get(48..64)?;
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            let name = String::from_utf8_lossy(name.get(..end)?).into_owned();
            Some(Event::Unsynced { pid, name, files: count, pages: value })
        }
        _ => None,
    }
}

/// The ring buffer of an object.
pub struct Events(RingBuf<MapData>);

impl Events {
    /// From the object's map.
    ///
    /// # Errors
    /// It cannot be mapped into memory.
    pub fn new(map: aya::maps::Map) -> Result<Events, WatchError> {
        Ok(Events(RingBuf::try_from(map)?))
    }

    /// Waits until there may be an event, at most so long.
    ///
    /// # Errors
    /// poll(2) failed.
    pub fn wait(&self, time: Duration) -> Result<(), WatchError> {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        match poll(&mut [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(WatchError::Io(error.into())),
        }
    }

    /// Passes on the events that are there.
    pub fn drain(&mut self, each: &mut dyn FnMut(Event)) {
        while let Some(bytes) = self.0.next() {
            if let Some(event) = decode(&bytes) {
                each(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&kind.to_ne_bytes());
        out.extend_from_slice(&7_u32.to_ne_bytes());
        for word in [42_u64, 1_000, 3, 9] {
            out.extend_from_slice(&word.to_ne_bytes());
        }
        out.extend_from_slice(&2_500_u32.to_ne_bytes());
        out.extend_from_slice(&77_u32.to_ne_bytes());
        out.extend_from_slice(b"a program\0\0\0\0\0\0\0");
        out.resize(SIZE, 0);
        out
    }

    #[test]
    fn events_are_decoded_and_unknown_or_short_ones_left_out() {
        let hot = Event::Hot { object: 42, chunk: 7, at: 1_000, count: 3, score: 2_500 };
        assert_eq!(decode(&bytes(1)), Some(hot));
        let unsynced = Event::Unsynced { pid: 77, name: "a program".into(), files: 3, pages: 9 };
        assert_eq!(decode(&bytes(3)), Some(unsynced));
        assert_eq!(decode(&bytes(9)), None);
        for len in 0..SIZE {
            assert_eq!(decode(&bytes(1)[..len]), None);
        }
    }
}
