//! All lanes, which one a request takes, and when a failed node is tried again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::lane::Lane;
use super::link::Link;
use super::reader::Reader;
use super::{Counters, Fail, Peer, Shared, establish, socket};
use crate::hello::{Class, HelloError};

/// The lanes to one address.
#[derive(Default)]
struct Lanes {
    lanes: Vec<Arc<Lane>>,
    failures: u32,
    /// Not tried before this time, and why.
    not_before: Option<(Instant, Fail)>,
}

#[derive(Default)]
pub(super) struct Peers(Mutex<HashMap<Peer, Lanes>>);

impl Peers {
    /// The lane for a request: the least busy one, or a new one if all are busy and there may be more.
    pub(super) fn lane(
        &self,
        shared: &Arc<Shared>,
        peer: Peer,
        class: Class,
        on: &Handle,
    ) -> Result<Arc<Lane>, Fail> {
        let limits = &shared.limits;
        let mut peers = self.0.lock();
        if shared.is_closed() {
            return Err(Fail::Closed);
        }
        let known = peers.entry(peer).or_default();
        known.lanes.retain(|lane| !lane.is_over());
        let mut best: Option<(usize, &Arc<Lane>)> = None;
        let mut count = 0;
        for lane in known.lanes.iter().filter(|lane| lane.class == class) {
            let busy = lane.under_way();
            count += 1;
            if best.is_none_or(|(least, _)| busy < least) {
                best = Some((busy, lane));
            }
        }
        let (window, most) = match class {
            Class::Control | Class::Look => (usize::MAX, 1),
            Class::Bulk => (limits.window, limits.bulk),
        };
        if let Some((busy, lane)) = best
            && (busy < window || count >= most)
        {
            return Ok(Arc::clone(lane));
        }
        if let Some((until, why)) = &known.not_before
            && base::time::monotonic() < *until
        {
            // One more connection cannot be made now. A busy one still serves.
            return best.map(|(_, lane)| Arc::clone(lane)).ok_or_else(|| why.clone());
        }
        let counters = Arc::clone(&shared.counters);
        let lane = Lane::new(class, counters, shared.flows.of(peer.node), limits.requests);
        known.lanes.push(Arc::clone(&lane));
        on.spawn(run(Arc::clone(shared), Arc::clone(&lane), peer));
        Ok(lane)
    }

    /// Drops connections that have ended, which closes them at this end.
    fn tidy(&self, peer: Peer) {
        if let Some(known) = self.0.lock().get_mut(&peer) {
            known.lanes.retain(|lane| !lane.is_over());
        }
    }

    fn record_result(&self, shared: &Shared, peer: Peer, why: Option<&Fail>) {
        let mut peers = self.0.lock();
        let Some(known) = peers.get_mut(&peer) else { return };
        match why {
            None => (known.failures, known.not_before) = (0, None),
            Some(why) => {
                known.failures = (known.failures + 1).min(7);
                let wait = shared.limits.backoff * (1 << (known.failures - 1)).min(100);
                known.not_before = Some((base::time::monotonic() + wait, why.clone()));
            }
        }
    }

    pub(super) fn forget(&self, address: SocketAddr, why: &Fail) {
        let mut gone = Vec::new();
        self.0.lock().retain(|peer, lanes| {
            let stays = peer.address != address;
            if !stays {
                gone.append(&mut lanes.lanes);
            }
            stays
        });
        gone.iter().for_each(|lane| lane.end(why));
    }

    /// The connections of a class, for tests.
    #[cfg(test)]
    pub(super) fn links(&self, class: Class) -> Vec<Arc<Link>> {
        let peers = self.0.lock();
        let lanes = peers.values().flat_map(|lanes| &lanes.lanes).filter(|lane| lane.class == class);
        lanes.filter_map(|lane| lane.stream.get().cloned()).collect()
    }

    pub(super) fn close(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        all.values().flat_map(|lanes| &lanes.lanes).for_each(|lane| lane.end(&Fail::Closed));
    }
}

/// Ends the lane when the task ends for any reason, including the end of its thread.
struct Ends(Arc<Lane>, Fail);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.end(&self.1);
    }
}

async fn run(shared: Arc<Shared>, lane: Arc<Lane>, peer: Peer) {
    let mut ends = Ends(Arc::clone(&lane), Fail::Closed);
    match connect(&shared, &lane, peer).await {
        Ok((stream, trip)) => {
            shared.peers.record_result(&shared, peer, None);
            Counters::one(&shared.counters.made);
            let stream = Arc::new(stream);
            let _ = lane.stream.set(Arc::clone(&stream));
            ends.1 = Reader::new(lane, stream, (Arc::clone(&shared.window), trip)).run(&shared.limits).await;
        }
        Err(fail) => {
            Counters::one(&shared.counters.unreachable);
            shared.peers.record_result(&shared, peer, Some(&fail));
            if let Fail::Stranger { address, .. } = &fail {
                shared.say(*address, &fail.to_string());
            }
            ends.1 = fail;
        }
    }
    drop(ends);
    shared.peers.tidy(peer);
}

async fn connect(shared: &Shared, lane: &Lane, peer: Peer) -> Result<(Link, Duration), Fail> {
    let address = peer.address;
    let unreachable = |why: String| Fail::Unreachable { address, why };
    let time = shared.limits.handshake;
    let sweep = async {
        while !lane.is_over() {
            lane.sweep();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let connecting = async {
        let began = base::time::monotonic();
        let stream = tokio::time::timeout(time, TcpStream::connect(address)).await;
        let stream = stream
            .map_err(|_| unreachable(format!("no connection within {time:?}")))?
            .map_err(|error| unreachable(error.to_string()))?;
        let trip = began.elapsed();
        socket::prepare(&stream, shared.silence_ms());
        let link = establish::connect(shared, stream, lane.class, peer.node).await.map_err(
            |error: HelloError| {
                let why = error.to_string();
                if error.is_for_good() { Fail::Stranger { address, why } } else { unreachable(why) }
            },
        )?;
        Ok((link, trip))
    };
    tokio::select! {
        done = connecting => done,
        () = sweep => Err(Fail::Closed),
    }
}
