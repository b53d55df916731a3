//! Which rows of a volume of one node move into a database, and whether they have arrived.
//!
//! Every row moves as it is, also of a kind that this program does not know, except:
//!
//! | rows | why not |
//! |---|---|
//! | `0E`, contents | hints for finding equal data, which a shared volume does not look for |
//! | `0F` of open packs that nothing refers to | the pack has no bytes that are needed; a crash left the row |
//! | `15` to `19`, `1E`: holds, locks, leases, batches, wishes | they are of sessions, and none has begun |
//! | `00`, rows that only a shared volume has | they get new values |
//!
//! The database may have rows already: of an interrupted attempt, or those that were copied while the volume
//! was mounted. Both sides are read in the order of their keys, and only what differs is written.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet, VecDeque};

use base::{BlobId, PackNo, Timestamp};
use blob::Sums;
use meta::key::{KeyRange, tags};
use meta::record::{HeldRow, decode_i64, moment_to_u64};
use meta::store::{self, StoreError, Value};
use meta::{Key, MetaStore, PackRow, Snapshot};
use tree::TreeError;
use tree::restore::Bulk;

use super::super::rows::ROWS_SHARED;

/// Progress is reported after so many rows.
const EVERY: u64 = 4096;

/// So many rows of the database are read at a time: the first pages of its snapshots.
const AT_ONCE: usize = 1024 + 4096;

/// Rows that were copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) rows: u64,
    pub(super) left_out: u64,
    hash: BlobId,
}

impl Rows {
    /// What [`read_back`] must return.
    pub(super) fn read_back(&self) -> (u64, BlobId) {
        (self.rows, self.hash)
    }
}

/// The rows of a volume of one node that move.
pub(super) struct Moving<'a> {
    rows: &'a dyn Snapshot,
    /// Open packs without bytes that are needed.
    dead: HashSet<PackNo>,
}

impl<'a> Moving<'a> {
    /// For a volume that is in use: its open packs move as they are, and are moved again later.
    pub(super) fn in_use(rows: &'a dyn Snapshot) -> Moving<'a> {
        Moving { rows, dead: HashSet::new() }
    }

    /// Looks at the packs of the volume.
    ///
    /// # Errors
    /// The names cannot be read, or a pack with bytes that are needed is open.
    pub(super) fn of(rows: &'a dyn Snapshot) -> Result<Moving<'a>, StoreError> {
        let mut open = Vec::new();
        each_pack(rows, &mut |pack, row| {
            if row == PackRow::Open {
                open.push(pack);
            }
        })?;
        for pack in &open {
            let live = rows.get(&Key::pack_live(*pack))?;
            if decode_i64(live.as_deref()).unwrap_or(1) != 0 {
                return Err(StoreError::Damaged(format!("{pack} holds bytes of files and is no blob")));
            }
        }
        Ok(Moving { rows, dead: open.into_iter().collect() })
    }

    fn moves(&self, key: &[u8]) -> bool {
        match key.first() {
            Some(&tags::VOLUME) => !is_of_shared(key),
            Some(&tags::PACK) => {
                let pack = Key::from_bytes(key).number();
                !pack.is_some_and(|pack| self.dead.contains(&PackNo(pack)))
            }
            Some(&(tags::CONTENT | tags::HOLD | tags::LOCK | tags::LEASE | tags::BATCH)) => false,
            Some(&(tags::WISH | tags::WANTED)) => false,
            _ => true,
        }
    }

    /// Makes the rows of a store those that move. `fence`: see [`Bulk::fenced`].
    ///
    /// # Errors
    /// The names cannot be read, or the store's error.
    pub(super) fn copy(
        &self,
        store: &dyn MetaStore,
        fence: (Key, Value),
        progress: &mut dyn FnMut(u64),
    ) -> Result<Rows, TreeError> {
        let there = store.snapshot()?;
        let mut there = Cursor::new(&*there);
        let mut bulk = Bulk::fenced(store, fence);
        let (mut digest, mut left_out, mut failed) = (Digest::default(), 0, None);
        self.rows.each(&all(), &mut |key, value| {
            if !self.moves(key) {
                left_out += 1;
                return true;
            }
            digest.row(key, value);
            failed = there.bring(key, value, &mut bulk).err();
            if digest.rows.is_multiple_of(EVERY) {
                progress(digest.rows);
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        there.remove_rest(&mut bulk)?;
        bulk.write()?;
        store.flush()?;
        let (rows, hash) = digest.done();
        Ok(Rows { rows, left_out, hash })
    }
}

/// A row for each condemned pack, which says that its blob is to be deleted.
///
/// # Errors
/// The names cannot be read.
pub(super) fn marks(rows: &dyn Snapshot, now: Timestamp) -> Result<store::Rows, StoreError> {
    let mut marks = store::Rows::new();
    each_pack(rows, &mut |pack, row| {
        if matches!(row, PackRow::Condemned { .. }) {
            marks.push((Key::condemned(moment_to_u64(now), pack), Value::from(Vec::new())));
        }
    })?;
    Ok(marks)
}

/// The rows that the database had before the copy, except those that only a shared volume has.
struct Cursor<'a> {
    rows: &'a dyn Snapshot,
    /// From here on they were not read yet.
    from: Key,
    read: VecDeque<(Key, Value)>,
    is_over: bool,
}

impl<'a> Cursor<'a> {
    fn new(rows: &'a dyn Snapshot) -> Cursor<'a> {
        Cursor { rows, from: all().start, read: VecDeque::new(), is_over: false }
    }

    /// The next row, which stays.
    fn peek(&mut self) -> Result<Option<&(Key, Value)>, StoreError> {
        while self.read.is_empty() && !self.is_over {
            let range = KeyRange { start: self.from.clone(), end: all().end };
            let mut count = 0;
            self.rows.each(&range, &mut |key, value| {
                count += 1;
                if !is_of_shared(key) {
                    self.read.push_back((Key::from_bytes(key), value.into()));
                }
                if count == AT_ONCE {
                    self.from = Key::from_bytes(key).successor();
                }
                count < AT_ONCE
            })?;
            self.is_over = count < AT_ONCE;
        }
        Ok(self.read.front())
    }

    /// Writes a row, unless it is there. Removes the rows before it.
    fn bring(&mut self, key: &[u8], value: &[u8], bulk: &mut Bulk<'_>) -> Result<(), TreeError> {
        while let Some((there, was)) = self.peek()? {
            let (order, is_same, there) = (there.as_bytes().cmp(key), was[..] == *value, there.clone());
            if order == Ordering::Greater {
                break;
            }
            self.read.pop_front();
            match order {
                Ordering::Equal if is_same => return Ok(()),
                Ordering::Equal => break,
                _ => bulk.remove(there)?,
            }
        }
        bulk.put(Key::from_bytes(key), value.into())
    }

    fn remove_rest(&mut self, bulk: &mut Bulk<'_>) -> Result<(), TreeError> {
        while let Some((key, _)) = self.peek()? {
            bulk.remove(key.clone())?;
            self.read.pop_front();
        }
        Ok(())
    }
}

/// The number of rows in the database that were copied, and their hash.
///
/// # Errors
/// The database's error.
pub(super) fn read_back(
    rows: &dyn Snapshot,
    progress: &mut dyn FnMut(u64),
) -> Result<(u64, BlobId), StoreError> {
    let mut digest = Digest::default();
    rows.each(&all(), &mut |key, value| {
        if !is_of_shared(key) {
            digest.row(key, value);
            if digest.rows.is_multiple_of(EVERY) {
                progress(digest.rows);
            }
        }
        true
    })?;
    Ok(digest.done())
}

/// The blobs that files or published trees need, with their sizes as far as packs say them.
///
/// # Errors
/// The names cannot be read.
pub(super) fn needed(rows: &dyn Snapshot) -> Result<HashMap<BlobId, Option<u32>>, StoreError> {
    let mut needed = HashMap::new();
    rows.each(&Key::kind(tags::HELD), &mut |key, value| {
        let blob = Key::from_bytes(key).as_held().map(|(blob, _)| blob);
        if let (Some(blob), Ok(HeldRow::Held | HeldRow::KeptAt(_))) = (blob, HeldRow::decode(value)) {
            needed.insert(blob, None);
        }
        true
    })?;
    each_pack(rows, &mut |_, row| {
        if let PackRow::Sealed { blob, size } = row {
            needed.insert(blob, Some(size));
        }
    })?;
    Ok(needed)
}

fn each_pack(rows: &dyn Snapshot, each: &mut dyn FnMut(PackNo, PackRow)) -> Result<(), StoreError> {
    let mut failed = None;
    rows.each(&Key::kind(tags::PACK), &mut |key, value| {
        let key = Key::from_bytes(key);
        match (key.number(), PackRow::decode(value)) {
            (Some(pack), Ok(row)) => each(PackNo(pack), row),
            _ => failed = Some(StoreError::Damaged(format!("the row {key:?} is damaged"))),
        }
        failed.is_none()
    })?;
    failed.map_or(Ok(()), Err)
}

/// Whether a row is one of the volume's own that only a shared volume has.
fn is_of_shared(key: &[u8]) -> bool {
    key.split_first().is_some_and(|(tag, name)| {
        *tag == tags::VOLUME && ROWS_SHARED.iter().any(|own| own.as_bytes() == name)
    })
}

fn all() -> KeyRange {
    KeyRange { start: Key::from_bytes(&[0]), end: Key::from_bytes(&[0xff]) }
}

/// A hash over rows in their order.
#[derive(Default)]
struct Digest {
    rows: u64,
    bytes: Vec<u8>,
}

impl Digest {
    /// So many bytes are hashed at a time.
    const PART: usize = 1 << 20;

    fn row(&mut self, key: &[u8], value: &[u8]) {
        self.rows += 1;
        for part in [key, value] {
            self.bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            self.bytes.extend_from_slice(part);
        }
        if self.bytes.len() >= Digest::PART {
            self.bytes = Sums::of(&self.bytes).id().to_string().into_bytes();
        }
    }

    fn done(self) -> (u64, BlobId) {
        (self.rows, Sums::of(&self.bytes).id())
    }
}
