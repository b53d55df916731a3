//! How often the kernel refers to each inode, and which inodes without a name it still holds.
//!
//! **At most 64 bytes for each inode the kernel holds**, and about 3 if it holds the inodes with the
//! neighbouring numbers too ([`shard`]).
//!
//! An inode that lost its last name may be deleted as soon as the kernel holds no reference to it. That
//! moment must not be missed. It must also not be declared too early, while a lookup has found the name but
//! has not yet counted its reference. So a lookup holds a [`Finding`] from before it reads the name until the
//! inode is counted, and [`Refs::unheld`] waits for all lookups in progress. After it, nothing can obtain a
//! reference to an inode that has no name.

mod shard;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Ino;
use hashbrown::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use shard::Shard;

const SHARDS: usize = 64;

/// How often the kernel refers to each inode, taken out of a volume that is closed ([`crate::handover`]).
#[derive(Clone, Default)]
pub struct Held(pub(crate) Arc<HashMap<u64, u64>>);

/// The counts. See the [module](self).
pub(crate) struct Refs {
    shards: [Mutex<Shard>; SHARDS],
    /// Shared by lookups and forgets; exclusive for the decision that nothing holds an inode.
    gate: RwLock<()>,
    /// Inodes without a name that the kernel still refers to.
    nameless: Mutex<HashSet<u64>>,
    nameless_count: AtomicU64,
}

/// Held while inodes are found by name and counted. A thread that holds one must not call [`Refs::unheld`].
pub(crate) struct Finding<'a> {
    refs: &'a Refs,
    _gate: RwLockReadGuard<'a, ()>,
}

impl Finding<'_> {
    /// Counts one more reference.
    pub(crate) fn hold(&self, ino: Ino) {
        let mut shard = self.refs.shard(ino).lock();
        let count = shard.get(ino).saturating_add(1);
        shard.set(ino, count);
    }

    /// Whether anything holds an inode.
    pub(crate) fn is_held(&self, ino: Ino) -> bool {
        self.refs.shard(ino).lock().get(ino) > 0
    }
}

impl Refs {
    pub(crate) fn new() -> Refs {
        Refs {
            shards: std::array::from_fn(|_| Mutex::default()),
            gate: RwLock::new(()),
            nameless: Mutex::default(),
            nameless_count: AtomicU64::new(0),
        }
    }

    /// Counts that were taken from another table.
    pub(crate) fn of_held(held: &HashMap<u64, u64>) -> Refs {
        let refs = Refs::new();
        for (ino, count) in held {
            refs.shard(Ino(*ino)).lock().set(Ino(*ino), *count);
        }
        refs
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[shard::block(ino) as usize % SHARDS]
    }

    /// The count of one inode, lookups in progress included. The caller must not hold a [`Finding`].
    pub(crate) fn of(&self, ino: Ino) -> u64 {
        let _gate = self.gate.write();
        self.shard(ino).lock().get(ino)
    }

    /// Begins a lookup by name.
    pub(crate) fn finding(&self) -> Finding<'_> {
        Finding { refs: self, _gate: self.gate.read() }
    }

    /// Drops `count` references. Returns true if the inode has no name and no reference is left.
    pub(crate) fn forget(&self, ino: Ino, count: u64) -> bool {
        let _gate = self.gate.read();
        let mut shard = self.shard(ino).lock();
        let held = shard.get(ino);
        if held == 0 {
            return false;
        }
        shard.set(ino, held.saturating_sub(count));
        if held > count {
            return false;
        }
        drop(shard);
        if self.nameless_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut nameless = self.nameless.lock();
        let was = nameless.remove(&ino.0);
        self.nameless_count.store(nameless.len() as u64, Ordering::Release);
        was
    }

    /// Removes from these inodes without a name those that are still held, and remembers them:
    /// [`Refs::forget`] reports them later. The rest can be collected.
    pub(crate) fn unheld(&self, inos: &mut Vec<Ino>) {
        let _gate = self.gate.write();
        self.remember_held(inos);
    }

    /// Call it with the gate closed.
    fn remember_held(&self, inos: &mut Vec<Ino>) {
        let mut nameless = self.nameless.lock();
        inos.retain(|ino| {
            let held = self.shard(*ino).lock().get(*ino) > 0;
            if held {
                nameless.insert(ino.0);
            }
            !held
        });
        self.nameless_count.store(nameless.len() as u64, Ordering::Release);
    }

    /// Removes inodes as [`Refs::unheld`] does, unless lookups are in progress for as long as `at_most`.
    /// Returns whether it was done.
    pub(crate) fn unheld_within(&self, inos: &mut Vec<Ino>, at_most: Duration) -> bool {
        let gate = self.gate.try_write_for(at_most);
        if gate.is_some() {
            self.remember_held(inos);
        }
        gate.is_some()
    }

    /// Drops all references. Returns the inodes without a name that were held.
    pub(crate) fn clear(&self) -> Vec<Ino> {
        let _gate = self.gate.write();
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
        let nameless = std::mem::take(&mut *self.nameless.lock());
        self.nameless_count.store(0, Ordering::Release);
        nameless.into_iter().map(Ino).collect()
    }

    /// Takes all references out. From now on no inode counts as held.
    pub(crate) fn take(&self) -> HashMap<u64, u64> {
        let _gate = self.gate.write();
        let mut all = HashMap::new();
        for shard in &self.shards {
            all.extend(std::mem::take(&mut *shard.lock()).all());
        }
        self.nameless.lock().clear();
        self.nameless_count.store(0, Ordering::Release);
        all
    }

    /// How many inodes are held, and how many of them have no name.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let held = self.shards.iter().map(|shard| shard.lock().held() as u64).sum();
        (held, self.nameless_count.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_forget_of_a_nameless_inode_says_so() {
        let refs = Refs::new();
        let found = refs.finding();
        found.hold(Ino(7));
        found.hold(Ino(7));
        drop(found);
        let mut lost = vec![Ino(7), Ino(8)];
        refs.unheld(&mut lost);
        assert_eq!(lost, [Ino(8)]);
        assert_eq!(refs.counts(), (1, 1));
        assert!(!refs.forget(Ino(7), 1));
        assert!(refs.forget(Ino(7), 1));
        assert_eq!(refs.counts(), (0, 0));
        assert!(!refs.forget(Ino(7), 1), "reported once");
    }

    /// The bytes for a million inodes, each number so far from the next, before and after they are forgotten.
    fn room(step: u64) -> [usize; 2] {
        let (refs, inos) = (Refs::new(), (0..1_000_000).map(|n| Ino(n * step)));
        let room = || refs.shards.iter().map(|shard| shard.lock().bytes()).sum();
        inos.clone().for_each(|ino| refs.finding().hold(ino));
        let held = room();
        inos.for_each(|ino| _ = refs.forget(ino, 1));
        [held, room()]
    }

    #[test]
    fn a_held_inode_takes_at_most_64_bytes() {
        for (step, bytes) in [(1, 5), (16, 64), (1_009, 64)] {
            let [held, left] = room(step);
            assert!(held <= bytes * 1_000_000, "every {step}: {held}");
            assert!(left <= 1_000_000, "what is forgotten gives its room back: {left}");
        }
    }
}
