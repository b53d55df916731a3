//! Checks that the names of a volume agree with one another, and says how each disagreement could be mended.
//!
//! What is checked: every row decodes; every name has an inode and every inode its names, or the mark that it has none; link counts,
//! parents and subdirectory counts; a file's bytes are inline or in extents, within its size, and add up; the flags for extended
//! attributes; the packs' live bytes and users, and that what is referred to is there; the volume's totals; and that every
//! directory is below the root. What is *in* the blobs is not looked at.
//!
//! Rows are streamed in key order, several kinds side by side. Held in memory are 32 bytes for each name's inode and
//! as much for each pack. The store should be at rest: what changes meanwhile may be reported as wrong.
//!
//! [`repair`] turns a finding into a commit that holds only if the row is still as it was found. Findings are independent of one another: all
//! expected values are those after all repairs. Some repairs bring others to light (an inode that is named again makes its parent's counts
//! wrong), so a repair is followed by another audit, until one finds nothing that can be mended.

mod cursor;
mod finding;
mod inodes;
mod packs;
#[cfg(test)]
mod tests;

pub use finding::{Finding, repair};

use crate::key::Key;
use crate::record::decode_i64;
use crate::store::{MetaStore, StoreError};

/// What was gone through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Names.
    pub names: u64,
    /// Inodes.
    pub inodes: u64,
    /// Inodes without a name that wait to be collected.
    pub orphans: u64,
    /// Bytes that files refer to, every reference counted.
    pub bytes: u64,
    /// Extent pages.
    pub pages: u64,
    /// Packs.
    pub packs: u64,
    /// Findings.
    pub findings: u64,
}

/// What an audit tells while it runs.
pub struct Listener<'a> {
    /// Called with each finding.
    pub found: &'a mut dyn FnMut(Finding),
    /// Called now and then with how many rows were read. A volume's rows are read up to three times.
    pub progress: &'a mut dyn FnMut(u64),
}

/// One audit under way.
struct Audit<'a, 'l> {
    store: &'a dyn MetaStore,
    listener: &'a mut Listener<'l>,
    summary: Summary,
    rows: u64,
    /// A row could not be read: what it says is missing from every count.
    blind: bool,
}

impl Audit<'_, '_> {
    fn report(&mut self, finding: Finding) {
        self.summary.findings += 1;
        self.blind |= matches!(finding, Finding::BadRow { .. });
        (self.listener.found)(finding);
    }

    fn count_rows(&mut self, rows: usize) {
        if rows > 0 {
            self.rows += rows as u64;
            (self.listener.progress)(self.rows);
        }
    }

    /// Compares a counter's row with what was counted, if all that it counts could be read.
    fn compare(&mut self, key: Key, expected: u64) -> Result<(), StoreError> {
        if self.blind {
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

/// Goes through a whole volume.
///
/// # Errors
/// The store failed; what is damaged within rows is a finding instead.
pub fn audit(store: &dyn MetaStore, listener: &mut Listener<'_>) -> Result<Summary, StoreError> {
    let mut audit = Audit { store, listener, summary: Summary::default(), rows: 0, blind: false };
    let mut tallies = packs::Tallies::default();
    inodes::check(&mut audit, &mut tallies)?;
    packs::check(&mut audit, &tallies)?;
    let Summary { inodes, bytes, .. } = audit.summary;
    audit.compare(Key::volume("inodes"), inodes)?;
    audit.compare(Key::volume("bytes"), bytes)?;
    Ok(audit.summary)
}
