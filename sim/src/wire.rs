//! Bytes of blobs: requests, streams, and interruptions.

use fleet::plan::{Event as Happened, Source};

use crate::model::{BLOB, GET_RATE, GIVE_UP, HALF_TRIP, PIECE, ZONE_RATE, first_byte, node_no, takes};
use crate::world::{Event, Flow, Key, World};

impl World {
    /// The fetch, if it was not interrupted since.
    fn flow_of(&mut self, key: Key) -> Option<&mut Flow> {
        let job = self.nodes[key.child as usize].jobs.get_mut(&key.blob)?;
        job.flows.get_mut(key.fetch as usize).filter(|flow| flow.turn == key.turn && flow.open)
    }

    /// Starts a fetch of a node.
    pub fn start(&mut self, child: u32, blob: u32, fetch: u32, source: Source) {
        let key = Key { child, blob, fetch, turn: self.turn() };
        let flow = Flow { source, started: self.now, turn: key.turn, line: None, open: true };
        if let Some(job) = self.nodes[child as usize].jobs.get_mut(&blob) {
            job.flows.push(flow);
        }
        match source.node() {
            Some(_) => self.at(self.now + HALF_TRIP, Event::Request(key)),
            None => self.get(key),
        }
    }

    /// A GET. It shares the zone's link and the node's own.
    fn get(&mut self, key: Key) {
        let first = self.now + first_byte(&mut self.dice);
        let begins = first.max(self.origin_free);
        self.origin_free = begins + takes(BLOB, ZONE_RATE);
        let node = &mut self.nodes[key.child as usize];
        let rate = GET_RATE.min(node.rate);
        let end = begins + takes(BLOB, rate);
        node.ingress = node.ingress.max(self.now) + takes(BLOB, node.rate);
        let last = end.max(node.ingress);
        // A node passes on what comes from the origin as it arrives, one verified group after the other.
        self.lined(key, (begins + takes(PIECE, rate), last));
    }

    /// The arrival times of a fetch are decided. Fetches that stream from it continue.
    fn lined(&mut self, key: Key, line: (u64, u64)) {
        if let Some(flow) = self.flow_of(key) {
            flow.line = Some(line);
        }
        self.at(line.1, Event::Arrived(key));
        let Some(job) = self.nodes[key.child as usize].jobs.get_mut(&key.blob) else { return };
        let waiters = std::mem::take(&mut job.waiters);
        job.children.extend(&waiters);
        for waiter in waiters {
            self.at(line.0 + HALF_TRIP, Event::Flow(waiter));
        }
    }

    /// A request arrives at its source.
    pub fn requested(&mut self, key: Key) {
        let Some(flow) = self.flow_of(key) else { return };
        let (source, streams) = (flow.source, matches!(flow.source, Source::Stream(_)));
        let Some(server) = source.node().map(|node| node_no(&node)) else { return };
        let (depot, now) = (self.is_depot(server), self.now);
        if depot && !self.nodes[server as usize].cache.read(key.blob, now) {
            self.begin(server, key.blob);
        }
        let node = &mut self.nodes[server as usize];
        if !node.alive {
            let after = if node.mute { GIVE_UP } else { HALF_TRIP };
            return self.at(self.now + after, Event::Failed(key));
        }
        if node.cache.has(key.blob) {
            return self.flow(key);
        }
        match node.jobs.get_mut(&key.blob).filter(|_| streams || depot) {
            None => self.at(self.now + HALF_TRIP, Event::Failed(key)),
            Some(job) => match job.line() {
                None => job.waiters.push(key),
                Some((first, _)) => {
                    job.children.push(key);
                    self.at(first, Event::Flow(key));
                }
            },
        }
    }

    /// The server has bytes to send. Its link is busy for a blob's length.
    pub fn flow(&mut self, key: Key) {
        let Some(server) = self.flow_of(key).and_then(|flow| flow.source.node()) else { return };
        let server = node_no(&server);
        let now = self.now;
        let node = &mut self.nodes[server as usize];
        let above = match node.jobs.get_mut(&key.blob) {
            _ if !node.alive => {
                let after = if node.mute { GIVE_UP } else { HALF_TRIP };
                return self.at(now + after, Event::Failed(key));
            }
            _ if node.cache.has(key.blob) => 0,
            None => return self.at(now + HALF_TRIP, Event::Failed(key)),
            Some(job) => match job.line() {
                None => return job.waiters.push(key),
                Some((_, last)) => last,
            },
        };
        let begins = node.egress.max(now);
        let takes_here = takes(BLOB, node.rate);
        node.egress = begins + takes_here;
        node.sent += BLOB;
        if node.serving.len() >= 64 {
            // Drops old keys. Those of finished fetches have no effect.
            node.serving.drain(..32);
        }
        node.serving.push(key);
        let rate = node.rate;
        let child = &mut self.nodes[key.child as usize];
        let slower = rate.min(child.rate);
        let first = begins + HALF_TRIP + takes(PIECE, slower);
        let end = (begins + takes_here).max(above + takes(PIECE, slower)) + HALF_TRIP;
        // Reserved from now on, not from when the sender begins: a fetch that waits for a busy sender leaves
        // the link to others.
        child.ingress = child.ingress.max(now) + takes(BLOB, child.rate);
        let last = end.max(child.ingress);
        self.lined(key, (first, last));
    }

    /// The last byte is here.
    pub fn arrived(&mut self, key: Key) {
        let (now, depot) = (self.now, self.is_depot(key.child));
        let Some(flow) = self.flow_of(key) else { return };
        let (source, took) = (flow.source, now - flow.started);
        match source {
            Source::Peer(_) => self.tally.from_peers += 1,
            Source::Depot(_) => self.tally.from_depots += 1,
            Source::Stream(_) => self.tally.streamed += 1,
            Source::Origin if depot => {}
            Source::Origin => self.tally.from_origin += 1,
        }
        let latencies = &mut self.nodes[key.child as usize].latencies;
        latencies.record(source.tier(), std::time::Duration::from_micros(took));
        self.nodes[key.child as usize].came(now, source.node());
        self.tell_plan(key.child, key.blob, Happened::Arrived { fetch: key.fetch });
    }

    /// The fetch has failed, and the node knows.
    pub fn failed(&mut self, key: Key) {
        let Some(flow) = self.flow_of(key) else { return };
        (flow.open, flow.line) = (false, None);
        self.stall_children(key.child, key.blob);
        self.tell_plan(key.child, key.blob, Happened::Failed { fetch: key.fetch });
    }

    /// A fetch is no longer wanted. Both links are freed of what had not arrived yet.
    pub fn cancel(&mut self, child: u32, blob: u32, fetch: u32) {
        let now = self.now;
        let job = self.nodes[child as usize].jobs.get_mut(&blob);
        let Some(flow) = job.and_then(|job| job.flows.get_mut(fetch as usize)) else { return };
        flow.open = false;
        let (server, Some((first, last))) = (flow.source.node(), flow.line.take()) else { return };
        let left = last.saturating_sub(now) as f64 / last.saturating_sub(first).max(1) as f64;
        let left = takes((BLOB as f64 * left.min(1.0)) as u64, 1.0);
        let receiver = &mut self.nodes[child as usize];
        receiver.ingress =
            receiver.ingress.saturating_sub(takes(left, receiver.rate)).max(now.min(receiver.ingress));
        if let Some(server) = server {
            let sender = &mut self.nodes[node_no(&server) as usize];
            sender.egress =
                sender.egress.saturating_sub(takes(left, sender.rate)).max(now.min(sender.egress));
        }
    }

    /// The server of a fetch has crashed. The bytes stop, which is known at once or late.
    pub fn cut(&mut self, key: Key) {
        let Some(flow) = self.flow_of(key) else { return };
        let Some(server) = flow.source.node().map(|node| node_no(&node)) else { return };
        let after = if self.nodes[server as usize].mute { GIVE_UP } else { HALF_TRIP };
        let key = self.stall(key);
        self.at(self.now + after, Event::Failed(key));
    }

    /// No more bytes arrive for this fetch, nor for those that stream from it. Their decided times are void.
    fn stall(&mut self, key: Key) -> Key {
        let fresh = Key { turn: self.turn(), ..key };
        if let Some(flow) = self.flow_of(key) {
            (flow.turn, flow.line) = (fresh.turn, None);
        }
        self.stall_children(key.child, key.blob);
        fresh
    }

    /// If no other fetch brings the blob here, the fetches that stream it from here stall until one does.
    fn stall_children(&mut self, node: u32, blob: u32) {
        let Some(job) = self.nodes[node as usize].jobs.get_mut(&blob) else { return };
        if job.line().is_some() {
            return;
        }
        for child in std::mem::take(&mut job.children) {
            let lined = self.flow_of(child).is_some_and(|flow| flow.line.is_some());
            let waits = if lined { self.stall(child) } else { child };
            if let Some(job) = self.nodes[node as usize].jobs.get_mut(&blob) {
                job.waiters.push(waits);
            }
        }
    }
}
