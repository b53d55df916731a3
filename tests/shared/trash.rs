//! The trash of a volume that several nodes write to.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, Rng, requires, requires_server};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

fn trash(words: &[&str], place: &Path, more: &[&str]) -> Value {
    let mut command = covey();
    command.args(["--json", "trash"]).args(words).arg(place).args(more);
    serde_json::from_str(&run_ok(&mut command, PATIENCE).stdout).unwrap()
}

fn ids(place: &Path) -> Vec<String> {
    let list = trash(&["ls"], place, &[]);
    list["entries"].as_array().unwrap().iter().map(|entry| entry["id"].to_string()).collect()
}

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn must_be_sound(shared: &Shared) {
    let checked = run_ok(covey().args(["fsck", &shared.address]), PATIENCE);
    assert!(checked.stdout.contains("sound"), "{checked:?}");
}

#[test]
fn what_one_node_removes_another_restores() {
    requires!(Need::Covey);
    // The second node mounts with the setting, and the first learns of it.
    let mut shared = Shared::new(requires_server!(), 1);
    fs::create_dir_all(shared.path(0, "dir/sub")).unwrap();
    let bytes = Rng::new(3).bytes(3 << 20);
    fs::write(shared.path(0, "dir/sub/large"), &bytes).unwrap();
    shared.add();
    run_ok(covey().args(["trash", "set"]).arg(&shared.nodes[1].mountpoint).arg("1d"), PATIENCE);
    let keeps = |node: usize| {
        let name = shared.path(node, "probe");
        fs::write(&name, "x").unwrap();
        fs::remove_file(&name).unwrap();
        let listed = trash(&["ls"], &shared.nodes[node].mountpoint, &[]);
        !listed["entries"].as_array().unwrap().is_empty()
    };
    eventually("the first node keeps what it removes", || keeps(0));
    trash(&["empty"], &shared.nodes[1].mountpoint, &[]);
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(shared.path(1, "dir/sub/large")).unwrap());

    // It is read on one node, removed on the other, restored on the first, and read on both.
    run_ok(Command::new("rm").arg("-r").arg(shared.path(1, "dir")), PATIENCE);
    // Nothing there has looked at the folder since, so the kernel still holds it.
    eventually("the other node lists it", || ids(&shared.nodes[0].mountpoint).len() == 3);
    let dir = shared.path(0, "dir").display().to_string();
    let done = trash(&["restore"], &shared.nodes[0].mountpoint, &[&dir]);
    assert_eq!((done["files"].as_u64(), done["left"].as_u64()), (Some(3), Some(0)));
    for node in [1, 0] {
        assert!(fs::read(shared.path(node, "dir/sub/large")).unwrap() == bytes);
        fs::write(shared.path(node, &format!("dir/sub/{node}")), "new").unwrap();
    }
    let now = fs::metadata(shared.path(1, "dir/sub/large")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&now), inode);
    assert_eq!(ids(&shared.nodes[1].mountpoint).len(), 0);

    // A node is killed after it removed something and it was synced.
    fs::remove_file(shared.path(1, "dir/sub/large")).unwrap();
    fs::File::open(shared.path(1, "dir/sub")).unwrap().sync_all().unwrap();
    shared.nodes[1].kill();
    eventually("what it removed is in the trash", || ids(&shared.nodes[0].mountpoint).len() == 1);
    let large = format!("{dir}/sub/large");
    trash(&["restore"], &shared.nodes[0].mountpoint, &[&large]);
    shared.nodes[1].mount();
    assert!(fs::read(shared.path(1, "dir/sub/large")).unwrap() == bytes);
    must_be_sound(&shared);
}

#[test]
fn exactly_one_of_an_expiry_and_a_restore_wins() {
    requires!(Need::Covey);
    let shared = Shared::with(requires_server!(), 2, &["-o", "trash=1h"]);
    fs::create_dir(shared.path(0, "dir")).unwrap();
    for n in 0..30 {
        fs::write(shared.path(0, &format!("dir/{n}")), format!("file {n}")).unwrap();
        fs::remove_file(shared.path(n % 2, &format!("dir/{n}"))).unwrap();
    }
    let mounts = [0, 1].map(|node| shared.nodes[node].mountpoint.clone());
    eventually("both nodes list all", || mounts.iter().all(|mount| ids(mount).len() == 30));
    let all = ids(&mounts[0]);
    let (back, gone) = std::thread::scope(|scope| {
        let emptied = scope.spawn(|| trash(&["empty"], &mounts[1], &[])["files"].as_u64().unwrap());
        let restored = all.iter().filter(|id| {
            let words = ["trash", "restore", mounts[0].to_str().unwrap(), id].map(str::to_owned);
            let done = covey_run(&words);
            assert!(done.status.success() || done.stderr.contains("is not in the trash"), "{done:?}");
            done.status.success()
        });
        (restored.count() as u64, emptied.join().unwrap())
    });
    assert_eq!(back + gone, 30, "{back} came back");
    for mount in &mounts {
        let there: Vec<_> =
            fs::read_dir(mount.join("dir")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(there.len() as u64, back);
        for path in there {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            assert_eq!(fs::read_to_string(path).unwrap(), format!("file {name}"));
        }
    }
    // What is due is deleted by itself, by the nodes that removed it.
    run_ok(covey().args(["trash", "set"]).arg(&mounts[0]).arg("5s"), PATIENCE);
    run_ok(Command::new("rm").arg("-r").arg(mounts[1].join("dir")), PATIENCE);
    eventually("all of it has expired", || mounts.iter().all(|mount| ids(mount).is_empty()));
    must_be_sound(&shared);
}

/// A restore that was refused, because a program had a file of the removed folder open, was refused for ever
/// after that.
#[test]
fn regression_a_folder_that_was_in_use_is_restored_later() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 2);
    trash(&["set"], &shared.nodes[0].mountpoint, &["1h"]);
    fs::create_dir_all(shared.path(0, "home/thesis")).unwrap();
    fs::write(shared.path(0, "home/thesis/text"), vec![1; 3000]).unwrap();
    let open = fs::File::open(shared.path(0, "home/thesis/text")).unwrap();
    let keeps = || {
        let name = shared.path(1, "probe");
        fs::write(&name, "x").unwrap();
        fs::remove_file(&name).unwrap();
        !ids(&shared.nodes[1].mountpoint).is_empty()
    };
    eventually("the second node keeps what it removes", keeps);
    fs::remove_dir_all(shared.path(1, "home/thesis")).unwrap();
    eventually("the first node sees that", || !shared.path(0, "home/thesis").exists());
    let folder = shared.path(0, "home/thesis");
    let restore = || {
        let mut command = covey();
        command.args(["trash", "restore"]).arg(&shared.nodes[0].mountpoint).arg(&folder);
        covey_tests::program::run(&mut command, PATIENCE)
    };
    let refused = restore();
    assert!(refused.code() == 1 && refused.stderr.contains("still uses"), "{refused:?}");
    drop(open);
    eventually("it is restored", || restore().code() == 0);
    assert_eq!(fs::read(folder.join("text")).unwrap(), vec![1; 3000]);
    must_be_sound(&shared);
}
