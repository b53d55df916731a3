//! Compaction: moves live bytes out of packs that are mostly dead, or too small to be worth a blob.
//!
//! ```text
//!   users of the pack ─► their extents in it ─► ranges, merged ─► copied to the pack of moved bytes
//!                                                                            │
//!        each user's page is updated: extents that still point to the old range point to the new one
//! ```
//!
//! A page that changed in between keeps its change: only extents that still refer to the old range are
//! updated. The old pack is left without live bytes, and is condemned like any other.

use std::time::{Duration, Instant};

use base::size::{MIB, SEGMENT};
use base::{Deadline, Ino, PackNo, time};
use blob::{BlobError, Extent, ExtentPage};
use meta::Key;
use meta::plan::Op;
use meta::plan::op::Move;
use meta::store::StoreError;

use super::START;
use crate::bytes::may_have_moved;
use crate::errno::Error;
use crate::packs::seal::is_damage;
use crate::packs::{Slot, Writer};
use crate::volume::Core;

/// The length of a compaction round, so that flushes and deletions are not delayed.
const ROUND: Duration = Duration::from_millis(400);
/// The number of packs chosen at a time.
const CHOICE: usize = 16;
/// Packs with more live bytes than this percentage are never worth copying.
const FULL: u32 = 90;
/// When nothing is being written, packs with fewer live bytes than this percentage are compacted without
/// need.
const HALF: u32 = 50;
/// How long the origin may take for the bytes of one pack. Deletions wait meanwhile.
pub(super) const READS: Duration = Duration::from_secs(10);
/// Users read at a time.
const USERS: usize = 1024;

impl Core {
    /// Whether this volume is compacted here, and there is space to copy before deleting. Shared volumes are
    /// compacted by [`super::shared`].
    pub(crate) fn may_copy(&self) -> bool {
        !self.is_shared() && self.has_room_to_copy()
    }

    /// Whether there is space to copy before deleting. The last of the space is left to the names.
    pub(super) fn has_room_to_copy(&self) -> bool {
        let room = |space: blob::Space| space.available > crate::space::floor(space.total) / 2 + 4 * MIB;
        // Moved bytes must be uploaded again, after everything that is waiting for the origin already.
        !self.is_read_only() && self.options.gate.is_open() && self.parts.packs.space().is_ok_and(room)
    }

    /// Compacts for one round while there is too much dead data. Then, if nothing is being written, compacts
    /// a few packs that are half dead, and merges small packs.
    pub(crate) fn compact_round(&self) -> Result<(), Error> {
        let began = time::monotonic();
        let in_time = |began: Instant| time::monotonic().saturating_duration_since(began) < ROUND;
        while self.garbage.totals().exceeds(START) && in_time(began) && !self.stopping() {
            let packs = self.garbage.emptiest(CHOICE, FULL);
            if packs.is_empty() || !self.compact(&packs)? {
                break;
            }
        }
        let is_idle =
            self.sweep.is_write_idle(self.counters.written_bytes.get() - self.counters.moved_bytes.get());
        if is_idle && !self.sweep.is_put_off() {
            self.compact(&self.garbage.emptiest(CHOICE / 2, HALF))?;
        }
        if !self.sweep.is_put_off() {
            self.compact(&self.garbage.to_merge())?;
        }
        Ok(())
    }

    /// Moves the live bytes of these packs elsewhere, for one round at most. Packs that are damaged are left
    /// alone from then on. Returns false when none was moved, or the rest must wait for space or for the
    /// origin.
    pub(crate) fn compact(&self, packs: &[PackNo]) -> Result<bool, Error> {
        let began = time::monotonic();
        let mut is_any = false;
        for pack in packs.iter().filter(|pack| !self.sweep.is_left(**pack)) {
            if self.stopping() || time::monotonic().saturating_duration_since(began) >= ROUND {
                break;
            }
            let moved = match self.move_live(*pack) {
                // Its row says where it is now.
                Err(error) if may_have_moved(&error) => {
                    self.table.drop(*pack);
                    self.move_live(*pack)
                }
                moved => moved,
            };
            match moved {
                Err(Error::Blob(BlobError::Full)) => return Ok(false),
                Err(Error::Blob(error)) if is_no_answer(&error) => {
                    if self.sweep.leave(*pack) {
                        self.report(&format!("the origin does not give {pack:?} again, so it is not compacted yet; this will be repeated: {error}"));
                    }
                    return Ok(false);
                }
                Err(Error::Blob(error)) => {
                    self.report(&format!("{pack:?} cannot be read, so it is not compacted; `covey fsck` says which files it holds: {error}"));
                    self.garbage.give_up(*pack);
                }
                done => done?,
            }
            self.sweep.had(*pack);
            is_any = true;
            self.judge_touched()?;
        }
        Ok(is_any)
    }

    /// Copies all live bytes of a pack elsewhere, and makes everything that refers to them refer to the
    /// copies.
    pub(crate) fn move_live(&self, pack: PackNo) -> Result<(), Error> {
        let (users, mut ranges) = self.live_ranges(pack)?;
        merge_ranges(&mut ranges);
        let mut moved = Moved::of(pack);
        for (offset, len) in ranges {
            self.copy_range_of_pack(&mut moved, offset, len)?;
        }
        for (ino, page) in users {
            self.run(&Op::Follow { ino, page, moves: &moved.moves })?;
        }
        // Also when nothing referred to it: it must be judged.
        self.garbage.touch(&[pack]);
        Ok(())
    }

    /// Moves the live bytes of a pack with damage as [`Core::move_live`] does, if they can be read. The rest
    /// stays. A range that cannot be read is tried in pieces, cut at segments and where the bytes of another
    /// file begin.
    pub(crate) fn move_readable(&self, pack: PackNo) -> Result<(), Error> {
        let (users, mut ranges) = self.live_ranges(pack)?;
        let mut cuts: Vec<u32> = ranges.iter().flat_map(|(offset, len)| [*offset, offset + len]).collect();
        cuts.sort_unstable();
        merge_ranges(&mut ranges);
        let mut moved = Moved::of(pack);
        for (offset, len) in ranges {
            match self.copy_range_of_pack(&mut moved, offset, len) {
                Err(Error::Blob(error)) if is_damage(&error) => {}
                done => {
                    done?;
                    continue;
                }
            }
            let (mut at, end) = (offset, offset + len);
            while at < end {
                let next = cuts.get(cuts.partition_point(|cut| *cut <= at)).map_or(end, |cut| *cut);
                let len = (SEGMENT - at % SEGMENT).min(end.min(next) - at);
                match self.copy_range_of_pack(&mut moved, at, len) {
                    Err(Error::Blob(error)) if is_damage(&error) => {}
                    done => done?,
                }
                at += len;
            }
        }
        for (ino, page) in users {
            self.run(&Op::Follow { ino, page, moves: &moved.moves })?;
        }
        Ok(())
    }

    /// The pages that refer to a pack, and the ranges of it that they refer to. In a shared volume they are
    /// those that the database has: no lease is taken to look.
    pub(super) fn live_ranges(&self, pack: PackNo) -> Result<Uses, Error> {
        let (mut users, mut ranges) = (Vec::new(), Vec::new());
        let mut from = (Ino(0), 0);
        loop {
            let batch = self.names.pack_users(pack, from, USERS)?;
            let keys: Vec<Key> = batch.iter().map(|(ino, page)| Key::extents(*ino, *page)).collect();
            for row in self.parts.store.peek(&keys)?.into_iter().flatten() {
                let damaged =
                    |_| StoreError::Damaged(format!("the extents of a page in {pack:?} are damaged"));
                let page = ExtentPage::decode(&row).map_err(damaged)?;
                let mine = page.extents().iter().filter(|extent| extent.pack == pack);
                ranges.extend(mine.map(|Extent { offset, len, .. }| (*offset, *len)));
            }
            users.extend_from_slice(&batch);
            match batch.last() {
                Some((ino, u32::MAX)) if batch.len() == USERS => from = (Ino(ino.0 + 1), 0),
                Some((ino, page)) if batch.len() == USERS => from = (*ino, page + 1),
                _ => return Ok((users, ranges)),
            }
        }
    }

    fn copy_range_of_pack(&self, moved: &mut Moved, offset: u32, len: u32) -> Result<(), Error> {
        let mut bytes = vec![0; len as usize];
        moved.until.scope(|| self.read_pack(moved.from, offset, &mut bytes))?;
        let (slot, crc) = self.store_range(Writer::Mover, &bytes)?;
        self.counters.moved_bytes.add(u64::from(len));
        moved.moves.push(Move {
            from: moved.from,
            from_offset: offset,
            len,
            to: slot.pack(),
            to_offset: slot.offset,
            crc: Some(crc),
        });
        moved.slots.push(slot);
        Ok(())
    }
}

/// Pages of files that refer to a pack, and the ranges (offset, length) of it that they refer to.
pub(super) type Uses = (Vec<(Ino, u32)>, Vec<(u32, u32)>);

/// Copied ranges, kept until all that refers to them is updated.
struct Moved {
    from: PackNo,
    /// How long reads may take.
    until: Deadline,
    slots: Vec<Slot>,
    moves: Vec<Move>,
}

impl Moved {
    fn of(from: PackNo) -> Moved {
        Moved { from, until: Deadline::after(READS), slots: Vec::new(), moves: Vec::new() }
    }
}

/// Whether the error says nothing of the bytes: the origin does not answer, or not to this node.
pub(super) fn is_no_answer(error: &BlobError) -> bool {
    matches!(error, BlobError::Unavailable(_) | BlobError::Refused(_))
}

/// Sorts ranges (offset, length) and joins those that touch or overlap.
pub(super) fn merge_ranges(ranges: &mut Vec<(u32, u32)>) {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = next.0 <= last.0 + last.1;
        if joins {
            last.1 = last.1.max(next.0 + next.1 - last.0);
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::merge_ranges;

    #[test]
    fn ranges_that_touch_become_one() {
        let mut ranges = vec![(10, 5), (0, 4), (4, 2), (12, 10), (30, 1), (10, 1)];
        merge_ranges(&mut ranges);
        assert_eq!(ranges, [(0, 6), (10, 12), (30, 1)]);
    }
}
