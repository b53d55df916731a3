//! What a volume does in the background, from its opening on.

use std::sync::atomic::Ordering;

use super::{Core, OpenError, Volume};

impl Volume {
    /// Reads what the threads need, and starts them.
    pub(super) fn start_work(&self) -> Result<(), OpenError> {
        let core = &self.core;
        if !core.options.read_only {
            core.names.read_quotas().map_err(OpenError::Store)?;
            core.names.read_trash().map_err(OpenError::Store)?;
            core.first_pack.store(core.next_pack()?.0, Ordering::Release);
            core.adopt_leftovers()?;
            if core.options.shared.as_ref().is_some_and(|sharing| sharing.keeping.is_some()) {
                core.is_behind.store(core.was_left_behind(), Ordering::Release);
                self.start("covey-second", Core::keeper)?;
            }
            self.start("covey-seal", Core::sealer)?;
            self.start("covey-sweep", Core::sweeper)?;
            if core.options.reaps {
                self.keep_orphans()?;
                self.start("covey-reap", Core::reaper)?;
            }
            if !core.is_shared() {
                self.start_deduper()?;
            }
        }
        if !core.options.names_local {
            // Not joined: it may be waiting for a network.
            let core = core.clone();
            base::thread::spawn("covey-prefetch", move || core.prefetcher()).map_err(OpenError::Thread)?;
        }
        Ok(())
    }

    /// See [`super::Options::orphans_stay`].
    fn keep_orphans(&self) -> Result<(), OpenError> {
        if self.core.options.orphans_stay.is_zero() || self.core.is_shared() {
            return Ok(());
        }
        let (core, orphans) = (self.core.clone(), self.core.hold_orphans().map_err(OpenError::Store)?);
        if !orphans.is_empty() {
            let linger = move || core.let_orphans_go(&orphans);
            let thread = base::thread::spawn("covey-linger", linger).map_err(OpenError::Thread)?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    fn start_deduper(&self) -> Result<(), OpenError> {
        if self.core.options.local {
            return self.start("covey-dedup", Core::deduper);
        }
        // Not joined: it may be waiting for a network.
        let deduper = self.core.clone();
        base::thread::spawn("covey-dedup", move || deduper.deduper()).map(drop).map_err(OpenError::Thread)
    }

    fn start(&self, name: &str, work: fn(&Core)) -> Result<(), OpenError> {
        let core = self.core.clone();
        let thread = base::thread::spawn(name, move || work(&core)).map_err(OpenError::Thread)?;
        self.threads.lock().push(thread);
        Ok(())
    }
}
