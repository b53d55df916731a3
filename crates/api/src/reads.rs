//! Lists of reads: what a program read of a mount, in the order of the first reads.
//!
//! ```text
//!   covey-reads 1
//!   OFFSET LENGTH PATH
//!   ...
//! ```
//!
//! A list is text. The path is relative to the root of the mount, so that a list that one machine recorded is
//! good on another. It is the rest of the line. In it, a backslash is written as two, and a line end as `\n`.
//! Lines that begin with `#`, and empty ones, are remarks.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The first line.
pub const HEAD: &str = "covey-reads 1";
/// The beginning of the first line of every version.
const FAMILY: &[u8] = b"covey-reads ";

/// A range of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRange {
    /// The file, below the root of the mount.
    #[serde(with = "crate::raw_path")]
    pub path: PathBuf,
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl ReadRange {
    /// Returns the range as a line, with the line end.
    pub fn line(&self) -> Vec<u8> {
        let mut line = format!("{} {} ", self.offset, self.len).into_bytes();
        for &byte in self.path.as_os_str().as_bytes() {
            match byte {
                b'\\' => line.extend(b"\\\\"),
                b'\n' => line.extend(b"\\n"),
                byte => line.push(byte),
            }
        }
        line.push(b'\n');
        line
    }

    fn parse(line: &[u8]) -> Option<ReadRange> {
        let mut words = line.splitn(3, |&byte| byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<u64>().ok();
        let (offset, len) = (number()?, number()?);
        offset.checked_add(len)?;
        let mut path = Vec::new();
        let mut rest = words.next()?.iter();
        while let Some(&byte) = rest.next() {
            path.push(match byte {
                b'\\' => match rest.next()? {
                    b'\\' => b'\\',
                    b'n' => b'\n',
                    _ => return None,
                },
                byte => byte,
            });
        }
        let path = PathBuf::from(OsString::from_vec(path));
        let below = |path: &Path| path.is_relative() && !path.iter().any(|name| name == "..");
        (len > 0 && !path.as_os_str().is_empty() && below(&path)).then_some(ReadRange { path, offset, len })
    }
}

/// Whether a text is such a list, of this or another version.
pub fn is_list(text: &[u8]) -> bool {
    text.starts_with(FAMILY)
}

/// Parses a list.
///
/// # Errors
/// Which line cannot be understood, and why.
pub fn parse(text: &[u8]) -> Result<Vec<ReadRange>, String> {
    let mut lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let head = lines.next().unwrap_or_default();
    if head != HEAD.as_bytes() {
        return Err(format!("its first line is {:?}, and not {HEAD:?}", String::from_utf8_lossy(head)));
    }
    let meant = |line: &&[u8]| !line.is_empty() && !line.starts_with(b"#");
    let numbered = lines.zip(2..).filter(|(line, _)| meant(line));
    numbered
        .map(|(line, number)| {
            ReadRange::parse(line).ok_or_else(|| format!("line {number} is not OFFSET LENGTH PATH"))
        })
        .collect()
}

/// Merges ranges that follow one another, and leaves out what was read before. The input is in the order of
/// the reads: inode, first byte, bytes.
pub fn merged(reads: impl IntoIterator<Item = (u64, u64, u64)>) -> Vec<(u64, u64, u64)> {
    let mut seen: std::collections::HashMap<u64, Vec<(u64, u64)>> = std::collections::HashMap::new();
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    for (ino, offset, len) in reads {
        let covered = seen.entry(ino).or_default();
        for (from, to) in uncovered(covered, offset, offset.saturating_add(len)) {
            match out.last_mut() {
                Some((last, start, length)) if *last == ino && *start + *length == from => {
                    *length += to - from;
                }
                _ => out.push((ino, from, to - from)),
            }
        }
        cover(covered, offset, offset.saturating_add(len));
    }
    out
}

/// The parts of a range that are not covered. `covered` is in order, and its ranges do not touch.
fn uncovered(covered: &[(u64, u64)], from: u64, to: u64) -> Vec<(u64, u64)> {
    let (mut at, mut out) = (from, Vec::new());
    let first = covered.partition_point(|&(_, end)| end <= from);
    for &(start, end) in covered[first..].iter().take_while(|&&(start, _)| start < to) {
        if at < start {
            out.push((at, start));
        }
        at = at.max(end);
    }
    if at < to {
        out.push((at, to));
    }
    out
}

fn cover(covered: &mut Vec<(u64, u64)>, from: u64, to: u64) {
    if from >= to {
        return;
    }
    let first = covered.partition_point(|&(_, end)| end < from);
    let after = covered.partition_point(|&(start, _)| start <= to);
    let touched = &covered[first..after];
    let start = touched.first().map_or(from, |&(start, _)| start.min(from));
    let end = touched.last().map_or(to, |&(_, end)| end.max(to));
    covered.splice(first..after, [(start, end)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_what_was_written() {
        let read = |path: &[u8], offset, len| ReadRange {
            path: OsString::from_vec(path.to_vec()).into(),
            offset,
            len,
        };
        let reads = [read(b"a/b", 0, 4096), read(b"with space\\n\n\xff", u64::MAX - 5, 5)];
        let mut text = format!("{HEAD}\n# a remark\n\n").into_bytes();
        text.extend(reads.iter().flat_map(ReadRange::line));
        assert!(is_list(&text));
        assert_eq!(parse(&text).unwrap(), reads);
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named() {
        for line in
            ["x 1 a", "1 a", "1 0 a", "0 1 /a", "0 1 ../a", "0 1 a\\x", "0 1 ", "18446744073709551615 1 a"]
        {
            let why = parse(format!("{HEAD}\n{line}\n").as_bytes()).unwrap_err();
            assert!(why.starts_with("line 2 "), "{line}: {why}");
        }
        assert!(parse(b"covey-reads 2\n").unwrap_err().contains("covey-reads 2"));
        assert!(!is_list(b"/mnt/a\n"));
    }

    #[test]
    fn what_follows_is_merged_and_what_was_read_is_left_out() {
        let reads = [
            (1, 0, 10),
            (1, 10, 10),
            (2, 0, 5),
            (1, 5, 30),
            (1, 100, 10),
            (1, 90, 30),
            (1, 0, 200),
            (2, 0, 5),
        ];
        let expected = [
            (1, 0, 20),
            (2, 0, 5),
            (1, 20, 15),
            (1, 100, 10),
            (1, 90, 10),
            (1, 110, 10),
            (1, 35, 55),
            (1, 120, 80),
        ];
        assert_eq!(merged(reads), expected);
        assert_eq!(merged([(1, 5, 0)]), []);
    }
}
