//! The `posixtest` package of go-fuse. `POSIXTEST` is the path of a compiled `tests/posixtest`; without it,
//! Go compiles one.
//!
//! Two entries are skipped. `FcntlFlockLocksFile` expects lock requests to reach the filesystem, but on an
//! exclusive mount the kernel keeps the locks (docs/SEMANTICS.md says why). Our own tests and stress-ng show
//! that locks work. `OpenSymlinkRace` tests for a server that follows symlinks by itself, which Covey never
//! does. The behaviour that it takes as proof is what open(2) does on every filesystem, so it fails on a
//! plain ext4 too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use covey_tests::{Need, Volume, requires, run, say};

const LIMIT: Duration = Duration::from_secs(600);
const SKIPPED: &str = "TestPosix/(FcntlFlockLocksFile|OpenSymlinkRace)";

/// The path of the compiled tests, or why there are none.
fn program(outside: &Path) -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("POSIXTEST") {
        return Ok(path.into());
    }
    if let Some(lacking) = Need::Program("go").lacking() {
        return Err(lacking);
    }
    let program = outside.join("posix.test");
    let mut go = Command::new("go");
    go.args(["test", "-c", "-o"]).arg(&program).arg(".");
    go.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/posixtest"));
    let built = run(&mut go, LIMIT);
    if built.status.success() {
        Ok(program)
    } else {
        Err(format!("go-fuse's posixtest: {}", built.stderr.trim()))
    }
}

#[test]
#[ignore = "needs Go or POSIXTEST=: make test-posix"]
fn long_posixtest_finds_no_failure() {
    requires!(Need::Mount);
    let outside = covey_tests::scratch();
    let program = match program(outside.path()) {
        Ok(program) => program,
        Err(lacking) => return say(format_args!("skipped: lacks {lacking}")),
    };
    let volume = Volume::new();
    let mounted = volume.mount();
    let folder = mounted.join("suite");
    std::fs::create_dir(&folder).unwrap();
    let mut suite = Command::new(program);
    suite.args(["-test.v", "-test.skip", SKIPPED]).env("POSIX_DIR", &folder).current_dir(outside.path());
    let done = run(&mut suite, LIMIT);
    let passed = done.stdout.lines().filter(|line| line.starts_with("    --- PASS")).count();
    let skips: Vec<_> = done.stdout.lines().filter(|line| line.contains("--- SKIP")).collect();
    assert!(done.status.success() && passed > 20, "{}\n{}", done.stdout, done.stderr);
    say(format_args!("posixtest: {passed} passed, skipped: {skips:?} and {SKIPPED}"));
    mounted.umount();
    volume.must_be_clean();
}
