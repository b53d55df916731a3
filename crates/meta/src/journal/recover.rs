//! Recovery: what a crash left in the log goes into the database, as far as it can be proven.
//!
//! 1. *Survey*: walk the records after the database's position. The last mark says up to which record data is
//!    durable; note the pack rows on the way. Then look beyond the end of the chain, and at the data that
//!    marks call durable. What was synced and does not verify is [`Damage`]. Unless salvage was asked for,
//!    opening fails here, and nothing was changed.
//! 2. *Restore*: bytes that a flush put into the log go into their packs, if those do not have them. A
//!    missing pack whose row is not `Open` was synced before it was sealed, and is skipped. A missing `Open`
//!    pack lost its name in a power cut, and is created again.
//! 3. *Replay*: commits in order, into SQLite. After the mark each commit must prove its fresh data. At the
//!    first that cannot, or at a torn record, replay ends. The rest is **cut**.
//! 4. The log begins anew in segments with higher numbers than any before. The position in the database
//!    records that, so what was cut is never read again.
//!
//! Any step can be interrupted and repeated: nothing is discarded before the database has it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::PackNo;
use blob::PackStore;

use super::damage::{Damage, Evidence, keep_copy};
use super::disk::LogDisk;
use super::format::{self, Kind, Place};
use super::leftover::{Leftover, Walked};
use super::log::{Log, Sizes};
use super::overlay::RowMap;
use super::{Options, drain, pack_error};
use crate::engine::Sqlite;
use crate::engine::sqlite::Position;
use crate::key::{Key, tags};
use crate::record::PackRow;
use crate::store::{FreshData, MetaStore, StoreError};

/// Rows, and bytes of rows, that go into SQLite in one transaction.
const CHUNK_ROWS: usize = 32 << 10;
const CHUNK_BYTES: usize = 16 << 20;

/// What opening a journal found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Commits that were in the log only and are now in the database.
    pub replayed: u64,
    /// Commits that were never flushed, cannot be proven whole, and were dropped. The state is as if they had
    /// not happened.
    pub cut: u64,
    /// Pieces of written data that were copied from the log back into their packs.
    pub restored: u64,
    /// Why something was cut; none if nothing was.
    pub reason: Option<String>,
    /// What salvage had to give up.
    pub damage: Option<Damage>,
}

/// What the log says, before anything is changed.
#[derive(Default)]
struct Survey {
    /// Fresh data of records up to this one is durable.
    marked: u64,
    commits: u64,
    /// Pieces of written data that the log holds: pack, offset, length.
    data: BTreeSet<(PackNo, u32, u32)>,
    evidence: Evidence,
    /// For each pack whose row changes: the record, and whether the pack is open after it.
    packs: BTreeMap<PackNo, Vec<(u64, bool)>>,
}

/// Moves the log's records into the database. Returns the log to continue with, the number of its first
/// segment, and what was done.
pub(super) fn recover(
    sqlite: &Sqlite,
    disk: &Arc<dyn LogDisk>,
    packs: &dyn PackStore,
    options: &Options,
) -> Result<(Log, u64, Recovered), StoreError> {
    let applied = sqlite.applied()?;
    let mut leftover = Leftover::find(&**disk, sqlite.log_id(), applied.segment)?;
    let (mut survey, walked) = survey(&leftover, applied.seq)?;
    let mut evidence = std::mem::take(&mut survey.evidence);
    leftover.scan(applied.seq, &walked, |seq, kind, payload| evidence.behind(seq, kind, payload))?;
    let (given_up, trusted) = (evidence.operations(), evidence.data);
    let mut damage = evidence.judge(&walked, survey.commits);
    if damage.is_some() {
        // The mark that says so may be beyond the gap.
        survey.marked = survey.marked.max(trusted);
    }
    let open: BTreeSet<PackNo> =
        packs.open_packs().map_err(pack_error)?.into_iter().map(|(pack, _)| pack).collect();
    let ranges = unproven(&leftover, applied.seq, &survey, packs, &open)?;
    if !ranges.is_empty() {
        damage.get_or_insert_with(|| Damage { sound: survey.commits, ..Damage::default() }).ranges = ranges;
    }
    if let Some(damage) = &mut damage {
        let Some(to) = &options.salvage else { return Err(StoreError::DamagedLog(damage.to_string())) };
        keep_copy(&**disk, to)?;
        damage.kept = Some(to.clone());
    }
    let done = Recovered { damage, ..Recovered::default() };
    let (to_sync, rows) = (BTreeSet::new(), RowMap::new());
    let mut recovery =
        Recovery { sqlite, disk: &**disk, packs, survey, applied, open, to_sync, rows, bytes: 0, done };
    if !recovery.survey.data.is_empty() {
        recovery.restore(&leftover)?;
    }
    let why = recovery.replay(&leftover)?;
    recovery.done.cut = recovery.survey.commits - recovery.done.replayed;
    if recovery.done.damage.is_none() {
        recovery.done.cut += given_up;
        recovery.done.reason = why.or(walked.why);
    }
    let segment = leftover.next_segment();
    let seq = recovery.applied.seq;
    recovery.write(Position { segment, seq })?;
    let key = format::log_key(format::VERSION, &sqlite.log_id());
    let sizes = Sizes { segment: options.segment_bytes, max: options.log_bytes };
    let log =
        Log::new(disk.clone(), sqlite.log_id(), sizes, Place { segment, seq, key }, leftover.into_slots());
    Ok((log, segment, recovery.done))
}

fn survey(leftover: &Leftover, applied: u64) -> Result<(Survey, Walked), StoreError> {
    let mut survey = Survey::default();
    let walked = leftover.walk(applied, |seq, kind, payload| {
        match kind {
            Kind::Data => {
                survey.data.extend(
                    format::get_data(payload).map(|(pack, at, bytes)| (pack, at, bytes.len() as u32)),
                );
            }
            Kind::Mark => {
                let mark = format::get_mark(payload).unwrap_or_default();
                survey.marked = survey.marked.max(mark.data);
                survey.evidence.mark(seq, mark);
            }
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
    Ok((survey, walked))
}

/// Data that a mark calls durable, and that is neither in its open pack nor in the log. A pack that is no
/// longer open was verified when it was sealed.
fn unproven(
    leftover: &Leftover,
    applied: u64,
    survey: &Survey,
    packs: &dyn PackStore,
    open: &BTreeSet<PackNo>,
) -> Result<Vec<FreshData>, StoreError> {
    let mut ranges = Vec::new();
    leftover.walk(applied, |seq, kind, payload| {
        if seq > survey.marked {
            return Ok(false);
        }
        if kind == Kind::Commit {
            for data in format::get_commit(payload).unwrap_or_default().1 {
                let logged = survey.data.contains(&(data.pack, data.offset, data.len));
                if !logged && open.contains(&data.pack) && !is_proven(packs, &data)? {
                    ranges.push(data);
                }
            }
        }
        Ok(true)
    })?;
    Ok(ranges)
}

fn is_proven(packs: &dyn PackStore, data: &FreshData) -> Result<bool, StoreError> {
    packs.prove(data.pack, data.offset, data.len, data.crc).map_err(pack_error)
}

struct Recovery<'a> {
    sqlite: &'a Sqlite,
    disk: &'a dyn LogDisk,
    packs: &'a dyn PackStore,
    survey: Survey,
    applied: Position,
    /// Packs that exist as open packs.
    open: BTreeSet<PackNo>,
    /// Packs with bytes that the gathered rows depend on.
    to_sync: BTreeSet<PackNo>,
    rows: RowMap,
    bytes: usize,
    done: Recovered,
}

impl Recovery<'_> {
    fn restore(&mut self, leftover: &Leftover) -> Result<(), StoreError> {
        leftover.walk(self.applied.seq, |_, kind, payload| {
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
        // The pack has no row: its first record is yet to be replayed, or a test has no pack rows.
        let row = self.sqlite.get(&Key::pack(pack))?;
        Ok(row.is_none_or(|row| PackRow::decode(&row) == Ok(PackRow::Open)))
    }

    /// Replays the commits. Returns why it stopped before the log's end, if it did.
    fn replay(&mut self, leftover: &Leftover) -> Result<Option<String>, StoreError> {
        let mut why = None;
        leftover.walk(self.applied.seq, |seq, kind, payload| {
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
                if !is_proven(self.packs, data)? {
                    return Ok(Some(format!(
                        "{} bytes that record {seq} mentions are not in {:?}",
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

    /// Writes the gathered rows to the database, after making the data that they mention durable.
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
                // Take it back at once, if only in part. The journal checks whether it is whole when it
                // starts.
                let _ = self.disk.reserve(0);
                done
            }
            other => other,
        }
    }
}
