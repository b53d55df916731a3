//! The bytes of files: reads of what extents point to, and storage of new bytes.
//!
//! A read looks up the page's extents and then each pack. In between, a pack may be sealed, or it may be
//! compacted and its blob deleted. So when bytes are not where the names say, the names are read again. Bytes
//! are lost only if they are missing twice under the same names; the read then fails with EIO.

use std::io;

use base::phase::{self, Phase};
use base::size::{BLOB_MAX, MIB};
use base::{BlobId, Ino, PackNo};
use blob::extent::{ExtentPage, Part};
use blob::{BlobError, Extent};
use meta::PackRow;
use meta::plan::Op;
use meta::plan::op::Piece;
use meta::record::InodeRecord;
use meta::store::Value;

use crate::access::Hint;
use crate::errno::Error;
use crate::packs::table::Place;
use crate::packs::{OWN_PACK_APPEND_MIN, OWN_PACK_MIN, Own, Slot, Writer};
use crate::page::page_of;
use crate::read_plan::FoundNames;
use crate::volume::Core;

/// How often names are read when bytes are not where they say.
const LOOKS: usize = 4;

/// Stored bytes that no name refers to yet. Keep this until the names are committed.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) pieces: Vec<Piece>,
    slots: Vec<Slot>,
}

impl Core {
    /// Reads a file whose `record` was just read, and `found` too, if any. Returns how many bytes; fewer than
    /// requested only at the end of the file.
    pub(crate) fn read_file(
        &self,
        ino: Ino,
        record: &InodeRecord,
        found: Option<&FoundNames>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Error> {
        if offset >= record.size {
            return Ok(0);
        }
        let len = (record.size - offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        if record.has(InodeRecord::INLINE) {
            let known = found.and_then(|found| found.inline.clone());
            return self.read_inline(ino, known, offset, buf).map(|()| len);
        }
        let hint = self.hint_of(ino, record);
        if len > 0 {
            self.look_ahead(ino, offset, len, record.size, hint.access);
        }
        let mut done = 0;
        while done < len {
            let (page, at) = page_of(offset + done as u64);
            let part = (len - done).min((BLOB_MAX - at) as usize);
            let known = found.and_then(|found| found.of(page));
            self.read_page(ino, page, known, at, hint, &mut buf[done..done + part])?;
            done += part;
        }
        Ok(len)
    }

    /// Reads an inline file; `known`: its bytes, if they were just read.
    fn read_inline(&self, ino: Ino, known: Option<Value>, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let bytes = match known {
            None => self.names.inline(ino)?,
            known => known,
        };
        let Some(bytes) = bytes else {
            // It was moved to a pack after its record was read.
            let (page, at) = page_of(offset);
            return self.read_page(ino, page, None, at, Hint::default(), buf);
        };
        let from = (offset as usize).min(bytes.len());
        let have = (bytes.len() - from).min(buf.len());
        buf[..have].copy_from_slice(&bytes[from..from + have]);
        buf[have..].fill(0);
        self.counters.from_names.add(buf.len());
        Ok(())
    }

    /// Reads a part of one page, which begins at offset `at` in it; holes are zeros. `known`: the page's
    /// extents, if they were just read.
    fn read_page(
        &self,
        ino: Ino,
        page: u32,
        known: Option<&ExtentPage>,
        at: u32,
        hint: Hint,
        buf: &mut [u8],
    ) -> Result<(), Error> {
        if let Some(extents) = known {
            match self.read_extents(extents, at, buf, hint) {
                Err(error) if may_have_moved(&error) => self.forget_places(extents),
                done => return done,
            }
        }
        let mut before: Option<ExtentPage> = None;
        for look in 0..LOOKS {
            let extents = self.names.extents(ino, page)?;
            match self.read_extents(&extents, at, buf, hint) {
                Err(error) if look + 1 < LOOKS && may_have_moved(&error) => {
                    // The names were read again and say the same places: the bytes are lost.
                    if look > 1 && before.as_ref() == Some(&extents) {
                        return Err(error);
                    }
                    self.forget_places(&extents);
                    before = Some(extents);
                }
                done => return done,
            }
        }
        Ok(())
    }

    /// The next look at these packs reads their rows again.
    fn forget_places(&self, extents: &ExtentPage) {
        extents.extents().iter().for_each(|extent| self.table.drop(extent.pack));
    }

    fn read_extents(&self, extents: &ExtentPage, at: u32, buf: &mut [u8], hint: Hint) -> Result<(), Error> {
        let mut rest = buf;
        for part in extents.parts(at, rest.len() as u32) {
            match part {
                Part::Hole { len, .. } => {
                    let (zeros, after) = rest.split_at_mut(len as usize);
                    zeros.fill(0);
                    rest = after;
                }
                Part::Data(Extent { len, pack, offset, .. }) => {
                    let (bytes, after) = rest.split_at_mut(len as usize);
                    self.read_pack_as(pack, offset, bytes, hint)?;
                    rest = after;
                }
            }
        }
        Ok(())
    }

    /// Reads a range of a pack, wherever the pack is now.
    pub(crate) fn read_pack(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), Error> {
        self.read_pack_as(pack, offset, buf, Hint::default())
    }

    fn read_pack_as(&self, pack: PackNo, offset: u32, buf: &mut [u8], hint: Hint) -> Result<(), Error> {
        if let Some(sharing) = self.elsewhere(pack)
            && self.table.get(pack).is_none()
        {
            return self.read_elsewhere(sharing, pack, offset, buf);
        }
        match self.place_of(pack)? {
            Some(Place::Open) => {
                self.parts.packs.read(pack, offset, buf)?;
                self.counters.from_open.add(buf.len());
            }
            Some(Place::Blob(blob)) => {
                let read = self.parts.source.read_as(&blob, offset, buf, hint.access);
                read.inspect_err(|error| self.answers.note_error(error))?;
                if hint.keep {
                    self.parts.source.evict_last(&blob);
                }
                self.counters.from_blobs.add(buf.len());
            }
            None => return Err(gone(pack)),
        }
        Ok(())
    }

    pub(crate) fn place_of(&self, pack: PackNo) -> Result<Option<Place>, Error> {
        if let Some(place) = self.table.get(pack) {
            return Ok(Some(place));
        }
        let place = match self.pack_row(pack)? {
            Some(PackRow::Open) => Place::Open,
            Some(PackRow::Sealed { .. }) if self.resealing.lock().contains(&pack) => Place::Open,
            Some(PackRow::Sealed { .. }) if self.packs.is_lost(pack) => Place::Open,
            Some(PackRow::Sealed { blob, .. } | PackRow::Condemned { blob, .. }) => Place::Blob(blob),
            None => return Ok(None),
        };
        // A blob of another node is remembered when that node says that the origin has it.
        if self.elsewhere(pack).is_none() {
            self.table.put(pack, place);
        }
        Ok(Some(place))
    }

    /// Stores bytes for a range of a file: one piece for each page that it touches.
    pub(crate) fn store(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<Stored, Error> {
        self.store_in(ino, offset, data, 0)
    }

    /// Stores bytes as [`Core::store`] does, for a file of `size` bytes so far.
    pub(crate) fn store_in(&self, ino: Ino, offset: u64, data: &[u8], size: u64) -> Result<Stored, Error> {
        let mut stored = Stored::default();
        self.store_pages(&mut stored, ino, offset, data, size)?;
        Ok(stored)
    }

    pub(crate) fn store_into(
        &self,
        stored: &mut Stored,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Error> {
        self.store_pages(stored, ino, offset, data, 0)
    }

    fn store_pages(
        &self,
        stored: &mut Stored,
        ino: Ino,
        offset: u64,
        data: &[u8],
        size: u64,
    ) -> Result<(), Error> {
        self.packs.wait_for_room();
        let mut done = 0;
        while done < data.len() {
            let from = offset + done as u64;
            let (page, at) = page_of(from);
            let len = (data.len() - done).min((BLOB_MAX - at) as usize);
            // For an append, the earlier bytes of the page are stored elsewhere. Otherwise they are most
            // likely still to be written.
            let base = if from == size { at } else { 0 };
            let appends = from >= MIB && from >= size && len as u32 >= OWN_PACK_APPEND_MIN;
            // A large write that ends in this page: the rest of the page most likely follows.
            let goes_on = at == 0 && data.len() >= OWN_PACK_MIN as usize;
            let own = match len as u32 >= OWN_PACK_MIN || goes_on {
                true => Own::Yes,
                false if appends => Own::IfFew,
                false => Own::No,
            };
            let writer = Writer::Page { ino, page, at, base, own };
            let (slot, crc) = self.store_range(writer, &data[done..done + len])?;
            stored.pieces.push(Piece {
                at: from,
                len: len as u32,
                pack: slot.pack(),
                offset: slot.offset,
                fresh: Some(crc),
            });
            stored.slots.push(slot);
            done += len;
        }
        Ok(())
    }

    /// Writes bytes (at most 4 MiB) to an open pack. Returns their CRC32C too.
    pub(crate) fn store_range(&self, writer: Writer, bytes: &[u8]) -> Result<(Slot, u32), Error> {
        let slot = self.packs.reserve(writer, bytes.len() as u32, || self.begin_pack())?;
        match self.parts.packs.write_summed(slot.pack(), slot.offset, bytes) {
            Ok(crc) => {
                slot.filled();
                self.counters.written_bytes.add(bytes.len() as u64);
                Ok((slot, crc))
            }
            Err(error) => {
                slot.give_back();
                if matches!(error, BlobError::Full) {
                    self.space.met_full();
                }
                Err(error.into())
            }
        }
    }

    /// Makes an empty pack of this node.
    pub(crate) fn begin_pack(&self) -> Result<PackNo, Error> {
        let pack = self.next_pack()?;
        self.parts.packs.create(pack)?;
        if let Err(error) = self.run(&Op::OpenPack { pack }) {
            // The new pack is empty and has no row. If it cannot be removed now, the next open of the volume
            // finds it.
            let _ = self.parts.packs.discard(pack);
            return Err(error);
        }
        self.table.put(pack, Place::Open);
        Ok(pack)
    }
}

/// Whether re-read names may show that the bytes have moved.
pub(crate) fn may_have_moved(error: &Error) -> bool {
    match error {
        Error::Blob(BlobError::Missing(_)) => true,
        Error::Blob(BlobError::Io(error)) => {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
        }
        _ => false,
    }
}

/// The error for a pack that has no row.
pub(crate) fn gone(pack: PackNo) -> Error {
    Error::Blob(BlobError::Io(io::Error::new(
        io::ErrorKind::NotFound,
        format!("{pack:?} is named by an extent and is not in the pack table"),
    )))
}

/// The id of a file's whole content.
pub(crate) fn content_id(bytes: &[u8]) -> BlobId {
    let _phase = phase::enter(Phase::Blob);
    BlobId(*blake3::hash(bytes).as_bytes())
}
