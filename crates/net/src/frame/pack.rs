//! Payloads of requests for bytes of a pack. Only the node that writes a pack has them, until it is a blob in
//! the origin. A pack has no hash yet, so the frame's CRC is what verifies the bytes.

use base::PackNo;
use base::size::BLOB_MAX;

use super::payload::Reader;
use super::{BadFrame, SMALL_MAX};

/// The most bytes that one answer carries.
pub const PACK_MAX: u32 = SMALL_MAX - 4096;

/// "Send me this range of your pack": pack u64, offset u32, len u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackAsk {
    /// Which pack.
    pub pack: PackNo,
    /// The first byte.
    pub offset: u32,
    /// 1 to [`PACK_MAX`] bytes.
    pub len: u32,
}

impl PackAsk {
    /// As bytes.
    pub fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.pack.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.offset.to_le_bytes());
        out[12..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Reads what [`PackAsk::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`], also for a range that is empty, too long, or not in a pack.
    pub fn decode(bytes: &[u8]) -> Result<PackAsk, BadFrame> {
        let mut reader = Reader(bytes);
        let ask = PackAsk { pack: PackNo(reader.u64()?), offset: reader.u32()?, len: reader.u32()? };
        reader.end()?;
        let end = u64::from(ask.offset) + u64::from(ask.len);
        if ask.len == 0 || ask.len > PACK_MAX || end > u64::from(BLOB_MAX) {
            return Err(BadFrame::Payload("a range of a pack is 1 to 61440 bytes of 4 MiB"));
        }
        Ok(ask)
    }
}

/// The answer: a byte that says which, then the bytes if it has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackPart {
    /// The bytes, as many as were asked for.
    Bytes(Vec<u8>),
    /// The pack is a blob, and the origin has it.
    InOrigin,
    /// There is no such pack.
    Gone,
}

impl PackPart {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            PackPart::Bytes(bytes) => [&[0][..], bytes].concat(),
            PackPart::InOrigin => vec![1],
            PackPart::Gone => vec![2],
        }
    }

    /// Reads what [`PackPart::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<PackPart, BadFrame> {
        match bytes {
            [0, rest @ ..] if !rest.is_empty() && rest.len() <= PACK_MAX as usize => {
                Ok(PackPart::Bytes(rest.to_vec()))
            }
            [1] => Ok(PackPart::InOrigin),
            [2] => Ok(PackPart::Gone),
            _ => Err(BadFrame::Payload("a part of a pack is bytes, in the origin, or gone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else() {
        let ask = PackAsk { pack: PackNo(7 << 40), offset: 5, len: PACK_MAX };
        assert_eq!(PackAsk::decode(&ask.encode()), Ok(ask));
        for bad in [
            PackAsk { len: 0, ..ask },
            PackAsk { len: PACK_MAX + 1, ..ask },
            PackAsk { offset: BLOB_MAX, len: 1, ..ask },
            PackAsk { offset: u32::MAX, ..ask },
        ] {
            assert!(PackAsk::decode(&bad.encode()).is_err(), "{bad:?}");
        }
        assert!(PackAsk::decode(&ask.encode()[..15]).is_err());
        for part in [PackPart::Bytes(vec![9; 3]), PackPart::InOrigin, PackPart::Gone] {
            assert_eq!(PackPart::decode(&part.encode()), Ok(part));
        }
        for bad in [&[][..], &[0], &[1, 1], &[2, 2], &[3]] {
            assert!(PackPart::decode(bad).is_err(), "{bad:?}");
        }
    }
}
