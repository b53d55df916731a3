//! Which inodes this node may change without taking a lease from a node that uses it.
//!
//! Work in the background asks this before it changes files of other nodes. A lease row has the time at which
//! the lease changed hands last. Taking the lease changes the row too. So work that takes only leases which
//! have not changed hands for a while takes each of them once in that time at most, and stays out of units
//! that several nodes want.

use std::time::Duration;

use base::Ino;

use super::Core;
use super::row::{Holder, Row};
use super::state::home_of;
use crate::key::Key;
use crate::record::InodeRecord;
use crate::store::{StoreError, Value};

/// Rows read at a time.
const BATCH: usize = 512;

impl Core {
    /// See [`MetaStore::are_free`](crate::MetaStore::are_free). `here`: this node can change it at once.
    pub(super) fn are_free(
        &self,
        inos: &[Ino],
        here: &dyn Fn(&Ino) -> bool,
        quiet: Duration,
    ) -> Result<Vec<bool>, StoreError> {
        let mut free = Vec::with_capacity(inos.len());
        let (alive, now) = (self.nodes.alive()?, base::time::now());
        let before = u64::try_from(now.0 / 1000).unwrap_or(0).saturating_sub(quiet.as_micros() as u64);
        for inos in inos.chunks(BATCH) {
            let here: Vec<bool> = inos.iter().map(here).collect();
            let keys: Vec<Key> = inos.iter().map(|ino| Key::inode(*ino)).collect();
            let records = if here.contains(&false) { self.inner.get_many(&keys)? } else { Vec::new() };
            let unit = |(ino, row): (&Ino, &Option<Value>)| {
                let record = row.as_deref().map(InodeRecord::decode).and_then(Result::ok);
                Key::lease(home_of(*ino, record.as_ref()))
            };
            let keys: Vec<Key> = inos.iter().zip(&records).map(unit).collect();
            let leases = if keys.is_empty() { Vec::new() } else { self.inner.get_many(&keys)? };
            let leases = leases.into_iter().chain(std::iter::repeat(None));
            let me = self.nodes.me().map(|me| me.node);
            let is_other = |holder: &Holder| Some(holder.node) != me && alive.contains(holder);
            free.extend(here.into_iter().zip(leases).map(|(here, lease)| {
                let row = lease.as_deref().and_then(Row::decode);
                here || row.is_none_or(|row| row.seq < before || !row.holders.iter().any(is_other))
            }));
        }
        Ok(free)
    }
}
