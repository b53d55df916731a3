//! The commands of docs/OPERATING.md for backups, run as they are there.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use covey_tests::manual::{bash, blocks};
use covey_tests::program::{covey, run_ok};
use covey_tests::shared::Shared;
use covey_tests::volume::detach;
use covey_tests::{Need, requires, requires_server};

use super::publish::{LIMIT, fill, same};

/// A place where the commands mount. It is detached when this is dropped, also when a test fails.
struct Mountpoint(PathBuf);

impl Drop for Mountpoint {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

/// A backup, a test of it, and a staging copy. The test of the backup finds bytes that are lost.
#[test]
fn the_manual_backs_up_tests_and_makes_a_staging_copy() {
    requires!(Need::Covey, Need::Program("pg_restore"));
    let shared = Shared::with(requires_server!(), 1, &["-o", "fsync=origin"]);
    fill(&shared.path(0, ""), 3);
    let at = |name: &str| shared.folder.path().join(name);
    let _mountpoint = Mountpoint(at("at"));
    ["backup", "at", "before"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
    run_ok(Command::new("cp").arg("-aT").arg(shared.path(0, "")).arg(at("before")), LIMIT);
    let text = |name: &str| at(name).display().to_string();
    let database = |name: &str| format!("postgres://covey@127.0.0.1:{}/{name}", shared.server.port());
    let variables = [
        ("DB", database("covey")),
        ("MOUNT", shared.path(0, "").display().to_string()),
        ("BACKUP", text("backup")),
        ("COPY", database("copy")),
        ("AT", text("at")),
        ("CACHE", text("cache")),
        ("STORE", format!("file:{}", text("own"))),
        ("COVEY_LISTEN", "127.0.0.1:0".to_owned()),
    ];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let run = |block: &str| bash(block, shared.folder.path(), &variables);
    let (backup, copies) = (blocks("Back up the database"), blocks("A copy of the database"));
    let [backup, test, staging] = [&backup[0], &copies[0], &copies[1]];
    for block in [backup, test] {
        let done = run(block);
        assert!(done.status.success(), "{block}{done:?}");
    }
    fs::write(shared.path(0, "later"), "later").unwrap();

    // A blob is lost: the test of the backup fails.
    let blobs = super::detach::all(&at("origin"));
    let is_large = |path: &&PathBuf| fs::metadata(path).unwrap().len() > 1 << 20;
    let blob = blobs.iter().find(is_large).unwrap();
    fs::rename(blob, at("lost")).unwrap();
    let done = run(test);
    assert!(!done.status.success() && format!("{done:?}").contains("dir/file"), "{done:?}");
    fs::rename(at("lost"), blob).unwrap();
    // It is mounted if the sessions in the dump had not ended: `covey fsck` waits for what they may have.
    covey().arg("umount").arg(at("at")).output().unwrap();
    let _ = fs::remove_dir_all(at("cache"));
    shared.server.sql_in("postgres", "drop database copy with (force)");

    let done = run(staging);
    assert!(done.status.success(), "{staging}{done:?}");
    same(&at("before"), &at("at"));
    fs::write(at("at").join("new"), "new").unwrap();
    fs::remove_dir_all(at("at").join("dir")).unwrap();
    run_ok(covey().arg("gc").arg(at("at")), LIMIT);
    run_ok(covey().arg("umount").arg(at("at")), LIMIT);
    fs::remove_file(shared.path(0, "later")).unwrap();
    same(&at("before"), &shared.path(0, ""));
}
