use proptest::prelude::*;

use super::*;

/// Bytes of the model. The last one also stands for everything behind it.
const BYTES: u64 = 12;

fn lock(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
    let range = LockRange { start, end: if end >= BYTES - 1 { LockRange::END } else { end } };
    Lock { owner: LockOwner(owner), style: LockStyle::Range, range, kind, pid: owner as u32 }
}

/// What each owner holds of each byte.
#[derive(Default)]
struct Model([[Option<LockKind>; BYTES as usize]; 4]);

impl Model {
    fn bytes(of: &Lock) -> std::ops::Range<usize> {
        of.range.start as usize..of.range.end.min(BYTES - 1) as usize + 1
    }

    fn conflicts(&self, wanted: &Lock) -> bool {
        let held = |kind: Option<LockKind>| match wanted.kind {
            LockKind::Unlock => false,
            LockKind::Read => kind == Some(LockKind::Write),
            LockKind::Write => kind.is_some(),
        };
        let others = self.0.iter().enumerate().filter(|(owner, _)| *owner as u64 != wanted.owner.0);
        others.into_iter().any(|(_, bytes)| Model::bytes(wanted).any(|at| held(bytes[at])))
    }

    fn set(&mut self, wanted: &Lock) {
        let kind = (wanted.kind != LockKind::Unlock).then_some(wanted.kind);
        Model::bytes(wanted).for_each(|at| self.0[wanted.owner.0 as usize][at] = kind);
    }
}

fn of_table(table: &Ranges<LockOwner>) -> Model {
    let mut model = Model::default();
    table.iter().for_each(|held| model.set(held));
    model
}

/// Locks are sorted, those of one owner do not overlap, and neighbours of one kind are one lock.
fn is_tidy(table: &Ranges<LockOwner>) -> bool {
    let all: Vec<_> = table.iter().collect();
    let apart = |one: &Lock, other: &Lock| {
        one.owner != other.owner
            || !one.range.touches(other.range)
            || (one.kind != other.kind && !one.range.overlaps(other.range))
    };
    all.is_sorted_by_key(|held| held.range.start)
        && all.iter().all(|held| held.kind != LockKind::Unlock && held.range.start <= held.range.end)
        && (0..all.len()).all(|at| all[at + 1..].iter().all(|other| apart(all[at], other)))
}

fn any_lock() -> impl Strategy<Value = Lock> {
    let kind = prop_oneof![Just(LockKind::Read), Just(LockKind::Write), Just(LockKind::Unlock)];
    (0..4_u64, kind, 0..BYTES, 0..BYTES).prop_map(|(owner, kind, a, b)| lock(owner, kind, a.min(b), a.max(b)))
}

proptest! {
    #[test]
    fn locks_hold_what_a_table_of_bytes_holds(requests in prop::collection::vec(any_lock(), 1..60)) {
        let (mut table, mut model) = (Ranges::default(), Model::default());
        for wanted in &requests {
            let refused = model.conflicts(wanted);
            match table.set(wanted) {
                Ok(()) => prop_assert!(!refused),
                Err(held) => {
                    prop_assert!(refused);
                    prop_assert!(held.owner != wanted.owner && held.range.overlaps(wanted.range));
                    prop_assert!(held.kind == LockKind::Write || wanted.kind == LockKind::Write);
                }
            }
            if !refused {
                model.set(wanted);
            }
            prop_assert!(is_tidy(&table), "{table:?}");
            prop_assert_eq!(of_table(&table).0, model.0);
        }
        table.release(|owner| owner == LockOwner(1));
        model.0[1] = Default::default();
        prop_assert_eq!(of_table(&table).0, model.0);
    }

    #[test]
    fn every_waiter_is_granted_once_the_others_are_gone(requests in prop::collection::vec(any_lock(), 1..40)) {
        let mut file = FileLocks::default();
        let (mut waiting, mut granted) = (0, 0);
        for (number, wanted) in requests.iter().enumerate() {
            match file.wait(wanted, number) {
                Some(_) => {}
                None => waiting += 1,
            }
            granted += file.wake().len();
        }
        for owner in 0..4 {
            granted += file.abandon(|waiter| waiter == LockOwner(owner)).len();
            file.release(LockStyle::Range, |held| held == LockOwner(owner));
            granted += file.wake().len();
        }
        prop_assert_eq!(waiting, granted);
        prop_assert!(file.is_empty());
    }
}

#[test]
fn a_middle_is_unlocked_and_downgraded() {
    let mut table = Ranges::default();
    table.set(&lock(1, LockKind::Write, 0, 9)).unwrap();
    table.set(&lock(1, LockKind::Unlock, 3, 4)).unwrap();
    table.set(&lock(1, LockKind::Read, 7, 8)).unwrap();
    let shown: Vec<_> = table.iter().map(|held| (held.kind, held.range.start, held.range.end)).collect();
    use LockKind::{Read, Write};
    assert_eq!(shown, [(Write, 0, 2), (Write, 5, 6), (Read, 7, 8), (Write, 9, 9)]);
    assert_eq!(table.conflict(&lock(2, Read, 0, 11)).map(|held| held.pid), Some(1));
    assert!(table.set(&lock(2, Read, 7, 8)).is_ok(), "both only read");
    assert!(table.set(&lock(1, Write, 7, 7)).is_err(), "no upgrade while another reads");
    assert!(table.set(&lock(2, Write, 3, 4)).is_ok(), "it was unlocked");
    assert!(table.set(&lock(3, Write, 11, 11)).is_ok());
}

#[test]
fn the_end_of_the_file_is_no_end() {
    let mut table = Ranges::default();
    table.set(&Lock { range: LockRange::ALL, ..lock(1, LockKind::Write, 0, 0) }).unwrap();
    let last = LockRange { start: LockRange::END, end: LockRange::END };
    assert!(table.set(&Lock { range: last, ..lock(2, LockKind::Read, 0, 0) }).is_err());
    table.set(&Lock { range: last, ..lock(1, LockKind::Unlock, 0, 0) }).unwrap();
    assert!(table.set(&Lock { range: last, ..lock(2, LockKind::Read, 0, 0) }).is_ok());
}

#[test]
fn two_flocks_that_both_upgrade_do_not_wait_for_each_other() {
    let flock =
        |owner, kind| Lock { style: LockStyle::Flock, range: LockRange::ALL, ..lock(owner, kind, 0, 0) };
    let mut file = FileLocks::default();
    assert!(file.wait(&flock(1, LockKind::Read), 10).is_some());
    assert!(file.wait(&flock(2, LockKind::Read), 20).is_some());
    assert!(file.set(&lock(3, LockKind::Write, 0, 0)).is_ok(), "the styles do not conflict");
    assert_eq!(file.wait(&flock(1, LockKind::Write), 11), None);
    assert!(file.wake().is_empty());
    assert_eq!(file.wait(&flock(2, LockKind::Write), 21), Some(21), "the first one gave up its lock");
    assert!(file.wait(&flock(4, LockKind::Read), 40).is_none());
    assert_eq!(file.cancel(|waiter| *waiter == 40), Some(40));
    assert_eq!(file.cancel(|waiter| *waiter == 40), None);
    file.release(LockStyle::Flock, |owner| owner == LockOwner(2));
    assert_eq!(file.wake(), [11]);
}
