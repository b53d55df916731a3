//! Volumes are mounted again at their places after the daemon of their source has ended: with the container
//! of an earlier driver, or by itself.
//!
//! The driver looks at every source from time to time. A bind mount stays with the mount that it was made
//! of, so all volumes of the source come back, at all of their places, and not only the one that is used
//! next.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use node::log;

use crate::Driver;
use crate::places;
use crate::records::{Staged, Target};
use crate::refuse::Answer;
use crate::secrets::Secrets;

/// How long a source or a volume that cannot be mounted again is left alone.
const PAUSE: Duration = Duration::from_secs(60);

/// Until when sources and volumes that could not be mounted again are left alone.
pub type Pauses = BTreeMap<String, Instant>;

impl Driver {
    /// Makes again what records say and is not there: the mounts of daemons that ended with an earlier
    /// driver.
    pub(crate) fn recover(&self) {
        for (_, staged) in self.all_staged() {
            let again = || {
                let _alone = self.alone(&staged.id)?;
                self.show_again(&staged.id)
            };
            if is_to_be_there(&staged)
                && let Err(status) = again()
            {
                log::warn(&format!("{} is not mounted again: {}", staged.id, status.message()));
            }
        }
    }

    /// Makes again the mounts of daemons that died while the driver lives. What a call works on, and what
    /// failed some moments ago, is left for later.
    pub(crate) fn recover_lost(&self) {
        let mut pauses = self.pauses.lock();
        let now = base::time::monotonic();
        pauses.retain(|_, until| *until > now);
        let mut lost = BTreeMap::new();
        for (_, staged) in self.all_staged() {
            let key = staged.source.key();
            if pauses.contains_key(&key) || pauses.contains_key(&staged.id) || !is_to_be_there(&staged) {
                continue;
            }
            let Some(_alone) = self.alone_at_once(&staged.id) else { continue };
            let is_lost = lost.entry(key.clone()).or_insert_with_key(|key| self.mounts.is_lost(key));
            if !*is_lost && !self.shows_another(&staged, &key) {
                continue;
            }
            match self.show_again(&staged.id) {
                Ok(()) => *is_lost = false,
                Err(status) => {
                    log::warn(&format!("{} is not mounted again: {}", staged.id, status.message()));
                    let failed = if self.mounts.is_lost(&key) { key } else { staged.id };
                    pauses.insert(failed, base::time::monotonic() + PAUSE);
                }
            }
        }
    }

    fn all_staged(&self) -> Vec<(String, Staged)> {
        self.staged.all::<Staged>().unwrap_or_else(|status| {
            log::error(&format!("the records cannot be read: {}", status.message()));
            Vec::new()
        })
    }

    /// Shows a volume at its places, which no other call works on.
    fn show_again(&self, id: &str) -> Answer<()> {
        let Some(staged) = self.staged.find::<Staged>(id)? else { return Ok(()) };
        let held = self.stage_it(&staged, &Secrets::default())?;
        let shown = |target: &Target| self.show(&staged, held.place(), &target.path, target.read_only);
        let places =
            staged.targets.iter().filter(|target| target.path.exists() || places::at(&target.path).is_some());
        // One that fails keeps no other one away.
        places.map(shown).fold(Ok(()), Result::and)
    }

    /// Whether a place of the volume shows a mount that was replaced.
    fn shows_another(&self, staged: &Staged, key: &str) -> bool {
        let Some(mount) = places::at(&self.mounts.place(key)) else { return true };
        let places = staged.targets.iter().map(|target| &target.path).chain([&staged.staging]);
        places
            .filter_map(|place| places::at(place))
            .any(|there| places::is_ours(&there) && there.dev != mount.dev)
    }
}

/// Whether the volume's places can be there. After a restart of the node they are gone, and nothing is to be
/// made.
fn is_to_be_there(staged: &Staged) -> bool {
    staged.staging.parent().is_some_and(Path::exists)
}
