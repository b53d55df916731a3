//! What the kernel may keep of a reply, and what may not be executed behind its back.

use std::sync::Arc;
use std::time::Instant;

use base::Ino;
use fs::api::Leases;

use super::Dispatcher;
use crate::abi::header::Header;
use crate::abi::ops::Op;
use crate::execute::Done;
use crate::promises;
use crate::shared::SharedMount;
use crate::swap::KEEP;

/// How many recalls there were when an operation began, and when that was. `None`: there are no leases.
#[derive(Clone, Copy)]
pub(super) struct Mark(Option<(u64, Instant)>);

impl Dispatcher {
    pub(super) fn leases(&self) -> Option<&Arc<Leases>> {
        self.0.shared.as_deref().and_then(SharedMount::leases)
    }

    /// Call this before an operation whose reply the kernel may keep.
    pub(super) fn mark(&self) -> Mark {
        let recalls = |leases: &Arc<Leases>| (leases.mark(), base::time::monotonic());
        Mark(self.leases().map(recalls))
    }

    /// The bytes of a file were sent to the kernel. If another machine may change them since the mark, the
    /// kernel drops them.
    pub(super) fn sent_bytes(&self, mark: Mark, ino: Ino) {
        if let (Some(leases), Some((mark, began))) = (self.leases(), mark.0)
            && !leases.kept_since(ino, mark, began)
        {
            self.0.notifier.inval_inode(ino, 0, 0);
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
        mark: Mark,
        done: &Done,
        room: &mut [u8],
        send: impl FnOnce(&[u8]) -> T,
    ) -> T {
        let body = &mut room[..done.len];
        match self.leases() {
            Some(leases) => {
                let mark = mark.0.map_or(0, |(recalls, _)| recalls);
                promises::deliver(leases, mark, &done.keeps, body, send)
            }
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
