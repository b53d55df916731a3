//! The payloads: byte for byte as in docs/PROTOCOL.md.

use std::time::Duration;

use base::BlobId;
use base::size::BLOB_MAX;

use super::{BadFrame, ErrorKind};
use crate::id::NodeId;
use crate::message::{ASK_MAX, Answer, Ask, Group, NOTES_MAX, Note, What};
use crate::transport::service::{Filled, Listed, Prefix};

/// Lengths of the payloads of the handshake.
pub(super) const HELLO: usize = 84;
pub(super) const CHALLENGE: usize = 52;
/// The longest text of an error or of BYE.
pub(super) const TEXT_MAX: usize = 255;
/// How many nodes a question can exclude.
const NOT_MAX: usize = 8;

/// Parses a payload from its front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], BadFrame> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(BadFrame::Payload("it is cut short"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], BadFrame> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(super) fn u8(&mut self) -> Result<u8, BadFrame> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, BadFrame> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, BadFrame> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, BadFrame> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn blob(&mut self) -> Result<BlobId, BadFrame> {
        Ok(BlobId(self.array()?))
    }

    pub(super) fn node(&mut self) -> Result<NodeId, BadFrame> {
        Ok(NodeId(self.array()?))
    }

    fn millis(&mut self) -> Result<Duration, BadFrame> {
        Ok(Duration::from_millis(u64::from(self.u32()?)))
    }

    pub(super) fn end(self) -> Result<(), BadFrame> {
        self.0.is_empty().then_some(()).ok_or(BadFrame::Payload("something follows its end"))
    }
}

fn millis(time: Duration) -> [u8; 4] {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).to_le_bytes()
}

/// Counts are one byte. Excess items would be left out, but the limits of [`crate::message`] exclude that
/// case.
fn count(length: usize, most: usize) -> u8 {
    length.min(most) as u8
}

/// A question: group u64, backlog u16, blobs u8, not u8, sender u8, blobs x 32, nodes x 16, sender 16 if
/// present. Whether only a part is wanted is in the header ([`super::PART`]).
pub fn encode_ask(ask: &Ask) -> Vec<u8> {
    let mut out = Vec::with_capacity(29 + ask.blobs.len() * 32 + ask.not.len() * 16);
    out.extend_from_slice(&ask.group.0.to_le_bytes());
    out.extend_from_slice(&ask.backlog.to_le_bytes());
    out.push(count(ask.blobs.len(), ASK_MAX));
    out.push(count(ask.not.len(), NOT_MAX));
    out.push(u8::from(ask.sender.is_some()));
    ask.blobs.iter().take(ASK_MAX).for_each(|blob| out.extend_from_slice(&blob.0));
    ask.not.iter().take(NOT_MAX).for_each(|node| out.extend_from_slice(&node.0));
    ask.sender.iter().for_each(|node| out.extend_from_slice(&node.0));
    out
}

/// Reads a question.
///
/// # Errors
/// [`BadFrame`].
pub fn decode_ask(bytes: &[u8]) -> Result<Ask, BadFrame> {
    let mut reader = Reader(bytes);
    let (group, backlog) = (Group(reader.u64()?), reader.u16()?);
    let (blobs, not) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
    let upstream = reader.u8()?;
    if blobs == 0 || blobs > ASK_MAX || not > NOT_MAX || upstream > 1 {
        return Err(BadFrame::Payload("a question names 1 to 16 blobs, at most 8 nodes and one upstream"));
    }
    let blobs = (0..blobs).map(|_| reader.blob()).collect::<Result<_, _>>()?;
    let not = (0..not).map(|_| reader.node()).collect::<Result<_, _>>()?;
    let upstream = (upstream > 0).then(|| reader.node()).transpose()?;
    reader.end()?;
    Ok(Ask { group, blobs, backlog, not, sender: upstream, part: false })
}

/// Answers, at most [`ASK_MAX`]: count u8, then for each: its kind u8 and the kind's fields.
pub fn encode_answers(answers: &[Answer]) -> Vec<u8> {
    let mut out = vec![count(answers.len(), ASK_MAX)];
    for answer in answers.iter().take(ASK_MAX) {
        match answer {
            Answer::Serve => out.push(0),
            Answer::Go { first, second: None } => {
                out.push(1);
                out.extend_from_slice(&first.0);
            }
            Answer::Go { first, second: Some(second) } => {
                out.push(2);
                out.extend_from_slice(&first.0);
                out.extend_from_slice(&second.0);
            }
            Answer::Lease { lease, time } => {
                out.push(3);
                out.extend_from_slice(&lease.to_le_bytes());
                out.extend_from_slice(&millis(*time));
            }
            Answer::Wait { parent, time } => {
                out.push(4);
                out.extend_from_slice(&parent.0);
                out.extend_from_slice(&millis(*time));
            }
            Answer::NotMine => out.push(5),
        }
    }
    out
}

/// Reads answers.
///
/// # Errors
/// [`BadFrame`].
pub fn decode_answers(bytes: &[u8]) -> Result<Vec<Answer>, BadFrame> {
    let mut reader = Reader(bytes);
    let answers = usize::from(reader.u8()?);
    if answers > ASK_MAX {
        return Err(BadFrame::Payload("more answers than questions"));
    }
    let mut out = Vec::with_capacity(answers);
    for _ in 0..answers {
        out.push(match reader.u8()? {
            0 => Answer::Serve,
            1 => Answer::Go { first: reader.node()?, second: None },
            2 => Answer::Go { first: reader.node()?, second: Some(reader.node()?) },
            3 => Answer::Lease { lease: reader.u64()?, time: reader.millis()? },
            4 => Answer::Wait { parent: reader.node()?, time: reader.millis()? },
            5 => Answer::NotMine,
            _ => return Err(BadFrame::Payload("an answer of an unknown kind")),
        });
    }
    reader.end()?;
    Ok(out)
}

/// Notes, at most [`NOTES_MAX`]: count u16, then for each: group u64, blob 32, kind u8 and the kind's fields.
pub fn encode_notes(notes: &[Note]) -> Vec<u8> {
    let notes = &notes[..notes.len().min(NOTES_MAX)];
    let mut out = (notes.len() as u16).to_le_bytes().to_vec();
    for note in notes {
        out.extend_from_slice(&note.group.0.to_le_bytes());
        out.extend_from_slice(&note.blob.0);
        match note.what {
            What::Have => out.push(0),
            What::Gone => out.push(1),
            What::Failed { lease } => {
                out.push(2);
                out.extend_from_slice(&lease.to_le_bytes());
            }
            What::Refused { by } => {
                out.push(3);
                out.extend_from_slice(&by.0);
            }
            What::Silent { by } => {
                out.push(4);
                out.extend_from_slice(&by.0);
            }
            What::Fetching => out.push(5),
        }
    }
    out
}

/// Reads notes.
///
/// # Errors
/// [`BadFrame`].
pub fn decode_notes(bytes: &[u8]) -> Result<Vec<Note>, BadFrame> {
    let mut reader = Reader(bytes);
    let notes = usize::from(reader.u16()?);
    if notes > NOTES_MAX {
        return Err(BadFrame::Payload("more than 256 notes"));
    }
    let mut out = Vec::with_capacity(notes);
    for _ in 0..notes {
        let (group, blob) = (Group(reader.u64()?), reader.blob()?);
        let what = match reader.u8()? {
            0 => What::Have,
            1 => What::Gone,
            2 => What::Failed { lease: reader.u64()? },
            3 => What::Refused { by: reader.node()? },
            4 => What::Silent { by: reader.node()? },
            5 => What::Fetching,
            _ => return Err(BadFrame::Payload("a note of an unknown kind")),
        };
        out.push(Note { group, blob, what });
    }
    reader.end()?;
    Ok(out)
}

/// "Which blobs do you have?": prefix u32, bits u8, most u16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListAsk {
    /// The blobs whose ids begin so.
    pub prefix: Prefix,
    /// The largest number of blobs in the answer.
    pub most: u16,
}

/// How many ids fit in one answer.
pub(crate) const LIST_MAX: usize = 2047;

impl ListAsk {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.prefix.value.to_le_bytes().to_vec();
        out.push(self.prefix.bits);
        out.extend_from_slice(&self.most.to_le_bytes());
        out
    }

    /// Reads what [`ListAsk::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<ListAsk, BadFrame> {
        let mut reader = Reader(bytes);
        let (value, bits, most) = (reader.u32()?, reader.u8()?, reader.u16()?);
        reader.end()?;
        if bits > 32 {
            return Err(BadFrame::Payload("a prefix has at most 32 bits"));
        }
        Ok(ListAsk { prefix: Prefix { value, bits }, most })
    }
}

/// A list: more u8, then the ids.
pub fn encode_listed(listed: &Listed) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + listed.blobs.len() * 32);
    out.push(u8::from(listed.more || listed.blobs.len() > LIST_MAX));
    listed.blobs.iter().take(LIST_MAX).for_each(|blob| out.extend_from_slice(&blob.0));
    out
}

/// Reads a list.
///
/// # Errors
/// [`BadFrame`].
pub fn decode_listed(bytes: &[u8]) -> Result<Listed, BadFrame> {
    let mut reader = Reader(bytes);
    let more = match reader.u8()? {
        0 => false,
        1 => true,
        _ => return Err(BadFrame::Payload("a list goes on or does not")),
    };
    let (names, rest) = reader.0.as_chunks::<32>();
    Reader(rest).end()?;
    Ok(Listed { blobs: names.iter().map(|name| BlobId(*name)).collect(), more })
}

/// Reads the result of [`super::Type::Fill`]: one byte.
///
/// # Errors
/// [`BadFrame`].
pub fn decode_filled(bytes: &[u8]) -> Result<Filled, BadFrame> {
    match bytes {
        [0] => Ok(Filled::Here),
        [1] => Ok(Filled::Fetched),
        _ => Err(BadFrame::Payload("a blob was there or was fetched")),
    }
}

/// "Send me this": blob 32, offset u32, len u32. Whether the sums come first is a flag of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// Which blob.
    pub blob: BlobId,
    /// From which byte on.
    pub offset: u32,
    /// How many. [`Get::REST`] means all that follow, which is how a blob of unknown size is fetched.
    pub len: u32,
}

impl Get {
    /// All bytes from the offset on.
    pub const REST: u32 = u32::MAX;

    /// As bytes.
    pub fn encode(&self) -> [u8; 40] {
        let mut out = [0; 40];
        out[..32].copy_from_slice(&self.blob.0);
        out[32..36].copy_from_slice(&self.offset.to_le_bytes());
        out[36..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Reads what [`Get::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<Get, BadFrame> {
        let mut reader = Reader(bytes);
        let get = Get { blob: reader.blob()?, offset: reader.u32()?, len: reader.u32()? };
        reader.end()?;
        if get.offset > BLOB_MAX || (get.len != Get::REST && get.len > BLOB_MAX) {
            return Err(BadFrame::Payload("no blob has more than 4 MiB"));
        }
        Ok(get)
    }

    /// The range in a blob of this size. None if it is not within the blob.
    pub fn range(&self, size: u32) -> Option<(u32, u32)> {
        let end = if self.len == Get::REST { size } else { self.offset.checked_add(self.len)? };
        (self.offset <= end && end <= size).then_some((self.offset, end))
    }
}

/// A kind and a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texted<K> {
    /// For the other program.
    pub kind: K,
    /// For a person.
    pub text: String,
}

/// Why a handshake ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// The secrets differ.
    Secret = 1,
    /// The volumes differ.
    Volume = 2,
    /// The versions of the protocol differ.
    Version = 3,
    /// Too many connections.
    Full = 4,
    /// The message is not valid.
    Bad = 5,
    /// The node connected to itself.
    Myself = 6,
    /// One of the two nodes has TLS, and the other does not.
    Tls = 7,
}

fn encode_texted(kind: u8, text: &str) -> Vec<u8> {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = vec![kind];
    out.extend_from_slice(&text.as_bytes()[..end]);
    out
}

/// The text of another node may be shown to a person, so it becomes one line of plain text.
fn decode_texted<K>(bytes: &[u8], kinds: &[(u8, K)]) -> Result<Texted<K>, BadFrame>
where
    K: Copy,
{
    let (first, text) = bytes.split_first().ok_or(BadFrame::Payload("it is empty"))?;
    let kind = kinds.iter().find(|(number, _)| number == first).map(|(_, kind)| *kind);
    let kind = kind.ok_or(BadFrame::Payload("an error of an unknown kind"))?;
    if text.len() > TEXT_MAX {
        return Err(BadFrame::Payload("a text of more than 255 bytes"));
    }
    let text = String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Ok(Texted { kind, text })
}

impl Texted<ErrorKind> {
    /// As bytes. The text is cut at 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode_texted(self.kind as u8, &self.text)
    }

    /// Reads what [`Texted::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadFrame> {
        use ErrorKind::*;
        let all = [Missing, Damaged, Busy, Bad, Range, Internal, Closing, Failed];
        decode_texted(bytes, &all.map(|k| (k as u8, k)))
    }
}

impl Texted<Refusal> {
    /// As bytes. The text is cut at 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode_texted(self.kind as u8, &self.text)
    }

    /// Reads what [`Texted::encode`] wrote.
    ///
    /// # Errors
    /// [`BadFrame`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadFrame> {
        use Refusal::*;
        decode_texted(bytes, &[Secret, Volume, Version, Full, Bad, Myself, Tls].map(|k| (k as u8, k)))
    }
}
