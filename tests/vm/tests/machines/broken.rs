//! Servers that are killed under a guest, guests that are killed under a server.

use std::time::{Duration, Instant};

use covey_tests::say;
use vms::kit;
use vms::machine::{Machine, attach};
use vms::process::until;
use vms::serve::Place;

/// How many files the guest's program says are acknowledged.
fn acknowledged(machine: &mut Machine) -> u64 {
    machine.ok("grep -c ^ok /tmp/churn || true").parse().unwrap()
}

fn start_churn(machine: &mut Machine) {
    machine.ok("mkdir -p /mnt/churn; setsid in-guest churn /mnt/churn /tmp/stop > /tmp/churn 2>&1 &");
    until("files are made", || acknowledged(machine) >= 5);
}

/// The server is killed, and started again: the guest waits and goes on. What was in flight fails with EIO
/// and nothing else does; what was acknowledged is there.
#[test]
#[ignore = "minutes: make test-guests"]
fn a_killed_server_is_waited_for() {
    let kit = kit!();
    let place = Place::new();
    let mut server = place.volume("vm", &["--many"]);
    let mut machine = Machine::boot(&kit, place.folder(), "vm", &[]);
    machine.attach("--wait 60 vsock:5001 /mnt");
    start_churn(&mut machine);
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        server.kill();
        std::thread::sleep(Duration::from_millis(1500));
        let before = acknowledged(&mut machine);
        server = place.volume("vm", &["--many"]);
        let again = Instant::now();
        until("the guest goes on", || acknowledged(&mut machine) > before + 5);
        longest = longest.max(again.elapsed());
    }
    machine.ok("touch /tmp/stop");
    until("the program ends", || machine.run("pidof in-guest").status != 0);
    let failed = machine.ok("grep ^failed /tmp/churn || true");
    assert!(failed.lines().count() <= 3, "one request is in flight at each kill:\n{failed}");
    assert!(failed.lines().all(|line| line.ends_with(" 5")), "only EIO:\n{failed}");
    let count = machine.ok("in-guest check /mnt/churn /tmp/churn 2>&1");
    machine.ok("umount /mnt");
    server.end();
    covey_tests::program::covey_ok(&["fsck", place.path("volume").to_str().unwrap()]);
    let failed = failed.lines().count();
    say(format_args!(
        "{count} files acknowledged through 3 kills of the server, all there; {failed} got EIO"
    ));
}

/// A guest is killed while it writes, with a lock held and an unlinked file open. The server forgets it, and
/// the next guest mounts what is served to one at a time. Everything that was acknowledged is there.
#[test]
#[ignore = "minutes: make test-guests"]
fn a_killed_guest_makes_room_for_the_next() {
    let kit = kit!();
    let place = Place::new();
    let server =
        place.volume("one", &["--linger", "3", "--on", &vms::machine::address(place.folder(), "two", 5001)]);
    let mut machine = Machine::boot(&kit, place.folder(), "one", &[]);
    let mut next = Machine::boot(&kit, place.folder(), "two", &[]);
    machine.attach("vsock:5001 /mnt");
    let refused = next.run(&attach("vsock:5001 /mnt"));
    assert!(refused.status != 0 && refused.text.contains("another guest is attached"), "{refused:?}");
    machine.ok("setsid in-guest hold /mnt > /dev/null 2>&1 &");
    until("the lock is taken", || {
        machine.run("[ -e /mnt/locked ] && ! in-guest lock /mnt/locked").status == 0
    });
    start_churn(&mut machine);
    std::thread::sleep(Duration::from_secs(1));
    let log = machine.ok("grep ^ok /tmp/churn");
    machine.kill();
    let killed = Instant::now();
    until("the next guest may attach", || next.run(&attach("vsock:5001 /mnt")).status == 0);
    let waited = killed.elapsed();
    next.ok(&format!("cat > /tmp/log << 'END'\n{log}\nEND"));
    let count = next.ok("in-guest check /mnt/churn /tmp/log 2>&1");
    next.ok("in-guest lock /mnt/locked; [ ! -e /mnt/gone ]; echo more > /mnt/more");
    next.ok("umount /mnt");
    assert!(server.log().contains("did not come back"), "{}", server.log());
    server.end();
    covey_tests::program::covey_ok(&["fsck", place.path("volume").to_str().unwrap()]);
    say(format_args!(
        "{count} acknowledged files survived the guest; the next one attached after {:.1} s",
        waited.as_secs_f64()
    ));
}

/// Two machines lock one file of a server that decides locks: one has it at a time. One that is killed loses
/// it when the server forgets it.
#[test]
#[ignore = "minutes: make test-guests"]
fn two_machines_exclude_one_another() {
    let kit = kit!();
    let place = Place::new();
    let second = vms::machine::address(place.folder(), "two", 5001);
    let server = place.volume("one", &["--many", "--locks", "server", "--linger", "3", "--on", &second]);
    let mut machine = Machine::boot(&kit, place.folder(), "one", &[]);
    let mut other = Machine::boot(&kit, place.folder(), "two", &[]);
    machine.attach("vsock:5001 /mnt");
    other.attach("vsock:5001 /mnt");
    machine.ok("setsid in-guest hold /mnt > /dev/null 2>&1 &");
    until("the other machine does not get it", || {
        other.run("[ -e /mnt/locked ] && ! in-guest lock /mnt/locked").status == 0
    });
    machine.kill();
    let killed = Instant::now();
    assert!(other.run("in-guest lock /mnt/locked").status != 0, "it may come back");
    until("the lock is free", || other.run("in-guest lock /mnt/locked").status == 0);
    say(format_args!("free {:.1} s after its machine was killed", killed.elapsed().as_secs_f64()));
    other.ok("umount /mnt");
    server.end();
}

/// Nothing of a guest remains on the host after its test: no process, no socket, no folder.
#[test]
#[ignore = "minutes: make test-guests"]
fn nothing_is_left_after_a_failure() {
    let kit = kit!();
    let (send, receive) = std::sync::mpsc::channel();
    let failing = std::thread::spawn(move || {
        let place = Place::new();
        let server = place.volume("vm", &[]);
        let mut machine = Machine::boot(&kit, place.folder(), "vm", &[]);
        machine.attach("vsock:5001 /mnt");
        let mut pids = machine.pids();
        pids.push(server.pid());
        send.send((pids, place.folder().to_owned())).unwrap();
        std::panic::resume_unwind(Box::new("as if the test had failed"));
    });
    assert!(failing.join().is_err());
    let (pids, folder) = receive.recv().unwrap();
    assert!(pids.len() == 3 && !folder.exists(), "{} is left", folder.display());
    for pid in pids {
        until("the process ends", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
