//! pjdfstest in a guest: `PJDFSTEST` is the path of its program.

use std::time::Duration;

use covey_tests::{Need, requires, say};
use vms::kit;
use vms::kit::Kit;
use vms::machine::{Device, Machine};
use vms::serve::Place;

const CONFIG: &str = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\n\
    [settings]\nnaptime = 0.05\nallow_remount = false\nexpected_failures = []\n\n\
    [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";

/// The suite that the tests of a mount run on the host finds no failure in a guest.
#[test]
#[ignore = "minutes: make test-guests"]
fn pjdfstest_finds_no_failure_in_a_guest() {
    requires!(Need::Env("PJDFSTEST"));
    pjdfstest(&kit!(), false);
}

/// The same over virtiofs.
#[test]
#[ignore = "minutes: make test-guests"]
fn pjdfstest_finds_no_failure_over_virtiofs() {
    requires!(Need::Env("PJDFSTEST"));
    pjdfstest(&kit!(), true);
}

fn pjdfstest(kit: &Kit, over_virtiofs: bool) {
    let place = Place::new();
    std::fs::copy(std::env::var_os("PJDFSTEST").unwrap(), place.path("data/pjdfstest")).unwrap();
    std::fs::write(place.path("data/pjdfstest.toml"), CONFIG).unwrap();
    let server = if over_virtiofs { place.virtiofs("fs", &[]) } else { place.volume("vm", &[]) };
    let devices: &[Device<'_>] = if over_virtiofs { &[Device { tag: "fs", queues: 2 }] } else { &[] };
    let _programs = place.programs("vm");
    let mut machine = Machine::boot_with(kit, place.folder(), "vm", &[], devices);
    if over_virtiofs {
        machine.ok("mount -t virtiofs fs /mnt");
    } else {
        machine.attach("vsock:5001 /mnt");
    }
    machine.attach("vsock:5002 /mnt2");
    machine.attach("vsock:5003 /usr");
    let begun = std::time::Instant::now();
    machine.ok("chmod 755 /mnt; mkdir -m 777 /mnt/suite; mkdir -m 777 /tmp/other");
    // The same are skipped on the host, where tests/mounts/suites says why.
    let suite = "cd /mnt/suite; /mnt2/pjdfstest -c /mnt2/pjdfstest.toml -p /mnt/suite -s /tmp/other > /tmp/pjd 2>&1\n\
                 grep -E '(FAILED|failed)$' /tmp/pjd | head -n 40; grep -E 'skipped$' /tmp/pjd | grep -vE 'erofs|link_count_max'; grep Summary: /tmp/pjd || tail -n 20 /tmp/pjd";
    let said = machine.console().run_for(suite, Duration::from_secs(300)).text;
    let summary = said.lines().rev().find_map(|line| line.trim().strip_prefix("Summary: "));
    let summary = summary.unwrap_or_else(|| panic!("no summary: {said}"));
    assert!(summary.split(", ").any(|part| part == "0 failed"), "{said}");
    assert!(!said.contains("skipped\n"), "skipped without a reason: {said}");
    machine.ok("rm -rf /mnt/suite; umount /mnt");
    server.end();
    covey_tests::program::covey_ok(&["fsck", place.path("volume").to_str().unwrap()]);
    let how = if over_virtiofs { "over virtiofs" } else { "in the guest" };
    say(format_args!("pjdfstest {how}: {summary}, in {:.0} s", begun.elapsed().as_secs_f64()));
}
