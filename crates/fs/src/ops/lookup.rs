//! Lookups of inodes, and the release of references to them.

use base::{Ino, Timestamp};
use meta::record::{InodeRecord, mode};

use super::check_name;
use crate::api::{Attr, Entry, FileKind};
use crate::errno::{Errno, Error};
use crate::refs::Finding;
use crate::volume::{Atime, Core};

/// An inode's attributes as stat(2) shows them.
pub(crate) fn attr_of(ino: Ino, record: &InodeRecord) -> Result<Attr, Error> {
    let damaged = || meta::store::StoreError::Damaged(format!("{ino:?} is of no kind that there is"));
    Ok(Attr {
        ino,
        kind: FileKind::from_mode(record.mode).ok_or_else(damaged)?,
        perm: (record.mode & mode::PERM) as u16,
        nlink: record.nlink,
        uid: record.uid,
        gid: record.gid,
        rdev: record.rdev,
        size: record.size,
        blocks: record.stored.div_ceil(512),
        atime: record.atime,
        mtime: record.mtime,
        ctime: record.ctime,
        btime: record.btime,
        version: record.version(),
    })
}

impl Core {
    /// Looks up a name. The caller's [`Finding`] counts the inode.
    pub(crate) fn lookup_in(&self, finding: &Finding<'_>, parent: Ino, name: &[u8]) -> Result<Entry, Error> {
        let (ino, record) = self.find(parent, name)?.ok_or(Errno::ENOENT)?;
        let entry = self.entry_of(ino, &record)?;
        self.hints.named(name, ino);
        finding.hold(ino);
        Ok(entry)
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry, Error> {
        let finding = self.refs.finding();
        if name == b"." {
            // The kernel does this to find an inode again of which it knows only the file handle; it need not
            // be a directory. An inode without a name that the kernel does not hold counts as deleted, even
            // if it is not reaped yet.
            let record = self.attr(parent)?;
            if record.nlink == 0 {
                return Err(Errno::ENOENT.into());
            }
            let entry = self.entry_of(parent, &record)?;
            finding.hold(parent);
            return Ok(entry);
        }
        self.lookup_in(&finding, parent, name)
    }

    /// Counts one more reference to an inode of which only the number is known. One without a name counts as
    /// deleted unless something holds it: the reaper may be at work on it.
    pub(crate) fn hold_again(&self, ino: Ino) -> Result<(), Error> {
        let finding = self.refs.finding();
        if self.attr(ino)?.nlink == 0 && !finding.is_held(ino) {
            return Err(Errno::ENOENT.into());
        }
        finding.hold(ino);
        Ok(())
    }

    /// The inode that a name refers to, `.` and `..` included. It is not counted as held.
    pub(crate) fn find(&self, parent: Ino, name: &[u8]) -> Result<Option<(Ino, InodeRecord)>, Error> {
        if name == b"." || name == b".." {
            let dir = self.attr(parent)?;
            if !dir.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            if name == b"." {
                return Ok(Some((parent, dir)));
            }
            let up = if parent == Ino::ROOT { parent } else { dir.parent };
            return Ok(Some((up, self.attr(up)?)));
        }
        check_name(name)?;
        if self.is_shared() {
            let found = self.names.entry(parent, name)?;
            return match (found.inode, found.parent) {
                (Some((ino, record)), _) => Ok(Some((ino, record)).filter(|(_, record)| record.nlink > 0)),
                (None, Some(dir)) if !dir.is_dir() => Err(Errno::ENOTDIR.into()),
                // A directory that was removed is found in another row.
                (None, None) if !self.inode(parent)?.is_dir() => Err(Errno::ENOTDIR.into()),
                (None, _) => Ok(None),
            };
        }
        match self.names.lookup(parent, name)? {
            // The inode may have been removed since the name was read.
            Some(dentry) => Ok(self.names.attr(dentry.ino)?.filter(|r| r.nlink > 0).map(|r| (dentry.ino, r))),
            None if self.inode(parent)?.is_dir() => Ok(None),
            None => Err(Errno::ENOTDIR.into()),
        }
    }

    /// The entry of an inode that was just changed. `record` is its newest record.
    pub(crate) fn entry_of(&self, ino: Ino, record: &InodeRecord) -> Result<Entry, Error> {
        Ok(Entry::of(attr_of(ino, record)?))
    }

    pub(crate) fn forget(&self, ino: Ino, count: u64) {
        if self.refs.forget(ino, count) {
            self.reaper.push(&[ino]);
        }
    }

    pub(crate) fn getattr(&self, ino: Ino) -> Result<Attr, Error> {
        attr_of(ino, &self.attr(ino)?)
    }

    pub(crate) fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Error> {
        let record = self.inode(ino)?;
        if record.kind() != mode::S_IFLNK {
            return Err(Errno::EINVAL.into());
        }
        match self.names.inline(ino)? {
            Some(target) => {
                self.touch_if_relative(ino, &record);
                Ok(target.to_vec())
            }
            None => {
                Err(meta::store::StoreError::Damaged(format!("{ino:?} is a link without a target")).into())
            }
        }
    }

    /// Updates the access time after a read of a file, a listing or a link, as the mount's options say.
    pub(crate) fn touch_if_relative(&self, ino: Ino, record: &InodeRecord) {
        if self.options.atime == Atime::Relative && !self.is_read_only() {
            self.touch_relative(ino, record, base::time::now());
        }
    }

    /// Updates the access time as `-o atime=relatime` does: when it is not later than the last change, or is
    /// a day old.
    fn touch_relative(&self, ino: Ino, record: &InodeRecord, now: Timestamp) {
        const DAY_NANOS: i128 = 86_400_000_000_000;
        let old = now.0 - record.atime.0 >= DAY_NANOS;
        if !(old || record.atime <= record.mtime || record.atime <= record.ctime) {
            return;
        }
        let set =
            meta::plan::op::SetAttrs { atime: Some(now), ctime: Some(record.ctime), ..Default::default() };
        // A read does not fail because its access time could not be stored.
        let _ = self.run(&meta::plan::Op::SetAttr { ino, set });
    }
}
