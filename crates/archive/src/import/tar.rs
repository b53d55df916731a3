//! A tar archive as a source, plain or compressed ([`unpack`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::error::{Context, Failure, Result, plain};
use base::Must;

use super::bounds::Bounds;
use super::unpack::{Bytes, unpack};
use super::{Item, Kind, Step, inside};
use crate::Entry;
use crate::acl::{self, Subject};
use crate::read::Reader;
use crate::sys::people;
use crate::transfer::{Feed, Hangup, Source};

/// An archive to import.
pub struct Tar {
    name: String,
    bytes: Option<Bytes>,
    size: u64,
    read: Arc<AtomicU64>,
    bounds: Bounds,
}

impl Tar {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is no archive that can be imported.
    pub fn open(path: &Path, bounds: Bounds) -> Result<Tar> {
        let file = File::open(path).at("open", path)?;
        let about = file.metadata().at("open", path)?;
        // The size of a pipe is not known.
        let size = if about.is_file() { about.len() } else { 0 };
        bounds.packed(size);
        Tar::new(path.display().to_string(), Box::new(file), size, bounds)
    }

    /// Reads an archive from a stream, for example standard input. `name` is its name for people.
    ///
    /// # Errors
    /// As [`Tar::open`].
    pub fn stream(name: &str, bytes: Box<dyn Read + Send>, bounds: Bounds) -> Result<Tar> {
        Tar::new(name.to_owned(), bytes, 0, bounds)
    }

    fn new(name: String, bytes: Bytes, size: u64, bounds: Bounds) -> Result<Tar> {
        let read = Arc::new(AtomicU64::new(0));
        let growing = (size == 0).then(|| bounds.clone());
        let counted = Counted { inner: bytes, read: read.clone(), growing };
        let bytes = unpack(&name, Box::new(counted), &bounds)?;
        Ok(Tar { name, bytes: Some(bytes), size, read, bounds })
    }

    fn broken(&self, error: &io::Error) -> Failure {
        let before = "what came before that point has been imported";
        if let Some(refused) = self.bounds.refusal() {
            return refused.why(before);
        }
        Failure::new("damaged", format!("the archive {} cannot be read to its end", self.name))
            .why(plain(error))
            .next(format!("{before}; get the archive again"))
    }
}

/// Counts the bytes read from the file, before decompression. Progress is measured in them.
struct Counted {
    inner: Bytes,
    read: Arc<AtomicU64>,
    /// The bounds of an archive whose size is not known before.
    growing: Option<Bounds>,
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        if let Some(bounds) = &self.growing {
            bounds.packed(got as u64);
        }
        self.read.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

impl Source for Tar {
    fn run(&mut self, feed: &Feed) -> Result<()> {
        let bytes = self.bytes.take().must("a source runs once");
        feed.counters.expected.store(self.size, Ordering::Relaxed);
        let mut reader = Reader::new(bytes);
        loop {
            match self.one(&mut reader, feed) {
                Ok(Some(Ok(()))) => {}
                Ok(Some(Err(Hangup)) | None) => return Ok(()),
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }
}

impl Tar {
    /// Asks the bounds. Of a stream, nobody knows what it may hold before it was read.
    fn admit(&self, entry: &Entry) -> Result<()> {
        self.bounds.entry()?;
        if self.size == 0 { Ok(()) } else { self.bounds.member(entry.data.iter().map(|(_, len)| len).sum()) }
    }

    /// Sends one member. Returns none at the end. An error concerns the archive itself.
    fn one(
        &self,
        reader: &mut Reader<Bytes>,
        feed: &Feed,
    ) -> io::Result<Option<std::result::Result<(), Hangup>>> {
        let Some(mut entry) = reader.next_member()? else {
            return Ok(None);
        };
        self.admit(&entry).map_err(|failure| io::Error::other(failure.what))?;
        let at = || feed.counters.at.store(self.read.load(Ordering::Relaxed), Ordering::Relaxed);
        at();
        let named = Path::new(OsStr::from_bytes(&entry.path)).to_owned();
        let Some(path) = inside(&named) else {
            feed.skip(&named, "its path leads out of the archive (..)");
            return Ok(Some(Ok(())));
        };
        let item = match item(&mut entry, path, &mut |why| feed.skip(&named, why)) {
            Ok(item) => item,
            Err(why) => {
                feed.skip(&named, why);
                return Ok(Some(Ok(())));
            }
        };
        let is_file = matches!(item.kind, Kind::File { .. });
        let mut outcome = feed.send(Step::Item(item));
        if is_file && outcome.is_ok() {
            reader.data(&entry, &mut |offset, piece| {
                at();
                outcome = feed.send(Step::Piece(offset, piece));
                outcome.is_ok()
            })?;
            if outcome.is_ok() {
                outcome = feed.send(Step::End);
            }
        }
        Ok(Some(outcome))
    }
}

/// The item that a member becomes at this path. `left_out` receives what of it cannot be converted.
///
/// # Errors
/// Why the member cannot become a file.
pub fn item(
    entry: &mut Entry,
    path: PathBuf,
    left_out: &mut dyn FnMut(String),
) -> std::result::Result<Item, String> {
    let kind = kind(entry)?;
    take_acls(entry, left_out);
    let id = |id: u64| u32::try_from(id).unwrap_or(65_534);
    Ok(Item {
        path,
        kind,
        perm: entry.mode,
        uid: id(entry.uid),
        gid: id(entry.gid),
        atime: entry.atime.unwrap_or(entry.mtime),
        mtime: entry.mtime,
        xattrs: std::mem::take(&mut entry.xattrs),
    })
}

/// Converts the member's access control lists to attributes. `left_out` receives those that cannot be
/// converted.
fn take_acls(entry: &mut Entry, left_out: &mut dyn FnMut(String)) {
    let find = |who, name: &str| match who {
        Subject::User => people::user(name),
        Subject::Group => people::group(name),
    };
    for (name, text) in std::mem::take(&mut entry.acls) {
        let is_there = entry.xattrs.iter().any(|(other, _)| other == name);
        // Symbolic links have no ACL, and only folders have a default ACL.
        let can_have = match entry.kind {
            b'1' | b'2' => false,
            b'5' => true,
            _ => name == acl::ACCESS,
        };
        if is_there || !can_have {
            continue;
        }
        match acl::parse(&text, &find) {
            // This list says no more than the permission bits.
            Ok(bytes) if bytes.len() <= 4 + 3 * 8 && name == acl::ACCESS => {}
            Ok(bytes) => entry.xattrs.push((name.to_vec(), bytes)),
            Err(why) => left_out(why),
        }
    }
    std::mem::take(&mut entry.unknown).into_iter().for_each(left_out);
}

/// The kind of a member, or why it cannot become a file.
fn kind(entry: &Entry) -> std::result::Result<Kind, String> {
    let (major, minor) = entry.device;
    let node = |format| Kind::Node { format, rdev: libc::makedev(major, minor) };
    Ok(match entry.kind {
        b'0' => Kind::File { size: entry.size },
        b'1' => match inside(Path::new(OsStr::from_bytes(&entry.link))) {
            Some(first) => Kind::HardLink(first),
            None => return Err("a hard link to what is not in the archive (..)".to_owned()),
        },
        b'2' => Kind::Symlink(OsStr::from_bytes(&entry.link).to_owned()),
        b'3' => node(libc::S_IFCHR),
        b'4' => node(libc::S_IFBLK),
        b'5' => Kind::Dir,
        b'6' => Kind::Node { format: libc::S_IFIFO, rdev: 0 },
        other => return Err(format!("a member of type {:?}, which is no file", char::from(other))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_climbs_is_refused() {
        assert_eq!(inside(Path::new("/a/./b")), Some("a/b".into()));
        assert_eq!(inside(Path::new("a/../../b")), None);
    }
}
