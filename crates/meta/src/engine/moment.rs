//! The rows of a shared volume at one moment, in the form of a volume that one node uses.
//!
//! Of the volume's own rows only those are there that every volume has. The others are about its nodes: the
//! secret that they share, the key that signs, where the origin is. They must not get into a published tree.
//! The totals, and what counts for a quota, which a shared volume spreads over several rows, are one row
//! each.
//!
//! A moment is a store that only reads, so the audit can read it, and a snapshot, so it can be published.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::key::{Key, KeyRange, tags};
use crate::record::{decode_i64, decode_u64, encode_i64, encode_u64};
use crate::shared::TOTALS;
use crate::store::{Commit, CommitError, MetaStore, Rows, Snapshot, StoreError, Value};

/// The own rows of every volume that are not totals.
const OWN: [&str; 4] = ["format", "id", "next-ino", "next-pack"];
const NEXT_PACK: &str = "next-pack";

/// See the [module](self).
pub struct Moment {
    rows: Mutex<Box<dyn Snapshot>>,
    /// The volume's own rows, in order.
    own: Rows,
    /// What counts for quotas, in order.
    used: Rows,
}

impl Moment {
    /// The rows of a snapshot.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn of(rows: Box<dyn Snapshot>) -> Result<Moment, StoreError> {
        let mut own = Rows::new();
        let mut totals = TOTALS.map(|name| (name, 0i64));
        let mut failed = None;
        rows.each(&Key::kind(tags::VOLUME), &mut |key, value| {
            let name = key.get(1..).unwrap_or_default();
            if OWN.iter().any(|own| name == own.as_bytes()) {
                own.push((Key::from_bytes(key), value.into()));
            }
            let of = |(total, _): &&mut (&str, i64)| is_part_of(name, total);
            if let Some((_, sum)) = totals.iter_mut().find(of) {
                match decode_i64(Some(value)) {
                    Ok(part) => *sum = sum.saturating_add(part),
                    Err(_) => failed = Some(damaged(key)),
                }
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        // A counter of 0 has no row.
        let rest = totals.into_iter().filter(|(_, sum)| *sum != 0);
        own.extend(rest.map(|(name, sum)| (Key::volume(name), encode_i64(sum))));
        own.sort();
        let used = used(&*rows)?;
        Ok(Moment { rows: Mutex::new(rows), own, used })
    }

    /// Makes the number of the next pack at least this. The packs of a shared volume have the number of their
    /// node in front, so they are far above the counter.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn raise_next_pack(&mut self, next: u64) -> Result<(), StoreError> {
        let key = Key::volume(NEXT_PACK);
        let Some((_, row)) = self.own.iter_mut().find(|(own, _)| *own == key) else { return Ok(()) };
        let was = decode_u64(Some(row)).map_err(|_| damaged(key.as_bytes()))?;
        *row = encode_u64(was.max(next));
        Ok(())
    }

    /// The own row with this key, or the snapshot's.
    fn find(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        if key.tag() == tags::VOLUME {
            return Ok(self.own.iter().find(|(own, _)| own == key).map(|(_, row)| row.clone()));
        }
        if key.tag() == tags::QUOTA_USED {
            return Ok(self.used.iter().find(|(used, _)| used == key).map(|(_, row)| row.clone()));
        }
        self.rows.lock().get(key)
    }
}

/// What counts for quotas, one row for each counter.
fn used(rows: &dyn Snapshot) -> Result<Rows, StoreError> {
    let mut sums: BTreeMap<Key, i64> = BTreeMap::new();
    let mut failed = None;
    rows.each(&Key::kind(tags::QUOTA_USED), &mut |key, value| {
        match (Key::from_bytes(key).as_quota_used(), decode_i64(Some(value))) {
            (Some((dir, what)), Ok(part)) => *sums.entry(Key::quota_used(dir, what)).or_default() += part,
            _ => failed = Some(damaged(key)),
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(()), Err)?;
    let rest = sums.into_iter().filter(|(_, sum)| *sum != 0);
    Ok(rest.map(|(key, sum)| (key, encode_i64(sum))).collect())
}

fn is_part_of(name: &[u8], total: &str) -> bool {
    name.strip_prefix(total.as_bytes()).is_some_and(|rest| matches!(rest, [] | [b' ', ..]))
}

fn damaged(key: &[u8]) -> StoreError {
    StoreError::Damaged(format!("the row {:?} is no number", Key::from_bytes(key)))
}

impl Snapshot for Moment {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.find(key)
    }

    fn each(&self, range: &KeyRange, each: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), StoreError> {
        let own = self.own.iter().filter(|(key, _)| (&range.start..&range.end).contains(&key));
        for (key, row) in own {
            if !each(key.as_bytes(), row) {
                return Ok(());
            }
        }
        // The volume's own rows come before all others.
        let (others, used) = (Key::kind(tags::VOLUME).end, Key::kind(tags::QUOTA_USED));
        let mut more = true;
        let mut pass = |start: Key, end: Key| -> Result<(), StoreError> {
            if more && start < end {
                self.rows.lock().each(&KeyRange { start, end }, &mut |key, row| {
                    more = each(key, row);
                    more
                })?;
            }
            Ok(())
        };
        pass(range.start.clone().max(others), range.end.clone().min(used.start))?;
        if !more {
            return Ok(());
        }
        for (key, row) in self.used.iter().filter(|(key, _)| (&range.start..&range.end).contains(&key)) {
            if !each(key.as_bytes(), row) {
                return Ok(());
            }
        }
        if range.end <= used.end {
            return Ok(());
        }
        let range = KeyRange { start: range.start.clone().max(used.end), end: range.end.clone() };
        self.rows.lock().each(&range, each)
    }
}

impl MetaStore for Moment {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        self.find(key)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        keys.iter().map(|key| self.find(key)).collect()
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        let mut rows = Rows::new();
        if limit == 0 {
            return Ok(rows);
        }
        self.each(range, &mut |key, row| {
            rows.push((Key::from_bytes(key), row.into()));
            rows.len() < limit
        })?;
        Ok(rows)
    }

    fn commit(&self, _: Commit) -> Result<(), CommitError> {
        Err(StoreError::Unavailable("a moment that is over cannot be changed".to_owned()).into())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Memory;

    fn moment(puts: &[(Key, Value)]) -> Moment {
        let store = Memory::new();
        store.commit(Commit { puts: puts.to_vec(), ..Commit::default() }).unwrap();
        Moment::of(store.snapshot().unwrap()).unwrap()
    }

    #[test]
    fn totals_are_one_row_and_secrets_are_left_out() {
        let puts = [
            (Key::volume("bytes"), encode_i64(-3)),
            (Key::volume("bytes 03"), encode_i64(10)),
            (Key::volume("bytes 31"), encode_i64(1)),
            (Key::volume("format"), b"1234".as_slice().into()),
            (Key::volume("inodes"), encode_i64(2)),
            (Key::volume("inodes 01"), encode_i64(-2)),
            (Key::volume("next-pack"), encode_u64(7)),
            (Key::volume("secret"), b"s3cret".as_slice().into()),
            (Key::inode(base::Ino(1)), b"x".as_slice().into()),
        ];
        let mut moment = moment(&puts);
        moment.raise_next_pack(9).unwrap();
        let all = KeyRange { start: Key::from_bytes(&[0]), end: Key::from_bytes(&[0xff]) };
        let found = moment.scan(&all, 100).unwrap();
        let expected = [
            (Key::volume("bytes"), encode_i64(8)),
            (Key::volume("format"), b"1234".as_slice().into()),
            (Key::volume("next-pack"), encode_u64(9)),
            (Key::inode(base::Ino(1)), b"x".as_slice().into()),
        ];
        assert_eq!(found, expected);
        assert_eq!(moment.scan(&all, 2).unwrap(), expected[..2]);
        let get = |key: &Key| MetaStore::get(&moment, key).unwrap();
        assert_eq!(get(&Key::volume("secret")), None);
        assert_eq!(get(&Key::inode(base::Ino(1))).as_deref(), Some(&b"x"[..]));
        assert!(moment.commit(Commit::default()).is_err());
    }
}
