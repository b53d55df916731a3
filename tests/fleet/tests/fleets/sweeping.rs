//! Nothing is left behind, even when a test is killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nets::{Fleet, How, Tree, requires_nets};

/// Not a test: the process that is killed. It prints what it has created, and waits.
#[test]
fn helper_that_is_killed() {
    if std::env::var_os("COVEY_FLEET_HELPER").is_none() {
        return;
    }
    let mut fleet = Fleet::new(Tree::of_tests(), 2, 1, &How::default());
    fleet.start();
    // Stopped processes must be removed, too.
    fleet.nodes[1].freeze();
    println!("\nmade {} {}", fleet.nodes[0].port.space(), fleet.net.folder().display());
    std::thread::sleep(Duration::from_secs(600));
}

fn mounts() -> String {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap()
}

#[test]
fn kill_9_of_a_test_leaves_nothing() {
    requires_nets!();
    let mut helper = Command::new(std::env::current_exe().unwrap());
    helper.args(["--exact", "sweeping::helper_that_is_killed", "--nocapture"]).env("COVEY_FLEET_HELPER", "1");
    let mut helper = helper.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    let made = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("made ").map(str::to_owned));
    let made = made.expect("the helper says what it has made");
    let (space, folder) = made.split_once(' ').unwrap();
    let tag = space.rsplit_once('-').unwrap().0;
    assert!(Path::new("/run/netns").join(space).exists());
    assert_eq!(mounts().matches(folder).count(), 2);
    helper.kill().unwrap();
    helper.wait().unwrap();
    let spaces = || {
        let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        names.filter(|entry| entry.file_name().to_string_lossy().starts_with(tag)).count()
    };
    let end = Instant::now() + Duration::from_secs(60);
    while spaces() > 0 || mounts().contains(folder) || Path::new(folder).exists() {
        assert!(Instant::now() < end, "{} namespaces, {folder}:\n{}", spaces(), mounts());
        std::thread::sleep(Duration::from_millis(50));
    }
}
