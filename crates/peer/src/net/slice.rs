//! A slice of a body: where it ends, and the header that goes before it.

use std::io;

use base::size::SEGMENT;
use blob::Sums;
use blob::sums::crc32c;

use super::opened::part;
use super::service::Content;
use super::{Body, Shared};
use crate::frame::{Header, LAST, SLICE, Type};

/// A slice whose header has been made.
pub(super) struct Slice {
    /// The header, and what of the body does not leave from where it lies.
    pub(super) head: Vec<u8>,
    /// So much of that has gone.
    pub(super) sent: usize,
    /// What is left of the body in the content.
    pub(super) from: u32,
    pub(super) end: u32,
}

impl Slice {
    /// The slice from `at` to `stop` of an answer that goes to `end`.
    ///
    /// # Errors
    /// What has to be read for it cannot be, or is not what it was.
    pub(super) fn begin(
        shared: &Shared,
        (request, content): (u32, &Content),
        sums: &Sums,
        (at, stop, end): (u32, u32, u32),
    ) -> io::Result<Slice> {
        let merged = if shared.without.merging { None } else { sums.crc_of(at, stop) };
        let (mut from, mut copied, mut head) = (at, Vec::new(), Vec::new());
        let crc = match merged {
            Some(crc) => crc,
            None if stop == at => 0,
            None => {
                copied = part_of(content, at, stop)?;
                from = stop;
                crc32c(&copied)
            }
        };
        let flags = if stop == end { LAST } else { 0 };
        let (offset, length, total, backlog) = (at, stop - at, sums.size(), shared.backlog());
        let header =
            Header { flags, backlog, offset, length, crc, total, ..Header::bare(Type::Data, request) };
        head.extend_from_slice(&header.encode());
        if shared.without.body == Body::Copy && from < stop {
            copied = part_of(content, from, stop)?;
            from = stop;
        }
        head.extend_from_slice(&copied);
        Ok(Slice { head, sent: 0, from, end: stop })
    }
}

/// A slice is of whole segments where it can be; the ends of a range that are not go by themselves.
pub(super) fn slice_end(at: u32, end: u32) -> u32 {
    let next =
        if at.is_multiple_of(SEGMENT) { at.saturating_add(SLICE) } else { at.next_multiple_of(SEGMENT) };
    if next <= end {
        return next;
    }
    let whole = end - end % SEGMENT;
    if at.is_multiple_of(SEGMENT) && whole > at { whole } else { end }
}

/// Bytes of a blob, checked.
fn part_of(content: &Content, start: u32, end: u32) -> io::Result<Vec<u8>> {
    match content {
        Content::Held(held) => part(held, start, end),
        Content::Arriving(arriving) => arriving
            .bytes(start..end)
            .map(<[u8]>::to_vec)
            .ok_or_else(|| io::Error::other("it is not here yet")),
    }
}
