//! When the disk is nearly full: waits for pending deletions before a write is refused.
//!
//! A program that removes a file and writes at once expects to find its space free, as on any filesystem.
//! Here space becomes free only some steps later (inode reaped, pack closed, sealed or forgotten, flush,
//! deletion), and a pack that is being sealed on another disk exists twice for a moment. So a write that
//! would be refused first drives those steps on. It is refused when no step is pending any more, or after
//! [`PATIENCE`]. Before that, the oldest entries of the trash are given up.
//!
//! A step may be pending for long: a pack that cannot be sealed because the disk is full. So a wait that was
//! in vain is not repeated for each write. Until something is removed, others are refused at once for some
//! time.

use std::time::Duration;

use base::time;
use blob::BlobError;

use crate::errno::Error;
use crate::volume::Core;

/// The longest wait before a write is refused because the disk is full.
const PATIENCE: Duration = Duration::from_secs(2);
/// The interval between two checks, while another thread is working.
const LOOK: Duration = Duration::from_millis(5);

impl Core {
    /// Admits a write that was refused, once there is space. The caller must hold no lock.
    ///
    /// # Errors
    /// `Full`, when nothing more will be freed soon.
    pub(crate) fn admit_after_freeing(&self, bytes: u64) -> Result<(), Error> {
        let mut began = time::monotonic();
        let removals = self.sweep.removals();
        let patience = if self.sweep.was_in_vain(removals) { Duration::ZERO } else { PATIENCE };
        self.packs.close_all();
        self.reaper.hurry();
        loop {
            // A round that fails frees nothing. The sweeper reports the error.
            let waits = self.space_is_pending();
            let pending = waits && self.sweep_round(false).is_ok();
            // Asked once more after the last step.
            self.space.met_full();
            match self.space.admit(bytes, || self.parts.packs.space()) {
                Err(BlobError::Full) if pending && began.elapsed() < patience && !self.stopping() => {
                    self.sweep.pause(LOOK);
                }
                // What is given up becomes a pending deletion. If a round failed, that would free nothing.
                Err(BlobError::Full) if !waits && !self.stopping() && self.give_up_trash() => {
                    began = time::monotonic();
                }
                done => {
                    if pending && done.is_err() && !patience.is_zero() {
                        self.sweep.note_in_vain(removals);
                    }
                    return Ok(done?);
                }
            }
        }
    }

    /// Whether any pending step frees space without further removals. The steps are checked in the order in
    /// which work passes through them, and never during a round, which holds what it works on. So nothing is
    /// missed.
    fn space_is_pending(&self) -> bool {
        let _round = self.sweep.between_rounds();
        !self.reaper.is_idle()
            || !self.packs.all_closed_sealed()
            || self.sweep.has_waiting()
            || self.garbage.has_touched()
    }
}
