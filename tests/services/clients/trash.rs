//! The trash, as programs on a mount and the person at the terminal meet it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use covey_tests::loopfs::LoopFs;
use covey_tests::program::{covey, covey_run, run_ok};
use covey_tests::{Need, Rng, Volume, requires};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

fn trash(words: &[&str], place: &Path, more: &[&str]) -> Value {
    let mut command = covey();
    command.args(["--json", "trash"]).args(words).arg(place).args(more);
    serde_json::from_str(&run_ok(&mut command, PATIENCE).stdout).unwrap()
}

fn entries(place: &Path) -> Vec<Value> {
    trash(&["ls"], place, &[])["entries"].as_array().unwrap().clone()
}

fn paths(place: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        entries(place).iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect();
    all.sort();
    all
}

fn restore(mount: &Path, what: &Path) -> Value {
    trash(&["restore"], mount, &[what.to_str().unwrap()])
}

fn refused(mount: &Path, words: &[&str]) -> String {
    let mut all = vec!["trash".to_owned(), words[0].to_owned(), mount.display().to_string()];
    all.extend(words[1..].iter().map(|word| (*word).to_owned()));
    let done = covey_run(&all);
    assert!(!done.status.success(), "{words:?}: {done:?}");
    done.stderr
}

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_rm_removed_comes_back() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount_with(&["trash=1d"]);
    let dir = mounted.join("dir");
    fs::create_dir_all(dir.join("deep/er")).unwrap();
    let bytes = Rng::new(3).bytes(6 << 20);
    for (name, len) in [("deep/er/large", bytes.len()), ("deep/small", 100), ("empty", 0)] {
        fs::write(dir.join(name), &bytes[..len]).unwrap();
    }
    symlink("deep/small", dir.join("link")).unwrap();
    fs::hard_link(dir.join("deep/small"), mounted.join("second name")).unwrap();
    fs::set_permissions(dir.join("deep/er/large"), fs::Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(dir.join("deep/er/large")).unwrap();
    run_ok(Command::new("rm").arg("-rf").arg(&dir), PATIENCE);
    assert!(fs::metadata(&dir).is_err());
    let shown: Vec<_> =
        fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(shown, ["second name"]);
    let at = |name: &str| dir.join(name).display().to_string();
    let all = [at(""), at("deep"), at("deep/er"), at("deep/er/large"), at("empty"), at("link")];
    let all = all.map(|path| path.trim_end_matches('/').to_owned());
    assert_eq!(paths(mounted.path()), all, "a file with another name is not there");

    let done = restore(mounted.path(), &dir);
    assert_eq!((done["files"].as_u64(), done["left"].as_u64()), (Some(6), Some(0)));
    let after = fs::metadata(dir.join("deep/er/large")).unwrap();
    let about =
        |meta: &fs::Metadata| (meta.ino(), meta.mode(), meta.mtime(), meta.mtime_nsec(), meta.nlink());
    assert_eq!(about(&after), about(&before));
    assert!(fs::read(dir.join("deep/er/large")).unwrap() == bytes);
    assert!(fs::read_link(dir.join("link")).is_ok() && fs::read(dir.join("empty")).unwrap().is_empty());
    assert!(fs::metadata(dir.join("deep/small")).is_err());
    fs::write(dir.join("deep/er/new"), "x").unwrap();
    assert_eq!(paths(mounted.path()), [""; 0]);

    // An editor that writes a new file and renames it, and a program that has the old one open.
    fs::write(mounted.join("text"), "old").unwrap();
    let mut open = File::open(mounted.join("text")).unwrap();
    fs::write(mounted.join("text~"), "new").unwrap();
    fs::rename(mounted.join("text~"), mounted.join("text")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    let id = entries(mounted.path())[0]["id"].to_string();
    assert!(refused(mounted.path(), &["restore", &id]).contains("there is a /text"));
    trash(&["restore"], mounted.path(), &[&id, "--to", mounted.join("text.old").to_str().unwrap()]);
    assert_eq!(fs::read_to_string(mounted.join("text.old")).unwrap(), "old");
    assert_eq!(open.metadata().unwrap().nlink(), 1);
    let mut said = String::new();
    open.read_to_string(&mut said).unwrap();
    assert_eq!(said, "old");
    drop(open);
    mounted.umount();
    volume.must_be_clean();
}

#[test]
fn the_trash_survives_a_kill_and_works_without_a_mount() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount();
    run_ok(covey().args(["trash", "set"]).arg(mounted.path()).arg("7d"), PATIENCE);
    let dir = mounted.join("dir");
    fs::create_dir(&dir).unwrap();
    for n in 0..20 {
        fs::write(dir.join(n.to_string()), vec![n; 1000 * usize::from(n)]).unwrap();
    }
    run_ok(Command::new("rm").arg("-r").arg(&dir), PATIENCE);
    mounted.kill();
    let mounted = volume.mount();
    assert_eq!(entries(mounted.path()).len(), 21);
    mounted.umount();
    volume.must_be_clean();
    // What a kill in the middle of a restore leaves: the folder, and some of what was in it.
    trash(&["restore"], &volume.source, &["/dir/7"]);
    let done = trash(&["restore"], &volume.source, &["dir"]);
    assert_eq!(done["files"].as_u64(), Some(19));
    volume.must_be_clean();
    let mounted = volume.mount();
    for n in 0..20u8 {
        assert!(fs::read(dir.join(n.to_string())).unwrap() == vec![n; 1000 * usize::from(n)]);
    }
    fs::remove_file(dir.join("3")).unwrap();
    let kept = trash(&["empty"], mounted.path(), &["--older-than", "1h"]);
    assert_eq!(kept["files"].as_u64(), Some(0));
    let done = trash(&["empty"], mounted.path(), &[]);
    assert_eq!((done["files"].as_u64(), done["bytes"].as_u64()), (Some(1), Some(3000)));
    assert_eq!(paths(mounted.path()), [""; 0]);
    for (words, said) in [
        (&["restore", "dir/3"][..], "is not in the trash"),
        (&["restore", "../x"], "is not in the volume"),
        (&["set", "soon"], "is no time"),
        (&["empty", "--older-than", "x"], "is no time"),
    ] {
        assert!(refused(mounted.path(), words).contains(said), "{words:?}");
    }
    mounted.umount();
    // A mount that only reads changes no setting.
    let mounted = volume.mount_with(&["ro", "trash=1d"]);
    let list = trash(&["ls"], mounted.path(), &[]);
    assert_eq!(list["keep_seconds"].as_u64(), Some(7 * 86_400));
    assert!(refused(mounted.path(), &["set", "1d"]).contains("read only"));
    mounted.umount();
}

#[test]
fn a_folder_that_a_program_is_in_is_restored_when_it_has_left() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount_with(&["trash=1d"]);
    let dir = mounted.join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "x").unwrap();
    let mut inside = Command::new("sleep").arg("60").current_dir(&dir).spawn().unwrap();
    run_ok(Command::new("rm").arg("-r").arg(&dir), PATIENCE);
    assert!(
        refused(mounted.path(), &["restore", dir.to_str().unwrap()])
            .contains("still uses the removed folder")
    );
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert_eq!(restore(mounted.path(), &dir)["files"].as_u64(), Some(2));
    fs::write(dir.join("new"), "y").unwrap();
    mounted.umount();
    volume.must_be_clean();
}

#[test]
fn what_is_old_is_deleted_and_frees_its_space() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount_with(&["trash=2s"]);
    fs::write(mounted.join("file"), Rng::new(1).bytes(8 << 20)).unwrap();
    File::open(mounted.join("file")).unwrap().sync_all().unwrap();
    fs::remove_file(mounted.join("file")).unwrap();
    let inodes = || rustix::fs::statvfs(mounted.path()).unwrap().f_files;
    let used = inodes();
    assert_eq!(entries(mounted.path()).len(), 1);
    eventually("it has expired", || entries(mounted.path()).is_empty());
    // statvfs(2) shows inodes in use and free ones together.
    eventually("the inode is deleted", || inodes() < used);
    run_ok(covey().args(["gc"]).arg(mounted.path()), PATIENCE);
    mounted.umount();
    volume.must_be_clean();
    assert!(volume.blob_bytes() < 1 << 20, "{}", volume.blob_bytes());
}

#[test]
fn a_full_disk_takes_the_oldest_of_the_trash() {
    requires!(Need::Covey, Need::Ext4);
    let disk = LoopFs::new(200);
    let volume = Volume::below(disk.path(), &[]);
    let mounted = volume.mount_with(&["trash=1d", "writeback=off"]);
    let bytes = Rng::new(9).bytes(8 << 20);
    let mut written = 0u64;
    // Ten times as much as fits, and never more than one file at a time.
    for n in 0..60u8 {
        let mut data = bytes.clone();
        data.iter_mut().for_each(|byte| *byte ^= n);
        let path = mounted.join(format!("file{n}"));
        let done =
            File::create(&path).and_then(|mut file| file.write_all(&data).and_then(|()| file.sync_all()));
        done.unwrap_or_else(|error| panic!("file {n}: {error}"));
        written += data.len() as u64;
        fs::remove_file(&path).unwrap();
    }
    assert!(written > 400 << 20);
    let left = paths(mounted.path());
    assert!(!left.is_empty() && left.len() < 20, "{left:?}");
    let newest = mounted.join("file59");
    restore(mounted.path(), &newest);
    assert!(fs::read(&newest).unwrap()[0] == bytes[0] ^ 59);
    mounted.umount();
    volume.must_be_clean();
}

#[test]
fn a_published_tree_leaves_the_trash_out() {
    requires!(Need::Covey);
    let folder = covey_tests::scratch();
    let origin = format!("file:{}", folder.path().join("blobs").display());
    let volume = Volume::below(&folder.path().join("one"), &["--origin", &origin]);
    let mounted = volume.mount_with(&["trash=1d"]);
    let bytes = Rng::new(4).bytes(2 << 20);
    fs::create_dir(mounted.join("gone")).unwrap();
    fs::write(mounted.join("gone/large"), &bytes).unwrap();
    fs::write(mounted.join("kept"), "kept").unwrap();
    run_ok(Command::new("rm").arg("-r").arg(mounted.join("gone")), PATIENCE);
    run_ok(covey().args(["publish"]).arg(mounted.path()).arg("tree"), PATIENCE);
    mounted.umount();
    volume.must_be_clean();
    let again = Volume::existing(&folder.path().join("two"));
    run_ok(covey().args(["restore", "--take-over", &format!("{origin}@tree")]).arg(&again.source), PATIENCE);
    again.must_be_clean();
    let mounted = again.mount();
    assert_eq!(fs::read_to_string(mounted.join("kept")).unwrap(), "kept");
    let list = trash(&["ls"], mounted.path(), &[]);
    assert!(list["keep_seconds"].is_null() && list["entries"].as_array().unwrap().is_empty(), "{list}");
    mounted.umount();
}

/// `covey status` says what is in the trash, and `covey trash ls` prints a long list in parts: each entry
/// once, the newest first, as a table and as one value of JSON.
#[test]
fn a_long_list_comes_in_parts_and_the_status_counts_it() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let status = |place: &Path| {
        let status: Value =
            serde_json::from_str(&run_ok(covey().args(["--json", "status"]).arg(place), PATIENCE).stdout)
                .unwrap();
        status["trash"].clone()
    };
    let mounted = volume.mount();
    assert!(status(mounted.path()).is_null(), "a volume without a trash says nothing of it");
    trash(&["set"], mounted.path(), &["7d"]);
    let dir = mounted.join("dir");
    fs::create_dir(&dir).unwrap();
    const FILES: usize = 1234;
    (0..FILES).for_each(|n| fs::write(dir.join(format!("f{n}")), vec![7; 100]).unwrap());
    (0..FILES).for_each(|n| fs::remove_file(dir.join(format!("f{n}"))).unwrap());
    fs::remove_dir(&dir).unwrap();
    let list = entries(mounted.path());
    let mut found: Vec<String> =
        list.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect();
    let mut wanted = vec![dir.display().to_string()];
    wanted.extend((0..FILES).map(|n| dir.join(format!("f{n}")).display().to_string()));
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted, "each once");
    let times: Vec<&str> = list.iter().map(|entry| entry["removed"].as_str().unwrap()).collect();
    assert!(times.is_sorted_by(|a, b| a >= b), "the newest first");
    eventually("the status counts all", || {
        status(mounted.path())["files"].as_u64() == Some(1 + FILES as u64)
    });
    let shown = status(mounted.path());
    assert_eq!(
        (shown["bytes"].as_u64(), shown["keep_seconds"].as_u64()),
        (Some(100 * FILES as u64), Some(604_800))
    );
    let text = run_ok(covey().arg("status").arg(mounted.path()), PATIENCE).stdout;
    assert!(text.contains("1,235 files and folders") && text.contains("kept for"), "{text}");
    let text = run_ok(covey().args(["trash", "ls"]).arg(mounted.path()), PATIENCE).stdout;
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("/dir")).collect();
    assert_eq!((rows.len(), text.matches("REMOVED").count()), (1 + FILES, 1), "{text}");
    let columns: Vec<Option<usize>> = rows.iter().map(|row| row.find('/')).collect();
    assert!(columns.iter().all(|column| *column == columns[0]), "the columns line up: {text}");
    assert!(text.trim_end().ends_with("What is removed is kept for 7 d 0 h."), "{text}");
    mounted.umount();
    // The same of a volume that is not mounted.
    assert_eq!(entries(&volume.source).len(), 1 + FILES);
    assert_eq!(status(&volume.source)["files"].as_u64(), Some(1 + FILES as u64));
}
