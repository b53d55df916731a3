//! xfstests: `XFSTESTS` is the folder of a built tree, which is not changed. `XFSTESTS_ARGS` are arguments to
//! its `check` (default `-g quick`).
//!
//! The suite works with devices and mounts them with mount(8). `as-covey.sh` hides mount, umount, df and
//! findmnt on PATH and maps devices to volumes; nothing is installed. `xfstests-excluded.txt` lists what is
//! not run, and why.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use covey_tests::{Need, requires, say};

const AS_COVEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/mounts/suites/as-covey.sh");
const EXCLUDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/mounts/suites/xfstests-excluded.txt");

/// The configuration of `check`: devices, mountpoints and options.
fn config(outside: &Path) -> PathBuf {
    for folder in ["test", "scratch", "results", "volumes", "bin"] {
        fs::create_dir_all(outside.join(folder)).unwrap();
    }
    for name in ["mount", "umount", "df", "findmnt"] {
        std::os::unix::fs::symlink(AS_COVEY, outside.join("bin").join(name)).unwrap();
    }
    let at = outside.display();
    let text = format!(
        "export FSTYP=fuse\nexport FUSE_SUBTYP=.covey\n\
         export TEST_DEV=covey:test\nexport TEST_DIR={at}/test\n\
         export SCRATCH_DEV=covey:scratch\nexport SCRATCH_MNT={at}/scratch\n\
         export TEST_FS_MOUNT_OPTS=-oallow_other\nexport MOUNT_OPTIONS=-oallow_other\n\
         export RESULT_BASE={at}/results\n"
    );
    let file = outside.join("config");
    fs::write(&file, text).unwrap();
    file
}

/// The names of the exclusion list, without its reasons.
fn excluded(outside: &Path) -> PathBuf {
    let text = fs::read_to_string(EXCLUDED).unwrap();
    let names =
        text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    let file = outside.join("excluded");
    fs::write(&file, names.fold(String::new(), |all, name| all + name + "\n")).unwrap();
    file
}

#[test]
fn every_exclusion_has_a_reason() {
    for line in fs::read_to_string(EXCLUDED)
        .unwrap()
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let (name, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        assert!(name.starts_with("generic/") && reason.trim().len() > 12, "{line}");
    }
}

#[test]
#[ignore = "hours: make test-xfstests"]
fn long_xfstests_finds_no_failure() {
    requires!(Need::Root, Need::Covey, Need::Env("XFSTESTS"));
    let outside = covey_tests::scratch();
    let (config, excluded) = (config(outside.path()), excluded(outside.path()));
    let arguments = std::env::var("XFSTESTS_ARGS").unwrap_or_else(|_| "-g quick".into());
    let path = format!("{}:{}", outside.path().join("bin").display(), std::env::var("PATH").unwrap());
    let log = outside.path().join("log");
    let mut check = Command::new("./check");
    check.current_dir(std::env::var_os("XFSTESTS").unwrap()).env("HOST_OPTIONS", config).env("PATH", path);
    check.env("VOLUMES", outside.path().join("volumes"));
    check.env("COVEY", fs::canonicalize(covey_tests::program::covey().get_program()).unwrap());
    check.arg("-E").arg(excluded).args(arguments.split_whitespace()).stdin(Stdio::null());
    // It takes long, so its output goes to the terminal as it appears, and to a file for counting.
    let mut both = Command::new("tee");
    check.stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut check = check.spawn().unwrap();
    both.arg(&log).stdin(check.stdout.take().unwrap()).status().unwrap();
    let status = check.wait().unwrap();
    for name in ["test", "scratch"] {
        covey_tests::volume::detach(&outside.path().join(name));
    }
    let printed = fs::read_to_string(log).unwrap();
    let failures = printed.lines().find(|line| line.starts_with("Failures:")).unwrap_or("");
    let not_run = printed.lines().find(|line| line.starts_with("Not run:")).unwrap_or("");
    let summary =
        printed.lines().rev().find(|line| line.starts_with("Passed all") || line.starts_with("Failed "));
    say(format_args!("{}", summary.unwrap_or("the suite did not come to its end")));
    say(format_args!(
        "not run by the suite itself: {} tests",
        not_run.split_whitespace().count().saturating_sub(2)
    ));
    assert!(
        status.success() && failures.is_empty() && summary.is_some(),
        "{failures}\nto see one of them again by itself: XFSTESTS_ARGS=generic/NNN"
    );
}
