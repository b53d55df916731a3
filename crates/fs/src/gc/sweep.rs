//! The sweeper: everything that must wait for a flush, and the garbage collector's rounds.
//!
//! A round has these steps. Condemn the packs without live bytes. Flush, if something waits for a flush or
//! the last one is too old. Then retire the sealed packs, and delete what was released before the flush. Then
//! compact, if there is too much garbage. A removal's space is free within two rounds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::size::MIB;
use base::{BlobId, PackNo, time};
use blob::BlobError;
use meta::PackRow;
use meta::plan::{Op, Refusal};

use super::sweep_state::Waiting;
use crate::errno::Error;
use crate::volume::Core;

/// The interval between rounds.
const ROUND: Duration = Duration::from_millis(250);
/// A flush that frees space is made this long after the last flush.
const SOON: Duration = Duration::from_millis(500);
/// When so many sealed packs wait to be retired, the flush is made at once: each holds a file open.
const RETIRE_MANY: usize = 64;

/// When so many bytes wait to be deleted, the flush is made at once: a fast writer would otherwise fill the
/// disk with them.
const CONDEMNED_MUCH: u64 = 32 * MIB;

impl Core {
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The sweeper's thread.
    pub(crate) fn sweeper(&self) {
        // In a shared volume this would be about the packs of all nodes.
        if !self.is_shared()
            && let Err(error) = self.count_packs()
        {
            self.report(&format!("packs could not be counted, so none are compacted: {error}"));
        }
        let mut complained = false;
        while !self.stopping() {
            let mut done = self.sweep_round(true);
            if !self.is_shared() {
                done = done.and_then(|()| self.trash_round());
            }
            if let Err(error) = &done
                && !complained
            {
                self.report(&format!("space could not be freed; this will be repeated: {error}"));
            }
            complained = done.is_err();
            let commit = self.sweep.commit;
            self.sweep.pause(if complained { Duration::from_secs(1) } else { ROUND.min(commit) });
        }
    }

    /// Runs one round. With `compact` it also moves live bytes; without, it does only what needs no space.
    pub(crate) fn sweep_round(&self, compact: bool) -> Result<(), Error> {
        let _round = self.sweep.round.lock();
        self.judge_touched()?;
        if !compact || self.flush_is_due() {
            self.flush_and_delete()?;
        }
        if let Some(sharing) = self.options.shared.as_ref().filter(|_| compact) {
            return self.shared_round(sharing);
        }
        if compact && self.may_copy() {
            if !self.sweep.is_put_off() {
                self.compact_round()?;
                self.crowd_round()?;
            }
            self.contents_round()?;
            self.held_round(false)?;
        }
        Ok(())
    }

    /// A flush costs every writer a little. So it is made once per
    /// [`Options::commit`](crate::volume::Options), and sooner if space waits for it.
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

    /// Judges the packs that lost live bytes: those without any are condemned.
    pub(crate) fn judge_touched(&self) -> Result<(), Error> {
        if self.is_shared() {
            self.deletions.touch(self.garbage.take_touched());
            return Ok(());
        }
        let mut touched = self.garbage.take_touched();
        while let Some(pack) = touched.last() {
            let judged = if self.packs.is_sealing(*pack) {
                // Some of it may have died after the sealer counted its live bytes.
                self.garbage.touch(&[*pack]);
                Ok(())
            } else if self.packs.has(*pack) {
                // It will be judged when it is sealed: the sealer touches it.
                Ok(())
            } else {
                self.judge(*pack)
            };
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
        let is_damaged = self.packs.is_damaged(pack);
        if live == 0 && is_damaged && row == Some(PackRow::Open) {
            self.forget_open(pack)?;
            self.packs.forget_damage(pack);
            return Ok(());
        }
        let Some(PackRow::Sealed { blob, size }) = row else {
            return Ok(());
        };
        if live > 0 {
            if self.is_counted(pack) {
                self.garbage.seen(pack, size, live);
            }
            return Ok(());
        }
        if self.sweep.is_retiring(pack) || self.resealing.lock().contains(&pack) {
            // Judged again after its file as an open pack is deleted.
            self.garbage.touch(&[pack]);
            return Ok(());
        }
        match self.run(&Op::CondemnPack { pack }) {
            Ok(_) => {
                if self.is_counted(pack) {
                    self.garbage.gone(pack, size);
                }
                self.sweep.condemned(pack, blob, size);
                if is_damaged {
                    self.packs.forget_damage(pack);
                    self.drop_file(pack);
                }
                Ok(())
            }
            // A new reference to it was made just now.
            Err(Error::Refused(Refusal::Busy)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Flushes, then does what waited for the flush.
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

    /// Removes from `waiting` what is done.
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

    /// Deletes a condemned pack whose condemnation was flushed. Its blob is deleted, unless another pack has
    /// the same blob or a published tree holds it; then its row. Returns false while a publication must be
    /// waited for.
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
            if self.is_counted(pack) {
                self.garbage.twice(size, false);
            }
        } else if gone {
            self.counters.freed_bytes.add(u64::from(size));
        }
        Ok(true)
    }

    /// Fails when this volume no longer owns the origin.
    pub(crate) fn may_delete(&self) -> Result<(), Error> {
        let Some(asked) = &self.options.may_delete else { return Ok(()) };
        asked().map_err(|why| Error::Blob(BlobError::Unavailable(why)))
    }

    /// Closes a volume: seals the closed packs, does the pending deletions, flushes everything.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.is_read_only() {
            // Another writer owns the origin: open packs stay open, and nothing is deleted.
            return self.flush();
        }
        let sealed = self.seal_all();
        let swept = self.sweep_round(false);
        self.flush()?;
        sealed.and(swept)
    }
}
