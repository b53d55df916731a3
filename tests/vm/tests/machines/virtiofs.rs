//! Guests that mount over virtiofs: their own driver, and no program of ours in them.

use std::time::{Duration, Instant};

use covey_tests::say;
use vms::kit;
use vms::machine::{Device, Machine, vhost_user};
use vms::process::until;
use vms::serve::{Place, Server};

use crate::world::{make_tree, must_hold, sums, sums_here};

fn mount(tag: &str, mountpoint: &str) -> String {
    format!("mkdir -p {mountpoint}; mount -t virtiofs {tag} {mountpoint}")
}

/// A guest copies a tree from a folder to a volume, with one request queue and with several. The sums are
/// those of the host, also after it has unmounted and mounted again, and the host finds the same tree.
#[test]
#[ignore = "minutes: make test-guests"]
fn a_tree_is_the_same_over_virtiofs() {
    let kit = kit!();
    let place = Place::new();
    make_tree(&place.path("data/tree"), 1, 6);
    let server = place.virtiofs("volume", &[]);
    let (folder, data) = (place.folder(), place.path("data"));
    let other = Server::start(folder, &data, &vhost_user(folder, "data"), &["--one", "--read-only"]);
    let devices = [Device { tag: "volume", queues: 1 }, Device { tag: "data", queues: 2 }];
    let mut machine = Machine::boot_with(&kit, folder, "vm", &[], &devices);
    machine.ok(&mount("volume", "/mnt"));
    machine.ok(&mount("data", "/mnt2"));
    let wanted = sums_here(&data.join("tree"));
    assert_eq!(machine.ok(&sums("/mnt2/tree")), wanted);
    machine.ok("cp -a /mnt2/tree /mnt/tree");
    assert_eq!(machine.ok(&sums("/mnt/tree")), wanted);
    machine.ok("umount /mnt");
    until("the server hears of it", || server.log().contains("unmounted"));
    machine.ok(&mount("volume", "/mnt"));
    assert_eq!(machine.ok(&sums("/mnt/tree")), wanted);
    let refused = machine.run("echo x > /mnt2/tree/d0/f1");
    assert!(refused.status != 0 && refused.text.contains("Read-only"), "{refused:?}");
    machine.ok("umount /mnt; umount /mnt2");
    server.end();
    other.end();
    must_hold(&place, "tree", &data.join("tree"));
    say(format_args!("{} sums are equal on both sides", wanted.lines().count()));
}

/// The guest's kernel checks permissions with all groups of a process. A write by a user drops the set-id
/// bits, and the guest sees that at once, although its kernel cannot be told.
#[test]
#[ignore = "minutes: make test-guests"]
fn groups_and_set_id_bits_count_over_virtiofs() {
    let kit = kit!();
    let place = Place::new();
    let server = place.virtiofs("volume", &["--keep", "3600"]);
    let devices = [Device { tag: "volume", queues: 1 }];
    let mut machine = Machine::boot_with(&kit, place.folder(), "vm", &[], &devices);
    machine.ok(&mount("volume", "/mnt"));
    machine.ok("cd /mnt; chmod 755 .; echo secret > f; chgrp shared f; chmod 640 f");
    let by = |user: &str, what: &str| format!("cd /; su -s /bin/sh {user} -c '{what}'");
    assert_eq!(machine.ok(&by("staff", "cat /mnt/f")), "secret");
    let refused = machine.run(&by("nobody", "cat /mnt/f"));
    assert!(refused.status != 0 && refused.text.contains("denied"), "{refused:?}");
    machine.ok("cd /mnt; echo x > s; chmod 6777 s; stat -c %a s");
    machine.ok(&by("nobody", "echo y >> /mnt/s"));
    assert_eq!(machine.ok("stat -c %a /mnt/s"), "777");
    machine.ok("umount /mnt");
    server.end();
}

/// The server ends under a guest that has mounted: it ends in good order and soon, and everything that was
/// acknowledged is in the volume. The next server takes the next guest at the same socket.
#[test]
#[ignore = "minutes: make test-guests"]
fn a_server_ends_under_a_guest_over_virtiofs() {
    let kit = kit!();
    let place = Place::new();
    let server = place.virtiofs("volume", &[]);
    let devices = [Device { tag: "volume", queues: 1 }];
    let mut machine = Machine::boot_with(&kit, place.folder(), "one", &[], &devices);
    machine.ok(&mount("volume", "/mnt"));
    machine.ok("mkdir /mnt/churn; setsid in-guest churn /mnt/churn /tmp/stop > /tmp/churn 2>&1 &");
    until("files are made", || machine.ok("grep -c ^ok /tmp/churn || true").parse::<u64>().unwrap() >= 20);
    let begun = Instant::now();
    server.end();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(30), "the server took {took:?} to end");
    let log = machine.ok("grep ^ok /tmp/churn");
    // What the guest asks for now waits for ever, and nothing else of it does.
    machine.ok("setsid ls /mnt/other > /dev/null 2>&1 & sleep 1; echo alive > /tmp/alive; cat /tmp/alive");
    machine.kill();
    let server = place.virtiofs("volume", &[]);
    let mut next = Machine::boot_with(&kit, place.folder(), "two", &[], &devices);
    next.ok(&mount("volume", "/mnt"));
    next.ok(&format!("cat > /tmp/log << 'END'\n{log}\nEND"));
    let count = next.ok("in-guest check /mnt/churn /tmp/log 2>&1");
    next.ok("echo more > /mnt/more; sync");
    // Now the guest is killed under the server, which waits for the next one.
    next.kill();
    until("the server forgets it", || server.log().contains("its VMM is gone"));
    let mut last = Machine::boot_with(&kit, place.folder(), "three", &[], &devices);
    last.ok(&mount("volume", "/mnt"));
    assert_eq!(last.ok("cat /mnt/more; umount /mnt"), "more");
    server.end();
    covey_tests::program::covey_ok(&["fsck", place.path("volume").to_str().unwrap()]);
    say(format_args!(
        "{count} acknowledged files are there; the server ended in {:.1} s",
        took.as_secs_f64()
    ));
}
