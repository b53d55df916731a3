//! What the journal of acknowledged changes holds. Pure: bytes in, changes out. All numbers are big-endian.
//!
//! ```text
//!   file      header, 4096 bytes         records, one after the other          stale bytes
//!
//!   header    magic:8 "COVEYACK"  version:4  node id:16  number:8  floor:8  crc32c:4
//!             (files with a number below the floor of the newest one hold nothing that is outstanding)
//!
//!   record    as in the log of names (`meta::journal::format`); its segment is the file's number
//!
//!   change    node:4  epoch:8  batch:8
//!             count:4 { key value }     rows that are written       key    length:2 bytes
//!             count:4 { key }           rows that are removed       value  length:4 bytes
//!             count:4 { key by:8 }      counters that are added to
//!             count:4 { key to:8 }      values that are raised
//!             count:4 { pack:8 offset:4 length:4 crc32c:4 }         bytes that it is the first to mention
//!             count:4 { unit:8 value }  leases that it rests on
//!             count:4 { unit:8 value }  leases that it makes
//!             count:4 { key kind:1 value }  rows that it rests on; kind 1: the value, 2: absent, 3: present
//!   done      batch:8                   the database has this batch and those before it
//! ```
//!
//! `batch` is the number that the batch of the change gets in the database, in the row of the session. So the
//! number tells whether the database has the change.

use base::{Ino, PackNo};
use blob::sums::crc32c;

use crate::journal::format::{self, Fields, Kind, Place};
use crate::key::Key;
use crate::lease::row::Holder;
use crate::store::{Commit, Expect, FreshData, Value};

/// Space of a file's header.
pub(super) const HEADER: u64 = 4096;

const MAGIC: [u8; 8] = *b"COVEYACK";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 44;
/// Where the number of the batch is in a change's record.
const BATCH_AT: usize = format::RECORD_HEADER + 12;

/// What the header of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Whose journal it is.
    pub node: [u8; 16],
    /// Higher than that of every file that was begun before.
    pub number: u64,
    /// Files with a lower number hold nothing that is outstanding.
    pub floor: u64,
}

impl Header {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_be_bytes());
        out.extend(self.node);
        out.extend(self.number.to_be_bytes());
        out.extend(self.floor.to_be_bytes());
        let crc = crc32c(&out);
        out.extend(crc.to_be_bytes());
        out
    }

    /// Whether it is of a format that this program does not know.
    pub fn is_newer(bytes: &[u8]) -> bool {
        let mut fields = Fields(bytes);
        fields.take() == Some(MAGIC) && fields.u32().is_some_and(|version| version > VERSION)
    }

    /// `None`: it is damaged, or was never written.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER_LEN + 4)?;
        let (body, crc) = bytes.split_at_checked(HEADER_LEN)?;
        let mut fields = Fields(body);
        let sound = fields.take()? == MAGIC && fields.u32()? == VERSION && Fields(crc).u32()? == crc32c(body);
        let (node, number, floor) = (fields.take()?, fields.u64()?, fields.u64()?);
        sound.then_some(Header { node, number, floor })
    }
}

/// The key of the records of a node's journal: bytes of another journal are no records of this one.
pub(super) fn key_of(node: &[u8; 16]) -> u32 {
    crc32c(node)
}

/// A change as it was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::lease) struct Change {
    /// The session.
    pub holder: Holder,
    /// The number of its batch in the session's row.
    pub batch: u64,
    /// What it writes. Its checks held when it was decided, under the leases.
    pub commit: Commit,
    /// The leases that it rests on.
    pub leases: Vec<(Ino, Value)>,
    /// The leases that it makes.
    pub made: Vec<(Ino, Value)>,
    /// Rows that other nodes may read too.
    pub checks: Vec<(Key, Expect)>,
}

/// What a change rests on and makes, beside what it writes.
pub(in crate::lease) struct Basis<'a> {
    pub leases: &'a [(Ino, Value)],
    pub made: &'a [(Ino, Value)],
    pub checks: &'a [(Key, Expect)],
}

/// Begins the record of a change. The number of its batch and its place are added by [`seal`].
pub(super) fn put_change(buf: &mut Vec<u8>, holder: Holder, commit: &Commit, basis: &Basis<'_>) {
    format::begin(buf);
    buf.extend(holder.node.to_be_bytes());
    buf.extend(holder.epoch.to_be_bytes());
    buf.extend([0; 8]);
    each(buf, &commit.puts, |buf, (key, value)| {
        put_key(buf, key);
        put_value(buf, value);
    });
    each(buf, &commit.dels, put_key);
    each(buf, &commit.adds, |buf, (key, by)| {
        put_key(buf, key);
        buf.extend(by.to_be_bytes());
    });
    each(buf, &commit.maxs, |buf, (key, to)| {
        put_key(buf, key);
        buf.extend(to.to_be_bytes());
    });
    each(buf, &commit.fresh, |buf, fresh| {
        buf.extend(fresh.pack.0.to_be_bytes());
        for number in [fresh.offset, fresh.len, fresh.crc] {
            buf.extend(number.to_be_bytes());
        }
    });
    for leases in [basis.leases, basis.made] {
        each(buf, leases, |buf, (unit, lease)| {
            buf.extend(unit.0.to_be_bytes());
            put_value(buf, lease);
        });
    }
    each(buf, basis.checks, |buf, (key, expect)| {
        put_key(buf, key);
        let (kind, value): (u8, &[u8]) = match expect {
            Expect::Is(value) => (1, value),
            Expect::Absent => (2, &[]),
            Expect::Exists => (3, &[]),
        };
        buf.push(kind);
        put_value(buf, value);
    });
}

/// Completes the record that [`put_change`] began.
pub(super) fn seal(buf: &mut [u8], batch: u64, place: Place) {
    if let Some(at) = buf.get_mut(BATCH_AT..BATCH_AT + 8) {
        at.copy_from_slice(&batch.to_be_bytes());
    }
    format::finish(buf, Kind::Commit, place);
}

/// The record that says that batches are in the database.
pub(super) fn put_done(buf: &mut Vec<u8>, batch: u64, place: Place) {
    format::begin(buf);
    buf.extend(batch.to_be_bytes());
    format::finish(buf, Kind::Mark, place);
}

/// The batch of a record that [`put_done`] wrote.
pub(super) fn get_done(payload: &[u8]) -> Option<u64> {
    Fields(payload).u64()
}

/// Reads the payload of a change's record. `None` if it is malformed.
pub(super) fn get_change(payload: &[u8]) -> Option<Change> {
    let fields = &mut Fields(payload);
    let holder = Holder { node: fields.u32()?, epoch: fields.u64()? };
    let batch = fields.u64()?;
    let mut commit = Commit {
        puts: all(fields, |fields| Some((get_key(fields)?, get_value(fields)?)))?,
        dels: all(fields, get_key)?,
        ..Commit::default()
    };
    commit.adds = all(fields, |fields| Some((get_key(fields)?, i64::from_be_bytes(fields.take()?))))?;
    commit.maxs = all(fields, |fields| Some((get_key(fields)?, fields.u64()?)))?;
    commit.fresh = all(fields, |fields| {
        let (pack, offset) = (PackNo(fields.u64()?), fields.u32()?);
        Some(FreshData { pack, offset, len: fields.u32()?, crc: fields.u32()? })
    })?;
    let lease = |fields: &mut Fields<'_>| Some((Ino(fields.u64()?), get_value(fields)?));
    let (leases, made) = (all(fields, lease)?, all(fields, lease)?);
    let checks = all(fields, |fields| {
        let key = get_key(fields)?;
        let [kind] = fields.take()?;
        let value = get_value(fields)?;
        let expect = match kind {
            1 => Expect::Is(value),
            2 => Expect::Absent,
            3 => Expect::Exists,
            _ => return None,
        };
        Some((key, expect))
    })?;
    fields.0.is_empty().then_some(Change { holder, batch, commit, leases, made, checks })
}

fn each<T>(buf: &mut Vec<u8>, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    buf.extend((items.len() as u32).to_be_bytes());
    items.iter().for_each(|item| put(buf, item));
}

fn put_key(buf: &mut Vec<u8>, key: &Key) {
    let key = key.as_bytes();
    buf.extend((key.len() as u16).to_be_bytes());
    buf.extend_from_slice(key);
}

fn put_value(buf: &mut Vec<u8>, value: &[u8]) {
    buf.extend((value.len() as u32).to_be_bytes());
    buf.extend_from_slice(value);
}

fn all<T>(fields: &mut Fields<'_>, get: impl Fn(&mut Fields<'_>) -> Option<T>) -> Option<Vec<T>> {
    let count = fields.u32()?;
    (0..count).map(|_| get(fields)).collect()
}

fn get_key(fields: &mut Fields<'_>) -> Option<Key> {
    let len = u16::from_be_bytes(fields.take()?);
    Some(Key::from_bytes(fields.bytes(usize::from(len))?))
}

fn get_value(fields: &mut Fields<'_>) -> Option<Value> {
    let len = fields.u32()?;
    Some(fields.bytes(len as usize)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::format::{Found, RECORD_HEADER, find};
    use proptest::prelude::*;

    fn change() -> Change {
        let value: Value = vec![7; 300].into();
        let (one, two) = (Key::subdirs(Ino(4)), Key::dentry(Ino(1), b"name"));
        let commit = Commit {
            puts: vec![(one.clone(), value.clone()), (two.clone(), Value::from(&[][..]))],
            dels: vec![two.clone()],
            adds: vec![(one.clone(), -5)],
            maxs: vec![(one.clone(), u64::MAX)],
            fresh: vec![FreshData { pack: PackNo(1 << 41), offset: 3, len: 9, crc: 77 }],
            ..Commit::default()
        };
        Change {
            holder: Holder { node: 7, epoch: 1 << 40 },
            batch: 12,
            commit,
            leases: vec![(Ino(1), value.clone())],
            made: vec![(Ino(9), value.clone()), (Ino(10), Value::from(&[1][..]))],
            checks: vec![(one.clone(), Expect::Is(value)), (two, Expect::Absent), (one, Expect::Exists)],
        }
    }

    const PLACE: Place = Place { segment: 3, seq: 8, key: 5 };

    fn record_of(change: &Change) -> Vec<u8> {
        let mut buf = Vec::new();
        let basis = Basis { leases: &change.leases, made: &change.made, checks: &change.checks };
        put_change(&mut buf, change.holder, &change.commit, &basis);
        seal(&mut buf, change.batch, PLACE);
        buf
    }

    #[test]
    fn a_change_is_read_as_it_was_written() {
        let change = change();
        let buf = record_of(&change);
        let Found::Record(Kind::Commit, payload) = find(&buf, PLACE) else { panic!("no record") };
        assert_eq!(get_change(payload), Some(change));
        for cut in 0..buf.len() {
            assert!(!matches!(find(&buf[..cut], PLACE), Found::Record(..)), "cut at {cut}");
            let payload = buf.get(RECORD_HEADER..cut).unwrap_or_default();
            assert_eq!(get_change(payload), None, "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_refused_or_read_as_it_is_written(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut payload = record_of(&change()).split_off(RECORD_HEADER);
            for (at, byte) in changes {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
            if let Some(change) = get_change(&payload) {
                let again = record_of(&change);
                let Found::Record(Kind::Commit, payload) = find(&again, PLACE) else { panic!("no record") };
                prop_assert_eq!(get_change(payload), Some(change));
            }
        }
    }

    #[test]
    fn a_damaged_header_is_none() {
        let header = Header { node: [7; 16], number: 9, floor: 8 };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert_eq!(Header::decode(&bad), None, "byte {at}");
        }
    }
}
