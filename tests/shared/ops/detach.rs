//! `covey detach`: a copy of a database becomes a volume of its own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use covey_tests::program::{Finished, covey, environment, run, run_ok};
use covey_tests::shared::etcd::Volume;
use covey_tests::shared::{Node, Shared};
use covey_tests::{Need, Rng, requires, requires_server, say};
use s3server::{BUCKET, Fault, Method, Proxy, Rule};
use servers::{Cluster, Server};

use super::collect::{blobs, gc, synced, until};
use super::publish::{LIMIT, Published, fill, publish, same};

const COLLECTS: [&str; 2] = ["-o", "gc_delay=1,fsync=origin"];
/// Files with a blob each.
const FILES: u64 = 40;

fn name(n: u64) -> String {
    format!("file{n}")
}

/// Files of all kinds, and some that have a blob each. Returns a copy of the tree.
fn filled(root: &Path, seed: u64) -> PathBuf {
    fill(root, seed);
    let mut rng = Rng::new(seed + 1);
    (0..FILES).for_each(|n| synced(&root.join(name(n)), &rng.bytes(60_000)));
    run_ok(covey().arg("flush").arg(root), LIMIT);
    let before = root.with_file_name("before");
    run_ok(Command::new("cp").arg("-a").arg(root).arg(&before), LIMIT);
    before
}

/// A volume of one node, a copy of its tree, and the address of a copy of its database.
fn copied(server: Server) -> (Shared, PathBuf, String) {
    let shared = Shared::with(server, 1, &COLLECTS);
    let before = filled(&shared.path(0, ""), 5);
    let dump = shared.server.dump("covey");
    shared.server.restore("copy", &dump);
    let address = shared.address.replace("/covey?", "/copy?");
    (shared, before, address)
}

fn detach(address: &str, origin: &str, more: &[&str]) -> Finished {
    run(covey().args(["detach", "--json", address, "--copy-blobs", origin]).args(more), LIMIT)
}

fn must_be_sound(address: &str) {
    let done = run(covey().args(["fsck", address]), LIMIT);
    assert_eq!(done.code(), 0, "{done:?}");
}

/// The names of all files below a folder.
pub fn all(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { all(&path) } else { BTreeSet::from([path]) }).collect()
}

/// Kills a command when it has copied some blobs.
fn killed_half_way(command: &[&str], to: &Path) {
    let mut running = covey().args(command).stderr(Stdio::null()).spawn().unwrap();
    until("some blobs are copied", || blobs(to) > 4);
    running.kill().unwrap();
    running.wait().unwrap();
}

/// A restored dump gets blobs of its own in a bucket. The command is killed half-way and goes on. After that,
/// what is removed in one of the two volumes is still in the other one.
#[test]
fn a_copy_becomes_a_volume_of_its_own() {
    requires!(Need::Covey);
    environment(s3server::environment());
    let (mut shared, before, address) = copied(requires_server!());
    publish(&shared.path(0, ""), "nightly");
    let dump = shared.server.dump("covey");
    shared.server.sql_in("postgres", "drop database copy");
    shared.server.restore("copy", &dump);
    synced(&shared.path(0, "later"), b"later");
    let store = s3server::Server::start();
    let proxy = Proxy::start(store.address(), 1);
    let (own, endpoint) = (format!("s3://{BUCKET}/own"), proxy.endpoint());
    let reach = ["--endpoint", &endpoint];
    let mut copy = Node::with(shared.folder.path(), &address, "copy", &COLLECTS);
    assert!(copy.log().contains("covey detach"), "{}", copy.log());
    let said = detach(&address, &own, &reach);
    assert!(said.code() == 1 && said.stderr.contains("covey sessions"), "{said:?}");
    copy.unmount();

    let origin = shared.folder.path().join("origin");
    let held = all(&origin);
    proxy.add(Rule::new(Fault::Wait(std::time::Duration::from_millis(300))).only(Method::PUT));
    killed_half_way(&["detach", &address, "--copy-blobs", &own, reach[0], reach[1]], &store.folder());
    proxy.faults().clear();
    // The session of the killed command keeps nodes out for a while.
    until("it is mounted", || copy.try_mount(&COLLECTS).is_ok());
    assert!(fs::write(copy.mountpoint.join("new"), "new").is_err());
    copy.unmount();

    let done = detach(&address, &own, &reach);
    assert_eq!(done.code(), 0, "{done:?}");
    let done = done.json();
    let (needed, now) = (done["blobs"].as_u64().unwrap(), done["copied_blobs"].as_u64().unwrap());
    assert!(needed >= FILES && now > 0 && now + 4 < needed, "{done}");
    assert!(done["lost"].as_array().unwrap().is_empty(), "{done}");
    assert!(held.is_subset(&all(&origin)), "the first volume's origin is not touched");

    // The folder that knew the copy before, and the tree that is published there.
    copy.try_mount(&COLLECTS).unwrap();
    same(&before, &copy.mountpoint);
    synced(&copy.mountpoint.join("new"), b"new");
    let nightly = format!("file:{}@nightly", origin.display());
    same(&before, &Published::mount(&nightly, shared.folder.path().join("tree")).mountpoint);
    // Each removes a file that the other one keeps.
    fs::remove_file(shared.path(0, &name(1))).unwrap();
    fs::remove_file(copy.mountpoint.join(name(2))).unwrap();
    let had = (blobs(&origin), blobs(&store.folder()));
    until("both delete what they do not need", || {
        gc(&shared.path(0, ""));
        gc(&copy.mountpoint);
        // The first volume holds what is published.
        blobs(&store.folder()) < had.1
    });
    publish(&copy.mountpoint, "nightly");
    copy.unmount();
    shared.nodes[0].unmount();
    let (fresh, first) = (shared.add_of(&address, "fresh"), shared.add_of(&shared.address, "first"));
    fs::copy(before.join(name(1)), first.mountpoint.join(name(1))).unwrap();
    fs::remove_file(first.mountpoint.join("later")).unwrap();
    fs::copy(before.join(name(2)), fresh.mountpoint.join(name(2))).unwrap();
    fs::remove_file(fresh.mountpoint.join("new")).unwrap();
    for n in 0..FILES {
        let bytes = fs::read(before.join(name(n))).unwrap();
        assert!(fs::read(fresh.mountpoint.join(name(n))).unwrap() == bytes, "{n}");
        assert!(fs::read(first.mountpoint.join(name(n))).unwrap() == bytes, "{n}");
    }
    drop((fresh, first));
    must_be_sound(&address);
    must_be_sound(&shared.address);
}

/// A small disk.
struct Disk(PathBuf);

impl Disk {
    fn new(at: PathBuf) -> Disk {
        fs::create_dir(&at).unwrap();
        let disk = Disk(at);
        disk.mount("size=1m");
        disk
    }

    fn mount(&self, options: &str) {
        run_ok(Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(&self.0), LIMIT);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// A store without room is said, and the command goes on when there is some. A copied blob that was damaged
/// meanwhile is copied again. What a kill after the last commit but one leaves is finished by the next run.
#[test]
fn a_copy_is_finished_when_the_store_has_room() {
    requires!(Need::Covey, Need::Root);
    let (mut shared, before, address) = copied(requires_server!());
    let disk = Disk::new(shared.folder.path().join("disk"));
    let own = disk.0.join("own");
    let origin = format!("file:{}", own.display());
    let said = detach(&address, &origin, &[]);
    assert!(said.code() == 1 && said.stderr.contains("no space left"), "{said:?}");
    assert!(said.stderr.contains("run the same command again"), "{said:?}");
    let had = blobs(&own);
    assert!(had > 0);
    let is_blob = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 64);
    let blob = all(&own).into_iter().find(is_blob).unwrap();
    let bytes: Vec<u8> = fs::read(&blob).unwrap().iter().map(|byte| !byte).collect();
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, bytes).unwrap();
    disk.mount("remount,size=100m");
    let done = detach(&address, &origin, &[]);
    assert_eq!(done.code(), 0, "{done:?}");
    let done = done.json();
    let (needed, now) = (done["blobs"].as_u64().unwrap(), done["copied_blobs"].as_u64().unwrap());
    assert_eq!(needed - now, had as u64 - 1, "{done}");
    // As after a kill between the switch and the end.
    let row =
        r"insert into covey_kv select volume, '\x00646574616368696e67', 'switched' from covey_kv limit 1";
    shared.server.sql_in("copy", row);
    let said = Node::try_with(shared.folder.path(), &address, "early", &[]).err().unwrap();
    assert!(said.contains("not detached yet") && said.contains("same arguments"), "{said}");
    let done = detach(&address, &origin, &[]);
    assert!(done.code() == 0 && done.json()["was_finished"] == true, "{done:?}");
    // The first volume's node is gone with bytes that only its folder has.
    fs::write(shared.path(0, "unsynced"), vec![1; 50_000]).unwrap();
    shared.nodes[0].kill();
    let folder = shared.nodes[0].folder.display().to_string();
    let at = shared.folder.path().join("taken");
    fs::create_dir(&at).unwrap();
    let said = run(covey().args(["mount", &address, "--cache", &folder]).arg(&at), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("restored or detached"), "{said:?}");
    let copy = shared.add_of(&address, "copy");
    same(&before, &copy.mountpoint);
    synced(&copy.mountpoint.join("new"), b"new");
    drop(copy);
    must_be_sound(&address);
    shared.nodes[0].mount();
    assert_eq!(fs::read(shared.path(0, "unsynced")).unwrap(), vec![1; 50_000]);
}

/// Copies all keys into another cluster, except those that end with a session: as a snapshot has them that is
/// restored later.
fn copy_keys(from: &Cluster, to: &Cluster) {
    let answer = from.call(0, "kv/range", r#"{"key":"AA==","range_end":"AA=="}"#).unwrap();
    let found: serde_json::Value = serde_json::from_str(&body_of(&answer)).unwrap();
    for row in found["kvs"].as_array().unwrap().iter().filter(|row| row["lease"].is_null()) {
        let put = serde_json::json!({ "key": row["key"], "value": row["value"] });
        let answer = to.call(0, "kv/put", &put.to_string()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// The body of an answer, which may come in chunks.
fn body_of(answer: &str) -> String {
    let (head, mut rest) = answer.split_once("\r\n\r\n").unwrap();
    if !head.to_lowercase().contains("transfer-encoding: chunked") {
        return rest.to_owned();
    }
    let mut body = String::new();
    while let Some((len, after)) = rest.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).unwrap();
        body += &after[..len];
        rest = after[len..].trim_start_matches("\r\n");
    }
    body
}

/// The same with names in etcd.
#[test]
fn a_copy_in_etcd_becomes_a_volume_of_its_own() {
    requires!(Need::Covey);
    let Some(cluster) = Cluster::with(1, &[]) else {
        return say(format_args!("skipped: lacks etcd"));
    };
    let Some(other) = Cluster::with(1, &[]) else { return };
    let hosts = cluster.hosts();
    let mut volume = Volume::through(cluster, &hosts, 1);
    let before = filled(&volume.path(0, ""), 9);
    publish(&volume.path(0, ""), "nightly");
    volume.nodes[0].unmount();
    copy_keys(&volume.cluster, &other);
    let address = volume.address.replace(&hosts, &other.hosts());
    volume.nodes[0].try_mount(&COLLECTS).unwrap();
    let mut copy = Node::with(volume.folder.path(), &address, "copy", &COLLECTS);
    assert!(copy.log().contains("covey detach"), "{}", copy.log());
    copy.unmount();
    let own = volume.at("own");
    let done = detach(&address, &format!("file:{}", own.display()), &[]);
    assert_eq!(done.code(), 0, "{done:?}");
    copy.try_mount(&COLLECTS).unwrap();
    same(&before, &copy.mountpoint);
    synced(&copy.mountpoint.join("new"), b"new");
    fs::remove_file(copy.mountpoint.join(name(2))).unwrap();
    fs::remove_file(volume.path(0, &name(1))).unwrap();
    let had = blobs(&own);
    until("the copy deletes what it does not need", || {
        gc(&volume.path(0, ""));
        gc(&copy.mountpoint);
        blobs(&own) < had
    });
    let first = Node::new(volume.folder.path(), &volume.address, "first");
    let fresh = Node::new(volume.folder.path(), &address, "fresh");
    for n in 3..FILES {
        let bytes = fs::read(before.join(name(n))).unwrap();
        assert!(fs::read(first.mountpoint.join(name(n))).unwrap() == bytes, "{n}");
        assert!(fs::read(fresh.mountpoint.join(name(n))).unwrap() == bytes, "{n}");
    }
    drop((first, fresh, copy));
    must_be_sound(&address);
}

/// Wrong arguments, and bytes that are lost: each has its line, and leaves the copy as it was.
#[test]
fn each_mistake_with_a_copy_has_its_line() {
    requires!(Need::Covey);
    let (mut shared, before, address) = copied(requires_server!());
    shared.nodes[0].unmount();
    let at = |name: &str| shared.folder.path().join(name);
    let file = |name: &str| format!("file:{}", at(name).display());
    symlink(at("origin"), at("link")).unwrap();
    fs::create_dir(at("full")).unwrap();
    fs::write(at("full/file"), "file").unwrap();
    run_ok(covey().args(["format", &at("single").display().to_string(), "--origin", &file("taken")]), LIMIT);
    let (single, none) = (at("single").display().to_string(), address.replace("=work", "=none"));
    let own = file("own");
    let cases: &[(&[&str], i32, &str)] = &[
        (&[&address], 2, "--copy-blobs"),
        (&[&address, "--copy-blobs", "/srv/own"], 2, "file:/srv/own"),
        (&[&address, "--copy-blobs", "mem:"], 2, "in memory"),
        (&[&address, "--copy-blobs", &own, "--region", "x"], 2, "leave --endpoint and --region out"),
        (&[&single, "--copy-blobs", &own], 2, "covey export"),
        (&[&none, "--copy-blobs", &own], 1, "has no volume none"),
        (&[&shared.address, "--copy-blobs", &own], 1, "not a copy"),
        (&[&address, "--copy-blobs", &file("origin")], 2, "name a new place"),
        (&[&address, "--copy-blobs", &file("link")], 2, "name a new place"),
        (&[&address, "--copy-blobs", &file("full")], 1, "holds other files"),
        (&[&address, "--copy-blobs", &file("taken")], 1, "another volume's origin"),
        (&[&address, "--copy-blobs", &file("taken")], 1, "another volume's origin"),
        (&[&address, "--copy-blobs", "file:/proc/own"], 1, "/proc/own"),
        (
            &[&address, "--copy-blobs", "s3://bucket/own", "--endpoint", "http://127.0.0.1:1"],
            1,
            "127.0.0.1:1",
        ),
    ];
    for (args, status, says) in cases {
        let mut command = covey();
        command.envs([("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
        let done = run(command.arg("detach").args(*args), LIMIT);
        assert!(done.code() == *status && done.stderr.contains(says), "{args:?}: {done:?}");
        assert!(!done.stderr.contains("panicked") && done.stdout.is_empty(), "{args:?}: {done:?}");
    }
    // A blob that is gone.
    let is_its = |path: &PathBuf| fs::read(path).unwrap().len() == 60_000;
    let lost = all(&at("origin")).into_iter().find(is_its).unwrap();
    let bytes = fs::read(&lost).unwrap();
    let its = (0..FILES).map(name).find(|name| fs::read(before.join(name)).unwrap() == bytes).unwrap();
    fs::remove_file(&lost).unwrap();
    let said = run(covey().args(["detach", &address, "--copy-blobs", &own]), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("--accept-lost"), "{said:?}");
    assert!(said.stdout.contains(&format!("/{its}")) || said.stderr.contains(&format!("/{its}")), "{said:?}");
    assert_eq!(blobs(&at("own")), 0, "nothing is copied before it is known what is lost");
    let done = detach(&address, &own, &["--accept-lost"]);
    assert!(done.code() == 0 && done.json()["lost"][0]["files"][0]["path"] == format!("/{its}"), "{done:?}");
    let copy = shared.add_of(&address, "copy");
    assert!(fs::read(copy.mountpoint.join(&its)).is_err());
    for name in (0..FILES).map(name).filter(|name| *name != its) {
        assert!(fs::read(copy.mountpoint.join(&name)).unwrap() == fs::read(before.join(&name)).unwrap());
    }
    let checked = run(covey().args(["fsck", &address]), LIMIT);
    assert!(checked.code() == 1 && checked.stderr.contains(&its), "{checked:?}");
    let again = detach(&address, &own, &[]);
    assert!(again.code() == 1 && again.stderr.contains("covey sessions"), "{again:?}");
}
