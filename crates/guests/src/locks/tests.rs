use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use folder::Folder;
use fs::api::{LockKind, LockRange};

use super::*;

const SOON: Duration = Duration::from_secs(20);

struct World {
    _dir: tempfile::TempDir,
    fs: Arc<dyn Filesystem>,
    numbers: Arc<Numbers>,
    ino: Ino,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let fs: Arc<dyn Filesystem> = Arc::new(Folder::open(dir.path()).unwrap());
        let ino = fs.lookup(Ino::ROOT, b"f").unwrap().node;
        World { _dir: dir, fs, numbers: Arc::default(), ino }
    }

    fn guest(&self) -> GuestLocks {
        GuestLocks::new(Arc::clone(&self.fs), Arc::clone(&self.numbers))
    }

    fn wait(&self, guest: &GuestLocks, wanted: &Lock, id: u64) -> Receiver<Result<()>> {
        let (answer, answered) = channel();
        guest.wait(self.ino, wanted, LockWait(id), Box::new(move |result| answer.send(result).unwrap_or(())));
        answered
    }
}

fn lock(owner: u64) -> Lock {
    let (owner, style, kind) = (LockOwner(owner), LockStyle::Range, LockKind::Write);
    Lock { owner, style, range: LockRange::ALL, kind, pid: 7 }
}

/// Two kernels number their owners alike, and are two owners all the same.
#[test]
fn owners_of_two_guests_are_never_the_same() {
    let world = World::new();
    let (one, two) = (world.guest(), world.guest());
    assert_eq!(one.set(world.ino, &lock(1)), Ok(()));
    assert_eq!(one.set(world.ino, &lock(1)), Ok(()), "its own lock");
    assert_eq!(two.set(world.ino, &lock(1)), Err(Errno::EAGAIN));
    assert!(
        two.test(world.ino, &lock(1)).unwrap().is_some() && one.test(world.ino, &lock(1)).unwrap().is_none()
    );
    let (first, second) = (world.wait(&two, &lock(1), 1), world.wait(&two, &lock(2), 2));
    two.cancel(LockWait(1));
    assert_eq!(first.recv_timeout(SOON), Ok(Err(Errno::EINTR)));
    one.cancel(LockWait(2));
    assert!(second.recv_timeout(Duration::from_millis(50)).is_err(), "another guest's request");
    one.release(world.ino, LockOwner(1), LockStyle::Range).unwrap();
    assert_eq!(second.recv_timeout(SOON), Ok(Ok(())));
}

/// A guest that is gone holds nothing, waits for nothing and takes nothing any more.
#[test]
fn a_guest_that_ends_loses_its_locks() {
    let world = World::new();
    let (one, two, three) = (world.guest(), world.guest(), world.guest());
    one.set(world.ino, &lock(1)).unwrap();
    let (mine, other) = (world.wait(&two, &lock(1), 1), world.wait(&three, &lock(1), 1));
    two.end();
    assert_eq!(mine.recv_timeout(SOON), Ok(Err(Errno::EINTR)));
    one.end();
    assert_eq!(other.recv_timeout(SOON), Ok(Ok(())));
    assert_eq!((one.set(world.ino, &lock(1)), one.owners()), (Err(Errno::EIO), 0));
    assert_eq!(world.wait(&one, &lock(1), 1).recv_timeout(SOON), Ok(Err(Errno::EIO)));
}

/// A call that is under way when its guest ends leaves no lock behind.
#[test]
fn a_call_that_outlives_its_guest_undoes_itself() {
    let world = World::new();
    let (one, two) = (world.guest(), world.guest());
    let owner = one.owner(world.ino, &lock(1)).unwrap();
    one.end();
    // The other thread's call reaches the filesystem after the end.
    let _ = world.fs.set_lock(world.ino, &lock(1).owned_by(owner));
    assert_eq!(one.called(world.ino, &lock(1), owner), Err(Errno::EIO));
    assert_eq!(two.set(world.ino, &lock(1)), Ok(()));
}

/// A close between the number and the lock left a lock that nothing released.
#[test]
fn regression_a_call_that_outlives_its_owner_undoes_itself() {
    let world = World::new();
    let (one, two) = (world.guest(), world.guest());
    let owner = one.owner(world.ino, &lock(1)).unwrap();
    one.release(world.ino, LockOwner(1), LockStyle::Range).unwrap();
    // The other thread's call reaches the filesystem after the end.
    world.fs.set_lock(world.ino, &lock(1).owned_by(owner)).unwrap();
    assert_eq!(one.called(world.ino, &lock(1), owner), Ok(()));
    assert_eq!(two.set(world.ino, &lock(1)), Ok(()));
}

#[test]
fn a_guest_has_a_bounded_number_of_owners() {
    let world = World::new();
    let one = world.guest();
    let range = |at| LockRange { start: at, end: at };
    let take = |at| one.owner(world.ino, &Lock { range: range(at), ..lock(at + 1) });
    assert!((0..OWNERS_MOST as u64).all(|at| take(at).is_ok()));
    assert_eq!(take(OWNERS_MOST as u64), Err(Errno::ENOLCK));
    assert!(take(0).is_ok(), "it is known");
}
