//! How a cache behaves, and how much of a disk it takes by default.

use std::io;
use std::path::Path;
use std::time::Duration;

use base::size::{BLOB_MAX, GIB, MIB};

use super::disk_store;

/// How a cache behaves.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// How much blobs may take on the disk, in bytes. None: four fifths of what is free there at the start
    /// and what the blobs here take already.
    pub budget: Option<u64>,
    /// How much stays free on the disk, in bytes. See [`default_floor`].
    pub floor: u64,
    /// How much parts of remote blobs may take in memory, in bytes.
    pub memory: usize,
    /// How much in-flight fetches may take in memory, in bytes ([`fetch::Table::new`]). A fetch that exceeds
    /// this waits.
    pub in_flight: u64,
    /// How many blobs are prefetched at the same time.
    pub readers_ahead: usize,
    /// A failed disk is tried again after this time.
    pub look_again: Duration,
    /// For this long after a failed deletion, the origin may still carry it out. A store of the same blob
    /// waits until this time is over.
    pub doubt: Duration,
    /// The pause between two folders while the index is compared with the disk.
    pub walk_pause: Duration,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            budget: Some(10 * GIB),
            floor: GIB,
            memory: 48 * MIB as usize,
            in_flight: 64 * MIB,
            readers_ahead: 16,
            look_again: Duration::from_secs(60),
            doubt: Duration::from_secs(5),
            walk_pause: Duration::from_millis(20),
        }
    }
}

impl CacheOptions {
    /// Options for a node with this much memory, in bytes ([`memory_room`](crate::memory_room)). From 768 MiB
    /// on these are the default sizes. Below that, parts get a sixteenth of the memory, and in-flight fetches
    /// an eighth.
    pub fn within(memory: u64) -> CacheOptions {
        let usual = CacheOptions::default();
        let in_flight = (memory / 8).clamp(16 * MIB, usual.in_flight);
        CacheOptions {
            memory: usize::try_from(memory / 16).unwrap_or(usize::MAX).clamp(8 * MIB as usize, usual.memory),
            in_flight,
            readers_ahead: ((in_flight / u64::from(BLOB_MAX)) as usize).clamp(4, usual.readers_ahead),
            ..usual
        }
    }
}

/// The part of its space on a disk that a cache takes by default.
pub(super) fn share(bytes: u64) -> u64 {
    bytes / 5 * 4
}

/// The default budget of a new cache on the disk that holds `dir`: four fifths of the space that is free now.
///
/// # Errors
/// The system's error.
pub fn default_budget(dir: &Path) -> io::Result<u64> {
    Ok(share(disk_store::space_at(dir)?.available))
}

/// How much a cache leaves free by default on the disk that holds `dir`: a twentieth of the disk, at least 1
/// GiB.
///
/// # Errors
/// The system's error.
pub fn default_floor(dir: &Path) -> io::Result<u64> {
    Ok((disk_store::space_at(dir)?.total / 20).max(GIB))
}
