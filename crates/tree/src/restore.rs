//! Restoring: the rows of a tree become those of a new volume.
//!
//! The rows that the tree leaves out are made again on the way: which page refers to which pack, which pack
//! is which blob, and which blobs published trees hold.

use base::{BlobId, PackNo};
use blob::ExtentPage;
use meta::key::tags;
use meta::record::HeldRow;
use meta::store::{Commit, CommitError, Expect, Limit, StoreError, Value};
use meta::{Key, MetaStore, PackRow};

use crate::TreeError;
use crate::read::Tree;

/// The most rows written at a time, and the most bytes of them.
const ROWS: usize = 16 << 10;
const BYTES: usize = 4 << 20;

/// Copies all rows of a tree into an empty store. `progress` gets the number of the tree's rows that are
/// done. If it returns false, the restore stops.
///
/// # Errors
/// See [`TreeError`]. The store is then incomplete and useless.
pub fn restore(
    tree: &Tree,
    store: &dyn MetaStore,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<u64, TreeError> {
    let mut batch = Bulk::new(store);
    let (mut count, mut failed) = (0, None);
    tree.all(&mut |key, value| {
        count += 1;
        let done = batch.row(Key::from_bytes(key), value.into());
        failed = done.err();
        if failed.is_none() && count % 4096 == 0 && !progress(count) {
            failed = Some(TreeError::Stopped);
        }
        failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    batch.write()?;
    store.flush()?;
    progress(count);
    Ok(count)
}

/// Notes in a restored store that a published tree needs these blobs.
///
/// # Errors
/// The store's error.
pub fn hold<'a>(
    store: &dyn MetaStore,
    name: &str,
    blobs: impl IntoIterator<Item = &'a BlobId>,
) -> Result<(), TreeError> {
    let mut batch = Bulk::new(store);
    blobs.into_iter().try_for_each(|blob| batch.put(Key::held(blob, name), HeldRow::Held.encode()))?;
    batch.write()?;
    Ok(store.flush()?)
}

/// Many changes of rows on their way into a store, in commits of a bounded size.
pub struct Bulk<'a> {
    store: &'a dyn MetaStore,
    /// A row that must be as it is.
    fence: Option<(Key, Value)>,
    puts: Vec<(Key, Value)>,
    dels: Vec<Key>,
    bytes: usize,
    limit: Limit,
}

impl<'a> Bulk<'a> {
    /// Rows for this store.
    pub fn new(store: &'a dyn MetaStore) -> Bulk<'a> {
        let Limit { rows, bytes, checks } = store.commit_limit();
        let limit = Limit { rows: rows.min(ROWS), bytes: bytes.min(BYTES), checks };
        Bulk { store, fence: None, puts: Vec::new(), dels: Vec::new(), bytes: 0, limit }
    }

    /// Takes rows for this store. Nothing is written any more when the row `fence` has another value than
    /// this: the store is another writer's then.
    pub fn fenced(store: &'a dyn MetaStore, fence: (Key, Value)) -> Bulk<'a> {
        Bulk { fence: Some(fence), ..Bulk::new(store) }
    }

    /// A row of the tree, and the rows that follow from it.
    fn row(&mut self, key: Key, value: Value) -> Result<(), TreeError> {
        let damaged =
            || TreeError::Store(StoreError::Damaged(format!("the row {key:?} of the tree is damaged")));
        match key.tag() {
            tags::DENTRY if !key.as_dentry().is_some_and(|entry| entry.is_placed()) => return Err(damaged()),
            tags::EXTENTS => {
                let (ino, number) = key.as_extents().ok_or_else(damaged)?;
                let page = ExtentPage::decode(&value).map_err(|_| damaged())?;
                let mut packs: Vec<PackNo> = page.extents().iter().map(|extent| extent.pack).collect();
                packs.sort_unstable();
                packs.dedup();
                for pack in packs {
                    self.put(Key::pack_user(pack, ino, number), [].as_slice().into())?;
                }
            }
            tags::PACK => {
                let pack = PackNo(key.number().ok_or_else(damaged)?);
                let Ok(PackRow::Sealed { blob, .. }) = PackRow::decode(&value) else {
                    return Err(damaged());
                };
                self.put(Key::blob_pack(&blob, pack), [].as_slice().into())?;
            }
            _ => {}
        }
        self.put(key, value)
    }

    /// Takes one more row. It may be written later.
    ///
    /// # Errors
    /// The store's error.
    pub fn put(&mut self, key: Key, value: Value) -> Result<(), TreeError> {
        self.bytes += key.as_bytes().len() + value.len();
        self.puts.push((key, value));
        self.write_if_many()
    }

    /// Removes a row. That may be done later.
    ///
    /// # Errors
    /// The store's error.
    pub fn remove(&mut self, key: Key) -> Result<(), TreeError> {
        self.bytes += key.as_bytes().len();
        self.dels.push(key);
        self.write_if_many()
    }

    fn write_if_many(&mut self) -> Result<(), TreeError> {
        let rows = self.puts.len() + self.dels.len();
        if rows >= self.limit.rows || self.bytes >= self.limit.bytes { self.write() } else { Ok(()) }
    }

    /// Writes the rows that were taken and not written yet.
    ///
    /// # Errors
    /// The store's error. `Fenced` if the store is another writer's.
    pub fn write(&mut self) -> Result<(), TreeError> {
        self.bytes = 0;
        let (puts, dels) = (std::mem::take(&mut self.puts), std::mem::take(&mut self.dels));
        if puts.is_empty() && dels.is_empty() {
            return Ok(());
        }
        let checks: Vec<_> =
            self.fence.iter().map(|(key, row)| (key.clone(), Expect::Is(row.clone()))).collect();
        match self.store.commit(Commit { checks, puts, dels, ..Commit::default() }) {
            Err(CommitError::Conflict { .. }) if self.fence.is_some() => {
                Err(StoreError::Fenced("another command writes to it".to_owned()).into())
            }
            done => Ok(done?),
        }
    }
}
