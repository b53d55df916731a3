//! What each other node uses of this one, over all connections that it opened. So one node cannot use up what
//! is there for all.
//!
//! A node is identified by the id in its HELLO. A program that knows the secret can use any id. It is still
//! bound by the limits that apply to all ([`super::Limits`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::id::NodeId;

/// After this many unfounded suspicions the node's connections are ended.
const UNFOUNDED: usize = 8;

/// Another node that sends requests to this one.
#[derive(Default)]
pub(super) struct Guest {
    /// Signals that end its connections, the oldest first.
    connections: Mutex<VecDeque<Arc<Notify>>>,
    /// Bodies that were promised to it. Each is an open file.
    bodies: AtomicUsize,
    /// Ranges, lists and fills that helper threads work on for it.
    slow: AtomicUsize,
    /// Blobs that it suspected although they are sound.
    unfounded: AtomicUsize,
}

impl Guest {
    /// One more piece of work for helpers.
    pub(super) fn slow_began(&self) {
        self.slow.fetch_add(1, Ordering::Relaxed);
    }

    /// This many are finished.
    pub(super) fn slow_ended(&self, count: usize) {
        self.slow.fetch_sub(count, Ordering::Relaxed);
    }

    /// How many are in progress.
    pub(super) fn slow(&self) -> usize {
        self.slow.load(Ordering::Relaxed)
    }

    /// It suspected a blob that is sound.
    pub(super) fn was_wrong(&self) {
        self.unfounded.fetch_add(1, Ordering::Relaxed);
    }

    /// Its suspicions are no longer accepted.
    pub(super) fn is_wrong_too_often(&self) -> bool {
        self.unfounded.load(Ordering::Relaxed) > UNFOUNDED
    }
}

/// All guests.
#[derive(Default)]
pub(super) struct Guests {
    all: Mutex<HashMap<NodeId, Arc<Guest>>>,
    bodies: AtomicUsize,
}

/// A connection of a guest, while it exists.
pub(super) struct Visit {
    guests: Arc<Guests>,
    node: NodeId,
    pub(super) guest: Arc<Guest>,
    /// Notified when the connection must end, because the node has opened too many since.
    pub(super) leave: Arc<Notify>,
}

impl Guests {
    /// A node has connected. If it has more than `most` connections, the oldest ends: those of a restarted
    /// node may not have ended yet.
    pub(super) fn enter(self: &Arc<Guests>, node: NodeId, most: usize) -> Visit {
        let leave = Arc::new(Notify::new());
        let mut all = self.all.lock();
        let guest = Arc::clone(all.entry(node).or_default());
        let mut connections = guest.connections.lock();
        connections.push_back(Arc::clone(&leave));
        if connections.len() > most
            && let Some(oldest) = connections.pop_front()
        {
            oldest.notify_one();
        }
        drop(connections);
        drop(all);
        Visit { guests: Arc::clone(self), node, guest, leave }
    }

    /// Reserves one more body, if the bounds allow it: `all` in total, `each` for this guest.
    pub(super) fn body(self: &Arc<Guests>, guest: &Arc<Guest>, all: usize, each: usize) -> Option<Promised> {
        let take = |counter: &AtomicUsize, most| {
            let room = |count: usize| (count < most).then_some(count + 1);
            counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_ok()
        };
        if !take(&guest.bodies, each) {
            return None;
        }
        if !take(&self.bodies, all) {
            guest.bodies.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Promised { guests: Arc::clone(self), guest: Arc::clone(guest) })
    }

    /// Bodies that were promised and have not ended.
    #[cfg(test)]
    pub(super) fn bodies(&self) -> usize {
        self.bodies.load(Ordering::Acquire)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut all = self.guests.all.lock();
        let mut connections = self.guest.connections.lock();
        connections.retain(|other| !Arc::ptr_eq(other, &self.leave));
        // The entry may be a newer one, which another visit created after this guest's last connection had
        // ended.
        if connections.is_empty() && all.get(&self.node).is_some_and(|guest| Arc::ptr_eq(guest, &self.guest))
        {
            all.remove(&self.node);
        }
    }
}

/// A body that is to be sent.
pub(super) struct Promised {
    guests: Arc<Guests>,
    guest: Arc<Guest>,
}

impl Drop for Promised {
    fn drop(&mut self) {
        self.guest.bodies.fetch_sub(1, Ordering::AcqRel);
        self.guests.bodies.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_its_share_and_leaves_nothing() {
        let guests = Arc::new(Guests::default());
        let (one, other) = (guests.enter(NodeId([1; 16]), 9), guests.enter(NodeId([2; 16]), 9));
        let mut bodies: Vec<_> = (0..3).map_while(|_| guests.body(&one.guest, 4, 2)).collect();
        assert_eq!(bodies.len(), 2, "its share");
        bodies.extend((0..3).map_while(|_| guests.body(&other.guest, 3, 2)));
        assert_eq!((bodies.len(), guests.bodies()), (3, 3), "all that there is");
        bodies.clear();
        assert_eq!(guests.bodies(), 0);
        drop((one, other));
        assert!(guests.all.lock().is_empty());
    }

    #[test]
    fn the_oldest_of_too_many_connections_is_ended() {
        let guests = Arc::new(Guests::default());
        let visits: Vec<Visit> = (0..3).map(|_| guests.enter(NodeId([1; 16]), 2)).collect();
        assert_eq!(visits[0].guest.connections.lock().len(), 2);
        assert!(!visits[0].guest.connections.lock().iter().any(|one| Arc::ptr_eq(one, &visits[0].leave)));
        drop(visits);
        assert!(guests.all.lock().is_empty());
    }
}
