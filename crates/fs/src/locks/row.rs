//! The row with the locks on one file of a shared volume.
//!
//! ```text
//!   version:1 = 1  count:2  then for each lock, 42 bytes:
//!   style:1  kind:1  node:4  epoch:8  number:8  start:8  end:8  pid:4
//! ```
//!
//! All numbers are big-endian. Ranges come before whole-file locks, each in the order of [`Ranges`]. The
//! decoder accepts only what the encoder makes of the same locks. So equal locks are equal bytes, and a row
//! with locks that exclude each other is damaged. A file without locks has no row.

use super::{FileLocks, Lock, LockKind, LockRange, LockStyle};

/// The most locks on one file. A further one is refused.
pub const LOCKS_MAX: usize = 1024;

const VERSION: u8 = 1;
const HEAD: usize = 3;
const LEN: usize = 42;

/// An owner of locks in a shared volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The number of its node.
    pub node: u32,
    /// The epoch of the node's session when it locked. The lock ends with that session.
    pub epoch: u64,
    /// The owner's number on that node.
    pub number: u64,
}

/// The locks on one file.
pub type Table = FileLocks<Owner, ()>;

/// Locks that cannot be stored: there are more than [`LOCKS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a file has at most {LOCKS_MAX} locks")]
pub struct TooMany;

/// A row that the encoder does not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row of locks is damaged")]
pub struct BadRow;

/// The bytes of the row; none if there are no locks.
///
/// # Errors
/// [`TooMany`].
pub fn encode(table: &Table) -> Result<Option<Vec<u8>>, TooMany> {
    let all = || table.of(LockStyle::Range).iter().chain(table.of(LockStyle::Flock).iter());
    let count = all().count();
    match u16::try_from(count) {
        Ok(0) => Ok(None),
        Ok(count) if usize::from(count) <= LOCKS_MAX => {
            let mut bytes = Vec::with_capacity(HEAD + usize::from(count) * LEN);
            bytes.push(VERSION);
            bytes.extend(count.to_be_bytes());
            all().for_each(|lock| put(&mut bytes, lock));
            Ok(Some(bytes))
        }
        _ => Err(TooMany),
    }
}

fn put(bytes: &mut Vec<u8>, lock: &Lock<Owner>) {
    bytes.push(match lock.style {
        LockStyle::Range => 0,
        LockStyle::Flock => 1,
    });
    bytes.push(match lock.kind {
        LockKind::Read => 0,
        LockKind::Write => 1,
        LockKind::Unlock => 2,
    });
    bytes.extend(lock.owner.node.to_be_bytes());
    for number in [lock.owner.epoch, lock.owner.number, lock.range.start, lock.range.end] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(lock.pid.to_be_bytes());
}

/// The locks of a row.
///
/// # Errors
/// [`BadRow`] for bytes that [`encode`] does not make.
pub fn decode(bytes: &[u8]) -> Result<Table, BadRow> {
    let (head, rest) = bytes.split_first_chunk::<HEAD>().ok_or(BadRow)?;
    let count = usize::from(u16::from_be_bytes([head[1], head[2]]));
    if head[0] != VERSION || count > LOCKS_MAX || rest.len() != count * LEN {
        return Err(BadRow);
    }
    let mut table = Table::default();
    for bytes in rest.chunks_exact(LEN) {
        let lock = take(bytes).ok_or(BadRow)?;
        table.set(&lock).map_err(|_| BadRow)?;
    }
    match encode(&table) {
        Ok(Some(again)) if again == bytes => Ok(table),
        _ => Err(BadRow),
    }
}

fn take(bytes: &[u8]) -> Option<Lock<Owner>> {
    let u32_at = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let style = match bytes.first()? {
        0 => LockStyle::Range,
        1 => LockStyle::Flock,
        _ => return None,
    };
    let kind = match bytes.get(1)? {
        0 => LockKind::Read,
        1 => LockKind::Write,
        _ => return None,
    };
    let owner = Owner { node: u32_at(2)?, epoch: u64_at(6)?, number: u64_at(14)? };
    let range = LockRange { start: u64_at(22)?, end: u64_at(30)? };
    let fits = match style {
        LockStyle::Range => range.start <= range.end && range.end <= LockRange::END,
        LockStyle::Flock => range == LockRange::ALL,
    };
    fits.then_some(Lock { owner, style, range, kind, pid: u32_at(38)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_lock() -> impl Strategy<Value = Lock<Owner>> {
        let place = (0..3_u32, 1..3_u64, 0..3_u64);
        (any::<bool>(), any::<bool>(), place, 0..20_u64, 0..20_u64, any::<u32>()).prop_map(
            |(flock, write, (node, epoch, number), a, b, pid)| Lock {
                owner: Owner { node, epoch, number },
                style: if flock { LockStyle::Flock } else { LockStyle::Range },
                range: match flock {
                    true => LockRange::ALL,
                    false => LockRange { start: a.min(b), end: a.max(b) },
                },
                kind: if write { LockKind::Write } else { LockKind::Read },
                pid,
            },
        )
    }

    fn locks(table: &Table) -> Vec<Lock<Owner>> {
        table.of(LockStyle::Range).iter().chain(table.of(LockStyle::Flock).iter()).copied().collect()
    }

    proptest! {
        #[test]
        fn a_row_holds_what_was_put_into_it(wanted in prop::collection::vec(any_lock(), 0..40)) {
            let mut table = Table::default();
            for lock in &wanted {
                let _ = table.set(lock);
            }
            match encode(&table).unwrap() {
                None => prop_assert!(table.is_empty()),
                Some(bytes) => prop_assert_eq!(locks(&decode(&bytes).unwrap()), locks(&table)),
            }
        }

        #[test]
        fn any_bytes_are_refused_or_encode_again(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(table) = decode(&bytes) {
                prop_assert_eq!(encode(&table).unwrap().unwrap(), bytes);
            }
        }

        #[test]
        fn a_changed_row_is_refused_or_encodes_again(
            wanted in prop::collection::vec(any_lock(), 1..6), at in any::<prop::sample::Index>(), by in 1..=255_u8,
        ) {
            let mut table = Table::default();
            for lock in &wanted {
                let _ = table.set(lock);
            }
            let mut bytes = encode(&table).unwrap().unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            if let Ok(table) = decode(&bytes) {
                prop_assert_eq!(encode(&table).unwrap().unwrap(), bytes);
            }
        }
    }

    #[test]
    fn the_number_of_locks_is_bounded() {
        let mut table = Table::default();
        let lock = |at: u64| Lock {
            owner: Owner { node: 1, epoch: 1, number: 1 },
            style: LockStyle::Range,
            range: LockRange { start: 2 * at, end: 2 * at },
            kind: LockKind::Write,
            pid: 1,
        };
        (0..LOCKS_MAX as u64).for_each(|at| table.set(&lock(at)).unwrap());
        let full = encode(&table).unwrap().unwrap();
        assert_eq!(locks(&decode(&full).unwrap()).len(), LOCKS_MAX);
        table.set(&lock(LOCKS_MAX as u64)).unwrap();
        assert_eq!(encode(&table), Err(TooMany));
    }

    #[test]
    fn locks_that_exclude_each_other_are_damage() {
        let mut bytes = vec![VERSION, 0, 2];
        for number in [1, 2] {
            let owner = Owner { node: 1, epoch: 1, number };
            let style = LockStyle::Flock;
            put(&mut bytes, &Lock { owner, style, range: LockRange::ALL, kind: LockKind::Write, pid: 0 });
        }
        assert!(decode(&bytes).is_err());
        assert!(decode(&[VERSION, 0, 0]).is_err(), "a file without locks has no row");
    }
}
