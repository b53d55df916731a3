//! The answer to a small range: one frame. Many of them are sent in one write.

use super::opened::Lent;
use super::{Counters, Shared};
use crate::frame::{self, ErrorKind, HEADER, Header, LAST, Texted, Type};

/// The answer to a small range, without the bytes.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) request: u32,
    pub(super) offset: u32,
    pub(super) total: u32,
}

impl Range {
    /// Appends the whole answer.
    pub(super) fn put(self, out: &mut Vec<u8>, shared: &Shared, bytes: &[u8]) {
        let at = out.len();
        out.extend_from_slice(&[0; HEADER]);
        out.extend_from_slice(bytes);
        self.head_at(at, out, shared);
    }

    /// Writes the header at `at` for the bytes that follow it, up to the end of `out`.
    pub(super) fn head_at(self, at: usize, out: &mut [u8], shared: &Shared) {
        let Range { request, offset, total } = self;
        let (head, bytes) = out[at..].split_at_mut(HEADER);
        let backlog = shared.backlog();
        let with = Header::with(Type::Data, request, bytes);
        head.copy_from_slice(&Header { flags: LAST, offset, total, backlog, ..with }.encode());
        Counters::add(&shared.counters.blob_bytes_out, bytes.len() as u64);
    }

    /// Appends the header alone. The bytes are sent from where they are.
    pub(super) fn put_head(self, out: &mut Vec<u8>, shared: &Shared, lent: &Lent) {
        let Range { request, offset, total } = self;
        let (length, crc, backlog) = (lent.len() as u32, lent.crc, shared.backlog());
        let header =
            Header { flags: LAST, offset, length, crc, total, backlog, ..Header::bare(Type::Data, request) };
        out.extend_from_slice(&header.encode());
        Counters::add(&shared.counters.blob_bytes_out, u64::from(length));
    }

    /// Appends the error for damaged bytes.
    pub(super) fn put_damaged(self, out: &mut Vec<u8>) {
        let text = "its bytes are not what they were".to_owned();
        let payload = Texted { kind: ErrorKind::Damaged, text }.encode();
        frame::put(out, Type::Error, self.request, &payload);
    }
}
