//! Several threads do everything at once, while packs are sealed, compacted and collected. Each thread knows
//! what its own files hold. Afterwards a check of the whole volume finds nothing.

use base::size::MIB;

use super::*;
use crate::api::{Allocate, RenameMode};
use crate::fsck::{self, Callbacks, Depth};

/// A small random number generator with a seed, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

const ROUNDS: u64 = 250;
const LARGEST: u64 = 6 * MIB;

struct Player {
    v: Arc<Volume>,
    dir: Ino,
    dice: Dice,
    /// Name, inode, expected bytes.
    files: Vec<(String, Ino, Vec<u8>)>,
    made: u64,
}

impl Player {
    fn pick(&mut self) -> usize {
        self.dice.below(self.files.len() as u64) as usize
    }

    fn create(&mut self) {
        self.made += 1;
        let name = format!("f{}", self.made);
        let ino = self.v.file(self.dir, &name);
        self.files.push((name, ino, Vec::new()));
    }

    fn write(&mut self) {
        let which = self.pick();
        let len = [20, 600, 5000, 100_000, MIB][self.dice.below(5) as usize];
        let at = if self.dice.below(3) == 0 { 0 } else { self.dice.below(LARGEST - len) };
        // Few seeds, so that the same contents recur.
        let bytes = noise(self.dice.below(5), len as usize);
        let (_, ino, model) = &mut self.files[which];
        self.v.put(*ino, at, &bytes);
        model.resize(model.len().max((at + len) as usize), 0);
        model[at as usize..(at + len) as usize].copy_from_slice(&bytes);
    }

    fn copy(&mut self) {
        let (from, to) = (self.pick(), self.pick());
        let (source, target) = (self.files[from].1, self.files[to].1);
        if from == to {
            return;
        }
        let model = self.files[from].2.clone();
        let done = self.v.copy_range(source, 0, target, 0, u64::MAX / 2).unwrap();
        assert_eq!(done, model.len() as u64);
        let other = &mut self.files[to].2;
        other.resize(other.len().max(model.len()), 0);
        other[..model.len()].copy_from_slice(&model);
    }

    fn clone_one(&mut self) {
        let which = self.pick();
        self.made += 1;
        let name = format!("c{}", self.made);
        let (_, ino, model) = &self.files[which];
        self.v.clone_tree(*ino, self.dir, name.as_bytes(), &mut |_| ControlFlow::Continue(())).unwrap();
        let copy = self.v.lookup(self.dir, name.as_bytes()).unwrap().attr.ino;
        let model = model.clone();
        self.files.push((name, copy, model));
    }

    fn remove(&mut self) {
        let (name, ino, model) = self.files.swap_remove(self.dice.below(self.files.len() as u64) as usize);
        self.v.unlink(self.dir, name.as_bytes()).unwrap();
        // Still held, so still whole.
        assert!(self.v.get(ino) == model, "{name} after its removal");
        self.v.forget(ino, 1);
    }

    fn turn(&mut self) {
        match self.dice.below(20) {
            _ if self.files.len() < 2 => self.create(),
            0..2 => self.create(),
            2..10 => self.write(),
            10 => {
                let size = self.dice.below(LARGEST);
                let which = self.pick();
                let (_, ino, model) = &mut self.files[which];
                self.v.cut(*ino, size);
                model.resize(size as usize, 0);
            }
            11 => {
                let which = self.pick();
                let (at, len) = (self.dice.below(LARGEST), 1 + self.dice.below(MIB));
                let (_, ino, model) = &mut self.files[which];
                self.v.allocate(*ino, at, len, Allocate::PunchHole).unwrap();
                let end = ((at + len) as usize).min(model.len());
                let from = (at as usize).min(end);
                model[from..end].fill(0);
            }
            12 => self.copy(),
            13 => self.clone_one(),
            14..16 => self.remove(),
            16 => {
                let which = self.pick();
                self.made += 1;
                let name = format!("r{}", self.made);
                let (old, ..) = &self.files[which];
                self.v
                    .rename(self.dir, old.as_bytes(), self.dir, name.as_bytes(), RenameMode::NoReplace)
                    .unwrap();
                self.files[which].0 = name;
            }
            17 => self.v.fsync(self.dir, false).unwrap(),
            _ => {
                let which = self.pick();
                let (name, ino, model) = &self.files[which];
                assert!(self.v.get(*ino) == *model, "{name} holds other bytes");
            }
        }
    }

    fn all_is_well(&self) {
        for (name, ino, model) in &self.files {
            assert!(self.v.get(*ino) == *model, "{name} holds other bytes at the end");
        }
    }
}

#[test]
fn everything_at_once_and_nothing_is_wrong_afterwards() {
    let world = World::new();
    let v = Arc::new(world.open());
    let players: Vec<_> = (0..4u64)
        .map(|n| {
            let (v, dir) = (v.clone(), v.dir(Ino::ROOT, &format!("d{n}")));
            let dice = Dice(0x1234_5678_9ABC_DEF1 + n * 7919);
            let mut player = Player { v, dir, dice, files: Vec::new(), made: 0 };
            std::thread::spawn(move || {
                for _ in 0..ROUNDS {
                    player.turn();
                }
                player.all_is_well();
                player
            })
        })
        .collect();
    // Seals and compacts far more often than the background threads do.
    while !players.iter().all(std::thread::JoinHandle::is_finished) {
        v.core.packs.close_all();
        {
            // The sweeper's own round could delete a pack that is about to be moved.
            let _round = v.core.sweep.between_rounds();
            v.core.garbage.emptiest(4, 100).into_iter().for_each(|pack| v.core.move_live(pack).unwrap());
        }
        v.core.sweep_round(false).unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
    let players: Vec<Player> = players.into_iter().map(|player| player.join().unwrap()).collect();
    players.iter().for_each(Player::all_is_well);
    v.close().unwrap();
    players.iter().for_each(Player::all_is_well);
    drop((players, v));
    assert_eq!(*world.lines.lock(), [""; 0]);
    let mut findings = Vec::new();
    let mut callbacks = Callbacks { found: &mut |finding| findings.push(finding), progress: &mut |_| {} };
    fsck::check(&world.parts, Depth::Full, &mut callbacks).unwrap();
    findings.retain(|finding| !finding.is_harmless());
    assert_eq!(findings, []);
}
