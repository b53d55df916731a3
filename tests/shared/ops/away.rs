//! Commands while the database is away: each says so, since when, and whether it has changed anything.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use covey_tests::program::{Finished, covey, run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};
use servers::Server;

use super::gate::{Gate, Then};
use super::publish::LIMIT;

/// A volume behind a relay, with a file, a quota and something in the trash.
fn world(server: Server) -> (Shared, Gate) {
    let gate = Gate::new(server.port(), u64::MAX, Then::Cut);
    let shared = Shared::through(server, gate.port(), 1);
    fs::create_dir(shared.path(0, "dir")).unwrap();
    fs::write(shared.path(0, "dir/file"), "1").unwrap();
    let mount = shared.path(0, "");
    run_ok(covey().args(["quota", "set", "--files", "100"]).arg(shared.path(0, "dir")), LIMIT);
    run_ok(covey().args(["trash", "set"]).arg(&mount).arg("7d"), LIMIT);
    fs::write(shared.path(0, "removed"), "2").unwrap();
    fs::remove_file(shared.path(0, "removed")).unwrap();
    run_ok(covey().arg("flush").arg(&mount), LIMIT);
    (shared, gate)
}

fn together(commands: Vec<Command>) -> Vec<Finished> {
    let running: Vec<_> =
        commands.into_iter().map(|mut one| std::thread::spawn(move || run(&mut one, LIMIT))).collect();
    running.into_iter().map(|one| one.join().unwrap()).collect()
}

/// A command line in which MNT is the mountpoint.
fn words(line: &str, mount: &Path) -> Command {
    let mut command = covey();
    let place = |rest: &str| mount.join(rest.trim_start_matches('/')).to_str().unwrap().to_owned();
    command.args(line.split(' ').map(|word| word.strip_prefix("MNT").map_or(word.to_owned(), place)));
    command
}

const CLONE: &str = "clone MNT/dir MNT/copy";
const RESTORE: &str = "trash restore MNT MNT/removed";

/// Runs these lines at the same time. Returns those that say that nothing was changed.
fn all_say_so<'a>(lines: &[(&'a str, &[&str])], mount: &Path, server: &str) -> Vec<&'a str> {
    let all = together(lines.iter().map(|(line, _)| words(line, mount)).collect());
    let mut unchanged = Vec::new();
    for ((line, said), done) in lines.iter().zip(all) {
        let text = &done.stderr;
        assert_eq!(done.code(), 1, "{line}: {done:?}");
        for part in ["database", server, "next: ", "covey doctor 'postgres://", "the same command again"] {
            assert!(text.contains(part), "{line} does not say {part}: {text}");
        }
        assert!(said.iter().any(|said| text.contains(said)), "{line}: {text}");
        unchanged.extend(text.contains("nothing was changed").then_some(*line));
        assert!(!text.contains("input/output error") && !text.contains("covey umount"), "{line}: {text}");
    }
    unchanged
}

/// What each line says beside the database: whether it has changed something.
const CHANGES: &[&str] = &["nothing was changed", "it is not known whether"];
/// The commands that ask the daemon.
const LINES: [(&str, &[&str]); 14] = [
    ("quota ls MNT", &[""]),
    ("quota set --bytes 1G MNT/dir", CHANGES),
    ("quota rm MNT/dir", CHANGES),
    (CLONE, CHANGES),
    ("trash ls MNT", &[""]),
    (RESTORE, CHANGES),
    ("trash empty MNT", CHANGES),
    ("trash set MNT 3d", CHANGES),
    ("publish MNT nightly", CHANGES),
    ("unpublish MNT nightly", CHANGES),
    ("gc MNT", &[""]),
    ("status MNT", &[""]),
    ("info MNT/dir/file", &[""]),
    ("hint MNT/dir/file", &[""]),
];

/// The database is back: the node joins again, and what was said holds.
fn back(shared: &Shared, gate: &Gate, unchanged: &[&str]) {
    gate.open();
    let mount = shared.path(0, "");
    let until = Instant::now() + LIMIT;
    while !run(&mut words("quota ls MNT", &mount), LIMIT).status.success() {
        assert!(Instant::now() < until, "the node does not join again");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(!unchanged.contains(&CLONE) || !shared.path(0, "copy").exists());
    assert!(!unchanged.contains(&RESTORE) || !shared.path(0, "removed").exists());
}

/// The commands said "input/output error" only.
#[test]
fn regression_commands_say_that_the_database_is_away() {
    requires!(Need::Root, Need::Covey);
    let (shared, gate) = world(requires_server!());
    let (mount, server) = (shared.path(0, ""), format!("127.0.0.1:{}", gate.port()));
    gate.shut_after(0);
    let until = Instant::now() + LIMIT;
    while !shared.nodes[0].log().contains("the session cannot be renewed") {
        assert!(Instant::now() < until, "{}", shared.nodes[0].log());
        std::thread::sleep(Duration::from_millis(50));
    }
    let unchanged = all_say_so(&LINES, &mount, &server);
    all_say_so(&[("fsck MNT", &[""]), ("sessions MNT", &[""]), ("locks MNT", &[""])], &mount, &server);
    back(&shared, &gate, &unchanged);
}

/// A command that began when the database went away waited for the mount, and then said that the daemon does
/// not answer.
#[test]
#[ignore = "waits for the mount, half a minute: make test-shared"]
fn regression_commands_that_begin_as_the_database_goes_away_say_so() {
    requires!(Need::Root, Need::Covey);
    let (shared, gate) = world(requires_server!());
    let (mount, server) = (shared.path(0, ""), format!("127.0.0.1:{}", gate.port()));
    gate.shut_after(0);
    let unchanged = all_say_so(&LINES, &mount, &server);
    back(&shared, &gate, &unchanged);
}
