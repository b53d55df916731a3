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
///
/// A **foreign** blob is a part of an object in a bucket that Covey only reads. Its bytes are not known when
/// it is named. So its name is made from the object's version, which is immutable too:
///
/// ```text
///   object, mixed with the part's number   20 bytes
///   the part's number                       4 bytes, big-endian
///   MARK                                    8 bytes
/// ```
///
/// A hash that ends with [`BlobId::MARK`] by chance is as likely as eight bytes that are guessed. The mixing
/// keeps every byte before the number evenly distributed, as in a hash: indexes and folders rely on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobId(pub [u8; 32]);

/// One version of an object in a bucket that Covey only reads: a hash of where it is, its key, ETag and size.
/// The first 4 bytes are the same for all objects of a folder, so that an index in this order has them side
/// by side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForeignObject(pub [u8; 20]);

impl fmt::Display for ForeignObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ForeignObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object:{self}")
    }
}

impl BlobId {
    /// The last bytes of every foreign blob's name.
    pub const MARK: [u8; 8] = [0xC0, 0x7E, 0xF0, 0x4E, 0x16, 0x8B, 0x10, 0xB1];

    /// The name of a part of a foreign object.
    pub fn foreign(object: ForeignObject, part: u32) -> BlobId {
        let mut id = [0; 32];
        id[..20].copy_from_slice(&mix(object.0, part));
        id[20..24].copy_from_slice(&part.to_be_bytes());
        id[24..].copy_from_slice(&BlobId::MARK);
        BlobId(id)
    }

    /// The object and the part's number, if the blob is foreign.
    pub fn as_foreign(&self) -> Option<(ForeignObject, u32)> {
        if !self.is_foreign() {
            return None;
        }
        let object = std::array::from_fn(|at| self.0[at]);
        let part = u32::from_be_bytes(std::array::from_fn(|at| self.0[20 + at]));
        Some((ForeignObject(unmix(object, part)), part))
    }

    /// Whether the blob is a part of a foreign object, so that its name is not the hash of its bytes.
    pub fn is_foreign(&self) -> bool {
        self.0[24..] == BlobId::MARK
    }
}

/// An object's bytes, each changed by a bit pattern. The last 8 change with the part's number, and the others
/// with that and with the object's last 8. So the parts of one object are spread, and so are the first parts
/// of objects whose identities begin with the same bytes.
fn mix(mut object: [u8; 20], part: u32) -> [u8; 20] {
    let (head, tail) = object.split_at_mut(12);
    let seed = tail.iter().fold(u64::from(part), |seed, byte| seed.rotate_left(8) ^ u64::from(*byte));
    xor(head, scrambled(seed), scrambled(seed ^ u64::from(u32::MAX)));
    xor(tail, scrambled(u64::from(part)), 0);
    object
}

/// What [`mix`] was called with.
fn unmix(mut mixed: [u8; 20], part: u32) -> [u8; 20] {
    let (head, tail) = mixed.split_at_mut(12);
    xor(tail, scrambled(u64::from(part)), 0);
    let seed = tail.iter().fold(u64::from(part), |seed, byte| seed.rotate_left(8) ^ u64::from(*byte));
    xor(head, scrambled(seed), scrambled(seed ^ u64::from(u32::MAX)));
    mixed
}

fn xor(bytes: &mut [u8], first: u64, rest: u64) {
    let pattern = first.to_le_bytes().into_iter().chain(rest.to_le_bytes());
    bytes.iter_mut().zip(pattern).for_each(|(byte, change)| *byte ^= change);
}

/// The finalizer of SplitMix64: every bit of the number changes about half of the result.
fn scrambled(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

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
    fn a_foreign_name_gives_its_object_and_part_and_spreads_evenly() {
        let object = ForeignObject(std::array::from_fn(|i| (i * 11 + 5) as u8));
        let mut first = std::collections::BTreeSet::new();
        for part in (0..1000).chain([u32::MAX - 1, u32::MAX]) {
            let id = BlobId::foreign(object, part);
            assert_eq!(id.as_foreign(), Some((object, part)));
            assert!(id.is_foreign());
            first.insert(id.0[0]);
        }
        assert!(first.len() > 200, "the parts of one object are in {} of 256 folders", first.len());
        let beside =
            |n: u16| ForeignObject(std::array::from_fn(|i| if i < 18 { 9 } else { n.to_be_bytes()[i - 18] }));
        let first: std::collections::BTreeSet<u8> =
            (0..1000).map(|n| BlobId::foreign(beside(n), 0).0[0]).collect();
        assert!(first.len() > 200, "the objects of one folder are in {} of 256 folders", first.len());
        assert_eq!(BlobId([7; 32]).as_foreign(), None);
    }

    #[test]
    fn text_that_is_no_blob_id_is_refused() {
        assert_eq!("".parse::<BlobId>(), Err(NotABlobId));
        assert_eq!("g".repeat(64).parse::<BlobId>(), Err(NotABlobId));
        assert_eq!("a".repeat(63).parse::<BlobId>(), Err(NotABlobId));
    }
}
