//! A claim: the record that says which folder may write to an origin. `origin::claim` has the rules.
//!
//! ```text
//!   claims/EPOCH (20 digits)   magic 4 B "covC"  version 4 B  epoch 8 B  volume 16 B
//!                              token 16 B  after: the token of the claim before 16 B (zeros: none)
//!                              folder 16 B  kind 1 B  moment 8 B (ns since 1970)
//!                              place: length 1 B, UTF-8  CRC32C 4 B of all before it
//! ```
//!
//! The version is 1. It is 2 for a claim of the kind [`Kind::Promoted`] and 3 for one of the kind
//! [`Kind::Database`], which older programs must refuse.
//! Numbers are big-endian. A damaged record, or one of a later version, is never taken for "no claim": then
//! nothing may write.

use crate::sums::crc32c;
use base::Timestamp;

/// The folder of the records.
pub const FOLDER: &str = "claims";
const MAGIC: &[u8; 4] = b"covC";
const VERSION: u32 = 1;
/// The version of a claim of the kind [`Kind::Promoted`]. A program that does not know it writes nothing.
const VERSION_PROMOTED: u32 = 2;
/// The version of a claim of the kind [`Kind::Database`]. A program that does not know it writes nothing.
const VERSION_DATABASE: u32 = 3;
/// The length of everything but the place.
const FIXED: usize = 4 + 4 + 8 + 16 + 16 + 16 + 16 + 1 + 8 + 1 + 4;

/// Random bytes that distinguish this claim from every other.
pub type Token = [u8; 16];

/// Why a claim was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The volume was opened for writing.
    Open,
    /// The volume's writer continues: it publishes or deletes.
    Renewed,
    /// A person asked that this folder take over.
    TakeOver,
    /// A published tree was restored into this folder.
    Restore,
    /// The volume was closed in order: nothing writes now.
    Closed,
    /// The names moved into a database, from which many nodes write. No folder may write by a claim any more.
    Promoted,
    /// A database holds the names. A copy of it, or an earlier state of it, does not know this claim.
    Database,
}

const KINDS: [(Kind, u8); 7] = [
    (Kind::Open, 1),
    (Kind::Renewed, 2),
    (Kind::TakeOver, 3),
    (Kind::Restore, 4),
    (Kind::Closed, 5),
    (Kind::Promoted, 6),
    (Kind::Database, 7),
];

impl Kind {
    /// What the folder at the claim's place did, for a message to a person.
    pub fn did(self) -> &'static str {
        match self {
            Kind::Open => "opened it for writing",
            Kind::Renewed => "was writing to it",
            Kind::TakeOver => "took it over",
            Kind::Restore => "was restored from it",
            Kind::Closed => "wrote to it and closed it",
            Kind::Promoted => "became a shared volume",
            Kind::Database => "became the database of its names",
        }
    }
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The claim's number.
    pub epoch: u64,
    /// The volume's id.
    pub volume: [u8; 16],
    /// See [`Token`].
    pub token: Token,
    /// The token of the claim before this one.
    pub after: Option<Token>,
    /// The folder that made it: a random id stored in the folder.
    pub folder: [u8; 16],
    /// The reason.
    pub kind: Kind,
    /// The time by the clock of the machine that made it, for a person.
    pub moment: Timestamp,
    /// Where the folder is, for a person; cut to 255 bytes.
    pub place: String,
}

/// Why bytes are not a claim that this program understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The checksum is wrong, or they are truncated.
    Damaged,
    /// A later program wrote them.
    Newer(u32),
}

fn version_of(kind: Kind) -> u32 {
    match kind {
        Kind::Promoted => VERSION_PROMOTED,
        Kind::Database => VERSION_DATABASE,
        _ => VERSION,
    }
}

impl Claim {
    /// The record's name.
    pub fn name(epoch: u64) -> String {
        format!("{FOLDER}/{epoch:020}")
    }

    /// The epoch in a record's name; none if it is not a claim's name.
    pub fn epoch_of(name: &str) -> Option<u64> {
        let digits = name.strip_prefix(FOLDER)?.strip_prefix('/')?;
        (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| digits.parse().ok())?
    }

    /// The record.
    pub fn encode(&self) -> Vec<u8> {
        let end = self.place.floor_char_boundary(255);
        let mut out = Vec::with_capacity(FIXED + end);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&version_of(self.kind).to_be_bytes());
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.volume);
        out.extend_from_slice(&self.token);
        out.extend_from_slice(&self.after.unwrap_or_default());
        out.extend_from_slice(&self.folder);
        out.push(KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(0, |(_, byte)| *byte));
        out.extend_from_slice(&self.moment.as_nanos().to_be_bytes());
        out.push(end as u8);
        out.extend_from_slice(&self.place.as_bytes()[..end]);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// See [`Wrong`].
    pub fn decode(record: &[u8]) -> Result<Claim, Wrong> {
        let mut rest = record;
        if take::<4>(&mut rest)? != *MAGIC {
            return Err(Wrong::Damaged);
        }
        let version = u32::from_be_bytes(take(&mut rest)?);
        if version > VERSION_DATABASE {
            return Err(Wrong::Newer(version));
        }
        let (content, crc) = record.split_last_chunk::<4>().ok_or(Wrong::Damaged)?;
        if version < VERSION || crc32c(content) != u32::from_be_bytes(*crc) {
            return Err(Wrong::Damaged);
        }
        let claim = Claim {
            epoch: u64::from_be_bytes(take(&mut rest)?),
            volume: take(&mut rest)?,
            token: take(&mut rest)?,
            after: Some(take(&mut rest)?).filter(|token| *token != [0; 16]),
            folder: take(&mut rest)?,
            kind: kind_of(take::<1>(&mut rest)?[0])?,
            moment: Timestamp::from_nanos(i64::from_be_bytes(take(&mut rest)?)),
            place: {
                let len = usize::from(take::<1>(&mut rest)?[0]);
                let place = rest.get(..len).ok_or(Wrong::Damaged)?;
                rest = &rest[len..];
                std::str::from_utf8(place).map_err(|_| Wrong::Damaged)?.to_owned()
            },
        };
        if rest.len() == 4 && version == version_of(claim.kind) { Ok(claim) } else { Err(Wrong::Damaged) }
    }
}

fn kind_of(byte: u8) -> Result<Kind, Wrong> {
    KINDS.iter().find(|(_, known)| *known == byte).map(|(kind, _)| *kind).ok_or(Wrong::Damaged)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Wrong> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(Wrong::Damaged)?;
    *rest = left;
    Ok(*taken)
}
