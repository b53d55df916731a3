//! The trash: what goes in comes back as it was, or is collected.

use std::collections::{BTreeMap, BTreeSet};

use base::dice::Dice;
use base::{Ino, Timestamp};

use crate::Commit;
use crate::key::{Key, tags};
use crate::names::NamesError;
use crate::plan::op::{Body, RenameMode, SetAttrs};
use crate::plan::{Op, Plan, Refusal, View, plan};
use crate::record::{InodeRecord, mode};
use crate::store::{CommitError, MetaStore};
use crate::trash::Setting;

use super::world::{World, dir, file};

fn keeping() -> World {
    let world = World::new();
    world.names.set_trash(Setting::Keep(1000)).unwrap();
    world
}

fn rows(world: &World, tag: u8) -> usize {
    world.store.scan(&Key::kind(tag), usize::MAX).unwrap().len()
}

fn restore(world: &World, ino: u64, parent: u64, name: &str) -> Result<(), Refusal> {
    world.run(&Op::Restore { ino: Ino(ino), parent: Ino(parent), name: name.as_bytes() }).map(drop)
}

fn at(world: &World, ino: u64) -> Timestamp {
    world.names.trash_row(Ino(ino)).unwrap().unwrap().at
}

fn expire(world: &World, ino: u64) {
    let at = at(world, ino);
    world.run(&Op::Expire { ino: Ino(ino), at }).unwrap();
}

#[test]
fn what_is_removed_comes_back_as_it_was() {
    let mut world = keeping();
    world.create(1, "d", dir(2, 0o750)).unwrap();
    world.create(2, "f", file(3, 0o640)).unwrap();
    world.write(3, 0, &[7; 5_000_000]).unwrap();
    let xattr = Op::SetXattr {
        ino: Ino(3),
        name: b"user.a",
        value: b"b",
        mode: crate::plan::op::XattrMode::Set,
        kill_sgid: false,
    };
    world.run(&xattr).unwrap();
    let before = (world.attr(2), world.attr(3));
    world.run(&Op::Unlink { parent: Ino(2), name: b"f" }).unwrap();
    let removed = world.attr(3);
    assert_eq!((removed.nlink, removed.size), (0, 5_000_000));
    world.run(&Op::Rmdir { parent: Ino(1), name: b"d" }).unwrap();
    assert_eq!((world.attr(2).nlink, world.attr(1).nlink), (0, 2));
    assert_eq!((rows(&world, tags::ORPHAN), rows(&world, tags::TRASH)), (0, 2));
    world.assert_sound();
    // An open folder's attributes can still be changed.
    let set = SetAttrs { perm: Some(0o700), ..SetAttrs::default() };
    world.run(&Op::SetAttr { ino: Ino(2), set }).unwrap();
    world.run(&Op::Reap { ino: Ino(3) }).unwrap();

    assert_eq!(restore(&world, 3, 2, "f"), Err(Refusal::NotFound), "its folder has no name");
    restore(&world, 2, 1, "d").unwrap();
    world.create(2, "f", file(4, 0o600)).unwrap();
    assert_eq!(restore(&world, 3, 2, "f"), Err(Refusal::Exists));
    restore(&world, 3, 2, "g").unwrap();
    assert_eq!(restore(&world, 3, 2, "h"), Err(Refusal::NotFound), "it is not there any more");
    let after = (world.attr(2), world.attr(3));
    assert_eq!((after.0.mode, after.0.nlink, after.0.parent), (mode::S_IFDIR | 0o700, 2, Ino(1)));
    let times = |record: &InodeRecord| (record.atime, record.mtime, record.btime);
    assert_eq!(times(&after.1), times(&before.1));
    assert_eq!((after.1.mode, after.1.nlink, after.1.xattr_list), (before.1.mode, 1, before.1.xattr_list));
    assert!(world.read(3) == [7; 5_000_000]);
    assert_eq!(world.names.xattr(Ino(3), b"user.a").unwrap().as_deref(), Some(&b"b"[..]));
    assert_eq!(rows(&world, tags::TRASH), 0);
    world.assert_sound();
}

#[test]
fn only_the_last_name_counts_and_a_replaced_file_is_kept_too() {
    let world = keeping();
    world.create(1, "a", file(2, 0o644)).unwrap();
    world.run(&Op::Link { ino: Ino(2), parent: Ino(1), name: b"b" }).unwrap();
    world.run(&Op::Unlink { parent: Ino(1), name: b"a" }).unwrap();
    assert_eq!(rows(&world, tags::TRASH), 0);
    world.create(1, "new", file(3, 0o644)).unwrap();
    let (one, other) = (b"new", b"b");
    let mode = RenameMode::Replace;
    world.run(&Op::Rename { parent: Ino(1), name: one, to: Ino(1), to_name: other, mode }).unwrap();
    let row = world.names.trash_row(Ino(2)).unwrap().unwrap();
    assert_eq!((row.parent, &*row.name, row.dir), (Ino(1), &b"b"[..], None));
    // A file that was made without a name never was in the tree.
    world.run(&Op::Tmpfile { parent: Ino(1), make: file(4, 0o644) }).unwrap();
    assert_eq!((rows(&world, tags::TRASH), rows(&world, tags::ORPHAN)), (1, 1));
    // Another node, whose kernel believes that it has a name, gives it one.
    world.run(&Op::Link { ino: Ino(2), parent: Ino(1), name: b"c" }).unwrap();
    assert_eq!(rows(&world, tags::TRASH), 0);
    world.assert_sound();
}

#[test]
fn what_expires_is_collected_and_exactly_one_of_two_wins() {
    let mut world = keeping();
    world.create(1, "d", dir(2, 0o755)).unwrap();
    world.create(1, "f", file(3, 0o644)).unwrap();
    world.write(3, 0, &[7; 100_000]).unwrap();
    world.run(&Op::Unlink { parent: Ino(1), name: b"f" }).unwrap();
    world.run(&Op::Rmdir { parent: Ino(1), name: b"d" }).unwrap();
    let moment = at(&world, 3);
    restore(&world, 3, 1, "f").unwrap();
    world.run(&Op::Expire { ino: Ino(3), at: moment }).unwrap();
    assert_eq!(world.attr(3).nlink, 1, "it came back first");
    world.run(&Op::Unlink { parent: Ino(1), name: b"f" }).unwrap();
    world.run(&Op::Expire { ino: Ino(3), at: moment }).unwrap();
    assert_eq!(rows(&world, tags::ORPHAN), 0, "it went there again since");
    for ino in [2, 3] {
        expire(&world, ino);
        assert_eq!(restore(&world, ino, 1, "late"), Err(Refusal::NotFound));
        world.assert_sound();
        world.run(&Op::Reap { ino: Ino(ino) }).unwrap();
    }
    assert_eq!((rows(&world, tags::TRASH), rows(&world, tags::ORPHAN), rows(&world, tags::INODE)), (0, 0, 1));
    assert_eq!(world.names.totals().unwrap().bytes, 0);
    world.assert_sound();
}

#[test]
fn without_trash_nothing_is_different() {
    let world = World::new();
    world.create(1, "f", file(2, 0o644)).unwrap();
    world.run(&Op::Unlink { parent: Ino(1), name: b"f" }).unwrap();
    assert_eq!((rows(&world, tags::TRASH), rows(&world, tags::ORPHAN)), (0, 1));
    assert_eq!(world.names.volume_row("format").unwrap().as_deref(), Some(&b"1"[..]));
    world.names.set_trash(Setting::Never).unwrap();
    assert_eq!(world.names.volume_row("trash").unwrap(), None);
    world.names.set_trash(Setting::Keep(5)).unwrap();
    world.names.set_trash(Setting::Never).unwrap();
    assert_eq!(world.names.read_trash().unwrap(), Setting::Off);
    let for_good = keeping();
    for_good.create(1, "f", file(2, 0o644)).unwrap();
    let op = Op::Unlink { parent: Ino(1), name: b"f" };
    for_good.names.run_for_good(&op, &for_good.ctx()).map_err(|error| panic!("{error}")).ok();
    assert_eq!(rows(&for_good, tags::TRASH), 0);
}

/// Names, folders, the trash and what is to be collected, as plain maps.
#[derive(Default)]
struct Model {
    names: BTreeMap<(u64, String), u64>,
    kinds: BTreeMap<u64, (bool, u8)>,
    trash: BTreeMap<u64, (u64, String)>,
    orphans: BTreeSet<u64>,
    live: BTreeSet<u64>,
}

impl Model {
    fn is_empty(&self, dir: u64) -> bool {
        self.names.keys().all(|(parent, _)| *parent != dir)
    }

    fn remove(&mut self, parent: u64, name: &str) -> Result<(), Refusal> {
        let key = (parent, name.to_owned());
        let ino = *self.names.get(&key).ok_or(Refusal::NotFound)?;
        if self.kinds[&ino].0 && !self.is_empty(ino) {
            return Err(Refusal::NotEmpty);
        }
        self.names.remove(&key);
        self.live.remove(&ino);
        self.trash.insert(ino, key);
        Ok(())
    }
}

/// A world and what it should be.
struct Pair {
    world: World,
    model: Model,
    dice: Dice,
    next: u64,
    seed: u64,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let mut model = Model::default();
        model.live.insert(1);
        Pair { world: keeping(), model, dice: Dice::counting_from(seed), next: 2, seed }
    }

    fn pick(&mut self, from: Vec<u64>) -> Option<u64> {
        let at = self.dice.roll() as usize;
        from.get(at % from.len().max(1)).copied()
    }

    fn step(&mut self) {
        let model = &self.model;
        let is_dir = |ino: &u64| *ino == 1 || model.kinds[ino].0;
        let dirs: Vec<u64> = model.live.iter().copied().filter(is_dir).collect();
        let parent = self.pick(dirs).unwrap();
        let name = format!("n{}", self.dice.roll() % 4);
        let in_trash = self.model.trash.keys().copied().collect();
        match (self.dice.roll() % 10, self.pick(in_trash)) {
            (0..=2, _) => self.create(parent, name),
            (3..=5, _) => self.remove(parent, &name),
            (6..=7, Some(ino)) => self.restore(ino, parent, name),
            (8, Some(ino)) => {
                expire(&self.world, ino);
                self.model.trash.remove(&ino);
                self.model.orphans.insert(ino);
            }
            _ => {
                if let Some(ino) = self.model.orphans.pop_first() {
                    self.world.run(&Op::Reap { ino: Ino(ino) }).unwrap();
                }
            }
        }
    }

    fn create(&mut self, parent: u64, name: String) {
        let (is_dir, byte) = (self.dice.roll().is_multiple_of(3), self.dice.roll() as u8);
        let ino = self.next;
        let make = if is_dir { dir(ino, 0o755) } else { file(ino, 0o644) };
        let made = self.world.create(parent, &name, make);
        let is_free = !self.model.names.contains_key(&(parent, name.clone()));
        assert_eq!(made.is_ok(), is_free, "seed {}", self.seed);
        if is_free {
            self.model.names.insert((parent, name), ino);
            self.model.kinds.insert(ino, (is_dir, byte));
            self.model.live.insert(ino);
            self.next += 1;
            if !is_dir {
                self.world.write(ino, 0, &[byte; 700]).unwrap();
            }
        }
    }

    fn remove(&mut self, parent: u64, name: &str) {
        let named = self.model.names.get(&(parent, name.to_owned()));
        let op = match named.is_some_and(|ino| self.model.kinds[ino].0) {
            true => Op::Rmdir { parent: Ino(parent), name: name.as_bytes() },
            false => Op::Unlink { parent: Ino(parent), name: name.as_bytes() },
        };
        let done = self.world.run(&op).map(drop);
        assert_eq!(done, self.model.remove(parent, name), "seed {}", self.seed);
    }

    fn restore(&mut self, ino: u64, parent: u64, name: String) {
        let done = restore(&self.world, ino, parent, &name);
        let is_free = !self.model.names.contains_key(&(parent, name.clone()));
        assert_eq!(done, if is_free { Ok(()) } else { Err(Refusal::Exists) }, "seed {}", self.seed);
        if is_free {
            self.model.trash.remove(&ino);
            self.model.names.insert((parent, name), ino);
            self.model.live.insert(ino);
        }
    }

    fn compare(&self) {
        let Pair { world, model, seed, .. } = self;
        for ((parent, name), ino) in &model.names {
            let found = world.names.lookup(Ino(*parent), name.as_bytes()).unwrap();
            assert_eq!(found.map(|found| found.ino), Some(Ino(*ino)), "seed {seed}");
            if let (false, byte) = model.kinds[ino] {
                assert!(world.read(*ino) == [byte; 700], "seed {seed}");
            }
        }
        let there = world.names.in_trash(Ino(0), usize::MAX).unwrap();
        let said = |(ino, row): (Ino, crate::trash::TrashRow)| {
            (ino.0, (row.parent.0, String::from_utf8(row.name.into()).unwrap()))
        };
        assert_eq!(there.into_iter().map(said).collect::<BTreeMap<_, _>>(), model.trash, "seed {seed}");
        let inodes = world.names.totals().unwrap().inodes as usize;
        assert_eq!(inodes, model.live.len() + model.trash.len() + model.orphans.len(), "seed {seed}");
        assert_eq!(world.audit().0.trash as usize, model.trash.len());
        world.assert_sound();
    }
}

#[test]
fn random_removals_restores_and_expiries_agree_with_a_map() {
    for seed in 0..40 {
        let mut pair = Pair::new(seed);
        (0..300).for_each(|_| pair.step());
        pair.compare();
    }
}

#[test]
fn an_audit_mends_rows_of_the_trash() {
    let world = keeping();
    world.create(1, "f", file(2, 0o644)).unwrap();
    world.write_body(2, &Body::Inline(b"abc")).unwrap();
    world.run(&Op::Unlink { parent: Ino(1), name: b"f" }).unwrap();
    let row = world.store.get(&Key::trash(Ino(2))).unwrap().unwrap();
    restore(&world, 2, 1, "f").unwrap();
    let put = |key: Key, value: &[u8]| {
        let commit = Commit { puts: vec![(key, value.into())], ..Commit::default() };
        world.store.commit(commit).unwrap();
    };
    // Of a file that has a name, of one that does not exist, and one that makes no sense.
    put(Key::trash(Ino(2)), &row);
    put(Key::trash(Ino(9)), &row);
    put(Key::trash(Ino(1)), b"x");
    let (_, findings) = world.audit();
    assert_eq!(findings.len(), 3, "{findings:?}");
    for finding in findings {
        world.store.commit(crate::audit::repair(&finding).unwrap()).unwrap();
    }
    world.assert_sound();
    assert_eq!((rows(&world, tags::TRASH), world.attr(2).nlink), (0, 1));
}

#[test]
fn a_store_without_such_an_inode_says_so() {
    let world = keeping();
    assert_eq!(restore(&world, 77, 1, "x"), Err(Refusal::NotFound));
    let op = Op::Expire { ino: Ino(77), at: Timestamp(0) };
    assert!(matches!(
        world.names.run(&op, &world.ctx()),
        Ok(_) | Err(NamesError::Refused(Refusal::NotFound))
    ));
    assert_eq!(world.names.attr(Ino(77)).unwrap(), None);
}

/// Both were planned before either was committed. Whichever is first, the other one conflicts.
#[test]
fn a_restore_and_an_expiry_that_were_planned_together_exclude_each_other() {
    for (is_dir, first) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let world = keeping();
        let made = if is_dir { dir(2, 0o755) } else { file(2, 0o644) };
        world.create(1, "x", made).unwrap();
        let (parent, name) = (Ino(1), &b"x"[..]);
        let removal = if is_dir { Op::Rmdir { parent, name } } else { Op::Unlink { parent, name } };
        world.run(&removal).unwrap();
        let at = at(&world, 2);
        let mut ops = [Op::Restore { ino: Ino(2), parent, name }, Op::Expire { ino: Ino(2), at }];
        ops.rotate_left(first);
        let [one, other] = ops.map(|op| planned(&world, &op));
        world.store.commit(one).unwrap();
        let error = world.store.commit(other).unwrap_err();
        assert!(matches!(error, CommitError::Conflict { .. }), "{error:?}");
        world.assert_sound();
    }
}

/// The commit of an operation, given the rows as they are.
fn planned(world: &World, op: &Op<'_>) -> Commit {
    let mut view = View::of(Setting::Keep(1));
    loop {
        match plan(op, &world.ctx(), &view) {
            Plan::Need { keys, ranges } => {
                for key in keys {
                    let value = world.store.get(&key).unwrap();
                    view.show(key, value);
                }
                for (range, limit) in ranges {
                    let rows = world.store.scan(&range, limit).unwrap();
                    view.show_range(range, limit, rows);
                }
            }
            Plan::Change(change) => return change.commit,
            Plan::Refused(refusal) => panic!("{refusal}"),
        }
    }
}
