//! Daemons that do not answer, and mounts that another process still has. Every command reports that in time,
//! and none hangs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::world::{Done, World, alone, covey, json, kill, run_command, soon};

/// A daemon that is stopped. It continues when this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Stopped {
        kill(pid, libc::SIGSTOP);
        soon("it is stopped", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit(')').next().unwrap().trim().starts_with('T')
        });
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, libc::SIGCONT);
    }
}

/// Runs all commands at the same time, so that their waits overlap.
fn at_once(commands: Vec<Command>) -> Vec<Done> {
    let threads: Vec<_> = commands
        .into_iter()
        .map(|mut command| std::thread::spawn(move || run_command(&mut command)))
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Each of these commands waited for ever, or two minutes, for a stopped daemon. `umount` removed its mount.
#[test]
fn regression_a_stopped_daemon_is_named_by_every_tool() {
    let Some(world) = World::mountable() else { return };
    let pid = world.mount("");
    let (mnt, file) = (world.mnt(), world.mnt().join("a"));
    fs::write(&file, "hello").unwrap();
    let (copy, out) = (mnt.join("b"), world.path("out"));
    let link = world.path("link");
    std::os::unix::fs::symlink(&mnt, &link).unwrap();
    let second = world.path("second");
    json(&[Path::new("format"), &second]).ok();
    let stopped = Stopped::new(pid);
    // Each waits ten seconds or more for an answer, so all of them run at the same time.
    let words: Vec<Vec<&Path>> = vec![
        vec![Path::new("df"), &mnt],
        vec![Path::new("mount"), &second, &mnt],
        vec![Path::new("status"), &mnt],
        vec![Path::new("status"), &link],
        vec![Path::new("info"), &file],
        vec![Path::new("flush"), &mnt],
        vec![Path::new("gc"), &mnt],
        vec![Path::new("clone"), &file, &copy],
        vec![Path::new("publish"), &mnt, Path::new("name")],
        vec![Path::new("export"), &mnt, &out],
        vec![Path::new("peers"), &mnt],
        vec![Path::new("cache"), Path::new("status"), &mnt],
        vec![Path::new("warm"), &file],
        vec![Path::new("trace"), &mnt],
        vec![Path::new("stats"), &mnt],
        vec![Path::new("top"), &mnt],
        vec![Path::new("umount"), &mnt],
    ];
    let command = |words: &Vec<&Path>| {
        let mut command = covey(words);
        command.arg("--json");
        command
    };
    let mut all = at_once(words.iter().map(command).collect()).into_iter();
    let rows = all.next().unwrap().ok().json();
    assert_eq!(
        (rows[0]["alive"].as_bool(), rows[0]["silent"].as_bool()),
        (Some(false), Some(true)),
        "{rows}"
    );
    // Mounting another volume on its mountpoint is refused in time too.
    all.next().unwrap().fails(1, "mountpoint-in-use");
    for (words, done) in words[2..].iter().zip(all) {
        println!("{words:?}");
        done.fails(1, "silent");
        assert!(done.err.contains(&format!("kill -CONT {pid}")), "{done:?}");
        assert!(done.err.contains(mnt.to_str().unwrap()), "{done:?}");
    }
    assert!(world.is_mounted());
    drop(stopped);
    assert_eq!(fs::read_to_string(&file).unwrap(), "hello");
    world.umount().ok();
}

/// One mount that did not answer hid all other mounts, including those of other users.
#[test]
fn regression_a_stopped_daemon_does_not_hide_the_other_mounts() {
    let Some(world) = World::mountable() else { return };
    let pid = world.mount("");
    let other = Other::mount(&world);
    let stopped = Stopped::new(pid);
    let listing = |words: &[&str]| {
        let mut command = covey(words);
        alone(&mut command, world.folder());
        command
    };
    let done = at_once(vec![
        listing(&["status", "--json"]),
        listing(&["df", "--json"]),
        listing(&["top", "--interval", "200ms", "--count", "1"]),
        listing(&["doctor", "--json"]),
    ]);
    let [status, df, top, doctor] = &done[..] else { panic!("{done:?}") };
    let there = other.mnt.to_str().unwrap();
    assert_eq!(status.code, 0, "{status:?}");
    assert_eq!(status.json()[0]["served"]["mountpoint"].as_str(), Some(there), "{status:?}");
    assert!(status.err.contains(&format!("kill -CONT {pid}")), "{status:?}");
    let alive = |row: &serde_json::Value| row["alive"] == true && row["mountpoint"].as_str() == Some(there);
    assert!(df.json().as_array().unwrap().iter().any(alive), "{df:?}");
    assert!(top.code == 0 && top.out.contains(there), "{top:?}");
    assert!(top.err.contains(&format!("kill -CONT {pid}")), "{top:?}");
    assert!(doctor.out.contains(&format!("kill -CONT {pid}")) && doctor.out.contains(there), "{doctor:?}");
    drop(stopped);
    other.umount();
    world.umount().ok();
}

/// A second mount in the same test.
struct Other {
    mnt: PathBuf,
}

impl Other {
    fn mount(world: &World) -> Other {
        let (volume, mnt) = (world.path("volume-2"), world.path("mnt-2"));
        fs::create_dir(&mnt).unwrap();
        json(&[Path::new("format"), &volume]).ok();
        json(&[Path::new("mount"), Path::new("-d"), &volume, &mnt]).ok();
        Other { mnt }
    }

    fn umount(self) {
        json(&[Path::new("umount"), &self.mnt]).ok();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = run_command(&mut covey(&[Path::new("umount"), Path::new("--force"), &self.mnt]));
        }
    }
}

/// A process in its own mount namespace, as in a container. It has a copy of every mount.
struct Container(Child);

impl Container {
    /// It has this world's mounts. Those of other tests would be busy as long as it runs.
    fn start(world: &World) -> Container {
        let mut command = Command::new("sleep");
        Container(alone(command.arg("600"), world.folder()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The volume stayed locked as long as the container ran. After two minutes the error blamed the daemon.
#[test]
fn regression_a_mount_that_a_container_has_is_named_and_can_be_ended() {
    let Some(world) = World::mountable() else { return };
    world.mount("");
    fs::write(world.mnt().join("a"), "hello").unwrap();
    let container = Container::start(&world);
    let named = |done: &Done| {
        assert!(done.err.contains("another mount namespace"), "{done:?}");
        assert!(done.err.contains(&format!("process {} (sleep)", container.pid())), "{done:?}");
        assert!(done.err.contains("covey umount --force"), "{done:?}");
    };
    let done = json(&[Path::new("umount"), Path::new("--wait"), Path::new("2"), &world.mnt()]);
    named(done.fails(1, "busy"));
    assert!(!world.is_mounted());
    let mount = || json(&[Path::new("mount"), Path::new("-d"), &world.volume(), &world.mnt()]);
    named(mount().fails(1, "in-use"));
    named(
        json(&[Path::new("umount"), Path::new("--wait"), Path::new("1"), &world.volume()]).fails(1, "busy"),
    );
    json(&[Path::new("umount"), Path::new("--force"), &world.volume()]).ok();
    mount().ok();
    assert_eq!(fs::read_to_string(world.mnt().join("a")).unwrap(), "hello");
    world.umount().ok();
    // Now with force, while the volume is also mounted here.
    world.mount("");
    let second = Container::start(&world);
    fs::write(world.mnt().join("b"), "kept").unwrap();
    json(&[Path::new("umount"), Path::new("--force"), &world.mnt()]).ok();
    drop((container, second));
    world.mount("");
    assert_eq!(fs::read_to_string(world.mnt().join("b")).unwrap(), "kept");
    world.umount().ok();
    assert_eq!(world.fsck(&[])["sound"], true);
}
