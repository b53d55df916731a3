//! What the kernel may keep under a lease, and how it is made to forget.
//!
//! The kernel keeps the attributes of a directory or link as long as this node's session lasts for certain.
//! When the lease is given back, it is told to drop them. That call takes no lock which a program could hold
//! while it waits for this process. The kernel's clock stops while the machine sleeps, and the session's does
//! not. So after a sleep the kernel is told to drop all of them ([`Leases::kernel_forgets`]).
//!
//! The kernel keeps names for a moment only ([`NAMES`]), and giving a lease back waits until the moment is
//! over. To drop a name the kernel needs the lock of its directory. If a program holds that lock while it
//! waits for this process, and this process is killed, it could never end.
//!
//! The attributes of a file are kept for that moment too. The kernel takes the end of a short read for the
//! file's new end, unless it was told to drop the attributes since it asked. Then it would show zeros up to
//! the old end.
//!
//! Of a unit that is lent the kernel keeps nothing: see [`super::lend`].
//!
//! **Pages** of files that programs have open are looked at again after a lease has gone ([`super::pages`]).
//!
//! **A reply and a recall.** A reply must not reach the kernel after the recall that forbids it. So the
//! caller notes how many recalls there were before it reads ([`Leases::mark`]). The reply is sent under a
//! lock, and permits nothing if there was a recall since ([`Leases::deliver`]). A recall takes the lock once
//! before it tells the kernel.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Ino;
use hashbrown::HashSet;

use super::state::Unit;
use super::{Core, Leases};
use crate::key::Key;
use crate::record::InodeRecord;
use crate::store::StoreError;

/// How long the kernel keeps names.
const NAMES: Duration = Duration::from_millis(100);
/// How long after a reply a name may still be in use: the kernel counts in ticks, from when it reads the
/// reply.
const NAMES_END: Duration = Duration::from_millis(200);
/// Names are kept only under a lease that no other node had before, or wanted for this long.
const STEADY: Duration = Duration::from_millis(300);

/// What a reply says of an inode, and how long the kernel may keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The inode whose attributes it has. 0: none.
    pub ino: Ino,
    /// The directory of which it has a name, or the absence of one. 0: none.
    pub parent: Ino,
    /// How long the attributes may be kept.
    pub attributes: Duration,
    /// How long the name, or its absence, may be kept.
    pub name: Duration,
}

impl Promise {
    /// Of an inode, under a name in a directory. It permits nothing yet.
    pub fn of(ino: Ino, parent: Ino) -> Promise {
        Promise { ino, parent, attributes: Duration::ZERO, name: Duration::ZERO }
    }
}

/// The kernel, which keeps what replies permit.
pub trait KernelCache: Send + Sync {
    /// Drops the attributes of these inodes, before it returns. All replies that were sent before count.
    /// False: it could not be done in time.
    fn forget(&self, inos: &[Ino]) -> bool;

    /// The files that programs have open. It must not wait.
    fn open_files(&self) -> Vec<Ino> {
        Vec::new()
    }

    /// Looks at these open files again, soon: drops their pages, and asks for their attributes. It must not
    /// wait.
    fn look_again(&self, _files: &[Ino]) {}
}

impl Leases {
    /// Call this before what a reply says is read.
    pub fn mark(&self) -> u64 {
        self.core.state.lock().recalls
    }

    /// Sends a reply that was read after `mark`, with what the kernel may keep of it.
    pub fn deliver<T>(&self, mark: u64, promises: &mut [Promise], send: impl FnOnce(&[Promise]) -> T) -> T {
        let _reply = self.core.replies.read();
        self.core.promise(mark, promises);
        send(promises)
    }

    /// Whether the kernel may keep names of a directory just now.
    pub fn keeps_names(&self, dir: Ino) -> bool {
        let now = base::time::monotonic();
        let state = self.core.state.lock();
        let keeps = |held: &Unit| !held.leaving && held.loan.is_none() && is_steady(held, now);
        state.units.get(&dir).is_some_and(keeps) && !state.lends_now(dir, now)
    }

    /// Makes the kernel drop all attributes that it was permitted to keep until now. False: it could not be
    /// done in time.
    pub fn kernel_forgets(&self) -> bool {
        // Replies that permit the kernel to keep something have been sent by now.
        drop(self.core.replies.write());
        let told = {
            let state = self.core.state.lock();
            state.units.values().flat_map(|unit| unit.told.iter().copied()).collect()
        };
        self.core.look_again_at_all();
        // It may have been told the same again meanwhile. So the notes stay.
        self.core.kernel_forgets(&told)
    }

    /// The kernel that must forget from now on.
    pub fn serve(&self, kernel: Arc<dyn KernelCache>) {
        *self.core.kernel.write() = Some(kernel);
    }
}

/// What the kernel may keep under some leases.
pub(super) struct KeptByKernel {
    told: HashSet<Ino>,
    names: Option<Instant>,
}

impl KeptByKernel {
    /// What it may keep of these units.
    pub fn of<'a>(units: impl IntoIterator<Item = &'a Unit>) -> KeptByKernel {
        let mut kept = KeptByKernel { told: HashSet::new(), names: None };
        for unit in units {
            kept.told.extend(&unit.told);
            kept.names = kept.names.max(unit.names_until);
        }
        kept
    }
}

fn is_steady(held: &Unit, now: Instant) -> bool {
    held.was_free || now.saturating_duration_since(held.since) > STEADY
}

impl Core {
    fn promise(&self, mark: u64, promises: &mut [Promise]) {
        let left = self.term.left();
        let mut state = self.state.lock();
        if state.recalls != mark || left.is_zero() {
            return;
        }
        let now = base::time::monotonic();
        for promise in promises {
            let home = state.homes.get(&promise.ino).map(|home| home.unit);
            let home = home.filter(|home| !state.lends_now(*home, now));
            let keeps = |held: &&mut Unit| !held.leaving && held.loan.is_none();
            if let Some(held) = home.and_then(|home| state.units.get_mut(&home)).filter(keeps) {
                let row = held.rows.get(&Key::inode(promise.ino)).and_then(Option::as_deref);
                if !row.and_then(|row| InodeRecord::decode(row).ok()).is_some_and(|record| record.is_file()) {
                    held.told.insert(promise.ino);
                    promise.attributes = left;
                } else if is_steady(held, now) {
                    held.names_until = Some(now + NAMES_END);
                    promise.attributes = NAMES;
                }
            }
            let parent = Some(promise.parent).filter(|parent| !state.lends_now(*parent, now));
            let held = parent.and_then(|parent| state.units.get_mut(&parent)).filter(keeps);
            if let Some(held) = held.filter(|held| is_steady(held, now)) {
                held.names_until = Some(now + NAMES_END);
                promise.name = NAMES;
            }
        }
    }

    /// Returns when the kernel keeps nothing of these inodes, and no name that it was to keep until then.
    pub(super) fn kernel_lets_go(
        &self,
        told: &HashSet<Ino>,
        names: Option<Instant>,
    ) -> Result<(), StoreError> {
        if !self.kernel_forgets(told) {
            let why = "this node's kernel does not give up what it keeps yet";
            return Err(StoreError::Unavailable(why.to_owned()));
        }
        if let Some(names) = names {
            std::thread::sleep(names.saturating_duration_since(base::time::monotonic()));
        }
        Ok(())
    }

    /// Makes the kernel let go of units that were forgotten already. Until it has, recalls of them wait.
    /// Call it after `letting_go` and `recalls` have grown.
    pub(super) fn kernel_lets_go_of_the_forgotten(&self, kept: &KeptByKernel) {
        // Replies that permit the kernel to keep something have been sent by now.
        drop(self.replies.write());
        // If that fails, the kernel forgets by itself: what it keeps has a time that ends with the session.
        let _ = self.kernel_lets_go(&kept.told, kept.names);
        self.look_again_at_all();
        self.state.lock().letting_go -= 1;
        self.changed.notify_all();
    }

    /// Makes the kernel forget. False: it could not be done in time.
    pub(super) fn kernel_forgets(&self, inos: &HashSet<Ino>) -> bool {
        let kernel = self.kernel.read().clone();
        let inos: Vec<Ino> = inos.iter().copied().collect();
        inos.is_empty() || kernel.is_none_or(|kernel| kernel.forget(&inos))
    }
}
