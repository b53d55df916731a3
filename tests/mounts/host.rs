//! Effects of the machine around a mount: privileges set by other programs, inherited limits, mountpoints
//! with any bytes in their names, volumes inside a mount, reserved space.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use covey_tests::{Mounted, Need, Volume, program, requires, run, run_ok};
use rustix::fs::XattrFlags;

const LIMIT: Duration = Duration::from_secs(120);
const CAPABILITY: &str = "security.capability";

/// cap_net_raw, permitted and effective.
fn capability() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn has_capability(path: &Path) -> bool {
    let mut value = [0; 64];
    rustix::fs::getxattr(path, CAPABILITY, &mut value[..]).is_ok_and(|len| value[..len] == capability()[..])
}

fn give(file: impl AsFd) {
    rustix::fs::fsetxattr(file, CAPABILITY, &capability(), XattrFlags::empty()).unwrap();
}

/// `cp -a` and `tar` write, set a capability, and close. The pages used to reach the daemon at the close, and
/// removed the capability.
#[test]
fn regression_a_capability_outlives_the_pages_that_were_written_before_it() {
    requires!(Need::Mount, Need::Root);
    for options in [&["allow_other"][..], &["allow_other", "writeback=off"]] {
        let volume = Volume::new();
        let mounted = volume.mount_with(options);
        fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = mounted.join("program");
        // One file small enough to be inline, and one not.
        for len in [100, 100_000] {
            let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            (&file).write_all(&vec![7; len]).unwrap();
            give(&file);
            assert!(has_capability(&path));
            file.sync_all().unwrap();
            drop(file);
            assert!(has_capability(&path), "{options:?} {len}");
            store_through_a_mapping(&path);
            assert!(
                has_capability(&path),
                "stores through a mapping leave it, as on ext4: {options:?} {len}"
            );
            loses(&mounted, &path, options);
            fs::remove_file(&path).unwrap();
        }
        mounted.umount();
        volume.must_be_clean();
    }
}

fn store_through_a_mapping(path: &Path) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: a new mapping of the file's first page, unmapped at the end.
    unsafe {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        let map = mmap(std::ptr::null_mut(), 4096, flags, MapFlags::SHARED, &file, 0).unwrap();
        map.cast::<u8>().add(5).write_volatile(9);
        msync(map, 4096, MsyncFlags::SYNC).unwrap();
        munmap(map, 4096).unwrap();
    }
    file.sync_all().unwrap();
}

/// A write by any user, root included, and a truncation remove a capability.
fn loses(mounted: &Mounted, path: &Path, options: &[&str]) {
    let again = || {
        give(File::open(path).unwrap());
        assert!(has_capability(path));
    };
    File::options().write(true).open(path).unwrap().write_all_at(b"x", 3).unwrap();
    assert!(!has_capability(path), "{options:?}: written by root");
    again();
    fs::set_permissions(path, fs::Permissions::from_mode(0o6777)).unwrap();
    let mut other = Command::new("sh");
    other.args(["-c", "printf y >> \"$1\"", "sh"]).arg(path).uid(65_534).gid(65_534).current_dir("/");
    run_ok(&mut other, LIMIT);
    assert!(!has_capability(path), "{options:?}: written by another");
    let mode = fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o777, "{options:?}: set-id bits go as well");
    again();
    File::options().write(true).open(path).unwrap().set_len(50).unwrap();
    assert!(!has_capability(path), "{options:?}: truncated");
    // A set-id bit that is set after the write stays, too.
    let file = File::options().append(true).open(path).unwrap();
    (&file).write_all(b"more").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o4755)).unwrap();
    drop(file);
    let mode = fs::metadata(mounted.join("program")).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o4755, "{options:?}");
}

/// A daemon that inherited `ulimit -f` used to be killed by SIGXFSZ at the first write beyond it, and left a
/// dead mount. Now the limit is raised, or the mount is refused with a message.
#[test]
fn regression_an_inherited_limit_of_file_sizes_does_not_end_a_mount() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let place = volume.source.with_file_name("mnt");
    let covey = program::covey().get_program().to_owned();
    let limited = |arguments: &[&std::ffi::OsStr]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 2000; exec \"$@\"", "sh"]).arg(&covey).args(arguments);
        run(shell.current_dir("/"), LIMIT)
    };
    let done = limited(&["mount".as_ref(), "-d".as_ref(), volume.source.as_os_str(), place.as_os_str()]);
    if !done.status.success() {
        // Without CAP_SYS_RESOURCE a hard limit cannot be raised.
        assert!(done.stderr.contains("the size of files") && done.stderr.contains("ulimit -f"), "{done:?}");
        let done = limited(&["gc".as_ref(), volume.source.as_os_str()]);
        assert!(done.stderr.contains("the size of files"), "{done:?}");
        let done = limited(&["fsck".as_ref(), "--repair".as_ref(), volume.source.as_os_str()]);
        assert!(done.stderr.contains("the size of files"), "{done:?}");
        // Commands that only read are not refused.
        assert!(limited(&["status".as_ref(), volume.source.as_os_str()]).status.success());
        return volume.must_be_clean();
    }
    let wrote = fs::write(place.join("big"), vec![5; 20 << 20]);
    let listed = fs::read_dir(&place).map(Iterator::count);
    let umount = run(program::covey().arg("umount").arg(&place), LIMIT);
    assert!(wrote.is_ok() && listed.is_ok() && umount.status.success(), "{wrote:?} {listed:?} {umount:?}");
    volume.must_be_clean();
}

/// The folder of a volume may be on the mount of another volume. Commands used to take it for a path on that
/// mount, and refused to check it.
#[test]
fn regression_a_volume_inside_a_mount_is_that_volume() {
    requires!(Need::Covey);
    let outer = Volume::new();
    let mounted = outer.mount();
    let folder = mounted.join("inner");
    fs::create_dir(&folder).unwrap();
    let inner = Volume::below(&folder, &[]);
    let inside = inner.mount();
    fs::write(inside.join("file"), vec![3; 3 << 20]).unwrap();
    File::open(inside.path()).unwrap().sync_all().unwrap();
    assert_eq!(volume_of_status(&inner.source), fs::canonicalize(&inner.source).unwrap());
    inside.umount();
    inner.must_be_clean();
    assert_eq!(volume_of_status(&inner.source), fs::canonicalize(&inner.source).unwrap());
    program::covey_ok(&["gc".as_ref(), inner.source.as_os_str()]);
    mounted.umount();
    outer.must_be_clean();
}

fn volume_of_status(path: &Path) -> PathBuf {
    let status = program::covey_ok(&["status".as_ref(), "--json".as_ref(), path.as_os_str()]).json();
    let status = status.get(0).unwrap_or(&status);
    PathBuf::from(status["volume"].as_str().unwrap())
}

/// A mount over its own daemon's data would wait for itself.
#[test]
fn regression_a_mount_over_its_own_origin_is_refused() {
    requires!(Need::Covey);
    let folder = covey_tests::scratch();
    let origin = format!("file:{}", folder.path().join("mnt/blobs").display());
    fs::create_dir_all(folder.path().join("mnt")).unwrap();
    let volume = Volume::below(folder.path(), &["--origin", &origin]);
    let refused = volume.try_mount(&[]).map(drop).unwrap_err();
    assert!(refused.contains("hidden from its own daemon"), "{refused}");
}

/// A mountpoint's name may have any bytes. One that was not UTF-8 could be mounted only in the foreground,
/// and no command could handle it.
#[test]
fn regression_a_mountpoint_need_not_be_utf8() {
    requires!(Need::Covey, Need::Root, Need::Program("unshare"), Need::Program("python3"));
    let volume = Volume::new();
    // In a mount namespace of its own, because other tests read the machine's mount table as text. The copies
    // of other tests' mounts are detached first: these tests could not close their volumes otherwise.
    let script = r#"
import ctypes
DETACH, NOFOLLOW = 2, 8
for line in open("/proc/self/mounts", "rb").readlines():
    _, place, kind = line.split(b" ")[:3]
    if kind == b"fuse.covey":
        ctypes.CDLL(None).umount2(place.replace(b"\\040", b" "), DETACH | NOFOLLOW)
import json, os, subprocess, sys
covey, volume, folder = sys.argv[1], sys.argv[2], os.fsencode(sys.argv[3])
place = folder + b"/m\xff\xfe n"
os.mkdir(place)
def run(*words):
    done = subprocess.run([covey, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout
ready = json.loads(run("mount", "-d", "--json", volume, place))
assert bytes(ready["mountpoint"]) == place, ready
open(place + b"/file", "w").write("text")
status = json.loads(run("status", "--json", place))
status = status[0] if isinstance(status, list) else status
assert bytes(status["served"]["mountpoint"]) == place, status
rows = json.loads(run("df", "--json"))
assert any(row["mountpoint"] == list(place) for row in rows), rows
run("status", volume)
run("umount", "--stale", "--json", place)
gone = json.loads(run("umount", "--json", place))
assert bytes(gone["mountpoint"]) == place, gone
assert os.listdir(place) == []
"#;
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "--propagation", "private", "python3", "-c", script]);
    unshare.arg(program::covey().get_program()).arg(&volume.source).arg(volume.source.parent().unwrap());
    run_ok(unshare.current_dir("/"), LIMIT);
    volume.must_be_clean();
    assert!(std::ffi::OsStr::from_bytes(b"m\xff").to_str().is_none());
}

/// `df` of a volume shows the same as `df` of its disk, except for the space kept for removals.
#[test]
fn regression_used_is_what_the_disk_below_has_used() {
    requires!(Need::Covey);
    let volume = Volume::new();
    let mounted = volume.mount();
    let room = |path: &Path| {
        let room = rustix::fs::statvfs(path).unwrap();
        let of = |blocks: u64| blocks * room.f_frsize / (64 << 20);
        (of(room.f_blocks), of(room.f_bfree), of(room.f_bavail))
    };
    let near = |a: u64, b: u64| a.abs_diff(b) <= 16;
    let (disk, here) = (room(&volume.source), room(mounted.path()));
    assert!(near(disk.0, here.0) && near(disk.1, here.1), "{disk:?} {here:?}");
    assert!(here.2 <= disk.2 && near(disk.2, here.2), "{disk:?} {here:?}");
    mounted.umount();
}

/// An id-mapped mount, as containers with user namespaces make of every volume, used to be refused with
/// EINVAL.
#[test]
fn regression_a_mount_can_be_id_mapped() {
    requires!(Need::Covey, Need::Root, Need::Program("unshare"));
    let volume = Volume::new();
    let mounted = volume.mount_with(&["allow_other"]);
    fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(mounted.join("roots"), "text").unwrap();
    let mut holder = Command::new("unshare").args(["-U", "sleep", "60"]).current_dir("/").spawn().unwrap();
    let pid = holder.id();
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    while fs::read_link(format!("/proc/{pid}/ns/user")).unwrap() == own {
        std::thread::sleep(Duration::from_millis(1));
    }
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{map}"), "0 100000 65536").unwrap();
    }
    let namespace = File::open(format!("/proc/{pid}/ns/user")).unwrap();
    holder.kill().unwrap();
    holder.wait().unwrap();
    let flags =
        rustix::mount::OpenTreeFlags::OPEN_TREE_CLONE | rustix::mount::OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(rustix::fs::CWD, mounted.path(), flags).unwrap();
    match map_ids(&tree, &namespace) {
        Ok(()) => {}
        // Before Linux 6.12.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !kernel_is_new() => {
            return mounted.umount();
        }
        Err(error) => panic!("{error}"),
    }
    let root = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&tree));
    let seen = |name: &str| {
        let meta = fs::metadata(format!("{root}/{name}")).unwrap();
        (std::os::unix::fs::MetadataExt::uid(&meta), std::os::unix::fs::MetadataExt::gid(&meta))
    };
    assert_eq!(seen("roots"), (100_000, 100_000));
    // A file created by the container's root belongs to root in the volume. A file created by root outside
    // has no owner there, so that is refused.
    let mut python = Command::new("python3");
    python.args(["-c", "import os, sys\nos.fchdir(int(sys.argv[1]))\nopen('made', 'w').write('x')\nos.chmod('made', 0o6755)\n\
                        open('made', 'a').write('y')"]);
    let fd = rustix::io::fcntl_dupfd_cloexec(&tree, 100).unwrap();
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).unwrap();
    python.arg(std::os::fd::AsRawFd::as_raw_fd(&fd).to_string()).uid(100_000).gid(100_000);
    run_ok(&mut python, LIMIT);
    assert_eq!(seen("made"), (100_000, 100_000));
    let meta = fs::metadata(mounted.join("made")).unwrap();
    assert_eq!((std::os::unix::fs::MetadataExt::uid(&meta), meta.permissions().mode() & 0o7777), (0, 0o755));
    assert!(fs::write(format!("{root}/nobodys"), "x").is_err());
    drop((tree, fd));
    mounted.umount();
    volume.must_be_clean();
}

fn kernel_is_new() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').filter_map(|part| part.parse::<u32>().ok());
    numbers.next().zip(numbers.next()) >= Some((6, 12))
}

/// mount_setattr(2) with `MOUNT_ATTR_IDMAP`.
fn map_ids(tree: &impl std::os::fd::AsRawFd, namespace: &File) -> std::io::Result<()> {
    const IDMAP: u64 = 0x0010_0000;
    let attributes = [IDMAP, 0, 0, std::os::fd::AsRawFd::as_raw_fd(namespace) as u64];
    // SAFETY: an empty path that ends with NUL, and four words in the layout that the call reads. Both
    // descriptors are open.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
