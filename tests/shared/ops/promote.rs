//! `covey promote`: a volume of one node becomes a shared volume.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use covey_tests::program::{covey, environment, run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};

use super::gate::{Gate, Then};
use super::publish::{LIMIT, Published, fill, key, publish, same};
use super::single::{Single, gate_of, numbers, small};

/// One more user, as the kernel hands it over.
fn acl() -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in [(1u16, 6u16, !0u32), (2, 4, 1234), (4, 4, !0), (16, 6, !0), (32, 0, !0)] {
        list.extend(tag.to_le_bytes());
        list.extend(bits.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// All that a volume can hold, with an open file without a name, which stays behind when the daemon is
/// killed.
fn live(root: &Path) -> File {
    fill(root, 1);
    for n in 0..40 {
        let dir = root.join(format!("many/{n}"));
        fs::create_dir_all(&dir).unwrap();
        (0..25).for_each(|at| {
            fs::write(dir.join(format!("f{at}")), format!("{n} {at}").repeat(at * 9)).unwrap()
        });
    }
    fs::write(root.join("acl"), "for one more").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("acl"), "system.posix_acl_access", &acl(), flags).unwrap();
    fs::write(root.join("large"), vec![7; 9 << 20]).unwrap();
    File::open(root.join("large")).unwrap().sync_all().unwrap();
    run_ok(covey().arg("clone").arg(root.join("dir")).arg(root.join("cloned")), LIMIT);
    // A name that is gone again, with all its bytes.
    fs::write(root.join("gone"), vec![9; 3 << 20]).unwrap();
    fs::remove_file(root.join("gone")).unwrap();
    let open =
        File::options().read(true).write(true).create(true).truncate(true).open(root.join("open")).unwrap();
    open.write_all_at(&[5; 200_000], 0).unwrap();
    open.sync_all().unwrap();
    fs::remove_file(root.join("open")).unwrap();
    open
}

/// Names, bytes, inode numbers, times and published trees are those of before, on every node, and all nodes
/// go on from there.
#[test]
fn a_promoted_volume_is_the_volume() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let single = Single::new(&shared, "single");
    let before = single.at("before");
    let (signed, inos) = {
        let mut node = single.mount("one");
        let open = live(&node.mountpoint);
        publish(&node.mountpoint, "first");
        fs::write(node.mountpoint.join("after"), "the publication").unwrap();
        File::open(node.mountpoint.join("after")).unwrap().sync_all().unwrap();
        run_ok(Command::new("cp").arg("-a").arg(&node.mountpoint).arg(&before), LIMIT);
        // cp -a reads the attributes that the first reading of them may still change.
        let inos = numbers(&node.mountpoint);
        node.kill();
        drop(open);
        (key(&single.tree("first"), &[]), inos)
    };
    let done = run_ok(&mut single.promote(&single.address()), LIMIT).json();
    assert!(done["rows"].as_u64().unwrap() > 3000 && done["blobs"].as_u64().unwrap() > 5, "{done}");
    assert_eq!(
        (done["was_finished"].as_bool(), done["volume"].as_str()),
        (Some(false), Some(&*single.address()))
    );
    let first = single.mount("first");
    let second = single.node("second");
    for node in [&first, &second] {
        same(&before, &node.mountpoint);
        assert_eq!(numbers(&node.mountpoint), inos);
    }
    // Both write, and see each other's files.
    fill(&first.mountpoint.join("third"), 3);
    fill(&second.mountpoint.join("fourth"), 4);
    same(&second.mountpoint.join("third"), &first.mountpoint.join("third"));
    same(&first.mountpoint.join("fourth"), &second.mountpoint.join("fourth"));
    fs::write(second.mountpoint.join("large"), "small by now").unwrap();
    assert_eq!(fs::read_to_string(first.mountpoint.join("large")).unwrap(), "small by now");
    // What was published is there, and the volume still signs with its key.
    {
        let published = Published::mount(&single.tree("first"), single.at("tree"));
        same(&before.join("dir"), &published.mountpoint.join("dir"));
        assert!(!published.mountpoint.join("after").exists());
    }
    assert_eq!(publish(&second.mountpoint, "first")["sequence"].as_u64(), Some(2));
    assert_eq!(key(&single.tree("first"), &[]), signed);
    let done = run_ok(covey().args(["fsck", "--json", &single.address()]), LIMIT).json();
    assert_eq!(done["findings"].as_array().map(Vec::len), Some(0), "{done}");
    for gone in ["claim", "publisher.json", "meta/names.db"] {
        assert!(!single.folder().join(gone).exists(), "{gone}");
    }
    drop((first, second));
    let said = run(&mut single.promote(&single.address()), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("node of a shared volume already"), "{said:?}");
}

/// Copies of the folder, older and newer ones, write to the origin no more, whatever they are told.
#[test]
fn an_older_copy_of_a_promoted_folder_is_refused() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let single = Single::new(&shared, "single");
    let source = single.at("source");
    fill(&source, 7);
    run_ok(covey().arg("import").arg(&source).arg(format!("{}:/tree", single.text())), LIMIT);
    run_ok(covey().args(["publish", &single.text(), "first"]), LIMIT);
    let copy = single.at("copy");
    run_ok(Command::new("cp").arg("-a").arg(single.folder()).arg(&copy), LIMIT);
    let old = fs::read(single.folder().join("covey.json")).unwrap();
    run_ok(&mut single.promote(&single.address()), LIMIT);
    fs::create_dir_all(single.at("mnt")).unwrap();
    let mount = |folder: &Path, more: &[&str]| {
        run(covey().arg("mount").args(more).arg(folder).arg(single.at("mnt")), LIMIT)
    };
    for more in [&[][..], &["--take-over"]] {
        let said = mount(&copy, more);
        assert!(said.code() == 1 && said.stderr.contains("became a shared one"), "{said:?}");
    }
    let said = run(covey().arg("promote").arg(&copy).arg(single.address().replace("v-", "w-")), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("became a shared one"), "{said:?}");
    // It can be read.
    run_ok(covey().arg("export").arg(format!("{}:/tree", copy.display())).arg(single.at("out")), LIMIT);
    same(&source, &single.at("out"));
    // The old covey.json alone makes no volume of it.
    let new = fs::read(single.folder().join("covey.json")).unwrap();
    fs::write(single.folder().join("covey.json"), &old).unwrap();
    for more in [&[][..], &["--take-over"]] {
        assert_eq!(mount(&single.folder(), more).code(), 1);
    }
    fs::write(single.folder().join("covey.json"), &new).unwrap();
    // The owner of what is published is the shared volume: as long as it lives, nothing is restored.
    let restored = single.at("restored");
    let node = single.mount("one");
    let said = run(covey().args(["restore", "--take-over", &single.tree("first")]).arg(&restored), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("in use by 1 nodes"), "{said:?}");
    same(&source, &node.mountpoint.join("tree"));
}

/// The volume is the folder's as it was, and is no shared one.
fn is_as_it_was(single: &Single<'_>, source: &Path, what: &str) {
    assert!(!single.is_nodes(), "{what}");
    let said = run(covey().args(["mount", "--fake", &single.address()]).arg(single.at("none")), LIMIT);
    assert_eq!(said.code(), 1, "{what}: {said:?}");
    let out = single.at(&format!("out-{what}"));
    run_ok(covey().arg("export").arg(format!("{}:/tree", single.text())).arg(&out), LIMIT);
    same(source, &out);
}

/// The shared volume is whole, on its first node and on others.
fn is_shared(single: &Single<'_>, source: &Path) {
    let (first, second) = (single.mount("first"), single.node("second"));
    same(source, &first.mountpoint.join("tree"));
    same(source, &second.mountpoint.join("tree"));
    fs::write(second.mountpoint.join("new"), "new").unwrap();
    assert_eq!(fs::read_to_string(first.mountpoint.join("new")).unwrap(), "new");
    run_ok(covey().args(["fsck", &single.address()]), LIMIT);
    assert!(!single.folder().join("meta/names.db").exists() && !single.folder().join("claim").exists());
}

/// As long as the folder has not completed the shared volume, nothing else removes its names.
fn is_no_volume_for_others(single: &Single<'_>, what: &str) {
    let said = run(
        covey()
            .args(["mount", "--fake", "--cache"])
            .arg(single.at("other"))
            .arg(single.address())
            .arg(single.at("none")),
        LIMIT,
    );
    if said.status.success() {
        return;
    }
    assert!(said.stderr.contains("is not finished"), "{what}: {said:?}");
    let tree = single.tree("first");
    let said = run(covey().args(["restore", "--take-over", &tree, &single.address()]), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("is not finished"), "{what}: {said:?}");
}

/// Killed at any of its requests to the database, it leaves the volume as it was or a shared volume, and can
/// be run again.
#[test]
fn a_promotion_that_is_killed_can_be_run_again() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let source = shared.folder.path().join("source");
    fill(&source, 7);
    let clean = small(&shared, "clean", &source);
    let gate = Gate::new(shared.server.port(), u64::MAX, Then::Hold);
    run_ok(&mut clean.promote(&clean.through(&gate)), LIMIT);
    let all = gate.answers();
    let (mut before, mut after) = (0, 0);
    // Every request of the last steps, and some of those before them.
    for limit in (0..all).filter(|at| at + 24 >= all || at % 11 == 3) {
        let single = small(&shared, &format!("k{limit}"), &source);
        let gate = Gate::new(shared.server.port(), limit, Then::Hold);
        let mut command = single.promote(&single.through(&gate));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        gate.wait_shut(|| child.try_wait().unwrap().is_some());
        child.kill().ok();
        child.wait().unwrap();
        gate.open();
        let what = format!("{limit} of {all}");
        if single.is_nodes() {
            after += 1;
            is_no_volume_for_others(&single, &what);
            // Either the next mount of the folder finishes it, or the same command.
            if limit % 2 == 0 {
                let done = run(&mut single.promote(&single.through(&gate)), LIMIT);
                let was_done = done.code() == 1 && done.stderr.contains("already");
                assert!(was_done || done.json()["was_finished"] == true, "{what}: {done:?}");
            }
        } else {
            before += 1;
            if limit % 3 == 0 {
                is_as_it_was(&single, &source, &limit.to_string());
            }
            run_ok(&mut single.promote(&single.address()), LIMIT);
        }
        if limit + 24 >= all {
            is_shared(&single, &source);
        }
    }
    assert!(before > 3 && after > 1, "{before} {after} of {all}");
}

/// The database is lost half-way: the command says so, the volume is as it was, and the command can be run
/// again.
#[test]
fn a_database_that_goes_away_leaves_the_volume_as_it_was() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let source = shared.folder.path().join("source");
    fill(&source, 7);
    let clean = small(&shared, "clean", &source);
    let gate = gate_of(&shared);
    run_ok(&mut clean.promote(&clean.through(&gate)), LIMIT);
    let all = gate.answers();
    for limit in [3, all / 4, all / 2, all - 12] {
        let single = small(&shared, &format!("c{limit}"), &source);
        let gate = Gate::new(shared.server.port(), limit, Then::Cut);
        let said = run(&mut single.promote(&single.through(&gate)), LIMIT);
        assert!(said.code() == 1 && said.stderr.contains("covey: "), "{limit} of {all}: {said:?}");
        gate.open();
        assert!(!said.stderr.contains("panicked") && said.json()["error"]["code"].is_string(), "{said:?}");
        if !single.is_nodes() {
            is_as_it_was(&single, &source, &limit.to_string());
        }
        let address = if single.is_nodes() { single.through(&gate) } else { single.address() };
        run_ok(&mut single.promote(&address), LIMIT);
        is_shared(&single, &source);
        let volumes = "select count(*) from covey_volume where name = ";
        assert_eq!(shared.server.sql(&format!("{volumes}'v-c{limit}'")), "1");
    }
}

/// With an object store, what was not uploaded when the daemon was killed is in the store before the switch.
/// While the store is away, nothing is changed.
#[test]
fn a_volume_in_an_object_store_is_promoted() {
    requires!(Need::Covey);
    environment(s3server::environment());
    let shared = Shared::new(requires_server!(), 0);
    let store = s3server::Server::start();
    let single = Single { shared: &shared, name: "single".to_owned() };
    let origin = format!("s3://{}/single", s3server::BUCKET);
    let mut format = covey();
    format.arg("format").arg(single.folder()).args(["--origin", &origin, "--endpoint", &store.endpoint()]);
    run_ok(&mut format, LIMIT);
    let before = single.at("before");
    {
        let mut node = single.mount("one");
        fill(&node.mountpoint, 1);
        fs::write(node.mountpoint.join("large"), vec![3; 30 << 20]).unwrap();
        File::open(node.mountpoint.join("large")).unwrap().sync_all().unwrap();
        run_ok(Command::new("cp").arg("-a").arg(&node.mountpoint).arg(&before), LIMIT);
        node.kill();
    }
    let json = fs::read_to_string(single.folder().join("covey.json")).unwrap();
    fs::write(single.folder().join("covey.json"), json.replace(&store.endpoint(), "http://127.0.0.1:1"))
        .unwrap();
    let said = run(&mut single.promote(&single.address()), LIMIT);
    assert!(said.code() == 1 && !said.stderr.contains("panicked"), "{said:?}");
    assert_eq!(shared.server.sql("select count(*) from covey_volume"), "1");
    fs::write(single.folder().join("covey.json"), &json).unwrap();
    run_ok(&mut single.promote(&single.address()), LIMIT);
    let uploads = fs::read_dir(single.folder().join("upload")).unwrap().count();
    assert_eq!((uploads, fs::read_dir(single.folder().join("blobs")).unwrap().count() > 0), (0, true));
    // Nothing comes from the first node, which is not there.
    let second = single.node("second");
    same(&before, &second.mountpoint);
    let first = single.mount("first");
    fill(&first.mountpoint.join("third"), 3);
    same(&first.mountpoint.join("third"), &second.mountpoint.join("third"));
    run_ok(covey().args(["fsck", &single.address()]), LIMIT);
}
