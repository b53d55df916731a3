//! Imports into a mounted volume. Its daemon does them for root: programs see the files at once, and an end
//! at any moment leaves a sound volume and nothing that hangs.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use crate::fidelity::seen;
use crate::world::{Done, World, covey, end_of, json, kill, kill_and_wait, run_command, soon};

/// What a command prints when the daemon does not do it.
const THROUGH: &str = "go through the mount";
/// The size of each file of [`Fed`].
const SIZE: usize = 20_000;

/// Appends a member to an archive.
fn member(archive: &mut Vec<u8>, kind: u8, name: &str, mode: u32, data: &[u8]) {
    let mut block = [0u8; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(format!("{mode:07o}").as_bytes());
    block[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
    block[136..147].copy_from_slice(b"07346545000");
    block[156] = kind;
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    archive.extend_from_slice(&block);
    archive.extend_from_slice(data);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn content(number: usize) -> Vec<u8> {
    (0..SIZE).map(|at| (at * 7 + number * 13 + at / 256) as u8).collect()
}

fn file(world: &World, number: usize) -> PathBuf {
    world.mnt().join(format!("to/d/file-{number}"))
}

/// An import whose archive comes through a pipe, as far as the test wants.
struct Fed {
    child: Child,
    pipe: ChildStdin,
    /// The rest of the last file.
    rest: Vec<u8>,
    errors: PathBuf,
}

impl Fed {
    /// Starts it with a folder and so many files, and half of one more.
    fn start(world: &World, files: usize) -> Fed {
        let errors = world.path("errors");
        let mut command = covey(&[Path::new("import"), Path::new("-"), &world.mnt().join("to")]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(File::create(&errors).unwrap());
        let mut child = command.spawn().unwrap();
        let mut archive = Vec::new();
        member(&mut archive, b'5', "d", 0o755, b"");
        for number in 0..=files {
            member(&mut archive, b'0', &format!("d/file-{number}"), 0o644, &content(number));
        }
        let rest = archive.split_off(archive.len() - SIZE / 2);
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&archive).unwrap();
        pipe.flush().unwrap();
        soon("the files arrive", || file(world, files - 1).exists());
        Fed { child, pipe, rest, errors }
    }

    /// Waits for its end. Returns the status and what it printed.
    fn end(mut self) -> (i32, String) {
        let status = end_of(&mut self.child, "import");
        drop(self.pipe);
        let said = fs::read_to_string(&self.errors).unwrap();
        assert!(!said.contains(THROUGH), "{said}");
        (status, said)
    }
}

/// Every file that is there is whole. Returns how many there are.
fn whole(world: &World, from: usize) -> usize {
    let there = (0..).take_while(|&number| file(world, number).exists()).count();
    assert!(there >= from, "{there} files");
    for number in 0..there {
        assert!(fs::read(file(world, number)).unwrap() == content(number), "file {number} of {there}");
    }
    let names = fs::read_dir(world.mnt().join("to/d")).unwrap().count();
    assert_eq!(names, there, "nothing else is there");
    there
}

fn import(world: &World, from: &Path, to: &str, more: &[&str]) -> Done {
    let to = world.mnt().join(to);
    let mut args = vec!["import".as_ref(), from.as_os_str(), to.as_os_str()];
    args.extend(more.iter().map(|word| std::ffi::OsStr::new(*word)));
    let done = run_command(&mut covey(&args)).ok();
    assert!(!done.err.contains(THROUGH), "{done:?}");
    done
}

fn touch(path: &Path, seconds: u64) {
    let time = UNIX_EPOCH + Duration::from_secs(seconds);
    let times = fs::FileTimes::new().set_accessed(time).set_modified(time);
    File::open(path).unwrap().set_times(times).unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn programs_see_at_once_what_was_imported() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let (from, to) = (world.path("from"), world.mnt().join("to"));
    fs::create_dir_all(from.join("sub/new")).unwrap();
    for (name, text) in [("old", "newer text"), ("new", "new"), ("sub/x", "x"), ("sub/new/y", "y")] {
        fs::write(from.join(name), text).unwrap();
    }
    fs::set_permissions(&from, fs::Permissions::from_mode(0o751)).unwrap();
    ["", "sub"].iter().for_each(|name| touch(&from.join(name), 1_000_000_000));

    // The kernel learns what is there, and what is not.
    fs::create_dir_all(to.join("sub")).unwrap();
    fs::write(to.join("old"), "old").unwrap();
    fs::hard_link(to.join("old"), world.mnt().join("other")).unwrap();
    let held = File::open(to.join("old")).unwrap();
    assert_eq!(fs::read(to.join("old")).unwrap(), b"old");
    assert_eq!(fs::metadata(world.mnt().join("other")).unwrap().nlink(), 2);
    for name in ["new", "sub/x", "sub/new"] {
        assert_eq!(fs::metadata(to.join(name)).unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert_eq!([names(&to), names(&to.join("sub"))], [vec!["old", "sub"], vec![]]);
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o755);

    import(&world, &from, "to", &["--overwrite"]);

    assert_eq!(seen(&from), seen(&to));
    let meta = fs::metadata(&to).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.mtime()), (0o751, 1_000_000_000));
    assert_eq!(fs::metadata(to.join("sub")).unwrap().mtime(), 1_000_000_000);
    let mut text = [0; 10];
    assert_eq!((held.read_at(&mut text, 0).unwrap(), &text[..3]), (3, &b"old"[..]), "an open file stays");
    assert_eq!(held.metadata().unwrap().nlink(), 1);
    assert_eq!(fs::read(world.mnt().join("other")).unwrap(), b"old");
    drop(held);
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

/// Programs look at everything while it is being made. Nothing that they saw on the way remains.
#[test]
fn what_was_seen_during_an_import_does_not_stay() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let (from, to) = (world.path("from"), world.mnt().join("to"));
    for number in 0..800 {
        let folder = from.join(format!("{}", number % 8));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{number}")), vec![number as u8; number * 37]).unwrap();
    }
    for round in 0..2 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut looks = 0_usize;
                    while !done.load(Ordering::Relaxed) {
                        let number = looks * 7 % 800;
                        let path = to.join(format!("{}/{number}", number % 8));
                        let _ = fs::metadata(&path).and_then(|_| fs::read(&path));
                        if looks.is_multiple_of(50) {
                            let folder = to.join(format!("{}", number % 8));
                            let _ = fs::read_dir(&folder).map(Iterator::count);
                            let _ = fs::metadata(&folder);
                        }
                        looks += 1;
                    }
                });
            }
            let more: &[&str] = if round == 0 { &[] } else { &["--overwrite"] };
            import(&world, &from, "to", more);
            done.store(true, Ordering::Relaxed);
        });
        let (wanted, found) = (seen(&from), seen(&to));
        let wrong =
            found.iter().filter(|line| !wanted.contains(line)).map(|line| &line[..line.len().min(100)]);
        assert!(wanted == found, "round {round}: {:#?}", wrong.collect::<Vec<_>>());
    }
    let before = seen(&to);
    world.umount().ok();
    world.mount("");
    assert_eq!(before, seen(&to), "the kernel showed what the volume holds");
}

#[test]
fn ctrl_c_completes_what_has_arrived() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let fed = Fed::start(&world, 40);
    assert_eq!(fs::metadata(world.mnt().join("to/d")).unwrap().mode() & 0o777, 0o700, "closed until the end");
    kill(fed.child.id(), libc::SIGINT);
    let (status, said) = fed.end();
    assert_eq!(status, 130, "{said}");
    for part in ["stopping", "stopped before the end", "are there, each one whole", "next: ", "--overwrite"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(whole(&world, 30) <= 40);
    let meta = fs::metadata(world.mnt().join("to/d")).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.mtime()), (0o755, 0o7346545000));
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn a_killed_command_leaves_whole_files_and_a_daemon_that_serves() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let fed = Fed::start(&world, 40);
    kill(fed.child.id(), libc::SIGKILL);
    assert_eq!(fed.end().0, -libc::SIGKILL);
    let log = world.volume().join("covey.log");
    soon("the daemon notices", || fs::read_to_string(&log).unwrap().contains("ended early"));
    soon("the folder is completed", || {
        fs::metadata(world.mnt().join("to/d")).unwrap().mode() & 0o777 == 0o755
    });
    whole(&world, 20);
    fs::write(world.mnt().join("to/more"), "works").unwrap();
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn a_killed_daemon_ends_the_command_and_loses_nothing_that_was_there() {
    let Some(world) = World::mountable() else { return };
    let daemon = world.mount("");
    let fed = Fed::start(&world, 40);
    json(&[Path::new("flush"), &world.mnt()]).ok();
    kill_and_wait(daemon);
    // It notices while it waits for its source.
    let (status, said) = fed.end();
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("does not answer") && said.contains("next: "), "{said}");
    json(&[Path::new("umount"), &world.mnt()]).ok();
    world.mount("");
    whole(&world, 30);
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}

#[test]
fn a_slow_source_is_waited_for() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let mut fed = Fed::start(&world, 40);
    // The rest of the file, and the end of the archive.
    fed.pipe.write_all(&fed.rest).unwrap();
    soon("all files arrive, although little came", || file(&world, 40).exists());
    fed.pipe.write_all(&[0; 1024]).unwrap();
    let Fed { mut child, pipe, errors, .. } = fed;
    drop(pipe);
    assert_eq!(end_of(&mut child, "import"), 0, "{}", fs::read_to_string(errors).unwrap());
    assert_eq!(whole(&world, 41), 41);
}

#[test]
fn an_unmount_waits_for_an_import_unless_it_is_forced() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let fed = Fed::start(&world, 40);
    json(&[Path::new("umount"), &world.mnt()]).fails(1, "busy");
    run_command(&mut covey(&[Path::new("umount"), Path::new("--force"), &world.mnt()]));
    let (status, said) = fed.end();
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("next: "), "{said}");
    soon("the volume is closed", || !world.is_mounted());
    soon("the volume is free", || json(&[Path::new("fsck"), &world.volume()]).code == 0);
    world.mount("");
    whole(&world, 20);
}

#[test]
fn a_full_disk_ends_an_import_with_advice_and_the_mount_goes_on() {
    let Some(world) = World::mountable() else { return };
    let small = world.path("small");
    fs::create_dir(&small).unwrap();
    let mut tmpfs = Command::new("mount");
    tmpfs.args(["-t", "tmpfs", "-o", "size=96m", "none"]).arg(&small);
    if run_command(&mut tmpfs).code != 0 {
        println!("no tmpfs: skipped");
        return;
    }
    let (volume, mnt) = (small.join("volume"), world.mnt());
    json(&[Path::new("format"), &volume]).ok();
    json(&[Path::new("mount"), Path::new("-d"), &volume, &mnt]).ok();
    let from = world.path("from");
    fs::create_dir_all(from.join("d")).unwrap();
    for number in 0..150_u8 {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at ^ (at >> 8)) as u8 ^ number).collect();
        fs::write(from.join(format!("d/{number}")), bytes).unwrap();
    }
    let full = json(&[Path::new("import"), &from, &mnt.join("to")]);
    full.fails(1, "disk-full");
    assert!(!full.err.contains(THROUGH), "{full:?}");
    let meta = fs::metadata(mnt.join("to/d")).unwrap();
    assert_eq!(meta.mode() & 0o777, 0o755, "the folder is complete");
    for entry in fs::read_dir(mnt.join("to/d")).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().len(), 1_000_000, "each file is whole");
    }
    fs::remove_dir_all(mnt.join("to")).unwrap();
    json(&[Path::new("umount"), &mnt]).ok();
    assert_eq!(json(&[Path::new("fsck"), &volume]).ok().json()["sound"], true);
    base::trial::unmount(&small).unwrap();
}

/// Another user's import goes through the mount, where the kernel checks permissions.
#[test]
fn a_user_without_rights_imports_what_the_kernel_allows() {
    const NOBODY: u32 = 65_534;
    let Some(world) = World::mountable() else { return };
    fs::set_permissions(world.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    world.mount("");
    let (from, theirs) = (world.path("from"), world.mnt().join("theirs"));
    fs::create_dir_all(from.join("d")).unwrap();
    fs::write(from.join("d/f"), "x").unwrap();
    fs::set_permissions(from.join("d/f"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::write(from.join("secret"), "x").unwrap();
    fs::set_permissions(from.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    let as_nobody = |to: &Path| {
        let mut command = covey(&[Path::new("import"), &from, to]);
        command.uid(NOBODY).gid(NOBODY).env("HOME", "/").current_dir("/");
        // The program may be where only root can start it.
        command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        let mut command = covey(&[Path::new("import"), &from, to]);
        command.arg("--overwrite").uid(NOBODY).gid(NOBODY).env("HOME", "/").current_dir("/");
        Ok::<_, std::io::Error>(run_command(&mut command))
    };
    let done = match as_nobody(&theirs.join("to")) {
        Ok(done) => done,
        Err(error) => return println!("another user cannot start the program ({error}): skipped"),
    };
    // What this user may not read is left out.
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.err.contains(THROUGH) && done.err.contains("secret"), "{done:?}");
    let meta = fs::metadata(theirs.join("to/d/f")).unwrap();
    assert_eq!(
        (meta.uid(), meta.mode() & 0o7777),
        (NOBODY, 0o755),
        "an ordinary user's import should set no special bits"
    );
    assert!(!theirs.join("to/secret").exists());
    let refused = as_nobody(&world.mnt().join("not-theirs")).unwrap();
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("permission denied"), "{refused:?}");
    assert!(!world.mnt().join("not-theirs").exists());
}

/// A second view of the mount may be read-only, or show other users. Only the kernel knows.
#[test]
fn another_view_of_the_mount_is_used_as_it_is() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    let (from, view) = (world.path("from"), world.path("view"));
    fs::create_dir_all(from.join("d")).unwrap();
    fs::write(from.join("d/f"), "x").unwrap();
    fs::create_dir(&view).unwrap();
    run_command(Command::new("mount").arg("--bind").args([&world.mnt(), &view])).ok();
    let through = run_command(&mut covey(&[Path::new("import"), &from, &view.join("a")]));
    run_command(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&view)).ok();
    let read_only = json(&[Path::new("import"), &from, &view.join("b")]);
    base::trial::unmount(&view).unwrap();
    assert!(through.code == 0 && through.err.contains(THROUGH), "{through:?}");
    assert_eq!(seen(&from), seen(&world.mnt().join("a")));
    read_only.fails(1, "read-only");
    assert!(!world.mnt().join("b").exists());
}
