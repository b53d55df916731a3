//! Rows about published trees: which blobs a tree holds, and which objects of a foreign bucket are in it.

use base::{Ino, PackNo, Timestamp};

use super::{BadRecord, Fields, encode_u64, moment_from_u64, moment_to_u64};
use crate::store::Value;

/// The row by which a published tree holds a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldRow {
    /// The tree refers to it, and it is in the origin.
    Held,
    /// A tree that is being published will refer to it. Until it is published, the blob need not be in the
    /// origin.
    Pending,
    /// Since this moment a newer tree of the name does not refer to it. A mount of the older tree may still
    /// read it for a while.
    DroppedAt(Timestamp),
    /// Since this moment a newer tree of the name does not refer to it, and an older one that is kept does.
    KeptAt(Timestamp),
    /// The tree is no longer published.
    Released,
}

/// The last byte of a row of 9 bytes.
const KEPT: u8 = 1;

impl HeldRow {
    /// The row.
    pub fn encode(&self) -> Value {
        match self {
            HeldRow::Held => encode_u64(0),
            HeldRow::Released => encode_u64(1),
            HeldRow::Pending => encode_u64(2),
            HeldRow::DroppedAt(moment) => encode_u64(moment_to_u64(*moment).max(3)),
            HeldRow::KeptAt(moment) => {
                [&moment_to_u64(*moment).to_be_bytes()[..], &[KEPT]].concat().as_slice().into()
            }
        }
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`HeldRow::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<HeldRow, BadRecord> {
        if let Some((&KEPT, moment)) = bytes.split_last().filter(|(_, moment)| moment.len() == 8) {
            return Ok(HeldRow::KeptAt(moment_from_u64(Fields::of("held blob", moment, 8)?.u64())));
        }
        Ok(match Fields::of("held blob", bytes, 8)?.u64() {
            0 => HeldRow::Held,
            1 => HeldRow::Released,
            2 => HeldRow::Pending,
            moment => HeldRow::DroppedAt(moment_from_u64(moment)),
        })
    }
}

/// An object of a foreign bucket that is in a published tree: where its bytes are, and the numbers that the
/// tree gave to its name. The next index of the bucket takes the numbers from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignRow {
    /// The key, without the prefix that was indexed. With a `/` at its end: a folder that has an object.
    pub key: String,
    /// The ETag, without quotes.
    pub etag: String,
    /// The size in bytes.
    pub size: u64,
    /// The file; 0 for a folder.
    pub ino: Ino,
    /// The file's change counter.
    pub change: u64,
    /// The pack of its first part; those of the others follow. 0 for an object without bytes.
    pub pack: PackNo,
    /// The folders of its key, from the outermost on.
    pub folders: Vec<Ino>,
}

impl ForeignRow {
    const VERSION: u8 = 1;
    /// The longest key and ETag in bytes. Stores allow keys of 1,024.
    pub const TEXT_MAX: usize = 4096;

    /// The row.
    pub fn encode(&self) -> Value {
        let mut out = Vec::with_capacity(64 + self.key.len() + self.etag.len());
        out.push(Self::VERSION);
        for number in [self.size, self.ino.0, self.change, self.pack.0] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&(self.folders.len() as u16).to_be_bytes());
        self.folders.iter().for_each(|folder| out.extend_from_slice(&folder.0.to_be_bytes()));
        out.extend_from_slice(&(self.etag.len() as u16).to_be_bytes());
        out.extend_from_slice(self.etag.as_bytes());
        out.extend_from_slice(self.key.as_bytes());
        out.as_slice().into()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`ForeignRow::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<ForeignRow, BadRecord> {
        ForeignRow::read(bytes).ok_or(BadRecord { what: "foreign object" })
    }

    fn read(bytes: &[u8]) -> Option<ForeignRow> {
        fn long(rest: &mut &[u8]) -> Option<u64> {
            let (number, left) = rest.split_first_chunk()?;
            *rest = left;
            Some(u64::from_be_bytes(*number))
        }
        fn short(rest: &mut &[u8]) -> Option<usize> {
            let (number, left) = rest.split_first_chunk()?;
            *rest = left;
            Some(usize::from(u16::from_be_bytes(*number)))
        }
        let (version, mut rest) = bytes.split_first()?;
        let rest = &mut rest;
        let (size, ino, change, pack) = (long(rest)?, Ino(long(rest)?), long(rest)?, PackNo(long(rest)?));
        let count = short(rest)?;
        let folders = (0..count).map(|_| long(rest).map(Ino)).collect::<Option<Vec<Ino>>>()?;
        let len = short(rest)?;
        let (etag, key) = rest.split_at_checked(len)?;
        let text =
            |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok().filter(|text| text.len() <= Self::TEXT_MAX);
        let (etag, key) = (text(etag)?, text(key)?);
        (*version == Self::VERSION).then_some(ForeignRow { key, etag, size, ino, change, pack, folders })
    }
}
