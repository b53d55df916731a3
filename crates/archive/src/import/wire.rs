//! Steps as bytes: how a command sends them to the daemon that takes them.
//!
//! ```text
//!   kind (1 byte)   length of the rest (4 bytes)   the rest
//! ```
//!
//! Numbers are little-endian. A text is its length in 4 bytes and its bytes. Both ends run on one machine, so
//! there is no version: the request that precedes the steps names the form ([`FORM`]).
//!
//! The reader trusts nothing. A message has at most [`MESSAGE_MAX`] bytes, and everything in it must fit in
//! what is there.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use base::Timestamp;

use super::{Item, Kind, Step};
use crate::PIECE;

/// The form of the messages. A change of it gets another number, so that no daemon takes one for the other.
pub const FORM: u32 = 2;

/// The longest message, in bytes: longer than everything that an archive may hold of a member.
pub const MESSAGE_MAX: usize = 32 << 20;

const HEAD: usize = 5;

const ITEM: u8 = 1;
const RANGES: u8 = 2;
const PIECE_OF_FILE: u8 = 3;
const END: u8 = 4;
const FINISH: u8 = 5;
const ABANDON: u8 = 6;

const DIR: u8 = 0;
const FILE: u8 = 1;
const SYMLINK: u8 = 2;
const HARD_LINK: u8 = 3;
const NODE: u8 = 4;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A step.
    Step(Step),
    /// Nothing follows. Without this message the sender was interrupted.
    Finish,
}

/// Appends a step to `out`.
///
/// # Errors
/// It is longer than a message may be.
pub fn put(step: &Step, out: &mut Vec<u8>) -> io::Result<()> {
    let at = out.len();
    let kind = match step {
        Step::Item(_) => ITEM,
        Step::Ranges(_) => RANGES,
        Step::Piece(..) => PIECE_OF_FILE,
        Step::End => END,
        Step::Abandon => ABANDON,
    };
    out.push(kind);
    out.extend_from_slice(&[0; 4]);
    match step {
        Step::Item(item) => put_item(item, out),
        Step::Ranges(ranges) => {
            for (start, len) in ranges {
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
            }
        }
        Step::Piece(offset, bytes) => {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(bytes);
        }
        Step::End | Step::Abandon => {}
    }
    let len = out.len() - at - HEAD;
    if len > MESSAGE_MAX {
        out.truncate(at);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "its attributes are too long"));
    }
    out[at + 1..at + HEAD].copy_from_slice(&(len as u32).to_le_bytes());
    Ok(())
}

/// Appends the last message to `out`.
pub fn put_finish(out: &mut Vec<u8>) {
    out.extend_from_slice(&[FINISH, 0, 0, 0, 0]);
}

fn put_item(item: &Item, out: &mut Vec<u8>) {
    put_text(item.path.as_os_str().as_bytes(), out);
    match &item.kind {
        Kind::Dir => out.push(DIR),
        Kind::File { size } => {
            out.push(FILE);
            out.extend_from_slice(&size.to_le_bytes());
        }
        Kind::Symlink(target) => {
            out.push(SYMLINK);
            put_text(target.as_bytes(), out);
        }
        Kind::HardLink(first) => {
            out.push(HARD_LINK);
            put_text(first.as_os_str().as_bytes(), out);
        }
        Kind::Node { format, rdev } => {
            out.push(NODE);
            out.extend_from_slice(&format.to_le_bytes());
            out.extend_from_slice(&rdev.to_le_bytes());
        }
    }
    for number in [item.perm, item.uid, item.gid] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    for time in [item.atime, item.mtime] {
        out.extend_from_slice(&time.seconds().to_le_bytes());
        out.extend_from_slice(&time.nanos().to_le_bytes());
    }
    for (name, value) in &item.xattrs {
        put_text(name, out);
        put_text(value, out);
    }
}

fn put_text(text: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

/// Reads one message. None at the end of the input.
///
/// # Errors
/// The reader's own error, or `InvalidData` if the bytes are no message.
pub fn take(from: &mut impl Read) -> io::Result<Option<Message>> {
    let mut head = [0; HEAD];
    if from.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut head[1..])?;
    let [kind, len @ ..] = head;
    let len = u32::from_le_bytes(len) as usize;
    let most = if kind == PIECE_OF_FILE { PIECE + 8 } else { MESSAGE_MAX };
    if len > most {
        return Err(bad("a message is too long"));
    }
    let mut rest = Vec::new();
    // Memory is taken as bytes arrive, and not because a header asks for it.
    if (&mut *from).take(len as u64).read_to_end(&mut rest)? < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    decode(kind, rest).map(Some)
}

fn decode(kind: u8, mut rest: Vec<u8>) -> io::Result<Message> {
    let mut left = Left(&rest);
    let step = match kind {
        ITEM => Step::Item(left.item()?),
        RANGES => {
            let mut ranges = Vec::with_capacity(left.0.len() / 16);
            while !left.0.is_empty() {
                ranges.push((left.u64()?, left.u64()?));
            }
            Step::Ranges(ranges)
        }
        PIECE_OF_FILE => {
            let offset = left.u64()?;
            rest.drain(..8);
            return Ok(Message::Step(Step::Piece(offset, rest)));
        }
        END => Step::End,
        ABANDON => Step::Abandon,
        FINISH => {
            left.nothing()?;
            return Ok(Message::Finish);
        }
        _ => return Err(bad("there is no such message")),
    };
    left.nothing()?;
    Ok(Message::Step(step))
}

fn bad(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// What is left of a message.
struct Left<'a>(&'a [u8]);

impl<'a> Left<'a> {
    fn bytes(&mut self, len: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| bad("a message is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> io::Result<&'a [u8]> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }

    fn path(&mut self) -> io::Result<PathBuf> {
        self.text().map(|text| Path::new(std::ffi::OsStr::from_bytes(text)).to_owned())
    }

    fn time(&mut self) -> io::Result<Timestamp> {
        let seconds = i64::from_le_bytes(self.array()?);
        let nanos = self.u32()?;
        if nanos >= 1_000_000_000 {
            return Err(bad("a time has too many nanoseconds"));
        }
        Ok(Timestamp::from_parts(seconds, nanos))
    }

    fn item(&mut self) -> io::Result<Item> {
        let path = self.path()?;
        let [kind] = self.array()?;
        let kind = match kind {
            DIR => Kind::Dir,
            FILE => Kind::File { size: self.u64()? },
            SYMLINK => Kind::Symlink(OsString::from_vec(self.text()?.to_vec())),
            HARD_LINK => Kind::HardLink(self.path()?),
            NODE => Kind::Node { format: self.u32()?, rdev: self.u64()? },
            _ => return Err(bad("there is no such kind of item")),
        };
        let [perm, uid, gid] = [self.u32()?, self.u32()?, self.u32()?];
        let (atime, mtime) = (self.time()?, self.time()?);
        let mut xattrs = Vec::new();
        while !self.0.is_empty() {
            xattrs.push((self.text()?.to_vec(), self.text()?.to_vec()));
        }
        Ok(Item { path, kind, perm, uid, gid, atime, mtime, xattrs })
    }

    fn nothing(&self) -> io::Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(bad("a message is too long")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(kind: Kind) -> Item {
        Item {
            path: PathBuf::from(OsString::from_vec(b"a/\xff".to_vec())),
            kind,
            perm: 0o4755,
            uid: 1000,
            gid: u32::MAX - 1,
            atime: Timestamp::from_parts(-5, 7),
            mtime: Timestamp::from_parts(i64::MAX / 2, 999_999_999),
            xattrs: vec![(b"user.a".to_vec(), vec![0, 255]), (b"user.b".to_vec(), Vec::new())],
        }
    }

    fn steps() -> Vec<Step> {
        let mut steps: Vec<_> = [
            Kind::Dir,
            Kind::File { size: u64::MAX },
            Kind::Symlink("../x".into()),
            Kind::HardLink("b/c".into()),
            Kind::Node { format: libc::S_IFCHR, rdev: 0x1234_5678_9abc },
        ]
        .map(|kind| Step::Item(item(kind)))
        .into();
        steps.extend([
            Step::Ranges(vec![(1, 2), (u64::MAX, 0)]),
            Step::Ranges(Vec::new()),
            Step::Piece(9, vec![7; PIECE]),
            Step::Piece(0, Vec::new()),
            Step::End,
            Step::Abandon,
        ]);
        steps
    }

    #[test]
    fn what_is_sent_is_what_arrives() {
        let mut sent = Vec::new();
        steps().iter().for_each(|step| put(step, &mut sent).unwrap());
        put_finish(&mut sent);
        let mut from = &sent[..];
        for step in steps() {
            assert_eq!(take(&mut from).unwrap(), Some(Message::Step(step)));
        }
        assert_eq!(take(&mut from).unwrap(), Some(Message::Finish));
        assert_eq!(take(&mut from).unwrap(), None);
    }

    #[test]
    fn a_message_that_is_cut_or_too_long_is_an_error() {
        for step in steps() {
            let mut sent = Vec::new();
            put(&step, &mut sent).unwrap();
            for len in (1..sent.len()).filter(|len| *len < 200 || *len + 3 > sent.len()) {
                assert!(take(&mut &sent[..len]).is_err(), "{len} bytes of {step:?}");
            }
        }
        let long = |kind: u8, len: u32| {
            let head = [&[kind][..], &len.to_le_bytes()].concat();
            take(&mut &head[..]).unwrap_err().kind()
        };
        assert_eq!(long(PIECE_OF_FILE, (PIECE + 9) as u32), io::ErrorKind::InvalidData);
        assert_eq!(long(ITEM, u32::MAX), io::ErrorKind::InvalidData);
        assert_eq!(long(END, 1), io::ErrorKind::UnexpectedEof);
        assert!(take(&mut &[9, 0, 0, 0, 0][..]).is_err());
        let mut big = item(Kind::Dir);
        big.xattrs.push((b"user.big".to_vec(), vec![0; MESSAGE_MAX]));
        let mut out = vec![1];
        assert!(put(&Step::Item(big), &mut out).is_err());
        assert_eq!(out, [1], "nothing of it is sent");
    }
}
