//! Clones and servers that are killed, and snapshots that cannot be read.

use std::fs::File;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use covey_tests::{Need, requires, say};
use memory::clone::{Clone, Common, End};
use memory::receive;
use memory::source::{Plain, Source};

use super::world::{MIB, PATIENCE, Place, may, until};

#[test]
fn a_clone_that_is_killed_costs_the_others_nothing() {
    requires!(Need::Root);
    if !may() {
        return;
    }
    let place = Place::new();
    place.snapshot(16 * MIB);
    let server = place.serve(&place.text("memory"), &[]);
    let open = || std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    let before = open();
    let mut stays = place.vmm("half");
    stays.at("half");
    let mut killed: Vec<_> = (0..4).map(|_| place.vmm("half")).collect();
    killed.iter_mut().for_each(|vmm| vmm.at("half"));
    killed.into_iter().for_each(|vmm| vmm.kill());
    until("four clones have ended", || server.log().matches("has ended").count() == 4);
    stays.go();
    stays.must_succeed();
    until("nothing is held", || open() == before);
    server.end_well();
}

/// Firecracker does the same: it keeps its descriptor, so its memory never turns to zeros.
#[test]
fn a_clone_of_a_killed_server_waits_and_sees_no_other_bytes() {
    requires!(Need::Root);
    if !may() {
        return;
    }
    let place = Place::new();
    place.snapshot(4 * MIB);
    let server = place.serve(&place.text("memory"), &[]);
    let mut waits = place.vmm("half");
    waits.at("half");
    let mut sees = place.vmm("hang-up");
    sees.at("loaded");
    until("both are served", || server.log().matches("process").count() == 2);
    server.kill();
    sees.must_succeed();
    waits.go();
    std::thread::sleep(Duration::from_millis(300));
    assert!(waits.runs(), "{}", waits.log());
    waits.kill();
    // The socket that the dead server left is replaced.
    let server = place.serve(&place.text("memory"), &[]);
    place.vmm("check").must_succeed();
    server.end_well();
}

#[test]
fn a_server_that_ends_leaves_its_clones_whole() {
    requires!(Need::Root);
    if !may() {
        return;
    }
    let place = Place::new();
    place.snapshot(16 * MIB);
    let server = place.serve(&place.text("memory"), &[]);
    let mut vmm = place.vmm("half");
    vmm.at("half");
    server.end_well();
    vmm.go();
    vmm.must_succeed();
}

#[test]
fn a_clone_whose_bytes_are_lost_gets_sigbus_and_the_others_go_on() {
    requires!(Need::Root);
    if !may() {
        return;
    }
    let place = Place::new();
    place.snapshot(16 * MIB);
    let server = place.serve(&place.text("memory"), &[]);
    let mut lost = place.vmm("half");
    lost.at("half");
    let mut well = place.vmm("hang-up");
    well.at("loaded");
    // Half of the file is gone for good.
    File::options().write(true).open(place.path("memory")).unwrap().set_len(8 * MIB as u64).unwrap();
    lost.go();
    assert_eq!(lost.died_of(), libc::SIGBUS);
    until("the log says what is lost", || server.log().contains("cannot go on: bytes "));
    until("the log says what the VMM sees", || server.log().contains("gets SIGBUS"));
    assert!(well.runs());
    well.kill();
    server.end_well();
}

/// The end of a VMM was noticed only by a clock that looks at all clones in turn. A server whose clock was
/// held up, as by a list that a disk does not take, kept the memory and the threads of clones that had ended.
#[test]
fn regression_the_end_of_a_clone_is_noticed_without_the_clock() {
    requires!(Need::Root);
    if !may() {
        return;
    }
    let place = Place::new();
    place.snapshot(4 * MIB);
    let listener = UnixListener::bind(place.path("s")).unwrap();
    let mut vmm = place.vmm("half");
    let (socket, _) = listener.accept().unwrap();
    let source = Arc::new(Plain::open(&place.path("memory")).unwrap());
    let (regions, uffd) = receive::receive(&socket, source.len(), PATIENCE).unwrap();
    let common = Arc::new(Common {
        source,
        patience: PATIENCE,
        log: Arc::new(|_, _: &str| ()),
        buffers: Default::default(),
    });
    let process = receive::process(&socket);
    if process.is_none() {
        vmm.kill();
        return say(format_args!("skipped: lacks a kernel that names the process at a socket"));
    }
    let clone = Arc::new(Clone::new(1, &regions, uffd, common).unwrap().with_process(process));
    // Nothing calls `look`.
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let mine = Arc::clone(&clone);
            std::thread::spawn(move || mine.work())
        })
        .collect();
    vmm.at("half");
    assert_eq!(clone.end(), None);
    vmm.kill();
    until("the threads of the clone end", || threads.iter().all(|thread| thread.is_finished()));
    assert_eq!(clone.end(), Some(&End::Gone));
}
