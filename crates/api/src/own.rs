//! Files of this program: created without access for others, opened without following a link, and trusted
//! only with the right owner.
//!
//! A volume's folder may be open to other users, who could then read its log and its lock. A name in a folder
//! that others can write to may be a link to another user's file. So every opened file is checked before use:
//! it must be a regular file with one name, owned by this user, root or the owner of its folder.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::caller;

/// Opens a file of this program with these options. A file that it creates is readable and writable only by
/// its owner. If an earlier version created the file readable by everyone, that access is removed.
///
/// # Errors
/// `PermissionDenied` or `InvalidInput`, with an explanation, if the file is not ours or no regular file.
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let mut options = options.clone();
    // Without O_NONBLOCK, opening a pipe would wait for a program at its other end.
    let file =
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).map_err(no_link)?;
    let about = file.metadata()?;
    check(path, &about)?;
    if about.mode() & 0o077 != 0 && about.uid() == caller::euid() {
        match file.set_permissions(Permissions::from_mode(about.mode() & 0o700)) {
            // On a read-only filesystem the permissions cannot be changed. The file can still be read.
            Err(error) if error.raw_os_error() == Some(libc::EROFS) => {}
            other => other?,
        }
    }
    Ok(file)
}

/// Creates a file that must not exist yet, for its owner alone.
///
/// # Errors
/// `AlreadyExists`, also for a dangling link, or the error of the system call.
pub fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Checks a folder in which this program is about to keep files: somebody else may have made it first, in a
/// place where everybody can, or a link in its place. It must belong to this user or to root, or to the owner
/// of the folder above if nobody else can write there.
///
/// # Errors
/// `PermissionDenied` or `InvalidInput`, with an explanation that names the folder.
pub fn check_folder(path: &Path) -> io::Result<()> {
    let shown = path.display();
    let whole = std::fs::canonicalize(path)?;
    if !whole.is_dir() {
        let what = format!("{shown} is no folder: look at what it is, and remove it");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    for place in [path, &whole] {
        let uid = std::fs::symlink_metadata(place)?.uid();
        let above = std::fs::metadata(above(place))?;
        let of_above = above.uid() == uid && above.mode() & 0o022 == 0;
        if uid != 0 && uid != caller::euid() && !of_above {
            let what = format!("{shown} belongs to user {uid}: look at what it is, and remove it");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
    }
    Ok(())
}

/// The folder that holds this name.
fn above(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that only the owner can read a file with a secret. The error says why not and what to do.
pub fn is_private(path: &Path, about: &Metadata) -> Result<(), String> {
    let shown = path.display();
    let mode = about.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "{shown} has mode {mode:04o}, and others can get at the secret in it: chmod 600 {shown}"
        ));
    }
    check(path, about).map_err(|error| error.to_string())
}

fn check(path: &Path, about: &Metadata) -> io::Result<()> {
    let shown = path.display();
    if !about.is_file() || about.nlink() != 1 {
        let what = format!("{shown} is not a regular file with one name: look at what it is, and remove it");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let of_folder = std::fs::metadata(above(path))?.uid();
    if ![0, caller::euid(), of_folder].contains(&about.uid()) {
        let what = format!("{shown} belongs to user {}: look at what it is, and remove it", about.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

fn no_link(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link: remove it"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn options() -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options
    }

    /// In a folder that all users could read, every user could take the volume's lock and read its log.
    #[test]
    fn regression_our_files_are_closed_to_others_and_links_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        open(&path, &options()).unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open(&path, &options()).unwrap();
        assert_eq!(mode(), 0o600, "of an earlier version");
        let link = temp.path().join("link");
        symlink(temp.path().join("elsewhere"), &link).unwrap();
        assert!(open(&link, &options()).is_err() && create(&link).is_err());
        assert!(!temp.path().join("elsewhere").exists());
        let again = temp.path().join("again");
        fs::hard_link(&path, &again).unwrap();
        assert!(open(&again, &options()).unwrap_err().to_string().contains("one name"));
        fs::remove_file(&again).unwrap();
        if caller::euid() == 0 {
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            assert!(open(&path, &options()).unwrap_err().to_string().contains("user 1234"));
        }
        assert!(open(temp.path(), OpenOptions::new().read(true)).is_err());
    }

    /// A cache in a folder such as /tmp was kept in what another user had made there first.
    #[test]
    fn regression_a_folder_of_somebody_else_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let (path, link) = (temp.path().join("cache"), temp.path().join("link"));
        fs::create_dir(&path).unwrap();
        symlink(&path, &link).unwrap();
        check_folder(&path).unwrap();
        check_folder(&link).unwrap();
        assert!(check_folder(&temp.path().join("none")).is_err());
        fs::write(temp.path().join("file"), "").unwrap();
        assert!(check_folder(&temp.path().join("file")).unwrap_err().to_string().contains("no folder"));
        if caller::euid() != 0 {
            return println!("skipped: only root can give a folder to another user");
        }
        let says = |path: &Path| check_folder(path).map_err(|error| error.to_string());
        std::os::unix::fs::lchown(&link, Some(1234), None).unwrap();
        assert!(says(&link).unwrap_err().contains("link belongs to user 1234"), "a link of somebody else");
        std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
        assert!(says(&path).unwrap_err().contains("user 1234"));
        // In a home of that user it is that user's own.
        std::os::unix::fs::chown(temp.path(), Some(1234), None).unwrap();
        assert_eq!((says(&path), says(&link)), (Ok(()), Ok(())));
        fs::set_permissions(temp.path(), Permissions::from_mode(0o1777)).unwrap();
        assert!(says(&path).is_err());
    }

    #[test]
    fn regression_a_secret_that_others_can_read_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("publisher.json");
        let look = || is_private(&path, &fs::metadata(&path).unwrap());
        drop(create(&path).unwrap());
        assert_eq!(look(), Ok(()));
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert!(look().unwrap_err().contains("chmod 600"), "{mode:o}");
        }
    }
}
