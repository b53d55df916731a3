//! Imports from folders and archives preserve modes, owners, times, attributes, links, devices and holes.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::world::{World, covey, json, run_command};

fn mknod(path: &Path, mode: u32, device: u64) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: `name` ends with NUL and is alive during the call.
    assert_eq!(unsafe { libc::mknod(name.as_ptr(), mode, device) }, 0, "{}", path.display());
}

pub fn set_xattr(path: &Path, name: &str, value: &str) {
    let (path, name) = (CString::new(path.as_os_str().as_bytes()).unwrap(), CString::new(name).unwrap());
    // SAFETY: both texts end with NUL, and `value` is readable for its length.
    let status =
        unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// Creates one entry of each kind.
pub fn make(from: &Path) {
    fs::create_dir_all(from.join("d/empty")).unwrap();
    fs::write(from.join("suid"), "#!/bin/true\n").unwrap();
    std::os::unix::fs::chown(from.join("suid"), Some(1234), Some(4321)).unwrap();
    fs::set_permissions(from.join("suid"), fs::Permissions::from_mode(0o6755)).unwrap();
    fs::hard_link(from.join("suid"), from.join("d/again")).unwrap();
    symlink("../nowhere", from.join("d/dangling")).unwrap();
    std::os::unix::fs::lchown(from.join("d/dangling"), Some(7), Some(8)).unwrap();
    mknod(&from.join("fifo"), libc::S_IFIFO | 0o640, 0);
    mknod(&from.join("null"), libc::S_IFCHR | 0o666, libc::makedev(1, 3));
    let sparse = File::create(from.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 8 << 20).unwrap();
    sparse.set_len(16 << 20).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"odd \xff\n name");
    fs::write(from.join(name), vec![1; 100_000]).unwrap();
    set_xattr(&from.join("suid"), "user.color", "blue");
    set_xattr(&from.join("d"), "user.folder", "yes");
    fs::set_permissions(from.join("d/empty"), fs::Permissions::from_mode(0o1500)).unwrap();
    for (path, seconds) in [("suid", 1), ("d/empty", 1_000_000_000), ("d", 2_000_000_000)] {
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(seconds, 123_456_789);
        File::open(from.join(path))
            .unwrap()
            .set_times(fs::FileTimes::new().set_accessed(time).set_modified(time))
            .unwrap();
    }
}

/// The output of find(1) for everything below a folder: kind, mode, owner, links, time, size of everything
/// that is no folder, link target.
fn listing(folder: &Path, nanoseconds: bool) -> String {
    let time = if nanoseconds { "%T@" } else { "%Ts" };
    let format = format!("%P %y %m %U:%G {time} %l\\n");
    let files = format!("%n %s {format}");
    let mut find = std::process::Command::new("find");
    find.arg(folder).args([
        "-mindepth",
        "1",
        "(",
        "-type",
        "d",
        "-printf",
        &format,
        "-o",
        "-printf",
        &files,
        ")",
    ]);
    let done = run_command(&mut find).ok();
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

pub fn same(from: &Path, to: &Path, nanoseconds: bool) {
    assert_eq!(listing(from, nanoseconds), listing(to, nanoseconds));
    let mut diff = std::process::Command::new("diff");
    // Reading cannot compare special files. The listing has compared them.
    diff.args(["-r", "--no-dereference", "-x", "fifo", "-x", "null"]).args([from, to]);
    let done = run_command(&mut diff);
    assert_eq!(done.code, 0, "{done:?}");
    let sparse = fs::metadata(to.join("sparse")).unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "holes were filled: {} blocks", sparse.blocks());
    assert_eq!(fs::metadata(to.join("null")).unwrap().rdev(), libc::makedev(1, 3));
    assert_eq!(fs::metadata(to.join("suid")).unwrap().ino(), fs::metadata(to.join("d/again")).unwrap().ino());
    for (path, name, value) in [("suid", "user.color", "blue"), ("d", "user.folder", "yes")] {
        let mut get = std::process::Command::new("getfattr");
        get.args(["--absolute-names", "--only-values", "-n", name]).arg(to.join(path));
        match get.output() {
            Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), value),
            Err(error) => println!("getfattr: {error}: attributes: skipped"),
        }
    }
}

#[test]
fn a_folder_arrives_as_it_was_mounted_or_not() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    make(&from);
    json(&[Path::new("import"), &from, Path::new(&world.inner("offline"))]).ok();
    world.mount("");
    json(&[Path::new("import"), &from, &world.mnt().join("online")]).ok();
    for place in ["offline", "online"] {
        same(&from, &world.mnt().join(place), true);
    }
    json(&[Path::new("import"), &from, &world.mnt().join("online")]).fails(1, "exists");
    json(&[
        "import".as_ref(),
        from.as_os_str(),
        world.mnt().join("online").as_os_str(),
        "--overwrite".as_ref(),
    ])
    .ok();
    same(&from, &world.mnt().join("online"), true);
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn archives_arrive_as_they_were_whatever_their_names() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    make(&from);
    let tar = world.path("a.bin");
    let made = std::process::Command::new("tar")
        .args(["--posix", "--sparse", "--xattrs", "-C"])
        .args([&from, Path::new("-cf"), &tar, Path::new(".")])
        .output();
    if !made.is_ok_and(|output| output.status.success()) {
        println!("no tar that keeps attributes: skipped");
        return;
    }
    let bytes = fs::read(&tar).unwrap();
    let mut packed = vec![("plain", tar.clone())];
    for (name, program) in [("gzip", &["gzip", "-c"][..]), ("zstd", &["zstd", "-qc"])] {
        let path = world.path(&format!("{name}.bin"));
        match std::process::Command::new(program[0]).args(&program[1..]).arg(&tar).output() {
            Ok(output) if output.status.success() => fs::write(&path, output.stdout).unwrap(),
            _ => {
                println!("no {name}: skipped");
                continue;
            }
        }
        packed.push((name, path));
    }
    json(&[Path::new("import"), &packed.last().unwrap().1, Path::new(&world.inner("offline"))]).ok();
    world.mount("");
    same(&from, &world.mnt().join("offline"), true);
    for (name, path) in &packed {
        json(&[Path::new("import"), path, &world.mnt().join(name)]).ok();
        same(&from, &world.mnt().join(name), true);
    }
    // Import from a pipe, and then a truncated archive.
    let mut child = covey(&[Path::new("import"), Path::new("-"), &world.mnt().join("piped")]);
    let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert_eq!(crate::world::end_of(&mut child, "import -"), 0);
    same(&from, &world.mnt().join("piped"), true);
    fs::write(&tar, &bytes[..bytes.len() / 2]).unwrap();
    json(&[Path::new("import"), &tar, &world.mnt().join("cut")]).fails(1, "damaged");
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn an_archive_cannot_write_outside_its_place() {
    let Some(world) = World::mountable() else { return };
    let outside = world.path("outside");
    fs::create_dir(&outside).unwrap();
    let mut bytes = Vec::new();
    let mut add = |kind: u8, name: &str, target: &Path, data: &[u8]| {
        let mut block = [0u8; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..107].copy_from_slice(b"0000644");
        block[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        block[156] = kind;
        let target = target.as_os_str().as_bytes();
        block[157..157 + target.len()].copy_from_slice(target);
        block[148..156].copy_from_slice(b"        ");
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
        bytes.extend_from_slice(&block);
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    };
    add(b'2', "trap", &outside, b"");
    add(b'0', "../climbed", Path::new(""), b"x");
    add(b'0', "/absolute", Path::new(""), b"x");
    add(b'0', "trap/fallen", Path::new(""), b"x");
    bytes.resize(bytes.len() + 1024, 0);
    let path = world.path("evil.tar");
    fs::write(&path, bytes).unwrap();
    world.mount("");
    let online = world.mnt().join("online");
    let done = json(&[Path::new("import"), &path, &online]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(online.join("absolute").exists(), "a leading slash is taken off");
    world.umount().ok();
    let done = json(&[Path::new("import"), &path, Path::new(&world.inner("offline"))]);
    assert_eq!(done.code, 1, "{done:?}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "something was written through a symbolic link");
    assert!(!world.path("climbed").exists() && !world.mnt().join("climbed").exists());
}

/// gzip(1) ignores zeros behind its data, as dd(1) and tapes leave them, and the import failed. And an
/// archive of some kilobytes could ask for any amount.
#[test]
fn regression_archives_may_be_padded_and_have_bounds() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let script = "mkdir d; head -c 30000000 /dev/zero > d/zeros; tar -czf a.tgz d; cp a.tgz padded.tgz
        head -c 10240 /dev/zero >> padded.tgz; cp padded.tgz damaged.tgz; echo text >> damaged.tgz";
    let mut sh = std::process::Command::new("sh");
    assert!(sh.args(["-ec", script]).current_dir(world.path("")).status().unwrap().success());
    let import = |archive: &str, more: &[&str]| {
        let (archive, dest) = (world.path(archive), world.mnt().join("here"));
        let words = [Path::new("import"), Path::new("--overwrite"), &archive, &dest];
        let more = more.iter().map(Path::new);
        json(&words.into_iter().chain(more).collect::<Vec<_>>())
    };
    import("padded.tgz", &[]).ok();
    assert_eq!(fs::metadata(world.mnt().join("here/d/zeros")).unwrap().len(), 30_000_000);
    import("damaged.tgz", &[]).fails(1, "damaged");
    import("a.tgz", &["--max-size", "20M"]).fails(1, "too-large");
    import("a.tgz", &["--max-entries", "1"]).fails(1, "too-large");
    import("a.tgz", &["--max-size", "40M", "--max-entries", "2"]).ok();
    world.umount().ok();
}
