//! The same operations over every store leave the same rows, also after closing and reopening it. An audit of
//! them finds nothing.

extern crate covey_meta as meta;

mod support;

use std::sync::Arc;
use std::time::Duration;

use base::{Ino, PackNo, Timestamp};
use meta::audit::{Listener, audit};
use meta::engine::{Memory, Postgres, Sqlite};
use meta::journal::{Journal, Options};
use meta::plan::op::{Body, Make, Piece, RenameMode, SetAttrs, XattrMode};
use meta::plan::{Ctx, Op, Refusal};
use meta::record::mode;
use meta::{Key, MetaStore, Names, NamesError, Value};
use support::server::Server;
use support::{Dice, SimPacks, range};

const PACK: PackNo = PackNo(9);

struct Script {
    names: Names,
    dice: Dice,
    now: i64,
    refused: Vec<Option<Refusal>>,
    dirs: Vec<Ino>,
    files: Vec<Ino>,
}

impl Script {
    fn run(&mut self, op: &Op<'_>) -> bool {
        self.now += 7;
        let ctx = Ctx { now: Timestamp(self.now.into()), uid: 3, gid: 4 };
        let refused = match self.names.run(op, &ctx) {
            Ok(_) => None,
            Err(NamesError::Refused(refusal)) => Some(refusal),
            Err(NamesError::Store(error)) => panic!("{op:?}: {error}"),
        };
        self.refused.push(refused);
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
                if self.run(&Op::CloneInode { from, ino: made }) {
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
                for ino in self.names.orphans(Ino(0), 4).unwrap() {
                    self.run(&Op::Reap { ino });
                }
            }
        }
        if self.dice.below(100) == 0 {
            self.names.store().flush().unwrap();
        }
    }
}

fn all(store: &dyn MetaStore) -> Vec<(Key, Value)> {
    store.scan(&range([], [0xFF; 300]), usize::MAX).unwrap()
}

/// Runs the script of a seed. Returns the rows it leaves, and how each operation ended.
fn play(store: Arc<dyn MetaStore>, seed: u64) -> (Vec<(Key, Value)>, Vec<Option<Refusal>>) {
    let names = Names::new(store.clone());
    let mut script = Script {
        names,
        dice: Dice(seed),
        now: 1000,
        refused: Vec::new(),
        dirs: vec![Ino::ROOT],
        files: Vec::new(),
    };
    script.run(&Op::Format { rows: &[("format", vec![1])] });
    script.run(&Op::OpenPack { pack: PACK });
    (0..600).for_each(|number| script.step(number));
    let mut findings = Vec::new();
    let mut found = |finding| findings.push(finding);
    audit(&*store, &mut Listener { found: &mut found, progress: &mut |_| {} }).unwrap();
    assert!(findings.is_empty(), "{findings:?}");
    (all(&*store), script.refused)
}

#[test]
fn all_stores_end_with_the_same_rows() {
    let tiny = Options {
        commit_every: Duration::from_millis(3),
        overlay_rows: 64,
        clean_bytes: 64 << 10,
        ..Options::default()
    };
    for seed in 1..4 {
        let expected = play(Arc::new(Memory::new()), seed);
        let done = expected.1.iter().filter(|refused| refused.is_none()).count();
        assert!(done > 150 && expected.0.len() > 50, "{done} done, {} rows", expected.0.len());

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.db");
        assert_eq!(play(Arc::new(Sqlite::open(&path).unwrap()), seed), expected, "sqlite");
        assert_eq!(all(&Sqlite::open(&path).unwrap()), expected.0, "sqlite, opened again");

        if let Some(server) = Server::shared() {
            let target = server.volume();
            let open = || Postgres::open(&target, Default::default()).unwrap();
            assert_eq!(play(Arc::new(open()), seed), expected, "postgres");
            assert_eq!(all(&open()), expected.0, "postgres, opened again");
        }

        for options in [Options::default(), tiny.clone()] {
            let folder = tempfile::tempdir().unwrap();
            let packs = Arc::new(SimPacks::default());
            let (journal, _) = Journal::open(folder.path(), packs.clone(), options.clone()).unwrap();
            let journal = Arc::new(journal);
            assert_eq!(play(journal.clone(), seed), expected, "journal");
            journal.close().unwrap();
            drop(journal);
            let (again, _) = Journal::open(folder.path(), packs, options).unwrap();
            assert_eq!(all(&again), expected.0, "journal, opened again");
            again.close().unwrap();
        }
    }
}
