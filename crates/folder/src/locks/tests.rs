use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, channel};

use fs::api::Filesystem;

use super::*;
use crate::Folder;

const SOON: Duration = Duration::from_secs(20);

struct World {
    folder: Folder,
    ino: Ino,
    dir: tempfile::TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "x").unwrap();
    let folder = Folder::open(dir.path()).unwrap();
    let ino = folder.lookup(Ino::ROOT, b"f").unwrap().node;
    World { folder, ino, dir }
}

fn lock(owner: u64, style: LockStyle, kind: LockKind) -> Lock {
    Lock { owner: LockOwner(owner), style, range: LockRange::ALL, kind, pid: 1 }
}

impl World {
    fn wait(&self, wanted: &Lock, id: u64) -> Receiver<Result<()>> {
        let (answer, answered) = channel();
        let answer = Box::new(move |result| answer.send(result).unwrap_or(()));
        self.folder.wait_lock(self.ino, wanted, LockWait(id), answer);
        answered
    }

    fn release(&self, owner: u64, style: LockStyle) {
        self.folder.release_locks(self.ino, LockOwner(owner), style).unwrap();
    }
}

/// A program of this machine that tries to lock a file.
fn host_of(world: &World) -> impl Fn(LockStyle) -> bool + use<> {
    let host = std::fs::File::options().read(true).write(true).open(world.dir.path().join("f")).unwrap();
    move |style| match style {
        // SAFETY: the descriptor is open. The call takes numbers only.
        LockStyle::Flock => unsafe { libc::flock(host.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 },
        LockStyle::Range => {
            let range =
                libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 5, l_len: 1, l_pid: 0 };
            // A POSIX lock would end when this process closes another descriptor of the file.
            // SAFETY: the descriptor is open, and `range` is a flock that lives through the call.
            unsafe { libc::fcntl(host.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) == 0 }
        }
    }
}

/// The locks of guests stayed after the end of a folder, if a process was just forked: it had the files open
/// too.
#[test]
fn regression_locks_end_with_their_folder() {
    let world = world();
    let host_tries = host_of(&world);
    for style in [LockStyle::Range, LockStyle::Flock] {
        world.folder.set_lock(world.ino, &lock(1, style, LockKind::Write)).unwrap();
    }
    let _child = base::trial::Forked::new().unwrap();
    assert!(!host_tries(LockStyle::Range) && !host_tries(LockStyle::Flock));
    drop(world.folder);
    assert!(host_tries(LockStyle::Range) && host_tries(LockStyle::Flock));
}

/// Guests exclude one another and the programs of this machine, both ways and in both styles.
#[test]
fn locks_are_those_of_the_machine() {
    let world = world();
    let host_tries = host_of(&world);
    for style in [LockStyle::Range, LockStyle::Flock] {
        let (one, two) = (lock(1, style, LockKind::Write), lock(2, style, LockKind::Read));
        world.folder.set_lock(world.ino, &one).unwrap();
        assert_eq!(world.folder.set_lock(world.ino, &two), Err(Errno::EAGAIN));
        assert!(!host_tries(style), "{style:?}: the host has it too");
        world.release(1, style);
        assert_eq!(world.folder.set_lock(world.ino, &two), Ok(()));
        world.release(2, style);
        assert!(host_tries(style));
        assert_eq!(world.folder.set_lock(world.ino, &one), Err(Errno::EAGAIN), "{style:?}");
        world.release(1, style);
    }
    let asked = lock(0, LockStyle::Range, LockKind::Read);
    let found = world.folder.test_lock(world.ino, &asked).unwrap().unwrap();
    assert_eq!((found.range, found.kind, found.pid), (LockRange { start: 5, end: 5 }, LockKind::Write, 0));
}

#[test]
fn ranges_of_one_owner_do_not_conflict_and_those_of_two_do() {
    let world = world();
    let at = |owner, start, end, kind| Lock {
        range: LockRange { start, end },
        ..lock(owner, LockStyle::Range, kind)
    };
    let set = |lock: &Lock| world.folder.set_lock(world.ino, lock);
    set(&at(1, 0, 9, LockKind::Write)).unwrap();
    set(&at(1, 5, 20, LockKind::Read)).unwrap();
    assert_eq!(set(&at(2, 4, 4, LockKind::Read)), Err(Errno::EAGAIN));
    set(&at(2, 5, 30, LockKind::Read)).unwrap();
    assert_eq!(set(&at(2, 30, 40, LockKind::Unlock)), Ok(()));
    assert_eq!(set(&at(1, 20, 29, LockKind::Write)), Err(Errno::EAGAIN));
    set(&at(1, 30, LockRange::END, LockKind::Write)).unwrap();
}

#[test]
fn a_request_waits_is_granted_or_withdrawn_and_leaves_nothing() {
    let world = world();
    for style in [LockStyle::Range, LockStyle::Flock] {
        let [one, two, three] = [1, 2, 3].map(|owner| lock(owner, style, LockKind::Write));
        world.folder.set_lock(world.ino, &one).unwrap();
        let (second, third) = (world.wait(&two, 12), world.wait(&three, 13));
        std::thread::sleep(3 * FIRST);
        assert!(second.try_recv().is_err() && third.try_recv().is_err());
        world.folder.cancel_lock(LockWait(12));
        assert_eq!(second.recv_timeout(SOON), Ok(Err(Errno::EINTR)));
        world.release(1, style);
        assert_eq!(third.recv_timeout(SOON), Ok(Ok(())));
        // An owner that ends withdraws what it waits for.
        let again = world.wait(&one, 14);
        world.release(1, style);
        assert_eq!(again.recv_timeout(SOON), Ok(Err(Errno::EINTR)));
        world.release(3, style);
        world.folder.set_lock(world.ino, &two).unwrap();
        world.release(2, style);
        assert!(world.folder.locks.0.state.lock().owners.is_empty());
    }
}

/// A request waits for a program of this machine too, which tells nobody that it unlocks.
#[test]
fn a_request_waits_for_a_program_of_the_machine() {
    let world = world();
    let host = std::fs::File::open(world.dir.path().join("f")).unwrap();
    // SAFETY: the descriptor is open. The call takes numbers only.
    assert_eq!(unsafe { libc::flock(host.as_raw_fd(), libc::LOCK_EX) }, 0);
    let waits = world.wait(&lock(1, LockStyle::Flock, LockKind::Write), 1);
    std::thread::sleep(3 * FIRST);
    assert!(waits.try_recv().is_err());
    drop(host);
    assert_eq!(waits.recv_timeout(SOON), Ok(Ok(())));
}

/// A guest cannot fill this kernel's memory with ranges.
#[test]
fn an_owner_has_a_bounded_number_of_locks() {
    let world = world();
    let at =
        |start| Lock { range: LockRange { start, end: start }, ..lock(1, LockStyle::Range, LockKind::Write) };
    let taken = (0..4 * LOCKS_MAX as u64).map(|n| world.folder.set_lock(world.ino, &at(2 * n)));
    let granted = taken.take_while(Result::is_ok).count();
    assert!((LOCKS_MAX / 4..=LOCKS_MAX).contains(&granted), "{granted}");
    assert_eq!(world.folder.set_lock(world.ino, &at(1 << 40)), Err(Errno::ENOLCK));
    world.folder.set_lock(world.ino, &lock(1, LockStyle::Range, LockKind::Unlock)).unwrap();
    assert_eq!(world.folder.set_lock(world.ino, &at(0)), Ok(()));
}

/// A guest that lies about what it locks has no device opened on the host.
#[test]
fn only_regular_files_are_opened_for_locks() {
    let world = world();
    let fifo = world.dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    for name in [&b"fifo"[..], b"."] {
        let ino = world.folder.lookup(Ino::ROOT, name).unwrap().node;
        for style in [LockStyle::Range, LockStyle::Flock] {
            let wanted = lock(1, style, LockKind::Read);
            assert_eq!(world.folder.set_lock(ino, &wanted), Err(Errno::EINVAL));
        }
    }
    assert!(world.folder.locks.0.state.lock().owners.is_empty());
}
