//! Places of a listener: what strangers may take of it, and who gives a place up when none is free.
//!
//! Whatever reaches a listener can open connections, also without a key. So a connection begins as a
//! **stranger** and is **known** once it has shown a key, or at once if its peer is trusted (root, a member).
//!
//! - A quarter of the places is for the known. Strangers have the rest, and each peer (an address, a user, a
//!   virtual machine) has a share of that.
//! - A new connection is never refused for the sake of a stranger: it displaces one. A peer whose share is
//!   used up displaces its own. Otherwise the peer with the most places gives one up: the one that works on
//!   nothing, and then the oldest.
//! - When the known have all places, one of them that works on nothing is displaced. Only if all are at work
//!   is a new connection refused.
//! - A listener that serves strangers as well may keep those too that are at work ([`Limits::keeps_work`]).
//!
//! A client with a key shows it within some round trips. So it gets in, also while strangers open connections
//! as fast as they can. The table decides; ending a connection is a function that its listener gave.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The other end of a connection, as far as strangers are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// An address: see [`Peer::of_address`].
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
    /// A process of this machine.
    Process(u32),
    /// A virtual machine, by its CID.
    Machine(u32),
    /// Nothing is known.
    Unknown,
}

impl Peer {
    /// What counts as one address. For IPv6 it is the network, because one machine has as many addresses
    /// there as it likes.
    pub fn of_address(address: IpAddr) -> Peer {
        Peer::Address(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let network = u128::from(address) >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from(network))
            }
            other => other,
        })
    }
}

/// How many places there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All.
    pub all: usize,
    /// Places that strangers may have.
    pub strangers: usize,
    /// Places that one peer may have as a stranger.
    pub each: usize,
    /// Strangers too are displaced only while they work on nothing.
    pub keeps_work: bool,
}

impl Limits {
    /// So many places, of which a quarter is for the known, and half of the rest for one peer.
    pub fn of(all: usize) -> Limits {
        let all = all.max(1);
        let strangers = (all - all / 4).max(1);
        Limits { all, strangers, each: (strangers / 2).max(1), keeps_work: false }
    }

    /// Returns the same limits as [`Limits::of`], except that strangers too are displaced only while they
    /// work on nothing.
    pub fn keeping_work(all: usize) -> Limits {
        Limits { keeps_work: true, ..Limits::of(all) }
    }
}

/// Ends a connection.
type End = Box<dyn FnOnce() + Send>;

struct Entry {
    peer: Peer,
    known: bool,
    /// How many pieces of work are under way.
    working: usize,
    /// Orders those that work on nothing: when it was last at work.
    rested: u64,
    end: Option<End>,
}

struct Table {
    limits: Limits,
    entries: BTreeMap<u64, Entry>,
    strangers: usize,
    each: HashMap<Peer, usize>,
    clock: u64,
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn count(&mut self, peer: Peer, more: bool) {
        let here = self.each.entry(peer).or_default();
        if more {
            (self.strangers, *here) = (self.strangers + 1, *here + 1);
        } else {
            (self.strangers, *here) = (self.strangers.saturating_sub(1), here.saturating_sub(1));
        }
        if *here == 0 {
            self.each.remove(&peer);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        if !entry.known {
            self.count(entry.peer, false);
        }
        Some(entry)
    }

    fn of(&self, peer: Peer) -> usize {
        self.each.get(&peer).copied().unwrap_or(0)
    }

    /// The stranger that gives its place up first: of the peer with the most, at rest, the oldest.
    fn stranger(&self, of: Option<Peer>) -> Option<u64> {
        let strangers = self.entries.iter().filter(|(_, entry)| !entry.known);
        let may = |entry: &Entry| entry.working == 0 || !self.limits.keeps_work;
        let asked = strangers.filter(|(_, entry)| may(entry) && of.is_none_or(|peer| peer == entry.peer));
        let key = |entry: &Entry| (std::cmp::Reverse(self.of(entry.peer)), entry.working > 0, entry.rested);
        asked.min_by_key(|(_, entry)| key(entry)).map(|(number, _)| *number)
    }

    /// The known one that has been at rest for the longest time.
    fn resting(&self) -> Option<u64> {
        let resting = self.entries.iter().filter(|(_, entry)| entry.known && entry.working == 0);
        resting.min_by_key(|(_, entry)| entry.rested).map(|(number, _)| *number)
    }

    /// The connection that a new one displaces. `Ok(None)`: a place is free.
    fn displaced(&self, peer: Peer, known: bool) -> Result<Option<u64>, Full> {
        if !known && self.of(peer) >= self.limits.each {
            return self.stranger(Some(peer)).map(Some).ok_or(Full);
        }
        if !known && self.strangers >= self.limits.strangers {
            return self.stranger(None).map(Some).ok_or(Full);
        }
        if self.entries.len() < self.limits.all {
            return Ok(None);
        }
        self.stranger(None).or_else(|| self.resting()).map(Some).ok_or(Full)
    }
}

/// All places that a connection could have are taken by others that are at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all places are taken")]
pub struct Full;

/// The places of a listener. Clones are equivalent.
#[derive(Clone)]
pub struct Places(Arc<Mutex<Table>>);

impl Places {
    /// Nothing is taken.
    pub fn new(limits: Limits) -> Places {
        let (entries, each) = (BTreeMap::new(), HashMap::new());
        Places(Arc::new(Mutex::new(Table { limits, entries, strangers: 0, each, clock: 0 })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a new connection, which `end` ends. Another connection may be ended for it.
    ///
    /// # Errors
    /// All places that it could have are taken by others that are at work.
    pub fn enter(&self, peer: Peer, known: bool, end: impl FnOnce() + Send + 'static) -> Result<Place, Full> {
        let mut table = self.table();
        let displaced = table.displaced(peer, known)?.and_then(|number| table.remove(number));
        let number = table.tick();
        let end: Option<End> = Some(Box::new(end));
        table.entries.insert(number, Entry { peer, known, working: 0, rested: number, end });
        if !known {
            table.count(peer, true);
        }
        drop(table);
        let has_displaced = displaced.is_some();
        if let Some(end) = displaced.and_then(|entry| entry.end) {
            end();
        }
        Ok(Place { places: self.clone(), number, has_displaced })
    }

    /// How many are taken.
    pub fn count(&self) -> usize {
        self.table().entries.len()
    }

    /// How many of them strangers have.
    pub fn strangers(&self) -> usize {
        self.table().strangers
    }

    /// Ends all connections.
    pub fn end_all(&self) {
        let mut table = self.table();
        let numbers: Vec<u64> = table.entries.keys().copied().collect();
        let all: Vec<Entry> = numbers.into_iter().filter_map(|number| table.remove(number)).collect();
        drop(table);
        all.into_iter().filter_map(|entry| entry.end).for_each(|end| end());
    }
}

/// A place. It is free again when this is dropped.
pub struct Place {
    places: Places,
    number: u64,
    has_displaced: bool,
}

impl Place {
    /// Whether another connection was ended for this one.
    pub fn has_displaced(&self) -> bool {
        self.has_displaced
    }

    /// The connection has shown a key.
    pub fn know(&self) {
        let mut table = self.places.table();
        if let Some(entry) = table.entries.get_mut(&self.number)
            && !std::mem::replace(&mut entry.known, true)
        {
            let peer = entry.peer;
            table.count(peer, false);
        }
    }

    /// While this exists, the connection is at work: a known one is not displaced.
    pub fn work(self: &Arc<Self>) -> Work {
        if let Some(entry) = self.places.table().entries.get_mut(&self.number) {
            entry.working += 1;
        }
        Work(Arc::clone(self))
    }

    /// Begins work as [`Place::work`] does, if there is room. If strangers keep their places while they are
    /// at work, they may use half of their places for work, and a peer half of its share. So there is always
    /// one to displace for a connection that will show a key.
    pub fn try_work(self: &Arc<Self>) -> Option<Work> {
        let table = self.places.table();
        let entry = table.entries.get(&self.number)?;
        let working = |is: &dyn Fn(&Entry) -> bool| {
            table.entries.values().filter(|entry| !entry.known && entry.working > 0 && is(entry)).count()
        };
        let limits = table.limits;
        let is_full = !entry.known
            && limits.keeps_work
            && (working(&|_| true) >= limits.strangers.div_ceil(2)
                || working(&|other| other.peer == entry.peer) >= limits.each.div_ceil(2));
        drop(table);
        (!is_full).then(|| self.work())
    }

    /// Whether the connection was displaced.
    pub fn is_over(&self) -> bool {
        !self.places.table().entries.contains_key(&self.number)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().remove(self.number);
    }
}

/// See [`Place::work`].
pub struct Work(Arc<Place>);

impl Drop for Work {
    fn drop(&mut self) {
        let mut table = self.0.places.table();
        let now = table.tick();
        if let Some(entry) = table.entries.get_mut(&self.0.number) {
            (entry.working, entry.rested) = (entry.working.saturating_sub(1), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(a: u8, b: u8) -> Peer {
        Peer::of_address(IpAddr::from([10, 0, a, b]))
    }

    fn enter(places: &Places, peer: Peer, known: bool) -> Arc<Place> {
        Arc::new(places.enter(peer, known, || {}).unwrap())
    }

    fn over(list: &[Arc<Place>]) -> Vec<usize> {
        list.iter().enumerate().filter(|(_, place)| place.is_over()).map(|(at, _)| at).collect()
    }

    /// Silent connections took all places of a listener, and nothing with a key could connect.
    #[test]
    fn regression_silent_connections_do_not_keep_others_out() {
        let places = Places::new(Limits { each: 4, ..Limits::of(16) });
        let mut list: Vec<_> = (0..200).map(|n| enter(&places, address(0, n), false)).collect();
        assert_eq!(places.count(), 12, "a quarter is kept");
        assert_eq!(over(&list), (0..188).collect::<Vec<_>>(), "the newest stay");
        let known: Vec<_> = (0..4).map(|n| enter(&places, address(1, n), true)).collect();
        assert_eq!((places.count(), places.strangers()), (16, 12), "they had room");
        let fifth = enter(&places, address(1, 9), true);
        assert!(fifth.has_displaced() && places.strangers() == 11, "then a stranger goes first");
        list.extend((0..50).map(|_| enter(&places, address(0, 255), false)));
        let left = list.iter().skip(200).filter(|place| !place.is_over()).count();
        assert_eq!(left, 2, "a peer that has the most displaces its own");
        assert!(over(&known).is_empty(), "and the known stay");
        drop((list, known, fifth));
        let table = places.table();
        assert_eq!((table.entries.len(), table.each.len(), table.strangers), (0, 0, 0));
    }

    #[test]
    fn the_peer_with_the_most_places_gives_one_up() {
        let places = Places::new(Limits { each: 5, ..Limits::of(8) });
        let first = enter(&places, address(0, 1), false);
        let many: Vec<_> = (0..5).map(|_| enter(&places, address(0, 2), false)).collect();
        let work = many[0].work();
        let other = enter(&places, address(0, 3), false);
        assert_eq!(over(&many), [1], "the oldest that works on nothing");
        assert!(!first.is_over() && !other.is_over());
        drop(work);
        drop((first, other));
        let more: Vec<_> = (0..9).map(|_| enter(&places, address(0, 2), false)).collect();
        assert_eq!((over(&more).len(), places.count()), (4, 5), "each has a share");
    }

    #[test]
    fn the_known_are_displaced_only_at_rest() {
        let places = Places::new(Limits { all: 3, strangers: 2, each: 2, keeps_work: false });
        let known: Vec<_> = (0..3).map(|n| enter(&places, address(0, n), false)).collect();
        assert_eq!(over(&known), [0], "as strangers they have two places");
        known.iter().for_each(|place| place.know());
        let third = enter(&places, address(0, 9), false);
        third.know();
        third.know();
        assert_eq!((places.count(), places.strangers()), (3, 0));
        let works: Vec<_> = [&known[1], &known[2], &third].map(Place::work).into_iter().collect();
        assert_eq!(places.enter(address(1, 1), false, || {}).err(), Some(Full));
        drop(works);
        let (ended, is_ended) = std::sync::mpsc::channel();
        drop(places.enter(address(1, 1), false, || {}).unwrap());
        assert_eq!(over(&known), [0, 1], "the one that has been at rest for the longest time");
        let last = places.enter(address(1, 1), false, move || ended.send(()).unwrap()).unwrap();
        places.end_all();
        assert!(is_ended.try_recv().is_ok() && last.is_over() && places.count() == 0);
    }

    #[test]
    fn strangers_at_work_may_stay_too() {
        let places = Places::new(Limits::keeping_work(4));
        let one = enter(&places, address(0, 1), false);
        let work = one.work();
        assert_eq!(places.enter(address(0, 1), false, || {}).err(), Some(Full), "its share is one");
        let more: Vec<_> = (2..4).map(|n| enter(&places, address(0, n), false)).collect();
        let works: Vec<_> = more.iter().map(Place::work).collect();
        assert_eq!(places.enter(address(0, 9), false, || {}).err(), Some(Full));
        assert!(places.enter(address(0, 9), true, || {}).is_ok(), "one is kept for the known");
        drop(work);
        assert!(places.enter(address(0, 9), false, || {}).is_ok() && one.is_over());
        drop(works);
    }

    /// Requests without a key that took long kept clients with a key from connecting.
    #[test]
    fn regression_work_of_strangers_leaves_room_for_a_key() {
        let places = Places::new(Limits::keeping_work(16));
        let busy: Vec<_> = (0..20).map(|_| enter(&places, address(0, 1), false)).collect();
        let works: Vec<_> = busy.iter().filter_map(Place::try_work).collect();
        assert_eq!(works.len(), 3, "half of its share of six");
        let client = enter(&places, address(0, 1), false);
        assert!(client.try_work().is_none());
        client.know();
        assert!(client.try_work().is_some());
        let other = enter(&places, address(0, 2), false);
        assert!(other.try_work().is_some(), "another address");
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let whole = |text: &str| Peer::of_address(text.parse().unwrap());
        assert_eq!(whole("2001:db8::1"), whole("2001:db8::ffff:2"));
        assert_ne!(whole("2001:db8::1"), whole("2001:db8:0:1::1"));
        assert_eq!(whole("::ffff:10.0.0.1"), whole("10.0.0.1"));
        assert_ne!(whole("::1"), whole("::"));
    }

    #[test]
    fn small_listeners_have_a_place_for_strangers() {
        for all in [0, 1, 2, 3, 4, 512] {
            let Limits { all, strangers, each, .. } = Limits::of(all);
            assert!(each >= 1 && each <= strangers && strangers <= all, "{all}");
        }
    }
}
