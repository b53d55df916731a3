//! A volume that is not mounted as a source. It calls the filesystem as the kernel would, and changes
//! nothing.
//!
//! The walk is in name order. For the folders on the current path, it holds only names.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use api::error::{Failure, Result};
use base::Ino;
use fs::Errno;
use fs::api::{Attr, FileKind, Filesystem, Seek};

use crate::PIECE;
use crate::import::{Item, Kind, Step, errno_failure};
use crate::transfer::{Feed, Hangup, Source};

type Sent<T> = std::result::Result<T, Hangup>;

/// A folder of a volume that this process has opened.
pub struct Inside {
    volume: Arc<dyn Filesystem>,
    shown: String,
    root: Ino,
    /// Number of inodes below the root, if known.
    expected: u64,
    /// First names of files that have several, by inode.
    links: HashMap<Ino, PathBuf>,
    /// Folders visited so far. A sound volume has each once. A crafted one could make the walk endless.
    folders: HashSet<Ino>,
}

impl Inside {
    /// Opens the folder `root` of the volume. `shown` is the volume's name for people.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn new(volume: Arc<dyn Filesystem>, shown: &str, root: &Path) -> Result<Inside> {
        let shown = format!("{shown}:/{}", root.display());
        let failed = |errno: Errno| errno_failure(format!("cannot open {shown}"), errno);
        let mut at = volume.getattr(Ino::ROOT).map_err(failed)?;
        for part in root.components() {
            let found = volume.lookup(at.ino, part.as_os_str().as_bytes()).map_err(failed)?;
            volume.forget(found.attr.ino, 1);
            at = found.attr;
        }
        if at.kind != FileKind::Dir {
            return Err(
                Failure::usage(format!("{shown} is not a folder")).next("name the folder that it is in")
            );
        }
        let whole = root.as_os_str().is_empty();
        let expected = if whole { volume.statfs(base::Ino::ROOT).map_or(0, |room| room.inodes) } else { 0 };
        Ok(Inside { volume, shown, root: at.ino, expected, links: HashMap::new(), folders: HashSet::new() })
    }

    fn full(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("{}/", self.shown.trim_end_matches('/'))).join(path)
    }

    fn skip(&self, path: &Path, what: &str, errno: Errno, feed: &Feed) {
        let why = api::error::plain(&std::io::Error::from_raw_os_error(errno.0));
        feed.skip(&self.full(path), format!("{what}{why}"));
    }

    /// Sends one entry. Returns its inode number if it is a folder to walk into.
    fn entry(&mut self, path: &Path, ino: Ino, feed: &Feed) -> Sent<Option<Ino>> {
        feed.counters.at.fetch_add(1, Ordering::Relaxed);
        let read = self.volume.getattr(ino).and_then(|attr| Ok((attr, self.item(path, &attr)?)));
        let (attr, item) = match read {
            Ok(both) => both,
            Err(errno) => {
                self.skip(path, "", errno, feed);
                return Ok(None);
            }
        };
        if attr.kind == FileKind::Dir && !self.folders.insert(ino) {
            feed.skip(&self.full(path), "a folder that has two names or is within itself: run covey fsck");
            return Ok(None);
        }
        let is_first = !matches!(item.kind, Kind::HardLink(_));
        if attr.kind != FileKind::Dir && attr.nlink > 1 && is_first {
            self.links.insert(ino, path.to_owned());
        }
        match item.kind {
            Kind::File { .. } => self.contents(path, &attr, item, feed)?,
            _ => feed.send(Step::Item(item))?,
        }
        Ok((attr.kind == FileKind::Dir).then_some(ino))
    }

    fn item(&self, path: &Path, attr: &Attr) -> fs::api::Result<Item> {
        let kind = match self.links.get(&attr.ino) {
            Some(first) if attr.kind != FileKind::Dir => Kind::HardLink(first.clone()),
            _ => self.kind(attr)?,
        };
        let xattrs = if matches!(kind, Kind::HardLink(_)) { Vec::new() } else { self.xattrs(attr.ino)? };
        Ok(Item {
            path: path.to_owned(),
            kind,
            perm: u32::from(attr.perm),
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            xattrs,
        })
    }

    fn kind(&self, attr: &Attr) -> fs::api::Result<Kind> {
        Ok(match attr.kind {
            FileKind::Dir => Kind::Dir,
            FileKind::File => Kind::File { size: attr.size },
            FileKind::Symlink => Kind::Symlink(OsString::from_vec(self.volume.readlink(attr.ino)?)),
            kind => Kind::Node { format: kind.mode_bits(), rdev: device(attr.rdev) },
        })
    }

    fn xattrs(&self, ino: Ino) -> fs::api::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = match self.volume.listxattr(ino) {
            Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
            other => other?,
        };
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        names.map(|name| Ok((name.to_vec(), self.volume.getxattr(ino, name)?))).collect()
    }

    /// The names in a folder with their inode numbers, last first.
    fn names(&self, path: &Path, ino: Ino, feed: &Feed) -> Vec<(OsString, Ino)> {
        let mut names = Vec::new();
        let read = self.volume.readdir(ino, 0, &mut |entry| {
            if meta::key::is_name(entry.name) {
                names.push((OsStr::from_bytes(entry.name).to_owned(), entry.ino));
            } else if !matches!(entry.name, b"." | b"..") {
                let shown = self.full(path).join(entry.name.escape_ascii().to_string());
                feed.skip(&shown, "it has what cannot be a name: run covey fsck");
            }
            ControlFlow::Continue(())
        });
        if let Err(errno) = read {
            self.skip(path, "could be listed only in part: ", errno, feed);
        }
        names.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        names
    }

    fn walk(&mut self, feed: &Feed) -> Sent<()> {
        let Some(root) = self.entry(Path::new(""), self.root, feed)? else { return Ok(()) };
        let mut stack = vec![(PathBuf::new(), self.names(Path::new(""), root, feed))];
        while let Some((folder, names)) = stack.last_mut() {
            let Some((name, ino)) = names.pop() else {
                stack.pop();
                continue;
            };
            let path = folder.join(name);
            if let Some(ino) = self.entry(&path, ino, feed)? {
                let names = self.names(&path, ino, feed);
                stack.push((path, names));
            }
        }
        Ok(())
    }

    /// Sends a regular file and as many of its bytes as can be read.
    fn contents(&self, path: &Path, attr: &Attr, item: Item, feed: &Feed) -> Sent<()> {
        let ranges = match self.data_of(attr) {
            Ok(ranges) => ranges,
            Err(errno) => {
                self.skip(path, "", errno, feed);
                return Ok(());
            }
        };
        feed.send(Step::Item(item))?;
        if ranges != [(0, attr.size)] {
            feed.send(Step::Ranges(ranges.clone()))?;
        }
        'file: for (start, len) in ranges {
            let (mut at, end) = (start, start + len);
            while at < end {
                let mut buf = vec![0; (end - at).min(PIECE as u64) as usize];
                match self.volume.read(attr.ino, at, &mut buf) {
                    Ok(0) => break 'file,
                    Ok(got) => {
                        buf.truncate(got);
                        feed.send(Step::Piece(at, buf))?;
                        at += got as u64;
                    }
                    Err(errno) => {
                        self.skip(path, "could be read only in part: ", errno, feed);
                        break 'file;
                    }
                }
            }
        }
        feed.send(Step::End)
    }

    /// The data ranges of a file, each as start and length in bytes.
    fn data_of(&self, attr: &Attr) -> fs::api::Result<Vec<(u64, u64)>> {
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < attr.size {
            let start = match self.volume.seek(attr.ino, at, Seek::Data) {
                Ok(start) => start,
                Err(Errno::ENXIO) => break,
                Err(errno) => return Err(errno),
            };
            let end = self.volume.seek(attr.ino, start, Seek::Hole)?.min(attr.size);
            if start >= end {
                break;
            }
            ranges.push((start, end - start));
            at = end;
        }
        // An empty file has no hole.
        Ok(if attr.size == 0 { vec![(0, 0)] } else { ranges })
    }
}

impl Source for Inside {
    fn run(&mut self, feed: &Feed) -> Result<()> {
        feed.counters.expected.store(self.expected, Ordering::Relaxed);
        // A hangup means that the sink failed. The sink's failure is reported there.
        let _ = self.walk(feed);
        Ok(())
    }
}

/// Unpacks a device number that the kernel packed into 32 bits.
fn device(packed: u32) -> u64 {
    let (major, minor) = (packed >> 8 & 0xfff, (packed & 0xff) | (packed >> 12 & 0xf_ff00));
    libc::makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_taken_apart() {
        for (major, minor) in [(1, 3), (8, 0), (259, 70_000), (0xfff, 0xf_ffff)] {
            let packed = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
            let found = device(packed);
            assert_eq!((libc::major(found), libc::minor(found)), (major, minor));
        }
    }
}
