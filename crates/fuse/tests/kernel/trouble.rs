//! What goes wrong: handlers that panic or hang, and mounts that end in every possible way.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::trial::{at_some_scale, in_time};
use fuse::{MountError, Options, Session, Unmount, UnmountError};
use parking_lot::Mutex;

use crate::memory::Memory;
use crate::{lacking, options, rig, rig_with, within};

const SOON: Duration = Duration::from_secs(120);

#[test]
fn a_panic_in_a_handler_is_eio_and_the_mount_lives() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&lines);
    let options = Options { log: Arc::new(move |line: &str| kept.lock().push(line.to_owned())), ..options() };
    let Some(rig) = rig_with(Memory::new(), options) else {
        return;
    };
    let path = rig.path("trap-panic");
    std::fs::write(&path, b"x").unwrap();
    let trapped = File::open(&path).unwrap();
    let read = || {
        // SAFETY: the descriptor is open. This drops its pages, so that READ is sent.
        unsafe {
            libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&trapped), 0, 0, libc::POSIX_FADV_DONTNEED)
        };
        let mut data = Vec::new();
        (&trapped).read_to_end(&mut data).unwrap_err().raw_os_error()
    };
    for _ in 0..5 {
        assert_eq!(read(), Some(libc::EIO));
    }
    std::fs::write(rig.path("after"), b"alive").unwrap();
    assert_eq!(std::fs::read(rig.path("after")).unwrap(), b"alive");
    let lines = lines.lock();
    assert!(
        lines.iter().any(|line| line.contains("READ") && line.contains("fell into the trap")),
        "{lines:?}"
    );
}

/// More stalled readers than worker threads. The rest of the mount continues, and all of them end in time.
#[test]
fn a_stalled_read_is_eio_within_its_deadline_and_others_proceed() {
    at_some_scale(|scale| stalled_reads(scale * Duration::from_millis(1500))).unwrap();
}

fn stalled_reads(deadline: Duration) -> Result<(), String> {
    let Some(rig) = rig_with(Memory::new(), Options { deadline, workers: 2, ..options() }) else {
        return Ok(());
    };
    // Even a request that nothing stalls may miss the deadline on a busy machine.
    let late = |error: std::io::Error| format!("beside the stalled reads: {error}");
    for i in 0..6 {
        std::fs::write(rig.path(&format!("trap-stall-{i}")), b"x").map_err(late)?;
        try_drop_pages(&rig.path(&format!("trap-stall-{i}"))).map_err(late)?;
    }
    rig.fs.stall(true);
    let begun = Instant::now();
    let stuck: Vec<_> = (0..6)
        .map(|i| {
            let path = rig.path(&format!("trap-stall-{i}"));
            std::thread::spawn(move || std::fs::read(path).unwrap_err().raw_os_error())
        })
        .collect();
    while rig.session.waiting() < 6 {
        in_time(begun.elapsed(), deadline, "the start of six reads")?;
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::write(rig.path("other"), b"proceeds").map_err(late)?;
    assert_eq!(std::fs::read(rig.path("other")).map_err(late)?, b"proceeds");
    in_time(begun.elapsed(), deadline, "a write and a read beside six stalled reads")?;
    for reader in stuck {
        assert_eq!(reader.join().unwrap(), Some(libc::EIO));
    }
    let took = begun.elapsed();
    assert!(took >= deadline, "a read failed after {took:?}, before its deadline");
    in_time(took, deadline * 3, "six stalled reads")?;
    // The stall ends and late results are dropped. After the moment in which all waiting readers get their
    // error, the same files can be read again.
    rig.fs.stall(false);
    std::thread::sleep(deadline / 4);
    let path = rig.path("trap-stall-0");
    assert_eq!(within(SOON, move || std::fs::read(path)).map_err(late)?, b"x");
    Ok(())
}

/// The kernel sends a failed read twice, for its read-ahead and for the page. The program waited for both.
#[test]
fn regression_a_read_that_waited_in_vain_does_not_wait_twice() {
    at_some_scale(|scale| one_deadline_for_two_requests(scale * Duration::from_secs(2))).unwrap();
}

fn one_deadline_for_two_requests(deadline: Duration) -> Result<(), String> {
    let Some(rig) = rig_with(Memory::new(), Options { deadline, ..options() }) else {
        return Ok(());
    };
    let path = rig.path("trap-stall-twice");
    let late = |error: std::io::Error| error.to_string();
    std::fs::write(&path, vec![b'x'; 100_000]).map_err(late)?;
    try_drop_pages(&path).map_err(late)?;
    rig.fs.stall(true);
    let begun = Instant::now();
    let read = || {
        let mut first = [0; 4096];
        let file = File::open(&path).map_err(late)?;
        Ok::<_, String>((&file).read(&mut first).unwrap_err().raw_os_error())
    };
    assert_eq!(read()?, Some(libc::EIO));
    let took = begun.elapsed();
    assert!(took >= deadline, "the read failed after {took:?}, before its deadline");
    in_time(took, deadline * 7 / 4, "a read that the kernel sends twice")?;
    // A moment later it is a new read with the full deadline.
    std::thread::sleep(Duration::from_millis(1100));
    let begun = Instant::now();
    let path = path.clone();
    let reader = std::thread::spawn(move || std::fs::read(path));
    std::thread::sleep(Duration::from_millis(200));
    rig.fs.stall(false);
    assert_eq!(reader.join().unwrap().map_err(late)?, vec![b'x'; 100_000]);
    in_time(begun.elapsed(), deadline, "a read that is stalled for 200 ms")
}

/// A change that was answered EIO because it was late, but then happened, must not stay invisible.
#[test]
fn regression_a_late_change_is_seen_after_all() {
    let deadline = Duration::from_millis(300);
    let Some(rig) = rig_with(Memory::new(), Options { deadline, ..options() }) else {
        return;
    };
    let path = rig.path("late");
    assert!(!path.exists(), "the kernel now caches that there is no such name");
    rig.fs.changes_wait.store(true, Ordering::SeqCst);
    rig.fs.stall_changes.store(true, Ordering::SeqCst);
    rig.fs.stall(true);
    let refused = File::create(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    rig.fs.stall_changes.store(false, Ordering::SeqCst);
    rig.fs.stall(false);
    let begun = Instant::now();
    let seen = loop {
        if let Ok(seen) = std::fs::metadata(&path) {
            break seen;
        }
        assert!(begun.elapsed() < SOON, "the file was made and can be seen");
        std::thread::sleep(Duration::from_millis(10));
    };
    // The reference that the lost reply would have carried is given back. Only the kernel's own is left. On a
    // busy machine a reply to the kernel's look may be lost, too.
    let ino = base::Ino(std::os::unix::fs::MetadataExt::ino(&seen));
    while rig.fs.lookups(ino) != 1 {
        assert!(begun.elapsed() < SOON, "{} references", rig.fs.lookups(ino));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_interrupt_ends_a_waiting_read() {
    let Some(rig) = rig() else { return };
    std::fs::write(rig.path("trap-stall"), b"x").unwrap();
    drop_pages(&rig.path("trap-stall"));
    rig.fs.stall(true);
    let mut child = Command::new("cat").arg(rig.path("trap-stall")).stdout(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while rig.session.waiting() == 0 {
        assert!(begun.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    let status = within(SOON, move || child.wait().unwrap());
    assert_eq!(status.signal(), Some(libc::SIGKILL));
}

#[test]
fn regression_a_handled_signal_ends_no_read() {
    let Some(rig) = rig() else { return };
    std::fs::write(rig.path("trap-stall"), b"x").unwrap();
    drop_pages(&rig.path("trap-stall"));
    rig.fs.stall(true);
    // A handler without SA_RESTART: a system call that can be interrupted would return EINTR.
    let script = "import signal,os,sys\nsignal.signal(signal.SIGUSR1, lambda *_: None)\nsignal.siginterrupt(signal.SIGUSR1, True)\n\
                  os.write(1, b'ready')\nfd = os.open(sys.argv[1], os.O_RDONLY)\n\
                  import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nbuf = ctypes.create_string_buffer(8)\n\
                  got = libc.read(fd, buf, 8)\nprint(got, ctypes.get_errno())";
    let mut reader = Command::new("python3");
    let reader = reader.args(["-c", script]).arg(rig.path("trap-stall")).stdout(Stdio::piped()).spawn();
    let Ok(mut reader) = reader else {
        println!("no python3: skipped");
        return;
    };
    let begun = Instant::now();
    while rig.session.waiting() == 0 {
        assert!(begun.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..3 {
        // SAFETY: kill takes numbers only.
        unsafe { libc::kill(reader.id() as i32, libc::SIGUSR1) };
        std::thread::sleep(Duration::from_millis(150));
    }
    assert!(reader.try_wait().unwrap().is_none(), "the reader should still wait");
    rig.fs.stall(false);
    let done = within(SOON, move || reader.wait_with_output().unwrap());
    assert_eq!(String::from_utf8_lossy(&done.stdout), "ready1 0\n");
}

#[test]
fn the_filesystem_is_told_once_that_the_mount_ended() {
    let Some(rig) = rig() else { return };
    std::fs::write(rig.path("x"), b"kept").unwrap();
    rig.session.unmount(Unmount::Polite).unwrap();
    let ended = rig.session.wait_for(SOON).expect("ends");
    assert!(!ended.aborted && ended.synced.is_ok());
    assert_eq!((rig.fs.syncs.load(Ordering::SeqCst), rig.fs.unmounts.load(Ordering::SeqCst)), (1, 1));
    rig.session.unmount(Unmount::Polite).expect("a second time is no error");
    assert_eq!(std::fs::read_dir(rig.root()).unwrap().count(), 0, "the directory below shows again");
}

#[test]
fn a_busy_mount_refuses_politely_and_ends_lazily() {
    let Some(rig) = rig() else { return };
    let mut file = File::create(rig.path("busy")).unwrap();
    assert!(matches!(rig.session.unmount(Unmount::Polite), Err(UnmountError::Busy(_))));
    file.write_all(b"goes on").unwrap();
    rig.session.unmount(Unmount::Lazy).unwrap();
    assert!(!rig.path("busy").exists());
    file.write_all(b" and on").unwrap();
    assert!(rig.session.wait_for(Duration::from_millis(200)).is_none(), "served while in use");
    drop(file);
    assert!(rig.session.wait_for(SOON).is_some());
    assert_eq!(rig.fs.unmounts.load(Ordering::SeqCst), 1);
}

#[test]
fn a_forced_end_hands_over_dirty_pages_first() {
    let Some(rig) = rig() else { return };
    let file = File::create(rig.path("busy")).unwrap();
    rig.dirty(|| file.write_all_at(&[1; 50_000], 0).unwrap());
    let before = rig.count("WRITE");
    rig.session.unmount(Unmount::Force).unwrap();
    assert!(rig.session.wait_for(SOON).is_some(), "ends although a file is open");
    assert!(rig.count("WRITE") > before, "nothing was lost");
    assert!(file.sync_all().is_err());
}

#[test]
fn dropping_the_session_unmounts_even_when_busy() {
    if let Some(lack) = lacking() {
        println!("no {lack}: skipped");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let session = Session::mount(Arc::new(Memory::new()), dir.path(), options()).unwrap();
    let _file = File::create(dir.path().join("busy")).unwrap();
    let begun = Instant::now();
    drop(session);
    assert!(fuse::mount::find(dir.path()).is_none());
    assert!(begun.elapsed() < SOON, "dropping the session took {:?}", begun.elapsed());
}

#[test]
fn an_abort_from_outside_ends_the_session_and_clears_the_mountpoint() {
    let Some(rig) = rig() else { return };
    std::fs::write(rig.path("x"), b"").unwrap();
    let minor = libc::minor(std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(rig.root()).unwrap()));
    let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
    if !Path::new(&abort).exists() {
        println!("no {abort} (fusectl is not mounted): skipped");
        return;
    }
    std::fs::write(&abort, b"1").unwrap();
    let ended = rig.session.wait_for(SOON).expect("ends");
    assert!(ended.aborted);
    assert!(fuse::mount::find(rig.root()).is_none(), "no dead mount is left");
}

#[test]
fn umount_dash_f_ends_the_session() {
    let Some(rig) = rig() else { return };
    std::fs::write(rig.path("x"), b"").unwrap();
    let status = Command::new("umount").arg("-f").arg(rig.root()).status().unwrap();
    assert!(status.success());
    assert!(rig.session.wait_for(SOON).is_some());
    assert_eq!(rig.fs.unmounts.load(Ordering::SeqCst), 1);
}

#[test]
fn a_second_mount_and_a_dead_one_are_refused_with_advice() {
    let Some(rig) = rig() else { return };
    let refused = Session::mount(Arc::new(Memory::new()), rig.root(), options()).err().unwrap();
    assert!(matches!(refused, MountError::InUse { .. }), "{refused}");
}

#[test]
fn a_mount_that_another_covers_is_not_taken_for_gone() {
    let Some(rig) = rig() else { return };
    let covering = Command::new("mount").args(["-t", "tmpfs", "covering"]).arg(rig.root()).status().unwrap();
    assert!(covering.success());
    let refused = rig.session.unmount(Unmount::Polite);
    base::trial::unmount(rig.root()).unwrap();
    assert!(matches!(refused, Err(UnmountError::Busy(_))));
    rig.session.unmount(Unmount::Polite).unwrap();
    assert!(rig.session.wait_for(SOON).is_some());
}

/// The kernel reads ahead as far as configured. Its own 128 KiB make large files read several times slower.
#[test]
fn readahead_is_set_for_the_mount() {
    let Some(rig) = rig() else { return };
    let dev = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(rig.root()).unwrap());
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(dev), libc::minor(dev));
    match std::fs::read_to_string(&path) {
        Ok(kib) if rig.session.warnings().is_empty() => assert_eq!(kib.trim(), "1024"),
        _ => println!("{path} cannot be written: {:?}: skipped", rig.session.warnings()),
    }
}

/// Programs that work in the mount during a forced unmount get errors, and all threads end.
#[test]
fn a_forced_end_under_load_comes_back() {
    let Some(rig) = rig() else { return };
    let root = rig.root().to_owned();
    let done_once = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..4)
        .map(|thread| {
            let (root, done_once) = (root.clone(), Arc::clone(&done_once));
            std::thread::spawn(move || {
                for round in 0_u64.. {
                    let path = root.join(format!("{thread}-{round}"));
                    let done = std::fs::write(&path, vec![1; 20_000]).and_then(|()| std::fs::read(&path));
                    if done.is_err() || fuse::mount::find(&root).is_none() {
                        return round;
                    }
                    done_once.store(true, Ordering::SeqCst);
                }
                0
            })
        })
        .collect();
    let begun = Instant::now();
    while !done_once.load(Ordering::SeqCst) && begun.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    rig.session.unmount(Unmount::Force).unwrap();
    assert!(rig.session.wait_for(SOON).is_some());
    let rounds: u64 = within(SOON, move || busy.into_iter().map(|thread| thread.join().unwrap()).sum());
    assert!(rounds > 0);
}

const SERVE: &str = "COVEY_FUSE_TEST_SERVE";

/// Not a test: the server of the next test, in its own process.
#[test]
fn helper_serve_until_killed() {
    let Ok(at) = std::env::var(SERVE) else { return };
    let fs = Memory::new();
    fs.plant(b"there", b"served");
    let session = Session::mount(Arc::new(fs), Path::new(&at), options()).unwrap();
    session.wait();
}

fn serve_in_a_process(at: &Path) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "trouble::helper_serve_until_killed", "--nocapture", "--test-threads=1"])
        .env(SERVE, at)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !at.join("there").exists() {
        assert!(begun.elapsed() < SOON, "the server mounts");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn a_killed_daemon_leaves_a_mount_that_says_so_and_can_be_cleared() {
    if let Some(lack) = lacking() {
        println!("no {lack}: skipped");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = serve_in_a_process(dir.path());
    let mut open = File::create(dir.path().join("dirty")).unwrap();
    open.write_all(&[1; 100_000]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let at = dir.path().to_owned();
    within(SOON, move || {
        assert!(std::fs::read_dir(&at).is_err() || std::fs::read(at.join("never")).is_err());
        let refused = Session::mount(Arc::new(Memory::new()), &at, options()).err().unwrap();
        assert!(matches!(refused, MountError::DeadMount(_)), "{refused}");
        assert!(refused.to_string().contains("covey umount"));
        // Lazily, as a user would clear it, while a program still holds a file.
        assert!(matches!(fuse::unmount(&at, Unmount::Polite), Err(UnmountError::Busy(_))));
        fuse::unmount(&at, Unmount::Lazy).unwrap();
        assert!(fuse::mount::find(&at).is_none());
    });
    drop(open);
    // The mountpoint is free for the next mount.
    let again = Session::mount(Arc::new(Memory::new()), dir.path(), options()).unwrap();
    std::fs::write(dir.path().join("new"), b"life").unwrap();
    again.unmount(Unmount::Polite).unwrap();
}

#[test]
fn changes_by_others_are_seen_after_a_notification() {
    let Some(rig) = rig() else { return };
    assert!(!rig.path("planted").exists());
    let ino = rig.fs.plant(b"planted", b"first");
    assert!(!rig.path("planted").exists(), "the kernel caches that it is not there");
    let notifier = rig.session.notifier();
    notifier.inval_entry(base::Ino::ROOT, b"planted");
    notifier.inval_inode(base::Ino::ROOT, 0, 0);
    notifier.settle();
    assert_eq!(std::fs::read(rig.path("planted")).unwrap(), b"first");
    rig.fs.overwrite(ino, b"FIRST");
    assert_eq!(std::fs::read(rig.path("planted")).unwrap(), b"first", "the kernel's pages");
    notifier.inval_inode(ino, 0, 0);
    notifier.settle();
    assert_eq!(std::fs::read(rig.path("planted")).unwrap(), b"FIRST");
    notifier.deleted(base::Ino::ROOT, ino, b"planted");
    notifier.settle();
}

/// A user other than root mounts through fusermount3. This needs a mount namespace in which /dev/fuse is open
/// to all, as it is on most machines.
#[test]
fn others_mount_through_the_helper() {
    if let Some(lack) = lacking() {
        println!("no {lack}: skipped");
        return;
    }
    for tool in ["fusermount3", "unshare", "setpriv"] {
        if Command::new(tool).arg("--version").output().is_err() {
            println!("no {tool}: skipped");
            return;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let script = format!(
        "set -e
        # That user must be able to reach the test program itself. A copy that this process writes cannot be
        # executed while a process that another test has just forked has it open.
        cp \"$PROGRAM\" server
        mkdir mnt && chown 65534:65534 mnt
        mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse
        nobody='setpriv --reuid 65534 --regid 65534 --clear-groups'
        {SERVE}=$PWD/mnt $nobody ./server --exact trouble::helper_serve_until_killed --test-threads=1 >&2 &
        # If a step fails, the server must not live on: it holds the pipes that this test reads to their end.
        trap 'kill $! 2>/dev/null || true' EXIT
        for i in $(seq 500); do $nobody test -e mnt/there && break; sleep 0.02; done
        $nobody cat mnt/there
        $nobody sh -c 'echo written > mnt/new && cat mnt/new'
        # Copying looks for holes: without privilege, dirty pages are pushed by a notification.
        $nobody sh -c 'head -c 300000 /dev/urandom > mnt/s && truncate -s 8M mnt/s && cp mnt/s mnt/t && cmp mnt/s mnt/t'
        $nobody fusermount3 -u mnt
        wait $!"
    );
    // No namespace can be made if / is not a mount (chroot), or if the container forbids it.
    let may = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|status| status.success()) {
        println!("no mount namespace: skipped");
        return;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", &script]).env("PROGRAM", std::env::current_exe().unwrap());
    let done = unshare.current_dir(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "servedwritten\n", "{said}");
}

fn drop_pages(path: &Path) {
    try_drop_pages(path).unwrap();
}

fn try_drop_pages(path: &Path) -> std::io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    // SAFETY: the descriptor is open.
    unsafe { libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

/// The daemon of a mount that was removed ended late. It took the next mount at the same place for its own,
/// because the kernel had given that one the same device number, and unmounted it.
#[test]
fn regression_a_session_that_ends_late_leaves_the_next_mount_alone() {
    if let Some(lack) = lacking() {
        println!("no {lack}: skipped");
        return;
    }
    for _ in 0..100 {
        let Some(first) = rig() else { return };
        let dev = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(first.root()).unwrap());
        fuse::unmount(first.root(), Unmount::Polite).unwrap();
        let second = Session::mount(Arc::new(Memory::new()), first.root(), options()).unwrap();
        let again = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(first.root()).unwrap());
        std::fs::write(first.path("file"), b"x").unwrap();
        assert!(first.session.unmount(Unmount::Polite).is_ok(), "its own mount is gone");
        first.session.wait_for(SOON).unwrap();
        assert!(first.session.unmount(Unmount::Polite).is_ok(), "its own mount is gone");
        assert_eq!(std::fs::read(first.path("file")).unwrap(), b"x", "the next mount is gone");
        drop(second);
        // Another test may have got the number.
        if dev == again {
            return;
        }
    }
    panic!("the kernel never gave the number again");
}

/// `mount --bind /mnt /mnt` is common before mounts are shared. The same filesystem has two mounts then.
#[test]
fn a_mount_that_is_bound_over_itself_is_unmounted() {
    let Some(rig) = rig() else { return };
    let bound = Command::new("mount").arg("--bind").args([rig.root(), rig.root()]).status().unwrap();
    assert!(bound.success());
    let there = || fuse::mount::all().iter().filter(|mounted| mounted.path == rig.root()).count();
    assert_eq!(there(), 2);
    rig.session.unmount(Unmount::Polite).unwrap();
    assert_eq!(there(), 1);
    rig.session.unmount(Unmount::Polite).unwrap();
    assert_eq!(there(), 0);
    assert!(!rig.session.wait_for(SOON).unwrap().aborted);
}
