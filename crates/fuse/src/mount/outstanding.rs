//! What programs wrote and the kernel still holds, handed over; how many requests a mount's daemon has not answered; and a connection's end.
//!
//! syncfs(2) has the kernel send all dirty pages of a FUSE filesystem, and since Linux 6.19 (and the stable series of 6.18) it returns
//! without waiting for the answers: a daemon might hang. So whoever wants to know what programs wrote must wait by himself: until a moment at
//! which nothing is outstanding, as the kernel counts it for each connection in its `fusectl` filesystem.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use base::time::monotonic;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where `fusectl` is mounted, if it is.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How often the count is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// What is given to the daemon where the count cannot be seen.
const BLIND: Duration = Duration::from_millis(100);

/// Has all dirty pages of the mount at `path` sent to its daemon, and waits, at most so long, until there was a moment without any
/// request on its way. False when there was none: a daemon that hangs, or programs that never rest.
pub fn hand_over(path: &Path, at_most: Duration) -> bool {
    let (done, wait) = mpsc::channel();
    let path = path.to_owned();
    let pushing = base::thread::spawn("fuse-push", move || {
        let _ = done.send(push(&path, at_most).unwrap_or(false));
    });
    pushing.is_ok() && wait.recv_timeout(at_most).unwrap_or(false)
}

fn push(path: &Path, at_most: Duration) -> io::Result<bool> {
    let begun = monotonic();
    let count = Count::of(super::dev_of(path)?);
    // Already the opening may wait for ever.
    let root = File::open(path)?;
    // SAFETY: the descriptor is open; syncfs takes nothing else.
    if unsafe { libc::syncfs(root.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    drop(root);
    let Ok(count) = count else {
        std::thread::sleep(BLIND.min(at_most));
        return Ok(true);
    };
    while begun.elapsed() < at_most {
        if count.now()? == 0 {
            return Ok(true);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(false)
}

/// Ends the connection of the mount with this device number, in every mount namespace that has it: its daemon sees the end, and whatever is
/// still mounted is dead. What the kernel holds of written bytes is lost: [`hand_over`] comes first.
///
/// # Errors
/// Only root may, or the user who mounted it.
pub fn abort(dev: u64) -> io::Result<()> {
    let count = Count::of(dev)?;
    let name = format!("{}/abort", libc::minor(dev));
    File::from(open(&count.folder, &name, OFlags::WRONLY)?).write_all(b"1")
}

/// The kernel's count of a connection's requests that were sent, or wait to be, and are not answered.
struct Count {
    /// Of all connections.
    folder: OwnedFd,
    name: String,
}

impl Count {
    fn of(dev: u64) -> io::Result<Count> {
        let folder = open(CWD, CONNECTIONS, OFlags::DIRECTORY | OFlags::PATH);
        let mut count =
            Count { folder: folder.or_else(|_| own())?, name: format!("{}/waiting", libc::minor(dev)) };
        if count.now().is_err() {
            // An empty folder where nothing is mounted, for one.
            count.folder = own()?;
            count.now()?;
        }
        Ok(count)
    }

    /// The file gives one answer each time it is opened.
    fn now(&self) -> io::Result<u64> {
        let mut text = String::new();
        File::from(open(&self.folder, &self.name, OFlags::RDONLY)?).read_to_string(&mut text)?;
        text.trim().parse().map_err(|_| io::Error::other("the kernel's count of requests is no number"))
    }
}

fn open(folder: impl AsFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// A `fusectl` that is mounted nowhere: for root.
fn own() -> io::Result<OwnedFd> {
    let new = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&new)?;
    Ok(fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}
