//! Reads, and the search for data and holes.

use base::size::BLOB_MAX;
use base::{BlobId, Ino};
use blob::completion::{Completion, Start};
use blob::extent::Part;
use meta::Key;
use meta::record::InodeRecord;

use crate::api::{Seek, Waiting};
use crate::bytes::page_of;
use crate::errno::{Errno, Error};
use crate::packs::table::Place;
use crate::volume::Core;

/// A read of at least so many bytes is part of a stream. It may wait milliseconds for the disk, and the
/// kernel has sent the next reads already. So it runs on another thread: the receiving thread takes further
/// requests, and several such reads run at once.
const STREAM_LEN: u32 = 256 << 10;

impl Core {
    pub(crate) fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let record = self.file(ino)?;
        let done = self.read_file(ino, &record, offset, buf)?;
        if done > 0 {
            self.touch_if_relative(ino, &record);
        }
        Ok(done)
    }

    pub(crate) fn would_wait(&self, request: Waiting) -> bool {
        match request {
            Waiting::Read { ino, offset, len } => {
                len >= STREAM_LEN
                    || !self.options.names_local && !self.are_names_at_hand(ino, offset, len)
                    || !self.options.local && self.read_is_remote(ino, offset, len)
            }
            // A write that waited on the thread that received it would delay reads too.
            Waiting::Write => !self.options.gate.is_open(),
            Waiting::Sync => true,
            Waiting::Change => false,
            Waiting::Look => !self.options.names_local,
        }
    }

    /// Whether the rows that a read of this range needs are on this machine.
    fn are_names_at_hand(&self, ino: Ino, offset: u64, len: u32) -> bool {
        let names = &self.names;
        if !names.is_at_hand(&Key::inode(ino)) {
            return false;
        }
        // An error is found again, and reported, by the read itself.
        let Ok(record) = self.file(ino) else { return true };
        if record.has(InodeRecord::INLINE) {
            return names.is_at_hand(&Key::inline(ino));
        }
        let (first, last) = (page_of(offset).0, page_of(offset.saturating_add(u64::from(len))).0);
        let is_here = |pack| self.table.get(pack).is_some() || names.is_at_hand(&Key::pack(pack));
        (first..=last).all(|page| {
            names.is_at_hand(&Key::extents(ino, page))
                && names.extents(ino, page).is_ok_and(|page| page.extents().iter().all(|e| is_here(e.pack)))
        })
    }

    /// Begins a read that would wait. `Read` if the range spans several blobs, or if names must be fetched
    /// first.
    pub(crate) fn start_read(&self, ino: Ino, offset: u64, len: u32, completion: Completion) -> Start {
        let Some((record, blob, at, len)) = self.one_range(ino, offset, len) else { return Start::Read };
        let access = self.access_of(ino, &record);
        let start = self.parts.source.start_read(&blob, at..at + len, access, completion);
        if !matches!(start, Start::Read) {
            self.look_ahead(ino, (offset, len as usize), record.size, access);
            self.touch_if_relative(ino, &record);
        }
        start
    }

    /// The one blob that holds the whole range up to the end of the file: its offset there, and the length.
    /// None if there are several.
    fn one_range(&self, ino: Ino, offset: u64, len: u32) -> Option<(InodeRecord, BlobId, u32, u32)> {
        let is_remote = !self.options.local;
        if !is_remote || !self.options.names_local && !self.are_names_at_hand(ino, offset, len) {
            return None;
        }
        let record = self.file(ino).ok().filter(|record| !record.has(InodeRecord::INLINE))?;
        let len = u64::from(len).min(record.size.checked_sub(offset)?) as u32;
        let (page, at) = page_of(offset);
        let extents = self.names.extents(ino, page).ok()?;
        let mut parts = extents.parts(at, len);
        let Some(Part::Data(extent)) = parts.next() else { return None };
        let fits = at.checked_add(len)? <= BLOB_MAX && extent.len == len;
        match self.place_of(extent.pack) {
            Ok(Some(Place::Blob(blob))) if fits && len > 0 => Some((record, blob, extent.offset, len)),
            _ => None,
        }
    }

    /// Whether a byte of the range is on no disk of this machine. False where that cannot be told: the read
    /// will find out.
    fn read_is_remote(&self, ino: Ino, offset: u64, len: u32) -> bool {
        let end = offset.saturating_add(u64::from(len));
        let (first, at) = page_of(offset);
        let (last, _) = page_of(end.saturating_sub(1));
        (first..=last).any(|page| {
            let Ok(extents) = self.names.extents(ino, page) else { return false };
            let from = if page == first { at } else { 0 };
            let until = (end - u64::from(page) * u64::from(BLOB_MAX)).min(u64::from(BLOB_MAX)) as u32;
            extents.extents().iter().filter(|e| e.at < until && e.end() > from).any(|e| {
                matches!(self.place_of(e.pack), Ok(Some(Place::Blob(blob))) if !self.parts.source.is_local(&blob))
            })
        })
    }

    pub(crate) fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Error> {
        let record = self.file(ino)?;
        if offset >= record.size {
            return Err(Errno::ENXIO.into());
        }
        if record.has(InodeRecord::INLINE) {
            return Ok(match what {
                Seek::Data => offset,
                Seek::Hole => record.size,
            });
        }
        let found = match what {
            Seek::Data => self.next_data(ino, offset)?,
            Seek::Hole => Some(self.next_hole(ino, offset, record.size)?),
        };
        match (found, what) {
            (Some(at), Seek::Data) if at >= record.size => Err(Errno::ENXIO.into()),
            (Some(at), _) => Ok(at.min(record.size)),
            (None, _) => Err(Errno::ENXIO.into()),
        }
    }

    fn next_data(&self, ino: Ino, offset: u64) -> Result<Option<u64>, Error> {
        let (page, at) = page_of(offset);
        let mut from = page;
        // Pages without a row are holes: the search takes one step for each page that has data, however large
        // the file is.
        while let Some((found, extents)) = self.names.extent_pages(ino, from, 1)?.pop() {
            let start = u64::from(found) * u64::from(BLOB_MAX);
            if let Some(data) = extents.next_data(if found == page { at } else { 0 }) {
                return Ok(Some(start + u64::from(data)));
            }
            match found.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(None)
    }

    fn next_hole(&self, ino: Ino, offset: u64, size: u64) -> Result<u64, Error> {
        let (mut page, mut at) = page_of(offset);
        loop {
            let start = u64::from(page) * u64::from(BLOB_MAX);
            if start >= size {
                return Ok(size);
            }
            if let Some(hole) = self.names.extents(ino, page)?.next_hole(at) {
                return Ok(start + u64::from(hole));
            }
            match page.checked_add(1) {
                Some(next) => (page, at) = (next, 0),
                None => return Ok(size),
            }
        }
    }
}
