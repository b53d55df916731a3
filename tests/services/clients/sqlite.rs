//! SQLite on the mount, through kill -9 of the daemon.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use covey_tests::program::wait;
use covey_tests::{Ground, Need, Rng, Volume, ground, requires, run_ok, say, seeds};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/services/clients/sqlite.py");

/// Commits until the daemon is killed, and something at least if that `must` be. Returns the highest row
/// whose commit returned, and what the client found at its start.
fn work_and_kill(volume: &Volume, mode: &str, pause: Duration, must: bool) -> (u64, String) {
    let mounted = volume.mount();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut client = Command::new("python3");
    client.arg(SCRIPT).arg("work").arg(mounted.join("db")).arg(mode);
    let text_of = |file: &tempfile::NamedTempFile| std::fs::read_to_string(file.path()).unwrap();
    let complaints = tempfile::NamedTempFile::new().unwrap();
    client.stdout(log.reopen().unwrap()).stderr(complaints.reopen().unwrap());
    let mut client = client.spawn().unwrap();
    std::thread::sleep(pause);
    // On a busy machine the first commit may take longer.
    let end = Instant::now() + Duration::from_secs(120);
    while must && text_of(&log).is_empty() && client.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "nothing is committed");
        std::thread::sleep(Duration::from_millis(10));
    }
    if client.try_wait().unwrap().is_some() {
        let said = text_of(&complaints);
        panic!("the client ended before the daemon was killed: {said}\n{}", volume.log());
    }
    let below = mounted.path().to_owned();
    mounted.kill();
    // The client ends by itself at its next call. On a plain folder nothing stops it.
    let ended = volume.fsck().is_some() && wait(&mut client, Duration::from_secs(30)).is_some();
    if !ended {
        client.kill().ok();
        client.wait().unwrap();
    }
    if !ended && ground() == Ground::Covey {
        // On a busy machine the client may start only after the mount has gone, and then uses the folder
        // below it.
        assert!(below.join("db").exists(), "the client hangs on a mount whose daemon is dead");
        std::fs::remove_dir_all(&below).and_then(|()| std::fs::create_dir(&below)).unwrap();
        return (0, "the client came too late".into());
    }
    let printed = std::fs::read_to_string(log.path()).unwrap();
    // A last line without a newline was not printed completely.
    let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let top = whole.lines().last().map_or(0, |line| line.parse().unwrap());
    (top, text_of(&complaints).lines().next().unwrap_or("").to_owned())
}

fn check(database: &Path, least: u64) {
    let mut check = Command::new("python3");
    check.arg(SCRIPT).arg("check").arg(database).arg(least.to_string());
    run_ok(&mut check, Duration::from_secs(120));
}

fn rounds(mode: &str, first: u64, rounds: u64) {
    let volume = Volume::new();
    let mut committed = 0;
    for seed in seeds(first, rounds) {
        let pause = Duration::from_millis(400 + Rng::new(seed).below(1_500));
        let (top, found) = work_and_kill(&volume, mode, pause, committed == 0);
        let was = committed;
        committed = top.max(committed);
        // A client that begins with an empty database has found another database than the one that was
        // checked a moment before.
        assert!(
            top == 0 || top >= was,
            "seed {seed}: {was} rows were there, then {top}; {found}\n{}",
            volume.log()
        );
        let mounted = volume.mount();
        if committed > 0 {
            check(&mounted.join("db"), committed);
        }
        mounted.umount();
        volume.must_be_clean();
    }
    assert!(committed > 0, "nothing was ever committed");
    say(format_args!("{mode}: {rounds} kills, {committed} rows committed and there"));
}

#[test]
fn sqlite_recovers_after_kill_9() {
    requires!(Need::Mount, Need::PythonSqlite);
    rounds("delete", 1, 2);
    rounds("wal", 2, 2);
}

#[test]
#[ignore = "minutes: make test-workloads"]
fn long_sqlite_recovers_after_kill_9() {
    requires!(Need::Mount, Need::PythonSqlite);
    for (first, mode) in [(100, "delete"), (200, "wal"), (300, "truncate"), (400, "persist")] {
        rounds(mode, first, 15);
    }
}
