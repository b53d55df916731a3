//! An engine that has no space.

use super::*;

fn is_full<T>(done: Result<T, NamesError>) -> bool {
    matches!(done, Err(NamesError::Store(StoreError::NoSpace(_))))
}

fn new_file(names: &Names, dir: u64, name: &str, ino: u64) -> Result<(), NamesError> {
    make(names, Ino(dir), name, ino, mode::S_IFREG)
}

fn seen(names: &Names, dir: u64) -> usize {
    names.readdir(Ino(dir), 0, 5000).unwrap().len()
}

fn remove(names: &Names, dir: u64, name: &str) -> Result<(), NamesError> {
    names.run(&Op::Unlink { parent: Ino(dir), name: name.as_bytes() }, &ctx()).map(drop)
}

/// Two directories, 10 and 11, with a file each. All is in the engine.
fn world(nodes: u32) -> World {
    let world = World::formatted(nodes);
    let names = world.names(0);
    for dir in [10, 11] {
        make(&names, Ino::ROOT, &format!("d{dir}"), dir, mode::S_IFDIR).unwrap();
        new_file(&names, dir, "old", dir + 10).unwrap();
    }
    world.leases[0].flush().unwrap();
    world
}

/// Until a change is refused: the first ones are acknowledged, and cannot be stored.
fn fill(names: &Names, dir: u64) -> u64 {
    let end = base::time::monotonic() + Duration::from_secs(60);
    for n in 0.. {
        if is_full(new_file(names, dir, &format!("new {n}"), 1_000 + n)) {
            return n;
        }
        assert!(base::time::monotonic() < end, "nothing is refused");
        std::thread::sleep(Duration::from_millis(1));
    }
    0
}

/// fsync(2) took a minute, and other nodes could not read anything.
#[test]
fn regression_a_full_engine_refuses_changes_at_once_and_is_read_on_all_nodes() {
    let world = world(3);
    let [one, two, three] = [0, 1, 2].map(|node| world.names(node));
    assert_eq!(seen(&two, 11), 1);
    world.engine.full.store(1, Ordering::SeqCst);
    let began = base::time::monotonic();
    let made = fill(&one, 10);
    let flushed = world.leases[0].flush();
    assert!(matches!(flushed, Err(StoreError::NoSpace(_))), "{flushed:?}");
    assert_eq!(seen(&one, 10) as u64, 1 + made, "the node itself sees what it has acknowledged");
    assert!([&one, &two].iter().all(|names| names.totals().is_ok()), "statfs(2) goes on");
    for names in [&two, &three] {
        assert_eq!((seen(names, 10), seen(names, 11)), (1, 1));
        assert!(names.entry(Ino(10), b"old").unwrap().inode.is_some());
        assert!(is_full(new_file(names, 10, "other", 5_000)));
        assert!(is_full(new_file(names, 11, "other", 5_001)));
    }
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    world.engine.full.store(0, Ordering::SeqCst);
    let end = base::time::monotonic() + Duration::from_secs(60);
    while is_full(new_file(&one, 10, "again", 6_000)) {
        assert!(base::time::monotonic() < end, "it does not go on");
        std::thread::sleep(Duration::from_millis(10));
    }
    while seen(&two, 10) as u64 != 2 + made {
        assert!(base::time::monotonic() < end, "the other node does not see it");
        std::thread::sleep(Duration::from_millis(10));
    }
    new_file(&two, 11, "two", 6_001).unwrap();
    new_file(&three, 11, "three", 6_002).unwrap();
    assert_eq!(seen(&one, 11), 3);
    world.rows();
    check(&world.engine.memory);
}

/// What only removes is not held up by what waits, and may make space.
#[test]
fn a_full_engine_is_asked_to_remove() {
    let world = world(1);
    let names = world.names(0);
    world.engine.full.store(2, Ordering::SeqCst);
    let made = fill(&names, 10);
    remove(&names, 11, "old").unwrap();
    assert_eq!(seen(&names, 11), 0);
    assert_eq!(Names::new(world.engine.clone()).readdir(Ino(11), 0, 9).unwrap().len(), 0, "it is stored");
    assert!(is_full(remove(&names, 10, "old")), "changes of the same directory wait to be stored");
    world.engine.full.store(0, Ordering::SeqCst);
    let end = base::time::monotonic() + Duration::from_secs(60);
    while is_full(remove(&names, 10, "old")) {
        assert!(base::time::monotonic() < end, "it does not go on");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(seen(&names, 10) as u64, made);
    world.rows();
    check(&world.engine.memory);
}
