//! `covey memory-server` with VMMs that are processes of their own.
//!
//! Firecracker needs KVM, which few machines that run tests have, and QEMU does not speak its protocol. So a
//! VMM here is this program once more ([`the_vmm`]): it maps memory, registers it with userfaultfd, and hands
//! it to the server as Firecracker does. What it sees of its memory is what a guest would see.

mod broken;
mod mistakes;
mod pages;
mod sources;
mod vmm;
mod world;

use std::fs;
use std::time::{Duration, Instant};

use covey_tests::{Need, requires};
use world::{MIB, PATIENCE, Place, may, until};

/// Not a test: the VMM, when a test starts this program as one.
#[test]
fn the_vmm() {
    if let Ok(job) = std::env::var(vmm::JOB) {
        vmm::run(&job);
    }
}

#[test]
fn every_byte_of_every_clone_is_the_snapshots() {
    requires!(Need::Root);
    if !may() {
        return;
    }
    let place = Place::new();
    place.snapshot(8 * MIB);
    let server = place.serve(&place.text("memory"), &[]);
    for count in [1, 10, 50] {
        let began = Instant::now();
        let vmms: Vec<_> = (0..count).map(|_| place.vmm("check")).collect();
        vmms.into_iter().for_each(|vmm| vmm.must_succeed());
        covey_tests::say(format_args!("{count} clones of 8 MiB: {:.2?}", began.elapsed()));
    }
    let ends = || server.log().matches("has ended").count();
    let end = Instant::now() + PATIENCE;
    while ends() < 61 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (noticed, log) = (ends(), server.log());
    assert_eq!(noticed, 61, "{}\n{log}", covey_tests::proc::stands(server.pid()));
    assert!(!log.contains("cannot go on"), "{log}");
    server.end_well();
}

#[test]
fn a_list_outlives_the_server() {
    requires!(Need::Root);
    if !may() {
        return;
    }
    let place = Place::new();
    place.snapshot(8 * MIB);
    let (memory, list) = (place.text("memory"), place.text("list"));
    let server = place.serve(&memory, &["--record", &list]);
    place.vmm("check").must_succeed();
    until("the list is there", || fs::metadata(&list).is_ok());
    server.end_well();
    let text = fs::read_to_string(&list).unwrap();
    assert!(text.starts_with("covey-memory-list 1\nof 8388608 file "), "{text}");
    let server = place.serve(&memory, &["--record", &list]);
    // On a busy machine a clone may ask for everything before the list is begun.
    let ahead = |line: &str| line.contains("has ended") && !line.contains(" 0 MiB of both before it asked");
    for clones in 1..=12 {
        place.vmm("check").must_succeed();
        until("the clone has ended", || server.log().matches("has ended").count() == clones);
        if server.log().lines().any(ahead) {
            break;
        }
    }
    assert!(server.log().contains("of which the list has 8 MiB"), "{}", server.log());
    assert!(server.log().lines().any(ahead), "{}", server.log());
    server.end_well();
    // The file changes: the list is of another snapshot.
    place.snapshot(8 * MIB + 4096);
    let server = place.serve(&memory, &["--record", &list]);
    assert!(server.log().contains("is of another snapshot"), "{}", server.log());
    place.vmm("check").must_succeed();
    server.end_well();
}
