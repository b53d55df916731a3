//! What an archive is packed with: nothing, gzip or zstd. The first bytes decide which, never the name.
//!
//! ```text
//!   member | member | ... | zeros          gzip (RFC 1952) or zstd (RFC 8878)
//! ```
//!
//! A file may consist of several members (zstd calls them frames), as parallel compressors and `cat` make it.
//! Zeros behind the last one are padding: tapes and dd(1) fill their blocks with them. Anything else behind
//! it is an error: it may be the rest of an archive that was damaged.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use api::error::{Context, Failure, Result};
use flate2::bufread::GzDecoder;

use super::bounds::Bounds;
use crate::read::is_header;

/// Bytes of an archive.
pub type Bytes = Box<dyn Read + Send>;

type Input = BufReader<Bytes>;

/// Decompresses if needed, and checks that the content is a tar archive. `name` is its name for people. What
/// comes out is within `bounds`.
///
/// # Errors
/// The bytes cannot be read, or are no archive that can be imported.
pub fn unpack(name: &str, bytes: Bytes, bounds: &Bounds) -> Result<Bytes> {
    let (head, bytes) = peek(name, bytes)?;
    let plain: Bytes = match head.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(Packed::new(Form::Gzip, bytes)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(Packed::new(Form::Zstd, bytes))
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
    let (head, plain) = peek(name, bounds.reader(plain))?;
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

/// Reads the first block, and returns it with a reader that still starts with it.
fn peek(name: &str, mut bytes: Bytes) -> Result<(Vec<u8>, Bytes)> {
    let mut head = Vec::with_capacity(512);
    bytes.by_ref().take(512).read_to_end(&mut head).or_fail(|| format!("cannot read {name}"))?;
    Ok((head.clone(), Box::new(Cursor::new(head).chain(bytes))))
}

/// Whether this is a header, or the end mark of an empty archive.
fn is_tar(head: &[u8]) -> bool {
    is_header(head) || head.len() == 512 && head.iter().all(|&byte| byte == 0)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Gzip,
    Zstd,
}

/// Where the reader is.
enum At {
    /// Before a member, the first one if that is true.
    Before(Input, bool),
    Gzip(GzDecoder<Input>),
    Zstd(zstd::Decoder<'static, Input>),
    /// At the end, or behind an error.
    End,
}

/// Reads all members of compressed bytes.
struct Packed {
    form: Form,
    at: At,
}

impl Packed {
    fn new(form: Form, bytes: Bytes) -> Packed {
        Packed { form, at: At::Before(BufReader::with_capacity(64 << 10, bytes), true) }
    }

    /// Begins the next member.
    fn begin(&self, mut input: Input, is_first: bool) -> io::Result<At> {
        let Some(&first) = input.fill_buf()?.first() else { return Ok(At::End) };
        match (self.form, first) {
            _ if is_first => {}
            (Form::Gzip, 0x1f) | (Form::Zstd, 0x28 | 0x50..=0x5f) => {}
            _ => return padding(&mut input).map(|()| At::End),
        }
        Ok(match self.form {
            Form::Gzip => At::Gzip(GzDecoder::new(input)),
            Form::Zstd => At::Zstd(zstd::Decoder::with_buffer(input)?.single_frame()),
        })
    }
}

impl Read for Packed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let got = match &mut self.at {
                At::Before(..) => 0,
                At::Gzip(member) => member.read(buf)?,
                At::Zstd(member) => member.read(buf)?,
                At::End => return Ok(0),
            };
            if got > 0 || buf.is_empty() {
                return Ok(got);
            }
            let (input, is_first) = match std::mem::replace(&mut self.at, At::End) {
                At::Before(input, is_first) => (input, is_first),
                At::Gzip(member) => (member.into_inner(), false),
                At::Zstd(member) => (member.finish(), false),
                At::End => return Ok(0),
            };
            self.at = self.begin(input, is_first)?;
        }
    }
}

/// Reads zeros up to the end.
fn padding(input: &mut Input) -> io::Result<()> {
    loop {
        let bytes = input.fill_buf()?;
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.iter().any(|&byte| byte != 0) {
            let what = "something other than zeros follows the compressed data";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let len = bytes.len();
        input.consume(len);
    }
}

#[cfg(test)]
mod tests;
