//! Parts of a log that were durable and are missing now.
//!
//! A crash leaves a torn tail: the last records, none of which was acknowledged as durable. Damage looks the
//! same at the end of the chain of records. What lies beyond the end tells them apart: a mark that names a
//! later record as synced ([`Mark`]). Then acknowledged data is lost. So opening refuses and changes nothing.
//! Salvage has to be asked for, and it first keeps a copy of the log.
//!
//! Records beyond a gap without such a mark are what a power cut leaves of writes in progress. They are
//! dropped as usual. Damage that takes the last records together with the mark after them cannot be
//! distinguished from a torn tail.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::disk::LogDisk;
use super::format::{self, Kind, Mark};
use super::io_error;
use super::leftover::Walked;
use crate::key::Key;
use crate::store::{FreshData, StoreError, Value};

/// A record that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The record's number.
    pub record: u64,
    /// Where it should be: a file of the log's folder and an offset in bytes.
    pub at: Option<(String, u64)>,
    /// The last record that is known to have been durable.
    pub synced: u64,
}

/// A row that an operation after the damage changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRow {
    /// The row's key.
    pub key: Key,
    /// The row's last value; none if the row was removed.
    pub value: Option<Value>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The first record that is damaged; none if only written data is.
    pub broken: Option<Broken>,
    /// Operations before it: they are sound.
    pub sound: u64,
    /// Operations after it that can be read. They may build on unreadable ones, and so are lost too.
    pub readable: u64,
    /// Records from it on that cannot be read: each holds at most one operation.
    pub unreadable: u64,
    /// Rows as the readable operations after it left them, in key order.
    pub rows: Vec<LostRow>,
    /// Written data that was durable and has changed.
    pub ranges: Vec<FreshData>,
    /// Where salvage kept a copy of the log.
    pub kept: Option<PathBuf>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Broken { record, at, synced }) = &self.broken {
            write!(f, "record {record} of the log")?;
            if let Some((file, offset)) = at {
                write!(f, " ({file}, offset {offset})")?;
            }
            write!(
                f,
                " is damaged or missing, though the log was synced up to record {synced}: {} operations in front of it are sound, {} behind it can be read and up to {} cannot",
                self.sound, self.readable, self.unreadable
            )?;
        }
        if !self.ranges.is_empty() {
            let bytes: u64 = self.ranges.iter().map(|range| u64::from(range.len)).sum();
            let and = if self.broken.is_some() { "; " } else { "" };
            write!(f, "{and}{bytes} bytes of open packs were synced and are not what was written")?;
        }
        Ok(())
    }
}

/// What marks say, and the records beyond the end of the chain.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The numbers of [`Mark`], the highest of each.
    pub(super) data: u64,
    pub(super) synced: u64,
    /// Numbers of the last two marks that do not name a synced record: the later one was written when the
    /// earlier one was durable. The others are not synced when the next one is written.
    marks: (u64, u64),
    /// Records beyond the chain; below, those of them that are operations.
    behind: BTreeSet<u64>,
    commits: BTreeMap<u64, Vec<LostRow>>,
}

impl Evidence {
    pub(super) fn mark(&mut self, seq: u64, mark: Mark) {
        self.data = self.data.max(mark.data);
        self.synced = self.synced.max(mark.synced);
        if mark.synced > 0 {
            return;
        }
        match self.marks {
            (_, last) if seq > last => self.marks = (last, seq),
            (before, last) if seq > before && seq < last => self.marks.0 = seq,
            _ => {}
        }
    }

    pub(super) fn behind(&mut self, seq: u64, kind: Kind, payload: &[u8]) {
        if !self.behind.insert(seq) {
            return;
        }
        match kind {
            Kind::Mark => self.mark(seq, format::get_mark(payload).unwrap_or_default()),
            Kind::Commit => {
                let rows = format::get_commit(payload).unwrap_or_default().0;
                let lost = rows.into_iter().map(|(key, value)| LostRow { key, value });
                self.commits.insert(seq, lost.collect());
            }
            Kind::Data => {}
        }
    }

    /// The number of operations beyond the chain.
    pub(super) fn operations(&self) -> u64 {
        self.commits.len() as u64
    }

    /// The damage at which the chain ended, if it was damage.
    pub(super) fn judge(self, walked: &Walked, sound: u64) -> Option<Damage> {
        let synced = self.synced.max(self.marks.0);
        if synced < walked.next {
            return None;
        }
        let last = self.behind.last().copied().unwrap_or(synced).max(synced);
        let mut rows = BTreeMap::new();
        let readable = self.operations();
        for row in self.commits.into_values().flatten() {
            rows.insert(row.key.clone(), row);
        }
        Some(Damage {
            broken: Some(Broken { record: walked.next, at: walked.at.clone(), synced }),
            sound,
            readable,
            unreadable: (last + 1 - walked.next).saturating_sub(self.behind.len() as u64),
            rows: rows.into_values().collect(),
            ..Damage::default()
        })
    }
}

/// Copies the log's files into the new folder `to`, durably.
pub(super) fn keep_copy(disk: &dyn LogDisk, to: &Path) -> Result<(), StoreError> {
    let names = disk.list().map_err(io_error)?;
    let copy = || {
        fs::create_dir(to)?;
        for name in &names {
            let file = disk.open(name)?;
            let mut bytes = vec![0; file.len() as usize];
            file.read_at(0, &mut bytes)?;
            let mut copy = File::create_new(to.join(name))?;
            copy.write_all(&bytes)?;
            copy.sync_all()?;
        }
        File::open(to)?.sync_all()?;
        to.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    };
    copy().map_err(|error| match io_error(error) {
        StoreError::Full => StoreError::Full,
        other => StoreError::Unavailable(format!("the log cannot be copied to {}: {other}", to.display())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mark that names a synced record is not synced when the next round writes its own. A power cut that
    /// kept both and lost a commit in front of them was taken for damage.
    #[test]
    fn regression_a_mark_of_what_is_synced_says_nothing_of_itself() {
        let marks = |all: &[(u64, Mark)]| {
            let mut evidence = Evidence::default();
            all.iter().for_each(|(seq, mark)| evidence.mark(*seq, *mark));
            evidence
        };
        let first = |data| Mark { data, synced: 0 };
        let all = [(5, first(4)), (7, Mark { data: 4, synced: 5 }), (10, first(9))];
        let lost = Walked { next: 6, ..Walked::default() };
        assert_eq!(marks(&all).judge(&lost, 4), None);
        let damaged = Walked { next: 5, ..Walked::default() };
        assert!(marks(&all).judge(&damaged, 4).is_some());
        let two = [(5, first(4)), (10, first(9))];
        assert!(marks(&two).judge(&damaged, 4).is_some() && marks(&two).judge(&lost, 4).is_none());
    }
}
