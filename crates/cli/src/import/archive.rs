//! A tar archive as a source, plain or compressed with gzip or zstd; which it is follows from its first bytes, never from its name.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::{Must, Timestamp};
use tar::{Archive, Entry, EntryType};

use crate::error::{Context, Failure, Result, plain};
use crate::import::{Counters, Feed, Hangup, Item, Kind, PIECE, Source, Step, inside};

type Bytes = Box<dyn Read + Send>;

/// An archive to import.
pub struct Tar {
    name: String,
    bytes: Option<Bytes>,
    size: u64,
    read: Arc<AtomicU64>,
}

impl Tar {
    /// A file, or standard input when the path is `-`.
    pub fn open(path: &Path) -> Result<Tar> {
        let name = path.display().to_string();
        let (bytes, size): (Bytes, u64) = if path == Path::new("-") {
            (Box::new(io::stdin()), 0)
        } else {
            let file = File::open(path).at("open", path)?;
            let size = file.metadata().at("open", path)?.len();
            (Box::new(file), size)
        };
        let read = Arc::new(AtomicU64::new(0));
        let counted = Counted { inner: bytes, read: read.clone() };
        let bytes = unpack(&name, Box::new(counted))?;
        Ok(Tar { name, bytes: Some(bytes), size, read })
    }

    fn broken(&self, error: &io::Error) -> Failure {
        Failure::new("damaged", format!("the archive {} cannot be read to its end", self.name))
            .why(plain(error))
            .next("what came before that point has been imported; get the archive again")
    }
}

/// Counts what is read of the file itself, before decompression: that is the measure of progress.
struct Counted {
    inner: Bytes,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        self.read.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

/// Decompresses, if it is compressed, and makes sure that a tar archive is inside.
fn unpack(name: &str, bytes: Bytes) -> Result<Bytes> {
    let (head, bytes) = peek(name, bytes)?;
    let plain: Bytes = match head.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(bytes)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            Box::new(zstd::Decoder::new(bytes).or_fail(|| format!("cannot decompress {name}"))?)
        }
        [0xfd, b'7', b'z', b'X', b'Z', ..] => return Err(packed(name, "xz")),
        [b'B', b'Z', b'h', ..] => return Err(packed(name, "bzip2")),
        [b'P', b'K', 3, 4, ..] => {
            return Err(
                no_archive(name, "it is a zip file").next("unpack it with unzip and import the folder")
            );
        }
        _ => bytes,
    };
    let (head, plain) = peek(name, plain)?;
    if is_tar(&head) {
        return Ok(plain);
    }
    Err(no_archive(name, "it is neither a folder nor a tar archive (plain, gzip or zstd)")
        .next("copy a single file with cp"))
}

fn packed(name: &str, program: &str) -> Failure {
    no_archive(name, &format!("it is compressed with {program}"))
        .next(format!("decompress it on the way: {program} -dc {name} | covey import - DESTINATION"))
}

fn no_archive(name: &str, why: &str) -> Failure {
    Failure::new("not-an-archive", format!("{name} cannot be imported")).why(why)
}

/// The first block, and a reader that still begins with it.
fn peek(name: &str, mut bytes: Bytes) -> Result<(Vec<u8>, Bytes)> {
    let mut head = Vec::with_capacity(512);
    bytes.by_ref().take(512).read_to_end(&mut head).or_fail(|| format!("cannot read {name}"))?;
    Ok((head.clone(), Box::new(Cursor::new(head).chain(bytes))))
}

/// The sum in a tar header is right, or it is the end mark of an empty archive.
fn is_tar(head: &[u8]) -> bool {
    if head.len() < 512 {
        return false;
    }
    let field = |range: std::ops::Range<usize>| {
        std::str::from_utf8(&head[range]).unwrap_or("").trim_matches(['\0', ' ']).to_owned()
    };
    let sum: u32 = head
        .iter()
        .enumerate()
        .map(|(at, &byte)| if (148..156).contains(&at) { 32 } else { u32::from(byte) })
        .sum();
    u32::from_str_radix(&field(148..156), 8) == Ok(sum) || head.iter().all(|&byte| byte == 0)
}

impl Source for Tar {
    fn run(&mut self, feed: &Feed) -> Result<()> {
        let bytes = self.bytes.take().must("a source runs once");
        feed.counters.expected.store(self.size, Ordering::Relaxed);
        let mut archive = Archive::new(bytes);
        let entries = archive.entries().map_err(|error| self.broken(&error))?;
        for entry in entries {
            let mut entry = entry.map_err(|error| self.broken(&error))?;
            feed.counters.at.store(self.read.load(Ordering::Relaxed), Ordering::Relaxed);
            match one(&mut entry, feed, &self.read, &feed.counters) {
                Ok(Ok(())) => {}
                Ok(Err(Hangup)) => return Ok(()),
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }
}

type Outcome = io::Result<std::result::Result<(), Hangup>>;

/// Hands on one entry. An error is one of the archive itself.
fn one(entry: &mut Entry<'_, impl Read>, feed: &Feed, read: &AtomicU64, counters: &Counters) -> Outcome {
    let named = entry.path()?.into_owned();
    let Some(path) = inside(&named) else {
        feed.skip(&named, "its path leads out of the archive (..)");
        return Ok(Ok(()));
    };
    let Some(kind) = kind(entry)? else {
        feed.skip(&named, format!("an entry of type {:?}, which is no file", entry.header().entry_type()));
        return Ok(Ok(()));
    };
    let sparse = entry.header().entry_type() == EntryType::GNUSparse;
    let item = item(entry, path, kind)?;
    let is_file = matches!(item.kind, Kind::File { .. });
    if feed.send(Step::Item(item)).is_err() {
        return Ok(Err(Hangup));
    }
    if !is_file {
        return Ok(Ok(()));
    }
    let mut at = 0u64;
    loop {
        let mut buf = Vec::with_capacity(PIECE.min(entry.size().saturating_sub(at) as usize + 1));
        entry.by_ref().take(PIECE as u64).read_to_end(&mut buf)?;
        if buf.is_empty() {
            break;
        }
        let len = buf.len() as u64;
        counters.at.store(read.load(Ordering::Relaxed), Ordering::Relaxed);
        // A sparse entry's holes come as zeros; they become holes again.
        let sent = if sparse { send_data(feed, at, &buf) } else { feed.send(Step::Piece(at, buf)) };
        if sent.is_err() {
            return Ok(Err(Hangup));
        }
        at += len;
    }
    Ok(feed.send(Step::End))
}

fn send_data(feed: &Feed, at: u64, bytes: &[u8]) -> std::result::Result<(), Hangup> {
    const GRAIN: usize = 64 << 10;
    for (index, part) in bytes.chunks(GRAIN).enumerate() {
        if part.iter().any(|&byte| byte != 0) {
            feed.send(Step::Piece(at + (index * GRAIN) as u64, part.to_vec()))?;
        }
    }
    Ok(())
}

/// None for entries that are no files.
fn kind(entry: &Entry<'_, impl Read>) -> io::Result<Option<Kind>> {
    let header = entry.header();
    let target = || -> io::Result<PathBuf> {
        let name = entry.link_name()?.ok_or_else(|| io::Error::other("a link without a target"))?;
        Ok(name.into_owned())
    };
    let node = |format: u32| -> io::Result<Kind> {
        let number = |field: io::Result<Option<u32>>| Ok::<u32, io::Error>(field?.unwrap_or(0));
        let rdev = match format {
            libc::S_IFIFO => 0,
            _ => libc::makedev(number(header.device_major())?, number(header.device_minor())?),
        };
        Ok(Kind::Node { format, rdev })
    };
    Ok(Some(match header.entry_type() {
        EntryType::Regular | EntryType::Continuous if named_as_folder(entry) => Kind::Dir,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            Kind::File { size: entry.size() }
        }
        EntryType::Directory => Kind::Dir,
        EntryType::Symlink => Kind::Symlink(target()?.into_os_string()),
        EntryType::Link => match inside(&target()?) {
            Some(first) => Kind::HardLink(first),
            None => return Ok(None),
        },
        EntryType::Char => node(libc::S_IFCHR)?,
        EntryType::Block => node(libc::S_IFBLK)?,
        EntryType::Fifo => node(libc::S_IFIFO)?,
        _ => return Ok(None),
    }))
}

/// The oldest archives mark a folder only by the slash at the end of its name.
fn named_as_folder(entry: &Entry<'_, impl Read>) -> bool {
    entry.path_bytes().ends_with(b"/")
}

fn item(entry: &mut Entry<'_, impl Read>, path: PathBuf, kind: Kind) -> io::Result<Item> {
    let header = entry.header();
    let perm = header.mode()? & 0o7777;
    let (mut uid, mut gid) = (header.uid()?, header.gid()?);
    let mut mtime = Timestamp::from_parts(i64::try_from(header.mtime()?).unwrap_or(0), 0);
    let mut atime = None;
    let mut xattrs = Vec::new();
    for extension in entry.pax_extensions()?.into_iter().flatten() {
        let extension = extension?;
        let (key, value) = (extension.key_bytes(), extension.value_bytes());
        let text = || std::str::from_utf8(value).unwrap_or("");
        match key {
            b"mtime" => mtime = seconds(text()).unwrap_or(mtime),
            b"atime" => atime = seconds(text()),
            b"uid" => uid = text().parse().unwrap_or(uid),
            b"gid" => gid = text().parse().unwrap_or(gid),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
    }
    let number = |id: u64| u32::try_from(id).unwrap_or(65_534);
    Ok(Item {
        path,
        kind,
        perm,
        uid: number(uid),
        gid: number(gid),
        atime: atime.unwrap_or(mtime),
        mtime,
        xattrs,
    })
}

/// `1700000000.123456789`, also negative.
fn seconds(text: &str) -> Option<Timestamp> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole_seconds: i64 = whole.parse().ok()?;
    let digits: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos: i64 = digits.parse().ok()?;
    let negative = whole.starts_with('-');
    let total =
        whole_seconds.checked_mul(1_000_000_000)?.checked_add(if negative { -nanos } else { nanos })?;
    Some(Timestamp(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_nanosecond() {
        assert_eq!(seconds("1700000000.5"), Some(Timestamp(1_700_000_000_500_000_000)));
        assert_eq!(seconds("-1.25"), Some(Timestamp(-1_250_000_000)));
        assert_eq!(seconds("12"), Some(Timestamp(12_000_000_000)));
        assert_eq!(seconds("soon"), None);
    }

    #[test]
    fn what_is_no_archive_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let open = |bytes: &[u8]| {
            let path = temp.path().join("x");
            std::fs::write(&path, bytes).unwrap();
            Tar::open(&path).map(|_| ()).unwrap_err()
        };
        assert!(open(b"\xfd7zXZ\0....").next[0].starts_with("decompress it on the way: xz -dc"));
        assert!(open(b"just a text").why[0].contains("neither a folder nor a tar archive"));
        assert!(open(b"PK\x03\x04").why[0].contains("zip"));
        assert_eq!(open(b"").code, "not-an-archive");
    }

    #[test]
    fn a_path_that_climbs_is_refused() {
        assert_eq!(inside(Path::new("/a/./b")), Some("a/b".into()));
        assert_eq!(inside(Path::new("a/../../b")), None);
    }
}
