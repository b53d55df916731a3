//! Buffers whose data begins on a page boundary.
//!
//! The kernel copies between its pages and ours a page at a time; when both begin at a boundary it does so in half as
//! many steps. Untouched memory costs nothing: the allocator hands out zero pages that become real when written to.

use crate::abi::{MAX_WRITE, PAGE, WRITE_PREFIX};

/// A piece of memory that begins on a page boundary.
#[derive(Debug)]
pub struct PageBuf {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageBuf {
    /// `len` zero bytes.
    pub fn new(len: usize) -> PageBuf {
        let memory = vec![0; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE);
        PageBuf { memory, start, len }
    }

    /// Room for any reply's body.
    pub fn for_reply() -> PageBuf {
        PageBuf::new(MAX_WRITE + PAGE)
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Room for one request, placed so that the data of a WRITE begins on a page boundary.
#[derive(Debug)]
pub struct RequestBuf(PageBuf);

impl RequestBuf {
    /// Room for the largest request.
    #[allow(clippy::new_without_default)]
    pub fn new() -> RequestBuf {
        RequestBuf(PageBuf::new(PAGE + MAX_WRITE))
    }

    /// The room.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.0.bytes()[PAGE - WRITE_PREFIX..]
    }
}
