//! Wrong arguments of `covey promote`, and volumes that cannot be promoted: each has its line.

use std::fs;
use std::path::Path;

use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server};

use super::publish::{LIMIT, fill, same};
use super::single::a_blob;

fn format(folder: &Path, origin: Option<&Path>) {
    let mut command = covey();
    command.arg("format").arg(folder);
    if let Some(origin) = origin {
        command.arg("--origin").arg(format!("file:{}", origin.display()));
    }
    run_ok(&mut command, LIMIT);
}

#[test]
fn each_mistake_with_a_promotion_has_its_line() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 1);
    let at = |name: &str| shared.folder.path().join(name);
    let text = |name: &str| at(name).display().to_string();
    format(&at("inside"), None);
    format(&at("single"), Some(&at("blobs")));
    format(&at("used"), Some(&at("blobs2")));
    fs::create_dir_all(at("empty")).unwrap();
    let mounted = shared.add_of(&text("used"), "used");
    let new = shared.address.replace("volume=work", "volume=new");
    let with = |from: &str, to: &str| new.replace(from, to);
    let barred = with("covey@", "barred@");
    let locked = with("covey@", "locked@");
    let away = "postgres://covey@127.0.0.1:1/covey?volume=new&sslmode=disable".to_owned();
    let secret = with("covey@", "covey:s3cret@");
    let (folder, node) = (text("single"), shared.nodes[0].folder.display().to_string());
    let (used, mountpoint) = (text("used"), mounted.mountpoint.display().to_string());
    let (inside, empty, none) = (text("inside"), text("empty"), text("none"));
    let inner = format!("{folder}:/dir");
    fs::create_dir(mounted.mountpoint.join("dir")).unwrap();
    let inner_place = format!("{mountpoint}/dir");
    let in_memory = shared.add_of("mem:", "memory");
    let memory = in_memory.mountpoint.display().to_string();
    format(&at("ro"), Some(&at("blobs3")));
    let mut only_read = shared.add_of(&text("ro"), "ro");
    only_read.unmount();
    only_read.try_mount(&["-o", "ro"]).unwrap();
    let read_only = only_read.mountpoint.display().to_string();
    let nowhere = with("/covey?", "/nowhere?");
    let cases: &[(&[&str], i32, &str, &str)] = &[
        (&[&none, &new], 1, "not-found", "is not there"),
        (&[&empty, &new], 1, "not-a-volume", "is not a Covey volume"),
        (&[&inner, &new], 2, "usage", "as a whole"),
        (&[&node, &new], 1, "shared", "node of a shared volume already"),
        (&[&node, &shared.address], 1, "in-use", "has it mounted at"),
        (&[&used, &shared.address], 1, "exists", "has a volume work already"),
        (&[&mountpoint, &away], 1, "no-database", "the daemon of the mount asked"),
        (&[&inner_place, &new], 2, "usage", "as a whole"),
        (&[&memory, &new], 1, "not-a-volume", "neither names nor blobs of its own"),
        (&[&read_only, &new], 1, "read-only", "was mounted with -o ro"),
        (&[&inside, &new], 1, "no-origin", "in its own folder"),
        (&[&folder, "work"], 2, "usage", "postgres://USER@HOST/DATABASE?volume=NAME"),
        (&[&new, &folder], 2, "usage", "no address of a shared volume"),
        (&[&new, &new], 2, "usage", "in a database already"),
        (&[&folder, &shared.address], 1, "exists", "has a volume work already"),
        (&[&folder, &barred], 1, "no-database", "pg_hba.conf"),
        (&[&folder, &locked], 1, "no-database", "password"),
        (&[&folder, &away], 1, "no-database", "127.0.0.1:1"),
        (&[&folder, &nowhere], 1, "no-database", "nowhere"),
        (&[&folder, &secret], 2, "usage", "password"),
    ];
    for (args, status, code, says) in cases {
        let done = run(covey().args(["promote", "--json"]).args(*args), LIMIT);
        let lines: Vec<&str> = done.stderr.lines().collect();
        assert!(done.code() == *status && done.stderr.contains(says), "{args:?}: {done:?}");
        assert!(lines.first().is_some_and(|line| line.starts_with("covey: ")), "{args:?}: {done:?}");
        assert_eq!(done.json()["error"]["code"].as_str(), Some(*code), "{args:?}: {done:?}");
        assert!(!done.stderr.contains("panicked") && !done.stderr.contains("s3cret"), "{args:?}: {done:?}");
    }
    assert_eq!(shared.server.sql("select count(*) from covey_volume"), "1");
    drop(mounted);
    // A standby accepts no volume.
    let standby = shared.server.standby();
    let there = new.replace(&format!(":{}/", shared.server.port()), &format!(":{}/", standby.port()));
    let done = run(covey().args(["promote", &folder, &there]), LIMIT);
    assert!(done.code() == 1 && done.stderr.contains("read-only standby"), "{done:?}");
}

/// A volume with its blobs in its own folder gets an origin in the way that the message says.
#[test]
fn a_volume_without_an_origin_gets_one_and_is_promoted() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let at = |name: &str| shared.folder.path().join(name);
    fill(&at("source"), 5);
    let folder = at("single");
    format(&folder, None);
    run_ok(covey().arg("import").arg(at("source")).arg(format!("{}:/tree", folder.display())), LIMIT);
    let address = shared.address.replace("volume=work", "volume=new");
    let said = run(covey().arg("promote").arg(&folder).arg(&address), LIMIT);
    assert!(said.code() == 1 && said.stderr.contains("/blobs there"), "{said:?}");
    fs::rename(folder.join("blobs"), at("moved")).unwrap();
    let json = fs::read_to_string(folder.join("covey.json")).unwrap();
    fs::write(
        folder.join("covey.json"),
        json.replace("file:blobs", &format!("file:{}", at("moved").display())),
    )
    .unwrap();
    run_ok(covey().arg("promote").arg(&folder).arg(&address), LIMIT);
    let node = shared.add_of(&address, "other");
    same(&at("source"), &node.mountpoint.join("tree"));
}

/// Damage is found before anything is made in the database: a blob that the origin lost.
#[test]
fn a_volume_that_lost_a_blob_is_not_promoted() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let at = |name: &str| shared.folder.path().join(name);
    fill(&at("source"), 5);
    format(&at("single"), Some(&at("blobs")));
    run_ok(covey().arg("import").arg(at("source")).arg(format!("{}:/tree", at("single").display())), LIMIT);
    let blob = a_blob(&at("blobs"));
    let bytes = fs::read(&blob).unwrap();
    fs::remove_file(&blob).unwrap();
    let address = shared.address.replace("volume=work", "volume=new");
    let promote = || run(covey().arg("promote").arg(at("single")).arg(&address), LIMIT);
    let said = promote();
    assert!(said.code() == 1 && said.stderr.contains("lacks 1 blobs"), "{said:?}");
    assert_eq!(shared.server.sql("select count(*) from covey_volume"), "1");
    fs::write(&blob, bytes).unwrap();
    assert!(promote().status.success());
}
