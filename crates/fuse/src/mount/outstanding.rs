//! Writing back what the kernel holds, counting the requests that a daemon has not answered, and aborting a
//! connection.
//!
//! syncfs(2) makes the kernel send all dirty pages of a FUSE filesystem. Since Linux 6.19 (and the stable
//! series of 6.18) it returns without waiting for the replies, because a daemon might hang. A caller that
//! needs the data must therefore wait itself, for a moment with no outstanding requests. The kernel counts
//! these for each connection in its `fusectl` filesystem.
//!
//! A daemon does this on its own mount, too. So a child makes the calls that may wait for it
//! ([`crate::apart`]).

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use base::time::monotonic;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::apart::Child;

/// Where `fusectl` is mounted, if it is.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How often the count is read.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How long to wait for the daemon if the count cannot be read.
const BLIND: Duration = Duration::from_millis(100);

/// Makes the kernel send all dirty pages of the mount at `path` to its daemon. Waits until there is a moment
/// without any outstanding request, but no longer than `at_most`. Returns false if there was no such moment:
/// the daemon hangs, or programs never pause.
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
    let root = CString::new(path.as_os_str().as_bytes())?;
    // Even opening the root may wait for ever.
    let writes_back = Child::start(|parent| {
        // SAFETY: the path is NUL-terminated and lives through the call, and the descriptor is closed once.
        let is_done = unsafe {
            let root = libc::open(root.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            let is_done = root >= 0 && libc::syncfs(root) == 0;
            libc::close(root);
            is_done
        };
        parent.answer(is_done);
    })?;
    if !writes_back.answer() {
        return Ok(false);
    }
    drop(writes_back);
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

/// Ends the connection of the mount with this device number, in every mount namespace that has it. Its daemon
/// sees the end, and every mount of it that remains is dead. Written data that the kernel still holds is
/// lost, so call [`hand_over`] first.
///
/// # Errors
/// Only root or the user who mounted it may do this.
pub fn abort(dev: u64) -> io::Result<()> {
    let count = Count::of(dev)?;
    let name = format!("{}/abort", libc::minor(dev));
    File::from(open(&count.folder, &name, OFlags::WRONLY)?).write_all(b"1")
}

/// The kernel's count of a connection's unanswered requests, whether they were sent or still wait to be sent.
struct Count {
    /// The folder of all connections.
    folder: OwnedFd,
    name: String,
}

impl Count {
    fn of(dev: u64) -> io::Result<Count> {
        let folder = open(CWD, CONNECTIONS, OFlags::DIRECTORY | OFlags::PATH);
        let mut count =
            Count { folder: folder.or_else(|_| own())?, name: format!("{}/waiting", libc::minor(dev)) };
        if count.now().is_err() {
            // The folder may be there but empty, because `fusectl` is not mounted on it.
            count.folder = own()?;
            count.now()?;
        }
        Ok(count)
    }

    /// The file returns one value each time it is opened.
    fn now(&self) -> io::Result<u64> {
        let mut text = String::new();
        File::from(open(&self.folder, &self.name, OFlags::RDONLY)?).read_to_string(&mut text)?;
        text.trim().parse().map_err(|_| io::Error::other("the kernel's count of requests is not a number"))
    }
}

fn open(folder: impl AsFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(folder, name, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// A `fusectl` that is mounted nowhere. Only root can make it.
fn own() -> io::Result<OwnedFd> {
    let new = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&new)?;
    Ok(fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}
