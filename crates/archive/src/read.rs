//! Reading tar: the POSIX formats (ustar, pax) and GNU's, with their extensions for long names, large
//! numbers, holes, times in nanoseconds and extended attributes.
//!
//! ```text
//!   [ 'x' header | pax records ]?  [ 'L' | long name ]?  [ header | data, padded to 512 ] ...
//!   [ 512 zeros ] [ 512 zeros ]
//! ```
//!
//! A pax record is `LENGTH KEY=VALUE\n`. The length counts the whole record, so values may hold any bytes,
//! even line ends. Holes come in four dialects: GNU's old `S` header with ranges in it and in the blocks
//! after it, pax 0.0 (a record for each number), 0.1 (one record with all numbers) and 1.0 (the numbers as
//! lines at the start of the data).

mod records;
mod sparse;
use std::io::{self, Read};

use base::Timestamp;

use crate::{BLOCK, Entry, PIECE};
use records::Records;

/// The most bytes of the records of one member, or of a global header. A map of holes may be long.
const TEXT_MAX: u64 = 16 << 20;
/// The most bytes of a name or the target of a link. The kernel takes 4,096 bytes at a time, and a longer
/// name costs a folder for every other byte.
const NAME_MAX: u64 = 16 << 10;
/// The most names in a path: as many as a path has that the kernel takes in one call. Each may be a folder
/// that has to be made.
pub const DEPTH_MAX: usize = 2048;
/// The most headers that describe the next member. A member has one of each kind.
const HEADERS_MAX: u32 = 64;
/// The largest size of a file in the kernel.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Reads members one by one.
pub struct Reader<R> {
    inner: R,
    /// Bytes of the current member's data that were not read yet, and the padding after them.
    left: u64,
    padding: u64,
    global: Records,
    /// Whether the end of the input behind a member's data is the end of the archive.
    may_end: bool,
}

/// A file that continues in another archive.
const PART: &str = "it is a part of an archive in several volumes, which cannot be read one by one: unpack it with tar -M \
                    and import the folder";

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Decimal digits.
fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A number in a header: octal digits, or big-endian with the highest bit set.
fn field(bytes: &[u8]) -> io::Result<i64> {
    if bytes[0] & 0x80 != 0 {
        let first = if bytes[0] == 0xff { -1 } else { i64::from(bytes[0] & 0x7f) };
        let wide = bytes[1..].iter().fold(i128::from(first), |value, &byte| value << 8 | i128::from(byte));
        return i64::try_from(wide).map_err(|_| damaged("a number in a header is too large"));
    }
    let digits = bytes.iter().skip_while(|&&byte| byte == b' ').take_while(|byte| !matches!(byte, 0 | b' '));
    digits
        .clone()
        .try_fold(0i64, |value, &digit| match digit {
            b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
            _ => None,
        })
        .ok_or_else(|| damaged("a number in a header is not a number"))
}

fn unsigned(bytes: &[u8]) -> io::Result<u64> {
    u64::try_from(field(bytes)?).map_err(|_| damaged("a number in a header is negative"))
}

/// A user or group. A negative number belongs to nobody here.
fn owner(bytes: &[u8]) -> io::Result<u64> {
    Ok(u64::try_from(field(bytes)?).unwrap_or(u64::MAX))
}

/// The text up to the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// `1700000000.123456789`. It may be negative.
pub fn seconds(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole_seconds: i64 = whole.parse().ok()?;
    let digits: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos: u32 = digits.parse().ok()?;
    // Before 1970 a fraction counts backwards.
    Some(match whole.starts_with('-') && nanos > 0 {
        true => Timestamp::from_parts(whole_seconds.saturating_sub(1), 1_000_000_000 - nanos),
        false => Timestamp::from_parts(whole_seconds, nanos),
    })
}

/// Whether a block is a header with a correct checksum. Some of the oldest programs took bytes for signed
/// numbers.
pub fn is_header(block: &[u8]) -> bool {
    let sum_of = |value: fn(u8) -> i64| -> i64 {
        let byte = |(at, &byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { value(byte) };
        block.iter().enumerate().map(byte).sum()
    };
    block.len() == BLOCK
        && field(&block[148..156])
            .is_ok_and(|sum| sum == sum_of(i64::from) || sum == sum_of(|byte| i64::from(byte as i8)))
}

impl<R: Read> Reader<R> {
    /// Reads an archive from the current position.
    pub fn new(inner: R) -> Reader<R> {
        Reader { inner, left: 0, padding: 0, global: Records::default(), may_end: false }
    }

    /// Reads an archive that may lack its end mark, and the padding before it. Only for input whose length is
    /// verified otherwise: without the mark nothing shows that members are missing.
    pub fn without_end_mark(inner: R) -> Reader<R> {
        Reader { may_end: true, ..Reader::new(inner) }
    }

    /// The next member; `None` at the end mark. Unread data of the previous member is skipped.
    pub fn next_member(&mut self) -> io::Result<Option<Entry>> {
        let mut records = self.global.clone();
        let (mut long_path, mut long_link) = (None, None);
        let mut headers = 0;
        loop {
            self.skip()?;
            let mut block = [0; BLOCK];
            let mut first = Vec::with_capacity(1);
            self.inner.by_ref().take(1).read_to_end(&mut first)?;
            match first.first() {
                Some(first) => block[0] = *first,
                None if self.may_end && headers == 0 => return Ok(None),
                None => return Err(damaged("it ends without its end mark")),
            }
            self.inner.read_exact(&mut block[1..]).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => damaged("it ends without its end mark"),
                _ => error,
            })?;
            if block.iter().all(|&byte| byte == 0) {
                // Read to the end, so that the program that writes to this pipe is not killed because the
                // pipe closes.
                io::copy(&mut self.inner, &mut io::sink())?;
                return Ok(None);
            }
            if !is_header(&block) {
                return Err(damaged("a block that should be a header is not one"));
            }
            headers += 1;
            if headers > HEADERS_MAX {
                return Err(damaged("too many headers precede one member"));
            }
            let size = unsigned(&block[124..136])?;
            match block[156] {
                b'x' | b'X' => records.read(&self.meta(size, TEXT_MAX)?)?,
                b'g' => {
                    let text = self.meta(size, TEXT_MAX)?;
                    self.global.read(&text)?;
                    records.read(&text)?;
                }
                b'L' => long_path = Some(text(&self.meta(size, NAME_MAX)?).to_vec()),
                b'K' => long_link = Some(text(&self.meta(size, NAME_MAX)?).to_vec()),
                // A label of the whole archive.
                b'V' => (self.left, self.padding) = span(size)?,
                b'M' => return Err(damaged(PART)),
                _ => return self.entry(&block, &records, long_path, long_link).map(Some),
            }
        }
    }

    /// The bytes of a member's ranges, in pieces with their offset in the file. Ends early when `each`
    /// returns false.
    pub fn data(&mut self, entry: &Entry, each: &mut dyn FnMut(u64, Vec<u8>) -> bool) -> io::Result<()> {
        for &(start, len) in &entry.data {
            let mut done = 0;
            while done < len {
                let mut piece = vec![0; (len - done).min(PIECE as u64) as usize];
                self.inner.read_exact(&mut piece).map_err(cut)?;
                self.left = self
                    .left
                    .checked_sub(piece.len() as u64)
                    .ok_or_else(|| damaged("its ranges hold more bytes than it has"))?;
                let (at, got) = (start + done, piece.len() as u64);
                if !each(at, piece) {
                    return Ok(());
                }
                done += got;
            }
        }
        Ok(())
    }

    fn skip(&mut self) -> io::Result<()> {
        let (data, left) = (self.left, self.left.saturating_add(self.padding));
        (self.left, self.padding) = (0, 0);
        let skipped = io::copy(&mut self.inner.by_ref().take(left), &mut io::sink())?;
        let enough = if self.may_end { data } else { left };
        if skipped < enough { Err(cut(io::ErrorKind::UnexpectedEof.into())) } else { Ok(()) }
    }

    /// The data of a header that describes a member.
    fn meta(&mut self, size: u64, most: u64) -> io::Result<Vec<u8>> {
        if size > most {
            return Err(damaged("a name or a record is longer than makes sense"));
        }
        // Allocate for the bytes that are there, not for the size that the header claims.
        let mut bytes = Vec::new();
        self.inner.by_ref().take(size).read_to_end(&mut bytes)?;
        if (bytes.len() as u64) < size {
            return Err(cut(io::ErrorKind::UnexpectedEof.into()));
        }
        (_, self.padding) = span(size)?;
        Ok(bytes)
    }

    fn entry(
        &mut self,
        block: &[u8; BLOCK],
        records: &Records,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> io::Result<Entry> {
        let time = |key: &str| records.get(key).and_then(seconds);
        let mut entry = Entry {
            kind: match block[156] {
                0 | b'7' | b'S' => b'0',
                // A folder with the list of its contents.
                b'D' => b'5',
                kind => kind,
            },
            path: long_path.unwrap_or_else(|| short_path(block)),
            link: long_link.unwrap_or_else(|| text(&block[157..257]).to_vec()),
            mode: (field(&block[100..108])? & 0o7777) as u32,
            uid: records.number("uid").map_or_else(|| owner(&block[108..116]), Ok)?,
            gid: records.number("gid").map_or_else(|| owner(&block[116..124]), Ok)?,
            mtime: time("mtime")
                .map_or_else(|| Ok(Timestamp::from_parts(field(&block[136..148])?, 0)), Ok::<_, io::Error>)?,
            atime: time("atime"),
            xattrs: records.xattrs(),
            acls: records.acls(),
            unknown: records.unknown(),
            ..Entry::default()
        };
        if matches!(entry.kind, b'3' | b'4') {
            let number = |bytes| Ok::<u32, io::Error>(u32::try_from(unsigned(bytes)?).unwrap_or(u32::MAX));
            entry.device = (number(&block[329..337])?, number(&block[337..345])?);
        }
        for (key, to) in [("path", &mut entry.path), ("linkpath", &mut entry.link)] {
            if let Some(value) = records.get(key) {
                *to = value.to_vec();
            }
        }
        // The oldest archives mark a folder only by a slash at the end of its name.
        if entry.kind == b'0' && entry.path.ends_with(b"/") {
            entry.kind = b'5';
        }
        self.contents(block, records, &mut entry)?;
        // A map of holes may name the file, too.
        if [&entry.path, &entry.link].iter().any(|name| name.len() as u64 > NAME_MAX) {
            return Err(damaged("a name is longer than 16 KiB"));
        }
        let names = |path: &[u8]| path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).count();
        if [&entry.path, &entry.link].into_iter().any(|path| names(path) > DEPTH_MAX) {
            return Err(damaged("a path has more than 2,048 folders"));
        }
        Ok(entry)
    }

    /// Sizes and ranges. Only files have data. In other headers the size means something else.
    fn contents(&mut self, block: &[u8; BLOCK], records: &Records, entry: &mut Entry) -> io::Result<()> {
        let has_data = matches!(entry.kind, b'0') || !matches!(block[156], 0 | b'0'..=b'9');
        let stated = if has_data { unsigned(&block[124..136])? } else { 0 };
        let stored = match records.get("size") {
            Some(text) if has_data => number(text).ok_or_else(|| damaged("a size is not a number"))?,
            _ => stated,
        };
        (self.left, self.padding) = span(stored)?;
        entry.size = stored;
        entry.data = vec![(0, stored)];
        if block[156] == b'S' {
            entry.size = unsigned(&block[483..495])?;
            entry.data = sparse::old(block, &mut self.inner)?;
        } else if let Some(name) =
            records.get("GNU.sparse.name").or_else(|| records.get("GNU.sparse.size").map(|_| &[][..]))
        {
            if !name.is_empty() {
                entry.path = name.to_vec();
            }
            let size = records.number("GNU.sparse.realsize").or_else(|| records.number("GNU.sparse.size"));
            entry.size = size.ok_or_else(|| damaged("a file with holes does not say its size"))?;
            entry.data = match records.get("GNU.sparse.major") {
                Some(b"1") => sparse::in_data(&mut self.inner, &mut self.left)?,
                _ => sparse::in_records(records)?,
            };
        }
        span(entry.size)?;
        entry.data.retain(|&(_, len)| len > 0);
        let mut end = 0;
        for &(start, len) in &entry.data {
            let next = start.checked_add(len).filter(|&next| start >= end && next <= entry.size);
            end = next.ok_or_else(|| damaged("the ranges of a file with holes make no sense"))?;
        }
        Ok(())
    }
}

fn short_path(block: &[u8; BLOCK]) -> Vec<u8> {
    let (name, prefix) = (text(&block[..100]), text(&block[345..500]));
    // GNU's own format has other fields in the place of POSIX's prefix.
    match &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        true => [prefix, b"/", name].concat(),
        false => name.to_vec(),
    }
}

/// The bytes of a member, and the padding after them.
fn span(size: u64) -> io::Result<(u64, u64)> {
    if size > SIZE_MAX {
        return Err(damaged("a size is larger than a file can be"));
    }
    Ok((size, size.next_multiple_of(BLOCK as u64) - size))
}

fn cut(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it is cut short"),
        _ => error,
    }
}

#[cfg(test)]
mod tests;
