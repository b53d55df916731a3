//! Quotas of folders, as programs on a mount meet them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use covey_tests::program::{covey, covey_ok, covey_run, run_ok};
use covey_tests::{Need, Rng, Volume, requires};

const PATIENCE: Duration = Duration::from_secs(120);

fn set(folder: &Path, words: &[&str]) {
    run_ok(covey().args(["quota", "set"]).arg(folder).args(words), PATIENCE);
}

/// What `covey quota ls --json` says of a folder's own quota.
fn quota(folder: &Path) -> serde_json::Value {
    let said = run_ok(covey().args(["--json", "quota", "ls"]).arg(folder), PATIENCE);
    let all: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let own = |quota: &&serde_json::Value| quota["path"].as_str().map(Path::new) == Some(folder);
    all.as_array().unwrap().iter().find(own).unwrap_or_else(|| panic!("no quota of its own: {all}")).clone()
}

/// The sum of what du(1) counts below a folder: bytes of blocks, and everything in it.
fn counted(folder: &Path) -> (u64, u64) {
    let mut sum = (0, 0);
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let about = entry.metadata().unwrap();
        sum = (sum.0 + about.blocks() * 512, sum.1 + 1);
        if about.is_dir() {
            let inner = counted(&entry.path());
            sum = (sum.0 + inner.0, sum.1 + inner.1);
        }
    }
    sum
}

fn errno(error: &std::io::Error) -> Option<i32> {
    error.raw_os_error()
}

#[test]
fn a_folder_is_kept_within_its_quota() {
    requires!(Need::Covey, Need::Program("git"));
    let volume = Volume::new();
    let mounted = volume.mount();
    let team = mounted.join("team");
    fs::create_dir_all(team.join("deep/er")).unwrap();
    let bytes = Rng::new(5).bytes(3_000_000);
    fs::write(team.join("deep/er/large"), &bytes).unwrap();
    for n in 0..50 {
        fs::write(team.join(format!("deep/{n}")), &bytes[..n * 20]).unwrap();
    }
    set(&team, &["--bytes", "8M", "--files", "100"]);
    let (blocks, files) = counted(&team);
    let known = quota(&team);
    assert_eq!(known["files"].as_u64(), Some(files), "{known}");
    // du(1) rounds each file up to 512 bytes.
    let stored = known["bytes"].as_u64().unwrap();
    assert!(stored <= blocks && blocks - stored < files * 512, "{known}, du says {blocks}");

    // A program that leaves its bytes to the kernel meets the limit at fsync(2).
    let mut file = File::create(team.join("later")).unwrap();
    let failed = (0..10).find_map(|_| file.write_all(&bytes[..1 << 20]).err());
    let failed = failed.or_else(|| file.sync_all().err());
    assert_eq!(failed.as_ref().and_then(errno), Some(libc::ENOSPC), "{failed:?}");
    drop(file);
    assert!(quota(&team)["bytes"].as_u64().unwrap() <= 8 << 20);
    fs::write(mounted.join("outside"), &bytes).expect("outside there is room");

    fs::remove_file(team.join("later")).unwrap();
    assert_eq!(quota(&team)["bytes"].as_u64(), Some(stored), "what was removed does not count");
    let failed = (0..100).find_map(|n| fs::create_dir(team.join(format!("dir{n}"))).err());
    assert_eq!(failed.as_ref().and_then(errno), Some(libc::EDQUOT), "{failed:?}");
    assert_eq!(counted(&team).1, 100);

    let about = rustix::fs::statvfs(&team).unwrap();
    assert_eq!((about.f_blocks * about.f_frsize, about.f_files, about.f_ffree), (8 << 20, 100, 0));

    // A kill loses nothing of what is counted.
    let known = quota(&team);
    File::open(&team).unwrap().sync_all().unwrap();
    mounted.kill();
    let mounted = volume.mount();
    assert_eq!(quota(&mounted.join("team")), known);
    let moved = fs::rename(mounted.join("team/deep/er/large"), mounted.join("large"));
    assert_eq!(moved.as_ref().err().and_then(errno), Some(libc::EXDEV));
    run_ok(
        std::process::Command::new("mv").arg(team.join("deep/er/large")).arg(mounted.join("large")),
        PATIENCE,
    );
    assert!(fs::read(mounted.join("large")).unwrap() == bytes);
    mounted.umount();

    // Where the kernel keeps nothing back, write(2) meets the limit.
    let mounted = volume.mount_with(&["writeback=off"]);
    let mut file = File::create(team.join("deep/1")).unwrap();
    let failed = (0..10).find_map(|_| file.write_all(&bytes[..1 << 20]).err());
    assert_eq!(failed.as_ref().and_then(errno), Some(libc::EDQUOT), "{failed:?}");
    drop(file);
    run_ok(covey().args(["quota", "rm"]).arg(&team), PATIENCE);
    fs::write(team.join("large"), &bytes).unwrap();
    mounted.umount();
    volume.must_be_clean();
}

#[test]
fn mistakes_are_named() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount();
    fs::write(mounted.join("file"), "x").unwrap();
    fs::create_dir(mounted.join("dir")).unwrap();
    let at = |name: &str| mounted.join(name).display().to_string();
    for (words, said) in [
        (vec!["set".to_owned(), at("file"), "--bytes".into(), "1G".into()], "only folders have quotas"),
        (vec!["set".to_owned(), at("none"), "--bytes".into(), "1G".into()], "is not there"),
        (vec!["set".to_owned(), at("dir"), "--bytes".into(), "1Q".into()], "is no size"),
        (vec!["set".to_owned(), at("dir"), "--files".into(), "12x".into()], "is no number"),
        (vec!["set".to_owned(), at("dir"), "--bytes".into(), "none".into()], "limits nothing"),
        (vec!["rm".to_owned(), at("dir")], "has no quota of its own"),
        (vec!["ls".to_owned(), "/proc".into()], "is not a Covey volume"),
    ] {
        let done = covey_run(&[&["quota".to_owned()], &words[..]].concat());
        assert!(!done.status.success() && done.stderr.contains(said), "{words:?}: {done:?}");
    }
    let said = covey_ok(&["quota", "ls", &at("")]);
    assert!(said.stdout.contains("No quota limits"), "{said:?}");
    mounted.umount();
}
