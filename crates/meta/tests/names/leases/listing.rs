//! What listings of many directories read, and when.

use std::collections::BTreeSet;

use super::*;

const DIRS: u64 = 60;
const FILES: u64 = 7;

fn trips(world: &World) -> u64 {
    world.engine.trips.load(Ordering::SeqCst)
}

/// A tree of which no node has a lease.
fn tree(world: &World) {
    fill(&Names::new(world.engine.clone()));
}

fn fill(names: &Names) {
    for dir in 0..DIRS {
        let ino = 1_000 * (dir + 1);
        make(names, Ino::ROOT, &format!("d{dir:03}"), ino, mode::S_IFDIR).unwrap();
        for file in 0..FILES {
            make(names, Ino(ino), &format!("f{file}"), ino + 1 + file, mode::S_IFREG).unwrap();
        }
    }
}

/// What `ls -lR` asks: the names of the root, the attributes of the directories in it, and then, in the order
/// of their names, what each of them has.
fn list(names: &Names) -> usize {
    let mut dirs = names.readdir(Ino::ROOT, 0, 1_000).unwrap();
    names.store().prefetch(Ino::ROOT).unwrap();
    dirs.iter().for_each(|dir| assert!(names.attr(dir.dentry.ino).unwrap().is_some()));
    dirs.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let mut found = 0;
    for dir in dirs {
        let files = names.readdir(dir.dentry.ino, 0, 1_000).unwrap();
        names.store().prefetch(dir.dentry.ino).unwrap();
        let inos: Vec<Ino> = files.iter().map(|file| file.dentry.ino).collect();
        assert_eq!(names.attrs(&inos).unwrap().len(), files.len());
        found += files.len();
    }
    found
}

/// Each directory took three round trips: its names, its lease, its files. At a distance of 1 ms most of a
/// listing's time was that.
#[test]
fn regression_a_tree_is_listed_in_few_round_trips() {
    let world = World::formatted(1);
    tree(&world);
    world.engine.delay.store(300, Ordering::SeqCst);
    let (names, before) = (world.names(0), trips(&world));
    assert_eq!(list(&names), (DIRS * FILES) as usize);
    // Three for the root, two for the leases of the others. The first of them is read alone, the others by
    // eights: two for each group.
    let cold = trips(&world) - before;
    assert!((5..=3 + 2 + 2 + 2 * 8).contains(&cold), "{cold} round trips for {DIRS} directories");
    let before = trips(&world);
    assert_eq!(list(&names), (DIRS * FILES) as usize);
    assert_eq!(trips(&world), before, "the second listing is from memory");
}

/// The leases of a node that was unmounted were asked for one by one.
#[test]
fn regression_a_tree_of_a_node_that_is_gone_is_listed_in_few_round_trips() {
    let world = World::formatted(2);
    fill(&world.names(1));
    world.leases[1].flush().unwrap();
    world.end(1);
    let (names, before, began) = (world.names(0), trips(&world), std::time::Instant::now());
    assert_eq!(list(&names), (DIRS * FILES) as usize);
    let cold = trips(&world) - before;
    // One more than before: when it is known that the holder is gone, the rows are read again.
    assert!(cold <= 3 + 3 + 2 + 2 * 8, "{cold} round trips for {DIRS} directories");
    // What it has lent may be in use for a moment.
    make(&names, Ino(5_000), "new", 9, mode::S_IFREG).unwrap();
    assert!(began.elapsed() > Duration::from_millis(340), "{:?}", began.elapsed());
}

/// A directory that is listed alone costs no more than it did, and its neighbours are not read.
#[test]
fn a_directory_that_is_listed_alone_reads_no_others() {
    let world = World::formatted(1);
    tree(&world);
    let names = world.names(0);
    names.readdir(Ino::ROOT, 0, 1_000).unwrap();
    names.store().prefetch(Ino::ROOT).unwrap();
    let before = trips(&world);
    for dir in [40, 20, 50] {
        assert_eq!(names.readdir(Ino(1_000 * dir), 0, 1_000).unwrap().len(), FILES as usize);
    }
    assert_eq!(trips(&world) - before, 6, "names and files of three");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(trips(&world) - before, 6, "others are read");
}

/// What `git status` asks: a name of each directory in order, and no listing.
#[test]
fn regression_directories_in_which_names_are_looked_up_are_read_together() {
    let world = World::formatted(2);
    fill(&world.names(1));
    world.leases[1].flush().unwrap();
    // A directory that was changed a moment ago is left to the node that changes it.
    std::thread::sleep(Duration::from_millis(2_100));
    let (names, before) = (world.names(0), trips(&world));
    for dir in 0..DIRS {
        let dir = names.lookup(Ino::ROOT, format!("d{dir:03}").as_bytes()).unwrap().unwrap();
        for file in 0..FILES {
            let file = names.lookup(dir.ino, format!("f{file}").as_bytes()).unwrap().unwrap();
            assert!(names.attr(file.ino).unwrap().is_some());
        }
    }
    let cold = trips(&world) - before;
    // Three alone, and groups of 16.
    assert!(cold <= 50, "{cold} round trips for {DIRS} directories");
}

/// Programs that look into some directories here and there cause no reads of others.
#[test]
fn directories_in_which_names_are_looked_up_in_no_order_are_read_alone() {
    let world = World::formatted(1);
    tree(&world);
    let names = world.names(0);
    assert!(names.lookup(Ino::ROOT, b"d000").unwrap().is_some());
    let before = trips(&world);
    for dir in [40, 20, 50] {
        assert!(names.lookup(Ino(1_000 * dir), b"f1").unwrap().is_some());
    }
    let alone = trips(&world) - before;
    assert!(alone <= 9, "{alone} round trips for three directories");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(trips(&world) - before, alone, "others are read");
}

/// A directory whose lease was had for its attributes is used before its names are read.
#[test]
fn a_directory_is_changed_before_its_names_are_read() {
    let world = World::formatted(2);
    tree(&world);
    let names = world.names(0);
    names.readdir(Ino::ROOT, 0, 1_000).unwrap();
    names.store().prefetch(Ino::ROOT).unwrap();
    make(&names, Ino(1_000), "new", 9, mode::S_IFREG).unwrap();
    assert!(make(&names, Ino(2_000), "f1", 10, mode::S_IFREG).is_err(), "it is there");
    names.run(&Op::Unlink { parent: Ino(3_000), name: b"f2" }, &ctx()).unwrap();
    assert!(names.run(&Op::Rmdir { parent: Ino::ROOT, name: b"d003" }, &ctx()).is_err(), "it is not empty");
    for node in [0, 1] {
        let listed = |dir| {
            let names = world.names(node).readdir(Ino(dir), 0, 1_000).unwrap();
            names.iter().map(|name| String::from_utf8_lossy(&name.name).into_owned()).collect::<BTreeSet<_>>()
        };
        assert!(listed(1_000).contains("new"), "node {node}");
        assert_eq!(listed(2_000).len(), FILES as usize, "node {node}");
        assert!(!listed(3_000).contains("f2"), "node {node}");
        assert_eq!(listed(4_000).len(), FILES as usize, "node {node}");
    }
    check(&world.engine.memory);
}

/// Listings on all nodes beside what they change: nothing is different.
#[test]
fn listings_beside_changes_leave_the_rows_of_one() {
    for seed in 21..23 {
        let alone = Arc::new(Memory::new());
        let mut expected = Script::new(vec![Names::new(alone.clone())], seed);
        expected.play();
        let world = World::new(3);
        let is_over = AtomicBool::new(false);
        let listed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for node in 0..3 {
                let (world, is_over, listed) = (&world, &is_over, &listed);
                scope.spawn(move || {
                    let names = world.names(node);
                    while !is_over.load(Ordering::SeqCst) {
                        let mut dirs = vec![Ino::ROOT];
                        while let Some(dir) = dirs.pop() {
                            let Ok(found) = names.readdir(dir, 0, 1_000) else { continue };
                            let _ = names.store().prefetch(dir);
                            dirs.extend(
                                found.iter().filter(|name| name.dentry.is_dir()).map(|name| name.dentry.ino),
                            );
                            listed.fetch_add(1, Ordering::SeqCst);
                            // Listings without a pause keep the writers waiting for minutes.
                            std::thread::sleep(Duration::from_millis(15));
                        }
                    }
                });
            }
            let mut script = Script::new((0..3).map(|node| world.names(node)).collect(), seed);
            script.play();
            is_over.store(true, Ordering::SeqCst);
            assert_eq!(script.refused, expected.refused, "seed {seed}");
        });
        assert!(listed.load(Ordering::SeqCst) > 0);
        assert_eq!(world.rows(), all(&*alone), "seed {seed}");
        check(&world.engine.memory);
    }
}
