//! fsync(2) and syncfs(2). One flush makes everything committed before it durable, for all callers that wait.
//!
//! Where fsync includes the origin, the open packs are sealed for it, and the call waits for the uploads. A
//! pack closed in this way may be small; the program that asked for the fsync accepts that. Where another
//! node is enough, see [`crate::shared::keeping`].

use std::io;
use std::time::Duration;

use base::phase::{self, Phase};
use base::{Ino, time};
use blob::BlobError;
use meta::store::StoreError;

use crate::errno::Error;
use crate::gc::fresh::When;
use crate::volume::{Core, Fsync, Volume};

/// The interval between two checks of the packs that the previous run left.
const RESEALING: Duration = Duration::from_millis(20);

impl Core {
    pub(crate) fn fsync(&self, ino: Ino) -> Result<(), Error> {
        self.sync()?;
        if self.parts.store.take_lost(ino) {
            let why = format!("changes of {ino:?} were lost: this node could not reach the database in time");
            return Err(StoreError::Fenced(why).into());
        }
        self.fresh.synced(ino);
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        if self.options.read_only {
            return Ok(());
        }
        self.flush()?;
        match self.options.fsync {
            Fsync::Here => Ok(()),
            Fsync::Origin(patience) => self.settle(patience),
            Fsync::Peer(patience) => {
                match self.options.shared.as_ref().and_then(|sharing| sharing.keeping.as_ref()) {
                    Some(keeping) => self.settle_near(keeping, patience),
                    None => self.settle(patience),
                }
            }
        }
    }

    /// Seals all open packs.
    fn seal_now(&self, patience: Duration) -> Result<(), Error> {
        let until = time::monotonic() + patience;
        if let Some(damaged) = self.packs.any_quarantined() {
            let what = format!(
                "open pack {damaged} is damaged on this disk and is no blob; `covey fsck` says which files it holds"
            );
            return Err(BlobError::Io(io::Error::new(io::ErrorKind::InvalidData, what)).into());
        }
        let packs = self.packs.close_and_name();
        let mut sealed = packs.is_empty() || self.packs.wait_sealed(&packs, until);
        // Packs that the previous run sealed and did not retire are uploaded again, in the background.
        while sealed && !self.resealing.lock().is_empty() {
            sealed = time::monotonic() < until && !self.stopping();
            self.sweep.pause(RESEALING);
        }
        if sealed {
            return Ok(());
        }
        let seconds = patience.as_secs();
        Err(BlobError::Unavailable(format!("open packs could not be sealed within {seconds} s")).into())
    }

    pub(crate) fn settle(&self, patience: Duration) -> Result<(), Error> {
        let began = time::monotonic();
        let _phase = phase::enter(Phase::Origin);
        self.seal_now(patience)?;
        let waited = time::monotonic().saturating_duration_since(began);
        Ok(self.parts.origin.settle(patience.saturating_sub(waited))?)
    }
}

impl Volume {
    /// Seals all open packs, so that all bytes written so far are blobs that were handed to the origin.
    ///
    /// # Errors
    /// `Unavailable` when that takes longer than `patience`, or the error of a pack that could not be sealed.
    pub fn seal_now(&self, patience: Duration) -> Result<(), Error> {
        if self.core.options.read_only {
            return Ok(());
        }
        self.core.dedup(When::Now, patience)?;
        self.core.seal_now(patience)
    }
}
