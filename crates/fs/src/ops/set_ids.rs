//! Which groups a caller is in, as far as the set-group-id bit depends on it.
//!
//! FUSE sends only a caller's effective group, and not even that where id-mapped mounts are allowed. The
//! others are in `/proc/PID/status`. That file is read only where they matter: before a caller of another
//! group writes to a set-group-id file that its group may not execute. The caller is blocked in its request,
//! so the file is up to date. Where it cannot be read (another PID namespace, a hidden /proc), the bit is
//! cleared, which is the safe side.

use base::{Ino, time};
use meta::plan::Op;
use meta::plan::op::SetAttrs;
use meta::record::{InodeRecord, mode};

use crate::api::Caller;
use crate::errno::Error;
use crate::volume::Core;

/// The bits that make a program run with the rights of its file's owner or group.
pub(crate) const SET_IDS: u32 = mode::S_ISUID | mode::S_ISGID;

impl Core {
    /// Clears set-id bits before `caller` changes a file's bytes by another way than write(2): there the
    /// kernel does not say that they must be cleared. Root may keep them. Returns true if any were cleared.
    /// (The change itself removes capabilities, for every user.)
    pub(crate) fn drop_privileges(&self, caller: Caller, ino: Ino) -> Result<bool, Error> {
        let record = self.file(ino)?;
        if record.mode & SET_IDS == 0 {
            return Ok(false);
        }
        let caller = caller.looked_up();
        if caller.uid == 0 {
            return Ok(false);
        }
        let caller = caller.before(&record);
        let set = SetAttrs { unprivileged: Some(caller.gid), ..SetAttrs::default() };
        let change = self.run_as(&caller, time::now(), &Op::SetAttr { ino, set })?;
        Ok(self.outcome(&change)?.1.mode & SET_IDS != record.mode & SET_IDS)
    }
}

impl Caller {
    /// The caller as a change of this inode must see it. If a supplementary group is the file's group, it
    /// becomes the effective group. A caller that the request does not name is looked up.
    pub(crate) fn before(self, record: &InodeRecord) -> Caller {
        let asks = record.mode & (mode::S_ISGID | mode::S_IXGRP) == mode::S_ISGID;
        if !asks || self.is_named() && self.gid == record.gid {
            return self;
        }
        let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", self.pid)) else { return self };
        let found = if self.is_named() { self } else { self.named_by(&status) };
        if found.gid != record.gid && supplementary(&status).any(|gid| gid == record.gid) {
            return Caller { gid: record.gid, ..found };
        }
        found
    }

    /// The caller with its user and group, also where the request does not name them. If the lookup fails,
    /// they stay unnamed.
    fn looked_up(self) -> Caller {
        if self.is_named() {
            return self;
        }
        std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .map_or(self, |status| self.named_by(&status))
    }

    /// Whether the request names its user. A kernel that allows id-mapped mounts names it only where
    /// something is created.
    fn is_named(self) -> bool {
        self.uid != u32::MAX
    }

    fn named_by(self, status: &str) -> Caller {
        let id = |name| filesystem_id(status, name).unwrap_or(u32::MAX);
        Caller { uid: id("Uid:"), gid: id("Gid:"), ..self }
    }
}

/// The filesystem id: the last of the four ids on a line of `/proc/PID/status`.
fn filesystem_id(status: &str, name: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// The groups that a `/proc/PID/status` lists.
fn supplementary(status: &str) -> impl Iterator<Item = u32> + '_ {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default().split_ascii_whitespace().filter_map(|gid| gid.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supplementary_groups_are_those_of_one_line() {
        let groups = |status| supplementary(status).collect::<Vec<_>>();
        assert_eq!(
            groups("Name:\tx 5\nGid:\t1\t2\t3\t4\nGroups:\t0 27 4294967294 \nNgid:\t9\n"),
            [0, 27, 4_294_967_294]
        );
        assert!(groups("Groups:\t \n").is_empty());
        assert!(groups("Groups: are not listed").is_empty());
        assert!(groups("").is_empty());
    }

    #[test]
    fn a_caller_whom_the_request_does_not_name_is_looked_up() {
        let status = "Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9\n";
        let asked = Caller { uid: u32::MAX, gid: u32::MAX, pid: 77 };
        assert_eq!(asked.named_by(status), Caller { uid: 4, gid: 8, pid: 77 });
        assert_eq!(asked.named_by(""), asked);
    }
}
