//! A tar archive as a sink. Its name tells whether and how it is compressed.
//!
//! A member's header holds its size and holes and comes before its bytes. So a file that shrinks while it is
//! read is filled with zeros and reported. The archive gets its name when it is complete. An interrupted
//! export leaves `NAME.part`.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use api::answers::Skipped;
use api::error::{Context, Failure, Result};
use api::own;
use base::Must;
use base::lock::{self, FileLock};

use crate::Entry;
use crate::import::{Item, Kind, Sink, exists};
use crate::write::Writer;

/// The compression of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// None.
    Plain,
    /// gzip.
    Gzip,
    /// zstd.
    Zstd,
}

impl Packing {
    /// The compression that a name implies. None for the name of a folder.
    ///
    /// # Errors
    /// The name stands for an archive of a kind that cannot be written.
    pub fn of(path: &Path) -> Result<Option<Packing>> {
        let name = path.file_name().unwrap_or_default().as_bytes().to_ascii_lowercase();
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end.as_bytes()));
        if ends(&[".tar"]) {
            return Ok(Some(Packing::Plain));
        }
        if ends(&[".tar.gz", ".tgz"]) {
            return Ok(Some(Packing::Gzip));
        }
        if ends(&[".tar.zst", ".tzst"]) {
            return Ok(Some(Packing::Zstd));
        }
        for (end, program) in [(".tar.xz", "xz"), (".txz", "xz"), (".tar.bz2", "bzip2"), (".tbz2", "bzip2")] {
            if ends(&[end]) {
                return Err(Failure::usage(format!(
                    "{} cannot be written: it would be packed with {program}",
                    path.display()
                ))
                .next("name a .tar, .tar.gz or .tar.zst")
                .next(format!(
                    "or pack it on the way: covey export ... - | {program} > {}",
                    path.display()
                )));
            }
        }
        match ends(&[".zip", ".cpio", ".7z", ".rar"]) {
            true => Err(Failure::usage(format!("{} cannot be written: archives are tar", path.display()))
                .next("name a .tar, .tar.gz or .tar.zst, or a folder")),
            false => Ok(None),
        }
    }
}

/// A compressor, or none. It must be finished explicitly.
enum Pack<W: Write> {
    Plain(W),
    Gzip(flate2::write::GzEncoder<W>),
    Zstd(zstd::Encoder<'static, W>),
}

impl<W: Write> Pack<W> {
    fn new(packing: Packing, out: W) -> io::Result<Pack<W>> {
        Ok(match packing {
            Packing::Plain => Pack::Plain(out),
            Packing::Gzip => Pack::Gzip(flate2::write::GzEncoder::new(out, flate2::Compression::default())),
            // 3 is the library's default level.
            Packing::Zstd => Pack::Zstd(zstd::Encoder::new(out, 3)?),
        })
    }

    fn finish(self) -> io::Result<W> {
        match self {
            Pack::Plain(out) => Ok(out),
            Pack::Gzip(packer) => packer.finish(),
            Pack::Zstd(packer) => packer.finish(),
        }
    }
}

impl<W: Write> Write for Pack<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Pack::Plain(out) => out.write(bytes),
            Pack::Gzip(packer) => packer.write(bytes),
            Pack::Zstd(packer) => packer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Pack::Plain(out) => out.flush(),
            Pack::Gzip(packer) => packer.flush(),
            Pack::Zstd(packer) => packer.flush(),
        }
    }
}

/// The destination of the archive's bytes.
enum Out {
    Stream(Box<dyn Write>),
    File(BufWriter<FileLock>),
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Out::Stream(out) => out.write(bytes),
            Out::File(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::Stream(out) => out.flush(),
            Out::File(file) => file.flush(),
        }
    }
}

/// A member whose bytes are being written.
struct Member {
    entry: Entry,
    /// The data ranges of the file. The member's ranges are whole blocks around them.
    ranges: Vec<(u64, u64)>,
    /// Whether its header is written.
    begun: bool,
    /// The offset of the next byte to write, if it is in a range.
    at: u64,
    /// The number of bytes that were filled with zeros.
    made_up: u64,
}

/// An archive that is being written.
pub struct Archive {
    name: PathBuf,
    /// The file that gets the name when it is complete. None for a stream.
    part: Option<PathBuf>,
    overwrite: bool,
    writer: Option<Writer<Pack<Out>>>,
    member: Option<Member>,
    left_out: Vec<Skipped>,
}

impl Archive {
    /// Starts an archive at this path. Until the archive has its name, only this user can read it.
    ///
    /// # Errors
    /// The archive exists and must not be replaced, or it cannot be written.
    pub fn create(path: &Path, packing: Packing, overwrite: bool) -> Result<Archive> {
        if !overwrite && path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let part = part_of(path);
        let out = Out::File(BufWriter::with_capacity(1 << 20, make_part(&part)?));
        Archive::new(path, Some(part), out, packing, overwrite)
    }

    /// Writes an archive to a stream, for example standard output. `name` is its name for people.
    ///
    /// # Errors
    /// The compressor cannot be started.
    pub fn stream(name: &str, out: Box<dyn Write>, packing: Packing) -> Result<Archive> {
        Archive::new(Path::new(name), None, Out::Stream(out), packing, false)
    }

    fn new(
        name: &Path,
        part: Option<PathBuf>,
        out: Out,
        packing: Packing,
        overwrite: bool,
    ) -> Result<Archive> {
        let writer = Some(Writer::new(Pack::new(packing, out).at("pack", name)?));
        let name = name.to_owned();
        Ok(Archive { name, part, overwrite, writer, member: None, left_out: Vec::new() })
    }

    /// The items that were not stored exactly.
    pub fn left_out(&self) -> &[Skipped] {
        &self.left_out
    }

    /// Removes an archive that cannot be completed.
    pub fn abandon(self) {
        if let Some(part) = &self.part {
            let _ = fs::remove_file(part);
        }
    }

    fn note(&mut self, path: &[u8], why: impl Into<String>) {
        let path = String::from_utf8_lossy(path).into_owned();
        self.left_out.push(Skipped { path, why: why.into() });
    }

    fn write(&mut self, work: impl FnOnce(&mut Writer<Pack<Out>>) -> io::Result<()>) -> Result<()> {
        let writer = self.writer.as_mut().must("it is written to until it is finished");
        work(writer).at("write", &self.name)
    }

    /// Writes the header of the current file, unless it is written already.
    fn begin(&mut self) -> Result<()> {
        let Some(member) = self.member.as_mut().filter(|member| !member.begun) else { return Ok(()) };
        member.begun = true;
        let entry = member.entry.clone();
        self.write(|writer| writer.begin(&entry))
    }

    /// Fills with zeros the missing bytes of the ranges, from the current position up to `to`.
    fn zeros_to(&mut self, to: u64) -> Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let Some(member) = &mut self.member else { return Ok(()) };
        let mut left = inside_ranges(&member.entry.data, member.at, to);
        member.made_up += inside_ranges(&member.ranges, member.at, to);
        member.at = member.at.max(to);
        while left > 0 {
            let some = left.min(ZEROS.len() as u64);
            self.write(|writer| writer.data(&ZEROS[..some as usize]))?;
            left -= some;
        }
        Ok(())
    }
}

/// The number of bytes of the ranges between `from` and `to`.
fn inside_ranges(ranges: &[(u64, u64)], from: u64, to: u64) -> u64 {
    ranges.iter().map(|(start, len)| (start + len).min(to).saturating_sub((*start).max(from))).sum()
}

/// Rounds the ranges to whole blocks of 512 bytes and joins those that touch. GNU tar starts each range at a
/// block of the archive. Other programs continue where the previous range ended. With whole blocks both read
/// the same.
fn in_blocks(ranges: &[(u64, u64)], size: u64) -> Vec<(u64, u64)> {
    let mut blocks: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for &(start, len) in ranges {
        let (from, to) = (start & !511, (start + len).next_multiple_of(512).min(size));
        match blocks.last_mut() {
            Some((begun, done)) if *begun + *done >= from => *done = to - *begun,
            _ => blocks.push((from, to - from)),
        }
    }
    blocks
}

/// Creates the file that becomes the archive. It is locked while it is written. An existing file without a
/// lock was left by an interrupted export, and is replaced.
fn make_part(part: &Path) -> Result<FileLock> {
    let locked = |file| {
        let mut lock = FileLock::new(file);
        // Some filesystems do not support locks.
        if lock.exclusive(lock::moment()).unwrap_or(true) {
            return Ok(lock);
        }
        Err(Failure::new("exists", format!("{} is there already", part.display()))
            .why("another export is writing it")
            .next("wait until that is done, or name another file"))
    };
    match own::create(part) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            drop(locked(own::open(part, OpenOptions::new().read(true)).at("replace", part)?)?);
            fs::remove_file(part).at("replace", part)?;
            locked(own::create(part).at("make", part)?)
        }
        other => locked(other.at("make", part)?),
    }
}

/// Gives the archive its name. Unless replacing is allowed, a file that was created there in the meantime
/// stays.
fn give_name(part: &Path, name: &Path, overwrite: bool) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if overwrite {
        return fs::rename(part, name);
    }
    match renameat_with(CWD, part, CWD, name, RenameFlags::NOREPLACE) {
        // The filesystem does not support a rename that refuses to replace.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => fs::rename(part, name),
        other => Ok(other?),
    }
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Converts an item to a member. None if tar cannot represent it.
fn entry_of(item: &Item) -> Option<Entry> {
    let mut path = item.path.as_os_str().as_bytes().to_vec();
    if path.is_empty() {
        path = b".".to_vec();
    }
    let (mut link, mut device, mut size) = (Vec::new(), (0, 0), 0);
    let kind = match &item.kind {
        Kind::Dir => {
            path.push(b'/');
            b'5'
        }
        Kind::File { size: bytes } => {
            size = *bytes;
            b'0'
        }
        Kind::Symlink(target) => {
            link = target.as_bytes().to_vec();
            b'2'
        }
        Kind::HardLink(first) => {
            link = first.as_os_str().as_bytes().to_vec();
            b'1'
        }
        Kind::Node { format, rdev } => {
            device = (libc::major(*rdev), libc::minor(*rdev));
            match *format {
                libc::S_IFCHR => b'3',
                libc::S_IFBLK => b'4',
                libc::S_IFIFO => b'6',
                _ => return None,
            }
        }
    };
    Some(Entry {
        kind,
        path,
        link,
        mode: item.perm,
        uid: u64::from(item.uid),
        gid: u64::from(item.gid),
        mtime: item.mtime,
        atime: Some(item.atime),
        device,
        size,
        data: vec![(0, size)],
        xattrs: item.xattrs.clone(),
        ..Entry::default()
    })
}

impl Sink for Archive {
    fn item(&mut self, item: Item) -> Result<()> {
        let Some(entry) = entry_of(&item) else {
            self.note(item.path.as_os_str().as_bytes(), "a socket, which an archive does not hold");
            return Ok(());
        };
        if entry.kind == b'0' {
            let ranges = entry.data.clone();
            self.member = Some(Member { entry, ranges, begun: false, at: 0, made_up: 0 });
            return Ok(());
        }
        self.write(|writer| writer.begin(&entry).and_then(|()| writer.end()))
    }

    fn ranges(&mut self, ranges: Vec<(u64, u64)>) -> Result<()> {
        let member = self.member.as_mut().must("ranges follow a file");
        member.entry.data = in_blocks(&ranges, member.entry.size);
        member.ranges = ranges;
        Ok(())
    }

    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        self.begin()?;
        self.zeros_to(offset)?;
        let member = self.member.as_mut().must("pieces follow a file");
        // If a file has grown since its header was written, the new bytes are left out.
        let wanted = inside_ranges(&member.entry.data, offset, offset + bytes.len() as u64);
        member.at = offset + bytes.len() as u64;
        let wanted = usize::try_from(wanted).unwrap_or(bytes.len()).min(bytes.len());
        self.write(|writer| writer.data(&bytes[..wanted]))
    }

    fn end(&mut self) -> Result<()> {
        self.begin()?;
        self.zeros_to(u64::MAX)?;
        if let Some(member) = self.member.take()
            && member.made_up > 0
        {
            let why =
                format!("{} bytes of it could not be read and are zeros in the archive", member.made_up);
            self.note(&member.entry.path, why);
        }
        self.write(Writer::end)
    }

    fn finish(&mut self) -> Result<()> {
        let writer = self.writer.take().must("it is finished once");
        let out = writer.finish().and_then(Pack::finish).at("write", &self.name)?;
        match out {
            Out::Stream(mut out) => out.flush().at("write", &self.name),
            Out::File(file) => {
                let part = self.part.as_deref().must("a file has one until it has its name");
                let file = file.into_inner().map_err(io::IntoInnerError::into_error).at("write", part)?;
                file.sync_all().at("write", part)?;
                give_name(part, &self.name, self.overwrite).at("make", &self.name)
            }
        }
    }
}

/// Writes texts as an archive of files, compressed with zstd.
///
/// # Errors
/// Writing to `out` failed.
pub fn of_texts<W: Write>(
    out: W,
    folder: &str,
    texts: &[(String, String)],
    now: base::Timestamp,
) -> io::Result<W> {
    let mut writer = Writer::new(Pack::new(Packing::Zstd, out)?);
    for (name, text) in texts {
        let size = text.len() as u64;
        let path = format!("{folder}/{name}").into_bytes();
        let entry = Entry {
            kind: b'0',
            path,
            mode: 0o600,
            mtime: now,
            size,
            data: vec![(0, size)],
            ..Entry::default()
        };
        writer.begin(&entry)?;
        writer.data(text.as_bytes())?;
        writer.end()?;
    }
    writer.finish()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_how_it_is_packed() {
        let of = |name: &str| Packing::of(Path::new(name)).unwrap();
        assert_eq!([of("a.tar"), of("a.TGZ"), of("-")], [Some(Packing::Plain), Some(Packing::Gzip), None]);
        assert_eq!([of("x/a.tar.zst"), of("a.tar.d"), of("folder")], [Some(Packing::Zstd), None, None]);
        assert!(Packing::of(Path::new("a.tar.xz")).unwrap_err().next[1].contains("| xz > a.tar.xz"));
        assert_eq!(Packing::of(Path::new("a.zip")).unwrap_err().status, 2);
    }

    /// A file with the archive's temporary name was overwritten, even if another export was writing it.
    #[test]
    fn regression_a_part_of_another_is_not_written_over() {
        let temp = tempfile::tempdir().unwrap();
        let (name, part) = (temp.path().join("a.tar"), temp.path().join("a.tar.part"));
        let create = || Archive::create(&name, Packing::Plain, false);
        let first = create().unwrap();
        assert_eq!(create().map(|_| ()).unwrap_err().code, "exists");
        // The lock ends also if a process was just forked, as the tests do that start tar.
        let _child = base::trial::Forked::new().unwrap();
        drop(first);
        let mut again = create().unwrap_or_else(|error| panic!("what was cut off is replaced: {error}"));
        fs::write(&name, "came meanwhile").unwrap();
        assert_eq!(again.finish().unwrap_err().code, "exists");
        again.abandon();
        assert_eq!(fs::read(&name).unwrap(), b"came meanwhile");
        fs::remove_file(&name).unwrap();
        let elsewhere = temp.path().join("elsewhere");
        fs::write(&elsewhere, "precious").unwrap();
        std::os::unix::fs::symlink(&elsewhere, &part).unwrap();
        assert!(create().is_err());
        assert_eq!(fs::read(&elsewhere).unwrap(), b"precious");
    }

    /// After a range that was not whole blocks, GNU tar took the following bytes for a header.
    #[test]
    fn regression_ranges_are_whole_blocks() {
        let blocks = in_blocks(&[(100, 3), (600, 10), (5000, 1), (9000, 1000)], 9_999);
        assert_eq!(blocks, [(0, 1024), (4608, 512), (8704, 1295)]);
        assert_eq!(in_blocks(&[], 10), []);
        assert_eq!(in_blocks(&[(0, 7)], 7), [(0, 7)]);
    }

    #[test]
    fn bytes_inside_ranges_are_counted() {
        let ranges = [(10, 5), (20, 10)];
        for (from, to, count) in
            [(0, u64::MAX, 15), (0, 12, 2), (12, 22, 5), (15, 20, 0), (40, 50, 0), (30, 10, 0)]
        {
            assert_eq!(inside_ranges(&ranges, from, to), count, "{from}..{to}");
        }
    }
}
