//! The records: what is published under a name, and who owns the origin.
//!
//! ```text
//!   published/NAME   magic 4 B "covT"  version 4 B  name: length 1 B, bytes
//!                    volume 16 B  sequence 8 B  moment 8 B (ns since 1970)  inodes 8 B  bytes 8 B
//!                    top: hash 32 B  blob 32 B  offset 4 B  length 4 B  rows 8 B  level 1 B
//!                    nodes 8 B  the top's hash of the tree before 32 B (zeros: none)
//!                    version 2: source: URL, endpoint, region, each length 2 B, bytes
//!                    public key 32 B  signature 64 B (Ed25519, of all before it)
//!   owner            magic 4 B "covO"  version 4 B  volume 16 B  owner 16 B  generation 8 B
//!                    note: length 1 B, bytes     keys: count 1 B, 32 B each
//! ```
//!
//! **Version 2** is that of a tree whose files are the objects of a bucket that others fill ([`Source`]). A
//! program that does not know it refuses the tree. Every other tree has version 1.
//!
//! **The purpose of the signature.** A volume signs with a key that never leaves its folder. Everything else
//! follows from hashes. So a root with a valid signature is exactly what that volume published under that
//! name. The public keys are in the record `owner` of the same origin. This detects accidents, and a writer
//! that may only add objects. Against an attacker that may replace every object of the origin, a reader must
//! know the key from elsewhere. `covey published` shows [`Root::key`], and a mount can be told which key to
//! accept. A mount that was not told remembers the keys of its first use. An older root that is put back in
//! its place is also signed, so a reader remembers the record that it saw last ([`crate::known`]).
//!
//! **The owner.** Two volumes that store to one origin would delete each other's blobs as garbage. So the
//! first volume that publishes writes its name there (`owner`). A restore writes another name with the next
//! generation, and keeps the keys that signed before. A volume that finds another volume's name no longer
//! deletes or publishes anything.

use base::{BlobId, Timestamp};
use blob::{Origin, Records};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::TreeError;
use crate::code::{Reader, Short};
use crate::node::{Hash, LEVEL_MAX, Pointer};

/// The folder of the records.
const FOLDER: &str = "published";
const OWNER: &str = "owner";
const ROOT_MAGIC: &[u8; 4] = b"covT";
const OWNER_MAGIC: &[u8; 4] = b"covO";
const VERSION: u32 = 1;
/// The version of a root that names a source.
const VERSION_SOURCE: u32 = 2;
/// The longest name of a tree, in bytes.
pub const NAME_MAX: usize = 100;
/// The most keys that are remembered: one for every time that the volume was restored.
const KEYS_MAX: usize = 100;
const SIGNATURE: usize = 64;

/// A public key.
pub type PublicKey = [u8; 32];

/// Whether this is a valid name for a tree.
pub fn is_name(name: &str) -> bool {
    name.len() <= NAME_MAX && !name.contains('/') && blob::records::is_name(name)
}

/// The bucket whose objects are the files of a tree. It holds no secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The bucket and the prefix of its keys: `s3://BUCKET/PREFIX`.
    pub url: String,
    /// The address of the store, if it is not the cloud's default.
    pub endpoint: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
}

impl Source {
    /// The longest of its texts, in bytes. A record holds all three.
    pub const TEXT_MAX: usize = 4096;

    fn texts(&self) -> [&str; 3] {
        [&self.url, self.endpoint.as_deref().unwrap_or(""), self.region.as_deref().unwrap_or("")]
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Source, Short> {
        let mut text = || {
            let len = usize::from(u16::from_be_bytes(reader.array()?));
            let text = std::str::from_utf8(reader.bytes(len)?).map_err(|_| Short)?;
            Ok(text.to_owned())
        };
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Ok(Source { url: text()?, endpoint: some(text()?), region: some(text()?) })
    }
}

/// What is published under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// The name.
    pub name: String,
    /// The volume's id.
    pub volume: [u8; 16],
    /// How often this name has been published, including this time.
    pub sequence: u64,
    /// The moment of publication.
    pub moment: Timestamp,
    /// The number of inodes of the tree.
    pub inodes: u64,
    /// The bytes of its files, without holes.
    pub bytes: u64,
    /// The top node.
    pub top: Pointer,
    /// The level of the top node.
    pub level: u8,
    /// The number of nodes.
    pub nodes: u64,
    /// The hash of the top node of the previous tree.
    pub before: Option<Hash>,
    /// The bucket that holds the bytes of its files. `None`: they are blobs of the origin.
    pub source: Option<Source>,
    /// The key that signed it.
    pub key: PublicKey,
}

/// Signs roots.
pub struct Signer {
    pair: Ed25519KeyPair,
}

impl Signer {
    /// A signer from the 32 secret bytes that a volume keeps.
    ///
    /// # Errors
    /// They are not a key.
    pub fn from_seed(seed: &[u8; 32]) -> Result<Signer, TreeError> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed)
            .map_err(|_| TreeError::Damaged("the key that signs published trees is damaged".to_owned()))?;
        Ok(Signer { pair })
    }

    /// The public half.
    pub fn key(&self) -> PublicKey {
        let mut key = [0; 32];
        // An Ed25519 key has 32 bytes.
        key.iter_mut().zip(self.pair.public_key().as_ref()).for_each(|(to, from)| *to = *from);
        key
    }
}

impl Root {
    /// The record, signed.
    pub fn encode(&self, signer: &Signer) -> Vec<u8> {
        let mut out = Vec::with_capacity(400);
        out.extend_from_slice(ROOT_MAGIC);
        let version = if self.source.is_some() { VERSION_SOURCE } else { VERSION };
        out.extend_from_slice(&version.to_be_bytes());
        out.push(self.name.len() as u8);
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(&self.volume);
        for number in [self.sequence, self.moment.as_nanos() as u64, self.inodes, self.bytes] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&self.top.hash);
        out.extend_from_slice(&self.top.blob.0);
        out.extend_from_slice(&self.top.offset.to_be_bytes());
        out.extend_from_slice(&self.top.len.to_be_bytes());
        out.extend_from_slice(&self.top.rows.to_be_bytes());
        out.push(self.level);
        out.extend_from_slice(&self.nodes.to_be_bytes());
        out.extend_from_slice(&self.before.unwrap_or_default());
        for text in self.source.iter().flat_map(Source::texts) {
            let text = &text.as_bytes()[..text.len().min(Source::TEXT_MAX)];
            out.extend_from_slice(&(text.len() as u16).to_be_bytes());
            out.extend_from_slice(text);
        }
        out.extend_from_slice(&signer.key());
        let signature = signer.pair.sign(&out);
        out.extend_from_slice(signature.as_ref());
        out
    }

    /// Reads a record and checks that the key it contains has signed it. Whether that key is trusted is
    /// decided elsewhere.
    ///
    /// # Errors
    /// It is damaged, of a newer version, or its signature is wrong.
    pub fn decode(name: &str, record: &[u8]) -> Result<Root, TreeError> {
        let damaged = || TreeError::Damaged(format!("the record of the published tree {name} is damaged"));
        let version = version(record, ROOT_MAGIC, "the published tree", VERSION_SOURCE, damaged)?;
        let signed = record.len().checked_sub(SIGNATURE).ok_or_else(damaged)?;
        let (content, signature) = record.split_at(signed);
        let root = Root::content(content, version).map_err(|Short| damaged())?;
        let fits = u64::from(root.top.offset) + u64::from(root.top.len) <= u64::from(base::size::BLOB_MAX);
        if !fits || root.top.len == 0 || root.level > LEVEL_MAX {
            return Err(damaged());
        }
        UnparsedPublicKey::new(&ED25519, &root.key).verify(content, signature).map_err(|_| {
            TreeError::Untrusted(format!("the record of the published tree {name} has a wrong signature"))
        })?;
        if root.name != name {
            return Err(TreeError::Untrusted(format!(
                "the record of the published tree {name} was signed as {}",
                root.name
            )));
        }
        Ok(root)
    }

    fn content(content: &[u8], version: u32) -> Result<Root, Short> {
        let mut reader = Reader(content.get(8..).ok_or(Short)?);
        let len = usize::from(reader.u8()?);
        let name = std::str::from_utf8(reader.bytes(len)?).map_err(|_| Short)?.to_owned();
        let root = Root {
            name,
            volume: reader.array()?,
            sequence: reader.u64()?,
            moment: Timestamp::from_nanos(reader.u64()? as i64),
            inodes: reader.u64()?,
            bytes: reader.u64()?,
            top: Pointer {
                hash: reader.array()?,
                blob: BlobId(reader.array()?),
                offset: reader.u32()?,
                len: reader.u32()?,
                rows: reader.u64()?,
            },
            level: reader.u8()?,
            nodes: reader.u64()?,
            before: Some(reader.array()?).filter(|hash| *hash != [0; 32]),
            source: (version == VERSION_SOURCE).then(|| Source::decode(&mut reader)).transpose()?,
            key: reader.array()?,
        };
        if reader.is_empty() { Ok(root) } else { Err(Short) }
    }

    /// Reads what is published under a name. `accept` is the only key that may have signed it. If it is
    /// `None`, the key must be one of the owner's.
    ///
    /// # Errors
    /// `NotPublished`, `Untrusted`, or as [`Root::decode`].
    pub fn read(records: &dyn Records, name: &str, accept: Option<&PublicKey>) -> Result<Root, TreeError> {
        Root::read_signed(records, name, accept).map(|(root, _)| root)
    }

    /// Reads what is published under a name, as [`Root::read`]. Also returns the record as it is stored:
    /// [`Root::decode`] reads it again.
    ///
    /// # Errors
    /// As [`Root::read`].
    pub fn read_signed(
        records: &dyn Records,
        name: &str,
        accept: Option<&PublicKey>,
    ) -> Result<(Root, Vec<u8>), TreeError> {
        let record = record(records, name)?;
        let root = Root::decode(name, &record)?;
        root.check_signer(records, accept)?;
        Ok((root, record))
    }

    /// Refuses a record that is signed by another key than `accept`, or, if that is `None`, than the owner's
    /// keys.
    ///
    /// # Errors
    /// `Untrusted`, or the origin's error.
    pub(crate) fn check_signer(
        &self,
        records: &dyn Records,
        accept: Option<&PublicKey>,
    ) -> Result<(), TreeError> {
        let trusted = match accept {
            Some(key) => *key == self.key,
            None => {
                let owner = Owner::read(records)?.ok_or_else(|| {
                    TreeError::Untrusted("the origin has no owner: its record `owner` is missing".into())
                })?;
                owner.keys.contains(&self.key) && owner.volume == self.volume
            }
        };
        if trusted {
            return Ok(());
        }
        Err(TreeError::Untrusted(format!(
            "the published tree {} is signed by {}, which is not {}",
            self.name,
            hex(&self.key),
            if accept.is_some() { "the accepted key" } else { "a key of this origin's owners" }
        )))
    }

    /// Signs the record and writes it to the origin.
    ///
    /// # Errors
    /// The origin's error.
    pub fn write(&self, origin: &dyn Origin, signer: &Signer) -> Result<(), TreeError> {
        Ok(origin.put_record(&record_name(&self.name), &self.encode(signer))?)
    }
}

/// The record that is published under a name, as it is stored.
///
/// # Errors
/// `NotPublished`, or the origin's error.
pub(crate) fn record(records: &dyn Records, name: &str) -> Result<Vec<u8>, TreeError> {
    let nothing = || TreeError::NotPublished(name.to_owned());
    if !is_name(name) {
        return Err(nothing());
    }
    records.record(&record_name(name))?.ok_or_else(nothing)
}

/// The names of all published trees.
///
/// # Errors
/// The origin's error.
pub fn names(records: &dyn Records) -> Result<Vec<String>, TreeError> {
    let all = records.records(FOLDER)?;
    let name = |record: &String| record.strip_prefix(FOLDER)?.strip_prefix('/').map(str::to_owned);
    Ok(all.iter().filter_map(name).filter(|name| is_name(name)).collect())
}

/// Removes a tree. Returns false if there was none.
///
/// # Errors
/// The origin's error.
pub fn remove(records: &dyn Records, name: &str) -> Result<bool, TreeError> {
    if !is_name(name) {
        return Ok(false);
    }
    let was = records.record(&record_name(name))?.is_some();
    records.remove_record(&record_name(name))?;
    Ok(was)
}

fn record_name(name: &str) -> String {
    format!("{FOLDER}/{name}")
}

/// The volume that may delete and publish in an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The volume's id.
    pub volume: [u8; 16],
    /// The owner's id: a volume's folder.
    pub owner: [u8; 16],
    /// How many owners there have been.
    pub generation: u64,
    /// Where the owner is, as text for a user, cut to 255 bytes.
    pub note: String,
    /// The keys that sign, or that signed under earlier owners. The current owner's key is the last.
    pub keys: Vec<PublicKey>,
}

impl Owner {
    /// The record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(OWNER_MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.volume);
        out.extend_from_slice(&self.owner);
        out.extend_from_slice(&self.generation.to_be_bytes());
        let end = self.note.floor_char_boundary(255);
        out.push(end as u8);
        out.extend_from_slice(&self.note.as_bytes()[..end]);
        let keys = &self.keys[self.keys.len().saturating_sub(KEYS_MAX)..];
        out.push(keys.len() as u8);
        keys.iter().for_each(|key| out.extend_from_slice(key));
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// It is damaged, or of a newer version.
    pub fn decode(record: &[u8]) -> Result<Owner, TreeError> {
        let damaged = || TreeError::Damaged("the origin's record `owner` is damaged".to_owned());
        version(record, OWNER_MAGIC, "the origin's record `owner`", VERSION, damaged)?;
        let read = || {
            let mut reader = Reader(record.get(8..).ok_or(Short)?);
            let (volume, owner, generation) = (reader.array()?, reader.array()?, reader.u64()?);
            let len = usize::from(reader.u8()?);
            let note = std::str::from_utf8(reader.bytes(len)?).map_err(|_| Short)?.to_owned();
            let count = reader.u8()?;
            let keys = (0..count).map(|_| reader.array()).collect::<Result<_, _>>()?;
            if reader.is_empty() { Ok(Owner { volume, owner, generation, note, keys }) } else { Err(Short) }
        };
        read().map_err(|Short| damaged())
    }

    /// The owner of an origin, if a volume has published in it.
    ///
    /// # Errors
    /// As [`Owner::decode`], or the origin's error.
    pub fn read(records: &dyn Records) -> Result<Option<Owner>, TreeError> {
        records.record(OWNER)?.map(|record| Owner::decode(&record)).transpose()
    }

    /// Makes this the owner of an origin that has none, and returns the owner.
    ///
    /// # Errors
    /// The origin's error.
    pub fn claim(self, records: &dyn Records) -> Result<Owner, TreeError> {
        if let Some(owner) = Owner::read(records)? {
            return Ok(owner);
        }
        if records.create_record(OWNER, &self.encode())? {
            return Ok(self);
        }
        // Another volume was faster.
        Ok(Owner::read(records)?.unwrap_or(self))
    }

    /// Makes `owner` with its key the next owner.
    ///
    /// # Errors
    /// The origin's error.
    pub fn hand_over(
        mut self,
        records: &dyn Records,
        owner: [u8; 16],
        note: String,
        key: PublicKey,
    ) -> Result<Owner, TreeError> {
        self.owner = owner;
        self.generation += 1;
        self.note = note;
        self.keys.retain(|known| *known != key);
        self.keys.push(key);
        records.put_record(OWNER, &self.encode())?;
        Ok(self)
    }
}

/// Checks the first eight bytes of a record. Returns its version, at most `newest`.
fn version(
    record: &[u8],
    magic: &[u8; 4],
    what: &'static str,
    newest: u32,
    damaged: impl Fn() -> TreeError,
) -> Result<u32, TreeError> {
    let mut reader = Reader(record);
    let found = reader.array::<4>().and_then(|magic| Ok((magic, reader.u32()?)));
    match found {
        Ok((found, version)) if found == *magic && (VERSION..=newest).contains(&version) => Ok(version),
        Ok((found, version)) if found == *magic && version > newest => {
            Err(TreeError::Newer { what, found: version, known: newest })
        }
        _ => Err(damaged()),
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes from hexadecimal, exactly `N` of them.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut out = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in out.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(out)
}
