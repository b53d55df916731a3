//! `covey clone` on a shared volume.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run, run_ok};
use covey_tests::{Need, Rng, requires, say};

use crate::publish::{LIMIT, same};
use crate::requires_server;
use crate::rig::Shared;

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
    run_ok(covey().arg("clone").arg(shared.path(1, "copy0")).arg(shared.path(1, "limited/copy")), LIMIT);
    same(&shared.path(0, "copy0"), &shared.path(0, "limited/copy"));
    sound(&shared);
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
