//! The warm paths of reading allocate no memory, or at most the number of times given here.
//!
//! Every allocation shows up in a profile, and may contend for a lock with other threads. So the allocator of
//! this test counts the calling thread's allocations, on a volume on a disk as in a mount.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_fs as fs;

#[path = "../benches/world/mod.rs"]
mod world;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fs::api::Filesystem;
use world::{PAGE, World};

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that is ending has no counter any more, and its count is not needed.
    let _ = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

// SAFETY: every call passes to the system allocator with the same arguments. Counting touches a number of
// this thread and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: this requires of its caller what the system allocator requires, and passes that on.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller promises what the system allocator requires.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as `alloc`; the block came from the system allocator.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `alloc` or `realloc` above, so from the system allocator.
        unsafe { System.dealloc(at, layout) }
    }

    // SAFETY: as `dealloc`.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: `at` came from the system allocator, with this layout.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations per round of the same work, once it is warm.
fn each(mut work: impl FnMut()) -> f64 {
    const ROUNDS: u64 = 200;
    (0..3).for_each(|_| work());
    let before = TAKEN.get();
    (0..ROUNDS).for_each(|_| work());
    (TAKEN.get() - before) as f64 / ROUNDS as f64
}

/// The budgets, which may only decrease: one allocation for the key of each row that is read, and one for the
/// list of a page's extents.
#[test]
fn warm_reads_allocate_no_more_than_is_said() {
    let world = World::new();
    let (volume, file) = (&world.volume, world.files[7]);
    let mut page = [0; PAGE];
    let measured = [
        ("getattr", 1.0, each(|| assert!(volume.getattr(file).is_ok()))),
        (
            "lookup",
            2.0,
            each(|| {
                volume.lookup(world.many, b"7").unwrap();
                volume.forget(file, 1);
            }),
        ),
        ("read 4 KiB of an open pack", 3.0, each(|| assert_eq!(volume.read(file, 0, &mut page), Ok(PAGE)))),
        (
            "read 4 KiB of a blob",
            3.0,
            each(|| assert_eq!(volume.read(world.sealed, 8192, &mut page), Ok(PAGE))),
        ),
    ];
    world.close();
    for (what, allowed, taken) in &measured {
        println!("{what}: {taken} allocations, {allowed} are allowed");
    }
    for (what, allowed, taken) in measured {
        assert!(taken <= allowed, "{what} takes {taken} allocations, {allowed} are allowed");
    }
}
