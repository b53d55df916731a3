//! Where the bytes of a file are, for a reader that maps the files of blobs instead of copying their bytes.

use base::size::BLOB_MAX;
use base::{BlobId, Ino};
use blob::Access;
use blob::extent::Part;
use meta::record::InodeRecord;

use crate::errno::{Errno, Error};
use crate::packs::table::Place;
use crate::page::page_of;
use crate::volume::{Core, Volume};

/// A piece of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Zeros that are not stored.
    Hole {
        /// Bytes.
        len: u64,
    },
    /// Bytes of a blob.
    Stored {
        /// The blob.
        blob: BlobId,
        /// The first byte in the blob.
        offset: u32,
        /// Bytes.
        len: u32,
    },
}

impl Piece {
    /// Returns the piece's length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Piece::Hole { len } => *len,
            Piece::Stored { len, .. } => u64::from(*len),
        }
    }

    /// The blob that has its bytes.
    pub fn blob(&self) -> Option<BlobId> {
        match self {
            Piece::Hole { .. } => None,
            Piece::Stored { blob, .. } => Some(*blob),
        }
    }

    /// Whether it has no bytes. No piece of a range is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Volume {
    /// The pieces of a range of a file, in order, up to the end of the file. Counts as a read for the hint
    /// `keep`. `None` if bytes of it are in no blob: a small file is in the names, and new bytes are in an
    /// open pack.
    ///
    /// # Errors
    /// `EISDIR` and the like for what is no regular file, or the names could not be read.
    pub fn pieces(&self, ino: Ino, offset: u64, len: u64) -> Result<Option<Vec<Piece>>, Errno> {
        self.core.pieces(ino, offset, len).map_err(|error| self.core.answer("read", ino, error))
    }

    /// Programs use a range of a file although no read of it arrives: the kernel answers. Counts as a read
    /// for the cache. Returns how many blobs of the range are in this machine's cache.
    ///
    /// # Errors
    /// As [`Volume::pieces`].
    pub fn in_use(&self, ino: Ino, offset: u64, len: u64) -> Result<u64, Errno> {
        let blobs = self.blobs_of(ino, offset, len)?;
        Ok(blobs.iter().map(|blob| u64::from(self.core.parts.source.in_use(blob))).sum())
    }

    /// The blobs of a range of a file, in the order of the file. A blob never follows itself. It may
    /// come again after another one. Empty if bytes of the range are in no blob ([`Volume::pieces`]).
    ///
    /// # Errors
    /// As [`Volume::pieces`].
    pub fn blobs_of(&self, ino: Ino, offset: u64, len: u64) -> Result<Vec<BlobId>, Errno> {
        let pieces = self.pieces(ino, offset, len)?.unwrap_or_default();
        let mut blobs: Vec<BlobId> = pieces.iter().filter_map(Piece::blob).collect();
        blobs.dedup();
        Ok(blobs)
    }

    /// A program will read a range of a file. Its blobs are fetched, unless the file is read at random. No
    /// error: what cannot be known now is not fetched. Returns how many blobs the range has.
    pub fn will_read(&self, ino: Ino, offset: u64, len: u64) -> u64 {
        let Ok(record) = self.core.file(ino) else { return 0 };
        if self.core.hint_of(ino, &record).access == Access::Random {
            return 0;
        }
        let blobs = self.blobs_of(ino, offset, len).unwrap_or_default();
        blobs.iter().for_each(|blob| self.core.parts.source.will_need(blob));
        blobs.len() as u64
    }
}

impl Core {
    fn pieces(&self, ino: Ino, offset: u64, len: u64) -> Result<Option<Vec<Piece>>, Error> {
        let record = self.file(ino)?;
        if record.has(InodeRecord::INLINE) {
            return Ok(None);
        }
        let is_kept = self.hint_of(ino, &record).keep;
        let end = offset.saturating_add(len).min(record.size);
        let (mut pieces, mut at) = (Vec::new(), offset);
        while at < end {
            let (page, from) = page_of(at);
            let part = u64::from(BLOB_MAX - from).min(end - at) as u32;
            for found in self.names.extents(ino, page)?.parts(from, part) {
                match found {
                    Part::Hole { len, .. } => pieces.push(Piece::Hole { len: u64::from(len) }),
                    Part::Data(extent) => match self.place_of(extent.pack)? {
                        Some(Place::Blob(blob)) => {
                            if is_kept {
                                self.parts.source.evict_last(&blob);
                            }
                            pieces.push(Piece::Stored { blob, offset: extent.offset, len: extent.len });
                        }
                        _ => return Ok(None),
                    },
                }
            }
            at += u64::from(part);
        }
        Ok(Some(pieces))
    }
}
