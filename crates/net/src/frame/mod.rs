//! What connections carry: frames of a fixed header and a payload. docs/PROTOCOL.md draws them.
//!
//! ```text
//! 0    2   3   4    6        8         12       16       20              24        28             32
//! │ CV │ v │ t │ fl │ backlog│ request │ offset │ length │ payload CRC32C│ total   │ header CRC32C│ payload
//! ```
//!
//! All numbers are little-endian, like the processors of the fleet. The header is read first, and the length
//! in it is checked against a bound for its type before memory is allocated. There is no trailer, so a body
//! can be received straight into its final place.
//!
//! Decoders accept any bytes and return an error for what they do not understand. They never panic.

mod keep;
mod lend;
mod pack;
mod payload;
mod recall;
mod roll;
#[cfg(test)]
mod tests;

use base::size::{BLOB_MAX, SEGMENT};
use blob::sums::crc32c;

pub use keep::{KEEP_MAX, Keep, KeepAsk, decode_kept};
pub use lend::{LendAsk, LoanPart, Returned};
pub use pack::{PACK_MAX, PackAsk, PackPart};
pub(crate) use payload::LIST_MAX;
pub use payload::{Get, ListAsk, Refusal, Texted};
pub use payload::{
    decode_answers, decode_ask, decode_filled, decode_listed, decode_notes, encode_answers, encode_ask,
    encode_listed, encode_notes,
};
pub use recall::RecallAsk;
pub(crate) use roll::ROLL_MAX;
pub use roll::{decode_roll, encode_roll};

/// The version of the protocol. The first four bytes of a header mean the same in all versions.
pub const VERSION: u8 = 1;
/// How a header begins.
pub const MAGIC: [u8; 2] = *b"CV";
/// A header's length in bytes.
pub const HEADER: usize = 32;
/// The longest payload in bytes, except for a slice on a bulk connection.
pub const SMALL_MAX: u32 = 64 << 10;
/// A slice of a blob on a bulk connection. It consists of whole segments, so that its CRC can be combined
/// from theirs.
pub const SLICE: u32 = 32 * SEGMENT;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Type {
    /// The connecting node, the volume, and the purpose of the connection.
    Hello = 1,
    /// The accepting node, and its nonce.
    Challenge = 2,
    /// Proves that the connecting side knows the secret.
    Proof = 3,
    /// Proves the same of the accepting side.
    Welcome = 4,
    /// The two do not belong together.
    Refuse = 5,
    /// "Where do I get these?"
    Ask = 16,
    /// The answers to [`Type::Ask`].
    Answers = 17,
    /// What happened to blobs.
    Notes = 18,
    /// Received.
    Done = 19,
    /// "Which blobs do you have?"
    List = 20,
    /// Some of the blobs.
    Listed = 21,
    /// "Fetch this and keep it."
    Fill = 22,
    /// The blob is kept.
    Filled = 23,
    /// "Which members are there?"
    Members = 24,
    /// Some of the members.
    Roll = 25,
    /// "Send me this range of your pack."
    Pack = 26,
    /// The bytes, or why there are none.
    PackPart = 27,
    /// "Give back your lease on this."
    Recall = 28,
    /// "Keep these bytes of my pack."
    Keep = 29,
    /// The bytes are kept.
    Kept = 30,
    /// "Send me this."
    Get = 32,
    /// A blob's sums.
    Sums = 33,
    /// Bytes of a blob.
    Data = 34,
    /// The request failed.
    Error = 35,
    /// The request is given up.
    Cancel = 36,
    /// The received bytes were wrong.
    Suspect = 37,
    /// "Lend me this."
    Lend = 38,
    /// Rows and bytes of what is lent.
    Loan = 39,
    /// "I no longer use your loan."
    Returned = 40,
    /// "Are you there?"
    Ping = 48,
    /// Yes.
    Pong = 49,
    /// The connection ends now. Carries the reason.
    Bye = 50,
}

impl Type {
    fn of(byte: u8) -> Option<Type> {
        const BY_NUMBER: [Option<Type>; Type::Bye as usize + 1] = Type::by_number();
        BY_NUMBER.get(usize::from(byte)).copied().flatten()
    }

    const fn by_number() -> [Option<Type>; Type::Bye as usize + 1] {
        use Type::*;
        let all = [
            Hello, Challenge, Proof, Welcome, Refuse, Ask, Answers, Notes, Done, List, Listed, Fill, Filled,
            Members, Roll, Pack, PackPart, Recall, Keep, Kept, Get, Sums, Data, Error, Cancel, Suspect, Lend,
            Loan, Returned, Ping, Pong, Bye,
        ];
        let (mut table, mut at) = ([None; Type::Bye as usize + 1], 0);
        while at < all.len() {
            table[all[at] as usize] = Some(all[at]);
            at += 1;
        }
        table
    }

    /// The most bytes that a payload of this type has.
    pub fn most(self) -> u32 {
        match self {
            Type::Hello => payload::HELLO as u32,
            Type::Challenge => payload::CHALLENGE as u32,
            Type::Proof | Type::Welcome => 32,
            Type::Refuse | Type::Error | Type::Bye => 1 + payload::TEXT_MAX as u32,
            Type::Ask => 1024,
            Type::Answers => 1024,
            Type::Notes => 16 << 10,
            Type::List | Type::Pack | Type::Recall => 16,
            Type::Listed | Type::Roll | Type::PackPart | Type::Loan => SMALL_MAX,
            Type::Keep => keep::KEEP as u32,
            Type::Kept => 8,
            Type::Lend => lend::ASK_MAX,
            Type::Returned => lend::Returned::LEN,
            Type::Filled => 1,
            Type::Members => 16,
            Type::Get => 40,
            Type::Sums => 4096,
            Type::Data => SLICE,
            Type::Suspect | Type::Fill => 32,
            Type::Done | Type::Cancel | Type::Ping | Type::Pong => 0,
        }
    }
}

/// With [`Type::Data`]: the last bytes of the answer. With [`Type::Listed`]: the list is complete.
pub const LAST: u8 = 1;
/// With [`Type::Get`]: send the sums first.
pub const WITH_SUMS: u8 = 2;
/// With [`Type::Ask`]: only a part of each blob is wanted.
pub const PART: u8 = 4;

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type.
    pub kind: Type,
    /// [`LAST`], [`WITH_SUMS`], [`PART`].
    pub flags: u8,
    /// How much the sender of the frame has to send to all nodes, in MiB.
    pub backlog: u16,
    /// The request it belongs to: a number of the requester, consecutive on each connection.
    pub request: u32,
    /// With [`Type::Data`]: the payload's offset in the blob. Otherwise 0.
    pub offset: u32,
    /// The payload's length in bytes.
    pub length: u32,
    /// The payload's CRC32C.
    pub crc: u32,
    /// With [`Type::Data`]: the blob's size. Otherwise 0.
    pub total: u32,
}

/// The bytes are not a valid frame here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// Not this protocol.
    #[error("the bytes are not Covey's protocol")]
    Magic,
    /// Another version of it.
    #[error(
        "it speaks version {0} of the protocol, this program version {VERSION}: bring both to one release"
    )]
    Version(u8),
    /// Damaged on the way, or garbage.
    #[error("a frame's checksum is wrong")]
    Crc,
    /// A type that this version does not have.
    #[error("a frame of the unknown type {0}")]
    Type(u8),
    /// A length that exceeds the bound of the type.
    #[error("a frame of type {kind:?} says that it has {length} bytes")]
    Long {
        /// The type.
        kind: Type,
        /// The length in the header.
        length: u32,
    },
    /// The payload is not valid for its type.
    #[error("a payload does not make sense: {0}")]
    Payload(&'static str),
}

impl Header {
    /// A header without a payload.
    pub fn bare(kind: Type, request: u32) -> Header {
        Header { kind, flags: 0, backlog: 0, request, offset: 0, length: 0, crc: 0, total: 0 }
    }

    /// The header for a small payload.
    ///
    /// The payload must have at most [`Type::most`] bytes. The other side refuses more.
    pub fn with(kind: Type, request: u32, payload: &[u8]) -> Header {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        Header { length, crc: crc32c(payload), ..Header::bare(kind, request) }
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..2].copy_from_slice(&MAGIC);
        out[2] = VERSION;
        out[3] = self.kind as u8;
        out[4] = self.flags;
        out[6..8].copy_from_slice(&self.backlog.to_le_bytes());
        for (at, number) in
            [(8, self.request), (12, self.offset), (16, self.length), (20, self.crc), (24, self.total)]
        {
            out[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        let own = crc32c(&out[..28]);
        out[28..].copy_from_slice(&own.to_le_bytes());
        out
    }

    /// Reads what [`Header::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`] for everything else, and for invalid lengths and offsets.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header, BadFrame> {
        let number = |at: usize| {
            let mut out = [0; 4];
            out.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(out)
        };
        if bytes[..2] != MAGIC {
            return Err(BadFrame::Magic);
        }
        if bytes[2] != VERSION {
            return Err(BadFrame::Version(bytes[2]));
        }
        if crc32c(&bytes[..28]) != number(28) {
            return Err(BadFrame::Crc);
        }
        let kind = Type::of(bytes[3]).ok_or(BadFrame::Type(bytes[3]))?;
        let header = Header {
            kind,
            flags: bytes[4],
            backlog: u16::from_le_bytes([bytes[6], bytes[7]]),
            request: number(8),
            offset: number(12),
            length: number(16),
            crc: number(20),
            total: number(24),
        };
        if header.length > kind.most() {
            return Err(BadFrame::Long { kind, length: header.length });
        }
        let end = u64::from(header.offset) + u64::from(header.length);
        if kind == Type::Data && (header.total > BLOB_MAX || end > u64::from(header.total)) {
            return Err(BadFrame::Payload("bytes past the end of the blob"));
        }
        Ok(header)
    }

    /// Compares a payload with the header's CRC.
    ///
    /// # Errors
    /// [`BadFrame::Crc`].
    pub fn check(&self, payload: &[u8]) -> Result<(), BadFrame> {
        (crc32c(payload) == self.crc).then_some(()).ok_or(BadFrame::Crc)
    }
}

/// Appends a whole frame.
pub(crate) fn put(out: &mut Vec<u8>, kind: Type, request: u32, payload: &[u8]) {
    out.extend_from_slice(&Header::with(kind, request, payload).encode());
    out.extend_from_slice(payload);
}

/// Why a request failed, as a number on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorKind {
    /// The blob is not here.
    Missing = 1,
    /// The blob is here, but damaged.
    Damaged = 2,
    /// Too much is in progress.
    Busy = 3,
    /// The request makes no sense.
    Bad = 4,
    /// The range is not within the blob.
    Range = 5,
    /// Something else went wrong here.
    Internal = 6,
    /// The node is stopping.
    Closing = 7,
    /// The request could not be carried out. The text says why.
    Failed = 8,
}
