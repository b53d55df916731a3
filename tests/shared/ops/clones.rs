//! `covey clone` on a shared volume.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::{Node, Shared};
use covey_tests::{Need, Rng, requires, requires_server, say};

use super::collect::{gc, stored, synced, until};
use super::publish::{LIMIT, same};

fn sound(shared: &Shared) {
    let done = run(covey().args(["fsck", &shared.address]), LIMIT);
    assert_eq!(done.code(), 0, "{}{}", done.stdout, done.stderr);
}

/// What another node has acknowledged before the command begins is in the clone. Both change their own.
#[test]
fn a_clone_has_what_another_node_has_just_written() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    let mut rng = Rng::new(21);
    fs::create_dir(shared.path(0, "tree")).unwrap();
    fs::create_dir(shared.path(0, "tree/deep")).unwrap();
    for round in 0..5 {
        for n in 0..40 {
            let len = [100, 5_000, 200_000][n % 3] + round;
            fs::write(shared.path(0, &format!("tree/deep/file{round}-{n}")), rng.bytes(len)).unwrap();
        }
        fs::hard_link(shared.path(0, "tree/deep/file0-0"), shared.path(0, &format!("tree/link{round}")))
            .unwrap();
        let to = shared.path(1, &format!("copy{round}"));
        let done =
            run_ok(covey().args(["clone", "--json"]).arg(shared.path(1, "tree")).arg(&to), LIMIT).json();
        // The tree, the folder in it, and the files, each once.
        assert_eq!(done["files"].as_u64().unwrap(), 2 + 40 * (round as u64 + 1), "{done}");
        same(&shared.path(0, "tree"), &to);
        same(&shared.path(1, "tree"), &shared.path(0, &format!("copy{round}")));
    }
    let links = fs::metadata(shared.path(0, "copy4/deep/file0-0")).unwrap().nlink();
    assert_eq!(links, 6, "hard links stay hard links");
    // Both change their own, and neither sees it.
    let [tree, copy] = ["tree", "copy4"].map(|dir| format!("{dir}/deep/file0-2"));
    let before = fs::read(shared.path(0, &tree)).unwrap();
    let change = |path: &str, node: usize, byte: u8| {
        let file = File::options().write(true).open(shared.path(node, path)).unwrap();
        file.write_all_at(&[byte; 1000], 100_000).unwrap();
    };
    change(&tree, 0, 1);
    change(&copy, 1, 2);
    for node in 0..2 {
        for (path, byte) in [(&tree, 1), (&copy, 2)] {
            let mut expected = before.clone();
            expected[100_000..101_000].fill(byte);
            assert!(fs::read(shared.path(node, path)).unwrap() == expected, "{path} on {node}");
        }
    }
    // The copies keep what is removed, and a copy into a folder with a quota counts for it.
    let kept = fs::read(shared.path(1, "copy4/deep/file4-2")).unwrap();
    fs::remove_dir_all(shared.path(0, "tree")).unwrap();
    run_ok(covey().arg("gc").arg(&shared.nodes[0].mountpoint), LIMIT);
    assert!(fs::read(shared.path(0, "copy4/deep/file4-2")).unwrap() == kept);
    fs::create_dir(shared.path(0, "limited")).unwrap();
    run_ok(covey().args(["quota", "set"]).arg(shared.path(0, "limited")).args(["--files", "50"]), LIMIT);
    let done =
        run(covey().arg("clone").arg(shared.path(0, "copy4")).arg(shared.path(0, "limited/copy")), LIMIT);
    assert_ne!(done.code(), 0, "200 files do not fit");
    assert!(done.stderr.to_lowercase().contains("quota"), "{}", done.stderr);
    assert!(!shared.path(0, "limited/copy").exists() && !shared.path(1, "limited/copy").exists());
    // What the clone that failed had made counts no longer, on either node.
    for node in 0..2 {
        let quotas =
            run_ok(covey().args(["--json", "quota", "ls"]).arg(shared.path(node, "limited")), LIMIT).json();
        assert_eq!(quotas[0]["files"].as_u64(), Some(0), "{node}: {quotas}");
    }
    run_ok(covey().arg("clone").arg(shared.path(1, "copy0")).arg(shared.path(1, "limited/copy")), LIMIT);
    same(&shared.path(0, "copy0"), &shared.path(0, "limited/copy"));
    sound(&shared);
}

/// The options of nodes for [`cloned_and_compacted`].
pub const COLLECTS: [&str; 2] = ["-o", "gc_delay=1,fsync=origin"];

/// One node clones what the other wrote. Both write over most pages of the source, and the clone is removed:
/// the blobs shrink to what is in use, although the kernel of each node has looked at all of it and never
/// looks again.
#[test]
fn a_source_is_compacted_when_its_clone_is_gone() {
    requires!(Need::Covey);
    let shared = Shared::with(requires_server!(), 2, &COLLECTS);
    cloned_and_compacted(&shared.nodes, &shared.address, &shared.folder.path().join("origin"));
}

/// Whether this machine's kernel knows FUSE_NOTIFY_PRUNE.
fn kernels_forget() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).flat_map(str::parse::<u32>);
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

/// See the test above.
pub fn cloned_and_compacted(nodes: &[Node], address: &str, origin: &Path) {
    let (mut rng, path) = (Rng::new(31), |node: usize, path: &str| nodes[node].mountpoint.join(path));
    let file = |node: usize, dir: &str, n: usize| path(node, &format!("{dir}/{n}"));
    fs::create_dir(path(0, "tree")).unwrap();
    let first: Vec<Vec<u8>> = (0..8).map(|_| rng.bytes(600_000)).collect();
    first.iter().enumerate().for_each(|(n, bytes)| synced(&file(0, "tree", n), bytes));
    run_ok(covey().arg("clone").arg(path(1, "tree")).arg(path(1, "copy")), LIMIT);
    same(&path(0, "tree"), &path(0, "copy"));
    let mut second = first.clone();
    for (n, bytes) in second.iter_mut().enumerate() {
        let place = File::options().write(true).open(file(n % 2, "tree", n)).unwrap();
        // Two of three pages, so that each blob has bytes that stay in use.
        for (at, piece) in bytes.chunks_mut(4096).enumerate().filter(|(at, _)| at % 3 != 0) {
            piece.copy_from_slice(&rng.bytes(piece.len()));
            place.write_all_at(piece, 4096 * at as u64).unwrap();
        }
        place.sync_all().unwrap();
    }
    let check = |dir: &str, files: &[Vec<u8>]| {
        for (node, (n, bytes)) in (0..2).flat_map(|node| files.iter().enumerate().map(move |all| (node, all)))
        {
            assert!(fs::read(file(node, dir, n)).unwrap() == *bytes, "{dir}/{n} on node {node}");
        }
    };
    check("tree", &second);
    check("copy", &first);
    let before = stored(origin);
    fs::remove_dir_all(path(0, "copy")).unwrap();
    if !kernels_forget() {
        say(format_args!(
            "a part is skipped: lacks Linux 6.18, whose kernel forgets inodes when it is asked"
        ));
        let look = |(node, n)| fs::metadata(file(node, "copy", n)).is_err();
        assert!((0..16).map(|at| (at / 8, at % 8)).all(look));
    }
    let (used, mut moved) = (8 * 600_000, 0);
    until("a request compacts all", || {
        moved += gc(&nodes[1].mountpoint)["moved_bytes"].as_u64().unwrap();
        stored(origin) < used + used / 10
    });
    say(format_args!("{before} bytes became {}; {used} are in use, {moved} were moved", stored(origin)));
    assert!(moved > 0);
    check("tree", &second);
    let checked = run(covey().args(["fsck", "--json", address]), LIMIT);
    assert!(checked.code() == 0 && checked.json()["sound"] == true, "{checked:?}");
}

/// The daemon is killed in the middle. Nothing of the copy is seen, and all of it is removed.
#[test]
fn a_clone_whose_daemon_is_killed_leaves_nothing() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 2);
    fs::create_dir(shared.path(0, "tree")).unwrap();
    for dir in 0..40 {
        fs::create_dir(shared.path(0, &format!("tree/{dir}"))).unwrap();
        for n in 0..50 {
            fs::write(shared.path(0, &format!("tree/{dir}/{n}")), [7; 2000]).unwrap();
        }
    }
    let inodes = |shared: &Shared| {
        let sql = "select count(*) from covey_kv where substring(k from 1 for 1) = '\\x01'";
        shared.server.sql(sql).parse::<usize>().unwrap()
    };
    let whole = shared.path(0, "whole");
    let done =
        run_ok(covey().args(["clone", "--json"]).arg(shared.path(0, "tree")).arg(&whole), LIMIT).json();
    say(format_args!("{} files and folders in {} s", done["files"], done["seconds"]));
    fs::File::open(shared.path(0, "whole")).unwrap().sync_all().unwrap();
    let before = inodes(&shared);
    let mut command = covey();
    command.arg("clone").arg(shared.path(1, "tree")).arg(shared.path(1, "copy"));
    let mut clone = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + LIMIT;
    while inodes(&shared) < before + 200 {
        assert!(Instant::now() < end, "the clone does not begin");
        assert!(clone.try_wait().unwrap().is_none() || inodes(&shared) > before, "the clone ended at once");
        std::thread::sleep(Duration::from_millis(1));
    }
    shared.nodes[1].kill();
    let ended = clone.wait().unwrap();
    say(format_args!("{} of 2041 inodes were there when the daemon was killed", inodes(&shared) - before));
    if ended.success() {
        say(format_args!("the clone was faster than the kill"));
        return;
    }
    assert!(!shared.path(0, "copy").exists());
    let end = Instant::now() + Duration::from_secs(300);
    while inodes(&shared) > before {
        assert!(Instant::now() < end, "{} inodes are left", inodes(&shared) - before);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(inodes(&shared), before);
    same(&shared.path(0, "tree"), &shared.path(0, "whole"));
    sound(&shared);
    shared.nodes[1].try_mount(&[]).unwrap();
    run_ok(covey().arg("clone").arg(shared.path(1, "tree")).arg(shared.path(1, "copy")), LIMIT);
    same(&shared.path(0, "tree"), &shared.path(0, "copy"));
    sound(&shared);
}
