//! How the log is written down. Pure: bytes in, records out. All numbers big-endian.
//!
//! ```text
//!   segment   header, 4096 bytes         records, one after the other          stale bytes or zeros
//!
//!   header    magic:8 "COVEYLOG"  version:4  length:8  log id:16  segment:8  first seq:8  crc32c:4
//!
//!   record    crc32c:4  payload length:4  seq:8  segment:8  kind:1  zero:3  payload
//!             (the CRC covers everything behind itself)
//!
//!   commit    fresh count:4  row count:4  { pack:8 offset:4 length:4 crc32c:4 }  { key length:2 value length:4 key value }
//!             (a value length of 2^32 - 1: the row goes)
//!   data      pack:8  offset:4  bytes          these bytes of the pack, durable by way of the log
//!   mark      seq:8                            data that records up to this one mention is durable
//! ```
//!
//! Segments are used again, so what lies behind the last record may look like one. A record therefore says which segment and which place
//! in the order it was written for, and anything else is the end of the log: stale bytes can never be taken for records.
//!
//! Rows carry final values, not additions: applying a record twice is the same as once.

use base::PackNo;
use blob::sums::crc32c;

use crate::engine::Final;
use crate::key::Key;
use crate::store::FreshData;

/// Room of a segment's header, in bytes; a sector would do, a page keeps records out of the header's.
pub const SEGMENT_HEADER: u64 = 4096;
/// A record's bytes before its payload.
pub const RECORD_HEADER: usize = 28;
/// The version of all this.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"COVEYLOG";
const HEADER_LEN: usize = 56;
const GONE: u32 = u32::MAX;

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Which database's log it belongs to.
    pub log_id: [u8; 16],
    /// The segment's number: higher is later.
    pub segment: u64,
    /// The number of its first record.
    pub first_seq: u64,
    /// The segment's length in bytes, with this header.
    pub len: u64,
}

/// What was found where a header should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundHeader {
    /// A sound one.
    Good(SegmentHeader),
    /// One of a version that this program does not know.
    Unknown(u32),
    /// None: never used, or torn while it was written.
    None,
}

impl SegmentHeader {
    /// The header's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + 4);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
        out.extend_from_slice(&self.log_id);
        out.extend_from_slice(&self.segment.to_be_bytes());
        out.extend_from_slice(&self.first_seq.to_be_bytes());
        // Reserved.
        out.extend_from_slice(&[0; 4]);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8]) -> FoundHeader {
        let read = || {
            let (body, crc) = (bytes.get(..HEADER_LEN)?, bytes.get(HEADER_LEN..)?);
            let mut fields = Fields(body);
            let (magic, version) = (fields.take::<8>()?, fields.u32()?);
            if magic != MAGIC {
                return None;
            }
            // The CRC's place is this version's: a newer one is told by its number alone.
            if version > VERSION {
                return Some(FoundHeader::Unknown(version));
            }
            let len = fields.u64()?;
            let log_id = fields.take::<16>()?;
            let header = SegmentHeader { log_id, segment: fields.u64()?, first_seq: fields.u64()?, len };
            (Fields(crc).u32()? == crc32c(body) && version == VERSION).then_some(FoundHeader::Good(header))
        };
        read().unwrap_or(FoundHeader::None)
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A commit: rows, and the fresh data that they mention.
    Commit = 1,
    /// Bytes of a pack.
    Data = 2,
    /// Up to where data is durable.
    Mark = 3,
}

/// Where a record stands. Part of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// The record's number.
    pub seq: u64,
}

/// Starts a record in `buf`, which is emptied.
pub fn begin(buf: &mut Vec<u8>) {
    buf.clear();
    buf.resize(RECORD_HEADER, 0);
}

/// Completes a record whose payload was appended to `buf`.
pub fn finish(buf: &mut [u8], kind: Kind, place: Place) {
    let payload = (buf.len() - RECORD_HEADER) as u32;
    buf[4..8].copy_from_slice(&payload.to_be_bytes());
    buf[8..16].copy_from_slice(&place.seq.to_be_bytes());
    buf[16..24].copy_from_slice(&place.segment.to_be_bytes());
    buf[24] = kind as u8;
    let crc = crc32c(&buf[4..]);
    buf[..4].copy_from_slice(&crc.to_be_bytes());
}

/// What was found where a record should be.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A record, with its payload.
    Record(Kind, &'a [u8]),
    /// The end of what was written here.
    End,
    /// The beginning of the record that should be here, and not the rest.
    Torn,
}

/// Looks for the record of a place at the beginning of `bytes`.
pub fn find(bytes: &[u8], place: Place) -> Found<'_> {
    let mut fields = Fields(bytes);
    let mut head = || Some((fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?, fields.take::<4>()?));
    let Some((crc, len, seq, segment, [kind, rest @ ..])) = head() else { return Found::End };
    if seq != place.seq || segment != place.segment {
        return Found::End;
    }
    let end = RECORD_HEADER.saturating_add(len as usize);
    let sound = bytes.get(4..end).is_some_and(|body| crc32c(body) == crc) && rest == [0; 3];
    let kind = [Kind::Commit, Kind::Data, Kind::Mark].into_iter().find(|known| *known as u8 == kind);
    match kind {
        Some(kind) if sound => Found::Record(kind, &bytes[RECORD_HEADER..end]),
        _ => Found::Torn,
    }
}

/// Appends a commit's payload.
pub fn put_commit(buf: &mut Vec<u8>, rows: &[Final], fresh: &[FreshData]) {
    buf.extend_from_slice(&(fresh.len() as u32).to_be_bytes());
    buf.extend_from_slice(&(rows.len() as u32).to_be_bytes());
    for data in fresh {
        buf.extend_from_slice(&data.pack.0.to_be_bytes());
        buf.extend_from_slice(&data.offset.to_be_bytes());
        buf.extend_from_slice(&data.len.to_be_bytes());
        buf.extend_from_slice(&data.crc.to_be_bytes());
    }
    for (key, value) in rows {
        let (key, value_len) = (key.as_bytes(), value.as_ref().map_or(GONE, |value| value.len() as u32));
        buf.extend_from_slice(&(key.len() as u16).to_be_bytes());
        buf.extend_from_slice(&value_len.to_be_bytes());
        buf.extend_from_slice(key);
        buf.extend_from_slice(value.as_deref().unwrap_or_default());
    }
}

/// Reads a commit's payload; none if it is not one.
pub fn get_commit(payload: &[u8]) -> Option<(Vec<Final>, Vec<FreshData>)> {
    let mut fields = Fields(payload);
    let (fresh_count, row_count) = (fields.u32()?, fields.u32()?);
    let fresh = (0..fresh_count).map(|_| {
        Some(FreshData {
            pack: PackNo(fields.u64()?),
            offset: fields.u32()?,
            len: fields.u32()?,
            crc: fields.u32()?,
        })
    });
    let fresh = fresh.collect::<Option<Vec<_>>>()?;
    let rows = (0..row_count).map(|_| {
        let (key_len, value_len) = (u16::from_be_bytes(fields.take()?), fields.u32()?);
        let key = Key::from_bytes(fields.bytes(usize::from(key_len))?);
        let value = if value_len == GONE { None } else { Some(fields.bytes(value_len as usize)?.into()) };
        Some((key, value))
    });
    let rows = rows.collect::<Option<Vec<_>>>()?;
    fields.0.is_empty().then_some((rows, fresh))
}

/// Appends a data record's payload.
pub fn put_data(buf: &mut Vec<u8>, pack: PackNo, offset: u32, bytes: &[u8]) {
    buf.extend_from_slice(&pack.0.to_be_bytes());
    buf.extend_from_slice(&offset.to_be_bytes());
    buf.extend_from_slice(bytes);
}

/// Reads a data record's payload.
pub fn get_data(payload: &[u8]) -> Option<(PackNo, u32, &[u8])> {
    let mut fields = Fields(payload);
    Some((PackNo(fields.u64()?), fields.u32()?, fields.0))
}

/// Reads a mark's payload: it is appended as the number's 8 bytes.
pub fn get_mark(payload: &[u8]) -> Option<u64> {
    payload.try_into().ok().map(u64::from_be_bytes)
}

/// What of a buffer is still to be read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}
