//! `covey restore` into a shared volume.

use std::fs;

use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};

use super::publish::{LIMIT, Published, fill, key, publish, same};

/// The restored volume is the volume of the moment when it was published, on every node, and goes on from
/// there.
#[test]
fn a_restored_shared_volume_is_the_volume() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 2);
    fill(&shared.path(0, ""), 1);
    fill(&shared.path(1, "second"), 2);
    publish(&shared.path(1, ""), "nightly");
    let name = format!("{}@nightly", shared.origin());
    let address = shared.address.replace("volume=work", "volume=other");
    let restore = |more: &[&str]| run(covey().args(["restore", &name, &address]).args(more), LIMIT);
    // Nodes use the volume.
    for more in [&[][..], &["--take-over"]] {
        let said = restore(more);
        assert!(said.code() == 1 && said.stderr.contains("in use by 2 nodes"), "{said:?}");
    }
    shared.nodes.iter_mut().for_each(|node| node.unmount());
    let said = restore(&[]);
    assert!(said.code() == 1 && said.stderr.contains("--take-over"), "{said:?}");
    assert!(restore(&["--take-over"]).status.success());
    let said = restore(&["--take-over"]);
    assert!(said.code() == 1 && said.stderr.contains("already"), "{said:?}");
    let nodes = [shared.add_of(&address, "a"), shared.add_of(&address, "b")];
    let published = Published::mount(&name, shared.folder.path().join("tree"));
    for node in &nodes {
        same(&published.mountpoint, &node.mountpoint);
    }
    // It goes on: new files on both nodes, in packs whose numbers are new.
    fill(&nodes[0].mountpoint.join("third"), 3);
    fill(&nodes[1].mountpoint.join("fourth"), 4);
    same(&nodes[1].mountpoint.join("third"), &nodes[0].mountpoint.join("third"));
    publish(&nodes[1].mountpoint, "nightly");
    let after = Published::mount(&name, shared.folder.path().join("after"));
    same(&nodes[0].mountpoint, &after.mountpoint);
    let done = run(covey().args(["fsck", "--json", &address]), LIMIT);
    assert!(done.status.success(), "{done:?}");
    // The old volume does not own the origin any more, so it is only read.
    shared.nodes[0].mount();
    assert!(shared.nodes[0].log().contains("mounted for reading only"), "{}", shared.nodes[0].log());
    let refused = fs::write(shared.path(0, "new"), "new").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
}

/// The database is lost, and the volume is restored under its old address. A node that has bytes of the lost
/// one does not take its folder for the restored volume's, which would remove them.
#[test]
fn a_lost_database_is_restored_from_a_published_tree() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 2);
    fill(&shared.path(0, ""), 1);
    publish(&shared.path(1, ""), "nightly");
    // Not published, and not uploaded yet.
    fs::write(shared.path(0, "after"), vec![1; 50_000]).unwrap();
    shared.nodes.iter_mut().for_each(|node| node.kill());
    shared.server.sql(
        "delete from covey_volume; delete from covey_kv; delete from covey_session; delete from covey_done",
    );
    let name = format!("{}@nightly", shared.origin());
    run_ok(covey().args(["restore", &name, &shared.address]), LIMIT);
    let new = shared.add_of(&shared.address, "new");
    let published = Published::mount(&name, shared.folder.path().join("tree"));
    same(&published.mountpoint, &new.mountpoint);
    let packs = fs::read_dir(shared.nodes[0].folder.join("open")).unwrap().count();
    assert!(packs > 0, "the node was killed before its packs could be blobs");
    let said = shared.nodes[0].try_mount(&[]).unwrap_err();
    assert!(said.contains("before it was restored") && said.contains("--cache"), "{said}");
    assert_eq!(fs::read_dir(shared.nodes[0].folder.join("open")).unwrap().count(), packs);
}

/// A volume of one node becomes a shared one, and the other way round.
#[test]
fn volumes_of_one_node_and_of_many_become_each_other() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let at = |name: &str| shared.folder.path().join(name);
    let text = |name: &str| at(name).display().to_string();
    run_ok(covey().args(["format", &text("single"), "--origin", &format!("file:{}", text("blobs"))]), LIMIT);
    let source = at("source");
    fill(&source, 7);
    run_ok(covey().args(["import", &text("source"), &format!("{}:/tree", text("single"))]), LIMIT);
    run_ok(covey().args(["publish", &text("single"), "first"]), LIMIT);
    let address = shared.address.replace("volume=work", "volume=many");
    let tree = |name: &str| format!("file:{}@{name}", text("blobs"));
    // Its folder is still there.
    let said = run(covey().args(["restore", &tree("first"), &address]), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("--take-over"), "{said:?}");
    run_ok(covey().args(["restore", "--take-over", &tree("first"), &address]), LIMIT);
    let said = run(covey().args(["publish", &text("single"), "again"]), LIMIT);
    assert!(said.code() == 1, "the old volume may only be read: {said:?}");
    {
        let node = shared.add_of(&address, "many");
        same(&source, &node.mountpoint.join("tree"));
        fill(&node.mountpoint.join("more"), 8);
        publish(&node.mountpoint, "second");
    }
    let (second, back) = (tree("second"), text("back"));
    run_ok(covey().args(["restore", "--take-over", "--key", &key(&second, &[]), &second, &back]), LIMIT);
    let done = run(covey().args(["fsck", &text("back")]), LIMIT);
    assert!(done.status.success(), "{done:?}");
    run_ok(covey().args(["export", &format!("{}:/more", text("back")), &text("exported")]), LIMIT);
    let again = at("filled");
    fill(&again, 8);
    same(&again, &at("exported"));
}

/// Nothing is left in the database of a restore that fails, so it can be repeated.
#[test]
fn a_restore_that_fails_leaves_nothing() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 1);
    fill(&shared.path(0, ""), 1);
    publish(&shared.path(0, ""), "nightly");
    shared.nodes[0].unmount();
    // A node of the tree is damaged: the blobs that appeared last are the tree's.
    let origin = shared.folder.path().join("origin");
    let mut blobs = Vec::new();
    let mut todo = vec![origin.clone()];
    while let Some(path) = todo.pop() {
        match path.is_dir() {
            true => todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path())),
            false => blobs.push(path),
        }
    }
    let is_blob = |path: &std::path::PathBuf| !path.starts_with(origin.join("records"));
    let newest = blobs.into_iter().filter(is_blob).filter(|path| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(4).any(|window| window == b"link")
    });
    let broken: Vec<_> = newest.collect();
    assert!(!broken.is_empty());
    let kept: Vec<_> = broken.iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    for (path, bytes) in &kept {
        fs::remove_file(path).unwrap();
        let half: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x55).collect();
        fs::write(path, half).unwrap();
    }
    let name = format!("{}@nightly", shared.origin());
    let address = shared.address.replace("volume=work", "volume=other");
    let args = ["restore", "--take-over", &name, &address];
    let said = run(covey().args(args), LIMIT);
    assert!(said.code() == 1 && !said.stderr.contains("panicked"), "{said:?}");
    let volumes = || shared.server.sql("select count(*) from covey_volume");
    let rows = || shared.server.sql("select count(distinct volume) from covey_kv");
    assert_eq!((volumes(), rows()), ("1".to_owned(), "1".to_owned()));
    kept.iter().for_each(|(path, bytes)| {
        fs::remove_file(path).unwrap();
        fs::write(path, bytes).unwrap();
    });
    // A restore that was killed left a half-made volume. The next one replaces it.
    shared
        .server
        .sql("insert into covey_volume(name, uuid) values('other', '\\x00000000000000000000000000000000')");
    run_ok(covey().args(args), LIMIT);
    let node = shared.add_of(&address, "other");
    let published = Published::mount(&name, shared.folder.path().join("tree"));
    same(&published.mountpoint, &node.mountpoint);
}
