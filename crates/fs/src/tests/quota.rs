//! Quotas of directories: what they count, what they refuse, and that nothing is missed while they are set.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use base::dice::Dice;
use base::size::MIB;
use meta::plan::Op;
use meta::quota::{Limits, QuotaRow, State};

use super::*;
use crate::api::RenameMode;
use crate::fsck::{self, Callbacks, Depth};

fn limits(bytes: impl Into<Option<u64>>, inodes: impl Into<Option<u64>>) -> Limits {
    Limits { bytes: bytes.into(), inodes: inodes.into() }
}

fn set(v: &Volume, dir: Ino, limits: Limits) {
    v.set_quota(dir, limits, &mut |_| ()).unwrap();
}

/// Bytes and inodes that count for the quota of a directory.
fn used(v: &Volume, dir: Ino) -> (u64, u64) {
    let all = v.quotas().unwrap();
    let quota = all.iter().find(|quota| quota.dir == dir).expect("it has a quota");
    (quota.bytes, quota.inodes)
}

fn make(v: &Volume, parent: Ino, name: &str) -> Result<Ino, Errno> {
    let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    let made = v.mknod(&ROOT, parent, name.as_bytes(), &node);
    made.map(|entry| entry.attr.ino)
}

fn write(v: &Volume, ino: Ino, offset: u64, len: usize) -> Result<(), Errno> {
    v.write(ino, offset, &noise(offset + len as u64, len), None, false).map(drop)
}

/// Removes a file that nothing holds.
fn remove(v: &Volume, dir: Ino, name: &str, ino: Ino) {
    v.unlink(dir, name.as_bytes()).unwrap();
    v.forget(ino, 1);
}

fn check(world: &World) {
    let mut findings = Vec::new();
    let mut callbacks = Callbacks { found: &mut |finding| findings.push(finding), progress: &mut |_| {} };
    fsck::check(&world.parts, Depth::Full, &mut callbacks).unwrap();
    findings.retain(|finding| !finding.is_harmless());
    assert_eq!(findings, []);
}

#[test]
fn what_exceeds_a_limit_is_refused_and_what_is_freed_can_be_used_again() {
    let world = World::new();
    let v = world.open();
    let dir = v.dir(Ino::ROOT, "team");
    set(&v, dir, limits(MIB, 3));
    assert_eq!(used(&v, dir), (0, 0));
    let a = v.file(dir, "a");
    let b = v.file(v.dir(dir, "sub"), "b");
    assert_eq!(make(&v, dir, "c"), Err(Errno::EDQUOT));
    assert_eq!(v.mkdir(&ROOT, dir, b"d", 0o755, 0).err(), Some(Errno::EDQUOT));
    assert_eq!(v.symlink(&ROOT, dir, b"l", b"a").err(), Some(Errno::EDQUOT));
    assert!(make(&v, Ino::ROOT, "outside").is_ok());

    write(&v, a, 0, 700_000).unwrap();
    assert_eq!(write(&v, b, 0, 400_000), Err(Errno::EDQUOT));
    assert_eq!(used(&v, dir), (700_000, 3));
    write(&v, b, 0, 300_000).unwrap();
    write(&v, a, 0, 700_000).expect("what is written over takes no more room");
    assert_eq!(write(&v, a, 700_000, 100_000), Err(Errno::EDQUOT));
    v.cut(a, 100_000);
    write(&v, b, 300_000, 500_000).unwrap();
    assert_eq!(used(&v, dir), (900_000, 3));

    remove(&v, dir, "a", a);
    eventually("the file is freed", || used(&v, dir) == (800_000, 2));
    v.file(dir, "c");
    v.close().unwrap();
    drop(v);
    let v = world.open();
    assert_eq!(used(&v, dir), (800_000, 3), "the same after it was opened again");
    assert_eq!(make(&v, dir, "d"), Err(Errno::EDQUOT));
    v.close().unwrap();
    check(&world);
}

#[test]
fn quotas_nest_and_statfs_shows_what_they_leave() {
    let world = World::new();
    let v = world.open();
    let outer = v.dir(Ino::ROOT, "outer");
    let inner = v.dir(outer, "inner");
    write(&v, v.file(inner, "early"), 0, 100_000).unwrap();
    set(&v, inner, limits(None, 10));
    set(&v, outer, limits(MIB, 20));
    assert_eq!(used(&v, inner), (100_000, 1));
    assert_eq!(used(&v, outer), (100_000, 2), "the inner directory and what is in it");
    let file = v.file(inner, "file");
    write(&v, file, 0, 900_000).unwrap();
    assert_eq!(write(&v, file, 900_000, 100_000), Err(Errno::EDQUOT), "the outer quota is used up");
    for n in 0..8 {
        v.file(inner, &n.to_string());
    }
    assert_eq!(make(&v, inner, "more"), Err(Errno::EDQUOT), "the inner quota is used up");
    assert!(make(&v, outer, "more").is_ok());

    let room = v.statfs(inner).unwrap();
    assert_eq!((room.total, room.free), (MIB, MIB - 1_000_000));
    assert_eq!((room.inodes, room.inodes_free), (10, 0));
    let room = v.statfs(outer).unwrap();
    assert_eq!((room.inodes, room.inodes_free), (12, 8));
    assert!(v.statfs(Ino::ROOT).unwrap().inodes_free > 1 << 30);

    // The outer quota is taken away, and the inner one stays.
    assert_eq!(v.remove_quota(outer, &mut |_| ()), Ok(true));
    assert_eq!(v.remove_quota(outer, &mut |_| ()), Ok(false));
    write(&v, file, 900_000, 600_000).unwrap();
    assert_eq!(used(&v, inner), (1_600_000, 10));
    assert_eq!(make(&v, inner, "more"), Err(Errno::EDQUOT));
    v.close().unwrap();
    check(&world);
}

#[test]
fn nothing_gets_into_a_quota_but_by_a_copy() {
    let world = World::new();
    let v = world.open();
    let (a, b) = (v.dir(Ino::ROOT, "a"), v.dir(Ino::ROOT, "b"));
    set(&v, a, limits(MIB, 10));
    set(&v, b, limits(MIB, 3));
    let file = v.file(a, "file");
    write(&v, file, 0, 300_000).unwrap();
    let plain = v.file(Ino::ROOT, "plain");
    let rename =
        |from, name: &str, to| v.rename(from, name.as_bytes(), to, b"moved", RenameMode::Replace).map(drop);
    assert_eq!(rename(a, "file", b), Err(Errno::EXDEV));
    assert_eq!(rename(a, "file", Ino::ROOT), Err(Errno::EXDEV));
    assert_eq!(rename(Ino::ROOT, "plain", a), Err(Errno::EXDEV));
    assert_eq!(v.link(file, b, b"l").err(), Some(Errno::EXDEV));
    assert_eq!(v.link(plain, a, b"l").err(), Some(Errno::EXDEV));
    assert_eq!(rename(a, "file", a), Ok(()));
    v.link(file, a, b"l").unwrap();
    // A directory with a quota moves within the quota around it.
    assert_eq!(v.rename(Ino::ROOT, b"a", Ino::ROOT, b"a2", RenameMode::Replace).map(drop), Ok(()));
    assert_eq!(used(&v, a), (300_000, 1));

    // A clone counts for the quota of the place it is made in.
    v.clone_tree(a, b, b"copy", &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(used(&v, b), (300_000, 2));
    let refused = v.clone_tree(a, b, b"again", &mut |_| ControlFlow::Continue(()));
    assert_eq!(refused.err(), Some(Errno::EDQUOT));
    eventually("what the refused clone made is collected", || used(&v, b) == (300_000, 2));
    let copy = v.find(b, "copy").unwrap().ino;
    assert!(make(&v, copy, "x").is_ok(), "the copy of a directory with a quota has none");
    assert_eq!(used(&v, b), (300_000, 3));
    v.close().unwrap();
    check(&world);
}

#[test]
fn a_directory_that_goes_takes_its_quota_with_it() {
    let world = World::new();
    let v = world.open();
    let dir = v.dir(Ino::ROOT, "dir");
    set(&v, dir, limits(MIB, 10));
    let file = v.file(dir, "file");
    write(&v, file, 0, 1000).unwrap();
    remove(&v, dir, "file", file);
    v.rmdir(Ino::ROOT, b"dir").unwrap();
    v.forget(dir, 1);
    eventually("all rows of the quota are gone", || {
        let rows = [meta::key::tags::QUOTA, meta::key::tags::QUOTA_USED].map(meta::Key::kind);
        rows.iter().all(|range| world.parts.store.scan(range, 1).unwrap().is_empty())
    });
    v.close().unwrap();
    check(&world);
}

/// Each of several threads makes files until it is refused. Not one file too many is made.
#[test]
fn an_exclusive_volume_keeps_to_the_limit_exactly() {
    let world = World::new();
    let v = Arc::new(world.open());
    let dir = v.dir(Ino::ROOT, "dir");
    set(&v, dir, limits(None, 500));
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let v = v.clone();
            std::thread::spawn(move || {
                (0..1000).filter(|i| make(&v, dir, &format!("{n}-{i}")).is_ok()).count()
            })
        })
        .collect();
    let made: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(made, 500);
    assert_eq!(used(&v, dir).1, 500);
}

/// Makes, moves and removes files and directories below a directory, until it is told to stop.
fn disturb(v: &Volume, top: Ino, seed: u64, stop: &AtomicBool) {
    let mut dice = Dice::new(seed);
    let mut dirs = vec![top];
    let mut files: BTreeMap<(u64, String), Ino> = BTreeMap::new();
    let mut made = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let dir = dirs[dice.below(dirs.len())];
        let name = format!("{seed}-{made}");
        made += 1;
        match dice.below(6) {
            0 if dirs.len() < 40 => dirs.push(v.dir(dir, &name)),
            1 | 2 => {
                let ino = v.file(dir, &name);
                write(v, ino, 0, 1 + dice.below(2000)).unwrap();
                files.insert((dir.0, name), ino);
            }
            3 if !files.is_empty() => {
                let key = files.keys().nth(dice.below(files.len())).unwrap().clone();
                remove(v, Ino(key.0), &key.1, files.remove(&key).unwrap());
            }
            _ if !files.is_empty() => {
                let key = files.keys().nth(dice.below(files.len())).unwrap().clone();
                match v.rename(Ino(key.0), key.1.as_bytes(), dir, name.as_bytes(), RenameMode::Replace) {
                    Ok(_) => {
                        let ino = files.remove(&key).unwrap();
                        files.insert((dir.0, name), ino);
                    }
                    Err(error) => {
                        assert_eq!(error, Errno::EXDEV, "one counts already, and the other does not")
                    }
                }
            }
            _ => {}
        }
    }
}

/// The quota that each inode below a directory counts for.
fn quotas_below(v: &Volume, dir: Ino, found: &mut Vec<Ino>) {
    for name in v.names(dir).into_iter().filter(|name| name != "." && name != "..") {
        let attr = v.find(dir, &name).unwrap();
        found.push(v.core.inode(attr.ino).unwrap().quota);
        if attr.kind == FileKind::Dir {
            quotas_below(v, attr.ino, found);
        }
    }
}

#[test]
fn nothing_is_missed_while_a_quota_is_set_and_taken_away() {
    let world = World::new();
    for round in 0..6u64 {
        let v = Arc::new(world.open());
        let top = v.dir(Ino::ROOT, &format!("top{round}"));
        let deep = v.dir(v.dir(top, "x"), "y");
        for n in 0..300 {
            write(&v, v.file(deep, &n.to_string()), 0, 100).unwrap();
        }
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let (v, stop) = (v.clone(), stop.clone());
                std::thread::spawn(move || disturb(&v, top, round * 10 + n + 1, &stop))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(30));
        set(&v, top, limits(1 << 40, 1 << 30));
        let mut quotas = Vec::new();
        if round % 2 == 0 {
            stop.store(true, Ordering::Relaxed);
        } else {
            v.remove_quota(top, &mut |_| ()).unwrap();
            stop.store(true, Ordering::Relaxed);
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        quotas_below(&v, top, &mut quotas);
        let expected = if round % 2 == 0 { top } else { Ino(0) };
        assert!(quotas.iter().all(|quota| *quota == expected), "round {round}: {quotas:?}");
        if round % 2 == 0 {
            eventually("all that was removed is freed", || used(&v, top).1 == quotas.len() as u64);
        }
        v.close().unwrap();
        drop(v);
        check(&world);
    }
}

/// A process that dies while it counts leaves a quota that says so. The same command continues.
#[test]
fn an_interrupted_quota_is_continued() {
    let world = World::new();
    let v = world.open();
    let dir = v.dir(Ino::ROOT, "dir");
    for n in 0..600 {
        v.file(dir, &n.to_string());
    }
    v.core.stopping.store(true, Ordering::Release);
    assert_eq!(v.set_quota(dir, limits(MIB, 1000), &mut |_| ()), Err(Errno::EINTR));
    let state = |v: &Volume| v.quotas().unwrap().first().map(|quota| quota.row.state);
    assert_eq!(state(&v), Some(State::Counting));
    drop(v);
    check(&world);
    let v = world.open();
    assert_eq!(state(&v), Some(State::Counting));
    set(&v, dir, limits(MIB, 700));
    assert_eq!((state(&v), used(&v, dir).1), (Some(State::Set), 600));
    v.core.stopping.store(true, Ordering::Release);
    assert_eq!(v.remove_quota(dir, &mut |_| ()), Err(Errno::EINTR));
    assert_eq!(state(&v), Some(State::Removing));
    drop(v);
    check(&world);
    let v = world.open();
    assert!(make(&v, dir, "a").is_ok());
    assert_eq!(v.remove_quota(dir, &mut |_| ()), Ok(true));
    assert_eq!(state(&v), None);
    v.close().unwrap();
    check(&world);
}

/// What a clone had made until it met the limit counted until it was deleted behind it: the next one, that
/// would have fitted, was refused too. On a shared volume that lasted for twenty seconds.
#[test]
fn regression_a_clone_that_failed_counts_for_no_quota() {
    let world = World::new();
    let v = world.open();
    let (tree, limited) = (v.dir(Ino::ROOT, "tree"), v.dir(Ino::ROOT, "limited"));
    let deep = v.dir(v.dir(tree, "a"), "b");
    for f in 0..40 {
        v.put(v.file(deep, &format!("f{f}")), 0, &noise(f, 1000));
    }
    set(&v, limited, limits(None, 30));
    let clone = |from| v.clone_tree(from, limited, b"copy", &mut |_| ControlFlow::Continue(()));
    assert_eq!(clone(tree), Err(Errno::EDQUOT));
    assert_eq!(used(&v, limited), (0, 0));
    let file = v.resolve(b"tree/a/b/f7", true).unwrap().ino;
    clone(file).unwrap();
    assert_eq!(used(&v, limited).1, 1);
    v.close().unwrap();
    check(&world);
}

/// A quota was set within one whose counting was interrupted. What was there already counted for neither, for
/// good, and nothing said so.
#[test]
fn regression_a_quota_within_one_that_is_not_counted_yet_misses_nothing() {
    let world = World::new();
    let v = world.open();
    let outer = v.dir(Ino::ROOT, "outer");
    let inner = v.dir(outer, "inner");
    let deep = v.dir(inner, "deep");
    write(&v, v.file(deep, "file"), 0, 100_000).unwrap();
    // The rows as an interrupted command leaves them: the inner directory counts, and what is in it does not.
    let none = v.core.inode(outer).unwrap().quota;
    let row = QuotaRow { limits: limits(MIB, 20), state: State::Counting, outer: none };
    v.core.run(&Op::SetQuota { dir: outer, was: None, row: Some(row) }).unwrap();
    v.core.run(&Op::MoveToQuota { ino: inner, from: &[none], to: outer }).unwrap();
    set(&v, inner, limits(None, 10));
    set(&v, outer, limits(MIB, 20));
    assert_eq!((used(&v, inner), used(&v, outer)), ((100_000, 2), (100_000, 3)));
    v.rename(deep, b"file", inner, b"file", RenameMode::Replace).unwrap();
    // The same while the outer one is taken away.
    assert_eq!(v.remove_quota(inner, &mut |_| ()), Ok(true));
    let was = v.core.names.quota_row(outer).unwrap();
    let leaving = was.map(|row| QuotaRow { state: State::Removing, ..row });
    v.core.run(&Op::SetQuota { dir: outer, was, row: leaving }).unwrap();
    v.core.run(&Op::MoveToQuota { ino: inner, from: &[outer], to: none }).unwrap();
    set(&v, inner, limits(None, 10));
    assert_eq!(v.remove_quota(outer, &mut |_| ()), Ok(true));
    assert_eq!(used(&v, inner), (100_000, 2));
    v.close().unwrap();
    check(&world);
}
