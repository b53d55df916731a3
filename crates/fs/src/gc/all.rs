//! Collection on request: does now everything that would be done later in the background.

use std::time::Duration;

use base::time;
use blob::BlobError;

use super::fresh::When;
use super::{MERGE_COUNT, Stored};
use crate::errno::{Errno, Error};
use crate::volume::{Core, Volume};

/// Packs with fewer live bytes than this percentage are compacted.
const WORTH: u32 = 50;
/// The longest wait for deletions, which other threads do.
const PATIENCE: Duration = Duration::from_secs(600);

/// The result of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Bytes of blobs and packs deleted.
    pub freed_bytes: u64,
    /// Bytes copied to free them.
    pub moved_bytes: u64,
    /// Bytes stored now.
    pub stored_bytes: u64,
    /// Of these, dead bytes.
    pub garbage_bytes: u64,
    /// Sealed packs now.
    pub packs: u64,
    /// In a shared volume: bytes that nothing refers to, and that are deleted when they have waited long
    /// enough ([`crate::shared::Sharing::delay`]).
    pub waiting_bytes: u64,
}

impl Volume {
    /// Stores equal pages once, frees everything that nothing refers to, compacts packs that are more than
    /// half dead, and merges small packs. `progress` is called now and then with the figures so far. Requests
    /// are answered meanwhile.
    ///
    /// # Errors
    /// `EROFS`; or an error of a read, write or deletion.
    pub fn collect(&self, progress: &mut dyn FnMut(Collected)) -> Result<Collected, Errno> {
        if self.core.is_read_only() {
            return Err(Errno::EROFS);
        }
        let done = self.core.collect(progress);
        done.map_err(|error| self.core.answer("collection", base::Ino::ROOT, error))
    }
}

impl Core {
    fn collect(&self, progress: &mut dyn FnMut(Collected)) -> Result<Collected, Error> {
        if let Some(sharing) = &self.options.shared {
            return self.collect_shared(sharing, progress);
        }
        let (freed, moved) = (self.counters.freed_bytes.get(), self.counters.moved_bytes.get());
        let now = |core: &Core| {
            let Stored { stored_bytes, twice_bytes, garbage_bytes, packs, .. } = core.garbage.totals();
            let stored_bytes = stored_bytes.saturating_sub(twice_bytes);
            let freed_bytes = core.counters.freed_bytes.get() - freed;
            let moved_bytes = core.counters.moved_bytes.get() - moved;
            Collected { freed_bytes, moved_bytes, stored_bytes, garbage_bytes, packs, waiting_bytes: 0 }
        };
        let began = time::monotonic();
        let patient = || time::monotonic().saturating_duration_since(began) < PATIENCE && !self.stopping();
        while !(self.reaper.is_idle() && self.garbage.totals().counted) && patient() {
            progress(now(self));
            self.sweep.pause(Duration::from_millis(20));
        }
        self.dedup(When::All, PATIENCE)?;
        self.packs.close_all();
        while !self.packs.all_closed_sealed() && patient() {
            progress(now(self));
            self.sweep.pause(Duration::from_millis(20));
        }
        // Moved bytes go to packs of their own, which are sealed at the end.
        let (mut before, mut is_away) = (Vec::new(), false);
        loop {
            self.sweep_round(false)?;
            progress(now(self));
            let mut packs = self.garbage.emptiest(MERGE_COUNT, WORTH);
            packs.extend(self.garbage.to_merge());
            // A pack that is chosen twice could not be moved.
            if packs.is_empty() || packs == before || !self.may_copy() || !patient() {
                break;
            }
            is_away = !self.compact(&packs)? && self.sweep.is_put_off();
            before = packs;
        }
        self.packs.close_all();
        self.sweep_contents()?;
        self.held_round(true)?;
        // One round condemns what is empty now, the next deletes it.
        self.sweep_round(false)?;
        self.sweep_round(false)?;
        if is_away {
            let why = "the origin does not answer, so its packs could not be compacted";
            return Err(BlobError::Unavailable(why.to_owned()).into());
        }
        Ok(now(self))
    }
}
