//! A volume's statistics.

use crate::errno::Error;
use crate::volume::{Core, Volume};

pub use crate::counters::Reads;

/// How much was read since the volume was opened, by where the bytes were. Reads answered by the kernel's
/// page cache never reach this code. Compaction's own reads are included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Inline in the names.
    pub names: Reads,
    /// Packs that are open or not yet sealed: this node's disk.
    pub open: Reads,
    /// Sealed blobs, from wherever the source has them.
    pub blobs: Reads,
}

/// A volume's figures. Those "since open" are this node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Inodes in use.
    pub inodes: u64,
    /// Bytes of files, as their extents and inline bytes count them.
    pub logical_bytes: u64,
    /// Bytes of sealed packs; packs with the same blob count once. Counted in the background after an open.
    pub stored_bytes: u64,
    /// Of these, bytes that nothing refers to.
    pub garbage_bytes: u64,
    /// Packs that are not sealed yet.
    pub open_packs: u64,
    /// Bytes in them.
    pub open_bytes: u64,
    /// Sealed packs; counted in the background after an open.
    pub sealed_packs: u64,
    /// Whether the background count is complete.
    pub counted: bool,
    /// Since open: bytes that were not stored, because the same content was stored already.
    pub dedup_bytes: u64,
    /// Since open: how often that happened.
    pub dedup_hits: u64,
    /// Since open: bytes written to packs, including compaction's.
    pub written_bytes: u64,
    /// Since open: bytes read from packs and blobs.
    pub read_bytes: u64,
    /// Since open: bytes of packs deleted.
    pub freed_bytes: u64,
    /// Since open: bytes copied by compaction.
    pub moved_bytes: u64,
    /// Since open: requests answered with EIO.
    pub io_errors: u64,
    /// Inodes that the kernel refers to.
    pub held_inodes: u64,
    /// Of these, without a name.
    pub nameless_inodes: u64,
}

impl Volume {
    /// The figures now.
    ///
    /// # Errors
    /// The names could not be read.
    pub fn stats(&self) -> Result<Stats, Error> {
        self.core.stats()
    }

    /// How much was read, and from where. Reads a few counters only.
    pub fn sources(&self) -> Sources {
        let c = &self.core.counters;
        Sources { names: c.from_names.get(), open: c.from_open.get(), blobs: c.from_blobs.get() }
    }
}

impl Core {
    fn stats(&self) -> Result<Stats, Error> {
        let (open_packs, open_bytes) = self.packs.open_count();
        let (held_inodes, nameless_inodes) = self.refs.counts();
        let totals = self.names.totals()?;
        let stored = self.garbage.totals();
        let c = &self.counters;
        Ok(Stats {
            inodes: totals.inodes,
            logical_bytes: totals.bytes,
            stored_bytes: stored.stored_bytes.saturating_sub(stored.twice_bytes),
            garbage_bytes: stored.garbage_bytes,
            open_packs,
            open_bytes,
            sealed_packs: stored.packs,
            counted: stored.counted,
            dedup_bytes: c.dedup_bytes.get(),
            dedup_hits: c.dedup_hits.get(),
            written_bytes: c.written_bytes.get(),
            read_bytes: c.from_open.get().bytes + c.from_blobs.get().bytes,
            freed_bytes: c.freed_bytes.get(),
            moved_bytes: c.moved_bytes.get(),
            io_errors: c.io_errors.get(),
            held_inodes,
            nameless_inodes,
        })
    }
}
