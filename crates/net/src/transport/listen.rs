//! Accepts connections, makes the handshake within bounds, and passes them to the serving threads.
//!
//! **A stranger costs at most one place for the time of a handshake**, and places are few. If all are taken,
//! the newest connection replaces the oldest one whose handshake has not ended. A legitimate connection needs
//! only some round trips, while a silent one stays. Each address has a share of the places, and some places
//! are reserved for the addresses of members, so that strangers cannot keep members out.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::serve::Serving;
use super::{Counters, Limits, Shared, establish, socket};
use crate::hello::{Class, HelloError};

/// A connection during its handshake.
struct Half {
    from: IpAddr,
    is_member: bool,
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct Places {
    /// In the order in which they arrived.
    all: BTreeMap<u64, Half>,
    each: HashMap<IpAddr, usize>,
    strangers: usize,
    next: u64,
}

impl Places {
    fn remove(&mut self, number: u64) -> Option<Half> {
        let half = self.all.remove(&number)?;
        self.strangers -= usize::from(!half.is_member);
        if let Some(here) = self.each.get_mut(&half.from) {
            *here -= 1;
            if *here == 0 {
                self.each.remove(&half.from);
            }
        }
        Some(half)
    }

    /// The oldest one of those that may be replaced.
    fn oldest(&self, is: impl Fn(&Half) -> bool) -> Option<u64> {
        self.all.iter().find(|(_, half)| is(half)).map(|(number, _)| *number)
    }

    /// The connection that a new one replaces, if no place is free.
    fn displaced(&self, from: IpAddr, is_member: bool, limits: &Limits) -> Option<u64> {
        if self.each.get(&from).copied().unwrap_or(0) >= limits.half_open_each {
            return self.oldest(|half| half.from == from);
        }
        let for_strangers = limits.half_open - limits.half_open / 4;
        if !is_member && self.strangers >= for_strangers {
            return self.oldest(|half| !half.is_member);
        }
        if self.all.len() >= limits.half_open {
            return self.oldest(|half| !half.is_member).or_else(|| self.oldest(|_| true));
        }
        None
    }
}

#[derive(Default)]
struct HalfOpen(Mutex<Places>);

struct Place(Arc<HalfOpen>, u64);

impl HalfOpen {
    /// Takes a place for a new connection. True: another one was replaced.
    fn enter(self: &Arc<Self>, from: IpAddr, is_member: bool, limits: &Limits) -> (Place, bool) {
        let from = whole(from);
        let mut places = self.0.lock();
        let displaced = places.displaced(from, is_member, limits).and_then(|number| places.remove(number));
        displaced.iter().filter_map(|half| half.task.as_ref()).for_each(AbortHandle::abort);
        let number = places.next;
        places.next += 1;
        places.all.insert(number, Half { from, is_member, task: None });
        *places.each.entry(from).or_default() += 1;
        places.strangers += usize::from(!is_member);
        (Place(Arc::clone(self), number), displaced.is_some())
    }

    /// Records the task of a handshake, which is aborted when the connection is replaced.
    fn greeted_by(&self, number: u64, task: AbortHandle) {
        if let Some(half) = self.0.lock().all.get_mut(&number) {
            half.task = Some(task);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.lock().remove(self.1);
    }
}

/// What counts as one address. For IPv6 it is the network, because one machine has as many addresses there as
/// it likes.
fn whole(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        other => other,
    }
}

pub(super) async fn listen(shared: Arc<Shared>, listener: TcpListener, bulk: Handle) {
    let half = Arc::new(HalfOpen::default());
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
        let (place, displaced) = half.enter(from.ip(), is_member, limits);
        if displaced {
            Counters::one(&shared.counters.displaced);
        }
        let number = place.1;
        let task = tokio::spawn(greet(Arc::clone(&shared), stream, from, place, bulk.clone()));
        half.greeted_by(number, task.abort_handle());
    }
}

async fn greet(shared: Arc<Shared>, stream: TcpStream, from: SocketAddr, place: Place, bulk: Handle) {
    socket::prepare(&stream, shared.silence_ms());
    let (link, other) = match establish::accept(&shared, stream).await {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(a: u8, b: u8) -> IpAddr {
        IpAddr::from([10, 0, a, b])
    }

    /// 512 silent connections took all places for five seconds, and no new member could connect.
    #[test]
    fn regression_silent_connections_do_not_keep_others_out() {
        let limits = Limits { half_open: 16, half_open_each: 4, ..Limits::default() };
        let half = Arc::new(HalfOpen::default());
        let mut places: Vec<Place> = (0..200).map(|n| half.enter(address(0, n), false, &limits).0).collect();
        assert_eq!(half.0.lock().all.len(), 12, "a quarter is kept");
        assert!(half.0.lock().all.keys().all(|number| *number >= 188), "the newest stay");
        let members: Vec<Place> = (0..4).map(|n| half.enter(address(1, n), true, &limits).0).collect();
        let counts = || {
            let places = half.0.lock();
            (places.all.len(), places.strangers)
        };
        assert_eq!(counts(), (16, 12), "they had room");
        let fifth = half.enter(address(1, 9), true, &limits);
        assert!(fifth.1 && counts() == (16, 11), "then a stranger goes first");
        places.extend((0..50).map(|_| half.enter(address(0, 255), false, &limits).0));
        let places_now = |places: &Places| places.each.get(&address(0, 255)).copied();
        assert_eq!(places_now(&half.0.lock()), Some(4), "an address has its share");
        assert!(members.iter().all(|place| half.0.lock().all.contains_key(&place.1)), "and members stay");
        drop((places, members, fifth));
        let left = half.0.lock();
        assert_eq!((left.all.len(), left.each.len(), left.strangers), (0, 0, 0));
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let whole = |text: &str| whole(text.parse().unwrap());
        assert_eq!(whole("2001:db8::1"), whole("2001:db8::ffff:2"));
        assert_ne!(whole("2001:db8::1"), whole("2001:db8:0:1::1"));
        assert_eq!(whole("::ffff:10.0.0.1"), whole("10.0.0.1"));
        assert_ne!(whole("::1"), whole("::"));
    }
}
