//! Accepts connections, makes the handshake within bounds, and passes them to the serving threads.
//!
//! **A stranger costs at most one place for the time of a handshake**, and places are few. If all are taken,
//! the newest connection replaces one whose handshake has not ended ([`base::places`]). A legitimate
//! connection needs only some round trips, while a silent one stays. Each address has a share of the places,
//! and some places are reserved for the addresses of members, so that strangers cannot keep members out.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use base::places::{self, Peer, Place, Places};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::serve::Serving;
use super::{Counters, Shared, establish, socket};
use crate::hello::{Class, HelloError};

/// The place of a connection during its handshake, and what tells it that it has lost the place.
type Half = (Place, Arc<Notify>);

pub(super) async fn listen(shared: Arc<Shared>, listener: TcpListener, bulk: Handle) {
    let half = Places::new(places::Limits {
        all: shared.limits.half_open,
        strangers: shared.limits.half_open - shared.limits.half_open / 4,
        each: shared.limits.half_open_each,
        keeps_work: false,
    });
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Most likely no descriptors are left. Other connections have to end first.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let limits = &shared.limits;
        let open = shared.counters.open.load(std::sync::atomic::Ordering::Relaxed) as usize;
        if open >= limits.connections {
            Counters::one(&shared.counters.refused);
            continue;
        }
        let is_member = shared.service.is_member(from.ip().to_canonical());
        let cut = Arc::new(Notify::new());
        let end = Arc::clone(&cut);
        // Nobody works on anything yet, so there is always one to displace.
        let Ok(place) = half.enter(Peer::of_address(from.ip()), is_member, move || end.notify_one()) else {
            continue;
        };
        if place.has_displaced() {
            Counters::one(&shared.counters.displaced);
        }
        tokio::spawn(greet(Arc::clone(&shared), stream, from, (place, cut), bulk.clone()));
    }
}

async fn greet(shared: Arc<Shared>, stream: TcpStream, from: SocketAddr, (place, cut): Half, bulk: Handle) {
    socket::prepare(&stream, shared.silence_ms());
    let greeted = tokio::select! {
        greeted = establish::accept(&shared, stream) => greeted,
        () = cut.notified() => return,
    };
    let (link, other) = match greeted {
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
            // Other errors mean that the other node or this one ended.
            if let Err(error) = end
                && error.kind() == ErrorKind::InvalidData
            {
                Counters::one(&shared.counters.refused);
                shared.say(from, &format!("a connection from {} was ended: {error}", from.ip()));
            }
        }
    };
    if other.class == Class::Bulk {
        // The thread that accepted it still watches its readiness and wakes the one that serves it.
        bulk.spawn(serve);
    } else {
        tokio::spawn(serve);
    }
}

/// Counts as open while it exists.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.counters.open.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
    }
}
