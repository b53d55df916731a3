//! How often the kernel refers to each inode, and which inodes without a name it still holds.
//!
//! **At most 64 bytes for each inode the kernel holds**: an entry is two numbers and a control byte in a
//! table that is at least 7/16 full.
//!
//! An inode that lost its last name may be deleted as soon as the kernel holds no reference to it. That
//! moment must not be missed. It must also not be declared too early, while a lookup has found the name but
//! has not yet counted its reference. So a lookup holds a [`Finding`] from before it reads the name until the
//! inode is counted, and [`Refs::unheld`] waits for all lookups in progress. After it, nothing can obtain a
//! reference to an inode that has no name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Ino;
use hashbrown::{HashMap, HashSet};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

const SHARDS: usize = 64;

/// How often the kernel refers to each inode, taken out of a volume that is closed ([`crate::handover`]).
#[derive(Clone, Default)]
pub struct Held(pub(crate) Arc<HashMap<u64, u64>>);

/// The counts. See the [module](self).
pub(crate) struct Refs {
    shards: [Mutex<HashMap<u64, u64>>; SHARDS],
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
        *self.refs.shard(ino).lock().entry(ino.0).or_insert(0) += 1;
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
            refs.shard(Ino(*ino)).lock().insert(*ino, *count);
        }
        refs
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<u64, u64>> {
        // Neighbouring inode numbers are used together, and their locks should not contend.
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The count of one inode, lookups in progress included. The caller must not hold a [`Finding`].
    pub(crate) fn of(&self, ino: Ino) -> u64 {
        let _gate = self.gate.write();
        self.shard(ino).lock().get(&ino.0).copied().unwrap_or(0)
    }

    /// Begins a lookup by name.
    pub(crate) fn finding(&self) -> Finding<'_> {
        Finding { refs: self, _gate: self.gate.read() }
    }

    /// Drops `count` references. Returns true if the inode has no name and no reference is left.
    pub(crate) fn forget(&self, ino: Ino, count: u64) -> bool {
        let _gate = self.gate.read();
        let mut shard = self.shard(ino).lock();
        let Some(held) = shard.get_mut(&ino.0) else {
            return false;
        };
        *held = held.saturating_sub(count);
        if *held > 0 {
            return false;
        }
        shard.remove(&ino.0);
        if shard.capacity() > 64 && shard.len() < shard.capacity() / 4 {
            let keep = shard.len() * 2;
            shard.shrink_to(keep);
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
            let held = self.shard(*ino).lock().contains_key(&ino.0);
            if held {
                nameless.insert(ino.0);
            }
            !held
        });
        self.nameless_count.store(nameless.len() as u64, Ordering::Release);
    }

    /// The same, unless lookups are in progress for as long as `at_most`. Returns whether it was done.
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
            *shard.lock() = HashMap::new();
        }
        let nameless = std::mem::take(&mut *self.nameless.lock());
        self.nameless_count.store(0, Ordering::Release);
        nameless.into_iter().map(Ino).collect()
    }

    /// Takes all references out. From now on no inode counts as held.
    pub(crate) fn take(&self) -> HashMap<u64, u64> {
        let _gate = self.gate.write();
        let all = self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock())).collect();
        self.nameless.lock().clear();
        self.nameless_count.store(0, Ordering::Release);
        all
    }

    /// How many inodes are held, and how many of them have no name.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let held = self.shards.iter().map(|shard| shard.lock().len() as u64).sum();
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

    #[test]
    fn a_held_inode_takes_at_most_64_bytes() {
        let refs = Refs::new();
        for ino in 0..1_000_000 {
            refs.finding().hold(Ino(ino));
        }
        let room: usize = refs.shards.iter().map(|s| s.lock().allocation_size()).sum();
        assert!(room <= 64_000_000, "{room}");
        for ino in 0..1_000_000 {
            refs.forget(Ino(ino), 1);
        }
        let room: usize = refs.shards.iter().map(|s| s.lock().allocation_size()).sum();
        assert!(room <= 1_000_000, "what is forgotten gives its room back: {room}");
    }
}
