//! Which packs of a shared volume are worth compacting, and when each is tried.
//!
//! A node knows of packs that are partly dead because its own commits removed references, and because the
//! search for dead packs reads the counters of all its packs again and again. It keeps what it knows in
//! memory: if it is lost, the search finds it again.

use std::time::{Duration, Instant};

use base::size::KIB;
use base::{PackNo, time};
use hashbrown::{HashMap, HashSet};
use meta::PackRow;

/// Packs of which less than this percentage is in use are worth compacting. If each pack has at least as
/// much, less than twice the bytes in use is stored.
const HALF: u64 = 50;
/// In the background, packs are compacted when this many bytes are freed at a time: each time makes a blob.
pub(super) const ENOUGH: u64 = 256 * KIB;
/// So many packs are remembered.
const KNOWN_MAX: usize = 64 << 10;

/// A sealed pack with dead bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Partly {
    pub size: u32,
    pub live: u32,
}

impl Partly {
    /// The pack, if it is worth compacting. Bytes that several files refer to count several times.
    pub fn of(row: &PackRow, live: u64) -> Option<Partly> {
        match *row {
            PackRow::Sealed { size, .. } if live > 0 && live * 100 < u64::from(size) * HALF => {
                Some(Partly { size, live: live as u32 })
            }
            _ => None,
        }
    }

    pub fn dead(&self) -> u64 {
        u64::from(self.size - self.live)
    }
}

/// When a pack that was put off is tried.
#[derive(Clone, Copy)]
struct Later {
    first: Instant,
    next: Instant,
}

/// What a node knows. See the [module](self).
#[derive(Default)]
pub(super) struct Worth {
    known: HashMap<PackNo, Partly>,
    later: HashMap<PackNo, Later>,
    /// Packs with bytes that cannot be read.
    given_up: HashSet<PackNo>,
}

impl Worth {
    /// Records how many bytes of a pack are in use.
    pub fn note(&mut self, pack: PackNo, row: &PackRow, live: u64) {
        match Partly::of(row, live) {
            Some(partly) if self.known.len() < KNOWN_MAX => _ = self.known.insert(pack, partly),
            Some(_) => {}
            None => self.forget(pack),
        }
    }

    /// Forgets a pack. It may be found again.
    pub fn forget(&mut self, pack: PackNo) {
        self.known.remove(&pack);
        self.later.remove(&pack);
    }

    /// At most `count` packs that `is_mine` accepts and that may be tried now, those with the smallest share
    /// of bytes in use first.
    pub fn choose(&self, count: usize, is_mine: &dyn Fn(PackNo) -> bool) -> Vec<PackNo> {
        let now = time::monotonic();
        let is_due = |pack: &PackNo| self.later.get(pack).is_none_or(|later| now >= later.next);
        let share = |partly: &Partly| u64::from(partly.live) * 1000 / u64::from(partly.size.max(1));
        let mut found: Vec<(u64, PackNo)> = self
            .known
            .iter()
            .filter(|(pack, _)| is_mine(**pack) && is_due(pack) && !self.is_given_up(**pack))
            .map(|(pack, partly)| (share(partly), *pack))
            .collect();
        found.sort_unstable();
        found.truncate(count);
        found.into_iter().map(|(_, pack)| pack).collect()
    }

    /// Puts a pack off.
    pub fn put_off(&mut self, pack: PackNo, again: Duration) {
        let now = time::monotonic();
        if self.later.len() >= KNOWN_MAX {
            self.later.clear();
        }
        let later = self.later.entry(pack).or_insert(Later { first: now, next: now });
        later.next = now + again;
    }

    /// Whatever was put off may be tried now.
    pub fn try_all_now(&mut self) {
        let now = time::monotonic();
        self.later.values_mut().for_each(|later| later.next = now);
    }

    /// How many bytes of these packs are dead.
    pub fn dead_of(&self, packs: &[PackNo]) -> u64 {
        packs.iter().filter_map(|pack| self.known.get(pack)).map(Partly::dead).sum()
    }

    /// For how long a pack has been put off.
    pub fn waited(&self, pack: PackNo) -> Duration {
        let first = self.later.get(&pack).map(|later| later.first);
        first.map_or(Duration::ZERO, |first| time::monotonic().saturating_duration_since(first))
    }

    /// Bytes of this pack cannot be read. Returns whether that is new.
    pub fn give_up(&mut self, pack: PackNo) -> bool {
        self.forget(pack);
        self.given_up.len() < KNOWN_MAX && self.given_up.insert(pack)
    }

    /// Whether bytes of this pack cannot be read.
    pub fn is_given_up(&self, pack: PackNo) -> bool {
        self.given_up.contains(&pack)
    }
}

#[cfg(test)]
mod tests {
    use base::BlobId;

    use super::*;

    #[test]
    fn the_emptiest_packs_come_first_and_what_is_put_off_waits() {
        let (mut worth, blob) = (Worth::default(), BlobId([1; 32]));
        let sealed = PackRow::Sealed { blob, size: 1000 };
        for (pack, live) in [(1, 400), (2, 100), (3, 500), (4, 0), (5, 499), (6, 2000)] {
            worth.note(PackNo(pack), &sealed, live);
        }
        worth.note(PackNo(7), &PackRow::Condemned { blob, size: 1000 }, 1);
        let all = |_: PackNo| true;
        assert_eq!(worth.choose(9, &all), [2, 1, 5].map(PackNo));
        assert_eq!(worth.choose(1, &|pack| pack != PackNo(2)), [PackNo(1)]);
        worth.put_off(PackNo(2), Duration::from_secs(60));
        assert!(worth.give_up(PackNo(1)) && !worth.give_up(PackNo(1)));
        assert_eq!(worth.choose(9, &all), [PackNo(5)]);
        worth.note(PackNo(5), &sealed, 700);
        assert_eq!(worth.choose(9, &all), []);
        worth.note(PackNo(2), &sealed, 0);
        assert_eq!(worth.waited(PackNo(2)), Duration::ZERO);
    }
}
