//! The failures for operations that a mount does not support, and for volumes that cannot be opened.

use std::path::Path;

use api::error::{Failure, Result};
use fs::OpenError;
use fuse::MountError;
use meta::store::StoreError;

use crate::volume_dir::VolumeDir;

/// The mount is not a volume.
pub fn not_a_volume(name: &str) -> Failure {
    Failure::new("not-a-volume", format!("{name} is no volume: it has neither names nor blobs of its own"))
        .next("name a volume, or a path on a volume's mount (covey df lists them)")
}

/// The volume has all its blobs on this machine, and so no cache.
pub fn no_cache(volume: &str) -> Failure {
    Failure::new("no-cache", format!("{volume} has no cache: its origin is on this machine"))
        .next("a volume with a remote origin has one: covey format VOLUME --origin s3://BUCKET/PREFIX")
}

/// The mount is not a node of a fleet.
pub fn no_fleet(name: &str) -> Failure {
    Failure::new("no-fleet", format!("{name} is no node of a fleet"))
        .next("mount a published tree with --join HOST:PORT, or begin a fleet with --listen ADDRESS:PORT")
        .next("or share the volume with a remote origin: its nodes are a fleet (covey promote)")
}

/// The mount is read-only.
pub fn read_only(does: &str) -> Failure {
    Failure::new("read-only", format!("covey {does} needs a mount that may write"))
        .why("this one was mounted with -o ro")
        .next("use a mount of the volume without -o ro")
}

/// What cannot be done to a shared volume yet.
///
/// # Errors
/// The volume is shared.
pub fn not_shared(dir: &VolumeDir, does: &str) -> Result<()> {
    let failure = || {
        Failure::new("shared", format!("covey {does} does not work on a shared volume yet"))
            .why("other nodes may be writing to it, and its names are in a database")
            .next("docs/SEMANTICS.md says what a shared volume does and does not do")
    };
    if dir.is_shared() { Err(failure()) } else { Ok(()) }
}

/// Why a volume could not be opened.
pub fn open_failure(path: &Path, error: OpenError) -> Failure {
    let shown = path.display();
    let why = error.to_string();
    let fsck = format!("covey fsck {shown} says more; covey fsck --repair {shown} mends what can be mended");
    match error {
        OpenError::Format { .. } => {
            Failure::new("newer-format", format!("the volume {shown} has another format"))
                .why(why)
                .next("use the covey that made it; nothing was changed")
        }
        OpenError::NotFormatted => Failure::new("damaged", format!("the volume {shown} holds no names"))
            .why("its database is there, and empty")
            .next("restore its folder from a backup"),
        OpenError::Damaged(_) => {
            Failure::new("damaged", format!("the volume {shown} is damaged")).why(why).next(fsck)
        }
        OpenError::Store(StoreError::Full) | OpenError::Blob(blob::BlobError::Full) => {
            Failure::new("disk-full", format!("the disk of the volume {shown} is full"))
                .why(why)
                .next("free some room on that disk, then try again; the volume is sound")
        }
        OpenError::Store(StoreError::NoSpace(why)) => {
            Failure::new("database-full", format!("the database of the volume {shown} has no space"))
                .why(why)
                .next("make space there, then try again; the volume is sound")
        }
        OpenError::Store(StoreError::DamagedLog(_)) => {
            Failure::new("damaged-log", format!("the log of the volume {shown} is damaged; nothing was changed"))
                .why(why)
                .next(format!("copy the folder {shown} first, if there is room for that"))
                .next(format!(
                    "covey fsck --salvage {shown} brings in what is in front of the damage, keeps a copy of the log, and lists what is lost"
                ))
        }
        OpenError::Store(StoreError::Damaged(_)) => {
            Failure::new("damaged", format!("the names of the volume {shown} are damaged"))
                .why(why)
                .next(fsck)
        }
        _ => Failure::new("io", format!("the volume {shown} cannot be used"))
            .why(why)
            .next("covey doctor looks for the cause"),
    }
}

/// The kernel does not mount.
pub fn not_mounted(error: MountError) -> Failure {
    match error {
        MountError::NoDevice => Failure::new("no-fuse", "cannot mount: there is no /dev/fuse")
            .next("load the kernel's module: modprobe fuse (as root)")
            .next("in a container, start it with --device /dev/fuse --cap-add SYS_ADMIN"),
        MountError::NotAllowed(why) => Failure::io("this user may not mount", &why)
            .next("or install fusermount3, with which every user may mount: apt-get install fuse3"),
        MountError::NoMountpoint(path) => {
            Failure::new("no-mountpoint", format!("the mountpoint {} is not there", path.display()))
                .next(format!("make it: mkdir -p {}", path.display()))
        }
        MountError::NotADirectory(path) => {
            Failure::new("no-mountpoint", format!("the mountpoint {} is not a folder", path.display()))
                .next("name a folder, best an empty one")
        }
        MountError::DeadMount(path) => {
            Failure::new("stale-mount", format!("a dead mount is at {}", path.display()))
                .why("its daemon is gone")
                .next(format!("take it away: covey umount {}", path.display()))
        }
        MountError::InUse { path, source_name } => {
            Failure::new("mountpoint-in-use", format!("the mountpoint {} is in use", path.display()))
                .why(format!("{source_name} is mounted there"))
                .next(format!("unmount that first: covey umount {}", path.display()))
                .next("or name another folder")
        }
        other => Failure::new("not-mounted", "cannot mount")
            .why(other.to_string())
            .next("covey doctor looks for the cause"),
    }
}
