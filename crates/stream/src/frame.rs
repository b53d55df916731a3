//! Frames: what crosses the connection between a guest and its server, after and during the greeting.
//!
//! ```text
//!   0   length of the payload   u32
//!   4   kind                    u8
//!   5   flags                   u8
//!   6   slot                    u16
//!   8   sequence number         u64
//!  16   CRC32C                  u32    of the header with zeros here, and of the payload
//!  20   zero                    u32
//!  24   payload
//! ```
//!
//! Numbers are little-endian. The payload of a REQUEST, a REPLY and a NOTIFY is a FUSE message, byte for byte
//! as the guest's kernel writes or reads it. This module does no I/O: it turns bytes into frames and back.
//! Every length is checked against the largest of its kind before anything is allocated for it.

use crc_fast::{CrcAlgorithm, Digest};

/// Length of a frame's header, in bytes.
pub const HEADER: usize = 24;
/// The largest payload: a WRITE or READ of 1 MiB, its headers, and a page to spare.
pub const PAYLOAD_MAX: usize = (1 << 20) + 8192;
/// The largest payload of frames that carry no FUSE message.
const SMALL_MAX: usize = 4096;
/// The most bytes of inodes in one HOLD.
pub const HOLD_MAX: usize = 64 << 10;
/// Where the checksum is in the header.
const CRC_AT: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Guest: the first frame. See [`crate::hello`].
    Hello,
    /// Server: its answer.
    Challenge,
    /// Guest: the proof that it knows the secret.
    Proof,
    /// Server: the session, its credits, and what is served.
    Welcome,
    /// Either side: the connection ends, and why.
    Refuse,
    /// Guest: a request of its kernel, in a slot.
    Request,
    /// Server: the reply. Empty for a request that expects none: it was executed.
    Reply,
    /// Guest: the request of this slot is given up. If the server has not begun it, it never does.
    Cancel,
    /// Guest: a signal reached the caller of this slot's request. Flag 1: the caller is being killed.
    Interrupt,
    /// Server: a notification for the guest's kernel.
    Notify,
    /// Guest: the notification of this number has reached its kernel.
    Noted,
    /// Either side: is the other still there?
    Ping,
    /// The answer to a ping.
    Pong,
    /// Guest, in a new session: what its mount had agreed with the session before.
    Agreed,
    /// Guest, in a new session: inodes that its kernel holds, and how often.
    Hold,
    /// Server: the answer to AGREED and to each HOLD.
    Held,
    /// Guest: its mount is gone. Server: everything that it wrote is durable; the payload is an error number.
    Bye,
    /// Server: what it measured for a traced request. The reply follows. See [`crate::times`].
    Times,
    /// Server, in front of WELCOME: its name and version, for people.
    About,
}

/// The flag of a REQUEST that is traced: the server answers with TIMES in front of the reply.
pub const TRACED: u8 = 1;
/// The other bits of a REQUEST's and a CANCEL's flags say how often the request was sent before, modulo this.
/// A guest that does not count sends zeros.
const ATTEMPTS: u8 = 128;

/// Whether a copy of a request was sent before the newest one that is known.
pub fn is_older(attempt: u8, newest: u8) -> bool {
    let behind = newest.wrapping_sub(attempt) % ATTEMPTS;
    (1..ATTEMPTS / 2).contains(&behind)
}

impl Kind {
    /// All kinds. The number of a kind on the wire is its position here, counted from 1.
    pub const ALL: [Kind; 19] = [
        Kind::Hello,
        Kind::Challenge,
        Kind::Proof,
        Kind::Welcome,
        Kind::Refuse,
        Kind::Request,
        Kind::Reply,
        Kind::Cancel,
        Kind::Interrupt,
        Kind::Notify,
        Kind::Noted,
        Kind::Ping,
        Kind::Pong,
        Kind::Agreed,
        Kind::Hold,
        Kind::Held,
        Kind::Bye,
        Kind::Times,
        Kind::About,
    ];

    fn byte(self) -> u8 {
        self as u8 + 1
    }

    fn of(byte: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }

    /// The largest payload of this kind, in bytes.
    pub fn payload_max(self) -> usize {
        match self {
            Kind::Request | Kind::Reply => PAYLOAD_MAX,
            Kind::Hold => HOLD_MAX,
            Kind::Times => crate::times::LEN,
            Kind::Ping | Kind::Pong | Kind::Cancel | Kind::Interrupt | Kind::Noted | Kind::Held => 0,
            _ => SMALL_MAX,
        }
    }
}

/// A frame's header, without the checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the payload.
    pub len: usize,
    /// What the frame is.
    pub kind: Kind,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// The slot of a request.
    pub slot: u16,
    /// The number of the request in its slot, or of the notification.
    pub seq: u64,
}

impl Head {
    /// A frame without slot, number and flags.
    pub fn plain(kind: Kind) -> Head {
        Head { len: 0, kind, flags: 0, slot: 0, seq: 0 }
    }

    /// A frame about a slot.
    pub fn of_slot(kind: Kind, slot: u16, seq: u64) -> Head {
        Head { slot, seq, ..Head::plain(kind) }
    }

    /// Returns this header for a request that was sent `attempt` times before.
    pub fn again(self, attempt: u8) -> Head {
        Head { flags: self.flags & TRACED | attempt << 1, ..self }
    }

    /// How often the request of a REQUEST or CANCEL was sent before.
    pub fn attempt(&self) -> u8 {
        self.flags >> 1
    }
}

/// Why bytes are no frame. The connection ends then, because nothing behind them can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The number of the kind means nothing.
    #[error("a frame is of the unknown kind {0}")]
    Kind(u8),
    /// The payload would be larger than its kind allows.
    #[error("a frame announces {len} bytes, and {kind:?} has at most {}", kind.payload_max())]
    Long {
        /// The kind.
        kind: Kind,
        /// What is announced.
        len: usize,
    },
    /// The checksum differs.
    #[error("the checksum of a frame is wrong: its bytes were changed on the way")]
    Checksum,
    /// The reserved bytes are not zero.
    #[error("a frame has set bytes that must be zero")]
    Reserved,
    /// The payload is not what its kind has.
    #[error("a {0:?} frame makes no sense")]
    Payload(Kind),
}

/// The checksum of a header and its payload. The header's own place for it counts as zeros.
fn checksum<'a>(header: &[u8; HEADER], parts: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut header = *header;
    header[CRC_AT..CRC_AT + 4].fill(0);
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&header);
    parts.for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// The header for a payload in these parts. The length of `head` is ignored. The parts together must not be
/// longer than the kind allows.
pub fn encode(head: &Head, parts: &[&[u8]]) -> [u8; HEADER] {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert!(len <= head.kind.payload_max(), "{:?} of {len} bytes", head.kind);
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(len as u32).to_le_bytes());
    header[4] = head.kind.byte();
    header[5] = head.flags;
    header[6..8].copy_from_slice(&head.slot.to_le_bytes());
    header[8..16].copy_from_slice(&head.seq.to_le_bytes());
    let crc = checksum(&header, parts.iter().copied());
    header[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Reads a header. Its checksum cannot be compared before the payload is there: see [`verify`].
///
/// # Errors
/// [`BadFrame`]: an unknown kind, a payload that is too long, or reserved bytes.
pub fn decode(header: &[u8; HEADER]) -> Result<Head, BadFrame> {
    let mut take = Take(header);
    // The array is as long as what is taken from it, so no step fails.
    let whole = |take: &mut Take<'_>| {
        Some((take.u32()?, take.u8()?, take.u8()?, take.u16()?, take.u64()?, take.u32()?, take.u32()?))
    };
    let (len, kind, flags, slot, seq, _, reserved) = whole(&mut take).ok_or(BadFrame::Reserved)?;
    let kind = Kind::of(kind).ok_or(BadFrame::Kind(kind))?;
    let len = len as usize;
    if len > kind.payload_max() {
        return Err(BadFrame::Long { kind, len });
    }
    if reserved != 0 {
        return Err(BadFrame::Reserved);
    }
    Ok(Head { len, kind, flags, slot, seq })
}

/// Compares the checksum in a header with the payload.
///
/// # Errors
/// [`BadFrame::Checksum`].
pub fn verify(header: &[u8; HEADER], payload: &[u8]) -> Result<(), BadFrame> {
    let mut said = [0; 4];
    said.copy_from_slice(&header[CRC_AT..CRC_AT + 4]);
    let is = checksum(header, std::iter::once(payload));
    if u32::from_le_bytes(said) == is { Ok(()) } else { Err(BadFrame::Checksum) }
}

/// The first frame of some bytes, its payload, and the bytes behind it. `None` if it is not complete.
///
/// # Errors
/// [`BadFrame`].
#[allow(clippy::type_complexity)]
pub fn split(bytes: &[u8]) -> Result<Option<(Head, &[u8], &[u8])>, BadFrame> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let head = decode(header)?;
    let Some((payload, behind)) = rest.split_at_checked(head.len) else { return Ok(None) };
    verify(header, payload)?;
    Ok(Some((head, payload, behind)))
}

/// Reads little-endian numbers step by step. `None` if too few bytes are left.
pub struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// The next 16-bit number.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// The next 32-bit number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next 64-bit number.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(head: &Head, payload: &[u8]) -> Vec<u8> {
        [&encode(head, &[payload]), payload].concat()
    }

    #[test]
    fn every_kind_comes_back_and_has_a_bound() {
        for kind in Kind::ALL {
            let head = Head { flags: 1, slot: 7, seq: u64::MAX, ..Head::plain(kind) };
            let bytes = whole(&head, &[]);
            let (back, payload, rest) = split(&bytes).unwrap().unwrap();
            assert_eq!((back, payload, rest), (head, &[][..], &[][..]));
            let mut long = bytes;
            long[..4].copy_from_slice(&(kind.payload_max() as u32 + 1).to_le_bytes());
            assert!(matches!(split(&long), Err(BadFrame::Long { .. })), "{kind:?}");
        }
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let head = Head::of_slot(Kind::Request, 3, 9);
        let good = whole(&head, b"some bytes of a request");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let got = split(&bad);
            // A longer length makes the frame incomplete. The checksum is compared when the rest has come.
            let noticed = got.is_err() || (got == Ok(None) && bit < 32);
            assert!(noticed, "bit {bit} was changed without notice");
        }
    }

    proptest! {
        #[test]
        fn frames_follow_one_another(frames in prop::collection::vec(
            (0_usize..18, any::<u8>(), any::<u16>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..200)),
            0..20,
        )) {
            let mut bytes = Vec::new();
            let mut sent = Vec::new();
            for (kind, flags, slot, seq, mut payload) in frames {
                let kind = Kind::ALL[kind];
                payload.truncate(kind.payload_max());
                let head = Head { len: payload.len(), kind, flags, slot, seq };
                bytes.extend(whole(&head, &payload));
                sent.push((head, payload));
            }
            let (mut rest, mut got) = (&bytes[..], Vec::new());
            while let Some((head, payload, behind)) = split(rest).unwrap() {
                got.push((head, payload.to_vec()));
                rest = behind;
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(got, sent);
            // A part of them is a part of the frames, and never something else.
            let cut = bytes.len() / 2;
            let mut rest = &bytes[..cut];
            while let Some((_, _, behind)) = split(rest).unwrap() {
                rest = behind;
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = split(&bytes);
        }
    }
}
