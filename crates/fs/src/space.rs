//! Space on the disk: whether writes are admitted, and what statfs(2) shows.
//!
//! New bytes and new files are refused while less than a floor is free. So removals, which need a little
//! space for the metadata log, always succeed. The disk is not asked before every write, but every few
//! megabytes.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use base::size::MIB;
use base::time;
use blob::{BlobError, Space};

/// The disk is asked again after so many bytes were written ...
const AFTER_BYTES: i64 = 8 * MIB as i64;
/// ... or after so many milliseconds.
const AFTER_MS: u64 = 100;

/// The last known state of the disk.
pub(crate) struct SpaceGate {
    started: Instant,
    seen_ms: AtomicU64,
    /// Bytes that may be written before the disk is asked again.
    credit: AtomicI64,
    total: AtomicU64,
    available: AtomicU64,
    full: AtomicBool,
}

/// The floor that is kept free: 1/64 of the disk, at least 16 MiB and at most 128 MiB.
pub(crate) fn floor(total: u64) -> u64 {
    (total / 64).clamp(16 * MIB, 128 * MIB)
}

impl SpaceGate {
    pub(crate) fn new() -> SpaceGate {
        SpaceGate {
            started: time::monotonic(),
            seen_ms: AtomicU64::new(0),
            credit: AtomicI64::new(0),
            total: AtomicU64::new(0),
            available: AtomicU64::new(0),
            full: AtomicBool::new(false),
        }
    }

    fn now_ms(&self) -> u64 {
        time::monotonic().duration_since(self.started).as_millis() as u64 + 1
    }

    fn look(&self, ask: impl FnOnce() -> Result<Space, BlobError>) -> Result<(), BlobError> {
        let space = ask()?;
        self.total.store(space.total, Ordering::Relaxed);
        self.available.store(space.available, Ordering::Relaxed);
        self.full.store(space.available < floor(space.total), Ordering::Relaxed);
        let above_floor =
            i64::try_from(space.available.saturating_sub(floor(space.total))).unwrap_or(i64::MAX);
        self.credit.store(above_floor.min(AFTER_BYTES), Ordering::Relaxed);
        self.seen_ms.store(self.now_ms(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether `bytes` more may be written.
    ///
    /// # Errors
    /// `Full`, or an error of the disk.
    pub(crate) fn admit(
        &self,
        bytes: u64,
        ask: impl FnOnce() -> Result<Space, BlobError>,
    ) -> Result<(), BlobError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let credit = self.credit.fetch_sub(bytes, Ordering::Relaxed);
        if credit < bytes || self.now_ms() > self.seen_ms.load(Ordering::Relaxed) + AFTER_MS {
            self.look(ask)?;
        }
        let above_floor =
            self.available.load(Ordering::Relaxed).saturating_sub(floor(self.total.load(Ordering::Relaxed)));
        if self.full.load(Ordering::Relaxed) || (bytes > AFTER_BYTES && bytes as u64 > above_floor) {
            return Err(BlobError::Full);
        }
        Ok(())
    }

    /// A write failed because the disk was full: the next one asks the disk.
    pub(crate) fn met_full(&self) {
        // Below zero, so that a write of no bytes (a new name) asks too.
        self.credit.store(-1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_asked_seldom_and_the_floor_is_kept() {
        let gate = SpaceGate::new();
        let asked = std::cell::Cell::new(0);
        let ask = |available| {
            asked.set(asked.get() + 1);
            Ok(Space { total: 1 << 30, available, reserve: 0 })
        };
        for _ in 0..1000 {
            gate.admit(4096, || ask(100 * MIB)).unwrap();
        }
        assert!(asked.get() <= 50, "{}", asked.get());
        gate.met_full();
        assert!(matches!(gate.admit(1, || ask(15 * MIB)), Err(BlobError::Full)));
        gate.met_full();
        assert!(matches!(gate.admit(0, || ask(15 * MIB)), Err(BlobError::Full)));
        gate.met_full();
        gate.admit(0, || ask(17 * MIB)).unwrap();
        assert!(matches!(gate.admit(50 * MIB, || ask(60 * MIB)), Err(BlobError::Full)));
    }
}
