//! Leases: several nodes over one engine behave as one, whatever is in memory, on its way, lost or late.

mod contended;
mod forgot;
mod kernel;
mod listing;
mod loans;
mod space;
mod stale;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::{Ino, Timestamp};
use meta::engine::Memory;
use meta::key::{KeyRange, tags};
use meta::lease::{Contention, Holder, Leases, Loan, LoanAsk, Nodes};
use meta::plan::op::{Make, RenameMode, SetAttrs};
use meta::plan::{Ctx, Op, Refusal};
use meta::record::mode;
use meta::shared::Term;
use meta::store::{CommitError, Limit, Linked, Looked, Rows, StoreError};
use meta::{Commit, Key, MetaStore, Names, NamesError, Value};
use parking_lot::Mutex;

use crate::support::Dice;
use crate::support::script::{Script, all, check};

type Work = Box<dyn FnOnce() + Send>;

/// An engine that counts round trips, and may lose answers or be away.
#[derive(Default)]
struct Far {
    memory: Memory,
    trips: AtomicU64,
    away: AtomicBool,
    /// It has no space: 1 refuses all commits, 2 takes those that bring neither names nor leases.
    full: AtomicU64,
    /// Every so many commits the answer is lost after the commit was applied, if it is one of a batch.
    lose: AtomicU64,
    /// The same for each commit that is none.
    lose_others: AtomicBool,
    commits: AtomicU64,
    /// Is done before the next commit that changes a lease row.
    before_lease: Mutex<Option<Work>>,
    /// Is done after rows of extended attributes were read, before the answer is there.
    after_read: Mutex<Option<Work>>,
    /// The next commit that is none of a batch is kept back, and its answer is lost.
    keeps_back: AtomicBool,
    kept_back: Mutex<Option<Commit>>,
    /// Each round trip takes so many microseconds.
    delay: AtomicU64,
    /// How large a batch should be.
    limit: Option<Limit>,
    /// The rows of the largest batch.
    largest: AtomicU64,
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("it is away".to_owned())
}

impl Far {
    fn one(&self) -> Result<&Memory, StoreError> {
        self.trips.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_micros(self.delay.load(Ordering::SeqCst)));
        if self.away.load(Ordering::SeqCst) { Err(unavailable()) } else { Ok(&self.memory) }
    }
}

impl MetaStore for Far {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.one()?.get(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        let rows = self.one()?.get_many(keys)?;
        if keys.iter().any(|key| key.tag() == tags::XATTR) {
            let work = self.after_read.lock().take();
            work.into_iter().for_each(|work| work());
        }
        Ok(rows)
    }

    fn get_linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        self.one()?.get_linked(from, also, tags)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        self.one()?.scan(range, limit)
    }

    fn look(&self, keys: &[Key], ranges: &[KeyRange], limit: usize) -> Result<Looked, StoreError> {
        self.one()?.look(keys, ranges, limit)
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        let is_batch = commit.puts.iter().any(|(key, _)| key.tag() == tags::BATCH);
        if is_batch {
            self.largest.fetch_max((commit.puts.len() + commit.dels.len()) as u64, Ordering::SeqCst);
        }
        if commit.puts.iter().any(|(key, _)| key.tag() == tags::LEASE) {
            let work = self.before_lease.lock().take();
            work.into_iter().for_each(|work| work());
        }
        if !is_batch && self.keeps_back.swap(false, Ordering::SeqCst) {
            *self.kept_back.lock() = Some(commit);
            return Err(unavailable().into());
        }
        let memory = self.one()?;
        let brings = |(key, _): &(Key, Value)| matches!(key.tag(), tags::DENTRY | tags::LEASE);
        match self.full.load(Ordering::SeqCst) {
            0 => {}
            2 if !commit.puts.iter().any(brings) => {}
            _ => return Err(StoreError::NoSpace("it is full".to_owned()).into()),
        }
        memory.commit(commit)?;
        let number = self.commits.fetch_add(1, Ordering::SeqCst);
        match self.lose.load(Ordering::SeqCst) {
            every if every > 0 && number.is_multiple_of(every) && is_batch => Err(unavailable().into()),
            _ if !is_batch && self.lose_others.load(Ordering::SeqCst) => Err(unavailable().into()),
            _ => Ok(()),
        }
    }

    fn commit_limit(&self) -> Limit {
        self.limit.unwrap_or(Limit::NONE)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The nodes of a volume, which reach one another directly.
#[derive(Default)]
struct Fleet {
    leases: Mutex<Vec<Weak<Leases>>>,
    epochs: Mutex<Vec<u64>>,
    alive: Mutex<Vec<Holder>>,
    deaf: Mutex<Vec<u32>>,
    recalls: AtomicU64,
    loans: AtomicU64,
    returns: AtomicU64,
    /// The engine may lack something of another node.
    keeps_all: AtomicBool,
}

struct Place(Arc<Fleet>, u32);

impl Nodes for Place {
    fn me(&self) -> Option<Holder> {
        Some(Holder { node: self.1, epoch: self.0.epochs.lock()[self.1 as usize] })
    }

    fn alive(&self) -> Result<Vec<Holder>, StoreError> {
        Ok(self.0.alive.lock().clone())
    }

    fn keeps_all(&self) -> bool {
        self.0.keeps_all.load(Ordering::SeqCst)
    }

    fn recall(&self, node: u32, unit: Ino, seq: u64) -> Result<(), String> {
        self.0.recalls.fetch_add(1, Ordering::SeqCst);
        if self.0.deaf.lock().contains(&node) {
            return Err("it does not answer".to_owned());
        }
        let other = self.0.leases.lock().get(node as usize).and_then(Weak::upgrade);
        other.ok_or("it is gone")?.recall(unit, seq).map_err(|error| error.to_string())
    }

    fn borrow(&self, node: u32, ask: &LoanAsk) -> Result<Option<Loan>, String> {
        self.0.loans.fetch_add(1, Ordering::SeqCst);
        if self.0.deaf.lock().contains(&node) {
            return Err("it does not answer".to_owned());
        }
        let other = self.0.leases.lock().get(node as usize).and_then(Weak::upgrade);
        other.ok_or("it is gone")?.lend(self.1, ask).map_err(|error| error.to_string())
    }

    fn give_back(&self, node: u32, unit: Ino, number: u64) {
        self.0.returns.fetch_add(1, Ordering::SeqCst);
        if let Some(other) = self.0.leases.lock().get(node as usize).and_then(Weak::upgrade) {
            other.returned(unit, self.1, number);
        }
    }

    fn report(&self, line: &str) {
        println!("{line}");
    }
}

struct World {
    engine: Arc<Far>,
    fleet: Arc<Fleet>,
    leases: Vec<Arc<Leases>>,
    terms: Vec<Arc<Term>>,
}

const LONG: Duration = Duration::from_secs(3600);

impl World {
    fn new(nodes: u32) -> World {
        World::over(nodes, Far::default())
    }

    fn over(nodes: u32, engine: Far) -> World {
        World::ruled(nodes, engine, Contention::default())
    }

    fn ruled(nodes: u32, engine: Far, rules: Contention) -> World {
        let (engine, fleet) = (Arc::new(engine), Arc::new(Fleet::default()));
        let (mut leases, mut terms) = (Vec::new(), Vec::new());
        for node in 0..nodes {
            let term = Arc::new(Term::default());
            term.extend(base::time::boot(), LONG);
            fleet.epochs.lock().push(1);
            fleet.alive.lock().push(Holder { node, epoch: 1 });
            let place = Arc::new(Place(fleet.clone(), node));
            let one = Leases::with_rules(engine.clone(), term.clone(), place, None, rules).unwrap();
            fleet.leases.lock().push(Arc::downgrade(&one));
            leases.push(one);
            terms.push(term);
        }
        World { engine, fleet, leases, terms }
    }

    fn formatted(nodes: u32) -> World {
        World::new(nodes).format()
    }

    fn format(self) -> World {
        let world = self;
        let names = Names::new(world.engine.clone());
        names.run(&Op::Format { rows: &[("format", vec![1])] }, &ctx()).unwrap();
        world
    }

    fn names(&self, node: usize) -> Names {
        Names::leased(self.leases[node].clone())
    }

    /// The rows that an exclusive volume has too.
    fn rows(&self) -> Vec<(Key, Value)> {
        self.leases.iter().for_each(|leases| leases.flush().unwrap());
        let mut rows = all(&self.engine.memory);
        rows.retain(|(key, _)| !matches!(key.tag(), tags::LEASE | tags::BATCH | tags::WISH));
        rows
    }

    /// Node `number` dies: it answers nothing, and its session has ended.
    fn end(&self, node: u32) {
        self.terms[node as usize].end();
        self.fleet.deaf.lock().push(node);
        self.fleet.alive.lock().retain(|holder| holder.node != node);
    }

    /// It joins again, under the next epoch.
    fn again(&self, node: u32) {
        self.leases[node as usize].session_ended();
        self.fleet.epochs.lock()[node as usize] += 1;
        let epoch = self.fleet.epochs.lock()[node as usize];
        self.fleet.alive.lock().push(Holder { node, epoch });
        self.fleet.deaf.lock().retain(|other| *other != node);
        self.terms[node as usize].extend(base::time::boot(), LONG);
    }
}

fn ctx() -> Ctx {
    Ctx { now: Timestamp(1_000_000), uid: 0, gid: 0 }
}

fn make(names: &Names, parent: Ino, name: &str, ino: u64, kind: u32) -> Result<(), NamesError> {
    let make = Make { ino: Ino(ino), mode: kind | 0o755, umask: 0, rdev: 0, target: b"" };
    names.run(&Op::Create { parent, name: name.as_bytes(), make }, &ctx()).map(drop)
}

/// The round trips so far, and the commits among them. A batch is one of each.
fn trips_and_commits(world: &World) -> (u64, u64) {
    (world.engine.trips.load(Ordering::SeqCst), world.engine.commits.load(Ordering::SeqCst))
}

fn file(names: &Names, name: &str, ino: u64) {
    make(names, Ino::ROOT, name, ino, mode::S_IFREG).unwrap();
}

fn is_there(names: &Names, name: &str) -> bool {
    names.entry(Ino::ROOT, name.as_bytes()).unwrap().inode.is_some()
}

#[test]
fn nodes_that_take_turns_leave_the_rows_of_one() {
    take_turns(Contention::default());
}

fn take_turns(rules: Contention) {
    for seed in 1..9 {
        let script = if seed < 6 { Script::new } else { Script::keeping };
        let alone = Arc::new(Memory::new());
        let mut expected = script(vec![Names::new(alone.clone())], seed);
        expected.play();
        for nodes in [1, 3] {
            let world = World::ruled(nodes, Far::default(), rules);
            world.engine.lose.store(if seed % 2 == 0 { 3 } else { 0 }, Ordering::SeqCst);
            let mut script = script((0..nodes as usize).map(|node| world.names(node)).collect(), seed);
            script.play();
            let differs = script.refused.iter().zip(&expected.refused).position(|(one, other)| one != other);
            assert_eq!(differs, None, "seed {seed}, {nodes} nodes");
            let rows = world.rows();
            assert_eq!(rows, all(&*alone), "seed {seed}, {nodes} nodes");
            check(&world.engine.memory);
        }
    }
}

#[test]
fn a_directory_that_one_node_uses_costs_no_round_trips() {
    let world = World::formatted(2);
    let names = world.names(0);
    make(&names, Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
    let (before, began) = (trips_and_commits(&world), base::time::monotonic());
    for n in 0..1000 {
        let name = format!("file {n}");
        make(&names, Ino(2), &name, 10 + n, mode::S_IFREG).unwrap();
        assert!(names.entry(Ino(2), name.as_bytes()).unwrap().inode.is_some());
        assert!(names.entry(Ino(2), b"another").unwrap().inode.is_none());
        names
            .run(
                &Op::SetAttr { ino: Ino(10 + n), set: SetAttrs { perm: Some(0o600), ..SetAttrs::default() } },
                &ctx(),
            )
            .unwrap();
    }
    assert_eq!(names.readdir(Ino(2), 0, 5000).unwrap().len(), 1000);
    let (after, took) = (trips_and_commits(&world), began.elapsed());
    let (trips, commits) = (after.0 - before.0, after.1 - before.1);
    assert!(trips < commits + 30, "{trips} round trips, of which batches take {commits}");
    // A batch waits 20 ms for more.
    assert!(u128::from(commits) < 60 + took.as_millis() / 20, "{commits} batches in {took:?}");
    // The other node has not read a name that leads there. So nothing has made this one store the directory.
    world.leases[0].flush().unwrap();
    assert_eq!(world.names(1).readdir(Ino(2), 0, 5000).unwrap().len(), 1000);
}

#[test]
fn regression_a_snapshot_after_all_nodes_wrote_back_lacks_nothing() {
    let world = World::formatted(3);
    let write = |node: usize, ino: u64| {
        file(&world.names(node), &format!("file {ino}"), ino);
        let engine = Names::new(world.engine.clone());
        move || is_there(&engine, &format!("file {ino}"))
    };
    let [by_one, by_two] = [write(1, 2), write(2, 3)];
    world.leases[0].flush_everywhere().unwrap();
    assert!(by_one() && by_two(), "what nodes have acknowledged is in the engine");
    // A node that does not answer is waited for, as long as its session lasts.
    let by_silent = write(1, 4);
    world.fleet.deaf.lock().push(1);
    let (recalls, leases) = (world.fleet.recalls.load(Ordering::SeqCst), world.leases[0].clone());
    let waiting = std::thread::spawn(move || leases.flush_everywhere());
    while world.fleet.recalls.load(Ordering::SeqCst) < recalls + 3 {
        std::thread::yield_now();
    }
    assert!(!waiting.is_finished());
    world.fleet.deaf.lock().clear();
    waiting.join().unwrap().unwrap();
    assert!(by_silent());
    // With its session ends what it has acknowledged and not stored.
    world.end(2);
    world.leases[0].flush_everywhere().unwrap();
}

#[test]
fn readers_share_a_lease() {
    let world = World::formatted(3);
    file(&world.names(0), "a", 2);
    (0..3).for_each(|node| assert!(is_there(&world.names(node), "a")));
    (0..3).for_each(|node| assert!(is_there(&world.names(node), "a")));
    let (trips, recalls) =
        (world.engine.trips.load(Ordering::SeqCst), world.fleet.recalls.load(Ordering::SeqCst));
    for _ in 0..100 {
        (0..3).for_each(|node| assert!(is_there(&world.names(node), "a")));
    }
    assert_eq!(world.engine.trips.load(Ordering::SeqCst), trips, "all answer from memory");
    assert_eq!(world.fleet.recalls.load(Ordering::SeqCst), recalls);
    world.names(1).run(&Op::Unlink { parent: Ino::ROOT, name: b"a" }, &ctx()).unwrap();
    (0..3).for_each(|node| assert!(!is_there(&world.names(node), "a"), "node {node}"));
}

/// What work in the background asks before it changes a file.
#[test]
fn a_file_is_free_if_no_other_node_uses_its_lease() {
    let world = World::formatted(3);
    let names = world.names(0);
    make(&names, Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
    make(&names, Ino(2), "file", 3, mode::S_IFREG).unwrap();
    world.leases[0].flush().unwrap();
    let free = |node: usize, quiet| world.leases[node].are_free(&[Ino(3), Ino(99)], quiet).unwrap();
    assert_eq!(free(0, LONG), [true, true], "it is this node's own");
    assert_eq!(free(1, LONG), [false, true], "it changed hands just now");
    // The clock moves in ticks.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(free(1, Duration::ZERO), [true, true], "it has not changed hands since");
    let recalls = world.fleet.recalls.load(Ordering::SeqCst);
    make(&world.names(1), Ino(2), "other", 4, mode::S_IFREG).unwrap();
    assert!(world.fleet.recalls.load(Ordering::SeqCst) > recalls, "to ask is to take no lease");
    assert_eq!([free(0, LONG), free(1, LONG), free(2, LONG)].map(|free| free[0]), [false, true, false]);
    (0..2).for_each(|node| world.end(node));
    assert_eq!(free(2, LONG), [true, true], "no session is left that has it");
}

/// Each name is made by one node only, and every node sees at once what another one has done.
#[test]
fn names_are_made_once_and_seen_at_once() {
    make_once(World::formatted(3));
}

fn make_once(world: World) {
    let world = Arc::new(world);
    let (next, made) = (Arc::new(AtomicU64::new(2)), Arc::new(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        for node in 0..6 {
            let (world, next, made) = (world.clone(), next.clone(), made.clone());
            scope.spawn(move || {
                let names = world.names(node % 3);
                for n in 0..60 {
                    let ino = next.fetch_add(1, Ordering::SeqCst);
                    let name = format!("{n}");
                    match make(&names, Ino::ROOT, &name, ino, mode::S_IFREG) {
                        Ok(()) => _ = made.fetch_add(1, Ordering::SeqCst),
                        Err(NamesError::Refused(Refusal::Exists)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    assert!(is_there(&names, &name));
                    assert!(is_there(&world.names((node + 1) % 3), &name));
                }
            });
        }
    });
    assert_eq!(made.load(Ordering::SeqCst), 60);
    world.rows();
    check(&world.engine.memory);
}

/// A node that has got a lease uses it before it gives it back, however many others want it.
#[test]
fn regression_nodes_in_one_directory_get_on() {
    let world = Arc::new(World::formatted(4));
    world.engine.delay.store(1000, Ordering::SeqCst);
    let before = world.engine.trips.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        for node in 0..4u64 {
            let world = world.clone();
            scope.spawn(move || {
                let names = world.names(node as usize);
                (0..40).for_each(|n| file(&names, &format!("{node} {n}"), 10 + node * 100 + n));
            });
        }
    });
    let trips = world.engine.trips.load(Ordering::SeqCst) - before;
    assert!(trips < 1000, "{trips} round trips for 160 files: leases went back unused");
    world.rows();
    check(&world.engine.memory);
}

/// The same in a directory whose names are read one by one, under the lease.
#[test]
fn regression_nodes_in_one_large_directory_get_on() {
    let world = Arc::new(World::formatted(4));
    let names = Names::new(world.engine.clone());
    (0..10_000).for_each(|n| file(&names, &format!("old {n}"), 1_000 + n));
    world.engine.delay.store(1000, Ordering::SeqCst);
    let recalls = || world.fleet.recalls.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        for node in 0..4u64 {
            let world = world.clone();
            scope.spawn(move || {
                let names = world.names(node as usize);
                (0..20).for_each(|n| file(&names, &format!("{node} {n}"), 100 + node * 100 + n));
            });
        }
    });
    assert!(recalls() < 400, "{} recalls for 80 files: leases went back unused", recalls());
    world.rows();
    check(&world.engine.memory);
}

/// Giving a lease back waits for the replies of such a thread. So the thread must not wait for leases.
#[test]
fn regression_a_thread_that_must_not_wait_is_told() {
    let world = World::formatted(2);
    file(&world.names(0), "a", 2);
    let names = world.names(1);
    let told = std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            base::thread::must_not_wait();
            let read = names.entry(Ino::ROOT, b"a").map(drop);
            (read, make(&names, Ino::ROOT, "b", 3, mode::S_IFREG))
        });
        asked.join().unwrap()
    });
    assert!(matches!(told.0, Err(StoreError::Waits)));
    assert!(matches!(told.1, Err(NamesError::Store(StoreError::Waits))));
    assert!(is_there(&names, "a") && !is_there(&names, "b"));
}

/// Directories are moved and files are moved between them by all nodes at once.
#[test]
fn moves_between_units_lose_nothing() {
    move_between(World::formatted(3));
}

fn move_between(world: World) {
    let world = Arc::new(world);
    let first = world.names(0);
    for n in 0..4u64 {
        make(&first, Ino::ROOT, &format!("dir {n}"), 10 + n, mode::S_IFDIR).unwrap();
        make(&first, Ino(10 + n), &format!("file {n}"), 20 + n, mode::S_IFREG).unwrap();
    }
    // Other nodes learn the numbers of inodes from names, and so after those are stored.
    world.leases[0].flush().unwrap();
    std::thread::scope(|scope| {
        for node in 0..3u64 {
            let world = world.clone();
            scope.spawn(move || {
                let names = world.names(node as usize);
                let mut dice = Dice(node + 7);
                for _ in 0..150 {
                    let (parent, to) = (Ino(10 + dice.below(4)), Ino(10 + dice.below(4)));
                    let name = format!("file {}", dice.below(4));
                    let (name, mode) = (name.as_bytes(), RenameMode::NoReplace);
                    let op = match dice.below(3) {
                        0 => Op::Link { ino: Ino(20 + dice.below(4)), parent: to, name },
                        1 => Op::Unlink { parent, name },
                        _ => Op::Rename { parent, name, to, to_name: name, mode },
                    };
                    match names.run(&op, &ctx()) {
                        Ok(_) | Err(NamesError::Refused(_)) => {}
                        Err(error) => panic!("{op:?}: {error}"),
                    }
                }
            });
        }
    });
    world.rows();
    check(&world.engine.memory);
}

#[test]
fn the_lease_of_a_dead_node_is_taken_over() {
    let world = World::formatted(2);
    file(&world.names(0), "kept", 2);
    world.leases[0].flush().unwrap();
    world.engine.away.store(true, Ordering::SeqCst);
    file(&world.names(0), "lost", 3);
    world.end(0);
    world.engine.away.store(false, Ordering::SeqCst);
    let other = world.names(1);
    assert!(is_there(&other, "kept"));
    file(&other, "lost", 4);
    world.again(0);
    let names = world.names(0);
    assert_eq!(names.entry(Ino::ROOT, b"lost").unwrap().inode.unwrap().0, Ino(4));
    world.rows();
    check(&world.engine.memory);
}

/// A batch that is late: its node was stopped, and another one has its lease by now.
#[test]
fn regression_a_late_batch_changes_nothing() {
    let world = World::formatted(2);
    file(&world.names(0), "kept", 2);
    world.leases[0].flush().unwrap();
    world.engine.away.store(true, Ordering::SeqCst);
    file(&world.names(0), "late", 3);
    // The batch is not fenced by its epoch here: the lease row alone must stop it.
    world.fleet.deaf.lock().push(0);
    world.fleet.alive.lock().clear();
    world.engine.away.store(false, Ordering::SeqCst);
    let other = world.names(1);
    if !is_there(&other, "late") {
        assert!(world.leases[0].flush().is_err() || !is_there(&other, "late"));
        assert!(!is_there(&other, "late"));
        assert!(world.leases[0].take_lost(Ino(3)), "fsync of the file must fail");
        assert!(!world.leases[0].take_lost(Ino(3)), "once");
    }
}

#[test]
fn nothing_is_answered_after_the_term() {
    let world = World::formatted(1);
    file(&world.names(0), "a", 2);
    assert!(is_there(&world.names(0), "a"));
    world.terms[0].end();
    assert!(matches!(world.names(0).entry(Ino::ROOT, b"a"), Err(StoreError::Fenced(_))));
    let failed = make(&world.names(0), Ino::ROOT, "b", 3, mode::S_IFREG);
    assert!(matches!(failed, Err(NamesError::Store(StoreError::Fenced(_)))));
    assert!(!world.leases[0].is_at_hand(&Key::inode(Ino::ROOT)));
}

/// The way between two nodes is cut, and both reach the engine.
#[test]
fn a_holder_that_cannot_be_asked_hears_by_the_engine() {
    let world = World::formatted(2);
    file(&world.names(0), "a", 2);
    world.fleet.deaf.lock().push(0);
    let other = world.names(1);
    assert!(is_there(&other, "a"));
    file(&other, "b", 3);
    assert!(is_there(&world.names(0), "b"), "the other direction works");
    world.rows();
    let wishes = world.engine.memory.scan(&Key::kind(tags::WISH), 9).unwrap();
    assert!(wishes.is_empty(), "{wishes:?}");
}

/// What takes too much memory, or is no more, leaves no lease row.
#[test]
fn a_removed_directory_leaves_no_lease_row() {
    let world = World::formatted(1);
    let names = world.names(0);
    make(&names, Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
    world.leases[0].flush().unwrap();
    let row = || world.engine.memory.get(&Key::lease(Ino(2))).unwrap();
    assert!(row().is_some());
    names.run(&Op::Rmdir { parent: Ino::ROOT, name: b"dir" }, &ctx()).unwrap();
    world.leases[0].flush().unwrap();
    names.run(&Op::ReapShared { ino: Ino(2) }, &ctx()).unwrap();
    let end = base::time::monotonic() + Duration::from_secs(20);
    while row().is_some() {
        assert!(base::time::monotonic() < end, "the row stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// While the engine is away, little is acknowledged that is not stored.
#[test]
fn an_outage_stops_changes_before_they_are_many() {
    let world = World::formatted(1);
    let names = world.names(0);
    file(&names, "first", 2);
    world.leases[0].flush().unwrap();
    world.engine.away.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            for n in 0..5000 {
                file(&names, &format!("{n}"), 10 + n);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!waiting.is_finished());
        world.engine.away.store(false, Ordering::SeqCst);
        waiting.join().unwrap();
    });
    assert_eq!(world.rows().iter().filter(|(key, _)| key.tag() == tags::DENTRY).count(), 5001);
}

/// A node gives a lease back that no node asked for. The row stays, so a node that looked before and takes
/// the lease afterwards notices that there was one.
#[test]
fn regression_a_lease_that_was_given_up_leaves_a_trace() {
    let world = World::formatted(2);
    make(&world.names(0), Ino::ROOT, "dir", 10, mode::S_IFDIR).unwrap();
    world.leases[0].flush().unwrap();
    let row = || world.engine.memory.get(&Key::lease(Ino(10))).unwrap();
    let before = row().expect("it is leased to its maker");
    // Another node that cannot reach the first one wishes it.
    let wish = Commit { puts: vec![(Key::wish(Ino(10)), vec![].into())], ..Commit::default() };
    world.engine.memory.commit(wish).unwrap();
    let began = std::time::Instant::now();
    while world.engine.memory.get(&Key::wish(Ino(10))).unwrap().is_some() {
        assert!(began.elapsed() < Duration::from_secs(60), "the wish is not granted");
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = row().expect("the row is still there");
    assert_eq!(after.len(), 10, "it names no node");
    assert!(after[2..10] > before[2..10], "its number has increased");
    make(&world.names(1), Ino(10), "file", 11, mode::S_IFREG).unwrap();
    world.rows();
    check(&world.engine.memory);
}

/// What many changes make is divided into batches that the engine likes, and is the same in the end.
#[test]
fn batches_stay_below_the_limit_of_the_engine() {
    let limit = Limit { rows: 30, bytes: 4_000, checks: 6 };
    let world = World::over(1, Far { limit: Some(limit), ..Far::default() });
    Names::new(world.engine.clone()).run(&Op::Format { rows: &[("format", vec![1])] }, &ctx()).unwrap();
    let names = world.names(0);
    file(&names, "first", 1_000);
    world.engine.delay.store(20_000, Ordering::SeqCst);
    for n in 0..200 {
        file(&names, &format!("file {n}"), 1_001 + n);
    }
    world.leases[0].flush().unwrap();
    world.engine.delay.store(0, Ordering::SeqCst);
    let largest = world.engine.largest.load(Ordering::SeqCst);
    // The row that counts batches comes on top.
    assert!((10..=31).contains(&largest), "{largest} rows");
    let there = Names::new(world.engine.clone());
    assert!((0..200).all(|n| is_there(&there, &format!("file {n}"))));
    check(&world.engine.memory);
}

/// A session ended while a batch of it was on its way, and the batch was stored all the same. What waits for
/// the changes of the next session does not wait for the batches that were lost.
#[test]
fn regression_a_batch_that_outlives_its_session_holds_up_nothing() {
    let world = World::formatted(1);
    let names = world.names(0);
    file(&names, "first", 1_000);
    world.leases[0].flush().unwrap();
    world.engine.delay.store(300_000, Ordering::SeqCst);
    file(&names, "second", 1_001);
    std::thread::sleep(Duration::from_millis(100));
    world.again(0);
    std::thread::sleep(Duration::from_millis(400));
    world.engine.delay.store(0, Ordering::SeqCst);
    let begun = std::time::Instant::now();
    world.leases[0].flush().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

/// What is lost counts as done, and the batch on its way was noted as lost only when its outcome was known.
/// So what waited for it was told that it is stored, and so was fsync(2).
#[test]
fn regression_what_an_ended_session_leaves_is_not_called_stored() {
    base::trial::at_some_scale(ended_while_flushing).unwrap();
}

/// An error if the flush began only after the session had ended, as on a busy machine.
fn ended_while_flushing(scale: u32) -> Result<(), String> {
    let world = World::formatted(1);
    let names = world.names(0);
    file(&names, "first", 2);
    world.leases[0].flush().unwrap();
    world.engine.delay.store(600_000 * u64::from(scale), Ordering::SeqCst);
    world.engine.away.store(true, Ordering::SeqCst);
    file(&names, "lost", 3);
    let flushed = std::thread::scope(|scope| {
        let waits = scope.spawn(|| world.leases[0].flush());
        // The batch is on its way by then.
        std::thread::sleep(scale * Duration::from_millis(150));
        world.again(0);
        let told = [Ino(3), Ino::ROOT].map(|ino| world.leases[0].take_lost(ino));
        assert_eq!(told, [true, true], "fsync of them must fail");
        waits.join().unwrap()
    });
    world.engine.away.store(false, Ordering::SeqCst);
    world.engine.delay.store(0, Ordering::SeqCst);
    if !matches!(flushed, Err(StoreError::Fenced(_))) {
        return Err(format!("what was lost was called stored: {flushed:?}"));
    }
    world.leases[0].flush().unwrap();
    assert!(!is_there(&names, "lost") && is_there(&names, "first"));
    Ok(())
}

/// What one node removes, the others restore or let expire: exactly one of them does. A removal takes as many
/// round trips as without trash.
#[test]
fn what_is_in_the_trash_is_restored_or_expires_once() {
    let world = Arc::new(World::formatted(3));
    world.names(0).set_trash(meta::trash::Setting::Keep(1000)).unwrap();
    let names: Vec<Names> = (0..3).map(|node| world.names(node)).collect();
    names.iter().for_each(|names| assert!(names.read_trash().unwrap().keeps()));
    make(&names[0], Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
    (0..60).for_each(|n| make(&names[0], Ino(2), &format!("{n}"), 10 + n, mode::S_IFREG).unwrap());
    let before = world.engine.trips.load(Ordering::SeqCst);
    for n in 0..60 {
        names[0].run(&Op::Unlink { parent: Ino(2), name: format!("{n}").as_bytes() }, &ctx()).unwrap();
    }
    names[0].run(&Op::Rmdir { parent: Ino::ROOT, name: b"dir" }, &ctx()).unwrap();
    assert!(world.engine.trips.load(Ordering::SeqCst) - before < 20, "only batches");
    names[0].store().flush().unwrap();
    assert_eq!(names[1].attr(Ino(2)).unwrap().map(|dir| dir.nlink), Some(0), "it is a removed directory");
    let all = names[1].in_trash(Ino(0), usize::MAX).unwrap();
    assert_eq!(all.len(), 61);
    names[1].run(&Op::Restore { ino: Ino(2), parent: Ino::ROOT, name: b"back" }, &ctx()).unwrap();
    assert!(is_there(&names[2], "back"));
    make(&names[2], Ino(2), "new", 200, mode::S_IFREG).unwrap();
    std::thread::scope(|scope| {
        let all = &all[1..];
        scope.spawn(|| {
            for (ino, row) in all.iter().rev() {
                world.names(1).run(&Op::Expire { ino: *ino, at: row.at }, &ctx()).unwrap();
            }
        });
        for (ino, row) in all {
            let op = Op::Restore { ino: *ino, parent: row.parent, name: &row.name };
            match names[2].run(&op, &ctx()) {
                Ok(_) | Err(NamesError::Refused(Refusal::NotFound)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let there = names[0].readdir(Ino(2), 0, 1000).unwrap().len() - 1;
    world.rows();
    let gone = Names::new(world.engine.clone()).orphans(Ino(0), 1000).unwrap().len();
    assert_eq!((there + gone, names[0].in_trash(Ino(0), 10).unwrap()), (60, vec![]), "{there} came back");
    check(&world.engine.memory);
}
