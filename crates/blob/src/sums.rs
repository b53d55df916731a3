//! The checksums beside a blob, with which any part of it can be checked without reading the rest.
//!
//! - Per *group* of 64 KiB its BLAKE3 chaining value: the nodes of the blob's own hash tree at that height.
//!   The name follows from them. So a reader that knows the name can verify them, and with them each group as
//!   it arrives from another node.
//! - Per *segment* of 32 KiB its CRC32C: a tenth of the cost, for bytes on this machine's own disk. A CRC
//!   detects decay, but no forgery.
//!
//! ```text
//!                 id
//!              /      \            above the groups: `root_of`, no bytes needed
//!           .            .
//!         /   \        /   \
//!        g0   g1      g2   g3      chaining values, 64 KiB each (the last group may be short)
//!       s0 s1 s2 s3  s4 s5 s6      CRC32C, 32 KiB each (the last segment may be short)
//! ```
//!
//! A blob of a single group has no tree above it: its one "chaining value" is the id itself.
//!
//! # On disk
//!
//! ```text
//!   "covS"  magic            4 bytes
//!   version 1                u32, little-endian, as all numbers here
//!   size of the blob, bytes  u32, 0 to 4 MiB
//!   chaining values          32 bytes for each group, at least one
//!   CRC32C of the segments   u32 for each segment
//!   CRC32C of all the above  u32
//! ```
//!
//! The id is not written: it follows from the chaining values, so the two can never disagree. A foreign
//! blob's id does not follow from them. In a file, it comes after the rest: 32 bytes, and the CRC32C of all
//! before it ([`Sums::encode_for`]).

mod crc;
#[cfg(test)]
mod tests;

use base::BlobId;
use base::Must;
use base::size::{BLOB_MAX, GROUP, SEGMENT};
use blake3::hazmat::{HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};

pub use crc::{Crc32c, crc32c, crc32c_join};

const MAGIC: [u8; 4] = *b"covS";
const VERSION: u32 = 1;
const HEAD: usize = 12;

/// A BLAKE3 chaining value, or the hash itself for a blob of a single group.
pub type ChainingValue = [u8; 32];

/// The sums of one blob.
#[derive(Clone, PartialEq, Eq)]
pub struct Sums {
    id: BlobId,
    size: u32,
    groups: Vec<ChainingValue>,
    segments: Vec<u32>,
}

/// Why bytes are not the blob's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The CRC of a segment differs.
    #[error("the CRC of the {len} bytes at {offset} is wrong")]
    Segment {
        /// The offset of the segment in the blob.
        offset: u32,
        /// The segment's length in bytes.
        len: u32,
    },
    /// The BLAKE3 chaining value of a group differs.
    #[error("the hash of the {len} bytes at {offset} is wrong")]
    Group {
        /// The offset of the group in the blob.
        offset: u32,
        /// The group's length in bytes.
        len: u32,
    },
    /// The range does not consist of whole segments or groups of this blob.
    #[error("{len} bytes at {offset} are no whole parts of a blob of {size} bytes")]
    Range {
        /// The range's offset.
        offset: u32,
        /// The range's length in bytes.
        len: usize,
        /// The blob's size.
        size: u32,
    },
}

/// The bytes are not an encoded [`Sums`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sums of a blob are damaged: {0}")]
pub struct BadSums(pub &'static str);

impl std::fmt::Debug for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sums of {} bytes, {}", self.size, self.id)
    }
}

impl Sums {
    /// Computes everything in one pass over the blob's bytes.
    ///
    /// # Panics
    /// When there are more than 4 MiB.
    pub fn of(bytes: &[u8]) -> Sums {
        let mut builder = Builder::new(u32::try_from(bytes.len()).must("a blob has at most 4 MiB"));
        bytes.chunks(GROUP as usize).for_each(|group| builder.push(group));
        builder.finish()
    }

    /// The blob's name.
    pub fn id(&self) -> BlobId {
        self.id
    }

    /// Whether these can be the sums of the blob of this name: its name follows from them. The name of a
    /// foreign blob follows from no bytes, so any sums may be its own. They then detect a change of the bytes
    /// after the first node has read them, and the name says nothing about the bytes before.
    pub fn belong_to(&self, id: &BlobId) -> bool {
        id.is_foreign() || self.id == *id
    }

    /// The blob's size in bytes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The chaining values of the groups, in order; the id itself for a single group.
    pub fn groups(&self) -> &[ChainingValue] {
        &self.groups
    }

    /// The CRC32C of the segments, in order.
    pub fn segments(&self) -> &[u32] {
        &self.segments
    }

    /// The CRC32C of the bytes from `start` to `end`, combined from those of the segments. None: the range
    /// does not consist of whole segments of this blob.
    pub fn crc_of(&self, start: u32, end: u32) -> Option<u32> {
        let whole = |at: u32| at.is_multiple_of(SEGMENT) || at == self.size;
        if start >= end || end > self.size || !start.is_multiple_of(SEGMENT) || !whole(end) {
            return None;
        }
        let segments = self.segments.get((start / SEGMENT) as usize..end.div_ceil(SEGMENT) as usize)?;
        let lens = (start..end).step_by(SEGMENT as usize).map(|at| SEGMENT.min(end - at));
        Some(segments.iter().zip(lens).fold(0, |crc, (next, len)| crc32c_join(crc, *next, len)))
    }

    /// Start and end of the segment that holds the byte at `offset`.
    pub fn segment_around(&self, offset: u32) -> (u32, u32) {
        let start = offset - offset % SEGMENT;
        (start, start.saturating_add(SEGMENT).min(self.size))
    }

    /// Compares bytes, one or more whole segments from `offset` on, with their CRCs.
    ///
    /// # Errors
    /// [`Mismatch`]: the first segment that differs, or a range that is not one of whole segments.
    pub fn check(&self, offset: u32, bytes: &[u8]) -> Result<(), Mismatch> {
        self.check_range(offset, bytes.len(), SEGMENT)?;
        let first = (offset / SEGMENT) as usize;
        for (i, segment) in bytes.chunks(SEGMENT as usize).enumerate() {
            if crc32c(segment) != self.segments[first + i] {
                return Err(Mismatch::Segment {
                    offset: (first + i) as u32 * SEGMENT,
                    len: segment.len() as u32,
                });
            }
        }
        Ok(())
    }

    /// Compares bytes, one or more whole groups from `offset` on, with their chaining values.
    ///
    /// # Errors
    /// [`Mismatch`]: the first group that differs, or a range that is not one of whole groups.
    pub fn check_group(&self, offset: u32, bytes: &[u8]) -> Result<(), Mismatch> {
        self.check_range(offset, bytes.len(), GROUP)?;
        let first = (offset / GROUP) as usize;
        for (i, group) in bytes.chunks(GROUP as usize).enumerate() {
            let index = first + i;
            if chaining_value(index, self.groups.len() == 1, group) != self.groups[index] {
                return Err(Mismatch::Group { offset: index as u32 * GROUP, len: group.len() as u32 });
            }
        }
        Ok(())
    }

    fn check_range(&self, offset: u32, len: usize, unit: u32) -> Result<(), Mismatch> {
        let end = offset as usize + len;
        let whole =
            end == self.size as usize || end < self.size as usize && end.is_multiple_of(unit as usize);
        if offset.is_multiple_of(unit) && len > 0 && whole {
            Ok(())
        } else {
            Err(Mismatch::Range { offset, len, size: self.size })
        }
    }

    /// The name of a blob with these chaining values; none if there are none. The values come from
    /// [`Sums::groups`]: a single one is the name itself.
    pub fn root_of(groups: &[ChainingValue]) -> Option<BlobId> {
        match groups {
            [] => None,
            [only] => Some(BlobId(*only)),
            _ => {
                let (left, right) = groups.split_at(left_groups(groups.len()));
                let root = merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash);
                Some(BlobId(*root.as_bytes()))
            }
        }
    }

    /// The length of [`Sums::encode`] for a blob of `size` bytes.
    pub fn encoded_len(size: u32) -> usize {
        HEAD + parts(size, GROUP) * 32 + size.div_ceil(SEGMENT) as usize * 4 + 4
    }

    /// The sums as bytes, at most 2,576. The same sums always give the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Sums::encoded_len(self.size));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        self.groups.iter().for_each(|group| out.extend_from_slice(group));
        self.segments.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
        let own = crc32c(&out);
        out.extend_from_slice(&own.to_le_bytes());
        out
    }

    /// The sums as bytes for a place where they could come to lie beside another blob, such as a file. Those
    /// of a foreign blob are followed by its name and a CRC32C of it, so that they can be told from
    /// another blob's. Those of any other blob are as [`Sums::encode`] makes them.
    pub fn encode_for(&self, id: &BlobId) -> Vec<u8> {
        let mut out = self.encode();
        if id.is_foreign() {
            out.extend_from_slice(&id.0);
            let own = crc32c(&out);
            out.extend_from_slice(&own.to_le_bytes());
        }
        out
    }

    /// Reads what [`Sums::encode_for`] wrote for this blob.
    ///
    /// # Errors
    /// [`BadSums`] for every other sequence of bytes, and for the sums of another blob.
    pub fn decode_for(id: &BlobId, bytes: &[u8]) -> Result<Sums, BadSums> {
        let mut of_blob = bytes;
        if id.is_foreign() {
            let cut = || BadSums("they are cut short");
            let (content, own) = bytes.split_last_chunk::<4>().ok_or_else(cut)?;
            let (sums, name) = content.split_last_chunk::<32>().ok_or_else(cut)?;
            if crc32c(content).to_le_bytes() != *own {
                return Err(BadSums("their own CRC is wrong"));
            }
            if *name != id.0 {
                return Err(BadSums("they are another blob's"));
            }
            of_blob = sums;
        }
        let sums = Sums::decode(of_blob)?;
        if sums.belong_to(id) { Ok(sums) } else { Err(BadSums("they are another blob's")) }
    }

    /// Reads what [`Sums::encode`] wrote. A caller that knows the blob's name must compare it with
    /// [`Sums::belong_to`].
    ///
    /// # Errors
    /// [`BadSums`] for every other sequence of bytes.
    pub fn decode(bytes: &[u8]) -> Result<Sums, BadSums> {
        let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let (Some(version), Some(size)) = (number(4), number(8)) else {
            return Err(BadSums("they are cut short"));
        };
        if bytes[..4] != MAGIC {
            return Err(BadSums("they do not begin with covS"));
        }
        if version != VERSION {
            return Err(BadSums("their version is not one this program knows"));
        }
        if size > BLOB_MAX {
            return Err(BadSums("the blob would be larger than 4 MiB"));
        }
        if bytes.len() != Sums::encoded_len(size) {
            return Err(BadSums("their length does not fit the blob's size"));
        }
        let (content, own) = bytes.split_at(bytes.len() - 4);
        if crc32c(content).to_le_bytes() != own {
            return Err(BadSums("their own CRC is wrong"));
        }
        let (groups, segments) = content[HEAD..].split_at(parts(size, GROUP) * 32);
        let groups: Vec<ChainingValue> = groups.as_chunks().0.to_vec();
        let segments = segments.as_chunks().0.iter().map(|crc| u32::from_le_bytes(*crc)).collect();
        let id = Sums::root_of(&groups).ok_or(BadSums("they name no group"))?;
        // Of a blob without a byte nothing is left to check. A small one whose sums say so would be whole.
        if size == 0 && id != Sums::of(b"").id {
            return Err(BadSums("they say that the blob is empty, and it is not"));
        }
        Ok(Sums { id, size, groups, segments })
    }
}

/// Computes [`Sums`] group by group as the blob's bytes arrive, so that the whole blob need not be in memory.
#[derive(Debug)]
pub struct Builder {
    size: u32,
    done: u32,
    groups: Vec<ChainingValue>,
    segments: Vec<u32>,
}

impl Builder {
    /// For a blob of `size` bytes. A single group is hashed differently from one of several.
    ///
    /// # Panics
    /// When there are more than 4 MiB.
    pub fn new(size: u32) -> Builder {
        (size <= BLOB_MAX).then_some(()).must("a blob has at most 4 MiB");
        Builder {
            size,
            done: 0,
            groups: Vec::with_capacity(parts(size, GROUP)),
            segments: Vec::with_capacity(size.div_ceil(SEGMENT) as usize),
        }
    }

    /// The length of the next group, in bytes; 0 when all were pushed.
    pub fn next_len(&self) -> u32 {
        GROUP.min(self.size - self.done)
    }

    /// Takes the next group's bytes: [`Builder::next_len`] of them.
    ///
    /// # Panics
    /// When they are more or fewer.
    pub fn push(&mut self, group: &[u8]) {
        (group.len() == self.next_len() as usize).then_some(()).must("a group is pushed whole");
        if group.is_empty() {
            return;
        }
        // The hash first: it takes long enough for the next bytes to arrive from memory meanwhile. The CRCs
        // then find the group in the processor's cache.
        let value = chaining_value(self.groups.len(), self.size <= GROUP, group);
        self.groups.push(value);
        self.segments.extend(group.chunks(SEGMENT as usize).map(crc32c));
        self.done += group.len() as u32;
    }

    /// The sums of the pushed bytes.
    ///
    /// # Panics
    /// When fewer bytes were pushed than the blob has.
    pub fn finish(mut self) -> Sums {
        (self.done == self.size).then_some(()).must("all groups were pushed");
        if self.size == 0 {
            self.groups.push(*blake3::hash(&[]).as_bytes());
        }
        let id = Sums::root_of(&self.groups).must("a blob has at least one group");
        Sums { id, size: self.size, groups: self.groups, segments: self.segments }
    }
}

/// The number of parts of a blob; the empty blob counts as having one empty group.
fn parts(size: u32, unit: u32) -> usize {
    (size.div_ceil(unit) as usize).max(1)
}

fn chaining_value(index: usize, only: bool, group: &[u8]) -> ChainingValue {
    if only {
        return *blake3::hash(group).as_bytes();
    }
    blake3::Hasher::new().set_input_offset(index as u64 * u64::from(GROUP)).update(group).finalize_non_root()
}

/// How many groups of a tree are left of its root: the largest power of two that leaves something on the
/// right.
fn left_groups(count: usize) -> usize {
    count.next_power_of_two() / 2
}

fn subtree(groups: &[ChainingValue]) -> ChainingValue {
    match groups {
        [only] => *only,
        _ => {
            let (left, right) = groups.split_at(left_groups(groups.len()));
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}
