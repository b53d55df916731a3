//! The sweeper: everything that must wait for a flush, and the collector's rounds.
//!
//! A round: condemn what has no live byte; flush, if something waits for it or the last is a second ago; then retire what was sealed, delete what
//! was let go of before the flush; then compact, if there is too much dead. A removal's space is free within two rounds.

use std::time::{Duration, Instant};

use base::size::MIB;
use base::{BlobId, PackNo, time};
use blob::BlobError;
use meta::PackRow;
use meta::plan::{Op, Refusal};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::errno::Error;
use crate::volume::Core;

/// Time between rounds.
const ROUND: Duration = Duration::from_millis(250);
/// A flush for the sake of freeing space is made this long after the last one.
const SOON: Duration = Duration::from_millis(500);
/// So many sealed packs are retired without waiting any longer: each holds a file open.
const RETIRE_MANY: usize = 64;

/// So many bytes that could go are let go of without waiting any longer: a quick writer would fill a disk with them.
const CONDEMNED_MUCH: u64 = 32 * MIB;

/// What waits for the next flush.
#[derive(Default)]
struct Waiting {
    /// Sealed packs that still have their open names.
    retire: Vec<PackNo>,
    /// Open packs whose rows are gone.
    discard: Vec<PackNo>,
    /// Blobs whose packs are condemned.
    condemned: Vec<(PackNo, BlobId, u32)>,
    stop: bool,
}

impl Waiting {
    fn condemned_bytes(&self) -> u64 {
        self.condemned.iter().map(|(_, _, size)| u64::from(*size)).sum()
    }

    fn is_empty(&self) -> bool {
        self.retire.is_empty() && self.discard.is_empty() && self.condemned.is_empty()
    }
}

/// The sweeper's state.
pub(crate) struct Sweep {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    commit: Duration,
    last_flush: Mutex<Instant>,
    /// How much had been written by users at the last round.
    seen_written: AtomicU64,
    /// Packs forgotten since contents were last gone through.
    pub(crate) forgotten: AtomicU64,
    /// Held through a round: rounds are one after another, whoever makes them.
    round: Mutex<()>,
}

impl Sweep {
    pub(crate) fn new(commit: Duration) -> Sweep {
        Sweep {
            waiting: Mutex::default(),
            wake: Condvar::new(),
            commit: commit.max(Duration::from_millis(10)),
            last_flush: Mutex::new(time::monotonic()),
            seen_written: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            round: Mutex::default(),
        }
    }

    pub(crate) fn retire(&self, pack: PackNo) {
        self.waiting.lock().retire.push(pack);
    }

    pub(crate) fn discard(&self, pack: PackNo) {
        self.waiting.lock().discard.push(pack);
    }

    pub(crate) fn condemned(&self, pack: PackNo, blob: BlobId, size: u32) {
        self.waiting.lock().condemned.push((pack, blob, size));
    }

    /// No round is made while this is held.
    pub(crate) fn between_rounds(&self) -> MutexGuard<'_, ()> {
        self.round.lock()
    }

    /// Whether anything waits for a flush.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Whether the pack was sealed and its open name is still there.
    fn is_retiring(&self, pack: PackNo) -> bool {
        self.waiting.lock().retire.contains(&pack)
    }

    /// Whether nothing was written since this was last asked; `written` is how much was, ever.
    pub(crate) fn nobody_writes(&self, written: u64) -> bool {
        self.seen_written.swap(written, Ordering::AcqRel) == written
    }

    pub(crate) fn stop(&self) {
        self.waiting.lock().stop = true;
        self.wake.notify_all();
    }

    /// Ends a wait.
    pub(crate) fn wake(&self) {
        self.wake.notify_all();
    }

    /// Waits, unless told to stop.
    pub(crate) fn pause(&self, time: Duration) {
        let mut waiting = self.waiting.lock();
        if !waiting.stop {
            self.wake.wait_for(&mut waiting, time);
        }
    }
}

impl Core {
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The sweeper's thread.
    pub(crate) fn sweeper(&self) {
        if let Err(error) = self.count_packs() {
            self.report(&format!("packs could not be counted, so none are compacted: {error}"));
        }
        let mut complained = false;
        while !self.stopping() {
            let done = self.sweep_round(true);
            if let Err(error) = &done
                && !complained
            {
                self.report(&format!("space could not be freed; it is tried again: {error}"));
            }
            complained = done.is_err();
            let commit = self.sweep.commit;
            self.sweep.pause(if complained { Duration::from_secs(1) } else { ROUND.min(commit) });
        }
    }

    /// One round. `compact`: also moves live bytes; without it, only what costs no room.
    pub(crate) fn sweep_round(&self, compact: bool) -> Result<(), Error> {
        let _round = self.sweep.round.lock();
        self.judge_touched()?;
        if !compact || self.flush_is_due() {
            self.flush_and_delete()?;
        }
        if compact && self.may_copy() {
            if self.options.near {
                self.dedup_round()?;
            }
            self.compact_round()?;
            self.crowd_round()?;
            self.contents_round()?;
            self.held_round(false)?;
        }
        Ok(())
    }

    /// A flush costs every writer a little, so it is made once in [`Options::commit`](crate::volume::Options), sooner if space waits for it.
    fn flush_is_due(&self) -> bool {
        let last = *self.sweep.last_flush.lock();
        let since = time::monotonic().saturating_duration_since(last);
        let waiting = self.sweep.waiting.lock();
        let commit = self.sweep.commit;
        (since >= commit && (self.dirty.load(Ordering::Acquire) || !waiting.is_empty()))
            || (since >= commit.min(SOON) && !(waiting.discard.is_empty() && waiting.condemned.is_empty()))
            || waiting.retire.len() >= RETIRE_MANY
            || waiting.condemned_bytes() >= CONDEMNED_MUCH
    }

    /// Packs that lost live bytes: those without any are condemned.
    pub(crate) fn judge_touched(&self) -> Result<(), Error> {
        let mut touched = self.garbage.take_touched();
        while let Some(pack) = touched.last() {
            // An open pack is judged when it is sealed, which touches it again.
            let judged = if self.packs.has(*pack) { Ok(()) } else { self.judge(*pack) };
            if judged.is_err() {
                self.garbage.touch(&touched);
                return judged;
            }
            touched.pop();
        }
        Ok(())
    }

    fn judge(&self, pack: PackNo) -> Result<(), Error> {
        let row = self.pack_row(pack)?;
        let live = self.names.pack_live(pack)?;
        if row == Some(PackRow::Open) && live == 0 && self.packs.is_aside(pack) {
            self.packs.not_aside(pack);
            return self.forget_open(pack);
        }
        let Some(PackRow::Sealed { blob, size }) = row else {
            return Ok(());
        };
        if live > 0 {
            self.garbage.seen(pack, size, live);
            return Ok(());
        }
        if self.sweep.is_retiring(pack) || self.resealing.lock().contains(&pack) {
            // After its open name has gone.
            self.garbage.touch(&[pack]);
            return Ok(());
        }
        match self.run(&Op::CondemnPack { pack }) {
            Ok(_) => {
                self.garbage.gone(pack, size);
                self.sweep.condemned(pack, blob, size);
                Ok(())
            }
            // Referred to again, just now.
            Err(Error::Refused(Refusal::Busy)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Flushes; then does what waited for it.
    fn flush_and_delete(&self) -> Result<(), Error> {
        let mut waiting = {
            let mut waiting = self.sweep.waiting.lock();
            Waiting {
                retire: std::mem::take(&mut waiting.retire),
                discard: std::mem::take(&mut waiting.discard),
                condemned: std::mem::take(&mut waiting.condemned),
                stop: false,
            }
        };
        let done = self.delete_after_flush(&mut waiting);
        let mut left = self.sweep.waiting.lock();
        left.retire.append(&mut waiting.retire);
        left.discard.append(&mut waiting.discard);
        left.condemned.append(&mut waiting.condemned);
        done
    }

    /// What is done is taken out of `waiting`.
    fn delete_after_flush(&self, waiting: &mut Waiting) -> Result<(), Error> {
        self.flush()?;
        *self.sweep.last_flush.lock() = time::monotonic();
        let deleted = self.delete_flushed(waiting);
        // Retired last: an origin that does not answer must not keep space from being freed.
        if !waiting.retire.is_empty() {
            self.parts.packs.retire(&waiting.retire)?;
            waiting.retire.clear();
        }
        deleted
    }

    fn delete_flushed(&self, waiting: &mut Waiting) -> Result<(), Error> {
        while let Some(&pack) = waiting.discard.last() {
            self.parts.packs.discard(pack)?;
            waiting.discard.pop();
        }
        while let Some(&(pack, blob, size)) = waiting.condemned.last() {
            if !self.delete_condemned(pack, blob, size)? {
                break;
            }
            waiting.condemned.pop();
        }
        Ok(())
    }

    /// A condemned pack whose condemnation was flushed: its blob goes, unless another pack is the same blob or a published tree holds it;
    /// its row goes after it. False while a publication has to be waited for.
    fn delete_condemned(&self, pack: PackNo, blob: BlobId, size: u32) -> Result<bool, Error> {
        let whole = self.blobs.write();
        if self.publishing.is_paused() {
            return Ok(false);
        }
        let last = self.names.blob_packs(&blob)?.iter().all(|other| *other == pack);
        let gone = last && !self.names.is_held(&blob)?;
        if gone {
            self.may_delete()?;
            self.parts.origin.remove(&blob)?;
        }
        self.run(&Op::ForgetPack { pack })?;
        self.sweep.forgotten.fetch_add(1, Ordering::AcqRel);
        drop(whole);
        self.table.drop(pack);
        if !last {
            self.garbage.twice(size, false);
        } else if gone {
            self.counters.freed_bytes.add(u64::from(size));
        }
        Ok(true)
    }

    /// An error when the origin is no longer this volume's.
    pub(crate) fn may_delete(&self) -> Result<(), Error> {
        let Some(asked) = &self.options.may_delete else { return Ok(()) };
        asked().map_err(|why| Error::Blob(BlobError::Unavailable(why)))
    }

    /// The end of a volume: what is closed is sealed, what waits is done, everything is flushed.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.is_read_only() {
            // The origin is another writer's: open packs stay open, and what waits to be deleted stays.
            return self.flush();
        }
        let sealed = self.seal_all();
        let swept = self.sweep_round(false);
        self.flush()?;
        sealed.and(swept)
    }
}
