//! A node that only lends its disk: nobody reads there, so what would it have? A copy of what it tracks.
//!
//! A tracker hears who has what of its groups. One that keeps takes a copy from whoever says that he has a blob, one time, if there is
//! room. So a zone's lenders hold the blobs of the zone's nodes in shares by weight, nobody decides which, and a blob stays in the
//! zone when the node that fetched it is unmounted. What is full keeps what it has: a copy is never worth another's place.
//!
//! It is told as soon as the others know of it, which is before its cache is open, and of what a node has it is told one time. So what is to be
//! copied is written down from the beginning, and copied when there is a cache to copy to.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::BlobId;
use blob::Origin;
use parking_lot::{Condvar, Mutex};

use super::Inner;
use super::counters::Counters;
use crate::message::{Note, What};

/// Copies made at a time: it is work for later, and must not take the line from those who read now.
const HANDS: usize = 2;
/// Blobs that wait to be copied; more are left out until somebody says again that he has them.
const WAITING: usize = 16 << 10;
/// Copies are made while the cache has more room than this, in MiB.
const ROOM: u32 = 16;
/// Between two looks whether the node still lives.
const LOOK: Duration = Duration::from_millis(500);

/// What is to be copied, at a node that keeps.
pub(super) struct Keeper(Option<Arc<Row>>);

impl Keeper {
    pub(super) fn new(keeps: bool) -> Keeper {
        Keeper(keeps.then(Arc::default))
    }
}

#[derive(Default)]
struct Row {
    /// In their order, and which they are, with those that are being copied. Nothing is taken while it is held.
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

    /// What was popped is dealt with, and may be wanted again.
    fn done(&self, id: &BlobId) {
        self.wanted.lock().1.remove(id);
    }
}

/// Begins to copy, with the node's own cache, which fetches by the fleet.
pub(super) fn start(inner: &Arc<Inner>, cache: &Arc<dyn Origin>) -> io::Result<()> {
    let Some(row) = &inner.keeper.0 else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this node was started as one that does not keep",
        ));
    };
    for _ in 0..HANDS {
        let (row, owner, cache) = (Arc::clone(row), Arc::downgrade(inner), Arc::downgrade(cache));
        base::thread::spawn("covey-keep", move || {
            while is_alive(&owner) {
                if let Some(id) = row.pop() {
                    copy(&owner, &cache, &id);
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

fn copy(owner: &Weak<Inner>, cache: &Weak<dyn Origin>, id: &BlobId) {
    let (Some(inner), Some(cache)) = (owner.upgrade(), cache.upgrade()) else { return };
    let has_room = inner.free.load(Ordering::Relaxed) > ROOM;
    // By the plan, like every fetch: from whoever has it; if he has dropped it meanwhile, from farther away.
    if has_room && !inner.holds(id) && inner.fetch_and_keep(&*cache, id).is_ok() {
        Counters::one(&inner.counters.kept);
    }
}

impl Inner {
    /// Somebody has told what he has.
    pub(super) fn keep(&self, notes: &[Note]) {
        let Some(row) = &self.keeper.0 else { return };
        for note in notes.iter().filter(|note| note.what == What::Have) {
            // It mounts no tree that would say: without this it asked, and told of its copies, other trackers than readers ask.
            self.groups.hear(&note.blob, note.group);
            let first = self.placed.lock().trackers(note.group).first().copied();
            if first == Some(self.own) && !self.holds(&note.blob) {
                row.push(&note.blob);
            }
        }
    }
}
