//! A folder as a source. It is walked in name order, and symbolic links are never followed.
//!
//! Each entry is opened once, below the open root and through no link on the way. Everything is then read
//! from that descriptor. So if root imports a user's folder, the user cannot replace an entry with a link
//! after it was examined.
//!
//! A second thread counts the entries at the same time, to give progress a total. The count has no other use.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::error::{Context, Failure, Result, plain};
use base::Timestamp;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2, readlinkat};

use super::{Item, Kind, Step};
use crate::PIECE;
use crate::sys;
use crate::transfer::{Counters, Feed, Hangup, Source};

/// A folder to import.
pub struct Folder {
    root: PathBuf,
    fd: OwnedFd,
    /// The device of the destination. The walk does not enter it.
    not_into: Option<u64>,
    /// First names of files that have several, by device and inode.
    links: HashMap<(u64, u64), PathBuf>,
}

impl Folder {
    /// Opens the folder `root`. `not_into` is the device number of the destination, if that is mounted.
    pub fn new(root: &Path, not_into: Option<u64>) -> Result<Folder> {
        let root = fs::canonicalize(root).at("open", root)?;
        if not_into.is_some_and(|device| fs::metadata(&root).is_ok_and(|meta| meta.dev() == device)) {
            return Err(Failure::usage(format!("{} lies on the volume itself", root.display()))
                .next("copy within a volume with covey clone: it takes no room and no time"));
        }
        let fd = File::open(&root).at("open", &root)?.into();
        Ok(Folder { root, fd, not_into, links: HashMap::new() })
    }

    /// Opens an entry itself with `O_PATH`, only to examine it.
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        if path.as_os_str().is_empty() {
            return self.fd.try_clone();
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        Ok(openat2(&self.fd, path, flags, Mode::empty(), how)?)
    }

    /// Sends one entry. Returns true if it is a folder to walk into.
    fn entry(&mut self, path: &Path, feed: &Feed) -> std::result::Result<bool, Hangup> {
        feed.counters.at.fetch_add(1, Ordering::Relaxed);
        let full = join(&self.root, path);
        let read = || -> io::Result<(OwnedFd, Metadata, Item)> {
            let fd = self.open(path)?;
            let meta = fs::metadata(sys::metadata::path(&fd))?;
            let item = self.item(path, &fd, &meta)?;
            Ok((fd, meta, item))
        };
        let (fd, meta, item) = match read() {
            Ok(all) => all,
            Err(error) => {
                feed.skip(&full, plain(&error));
                return Ok(false);
            }
        };
        if self.not_into == Some(meta.dev()) {
            feed.skip(&full, "it is the volume that is being imported into");
            return Ok(false);
        }
        let is_file = matches!(item.kind, Kind::File { .. });
        if !meta.is_dir() && meta.nlink() > 1 && !matches!(item.kind, Kind::HardLink(_)) {
            self.links.insert((meta.dev(), meta.ino()), path.to_owned());
        }
        if is_file {
            contents(&fd, &full, &meta, item, feed)?;
        } else {
            feed.send(Step::Item(item))?;
        }
        Ok(meta.is_dir())
    }

    fn item(&self, path: &Path, fd: &OwnedFd, meta: &Metadata) -> io::Result<Item> {
        let first_name = self.links.get(&(meta.dev(), meta.ino())).filter(|_| !meta.is_dir());
        let kind = match first_name {
            Some(first) => Kind::HardLink(first.clone()),
            None => kind(fd, meta)?,
        };
        let xattrs = if matches!(kind, Kind::HardLink(_)) { Vec::new() } else { sys::xattrs(fd)? };
        let nanos = |n: i64| u32::try_from(n).unwrap_or(0);
        Ok(Item {
            path: path.to_owned(),
            kind,
            perm: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            atime: Timestamp::from_parts(meta.atime(), nanos(meta.atime_nsec())),
            mtime: Timestamp::from_parts(meta.mtime(), nanos(meta.mtime_nsec())),
            xattrs,
        })
    }

    /// Walks below `path`. For the folders on the current path it holds only names.
    fn walk(&mut self, feed: &Feed) -> std::result::Result<(), Hangup> {
        if !self.entry(Path::new(""), feed)? {
            return Ok(());
        }
        let mut stack = vec![(PathBuf::new(), self.names(Path::new(""), feed))];
        while let Some((folder, names)) = stack.last_mut() {
            let Some(name) = names.pop() else {
                stack.pop();
                continue;
            };
            let path = folder.join(name);
            if self.entry(&path, feed)? {
                let names = self.names(&path, feed);
                stack.push((path, names));
            }
        }
        Ok(())
    }

    /// The names in a folder, last first.
    fn names(&self, path: &Path, feed: &Feed) -> Vec<OsString> {
        let full = join(&self.root, path);
        let read = || {
            let fd = self.open(path)?;
            let entries = fs::read_dir(sys::metadata::path(&fd))?;
            entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<OsString>>>()
        };
        match read() {
            Ok(mut names) => {
                names.sort_unstable_by(|a, b| b.cmp(a));
                names
            }
            Err(error) => {
                feed.skip(&full, plain(&error));
                Vec::new()
            }
        }
    }
}

/// Joins two paths. An empty `path` adds no trailing slash.
fn join(root: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { root.to_owned() } else { root.join(path) }
}

impl Source for Folder {
    fn run(&mut self, feed: &Feed) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let (root, counters, stopped) = (self.root.clone(), feed.counters.clone(), stop.clone());
        let counter = base::thread::spawn("covey-count", move || count(&root, &counters, &stopped));
        // A hangup means that the sink failed. The sink's failure is reported there.
        let _ = self.walk(feed);
        stop.store(true, Ordering::Relaxed);
        if let Ok(counter) = counter {
            let _ = counter.join();
        }
        Ok(())
    }
}

fn count(root: &Path, counters: &Counters, stop: &AtomicBool) {
    let mut total = 1u64;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            total += 1;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    counters.expected.store(total, Ordering::Relaxed);
}

fn kind(fd: &OwnedFd, meta: &Metadata) -> io::Result<Kind> {
    let kind = meta.file_type();
    Ok(if kind.is_dir() {
        Kind::Dir
    } else if kind.is_file() {
        Kind::File { size: meta.size() }
    } else if kind.is_symlink() {
        Kind::Symlink(OsString::from_vec(readlinkat(fd, "", Vec::new())?.into_bytes()))
    } else {
        let device = kind.is_char_device() || kind.is_block_device();
        Kind::Node { format: meta.mode() & libc::S_IFMT, rdev: if device { meta.rdev() } else { 0 } }
    })
}

/// Sends a regular file and its bytes. A file that cannot be opened is left out. If a file cannot be read to
/// its end, the bytes that were read are kept and the rest is noted.
fn contents(
    fd: &OwnedFd,
    full: &Path,
    meta: &Metadata,
    item: Item,
    feed: &Feed,
) -> std::result::Result<(), Hangup> {
    let open = File::open(sys::metadata::path(fd));
    let ranges = open.and_then(|file| Ok((data_of(&file, meta)?, file)));
    let (ranges, file) = match ranges {
        Ok(both) => both,
        Err(error) => {
            feed.skip(full, plain(&error));
            return Ok(());
        }
    };
    feed.send(Step::Item(item))?;
    if ranges != [(0, meta.size())] {
        feed.send(Step::Ranges(ranges.clone()))?;
    }
    for (start, len) in ranges {
        if let Err(error) = pieces(&file, start, start + len, feed)? {
            feed.skip(full, format!("could be read only in part: {}", plain(&error)));
            break;
        }
    }
    feed.send(Step::End)
}

/// The data ranges of a file, each as start and length in bytes.
fn data_of(file: &File, meta: &Metadata) -> io::Result<Vec<(u64, u64)>> {
    let size = meta.size();
    if meta.blocks() * 512 >= size {
        return Ok(vec![(0, size)]);
    }
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some((start, end)) = sys::next_data(file, at)? {
        // If the file grows in the meantime, the new part is ignored.
        let end = end.min(size);
        if start >= end {
            break;
        }
        ranges.push((start, end - start));
        at = end;
    }
    Ok(ranges)
}

/// Sends a range of data. If the file shrank in the meantime, the range ends early.
fn pieces(file: &File, start: u64, end: u64, feed: &Feed) -> std::result::Result<io::Result<()>, Hangup> {
    let mut at = start;
    while at < end {
        let mut buf = vec![0; (end - at).min(PIECE as u64) as usize];
        let got = match file.read_at(&mut buf, at) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Ok(Err(error)),
        };
        buf.truncate(got);
        feed.send(Step::Piece(at, buf))?;
        at += got as u64;
    }
    Ok(Ok(()))
}
