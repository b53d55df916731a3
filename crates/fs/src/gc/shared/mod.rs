//! Deletes what nothing refers to in a shared volume, while other nodes work.
//!
//! ```text
//!   pack without live bytes ──► condemned: one commit, by any node                           dead.rs
//!        after `delay`      ──► forgotten, and its blob is doomed: one commit                 delete.rs
//!                           ──► the blob is deleted in the origin, by the session that doomed it
//!        after HOLD         ──► not doomed any more: it may be stored again
//! ```
//!
//! **Nothing that a node may name is deleted.**
//!
//! 1. *A condemned pack is never referred to again.* A commit refers to a sealed pack only by copying a
//!    reference. Either it checks that the source still has the reference, or a lease keeps the source as it
//!    is until the commit is stored (`meta::lease` stores a node's changes before it gives a lease back). So
//!    while any node may refer to the pack, also in changes that are not stored yet, the database counts
//!    bytes of it, and the commit that condemns it is refused.
//! 2. *A blob is doomed only if no row names it*, and while it is doomed no row is made that does
//!    (`meta::plan`, `Doom`). Rows that name it are those of packs and those of published trees. A node that
//!    publishes has the row `publishing`. While that is there nothing is doomed, and it is removed when the
//!    session of the node has ended; the node then gives the publication up.
//! 3. *A blob is uploaded only after a row names it* ([`crate::packs::seal_shared`], and trees hold a blob
//!    before they store it). So no upload relies on a blob that is about to be deleted.
//! 4. *A deletion is over before the blob may be stored again.* Right before each deletion a commit says once
//!    more that this session deletes the blob, and checks that the row is still there. The request is sent at
//!    most [`SEND`] after that commit was begun, by a clock that counts suspended time too, and a store
//!    carries it out within [`HOLD`] of then. A session that removes the row has had it for at least
//!    [`HOLD`], and what a session has left is taken over by a commit that changes the row. So a node that
//!    was stopped in the middle deletes nothing when it goes on: either the time for the request is over, or
//!    the commit is refused.
//!
//! 5. *Compaction changes only where files refer to* ([`compact`]): each reference moves by a commit of the
//!    kind that 1. describes, to a pack whose blob is in the origin. What it leaves are packs without live
//!    bytes.
//!
//! **Readers** that look up names and then find the blob gone look up the names again
//! ([`crate::bytes`]). Blobs stay for `delay` after they were condemned so that this is rare, and so that a
//! database that lost its last seconds finds what they removed.

mod all;
mod compact;
mod dead;
mod delete;
mod kept;
mod strays;
mod worth;

use std::time::{Duration, Instant};

use base::time::BootTime;
use base::{BlobId, PackNo};
use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

/// A deletion is sent at most this long after the commit that permits it was begun.
const SEND: Duration = Duration::from_secs(5);
/// A deletion is over this long after the commit that permits it was begun.
pub(crate) const HOLD: Duration = Duration::from_secs(15);
/// Packs that lost bytes and were not looked at. More are found by the search ([`dead`]).
const TOUCHED_MAX: usize = 1 << 20;

/// The state of deletions. See the [module](self).
#[derive(Default)]
pub(crate) struct Deletions {
    state: Mutex<State>,
    kept: kept::KeptState,
    pub(crate) compaction: compact::Compaction,
}

#[derive(Default)]
struct State {
    /// Packs that lost live bytes and were not looked at yet.
    touched: HashSet<PackNo>,
    /// When the next round is due.
    next: Option<Instant>,
    /// When the holds of published trees were last looked at.
    looked: Option<Instant>,
    /// How far the search for dead packs is, and when it begins again.
    search: Search,
    /// Blobs that this session has deleted, and when their deletion is over.
    deleted: HashMap<BlobId, BootTime>,
    /// Blobs in the origin that no row names, since this node saw that.
    strays: HashMap<BlobId, Instant>,
}

#[derive(Default)]
struct Search {
    from: Option<PackNo>,
    pause: Option<Instant>,
}

impl Deletions {
    /// Records that these packs lost live bytes.
    pub(crate) fn touch(&self, packs: Vec<PackNo>) {
        let mut state = self.state.lock();
        let room = TOUCHED_MAX.saturating_sub(state.touched.len());
        state.touched.extend(packs.into_iter().take(room));
    }

    /// Whether a round is due. If it is, the next one is due after `every`.
    fn is_due(&self, every: Duration) -> bool {
        let now = base::time::monotonic();
        let mut state = self.state.lock();
        let is_due = state.next.is_none_or(|next| now >= next);
        if is_due {
            state.next = Some(now + every);
        }
        is_due
    }
}
