//! What the kernel keeps under a lease.

use meta::lease::{KernelCache, Promise};

use super::*;

#[derive(Default)]
struct Kernel(Mutex<Vec<Ino>>);

impl KernelCache for Kernel {
    fn forget(&self, inos: &[Ino]) -> bool {
        self.0.lock().extend(inos);
        true
    }
}

#[test]
fn the_kernel_forgets_before_another_node_changes() {
    let world = World::formatted(2);
    let kernel = Arc::new(Kernel::default());
    world.leases[0].serve(kernel.clone());
    make(&world.names(0), Ino::ROOT, "a", 2, mode::S_IFDIR).unwrap();
    world.leases[0].flush().unwrap();
    assert!(is_there(&world.names(0), "a"));
    let told = |mark| {
        let mut promises = [Promise::of(Ino(2), Ino::ROOT)];
        world.leases[0].deliver(mark, &mut promises, |_| {});
        promises[0].attributes
    };
    let mark = world.leases[0].mark();
    assert!(told(mark) > Duration::from_secs(1));
    let chmod = SetAttrs { perm: Some(0o600), ..SetAttrs::default() };
    world.names(1).run(&Op::SetAttr { ino: Ino(2), set: chmod }, &ctx()).unwrap();
    assert_eq!(*kernel.0.lock(), [Ino(2)]);
    assert_eq!(told(mark), Duration::ZERO, "a reply that was read before the recall promises nothing");
    assert_eq!(told(world.leases[0].mark()), Duration::ZERO, "the other node has the lease");
}

/// The kernel's clock stops while the machine sleeps, so it kept attributes for longer than the session
/// lasted.
#[test]
fn regression_the_kernel_is_made_to_forget_after_a_sleep() {
    let world = World::formatted(1);
    let kernel = Arc::new(Kernel::default());
    world.leases[0].serve(kernel.clone());
    make(&world.names(0), Ino::ROOT, "a", 2, mode::S_IFDIR).unwrap();
    assert!(is_there(&world.names(0), "a"));
    assert!(world.leases[0].kernel_forgets() && kernel.0.lock().is_empty(), "it keeps nothing yet");
    let mut promises = [Promise::of(Ino(2), Ino::ROOT)];
    world.leases[0].deliver(world.leases[0].mark(), &mut promises, |_| {});
    assert!(promises[0].attributes > Duration::from_secs(1));
    assert!(world.leases[0].kernel_forgets());
    assert_eq!(*kernel.0.lock(), [Ino(2)]);
    world.leases[0].session_ended();
    assert_eq!(*kernel.0.lock(), [Ino(2); 2], "it may have been told the same again");
}

/// How long the kernel may keep a name of a directory.
fn kept(world: &World, node: usize, parent: Ino) -> Duration {
    let mut promises = [Promise::of(Ino(0), parent)];
    let leases = &world.leases[node];
    leases.deliver(leases.mark(), &mut promises, |_| {});
    assert_eq!(leases.keeps_names(parent), !promises[0].name.is_zero());
    promises[0].name
}

/// The kernel kept no name for the first 0.3 s of a lease, so the first listing of a directory looked each
/// name up again. That is needed only if nodes take the lease from one another.
#[test]
fn regression_names_of_a_directory_that_was_free_are_kept_at_once() {
    let world = World::formatted(2);
    let names = Names::new(world.engine.clone());
    for (name, ino) in [("a", 2), ("b", 3)] {
        make(&names, Ino::ROOT, name, ino, mode::S_IFDIR).unwrap();
    }
    let begun = std::time::Instant::now();
    world.names(0).readdir(Ino::ROOT, 0, 9).unwrap();
    world.names(0).store().prefetch(Ino::ROOT).unwrap();
    let at_once = [Ino::ROOT, Ino(2)].map(|dir| kept(&world, 0, dir));
    assert!(at_once.iter().all(|time| *time > Duration::ZERO), "{at_once:?}");
    // The other node waits until the moment is over.
    make(&world.names(1), Ino(2), "file", 9, mode::S_IFREG).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
    assert_eq!(kept(&world, 0, Ino(2)), Duration::ZERO, "the other node has the lease");
    // What one node takes from the other, the kernel keeps later.
    world.names(0).readdir(Ino(2), 0, 9).unwrap();
    make(&world.names(0), Ino(2), "more", 10, mode::S_IFREG).unwrap();
    let taken = (std::time::Instant::now(), kept(&world, 0, Ino(2)));
    assert!(taken.1.is_zero() || begun.elapsed() > Duration::from_millis(400), "{:?}", taken.1);
}

/// The kernel of a holder learns of a change by the reply. A borrower saw it before that, while the holder's
/// kernel still showed a former absence to other programs: what was there for one node was not there
/// afterwards for another one.
#[test]
fn regression_the_holders_kernel_keeps_nothing_of_a_lent_directory() {
    let world = World::formatted(2);
    let kernel = Arc::new(Kernel::default());
    world.leases[0].serve(kernel.clone());
    make(&world.names(0), Ino::ROOT, "dir", 2, mode::S_IFDIR).unwrap();
    world.leases[0].flush().unwrap();
    let told = || {
        let mut promises = [Promise::of(Ino(2), Ino::ROOT)];
        world.leases[0].deliver(world.leases[0].mark(), &mut promises, |_| {});
        promises[0].attributes
    };
    let mut lent = 0;
    for round in 0..20 {
        // Until it is lent no more.
        std::thread::sleep(Duration::from_millis(1_050));
        let promised = std::time::Instant::now();
        let absence = kept(&world, 0, Ino(2));
        let attributes = told();
        let name = format!("{round}");
        make(&world.names(0), Ino(2), &name, 10 + round, mode::S_IFREG).unwrap();
        let ask = LoanAsk { unit: Ino(2), returns: false, keys: Vec::new() };
        let asked = std::time::Instant::now();
        let Some(loan) = world.leases[0].lend(1, &ask).unwrap() else { continue };
        assert!(loan.rows.iter().any(|(key, _)| *key == Key::dentry(Ino(2), name.as_bytes())), "{round}");
        assert!(absence > Duration::ZERO && !attributes.is_zero(), "{round}");
        assert!(promised.elapsed() >= absence, "{round}: the absence is still kept");
        assert_eq!(kernel.0.lock().last(), Some(&Ino(2)), "{round}: the attributes are still kept");
        let now = (kept(&world, 0, Ino(2)), told());
        if asked.elapsed() < Duration::from_secs(1) {
            assert_eq!(now, (Duration::ZERO, Duration::ZERO), "{round}: it is lent");
        }
        make(&world.names(0), Ino(2), &format!("{round} again"), 100 + round, mode::S_IFREG).unwrap();
        kernel.0.lock().clear();
        lent += 1;
        if lent == 2 {
            return;
        }
    }
    panic!("{lent} loans");
}

/// A session that ended early, by the database's clock: this node said that it has no lease before its kernel
/// had let go of names.
#[test]
fn regression_the_kernel_lets_go_before_a_lost_lease_is_given_back() {
    let world = World::formatted(2);
    let names = Names::new(world.engine.clone());
    make(&names, Ino::ROOT, "a", 2, mode::S_IFDIR).unwrap();
    world.names(0).readdir(Ino::ROOT, 0, 9).unwrap();
    // A recall waits for what an earlier process of the node may have lent.
    std::thread::sleep(Duration::from_millis(500));
    let begun = std::time::Instant::now();
    let absence = kept(&world, 0, Ino::ROOT);
    assert!(absence > Duration::ZERO);
    std::thread::scope(|scope| {
        scope.spawn(|| world.leases[0].session_ended());
        while world.leases[0].is_at_hand(&Key::inode(Ino::ROOT)) {
            std::thread::yield_now();
        }
        world.leases[0].recall(Ino::ROOT, u64::MAX).unwrap();
        assert!(begun.elapsed() >= absence, "{:?}: the absence is still kept", begun.elapsed());
    });
    world.again(0);
    file(&world.names(1), "b", 3);
}
