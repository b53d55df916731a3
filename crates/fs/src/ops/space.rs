//! fallocate(2) and statfs(2).

use std::ops::Range;

use base::Ino;
use base::size::{FILE_MAX, INLINE_MAX};
use meta::plan::op::Body;
use meta::plan::{Op, Refusal};
use meta::record::InodeRecord;

use crate::api::{Allocate, StatFs};
use crate::errno::{Errno, Error};
use crate::volume::Core;

/// The number of free inodes that statfs(2) shows. Inode numbers do not run out, but tools divide by this
/// value.
const INODES_FREE: u64 = 1 << 40;

impl Core {
    pub(crate) fn allocate(&self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<(), Error> {
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = offset.checked_add(len).filter(|end| *end <= FILE_MAX).ok_or(Errno::EFBIG)?;
        loop {
            match self.try_allocate(ino, offset..end, how) {
                // Another node changed the inline file meanwhile.
                Err(Error::Refused(Refusal::Changed)) => {}
                done => return done,
            }
        }
    }

    fn try_allocate(&self, ino: Ino, range: Range<u64>, how: Allocate) -> Result<(), Error> {
        let (offset, end, len) = (range.start, range.end, range.end - range.start);
        let _whole = self.lock_of(ino).write();
        let record = self.file(ino)?;
        let (punch, grow_to) = match how {
            Allocate::Reserve { keep_size } => {
                // Nothing is reserved: packs are append-only, so reserved space would go to other bytes. But
                // a range that could never fit is refused.
                self.admit(len)?;
                (0, (!keep_size && end > record.size).then_some(end))
            }
            Allocate::PunchHole => (len, None),
            Allocate::Zero { keep_size } => {
                self.admit(0)?;
                (len, (!keep_size && end > record.size).then_some(end))
            }
        };
        // The times change, and a file loses its capabilities, even if the call changes nothing else.
        if record.has(InodeRecord::INLINE) {
            let size = grow_to.unwrap_or(record.size);
            if size <= INLINE_MAX as u64 {
                return self.zero_inline(ino, &record, offset, punch, size);
            }
            self.outline(ino)?;
        }
        loop {
            match self.run(&Op::Punch { ino, offset, len: punch, grow_to }) {
                Err(Error::Refused(Refusal::MustOutline)) => self.outline(ino)?,
                Ok(change) if change.more => {}
                done => return done.map(drop),
            }
        }
    }

    fn zero_inline(
        &self,
        ino: Ino,
        record: &InodeRecord,
        offset: u64,
        len: u64,
        size: u64,
    ) -> Result<(), Error> {
        let mut bytes = vec![0; record.size as usize];
        self.read_file(ino, record, None, 0, &mut bytes)?;
        bytes.resize(size as usize, 0);
        let from = offset.min(size) as usize;
        let to = offset.saturating_add(len).min(size) as usize;
        bytes[from..to].fill(0);
        let (body, over) = (Body::Inline(&bytes), Some(record.change));
        let op = Op::Write { ino, body, unprivileged: None, cached: false, intern: None, over };
        self.run(&op).map(drop)
    }

    /// Refuses a write of `len` bytes up to `end` that no quota has room for, before its bytes are stored.
    /// Those past the file's end are new for certain. Whether the others are, the plan finds out.
    pub(crate) fn admit_growth(&self, record: &InodeRecord, end: u64, len: usize) -> Result<(), Error> {
        let quotas = self.names.quotas();
        if record.quota == Ino(0) || !quotas.any() {
            return Ok(());
        }
        let growth = end.saturating_sub(record.size).min(len as u64);
        let has_room = quotas.room(record.quota).bytes.is_none_or(|(_, left)| growth <= left);
        if has_room { Ok(()) } else { Err(Refusal::OverQuota.into()) }
    }

    pub(crate) fn statfs(&self, ino: Ino) -> Result<StatFs, Error> {
        let space = self.parts.packs.space()?;
        let totals = self.names.totals()?;
        let mut stat = StatFs {
            total: space.total,
            free: space.available.saturating_add(space.reserve).min(space.total),
            available: space.available.saturating_sub(crate::space::floor(space.total)),
            inodes: totals.inodes,
            inodes_free: INODES_FREE,
        };
        if self.names.quotas().any()
            && let Some(record) = self.names.inode(ino)?
        {
            let room = self.names.quotas().room(record.quota_below(ino));
            if let Some((limit, left)) = room.bytes {
                (stat.total, stat.free, stat.available) = (limit, left, left.min(stat.available));
            }
            if let Some((limit, left)) = room.inodes {
                (stat.inodes, stat.inodes_free) = (limit.saturating_sub(left), left);
            }
        }
        Ok(stat)
    }
}
