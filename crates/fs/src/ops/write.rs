//! Writes: where the bytes of a write are stored, and how ranges are copied by reference.
//!
//! ```text
//!   whole file at most 512 bytes    ─► inline, under the file's lock, taken exclusively
//!   an inline file grows past that  ─► all of it to a pack, likewise
//!   a whole new file below 1 MiB    ─► hashed: the same content may be stored already
//!   everything else                 ─► to a pack first, then the names, under the shared lock
//! ```

use base::size::{FILE_MAX, INLINE_MAX, MIB};
use base::{BlobId, Ino, time};
use meta::plan::op::{Body, Piece};
use meta::plan::{Op, Refusal};
use meta::record::InodeRecord;

use crate::api::Caller;
use crate::bytes::{Stored, content_id};
use crate::equal::Target;
use crate::errno::{Errno, Error};
use crate::ops::set_ids::SET_IDS;
use crate::volume::Core;

/// The largest content that is looked up by its hash as a whole. The kernel sends at most 1 MiB at a time, so
/// a write of the full size is most likely only the beginning of a file.
const WHOLE_MAX: usize = MIB as usize - 1;

/// The circumstances of a write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// The writer, if its write clears set-id bits.
    pub(crate) unprivileged: Option<Caller>,
    pub(crate) cached: bool,
}

impl Core {
    /// Writes. Returns true if that cleared set-id bits.
    pub(crate) fn write(&self, ino: Ino, offset: u64, data: &[u8], how: How) -> Result<bool, Error> {
        let before = if how.unprivileged.is_some() { self.file(ino)?.mode & SET_IDS } else { 0 };
        self.write_bytes(ino, offset, data, how)?;
        Ok(before != 0 && !self.still_has(ino, before))
    }

    /// Writes at the end of the file, wherever that is. Returns true if that cleared set-id bits.
    pub(crate) fn append(&self, ino: Ino, data: &[u8], how: How) -> Result<bool, Error> {
        let before = if how.unprivileged.is_some() { self.file(ino)?.mode & SET_IDS } else { 0 };
        loop {
            match self.try_append(ino, data, how) {
                // Somebody else wrote meanwhile. Its end may be another one now.
                Err(Error::Refused(Refusal::Changed | Refusal::MustOutline)) => {}
                done => break done?,
            }
        }
        Ok(before != 0 && !self.still_has(ino, before))
    }

    /// Whether the file has these set-id bits after a write, which is done. So an error, or a lease that must
    /// be waited for, is no reason to fail: the request would be done again.
    fn still_has(&self, ino: Ino, bits: u32) -> bool {
        self.file(ino).is_ok_and(|file| file.mode & SET_IDS == bits)
    }

    fn try_append(&self, ino: Ino, data: &[u8], mut how: How) -> Result<(), Error> {
        if data.is_empty() {
            return Ok(());
        }
        self.options.gate.pass()?;
        self.admit(data.len() as u64)?;
        let record = self.file(ino)?;
        let (offset, over) = (record.size, Some(record.change));
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_MAX).ok_or(Errno::EFBIG)?;
        self.admit_growth(&record, end, data.len())?;
        how.unprivileged = how.unprivileged.map(|caller| caller.before(&record));
        let inline = record.has(InodeRecord::INLINE);
        if (inline || is_blank(&record)) && end <= INLINE_MAX as u64 {
            let mut bytes = if inline { self.inline_bytes(ino, &record)? } else { vec![0; offset as usize] };
            bytes.extend_from_slice(data);
            return self.commit_over(ino, Body::Inline(&bytes), how, None, over);
        }
        let stored = match inline {
            true => self.store_over_inline(ino, &record, offset, data)?,
            false => self.store_in(ino, offset, data, offset)?,
        };
        self.commit_over(ino, Body::Packed(&stored.pieces), how, None, over)
    }

    fn write_bytes(&self, ino: Ino, offset: u64, data: &[u8], mut how: How) -> Result<(), Error> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_MAX).ok_or(Errno::EFBIG)?;
        self.options.gate.pass()?;
        self.admit(data.len() as u64)?;
        self.garbage.hold_back(|| self.sweep.wake());
        let record = self.file(ino)?;
        self.admit_growth(&record, end, data.len())?;
        how.unprivileged = how.unprivileged.map(|caller| caller.before(&record));
        if record.has(InodeRecord::INLINE) || (end <= INLINE_MAX as u64 && is_blank(&record)) {
            return self.write_small(ino, offset, data, how);
        }
        if offset == 0
            && record.size == 0
            && record.stored == 0
            && data.len() > INLINE_MAX
            && data.len() <= WHOLE_MAX
            && !self.is_shared()
        {
            return self.write_whole(ino, data, how);
        }
        let stored = self.store_in(ino, offset, data, record.size)?;
        let _shared = self.lock_of(ino).read();
        match self.commit_write(ino, Body::Packed(&stored.pieces), how, None) {
            Err(Error::Refused(Refusal::MustOutline)) => {}
            done => return done.inspect(|()| self.fresh.note(ino, &stored.pieces)),
        }
        drop(_shared);
        self.write_small(ino, offset, data, how)
    }

    fn commit_write(&self, ino: Ino, body: Body<'_>, how: How, intern: Option<BlobId>) -> Result<(), Error> {
        self.commit_over(ino, body, how, intern, None)
    }

    /// Commits a write. `over`: its body was made from a file with this [`InodeRecord::change`].
    fn commit_over(
        &self,
        ino: Ino,
        body: Body<'_>,
        how: How,
        intern: Option<BlobId>,
        over: Option<u64>,
    ) -> Result<(), Error> {
        let How { unprivileged, cached } = how;
        let unprivileged = unprivileged.map(|caller| caller.gid);
        let op = Op::Write { ino, body, unprivileged, cached, intern, over };
        // A cached write moves no times here: the kernel sends them itself, so a coarse clock is enough.
        let now = if cached { time::tick() } else { time::now() };
        let change = self.run_as(&Caller::default(), now, &op)?;
        if !change.crowded.is_empty() {
            // The write is done. A page that could not be put in order is no failure of the write.
            let _ = self.relieve(&change.crowded);
        }
        Ok(())
    }

    /// A write to a file that is inline, or could be. If another node changes the file meanwhile, the write
    /// is made again from what is there then.
    fn write_small(&self, ino: Ino, offset: u64, data: &[u8], how: How) -> Result<(), Error> {
        loop {
            match self.try_write_small(ino, offset, data, how) {
                Err(Error::Refused(Refusal::Changed)) => {}
                done => return done,
            }
        }
    }

    fn try_write_small(&self, ino: Ino, offset: u64, data: &[u8], how: How) -> Result<(), Error> {
        let _whole = self.lock_of(ino).write();
        let record = self.file(ino)?;
        let over = Some(record.change);
        let end = offset + data.len() as u64;
        let inline = record.has(InodeRecord::INLINE);
        if (inline || is_blank(&record)) && end.max(record.size) <= INLINE_MAX as u64 {
            let mut bytes =
                if inline { self.inline_bytes(ino, &record)? } else { vec![0; record.size as usize] };
            bytes.resize(record.size.max(end) as usize, 0);
            bytes[offset as usize..end as usize].copy_from_slice(data);
            return self.commit_over(ino, Body::Inline(&bytes), how, None, over);
        }
        let stored = if inline {
            self.store_over_inline(ino, &record, offset, data)?
        } else {
            self.store(ino, offset, data)?
        };
        self.commit_over(ino, Body::Packed(&stored.pieces), how, None, over)?;
        self.fresh.note(ino, &stored.pieces);
        Ok(())
    }

    /// Stores an inline file's bytes in a pack, with `data` written over them.
    fn store_over_inline(
        &self,
        ino: Ino,
        record: &InodeRecord,
        offset: u64,
        data: &[u8],
    ) -> Result<Stored, Error> {
        let mut old = self.inline_bytes(ino, record)?;
        let mut stored = Stored::default();
        if offset > old.len() as u64 {
            self.store_into(&mut stored, ino, 0, &old)?;
            self.store_into(&mut stored, ino, offset, data)?;
            return Ok(stored);
        }
        let tail_from = (offset as usize + data.len()).min(old.len());
        let tail = old.split_off(tail_from);
        old.truncate(offset as usize);
        old.extend_from_slice(data);
        old.extend_from_slice(&tail);
        self.store_into(&mut stored, ino, 0, &old)?;
        Ok(stored)
    }

    fn inline_bytes(&self, ino: Ino, record: &InodeRecord) -> Result<Vec<u8>, Error> {
        let mut bytes = self.names.inline(ino)?.map(|bytes| bytes.to_vec()).unwrap_or_default();
        bytes.resize(record.size.min(INLINE_MAX as u64) as usize, 0);
        Ok(bytes)
    }

    /// Moves an inline file's bytes to a pack. The caller holds the file's lock exclusively.
    pub(crate) fn outline(&self, ino: Ino) -> Result<(), Error> {
        let record = self.file(ino)?;
        if !record.has(InodeRecord::INLINE) {
            return Ok(());
        }
        let bytes = self.inline_bytes(ino, &record)?;
        let stored = self.store(ino, 0, &bytes)?;
        // Like a cached write: moving bytes moves no times.
        let how = How { cached: true, ..How::default() };
        match self.commit_over(ino, Body::Moved(&stored.pieces), how, None, Some(record.change)) {
            Err(Error::Refused(Refusal::Changed)) => self.outline(ino),
            done => done,
        }
    }

    /// Writes the whole content of an empty file, which may be stored already.
    fn write_whole(&self, ino: Ino, data: &[u8], how: How) -> Result<(), Error> {
        let hash = content_id(data);
        let known = self.names.content(&hash)?.filter(|found| found.len as usize == data.len());
        let target = known.as_ref().map(|found| self.check_target(found, data, false));
        if let Some(found) = known.filter(|_| target == Some(Target::Sound)) {
            let piece = Piece { at: 0, len: found.len, pack: found.pack, offset: found.offset, fresh: None };
            let _shared = self.lock_of(ino).read();
            match self.commit_write(ino, Body::Packed(&[piece]), how, None) {
                Err(Error::Refused(Refusal::ContentGone)) => {}
                Err(Error::Refused(Refusal::MustOutline)) => {
                    drop(_shared);
                    return self.write_small(ino, 0, data, how);
                }
                done => {
                    if done.is_ok() {
                        self.counters.dedup_hits.add(1);
                        self.counters.dedup_bytes.add(data.len() as u64);
                        self.fresh.note_whole(ino, piece.len);
                    }
                    return done;
                }
            }
        }
        let stored = self.store(ino, 0, data)?;
        let _shared = self.lock_of(ino).read();
        // If it is unknown whether the stored bytes still exist, the content row stays as it is, and
        // deduplication checks them later.
        let intern = Some(hash).filter(|_| target != Some(Target::Unknown));
        match self.commit_write(ino, Body::Packed(&stored.pieces), how, intern) {
            Err(Error::Refused(Refusal::MustOutline)) => {}
            done => {
                done?;
                match intern {
                    Some(_) => self.fresh.note_whole(ino, data.len() as u32),
                    None => self.fresh.note(ino, &stored.pieces),
                }
                if let (Some(lost), Some(Target::Lost), [piece]) = (&known, target, &stored.pieces[..])
                    && let Err(error) = self.heal(lost, piece.pack, piece.offset)
                {
                    self.report(&format!(
                        "what refers to lost bytes of {:?} stays as it is: {error}",
                        lost.pack
                    ));
                }
                return Ok(());
            }
        }
        drop(_shared);
        self.write_small(ino, 0, data, how)
    }

    /// Copies a range by reference. Returns how many bytes.
    pub(crate) fn copy_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, Error> {
        self.admit(0)?;
        let source = self.file(from)?;
        self.file(to)?;
        let len = len.min(source.size.saturating_sub(from_offset));
        if len == 0 {
            return Ok(0);
        }
        if to_offset.checked_add(len).is_none_or(|end| end > FILE_MAX) {
            return Err(Errno::EFBIG.into());
        }
        if from == to && from_offset < to_offset + len && to_offset < from_offset + len {
            return Err(Errno::EINVAL.into());
        }
        if source.has(InodeRecord::INLINE) {
            let mut bytes = vec![0; len as usize];
            let done = self.read_file(from, &source, None, from_offset, &mut bytes)?;
            self.write(to, to_offset, &bytes[..done], How::default())?;
            return Ok(done as u64);
        }
        self.with_both(from, to, || self.copy_locked(from, from_offset, to, to_offset, len))
    }

    fn copy_locked(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64, Error> {
        let mut done = 0;
        while done < len {
            let op = Op::CopyRange {
                from,
                from_offset: from_offset + done,
                to,
                to_offset: to_offset + done,
                len: len - done,
            };
            match self.run(&op) {
                Err(Error::Refused(Refusal::MustOutline)) => {
                    self.outline(from)?;
                    self.outline(to)?;
                }
                Ok(change) if change.done == 0 => break,
                Ok(change) => done += change.done,
                // Ranges copied so far stay copied, and the caller learns how many bytes that is.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// The extents of the page that a byte is in.
    #[cfg(test)]
    pub(crate) fn extents_at(&self, ino: Ino, offset: u64) -> blob::ExtentPage {
        self.names.extents(ino, crate::page::page_of(offset).0).unwrap()
    }
}

/// Whether a file has no stored byte and is small enough to be inline.
fn is_blank(record: &InodeRecord) -> bool {
    record.stored == 0 && record.size <= INLINE_MAX as u64
}
