//! Turns rows into nodes, stores nodes together in packs, and stores packs as blobs.
//!
//! **The end of a node** follows from the keys in it. It is after a row whose key's hash says so, once the
//! node has [`LEAF_MIN`] bytes, and at [`LEAF_MAX`] in any case. So a row that is added, removed or changed
//! moves only the ends near it. Inner nodes are cut the same way by the first keys of their children.
//!
//! A pack is named by its hash, which is known only when it is full. A node refers to another node in the
//! same pack without the pack's name. So children and parents can be in the same pack, and a small change is
//! one blob.

use base::BlobId;
use base::size::BLOB_MAX;
use blob::{Origin, Sums};
use hashbrown::{HashMap, HashSet};

use crate::TreeError;
use crate::node::{self, CONTENT_MAX, Child, Hash, Inner, LEVEL_MAX, Leaf, Pointer};

/// The least size of a leaf, in bytes of keys and values.
const LEAF_MIN: usize = 16 << 10;
/// From that size on, a leaf ends after one row in so many.
const LEAF_ONE_IN: u32 = 512;
/// The largest size of a leaf, unless a single row is longer.
const LEAF_MAX: usize = 128 << 10;
/// The least size of an inner node, in children.
const INNER_MIN: usize = 16;
/// From that size on, an inner node ends after one child in so many.
const INNER_ONE_IN: u32 = 64;
/// The largest size of an inner node, in children.
const INNER_MAX: usize = 256;
/// The most bytes of a child besides its key.
const CHILD_BYTES: usize = 32 + 32 + 40;
const ZSTD_LEVEL: i32 = 3;

/// The nodes of an earlier tree that can be reused.
#[derive(Default)]
pub struct Known(pub(crate) HashMap<Hash, Pointer>);

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The number of nodes of the tree.
    pub nodes: u64,
    /// The number of these that were written now.
    pub new_nodes: u64,
    /// The number of blobs written.
    pub blobs: u64,
    /// The bytes of these blobs.
    pub bytes: u64,
}

/// A whole tree, written.
pub struct Built {
    /// The top node.
    pub top: Pointer,
    /// The level of the top node.
    pub level: u8,
    /// The blobs that hold its nodes.
    pub blobs: HashSet<BlobId>,
    /// How much of it is new.
    pub written: Written,
}

/// Called before a blob is stored or referred to. The blob will be part of a tree and must not be removed.
pub type Hold<'a> = dyn FnMut(BlobId) -> Result<(), TreeError> + 'a;

/// Takes rows in order and builds a tree from them. See the [module](self).
pub struct Builder<'a> {
    leaf: Leaf,
    leaves: Vec<Done>,
    packer: Packer<'a>,
}

/// A node that is stored, or is in the pack being filled.
struct Done {
    child: Child,
    /// The number of its pack, among those written now. `None`: it is in `child.to.blob`.
    pack: Option<usize>,
}

struct Packer<'a> {
    origin: &'a dyn Origin,
    hold: &'a mut Hold<'a>,
    known: &'a Known,
    zstd: zstd::bulk::Compressor<'static>,
    pack: Vec<u8>,
    /// The packs that are stored, in order.
    stored: Vec<BlobId>,
    blobs: HashSet<BlobId>,
    written: Written,
}

impl<'a> Builder<'a> {
    /// A tree without rows.
    ///
    /// # Errors
    /// The compression library has no memory.
    pub fn new(
        origin: &'a dyn Origin,
        known: &'a Known,
        hold: &'a mut Hold<'a>,
    ) -> Result<Builder<'a>, TreeError> {
        let zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(blob::BlobError::Io)?;
        let packer = Packer {
            origin,
            hold,
            known,
            zstd,
            pack: Vec::new(),
            stored: Vec::new(),
            blobs: HashSet::new(),
            written: Written::default(),
        };
        Ok(Builder { leaf: Leaf::default(), leaves: Vec::new(), packer })
    }

    /// Adds a row. Its key must be higher than all before.
    ///
    /// # Errors
    /// The row is larger than a node can be, or a pack could not be stored.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), TreeError> {
        let len = key.len() + value.len();
        if len + 64 > CONTENT_MAX {
            return Err(TreeError::Damaged(format!("a row of {len} bytes is longer than a node can be")));
        }
        // End the leaf first, so that a long row does not make it too large.
        if !self.leaf.is_empty() && self.leaf.bytes() + len > LEAF_MAX {
            self.end_leaf()?;
        }
        self.leaf.push(key, value);
        if self.leaf.bytes() >= LEAF_MIN && ends(key, LEAF_ONE_IN) {
            self.end_leaf()?;
        }
        Ok(())
    }

    fn end_leaf(&mut self) -> Result<(), TreeError> {
        let leaf = std::mem::take(&mut self.leaf);
        let Some((first, _)) = leaf.row(0) else { return Ok(()) };
        let content = leaf.encode();
        let hash = *blake3::hash(&content).as_bytes();
        let done = self.packer.put(first, hash, leaf.len() as u64, true, |_| content)?;
        self.leaves.push(done);
        Ok(())
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// A pack could not be stored.
    pub fn finish(mut self) -> Result<Built, TreeError> {
        self.end_leaf()?;
        let Builder { leaves: mut nodes, mut packer, .. } = self;
        let mut level = 0;
        if nodes.is_empty() {
            let content = Leaf::default().encode();
            let hash = *blake3::hash(&content).as_bytes();
            nodes.push(packer.put(&[], hash, 0, true, |_| content)?);
        }
        while nodes.len() > 1 {
            level += 1;
            if level > LEVEL_MAX {
                return Err(TreeError::Damaged("the tree would be too high".to_owned()));
            }
            nodes = packer.level_above(level, nodes)?;
        }
        packer.end_pack()?;
        let top = nodes.pop().map(|done| packer.pointer_of(&done)).unwrap_or(Pointer {
            hash: [0; 32],
            blob: BlobId([0; 32]),
            offset: 0,
            len: 0,
            rows: 0,
        });
        Ok(Built { top, level, blobs: packer.blobs, written: packer.written })
    }
}

impl Packer<'_> {
    fn level_above(&mut self, level: u8, below: Vec<Done>) -> Result<Vec<Done>, TreeError> {
        let mut above = Vec::new();
        let mut run: Vec<Done> = Vec::new();
        let mut below = below.into_iter().peekable();
        while let Some(done) = below.next() {
            let ends = run.len() + 1 >= INNER_MIN && ends(&done.child.first, INNER_ONE_IN);
            run.push(done);
            if ends || run.len() >= INNER_MAX || below.peek().is_none() {
                above.push(self.inner(level, std::mem::take(&mut run))?);
            }
        }
        Ok(above)
    }

    fn inner(&mut self, level: u8, run: Vec<Done>) -> Result<Done, TreeError> {
        let bytes: usize = run.iter().map(|done| done.child.first.len() + CHILD_BYTES).sum::<usize>() + 64;
        // If there is certainly space for it, the node goes into the same pack as its newest children.
        if self.pack.len() + bytes > BLOB_MAX as usize {
            self.end_pack()?;
        }
        let all_known = run.iter().all(|done| done.pack.is_none());
        let children: Vec<Child> = run.iter().map(|done| done.child.clone()).collect();
        let rows = children.iter().map(|child| child.to.rows).sum();
        let hash = Inner::hash(level, &children);
        let Some(first) = children.first().map(|child| child.first.clone()) else {
            return Err(TreeError::Damaged("a node without children".to_owned()));
        };
        self.put(&first, hash, rows, all_known, |packer| {
            let place = |number: usize| match run.get(number)?.pack {
                None => Some(children.get(number)?.to.blob),
                Some(pack) => packer.stored.get(pack).copied(),
            };
            Inner::encode(level, &children, &place)
        })
    }

    /// Puts a node into the pack, unless the previous tree had it (and all its children are where they were).
    fn put(
        &mut self,
        first: &[u8],
        hash: Hash,
        rows: u64,
        all_known: bool,
        content: impl FnOnce(&Packer<'_>) -> Vec<u8>,
    ) -> Result<Done, TreeError> {
        self.written.nodes += 1;
        if let Some(known) = self.known.0.get(&hash).filter(|_| all_known) {
            if self.blobs.insert(known.blob) {
                (self.hold)(known.blob)?;
            }
            let child = Child { first: first.into(), to: Pointer { rows, ..*known } };
            return Ok(Done { child, pack: None });
        }
        let content = content(self);
        let stored = node::stored(&content, &mut self.zstd);
        if self.pack.len() + stored.len() > BLOB_MAX as usize {
            self.end_pack()?;
        }
        let (offset, len) = (self.pack.len() as u32, stored.len() as u32);
        self.pack.extend_from_slice(&stored);
        self.written.new_nodes += 1;
        // The blob has no name before the pack is full, so this one is a placeholder that is never read.
        let to = Pointer { hash, blob: BlobId([0; 32]), offset, len, rows };
        Ok(Done { child: Child { first: first.into(), to }, pack: Some(self.stored.len()) })
    }

    fn end_pack(&mut self) -> Result<(), TreeError> {
        if self.pack.is_empty() {
            return Ok(());
        }
        let sums = Sums::of(&self.pack);
        let blob = sums.id();
        (self.hold)(blob)?;
        self.origin.put(&blob, &sums, &self.pack)?;
        self.written.blobs += 1;
        self.written.bytes += self.pack.len() as u64;
        self.pack.clear();
        self.stored.push(blob);
        self.blobs.insert(blob);
        Ok(())
    }

    /// Where a node is. Call it once every pack is stored.
    fn pointer_of(&self, done: &Done) -> Pointer {
        let blob = done.pack.and_then(|pack| self.stored.get(pack)).unwrap_or(&done.child.to.blob);
        Pointer { blob: *blob, ..done.child.to }
    }
}

/// Whether a node ends at this key, which is true for one key in `one_in`.
fn ends(key: &[u8], one_in: u32) -> bool {
    let hash = blake3::hash(key);
    let mut first = [0; 4];
    first.copy_from_slice(&hash.as_bytes()[..4]);
    u32::from_be_bytes(first) % one_in == 0
}
