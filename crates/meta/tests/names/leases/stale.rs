//! What was read before a change is not remembered after it.

use meta::plan::op::XattrMode;

use super::*;

fn set(names: &Names, ino: u64, value: &[u8]) {
    let (name, mode) = (&b"user.x"[..], XattrMode::Set);
    names.run(&Op::SetXattr { ino: Ino(ino), name, value, mode, kill_sgid: false }, &ctx()).unwrap();
}

fn rename(names: &Names, from: u64, to: u64) -> Result<(), NamesError> {
    let (name, mode) = (&b"f"[..], RenameMode::Replace);
    let op = Op::Rename { parent: Ino(from), name, to: Ino(to), to_name: name, mode };
    names.run(&op, &ctx()).map(drop)
}

fn value(names: &Names) -> Vec<u8> {
    names.xattr(Ino(20), b"user.x").unwrap().unwrap().to_vec()
}

/// Two directories, 10 and 11, and in the first one a file, 20, with an attribute. All is in the engine.
fn two_directories(nodes: u32) -> World {
    let world = World::formatted(nodes);
    let names = Names::new(world.engine.clone());
    make(&names, Ino::ROOT, "a", 10, mode::S_IFDIR).unwrap();
    make(&names, Ino::ROOT, "b", 11, mode::S_IFDIR).unwrap();
    make(&names, Ino(10), "f", 20, mode::S_IFREG).unwrap();
    set(&names, 20, b"first");
    world
}

/// A file left a directory while its rows were read. They were remembered in that directory, and when the
/// file came back, what another node had changed meanwhile was not seen, and was overwritten.
#[test]
fn regression_rows_that_were_read_before_a_file_moved_are_not_its_rows_when_it_is_back() {
    let world = two_directories(2);
    let names = world.names(0);
    make(&names, Ino(10), "own", 30, mode::S_IFREG).unwrap();
    make(&names, Ino(11), "own", 31, mode::S_IFREG).unwrap();
    let mover = world.names(0);
    *world.engine.after_read.lock() = Some(Box::new(move || rename(&mover, 10, 11).unwrap()));
    assert_eq!(value(&names), b"first");
    assert!(world.engine.after_read.lock().is_none(), "the attribute was read from the engine");
    set(&world.names(1), 20, b"second");
    rename(&names, 11, 10).unwrap();
    assert_eq!(value(&names), b"second");
    set(&names, 20, b"third");
    assert_eq!(value(&world.names(1)), b"third");
    world.rows();
    check(&world.engine.memory);
}

/// The answer to a commit was lost. The node looked at the directory and took its lease anew, and the commit
/// came in between: the node did not know the name that it had moved.
#[test]
fn regression_a_commit_that_comes_in_late_is_seen_by_its_node() {
    for ahead in [false, true] {
        let world = two_directories(2);
        let rules = Commit { puts: vec![contended_row(10)], ..Commit::default() };
        world.engine.memory.commit(rules).unwrap();
        let names = world.names(0);
        make(&names, Ino(11), "own", 31, mode::S_IFREG).unwrap();
        world.leases[0].flush().unwrap();
        world.engine.keeps_back.store(true, Ordering::SeqCst);
        let error = rename(&names, 10, 11).unwrap_err();
        assert!(matches!(error, NamesError::Store(StoreError::Unavailable(_))), "{error}");
        let engine = world.engine.clone();
        *world.engine.before_lease.lock() = Some(Box::new(move || {
            let late = engine.kept_back.lock().take().unwrap();
            engine.memory.commit(late).unwrap();
        }));
        if ahead {
            names.readdir(Ino::ROOT, 0, 9).unwrap();
            names.store().prefetch(Ino::ROOT).unwrap();
        }
        let list = names.readdir(Ino(11), 0, 9).unwrap();
        let list: Vec<&[u8]> = list.iter().map(|entry| &entry.name[..]).collect();
        assert!(list.contains(&&b"f"[..]), "{list:?}");
        let refused = make(&names, Ino(11), "f", 40, mode::S_IFREG);
        assert!(matches!(refused, Err(NamesError::Refused(Refusal::Exists))), "{refused:?}");
        world.rows();
        check(&world.engine.memory);
    }
}

/// The row of a directory that no node has a lease of, because several change it.
fn contended_row(dir: u64) -> (Key, Value) {
    let seq = 1u64.to_be_bytes();
    (Key::lease(Ino(dir)), [&[1, 3][..], &seq].concat().into())
}
