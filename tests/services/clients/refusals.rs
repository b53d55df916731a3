//! A volume that cannot be served: the message, what stays untouched, and that the volume works again
//! afterwards.

use std::fs;
use std::path::Path;

use covey_tests::loopfs::LoopFs;
use covey_tests::{Mounted, Need, Rng, Volume, requires, tree};
use rustix::mount::{MountFlags, mount_remount};

fn write_some(mounted: &Mounted, name: &str, seed: u64) {
    let folder = mounted.join(name);
    fs::create_dir(&folder).unwrap();
    for number in 0..50 {
        fs::write(folder.join(number.to_string()), Rng::new(seed + number).bytes(number as usize * 700))
            .unwrap();
    }
    fs::File::open(folder).unwrap().sync_all().unwrap();
}

fn must_hold(mounted: &Mounted, name: &str, seed: u64) {
    for number in 0..50 {
        let bytes = fs::read(mounted.join(name).join(number.to_string())).unwrap();
        assert!(bytes == Rng::new(seed + number).bytes(number as usize * 700), "{name}/{number}");
    }
}

/// A closed volume with some files.
fn volume() -> Volume {
    let volume = Volume::new();
    let mounted = volume.mount();
    write_some(&mounted, "some", 100);
    mounted.umount();
    volume
}

/// Everything in the volume's folder except files that every command may touch, such as SQLite's empty
/// companions and claims on the origin.
fn snapshot(volume: &Path) -> tree::Tree {
    let touched = ["lock", "covey.log", "control.sock", "meta/names.db-shm"];
    let mut tree = tree::read(volume);
    tree.retain(|path, node| {
        let empty_log = path.ends_with("names.db-wal") && node.size == 0;
        let claim = path == Path::new("claim") || path.starts_with("blobs/records/claims");
        !empty_log && !claim && !touched.iter().any(|name| path == Path::new(name))
    });
    tree
}

/// Checks that mounting fails, that the message has each of these words, and that nothing changes.
fn refused(volume: &Volume, words: &[&str]) {
    let before = snapshot(&volume.source);
    let said = volume.try_mount(&[]).err().expect("it was mounted");
    for word in words {
        assert!(said.contains(word), "the message does not say {word:?}: {said}");
    }
    assert!(said.contains("next:"), "the message does not say what to do: {said}");
    let changes = tree::differences("before", &before, "after", &snapshot(&volume.source));
    assert!(changes.is_empty(), "refusing the volume changed it:\n{}", changes.join("\n"));
}

#[test]
fn a_volume_of_a_newer_format_is_refused() {
    requires!(Need::Covey);
    let volume = volume();
    let head = volume.source.join("covey.json");
    let text = fs::read_to_string(&head).unwrap();
    fs::write(&head, text.replace("\"format\": 2", "\"format\": 99")).unwrap();
    refused(&volume, &["format 99", "newer"]);
    fs::write(&head, text).unwrap();
    must_hold(&volume.mount(), "some", 100);
    volume.must_be_clean();
}

#[test]
fn a_torn_database_is_refused() {
    requires!(Need::Covey);
    let volume = volume();
    let database = volume.source.join("meta/names.db");
    let whole = fs::read(&database).unwrap();
    for torn in
        [whole[..whole.len() / 2 + 100].to_vec(), whole[..50].to_vec(), [&[7; 4096], &whole[4096..]].concat()]
    {
        fs::write(&database, torn).unwrap();
        refused(&volume, &["names.db", "damaged"]);
        assert_eq!(volume.fsck().unwrap().code(), 1);
    }
    fs::remove_file(&database).unwrap();
    refused(&volume, &["names.db"]);
    fs::write(&database, whole).unwrap();
    must_hold(&volume.mount(), "some", 100);
    volume.must_be_clean();
}

#[test]
fn a_volume_whose_origin_is_gone_is_refused() {
    requires!(Need::Covey);
    let volume = volume();
    let (blobs, outside) = (volume.source.join("blobs"), volume.source.join("elsewhere"));
    fs::rename(&blobs, &outside).unwrap();
    refused(&volume, &["blobs"]);
    fs::rename(&outside, &blobs).unwrap();
    must_hold(&volume.mount(), "some", 100);
    volume.must_be_clean();
}

#[test]
fn what_is_no_volume_is_refused() {
    requires!(Need::Covey);
    let folder = covey_tests::scratch();
    fs::create_dir(folder.path().join("volume")).unwrap();
    fs::write(folder.path().join("volume/letter"), "Dear reader").unwrap();
    refused(&Volume::existing(folder.path()), &["not a Covey volume"]);
}

/// While the origin refuses writes, nothing is lost: bytes stay on this node's disk, and are uploaded when
/// the origin accepts writes again.
#[test]
fn an_origin_that_becomes_read_only_loses_nothing() {
    requires!(Need::Covey, Need::Ext4);
    let disk = LoopFs::new(256);
    let folder = covey_tests::scratch();
    let origin = format!("file:{}", disk.path().join("origin").display());
    let volume = Volume::below(folder.path(), &["--origin", &origin]);
    let mounted = volume.mount();
    write_some(&mounted, "before", 1_000);
    mounted.umount();
    let mounted = volume.mount();
    mount_remount(disk.path(), MountFlags::RDONLY, c"").unwrap();
    write_some(&mounted, "meanwhile", 2_000);
    fs::write(mounted.join("large"), Rng::new(5).bytes(20 << 20)).unwrap();
    must_hold(&mounted, "before", 1_000);
    must_hold(&mounted, "meanwhile", 2_000);
    mounted.kill();
    let read_only = volume.try_mount(&[]);
    if let Ok(mounted) = read_only {
        must_hold(&mounted, "meanwhile", 2_000);
        assert!(fs::read(mounted.join("large")).unwrap() == Rng::new(5).bytes(20 << 20));
        mounted.kill();
    }
    mount_remount(disk.path(), MountFlags::empty(), c"").unwrap();
    let mounted = volume.mount();
    must_hold(&mounted, "before", 1_000);
    must_hold(&mounted, "meanwhile", 2_000);
    assert!(fs::read(mounted.join("large")).unwrap() == Rng::new(5).bytes(20 << 20));
    mounted.umount();
    volume.must_be_clean();
}
