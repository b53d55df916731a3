//! Which mounts are believed to be Covey's, and whose answers are believed.
//!
//! Any user can mount a FUSE filesystem that claims to be Covey's and names root's volume as its source. Any
//! user can also listen at a free socket name. But a mount cannot choose the user whose daemon serves it, and
//! a daemon cannot choose the user that the kernel reports for its end of a socket. So:
//!
//! - A mount whose source is a folder is believed if root or the folder's owner serves it.
//! - A mount without a folder speaks only for the user that serves it.
//! - A daemon is believed if it runs as root, as this user, or as the user that serves the mount in question.
//!
//! Nothing here makes a request to another user's daemon, which might never answer.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use api::caller;
use api::control::ControlAddress;
use fuse::mount::Mounted;
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};

/// Every Covey mount, oldest first.
pub fn mounts() -> Vec<Mounted> {
    let all = fuse::mount::all();
    all.iter().filter(|mount| believe(mount, &all)).cloned().collect()
}

/// Whether a mount is a Covey mount.
pub fn is_covey(mount: &Mounted) -> bool {
    mount.kind == fuse::mount::FS_TYPE && believe(mount, &fuse::mount::all())
}

fn believe(mount: &Mounted, all: &[Mounted]) -> bool {
    if mount.kind != fuse::mount::FS_TYPE {
        return false;
    }
    match mount.user {
        Some(0) => true,
        Some(user) if mount.source.starts_with('/') => owner_of(Path::new(&mount.source), all) == Some(user),
        other => other.is_some(),
    }
}

/// The owner of a volume's folder, if it can be read without a request to another user's daemon. Sources are
/// written without symbolic links.
fn owner_of(folder: &Path, all: &[Mounted]) -> Option<u32> {
    let holds = |mount: &&Mounted| folder.starts_with(&mount.path);
    // The last mount with the longest path is the visible one.
    let holder = all.iter().filter(holds).max_by_key(|mount| mount.path.components().count());
    let me = caller::euid();
    if holder.is_some_and(|mount| mount.is_fuse() && mount.user.is_some_and(|user| user != 0 && user != me)) {
        return None;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = std::fs::File::open("/").ok()?;
    let below = folder.strip_prefix("/").ok()?;
    let folder = openat2(&root, below, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
    fstat(&folder).ok().map(|seen| seen.st_uid)
}

/// Checks that the program at the other end may answer for this daemon.
///
/// # Errors
/// `PermissionDenied` with an explanation, if another program has taken the daemon's place.
pub fn check_daemon(stream: &UnixStream, address: &ControlAddress) -> io::Result<()> {
    let user = caller::user(stream)?;
    if user == 0 || user == caller::euid() || serves(user, address) {
        return Ok(());
    }
    let what =
        format!("what answers there is a program of user {user}, who is not the one that has it mounted");
    Err(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// Whether this user has a mount, or owns a volume, whose daemon listens there.
fn serves(user: u32, address: &ControlAddress) -> bool {
    let mounted = mounts().iter().any(|mount| {
        mount.user == Some(user) && ControlAddress::of_source(Path::new(&mount.source)) == *address
    });
    mounted
        || matches!(address, ControlAddress::File(path) if path.parent().is_some_and(|folder| owner_of(folder, &fuse::mount::all()) == Some(user)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(path: &str, source: &str, user: Option<u32>) -> Mounted {
        let kind = fuse::mount::FS_TYPE.to_owned();
        Mounted {
            path: path.into(),
            root: "/".into(),
            dev: 1,
            read_only: false,
            kind,
            source: source.to_owned(),
            user,
        }
    }

    /// A user's own FUSE mount claimed to be root's volume, and `covey umount`, `gc` and `export` believed
    /// it.
    #[test]
    fn regression_a_users_mount_does_not_pose_as_roots_volume() {
        let temp = tempfile::tempdir().unwrap();
        let folder = std::fs::canonicalize(temp.path()).unwrap();
        let source = folder.to_str().unwrap();
        let me = caller::euid();
        let other = me + 1000;
        let believed = |mount: &Mounted| believe(mount, std::slice::from_ref(mount));
        assert!(believed(&mount("/mnt/a", source, Some(0))));
        assert!(believed(&mount("/mnt/a", source, Some(me))), "the folder's owner");
        assert!(!believed(&mount("/mnt/a", source, Some(other))));
        assert!(!believed(&mount("/mnt/a", "/no/such/folder", Some(other))));
        assert!(!believed(&mount("/mnt/a", source, None)), "what no user serves is no FUSE");
        assert!(believed(&mount("/mnt/a", "mem:00ff", Some(other))), "it speaks for that user alone");
        let mut foreign = mount("/mnt/a", source, Some(0));
        foreign.kind = "fuse.sshfs".to_owned();
        assert!(!believed(&foreign));
    }

    #[test]
    fn regression_a_source_on_another_users_mount_is_not_asked() {
        let temp = tempfile::tempdir().unwrap();
        let folder = std::fs::canonicalize(temp.path()).unwrap();
        let trap = mount(folder.to_str().unwrap(), "mem:1", Some(caller::euid() + 1000));
        assert_eq!(owner_of(&folder.join("below"), &[trap]), None);
        assert_eq!(owner_of(&folder, &[]), Some(caller::euid()));
    }

    #[test]
    fn regression_a_daemon_is_known_by_its_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(caller::user(&one).unwrap(), caller::euid());
        assert!(check_daemon(&one, &ControlAddress::Name("covey-x".to_owned())).is_ok());
        let temp = tempfile::tempdir().unwrap();
        let folder = std::fs::canonicalize(temp.path()).unwrap();
        let address = ControlAddress::File(folder.join("control.sock"));
        assert!(serves(caller::euid(), &address) && !serves(caller::euid() + 1000, &address));
    }
}
