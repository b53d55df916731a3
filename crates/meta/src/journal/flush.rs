//! A flush: everything committed before it, and the data it mentions, survives a power cut.
//!
//! One thread leads. Threads that arrive meanwhile wait for it, and the next leader does the work of all of
//! them at once. The leader takes the list of fresh data. It either puts those bytes into the log or syncs
//! their packs, appends a mark, and syncs the log. Then a second mark records what is durable now. It is not
//! synced by itself, but it survives a kill of the process. So damage to acknowledged records can be
//! distinguished from a torn tail. A caller that arrives after the list was taken waits for the next round.

use std::sync::atomic::Ordering;

use super::format::{self, Kind, Mark};
use super::{Fresh, LogState, Shared, io_error};
use crate::store::{FreshData, StoreError};

/// How thorough a flush is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Data may be durable in the log only.
    Log,
    /// All data is durable in its packs, because rows in SQLite must not depend on the log.
    Packs,
}

/// A mark's record.
const MARK_BYTES: u64 = format::RECORD_HEADER as u64 + 16;

/// The result of a round.
struct Round {
    /// The last record that is durable, with its data.
    durable: u64,
    /// The log holds a mark that says so, or needs none.
    marked: bool,
}

impl Shared {
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        self.alive()?;
        let target = self.log.lock().committed;
        if self.flush_to(target, Depth::Log)? {
            return Ok(());
        }
        // The log has no room for the mark that allows packs to be retired after this flush. Rows in SQLite
        // need no mark.
        self.drain_all()
    }

    /// Makes the records up to `target` durable. Returns false if the log could not take the mark.
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
        let before = flushing.durable;
        drop(flushing);
        let round = self.lead(depth, before);
        let mut flushing = self.flushing.lock();
        flushing.led = false;
        // Without the mark, a crash may cut what has been made durable. Only rows in SQLite need none.
        if let Ok(round) = &round
            && round.marked
        {
            flushing.durable = flushing.durable.max(round.durable);
        }
        drop(flushing);
        self.flushed.notify_all();
        Ok(round?.marked)
    }

    /// Does one round. `before` is the last record that is durable already.
    fn lead(&self, depth: Depth, before: u64) -> Result<Round, StoreError> {
        let (fresh, durable, is_news) = {
            let mut state = self.log.lock();
            let LogState { log, fresh, committed, .. } = &mut *state;
            (self.take_fresh(fresh, depth), log.seq(), *committed > before)
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
        if !is_news {
            // Nothing was committed since, so no data is fresh. Only marks are unsynced, and they need no
            // sync.
            return Ok(Round { durable, marked: true });
        }
        let (files, marked, last) = {
            let mut state = self.log.lock();
            let needs_none = fresh.packs.is_empty() && !state.unmarked;
            let marked = needs_none || mark(&mut state, Mark { data: durable, synced: 0 });
            state.unmarked = !marked;
            if logged {
                state.fresh.logged.extend(fresh.packs.iter().chain(&fresh.logged));
            }
            (state.log.take_unsynced(), marked, state.log.seq())
        };
        for file in &files {
            file.sync().map_err(|error| self.poison("the log", &error))?;
        }
        self.counters.flushes.fetch_add(u64::from(!files.is_empty()), Ordering::Relaxed);
        self.say_synced(Mark { data: durable, synced: last });
        Ok(Round { durable, marked })
    }

    /// Appends a mark with what is durable. If there is no room for it, the next mark says it too.
    fn say_synced(&self, said: Mark) {
        let mut state = self.log.lock();
        if state.log.has_room(MARK_BYTES) {
            let begun = state.log.begun();
            mark(&mut state, said);
            let spare = state.log.begun() != begun && state.log.wants_spare(false);
            drop(state);
            if spare {
                self.wake(true);
            }
        }
    }

    /// Takes what is to be made durable now. Packs whose bytes are in the log stay listed until a flush syncs
    /// packs.
    fn take_fresh(&self, fresh: &mut Fresh, depth: Depth) -> Fresh {
        let mut taken = std::mem::take(fresh);
        if depth == Depth::Log && !taken.sealed && taken.packs.is_empty() {
            fresh.logged = std::mem::take(&mut taken.logged);
        }
        taken
    }

    /// The bytes of these ranges, concatenated; none if they cannot be read or differ from what was
    /// committed.
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

    /// Puts the data into the log. False if the log cannot take all of it; the part that it took is harmless.
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

fn mark(state: &mut LogState, mark: Mark) -> bool {
    let LogState { log, buf, .. } = state;
    format::begin(buf);
    format::put_mark(buf, mark);
    log.append(Kind::Mark, buf).map_err(io_error).is_ok()
}
