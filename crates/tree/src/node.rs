//! A node's bytes, stored and in memory.
//!
//! ```text
//!   stored   kind 1 B (0 plain, 1 zstd)   plain: the content   zstd: its length 4 B, a frame
//!
//!   leaf     level 0: 1 B   rows: varint
//!            { shared: varint  rest: varint  key's rest   length: varint  value }
//!   inner    level: 1 B     children: varint
//!            blobs: varint  { blob 32 B }
//!            { shared: varint  rest: varint  first key's rest   hash 32 B   rows: varint
//!              blob: varint (0 this node's own, n the n-th of the list)   offset: varint   length: varint }
//! ```
//!
//! `shared` is the number of bytes that a key shares with the key before it. Keys rise. **A node's hash** is
//! the BLAKE3 of its meaning: of a leaf its content, of an inner node its level and for each child the key,
//! hash and rows. It does not cover where children lie, so a node whose children only moved is the same node.
//! Bytes that [`encode`](Leaf) would not write are refused, even if their hash is right.

use base::BlobId;
use base::size::BLOB_MAX;

use crate::code::{Reader, Short, put_varint};

/// The most bytes of a node's content.
pub const CONTENT_MAX: usize = BLOB_MAX as usize - 16;
/// The highest level. With two children a node this is more rows than a volume can have.
pub const LEVEL_MAX: u8 = 40;
/// Longer than any key of a row.
const KEY_MAX: usize = 1024;
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// A node's hash.
pub type Hash = [u8; 32];

/// Where a node is, and its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The node's hash.
    pub hash: Hash,
    /// The blob that holds it.
    pub blob: BlobId,
    /// The node's offset in the blob.
    pub offset: u32,
    /// The node's length as stored, in bytes.
    pub len: u32,
    /// The number of rows in its leaves.
    pub rows: u64,
}

/// The bytes are not a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadNode(pub &'static str);

impl From<Short> for BadNode {
    fn from(_: Short) -> BadNode {
        BadNode("it ends too early, or a number is written in a long form")
    }
}

/// A node in memory.
#[derive(Debug)]
pub enum Node {
    /// Rows.
    Leaf(Leaf),
    /// Children.
    Inner(Inner),
}

/// The rows of a leaf, in one piece of memory.
#[derive(Debug, Default)]
pub struct Leaf {
    /// Key, value, key, value, ...
    bytes: Vec<u8>,
    /// Where each row's key and value begin.
    rows: Vec<(u32, u32)>,
}

/// The children of a node.
#[derive(Debug)]
pub struct Inner {
    /// The node's level. A node whose children are leaves has level 1.
    pub level: u8,
    /// In order of their first keys.
    pub children: Vec<Child>,
}

/// A child of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The key of the child's first row.
    pub first: Box<[u8]>,
    /// Where it is.
    pub to: Pointer,
}

impl Leaf {
    /// Adds a row after the existing ones.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        self.rows.push((at, self.bytes.len() as u32));
        self.bytes.extend_from_slice(value);
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// A row by its index.
    pub fn row(&self, place: usize) -> Option<(&[u8], &[u8])> {
        let &(key, value) = self.rows.get(place)?;
        let end = self.rows.get(place + 1).map_or(self.bytes.len(), |next| next.0 as usize);
        Some((self.bytes.get(key as usize..value as usize)?, self.bytes.get(value as usize..end)?))
    }

    /// The index of the first row whose key is not below this one.
    pub fn place_of(&self, key: &[u8]) -> usize {
        self.rows.partition_point(|(at, value)| &self.bytes[*at as usize..*value as usize] < key)
    }

    /// The content.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len() + 4 * self.rows.len() + 8);
        out.push(0);
        put_varint(&mut out, self.rows.len() as u64);
        let mut before: &[u8] = &[];
        for (key, value) in (0..self.len()).filter_map(|place| self.row(place)) {
            put_key(&mut out, before, key);
            put_varint(&mut out, value.len() as u64);
            out.extend_from_slice(value);
            before = key;
        }
        out
    }

    fn decode(mut reader: Reader<'_>) -> Result<Leaf, BadNode> {
        let count = reader.count()?;
        let mut leaf = Leaf::default();
        let mut key = Vec::new();
        for place in 0..count {
            take_key(&mut reader, &mut key, place == 0)?;
            let len = reader.count()?;
            let value = reader.bytes(len)?;
            // Shared parts of keys make the decoded leaf longer than the stored one. This bounds the growth.
            if leaf.bytes.len() + key.len() + value.len() > 4 * CONTENT_MAX {
                return Err(BadNode("it would take far more memory than its stored bytes"));
            }
            leaf.push(&key, value);
        }
        if reader.is_empty() { Ok(leaf) } else { Err(BadNode("it continues after its last row")) }
    }
}

impl Inner {
    /// The content of a node that will be stored in the blob `own`, if the blob of some children is already
    /// known to be the same. `place` returns the blob of each child: `None` for the node's own.
    pub fn encode(level: u8, children: &[Child], place: &dyn Fn(usize) -> Option<BlobId>) -> Vec<u8> {
        let mut blobs: Vec<BlobId> = (0..children.len()).filter_map(place).collect();
        blobs.sort_unstable();
        blobs.dedup();
        let mut out = vec![level];
        put_varint(&mut out, children.len() as u64);
        put_varint(&mut out, blobs.len() as u64);
        blobs.iter().for_each(|blob| out.extend_from_slice(&blob.0));
        let mut before: &[u8] = &[];
        for (number, child) in children.iter().enumerate() {
            put_key(&mut out, before, &child.first);
            out.extend_from_slice(&child.to.hash);
            put_varint(&mut out, child.to.rows);
            let blob = place(number).map_or(0, |blob| blobs.partition_point(|other| *other < blob) + 1);
            put_varint(&mut out, blob as u64);
            put_varint(&mut out, u64::from(child.to.offset));
            put_varint(&mut out, u64::from(child.to.len));
            before = &child.first;
        }
        out
    }

    fn decode(level: u8, mut reader: Reader<'_>, own: BlobId) -> Result<Inner, BadNode> {
        let (count, blobs) = (reader.count()?, reader.count()?);
        let blobs = (0..blobs).map(|_| reader.array().map(BlobId)).collect::<Result<Vec<_>, _>>()?;
        let mut children = Vec::new();
        let mut key = Vec::new();
        for place in 0..count {
            take_key(&mut reader, &mut key, place == 0)?;
            let (hash, rows) = (reader.array()?, reader.varint()?);
            let blob = match reader.varint()? {
                0 => own,
                n => *usize::try_from(n - 1)
                    .ok()
                    .and_then(|n| blobs.get(n))
                    .ok_or(BadNode("it names a blob that it does not list"))?,
            };
            let (offset, len) = (reader.varint()?, reader.varint()?);
            if offset.checked_add(len).is_none_or(|end| end > u64::from(BLOB_MAX)) || len == 0 {
                return Err(BadNode("a child would lie outside of its blob"));
            }
            let to = Pointer { hash, blob, offset: offset as u32, len: len as u32, rows };
            children.push(Child { first: key.as_slice().into(), to });
        }
        if children.is_empty() || !reader.is_empty() {
            return Err(BadNode("it has no children, or continues after them"));
        }
        Ok(Inner { level, children })
    }

    /// The hash of a node with these children.
    pub fn hash(level: u8, children: &[Child]) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[level]);
        for child in children {
            hasher.update(&(child.first.len() as u32).to_be_bytes()).update(&child.first);
            hasher.update(&child.to.hash).update(&child.to.rows.to_be_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// The index of the child that would contain a key, if any.
    pub fn place_of(&self, key: &[u8]) -> Option<usize> {
        self.children.partition_point(|child| *child.first <= *key).checked_sub(1)
    }
}

impl Node {
    /// Reads a node as it is stored in the blob `own`, and returns its hash too.
    ///
    /// # Errors
    /// The bytes are not a node.
    pub fn decode(stored: &[u8], own: BlobId) -> Result<(Node, Hash), BadNode> {
        let (kind, rest) = stored.split_first().ok_or(BadNode("it is empty"))?;
        let unpacked;
        let content = match *kind {
            PLAIN => rest,
            ZSTD => {
                let mut reader = Reader(rest);
                let len = reader.u32()? as usize;
                if len > CONTENT_MAX {
                    return Err(BadNode("it is larger than a node can be"));
                }
                unpacked = zstd::bulk::decompress(reader.0, len)
                    .map_err(|_| BadNode("it cannot be decompressed"))?;
                if unpacked.len() != len {
                    return Err(BadNode("its decompressed length is wrong"));
                }
                &unpacked[..]
            }
            _ => return Err(BadNode("it is stored in an unknown way")),
        };
        let mut reader = Reader(content);
        match reader.u8()? {
            0 => Ok((Node::Leaf(Leaf::decode(reader)?), *blake3::hash(content).as_bytes())),
            level if level <= LEVEL_MAX => {
                let inner = Inner::decode(level, reader, own)?;
                let hash = Inner::hash(level, &inner.children);
                Ok((Node::Inner(inner), hash))
            }
            _ => Err(BadNode("its level is higher than a tree can be")),
        }
    }

    /// Returns the node's level: 0 for a leaf.
    pub fn level(&self) -> u8 {
        match self {
            Node::Leaf(_) => 0,
            Node::Inner(inner) => inner.level,
        }
    }

    /// Returns the key of the node's first row.
    pub fn first(&self) -> Option<&[u8]> {
        match self {
            Node::Leaf(leaf) => leaf.row(0).map(|(key, _)| key),
            Node::Inner(inner) => inner.children.first().map(|child| &*child.first),
        }
    }

    /// Roughly what it takes in memory, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Node::Leaf(leaf) => leaf.bytes.capacity() + 8 * leaf.rows.capacity() + 64,
            Node::Inner(inner) => inner.children.iter().map(|child| child.first.len() + 128).sum(),
        }
    }
}

/// The stored form of a content: compressed if that helps.
pub fn stored(content: &[u8], zstd: &mut zstd::bulk::Compressor<'_>) -> Vec<u8> {
    let mut out = vec![ZSTD];
    out.extend_from_slice(&(content.len() as u32).to_be_bytes());
    match zstd.compress(content) {
        Ok(packed) if packed.len() + 4 < content.len() => out.extend_from_slice(&packed),
        // If compression does not help, the content is stored as it is.
        _ => {
            out.clear();
            out.push(PLAIN);
            out.extend_from_slice(content);
        }
    }
    out
}

fn put_key(out: &mut Vec<u8>, before: &[u8], key: &[u8]) {
    let shared = before.iter().zip(key).take_while(|(a, b)| a == b).count();
    put_varint(out, shared as u64);
    put_varint(out, (key.len() - shared) as u64);
    out.extend_from_slice(&key[shared..]);
}

/// Turns the previous key into the next one, which must be higher.
fn take_key(reader: &mut Reader<'_>, key: &mut Vec<u8>, is_first: bool) -> Result<(), BadNode> {
    let shared = usize::try_from(reader.varint()?).map_err(|_| Short)?;
    let len = reader.count()?;
    let rest = reader.bytes(len)?;
    let before = key.get(shared..).ok_or(BadNode("a key shares more bytes than the key before it has"))?;
    let rises = is_first || before.first().is_none_or(|byte| rest.first() > Some(byte)) && !rest.is_empty();
    if !rises || shared + len > KEY_MAX {
        return Err(BadNode("its keys do not rise"));
    }
    key.truncate(shared);
    key.extend_from_slice(rest);
    Ok(())
}
