//! Links and unlinks.

use base::Ino;
use meta::plan::{Change, Op};
use meta::record::{InodeRecord, mode};

use super::check_name;
use crate::api::{Entry, Touched};
use crate::errno::{Errno, Error};
use crate::volume::Core;

impl Core {
    /// The inode that a change concerns, as it is afterwards.
    pub(crate) fn outcome(&self, change: &Change) -> Result<(Ino, InodeRecord), Error> {
        change.inode.ok_or(Error::Errno(Errno::EIO))
    }

    pub(crate) fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry, Error> {
        check_name(name)?;
        self.admit(0)?;
        let finding = self.refs.finding();
        let change = self.run(&Op::Link { ino, parent, name })?;
        let (ino, record) = self.outcome(&change)?;
        let entry = self.entry_of(ino, &record)?;
        finding.hold(ino);
        Ok(entry)
    }

    pub(crate) fn unlink(&self, parent: Ino, name: &[u8]) -> Result<Touched, Error> {
        check_name(name)?;
        let change = self.run(&Op::Unlink { parent, name })?;
        Ok(Touched([file_of(&change), None]))
    }

    pub(crate) fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<(), Error> {
        match name {
            b"." => return Err(Errno::EINVAL.into()),
            b".." => return Err(Errno::ENOTEMPTY.into()),
            _ => check_name(name)?,
        }
        self.run(&Op::Rmdir { parent, name }).map(drop)
    }
}

/// The inode of a change, if it is a regular file.
pub(super) fn file_of(change: &Change) -> Option<Ino> {
    change.inode.filter(|(_, record)| record.kind() == mode::S_IFREG).map(|(ino, _)| ino)
}
