//! A guest that serves its own mount on.

use std::time::Duration;

use covey_tests::say;
use vms::kit;
use vms::machine::Machine;
use vms::serve::Place;

use crate::world::{make_tree, must_hold, sums, sums_here};

/// A server that was built without optimisation takes minutes on an emulated processor.
const PATIENT: Duration = Duration::from_secs(240);

/// The guest serves its mount to a second one over a unix socket. A tree that is written through both levels
/// has the right sums at every level, and in the volume.
#[test]
#[ignore = "minutes: make test-guests"]
fn a_mount_is_served_on() {
    let kit = kit!();
    let place = Place::new();
    make_tree(&place.path("data/tree"), 2, 2);
    std::fs::copy(covey_tests::program::covey().get_program(), place.path("data/covey")).unwrap();
    let server = place.volume("vm", &[]);
    let _programs = place.programs("vm");
    let mut machine = Machine::boot(&kit, place.folder(), "vm", &[]);
    machine.attach("vsock:5001 /mnt");
    machine.attach("vsock:5002 /mnt2");
    machine.attach("vsock:5003 /usr");
    let script = "mkdir /mnt/shared; ulimit -n 10000\n\
                  setsid /mnt2/covey serve /mnt/shared --on unix:/tmp/second > /tmp/serve 2>&1 &\n\
                  for at in $(seq 200); do grep -q Ctrl-C /tmp/serve && exit 0; usleep 50000; done; cat /tmp/serve; exit 1";
    machine.ok(script);
    machine.attach("unix:/tmp/second /mnt3");
    machine.ok_for("cp -a /mnt2/tree /mnt3/tree; sync", PATIENT);
    let wanted = sums_here(&place.path("data/tree"));
    for level in ["/mnt3/tree", "/mnt/shared/tree"] {
        assert_eq!(machine.ok_for(&sums(level), PATIENT), wanted, "{level}");
    }
    machine.ok("umount /mnt3");
    machine.ok("killall covey; while pidof covey > /dev/null; do usleep 20000; done; umount /mnt");
    server.end();
    must_hold(&place, "shared/tree", &place.path("data/tree"));
    say(format_args!("{} sums are equal at two levels, and on the host", wanted.lines().count()));
}
