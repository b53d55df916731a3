use fs::api::{LockKind, LockRange};

use super::*;

const FILE: Ino = Ino(7);

fn request(style: LockStyle, owner: u64, handle: u64) -> LockRequest {
    LockRequest { handle, owner, style, range: LockRange::ALL, kind: LockKind::Write, pid: 1 }
}

#[test]
fn a_posix_owner_ends_at_the_first_flush_and_gets_a_new_number() {
    let locks = LockRequests::default();
    let through = |handle| locks.lock(FILE, &request(LockStyle::Range, 50, handle), None).unwrap().owner;
    let first = through(1);
    assert_eq!(through(2), first, "one process, two open files");
    assert_ne!(
        locks.lock(Ino(8), &request(LockStyle::Range, 50, 3), None).unwrap().owner,
        first,
        "another file"
    );
    let ended = Ended { ino: FILE, owner: first, style: LockStyle::Range };
    assert_eq!(locks.flushed(FILE, 50), [ended]);
    assert_eq!(locks.flushed(FILE, 50), []);
    let second = through(2);
    assert_ne!(second, first);
    assert_eq!(locks.released(1), [], "a late RELEASE does not end the new lock");
    assert_eq!(locks.released(2), [Ended { owner: second, ..ended }]);
}

/// A close between the number and the lock left a lock that nothing released.
#[test]
fn regression_an_owner_that_ends_while_it_locks_is_noticed() {
    let locks = LockRequests::default();
    let (posix, flock) = (request(LockStyle::Range, 50, 1), request(LockStyle::Flock, 60, 2));
    let (one, two) =
        (locks.lock(FILE, &posix, None).unwrap().owner, locks.lock(FILE, &flock, None).unwrap().owner);
    assert!(locks.has(FILE, &posix, one) && locks.has(FILE, &flock, two));
    assert_eq!((locks.flushed(FILE, 50).len(), locks.released(2).len()), (1, 1));
    assert!(!locks.has(FILE, &posix, one) && !locks.has(FILE, &flock, two));
    let next = locks.lock(FILE, &posix, None).unwrap().owner;
    assert!(!locks.has(FILE, &posix, one) && locks.has(FILE, &posix, next), "its number was given on");
}

#[test]
fn an_open_file_that_is_gone_ends_its_flock_and_its_ofd_locks() {
    let locks = LockRequests::default();
    let flock = locks.lock(FILE, &request(LockStyle::Flock, 60, 1), None).unwrap().owner;
    let ofd = locks.lock(FILE, &request(LockStyle::Range, 60, 1), None).unwrap().owner;
    let next = locks.lock(FILE, &request(LockStyle::Flock, 60, 2), None).unwrap().owner;
    assert!(flock != ofd && flock != next, "the kernel uses its number again");
    assert_eq!(locks.flushed(FILE, 50), [], "the process has no POSIX locks");
    let ended: Vec<_> = locks.released(1).into_iter().map(|ended| (ended.owner, ended.style)).collect();
    assert_eq!(ended, [(flock, LockStyle::Flock), (ofd, LockStyle::Range)]);
    let asked = request(LockStyle::Range, 60, 2);
    assert_eq!(locks.known(FILE, &asked), None);
    assert_eq!(locks.question(FILE, &asked).owner, LockOwner::NOBODY);
    assert_eq!(locks.released(2).len(), 1);
    assert!(locks.owners.lock().by_handle.is_empty() && locks.owners.lock().known.is_empty());
}

#[test]
fn an_interrupt_is_never_lost() {
    let waits = Waits::default();
    assert!(matches!(waits.interrupt(5), Interrupted::Unknown));
    assert_eq!(waits.enter(5, 0, 'a'), Err((Errno::EINTR, 'a')), "it came before the request");
    let id = waits.enter(5, 0, 'b').unwrap();
    assert!(matches!(waits.interrupt(5), Interrupted::Queued('b')));
    assert!(!waits.begin(5, id));
    let id = waits.enter(5, 0, 'c').unwrap();
    assert!(waits.begin(5, id));
    assert!(matches!(waits.interrupt(5), Interrupted::Noted));
    assert!(waits.begun(5, id));
    assert!(matches!(waits.interrupt(5), Interrupted::Begun(same) if same == id));
    assert_eq!((waits.end(5, id), waits.end(5, id)), (Some('c'), None));
    assert!(!waits.begun(5, id), "the answer was faster");
    for unique in 0..1000 {
        assert!(matches!(waits.interrupt(unique), Interrupted::Unknown));
    }
    assert!(waits.state.lock().early.len() <= EARLY_MOST);
}

#[test]
fn half_a_ring_stays_free() {
    let waits = Waits::default();
    waits.limit(2);
    for unique in 0..2 {
        assert!(waits.enter(unique, 1, ()).is_ok());
    }
    assert_eq!(waits.enter(9, 1, ()), Err((Errno::ENOLCK, ())));
    assert!(waits.enter(9, 2, ()).is_ok(), "another ring");
    assert_eq!(waits.len(), 3);
    assert_eq!(waits.close().len(), 3);
}

#[test]
fn the_table_of_owners_is_bounded() {
    let locks = LockRequests::default();
    let take = |owner| locks.lock(FILE, &request(LockStyle::Range, owner, 1), None);
    assert!((0..HANDLES_MOST as u64).all(|owner| take(owner).is_ok()));
    assert_eq!(take(u64::MAX), Err(Errno::ENOLCK));
    assert_eq!(locks.flushed(FILE, 7).len(), 1);
    assert!(take(u64::MAX).is_ok());
}
