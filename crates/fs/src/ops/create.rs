//! New inodes: files, directories, symbolic links, special files.

use base::{Ino, time};
use meta::plan::Op;
use meta::plan::op::Make;
use meta::record::mode;

use super::check_name;
use crate::api::{Caller, Entry, FileKind, NewNode};
use crate::errno::{Errno, Error};
use crate::volume::Core;

/// Longest target of a symbolic link, in bytes: PATH_MAX without its NUL.
const TARGET_MAX: usize = 4095;

impl Core {
    fn create(&self, caller: &Caller, parent: Ino, name: &[u8], make: Make<'_>) -> Result<Entry, Error> {
        check_name(name)?;
        self.admit(0)?;
        let finding = self.refs.finding();
        let change = self.run_as(caller, time::now(), &Op::Create { parent, name, make })?;
        let (ino, record) = self.outcome(&change)?;
        let entry = self.entry_of(ino, &record)?;
        self.hints.named(name, ino);
        finding.hold(ino);
        Ok(entry)
    }

    pub(crate) fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        node: &NewNode,
    ) -> Result<Entry, Error> {
        if matches!(node.kind, FileKind::Dir | FileKind::Symlink) {
            return Err(Errno::EINVAL.into());
        }
        let make = Make {
            ino: self.next_ino()?,
            mode: node.kind.mode_bits() | u32::from(node.perm) & mode::PERM,
            umask: u32::from(node.umask),
            rdev: if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) {
                node.rdev
            } else {
                0
            },
            target: &[],
        };
        self.create(caller, parent, name, make)
    }

    pub(crate) fn mkdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        umask: u16,
    ) -> Result<Entry, Error> {
        let make = Make {
            ino: self.next_ino()?,
            mode: mode::S_IFDIR | u32::from(perm) & mode::PERM,
            umask: u32::from(umask),
            rdev: 0,
            target: &[],
        };
        self.create(caller, parent, name, make)
    }

    pub(crate) fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry, Error> {
        if target.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if target.len() > TARGET_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let make = Make { ino: self.next_ino()?, mode: mode::S_IFLNK | 0o777, umask: 0, rdev: 0, target };
        self.create(caller, parent, name, make)
    }

    pub(crate) fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        perm: u16,
        umask: u16,
    ) -> Result<Entry, Error> {
        self.admit(0)?;
        let make = Make {
            ino: self.next_ino()?,
            mode: mode::S_IFREG | u32::from(perm) & mode::PERM,
            umask: u32::from(umask),
            rdev: 0,
            target: &[],
        };
        let ino = make.ino;
        // Counted before it exists: it has no name, so the reaper would take it at once.
        self.refs.finding().hold(ino);
        let made = self
            .run_as(caller, time::now(), &Op::Tmpfile { parent, make })
            .and_then(|change| self.outcome(&change))
            .and_then(|(ino, record)| self.entry_of(ino, &record));
        match made {
            Ok(entry) => {
                self.reaper.push(&[ino]);
                Ok(entry)
            }
            Err(error) => {
                self.forget(ino, 1);
                Err(error)
            }
        }
    }
}
