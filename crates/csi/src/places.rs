//! The places where volumes are staged and published: bind mounts of folders of a Covey mount.
//!
//! A bind mount is made whole and then attached to its place, so that it never appears there with the wrong
//! flags. The folder is found below the root of the Covey mount without following symbolic links: what is in
//! the volume belongs to others, and must not lead out of it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use base::Deadline;
use fuse::mount::{FS_TYPE, Life, Mounted};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree};

use crate::refuse::{self, Answer};

/// How long a daemon may take to say that it lives.
const ALIVE: Duration = Duration::from_secs(5);

/// The topmost mount at a path.
pub fn at(path: &Path) -> Option<Mounted> {
    fuse::mount::find(path)
}

/// Whether it is a mount of Covey's.
pub fn is_ours(there: &Mounted) -> bool {
    there.kind == FS_TYPE
}

/// Checks a path that the orchestrator gave.
pub fn check(name: &str, text: &str) -> Answer<PathBuf> {
    let path = Path::new(text);
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if path.is_absolute() && path.components().all(plain) && path != Path::new("/") && !text.contains('\0') {
        return Ok(resolved(path));
    }
    Err(refuse::invalid(format!("the {name} is {text:?}"), "send an absolute path without .."))
}

/// A path as the kernel's mount table shows it: the folder of the kubelet may be a symbolic link. The last
/// part is the place itself, and is not followed.
pub fn resolved(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|parent| parent.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.components().collect(),
    }
}

/// Whether the daemon of the mount at a path answers.
pub fn life(path: &Path) -> Option<Life> {
    fuse::mount::find(path).map(|mounted| mounted.life(Deadline::after(ALIVE)))
}

/// Opens a folder below the root of a mount.
fn open_inner(root: &Path, inner: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(root, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let inner = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
    let within = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    Ok(openat2(&top, inner, flags, Mode::empty(), within)?)
}

/// Whether a folder below the root of a mount is there.
pub fn has_inner(root: &Path, inner: &Path) -> io::Result<bool> {
    match open_inner(root, inner) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Mounts a folder below `root` at `place`, which exists.
pub fn bind(root: &Path, inner: &Path, place: &Path, read_only: bool) -> io::Result<()> {
    let folder = open_inner(root, inner)?;
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(&folder, "", flags)?;
    if read_only {
        refuse_changes(&tree)?;
    }
    move_mount(tree.as_fd(), "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

/// Makes a mount read-only that is at no place yet.
fn refuse_changes(tree: &OwnedFd) -> io::Result<()> {
    let attr =
        libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the descriptor is open, the path is an empty text that ends with a zero, and the size is that
    // of the structure, which lives until the call returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes all mounts of Covey's at a place away. Those of dead daemons are detached; a living one that is in
/// use is an error.
pub fn clear(place: &Path) -> Answer<()> {
    while let Some(there) = at(place) {
        if !is_ours(&there) {
            return Err(refuse::precondition(
                format!("what is mounted at {} is not Covey's", place.display()),
                "unmount it, if nothing needs it",
            ));
        }
        let dead = life(place) == Some(Life::Dead);
        let flags = UnmountFlags::NOFOLLOW | if dead { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match base::lock::unmount(place, flags) {
            Ok(()) => {}
            Err(rustix::io::Errno::BUSY) => return Err(busy(place)),
            // It went meanwhile.
            Err(rustix::io::Errno::INVAL) if at(place).is_none() => {}
            Err(error) => {
                return Err(refuse::io(format!("cannot unmount {}", place.display()), &error.into()));
            }
        }
    }
    Ok(())
}

fn busy(place: &Path) -> tonic::Status {
    const NAMED: usize = 3;
    let users = node::mounts::users_of(place);
    let shown: Vec<String> =
        users.iter().take(NAMED).map(|user| format!("process {} ({})", user.pid, user.name)).collect();
    let by = if shown.is_empty() { String::new() } else { format!(" by {}", shown.join(", ")) };
    refuse::precondition(
        format!("{} is in use{by}", place.display()),
        "end what uses it, and send the call again",
    )
}

/// Makes the folder of a place, if it is not there.
pub fn make(place: &Path) -> Answer<()> {
    match fs::create_dir(place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(refuse::io(format!("cannot make {}", place.display()), &error))
        }
        _ => Ok(()),
    }
}

/// Removes the empty folder of a place, if it is there.
pub fn remove(place: &Path) -> Answer<()> {
    match fs::remove_dir(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(refuse::io(format!("cannot remove {}", place.display()), &error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for text in ["", "a", "/", "/a/../b", "../a", "/.."] {
            assert!(check("target_path", text).is_err(), "{text:?}");
        }
        assert_eq!(check("target_path", "/none//b/").unwrap(), Path::new("/none/b"));
    }

    #[test]
    fn a_symbolic_link_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("real")).unwrap();
        std::os::unix::fs::symlink("/etc", folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink("real", folder.path().join("real-link")).unwrap();
        assert!(has_inner(folder.path(), Path::new("real")).unwrap());
        assert!(!has_inner(folder.path(), Path::new("none")).unwrap());
        for name in ["link", "real-link", "../x", "link/ssl"] {
            assert!(open_inner(folder.path(), Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_not_ours_stays() {
        let status = clear(Path::new("/proc")).unwrap_err();
        assert_eq!(status.code(), tonic::Code::FailedPrecondition);
        assert!(at(Path::new("/proc")).is_some_and(|there| !is_ours(&there)));
    }
}
