//! Reading tar: the POSIX formats (ustar, pax) and GNU's, with their ways to say long names, large numbers, holes, times to the nanosecond
//! and extended attributes.
//!
//! ```text
//!   [ 'x' header | pax records ]?  [ 'L' | long name ]?  [ header | data, padded to 512 ] ...  [ 512 zeros ] [ 512 zeros ]
//! ```
//!
//! A pax record is `LENGTH KEY=VALUE\n`, where the length counts the whole record, so that values may hold any bytes, line ends too.
//! Holes come in four dialects: GNU's old `S` header with ranges in it and in blocks behind it, pax 0.0 (a record for each number), 0.1 (one
//! record with all numbers) and 1.0 (the numbers as lines at the beginning of the data).

use std::io::{self, Read};

use base::Timestamp;

use crate::import::PIECE;

const BLOCK: usize = 512;
/// Names and records larger than this are an attack or damage.
const TEXT_MAX: u64 = 16 << 20;

/// One member of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The type flag: `0` file, `1` hard link, `2` symbolic link, `3` `4` devices, `5` folder, `6` pipe, others are no files.
    pub kind: u8,
    /// As written.
    pub path: Vec<u8>,
    /// Target of a link.
    pub link: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Modification time.
    pub mtime: Timestamp,
    /// Access time, where it is said.
    pub atime: Option<Timestamp>,
    /// Major and minor number.
    pub device: (u32, u32),
    /// Size of the file, holes included.
    pub size: u64,
    /// Ranges that hold data: where in the file, how many bytes. Their bytes follow one another.
    pub data: Vec<(u64, u64)>,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What pax records say of the next member, or (global ones) of all.
#[derive(Clone, Default)]
struct Records(Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    /// The last value of a key.
    fn get(&self, key: &str) -> Option<&[u8]> {
        let found = self.0.iter().rev().find(|(name, _)| name == key.as_bytes());
        found.map(|(_, value)| value.as_slice())
    }

    fn number(&self, key: &str) -> Option<u64> {
        number(self.get(key)?)
    }

    /// Reads `LENGTH KEY=VALUE\n` until nothing is left.
    fn read(&mut self, mut text: &[u8]) -> io::Result<()> {
        let bad = || damaged("a pax record is damaged");
        while !text.is_empty() && text[0] != 0 {
            let space = text.iter().position(|&byte| byte == b' ').ok_or_else(bad)?;
            let len = number(&text[..space]).and_then(|len| usize::try_from(len).ok()).ok_or_else(bad)?;
            let record =
                text.get(space + 1..len).and_then(|record| record.strip_suffix(b"\n")).ok_or_else(bad)?;
            let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(bad)?;
            self.0.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
            text = &text[len..];
        }
        Ok(())
    }
}

/// Reads members one by one.
pub struct Reader<R> {
    inner: R,
    /// Bytes of the present member's data that were not read yet, and the padding behind them.
    left: u64,
    padding: u64,
    global: Records,
}

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
        .ok_or_else(|| damaged("a number in a header is none"))
}

fn unsigned(bytes: &[u8]) -> io::Result<u64> {
    u64::try_from(field(bytes)?).map_err(|_| damaged("a number in a header is negative"))
}

/// An attribute's name as it was: in a key `=` stands as `%3D`, and `%` as `%25`.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, more)) = rest.split_first() {
        let (byte, used) = match rest.get(..3) {
            Some(b"%3D") => (b'=', 3),
            Some(b"%25") => (b'%', 3),
            _ => (first, 1),
        };
        plain.push(byte);
        rest = if used == 1 { more } else { &rest[used..] };
    }
    plain
}

/// Up to the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// `1700000000.123456789`, also negative.
pub fn seconds(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole_seconds: i64 = whole.parse().ok()?;
    let digits: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos: i128 = digits.parse().ok()?;
    let signed = if whole.starts_with('-') { -nanos } else { nanos };
    Some(Timestamp(i128::from(whole_seconds) * 1_000_000_000 + signed))
}

/// Whether a block is a header: its sum is right.
pub fn is_header(block: &[u8]) -> bool {
    let byte = |(at, &byte): (usize, &u8)| if (148..156).contains(&at) { 32 } else { i64::from(byte) };
    block.len() == BLOCK
        && field(&block[148..156]).is_ok_and(|sum| block.iter().enumerate().map(byte).sum::<i64>() == sum)
}

impl<R: Read> Reader<R> {
    /// Reads from here on.
    pub fn new(inner: R) -> Reader<R> {
        Reader { inner, left: 0, padding: 0, global: Records::default() }
    }

    /// The next member; none at the end mark. What was not read of the one before is skipped.
    pub fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut records = self.global.clone();
        let (mut long_path, mut long_link) = (None, None);
        loop {
            self.skip()?;
            let mut block = [0; BLOCK];
            self.inner.read_exact(&mut block).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => damaged("it ends without its end mark"),
                _ => error,
            })?;
            if block.iter().all(|&byte| byte == 0) {
                // Read to the end, so that a program that writes to us is not killed by a closed pipe.
                io::copy(&mut self.inner, &mut io::sink())?;
                return Ok(None);
            }
            if !is_header(&block) {
                return Err(damaged("what should be a header is none"));
            }
            let size = unsigned(&block[124..136])?;
            match block[156] {
                b'x' | b'X' => records.read(&self.meta(size)?)?,
                b'g' => {
                    let text = self.meta(size)?;
                    self.global.read(&text)?;
                    records.read(&text)?;
                }
                b'L' => long_path = Some(text(&self.meta(size)?).to_vec()),
                b'K' => long_link = Some(text(&self.meta(size)?).to_vec()),
                _ => return self.member(&block, &records, long_path, long_link).map(Some),
            }
        }
    }

    /// The bytes of a member's ranges, in pieces with their place in the file. Ends early when `each` answers false.
    pub fn data(&mut self, entry: &Entry, each: &mut dyn FnMut(u64, Vec<u8>) -> bool) -> io::Result<()> {
        for &(start, len) in &entry.data {
            let mut done = 0;
            while done < len {
                let mut piece = vec![0; (len - done).min(PIECE as u64) as usize];
                self.inner.read_exact(&mut piece).map_err(cut)?;
                self.left = self
                    .left
                    .checked_sub(piece.len() as u64)
                    .ok_or_else(|| damaged("its ranges hold more than it has"))?;
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
        let left = self.left + self.padding;
        (self.left, self.padding) = (0, 0);
        let skipped = io::copy(&mut self.inner.by_ref().take(left), &mut io::sink())?;
        if skipped < left { Err(cut(io::ErrorKind::UnexpectedEof.into())) } else { Ok(()) }
    }

    /// The data of what is no member but says something of one.
    fn meta(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > TEXT_MAX {
            return Err(damaged("a name or a record is larger than 16 MiB"));
        }
        let mut bytes = vec![0; size as usize];
        self.inner.read_exact(&mut bytes).map_err(cut)?;
        self.padding = padding(size);
        Ok(bytes)
    }

    fn member(
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
                kind => kind,
            },
            path: long_path.unwrap_or_else(|| short_path(block)),
            link: long_link.unwrap_or_else(|| text(&block[157..257]).to_vec()),
            mode: (field(&block[100..108])? & 0o7777) as u32,
            uid: records.number("uid").map_or_else(|| unsigned(&block[108..116]), Ok)?,
            gid: records.number("gid").map_or_else(|| unsigned(&block[116..124]), Ok)?,
            mtime: time("mtime")
                .map_or_else(|| Ok(Timestamp::from_parts(field(&block[136..148])?, 0)), Ok::<_, io::Error>)?,
            atime: time("atime"),
            ..Entry::default()
        };
        if matches!(entry.kind, b'3' | b'4') {
            let number = |bytes| Ok::<u32, io::Error>(u32::try_from(unsigned(bytes)?).unwrap_or(u32::MAX));
            entry.device = (number(&block[329..337])?, number(&block[337..345])?);
        }
        for (key, value) in &records.0 {
            match key.as_slice() {
                b"path" => entry.path.clone_from(value),
                b"linkpath" => entry.link.clone_from(value),
                key => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        entry.xattrs.push((unescaped(name), value.clone()));
                    }
                }
            }
        }
        // The oldest archives mark a folder only by the slash at the end of its name.
        if entry.kind == b'0' && entry.path.ends_with(b"/") {
            entry.kind = b'5';
        }
        self.contents(block, records, &mut entry)?;
        Ok(entry)
    }

    /// Sizes and ranges. Only files have data; what other headers say of a size is a hint about something else.
    fn contents(&mut self, block: &[u8; BLOCK], records: &Records, entry: &mut Entry) -> io::Result<()> {
        let has_data = matches!(entry.kind, b'0') || !entry.kind.is_ascii_digit();
        let stated = if has_data { unsigned(&block[124..136])? } else { 0 };
        let stored = records.number("size").unwrap_or(stated);
        (self.left, self.padding) = (stored, padding(stored));
        entry.size = stored;
        entry.data = vec![(0, stored)];
        if block[156] == b'S' {
            entry.size = unsigned(&block[483..495])?;
            entry.data = self.old_ranges(block)?;
        } else if let Some(name) =
            records.get("GNU.sparse.name").or_else(|| records.get("GNU.sparse.size").map(|_| &[][..]))
        {
            if !name.is_empty() {
                entry.path = name.to_vec();
            }
            let size = records.number("GNU.sparse.realsize").or_else(|| records.number("GNU.sparse.size"));
            entry.size = size.ok_or_else(|| damaged("a file with holes does not say its size"))?;
            entry.data = match records.get("GNU.sparse.major") {
                Some(b"1") => self.ranges_in_data()?,
                _ => ranges_in_records(records)?,
            };
        }
        entry.data.retain(|&(_, len)| len > 0);
        let mut end = 0;
        for &(start, len) in &entry.data {
            let next = start.checked_add(len).filter(|&next| start >= end && next <= entry.size);
            end = next.ok_or_else(|| damaged("the ranges of a file with holes make no sense"))?;
        }
        Ok(())
    }

    /// GNU's old form: four ranges in the header, 21 in each block behind it while a flag says so.
    fn old_ranges(&mut self, block: &[u8; BLOCK]) -> io::Result<Vec<(u64, u64)>> {
        let mut ranges = Vec::new();
        let mut read = |bytes: &[u8]| -> io::Result<()> {
            for pair in bytes.chunks_exact(24).filter(|pair| pair[0] != 0) {
                ranges.push((unsigned(&pair[..12])?, unsigned(&pair[12..])?));
            }
            Ok(())
        };
        read(&block[386..482])?;
        let mut more = block[482] != 0;
        while more {
            let mut block = [0; BLOCK];
            self.inner.read_exact(&mut block).map_err(cut)?;
            read(&block[..504])?;
            more = block[504] != 0;
        }
        Ok(ranges)
    }

    /// pax 1.0: a count and then pairs, each number a line, padded to whole blocks.
    fn ranges_in_data(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let bad = || damaged("the map of a file with holes is damaged");
        let mut numbers: Vec<u64> = Vec::new();
        let mut line = Vec::new();
        let wanted =
            |numbers: &[u64]| numbers.first().map_or(1, |count| count.saturating_mul(2).saturating_add(1));
        while (numbers.len() as u64) < wanted(&numbers) {
            let mut block = [0; BLOCK];
            self.inner.read_exact(&mut block).map_err(cut)?;
            self.left = self.left.checked_sub(BLOCK as u64).ok_or_else(bad)?;
            for byte in block {
                match byte {
                    b'\n' => numbers.push(number(&std::mem::take(&mut line)).ok_or_else(bad)?),
                    byte if line.len() < 20 => line.push(byte),
                    _ => return Err(bad()),
                }
                if numbers.len() as u64 == wanted(&numbers) {
                    break;
                }
            }
        }
        Ok(numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }
}

/// pax 0.1 (`GNU.sparse.map`) and 0.0 (a record for each number).
fn ranges_in_records(records: &Records) -> io::Result<Vec<(u64, u64)>> {
    let bad = || damaged("the map of a file with holes is damaged");
    if let Some(map) = records.get("GNU.sparse.map") {
        let numbers: Option<Vec<u64>> = map.split(|&byte| byte == b',').map(number).collect();
        return Ok(numbers.ok_or_else(bad)?.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect());
    }
    let mut ranges = Vec::new();
    let mut offset = None;
    for (key, value) in &records.0 {
        match key.as_slice() {
            b"GNU.sparse.offset" => offset = number(value),
            b"GNU.sparse.numbytes" => ranges.push(offset.take().zip(number(value)).ok_or_else(bad)?),
            _ => {}
        }
    }
    Ok(ranges)
}

fn short_path(block: &[u8; BLOCK]) -> Vec<u8> {
    let (name, prefix) = (text(&block[..100]), text(&block[345..500]));
    // GNU's own format has other things where POSIX has the prefix.
    match &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        true => [prefix, b"/", name].concat(),
        false => name.to_vec(),
    }
}

fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}

fn cut(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it is cut short"),
        _ => error,
    }
}

#[cfg(test)]
mod tests;
