//! Checks that the names of a volume agree with one another, and how each disagreement can be repaired.
//!
//! These are checked: every row decodes. Every name has an inode, and every inode has its names, or the mark
//! that it has none, or a row in the trash. Link counts, parents and subdirectory counts are right. A file's
//! bytes are inline or in extents, within its size, and add up. The flags for extended attributes are right.
//! The packs' live bytes and users are right, and what is referred to exists. The totals of the volume and of
//! its quotas are right. Every directory is below the root. The *contents* of the blobs are not checked.
//!
//! Rows are streamed in key order, several kinds in parallel. Memory holds 32 bytes for each name's inode and
//! the same for each pack. The store should not change during an audit: a change meanwhile may be reported as
//! wrong.
//!
//! [`repair`] turns a finding into a commit that applies only if the row is still as it was found. Findings
//! are independent of one another: all expected values are those after all repairs. Some repairs reveal other
//! findings (an inode that gets a name again makes its parent's counts wrong). So after a repair another
//! audit runs, until one finds nothing that can be repaired.

mod cursor;
mod finding;
mod inodes;
mod packs;
#[cfg(test)]
mod tests;

pub use finding::{Finding, repair};

use std::collections::BTreeMap;

use base::Ino;

use crate::key::{Key, Used, tags};
use crate::record::decode_i64;
use crate::store::{MetaStore, StoreError};
use cursor::Cursor;

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Names.
    pub names: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes without a name, to be collected.
    pub orphans: u64,
    /// Inodes in the trash.
    pub trash: u64,
    /// Bytes that files refer to, every reference counted.
    pub bytes: u64,
    /// Extent pages.
    pub pages: u64,
    /// Packs.
    pub packs: u64,
    /// Findings.
    pub findings: u64,
}

/// The callbacks of an audit.
pub struct Listener<'a> {
    /// Called with each finding.
    pub found: &'a mut dyn FnMut(Finding),
    /// Called from time to time with how many rows were read. A volume's rows are read up to three times.
    pub progress: &'a mut dyn FnMut(u64),
}

/// One running audit.
struct Audit<'a, 'l> {
    store: &'a dyn MetaStore,
    listener: &'a mut Listener<'l>,
    summary: Summary,
    rows: u64,
    /// A row could not be read, so every count lacks what it says.
    has_unreadable: bool,
    /// What counts for each quota.
    used: BTreeMap<Key, u64>,
}

impl Audit<'_, '_> {
    fn report(&mut self, finding: Finding) {
        self.summary.findings += 1;
        self.has_unreadable |= matches!(finding, Finding::BadRow { .. });
        (self.listener.found)(finding);
    }

    fn count_rows(&mut self, rows: usize) {
        if rows > 0 {
            self.rows += rows as u64;
            (self.listener.progress)(self.rows);
        }
    }

    /// Notes that an inode counts for a quota.
    fn count_used(&mut self, quota: Ino, bytes: u64) {
        if quota != Ino(0) {
            *self.used.entry(Key::quota_used(quota, Used::Inodes)).or_default() += 1;
            *self.used.entry(Key::quota_used(quota, Used::Bytes)).or_default() += bytes;
        }
    }

    /// Compares the counters of all quotas.
    fn compare_used(&mut self) -> Result<(), StoreError> {
        let mut rows = Cursor::kind(self.store, tags::QUOTA_USED);
        while let Some((key, _)) = rows.next()? {
            self.used.entry(key).or_default();
        }
        for (key, used) in std::mem::take(&mut self.used) {
            self.compare(key, used)?;
        }
        Ok(())
    }

    /// Compares a counter's row with the counted value, if every counted row could be read.
    fn compare(&mut self, key: Key, expected: u64) -> Result<(), StoreError> {
        if self.has_unreadable {
            return Ok(());
        }
        let found = self.store.get(&key)?;
        let expected = i64::try_from(expected).unwrap_or(i64::MAX);
        if decode_i64(found.as_deref()) != Ok(expected) {
            self.report(Finding::WrongCount { key, found, expected });
        }
        Ok(())
    }
}

/// Audits a whole volume.
///
/// # Errors
/// The store failed. Damage within rows is a finding instead.
pub fn audit(store: &dyn MetaStore, listener: &mut Listener<'_>) -> Result<Summary, StoreError> {
    let (summary, used) = (Summary::default(), BTreeMap::new());
    let mut audit = Audit { store, listener, summary, rows: 0, has_unreadable: false, used };
    let mut tallies = packs::Tallies::default();
    inodes::check(&mut audit, &mut tallies)?;
    packs::check(&mut audit, &tallies)?;
    let Summary { inodes, bytes, .. } = audit.summary;
    audit.compare(Key::volume("inodes"), inodes)?;
    audit.compare(Key::volume("bytes"), bytes)?;
    audit.compare_used()?;
    Ok(audit.summary)
}
