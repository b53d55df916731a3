//! Which rows of a volume of one node move into a database, and whether they have arrived.
//!
//! Every row moves as it is, also of a kind that this program does not know, except:
//!
//! | rows | why not |
//! |---|---|
//! | `0E`, contents | hints for finding equal data, which a shared volume does not look for |
//! | `0F` of open packs that nothing refers to | the pack has no bytes that are needed; a crash left the row |
//! | `15` to `19`, holds, locks, leases, batches, wishes | they are of sessions, and none has begun |
//! | `00`, rows that only a shared volume has | they get new values |

use std::collections::{HashMap, HashSet};

use base::{BlobId, PackNo};
use blob::Sums;
use meta::key::{KeyRange, tags};
use meta::record::{HeldRow, decode_i64};
use meta::store::StoreError;
use meta::{Key, MetaStore, PackRow, Snapshot};
use tree::TreeError;
use tree::restore::Bulk;

use super::super::rows::ROWS_SHARED;

/// Progress is reported after so many rows.
const EVERY: u64 = 4096;

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
            Some(&(tags::CONTENT | tags::HOLD | tags::LOCK | tags::LEASE | tags::BATCH | tags::WISH)) => {
                false
            }
            _ => true,
        }
    }

    /// Copies the rows into an empty store.
    ///
    /// # Errors
    /// The names cannot be read, or the store's error.
    pub(super) fn copy(
        &self,
        store: &dyn MetaStore,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Rows, TreeError> {
        let mut bulk = Bulk::new(store);
        let (mut digest, mut left_out, mut failed) = (Digest::default(), 0, None);
        self.rows.each(&all(), &mut |key, value| {
            if !self.moves(key) {
                left_out += 1;
                return true;
            }
            digest.row(key, value);
            failed = bulk.put(Key::from_bytes(key), value.into()).err();
            if digest.rows.is_multiple_of(EVERY) {
                progress(digest.rows);
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        bulk.write()?;
        store.flush()?;
        let (rows, hash) = digest.done();
        Ok(Rows { rows, left_out, hash })
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
