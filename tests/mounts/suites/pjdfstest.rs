//! pjdfstest, the Rust one: `PJDFSTEST` is the path of its program.
//!
//! What is skipped, and why. In the first run: the tests of a read-only filesystem, which remount it and
//! therefore run separately a second time. And `link_count_max`, because the C library knows a limit on links
//! only for a few types of filesystem, and Covey is none of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use covey_tests::{Finished, Ground, Need, Volume, ground, need, requires, run, say};

/// `naptime` is how long the suite sleeps so that two times differ: 10 ms, so coarser times fail.
fn config(remount: bool) -> String {
    let features = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n";
    let users = "[dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
    format!(
        "{features}\n[settings]\nnaptime = 0.01\nallow_remount = {remount}\nexpected_failures = []\n\n{users}"
    )
}

fn suite(folder: &Path, outside: &Path, remount: bool) -> Finished {
    std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let file = outside.join("pjdfstest.toml");
    std::fs::write(&file, config(remount)).unwrap();
    let mut suite = Command::new(std::env::var_os("PJDFSTEST").unwrap());
    suite.arg("-c").arg(&file).arg("-p").arg(folder).current_dir(folder);
    if remount {
        suite.arg("erofs").env("PATH", path_with_plain_mount(outside));
    } else if ground() == Ground::Covey {
        // Another filesystem, for EXDEV. On a plain ground it would be the same one.
        suite.arg("-s").arg(outside);
    }
    run(&mut suite, Duration::from_secs(900))
}

/// The suite remounts with mount(8), which would start the mount helper of this type of filesystem. With `-i`
/// it asks the kernel directly.
fn path_with_plain_mount(outside: &Path) -> std::ffi::OsString {
    let bin = outside.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let mount = need::which("mount").unwrap();
    let script = outside.join("mount");
    std::fs::write(&script, format!("#!/bin/sh\nexec {} -i \"$@\"\n", mount.display())).unwrap();
    covey_tests::program::install(&script, &bin.join("mount"));
    let rest = std::env::var("PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(bin).chain(rest.split(':').map(PathBuf::from))).unwrap()
}

/// The numbers of failed, skipped and passed tests, from the suite's last lines.
fn counts(done: &Finished) -> [u64; 3] {
    let summary = done.stdout.lines().rev().find_map(|line| line.trim().strip_prefix("Summary: "));
    let summary = summary.unwrap_or_else(|| panic!("no summary: {done:?}"));
    ["failed", "skipped", "passed"].map(|what| {
        let part = summary.split(", ").find_map(|part| part.strip_suffix(what));
        part.unwrap_or("0").trim().parse().unwrap()
    })
}

fn lines_with<'a>(done: &'a Finished, word: &str) -> Vec<&'a str> {
    done.stdout.lines().filter(|line| line.trim_end().ends_with(word)).collect()
}

fn on_a_mount(remount: bool) -> (Finished, [u64; 3]) {
    let volume = Volume::new();
    let mounted = volume.mount_with(&["allow_other"]);
    let folder = mounted.join("suite");
    std::fs::create_dir(&folder).unwrap();
    // Outside the mount, and open to the suite's users.
    let outside = covey_tests::scratch();
    std::fs::set_permissions(outside.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let done = suite(&folder, outside.path(), remount);
    let counts = counts(&done);
    mounted.umount();
    volume.must_be_clean();
    (done, counts)
}

#[test]
fn pjdfstest_finds_no_failure() {
    requires!(Need::Root, Need::Mount, Need::Env("PJDFSTEST"));
    let (done, [failed, skipped, passed]) = on_a_mount(false);
    let skips = lines_with(&done, "skipped");
    assert!(failed == 0, "{failed} failed:\n{}", done.stdout);
    let unexplained: Vec<_> = skips
        .iter()
        .filter(|line| {
            !line.contains("erofs")
                && !line.contains("link_count_max")
                && (ground() == Ground::Covey || !line.contains("exdev"))
        })
        .collect();
    assert!(unexplained.is_empty(), "skipped without a reason: {unexplained:#?}");
    say(format_args!(
        "pjdfstest: {passed} passed, {failed} failed, {skipped} skipped (read-only remounts, run apart; a limit that the C library does not know)"
    ));
}

#[test]
fn pjdfstest_finds_no_failure_when_remounting_read_only() {
    requires!(Need::Root, Need::Covey, Need::Env("PJDFSTEST"));
    let (done, [failed, skipped, passed]) = on_a_mount(true);
    assert!(failed == 0 && skipped == 0 && passed > 0, "{}", done.stdout);
    say(format_args!("pjdfstest, read-only remounts: {passed} passed"));
}
