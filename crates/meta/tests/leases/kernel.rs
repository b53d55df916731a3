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
