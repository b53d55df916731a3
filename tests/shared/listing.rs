//! What listings cost, in requests of the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use covey_tests::program::{covey, run_ok};
use covey_tests::shared::{Node, Shared};
use covey_tests::{Need, requires, say};
use servers::Server;

const DIRS: u64 = 20;
const FILES: u64 = 150;

/// How often the kernel has sent each kind of request to a node.
fn requests(node: &Node) -> BTreeMap<String, u64> {
    let mut status = covey();
    status.args(["status", "--json"]).arg(&node.mountpoint);
    let said = run_ok(&mut status, Duration::from_secs(30)).json();
    let kinds = said["served"]["requests_by_kind"].as_object().expect("requests by kind").clone();
    kinds.into_iter().map(|(kind, count)| (kind, count.as_u64().unwrap())).collect()
}

/// The requests of a work, by kind.
fn during(node: &Node, work: impl FnOnce()) -> impl Fn(&str) -> u64 {
    let before = requests(node);
    work();
    let after = requests(node);
    println!("before {before:?}\nafter {after:?}");
    move |kind: &str| {
        after.get(kind).copied().unwrap_or_default() - before.get(kind).copied().unwrap_or_default()
    }
}

/// A volume with folders of files, which a node has just mounted that did not make them.
fn volume() -> Option<Shared> {
    let server = Server::start()?;
    let mut shared = Shared::new(server, 1);
    for dir in 0..DIRS {
        let at = shared.path(0, &format!("d{dir:02}"));
        fs::create_dir(&at).unwrap();
        (0..FILES).for_each(|file| drop(fs::File::create_new(at.join(format!("f{file:03}"))).unwrap()));
    }
    shared.nodes[0].unmount();
    shared.add();
    Some(shared)
}

/// Each file of a listing with attributes was a LOOKUP, since the kernel got names without attributes. Two
/// more requests of each were for attributes that no file had: see the next test.
#[test]
fn regression_a_listing_with_attributes_looks_no_file_up() {
    requires!(Need::Covey);
    let Some(shared) = volume() else { return say(format_args!("skipped: lacks PostgreSQL's server")) };
    let list = || {
        let mut found = 0;
        let mut dirs = vec![shared.path(1, "")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap().map(Result::unwrap) {
                let stat = entry.metadata().unwrap();
                found += u64::from(stat.is_file());
                stat.is_dir().then(|| dirs.push(entry.path()));
            }
        }
        assert_eq!(found, DIRS * FILES);
    };
    for turn in ["cold", "again"] {
        let came = during(&shared.nodes[1], list);
        // A busy machine may take longer for some files than the kernel keeps their names.
        let asked = came("LOOKUP") + came("GETATTR");
        assert!(asked < DIRS * FILES / 3, "{turn}: {asked} requests for the names of {} files", DIRS * FILES);
        assert!(came("READDIRPLUS") >= DIRS, "{turn}: {} READDIRPLUS", came("READDIRPLUS"));
    }
}

/// ls(1) asked each file for its SELinux label, although no kernel that has none uses them.
#[test]
fn regression_ls_asks_once_for_labels() {
    requires!(Need::Covey);
    let Some(shared) = volume() else { return say(format_args!("skipped: lacks PostgreSQL's server")) };
    let ls = || {
        let done = Command::new("ls").arg("-lR").arg(shared.path(1, "")).output().unwrap();
        let lines = String::from_utf8(done.stdout).unwrap();
        assert_eq!(lines.lines().filter(|line| line.starts_with('-')).count() as u64, DIRS * FILES);
    };
    let came = during(&shared.nodes[1], ls);
    // One for the ACL of each file, and two for those of a folder. Newer programs ask for a list instead.
    let asked = came("GETXATTR") + came("LISTXATTR");
    assert!(asked <= DIRS * FILES + 3 * DIRS + 10, "{asked} requests for attributes");
}
