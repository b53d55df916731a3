//! Buffers whose data begins on a page boundary.
//!
//! The kernel copies between its pages and ours a page at a time. If both begin at a boundary, it needs half
//! as many steps. Untouched memory costs nothing: the allocator hands out zero pages, which take memory only
//! once they are written to.

use crate::abi::{MAX_WRITE, PAGE, WRITE_PREFIX};

/// A buffer that begins on a page boundary.
#[derive(Debug)]
pub struct PageBuf {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageBuf {
    /// A buffer of `len` zero bytes.
    pub fn new(len: usize) -> PageBuf {
        let memory = vec![0; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        PageBuf { memory, start, len }
    }

    /// A buffer for the body of any reply.
    pub fn for_reply() -> PageBuf {
        PageBuf::new(MAX_WRITE + PAGE)
    }

    /// The whole buffer.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// A buffer for one request, placed so that the data of a WRITE begins on a page boundary.
#[derive(Debug)]
pub struct RequestBuf(PageBuf);

impl RequestBuf {
    /// A buffer for the largest request.
    #[allow(clippy::new_without_default)]
    pub fn new() -> RequestBuf {
        RequestBuf(PageBuf::new(PAGE + MAX_WRITE))
    }

    /// The whole buffer.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0.bytes()[PAGE - WRITE_PREFIX..]
    }
}
