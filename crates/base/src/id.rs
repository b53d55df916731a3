//! Names for things: an inode, a pack, a blob.
//!
//! Each is a newtype, so that a pack number can never be passed as an inode number.

use std::fmt;
use std::str::FromStr;

/// An inode number. 1 is the root of the volume; 0 is never an inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of a volume.
    pub const ROOT: Ino = Ino(1);
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ino:{}", self.0)
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A pack's number. It is given once and never reused, even after the pack is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackNo(pub u64);

impl fmt::Debug for PackNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pack:{}", self.0)
    }
}

impl fmt::Display for PackNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A blob's name: the BLAKE3 hash of its bytes. Written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub [u8; 32]);

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blob:{self}")
    }
}

/// The text was not 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a blob's name is 64 hexadecimal digits")]
pub struct NotABlobId;

impl FromStr for BlobId {
    type Err = NotABlobId;

    fn from_str(text: &str) -> Result<Self, NotABlobId> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return Err(NotABlobId);
        }
        let mut id = [0u8; 32];
        for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(BlobId(id))
    }
}

fn nibble(digit: u8) -> Result<u8, NotABlobId> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(NotABlobId),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_id_survives_its_text() {
        let id = BlobId(std::array::from_fn(|i| (i * 7 + 3) as u8));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().len(), 64);
    }

    #[test]
    fn text_that_is_no_blob_id_is_refused() {
        assert_eq!("".parse::<BlobId>(), Err(NotABlobId));
        assert_eq!("g".repeat(64).parse::<BlobId>(), Err(NotABlobId));
        assert_eq!("a".repeat(63).parse::<BlobId>(), Err(NotABlobId));
    }
}
