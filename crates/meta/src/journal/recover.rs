//! What a crash left in the log goes into the database, as far as it can be shown to be true.
//!
//! 1. *Survey*: walk the records behind the database's position. The last mark says up to where data is durable; note what packs' rows say there.
//! 2. *Restore*: bytes that a flush put into the log go into their packs, where those do not have them. A pack that is gone and whose row is
//!    not `Open` was synced before it was sealed, and is passed over; an `Open` one lost its name in a power cut, and is made again.
//! 3. *Replay*: commits in order, into SQLite. Behind the mark each must prove its fresh data. At the first that cannot, or at a record that
//!    is torn, all ends: what follows is **cut**.
//! 4. The log begins anew in segments with higher numbers than any before. The position in the database says so, and so what was cut
//!    can never be read again.
//!
//! Any step may be interrupted and is then done again: nothing is given up before the database has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::PackNo;
use blob::PackStore;

use super::disk::LogDisk;
use super::format::{self, Kind, Place};
use super::log::{End, Left, Log, Sizes};
use super::overlay::RowMap;
use super::{drain, pack_error};
use crate::engine::Sqlite;
use crate::engine::sqlite::Position;
use crate::key::{Key, tags};
use crate::record::PackRow;
use crate::store::{FreshData, MetaStore, StoreError};

/// Rows that are brought into SQLite in one transaction, and their bytes.
const CHUNK_ROWS: usize = 32 << 10;
const CHUNK_BYTES: usize = 16 << 20;

/// What opening a journal found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Commits that were in the log only and are now in the database.
    pub replayed: u64,
    /// Commits that were never flushed, cannot be shown to be whole, and were dropped. What comes back is as if they had not happened.
    pub cut: u64,
    /// Pieces of written data that were brought back from the log into their packs.
    pub restored: u64,
    /// Why something was cut, if something was.
    pub reason: Option<String>,
}

/// What the log says before anything is done with it.
#[derive(Default)]
struct Survey {
    /// Fresh data of records up to this one is durable.
    marked: u64,
    commits: u64,
    data: u64,
    /// Of each pack whose row changes: record and whether it is open after it.
    packs: BTreeMap<PackNo, Vec<(u64, bool)>>,
}

/// Brings the log's records into the database. Gives the log to go on with, the number of its first segment, and what was done.
pub(super) fn recover(
    sqlite: &Sqlite,
    disk: &Arc<dyn LogDisk>,
    packs: &dyn PackStore,
    sizes: Sizes,
) -> Result<(Log, u64, Recovered), StoreError> {
    let applied = sqlite.applied()?;
    let left = Left::find(&**disk, sqlite.log_id(), applied.segment)?;
    let (survey, end) = survey(&left, applied.seq)?;
    let mut recovery = Recovery {
        sqlite,
        disk: &**disk,
        packs,
        survey,
        applied,
        open: packs.open_packs().map_err(pack_error)?.into_iter().map(|(pack, _)| pack).collect(),
        to_sync: BTreeSet::new(),
        rows: RowMap::new(),
        bytes: 0,
        done: Recovered::default(),
    };
    if recovery.survey.data > 0 {
        recovery.restore(&left)?;
    }
    let why = recovery.replay(&left)?;
    if let End::Cut(why) = end {
        recovery.done.reason = Some(why);
    }
    recovery.done.reason = why.or(recovery.done.reason);
    recovery.done.cut = recovery.survey.commits - recovery.done.replayed;
    let segment = left.next_segment();
    let seq = recovery.applied.seq;
    recovery.write(Position { segment, seq })?;
    let log = Log::new(disk.clone(), sqlite.log_id(), sizes, Place { segment, seq }, left.into_slots());
    Ok((log, segment, recovery.done))
}

fn survey(left: &Left, applied: u64) -> Result<(Survey, End), StoreError> {
    let mut survey = Survey::default();
    let end = left.walk(applied, |seq, kind, payload| {
        match kind {
            Kind::Data => survey.data += 1,
            Kind::Mark => survey.marked = format::get_mark(payload).unwrap_or(0).max(survey.marked),
            Kind::Commit => {
                survey.commits += 1;
                let rows = format::get_commit(payload).unwrap_or_default().0;
                for (key, row) in rows.iter().filter(|(key, _)| key.tag() == tags::PACK) {
                    let open = row.as_deref().is_none_or(|row| PackRow::decode(row) == Ok(PackRow::Open));
                    survey.packs.entry(PackNo(key.number().unwrap_or(0))).or_default().push((seq, open));
                }
            }
        }
        Ok(true)
    })?;
    Ok((survey, end))
}

struct Recovery<'a> {
    sqlite: &'a Sqlite,
    disk: &'a dyn LogDisk,
    packs: &'a dyn PackStore,
    survey: Survey,
    applied: Position,
    /// Packs that have an open name.
    open: BTreeSet<PackNo>,
    /// Packs with bytes that rows on their way to the database rely on.
    to_sync: BTreeSet<PackNo>,
    rows: RowMap,
    bytes: usize,
    done: Recovered,
}

impl Recovery<'_> {
    fn restore(&mut self, left: &Left) -> Result<(), StoreError> {
        left.walk(self.applied.seq, |_, kind, payload| {
            if let (Kind::Data, Some((pack, offset, bytes))) = (kind, format::get_data(payload)) {
                self.restore_one(pack, offset, bytes)?;
            }
            Ok(true)
        })?;
        Ok(())
    }

    fn restore_one(&mut self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<(), StoreError> {
        if !self.was_open(pack)? {
            return Ok(());
        }
        if self.open.insert(pack) {
            self.packs.create(pack).map_err(pack_error)?;
        }
        self.to_sync.insert(pack);
        let mut there = vec![0; bytes.len()];
        if self.packs.read(pack, offset, &mut there).is_ok() && there == bytes {
            let crc = blob::sums::crc32c(bytes);
            self.packs.prove(pack, offset, bytes.len() as u32, crc).map_err(pack_error)?;
            return Ok(());
        }
        self.packs.write(pack, offset, bytes).map_err(pack_error)?;
        self.done.restored += 1;
        Ok(())
    }

    /// Whether the pack was open, as of the last record that is known to be durable with its data.
    fn was_open(&self, pack: PackNo) -> Result<bool, StoreError> {
        let changes = self.survey.packs.get(&pack).map_or(&[][..], Vec::as_slice);
        if let Some((_, open)) = changes.iter().rev().find(|(seq, _)| *seq <= self.survey.marked) {
            return Ok(*open);
        }
        // A pack without a row: its first record is about to be replayed, or a test has no rows of packs.
        let row = self.sqlite.get(&Key::pack(pack))?;
        Ok(row.is_none_or(|row| PackRow::decode(&row) == Ok(PackRow::Open)))
    }

    /// Answers why it ended before the log did, if so.
    fn replay(&mut self, left: &Left) -> Result<Option<String>, StoreError> {
        let mut why = None;
        left.walk(self.applied.seq, |seq, kind, payload| {
            if kind == Kind::Commit {
                why = self.replay_one(seq, payload)?;
            }
            if why.is_none() {
                self.applied.seq = seq;
            }
            Ok(why.is_none())
        })?;
        Ok(why)
    }

    fn replay_one(&mut self, seq: u64, payload: &[u8]) -> Result<Option<String>, StoreError> {
        let Some((rows, fresh)) = format::get_commit(payload) else {
            return Ok(Some(format!("record {seq} holds something else than a commit")));
        };
        if seq > self.survey.marked {
            for data in &fresh {
                if !self.is_proven(data)? {
                    return Ok(Some(format!(
                        "{} bytes that record {seq} speaks of are not in {:?}",
                        data.len, data.pack
                    )));
                }
                self.to_sync.insert(data.pack);
            }
        }
        if self.rows.len() >= CHUNK_ROWS || self.bytes >= CHUNK_BYTES {
            self.write(self.applied)?;
        }
        self.bytes += payload.len();
        self.rows.extend(rows);
        self.done.replayed += 1;
        Ok(None)
    }

    fn is_proven(&self, data: &FreshData) -> Result<bool, StoreError> {
        self.packs.prove(data.pack, data.offset, data.len, data.crc).map_err(pack_error)
    }

    /// What was gathered goes into the database; what it speaks of is durable before.
    fn write(&mut self, position: Position) -> Result<(), StoreError> {
        let packs: Vec<PackNo> = std::mem::take(&mut self.to_sync).into_iter().collect();
        if !packs.is_empty() {
            self.packs.sync(&packs).map_err(pack_error)?;
        }
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        match self.sqlite.apply(&rows, position) {
            Err(StoreError::Full) => {
                let from = self.sqlite.applied()?;
                let done = drain::apply_on_full_disk(self.sqlite, self.disk, &rows, from, position);
                // Taken back at once, if only in part; the journal asks whether it is whole when it begins.
                let _ = self.disk.reserve(0);
                done
            }
            other => other,
        }
    }
}
