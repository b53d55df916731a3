//! One overlayfs mount of an image's layers, below a folder that takes what is written.
//!
//! Since Linux 6.7 each layer is handed over by itself. Older kernels take all of them in one text of at most
//! a page, so an image with many layers cannot be mounted there.
//!
//! Device nodes of an image do nothing: the mount is `nodev`, as that of a published tree, and runtimes make
//! a /dev of their own. Set-user-id bits do work, because programs of containers need them.

use std::ffi::CString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use rustix::fd::OwnedFd;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount, move_mount,
};

/// The source that the table of mounts shows.
pub use crate::cmd::umount::IMAGE as SOURCE;
/// The longest text of options that mount(2) takes, in bytes.
const OPTIONS_MAX: usize = 4095;

/// What a mount of an image consists of.
#[derive(Debug)]
pub struct Overlay<'a> {
    /// The layers' folders, the highest first.
    pub lower: &'a [PathBuf],
    /// Where writes go.
    pub upper: &'a Path,
    /// A folder that overlayfs needs on the same filesystem.
    pub work: &'a Path,
    /// What is written need not be on the disk, ever: it is removed at the unmount, and after a crash.
    /// Without this, an unmount first writes out everything that the machine has not written to the disk of
    /// `upper`, of whatever program, which can take minutes.
    pub temporary: bool,
}

impl Overlay<'_> {
    /// Mounts it.
    ///
    /// # Errors
    /// The kernel refuses. The failure has its words.
    pub fn mount(&self, at: &Path) -> Result<()> {
        match self.by_steps(at) {
            Ok(()) => Ok(()),
            Err(Refused::NoSuchWord) => self.at_once(at),
            Err(Refused::Failed(error, said)) => Err(refused(at, &error, &said)),
        }
    }

    fn by_steps(&self, at: &Path) -> std::result::Result<(), Refused> {
        let early = |error: rustix::io::Errno| Refused::Failed(error.into(), String::new());
        let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(early)?;
        let failed = |error: rustix::io::Errno| Refused::Failed(error.into(), said(&fs));
        let set = |key: &str, value: &[u8]| fsconfig_set_string(&fs, key, value);
        set("source", SOURCE.as_bytes()).map_err(failed)?;
        for (layer, at) in self.lower.iter().zip(0..) {
            match set("lowerdir+", layer.as_os_str().as_bytes()) {
                Err(rustix::io::Errno::INVAL) if at == 0 => return Err(Refused::NoSuchWord),
                other => other.map_err(failed)?,
            }
        }
        set("upperdir", self.upper.as_os_str().as_bytes()).map_err(failed)?;
        set("workdir", self.work.as_os_str().as_bytes()).map_err(failed)?;
        set("index", b"off").map_err(failed)?;
        if self.temporary {
            fsconfig_set_flag(&fs, "volatile").map_err(failed)?;
        }
        fsconfig_create(&fs).map_err(failed)?;
        let made =
            fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV).map_err(failed)?;
        move_mount(&made, "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(failed)
    }

    fn at_once(&self, at: &Path) -> Result<()> {
        let options = self.options();
        if options.len() > OPTIONS_MAX {
            return Err(Failure::new("unsupported", format!("cannot mount {} layers", self.lower.len()))
                .why("this kernel takes the names of all layers in one page")
                .next("use Linux 6.7 or newer, or a shorter path to the images"));
        }
        let text = CString::new(options).map_err(|_| Failure::usage("a path has a NUL in it"))?;
        mount(SOURCE, at, "overlay", MountFlags::NODEV, Some(text.as_c_str()))
            .map_err(|error| refused(at, &error.into(), ""))
    }

    fn options(&self) -> Vec<u8> {
        let lower: Vec<Vec<u8>> =
            self.lower.iter().map(|layer| escaped(layer.as_os_str().as_bytes(), b"\\:,")).collect();
        let mut text = b"lowerdir=".to_vec();
        text.extend(lower.join(&b':'));
        for (key, folder) in [("upperdir", self.upper), ("workdir", self.work)] {
            text.extend(format!(",{key}=").into_bytes());
            text.extend(escaped(folder.as_os_str().as_bytes(), b"\\,"));
        }
        text.extend(b",index=off");
        if self.temporary {
            text.extend(b",volatile");
        }
        text
    }
}

/// Why it was not mounted step by step.
enum Refused {
    /// An older kernel.
    NoSuchWord,
    Failed(io::Error, String),
}

/// What the kernel says of a mount that is being made, in one line.
fn said(fs: &OwnedFd) -> String {
    let Ok(fs) = fs.try_clone() else { return String::new() };
    let (mut file, mut lines, mut line) = (std::fs::File::from(fs), Vec::new(), [0; 1024]);
    while let Ok(len @ 1..) = file.read(&mut line) {
        lines.push(String::from_utf8_lossy(&line[..len]).trim().to_owned());
    }
    lines.join("; ")
}

fn refused(at: &Path, error: &io::Error, said: &str) -> Failure {
    let failure = Failure::io(format!("cannot mount the image at {}", at.display()), error);
    let failure = if said.is_empty() { failure } else { failure.why(format!("the kernel says: {said}")) };
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENODEV) => failure
            .next("the upper folder must be on a disk's own filesystem, such as ext4 or XFS: --upper DIR"),
        _ => failure,
    }
}

/// Puts a backslash before each of these bytes.
fn escaped(text: &[u8], special: &[u8]) -> Vec<u8> {
    text.iter().flat_map(|byte| special.contains(byte).then_some(b'\\').into_iter().chain([*byte])).collect()
}

/// Unmounts what is mounted at a path.
///
/// # Errors
/// It is in use, or nothing is mounted there.
pub fn end(at: &Path) -> io::Result<()> {
    base::lock::unmount(at, UnmountFlags::NOFOLLOW).map_err(io::Error::from)
}

/// Whether an image is mounted at a path.
pub fn is_at(at: &Path) -> bool {
    fuse::mount::find(at).is_some_and(|mount| mount.kind == "overlay" && mount.source == SOURCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_gets_one_text() {
        let lower = [PathBuf::from("/m/a:b,c"), PathBuf::from("/m/d\\e")];
        let overlay = Overlay {
            lower: &lower,
            upper: Path::new("/u/p,q:r"),
            work: Path::new("/u/w"),
            temporary: false,
        };
        let text = String::from_utf8(overlay.options()).unwrap();
        assert_eq!(text, "lowerdir=/m/a\\:b\\,c:/m/d\\\\e,upperdir=/u/p\\,q:r,workdir=/u/w,index=off");
        let temporary = String::from_utf8(Overlay { temporary: true, ..overlay }.options()).unwrap();
        assert_eq!(temporary, format!("{text},volatile"));
        let many: Vec<PathBuf> = (0..100).map(|n| PathBuf::from(format!("/images/{n:064}"))).collect();
        let overlay =
            Overlay { lower: &many, upper: Path::new("/u"), work: Path::new("/w"), temporary: true };
        assert_eq!(overlay.at_once(Path::new("/nowhere")).unwrap_err().code, "unsupported");
    }
}
