//! Takes connections, greets them within bounds, and hands them to whom they are for.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;

use super::serve::Serving;
use super::{Counters, Shared, door, socket};
use crate::hello::{Class, HelloError};

/// Connections that are being greeted, by address. A stranger holds one for the handshake's time at most.
#[derive(Default)]
struct HalfOpen(Mutex<(usize, HashMap<IpAddr, usize>)>);

struct Place(Arc<HalfOpen>, IpAddr);

impl HalfOpen {
    fn enter(self: &Arc<Self>, from: IpAddr, all: usize, each: usize) -> Option<Place> {
        let mut open = self.0.lock();
        let here = open.1.get(&from).copied().unwrap_or(0);
        if open.0 >= all || here >= each {
            return None;
        }
        open.0 += 1;
        open.1.insert(from, here + 1);
        Some(Place(Arc::clone(self), from))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.0.0.lock();
        open.0 -= 1;
        if let Some(here) = open.1.get_mut(&self.1) {
            *here -= 1;
            if *here == 0 {
                open.1.remove(&self.1);
            }
        }
    }
}

pub(super) async fn listen(shared: Arc<Shared>, listener: TcpListener, bulk: Handle) {
    let half = Arc::new(HalfOpen::default());
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // No descriptors, most likely: others have to end first.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let limits = &shared.limits;
        let place = half.enter(from.ip(), limits.half_open, limits.half_open_each);
        let open = shared.counters.open.load(std::sync::atomic::Ordering::Relaxed) as usize;
        let Some(place) = place.filter(|_| open < limits.connections) else {
            Counters::one(&shared.counters.refused);
            continue;
        };
        tokio::spawn(greet(Arc::clone(&shared), stream, from, place, bulk.clone()));
    }
}

async fn greet(shared: Arc<Shared>, stream: TcpStream, from: SocketAddr, place: Place, bulk: Handle) {
    socket::prepare(&stream, shared.silence_ms());
    let (link, other) = match door::accept(&shared, stream).await {
        Ok(greeted) => greeted,
        Err(error) => {
            drop(place);
            Counters::one(&shared.counters.refused);
            if error.is_for_good() && !matches!(error, HelloError::Io(_)) {
                shared.say(from, &format!("a connection from {} was refused: {error}", from.ip()));
            }
            return;
        }
    };
    drop(place);
    Counters::one(&shared.counters.accepted);
    Counters::one(&shared.counters.open);
    let serve = {
        let shared = Arc::clone(&shared);
        async move {
            let open = Open(Arc::clone(&shared));
            let end = Serving::new(Arc::clone(&shared), link, other).run().await;
            drop(open);
            // Others just went, or this node did.
            if let Err(error) = end
                && error.kind() == ErrorKind::InvalidData
            {
                Counters::one(&shared.counters.refused);
                shared.say(from, &format!("a connection from {} was ended: {error}", from.ip()));
            }
        }
    };
    if other.class == Class::Bulk {
        // Its readiness is still watched by the thread that accepted it, which wakes the one that serves.
        bulk.spawn(serve);
    } else {
        tokio::spawn(serve);
    }
}

/// Counted as open as long as it lives.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.counters.open.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}
