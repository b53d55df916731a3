//! A node that only lends its disk. It has no readers, so it keeps a copy of what it tracks.
//!
//! A tracker learns which nodes have the blobs of its groups. A lender takes a copy from the first node that
//! reports a blob, once, if there is room. So the lenders of a zone hold the blobs of its nodes in shares by
//! weight, without any further decision. A blob stays in the zone when the node that fetched it is unmounted.
//! A full lender keeps what it has: a copy is never worth another blob's space.
//!
//! The lender receives reports as soon as the other nodes know it, which is before its cache is open, and it
//! receives each report only once. So the list of blobs to copy starts at the beginning, and copying begins
//! when there is a cache.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::BlobId;
use net::message::{Note, What};
use parking_lot::{Condvar, Mutex};

use super::Inner;
use super::counters::Counters;

/// Copies made at a time. They are not urgent and must not take the link from active readers.
const HANDS: usize = 2;
/// How many blobs can wait to be copied. Further ones are skipped until a node reports them again.
const WAITING: usize = 16 << 10;
/// Copies are made while the cache has more room than this, in MiB.
const ROOM: u32 = 16;
/// The interval at which threads check whether the node still lives.
const LOOK: Duration = Duration::from_millis(500);

/// The blobs to copy, on a node that keeps.
pub(super) struct Keeper(Option<Arc<Row>>);

impl Keeper {
    pub(super) fn new(keeps: bool) -> Keeper {
        Keeper(keeps.then(Arc::default))
    }
}

#[derive(Default)]
struct Row {
    /// The queue in its order, and the set of queued blobs and those being copied. No other lock is taken
    /// while it is held.
    wanted: Mutex<(VecDeque<BlobId>, HashSet<BlobId>)>,
    bell: Condvar,
}

impl Row {
    fn push(&self, id: &BlobId) {
        let mut wanted = self.wanted.lock();
        if wanted.0.len() < WAITING && wanted.1.insert(*id) {
            wanted.0.push_back(*id);
            self.bell.notify_one();
        }
    }

    fn pop(&self) -> Option<BlobId> {
        let mut wanted = self.wanted.lock();
        if wanted.0.is_empty() {
            self.bell.wait_for(&mut wanted, LOOK);
        }
        wanted.0.pop_front()
    }

    /// A popped blob has been handled, and may be queued again.
    fn done(&self, id: &BlobId) {
        self.wanted.lock().1.remove(id);
    }
}

/// Begins to copy. The node's cache keeps what arrives.
pub(super) fn start(inner: &Arc<Inner>) -> io::Result<()> {
    let Some(row) = &inner.keeper.0 else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this node was started as one that does not keep",
        ));
    };
    for _ in 0..HANDS {
        let (row, owner) = (Arc::clone(row), Arc::downgrade(inner));
        base::thread::spawn("covey-keep", move || {
            while is_alive(&owner) {
                if let Some(id) = row.pop() {
                    copy(&owner, &id);
                    row.done(&id);
                }
            }
        })?;
    }
    Ok(())
}

fn is_alive(owner: &Weak<Inner>) -> bool {
    owner.upgrade().is_some_and(|inner| !inner.closed.load(Ordering::Acquire))
}

fn copy(owner: &Weak<Inner>, id: &BlobId) {
    let Some(inner) = owner.upgrade() else { return };
    let has_room = inner.free.load(Ordering::Relaxed) > ROOM;
    // By the plan, like every fetch: from a holder or, if that has dropped the blob in the meantime, from
    // elsewhere.
    if has_room && !inner.holds(id) && inner.fetch_and_keep(id).is_ok() {
        Counters::one(&inner.counters.kept);
    }
}

impl Inner {
    /// A node has reported what it has.
    pub(super) fn keep(&self, notes: &[Note]) {
        let Some(row) = &self.keeper.0 else { return };
        for note in notes.iter().filter(|note| note.what == What::Have) {
            // This node mounts no tree from which it could learn the groups. Without this it would ask other
            // trackers than readers do, and report its copies to them.
            self.groups.hear(&note.blob, note.group);
            let first = self.placed.lock().trackers(note.group).first().copied();
            if first == Some(self.own) && !self.holds(&note.blob) {
                row.push(&note.blob);
            }
        }
    }
}
