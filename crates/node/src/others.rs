//! What still has a mount that is gone from here: other mount namespaces, and other places in this one.
//!
//! A container that was started while a volume was mounted has a copy of the mount. Its daemon goes on, and keeps the volume, until the last copy is
//! gone; so the copies are named, and `--force` ends the connection that all of them share.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use api::error::{Context, Failure, Result};
use base::Deadline;
use fuse::mount::{Elsewhere, Mounted, abort, elsewhere, hand_over};

/// How long what programs wrote through a copy is waited for before it is ended.
const HAND_OVER: Duration = Duration::from_secs(10);
/// So many are named.
const NAMED: usize = 5;

/// What still has a mount.
pub struct Others {
    /// In other mount namespaces.
    away: Vec<Elsewhere>,
    /// In this one, at other places.
    here: Vec<Mounted>,
}

impl Others {
    /// Of the mount with this device number.
    pub fn of_device(dev: u64) -> Others {
        Others::of(|mount| mount.dev == dev)
    }

    /// Of a volume's folder, which is mounted nowhere here.
    pub fn of_volume(volume: &Path) -> Others {
        Others::of(|mount| Path::new(&mount.source) == volume)
    }

    /// Nothing.
    pub fn none() -> Others {
        Others { away: Vec::new(), here: Vec::new() }
    }

    fn of(wanted: impl Fn(&Mounted) -> bool) -> Others {
        let wanted = |mount: &Mounted| crate::mounts::is_covey(mount) && wanted(mount);
        let here = crate::trust::mounts().into_iter().filter(|mount| wanted(mount)).collect();
        Others { away: elsewhere(wanted), here }
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.away.is_empty() && self.here.is_empty()
    }

    /// Names them, and how they are ended; `name`: the volume's folder, or where the mount was.
    pub fn explain(&self, failure: Failure, name: &Path) -> Failure {
        let mut failure = failure;
        for Elsewhere { mount, pid, name } in self.away.iter().take(NAMED) {
            failure = failure.why(format!(
                "another mount namespace (a container, perhaps) has it mounted at {}: that of process {pid} ({name})",
                mount.path.display()
            ));
        }
        if self.away.len() > NAMED {
            failure = failure.why(format!("and {} more mount namespaces", self.away.len() - NAMED));
        }
        for mount in self.here.iter().take(NAMED) {
            failure = failure.why(format!("it is mounted at {} too", mount.path.display()));
        }
        if let Some(mount) = self.here.first() {
            failure = failure.next(format!("unmount it there too: covey umount {}", mount.path.display()));
        }
        if let Some(Elsewhere { mount, pid, .. }) = self.away.first() {
            let place = mount.path.display();
            failure = failure.next(format!(
                "end what runs there, or unmount it there: nsenter -m -t {pid} umount {place}"
            ));
        }
        failure.next(format!("or end it everywhere: covey umount --force {}", name.display()))
    }

    /// Ends the connection that they share. What programs wrote through it is handed over first.
    pub fn end(&self, deadline: Deadline) -> Result<()> {
        let mut devices = BTreeSet::new();
        let away = self.away.iter().map(|other| (other.mount.dev, other.reached()));
        for (dev, path) in away.chain(self.here.iter().map(|mount| (mount.dev, mount.path.clone()))) {
            if devices.insert(dev) {
                // A daemon that hangs is a reason to use force.
                hand_over(&path, deadline.within(HAND_OVER).left());
                abort(dev).or_fail(|| "cannot end the mount in other mount namespaces".to_owned())?;
            }
        }
        Ok(())
    }
}
