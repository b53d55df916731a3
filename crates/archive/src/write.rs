//! Writing tar: POSIX's ustar headers, preceded by pax records for what a header cannot hold. [`crate::read`]
//! reads all of it back.
//!
//! Every member has its times in nanoseconds. A file with holes is written in GNU's pax 1.0 form: its ranges
//! as lines of text, padded to a block, then their bytes. An ACL is written twice: as the attribute, and as
//! the text that other programs know.

use std::io::{self, Write};

use base::Timestamp;

use crate::acl;
use crate::{BLOCK, Entry};

/// Archives are padded to a multiple of this, a tape record of tar.
const RECORD: u64 = 10_240;
/// The largest number in the 11 octal digits of a size or a time, and in the 7 of an owner.
const LONG_MAX: u64 = 0o777_7777_7777;
const SHORT_MAX: u64 = 0o777_7777;

/// Writes members one by one.
pub struct Writer<W> {
    out: W,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes an archive from the current position.
    pub fn new(out: W) -> Writer<W> {
        Writer { out, written: 0 }
    }

    /// Begins a member. Then pass the bytes of its ranges in order to [`Writer::data`], and call
    /// [`Writer::end`].
    pub fn begin(&mut self, entry: &Entry) -> io::Result<()> {
        let total: u64 = entry.data.iter().map(|(_, len)| len).sum();
        let sparse = entry.kind == b'0' && total < entry.size;
        let map = if sparse { map_of(entry) } else { Vec::new() };
        let size = if entry.kind == b'0' { total + map.len() as u64 } else { 0 };
        let mut records = records_of(entry, size);
        let name = match sparse {
            false => entry.path.clone(),
            true => {
                add(&mut records, b"GNU.sparse.major", b"1");
                add(&mut records, b"GNU.sparse.minor", b"0");
                add(&mut records, b"GNU.sparse.name", &entry.path);
                add(&mut records, b"GNU.sparse.realsize", entry.size.to_string().as_bytes());
                [b"GNUSparseFile.0/", last_part(&entry.path)].concat()
            }
        };
        // The real name of a sparse member is in its record. The one in the header is for programs that do
        // not know holes.
        let names = if sparse { None } else { split(&name) };
        let (prefix, short) = names.unwrap_or_else(|| (&[][..], &name[..name.len().min(100)]));
        if names.is_none() && !sparse {
            add_text(&mut records, b"path", &name);
        }
        if entry.link.len() > 100 {
            add_text(&mut records, b"linkpath", &entry.link);
        }
        let pax = [b"PaxHeaders/", last_part(&entry.path)].concat();
        let mut head = Header::new(b'x', &[], &pax[..pax.len().min(100)]);
        head.number(100, 8, 0o644).number(124, 12, records.len() as u64).time(entry.mtime);
        self.put(&head.summed())?;
        self.put(&records)?;
        self.pad()?;
        let mut head = Header::new(entry.kind, prefix, short);
        head.number(100, 8, u64::from(entry.mode)).number(108, 8, entry.uid).number(116, 8, entry.gid);
        head.number(124, 12, size).time(entry.mtime).bytes(157, &entry.link[..entry.link.len().min(100)]);
        head.number(329, 8, u64::from(entry.device.0)).number(337, 8, u64::from(entry.device.1));
        self.put(&head.summed())?;
        self.put(&map)
    }

    /// Bytes of the current member.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes)
    }

    /// Ends the current member.
    pub fn end(&mut self) -> io::Result<()> {
        self.pad()
    }

    /// Writes the end mark and returns the underlying writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.put(&[0; 2 * BLOCK])?;
        let rest = self.written.next_multiple_of(RECORD) - self.written;
        self.put(&vec![0; rest as usize])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let rest = self.written.next_multiple_of(BLOCK as u64) - self.written;
        self.put(&[0; BLOCK][..rest as usize])
    }
}

/// A header block that is being filled.
struct Header([u8; BLOCK]);

impl Header {
    fn new(kind: u8, prefix: &[u8], name: &[u8]) -> Header {
        let mut head = Header([0; BLOCK]);
        head.bytes(0, name).bytes(345, prefix).bytes(257, b"ustar\x0000");
        head.0[156] = kind;
        head.number(108, 8, 0).number(116, 8, 0);
        head
    }

    fn bytes(&mut self, at: usize, bytes: &[u8]) -> &mut Header {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Octal digits and a NUL. A number with too many digits is 0 here, and is in a record instead.
    fn number(&mut self, at: usize, width: usize, value: u64) -> &mut Header {
        let most = if width == 12 { LONG_MAX } else { SHORT_MAX };
        let value = if value > most { 0 } else { value };
        self.bytes(at, format!("{value:0digits$o}\0", digits = width - 1).as_bytes())
    }

    fn time(&mut self, time: Timestamp) -> &mut Header {
        self.number(136, 12, u64::try_from(time.seconds()).unwrap_or(0))
    }

    fn summed(mut self) -> [u8; BLOCK] {
        self.bytes(148, b"        ");
        let sum: u32 = self.0.iter().map(|&byte| u32::from(byte)).sum();
        self.bytes(148, format!("{sum:06o}\0 ").as_bytes());
        self.0
    }
}

/// Splits a name into a header's prefix and name, if it fits: 155 and 100 bytes, divided at a slash.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    if name.len() <= 100 {
        return Some((&[], name));
    }
    // The last slash may be the mark of a folder, so something has to follow the slash that divides.
    let mut slashes = (0..name.len() - 1).filter(|&at| name[at] == b'/');
    let at = slashes.rfind(|&at| at <= 155 && name.len() - at - 1 <= 100 && at > 0)?;
    Some((&name[..at], &name[at + 1..]))
}

/// The last part of a path, for the names of helper members.
fn last_part(path: &[u8]) -> &[u8] {
    let mut parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
    let part = parts.next_back().unwrap_or(b".");
    &part[..part.len().min(80)]
}

/// What a header cannot say about a member.
fn records_of(entry: &Entry, size: u64) -> Vec<u8> {
    let mut records = Vec::new();
    add(&mut records, b"mtime", seconds(entry.mtime).as_bytes());
    if let Some(atime) = entry.atime {
        add(&mut records, b"atime", seconds(atime).as_bytes());
    }
    let numbers: [(&[u8], u64, u64); 3] =
        [(b"uid", entry.uid, SHORT_MAX), (b"gid", entry.gid, SHORT_MAX), (b"size", size, LONG_MAX)];
    for (key, value, most) in numbers {
        if value > most {
            add(&mut records, key, value.to_string().as_bytes());
        }
    }
    for (name, value) in &entry.xattrs {
        add(&mut records, &[b"SCHILY.xattr.", escaped(name).as_slice()].concat(), value);
        let acl: Option<&[u8]> = match name.as_slice() {
            acl::ACCESS => Some(b"SCHILY.acl.access"),
            acl::DEFAULT => Some(b"SCHILY.acl.default"),
            _ => None,
        };
        if let Some((key, text)) = acl.zip(acl::text(value)) {
            add(&mut records, key, text.as_bytes());
        }
    }
    records
}

/// `LENGTH KEY=VALUE\n`, where the length includes its own digits.
fn add(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // A space, `=` and a line end. The length's own digits are added below.
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    records.extend_from_slice(len.to_string().as_bytes());
    records.push(b' ');
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// Adds a record whose value is a name. A name that is not UTF-8 is announced as bytes.
fn add_text(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    if std::str::from_utf8(value).is_err() {
        add(records, b"hdrcharset", b"BINARY");
    }
    add(records, key, value);
}

/// An attribute's name in a key, escaped because `=` ends the key.
fn escaped(name: &[u8]) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b'=' => b"%3D".to_vec(),
        b'%' => b"%25".to_vec(),
        byte => vec![byte],
    };
    name.iter().flat_map(escape).collect()
}

/// `1700000000.123456789`. It may be negative.
fn seconds(time: Timestamp) -> String {
    let (sign, whole) = (if time.0 < 0 { "-" } else { "" }, time.0.unsigned_abs());
    let (seconds, nanos) = (whole / 1_000_000_000, whole % 1_000_000_000);
    match nanos {
        0 => format!("{sign}{seconds}"),
        nanos => format!("{sign}{seconds}.{nanos:09}").trim_end_matches('0').to_owned(),
    }
}

/// The ranges as lines: their number, then offset and length of each. Padded to a block.
fn map_of(entry: &Entry) -> Vec<u8> {
    let mut ranges = entry.data.clone();
    // An empty range at the end tells other programs that a hole is there.
    if ranges.last().is_none_or(|(start, len)| start + len < entry.size) {
        ranges.push((entry.size, 0));
    }
    let mut map = format!("{}\n", ranges.len()).into_bytes();
    for (start, len) in ranges {
        map.extend_from_slice(format!("{start}\n{len}\n").as_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

#[cfg(test)]
mod tests;
