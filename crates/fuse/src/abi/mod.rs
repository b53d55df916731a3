//! The bytes that cross /dev/fuse: a small part of protocol 7, minor 36 to 45, all of it checked.
//!
//! A request is a 40-byte header and arguments. A reply is a 16-byte header and a body. Nothing here is cast
//! onto a struct: [`Take`] reads a request step by step, and [`Put`] fills a reply. Each step checks its
//! bounds. So a truncated or hostile message, such as one from a guest, leads to an error number and never to
//! a panic. Numbers are in the machine's byte order, as the kernel writes them.
//!
//! - [`header`]: both headers, and the notification codes.
//! - [`init`]: what INIT asks for, and what it never asks for.
//! - [`opcodes`]: every opcode and what this transport does with it. The table in SEMANTICS.md is made from
//!   it.
//! - [`ops`]: the arguments of each operation.
//! - [`out`]: the bodies of replies.

pub mod header;
pub mod init;
pub mod opcodes;
pub mod ops;
pub mod out;

#[cfg(test)]
mod tests;

use fs::Errno;

/// The unit in which the kernel counts request sizes, in bytes.
pub const PAGE: usize = 4096;
/// The largest WRITE and READ, in bytes: 256 pages, the most that an untuned kernel allows.
pub const MAX_WRITE: usize = 256 * PAGE;
/// Length of a request's header and of a WRITE's arguments before its data, in bytes.
pub const WRITE_PREFIX: usize = header::IN_HEADER + 40;

/// A request ended before its arguments did.
const TRUNCATED: Errno = Errno::EIO;

/// Reads the arguments of a request step by step.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Take<'a> {
        Take(bytes)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// `EIO` if fewer are left. The same holds for all steps below.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(TRUNCATED)?;
        self.0 = tail;
        Ok(*head)
    }

    /// The next 16-bit number.
    pub fn u16(&mut self) -> Result<u16, Errno> {
        self.array().map(u16::from_ne_bytes)
    }

    /// The next 32-bit number.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The next 64-bit number.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Skips `count` bytes.
    pub fn skip(&mut self, count: usize) -> Result<(), Errno> {
        self.bytes(count).map(drop)
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Errno> {
        if count > self.0.len() {
            return Err(TRUNCATED);
        }
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        Ok(head)
    }

    /// The bytes up to the next NUL, without the NUL.
    pub fn text(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(TRUNCATED)?;
        let text = self.bytes(end)?;
        self.skip(1)?;
        Ok(text)
    }

    /// A name in a directory: text that is not empty and holds no slash.
    ///
    /// # Errors
    /// `EIO` if it is truncated, `EINVAL` if it is not a name.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.text()?;
        if name.is_empty() || name.contains(&b'/') {
            return Err(Errno::EINVAL);
        }
        Ok(name)
    }
}

/// Fills the body of a reply from its start.
#[derive(Debug)]
pub struct Put<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Put<'a> {
    /// An empty body in this buffer.
    pub fn new(room: &'a mut [u8]) -> Put<'a> {
        Put { room, len: 0 }
    }

    /// Bytes put so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was put.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit.
    pub fn left(&self) -> usize {
        self.room.len() - self.len
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// `EIO` if they do not fit. The same holds for all steps below.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let end = self.len + bytes.len();
        let place = self.room.get_mut(self.len..end).ok_or(Errno::EIO)?;
        place.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    /// Appends a 16-bit number.
    pub fn u16(&mut self, value: u16) -> Result<(), Errno> {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends a 32-bit number.
    pub fn u32(&mut self, value: u32) -> Result<(), Errno> {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends a 64-bit number.
    pub fn u64(&mut self, value: u64) -> Result<(), Errno> {
        self.bytes(&value.to_ne_bytes())
    }

    /// Appends zero bytes.
    pub fn zeros(&mut self, count: usize) -> Result<(), Errno> {
        let end = self.len + count;
        let place = self.room.get_mut(self.len..end).ok_or(Errno::EIO)?;
        place.fill(0);
        self.len = end;
        Ok(())
    }

    /// The space for the next `count` bytes, or as much as is left. [`Put::advance`] keeps what was written
    /// there.
    pub fn room(&mut self, count: usize) -> &mut [u8] {
        let end = self.len + count.min(self.left());
        &mut self.room[self.len..end]
    }

    /// Counts `count` bytes of [`Put::room`] as put.
    pub fn advance(&mut self, count: usize) -> Result<(), Errno> {
        if count > self.left() {
            return Err(Errno::EIO);
        }
        self.len += count;
        Ok(())
    }
}
