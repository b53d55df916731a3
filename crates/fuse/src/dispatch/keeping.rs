//! What the kernel may keep of a reply, and what may not be executed behind its back.

use std::sync::Arc;
use std::time::Duration;

use fs::Errno;
use fs::api::Leases;

use super::Dispatcher;
use crate::abi::header::Header;
use crate::abi::ops::Op;
use crate::execute::Done;
use crate::promises;
use crate::shared::SharedMount;
use crate::swap::KEEP;

/// How long a reply waits for the kernel to drop pages: it waits for those that are being read.
const TELLING: Duration = Duration::from_millis(200);

impl Dispatcher {
    pub(super) fn leases(&self) -> Option<&Arc<Leases>> {
        self.0.shared.as_deref().and_then(SharedMount::leases)
    }

    /// Call this before an operation whose reply the kernel may keep.
    pub(super) fn mark(&self) -> u64 {
        self.leases().map_or(0, |leases| leases.mark())
    }

    /// Called before a reply with attributes. If the kernel would not see by them that the bytes of an open
    /// file are others, it is told.
    pub(super) fn tell_of_bytes(&self, result: &Result<Done, Errno>) {
        if let Ok(Done { other_bytes: Some(ino), .. }) = result {
            self.0.notifier.inval_inode(*ino, 0, 0);
            self.0.notifier.settle_within(TELLING);
        }
    }

    /// Notes that a file is open once less.
    pub(super) fn note_closed(&self, header: &Header, op: &Op<'_>) {
        if let (Op::Release { .. }, Some(shared)) = (op, &self.0.shared) {
            shared.closed(header.ino);
        }
    }

    /// Sends the body of a reply, with what the kernel may keep of it.
    pub(super) fn deliver<T>(
        &self,
        mark: u64,
        done: &Done,
        room: &mut [u8],
        send: impl FnOnce(&[u8]) -> T,
    ) -> T {
        let body = &mut room[..done.len];
        match self.leases() {
            Some(leases) => promises::deliver(leases, mark, &done.keeps, body, send),
            None => {
                if let Some(time) = self.0.untold {
                    promises::permit_untold(&done.keeps, body, time);
                } else if self.0.shared.as_deref().is_some_and(SharedMount::is_alone) {
                    promises::permit(&done.keeps, body, KEEP);
                }
                send(body)
            }
        }
    }

    /// Whether the kernel keeps wrong pages if this is executed after an error was its reply. A kernel that
    /// can be told drops them.
    pub(super) fn must_be_told(&self, op: &Op<'_>) -> bool {
        self.0.untold.is_some() && matches!(op, Op::Fallocate { .. } | Op::CopyRange { .. })
    }
}
