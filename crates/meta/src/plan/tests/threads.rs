//! Two threads on one store: however they disturb each other's plans, the rows stay consistent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{BlobId, Ino, PackNo, Timestamp};

use crate::key::{Key, KeyRange};
use crate::names::{Names, NamesError};
use crate::plan::op::{Body, Move, Piece, RenameMode, SetAttrs, XattrMode};
use crate::plan::{Change, Ctx, Op, Refusal};
use crate::record::PackRow;
use crate::store::{Commit, CommitError, MetaStore, Rows, StoreError, Value};

use super::store::TestStore;
use super::world::{World, dir, file};

/// Lets the other thread run between any two calls.
struct Jostled(Arc<TestStore>);

impl MetaStore for Jostled {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        std::thread::yield_now();
        self.0.get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        true
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        std::thread::yield_now();
        self.0.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        std::thread::yield_now();
        self.0.scan(range, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        std::thread::yield_now();
        self.0.commit(commit)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.0.flush()
    }
}

struct Worker {
    names: Names,
    seed: u64,
    numbers: Arc<AtomicU64>,
    pack: PackNo,
    used: u32,
    done: u64,
    refused: u64,
}

impl Worker {
    fn roll(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) % below
    }

    fn run(&mut self, op: &Op<'_>) -> Option<Change> {
        let now = self.numbers.fetch_add(1, Ordering::Relaxed);
        let ctx = Ctx { now: Timestamp::from_nanos(now as i64), uid: 0, gid: 0 };
        match self.names.run(op, &ctx) {
            Ok(change) => {
                self.done += 1;
                Some(change)
            }
            Err(NamesError::Refused(Refusal::Damaged)) => panic!("{op:?}: a contradiction"),
            Err(NamesError::Refused(_)) => {
                self.refused += 1;
                None
            }
            Err(NamesError::Store(error)) => panic!("{error}"),
        }
    }

    fn new_pack(&mut self) {
        self.pack =
            PackNo(self.run(&Op::Allocate { counter: "next-pack", count: 1, from: 0 }).unwrap().first);
        self.run(&Op::OpenPack { pack: self.pack }).unwrap();
        self.used = 0;
    }

    fn piece(&mut self, at: u64, len: u32) -> Piece {
        if self.used + len > 50_000 {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&self.pack.0.to_be_bytes());
            self.run(&Op::SealPack { pack: self.pack, blob: BlobId(hash), size: self.used }).unwrap();
            self.new_pack();
        }
        let offset = self.used;
        self.used += len;
        Piece { at, len, pack: self.pack, offset, fresh: Some(0) }
    }

    fn step(&mut self) {
        let (dir_ino, to) = (Ino(1 + self.roll(6)), Ino(1 + self.roll(6)));
        let (name, to_name) = ([b'a' + self.roll(4) as u8], [b'a' + self.roll(4) as u8]);
        let (ino, other) = (Ino(1 + self.roll(40)), Ino(1 + self.roll(40)));
        match self.roll(22) {
            0..4 => {
                let number =
                    self.run(&Op::Allocate { counter: "next-ino", count: 1, from: 0 }).unwrap().first;
                let make = if self.roll(3) == 0 { dir(number, 0o755) } else { file(number, 0o644) };
                self.run(&Op::Create { parent: dir_ino, name: &name, make });
            }
            4..6 => _ = self.run(&Op::Unlink { parent: dir_ino, name: &name }),
            6 => _ = self.run(&Op::Rmdir { parent: dir_ino, name: &name }),
            7..10 => {
                let modes = [RenameMode::Replace, RenameMode::Exchange, RenameMode::NoReplace];
                let mode = modes[self.roll(3) as usize];
                self.run(&Op::Rename { parent: dir_ino, name: &name, to, to_name: &to_name, mode });
            }
            10..13 => {
                let at = self.roll(3) * ((4 << 20) - 300) + self.roll(300);
                let len = (1 + self.roll(900)).min((4 << 20) - at % (4 << 20)) as u32;
                let piece = self.piece(at, len);
                let cached = self.roll(2) == 0;
                let body = Body::Packed(&[piece]);
                self.run(&Op::Write { ino, body, unprivileged: None, cached, intern: None, over: None });
            }
            13 => {
                let body = Body::Inline(&[5; 40]);
                self.run(&Op::Write {
                    ino,
                    body,
                    unprivileged: None,
                    cached: false,
                    intern: None,
                    over: None,
                });
            }
            14 => {
                let set = SetAttrs { size: Some(self.roll(5_000_000)), ..SetAttrs::default() };
                self.run(&Op::SetAttr { ino, set });
            }
            15 => _ = self.run(&Op::Punch { ino, offset: self.seed % 5_000_000, len: 70_000, grow_to: None }),
            16 => {
                let op = Op::CopyRange {
                    from: other,
                    from_offset: 0,
                    to: ino,
                    to_offset: 4_000_000,
                    len: 5_000_000,
                };
                self.run(&op);
            }
            17 => _ = self.run(&Op::Link { ino, parent: dir_ino, name: &name }),
            18 => self.clone(ino, dir_ino, &name),
            19 => {
                let orphans = self.names.orphans(Ino(0), 3).unwrap();
                orphans.into_iter().for_each(|ino| _ = self.run(&Op::Reap { ino }));
            }
            20 => {
                let name = [&b"user."[..], &name].concat();
                let op =
                    Op::SetXattr { ino, name: &name, value: b"v", mode: XattrMode::Set, kill_sgid: false };
                self.run(&op);
                let perm = SetAttrs { perm: Some(0o640), ..SetAttrs::default() };
                self.run(&Op::SetAttr { ino: other, set: perm });
            }
            _ => self.compact(),
        }
    }

    fn clone(&mut self, from: Ino, parent: Ino, name: &[u8]) {
        let ino = Ino(self.run(&Op::Allocate { counter: "next-ino", count: 1, from: 0 }).unwrap().first);
        if self.run(&Op::CloneInode { from, ino, quota: Ino(0) }).is_some() {
            self.run(&Op::Attach { ino, parent, name });
        }
    }

    /// Moves the first half of some sealed pack, or condemns it.
    fn compact(&mut self) {
        let packs = self.names.packs(PackNo(0), 100).unwrap();
        let sealed: Vec<PackNo> = packs
            .iter()
            .filter(|(_, row)| matches!(row, PackRow::Sealed { .. }))
            .map(|(no, _)| *no)
            .collect();
        let Some(&from) = sealed.get(self.roll(sealed.len().max(1) as u64) as usize) else { return };
        let piece = self.piece(0, 20_000);
        let (to, to_offset) = (piece.pack, piece.offset);
        let step = Move { from, from_offset: 0, len: 20_000, to, to_offset, crc: Some(0) };
        for (ino, page) in self.names.pack_users(from, (Ino(0), 0), 1000).unwrap() {
            self.run(&Op::Follow { ino, page, moves: &[step] });
        }
        if self.run(&Op::CondemnPack { pack: from }).is_some() {
            self.run(&Op::ForgetPack { pack: from }).unwrap();
        }
    }
}

fn two_workers(steps: u32, seed: u64) {
    let world = World::new();
    let numbers = Arc::new(AtomicU64::new(5000));
    let work = |seed: u64| {
        let names = Names::new(Arc::new(Jostled(world.store.clone())));
        let numbers = numbers.clone();
        move || {
            let mut worker = Worker { names, seed, numbers, pack: PackNo(0), used: 0, done: 0, refused: 0 };
            worker.new_pack();
            (0..steps).for_each(|_| worker.step());
            (worker.done, worker.refused)
        }
    };
    let both = [seed, seed ^ 0xABCDEF].map(|seed| std::thread::spawn(work(seed)));
    for thread in both {
        let (done, refused) = thread.join().unwrap();
        assert!(done > 50 && refused > 10, "{done} done, {refused} refused");
    }
    world.assert_sound();
}

#[test]
fn two_threads_keep_the_names_whole() {
    for seed in 1..=6 {
        two_workers(400, seed);
    }
}

/// `mv a b/` against `mv b a/`: one of them must lose, whatever the order of reads and commits.
#[test]
fn two_moves_never_make_a_loop() {
    for _ in 0..150 {
        let world = World::new();
        world.create(1, "a", dir(2, 0o755)).unwrap();
        world.create(1, "b", dir(3, 0o755)).unwrap();
        let mover = |name: &'static [u8], to: u64| {
            let names = Names::new(Arc::new(Jostled(world.store.clone())));
            let ctx = world.ctx();
            move || {
                let mode = RenameMode::Replace;
                names
                    .run(&Op::Rename { parent: Ino(1), name, to: Ino(to), to_name: b"x", mode }, &ctx)
                    .is_ok()
            }
        };
        let both = [std::thread::spawn(mover(b"a", 3)), std::thread::spawn(mover(b"b", 2))];
        let won = both.map(|thread| thread.join().unwrap());
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
        world.assert_sound();
    }
}

/// A directory is never removed under a file that is being made in it.
#[test]
fn a_create_and_an_rmdir_never_both_win() {
    for _ in 0..150 {
        let world = World::new();
        world.create(1, "d", dir(2, 0o755)).unwrap();
        let names = || Names::new(Arc::new(Jostled(world.store.clone())));
        let (one, other, ctx) = (names(), names(), world.ctx());
        let create = std::thread::spawn(move || {
            one.run(&Op::Create { parent: Ino(2), name: b"f", make: file(3, 0o644) }, &ctx).is_ok()
        });
        let rmdir =
            std::thread::spawn(move || other.run(&Op::Rmdir { parent: Ino(1), name: b"d" }, &ctx).is_ok());
        assert_ne!(create.join().unwrap(), rmdir.join().unwrap());
        world.assert_sound();
    }
}
