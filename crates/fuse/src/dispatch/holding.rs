//! Work on a file through which a program took locks. When the locks end with the session of this machine,
//! another machine may have them. So the work fails with EIO from then on, until the program releases its
//! locks or opens the file anew, as with lost locks of NFSv4 (RFC 8881, 8.4.3) and of CephFS.
//!
//! Work that waits while the session ends is not done in the next one: [`in_session`].

use fs::Errno;
use fs::api::{self, Filesystem, in_session};

use super::Dispatcher;
use crate::abi::header::Header;
use crate::abi::ops::handles;
use crate::execute::Done;
use crate::locks::{Ended, LockRequests};

impl Dispatcher {
    /// Does the work of a request, if the program holds the locks that it took on the open file.
    pub(super) fn holding(
        &self,
        fs: &dyn Filesystem,
        request: &[u8],
        mut work: impl FnMut() -> api::Result<Done>,
    ) -> api::Result<Done> {
        let Some(locks) = self.locks() else { return work() };
        loop {
            let session = fs.lock_session();
            let holders = holders(locks, request);
            let (Some(epoch), false) = (session, holders.is_empty()) else { return work() };
            for (holder, held_in) in holders {
                if held_in != session {
                    if fs.has_lost_locks(holder.ino, holder.owner, holder.style)? {
                        return Err(Errno::EIO);
                    }
                    locks.keeps(holder, session);
                }
            }
            let done = in_session(epoch, &mut work);
            // The session may have ended meanwhile, and the locks were released before.
            if done.is_ok() || fs.lock_session() == session {
                return done;
            }
        }
    }

    /// Whether a request works on a file whose locks were lost.
    pub(super) fn has_lost_locks(&self, request: &[u8]) -> bool {
        let Some(locks) = self.locks() else { return false };
        let holders = holders(locks, request);
        if holders.is_empty() {
            return false;
        }
        let fs = self.0.fs.now();
        let session = fs.lock_session();
        let lost = |(holder, held_in): &(Ended, Option<u64>)| {
            *held_in != session && fs.has_lost_locks(holder.ino, holder.owner, holder.style) != Ok(false)
        };
        holders.iter().any(lost)
    }
}

/// The owners that locked through the open files of a request.
fn holders(locks: &LockRequests, request: &[u8]) -> Vec<(Ended, Option<u64>)> {
    match Header::split(request) {
        Ok((header, arguments)) => locks.through(handles(header.opcode, arguments)),
        Err(_) => Vec::new(),
    }
}
