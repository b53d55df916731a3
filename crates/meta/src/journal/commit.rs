//! A commit: look up, check, write once.
//!
//! Rows are looked up before the log's lock is taken, and once more under it if another commit came in
//! between. The record is written before the overlay changes. So nobody reads what a kill could take back,
//! and a refused write leaves nothing to undo.

use std::sync::atomic::Ordering;

use base::Deadline;
use base::size::GIB;

use super::format::{self, Kind};
use super::overlay::Size;
use super::{Fresh, LogGuard, LogState, Shared, Stuck, io_error};
use crate::engine::{Final, read_keys, resolve};
use crate::key::{Key, tags};
use crate::record::PackRow;
use crate::store::{Commit, CommitError, Expect, FreshData, StoreError, in_time};

/// The greatest length of a record, in bytes.
const RECORD_MAX: u64 = GIB;
/// With more ranges than this, a flush syncs packs, however small the ranges are.
const RANGES_MAX: usize = 4096;
/// A larger buffer is freed after use.
const BUFFER_KEPT: usize = 1 << 20;

impl Fresh {
    fn note(&mut self, fresh: &[FreshData], rows: &[Final], inline_bytes: u64) {
        for data in fresh {
            self.bytes += u64::from(data.len);
            self.packs.insert(data.pack);
            if self.bytes <= inline_bytes && self.ranges.len() < RANGES_MAX {
                self.ranges.push(*data);
            } else {
                // Too much for the log: packs will be synced, so the ranges are no longer needed.
                self.bytes = self.bytes.max(inline_bytes + 1);
                self.ranges = Vec::new();
            }
        }
        self.sealed |= rows.iter().any(|(key, value)| {
            key.tag() == tags::PACK
                && value.as_deref().is_some_and(|row| PackRow::decode(row) != Ok(PackRow::Open))
        });
    }
}

impl Shared {
    pub(super) fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        let mut commit = commit;
        if self.tight.load(Ordering::Relaxed) && grows(&commit) && !self.is_eased() {
            // So that the thread checks for room again soon, even if nobody asks.
            self.wake(false);
            return Err(StoreError::Full.into());
        }
        loop {
            self.alive()?;
            match self.try_commit(commit) {
                Ok(()) => return Ok(()),
                Err(NotYet::No(error)) => {
                    if matches!(error, CommitError::Conflict { .. }) {
                        self.counters.conflicts.fetch_add(1, Ordering::Relaxed);
                    }
                    return Err(error);
                }
                Err(NotYet::Room(back)) => commit = *back,
            }
            self.wait_for_room(estimate(&commit))?;
            in_time()?;
        }
    }

    fn try_commit(&self, commit: Commit) -> Result<(), NotYet> {
        let _inside = self.gate.enter();
        let keys: Vec<&Key> = read_keys(&commit).collect();
        let (mut rows, version) = self.rows(&keys)?;
        let mut state = self.log.lock();
        // Checked under the log's lock: after a failed flush no later commit may be acknowledged.
        self.alive()?;
        let (now, size, draining) = {
            let overlay = self.overlay.read();
            (overlay.version(), overlay.active_size(), overlay.draining().is_some())
        };
        if now != version {
            rows = self.rows(&keys)?.0;
        }
        drop(keys);
        // Check for room while the commit is still whole: a retry needs all of it.
        let half_full = self.is_half_full(size);
        if (half_full && draining) || !state.log.has_room(estimate(&commit)) {
            return Err(NotYet::Room(Box::new(commit)));
        }
        if !draining && (half_full || state.log.used_bytes() > self.options.log_bytes / 2) {
            self.rotate(&state);
        }
        let mut commit = commit;
        let fresh = std::mem::take(&mut commit.fresh);
        let mut rows = rows.into_iter();
        let writes =
            resolve(commit, |_| Ok(rows.next().flatten()), |range| Ok(!self.range(range, 1)?.is_empty()))?;
        if writes.is_empty() && fresh.is_empty() {
            return Ok(());
        }
        let begun = state.log.begun();
        self.write_record(&mut state, &writes, &fresh)?;
        let spare = state.log.begun() != begun && state.log.wants_spare(false);
        state.fresh.note(&fresh, &writes, self.options.inline_bytes);
        self.overlay.write().apply(writes);
        drop(state);
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        self.wake(spare);
        Ok(())
    }

    fn write_record(
        &self,
        state: &mut LogGuard<'_>,
        rows: &[Final],
        fresh: &[FreshData],
    ) -> Result<(), StoreError> {
        let LogState { log, buf, committed, .. } = &mut **state;
        format::begin(buf);
        format::put_commit(buf, rows, fresh);
        if buf.len() as u64 > RECORD_MAX {
            *buf = Vec::new();
            return Err(StoreError::Unavailable(
                "one operation is larger than the log takes (1 GiB)".to_owned(),
            ));
        }
        // The bound was checked before. This record may exceed it by the error of the estimate.
        let done = log.append(Kind::Commit, buf);
        if buf.capacity() > BUFFER_KEPT {
            *buf = Vec::new();
        }
        done.map(|seq| *committed = seq).map_err(|error| {
            let error = io_error(error);
            if matches!(error, StoreError::Full) {
                // A removal needs room in the log too. The thread drains, which frees segments.
                self.wake(true);
            }
            error
        })
    }

    /// Whether *active* holds its share of the overlay's limit.
    fn is_half_full(&self, active: Size) -> bool {
        active.rows >= self.options.overlay_rows / 2 || active.bytes >= self.options.overlay_bytes / 2
    }

    /// Makes what was committed so far the generation to drain, unless there is one. The caller holds the
    /// log's lock.
    pub(super) fn rotate(&self, state: &LogState) {
        if self.overlay.write().rotate(state.log.seq()) {
            self.wake(true);
        }
    }

    /// Whether there is room for a record of `len` bytes and its rows. If not, the error says whether a
    /// generation is being drained. The caller holds the log's lock.
    fn room(&self, state: &LogState, len: u64) -> Result<(), bool> {
        let overlay = self.overlay.read();
        let draining = overlay.draining().is_some();
        let overlay_full = draining && self.is_half_full(overlay.active_size());
        if overlay_full || !state.log.has_room(len) { Err(draining) } else { Ok(()) }
    }

    /// Waits until there is room for a record of `len` bytes and its rows, at most until the time of this
    /// thread's work is over. The caller is not inside the gate and holds no lock.
    fn wait_for_room(&self, len: u64) -> Result<(), StoreError> {
        self.counters.waits.fetch_add(1, Ordering::Relaxed);
        if !self.options.background {
            return self.make_room(len);
        }
        let deadline = Deadline::current();
        let mut state = self.log.lock();
        while let Err(draining) = self.room(&state, len) {
            self.alive()?;
            in_time()?;
            if let Some(stuck) = &state.stuck {
                return Err(Stuck::error(stuck));
            }
            if !draining {
                self.rotate(&state);
            }
            self.wake(true);
            // Without a deadline this is a wait without end.
            self.room.wait_for(&mut state, deadline.left());
        }
        Ok(())
    }

    /// Does what the thread would do for a waiting commit.
    fn make_room(&self, len: u64) -> Result<(), StoreError> {
        let spares = self.make_spares();
        if self.room(&self.log.lock(), len).is_ok() {
            return Ok(());
        }
        self.drain_all()?;
        spares.or_else(|_| self.make_spares())
    }
}

/// Why a commit did not happen.
enum NotYet {
    /// The commit was refused.
    No(CommitError),
    /// There is no room for it. Returned unchanged for a retry.
    Room(Box<Commit>),
}

impl<E: Into<CommitError>> From<E> for NotYet {
    fn from(error: E) -> Self {
        NotYet::No(error.into())
    }
}

/// Whether the commit only adds: new rows or new data, and nothing removed.
fn grows(commit: &Commit) -> bool {
    let put = |key: &Key| commit.puts.iter().any(|(put, _)| put == key);
    let is_new = |(key, expected): &(Key, Expect)| *expected == Expect::Absent && put(key);
    commit.dels.is_empty() && (!commit.fresh.is_empty() || commit.checks.iter().any(is_new))
}

/// The approximate length of the commit's record in bytes, never too low.
fn estimate(commit: &Commit) -> u64 {
    let key = |key: &Key| 6 + key.as_bytes().len();
    let puts: usize = commit.puts.iter().map(|(k, value)| key(k) + value.len()).sum();
    let dels: usize = commit.dels.iter().map(key).sum();
    let adds: usize = commit.adds.iter().map(|(k, _)| key(k) + 8).sum();
    let maxs: usize = commit.maxs.iter().map(|(k, _)| key(k) + 8).sum();
    (format::RECORD_HEADER + 8 + puts + dels + adds + maxs + 20 * commit.fresh.len()) as u64
}
