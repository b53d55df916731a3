//! A flush: everything committed before it, and the data it mentions, survives a power cut.
//!
//! One thread leads, all others who came in the meantime wait for it: the next leader does the work of all of them at once. The leader
//! takes the list of fresh data, then either puts those bytes into the log or syncs their packs, appends a mark, and syncs
//! the log. Whoever came later than the list was taken waits for the next round.

use std::sync::atomic::Ordering;

use super::format::{self, Kind};
use super::{Fresh, LogState, Shared, io_error};
use crate::store::{FreshData, StoreError};

/// How thorough a flush is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Data may be durable in the log only.
    Log,
    /// All data is durable in its packs: what goes into SQLite must not need the log.
    Packs,
}

/// What a round came to.
struct Round {
    /// The last record that is durable, with its data.
    durable: u64,
    /// The log says so too, or need not.
    marked: bool,
}

impl Shared {
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        self.alive()?;
        let target = self.log.lock().log.seq();
        if self.flush_to(target, Depth::Log)? {
            return Ok(());
        }
        // The log has no room for the mark that lets a pack be retired after this. In SQLite no mark is needed.
        self.drain_all()
    }

    /// Makes the records up to `target` durable. Answers false when the log could not take the mark.
    pub(super) fn flush_to(&self, target: u64, depth: Depth) -> Result<bool, StoreError> {
        let mut flushing = self.flushing.lock();
        loop {
            self.alive()?;
            if flushing.durable >= target && depth == Depth::Log {
                return Ok(true);
            }
            if !flushing.led {
                break;
            }
            self.flushed.wait(&mut flushing);
        }
        flushing.led = true;
        drop(flushing);
        let round = self.lead(depth);
        let mut flushing = self.flushing.lock();
        flushing.led = false;
        if let Ok(round) = &round
            && (round.marked || depth == Depth::Packs)
        {
            flushing.durable = flushing.durable.max(round.durable);
        }
        drop(flushing);
        self.flushed.notify_all();
        Ok(round?.marked)
    }

    fn lead(&self, depth: Depth) -> Result<Round, StoreError> {
        let (fresh, durable) = {
            let mut state = self.log.lock();
            let LogState { log, fresh, .. } = &mut *state;
            (self.take_fresh(fresh, depth), log.seq())
        };
        let small = depth == Depth::Log && !fresh.sealed && fresh.bytes <= self.options.inline_bytes;
        let bytes = if small { self.read_fresh(&fresh.ranges) } else { None };
        let logged = bytes.is_some_and(|bytes| self.log_data(&fresh, &bytes));
        if !logged {
            let packs: Vec<_> = fresh.packs.union(&fresh.logged).copied().collect();
            if !packs.is_empty() {
                self.packs.sync(&packs).map_err(|error| self.poison("written data", &error))?;
            }
        }
        let (files, marked) = {
            let mut state = self.log.lock();
            let marked = fresh.packs.is_empty() || mark(&mut state, durable);
            if logged {
                state.fresh.logged.extend(fresh.packs.iter().chain(&fresh.logged));
            }
            (state.log.take_unsynced(), marked)
        };
        for file in &files {
            file.sync().map_err(|error| self.poison("the log", &error))?;
        }
        self.counters.flushes.fetch_add(u64::from(!files.is_empty()), Ordering::Relaxed);
        Ok(Round { durable, marked })
    }

    /// What is to be made durable now. Packs whose bytes the log has already stay listed until somebody syncs packs.
    fn take_fresh(&self, fresh: &mut Fresh, depth: Depth) -> Fresh {
        let mut taken = std::mem::take(fresh);
        if depth == Depth::Log && !taken.sealed && taken.packs.is_empty() {
            fresh.logged = std::mem::take(&mut taken.logged);
        }
        taken
    }

    /// The bytes of these ranges, one after the other; none if they cannot be read or are not what was committed.
    fn read_fresh(&self, ranges: &[FreshData]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for range in ranges {
            let start = bytes.len();
            bytes.resize(start + range.len as usize, 0);
            self.packs.read(range.pack, range.offset, &mut bytes[start..]).ok()?;
            if blob::sums::crc32c(&bytes[start..]) != range.crc {
                return None;
            }
        }
        Some(bytes)
    }

    /// Puts the data into the log. False if the log does not take it; what it took then is harmless.
    fn log_data(&self, fresh: &Fresh, bytes: &[u8]) -> bool {
        let mut state = self.log.lock();
        let LogState { log, buf, .. } = &mut *state;
        let mut rest = bytes;
        fresh.ranges.iter().all(|range| {
            let (data, after) = rest.split_at(range.len as usize);
            rest = after;
            format::begin(buf);
            format::put_data(buf, range.pack, range.offset, data);
            log.append(Kind::Data, buf).is_ok()
        })
    }
}

fn mark(state: &mut LogState, durable: u64) -> bool {
    let LogState { log, buf, .. } = state;
    format::begin(buf);
    buf.extend_from_slice(&durable.to_be_bytes());
    log.append(Kind::Mark, buf).map_err(io_error).is_ok()
}
