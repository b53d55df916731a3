//! Attributes and sizes.

use base::size::FILE_MAX;
use base::{Ino, Timestamp, time};
use meta::plan::op::SetAttrs;
use meta::plan::{Change, Op, Refusal};
use meta::record::mode;

use super::lookup::attr_of;
use crate::api::{Attr, Caller, SetAttr, SetTime};
use crate::errno::{Errno, Error};
use crate::volume::Core;

fn moment(set: SetTime, now: Timestamp) -> Timestamp {
    match set {
        SetTime::Now => now,
        SetTime::To(moment) => moment,
    }
}

/// The time of a change of attributes. A kernel that keeps a file's times itself sends the time, so the clock
/// need not be read.
fn asked_at(set: &SetAttr) -> Timestamp {
    let by_clock = |time| matches!(time, Some(SetTime::Now));
    match set.ctime {
        Some(ctime) if set.size.is_none() && !by_clock(set.atime) && !by_clock(set.mtime) => ctime,
        _ => time::now(),
    }
}

impl Core {
    pub(crate) fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr, Error> {
        if let Some(attr) = self.times_of_the_gone(ino, set)? {
            return Ok(attr);
        }
        let now = asked_at(set);
        let attrs = SetAttrs {
            perm: set.perm.map(u32::from),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(|t| moment(t, now)),
            mtime: set.mtime.map(|t| moment(t, now)),
            ctime: set.ctime,
            unprivileged: self.unprivileged(caller, ino, set)?,
        };
        let change = match set.size {
            Some(size) => self.resize(caller, now, ino, size, attrs)?,
            None => self.run_as(caller, now, &Op::SetAttr { ino, set: attrs })?,
        };
        let (ino, record) = self.outcome(&change)?;
        attr_of(ino, &record)
    }

    /// A kernel that keeps the times of regular files itself sends them once more when the last name is
    /// removed. Only this kernel could ask for them again, and a file whose name was removed never gets
    /// another. So nothing is written.
    fn times_of_the_gone(&self, ino: Ino, set: &SetAttr) -> Result<Option<Attr>, Error> {
        let &SetAttr {
            perm: None,
            uid: None,
            gid: None,
            size: None,
            atime: None,
            mtime,
            ctime: Some(ctime),
            ..
        } = set
        else {
            return Ok(None);
        };
        let mut record = self.inode(ino)?;
        // An inode without a parent was made without a name, and may still get its first one.
        if record.nlink > 0 || record.parent == Ino(0) || record.kind() != mode::S_IFREG {
            return Ok(None);
        }
        record.ctime = ctime;
        record.mtime = mtime.map_or(record.mtime, |mtime| moment(mtime, ctime));
        attr_of(ino, &record).map(Some)
    }

    /// The group of a caller that lacks the privilege to keep set-id bits.
    fn unprivileged(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Option<u32>, Error> {
        if !set.kill_suid_sgid {
            return Ok(None);
        }
        let caller = caller.before(&self.inode(ino)?);
        // With a change of owner, the kernel does not say whether the caller has CAP_FSETID. Root has it.
        let chown = set.uid.is_some() || set.gid.is_some();
        Ok((!chown || caller.uid != 0).then_some(caller.gid))
    }

    fn resize(
        &self,
        caller: &Caller,
        now: Timestamp,
        ino: Ino,
        size: u64,
        set: SetAttrs,
    ) -> Result<Change, Error> {
        if size > FILE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let _whole = self.lock_of(ino).write();
        self.file(ino)?;
        loop {
            let op = Op::SetAttr { ino, set };
            match self.run_as(caller, now, &op) {
                Err(Error::Refused(Refusal::MustOutline)) => self.outline(ino)?,
                Ok(change) if change.more => {}
                done => return done,
            }
        }
    }
}
