//! The cache's statistics.

use std::sync::atomic::{AtomicU64, Ordering};

use base::size::BLOB_MAX;

use super::Core;
use super::partial::Totals;
use super::pending::Pinned;

/// A number that only grows.
#[derive(Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of events.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) memory_reads: Count,
    pub(super) memory_bytes: Count,
    pub(super) disk_reads: Count,
    pub(super) disk_bytes: Count,
    pub(super) far_reads: Count,
    pub(super) far_bytes: Count,
    pub(super) shared_fetches: Count,
    pub(super) part_fetches: Count,
    pub(super) whole_fetches: Count,
    pub(super) fetched_bytes: Count,
    pub(super) failed_fetches: Count,
    pub(super) hints_dropped: Count,
    pub(super) kept_blobs: Count,
    pub(super) kept_bytes: Count,
    pub(super) not_kept: Count,
    pub(super) stored_blobs: Count,
    pub(super) stored_bytes: Count,
    pub(super) evicted_blobs: Count,
    pub(super) evicted_bytes: Count,
    pub(super) damaged: Count,
    pub(super) removals_failed: Count,
}

impl Counters {
    /// The bytes that were read, and those that were fetched.
    pub(super) fn totals(&self) -> Totals {
        let read = self.memory_bytes.get() + self.disk_bytes.get() + self.far_bytes.get();
        Totals { read, fetched: self.fetched_bytes.get() }
    }
}

/// Statistics of a node's cache. Values in the past tense count since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads that were served from memory.
    pub memory_reads: u64,
    /// Bytes of reads that were served from memory.
    pub memory_bytes: u64,
    /// Reads that were served from the node's disk.
    pub disk_reads: u64,
    /// Bytes of reads that were served from the node's disk.
    pub disk_bytes: u64,
    /// Reads that waited for the origin.
    pub far_reads: u64,
    /// Bytes of reads that waited for the origin.
    pub far_bytes: u64,
    /// Of these, reads that joined an in-flight fetch.
    pub shared_fetches: u64,
    /// Parts of blobs fetched from the origin.
    pub part_fetches: u64,
    /// Whole blobs fetched from the origin. If parts of one were here, the rest also counts as parts.
    pub whole_fetches: u64,
    /// Bytes of both.
    pub fetched_bytes: u64,
    /// Fetches that failed.
    pub failed_fetches: u64,
    /// Prefetch hints that were dropped.
    pub hints_dropped: u64,
    /// Fetched blobs that were put on the disk.
    pub kept_blobs: u64,
    /// Bytes of fetched blobs that were put on the disk.
    pub kept_bytes: u64,
    /// Fetched blobs that were not put on the disk, because there was no room or the disk failed.
    pub not_kept: u64,
    /// Blobs that were stored here.
    pub stored_blobs: u64,
    /// Bytes of blobs that were stored here.
    pub stored_bytes: u64,
    /// Blobs that were evicted to make room.
    pub evicted_blobs: u64,
    /// Bytes of blobs that were evicted to make room.
    pub evicted_bytes: u64,
    /// Copies on the disk, and parts in memory, that were found damaged.
    pub damaged: u64,
    /// Attempts to delete in the origin that failed. They are retried.
    pub removals_failed: u64,
    /// Blobs whose deletion in the origin is outstanding.
    pub removing: u64,
    /// Blobs on the disk now.
    pub blobs: u64,
    /// The bytes they take.
    pub bytes: u64,
    /// The bytes they may take.
    pub budget: u64,
    /// The bytes left free on the disk for others.
    pub floor: u64,
    /// Of the blobs on the disk, those that the origin does not have yet.
    pub pinned: Pinned,
    /// Bytes of remote blobs in memory now.
    pub in_memory_bytes: u64,
    /// Fetches that are in flight, or whose bytes are being put on the disk.
    pub in_flight: u64,
    /// The memory reserved for them, in bytes.
    pub in_flight_bytes: u64,
    /// Why nothing is kept on the disk, if so.
    pub off: Option<String>,
    /// Nothing is kept, because less than the floor is free and nothing is left to evict.
    pub kept_out: bool,
    /// Whether the index is still being compared with the disk.
    pub comparing: bool,
}

impl Core {
    pub(super) fn stats(&self) -> CacheStats {
        let count = &self.counters;
        let (blobs, bytes, budget) = self.ledger.totals();
        CacheStats {
            memory_reads: count.memory_reads.get(),
            memory_bytes: count.memory_bytes.get(),
            disk_reads: count.disk_reads.get(),
            disk_bytes: count.disk_bytes.get(),
            far_reads: count.far_reads.get(),
            far_bytes: count.far_bytes.get(),
            shared_fetches: count.shared_fetches.get(),
            part_fetches: count.part_fetches.get(),
            whole_fetches: count.whole_fetches.get(),
            fetched_bytes: count.fetched_bytes.get(),
            failed_fetches: count.failed_fetches.get(),
            hints_dropped: count.hints_dropped.get(),
            kept_blobs: count.kept_blobs.get(),
            kept_bytes: count.kept_bytes.get(),
            not_kept: count.not_kept.get(),
            stored_blobs: count.stored_blobs.get(),
            stored_bytes: count.stored_bytes.get(),
            evicted_blobs: count.evicted_blobs.get(),
            evicted_bytes: count.evicted_bytes.get(),
            damaged: count.damaged.get(),
            removals_failed: count.removals_failed.get(),
            removing: self.removals.len() as u64,
            blobs,
            bytes,
            budget,
            floor: self.floor(),
            pinned: self.pending.pinned(),
            in_memory_bytes: self.memory.lock().bytes() as u64,
            in_flight: self.table.len() as u64,
            in_flight_bytes: self.table.budget().used(),
            off: self.health.why_off(),
            kept_out: self.health.is_kept_out() && self.below_floor(u64::from(BLOB_MAX)) > 0,
            comparing: !self.is_compared(),
        }
    }
}
