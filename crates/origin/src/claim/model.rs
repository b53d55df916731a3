//! Claims, copies, backups, pauses, restores and take-overs in random order: no blob that is needed is ever
//! deleted.
//!
//! A folder is what it remembers of its claims, the blobs that its rows refer to, and the blobs that its rows
//! know to be published. The clock is the model's own. Two kinds of blobs are needed: those that any
//! published tree holds, and those that existed when the newest claim was made and that the rows of its
//! folder refer to. A paused writer has done its check and sends its deletion later. A take-over waits, as
//! the program does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::BlobId;
use base::time::{BootTime, boot};
use blob::{Origin, Sums};

use super::decide::Wish;
use super::keeper::{Claimant, Keeper};
use super::memory::Memory;
use super::tests::Folder;
use super::{HOLDS, SETTLE};
use crate::Memory as MemoryOrigin;
use blob::claim::Kind;

type Blobs = BTreeSet<BlobId>;

/// What a folder holds on its disk.
#[derive(Clone, Default)]
struct Rows {
    refers: Blobs,
    /// The blobs of published trees, by name.
    holds: Vec<(u64, Blobs)>,
}

impl Rows {
    fn holds(&self, id: &BlobId) -> bool {
        self.holds.iter().any(|(_, blobs)| blobs.contains(id))
    }

    fn hold(&mut self, name: u64, blobs: &Blobs) {
        self.holds.retain(|(other, _)| *other != name);
        self.holds.push((name, blobs.clone()));
    }
}

struct Place {
    folder: Folder,
    rows: Rows,
    /// The daemon that has the folder open.
    writer: Option<Arc<Keeper>>,
    /// A deletion that was allowed but not sent yet.
    paused: Option<(BlobId, BootTime)>,
    backup: Option<(Option<Memory>, Rows)>,
}

struct World {
    origin: Arc<dyn Origin>,
    clock: Arc<AtomicU64>,
    start: BootTime,
    places: Vec<Place>,
    published: Vec<(u64, Blobs)>,
    /// The needed blobs of the folder that made the newest claim.
    needed: Blobs,
    claimant: Option<usize>,
    next: u64,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            origin: Arc::new(MemoryOrigin::new()),
            clock: Arc::default(),
            start: boot(),
            places: Vec::new(),
            published: Vec::new(),
            needed: Blobs::new(),
            claimant: None,
            next: 0,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        };
        world.places.push(Place::new(Folder::new("p0"), Rows::default()));
        world
    }

    fn draw(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 20) as usize % below.max(1)
    }

    fn now(&self) -> BootTime {
        self.start.plus(Duration::from_millis(self.clock.load(Ordering::SeqCst)))
    }

    fn pass(&self, time: Duration) {
        self.clock.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    fn is_there(&self, id: &BlobId) -> bool {
        self.origin.size(id).unwrap().is_some()
    }

    /// Opens the folder as the program does.
    fn open(&mut self, at: usize, wish: Wish) {
        let (clock, start) = (self.clock.clone(), self.start);
        let now = move || start.plus(Duration::from_millis(clock.load(Ordering::SeqCst)));
        let folder = self.places[at].folder.clone();
        let who = Claimant { volume: [1; 16], place: folder.place.clone() };
        let remember = Box::new(folder.clone());
        let keeper = Arc::new(Keeper::by_clock(self.origin.clone(), remember, who, false, Arc::new(now)));
        // The folder's lock: the earlier daemon has ended.
        self.places[at].writer = None;
        self.places[at].paused = None;
        let Ok(opened) = keeper.open(wish) else { return };
        let elsewhere = opened.before.as_ref().is_some_and(|before| before.place != folder.place);
        let living = opened.before.as_ref().is_some_and(|before| before.kind != Kind::Closed);
        if living && (wish != Wish::Open || elsewhere) {
            self.run_late(at);
            self.pass(SETTLE);
        }
        if opened.hold {
            let published = self.published.clone();
            published.iter().for_each(|(name, blobs)| self.places[at].rows.hold(*name, blobs));
            keeper.holds_published().unwrap();
        }
        self.places[at].writer = Some(keeper);
        self.claimed(at);
    }

    /// During the wait of a take-over, earlier writers send deletions that they were allowed.
    fn run_late(&mut self, but: usize) {
        let some = self.draw(2) == 0;
        self.pass(HOLDS / 2);
        for at in (0..self.places.len()).filter(|at| *at != but && some) {
            self.send(at);
        }
    }

    /// From now on this folder's rows decide what is needed.
    fn claimed(&mut self, at: usize) {
        self.claimant = Some(at);
        let refers = self.places[at].rows.refers.clone();
        self.needed = refers.into_iter().filter(|id| self.is_there(id)).collect();
    }

    fn write(&mut self, at: usize) {
        let Some(writer) = self.places[at].writer.clone() else { return };
        if writer.may_store().is_err() {
            return;
        }
        self.next += 1;
        // Equal contents are one blob in all folders.
        let bytes = (self.next % 23).to_be_bytes();
        let sums = Sums::of(&bytes);
        self.origin.put(&sums.id(), &sums, &bytes).unwrap();
        self.places[at].rows.refers.insert(sums.id());
        if self.claimant == Some(at) {
            self.needed.insert(sums.id());
        }
    }

    /// The rows drop a blob. Its deletion is allowed, and sent now or later.
    fn delete(&mut self, at: usize) {
        self.send(at);
        let blobs: Vec<BlobId> = self.places[at].rows.refers.iter().copied().collect();
        let Some(writer) = self.places[at].writer.clone() else { return };
        if blobs.is_empty() {
            return;
        }
        let id = blobs[self.draw(blobs.len())];
        self.places[at].rows.refers.remove(&id);
        if self.claimant == Some(at) {
            self.needed.remove(&id);
        }
        if self.places[at].rows.holds(&id) {
            return;
        }
        if let Ok(until) = writer.may_remove() {
            self.places[at].paused = Some((id, until));
            if self.draw(3) > 0 {
                self.send(at);
            }
        }
    }

    fn send(&mut self, at: usize) {
        let Some((id, until)) = self.places[at].paused.take() else { return };
        // If it was stored again meanwhile, the deletion is cancelled.
        if self.now() < until && !self.places[at].rows.refers.contains(&id) {
            self.origin.remove(&id).unwrap();
            self.look(at, &id);
        }
    }

    fn look(&self, at: usize, id: &BlobId) {
        let tree = self.published.iter().find(|(_, blobs)| blobs.contains(id));
        assert!(tree.is_none(), "place {at} deleted what is published as {:?}", tree.map(|tree| tree.0));
        assert!(!self.needed.contains(id), "place {at} deleted what the claimant {:?} needs", self.claimant);
    }

    fn publish(&mut self, at: usize) {
        self.send(at);
        let Some(writer) = self.places[at].writer.clone() else { return };
        let refers = self.places[at].rows.refers.clone();
        let blobs: Blobs = refers.into_iter().filter(|id| self.is_there(id)).collect();
        let name = self.draw(3) as u64;
        if writer.verify().is_err() {
            return;
        }
        // The rows hold the blobs durably first. Those of the previous tree stay for a while.
        let mut held = blobs.clone();
        self.places[at]
            .rows
            .holds
            .iter()
            .filter(|(other, _)| *other == name)
            .for_each(|(_, was)| held.extend(was));
        self.places[at].rows.hold(name, &held);
        if writer.renew(Kind::Renewed).is_ok() && writer.may_remove().is_ok() {
            self.published.retain(|(other, _)| *other != name);
            self.published.push((name, blobs));
        }
    }

    fn step(&mut self) {
        let at = self.draw(self.places.len());
        match self.draw(16) {
            0..4 => self.write(at),
            4..7 => self.delete(at),
            7 => self.publish(at),
            8 | 9 => self.open(at, Wish::Open),
            10 => {
                // An orderly close.
                self.send(at);
                if let Some(writer) = self.places[at].writer.take() {
                    writer.close();
                }
            }
            11 => {
                let time = Duration::from_millis(self.draw(14_000) as u64);
                self.pass(time);
            }
            12 => {
                let place = &mut self.places[at];
                place.backup = Some((place.folder.memory.lock().clone(), place.rows.clone()));
            }
            13 => {
                // Put back from the backup; whatever ran on it has ended.
                let place = &mut self.places[at];
                let Some((memory, rows)) = place.backup.clone() else { return };
                (place.writer, place.paused, place.rows) = (None, None, rows);
                *place.folder.memory.lock() = memory;
            }
            14 if self.places.len() < 5 => {
                let name = format!("p{}", self.places.len());
                let (folder, rows) = (self.places[at].folder.copied(&name), self.places[at].rows.clone());
                // The clone of a disk, mounted elsewhere, is the same instance.
                let instance = self.places[at].folder.instance.clone();
                let clone = self.draw(2) == 0;
                let folder = if clone { Folder { instance, ..folder } } else { folder };
                self.places.push(Place::new(folder, rows));
            }
            15 if self.draw(3) == 0 => match self.draw(2) {
                0 => self.open(at, Wish::TakeOver),
                _ => self.restore(),
            },
            _ => self.send(at),
        }
    }

    fn restore(&mut self) {
        if self.published.is_empty() || self.places.len() >= 6 {
            return;
        }
        let which = self.draw(self.published.len());
        let tree = self.published[which].clone();
        let name = format!("p{}", self.places.len());
        let rows = Rows { refers: tree.1.clone(), holds: Vec::new() };
        self.places.push(Place::new(Folder::new(&name), rows));
        self.open(self.places.len() - 1, Wish::Restore);
    }
}

impl Place {
    fn new(folder: Folder, rows: Rows) -> Place {
        Place { folder, rows, writer: None, paused: None, backup: None }
    }
}

#[test]
fn no_needed_blob_is_deleted_whatever_happens_to_folders() {
    let (mut published, mut places) = (0, 0);
    for seed in 0..1500 {
        let mut world = World::new(seed);
        println!("seed {seed}");
        world.open(0, Wish::Open);
        for _ in 0..150 {
            world.step();
            for (name, blobs) in &world.published {
                assert!(blobs.iter().all(|id| world.is_there(id)), "the tree {name} has lost a blob");
            }
        }
        published += world.published.len();
        places += world.places.len();
    }
    assert!(published > 1000 && places > 3000, "{published} {places}: the model did little");
}
