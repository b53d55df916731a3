//! Extended attributes and access control lists.

use base::Ino;
use base::size::NAME_MAX;
use meta::plan::Op;
use meta::record::InodeRecord;

use crate::access;
use crate::api::XattrMode;
use crate::errno::{Errno, Error};
use crate::volume::Core;

/// The namespaces of attributes. `system.` is only for ACLs, which the planner checks.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

/// The label of SELinux. A kernel with SELinux labels a FUSE mount as a whole, and asks for no file's label.
/// Elsewhere ls(1) asks for it, of each file, until it hears that there are none.
const LABEL: &[u8] = b"security.selinux";

/// What an attribute that is not there is answered.
fn absent(name: &[u8]) -> Error {
    if name == LABEL { Errno::EOPNOTSUPP.into() } else { Errno::ENODATA.into() }
}

fn check_xattr_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_MAX {
        return Err(Errno::ERANGE.into());
    }
    if !NAMESPACES.iter().any(|space| name.starts_with(space)) || name.contains(&0) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if NAMESPACES.contains(&name) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

impl Core {
    pub(crate) fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Error> {
        check_xattr_name(name)?;
        // Answered from the inode alone, because the kernel asks for `security.capability` before the first
        // write to every file.
        if self.names.inode(ino)?.is_some_and(|record| !record.has(InodeRecord::HAS_XATTRS)) {
            return Err(absent(name));
        }
        self.names.xattr(ino, name)?.map(|value| value.to_vec()).ok_or_else(|| absent(name))
    }

    pub(crate) fn setxattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<(), Error> {
        check_xattr_name(name)?;
        access::check_value(name, value)?;
        self.admit(0)?;
        let mode = match mode {
            XattrMode::Set => meta::plan::op::XattrMode::Set,
            XattrMode::Create => meta::plan::op::XattrMode::Create,
            XattrMode::Replace => meta::plan::op::XattrMode::Replace,
        };
        self.run(&Op::SetXattr { ino, name, value, mode, kill_sgid })?;
        self.attribute_changed(name);
        Ok(())
    }

    pub(crate) fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Error> {
        self.inode(ino)?;
        let mut list = Vec::new();
        for name in self.names.xattrs(ino)? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    pub(crate) fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<(), Error> {
        check_xattr_name(name)?;
        self.run(&Op::RemoveXattr { ino, name })?;
        self.attribute_changed(name);
        Ok(())
    }
}
