//! Checks of a volume's folder and its disk: space, permissions, leftovers of a crash.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use api::text::{bytes, count};
use node::mounts;
use node::volume_dir::VolumeDir;
use rustix::fs::{StatVfs, StatVfsMountFlags};

use super::{Check, note, ok, wrong};
use crate::target;

/// The volume's folder, if the path is on its mount. Otherwise the path itself.
pub fn folder_of(path: &Path) -> PathBuf {
    if target::is_volume(path).unwrap_or(false) {
        return path.to_owned();
    }
    // The name is looked up first, because a mount that does not answer has a folder too.
    let mount =
        mounts::entered(path).map(|(mount, _)| mount).or_else(|| mounts::covey_of(path).ok().flatten());
    mount.as_ref().and_then(mounts::volume_of).unwrap_or_else(|| path.to_owned())
}

/// Whether this is a place on a Covey mount, and not a volume's folder.
pub fn is_on_a_mount(path: &Path) -> bool {
    !target::is_volume(path).unwrap_or(false) && mounts::covey_of(path).is_ok_and(|mount| mount.is_some())
}

/// The result of statvfs(2) for the disk of a folder that may not exist yet.
fn disk_below(path: &Path) -> Option<StatVfs> {
    let there = path.ancestors().find(|folder| folder.exists())?;
    rustix::fs::statvfs(there).ok()
}

/// Bytes that this user can still store below a folder that may not exist yet.
pub fn free_room(path: &Path) -> Option<u64> {
    disk_below(path).map(|room| room.f_bavail * room.f_frsize)
}

/// Checks the free space below a volume's folder, or below the place where one would be created.
pub fn disk(volume: Option<&Path>) -> Check {
    let path = volume.map(Path::to_owned).or_else(crate::cmd::up::default_volume);
    let Some(path) = path else {
        return note("disk", "there is no home folder to keep a volume in", "covey up --volume FOLDER");
    };
    let shown = path.display();
    let read_only = disk_below(&path).is_some_and(|room| room.f_flag.contains(StatVfsMountFlags::RDONLY));
    match free_room(&path) {
        // A read-only filesystem, like a published tree, has no free space and needs none.
        Some(_) if read_only => note(
            "disk",
            format!("{shown} is on a filesystem that is mounted read-only"),
            "a volume that is written to needs another disk",
        ),
        None => {
            wrong("disk", format!("the disk below {shown} cannot be asked for its room"), "check the path")
        }
        Some(free @ ..0x1000_0000) => wrong(
            "disk",
            format!("only {} are free below {shown}", bytes(free)),
            "free some room on that disk",
        ),
        Some(free @ ..0x1_0000_0000) => note(
            "disk",
            format!("{} are free below {shown}", bytes(free)),
            "more room, or a volume on another disk",
        ),
        Some(free) => ok("disk", format!("{} are free below {shown}", bytes(free))),
    }
}

/// Checks the free inodes, because each blob is a file. Filesystems that create inodes on demand report 0 of
/// 0.
pub fn inodes(volume: Option<&Path>) -> Option<Check> {
    const FEW: u64 = 10_000;
    let path = volume.map(Path::to_owned).or_else(crate::cmd::up::default_volume)?;
    let room = disk_below(&path)?;
    let shown = path.display();
    if room.f_files == 0 {
        return None;
    }
    let free = count(room.f_favail);
    Some(match room.f_favail {
        ..FEW => wrong(
            "inodes",
            format!("only {free} more files can be made below {shown}"),
            "remove files on that disk, or make a volume on one with more inodes: mkfs.ext4 -N",
        ),
        _ => ok("inodes", format!("{free} more files can be made below {shown}")),
    })
}

/// Checks which users can read the volume's folder, and whether this user can.
pub fn rights(dir: &VolumeDir) -> Vec<Check> {
    let shown = dir.path().display();
    let Ok(meta) = fs::metadata(dir.path()) else { return Vec::new() };
    let mut checks = Vec::new();
    if meta.mode() & 0o077 != 0 {
        checks.push(note(
            "rights",
            format!("other users may look into {shown}, past the permissions of the files in the volume"),
            format!("chmod 700 {shown}"),
        ));
    }
    let me = api::caller::euid();
    if me != 0 && me != meta.uid() {
        let mend = format!("sudo -u '#{}' covey ...   (or as root: chown -R {me} {shown})", meta.uid());
        checks.push(wrong(
            "rights",
            format!("{shown} belongs to user {}, and this is user {me}", meta.uid()),
            mend,
        ));
    }
    for name in ["meta", "open", "lock"] {
        let path = dir.path().join(name);
        if let Ok(inner) = fs::metadata(&path)
            && inner.uid() != meta.uid()
        {
            let found = format!(
                "{} belongs to user {}, and its volume to user {}",
                path.display(),
                inner.uid(),
                meta.uid()
            );
            checks.push(wrong(
                "rights",
                found,
                format!(
                    "chown -R {}:{} {shown}   (as root, while it is not mounted)",
                    meta.uid(),
                    meta.gid()
                ),
            ));
        }
    }
    checks
}

/// Finds what a crash left in the folder of an unused volume and what nothing removes automatically.
pub fn leftovers(dir: &VolumeDir) -> Vec<Check> {
    if !matches!(dir.holder(), Ok(None)) {
        return Vec::new();
    }
    let mut checks = Vec::new();
    let mut left = |name: &str, what: &str| {
        let path = dir.path().join(name);
        if fs::symlink_metadata(&path).is_ok() {
            let found = format!("{} is {what}", path.display());
            checks.push(note("leftovers", found, format!("rm {}", path.display())));
        }
    };
    left("covey.json.new", "left of a format that was cut off");
    let socket = dir.path().join("control.sock");
    if fs::symlink_metadata(&socket).is_ok_and(|meta| meta.file_type().is_socket()) {
        left("control.sock", "left of a daemon that did not end in good order; the next mount replaces it");
    }
    checks
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::cmd::doctor::Level;
    use node::volume_dir::ORIGIN_INSIDE;

    #[test]
    fn an_open_folder_and_leftovers_are_found() {
        let temp = tempfile::tempdir().unwrap();
        let dir = VolumeDir::create(&temp.path().join("v"), ORIGIN_INSIDE, |_| Ok(())).unwrap();
        assert!(rights(&dir).is_empty() && leftovers(&dir).is_empty());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let found = rights(&dir);
        assert!(
            found[0].level == Level::Note && found[0].mend.as_ref().unwrap().starts_with("chmod 700 "),
            "{found:?}"
        );
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("control.sock")).unwrap();
        fs::write(dir.path().join("covey.json.new"), "").unwrap();
        assert_eq!(leftovers(&dir).len(), 2);
    }

    #[test]
    fn room_below_what_is_not_there_is_that_of_what_is() {
        assert!(free_room(Path::new("/nowhere/at/all")).is_some_and(|free| free > 0));
        assert_eq!(folder_of(Path::new("/nowhere")), Path::new("/nowhere"));
    }
}
