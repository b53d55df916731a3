//! Numbers that no inode and no pack had before.
//!
//! A database that was put back to an earlier state has forgotten which numbers it gave. So in a shared
//! volume they are no lower than a number that the time gives. This helps as long as no more are taken than
//! the clock adds: 16 ranges of inodes a second, and one of packs in four.

use base::{Ino, PackNo, Timestamp, time};
use meta::plan::Op;
use meta::store::StoreError;

use crate::errno::Error;
use crate::shared::pack_of;
use crate::volume::Core;

/// Numbers of shared volumes count from here: the begin of 2026.
const NUMBERED: Timestamp = Timestamp(1_767_225_600_000_000_000);
/// A clock that is later than this many seconds after it is wrong: a century.
const LONG: i128 = 3_200_000_000;

impl Core {
    pub(crate) fn next_ino(&self) -> Result<Ino, Error> {
        let from = |seconds: u64| seconds << 20;
        Ok(Ino(self.inos.take(|count| self.allocate_numbers("next-ino", count, from))?))
    }

    pub(crate) fn next_pack(&self) -> Result<PackNo, Error> {
        let from = |seconds: u64| (seconds / 4) << 10;
        let number = self.pack_nos.take(|count| self.allocate_numbers("next-pack", count, from))?;
        let Some(sharing) = &self.options.shared else { return Ok(PackNo(number)) };
        let used_up = || StoreError::Damaged(format!("the counter of packs is at {number}, too high"));
        Ok(pack_of(sharing.node, number).ok_or_else(used_up)?)
    }

    fn allocate_numbers(
        &self,
        counter: &'static str,
        count: u64,
        from: impl Fn(u64) -> u64,
    ) -> Result<u64, Error> {
        let since = (time::now().0 - NUMBERED.0) / 1_000_000_000;
        let from = if self.is_shared() { from(since.clamp(0, LONG).unsigned_abs() as u64) } else { 0 };
        Ok(self.run(&Op::Allocate { counter, count, from })?.first)
    }
}
