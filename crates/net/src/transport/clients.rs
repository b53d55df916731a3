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
pub(super) struct Client {
    /// Signals that end its connections, the oldest first.
    connections: Mutex<VecDeque<Arc<Notify>>>,
    /// Bodies that were promised to it. Each is an open file.
    bodies: AtomicUsize,
    /// Ranges, lists and fills that helper threads work on for it.
    slow: AtomicUsize,
    /// Blobs that it suspected although they are sound.
    unfounded: AtomicUsize,
}

impl Client {
    /// How many pieces of work for helpers are in progress.
    pub(super) fn slow(&self) -> usize {
        self.slow.load(Ordering::Acquire)
    }

    /// Counts a suspicion by the client of a blob that is sound.
    pub(super) fn was_wrong(&self) {
        self.unfounded.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the client's suspicions are no longer accepted.
    pub(super) fn is_wrong_too_often(&self) -> bool {
        self.unfounded.load(Ordering::Relaxed) > UNFOUNDED
    }
}

/// All clients.
#[derive(Default)]
pub(super) struct Clients {
    all: Mutex<HashMap<NodeId, Arc<Client>>>,
    bodies: AtomicUsize,
}

/// A connection of a client, while it exists.
pub(super) struct ClientConnection {
    clients: Arc<Clients>,
    node: NodeId,
    pub(super) client: Arc<Client>,
    /// Notified when the connection must end, because the node has opened too many since.
    pub(super) leave: Arc<Notify>,
}

impl ClientConnection {
    /// One more piece of work for helpers, until the result is dropped.
    pub(super) fn slow_work(&self) -> SlowWork {
        self.client.slow.fetch_add(1, Ordering::AcqRel);
        SlowWork { clients: Arc::clone(&self.clients), node: self.node, client: Arc::clone(&self.client) }
    }
}

impl Clients {
    /// Forgets a client without connections and without work for helpers. A node that connects again is still
    /// bound by the work that it left behind.
    fn forget_if_idle(&self, node: &NodeId, client: &Arc<Client>) {
        let mut all = self.all.lock();
        let idle = client.connections.lock().is_empty() && client.slow() == 0;
        // The entry may be a newer one, which another connection created after this client's last connection
        // had ended.
        if idle && all.get(node).is_some_and(|other| Arc::ptr_eq(other, client)) {
            all.remove(node);
        }
    }

    /// A node has connected. If it has more than `most` connections, the oldest ends: those of a restarted
    /// node may not have ended yet.
    pub(super) fn enter(self: &Arc<Clients>, node: NodeId, most: usize) -> ClientConnection {
        let leave = Arc::new(Notify::new());
        let mut all = self.all.lock();
        let client = Arc::clone(all.entry(node).or_default());
        let mut connections = client.connections.lock();
        connections.push_back(Arc::clone(&leave));
        if connections.len() > most
            && let Some(oldest) = connections.pop_front()
        {
            oldest.notify_one();
        }
        drop(connections);
        drop(all);
        ClientConnection { clients: Arc::clone(self), node, client, leave }
    }

    /// Reserves one more body, if the bounds allow it: `all` in total, `each` for this client.
    pub(super) fn body(
        self: &Arc<Clients>,
        client: &Arc<Client>,
        all: usize,
        each: usize,
    ) -> Option<Promised> {
        let take = |counter: &AtomicUsize, most| {
            let room = |count: usize| (count < most).then_some(count + 1);
            counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).is_ok()
        };
        if !take(&client.bodies, each) {
            return None;
        }
        if !take(&self.bodies, all) {
            client.bodies.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Promised { clients: Arc::clone(self), client: Arc::clone(client) })
    }

    /// Bodies that were promised and have not ended.
    #[cfg(test)]
    pub(super) fn bodies(&self) -> usize {
        self.bodies.load(Ordering::Acquire)
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.client.connections.lock().retain(|other| !Arc::ptr_eq(other, &self.leave));
        self.clients.forget_if_idle(&self.node, &self.client);
    }
}

/// A piece of work for a helper thread. It counts until its result has been taken. If the connection ends
/// before, it counts until the work ends.
pub(super) struct SlowWork {
    clients: Arc<Clients>,
    node: NodeId,
    client: Arc<Client>,
}

impl Drop for SlowWork {
    fn drop(&mut self) {
        if self.client.slow.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.clients.forget_if_idle(&self.node, &self.client);
        }
    }
}

/// A body that is to be sent.
pub(super) struct Promised {
    clients: Arc<Clients>,
    client: Arc<Client>,
}

impl Drop for Promised {
    fn drop(&mut self) {
        self.client.bodies.fetch_sub(1, Ordering::AcqRel);
        self.clients.bodies.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_its_share_and_leaves_nothing() {
        let clients = Arc::new(Clients::default());
        let (one, other) = (clients.enter(NodeId([1; 16]), 9), clients.enter(NodeId([2; 16]), 9));
        let mut bodies: Vec<_> = (0..3).map_while(|_| clients.body(&one.client, 4, 2)).collect();
        assert_eq!(bodies.len(), 2, "its share");
        bodies.extend((0..3).map_while(|_| clients.body(&other.client, 3, 2)));
        assert_eq!((bodies.len(), clients.bodies()), (3, 3), "all that there is");
        bodies.clear();
        assert_eq!(clients.bodies(), 0);
        drop((one, other));
        assert!(clients.all.lock().is_empty());
    }

    #[test]
    fn work_that_a_connection_leaves_behind_counts_for_the_next_one() {
        let clients = Arc::new(Clients::default());
        let first = clients.enter(NodeId([1; 16]), 9);
        let work: Vec<SlowWork> = (0..3).map(|_| first.slow_work()).collect();
        drop(first);
        let second = clients.enter(NodeId([1; 16]), 9);
        assert_eq!(second.client.slow(), 3);
        drop(second);
        assert_eq!(clients.all.lock().len(), 1);
        drop(work);
        assert!(clients.all.lock().is_empty());
    }

    #[test]
    fn the_oldest_of_too_many_connections_is_ended() {
        let clients = Arc::new(Clients::default());
        let visits: Vec<ClientConnection> = (0..3).map(|_| clients.enter(NodeId([1; 16]), 2)).collect();
        assert_eq!(visits[0].client.connections.lock().len(), 2);
        assert!(!visits[0].client.connections.lock().iter().any(|one| Arc::ptr_eq(one, &visits[0].leave)));
        drop(visits);
        assert!(clients.all.lock().is_empty());
    }
}
