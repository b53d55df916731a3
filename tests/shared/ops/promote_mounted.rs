//! `covey promote` of a volume that is mounted.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use covey_tests::proc::is_fuse_mount;
use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::{Node, Shared};
use covey_tests::{Need, requires, requires_server};

use super::gate::Gate;
use super::publish::{LIMIT, fill, same};
use super::single::{Single, a_blob, gate_of, numbers, small};

/// What was removed leaves the origin, so each blob that is there is needed.
fn collect(root: &Path) {
    run_ok(covey().arg("flush").arg(root), LIMIT);
    run_ok(covey().arg("gc").arg(root), LIMIT);
}

/// A mounted volume: its names are copied while a program writes. A file that is open keeps the volume as it
/// is, and mounted. When no program uses it, what changed meanwhile moves too, and its daemon mounts it
/// again.
#[test]
fn a_mounted_volume_is_promoted_when_no_program_uses_it() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let single = Single::new(&shared, "single");
    let node = single.mount("one");
    let root = node.mountpoint.clone();
    fill(&root, 1);
    fs::create_dir(root.join("many")).unwrap();
    (0..300).for_each(|n| fs::write(root.join(format!("many/{n}")), format!("{n}").repeat(n)).unwrap());
    let open = File::create(root.join("open")).unwrap();
    let stop = AtomicBool::new(false);
    let promote = || {
        let mut command = covey();
        run(command.args(["promote", "--json"]).arg(&root).arg(single.address()), LIMIT)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                fs::write(root.join(format!("many/w{}", n % 50)), format!("{n}").repeat(n % 900)).unwrap();
                fs::remove_file(root.join(format!("many/w{}", (n + 25) % 50))).ok();
            }
        });
        for _ in 0..2 {
            let said = promote();
            assert!(said.code() == 1 && said.stderr.contains("is busy"), "{said:?}");
            assert!(said.stderr.contains("then go on: covey promote"), "{said:?}");
            assert!(!single.is_nodes() && root.join("open").exists());
        }
        stop.store(true, Ordering::SeqCst);
    });
    // The half-made volume is nobody's to mount.
    let said = run(covey().args(["mount", "--fake", &single.address()]).arg(&root), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("has no origin"), "{said:?}");
    drop(open);
    // What was copied is removed, replaced and added to.
    fs::remove_dir_all(root.join("dir")).unwrap();
    fs::rename(root.join("many"), root.join("renamed")).unwrap();
    fill(&root.join("new"), 9);
    let before = single.at("before");
    run_ok(Command::new("cp").arg("-a").arg(&root).arg(&before), LIMIT);
    let inos = numbers(&root);
    // A failure after the volume was unmounted: the daemon mounts it again as it was.
    collect(&root);
    let blob = a_blob(&single.at("origin"));
    fs::rename(&blob, single.at("lost")).unwrap();
    let said = promote();
    assert!(said.code() == 1 && said.stderr.contains("lacks 1 blobs"), "{said:?}");
    assert!(said.stderr.contains("again, as it was") && !single.is_nodes(), "{said:?}");
    assert!(root.join("renamed/299").exists(), "{}", node.log());
    fs::rename(single.at("lost"), &blob).unwrap();
    let done = promote();
    assert!(done.status.success(), "{done:?}");
    let done = done.json();
    assert!(done["rows_while_mounted"].as_u64().unwrap() > 300, "{done}");
    assert_eq!(done["mountpoint"].as_str().map(Path::new), Some(&*root));
    assert!(done["mounted_again"] == true, "{done} {}", node.log());
    let second = single.node("second");
    for place in [&root, &second.mountpoint] {
        same(&before, place);
        assert_eq!(&numbers(place), &inos);
    }
    fs::write(second.mountpoint.join("later"), "later").unwrap();
    assert_eq!(fs::read_to_string(root.join("later")).unwrap(), "later");
    run_ok(covey().args(["fsck", &single.address()]), LIMIT);
    assert!(!single.folder().join("promoting").exists());
}

/// Promotes a mounted volume through a relay, which passes so many answers on from the moment on when the
/// volume is not mounted.
fn unmounting(single: &Single<'_>, node: &Node, gate: &Gate, more: u64) -> Child {
    let mountpoint = node.mountpoint.clone();
    gate.shut_after_begin(more, move || !is_fuse_mount(&mountpoint));
    let mut command = covey();
    command.args(["promote"]).arg(&node.mountpoint).arg(single.through(gate));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The command is killed while the volume is not mounted: its daemon mounts what is there then, the volume as
/// it was or the shared one.
#[test]
fn a_mount_comes_back_when_its_promotion_is_killed() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let source = shared.folder.path().join("source");
    fill(&source, 7);
    let all = {
        let single = small(&shared, "clean", &source);
        let (node, gate) = (single.mount("one"), gate_of(&shared));
        let mut child = unmounting(&single, &node, &gate, u64::MAX);
        // The daemon's own requests are counted too, at the end.
        assert!(child.wait().unwrap().success());
        gate.since_begin()
    };
    let (mut as_it_was, mut as_shared) = (0, 0);
    // Some 60 of the last ones are of the daemon's new mount.
    for more in (0..all).filter(|more| *more == 3 || more % 5 == 0 && more + 90 >= all) {
        let single = small(&shared, &format!("m{more}"), &source);
        let (node, gate) = (single.mount("one"), gate_of(&shared));
        let mut child = unmounting(&single, &node, &gate, more);
        gate.wait_shut(|| child.try_wait().unwrap().is_some());
        child.kill().ok();
        child.wait().unwrap();
        gate.open();
        let until = Instant::now() + LIMIT;
        while !is_fuse_mount(&node.mountpoint) {
            assert!(Instant::now() < until, "{more} of {all}: {}", node.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        same(&source, &node.mountpoint.join("tree"));
        fs::write(node.mountpoint.join("tree/new"), "new").unwrap();
        match single.is_nodes() {
            true => as_shared += 1,
            false => as_it_was += 1,
        }
    }
    assert!(as_it_was > 1 && as_shared > 1, "{as_it_was} {as_shared} of {all}");
}
