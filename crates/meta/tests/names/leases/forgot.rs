//! An engine that has forgotten what it had confirmed.

use base::{BlobId, PackNo};
use meta::PackRow;
use meta::record::DoomedRow;

use super::*;

/// Puts the engine back to these rows.
pub(super) fn put_back(world: &World, rows: &[(Key, Value)]) {
    let now = all(&world.engine.memory);
    let dels =
        now.iter().map(|(key, _)| key.clone()).filter(|key| rows.iter().all(|(other, _)| other != key));
    let commit = Commit { dels: dels.collect(), puts: rows.to_vec(), ..Commit::default() };
    world.engine.memory.commit(commit).unwrap();
}

fn flush(world: &World) {
    world.leases.iter().for_each(|leases| leases.flush().unwrap());
}

/// Two nodes, each with a directory of its own: 100 and 101. All is in the engine.
fn two() -> World {
    let world = World::formatted(2);
    for node in 0..2 {
        make(&world.names(node), Ino::ROOT, &format!("of{node}"), 100 + node as u64, mode::S_IFDIR).unwrap();
    }
    for node in 0..2 {
        make(&world.names(node), Ino(100 + node as u64), "first", 200 + node as u64, mode::S_IFREG).unwrap();
    }
    flush(&world);
    world
}

/// Each node makes files in its directory, in several batches.
fn work(world: &World, from: u64) {
    for n in from..from + 10 {
        for node in 0..2_u64 {
            let (names, parent) = (world.names(node as usize), Ino(100 + node));
            make(&names, parent, &format!("file{n}"), 1000 * (node + 1) + n, mode::S_IFREG).unwrap();
        }
        flush(world);
    }
}

fn listed(world: &World, node: usize, dir: u64) -> Vec<String> {
    let names = world.names(node).readdir(Ino(dir), 0, 1000).unwrap();
    let mut names: Vec<_> =
        names.iter().map(|name| String::from_utf8_lossy(&name.name).into_owned()).collect();
    names.sort();
    names
}

/// Everything that both nodes were told is there for both.
fn has_all(world: &World, to: u64) {
    for (node, dir) in [(0, 100), (0, 101), (1, 100), (1, 101)] {
        let mut expected: Vec<String> = (0..to).map(|n| format!("file{n}")).collect();
        expected.push("first".to_owned());
        expected.sort();
        assert_eq!(listed(world, node, dir), expected, "node {node}, directory {dir}");
    }
    world.rows();
    check(&world.engine.memory);
}

/// The database had lost its last commits, and nodes that went on were stuck: what programs wrote vanished,
/// and fsync(2) failed, until the node was mounted anew.
#[test]
fn regression_what_the_engine_forgot_is_stored_again() {
    for told in [true, false] {
        let world = two();
        let before = all(&world.engine.memory);
        work(&world, 0);
        put_back(&world, &before);
        if told {
            world.leases.iter().for_each(|leases| leases.engine_began_anew());
        }
        work(&world, 10);
        has_all(&world, 20);
        assert!(!world.leases[0].take_lost(Ino(1000)) && !world.leases[0].take_lost(Ino(1015)));
    }
}

/// A lease that was taken after the database's last commit was not put back. So what was changed under it was
/// refused.
#[test]
fn regression_leases_that_the_engine_forgot_are_taken_again() {
    for told in [true, false] {
        let world = two();
        let before = all(&world.engine.memory);
        for node in 0..2_u64 {
            let names = world.names(node as usize);
            make(&names, Ino(100 + node), "new", 500 + node, mode::S_IFDIR).unwrap();
            make(&names, Ino(500 + node), "in it", 600 + node, mode::S_IFREG).unwrap();
            flush(&world);
            make(&names, Ino(500 + node), "also", 700 + node, mode::S_IFREG).unwrap();
        }
        flush(&world);
        put_back(&world, &before);
        if told {
            world.leases.iter().for_each(|leases| leases.engine_began_anew());
        }
        work(&world, 0);
        for (reader, node) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            assert_eq!(listed(&world, reader, 500 + node), ["also", "in it"], "node {reader}, of {node}");
        }
        check(&world.engine.memory);
    }
}

/// The same where another node had the lease before, which has to store its own changes first.
#[test]
fn regression_a_lease_that_came_from_another_node_is_taken_again() {
    let world = two();
    let before = all(&world.engine.memory);
    let from = |node: usize, name: &str, ino: u64| {
        make(&world.names(node), Ino(101), name, ino, mode::S_IFREG).unwrap();
        flush(&world);
    };
    from(1, "by its owner", 601);
    from(0, "by the other", 602);
    put_back(&world, &before);
    // A mounted node asks another one only when that one has noticed.
    world.leases.iter().rev().for_each(|leases| leases.engine_began_anew());
    for reader in [0, 1] {
        assert_eq!(listed(&world, reader, 101), ["by its owner", "by the other", "first"], "node {reader}");
    }
    check(&world.engine.memory);
}

/// A node that changes nothing learns of it too, and does not answer from what it remembers.
#[test]
fn a_reader_forgets_what_the_engine_forgot() {
    let world = two();
    let before = all(&world.engine.memory);
    work(&world, 0);
    assert_eq!(listed(&world, 1, 100).len(), 11);
    put_back(&world, &before);
    world.leases.iter().for_each(|leases| leases.engine_began_anew());
    has_all(&world, 10);
}

/// The rows of packs were not stored again, only the names that refer to them. So other nodes could not read
/// these bytes, and the node that had them deleted them when it was to seal their pack.
#[test]
fn regression_packs_that_the_engine_forgot_have_rows_again() {
    for told in [true, false] {
        let world = two();
        let before = all(&world.engine.memory);
        let names = world.names(0);
        let (open, sealed, blob) = (PackNo(71), PackNo(72), BlobId([7; 32]));
        for op in [Op::OpenPack { pack: open }, Op::OpenPack { pack: sealed }] {
            names.run(&op, &ctx()).unwrap();
        }
        names.run(&Op::SealPack { pack: sealed, blob, size: 99 }, &ctx()).unwrap();
        work(&world, 0);
        put_back(&world, &before);
        if told {
            world.leases.iter().for_each(|leases| leases.engine_began_anew());
        }
        work(&world, 10);
        let rows = [open, sealed].map(|pack| names.pack(pack).unwrap());
        assert_eq!(rows, [Some(PackRow::Open), Some(PackRow::Sealed { blob, size: 99 })]);
        assert_eq!(names.blob_packs(&blob).unwrap(), [sealed]);
        // What it removes itself stays away.
        names.run(&Op::ForgetPack { pack: open }, &ctx()).unwrap();
        world.leases[0].engine_began_anew();
        work(&world, 20);
        assert_eq!(names.pack(open).unwrap(), None);
        has_all(&world, 30);
    }
}

/// Another node took the lease that was forgotten, and went on. What it did stays, and what cannot be stored
/// again is lost: that is said, and told to fsync(2) of the files.
#[test]
fn what_another_node_went_on_without_is_lost() {
    let world = two();
    // Node 1 gives its directory to node 0, and the engine forgets that.
    let before = all(&world.engine.memory);
    make(&world.names(0), Ino(101), "late", 300, mode::S_IFREG).unwrap();
    flush(&world);
    put_back(&world, &before);
    world.leases[1].engine_began_anew();
    make(&world.names(1), Ino(101), "other", 301, mode::S_IFREG).unwrap();
    flush(&world);
    world.leases[0].engine_began_anew();
    for node in 0..2 {
        assert_eq!(listed(&world, node, 101), ["first", "other"], "node {node}");
    }
    assert!(world.leases[0].take_lost(Ino(300)));
    work(&world, 0);
    world.rows();
    check(&world.engine.memory);
}

/// Nodes with leases of one tree work while the engine forgets again and again: the rows stay sound, and each
/// node goes on.
#[test]
fn an_engine_that_forgets_again_and_again_stays_sound() {
    for seed in 1..6 {
        let (world, mut dice) = (two(), Dice(seed));
        let mut before = all(&world.engine.memory);
        for round in 0..30_u64 {
            for n in 0..1 + dice.below(6) {
                let node = dice.below(2);
                let parent = Ino(100 + dice.below(2));
                let (name, ino) = (format!("{round} {n}"), 1000 + round * 10 + n);
                // It may be refused: the node has just learned that the engine forgot.
                let _ = make(&world.names(node as usize), parent, &name, ino, mode::S_IFREG);
            }
            match dice.below(3) {
                0 => {
                    let _ = world.leases.iter().try_for_each(|leases| leases.flush());
                    before = all(&world.engine.memory);
                }
                1 => {
                    let _ = world.leases.iter().try_for_each(|leases| leases.flush());
                    put_back(&world, &before);
                    world.leases.iter().for_each(|leases| leases.engine_began_anew());
                }
                _ => {}
            }
        }
        for node in 0..2 {
            make(&world.names(node), Ino(100), &format!("last{node}"), 5000 + node as u64, mode::S_IFREG)
                .unwrap();
        }
        assert_eq!(listed(&world, 0, 100), listed(&world, 1, 100), "seed {seed}");
        world.rows();
        check(&world.engine.memory);
    }
}

#[test]
fn nothing_is_condemned_or_doomed_while_the_engine_may_lack_what_refers_to_it() {
    let world = World::formatted(1);
    let store = world.names(0).store().clone();
    let (blob, pack) = (BlobId([7; 32]), PackNo(3));
    let by = DoomedRow { node: 0, epoch: 1 };
    for (key, row) in [(Key::doomed(&blob), by.encode()), (Key::condemned(5, pack), Value::from(&[][..]))] {
        let add = || Commit { puts: vec![(key.clone(), row.clone())], ..Commit::default() };
        let remove = || Commit { dels: vec![key.clone()], ..Commit::default() };
        for change in [add(), remove()] {
            world.fleet.keeps_all.store(true, Ordering::SeqCst);
            let refused = store.commit(change.clone());
            assert!(matches!(refused, Err(CommitError::Store(StoreError::Unavailable(_)))), "{refused:?}");
            world.fleet.keeps_all.store(false, Ordering::SeqCst);
            store.commit(change).unwrap();
        }
    }
}
