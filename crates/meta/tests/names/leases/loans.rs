//! Loans: a node reads what another one changes again and again, and the lease stays where it is.

use std::time::Instant;

use meta::Commit;
use meta::lease::Promise;
use meta::record::InodeRecord;
use meta::store::Expect;

use super::*;

/// As long as a loan lasts at most, by the clock of its holder.
const LENT_END: Duration = Duration::from_millis(350);

fn lease_row(world: &World, unit: Ino) -> Option<Value> {
    world.engine.memory.get(&Key::lease(unit)).unwrap()
}

fn loans(world: &World) -> u64 {
    world.fleet.loans.load(Ordering::SeqCst)
}

/// A directory that node 0 changes and node 1 has just borrowed.
fn lent(nodes: u32) -> World {
    let world = World::formatted(nodes);
    make(&world.names(0), Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
    // Another node learns the number of an inode from a name, and so after that is stored.
    world.leases[0].flush().unwrap();
    make(&world.names(0), Ino(2), "first", 10, mode::S_IFREG).unwrap();
    assert!(is_in(&world, 1, "first").is_some());
    assert!(loans(&world) > 0);
    world
}

fn is_in(world: &World, node: usize, name: &str) -> Option<(Ino, InodeRecord)> {
    world.names(node).entry(Ino(2), name.as_bytes()).unwrap().inode
}

/// Repeats a check until it says whether it holds. It says `None` if this machine was too slow for it: a loan
/// lasts for a moment only.
fn quickly(check: impl Fn() -> Option<()>) {
    assert!((0..50).any(|_| check().is_some()), "the machine was too slow each time");
}

fn unlink(world: &World, node: usize, name: &str) {
    world.names(node).run(&Op::Unlink { parent: Ino(2), name: name.as_bytes() }, &ctx()).unwrap();
}

#[test]
fn the_lease_stays_with_the_node_that_writes() {
    quickly(lease_stays);
}

fn lease_stays() -> Option<()> {
    let ready = Instant::now();
    let world = lent(2);
    let (row, before) = (lease_row(&world, Ino(2)), loans(&world));
    let (trips, began) = (world.engine.trips.load(Ordering::SeqCst), Instant::now());
    for n in 0..20 {
        make(&world.names(0), Ino(2), &format!("{n}"), 20 + n, mode::S_IFREG).unwrap();
        assert_eq!(is_in(&world, 1, &format!("{n}")).unwrap().0, Ino(20 + n));
        // All that is needed came with the loan.
        let file = world.names(1).file_page(Ino(20 + n), 0).unwrap().unwrap();
        assert!(file.record.is_file() && file.extents.extents().is_empty());
    }
    // What has not changed for a second is not lent.
    if ready.elapsed() > Duration::from_millis(900) {
        return None;
    }
    assert_eq!(lease_row(&world, Ino(2)), row, "no row of a lease has changed");
    let trips = world.engine.trips.load(Ordering::SeqCst) - trips;
    if began.elapsed() < Duration::from_millis(200) {
        // A loan that rests for a moment is given back. So a pause between the two reads takes one more.
        let loans = loans(&world) - before;
        assert!((20..=40).contains(&loans), "{loans} loans: not one for each turn, or for each read");
        assert!(trips <= 21, "{trips} round trips: more than the batches take");
    }
    Some(())
}

/// What another node has seen is not lost with the node that did it.
#[test]
fn what_is_lent_is_stored_before() {
    let world = lent(2);
    world.engine.delay.store(3_000, Ordering::SeqCst);
    for n in 0..30 {
        let name = format!("{n}");
        make(&world.names(0), Ino(2), &name, 20 + n, mode::S_IFREG).unwrap();
        if is_in(&world, 1, &name).is_some() {
            let row = world.engine.memory.get(&Key::dentry(Ino(2), name.as_bytes())).unwrap();
            assert!(row.is_some(), "turn {n}: it was seen, and is not in the engine");
        }
    }
    assert!(loans(&world) > 10);
    // A holder that cannot store lends nothing.
    world.engine.away.store(true, Ordering::SeqCst);
    make(&world.names(0), Ino(2), "late", 99, mode::S_IFREG).unwrap();
    assert!(world.leases[0].lend(1, &LoanAsk { unit: Ino(2), returns: false, keys: Vec::new() }).is_err());
    world.engine.away.store(false, Ordering::SeqCst);
    assert!(is_in(&world, 1, "late").is_some());
}

#[test]
fn a_loan_is_over_before_its_unit_changes() {
    let world = lent(3);
    assert!(is_in(&world, 2, "first").is_some());
    for n in 0..50 {
        let name = format!("{n}");
        make(&world.names(0), Ino(2), &name, 20 + n, mode::S_IFREG).unwrap();
        assert!((1..3).all(|node| is_in(&world, node, &name).is_some()), "turn {n}: made");
        unlink(&world, 0, &name);
        assert!((1..3).all(|node| is_in(&world, node, &name).is_none()), "turn {n}: removed");
    }
}

/// A borrower that does not answer holds the change up until its loan is over by itself.
#[test]
fn a_borrower_that_cannot_be_asked_is_waited_for() {
    quickly(deaf_borrower);
}

fn deaf_borrower() -> Option<()> {
    let world = lent(2);
    let ready = Instant::now();
    make(&world.names(0), Ino(2), "second", 11, mode::S_IFREG).unwrap();
    assert!(is_in(&world, 1, "second").is_some());
    world.fleet.deaf.lock().push(1);
    // Otherwise little of the loan is left.
    if ready.elapsed() > LENT_END / 3 {
        return None;
    }
    let began = Instant::now();
    unlink(&world, 0, "second");
    let took = began.elapsed();
    assert!(is_in(&world, 1, "second").is_none());
    assert!(took > LENT_END / 2 && took < Duration::from_secs(60), "{took:?}");
    Some(())
}

/// The kernel is not told when a loan is over.
#[test]
fn the_kernel_keeps_nothing_of_a_loan() {
    quickly(kernel_keeps_nothing);
}

fn kernel_keeps_nothing() -> Option<()> {
    let ready = Instant::now();
    let world = lent(2);
    let told = |node: usize| {
        let leases = &world.leases[node];
        let mut promises = [Promise::of(Ino(2), Ino(2))];
        leases.deliver(leases.mark(), &mut promises, |_| {});
        promises[0]
    };
    let holder = told(0);
    // A second after the loan the holder's kernel may keep something again.
    if ready.elapsed() > Duration::from_millis(900) {
        return None;
    }
    assert_eq!(holder, Promise::of(Ino(2), Ino(2)), "nor does the holder's kernel");
    std::thread::sleep(Duration::from_millis(400));
    let (before, ready) = (loans(&world), Instant::now());
    make(&world.names(0), Ino(2), "second", 11, mode::S_IFREG).unwrap();
    assert!(is_in(&world, 1, "second").is_some());
    let borrower = told(1);
    // One loan lasts for both reads, if they are not far apart.
    if ready.elapsed() > Duration::from_millis(200) {
        return None;
    }
    assert_eq!(borrower, Promise::of(Ino(2), Ino(2)));
    assert_eq!(loans(&world), before + 1, "it was a loan");
    Some(())
}

/// A loan outlives the node that gave it. The next holder does not know of it.
#[test]
fn a_loan_of_a_dead_node_is_over_before_the_next_change() {
    let world = lent(3);
    make(&world.names(0), Ino(2), "second", 11, mode::S_IFREG).unwrap();
    assert!(is_in(&world, 1, "second").is_some());
    world.end(0);
    unlink(&world, 2, "second");
    assert!(is_in(&world, 1, "second").is_none(), "what a dead node has lent is still in use");
}

/// The same if the dead node is there again, as another process, before its loans are over.
#[test]
fn a_loan_of_an_earlier_process_is_over_before_the_next_change() {
    for other in [0, 2] {
        let mut world = lent(3);
        make(&world.names(0), Ino(2), "second", 11, mode::S_IFREG).unwrap();
        assert!(is_in(&world, 1, "second").is_some());
        world.fleet.alive.lock().retain(|holder| holder.node != 0);
        world.terms[0] = Arc::new(Term::default());
        world.fleet.epochs.lock()[0] += 1;
        world.fleet.alive.lock().push(Holder { node: 0, epoch: 2 });
        world.terms[0].extend(base::time::boot(), LONG);
        let place = Arc::new(Place(world.fleet.clone(), 0));
        world.leases[0] = Leases::start(world.engine.clone(), world.terms[0].clone(), place).unwrap();
        world.fleet.leases.lock()[0] = Arc::downgrade(&world.leases[0]);
        unlink(&world, other, "second");
        assert!(is_in(&world, 1, "second").is_none(), "node {other} changed what was lent before");
    }
}

/// A commit is stored later than it is decided. A loan may be over by then.
#[test]
fn no_commit_rests_on_a_loan() {
    let world = lent(2);
    let other = world.names(1);
    make(&other, Ino::ROOT, "other", 3, mode::S_IFDIR).unwrap();
    make(&world.names(0), Ino(2), "second", 11, mode::S_IFREG).unwrap();
    assert!(is_in(&world, 1, "second").is_some());
    let leases = &world.leases[1];
    let (borrowed, own) = (Key::dentry(Ino(2), b"second"), Key::inode(Ino(3)));
    let rows = leases.get_many(&[borrowed.clone(), own.clone()]).unwrap();
    let [Some(read), Some(written)] = &rows[..] else { panic!("{rows:?}") };
    let checks = vec![(borrowed, Expect::Is(read.clone())), (own.clone(), Expect::Is(written.clone()))];
    leases.commit(Commit { checks, puts: vec![(own, written.clone())], ..Commit::default() }).unwrap();
    let row = lease_row(&world, Ino(2)).unwrap();
    assert_eq!((row[1], &row[10..14]), (2, &1u32.to_be_bytes()[..]), "node 1 has the lease for writing");
}

/// One node changes a file's mode, others read it. No read shows an older one than was acknowledged before it
/// began, and none a newer one than had been begun when it ended.
#[test]
fn readers_see_each_change_at_once() {
    let world = Arc::new(lent(3));
    world.engine.delay.store(200, Ordering::SeqCst);
    let (begun, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let set = |names: &Names, uid: u64| {
        let set = SetAttrs { uid: Some(uid as u32), ..SetAttrs::default() };
        names.run(&Op::SetAttr { ino: Ino(10), set }, &ctx()).map(drop)
    };
    set(&world.names(0), 0).unwrap();
    // Three seconds, and longer until enough has happened.
    let limit = Duration::from_secs(120);
    let (began, is_over, changes) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|reader| {
                let (world, begun, done) = (world.clone(), begun.clone(), done.clone());
                let (is_over, changes) = (&is_over, &changes);
                scope.spawn(move || {
                    let (names, mut seen, mut last) = (world.names(1 + reader % 2), 0, 0);
                    while !is_over.load(Ordering::SeqCst) && began.elapsed() < 2 * limit {
                        let least = done.load(Ordering::SeqCst);
                        let uid = u64::from(names.attr(Ino(10)).unwrap().unwrap().uid);
                        let most = begun.load(Ordering::SeqCst);
                        assert!((least..=most).contains(&uid), "{uid} is not in {least}..={most}");
                        if uid != last {
                            seen += 1;
                            changes.fetch_add(1, Ordering::SeqCst);
                        }
                        last = uid;
                        if seen % 3 == 0 {
                            std::thread::sleep(Duration::from_micros(seen % 7 * 100));
                        }
                    }
                })
            })
            .collect();
        let mut n = 0;
        let few = |n| n <= 50 || changes.load(Ordering::SeqCst) <= 50 || loans(&world) <= 50;
        while began.elapsed() < Duration::from_secs(3) || few(n) && began.elapsed() < limit {
            if readers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            n += 1;
            begun.store(n, Ordering::SeqCst);
            set(&world.names(0), n).unwrap();
            done.store(n, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(n % 5 * 300));
        }
        is_over.store(true, Ordering::SeqCst);
        println!("{n} changes, {} loans", loans(&world));
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        assert!(n > 50, "{n} changes: the writer does not get on");
    });
    assert!(changes.load(Ordering::SeqCst) > 50, "{changes:?} changes were seen");
    assert!(loans(&world) > 50);
    world.rows();
    check(&world.engine.memory);
}

/// Where the holder calls each loan back, the borrower gives it back before. Where the unit does not change,
/// it keeps its loans.
#[test]
fn loans_that_are_called_back_are_given_back_earlier() {
    let world = lent(2);
    let pause = || std::thread::sleep(Duration::from_millis(3));
    let mut turn = |n: u64| {
        make(&world.names(0), Ino(2), &format!("{n}"), 20 + n, mode::S_IFREG).unwrap();
        assert!(is_in(&world, 1, &format!("{n}")).is_some());
        pause();
    };
    (0..6).for_each(&mut turn);
    let of = |count: &AtomicU64| count.load(Ordering::SeqCst);
    // On a busy machine the thread that gives loans back may be late for many of them.
    let mut counts = Vec::new();
    for round in 0..20 {
        let (recalls, returns) = (of(&world.fleet.recalls), of(&world.fleet.returns));
        (6 + 20 * round..26 + 20 * round).for_each(&mut turn);
        let (recalls, returns) = (of(&world.fleet.recalls) - recalls, of(&world.fleet.returns) - returns);
        counts.push((returns, recalls));
        if returns > recalls {
            break;
        }
    }
    let is_earlier = counts.last().is_some_and(|(returns, recalls)| returns > recalls);
    assert!(is_earlier, "loans that were given back, and called back: {counts:?}");
    let (before, began) = (loans(&world), Instant::now());
    for _ in 0..60 {
        assert!(is_in(&world, 1, "first").is_some());
        pause();
    }
    let (asked, took) = (loans(&world) - before, began.elapsed());
    assert!(u128::from(asked) < 10 + took.as_millis() / 50, "{asked} loans in {took:?}");
}

/// A loan was given back, and the message came after the next loan.
#[test]
fn a_late_return_ends_no_later_loan() {
    quickly(late_return);
}

fn late_return() -> Option<()> {
    let world = lent(2);
    let ask = LoanAsk { unit: Ino(2), returns: true, keys: Vec::new() };
    let ready = Instant::now();
    // It is not lent if its last change was more than a second ago.
    let lend = || world.leases[0].lend(1, &ask).unwrap();
    let (first, second) = (lend()?, lend()?);
    assert!(first.number < second.number);
    let recalls = world.fleet.recalls.load(Ordering::SeqCst);
    world.leases[0].returned(Ino(2), 1, first.number);
    make(&world.names(0), Ino(2), "second", 11, mode::S_IFREG).unwrap();
    let called = world.fleet.recalls.load(Ordering::SeqCst);
    // Otherwise the loan may have been over by itself.
    if ready.elapsed() > LENT_END / 2 {
        return None;
    }
    assert_eq!(called, recalls + 1, "the second loan is called back");
    let third = lend()?;
    world.leases[0].returned(Ino(2), 1, third.number);
    make(&world.names(0), Ino(2), "third", 12, mode::S_IFREG).unwrap();
    assert_eq!(world.fleet.recalls.load(Ordering::SeqCst), recalls + 1, "nothing is left to call back");
    Some(())
}

/// A thread that waited for a batch on its way used to hurry the next one too. So what came first after it
/// was a batch of its own, and what came next had to wait for that.
#[test]
fn regression_a_change_after_a_flush_waits_for_others() {
    let world = lent(2);
    world.engine.delay.store(40_000, Ordering::SeqCst);
    let commits = || world.engine.commits.load(Ordering::SeqCst);
    let is_gathered = |round: u64| {
        file(&world.names(0), &format!("before {round}"), 1_000 + 10 * round);
        // Its batch is on its way by then.
        std::thread::sleep(Duration::from_millis(35));
        world.leases[0].flush().unwrap();
        let before = commits();
        for n in 1..4 {
            file(&world.names(0), &format!("{round} {n}"), 1_000 + 10 * round + n);
            std::thread::sleep(Duration::from_millis(1));
        }
        world.leases[0].flush().unwrap();
        commits() - before == 1
    };
    // On a busy machine it may take longer than a batch waits.
    assert!((0..100).any(is_gathered), "the first change is always a batch of its own");
}

/// Each of a thousand files took two round trips while another node changed the directory.
#[test]
fn regression_a_lent_directory_is_listed_in_a_few_round_trips() {
    let world = World::formatted(2);
    make(&world.names(0), Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
    for n in 0..500 {
        make(&world.names(0), Ino(2), &format!("{n}"), 100 + n, mode::S_IFREG).unwrap();
    }
    world.leases[0].flush().unwrap();
    let listed = || -> u64 {
        let mut changes = 0;
        let before = trips_and_commits(&world);
        for n in 0..500 {
            if n % 50 == 0 {
                make(&world.names(0), Ino(2), &format!("new {changes}"), 10_000 + n, mode::S_IFREG).unwrap();
                unlink(&world, 0, &format!("new {changes}"));
                changes += 1;
            }
            assert_eq!(is_in(&world, 1, &format!("{n}")).unwrap().0, Ino(100 + n));
        }
        let after = trips_and_commits(&world);
        (after.0 - before.0) - (after.1 - before.1)
    };
    let trips = listed();
    assert!(trips < 150, "{trips} round trips");
    assert!(loans(&world) > 5);
    world.rows();
    check(&world.engine.memory);
}
