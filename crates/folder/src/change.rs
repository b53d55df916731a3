//! Creating inodes and setting attributes.

use std::os::fd::OwnedFd;

use base::Ino;
use fs::Errno;
use fs::api::{Caller, Entry, FileKind, NewNode, Result, SetAttr, SetTime};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, openat2};

use crate::access::BELOW;
use crate::nodes::Node;
use crate::{Folder, errno, path_of, reopen};

/// The bits that let a program run as another user or group.
const SET_IDS: u16 = (libc::S_ISUID | libc::S_ISGID) as u16;

impl Folder {
    /// The permissions of something new. A default ACL takes the place of the umask.
    fn masked(&self, dir: &Node, perm: u16, umask: u16) -> Result<Mode> {
        let mut none = [0_u8; 0];
        let has_acl =
            rustix::fs::getxattr(path_of(&*dir.fd()?), c"system.posix_acl_default", &mut none[..]).is_ok();
        Ok(Mode::from_raw_mode(u32::from(if has_acl { perm } else { perm & !umask })))
    }

    pub(crate) fn make_node(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry> {
        let dir = self.node(parent)?;
        let mode = self.masked(&dir, new.perm, new.umask)?;
        if new.kind == FileKind::File {
            return self.make_file(caller, &dir, name, mode);
        }
        let kind = FileType::from_raw_mode(new.kind.mode_bits());
        // The kernel's form of a device number is not the C library's.
        let (major, minor) = ((new.rdev >> 8) & 0xfff, (new.rdev & 0xff) | ((new.rdev >> 12) & 0xfff00));
        let device = rustix::fs::makedev(major, minor);
        self.make(caller, &dir, name, |dir| rustix::fs::mknodat(dir, name, kind, mode, device))
    }

    pub(crate) fn make_dir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        perm: u16,
        umask: u16,
    ) -> Result<Entry> {
        let dir = self.node(parent)?;
        let mode = self.masked(&dir, perm, umask)?;
        self.make(caller, &dir, name, |dir| rustix::fs::mkdirat(dir, name, mode))
    }

    pub(crate) fn make_link(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        let dir = self.node(parent)?;
        self.make(caller, &dir, name, |dir| rustix::fs::symlinkat(target, dir, name))
    }

    pub(crate) fn make_nameless(&self, caller: &Caller, parent: Ino, perm: u16, umask: u16) -> Result<Entry> {
        let dir = self.node(parent)?;
        let mode = self.masked(&dir, perm, umask)?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, path_of(&*dir.fd()?), flags, mode).map_err(errno)?;
        self.given(caller, &dir, file, mode)
    }

    /// A regular file. It has a descriptor from the beginning.
    fn make_file(&self, caller: &Caller, dir: &Node, name: &[u8], mode: Mode) -> Result<Entry> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat2(&dir.fd()?, name, flags, mode, BELOW).map_err(errno)?;
        #[cfg(test)]
        crate::tests::created();
        self.given(caller, dir, file, mode)
    }

    /// What has no descriptor when it is created. It is the caller's at once, and what is found under its
    /// name is only looked up.
    fn make(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        create: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> Result<Entry> {
        let fd = dir.fd()?;
        self.identity.of_caller(caller, || create(&fd))?;
        #[cfg(test)]
        crate::tests::created();
        self.found(self.name(dir, name)?)
    }

    /// Gives a file that was just created to its caller, counts it, and keeps it open.
    fn given(&self, caller: &Caller, dir: &Node, file: OwnedFd, mode: Mode) -> Result<Entry> {
        self.give(caller, dir, &file, mode)?;
        let entry = self.found(reopen(&file, OFlags::PATH)?)?;
        self.nodes.opened(entry.node, file);
        Ok(entry)
    }

    fn give(&self, caller: &Caller, dir: &Node, file: &OwnedFd, mode: Mode) -> Result<()> {
        let (uid, gid) = self.identity.others(caller);
        // In a directory with the set-group-id bit, the filesystem has given it the directory's group.
        let inherits = gid.is_some() && self.attr(&*dir.fd()?)?.perm & libc::S_ISGID as u16 != 0;
        let gid = gid.filter(|_| !inherits);
        if (uid, gid) == (None, None) {
            return Ok(());
        }
        rustix::fs::fchown(file, uid.map(Uid::from_raw), gid.map(Gid::from_raw)).map_err(errno)?;
        // Changing the owner clears these bits.
        if mode.as_raw_mode() & u32::from(SET_IDS) != 0 {
            rustix::fs::fchmod(file, mode).map_err(errno)?;
        }
        Ok(())
    }

    pub(crate) fn chmod(&self, node: &Node, perm: u16) -> Result<()> {
        if node.kind == FileKind::Symlink {
            return Err(Errno::EOPNOTSUPP);
        }
        let mode = Mode::from_raw_mode(u32::from(perm));
        rustix::fs::chmodat(CWD, path_of(&*node.fd()?), mode, AtFlags::empty()).map_err(errno)
    }

    /// Clears the set-id bits, as a write by a user without privileges does. Returns whether there were some.
    pub(crate) fn clear_set_ids(&self, node: &Node) -> Result<bool> {
        let perm = self.attr(&*node.fd()?)?.perm;
        let mut cleared = perm & !(libc::S_ISUID as u16);
        if perm & libc::S_IXGRP as u16 != 0 {
            cleared &= !(libc::S_ISGID as u16);
        }
        if cleared == perm || node.kind != FileKind::File {
            return Ok(false);
        }
        self.chmod(node, cleared)?;
        Ok(true)
    }

    pub(crate) fn set(&self, ino: Ino, node: &Node, set: &SetAttr) -> Result<()> {
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            rustix::fs::chownat(&node.fd()?, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        if set.kill_suid_sgid {
            self.clear_set_ids(node)?;
        }
        if let Some(perm) = set.perm {
            self.chmod(node, perm)?;
        }
        if let Some(size) = set.size {
            let file = self.file(ino, true)?;
            rustix::fs::ftruncate(&file, size).map_err(errno)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
            rustix::fs::utimensat(&node.fd()?, c"", &times, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        Ok(())
    }
}

fn time(set: Option<SetTime>) -> Timespec {
    match set {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SetTime::To(moment)) => {
            Timespec { tv_sec: moment.seconds(), tv_nsec: i64::from(moment.nanos()) }
        }
    }
}
