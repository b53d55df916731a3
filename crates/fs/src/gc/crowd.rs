//! Rewrites pages of many small extents as one extent.
//!
//! Small writes all over a file cut its pages into pieces. Each piece costs later readers a separate read. It
//! also takes some ten bytes of the page's row, and every write to the page writes the row again. A rewrite
//! costs up to 4 MiB. With `n` extents, a rewrite saves each later write about `5 n` bytes of row and costs
//! it `8 MiB / n`. So below some 1,300 extents it costs the writer more than it saves. Hence:
//!
//! - a page that was not written to for a moment is rewritten in the background, for the benefit of readers;
//! - a page with more than [`FAR_TOO_MANY`] extents is rewritten even if it is still being written to.

use std::time::Duration;

use base::size::BLOB_MAX;
use base::{Deadline, Ino, PackNo};
use blob::Extent;
use meta::plan::Op;
use meta::plan::op::Move;

use super::compact::{READS, is_no_answer};
use crate::errno::Error;
use crate::packs::Writer;
use crate::volume::Core;

/// How long a page must not have been written to.
const QUIET: Duration = Duration::from_secs(2);
/// Pages rewritten in a round: at most 64 MiB per second.
const PER_ROUND: usize = 4;
/// Pages with fewer extents than this are no longer crowded (they were truncated or overwritten).
const FEW: usize = 32;
/// Above this the row itself is the cost. See the module's documentation.
pub(crate) const FAR_TOO_MANY: usize = 1300;

impl Core {
    /// Rewrites some pages that were not written to for a while.
    pub(crate) fn crowd_round(&self) -> Result<(), Error> {
        for (ino, page) in self.garbage.take_crowded(QUIET, PER_ROUND) {
            if self.stopping() || self.sweep.is_put_off() {
                self.garbage.crowd(&[(ino, page)]);
                continue;
            }
            match Deadline::after(READS).scope(|| self.rewrite_page(ino, page)) {
                Err(Error::Blob(error)) if is_no_answer(&error) => {
                    self.garbage.crowd(&[(ino, page)]);
                    self.sweep.put_off();
                }
                // A read of the page reports the error; the page stays as it is.
                Err(Error::Blob(_)) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Called after a write that left a page crowded: rewrites it at once if it is far too crowded.
    pub(crate) fn relieve(&self, crowded: &[(Ino, u32)]) -> Result<(), Error> {
        for (ino, page) in crowded {
            if self.names.extents(*ino, *page)?.extents().len() > FAR_TOO_MANY && self.may_copy() {
                self.rewrite_page(*ino, *page)?;
            }
        }
        Ok(())
    }

    /// Copies a page's bytes into one range of a pack and updates its extents. A concurrent change is kept.
    pub(crate) fn rewrite_page(&self, ino: Ino, page: u32) -> Result<(), Error> {
        let extents = self.names.extents(ino, page)?;
        if extents.extents().len() < FEW {
            return Ok(());
        }
        if refers_twice(extents.extents()) {
            // A copy in one piece would have to store the shared bytes twice.
            return Ok(());
        }
        let pieces = extents.extents();
        let total: u32 = pieces.iter().map(|extent| extent.len).sum();
        let mut bytes = vec![0; total.min(BLOB_MAX) as usize];
        let mut at = 0;
        for extent in pieces {
            let end = at + extent.len as usize;
            self.read_pack(extent.pack, extent.offset, &mut bytes[at..end])?;
            at = end;
        }
        let (slot, _) = self.store_range(Writer::whole_page(ino, page, bytes.len() as u32), &bytes)?;
        self.counters.moved_bytes.add(bytes.len() as u64);
        let mut at = 0;
        let mut moves: Vec<Move> = Vec::with_capacity(pieces.len());
        for extent in pieces {
            let end = at + extent.len as usize;
            moves.push(Move {
                from: extent.pack,
                from_offset: extent.offset,
                len: extent.len,
                to: slot.pack(),
                to_offset: slot.offset + at as u32,
                crc: Some(blob::sums::crc32c(&bytes[at..end])),
            });
            at = end;
        }
        moves.sort_unstable_by_key(|step| (step.from, step.from_offset));
        self.run(&Op::Follow { ino, page, moves: &moves })?;
        Ok(())
    }
}

/// Whether two of the extents refer to the same byte of a pack.
pub(crate) fn refers_twice(extents: &[Extent]) -> bool {
    let mut by_pack: Vec<(PackNo, u32, u32)> = extents.iter().map(|e| (e.pack, e.offset, e.len)).collect();
    by_pack.sort_unstable();
    by_pack.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 + pair[0].2 > pair[1].1)
}
