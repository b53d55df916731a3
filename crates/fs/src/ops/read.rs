//! Reads, and the search for data and holes.

use std::ops::Range;

use base::size::BLOB_MAX;
use base::{BlobId, Ino};
use blob::completion::{Completion, Start};
use blob::extent::{ExtentPage, Part};
use meta::Key;
use meta::names::FilePage;
use meta::record::InodeRecord;

use crate::api::{Seek, Waiting};
use crate::errno::{Errno, Error};
use crate::packs::table::Place;
use crate::page::page_of;
use crate::read_plan::{FoundNames, ReadPlan};
use crate::volume::Core;

/// A read of at least so many bytes is part of a stream. It may wait milliseconds for the disk, and the
/// kernel has sent the next reads already. So it runs on another thread: the receiving thread takes further
/// requests, and several such reads run at once.
const STREAM_LEN: u32 = 256 << 10;

/// The result of a look for a read's names.
enum Looked {
    /// A row would have to be fetched.
    Elsewhere,
    /// A row cannot be read.
    Failed,
    Found {
        names: FoundNames,
        /// Whether a byte of the range is on no disk of this machine.
        is_remote: bool,
    },
}

impl Core {
    pub(crate) fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        if self.is_shared() {
            return self.read_of_one_moment(ino, offset, buf);
        }
        let record = self.file(ino)?;
        self.read_known(ino, &record, None, offset, buf)
    }

    /// A read whose size and bytes belong together, as far as one page of the file goes. Otherwise a file
    /// that another node cuts and writes again would show zeros that were never in it.
    fn read_of_one_moment(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let page = page_of(offset).0;
        let found = self.names.file_page(ino, page)?.filter(|found| found.record.is_file());
        let Some(FilePage { record, inline, extents }) = found else {
            // Not there, or no file.
            let record = self.file(ino)?;
            return self.read_known(ino, &record, None, offset, buf);
        };
        let found = FoundNames { record, inline, page, extents };
        self.read_known(ino, &record, Some(&found), offset, buf)
    }

    /// A read with the names of its plan, if the plan has any.
    pub(crate) fn read_planned(&self, plan: &ReadPlan, buf: &mut [u8]) -> Result<usize, Error> {
        match &plan.found {
            Some(found) => self.read_known(plan.ino, &found.record, Some(found), plan.offset, buf),
            None => self.read(plan.ino, plan.offset, buf),
        }
    }

    fn read_known(
        &self,
        ino: Ino,
        record: &InodeRecord,
        found: Option<&FoundNames>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Error> {
        let done = self.read_file(ino, record, found, offset, buf)?;
        if done > 0 {
            self.touch_if_relative(ino, record);
        }
        Ok(done)
    }

    pub(crate) fn would_wait(&self, request: Waiting) -> bool {
        match request {
            Waiting::Read { ino, offset, len } => self.plan_read(ino, offset, len).waits,
            // A write that waited on the thread that received it would delay reads too.
            Waiting::Write => !self.options.gate.is_open(),
            Waiting::Sync => true,
            Waiting::Change => false,
            Waiting::Lock => self.is_shared(),
            Waiting::Look => !self.options.names_local,
        }
    }

    /// Looks up a read's names and places, unless all of a volume is on this machine. A read waits if it is
    /// long, or if a row or a byte of its range is on no disk of this machine.
    pub(crate) fn plan_read(&self, ino: Ino, offset: u64, len: u32) -> ReadPlan {
        let is_long = len >= STREAM_LEN;
        let plan = |waits| ReadPlan::without_names(ino, offset, len, waits);
        if self.options.local && self.options.names_local {
            return plan(is_long);
        }
        match self.look_up(ino, offset, len) {
            Looked::Elsewhere => plan(true),
            // The read finds the error again, and returns it.
            Looked::Failed => plan(is_long),
            Looked::Found { names, is_remote } => {
                ReadPlan { found: Some(names), ..plan(is_long || is_remote) }
            }
        }
    }

    /// The names of a range, if they are on this machine. Never waits.
    fn look_up(&self, ino: Ino, offset: u64, len: u32) -> Looked {
        if !self.is_row_here(&Key::inode(ino)) {
            return Looked::Elsewhere;
        }
        let (page, at) = page_of(offset);
        if self.is_shared() {
            return self.look_up_shared(ino, page, at, len);
        }
        let Ok(record) = self.file(ino) else { return Looked::Failed };
        if record.has(InodeRecord::INLINE) {
            let names = FoundNames { record, inline: None, page, extents: ExtentPage::new() };
            return match self.is_row_here(&Key::inline(ino)) {
                true => Looked::Found { names, is_remote: false },
                false => Looked::Elsewhere,
            };
        }
        let end = offset.saturating_add(u64::from(len.max(1)));
        let last = page_of(end - 1).0;
        let (mut first, mut is_remote) = (None, false);
        for n in page..=last {
            if !self.is_row_here(&Key::extents(ino, n)) {
                return Looked::Elsewhere;
            }
            let Ok(extents) = self.names.extents(ino, n) else { return Looked::Failed };
            let from = if n == page { at } else { 0 };
            let until = (end - u64::from(n) * u64::from(BLOB_MAX)).min(u64::from(BLOB_MAX)) as u32;
            match self.is_range_remote(&extents, from..until) {
                Some(remote) => is_remote |= remote,
                None => return Looked::Elsewhere,
            }
            first.get_or_insert(extents);
        }
        let extents = first.unwrap_or_default();
        Looked::Found { names: FoundNames { record, inline: None, page, extents }, is_remote }
    }

    /// Looks up the names of one page as [`Core::look_up`] does, in a shared volume and as of one moment.
    fn look_up_shared(&self, ino: Ino, page: u32, at: u32, len: u32) -> Looked {
        let rows = [Key::inline(ino), Key::extents(ino, page)];
        if u64::from(at) + u64::from(len) > u64::from(BLOB_MAX)
            || !rows.iter().all(|row| self.is_row_here(row))
        {
            return Looked::Elsewhere;
        }
        let Ok(Some(found)) = self.names.file_page(ino, page) else { return Looked::Failed };
        let FilePage { record, inline, extents } = found;
        if !record.is_file() {
            return Looked::Failed;
        }
        let Some(is_remote) = self.is_range_remote(&extents, at..at + len) else { return Looked::Elsewhere };
        Looked::Found { names: FoundNames { record, inline, page, extents }, is_remote }
    }

    /// Whether a byte of this range of a page is on no disk of this machine. False where that cannot be told:
    /// the read finds out. `None` if the row of a pack would have to be fetched.
    fn is_range_remote(&self, extents: &ExtentPage, range: Range<u32>) -> Option<bool> {
        let mut is_remote = false;
        for extent in extents.extents().iter().filter(|e| e.at < range.end && e.end() > range.start) {
            if let Some(blob) = self.table.named(extent.pack) {
                is_remote |= !self.parts.source.is_local(&blob);
                continue;
            }
            if self.table.get(extent.pack).is_none() && !self.is_row_here(&Key::pack(extent.pack)) {
                return None;
            }
            if let (false, Ok(Some(Place::Blob(blob)))) = (self.options.local, self.place_of(extent.pack)) {
                is_remote |= !self.parts.source.is_local(&blob);
            }
        }
        Some(is_remote)
    }

    fn is_row_here(&self, key: &Key) -> bool {
        self.options.names_local || self.names.is_at_hand(key)
    }

    /// Begins a read that would wait. `Read` if the range spans several blobs, or if names must be fetched
    /// first.
    pub(crate) fn start_read(&self, plan: &ReadPlan, completion: Completion) -> Start {
        let Some((found, blob, range)) = self.one_range(plan) else { return Start::Read };
        let (ino, size) = (plan.ino, found.record.size);
        let hint = self.hint_of(ino, &found.record);
        let len = (range.end - range.start) as usize;
        let start = self.parts.source.start_read(&blob, range, hint.access, completion);
        if !matches!(start, Start::Read) {
            if hint.keep {
                self.parts.source.evict_last(&blob);
            }
            self.look_ahead(ino, plan.offset, len, size, hint.access);
            self.touch_if_relative(ino, &found.record);
        }
        start
    }

    /// The one blob that holds the whole range up to the end of the file, and the range there. `None` if
    /// there are several, or if the plan has no names.
    fn one_range<'a>(&self, plan: &'a ReadPlan) -> Option<(&'a FoundNames, BlobId, Range<u32>)> {
        let found = plan.found.as_ref().filter(|found| !found.record.has(InodeRecord::INLINE))?;
        let len = u64::from(plan.len).min(found.record.size.checked_sub(plan.offset)?) as u32;
        let at = page_of(plan.offset).1;
        let mut parts = found.extents.parts(at, len);
        let Some(Part::Data(extent)) = parts.next() else { return None };
        let fits = at.checked_add(len)? <= BLOB_MAX && extent.len == len;
        // A pack of another node may have to be read from that node, as long as the table does not have it.
        let place = match self.elsewhere(extent.pack) {
            Some(_) => self.table.get(extent.pack),
            None => self.place_of(extent.pack).ok().flatten(),
        };
        match place {
            Some(Place::Blob(blob)) if !self.options.local && fits && len > 0 => {
                Some((found, blob, extent.offset..extent.offset + len))
            }
            _ => None,
        }
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
