//! A slice of a body: where it ends, and the header that goes before it.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use base::size::SEGMENT;
use blob::Sums;
use blob::sums::crc32c;

use super::Shared;
use super::service::Content;
use crate::frame::{Header, LAST, SLICE, Type};
use crate::seam::Held;

/// A slice whose header has been made.
pub(super) struct Slice {
    /// The header, and bytes of the body that cannot be sent from where they are.
    pub(super) head: Vec<u8>,
    /// How much of that has been sent.
    pub(super) sent: usize,
    /// The rest of the body, within the content.
    pub(super) from: u32,
    pub(super) end: u32,
}

impl Slice {
    /// The slice of these bytes of the answer to a request. `last`: the answer ends with it.
    ///
    /// # Errors
    /// Bytes that it needs cannot be read, or are damaged.
    pub(super) fn begin(
        shared: &Shared,
        request: u32,
        content: &Content,
        sums: &Sums,
        bytes: Range<u32>,
        last: bool,
    ) -> io::Result<Slice> {
        let Range { start: at, end: stop } = bytes;
        let (mut from, mut copied, mut head) = (at, Vec::new(), Vec::new());
        let crc = match sums.crc_of(at, stop) {
            Some(crc) => crc,
            None if stop == at => 0,
            None => {
                copied = part_of(content, at, stop)?;
                from = stop;
                crc32c(&copied)
            }
        };
        let flags = if last { LAST } else { 0 };
        let (offset, length, total, backlog) = (at, stop - at, sums.size(), shared.backlog());
        let header =
            Header { flags, backlog, offset, length, crc, total, ..Header::bare(Type::Data, request) };
        head.extend_from_slice(&header.encode());
        head.extend_from_slice(&copied);
        Ok(Slice { head, sent: 0, from, end: stop })
    }
}

/// The end of the slice that begins at `at`. A slice consists of whole segments if possible. The incomplete
/// segments at the ends of a range are slices of their own.
pub(super) fn slice_end(at: u32, end: u32) -> u32 {
    let next =
        if at.is_multiple_of(SEGMENT) { at.saturating_add(SLICE) } else { at.next_multiple_of(SEGMENT) };
    if next <= end {
        return next;
    }
    let whole = end - end % SEGMENT;
    if at.is_multiple_of(SEGMENT) && whole > at { whole } else { end }
}

/// Bytes of a blob, verified.
fn part_of(content: &Content, start: u32, end: u32) -> io::Result<Vec<u8>> {
    match content {
        Content::Held(held) => part(held, start, end),
        Content::Arriving(arriving) => arriving
            .bytes(start..end)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| io::Error::other("it is not here yet")),
    }
}

/// Bytes of a blob's file, verified by the whole segments around them.
///
/// # Errors
/// The file cannot be read, or its bytes are damaged.
fn part(held: &Held, start: u32, end: u32) -> io::Result<Vec<u8>> {
    let (from, to) = (start - start % SEGMENT, end.next_multiple_of(SEGMENT).min(held.sums.size()));
    let mut bytes = vec![0; (to - from) as usize];
    held.file.read_exact_at(&mut bytes, held.offset + u64::from(from))?;
    held.sums.check(from, &bytes).map_err(io::Error::other)?;
    bytes.truncate((end - from) as usize);
    bytes.drain(..(start - from) as usize);
    Ok(bytes)
}
