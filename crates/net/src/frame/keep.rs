//! The payload of a request to keep bytes of a pack: a second copy of what only its writer has.

use base::PackNo;
use base::size::BLOB_MAX;

use super::BadFrame;
use super::payload::Reader;

/// The most bytes of a pack that one request carries.
pub const KEEP_MAX: u32 = 16 << 10;
/// What comes before the bytes.
const HEAD: usize = 13;
/// The longest payload.
pub(super) const KEEP: usize = HEAD + KEEP_MAX as usize;

/// What a node is asked to do with its copy of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Keep {
    /// Write these bytes to it.
    Write = 0,
    /// Write these bytes to the copy, and answer when all that was written to it survives a power cut.
    Sync = 1,
    /// Delete it. The origin has the pack.
    Drop = 2,
}

/// "Keep these bytes of a pack that I write": pack u64, offset u32, what u8, then the bytes. The answer is
/// KEPT, with the number of the keeping node's run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepAsk {
    /// Which pack.
    pub pack: PackNo,
    /// Where in it the bytes are.
    pub offset: u32,
    /// What is to be done.
    pub what: Keep,
    /// At most [`KEEP_MAX`] bytes: at least one to write, none to delete.
    pub bytes: Vec<u8>,
}

impl KeepAsk {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.bytes.len());
        out.extend_from_slice(&self.pack.0.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.push(self.what as u8);
        out.extend_from_slice(&self.bytes);
        out
    }

    /// Reads what [`KeepAsk::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`], also for a range that is too long or not in a pack, and for bytes to delete.
    pub fn decode(bytes: &[u8]) -> Result<KeepAsk, BadFrame> {
        let bad = BadFrame::Payload("a range of a pack to keep is at most 16384 bytes of 4 MiB");
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or(bad)?;
        let mut reader = Reader(head);
        let (pack, offset) = (PackNo(reader.u64()?), reader.u32()?);
        let what = match head[HEAD - 1] {
            0 if !rest.is_empty() => Keep::Write,
            1 => Keep::Sync,
            2 if rest.is_empty() && offset == 0 => Keep::Drop,
            _ => return Err(bad),
        };
        let end = u64::from(offset) + rest.len() as u64;
        if rest.len() > KEEP_MAX as usize || end > u64::from(BLOB_MAX) {
            return Err(bad);
        }
        Ok(KeepAsk { pack, offset, what, bytes: rest.to_vec() })
    }
}

/// The answer: the number of the node's run. Another number later says that the node was started anew, so
/// what was not synced then may be lost.
pub fn decode_kept(bytes: &[u8]) -> Result<u64, BadFrame> {
    let mut reader = Reader(bytes);
    let run = reader.u64()?;
    reader.end()?;
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_nothing_else() {
        let ask = |offset: u32, what, len: u32| KeepAsk {
            pack: PackNo(7 << 40),
            offset,
            what,
            bytes: vec![5; len as usize],
        };
        for good in [
            ask(9, Keep::Write, 1),
            ask(BLOB_MAX - KEEP_MAX, Keep::Sync, KEEP_MAX),
            ask(0, Keep::Sync, 0),
            ask(0, Keep::Drop, 0),
        ] {
            assert!(good.encode().len() <= KEEP);
            assert_eq!(KeepAsk::decode(&good.encode()), Ok(good));
        }
        for bad in [
            ask(0, Keep::Write, 0),
            ask(0, Keep::Drop, 1),
            ask(1, Keep::Drop, 0),
            ask(0, Keep::Write, KEEP_MAX + 1),
            ask(BLOB_MAX, Keep::Write, 1),
            ask(u32::MAX, Keep::Sync, 1),
        ] {
            assert!(KeepAsk::decode(&bad.encode()).is_err(), "{:?} {}", bad.what, bad.offset);
        }
        assert!(KeepAsk::decode(&[0; HEAD - 1]).is_err());
        let mut unknown = ask(0, Keep::Sync, 0).encode();
        unknown[HEAD - 1] = 3;
        assert!(KeepAsk::decode(&unknown).is_err());
        assert_eq!(decode_kept(&7u64.to_le_bytes()), Ok(7));
        assert!(decode_kept(&[0; 9]).is_err() && decode_kept(&[0; 7]).is_err());
    }
}
