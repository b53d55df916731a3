//! Near the end of the disk: what is on its way out is waited for before anybody is refused.
//!
//! Whoever removes a file and writes at once expects its room, as on any filesystem; here room comes back some steps later (inode reaped,
//! pack closed, sealed or forgotten, flush, deletion), and a pack being sealed on another disk is there twice for a moment. So a write that
//! would be refused first drives those steps on. It is refused when nothing is under way any more, or when patience ends.

use std::time::Duration;

use base::time;
use blob::BlobError;

use crate::errno::Error;
use crate::volume::Core;

/// Nobody is kept longer than this before being told that the disk is full.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks, while another thread works at it.
const LOOK: Duration = Duration::from_millis(5);

impl Core {
    /// Admits a write that was refused, once there is room. No lock may be held.
    ///
    /// # Errors
    /// `Full`, when nothing more will be freed soon.
    pub(crate) fn admit_after_freeing(&self, bytes: u64) -> Result<(), Error> {
        let began = time::monotonic();
        self.packs.close_all();
        self.reaper.hurry();
        loop {
            // A round that fails frees nothing, and is the sweeper's to report.
            let coming = self.room_is_coming() && self.sweep_round(false).is_ok();
            // Asked once more after the last of it went.
            self.space.met_full();
            match self.space.admit(bytes, || self.parts.packs.space()) {
                Err(BlobError::Full) if coming && began.elapsed() < PATIENCE && !self.stopping() => {
                    self.sweep.pause(LOOK);
                }
                done => return Ok(done?),
            }
        }
    }

    /// Whether anything is under way that frees room without further removals. Asked in the order in which things go from one
    /// step to the next, and not beside a round, which holds what it works on: so nothing is missed.
    fn room_is_coming(&self) -> bool {
        let _round = self.sweep.between_rounds();
        !self.reaper.is_idle()
            || !self.packs.all_closed_sealed()
            || self.sweep.has_waiting()
            || self.garbage.has_touched()
    }
}
