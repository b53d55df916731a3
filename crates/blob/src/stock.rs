//! A pool of buffers for the bytes of one blob each.
//!
//! A remote stream needs 4 MiB for every blob. From the allocator, each buffer would consist of fresh pages,
//! which the kernel has to find, clear and take back. On a virtual machine that costs more than the copy into
//! them. So a few large [`Buffer`]s are kept for reuse, and [`tidy`] frees them when they are idle.
//!
//! A large buffer begins at a page boundary, and it consists of two large pages if the kernel has them. So it
//! can be written to a disk directly, bypassing the page cache (`folder::direct`), and the disk gets two
//! pieces of memory instead of a thousand.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base::size::BLOB_MAX;
use memmap2::{Advice, MmapMut};
use parking_lot::Mutex;

/// Smaller buffers come from the allocator.
const LEAST: usize = 1 << 20;
/// The size of a large buffer: a blob and what is stored with it.
const SIZE: usize = BLOB_MAX as usize + (16 << 10);
/// The address space to map: only a multiple of a large page is aligned to one.
const SPAN: usize = 6 << 20;
/// How many are kept: a dozen fetches over a fast line use about this many in turn.
const KEPT: usize = 16;

/// How many are kept on this machine.
static KEEP: AtomicUsize = AtomicUsize::new(KEPT);
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Nobody waits for this lock. In a process that was forked while another thread held it, it stays locked,
/// and buffers are then not reused.
static POOL: Mutex<Vec<MmapMut>> = Mutex::new(Vec::new());

/// Limits how many buffers are kept, for a machine with little memory. The usual number is the maximum.
pub fn keep_at_most(buffers: usize) {
    KEEP.store(buffers.min(KEPT), Ordering::Relaxed);
}

/// Bytes of a blob, like a vector: see the [module](self). Clones share the memory until one of them is
/// written to.
#[derive(Clone, Debug)]
pub struct Buffer {
    memory: Arc<Memory>,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    /// All of it is initialized.
    Heap(Vec<u8>),
    /// Zeros, or what an earlier buffer held. Taken out when it is dropped.
    Pages(Option<MmapMut>),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Heap(bytes) => bytes,
            Memory::Pages(pages) => pages.as_ref().map_or(&[], |pages| &pages[..SIZE]),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Heap(bytes) => bytes,
            Memory::Pages(pages) => pages.as_mut().map_or(&mut [], |pages| &mut pages[..SIZE]),
        }
    }
}

impl Buffer {
    /// An empty buffer with room for at least this many bytes.
    pub fn with_room(bytes: usize) -> Buffer {
        let memory = if (LEAST..=SIZE).contains(&bytes) { pages() } else { None };
        let memory = memory.map_or_else(|| Memory::Heap(vec![0; bytes]), |pages| Memory::Pages(Some(pages)));
        Buffer { memory: Arc::new(memory), len: 0 }
    }

    /// A buffer of this length with unspecified contents, to be overwritten.
    pub fn with_len(bytes: usize) -> Buffer {
        Buffer::with_room(bytes).of_len(bytes)
    }

    /// How many bytes there is room for.
    pub fn room(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Appends bytes. Beyond its room, the buffer moves to a larger one.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if end > self.room() {
            let mut larger = Buffer::with_room(end.max(2 * self.len));
            larger.extend_from_slice(self);
            *self = larger;
        }
        let at = self.len;
        self.memory_mut()[at..end].copy_from_slice(bytes);
        self.len = end;
    }

    /// Removes the first bytes.
    pub fn leave_out(&mut self, first: usize) {
        let first = first.min(self.len);
        let end = self.len;
        self.memory_mut().copy_within(first..end, 0);
        self.len -= first;
    }

    /// Returns this buffer with another length within its room. Bytes that were never written are
    /// unspecified.
    #[must_use]
    pub fn of_len(mut self, len: usize) -> Buffer {
        self.len = len.min(self.room());
        self
    }

    /// All of its room, whatever the length.
    pub fn whole_room(&mut self) -> &mut [u8] {
        self.memory_mut()
    }

    /// The memory, unshared.
    fn memory_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.memory).is_none() {
            let mut own = Buffer::with_room(self.room());
            if let Some(memory) = Arc::get_mut(&mut own.memory) {
                memory.bytes_mut()[..self.len].copy_from_slice(self);
            }
            self.memory = own.memory;
        }
        Arc::get_mut(&mut self.memory).map_or(&mut [], Memory::bytes_mut)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Memory::Pages(pages) = self else { return };
        if let Some(mut stock) = POOL.try_lock()
            && stock.len() < KEEP.load(Ordering::Relaxed)
        {
            stock.extend(pages.take());
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.bytes()[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.memory_mut()[..len]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for Buffer {
    fn from(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::with_room(bytes.len());
        buffer.extend_from_slice(bytes);
        buffer
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer { len: bytes.len(), memory: Arc::new(Memory::Heap(bytes)) }
    }
}

impl Default for Buffer {
    fn default() -> Buffer {
        Buffer::from(Vec::new())
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        **self == **other
    }
}

impl Eq for Buffer {}

impl PartialEq<[u8]> for Buffer {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<Vec<u8>> for Buffer {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}

/// Memory for a large buffer; none if the system has no more. Then the allocator reports that.
fn pages() -> Option<MmapMut> {
    TAKEN.store(true, Ordering::Relaxed);
    let kept = POOL.try_lock().and_then(|mut stock| stock.pop());
    kept.or_else(|| {
        let pages = MmapMut::map_anon(SPAN).ok()?;
        // The space after a blob is seldom written and needs no large page. A kernel without large pages
        // refuses, which does no harm.
        let _ = pages.advise_range(Advice::HugePage, 0, BLOB_MAX as usize);
        Some(pages)
    })
}

/// Frees the kept buffers if none was taken since the last call. Call it about once a second.
pub fn tidy() {
    if !TAKEN.swap(false, Ordering::Relaxed) {
        let all = POOL.try_lock().map(|mut stock| std::mem::take(&mut *stock));
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_buffers_are_reused_within_a_bound() {
        assert_eq!(Buffer::with_room(100).room(), 100);
        assert!(Buffer::with_room(SIZE + 1).room() > SIZE);
        let mut full: Vec<Buffer> = (0..KEPT + 5).map(|_| Buffer::with_room(3 << 20)).collect();
        full.iter_mut().for_each(|buffer| buffer.extend_from_slice(&[7]));
        assert!(full.iter().all(|buffer| buffer.as_ptr().align_offset(4096) == 0));
        drop(full);
        assert_eq!(POOL.lock().len(), KEPT);
        let again = Buffer::with_room(LEAST);
        assert!(again.is_empty() && again.room() == SIZE);
        drop(again);
        tidy();
        assert_eq!(POOL.lock().len(), KEPT, "one was taken a moment ago, so the others are kept");
        tidy();
        assert!(POOL.lock().is_empty());
    }

    #[test]
    fn a_buffer_behaves_like_a_vector() {
        for len in [0, 1, 70_000, LEAST, SIZE - 3] {
            let bytes: Vec<u8> = (0..len).map(|n| ((n * 31) >> 3) as u8).collect();
            let mut buffer = Buffer::with_room(len);
            bytes.chunks(50_000).for_each(|piece| buffer.extend_from_slice(piece));
            let same = Buffer::from(bytes.clone());
            assert!(buffer == bytes && buffer.clone() == bytes && same == buffer);
            buffer.extend_from_slice(b"and more than there was room for");
            assert!(buffer[..len] == bytes[..] && buffer.ends_with(b"was room for"));
            buffer.leave_out(len);
            assert!(buffer == *b"and more than there was room for".as_slice());
            buffer.leave_out(1 << 30);
            assert!(buffer.is_empty());
        }
        let mut four = Buffer::with_len(4);
        four.copy_from_slice(b"four");
        let (shared, mut other) = (four.clone(), four.clone());
        other[0] = b'p';
        other.extend_from_slice(b"ed");
        assert!(shared.as_ptr() == four.as_ptr() && shared == four, "the shared buffer should not be copied");
        assert!(four == *b"four".as_slice() && other == *b"poured".as_slice());
        assert!(four.of_len(2) == *b"fo".as_slice());
    }
}
