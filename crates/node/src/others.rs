//! The copies of a mount that was unmounted here: in other mount namespaces, and at other places in this one.
//!
//! A container that was started while a volume was mounted has a copy of the mount. The daemon keeps running
//! and holds the volume until the last copy is gone. So messages name the copies, and `--force` ends the
//! connection that all of them share.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use api::error::{Context, Failure, Result};
use base::Deadline;
use fuse::mount::{Elsewhere, Mounted, abort, elsewhere, hand_over};

/// How long to wait until data written through a copy is handed over, before the connection is ended.
const HAND_OVER: Duration = Duration::from_secs(10);
/// The largest number of copies to name.
const NAMED: usize = 5;

/// Whether one is a copy of the other. The kernel gives the device number of a mount that is gone to the next
/// one, so the number alone could name, and end, the mount of something else.
fn is_copy(mount: &Mounted, other: &Mounted) -> bool {
    mount.dev == other.dev && mount.source == other.source
}

/// The copies of a mount.
pub struct Others {
    /// Copies in other mount namespaces.
    away: Vec<Elsewhere>,
    /// Copies in this namespace, at other places.
    here: Vec<Mounted>,
}

impl Others {
    /// The copies of a mount, which may be gone from here.
    pub fn of_mount(gone: &Mounted) -> Others {
        Others::of(|mount| is_copy(mount, gone))
    }

    /// The copies of a mount of this volume's folder, which is not mounted here any more.
    pub fn of_volume(volume: &Path) -> Others {
        Others::of(|mount| Path::new(&mount.source) == volume)
    }

    /// No copies.
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

    /// Adds the copies to a failure, and how to end them. `name` is the volume's folder or the former
    /// mountpoint.
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

    /// Ends the connection that the copies share, after data written through it has been handed over.
    pub fn end(&self, deadline: Deadline) -> Result<()> {
        let mut devices = BTreeSet::new();
        let away = self.away.iter().map(|other| (other.mount.dev, other.reached()));
        for (dev, path) in away.chain(self.here.iter().map(|mount| (mount.dev, mount.path.clone()))) {
            if devices.insert(dev) {
                // A daemon that hangs is a reason to use force, so the handover may fail.
                hand_over(&path, deadline.within(HAND_OVER).left());
                abort(dev).or_fail(|| "cannot end the mount in other mount namespaces".to_owned())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `covey umount` named the mount of another volume, which had got the number of the one that was gone
    /// from here, as a copy of it. With `--force`, it would have ended that one.
    #[test]
    fn regression_a_mount_with_a_number_that_was_used_before_is_no_copy() {
        let mount = |source: &str, dev| Mounted {
            path: "/m".into(),
            root: "/".into(),
            dev,
            read_only: false,
            kind: "fuse.covey".to_owned(),
            source: source.to_owned(),
            user: Some(0),
        };
        let gone = mount("/srv/a", 7);
        assert!(is_copy(&mount("/srv/a", 7), &gone));
        assert!(!is_copy(&mount("/srv/b", 7), &gone) && !is_copy(&mount("/srv/a", 8), &gone));
    }
}
