//! Attributes and sizes.

use base::size::FILE_MAX;
use base::{Ino, Timestamp, time};
use meta::plan::op::SetAttrs;
use meta::plan::{Change, Op, Refusal};

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

impl Core {
    pub(crate) fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr, Error> {
        let now = time::now();
        let attrs = SetAttrs {
            perm: set.perm.map(u32::from),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(|t| moment(t, now)),
            mtime: set.mtime.map(|t| moment(t, now)),
            ctime: set.ctime,
            kill_suid_sgid: set.kill_suid_sgid,
        };
        let change = match set.size {
            Some(size) => self.resize(caller, now, ino, size, attrs)?,
            None => self.run_as(caller, now, &Op::SetAttr { ino, set: attrs })?,
        };
        let (ino, record) = self.outcome(&change)?;
        attr_of(ino, &record)
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
