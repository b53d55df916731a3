//! The format of the log. Pure: bytes in, records out. All numbers are big-endian.
//!
//! ```text
//!   segment   header, 4096 bytes         records, one after the other          stale bytes or zeros
//!
//!   header    magic:8 "COVEYLOG"  version:4  length:8  log id:16  segment:8  first seq:8  0:4  crc32c:4
//!
//!   record    check:4  payload length:4  seq:8  segment:8  kind:1  zero:3  payload
//!             (the check is the CRC32C of everything after it, XOR the log's key)
//!
//!   commit    fresh count:4  row count:4
//!             { pack:8 offset:4 length:4 crc32c:4 }  { key length:2 value length:4 key value }
//!             (a value length of 2^32 - 1: the row is removed)
//!   data      pack:8  offset:4  bytes          these bytes of the pack, durable by way of the log
//!   mark      data seq:8  synced seq:8         the data that records up to the first number mention is
//!                                              durable once this mark is; records up to the second number
//!                                              were durable before this mark was written
//! ```
//!
//! Segments are reused, so the bytes after the last record may look like a record. A record therefore carries
//! its segment number and its sequence number. Anything else ends the log, so stale bytes are never taken for
//! records. The log's key is the CRC32C of its id. It prevents that copies of another volume's log, which may
//! lie in any bytes, are taken for records of this log.
//!
//! Version 1 had no key (it is 0) and no second number in marks. Both versions are read, version 2 is
//! written.
//!
//! Rows carry final values, not increments, so applying a record twice has the same effect as once.

use base::PackNo;
use blob::sums::crc32c;

use crate::engine::Final;
use crate::key::Key;
use crate::store::FreshData;

/// Space of a segment's header, in bytes. A sector would do; with a page, writing a record never touches the
/// header's page.
pub const SEGMENT_HEADER: u64 = 4096;
/// A record's bytes before its payload.
pub const RECORD_HEADER: usize = 28;
/// The version of this format.
pub const VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"COVEYLOG";
const HEADER_LEN: usize = 56;
const GONE: u32 = u32::MAX;

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The version of the header and its records.
    pub version: u32,
    /// Which database's log it belongs to.
    pub log_id: [u8; 16],
    /// The segment's number: higher is later.
    pub segment: u64,
    /// The sequence number of its first record.
    pub first_seq: u64,
    /// The segment's length in bytes, including this header.
    pub len: u64,
}

/// What was found where a header should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundHeader {
    /// A valid one.
    Good(SegmentHeader),
    /// One of a version that this program does not know.
    Unknown(u32),
    /// None: never used, or torn by a crash while it was written.
    None,
}

impl SegmentHeader {
    /// The header's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + 4);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.version.to_be_bytes());
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
        let Some(bytes) = bytes.get(..HEADER_LEN + 4).filter(|bytes| bytes.starts_with(&MAGIC)) else {
            return FoundHeader::None;
        };
        if let Some(header) = SegmentHeader::sound(bytes) {
            return FoundHeader::Good(header);
        }
        let said = Fields(&bytes[MAGIC.len()..]).u32().unwrap_or(0);
        if said <= VERSION {
            return FoundHeader::None;
        }
        // Either a later version, or a known version with a flipped bit. In the latter case everything else
        // matches.
        let as_known = |version: u32| {
            let mut bytes = bytes.to_vec();
            bytes[MAGIC.len()..MAGIC.len() + 4].copy_from_slice(&version.to_be_bytes());
            SegmentHeader::sound(&bytes)
        };
        // Where the CRC lies is known for these versions only. A later version is recognized by its number
        // alone.
        (1..=VERSION).find_map(as_known).map_or(FoundHeader::Unknown(said), FoundHeader::Good)
    }

    fn sound(bytes: &[u8]) -> Option<SegmentHeader> {
        let (body, crc) = bytes.split_at_checked(HEADER_LEN)?;
        let mut fields = Fields(&body[MAGIC.len()..]);
        let (version, len) = (fields.u32()?, fields.u64()?);
        let log_id = fields.take::<16>()?;
        let header = SegmentHeader { version, log_id, segment: fields.u64()?, first_seq: fields.u64()?, len };
        let known = (1..=VERSION).contains(&version);
        (known && Fields(crc).u32()? == crc32c(body)).then_some(header)
    }

    /// The key of its records.
    pub fn key(&self) -> u32 {
        log_key(self.version, &self.log_id)
    }
}

/// The key that is XORed into the checks of a log's records: see the module.
pub fn log_key(version: u32, log_id: &[u8; 16]) -> u32 {
    if version == 1 { 0 } else { crc32c(log_id) }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A commit: rows, and the fresh data that they mention.
    Commit = 1,
    /// Bytes of a pack.
    Data = 2,
    /// Up to which record data is durable.
    Mark = 3,
}

/// Where a record belongs. Part of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's number.
    pub segment: u64,
    /// The record's number.
    pub seq: u64,
    /// The log's key: see [`log_key`].
    pub key: u32,
}

/// What a mark says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The data that records up to this one mention is durable, once the mark is.
    pub data: u64,
    /// The records up to this one were durable before the mark was written.
    pub synced: u64,
}

/// Starts a record in `buf` and discards what it held.
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
    let check = crc32c(&buf[4..]) ^ place.key;
    buf[..4].copy_from_slice(&check.to_be_bytes());
}

/// What was found where a record should be.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A record, with its payload.
    Record(Kind, &'a [u8]),
    /// The end of what was written here.
    End,
    /// The beginning of the record that should be here, without the rest.
    Torn,
}

/// Looks for the record of `place` at the beginning of `bytes`.
pub fn find(bytes: &[u8], place: Place) -> Found<'_> {
    let mut fields = Fields(bytes);
    let mut head = || Some((fields.u32()?, fields.u32()?, fields.u64()?, fields.u64()?, fields.take::<4>()?));
    let Some((crc, len, seq, segment, [kind, rest @ ..])) = head() else { return Found::End };
    if seq != place.seq || segment != place.segment {
        return Found::End;
    }
    let end = RECORD_HEADER.saturating_add(len as usize);
    let sound = bytes.get(4..end).is_some_and(|body| crc32c(body) ^ place.key == crc) && rest == [0; 3];
    let kind = [Kind::Commit, Kind::Data, Kind::Mark].into_iter().find(|known| *known as u8 == kind);
    match kind {
        Some(kind) if sound => Found::Record(kind, &bytes[RECORD_HEADER..end]),
        _ => Found::Torn,
    }
}

/// Segment number and sequence number of a record that may begin here; none for bytes that cannot be a
/// record. [`find`] then decides.
pub fn peek(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut fields = Fields(bytes.get(4..RECORD_HEADER)?);
    let (len, seq, segment) = (fields.u32()?, fields.u64()?, fields.u64()?);
    let [kind, rest @ ..] = fields.take::<4>()?;
    let fits = (len as usize) <= bytes.len() - RECORD_HEADER;
    (fits && rest == [0; 3] && (1..=Kind::Mark as u8).contains(&kind)).then_some((segment, seq))
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

/// Reads a commit's payload; none if it is malformed.
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

/// Appends a mark's payload.
pub fn put_mark(buf: &mut Vec<u8>, mark: Mark) {
    buf.extend_from_slice(&mark.data.to_be_bytes());
    buf.extend_from_slice(&mark.synced.to_be_bytes());
}

/// Reads a mark's payload, of either version.
pub fn get_mark(payload: &[u8]) -> Option<Mark> {
    let mut fields = Fields(payload);
    let data = fields.u64()?;
    let synced = if fields.0.is_empty() { 0 } else { fields.u64()? };
    fields.0.is_empty().then_some(Mark { data, synced })
}

/// The unread rest of a buffer.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
}
