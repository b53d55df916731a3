//! Archives written by GNU tar and bsdtar. Each member is compared with what these programs extract.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{World, covey, json, run_command};

/// Runs a program. Returns false if it does not exist or does not support what is asked.
fn ran(program: &str, change: impl FnOnce(&mut Command)) -> bool {
    let mut command = Command::new(program);
    change(&mut command);
    match command.output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("{command:?}: {}: skipped", String::from_utf8_lossy(&output.stderr));
            false
        }
        Err(error) => {
            println!("{program}: {error}: skipped");
            false
        }
    }
}

/// The command line is complete, so nothing is added.
fn done(_: &mut Command) {}

/// Sets the umask of a command.
fn masked(mask: u32, command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    // SAFETY: between fork and exec the closure calls only umask(2), which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::umask(mask);
            Ok(())
        })
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn acl(path: &Path) -> String {
    let output = Command::new("getfacl").args(["-cn", "--absolute-names"]).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything visible of a tree: names, kinds, modes, owners, times, sizes, link targets, hard links within
/// it, contents.
pub fn seen(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_owned();
            let what = match meta.file_type() {
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                kind if kind.is_file() => format!("{:?}", fs::read(&path).unwrap()),
                _ => format!("{}", meta.rdev()),
            };
            let size = if meta.is_dir() { 0 } else { meta.size() };
            let links = if meta.is_dir() { 0 } else { meta.nlink() };
            lines.push(format!(
                "{name:?} {:o} {}:{} {}.{:09} {size} {links} {what}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.mtime(),
                meta.mtime_nsec()
            ));
            if meta.is_dir() {
                folders.push(path);
            }
        }
    }
    lines.sort();
    lines
}

/// Imports in all three ways: into a volume that is not mounted, through its daemon, and through the mount.
/// The last one is what the command does in another view of the mount.
fn import(world: &World, archive: &Path, name: &str, status: i32) -> [PathBuf; 3] {
    let online = world.mnt().join(format!("{name}-on"));
    let offline = format!("{name}-off");
    if world.is_mounted() {
        world.umount().ok();
    }
    let outcome = json(&[Path::new("import"), archive, Path::new(&world.inner(&offline))]);
    assert_eq!(outcome.code, status, "{name}: {outcome:?}");
    world.mount("");
    let outcome = json(&[Path::new("import"), archive, &online]);
    assert_eq!(outcome.code, status, "{name}: {outcome:?}");
    let view = world.path("view");
    let _ = fs::create_dir(&view);
    assert!(ran("mount", |mount| done(mount.arg("--bind").args([&world.mnt(), &view]))));
    let through = format!("{name}-through");
    let outcome = json(&[Path::new("import"), archive, &view.join(&through)]);
    base::trial::unmount(&view).unwrap();
    assert_eq!(outcome.code, status, "{name}: {outcome:?}");
    assert!(outcome.json()["through_mount"].is_string(), "{name}: {outcome:?}");
    [online, world.mnt().join(offline), world.mnt().join(through)]
}

/// The destination folder was open to everybody, whatever the umask. A folder that an archive omits got mode
/// 0755.
#[test]
fn regression_folders_that_no_member_speaks_of_obey_the_mask() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    fs::create_dir_all(from.join("d")).unwrap();
    fs::write(from.join("d/f"), "x").unwrap();
    fs::set_permissions(from.join("d/f"), fs::Permissions::from_mode(0o666)).unwrap();
    let archive = world.path("a.tar");
    if !ran("tar", |tar| done(tar.arg("-C").args([&from, Path::new("-cf"), &archive, Path::new("d/f")]))) {
        return;
    }
    let offline = world.inner("off");
    run_command(masked(0o077, &mut covey(&[Path::new("import"), &archive, Path::new(&offline)]))).ok();
    world.mount("");
    let online = world.mnt().join("on");
    run_command(masked(0o077, &mut covey(&[Path::new("import"), &archive, &online]))).ok();
    for root in [online, world.mnt().join("off")] {
        assert_eq!([mode(&root), mode(&root.join("d"))], [0o700, 0o700], "{}", root.display());
        assert_eq!(mode(&root.join("d/f")), 0o666, "what a member says of itself holds");
    }
}

/// ACLs that `tar --acls` writes were dropped silently. Entries in a folder with a default ACL gained an ACL.
#[test]
fn regression_acls_of_archives_arrive_and_are_not_gained() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    fs::create_dir_all(from.join("d/sub")).unwrap();
    for name in ["f", "d/in", "d/sub/deep"] {
        fs::write(from.join(name), "x").unwrap();
    }
    let has = ran("mkfifo", |mkfifo| done(mkfifo.args([from.join("d/pipe"), from.join("pipe")])))
        && ran("setfacl", |set| done(set.args(["-m", "u:1001:rw,g::r--,m::rw,o::-"]).arg(from.join("f"))))
        && ran("setfacl", |set| done(set.args(["-d", "-m", "u:1002:rwx"]).arg(from.join("d"))));
    let archive = world.path("a.tar");
    let tar = |tar: &mut Command| {
        done(tar.arg("--acls").arg("-C").args([&from, Path::new("-cf"), &archive, Path::new(".")]))
    };
    if !has || !ran("tar", tar) {
        return;
    }
    let names = ["f", "d", "d/in", "d/sub", "d/sub/deep", "d/pipe", "pipe"];
    let mut places = import(&world, &archive, "tar", 0).to_vec();
    if ran("bsdtar", |tar| {
        done(tar.args(["--acls", "--format=pax", "-C"]).args([
            &from,
            Path::new("-cf"),
            &archive,
            Path::new("."),
        ]))
    }) {
        places.extend(import(&world, &archive, "bsdtar", 0));
    }
    // Import the folder itself, and import into a folder whose default ACL the source does not have.
    places.extend(import(&world, &from, "folder", 0));
    let below = world.mnt().join("below");
    fs::create_dir(&below).unwrap();
    assert!(ran("setfacl", |set| done(set.args(["-d", "-m", "u:1003:rwx"]).arg(&below))));
    json(&[Path::new("import"), &archive, &below.join("on")]).ok();
    places.push(below.join("on"));
    world.umount().ok();
    json(&[Path::new("import"), &archive, Path::new(&world.inner("below/off"))]).ok();
    world.mount("");
    places.push(below.join("off"));
    for place in &places {
        for name in names {
            assert_eq!(acl(&place.join(name)), acl(&from.join(name)), "{}", place.join(name).display());
        }
    }
}

/// Creates a tree with many cases that are difficult for archives.
fn make(from: &Path) {
    fs::create_dir_all(from.join("d/empty")).unwrap();
    fs::write(from.join("d/f"), "contents").unwrap();
    fs::hard_link(from.join("d/f"), from.join("again")).unwrap();
    symlink("d/f", from.join("inside")).unwrap();
    symlink("../../outside", from.join("outside")).unwrap();
    fs::write(from.join("suid"), "x").unwrap();
    std::os::unix::fs::chown(from.join("suid"), Some(3_000_000), Some(7)).unwrap();
    fs::set_permissions(from.join("suid"), fs::Permissions::from_mode(0o6751)).unwrap();
    let long = from.join("l".repeat(110)).join("m".repeat(90));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("n".repeat(200)), "deep").unwrap();
    symlink("t".repeat(200), from.join("link-to-long")).unwrap();
    fs::write(from.join("old"), "x").unwrap();
    let times = [
        ("old", -1_000_000_000, 500_000_000),
        ("d/f", -1_000_000_000, 0),
        ("suid", 5_000_000_000, 0),
        ("d/empty", -1, 0),
        ("d", 0, 1),
    ];
    for (name, seconds, nanos) in times {
        let at = libc::timespec { tv_sec: seconds, tv_nsec: nanos };
        let path = std::ffi::CString::new(from.join(name).to_str().unwrap()).unwrap();
        // SAFETY: `path` ends with NUL, and the two times are alive during the call.
        assert_eq!(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), [at, at].as_ptr(), 0) }, 0);
    }
}

#[test]
fn archives_of_every_dialect_are_taken_as_tar_takes_them() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    make(&from);
    let dialects: [(&str, &[&str]); 8] = [
        ("tar", &["--format=gnu"]),
        ("tar", &["--format=oldgnu"]),
        ("tar", &["--format=posix"]),
        (
            "tar",
            &[
                "--format=ustar",
                "--exclude=l*",
                "--exclude=n*",
                "--exclude=f",
                "--exclude=old",
                "--exclude=again",
                "--exclude=suid",
                "--exclude=empty",
            ],
        ),
        (
            "tar",
            &[
                "--format=v7",
                "--exclude=l*",
                "--exclude=f",
                "--exclude=old",
                "--exclude=again",
                "--exclude=suid",
                "--exclude=empty",
            ],
        ),
        ("tar", &["--format=gnu", "--label=a label", "--numeric-owner"]),
        // bsdtar handles a fraction of a second before 1970 differently from all other programs, so `old` is
        // left out.
        ("bsdtar", &["--format=pax", "--exclude=old"]),
        ("bsdtar", &["--format=gnutar"]),
    ];
    for (number, (program, flags)) in dialects.into_iter().enumerate() {
        let archive = world.path(&format!("{number}.tar"));
        let pack = |tar: &mut Command| {
            tar.args(flags).arg("-C").args([&from, Path::new("-cf"), &archive, Path::new(".")]);
        };
        if !ran(program, pack) {
            continue;
        }
        let unpacked = world.path(&format!("{number}.d"));
        fs::create_dir(&unpacked).unwrap();
        if !ran(program, |tar| {
            done(tar.args(["--numeric-owner", "-xpf"]).args([&archive, Path::new("-C"), &unpacked]))
        }) {
            continue;
        }
        for place in import(&world, &archive, &format!("{number}"), 0) {
            let (is, wanted) = (seen(&place), seen(&unpacked));
            let only = |here: &[String], there: &[String]| -> Vec<String> {
                here.iter().filter(|line| !there.contains(line)).cloned().collect()
            };
            let differences = (only(&is, &wanted), only(&wanted, &is));
            assert!(is == wanted, "{program} {flags:?}, {}: {differences:#?}", place.display());
        }
    }
}

/// An archive that was appended to: repeated members, links to replaced members, labels, and data after the
/// end mark.
#[test]
fn regression_an_archive_that_was_added_to_is_read_as_tar_reads_it() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    fs::create_dir_all(from.join("d")).unwrap();
    fs::write(from.join("a"), "first").unwrap();
    fs::hard_link(from.join("a"), from.join("b")).unwrap();
    let archive = world.path("a.tar");
    let tar = |how: &str, names: &[&str]| {
        ran("tar", |tar| {
            tar.arg("-C").args([&from, Path::new(how), &archive]).args(names);
        })
    };
    if !tar("-cf", &["a", "b", "d"]) {
        return;
    }
    fs::remove_file(from.join("a")).unwrap();
    fs::write(from.join("a"), "second, longer").unwrap();
    fs::set_permissions(from.join("d"), fs::Permissions::from_mode(0o711)).unwrap();
    fs::create_dir(from.join("turned")).unwrap();
    assert!(tar("-rf", &["a", "d", "turned"]));
    fs::remove_dir(from.join("turned")).unwrap();
    symlink("a", from.join("turned")).unwrap();
    assert!(tar("-rf", &["turned"]));
    let mut bytes = fs::read(&archive).unwrap();
    bytes.extend_from_slice(b"what a tape had behind the end");
    fs::write(&archive, bytes).unwrap();
    for place in import(&world, &archive, "added", 0) {
        assert_eq!(fs::read(place.join("a")).unwrap(), b"second, longer");
        assert_eq!(fs::read(place.join("b")).unwrap(), b"first");
        assert_eq!(fs::read_link(place.join("turned")).unwrap(), Path::new("a"));
        assert_eq!((mode(&place.join("d")), fs::metadata(place.join("b")).unwrap().nlink()), (0o711, 1));
    }
    // A name that existed before the import is not replaced.
    json(&[Path::new("import"), &archive, &world.mnt().join("added-on")]).fails(1, "exists");
    // A link to something that the archive does not hold is reported. The rest is imported.
    assert!(ran("tar", |tar| done(tar.arg("--delete").args([Path::new("-f"), &archive, Path::new("a")]))));
    for place in import(&world, &archive, "deleted", 1) {
        assert!(place.join("d").is_dir() && !place.join("b").exists());
    }
}

#[test]
fn regression_an_archive_in_several_volumes_is_refused_in_words() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    fs::write(&from, vec![7; 100_000]).unwrap();
    let [first, second] = ["1.tar", "2.tar"].map(|name| world.path(name));
    let split = |tar: &mut Command| {
        tar.args(["-M", "-L", "60", "-C"]).arg(world.path("")).arg("-cf").args([
            &first,
            Path::new("-f"),
            &second,
            Path::new("from"),
        ]);
    };
    if !ran("tar", split) {
        return;
    }
    let outcome = json(&[Path::new("import"), &second, Path::new(&world.inner("x"))]);
    let why = outcome.fails(1, "damaged").json()["error"]["why"][0].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("several volumes"), "{why}");
    json(&[Path::new("import"), &first, Path::new(&world.inner("y"))]).fails(1, "damaged");
}

/// A file capability was set first, and the change of owner after it removed it.
#[test]
fn regression_capabilities_and_attributes_survive_the_owner() {
    let Some(world) = World::mountable() else { return };
    let from = world.path("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("ping"), "x").unwrap();
    std::os::unix::fs::chown(from.join("ping"), Some(1234), Some(1234)).unwrap();
    if !ran("setcap", |set| done(set.arg("cap_net_raw+ep").arg(from.join("ping")))) {
        return;
    }
    for place in import(&world, &from, "caps", 0) {
        let got = Command::new("getcap").arg(place.join("ping")).output().unwrap();
        let text = String::from_utf8_lossy(&got.stdout).into_owned();
        assert!(text.contains("cap_net_raw"), "{}: {text:?}", place.display());
    }
}
