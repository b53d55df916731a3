//! The journal of acknowledged changes: a process that is killed loses nothing, or it is said.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Ino, PackNo, Timestamp};
use blob::PackStore;
use meta::engine::Memory;
use meta::key::tags;
use meta::lease::{Left, OldSession, replay};
use meta::plan::op::{Body, Make, Piece};
use meta::plan::{Ctx, Op};
use meta::record::mode;
use meta::store::{Limit, StoreError};
use meta::{Commit, Key, MetaStore, Names, NamesError, Value};

use crate::mortal::{Engine, LONG, Mortal, Old, Wire};
use crate::support::Dice;
use crate::support::script::{Script, all, check};

fn ctx() -> Ctx {
    Ctx { now: Timestamp(1_000_000), uid: 0, gid: 0 }
}

fn format(names: &Names) {
    names.run(&Op::Format { rows: &[("format", vec![1])] }, &ctx()).unwrap();
}

fn file(names: &Names, name: &str, ino: u64) -> Result<(), NamesError> {
    let make = Make { ino: Ino(ino), mode: mode::S_IFREG | 0o644, umask: 0, rdev: 0, target: b"" };
    names.run(&Op::Create { parent: Ino::ROOT, name: name.as_bytes(), make }, &ctx()).map(drop)
}

fn is_there(names: &Names, name: &str) -> bool {
    names.entry(Ino::ROOT, name.as_bytes()).unwrap().inode.is_some()
}

/// A node with a volume, whose database is away after that.
fn cut_off() -> (Arc<Mortal>, Names) {
    let node = Mortal::new(None, 0, None);
    let names = node.names();
    format(&names);
    file(&names, "first", 2).unwrap();
    node.flush().unwrap();
    node.engine.away.store(true, Ordering::SeqCst);
    (node, names)
}

fn rows_of(store: &dyn MetaStore) -> Vec<(Key, Value)> {
    let mut rows = all(store);
    rows.retain(|(key, _)| !matches!(key.tag(), tags::LEASE | tags::BATCH | tags::WISH));
    rows
}

/// A node that is killed at any moment, also while it stores what an earlier process left, does what a node
/// does that is never killed. Answers get lost, and commits arrive late.
#[test]
fn kills_are_not_seen() {
    let (mut killed, mut outstanding) = (0, 0);
    for seed in 1..9 {
        let alone = Arc::new(Memory::new());
        let mut expected = Script::new(vec![Names::new(alone.clone())], seed);
        expected.play();
        let limit = (seed % 2 == 0).then_some(Limit { rows: 12, bytes: 2000, checks: 8 });
        let node = Mortal::new(Some(seed), 12, limit);
        let mut script = Script::new(vec![node.names()], seed);
        script.play();
        let differs = script.refused.iter().zip(&expected.refused).position(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        node.flush().unwrap();
        assert_eq!(rows_of(&node.engine.memory), all(&*alone), "seed {seed}");
        check(&node.engine.memory);
        killed += node.killed.load(Ordering::SeqCst);
        outstanding += node.outstanding.load(Ordering::SeqCst);
    }
    assert!(killed > 100 && outstanding > 100, "{killed} kills, {outstanding} changes were outstanding");
}

/// Many batches are outstanding when the process is killed, and some of them arrive while the next one stores
/// them.
#[test]
fn bursts_are_stored_once() {
    for seed in 1..4 {
        let node = Mortal::new(Some(seed), 0, Some(Limit { rows: 20, bytes: 4000, checks: 20 }));
        node.engine.lose.store(4, Ordering::SeqCst);
        let alone = Arc::new(Memory::new());
        let both = [node.names(), Names::new(alone.clone())];
        both.iter().for_each(format);
        let (mut dice, mut made) = (Dice(seed + 77), Vec::new());
        for round in 0..20u64 {
            for n in 0..1 + dice.below(40) {
                let ino = 10 + round * 100 + n;
                let kind = if dice.below(3) == 0 { mode::S_IFDIR } else { mode::S_IFREG };
                let name = format!("{ino}");
                let make = Make { ino: Ino(ino), mode: kind | 0o755, umask: 0, rdev: 0, target: b"" };
                let op = Op::Create { parent: Ino::ROOT, name: name.as_bytes(), make };
                both.iter().for_each(|names| _ = names.run(&op, &ctx()).unwrap());
                made.push((name, kind));
                if dice.below(2) == 0 {
                    let (name, kind) = made.swap_remove(dice.below(made.len() as u64) as usize);
                    let (parent, name) = (Ino::ROOT, name.as_bytes());
                    let is_dir = kind == mode::S_IFDIR;
                    let op = if is_dir { Op::Rmdir { parent, name } } else { Op::Unlink { parent, name } };
                    both.iter().for_each(|names| _ = names.run(&op, &ctx()).unwrap());
                }
                std::thread::sleep(Duration::from_micros(dice.below(3) * 700));
            }
            node.kill();
            node.again();
            assert_eq!(rows_of(&node.engine.memory), all(&*alone), "seed {seed}, round {round}");
        }
        check(&node.engine.memory);
    }
}

#[test]
fn what_was_acknowledged_is_stored_by_the_next_process() {
    let (node, names) = cut_off();
    (0..50).for_each(|n| file(&names, &format!("file{n}"), 10 + n).unwrap());
    node.kill();
    assert_eq!(node.left().len(), 50);
    node.engine.away.store(false, Ordering::SeqCst);
    let done = node.replay();
    assert_eq!((done.stored, done.refused(), done.line()), (50, 0, None));
    node.join();
    assert!(node.left().is_empty(), "it is given up once it is stored");
    (0..50).for_each(|n| assert!(is_there(&names, &format!("file{n}"))));
    check(&node.engine.memory);
}

/// Batches are counted by session. What was lost with an earlier session of the process stays lost.
#[test]
fn a_process_that_joined_again_is_killed() {
    let (node, names) = cut_off();
    file(&names, "lost", 3).unwrap();
    node.rejoin();
    assert!(node.left().is_empty(), "fsync has told it");
    node.engine.away.store(false, Ordering::SeqCst);
    for n in 0..5 {
        file(&names, &format!("stored{n}"), 10 + n).unwrap();
        node.flush().unwrap();
    }
    node.engine.away.store(true, Ordering::SeqCst);
    file(&names, "outstanding", 20).unwrap();
    node.kill();
    node.engine.away.store(false, Ordering::SeqCst);
    let done = node.replay();
    assert_eq!((done.stored, done.line()), (1, None));
    node.join();
    assert!(is_there(&names, "outstanding") && is_there(&names, "stored4") && !is_there(&names, "lost"));
    check(&node.engine.memory);
}

/// A database that does not answer refuses nothing.
#[test]
fn a_journal_that_cannot_be_stored_now_stays() {
    let (node, names) = cut_off();
    file(&names, "second", 3).unwrap();
    node.kill();
    let tries = Cell::new(0);
    let full = Old(|| {
        tries.set(tries.get() + 1);
        if tries.get() > 2 { Err(StoreError::Full) } else { Ok(()) }
    });
    replay(node.left(), &node.wire(), &node.packs, &full).unwrap_err();
    assert_eq!((tries.get(), node.left().len()), (3, 1));
}

/// A session that has expired, and that may be continued.
struct Expired {
    engine: Arc<Engine>,
    resumed: Cell<u32>,
}

impl OldSession for Expired {
    fn renew(&self) -> Result<(), StoreError> {
        match self.resumed.get() {
            0 => Err(StoreError::Fenced("it was not renewed in time".to_owned())),
            _ => Ok(()),
        }
    }

    fn resume(&self) -> Result<(), StoreError> {
        self.resumed.set(self.resumed.get() + 1);
        // The second time the engine finds that it is over, it is there again.
        self.engine.epoch.store(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A session expired while the database was away or bytes were read. Its changes were refused, although no
/// node had ended it.
#[test]
fn regression_a_session_that_expires_meanwhile_is_continued() {
    let (node, names) = cut_off();
    file(&names, "second", 3).unwrap();
    node.kill();
    let wire = node.wire();
    node.engine.away.store(false, Ordering::SeqCst);
    let session = Expired { engine: node.engine.clone(), resumed: Cell::new(0) };
    let done = replay(node.left(), &wire, &node.packs, &session).unwrap();
    assert_eq!((done.stored, done.refused(), session.resumed.get()), (1, 0, 1), "{:?}", done.line());
    // The engine finds it over first.
    let (node, names) = cut_off();
    file(&names, "second", 3).unwrap();
    node.kill();
    let wire = node.wire();
    node.engine.away.store(false, Ordering::SeqCst);
    node.engine.epoch.store(9, Ordering::SeqCst);
    let session = Expired { engine: node.engine.clone(), resumed: Cell::new(1) };
    let done = replay(node.left(), &wire, &node.packs, &session).unwrap();
    assert_eq!((done.stored, done.refused(), session.resumed.get()), (1, 0, 2), "{:?}", done.line());
    node.join();
    assert!(is_there(&names, "second"));
}

/// A node that is closed while the database is away says that something is left, and the next process stores
/// it.
#[test]
fn what_a_close_could_not_store_stays() {
    let (node, names) = cut_off();
    file(&names, "second", 3).unwrap();
    let process = node.process();
    assert!(process.is_behind());
    process.close(Duration::from_millis(100)).unwrap_err();
    assert!(process.is_behind());
    drop(process);
    node.kill();
    node.engine.away.store(false, Ordering::SeqCst);
    assert_eq!(node.replay().stored, 1);
    node.join();
    assert!(is_there(&names, "second"));
    let process = node.process();
    process.close(LONG).unwrap();
    assert!(!process.is_behind() && node.left().is_empty());
}

/// What other nodes could see after the session was over stays as they saw it.
#[test]
fn what_another_node_took_over_is_refused_and_said() {
    let (node, names) = cut_off();
    file(&names, "second", 3).unwrap();
    node.kill();
    let lease = Key::lease(Ino::ROOT);
    let row = node.engine.memory.get(&lease).unwrap().unwrap();
    let other = [&row[..row.len() - 12], &[0; 12]].concat();
    let taken = Commit { puts: vec![(lease, other.into())], ..Commit::default() };
    node.engine.memory.commit(taken).unwrap();
    node.engine.away.store(false, Ordering::SeqCst);
    let before = all(&node.engine.memory);
    let done = node.replay();
    assert_eq!(all(&node.engine.memory), before);
    assert_eq!((done.stored, done.refused()), (0, 1));
    let line = done.line().unwrap();
    assert!(line.contains("1 changes") && line.contains("\"second\"") && line.contains("leases"), "{line}");
    let kept = done.keep(node.dir()).unwrap().unwrap();
    let text = fs::read_to_string(&kept).unwrap();
    assert!(text.contains("name \"second\" in folder 1 for inode 3"), "{text}");
    node.join();
    assert!(kept.exists() && node.left().is_empty());
    assert!(!is_there(&names, "second"));
}

#[test]
fn what_an_ended_session_left_is_refused_and_said() {
    let (node, names) = cut_off();
    file(&names, "second", 3).unwrap();
    node.kill();
    node.engine.epoch.fetch_add(1, Ordering::SeqCst);
    node.engine.away.store(false, Ordering::SeqCst);
    // A commit of the ended session, and the way that a node takes.
    let wire = Wire::new(node.engine.clone(), 1);
    let done = replay(node.left(), &wire, &node.packs, &Old(|| Ok(()))).unwrap();
    assert_eq!((done.stored, done.refused()), (0, 1));
    let done = node.left().refuse(&wire).unwrap();
    assert_eq!((done.stored, done.refused()), (0, 1));
    assert!(done.line().unwrap().contains("ended"));
    node.join();
    assert!(!is_there(&names, "second"));
}

/// What the engine has is not called refused, whatever became of the session.
#[test]
fn what_was_stored_is_not_refused() {
    let (node, names) = cut_off();
    file(&names, "second", 3).unwrap();
    let before = node.left().len();
    node.kill();
    node.engine.away.store(false, Ordering::SeqCst);
    assert_eq!(node.replay().stored, before);
    let done = node.left().refuse(&node.wire()).unwrap();
    assert_eq!((done.stored, done.refused()), (before, 0));
    // Another node has cleaned up after the session.
    let rows = node.engine.memory.scan(&Key::kind(tags::BATCH), usize::MAX).unwrap();
    let dels = rows.into_iter().map(|(key, _)| key).collect();
    node.engine.memory.commit(Commit { dels, ..Commit::default() }).unwrap();
    let done = node.left().refuse(&node.wire()).unwrap();
    assert_eq!((done.stored, done.refused()), (0, before));
    assert!(done.line().unwrap().contains("may not be stored: the session"), "{:?}", done.line());
}

/// A change whose bytes are not on the disk is refused, with all that follow it.
#[test]
fn a_change_without_its_bytes_is_refused() {
    let (node, names) = cut_off();
    node.packs.create(PackNo(9)).unwrap();
    let crc = node.packs.write_summed(PackNo(9), 0, &[1; 3000]).unwrap();
    let write = |ino: u64, crc: u32| {
        let piece = Piece { at: 0, len: 3000, pack: PackNo(9), offset: 0, fresh: Some(crc) };
        let body = Body::Packed(std::slice::from_ref(&piece));
        let op =
            Op::Write { ino: Ino(ino), body, unprivileged: None, cached: true, intern: None, over: None };
        names.run(&op, &ctx()).unwrap();
    };
    names.run(&Op::OpenPack { pack: PackNo(9) }, &ctx()).unwrap();
    file(&names, "whole", 3).unwrap();
    write(3, crc);
    file(&names, "lacks", 4).unwrap();
    write(4, crc ^ 1);
    file(&names, "last", 5).unwrap();
    node.kill();
    node.engine.away.store(false, Ordering::SeqCst);
    let done = node.replay();
    assert_eq!((done.stored, done.refused()), (3, 2), "{:?}", done.line());
    assert!(done.line().unwrap().contains("bytes"));
    node.join();
    assert!(is_there(&names, "whole") && is_there(&names, "lacks") && !is_there(&names, "last"));
    assert_eq!(names.entry(Ino::ROOT, b"lacks").unwrap().inode.unwrap().1.size, 0);
    assert_eq!(names.entry(Ino::ROOT, b"whole").unwrap().inode.unwrap().1.size, 3000);
}

/// The last record may be torn: it was not acknowledged. Damage before others is said.
#[test]
fn a_torn_tail_is_ignored_and_damage_is_said() {
    let (node, names) = cut_off();
    (0..5).for_each(|n| file(&names, &format!("file{n}"), 10 + n).unwrap());
    node.kill();
    let path = node.dir().join("0");
    let bytes = fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in (4096..end).rev().step_by(7) {
        // Cut here: a prefix.
        file.set_len(at as u64).unwrap();
        let left = node.left();
        assert!(left.len() < 5 && line_of(&node).is_none(), "cut at {at}: {}", left.len());
        file.write_all_at(&bytes, 0).unwrap();
        // A flipped bit.
        file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
        let left = node.left();
        assert!(left.len() == 4 || left.len() == 5, "damage at {at}: {}", left.len());
        file.write_all_at(&bytes, 0).unwrap();
    }
    file.write_all_at(&[bytes[4100] ^ 1], 4100).unwrap();
    node.engine.away.store(false, Ordering::SeqCst);
    let done = node.replay();
    assert_eq!((done.stored, done.refused()), (0, 4));
    assert!(done.line().unwrap().contains("damaged"));
}

/// What is said of a journal that is cut, without storing anything.
fn line_of(node: &Mortal) -> Option<String> {
    let memory = Memory::new();
    let rows = all(&node.engine.memory);
    memory.commit(Commit { puts: rows, ..Commit::default() }).unwrap();
    let engine = Arc::new(Engine { memory, epoch: AtomicU64::new(1), ..Engine::default() });
    let wire = Wire::new(engine, 1);
    replay(node.left(), &wire, &node.packs, &Old(|| Ok(()))).unwrap().line()
}

#[test]
fn another_nodes_journal_is_none() {
    let (node, names) = cut_off();
    file(&names, "second", 3).unwrap();
    node.kill();
    assert_eq!(Left::read(node.dir(), [8; 16]).unwrap().len(), 0);
    assert_eq!(node.left().len(), 1);
}

/// The files stay as short as what is outstanding, also when something always is.
#[test]
fn the_journal_does_not_grow() {
    let node = Mortal::new(None, 0, None);
    let names = node.names();
    format(&names);
    for n in 0..12_000 {
        let name = format!("{n:0200}");
        file(&names, &name, 10 + n).unwrap();
    }
    let len = |file: &str| fs::metadata(node.dir().join(file)).unwrap().len();
    println!("{} and {} bytes", len("0"), len("1"));
    assert!(len("0") + len("1") < 12 << 20, "{} and {} bytes", len("0"), len("1"));
    node.flush().unwrap();
    assert!(node.left().is_empty());
}
