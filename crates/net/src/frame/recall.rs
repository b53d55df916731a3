//! The payload of a request for a lease of a shared volume.

use base::Ino;

use super::BadFrame;
use super::payload::Reader;

/// "Give back your lease on this, if it is the one with this number": inode u64, number u64. The answer is
/// DONE when the lease is no longer used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecallAsk {
    /// The directory or file.
    pub unit: Ino,
    /// The number of the lease row that was seen. A later lease is kept.
    pub seq: u64,
}

impl RecallAsk {
    /// As bytes.
    pub fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.unit.0.to_le_bytes());
        out[8..].copy_from_slice(&self.seq.to_le_bytes());
        out
    }

    /// Reads what [`RecallAsk::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<RecallAsk, BadFrame> {
        let mut reader = Reader(bytes);
        let ask = RecallAsk { unit: Ino(reader.u64()?), seq: reader.u64()? };
        reader.end()?;
        Ok(ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let ask = RecallAsk { unit: Ino(7 << 40), seq: u64::MAX };
        assert_eq!(RecallAsk::decode(&ask.encode()), Ok(ask));
        assert!(RecallAsk::decode(&ask.encode()[..15]).is_err());
        assert!(RecallAsk::decode(&[0; 17]).is_err());
    }
}
