//! What a path on the command line means: a place on a mount, or a volume's folder, or `VOLUME:/PATH`.
//!
//! A volume that is mounted is always reached through its mount: whoever names its folder is led there. So a command has two cases
//! only: ask the daemon, or open a volume that nobody has.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use api::control::Ear;
use api::error::{Failure, Result};
use fuse::mount::{Life, Mounted};
use node::mounts;
use node::volume_dir::VolumeDir;

/// What a path means.
#[derive(Debug)]
pub enum Target {
    /// On a mount, whose daemon lives.
    Mounted(Place),
    /// In a volume that is not mounted (somebody else may still hold it).
    Closed {
        /// The volume.
        dir: VolumeDir,
        /// Below its root; empty for the root.
        inner: PathBuf,
    },
}

/// A place on a mount.
#[derive(Debug)]
pub struct Place {
    /// The mount.
    pub mount: Mounted,
    /// The place, absolute.
    pub path: PathBuf,
}

impl Place {
    /// The place below the volume's root.
    pub fn inner(&self) -> &Path {
        self.path.strip_prefix(&self.mount.path).unwrap_or(Path::new(""))
    }

    /// Where its daemon listens.
    pub fn ear(&self) -> Ear {
        Ear::of_source(Path::new(&self.mount.source))
    }

    fn on(mount: Mounted, path: PathBuf) -> Result<Target> {
        if mounts::life(&mount)? != Life::Dead {
            return Ok(Target::Mounted(Place { mount, path }));
        }
        let place = mount.path.display();
        Err(Failure::new("stale-mount", format!("the mount at {place} is dead"))
            .why("its daemon is gone")
            .next(format!("take it away with: covey umount {place}"))
            .next(format!("then mount again: covey mount {} {place}", again(&mount.source))))
    }
}

/// What to mount again for what had this source: in memory it is told from others by what nobody types.
fn again(source: &str) -> &str {
    match source.split_once(api::source::MARK) {
        _ if source.starts_with("mem:") => "mem:",
        _ if api::source::tree(source).is_some() => api::source::tree(source).unwrap_or(source),
        Some((corpus, _)) if source.starts_with(corpus::spec::PREFIX) => corpus,
        _ => source,
    }
}

/// What a path that is there means.
pub fn resolve(text: &Path) -> Result<Target> {
    find(text, false)
}

/// What a path means to a command that takes a whole volume. The folder of a volume may lie on the mount of another: then that volume is
/// meant, and not a place on the mount.
pub fn resolve_volume(text: &Path) -> Result<Target> {
    if is_volume(text)? { in_volume(text, Path::new("")) } else { resolve(text) }
}

/// Whether this is the folder of a volume. A mount is itself, whatever files it shows.
pub fn is_volume(path: &Path) -> Result<bool> {
    let mount = mounts::at(path)?;
    Ok(!mount.is_some_and(|mount| mounts::is_covey(&mount)) && VolumeDir::open(path).is_ok())
}

/// What a path means that something is to be made at: its last component need not be there.
pub fn resolve_new(text: &Path) -> Result<Target> {
    find(text, true)
}

fn find(text: &Path, new: bool) -> Result<Target> {
    mounts::check_way(text)?;
    if let Some((volume, inner)) = split(text) {
        return in_volume(&volume, &inner);
    }
    let path = name(text)?;
    // A dead mount has paths that can no longer be looked at: those count as being there.
    let missing =
        |path: &Path| matches!(path.symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound);
    let gone = missing(&path);
    let holder = if gone && new { path.parent().unwrap_or(&path) } else { &path };
    if missing(holder) {
        if let Some(volume) = before_colon(text) {
            VolumeDir::open(volume)?;
        }
        return Err(
            Failure::new("not-found", format!("{} is not there", holder.display())).next("check the path")
        );
    }
    if let Some(mount) = mounts::covey_of(holder)? {
        return Place::on(mount, path);
    }
    if path.is_dir() {
        return in_volume(&path, Path::new(""));
    }
    let failure = Failure::new(
        "not-a-volume",
        format!("{} is in no mounted volume and is none itself", text.display()),
    );
    Err(failure.next("name a path on a mount (covey df lists them), a volume's folder, or VOLUME:/PATH"))
}

/// The place in a volume, through its mount where it has one.
pub fn in_volume(volume: &Path, inner: &Path) -> Result<Target> {
    let dir = VolumeDir::open(volume)?;
    match mounts::of_volume(dir.path()) {
        Some(mount) => {
            let path = mount.path.join(inner);
            Place::on(mount, path)
        }
        None => Ok(Target::Closed { dir, inner: inner.to_owned() }),
    }
}

/// `VOLUME:/PATH` in its two parts, where the first is a volume.
fn split(text: &Path) -> Option<(PathBuf, PathBuf)> {
    let bytes = text.as_os_str().as_bytes();
    let part = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let at = (0..bytes.len())
        .find(|&at| bytes[at..].starts_with(b":/") && part(&bytes[..at]).join("covey.json").is_file())?;
    let inner = part(&bytes[at + 1..]);
    Some((part(&bytes[..at]), crate::import::inside(&inner)?))
}

/// What would be the volume if this is meant as `VOLUME:/PATH`.
fn before_colon(text: &Path) -> Option<&Path> {
    let bytes = text.as_os_str().as_bytes();
    let at = bytes.windows(2).position(|two| two == b":/")?;
    Some(Path::new(OsStr::from_bytes(&bytes[..at])))
}

/// The absolute path of a name itself: links on the way are followed, a link at its end is not.
fn name(path: &Path) -> Result<PathBuf> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return mounts::absolute(path);
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Ok(mounts::absolute(parent)?.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::volume_dir::ORIGIN_INSIDE;

    #[test]
    fn what_is_typed_to_mount_again_is_what_was_typed_before() {
        for (source, typed) in
            [("/srv/a#b", "/srv/a#b"), ("mem:00ff", "mem:"), ("corpus:7,10,64K#00ff", "corpus:7,10,64K")]
        {
            assert_eq!(again(source), typed);
        }
    }

    #[test]
    fn a_volume_and_a_path_in_it_are_told_apart() {
        let temp = tempfile::tempdir().unwrap();
        let volume = temp.path().join("a:b");
        VolumeDir::create(&volume, ORIGIN_INSIDE, |_| Ok(())).unwrap();
        let inner = |text: String| match resolve(Path::new(&text)) {
            Ok(Target::Closed { inner, .. }) => inner,
            other => panic!("{other:?}"),
        };
        let shown = volume.display();
        assert_eq!(inner(format!("{shown}")), Path::new(""));
        assert_eq!(inner(format!("{shown}:/")), Path::new(""));
        assert_eq!(inner(format!("{shown}:/x/./y")), Path::new("x/y"));
        assert_eq!(resolve(temp.path()).unwrap_err().code, "not-a-volume");
        assert_eq!(resolve(&temp.path().join("none/at/all")).unwrap_err().code, "not-found");
    }
}
