//! Contended units: no node has a lease of them, and all behave as one.

use std::time::Instant;

use meta::lease::{KernelCache, Promise};
use meta::record::InodeRecord;
use meta::store::Expect;

use super::*;

/// Whatever a node wants to change is contended, and stays so.
const ALWAYS: Contention = Contention { turns: 0, quiet: LONG };
/// The same, and each node takes leases as soon as it may.
const RESTLESS: Contention = Contention { turns: 0, quiet: Duration::ZERO };
/// Nothing becomes contended by itself, or is leased again.
const NEVER: Contention = Contention { turns: u32::MAX, quiet: LONG };

/// The mode of a unit's lease, and the first node of the row.
fn lease(world: &World, unit: Ino) -> Option<(u8, Option<u32>)> {
    let row = world.engine.memory.get(&Key::lease(unit)).unwrap()?;
    let node = row.get(10..14).map(|node| u32::from_be_bytes(node.try_into().unwrap()));
    Some((row[1], node))
}

const CONTENDED: Option<(u8, Option<u32>)> = Some((3, None));

fn world(nodes: u32, rules: Contention) -> World {
    World::ruled(nodes, Far::default(), rules).format()
}

/// Makes a unit contended that no node has a lease of.
fn contend(world: &World, unit: Ino) {
    let seq = u64::try_from(base::time::now().0 / 1000).unwrap();
    let row = [&[1, 3][..], &seq.to_be_bytes()].concat();
    let commit = Commit { puts: vec![(Key::lease(unit), row.into())], ..Commit::default() };
    world.engine.memory.commit(commit).unwrap();
}

/// Two directories in the contended root: one that is contended, and one that node 0 has a lease of.
fn two(nodes: u32) -> World {
    let world = world(nodes, NEVER);
    contend(&world, Ino::ROOT);
    make(&world.names(0), Ino::ROOT, "crowd", 2, mode::S_IFDIR).unwrap();
    contend(&world, Ino(2));
    make(&world.names(0), Ino::ROOT, "own", 3, mode::S_IFDIR).unwrap();
    make(&world.names(0), Ino(3), "first", 4, mode::S_IFREG).unwrap();
    world.leases[0].flush().unwrap();
    assert_eq!([2, 3].map(|dir| lease(&world, Ino(dir))), [CONTENDED, Some((2, Some(0)))]);
    world
}

fn trips<T>(world: &World, work: impl FnOnce() -> T) -> (u64, T) {
    let before = world.engine.trips.load(Ordering::SeqCst);
    let done = work();
    (world.engine.trips.load(Ordering::SeqCst) - before, done)
}

fn at(time: i128) -> Ctx {
    Ctx { now: Timestamp(time), ..ctx() }
}

/// A name that is made at a time of its own, as with a clock that goes on.
fn make_at(names: &Names, parent: Ino, name: &str, ino: u64, time: i128) -> Result<(), NamesError> {
    let make = Make { ino: Ino(ino), mode: mode::S_IFREG | 0o755, umask: 0, rdev: 0, target: b"" };
    names.run(&Op::Create { parent, name: name.as_bytes(), make }, &at(time)).map(drop)
}

fn in_dir(names: &Names, dir: u64, name: &str) -> Option<(Ino, InodeRecord)> {
    names.entry(Ino(dir), name.as_bytes()).unwrap().inode
}

fn chmod(names: &Names, ino: u64, perm: u32) {
    let set = SetAttrs { perm: Some(perm), ..SetAttrs::default() };
    names.run(&Op::SetAttr { ino: Ino(ino), set }, &ctx()).unwrap();
}

fn rename(names: &Names, from: u64, to: u64, name: &str) {
    let (parent, to, name) = (Ino(from), Ino(to), name.as_bytes());
    names.run(&Op::Rename { parent, name, to, to_name: name, mode: RenameMode::Replace }, &ctx()).unwrap();
}

#[test]
fn nodes_that_take_turns_in_contended_units_leave_the_rows_of_one() {
    take_turns(ALWAYS);
}

#[test]
fn nodes_that_take_turns_in_units_that_are_now_and_then_contended_leave_the_rows_of_one() {
    take_turns(RESTLESS);
}

#[test]
fn names_in_contended_directories_are_made_once_and_seen_at_once() {
    for rules in [ALWAYS, RESTLESS] {
        make_once(world(3, rules));
    }
}

#[test]
fn moves_between_contended_units_lose_nothing() {
    for rules in [ALWAYS, RESTLESS] {
        move_between(world(3, rules));
    }
}

/// Four nodes create files in one directory, with a pause after each.
#[test]
fn a_directory_that_several_nodes_change_becomes_contended() {
    let world = World::formatted(4);
    world.engine.delay.store(1000, Ordering::SeqCst);
    let end = Instant::now() + Duration::from_secs(60);
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for node in 0..4u64 {
            let (world, made) = (&world, &made);
            scope.spawn(move || {
                let names = world.names(node as usize);
                for n in 0.. {
                    file(&names, &format!("{node} {n}"), 1000 + node * 100_000 + n);
                    made.fetch_add(1, Ordering::SeqCst);
                    if lease(world, Ino::ROOT) == CONTENDED && n >= 20 || Instant::now() > end {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
    });
    println!("contended after {made:?} files");
    assert_eq!(lease(&world, Ino::ROOT), CONTENDED);
    world.rows();
    check(&world.engine.memory);
}

/// A writer that nodes read from keeps its lease or gets it back: nothing is contended.
#[test]
fn what_one_node_changes_and_others_read_is_never_contended() {
    let world = World::ruled(3, Far::default(), Contention { turns: 2, quiet: LONG }).format();
    let key = Key::inode(Ino::ROOT);
    let mut seen = world.engine.memory.get(&key).unwrap().unwrap();
    for n in 0..20 {
        // It changes the directory without a look before: otherwise it would read with the others first.
        let new = InodeRecord { uid: n, ..InodeRecord::decode(&seen).unwrap() }.encode();
        let (checks, puts) = (vec![(key.clone(), Expect::Is(seen))], vec![(key.clone(), new.clone())]);
        world.leases[0].commit(Commit { checks, puts, ..Commit::default() }).unwrap();
        seen = new;
        let row = world.engine.memory.get(&Key::lease(Ino::ROOT)).unwrap().unwrap();
        assert_eq!(lease(&world, Ino::ROOT), Some((2, Some(0))), "turn {n}");
        // Without this, the readers borrow, and the lease stays where it is.
        world.leases[0].recall(Ino::ROOT, u64::from_be_bytes(row[2..10].try_into().unwrap())).unwrap();
        let of = |node: usize| world.names(node).attr(Ino::ROOT).unwrap().unwrap().uid;
        assert!((1..3).all(|node| of(node) == n), "turn {n}");
    }
}

/// How many round trips an operation in a contended directory takes.
#[test]
fn an_operation_in_a_contended_directory_takes_few_round_trips() {
    let world = two(3);
    let names: Vec<Names> = (0..3).map(|node| world.names(node)).collect();
    names.iter().for_each(|names| _ = names.attr(Ino(2)).unwrap());
    for n in 0..30u64 {
        let (one, other) = (&names[n as usize % 3], &names[(n as usize + 1) % 3]);
        let (name, ino) = (format!("{n}"), 100 + n);
        let made = trips(&world, || make(one, Ino(2), &name, ino, mode::S_IFREG).unwrap()).0;
        let seen = trips(&world, || assert!(in_dir(other, 2, &name).is_some())).0;
        let stat = trips(&world, || assert!(other.attr(Ino(ino)).unwrap().is_some())).0;
        let mode = trips(&world, || chmod(other, ino, 0o600)).0;
        let list = trips(&world, || assert!(!one.readdir(Ino(2), 0, 1000).unwrap().is_empty())).0;
        let op = Op::Unlink { parent: Ino(2), name: name.as_bytes() };
        let gone = trips(&world, || other.run(&op, &ctx()).unwrap()).0;
        assert_eq!([made, seen, stat, mode, list, gone], [2, 1, 1, 2, 1, 3], "turn {n}");
    }
    assert_eq!(world.fleet.recalls.load(Ordering::SeqCst), 0);
    assert_eq!(lease(&world, Ino(2)), CONTENDED);
}

/// A directory that one node alone changes is leased to it again. The others see all that it did.
#[test]
fn a_directory_that_is_quiet_is_leased_again() {
    let world = world(2, Contention { turns: u32::MAX, quiet: Duration::ZERO });
    contend(&world, Ino::ROOT);
    // While both change it, no time is quiet.
    for n in 0..40 {
        make_at(&world.names(n % 2), Ino::ROOT, &format!("{n}"), 10 + n as u64, 2_000_000 + n as i128)
            .unwrap();
        assert_eq!(lease(&world, Ino::ROOT), CONTENDED, "turn {n}");
    }
    for n in 0..20 {
        make_at(&world.names(0), Ino::ROOT, &format!("own {n}"), 100 + n, 3_000_000 + n as i128).unwrap();
    }
    assert_eq!(lease(&world, Ino::ROOT), Some((2, Some(0))));
    let (trips, ()) = trips(&world, || {
        for n in 0..500 {
            file(&world.names(0), &format!("quick {n}"), 1000 + n);
        }
    });
    assert!(trips < 30, "{trips} round trips");
    assert!((0..500).all(|n| is_there(&world.names(1), &format!("quick {n}"))));
    world.rows();
    check(&world.engine.memory);
}

/// Another node changes the directory after the node that takes the lease has looked at it.
#[test]
fn a_node_that_takes_the_lease_reads_what_was_changed_before() {
    let world = world(2, Contention { turns: u32::MAX, quiet: Duration::ZERO });
    contend(&world, Ino::ROOT);
    let names = world.names(0);
    let other = world.names(1);
    *world.engine.before_lease.lock() = Some(Box::new(move || file(&other, "late", 5)));
    (0..8).for_each(|_| _ = names.attr(Ino::ROOT).unwrap());
    assert!(is_there(&names, "late"));
    assert_eq!(lease(&world, Ino::ROOT), Some((1, Some(0))));
    file(&names, "next", 6);
    assert!(is_there(&world.names(1), "late") && is_there(&world.names(1), "next"));
    world.rows();
    check(&world.engine.memory);
}

/// A node that only reads a contended directory takes a lease for reading.
#[test]
fn a_directory_that_is_only_read_is_leased_for_reading() {
    let world = world(2, Contention { turns: u32::MAX, quiet: Duration::ZERO });
    contend(&world, Ino::ROOT);
    for node in [0, 1] {
        (0..20).for_each(|_| assert!(!is_there(&world.names(node), "a")));
    }
    assert_eq!(lease(&world, Ino::ROOT).map(|(mode, _)| mode), Some(1));
    let (trips, ()) = trips(&world, || (0..9).for_each(|_| assert!(!is_there(&world.names(0), "a"))));
    assert_eq!(trips, 0);
    file(&world.names(1), "a", 2);
    assert!((0..2).all(|node| is_there(&world.names(node), "a")));
}

/// An inode has moved out of a contended directory, and its new lease is with another node.
#[test]
fn what_moved_out_of_a_contended_directory_is_read_where_it_is() {
    let world = two(2);
    let names = [world.names(0), world.names(1)];
    make(&names[0], Ino(2), "x", 10, mode::S_IFREG).unwrap();
    assert!(in_dir(&names[1], 2, "x").is_some());
    rename(&names[0], 2, 3, "x");
    world.engine.delay.store(20_000, Ordering::SeqCst);
    chmod(&names[0], 10, 0o640);
    // The second change is in the memory of node 0 only.
    assert_eq!(names[1].attr(Ino(10)).unwrap().unwrap().mode & 0o777, 0o640);
    // And back again.
    world.engine.delay.store(0, Ordering::SeqCst);
    rename(&names[0], 3, 2, "x");
    chmod(&names[1], 10, 0o600);
    assert_eq!(names[0].attr(Ino(10)).unwrap().unwrap().mode & 0o777, 0o600);
    chmod(&names[1], 10, 0o604);
    rename(&names[0], 2, 3, "x");
    assert_eq!(lease(&world, Ino(3)), Some((2, Some(0))));
    assert_eq!(names[0].attr(Ino(10)).unwrap().unwrap().mode & 0o777, 0o604);
    world.rows();
    check(&world.engine.memory);
}

/// The same for a commit that does not check the inode's record.
#[test]
fn a_commit_changes_no_inode_that_has_moved_away() {
    let world = two(2);
    let names = [world.names(0), world.names(1)];
    make(&names[0], Ino(2), "x", 10, mode::S_IFREG).unwrap();
    assert!(in_dir(&names[1], 2, "x").is_some());
    rename(&names[0], 2, 3, "x");
    assert_eq!(names[0].xattr(Ino(10), b"user.a").unwrap(), None, "node 0 remembers that it has none");
    let key = Key::xattr(Ino(10), b"user.a");
    let commit = Commit { puts: vec![(key, b"1"[..].into())], ..Commit::default() };
    world.leases[1].commit(commit).unwrap();
    assert_eq!(names[0].xattr(Ino(10), b"user.a").unwrap().as_deref(), Some(&b"1"[..]));
}

/// A kernel that notes what it was told, and whether a name was in the engine then.
struct Kernel(Mutex<Vec<(Ino, bool)>>, Arc<Far>, Key);

impl KernelCache for Kernel {
    fn forget(&self, inos: &[Ino]) -> bool {
        let is_there = self.1.memory.get(&self.2).unwrap().is_some();
        self.0.lock().extend(inos.iter().map(|ino| (*ino, is_there)));
        true
    }
}

fn promise(world: &World, node: usize, mark: u64, ino: u64, parent: u64) -> Promise {
    let mut promises = [Promise::of(Ino(ino), Ino(parent))];
    world.leases[node].deliver(mark, &mut promises, |_| {});
    promises[0]
}

#[test]
fn the_kernel_keeps_nothing_of_a_contended_directory() {
    let world = two(2);
    let names = world.names(0);
    make(&names, Ino(2), "link", 10, mode::S_IFLNK).unwrap_err();
    make(&names, Ino(2), "file", 10, mode::S_IFREG).unwrap();
    for (ino, parent) in [(10, 2), (2, 1), (3, 1)] {
        let mark = world.leases[0].mark();
        names.attr(Ino(ino)).unwrap();
        let told = promise(&world, 0, mark, ino, parent);
        assert_eq!(told.name, Duration::ZERO);
        assert_eq!(told.attributes > Duration::ZERO, ino == 3, "inode {ino}");
    }
    // A reply that was read without a lease is late, and this node has a lease of the inode by then.
    let mark = world.leases[0].mark();
    names.attr(Ino(2)).unwrap();
    chmod(&world.names(1), 2, 0o700);
    let seq = u64::try_from(base::time::now().0 / 1000).unwrap();
    let free = [&[1, 2][..], &seq.to_be_bytes()].concat();
    let commit = Commit { puts: vec![(Key::lease(Ino(2)), free.into())], ..Commit::default() };
    world.engine.memory.commit(commit).unwrap();
    assert_eq!(names.attr(Ino(2)).unwrap().unwrap().mode & 0o777, 0o700);
    assert_eq!(lease(&world, Ino(2)), Some((2, Some(0))));
    assert_eq!(promise(&world, 0, mark, 2, 0), Promise::of(Ino(2), Ino(0)));
    assert!(promise(&world, 0, world.leases[0].mark(), 2, 0).attributes > Duration::ZERO);
}

/// What moves from a leased directory to a contended one is not the kernel's any more, before others may
/// change it.
#[test]
fn the_kernel_forgets_what_moves_to_a_contended_directory() {
    let world = two(2);
    let names = world.names(0);
    let target = Make { ino: Ino(10), mode: mode::S_IFLNK, umask: 0, rdev: 0, target: b"a" };
    names.run(&Op::Create { parent: Ino(3), name: b"x", make: target }, &ctx()).unwrap();
    world.leases[0].flush().unwrap();
    let kernel = Arc::new(Kernel(Mutex::default(), world.engine.clone(), Key::dentry(Ino(2), b"x")));
    world.leases[0].serve(kernel.clone());
    assert!(promise(&world, 0, world.leases[0].mark(), 10, 0).attributes > Duration::from_secs(1));
    rename(&names, 3, 2, "x");
    assert_eq!(*kernel.0.lock(), [(Ino(10), false)]);
    // Names and files are not told. They are waited for.
    make(&names, Ino(3), "y", 11, mode::S_IFREG).unwrap();
    std::thread::sleep(Duration::from_millis(350));
    assert!(in_dir(&names, 3, "y").is_some());
    let told = Instant::now();
    assert!(promise(&world, 0, world.leases[0].mark(), 11, 3).name > Duration::ZERO);
    rename(&names, 3, 2, "y");
    assert!(told.elapsed() > Duration::from_millis(190), "{:?}", told.elapsed());
    let other = world.names(1);
    assert!(in_dir(&other, 2, "x").is_some() && in_dir(&other, 2, "y").is_some());
}

/// A change that is acknowledged is in the engine, and comes after all that this node did before.
#[test]
fn a_change_of_a_contended_directory_is_stored_after_what_came_before() {
    let world = two(2);
    let names = world.names(0);
    make(&names, Ino(3), "before", 10, mode::S_IFREG).unwrap();
    make(&names, Ino(2), "after", 11, mode::S_IFREG).unwrap();
    let is_stored =
        |dir, name: &[u8]| world.engine.memory.get(&Key::dentry(Ino(dir), name)).unwrap().is_some();
    assert!(is_stored(2, b"after") && is_stored(3, b"before"));
    world.engine.away.store(true, Ordering::SeqCst);
    let failed = make(&names, Ino(2), "away", 12, mode::S_IFREG);
    assert!(matches!(failed, Err(NamesError::Store(StoreError::Unavailable(_)))), "{failed:?}");
    assert!(names.entry(Ino(2), b"after").is_err(), "nothing is remembered");
    world.engine.away.store(false, Ordering::SeqCst);
    make(&names, Ino(2), "away", 12, mode::S_IFREG).unwrap();
    // Where the answer is lost, the change may have happened, and is seen by all.
    world.engine.lose_others.store(true, Ordering::SeqCst);
    make(&names, Ino(2), "lost", 13, mode::S_IFREG).unwrap_err();
    world.engine.lose_others.store(false, Ordering::SeqCst);
    assert!((0..2).all(|node| in_dir(&world.names(node), 2, "lost").is_some()));
    rename(&names, 2, 3, "lost");
    assert!((0..2).all(|node| in_dir(&world.names(node), 3, "lost").is_some()));
    world.rows();
    check(&world.engine.memory);
}

/// A node that died has nothing of a contended directory.
#[test]
fn nothing_waits_for_a_dead_node_that_used_a_contended_directory() {
    let world = two(3);
    make(&world.names(0), Ino(2), "a", 10, mode::S_IFREG).unwrap();
    world.end(0);
    make(&world.names(1), Ino(2), "b", 11, mode::S_IFREG).unwrap();
    assert!(in_dir(&world.names(2), 2, "a").is_some() && in_dir(&world.names(2), 2, "b").is_some());
    assert_eq!(world.fleet.recalls.load(Ordering::SeqCst), 0);
    assert!(matches!(world.names(0).entry(Ino(2), b"b"), Err(StoreError::Fenced(_))));
    world.again(0);
    assert!(in_dir(&world.names(0), 2, "b").is_some());
    make(&world.names(0), Ino(2), "c", 12, mode::S_IFREG).unwrap();
    assert_eq!(lease(&world, Ino(2)), CONTENDED);
}

/// What a dead node has lent may be in use. So the node that takes its lease over keeps it for a while.
#[test]
fn a_lease_of_a_dead_node_is_not_contended_at_once() {
    let world = world(3, Contention { turns: 0, quiet: LONG });
    contend(&world, Ino::ROOT);
    make(&world.names(0), Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
    let row = [&[1, 2][..], &5u64.to_be_bytes(), &0u32.to_be_bytes(), &1u64.to_be_bytes()].concat();
    let commit = Commit { puts: vec![(Key::lease(Ino(2)), row.into())], ..Commit::default() };
    world.engine.memory.commit(commit).unwrap();
    world.end(0);
    let began = Instant::now();
    // It changes the directory without a look before.
    let puts = vec![(Key::xattr(Ino(2), b"user.a"), b"1"[..].into())];
    world.leases[1].commit(Commit { puts, ..Commit::default() }).unwrap();
    assert_eq!(lease(&world, Ino(2)), Some((2, Some(1))));
    assert!(began.elapsed() > Duration::from_millis(340), "{:?}", began.elapsed());
    make(&world.names(2), Ino(2), "b", 11, mode::S_IFREG).unwrap();
    assert_eq!(lease(&world, Ino(2)), CONTENDED);
}

/// Nothing is left of a contended directory that was removed, and a listing takes no lease of one.
#[test]
fn a_removed_contended_directory_leaves_no_lease_row() {
    let world = two(2);
    let names = world.names(0);
    make(&names, Ino(3), "sub", 10, mode::S_IFDIR).unwrap();
    world.leases[0].flush().unwrap();
    // Its maker has a lease, which another node takes and gives back.
    let other = world.names(1);
    make(&other, Ino(10), "a", 11, mode::S_IFREG).unwrap();
    other.run(&Op::Unlink { parent: Ino(10), name: b"a" }, &ctx()).unwrap();
    let row = world.engine.memory.get(&Key::lease(Ino(10))).unwrap().unwrap();
    world.leases[1].recall(Ino(10), u64::from_be_bytes(row[2..10].try_into().unwrap())).unwrap();
    contend(&world, Ino(10));
    assert_eq!(names.readdir(Ino(3), 0, 100).unwrap().len(), 2);
    names.store().prefetch(Ino(3)).unwrap();
    assert_eq!(lease(&world, Ino(10)), CONTENDED, "a listing took it");
    names.run(&Op::Rmdir { parent: Ino(3), name: b"sub" }, &ctx()).unwrap();
    assert_eq!(lease(&world, Ino(10)), CONTENDED, "it is an orphan");
    names.run(&Op::ReapShared { ino: Ino(10) }, &ctx()).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while lease(&world, Ino(10)).is_some() {
        assert!(Instant::now() < end, "the row stays");
        std::thread::sleep(Duration::from_millis(20));
    }
    world.rows();
    check(&world.engine.memory);
}

/// A thread that answers the kernel does not wait for the engine.
#[test]
fn a_thread_that_must_not_wait_is_told() {
    let world = two(1);
    let names = world.names(0);
    assert!(in_dir(&names, 2, "none").is_none());
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            base::thread::must_not_wait();
            assert!(!world.leases[0].is_at_hand(&Key::inode(Ino(2))));
            assert!(!world.leases[0].has_listing(Ino(2)));
            let read = [names.entry(Ino(2), b"none").map(drop), names.attr(Ino(2)).map(drop)];
            let list = names.readdir(Ino(2), 0, 9).map(drop);
            (read, list, make(&names, Ino(2), "a", 10, mode::S_IFREG))
        });
        let (read, list, made) = asked.join().unwrap();
        assert!(read.iter().chain([&list]).all(|read| matches!(read, Err(StoreError::Waits))));
        assert!(matches!(made, Err(NamesError::Store(StoreError::Waits))));
    });
}

/// Two nodes change the owner of a file in turn, to a higher number each time, and others read it. No read
/// shows an older one than was acknowledged before it began, and none a newer one than had been begun when it
/// ended.
#[test]
fn readers_of_contended_files_see_each_change_at_once() {
    for rules in [ALWAYS, RESTLESS] {
        let world = world(3, rules);
        world.engine.delay.store(200, Ordering::SeqCst);
        make(&world.names(0), Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
        make(&world.names(0), Ino(2), "file", 10, mode::S_IFREG).unwrap();
        // Other nodes learn the number of an inode from a name, and so after that is stored.
        world.leases[0].flush().unwrap();
        let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let is_over = AtomicBool::new(false);
        let set = |names: &Names, uid: u64| {
            let set = SetAttrs { uid: Some(uid as u32), ..SetAttrs::default() };
            names.run(&Op::SetAttr { ino: Ino(10), set }, &ctx()).map(drop)
        };
        set(&world.names(0), 0).unwrap();
        std::thread::scope(|scope| {
            for reader in 0..4 {
                let (world, begun, done, is_over) = (&world, &begun, &done, &is_over);
                scope.spawn(move || {
                    let names = world.names(reader % 3);
                    while !is_over.load(Ordering::SeqCst) {
                        let least = done.load(Ordering::SeqCst);
                        let uid = match reader % 2 {
                            0 => names.attr(Ino(10)).unwrap().unwrap().uid,
                            _ => names.entry(Ino(2), b"file").unwrap().inode.unwrap().1.uid,
                        };
                        let most = begun.load(Ordering::SeqCst);
                        assert!((least..=most).contains(&u64::from(uid)), "{uid}: {least}..={most}");
                    }
                });
            }
            let mut dice = Dice(7);
            let mut writer = 0;
            for n in 1..=400 {
                begun.store(n, Ordering::SeqCst);
                set(&world.names(writer), n).unwrap();
                done.store(n, Ordering::SeqCst);
                // A node goes on for a while, so it may get a lease.
                writer = if dice.below(20) == 0 { 1 - writer } else { writer };
            }
            is_over.store(true, Ordering::SeqCst);
        });
        world.rows();
        check(&world.engine.memory);
    }
}

/// A database forgot that a file had moved from a contended directory, and got its removal again. The first
/// name stayed, without a file.
#[test]
fn regression_what_rests_on_a_forgotten_move_is_not_sent_again() {
    let world = two(1);
    let names = world.names(0);
    make(&names, Ino(2), "file", 5, mode::S_IFREG).unwrap();
    world.leases[0].flush().unwrap();
    let before = all(&world.engine.memory);
    rename(&names, 2, 3, "file");
    names.run(&Op::Unlink { parent: Ino(3), name: b"file" }, &ctx()).unwrap();
    world.leases[0].flush().unwrap();
    super::forgot::put_back(&world, &before);
    world.leases[0].engine_began_anew();
    assert_eq!(in_dir(&names, 3, "file"), None);
    assert_eq!(in_dir(&names, 2, "file").map(|(ino, record)| (ino, record.nlink)), Some((Ino(5), 1)));
    world.leases[0].flush().unwrap();
    check(&world.engine.memory);
}
