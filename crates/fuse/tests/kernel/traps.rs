//! The traps of INIT. Each has led to a wrong answer before.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;
use std::time::Duration;

use fuse::Options;
use fuse::abi::init::flag;

use crate::mapped::Mapped;
use crate::memory::Memory;
use crate::{as_nobody, options, rig, rig_with, within};

/// Without `default_permissions` a mount that refuses OPEN lets anyone read and overwrite anything.
#[test]
fn regression_others_cannot_read_or_write_roots_private_file() {
    let Some(rig) = rig() else { return };
    let secret = rig.path("secret");
    std::fs::write(&secret, b"root only").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let shown = secret.display();
    assert!(!as_nobody(&format!("cat {shown}")).status.success());
    assert!(!as_nobody(&format!("echo broken > {shown}")).status.success());
    assert!(!as_nobody(&format!("chmod 666 {shown}")).status.success());
    assert_eq!(std::fs::read(&secret).unwrap(), b"root only");
    // The same user may use what is open to it, so the refusal above is not a mount that nobody can enter.
    assert!(as_nobody(&format!("echo mine > {}", rig.path("mine").display())).status.success());
    assert_eq!(std::fs::read(rig.path("mine")).unwrap(), b"mine\n");
}

/// With ATOMIC_O_TRUNC the kernel would leave truncation to an OPEN that never comes.
#[test]
fn regression_o_trunc_truncates() {
    for writeback in [true, false] {
        let Some(rig) = rig_with(Memory::new(), Options { writeback: Some(writeback), ..options() }) else {
            return;
        };
        let path = rig.path("file");
        std::fs::write(&path, b"a long first version").unwrap();
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"short");
        drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}

#[test]
fn what_must_never_be_negotiated_is_not() {
    let Some(rig) = rig() else { return };
    let agreed = rig.session.agreed();
    let never =
        [flag::ATOMIC_O_TRUNC, flag::POSIX_LOCKS, flag::FLOCK_LOCKS, flag::AUTO_INVAL_DATA, flag::ASYNC_DIO];
    for bad in never {
        assert!(!agreed.has(bad), "{bad:#x}");
    }
    let always =
        flag::HANDLE_KILLPRIV_V2 | flag::NO_OPEN_SUPPORT | flag::EXPLICIT_INVAL_DATA | flag::WRITEBACK_CACHE;
    assert!(agreed.has(always));
}

fn seek(file: &File, offset: i64, whence: i32) -> Result<i64, i32> {
    // SAFETY: the descriptor is open. lseek takes numbers only.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    if at < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) } else { Ok(at) }
}

/// Under the writeback cache the filesystem does not know a dirty file's data yet, nor its size.
#[test]
fn regression_seek_data_and_hole_of_a_dirty_file() {
    let Some(rig) = rig() else { return };
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).open(rig.path("sparse")).unwrap();
    rig.dirty(|| {
        file.write_all_at(&[7; 4096], 0).unwrap();
        file.write_all_at(&[9; 100], 40960).unwrap();
    });
    within(Duration::from_secs(120), move || {
        assert_eq!(seek(&file, 0, libc::SEEK_DATA), Ok(0));
        assert_eq!(seek(&file, 0, libc::SEEK_HOLE), Ok(4096));
        assert_eq!(seek(&file, 4096, libc::SEEK_DATA), Ok(40960));
        assert_eq!(seek(&file, 40960, libc::SEEK_HOLE), Ok(41060));
        assert_eq!(seek(&file, 41060, libc::SEEK_DATA), Err(libc::ENXIO));
        // Dirty again, at a higher offset.
        file.write_all_at(&[1; 10], 81920).unwrap();
        assert_eq!(seek(&file, 45056, libc::SEEK_DATA), Ok(81920));
        let mut all = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 81930);
        assert_eq!((all[0], all[4096], all[40960], all[81929]), (7, 0, 9, 1));
    });
}

/// Bytes written through a shared mapping are dirty pages too, even without the writeback cache.
#[test]
fn regression_seek_data_of_a_file_dirtied_through_a_mapping() {
    for writeback in [true, false] {
        let Some(rig) = rig_with(Memory::new(), Options { writeback: Some(writeback), ..options() }) else {
            return;
        };
        let path = rig.path("mapped");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(seek(&file, 0, libc::SEEK_DATA), Err(libc::ENXIO));
        let change = |bytes: &mut [u8]| {
            bytes[500_000] = 42;
            true
        };
        let mapped = Mapped::new(&file, 1 << 20, change, |_| ());
        let page = 500_000 / 4096 * 4096;
        let found = within(Duration::from_secs(120), move || {
            (seek(&file, 0, libc::SEEK_DATA), seek(&file, page, libc::SEEK_HOLE), file)
        });
        assert_eq!((found.0, found.1), (Ok(page), Ok(page + 4096)));
        mapped.end();
        drop(found);
        assert_eq!(std::fs::read(&path).unwrap()[500_000], 42);
    }
}

/// A writer continues while other threads seek. Neither waits for the other for ever.
#[test]
fn seeking_and_writing_at_once_do_not_deadlock() {
    let Some(rig) = rig() else { return };
    let path = rig.path("busy");
    std::fs::write(&path, vec![1; 1 << 20]).unwrap();
    let paths = [path.clone(), path.clone()];
    within(Duration::from_secs(120), move || {
        std::thread::scope(|scope| {
            for path in &paths {
                scope.spawn(move || {
                    let file = OpenOptions::new().write(true).open(path).unwrap();
                    for round in 0..300_u64 {
                        file.write_all_at(&[round as u8; 5000], (round * 7919) % (1 << 20)).unwrap();
                    }
                });
                scope.spawn(move || {
                    let file = File::open(path).unwrap();
                    for _ in 0..100 {
                        assert_eq!(seek(&file, 0, libc::SEEK_DATA), Ok(0));
                    }
                });
            }
        });
    });
    drop(path);
}

/// Without HANDLE_KILLPRIV_V2 each write asks for `security.capability` first.
#[test]
fn regression_no_getxattr_per_write() {
    for writeback in [true, false] {
        let Some(rig) = rig_with(Memory::new(), Options { writeback: Some(writeback), ..options() }) else {
            return;
        };
        let mut file = File::create(rig.path("log")).unwrap();
        // The first write to an inode always asks once, whatever was negotiated.
        file.write_all(b"first").unwrap();
        let requests = rig.during(|| (0..100).for_each(|_| file.write_all(&[1; 100]).unwrap()));
        assert!(!requests.iter().any(|(name, _)| *name == "GETXATTR"), "{requests:?}");
    }
}

/// With POSIX_LOCKS or FLOCK_LOCKS the kernel would send locks here, and never send unlocks.
#[test]
fn regression_locks_between_processes_end_with_their_holder() {
    let Some(rig) = rig() else { return };
    let path = rig.path("lock");
    std::fs::write(&path, b"").unwrap();
    let flock = |path: &std::path::Path| {
        Command::new("flock").args(["-n", "-x"]).arg(path).args(["-c", "true"]).status().unwrap().success()
    };
    let held = File::open(&path).unwrap();
    held.lock().unwrap();
    assert!(!flock(&path), "another process must not get a lock that is held");
    drop(held);
    // A process that another test has just forked has the file open too, for a moment.
    let minute = base::Deadline::after(Duration::from_secs(60));
    assert!(base::lock::retry(minute, || flock(&path), |free| !free), "closing releases it");

    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: flock is plain numbers, for which all zero bytes are a value.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as i16;
    // SAFETY: the descriptor is open and `range` is a flock.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const range) }, 0);
    let posix = || {
        let script =
            "import fcntl,sys; f=open(sys.argv[1],'r+b'); fcntl.lockf(f, fcntl.LOCK_EX|fcntl.LOCK_NB)";
        Command::new("python3").arg("-c").arg(script).arg(&path).output().unwrap().status.success()
    };
    assert!(!posix(), "a POSIX lock is held");
    drop(file);
    assert!(posix(), "closing releases it");
    assert!(rig.session.counts().iter().all(|(name, _)| !name.contains("LK")));
}

/// Some programs ask for a terminal's settings at every open.
#[test]
fn regression_ioctl_is_answered_enotty() {
    let Some(rig) = rig() else { return };
    let file = File::create(rig.path("file")).unwrap();
    let mut settings = [0_u8; 256];
    // SAFETY: the buffer is larger than any termios.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TCGETS, settings.as_mut_ptr()) };
    assert_eq!(done, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
    let mut flags: libc::c_long = 0;
    // SAFETY: `flags` is as large as this request writes.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) };
    assert_eq!(done, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
}

/// syncfs(2) sends no request of its own, but all dirty pages. It does not wait for the replies.
#[test]
fn regression_syncfs_hands_over_dirty_pages() {
    let Some(rig) = rig() else { return };
    let file = File::create(rig.path("dirty")).unwrap();
    rig.dirty(|| file.write_all_at(&[3; 10_000], 0).unwrap());
    let before = rig.count("WRITE");
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::syncfs(file.as_raw_fd()) }, 0);
    let begun = std::time::Instant::now();
    while rig.count("WRITE") == before {
        assert!(begun.elapsed() < std::time::Duration::from_secs(120), "no WRITE arrived");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(
        rig.count("SYNCFS"),
        0,
        "if kernels send it one day, this comment and the commit interval can go"
    );
}

/// Since 6.19 syncfs(2) returns before a slow daemon has the bytes. A program that copies names then must
/// wait for them.
#[test]
fn regression_hand_over_waits_for_written_data() {
    let Some(rig) = rig() else { return };
    for number in 0..20 {
        // Count before there is any data, because the kernel may send the first of it on its own.
        let before = rig.count("WRITE");
        let mut file = File::create(rig.path(&format!("dirty-{number}"))).unwrap();
        file.write_all(&[3; 3_000_000]).unwrap();
        assert!(fuse::mount::hand_over(rig.root(), std::time::Duration::from_secs(20)));
        assert!(rig.count("WRITE") >= before + 3, "all of it has arrived");
    }
}

/// A file that only root may write to can be created and opened for writing in one step, because the kernel
/// knows that it has just created it.
#[test]
fn regression_open_creates_with_any_mode() {
    let Some(rig) = rig() else { return };
    let path = rig.path("readonly");
    let script = format!(
        "umask 027; python3 -c \"import os; f=os.open('{}', os.O_RDWR|os.O_CREAT|os.O_EXCL, 0o446); os.write(f, b'x')\"",
        path.display()
    );
    let done = as_nobody(&script);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o440);
    let again = OpenOptions::new().write(true).create_new(true).open(&path);
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    // If creation is not allowed, it is refused, by permission and by kind.
    std::fs::create_dir(rig.path("closed")).unwrap();
    std::fs::set_permissions(rig.path("closed"), PermissionsExt::from_mode(0o555)).unwrap();
    assert!(!as_nobody(&format!("echo > {}/new", rig.path("closed").display())).status.success());
    let dir = OpenOptions::new().read(true).custom_flags(libc::O_CREAT).open(rig.path("closed"));
    assert_eq!(dir.unwrap_err().raw_os_error(), Some(libc::EISDIR));
    let missing = OpenOptions::new().write(true).create_new(true).open(rig.path("no/such"));
    assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

/// If a file has the set-user-id bit, a write by another user clears it.
#[test]
fn regression_writing_takes_the_set_user_id_bit_away_at_once() {
    for writeback in [true, false] {
        let Some(rig) = rig_with(Memory::new(), Options { writeback: Some(writeback), ..options() }) else {
            return;
        };
        let path = rig.path("suid");
        std::fs::write(&path, b"x").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o4777)).unwrap();
        assert!(as_nobody(&format!("echo y >> {}", path.display())).status.success());
        // A stat that asks for the mode alone is answered from the kernel's cache. The kernel asks the daemon
        // again only for size and times.
        let mode = std::process::Command::new("stat").args(["-c", "%a"]).arg(&path).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&mode.stdout).trim(), "777", "writeback {writeback}");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o777,
            "writeback {writeback}"
        );
    }
}
