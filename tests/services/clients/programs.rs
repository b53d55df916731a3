//! Programs that verify what they wrote: fio, git, stress-ng.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use covey_tests::{Need, Volume, requires, run, run_ok, say};

const LIMIT: Duration = Duration::from_secs(1_800);

fn fio(folder: &Path, extra: &[&str]) {
    let mut fio = Command::new("fio");
    fio.arg("--name=verify").arg("--directory").arg(folder).current_dir(folder);
    fio.args(["--rw=randwrite", "--bs=4k", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"]);
    // New bytes each time, because a store that keeps equal blobs once would otherwise store almost nothing.
    fio.args(["--randrepeat=0", "--refill_buffers", "--fallocate=none", "--unlink=1"]).args(extra);
    run_ok(&mut fio, LIMIT);
}

#[test]
fn fio_verifies_random_writes() {
    requires!(Need::Mount, Need::Program("fio"));
    let volume = Volume::new();
    let mounted = volume.mount();
    fio(mounted.path(), &["--size=64m", "--ioengine=psync"]);
    fio(mounted.path(), &["--size=16m", "--ioengine=mmap"]);
    fio(
        mounted.path(),
        &["--size=16m", "--ioengine=psync", "--direct=1", "--bsrange=4k-128k", "--blockalign=4k"],
    );
    mounted.umount();
    volume.must_be_clean();
}

#[test]
#[ignore = "minutes: make test-workloads"]
fn long_fio_verifies_four_gib_of_random_overwrites() {
    requires!(Need::Mount, Need::Program("fio"), Need::Free(8 << 30));
    let volume = Volume::new();
    let mounted = volume.mount();
    fio(mounted.path(), &["--size=512m", "--loops=8", "--ioengine=psync", "--do_verify=0"]);
    fio(mounted.path(), &["--size=512m", "--loops=1", "--ioengine=psync"]);
    fio(mounted.path(), &["--size=256m", "--ioengine=libaio", "--iodepth=16", "--direct=1", "--numjobs=2"]);
    mounted.umount();
    volume.must_be_clean();
}

fn git(folder: &Path, args: &[&str]) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["-c", "user.name=Test", "-c", "user.email=test@example.org"]);
    git.args(["-c", "init.defaultBranch=main", "-c", "gc.auto=0", "-c", "safe.directory=*"]).args(args);
    run_ok(git.env("GIT_CONFIG_NOSYSTEM", "1"), LIMIT).stdout
}

#[test]
fn git_finds_nothing_wrong_with_its_clones() {
    requires!(Need::Mount, Need::Program("git"));
    let volume = Volume::new();
    let mounted = volume.mount();
    let first = mounted.join("first");
    std::fs::create_dir(&first).unwrap();
    git(&first, &["init", "--quiet"]);
    let headers = Path::new("/usr/include/linux");
    let source = if headers.is_dir() { headers } else { Path::new(env!("CARGO_MANIFEST_DIR")) };
    run_ok(Command::new("cp").arg("-r").arg(source).arg(first.join("tree")), LIMIT);
    git(&first, &["add", "."]);
    git(&first, &["commit", "--quiet", "-m", "all"]);
    git(mounted.path(), &["clone", "--quiet", "--no-hardlinks", "first", "second"]);
    git(mounted.path(), &["clone", "--quiet", "--bare", "second", "third"]);
    for clone in ["first", "second", "third"] {
        git(&mounted.join(clone), &["gc", "--quiet"]);
        git(&mounted.join(clone), &["fsck", "--full", "--strict"]);
    }
    assert_eq!(git(&mounted.join("second"), &["status", "--porcelain"]), "");
    mounted.umount();
    let mounted = volume.mount();
    git(&mounted.join("second"), &["fsck", "--full", "--strict"]);
    assert_eq!(git(&mounted.join("second"), &["status", "--porcelain"]), "");
    mounted.umount();
    volume.must_be_clean();
}

/// Runs stress-ng and fails if one of its stressors does. A stressor that this kernel or filesystem lacks is
/// no failure.
fn stress(folder: &Path, args: &[&str]) {
    let mut stress = Command::new("stress-ng");
    stress.arg("--temp-path").arg(folder).current_dir(folder);
    stress.args(["--verify", "--metrics-brief", "--oomable"]).args(args);
    let done = run(&mut stress, LIMIT);
    const NOT_IMPLEMENTED: i32 = 4;
    assert!([0, NOT_IMPLEMENTED].contains(&done.code()), "{done:#?}");
    say(format_args!("stress-ng {}: done", args.join(" ")));
}

#[test]
fn stress_ng_finds_nothing_wrong() {
    requires!(Need::Mount, Need::Program("stress-ng"));
    let volume = Volume::new();
    let mounted = volume.mount();
    for stressor in [
        "dentry",
        "rename",
        "link",
        "symlink",
        "flock",
        "fallocate",
        "utime",
        "xattr",
        "chmod",
        "copy-file",
        "locka",
    ] {
        stress(mounted.path(), &[&format!("--{stressor}"), "1", "-t", "1"]);
    }
    mounted.umount();
    volume.must_be_clean();
}

#[test]
#[ignore = "minutes: make test-workloads"]
fn long_stress_ng_filesystem_class_finds_nothing_wrong() {
    requires!(Need::Mount, Need::Program("stress-ng"));
    let volume = Volume::new();
    let mounted = volume.mount();
    // binderfs is a filesystem of its own, which most kernels lack. stress-ng reports its absence as a lack
    // of resources.
    let class = ["--class", "filesystem", "--exclude", "binderfs", "--sequential", "2", "-t", "5"];
    stress(mounted.path(), &class);
    mounted.umount();
    volume.must_be_clean();
}
