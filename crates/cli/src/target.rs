//! What a path on the command line means: a place on a mount, a volume's folder, or `VOLUME:/PATH`.
//!
//! A mounted volume is always reached through its mount, even if the path names the volume's folder. So a
//! command has only two cases: ask the daemon, or open a volume that is not mounted.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use api::control::{ControlAddress, Request};
use api::error::{Failure, Result};
use fuse::mount::{Life, Mounted};
use node::volume_dir::VolumeDir;
use node::{control, mounts};
use serde::de::IgnoredAny;

/// What a path means.
#[derive(Debug)]
pub enum Target {
    /// On a mount whose daemon is alive.
    Mounted(Place),
    /// In a volume that is not mounted. Another process may still hold it.
    Closed {
        /// The volume.
        dir: VolumeDir,
        /// The path below the volume's root. Empty for the root.
        inner: PathBuf,
    },
}

/// A place on a mount.
#[derive(Debug)]
pub struct Place {
    /// The mount.
    pub mount: Mounted,
    /// The absolute path.
    pub path: PathBuf,
}

impl Place {
    /// The path below the volume's root.
    pub fn inner(&self) -> &Path {
        // `find` makes sure of it. A path that is not below the mount is in no volume.
        self.path.strip_prefix(&self.mount.path).unwrap_or(&self.path)
    }

    /// The control socket of its daemon.
    pub fn address(&self) -> ControlAddress {
        ControlAddress::of_source(Path::new(&self.mount.source))
    }

    /// A failure of a system call on the mount, with what the daemon says of its database. The kernel has
    /// only a number for it.
    pub fn explained(&self, failure: Failure) -> Failure {
        if failure.code != "io" || !failure.why.iter().any(|why| why.starts_with("input/output error")) {
            return failure;
        }
        match control::ask::<IgnoredAny>(&self.address(), &Request::Status, &mut |_| ()) {
            Err(Failure { code, why, next, .. }) if code == "no-database" => {
                Failure { code, why, next, ..failure }
            }
            _ => failure,
        }
    }

    fn on(mount: Mounted, path: PathBuf) -> Result<Target> {
        crate::guest_status::no_guests_mount(&mount)?;
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

/// The argument that mounts this source again. Sources in memory carry a suffix that distinguishes them.
/// Users do not type it.
fn again(source: &str) -> &str {
    match source.split_once(api::source::MARK) {
        _ if source.starts_with("mem:") => "mem:",
        _ if api::source::tree(source).is_some() => api::source::tree(source).unwrap_or(source),
        Some((corpus, _)) if source.starts_with(corpus::spec::PREFIX) => corpus,
        _ => source,
    }
}

/// Resolves a path that exists.
pub fn resolve(text: &Path) -> Result<Target> {
    find(text, false)
}

/// Resolves a path for a command that takes a whole volume. A volume's folder can lie on the mount of another
/// volume. Then the folder's volume is meant, and not a place on the mount.
pub fn resolve_volume(text: &Path) -> Result<Target> {
    if is_volume(text)? { in_volume(text, Path::new("")) } else { resolve(text) }
}

/// The address of the names of a shared volume: `place` is that address, a mount of the volume, or a node's
/// folder. None for volumes that are not shared.
pub fn names_of(place: &Path) -> Result<Option<String>> {
    if node::shared::making::is_address(place) {
        return Ok(Some(place.to_string_lossy().into_owned()));
    }
    let dir = match resolve_volume(place)? {
        Target::Mounted(place) => VolumeDir::open(Path::new(&place.mount.source)).ok(),
        Target::Closed { dir, .. } => Some(dir),
    };
    Ok(dir.and_then(|dir| dir.format().names.clone()))
}

/// The failure for a command that is for shared volumes only.
pub fn not_shared(place: &Path) -> Failure {
    Failure::new("not-shared", format!("{} is no shared volume", place.display()))
        .why("one process uses it at a time")
        .next("covey format postgres://USER@HOST/DATABASE?volume=NAME --origin URL makes a shared one, and so does etcd://HOST:2379/?volume=NAME")
}

/// Whether this is the folder of a volume. A Covey mount is never one, whatever files it shows.
pub fn is_volume(path: &Path) -> Result<bool> {
    let mount = mounts::at(path)?;
    Ok(!mount.is_some_and(|mount| mounts::is_covey(&mount)) && VolumeDir::open(path).is_ok())
}

/// Resolves a path at which something is to be created. Its last component need not exist.
pub fn resolve_new(text: &Path) -> Result<Target> {
    find(text, true)
}

fn find(text: &Path, new: bool) -> Result<Target> {
    if let Some(failure) = address(text) {
        return Err(failure);
    }
    mounts::check_way(text)?;
    if let Some((volume, inner)) = split(text) {
        return in_volume(&volume, &inner);
    }
    let path = name(text)?;
    // Paths on a dead mount cannot be examined. They count as existing.
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
        let (mount, path) = mounts::on_the_whole(mount, path)?;
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

/// The failure for an address where a path is wanted. Otherwise, `s3://x` would be the place `//x` in a volume
/// in the folder `s3`.
fn address(text: &Path) -> Option<Failure> {
    let whole = text.to_str().filter(|whole| whole.contains("://"))?;
    if split(text).is_some() {
        return None;
    }
    let failure = Failure::usage(format!("{whole} is an address, and this command takes a path"));
    Some(match node::shared::making::is_address(text) {
        true => failure.next(format!("name a mount of it; covey mount -d '{whole}' MOUNTPOINT makes one")),
        false => {
            failure.next("name a path on a mount (covey df lists them), a volume's folder, or VOLUME:/PATH")
        }
    })
}

/// The place in a volume. If the volume is mounted, it is reached through the mount.
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

/// Splits `VOLUME:/PATH` into its two parts, if the first is a volume.
fn split(text: &Path) -> Option<(PathBuf, PathBuf)> {
    let bytes = text.as_os_str().as_bytes();
    let part = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let at = (0..bytes.len())
        .find(|&at| bytes[at..].starts_with(b":/") && part(&bytes[..at]).join("covey.json").is_file())?;
    let inner = part(&bytes[at + 1..]);
    Some((part(&bytes[..at]), archive::import::inside(&inner)?))
}

/// The part that is the volume if the text means `VOLUME:/PATH`.
fn before_colon(text: &Path) -> Option<&Path> {
    let bytes = text.as_os_str().as_bytes();
    let at = bytes.windows(2).position(|two| two == b":/")?;
    Some(Path::new(OsStr::from_bytes(&bytes[..at])))
}

/// The absolute path of the name itself. Links on the way are followed. A link at the end is not.
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
        for (text, next) in [("postgres://a@b/c?volume=d", "covey mount -d"), ("s3://b/p@x", "VOLUME:/PATH")]
        {
            let failure = resolve(Path::new(text)).unwrap_err();
            assert!(failure.status == 2 && failure.to_string().contains(next), "{failure}");
        }
        assert_eq!(resolve(&temp.path().join("none/at/all")).unwrap_err().code, "not-found");
    }
}
