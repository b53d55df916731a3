//! Random operations on names, the same for a seed.

use base::{Ino, PackNo, Timestamp};
use meta::audit::{Listener, audit};
use meta::plan::op::{Body, Make, Piece, RenameMode, SetAttrs, XattrMode};
use meta::plan::{Ctx, Op, Refusal};
use meta::record::mode;
use meta::trash::Setting;
use meta::{Key, MetaStore, Names, NamesError, Value};

use super::{Dice, range};

const PACK: PackNo = PackNo(9);

/// A run: operations on the names of one volume, each by one of its nodes.
pub struct Script {
    nodes: Vec<Names>,
    dice: Dice,
    /// Chooses the node.
    turn: Dice,
    now: i64,
    pub refused: Vec<Option<Refusal>>,
    dirs: Vec<Ino>,
    files: Vec<Ino>,
    /// The volume has trash.
    keeps: bool,
}

impl Script {
    /// The script of a seed.
    pub fn new(nodes: Vec<Names>, seed: u64) -> Script {
        Script {
            nodes,
            dice: Dice(seed),
            turn: Dice(seed + 1),
            now: 1000,
            refused: Vec::new(),
            dirs: vec![Ino::ROOT],
            files: Vec::new(),
            keeps: false,
        }
    }

    /// The same, with trash.
    #[allow(dead_code, reason = "each test program uses its part")]
    pub fn keeping(nodes: Vec<Names>, seed: u64) -> Script {
        Script { keeps: true, ..Script::new(nodes, seed) }
    }

    fn node(&mut self) -> &Names {
        &self.nodes[self.turn.below(self.nodes.len() as u64) as usize]
    }

    fn flush(&self) {
        self.nodes.iter().for_each(|node| node.store().flush().unwrap());
    }

    /// Makes the volume and runs all steps.
    pub fn play(&mut self) {
        self.run(&Op::Format { rows: &[("format", vec![1])] });
        if self.keeps {
            self.nodes[0].set_trash(Setting::Keep(1000)).unwrap();
            self.nodes.iter().for_each(|node| assert!(node.read_trash().unwrap().keeps()));
        }
        self.run(&Op::OpenPack { pack: PACK });
        for number in 0..600 {
            self.step(number);
            if self.dice.below(100) == 0 {
                self.node().store().flush().unwrap();
            }
        }
    }

    fn run(&mut self, op: &Op<'_>) -> bool {
        self.now += 7;
        let ctx = Ctx { now: Timestamp(self.now.into()), uid: 3, gid: 4 };
        let refused = match self.node().run(op, &ctx) {
            Ok(_) => None,
            Err(NamesError::Refused(refusal)) => Some(refusal),
            Err(NamesError::Store(error)) => panic!("{op:?}: {error}"),
        };
        self.refused.push(refused);
        if self.nodes.len() > 1 && matches!(op, Op::Create { .. } | Op::CloneInode { .. }) {
            // A node learns of another one's inode by its name, when the other one has stored both.
            self.flush();
        }
        refused.is_none()
    }

    fn dir(&mut self) -> Ino {
        self.dirs[self.dice.below(self.dirs.len() as u64) as usize]
    }

    /// One of the files made recently.
    fn file(&mut self) -> Ino {
        let back = self.dice.below(12) as usize + 1;
        *self.files.get(self.files.len().saturating_sub(back)).unwrap_or(&Ino::ROOT)
    }

    fn step(&mut self, number: u64) {
        let (parent, to) = (self.dir(), self.dir());
        let (ino, from) = (self.file(), self.file());
        let (name, to_name) = ([b'a' + self.dice.below(5) as u8], [b'a' + self.dice.below(5) as u8]);
        let made = Ino(2 + number);
        match self.dice.below(16) {
            0..4 => {
                let kind = if self.dice.below(3) == 0 { mode::S_IFDIR } else { mode::S_IFREG };
                let make = Make { ino: made, mode: kind | 0o755, umask: 0o022, rdev: 0, target: b"" };
                if self.run(&Op::Create { parent, name: &name, make }) {
                    if kind == mode::S_IFDIR { &mut self.dirs } else { &mut self.files }.push(made);
                }
            }
            4 => _ = self.run(&Op::Unlink { parent, name: &name }),
            5 => _ = self.run(&Op::Rmdir { parent, name: &name }),
            6..8 => {
                let modes = [RenameMode::Replace, RenameMode::Exchange];
                let mode = modes[self.dice.below(2) as usize];
                self.run(&Op::Rename { parent, name: &name, to, to_name: &to_name, mode });
            }
            8..10 => {
                let (page, len) = (self.dice.below(3) << 22, 1 + self.dice.below(70_000) as u32);
                let piece =
                    Piece { at: page + self.dice.below(100_000), len, pack: PACK, offset: 5, fresh: None };
                let body = Body::Packed(&[piece]);
                self.run(&Op::Write {
                    ino,
                    body,
                    unprivileged: None,
                    cached: true,
                    intern: None,
                    over: None,
                });
            }
            10 => {
                let set = SetAttrs { size: Some(self.dice.below(9_000_000)), ..SetAttrs::default() };
                self.run(&Op::SetAttr { ino, set });
            }
            11 => _ = self.run(&Op::Link { ino, parent, name: &name }),
            12 => {
                if self.run(&Op::CloneInode { from, ino: made, quota: Ino(0) }) {
                    self.files.push(made);
                    self.run(&Op::Attach { ino: made, parent, name: &name });
                }
            }
            13 => {
                let len = self.dice.below(5_000_000);
                self.run(&Op::CopyRange { from, from_offset: 0, to: ino, to_offset: 4_000_000, len });
            }
            14 => {
                let op = Op::SetXattr {
                    ino,
                    name: b"user.a",
                    value: &name,
                    mode: XattrMode::Set,
                    kill_sgid: false,
                };
                self.run(&op);
            }
            _ => {
                // Which inodes have no name is read from the engine.
                self.flush();
                for ino in self.node().orphans(Ino(0), 4).unwrap() {
                    self.run(&Op::Reap { ino });
                }
                self.step_of_trash(parent, &name);
            }
        }
    }

    fn step_of_trash(&mut self, parent: Ino, name: &[u8]) {
        for (ino, row) in self.node().in_trash(Ino(0), 4).unwrap() {
            match self.dice.below(3) {
                0 => _ = self.run(&Op::Restore { ino, parent, name }),
                1 => _ = self.run(&Op::Restore { ino, parent: row.parent, name: &row.name }),
                _ => _ = self.run(&Op::Expire { ino, at: row.at }),
            }
        }
    }
}

/// All rows.
pub fn all(store: &dyn MetaStore) -> Vec<(Key, Value)> {
    store.scan(&range([], [0xFF; 300]), usize::MAX).unwrap()
}

/// An audit of the rows finds nothing.
pub fn check(store: &dyn MetaStore) {
    let mut findings = Vec::new();
    let mut found = |finding| findings.push(finding);
    audit(store, &mut Listener { found: &mut found, progress: &mut |_| {} }).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
}
