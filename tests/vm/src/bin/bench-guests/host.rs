//! What the stream costs without a virtual machine: a guest on the same kernel, beside the volume's own
//! mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use covey_tests::program::covey;
use covey_tests::volume::detach;
use covey_tests::{Volume, run_ok};
use vms::kit::Kit;
use vms::process::{Process, until};
use vms::serve::{Place, Server};

use crate::table::{Table, read_lines};

const LIMIT: Duration = Duration::from_secs(100);
/// Workers, and files of 4 KiB of all workers together.
const LOAD: [&str; 2] = ["256", "1024"];
const ROUNDS: usize = 3;

/// `covey attach` on the host. It ends with the measurement.
struct Attached {
    process: Process,
    path: PathBuf,
}

impl Attached {
    fn new(place: &Place, name: &str, address: &str, more: &[&str]) -> Attached {
        let path = place.path(name);
        std::fs::create_dir_all(&path).unwrap();
        let mut command = covey();
        command.arg("attach").arg(address).arg(&path).args(more);
        let attached = Attached { process: Process::start(&mut command, &place.path("attach.log")), path };
        until("it is mounted", || covey_tests::proc::is_fuse_mount(&attached.path));
        attached
    }

    fn end(mut self) {
        assert_eq!(self.process.end(), 0, "{}", self.process.log());
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        detach(&self.path);
    }
}

fn measure(kit: &Kit, words: &[&str], folder: &Path, each: impl FnMut((&str, f64))) {
    let mut command = Command::new(&kit.in_guest);
    command.arg(words[0]).arg(folder).args(&words[1..]);
    read_lines(&run_ok(&mut command, LIMIT).stdout).for_each(each);
}

fn unix(place: &Place, name: &str) -> String {
    format!("unix:{}", place.path(name).display())
}

/// Many workers and small files, by the number of threads that read the kernel's requests.
pub fn parallel(kit: &Kit) {
    let place = Place::new();
    let mut table = Table::new("1,024 files of 4 KiB by 256 workers on the host, microseconds per file");
    let words = ["parallel", LOAD[0], LOAD[1]];
    let volume = Volume::existing(place.folder());
    for _ in 0..ROUNDS {
        let mounted = volume.mount();
        let mut best = |row: &str, name: &str, nanos: f64| table.least(row, name, nanos / 1000.0);
        measure(kit, &words, mounted.path(), |(row, nanos)| best(row, "mount", nanos));
        mounted.umount();
        let server = Server::start(place.folder(), &place.path("volume"), &unix(&place, "s"), &[]);
        for readers in ["1", "2", "4", "8", "16", "32", "64"] {
            let attached = Attached::new(&place, "guest", &unix(&place, "s"), &["--readers", readers]);
            let name = format!("{readers} readers");
            measure(kit, &words, &attached.path, |(row, nanos)| best(row, &name, nanos));
            attached.end();
        }
        server.end();
    }
    ["1", "4", "64"].iter().for_each(|readers| table.ratio(&format!("{readers} readers"), "mount"));
    table.print();
}

/// Writes with fsync on the volume's own mount, in a guest of it, and in a guest of that guest.
pub fn fsync(kit: &Kit) {
    let place = Place::new();
    let mut table = Table::new("write 4K and fsync by level on the host, microseconds");
    let volume = Volume::existing(place.folder());
    let words = ["fsync", "500"];
    for _ in 0..ROUNDS {
        let mut best = |row: &str, name: &str, nanos: f64| table.least(row, name, nanos / 1000.0);
        let mounted = volume.mount();
        measure(kit, &words, mounted.path(), |(row, nanos)| best(row, "mount", nanos));
        mounted.umount();
        let server = Server::start(place.folder(), &place.path("volume"), &unix(&place, "s"), &[]);
        let first = Attached::new(&place, "first", &unix(&place, "s"), &[]);
        measure(kit, &words, &first.path, |(row, nanos)| best(row, "guest", nanos));
        let nested = Server::start(place.folder(), &first.path, &unix(&place, "s2"), &[]);
        let second = Attached::new(&place, "second", &unix(&place, "s2"), &[]);
        measure(kit, &words, &second.path, |(row, nanos)| best(row, "guest of the guest", nanos));
        second.end();
        nested.end();
        first.end();
        server.end();
    }
    table.ratio("guest", "mount");
    table.ratio("guest of the guest", "guest");
    table.print();
}
