//! `make bench-guests`: what a mount costs in a real guest, beside virtiofsd in the same guest and run, and
//! what the stream costs on the host itself.
//!
//! Every figure is the best of its rounds, and places take turns. It prints tables and keeps no files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod host;
mod table;

use std::path::Path;
use std::time::{Duration, Instant};

use covey_tests::program::covey_ok;
use vms::kit::Kit;
use vms::machine::{Device, Machine, Peer, address, vhost_user};
use vms::serve::{Place, Server};

use table::{Table, read_lines};

/// How long a measurement of one place may take.
const LIMIT: Duration = Duration::from_secs(150);
/// Rounds of the operations.
const ROUNDS: usize = 2;

fn main() {
    let kit = Kit::find().unwrap_or_else(|lacking| {
        eprintln!("make bench-guests lacks {lacking}");
        std::process::exit(2);
    });
    let begun = Instant::now();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!("QEMU with {}, a guest of 2 CPUs on a host of {cpus}", kit.accel);
    let only = std::env::args().nth(1);
    let wants = |part: &str| only.as_deref().is_none_or(|only| only == part);
    if wants("host") {
        host::parallel(&kit);
        host::fsync(&kit);
    }
    if wants("guest") {
        in_a_guest(&kit);
    }
    println!("\n{:.0} s in all", begun.elapsed().as_secs_f64());
}

/// The places in the guest: name, and folder.
const PLACES: [(&str, &str); 7] = [
    ("covey", "/mnt"),
    ("covey, virtiofs", "/fs"),
    ("covey, writeback", "/back"),
    ("virtiofsd, always", "/always"),
    ("covey, many", "/many"),
    ("covey, virtiofs, many", "/fsmany"),
    ("virtiofsd, auto", "/auto"),
];

fn in_a_guest(kit: &Kit) {
    if kit.virtiofsd.is_none() {
        eprintln!("there is no virtiofsd to compare with: VIRTIOFSD=path of its program");
    }
    let place = Place::new();
    for name in ["volume2", "volume3", "volume4", "volume5"] {
        covey_ok(&["format", place.path(name).to_str().unwrap()]);
    }
    let folder = |name: &str| {
        let folder = place.path(name);
        std::fs::create_dir(&folder).unwrap();
        folder
    };
    let on = |port: u32| address(place.folder(), "vm", port);
    let serve = |source: &Path, port, more: &[&str]| Server::start(place.folder(), source, &on(port), more);
    let over_virtiofs = |source: &Path, tag: &str, more: &[&str]| {
        Server::start(place.folder(), source, &vhost_user(place.folder(), tag), more)
    };
    let _servers = [
        over_virtiofs(&place.path("volume4"), "fs", &[]),
        over_virtiofs(&place.path("volume5"), "fsmany", &["--many"]),
        place.volume("vm", &[]),
        serve(&place.path("volume2"), 5002, &["--many"]),
        serve(&place.path("volume3"), 5003, &["--writeback"]),
    ];
    let peers: Vec<Peer> = [("always", "always"), ("auto", "auto")]
        .into_iter()
        .filter(|_| kit.virtiofsd.is_some())
        .map(|(tag, cache)| Peer { tag: tag.into(), folder: folder(tag), cache })
        .collect();
    let devices = ["fs", "fsmany"].map(|tag| Device { tag, queues: 1 });
    let mut machine = Machine::boot_with(kit, place.folder(), "vm", &peers, &devices);
    machine.attach("vsock:5001 /mnt");
    machine.attach("vsock:5002 /many");
    machine.attach("vsock:5003 /back");
    let tags = peers.iter().map(|peer| &*peer.tag).chain(devices.iter().map(|device| device.tag));
    for tag in tags {
        machine.ok(&format!("mkdir -p /{tag}; mount -t virtiofs {tag} /{tag}"));
    }
    let places: Vec<(&str, &str)> =
        PLACES.into_iter().filter(|(name, _)| kit.virtiofsd.is_some() || name.starts_with("covey")).collect();
    operations(&mut machine, &places);
    streams(&mut machine, &places);
    nested(&mut machine, &place);
}

fn operations(machine: &mut Machine, places: &[(&str, &str)]) {
    let mut table = Table::new("One operation at a time, microseconds");
    for _ in 0..ROUNDS {
        for (name, folder) in places {
            let said = machine.ok_for(&format!("in-guest operations {folder} 2>&1"), LIMIT);
            read_lines(&said).for_each(|(row, nanos)| table.least(row, name, nanos / 1000.0));
        }
    }
    table.ratio("covey", "virtiofsd, always");
    table.ratio("covey, virtiofs", "virtiofsd, always");
    table.ratio("covey, writeback", "virtiofsd, always");
    table.ratio("covey, many", "virtiofsd, auto");
    table.ratio("covey, virtiofs, many", "virtiofsd, auto");
    table.print();
}

fn streams(machine: &mut Machine, places: &[(&str, &str)]) {
    let mut table = Table::new("Streams of 8 MiB each, MiB/s");
    let compared =
        || places.iter().filter(|(name, _)| ["covey", "covey, virtiofs", "virtiofsd, always"].contains(name));
    for (size, shown) in [(128 << 10, "128K"), (1 << 20, "1M")] {
        for count in [1, 4, 8] {
            for (name, folder) in compared() {
                let said = machine.ok_for(&format!("in-guest streams {folder} {count} {size} 2>&1"), LIMIT);
                read_lines(&said)
                    .for_each(|(row, rate)| table.most(&format!("{row}, {count} x {shown}"), name, rate));
            }
        }
    }
    table.ratio("covey", "virtiofsd, always");
    table.ratio("covey, virtiofs", "virtiofsd, always");
    table.print();
}

/// Writes with fsync on the guest's mount, and on a mount of that mount.
fn nested(machine: &mut Machine, place: &Place) {
    let program = covey_tests::program::covey();
    std::fs::copy(program.get_program(), place.path("data/covey")).unwrap();
    let _programs = place.programs_at("vm", 5004);
    machine.attach("vsock:5004 /mnt2");
    machine.attach("vsock:5005 /usr");
    machine.ok("mkdir /mnt/level; ulimit -n 10000; setsid /mnt2/covey serve /mnt/level --on unix:/tmp/l2 > /tmp/serve 2>&1 &");
    machine.ok("for at in $(seq 400); do grep -q Ctrl-C /tmp/serve && exit 0; usleep 50000; done; exit 1");
    machine.attach("unix:/tmp/l2 /level2");
    let mut table = Table::new("write 4K and fsync by level in the guest, microseconds");
    for _ in 0..3 {
        for (name, folder) in [("first", "/mnt"), ("second", "/level2")] {
            let said = machine.ok_for(&format!("in-guest fsync {folder} 200 2>&1"), LIMIT);
            read_lines(&said).for_each(|(row, nanos)| table.least(row, name, nanos / 1000.0));
        }
    }
    table.ratio("second", "first");
    table.print();
}
