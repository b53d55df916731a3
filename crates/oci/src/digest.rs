//! SHA-256 digests of blobs, and readers that compute them.
//!
//! Images name their blobs by `sha256:HEX`. Covey's own names (BLAKE3) play no part here: what was verified
//! by its SHA-256 is stored as files, and these are stored as every other file.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::error::{Failure, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::Bytes;
use crate::manifest::Descriptor;

/// The SHA-256 of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// Parses `sha256:HEX`, with lower-case digits as the format demands. None for anything else.
    pub fn parse(text: &str) -> Option<Digest> {
        let hex = text.strip_prefix("sha256:")?.as_bytes();
        if hex.len() != 64 {
            return None;
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Digest(bytes))
    }

    /// The 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        Digest::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no SHA-256 digest (sha256: and 64 digits)"))
        })
    }
}

/// A reader that computes the digest of what passes. Clones share it, so that one can check what another
/// one has read.
#[derive(Clone)]
pub struct Checked(Arc<Mutex<State>>);

struct State {
    from: Bytes,
    hash: Sha256,
    len: u64,
    /// More bytes than this are an error.
    most: u64,
    counter: Option<Arc<AtomicU64>>,
}

impl Checked {
    /// A reader that fails after `most` bytes. `counter` is increased by the bytes that pass.
    pub fn new(from: Bytes, most: u64, counter: Option<Arc<AtomicU64>>) -> Checked {
        Checked(Arc::new(Mutex::new(State { from, hash: Sha256::new(), len: 0, most, counter })))
    }

    /// Reads the rest, and returns the digest and the length of everything.
    ///
    /// # Errors
    /// The rest cannot be read, or is too long.
    pub fn finish(&self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self.clone(), &mut io::sink())?;
        let state = self.0.lock();
        Ok((Digest(state.hash.clone().finalize().into()), state.len))
    }
}

impl Read for Checked {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let State { from, hash, len, most, counter } = &mut *self.0.lock();
        let got = from.read(buf)?;
        hash.update(&buf[..got]);
        *len += got as u64;
        if let Some(counter) = counter {
            counter.fetch_add(got as u64, Ordering::Relaxed);
        }
        if *len > *most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG));
        }
        Ok(got)
    }
}

const TOO_LONG: &str = "it is longer than the image says";

/// Reads the whole of a blob and compares it with its size and digest.
///
/// # Errors
/// It is larger than `most` bytes, cannot be read, or is not what the digest says.
pub fn whole(from: Bytes, blob: &Descriptor, most: u64, what: &str) -> Result<Vec<u8>> {
    let Descriptor { digest, size, .. } = blob;
    if *size > most {
        return Err(Failure::new("damaged", format!("{what} {digest} has {size} bytes"))
            .why(format!("none has more than {most}")));
    }
    let mut checked = Checked::new(from, *size, None);
    let mut bytes = Vec::new();
    checked.read_to_end(&mut bytes).map_err(|error| unread(what, digest, &error))?;
    match checked.finish().map_err(|error| unread(what, digest, &error))? {
        (found, len) if (found, len) == (*digest, *size) => Ok(bytes),
        found => Err(differs(what, blob, found)),
    }
}

/// The failure for a blob that cannot be read.
pub fn unread(what: &str, digest: &Digest, error: &io::Error) -> Failure {
    let text = format!("cannot read {what} {digest}");
    match error.kind() {
        io::ErrorKind::InvalidData => {
            Failure::new("damaged", text).why(error.to_string()).next("get the image again")
        }
        _ => Failure::io(text, error),
    }
}

/// The failure for a blob that is not what its digest says.
pub fn differs(what: &str, blob: &Descriptor, (found, len): (Digest, u64)) -> Failure {
    let Descriptor { digest, size, .. } = blob;
    let why = if len == *size {
        format!("its bytes have the digest {found}")
    } else {
        format!("it has {len} bytes, and the image says {size}")
    };
    Failure::new("damaged", format!("{what} {digest} is not what its digest says"))
        .why(why)
        .next("get the image again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_strictly() {
        let text = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(Digest::parse(&text).unwrap().to_string(), text);
        let bad = [text.to_uppercase(), text[..70].to_owned(), format!("{text}0"), "sha512:00".to_owned()];
        assert!(bad.iter().all(|text| Digest::parse(text).is_none()));
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
    }

    #[test]
    fn a_blob_is_taken_only_if_size_and_digest_match() {
        let read = |bytes: &'static [u8], size, most| {
            let blob = Descriptor::new("", Digest::of(b"hello"), size);
            whole(Box::new(bytes), &blob, most, "the blob")
        };
        assert_eq!(read(b"hello", 5, 9).unwrap(), b"hello");
        let why = |result: Result<Vec<u8>>| result.unwrap_err().in_one_line();
        assert!(why(read(b"hellO", 5, 9)).contains("its bytes have the digest"));
        assert!(why(read(b"hell", 5, 9)).contains("it has 4 bytes"));
        assert!(why(read(b"hello!", 5, 9)).contains("longer than the image says"));
        assert!(why(read(b"hello", 5, 4)).contains("none has more than 4"));
    }
}
