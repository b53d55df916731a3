//! In which group a caller is, as far as set-group-id asks.
//!
//! FUSE says a caller's one effective group. The others stand in `/proc/PID/status`, which is read only where they matter: before
//! somebody of another group writes to a set-group-id file that its group may not run. The caller waits for us, so what stands
//! there holds; where it cannot be read (another PID namespace, a hidden /proc) the bit goes, which is the safe side.

use base::{Ino, time};
use meta::plan::Op;
use meta::plan::op::SetAttrs;
use meta::record::{InodeRecord, mode};

use crate::api::Caller;
use crate::errno::Error;
use crate::volume::Core;

/// The bits that let a program run with the rights of its file.
pub(crate) const SET_IDS: u32 = mode::S_ISUID | mode::S_ISGID;

impl Core {
    /// Set-id bits go before `caller` changes a file's bytes by another way than write(2), where the kernel does not say that they must.
    /// It says who asks, and root may leave them. True if any went. (Capabilities go with the change itself, whoever makes it.)
    pub(crate) fn drop_privileges(&self, caller: Caller, ino: Ino) -> Result<bool, Error> {
        let record = self.file(ino)?;
        if caller.uid == 0 || record.mode & SET_IDS == 0 {
            return Ok(false);
        }
        let caller = caller.before(&record);
        let set = SetAttrs { unprivileged: Some(caller.gid), ..SetAttrs::default() };
        self.run_as(&caller, time::now(), &Op::SetAttr { ino, set })?;
        Ok(self.file(ino)?.mode & SET_IDS != record.mode & SET_IDS)
    }
}

impl Caller {
    /// The same; one who is in the file's group by a supplementary group gets that as the effective one.
    pub(crate) fn before(self, record: &InodeRecord) -> Caller {
        let asks = record.mode & (mode::S_ISGID | mode::S_IXGRP) == mode::S_ISGID;
        if asks && self.gid != record.gid && self.is_also_in(record.gid) {
            return Caller { gid: record.gid, ..self };
        }
        self
    }

    fn is_also_in(self, group: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{}/status", self.pid))
            .is_ok_and(|status| supplementary(&status).any(|gid| gid == group))
    }
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
}
