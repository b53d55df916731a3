//! What programs of a guest see.

use vms::kit;
use vms::machine::Machine;
use vms::serve::Place;

/// A guest boots and mounts over AF_VSOCK.
#[test]
#[ignore = "minutes: make test-guests"]
fn a_guest_mounts_over_vsock() {
    let kit = kit!();
    let place = Place::new();
    let server = place.volume("vm", &[]);
    let _programs = place.programs("vm");
    let mut machine = Machine::boot(&kit, place.folder(), "vm", &[]);
    machine.attach("vsock:5001 /mnt");
    machine.attach("vsock:2:5002 /mnt2");
    machine.attach("vsock:2:5003 /usr");
    println!("{}", machine.ok("uname -a; dmesg | grep -i vsock || true; mount; time gcc --version; time git --version; echo hi > /mnt/f; cat /proc/uptime"));
    machine.ok("umount /mnt");
    server.end();
}
