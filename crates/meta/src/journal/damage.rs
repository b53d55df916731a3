//! What of a log was durable and is not there any more.
//!
//! A crash leaves a torn tail: the last records, none of which anybody was told to be durable. Damage looks alike where the chain of records
//! ends, and is told apart by what lies behind: a mark that names a later record as synced ([`Mark`]). What was acknowledged is
//! lost then, so opening refuses, and changes nothing. Salvage is asked for; it keeps a copy of the log first.
//!
//! Records behind a hole without such a mark are what a power cut leaves of writes that were under way: given up, as ever. What cannot be
//! told apart is damage that takes the last records together with the mark behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::disk::LogDisk;
use super::format::{self, Kind, Mark};
use super::io_error;
use super::left::Walked;
use crate::key::Key;
use crate::store::{FreshData, StoreError, Value};

/// A record that is not what it was, or not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its number.
    pub record: u64,
    /// Where it should be: file of the log's folder and offset in bytes.
    pub at: Option<(String, u64)>,
    /// The last record that is known to have been durable.
    pub synced: u64,
}

/// A row that an operation behind the damage changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRow {
    /// Its key.
    pub key: Key,
    /// Its last value; none if it was removed.
    pub value: Option<Value>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// The first record that is damaged; none if only written data is.
    pub broken: Option<Broken>,
    /// Operations in front of it: they are sound.
    pub sound: u64,
    /// Operations behind it that can be read. They may build on what cannot, and so are lost with it.
    pub readable: u64,
    /// Records from it on that cannot be read: an operation each, at most.
    pub unreadable: u64,
    /// Rows as the readable operations behind it left them, in key order.
    pub rows: Vec<LostRow>,
    /// Written data that was durable and is not what was written.
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

/// What marks say, and what lies behind the end of the chain.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// As [`Mark`] says, the highest of each.
    pub(super) data: u64,
    pub(super) synced: u64,
    /// Numbers of the last two marks: the later was written when the earlier was durable.
    marks: (u64, u64),
    /// Records behind the chain, and what of them are operations.
    behind: BTreeSet<u64>,
    commits: BTreeMap<u64, Vec<LostRow>>,
}

impl Evidence {
    pub(super) fn mark(&mut self, seq: u64, mark: Mark) {
        self.data = self.data.max(mark.data);
        self.synced = self.synced.max(mark.synced);
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

    /// Operations behind the chain.
    pub(super) fn operations(&self) -> u64 {
        self.commits.len() as u64
    }

    /// Whether the chain ended at damage.
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
