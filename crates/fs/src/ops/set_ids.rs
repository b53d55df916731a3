//! In which group a caller is, as far as set-group-id asks.
//!
//! FUSE says a caller's one effective group. The others stand in `/proc/PID/status`, which is read only where they matter: before
//! somebody of another group writes to a set-group-id file that its group may not run. The caller waits for us, so what stands
//! there holds; where it cannot be read (another PID namespace, a hidden /proc) the bit goes, which is the safe side.

use meta::record::{InodeRecord, mode};

use crate::api::Caller;

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
