//! Failures around a volume: rot, a second mount, a full disk.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use covey_tests::loopfs::LoopFs;
use covey_tests::program::covey_run;
use covey_tests::{Need, Rng, Volume, requires, say};

/// Where these bytes are below a folder: file and offset.
fn find(folder: &Path, wanted: &[u8]) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() {
                let bytes = fs::read(&path).unwrap();
                let places = bytes.windows(wanted.len()).enumerate().filter(|(_, window)| *window == wanted);
                found.extend(places.map(|(at, _)| (path.clone(), at as u64)));
            }
        }
    }
    found
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// A flipped bit in a stored blob gives EIO, never bytes.
#[test]
fn a_flipped_bit_gives_eio_and_never_bytes() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount();
    let mut rng = Rng::new(7);
    let sizes = [700usize, 5_000, 100_000, 300_000, 9 << 20];
    let files: Vec<(String, Vec<u8>)> =
        sizes.iter().map(|size| (format!("file{size}"), rng.bytes(*size))).collect();
    for (name, bytes) in &files {
        fs::write(mounted.join(name), bytes).unwrap();
    }
    mounted.umount();
    for (name, bytes) in &files {
        let at = bytes.len() / 2;
        let places = find(&volume.source, &bytes[at..at + 32]);
        assert!(!places.is_empty(), "{name}: its bytes are nowhere in the volume");
        places.iter().for_each(|(path, at)| flip(path, *at));
        let mounted = volume.mount();
        match fs::read(mounted.join(name)) {
            Ok(got) => {
                panic!("{name}: read {} bytes past the damage, right ones: {}", got.len(), got == *bytes)
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}: {error}"),
        }
        for (other, wanted) in files.iter().filter(|(other, _)| other != name) {
            // Small files share a pack. Only the damaged segment may be refused.
            match fs::read(mounted.join(other)) {
                Ok(got) => assert!(got == *wanted, "{other}: wrong bytes"),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO), "{other}: {error}"),
            }
        }
        mounted.umount();
        let found = volume.fsck().unwrap();
        assert_eq!(found.code(), 1, "{name}: fsck did not find the flipped bit: {found:?}");
        places.iter().for_each(|(path, at)| flip(path, *at));
        let mounted = volume.mount();
        assert!(fs::read(mounted.join(name)).unwrap() == *bytes, "{name}: undamaged again, it must read");
        mounted.umount();
    }
    volume.must_be_clean();
}

#[test]
fn a_second_mount_of_a_volume_is_refused() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount();
    fs::write(mounted.join("file"), "here").unwrap();
    let elsewhere = covey_tests::scratch();
    let second = covey_run(&[
        "mount".as_ref(),
        volume.source.as_os_str(),
        elsewhere.path().as_os_str(),
        "-d".as_ref(),
    ]);
    assert!(matches!(second.code(), 1 | 2), "{second:?}");
    assert!(second.stderr.contains("mounted"), "the message does not say why: {second:?}");
    assert_eq!(fs::read(mounted.join("file")).unwrap(), b"here");
    mounted.umount();
    volume.must_be_clean();
}

/// Writes files until the disk below is full. Returns how many were written whole, and the error.
fn fill(folder: &Path, seed: u64) -> (Vec<(PathBuf, u64)>, std::io::Error) {
    let mut written = Vec::new();
    for number in 0.. {
        let path = folder.join(format!("file{number}"));
        let mut data = vec![0; 1 << 20];
        Rng::new(seed + number).fill(&mut data);
        let done =
            fs::File::create(&path).and_then(|mut file| file.write_all(&data).and_then(|()| file.sync_all()));
        match done {
            Ok(()) => written.push((path, seed + number)),
            Err(error) => return (written, error),
        }
        assert!(number < 10_000, "the disk never fills");
    }
    unreachable!()
}

fn holds(path: &Path, seed: u64) -> bool {
    let mut data = vec![0; 1 << 20];
    Rng::new(seed).fill(&mut data);
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())) == data
}

/// Held by tests that leave much for the kernel to write back to a full disk. A program that another test
/// starts meanwhile inherits their files for a moment, and closes them, which waits for that.
static FILLING: Mutex<()> = Mutex::new(());

/// A full volume reports it. With the writeback cache, write(2) may succeed, since the kernel does not ask
/// the daemon; then fsync(2) fails, and so does the next write-through. Without the cache, write(2) itself
/// fails.
#[test]
fn regression_a_full_volume_is_told_by_fsync_or_by_write_without_writeback() {
    requires!(Need::Covey, Need::Ext4);
    let _alone = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
    for (options, kept_back) in [(&[][..], true), (&["writeback=off"], false)] {
        let disk = LoopFs::new(200);
        let volume = Volume::below(disk.path(), &[]);
        let mounted = volume.mount_with(options);
        let mut file = fs::File::create(mounted.join("file")).unwrap();
        let mut block = vec![0; 1 << 20];
        let mut failed = None;
        for number in 0..400 {
            Rng::new(number).fill(&mut block);
            if let Err(error) = std::io::Write::write_all(&mut file, &block) {
                failed = Some(error);
                break;
            }
        }
        let told = if kept_back { file.sync_all().err().or(failed) } else { failed };
        let told = told.expect("400 MiB do not fit on a disk of 200");
        assert_eq!(told.raw_os_error(), Some(libc::ENOSPC), "{options:?}: {told}");
        drop(file);
        fs::remove_file(mounted.join("file")).unwrap();
        mounted.umount();
        volume.must_be_clean();
    }
}

/// On a full disk, writes get ENOSPC, rm works and frees space within seconds, and nothing else breaks.
#[test]
fn a_full_disk_refuses_writes_and_rm_frees_it() {
    requires!(Need::Covey, Need::Ext4);
    let _alone = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
    let disk = LoopFs::new(200);
    let volume = Volume::below(disk.path(), &[]);
    let mounted = volume.mount();
    fs::create_dir(mounted.join("many")).unwrap();
    let empty = disk.used();
    for round in 0..3 {
        let (written, error) = fill(&mounted.join("many"), round * 100_000);
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert!(written.len() > 40, "only {} MiB fitted on a disk of 200", written.len());
        assert!(written.iter().all(|(path, seed)| holds(path, *seed)), "a file changed when the disk filled");
        assert!(fs::read_dir(mounted.join("many")).unwrap().count() >= written.len());
        for entry in fs::read_dir(mounted.join("many")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let since = Instant::now();
        // The log may have grown meanwhile, but most of the removed space must be free again. Writes are
        // allowed once the space kept in reserve is complete.
        let probe = mounted.join("probe");
        while disk.used() > empty + (48 << 20) || fs::write(&probe, [1; 4096]).is_err() {
            assert!(since.elapsed() < Duration::from_secs(120), "rm freed too little in two minutes");
            std::thread::sleep(Duration::from_millis(50));
        }
        fs::remove_file(&probe).unwrap();
        say(format_args!("round {round}: {} MiB, free again after {:?}", written.len(), since.elapsed()));
    }
    let (written, _) = fill(&mounted.join("many"), 9_000_000);
    // A volume that was killed when full must mount again.
    mounted.kill();
    let mounted = volume.mount();
    assert!(
        written.iter().all(|(path, seed)| holds(path, *seed)),
        "a synced file was lost when killed on a full disk"
    );
    fs::remove_dir_all(mounted.join("many")).unwrap();
    mounted.umount();
    volume.must_be_clean();
}

/// The disk below the volume turned read-only, and `covey umount` said that all was well.
#[test]
fn regression_an_unmount_says_what_is_not_stored() {
    requires!(Need::Covey, Need::Ext4);
    let disk = LoopFs::new(300);
    let remount = Command::new("mount").args(["-o", "remount,errors=remount-ro"]).arg(disk.path()).status();
    assert!(remount.unwrap().success());
    let volume = Volume::below(disk.path(), &[]);
    let mounted = volume.mount_with(&["cache_floor=10M"]);
    fs::write(mounted.join("kept"), "kept").unwrap();
    fs::File::open(mounted.join("kept")).unwrap().sync_all().unwrap();
    fs::write(mounted.join("lost"), "lost").unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let at = disk.path().to_str().unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(at)).unwrap();
    let device = line.split(' ').next().unwrap().rsplit('/').next().unwrap();
    fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").unwrap();
    let done = covey_tests::volume::umount(mounted.path());
    assert_eq!(done.code(), 1, "{done:?}");
    assert!(done.stdout.contains("Not everything that was written is stored"), "{done:?}");
}
