//! Reads of a store on another machine, where each look is a round trip: what belongs together is read
//! together.

use base::Ino;
use base::phase::{self, Phase};

use super::{Names, Totals, completed, damaged};
use crate::key::{Key, tags};
use crate::record::{Dentry, InodeRecord, decode_i64};
use crate::shared::TOTALS;
use crate::store::{Linked, StoreError, Value};

/// The result of [`Names::entry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoundEntry {
    /// The directory, if there is one.
    pub parent: Option<InodeRecord>,
    /// The inode that the name stands for, complete as by [`Names::attr`].
    pub inode: Option<(Ino, InodeRecord)>,
}

impl Names {
    /// Inodes as by [`Names::attr`], read together.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn attrs(&self, inos: &[Ino]) -> Result<Vec<Option<InodeRecord>>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        // Only directories have more rows than one.
        let keys: Vec<Key> = inos.iter().map(|ino| Key::inode(*ino)).collect();
        let rows = self.store.get_many(&keys)?;
        let record = |(ino, row): (&Ino, Option<Value>)| {
            let record = row.map(|row| InodeRecord::decode(&row)).transpose().map_err(damaged)?;
            if record.is_some_and(|record| !record.is_dir()) { Ok(record) } else { self.attr(*ino) }
        };
        inos.iter().zip(rows).map(record).collect()
    }

    /// What a name stands for, with the directory that it is in, as of one moment where the store gives that.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn entry(&self, parent: Ino, name: &[u8]) -> Result<FoundEntry, StoreError> {
        const TAGS: [u8; 3] = [tags::INODE, tags::DIR_CHANGED, tags::SUBDIRS];
        let _phase = phase::enter(Phase::Names);
        let (key, dir) = (Key::dentry(parent, name), Key::inode(parent));
        let Linked { from, also, linked } = self.store.get_linked(&key, std::slice::from_ref(&dir), &TAGS)?;
        let row = also.into_iter().next().flatten();
        let dentry = from.as_deref().map(Dentry::decode).transpose().map_err(damaged)?;
        let parent = row.as_deref().map(InodeRecord::decode).transpose().map_err(damaged)?;
        let mut inode = None;
        if let (Some(dentry), [first, rest @ ..]) = (dentry, &linked[..]) {
            let record = first.as_deref().map(InodeRecord::decode).transpose().map_err(damaged)?;
            inode =
                record.map(|record| completed(record, rest)).transpose()?.map(|record| (dentry.ino, record));
        }
        Ok(FoundEntry { parent, inode })
    }

    /// The totals of a shared volume: see [`crate::shared`].
    pub(super) fn spread_totals(&self) -> Result<Totals, StoreError> {
        let rows = self.store.scan(&Key::kind(tags::VOLUME), usize::MAX)?;
        let mut sums = [0i64; 2];
        for (key, value) in &rows {
            let name = key.as_bytes().get(1..).unwrap_or_default();
            let total = TOTALS.iter().position(|total| {
                name.strip_prefix(total.as_bytes()).is_some_and(|rest| matches!(rest, [] | [b' ', ..]))
            });
            if let Some(sum) = total.and_then(|total| sums.get_mut(total)) {
                *sum = sum.saturating_add(decode_i64(Some(value)).map_err(damaged)?);
            }
        }
        let [inodes, bytes] = sums.map(|sum| sum.max(0).unsigned_abs());
        Ok(Totals { inodes, bytes })
    }
}
