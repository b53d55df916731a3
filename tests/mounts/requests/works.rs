//! The work of each line of the table, each in a folder of its own. `round` counts up from 0.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub type Work = fn(&Path, u64);

/// The number of files for tar, rm and listings.
pub const FILES: u64 = 100;

pub fn nothing(_: &Path, _: u64) {}

pub fn file(root: &Path, round: u64) -> PathBuf {
    root.join(format!("file-{round}"))
}

pub fn other(root: &Path, round: u64) -> PathBuf {
    root.join(format!("other-{round}"))
}

/// A file of 64 KiB.
pub fn make(root: &Path, round: u64) {
    fs::write(file(root, round), vec![round as u8; 64 << 10]).unwrap();
}

pub fn make_two(root: &Path, round: u64) {
    make(root, round);
    fs::write(other(root, round), [2; 4096]).unwrap();
}

pub fn read(root: &Path, round: u64) {
    assert_eq!(fs::read(file(root, round)).unwrap().len(), 64 << 10);
}

pub fn stat(root: &Path, round: u64) {
    assert_eq!(fs::metadata(file(root, round)).unwrap().len(), 64 << 10);
}

pub fn stat_missing(root: &Path, round: u64) {
    assert!(fs::metadata(root.join(format!("missing-{round}"))).is_err());
}

pub fn open_read(root: &Path, round: u64) {
    let mut data = vec![0; 64 << 10];
    File::open(file(root, round)).unwrap().read_exact(&mut data).unwrap();
}

/// Only open(2), write(2), close(2) and unlink(2).
pub fn cycle(root: &Path, round: u64) {
    write_new(root, round);
    fs::remove_file(file(root, round)).unwrap();
}

pub fn write_new(root: &Path, round: u64) {
    File::create_new(file(root, round)).unwrap().write_all(&[7; 4096]).unwrap();
}

/// Then waits for a tick of the kernel's clock: a write within the same tick would not move the file's times.
pub fn create_empty(root: &Path, round: u64) {
    File::create_new(file(root, round)).unwrap();
    std::thread::sleep(2 * base::time::TICK_MAX);
}

pub fn write_synced(root: &Path, round: u64) {
    let mut file = File::create_new(file(root, round)).unwrap();
    file.write_all(&[7; 4096]).unwrap();
    file.sync_all().unwrap();
}

pub fn overwrite(root: &Path, round: u64) {
    let mut file = OpenOptions::new().write(true).open(file(root, round)).unwrap();
    file.write_all(&[8; 4096]).unwrap();
}

pub fn unlink(root: &Path, round: u64) {
    fs::remove_file(file(root, round)).unwrap();
}

pub fn folder_cycle(root: &Path, round: u64) {
    fs::create_dir(file(root, round)).unwrap();
    fs::remove_dir(file(root, round)).unwrap();
}

pub fn rename(root: &Path, round: u64) {
    fs::rename(file(root, round), root.join(format!("renamed-{round}"))).unwrap();
}

pub fn rename_over(root: &Path, round: u64) {
    fs::rename(file(root, round), other(root, round)).unwrap();
}

pub fn truncate(root: &Path, round: u64) {
    let file = OpenOptions::new().write(true).open(file(root, round)).unwrap();
    file.set_len(1000 + round).unwrap();
}

pub fn open_truncating(root: &Path, round: u64) {
    File::create(file(root, round)).unwrap();
}

pub fn chmod(root: &Path, round: u64) {
    fs::set_permissions(file(root, round), Permissions::from_mode(0o600)).unwrap();
}

pub fn link(root: &Path, round: u64) {
    fs::hard_link(file(root, round), other(root, round)).unwrap();
}

pub fn make_symlink(root: &Path, round: u64) {
    symlink("the/target", other(root, round)).unwrap();
    readlink(root, round);
}

pub fn readlink(root: &Path, round: u64) {
    assert_eq!(fs::read_link(other(root, round)).unwrap(), Path::new("the/target"));
}

/// Reads and writes through its descriptor after the name is removed.
pub fn unlink_open(root: &Path, round: u64) {
    let mut open = OpenOptions::new().read(true).write(true).open(file(root, round)).unwrap();
    fs::remove_file(file(root, round)).unwrap();
    let mut data = vec![0; 4096];
    open.read_exact(&mut data).unwrap();
}

pub fn map(root: &Path, round: u64) {
    let open = File::open(file(root, round)).unwrap();
    let len = 64 << 10;
    // SAFETY: a new mapping of an open file, checked below.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, open.as_raw_fd(), 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping has `len` bytes and stays until it is unmapped below. Nothing changes the file
    // meanwhile.
    let sum: u64 =
        unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.iter().map(|b| u64::from(*b)).sum();
    assert_eq!(sum, round * len as u64);
    // SAFETY: the mapping from above, which is not used any more.
    assert_eq!(unsafe { libc::munmap(at, len) }, 0);
}

/// As git writes its packs.
pub fn append(root: &Path, round: u64) {
    let mut open = OpenOptions::new().append(true).create(true).open(file(root, round)).unwrap();
    (0..50).for_each(|_| open.write_all(&[3; 4107]).unwrap());
}

/// As git writes an object or its index, and many editors a file: to a temporary name, then renamed over the
/// old file.
pub fn replace(root: &Path, round: u64) {
    let lock = root.join(format!("file-{round}.lock"));
    File::create_new(&lock).unwrap().write_all(&[9; 4096]).unwrap();
    fs::rename(&lock, file(root, round)).unwrap();
}

pub fn change_middle(root: &Path, round: u64) {
    let mut open = OpenOptions::new().read(true).write(true).open(file(root, round)).unwrap();
    open.seek(SeekFrom::Start(100)).unwrap();
    open.write_all(b"in the middle").unwrap();
}

/// A folder with [`FILES`] files of 4 KiB.
pub fn folder(root: &Path, round: u64) {
    let folder = file(root, round);
    fs::create_dir(&folder).unwrap();
    (0..FILES).for_each(|n| fs::write(folder.join(format!("{n}")), [n as u8; 4096]).unwrap());
}

pub fn list(root: &Path, round: u64) {
    assert_eq!(fs::read_dir(file(root, round)).unwrap().count() as u64, FILES);
}

/// `ls -l`, `find -newer`: every name and its attributes.
pub fn list_and_stat(root: &Path, round: u64) {
    let entries = fs::read_dir(file(root, round)).unwrap();
    let sizes: Vec<u64> = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(sizes, vec![4096; FILES as usize]);
}

pub fn list_twice(root: &Path, round: u64) {
    list_and_stat(root, round);
    list_and_stat(root, round);
}

fn run(program: &str, args: &[&str], folder: &Path) {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).stdin(Stdio::null());
    let done = command.output().unwrap();
    assert!(done.status.success(), "{program}: {done:?}");
}

/// An archive of [`FILES`] files, in the rig's folder beside the mount, so that it is removed with it.
fn archive(root: &Path) -> PathBuf {
    let beside = root.parent().and_then(Path::parent).unwrap();
    let path = beside.join("archive.tar");
    if !path.exists() {
        folder(beside, 0);
        run("tar", &["cf", "archive.tar", "file-0"], beside);
    }
    path
}

pub fn untar(root: &Path, round: u64) {
    let (from, into) = (archive(root), root.join(format!("into-{round}")));
    let args = ["xf", from.to_str().unwrap(), "-C", into.to_str().unwrap()];
    run("tar", &args, Path::new("/"));
}

pub fn make_into(root: &Path, round: u64) {
    archive(root);
    fs::create_dir(root.join(format!("into-{round}"))).unwrap();
}

pub fn remove_all(root: &Path, round: u64) {
    run("rm", &["-rf", file(root, round).to_str().unwrap()], Path::new("/"));
}

/// Python's open() asks whether the file is a terminal, and how many blocks it has.
pub fn python(root: &Path, round: u64) {
    let script = "import sys\nassert len(open(sys.argv[1], 'rb').read()) == 65536";
    run("python3", &["-c", script, file(root, round).to_str().unwrap()], Path::new("/"));
}

/// The first read loads the pages and makes the kernel's access time uncertain.
pub fn python_twice(root: &Path, round: u64) {
    python(root, round);
    python(root, round);
}

/// The same calls without what open() adds.
pub fn python_pread(root: &Path, round: u64) {
    let script =
        "import os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\nassert len(os.pread(fd, 65536, 0)) == 65536";
    run("python3", &["-c", script, file(root, round).to_str().unwrap()], Path::new("/"));
}
