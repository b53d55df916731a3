//! Finds packs of a shared volume that nothing refers to, and condemns them.
//!
//! The node whose commit removed references looks at their packs soon after. What is missed that way, because
//! a node was killed, is found by a search: each node goes through its own packs again and again, and the
//! node with the lowest number through those of nodes that are gone.

use std::time::Duration;

use base::{PackNo, time};
use meta::plan::{Op, Refusal};
use meta::record::decode_i64;
use meta::store::StoreError;
use meta::{Key, PackRow};

use crate::errno::Error;
use crate::shared::{NODE_MAX, SessionId, Sharing, owner, pack_of};
use crate::volume::Core;

/// Packs looked at together.
const BATCH: usize = 256;
/// Packs that the search looks at in a round.
const SEARCHED: usize = 1024;
/// The search pauses this long after it has seen all packs.
const PAUSE: Duration = Duration::from_secs(600);

impl Core {
    /// Condemns the packs among those that lost bytes that have none left.
    pub(super) fn condemn_touched(&self) -> Result<(), Error> {
        loop {
            let packs: Vec<PackNo> = {
                let mut state = self.deletions.state.lock();
                let packs: Vec<PackNo> = state.touched.iter().copied().take(BATCH).collect();
                packs.iter().for_each(|pack| _ = state.touched.remove(pack));
                packs
            };
            if packs.is_empty() || self.stopping() {
                return Ok(());
            }
            if let Err(error) = self.condemn_dead(&packs) {
                self.deletions.touch(packs);
                return Err(error);
            }
        }
    }

    /// Condemns those of these packs that have no live bytes, and notes those with few.
    fn condemn_dead(&self, packs: &[PackNo]) -> Result<(), Error> {
        let lives = packs.iter().map(|pack| Key::pack_live(*pack));
        let keys: Vec<Key> = lives.chain(packs.iter().map(|pack| Key::pack(*pack))).collect();
        let values = self.parts.store.get_many(&keys)?;
        let (lives, rows) = values.split_at(packs.len().min(values.len()));
        for ((pack, live), row) in packs.iter().zip(lives).zip(rows) {
            let row = row.as_deref().and_then(|row| PackRow::decode(row).ok());
            match (decode_i64(live.as_deref()), row) {
                (Ok(0), _) => self.condemn(*pack)?,
                (Ok(live), Some(row)) => {
                    self.deletions.compaction.note(*pack, &row, live.max(0).unsigned_abs());
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Condemns a pack whose bytes the database does not count, if it is a blob.
    pub(super) fn condemn(&self, pack: PackNo) -> Result<(), Error> {
        let row = self.pack_row(pack)?;
        let is_damaged = self.packs.is_damaged(pack);
        if is_damaged && row == Some(PackRow::Open) {
            self.forget_open(pack)?;
            self.packs.forget_damage(pack);
            return Ok(());
        }
        if matches!(row, Some(PackRow::Sealed { .. })) && !self.deletions.compaction.is_target(pack) {
            match self.run(&Op::CondemnShared { pack }) {
                // Something refers to it since it was looked at, or another node was first.
                Ok(_) | Err(Error::Refused(Refusal::Busy | Refusal::NotFound)) => {}
                Err(error) => return Err(error),
            }
        }
        if is_damaged && !matches!(self.pack_row(pack)?, Some(PackRow::Open | PackRow::Sealed { .. })) {
            self.packs.forget_damage(pack);
            self.drop_file(pack);
        }
        Ok(())
    }

    /// Looks at some more packs.
    pub(super) fn search_dead(&self, sharing: &Sharing, alive: &[SessionId]) -> Result<(), Error> {
        let now = time::monotonic();
        let mut from = {
            let state = self.deletions.state.lock();
            if state.search.pause.is_some_and(|pause| now < pause) {
                return Ok(());
            }
            state.search.from.unwrap_or(PackNo(0))
        };
        let is_first = alive.iter().map(|session| session.node).min() == Some(sharing.node);
        let is_mine =
            |node: u32| node == sharing.node || is_first && !alive.iter().any(|session| session.node == node);
        let mut left = SEARCHED;
        while left > 0 && !self.stopping() {
            let rows = self.names.packs(from, BATCH)?;
            let Some((last, _)) = rows.last() else {
                let mut state = self.deletions.state.lock();
                (state.search.from, state.search.pause) = (None, Some(now + PAUSE));
                return Ok(());
            };
            left = left.saturating_sub(rows.len());
            from = PackNo(last.0.saturating_add(1));
            let sealed = |row: &PackRow| matches!(row, PackRow::Sealed { .. });
            let packs = rows.iter().filter(|(pack, row)| sealed(row) && is_mine(owner(*pack)));
            self.condemn_dead(&packs.map(|(pack, _)| *pack).collect::<Vec<_>>())?;
            from = from.max(behind_others(from, &is_mine));
            self.deletions.state.lock().search.from = Some(from);
        }
        Ok(())
    }

    /// Every pack that is a blob or was one, with the bytes that the database counts of it.
    pub(super) fn each_blob_pack(
        &self,
        each: &mut dyn FnMut(PackNo, PackRow, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut from = PackNo(0);
        loop {
            let mut rows = self.names.packs(from, BATCH)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            from = PackNo(last.0.saturating_add(1));
            rows.retain(|(_, row)| *row != PackRow::Open);
            let keys: Vec<Key> = rows.iter().map(|(pack, _)| Key::pack_live(*pack)).collect();
            let lives = self.parts.store.get_many(&keys)?;
            for ((pack, row), live) in rows.into_iter().zip(lives) {
                let live = decode_i64(live.as_deref());
                let live = live.map_err(|error| StoreError::Damaged(error.to_string()))?;
                each(pack, row, live.max(0).unsigned_abs())?;
            }
            if self.stopping() {
                return Ok(());
            }
        }
    }
}

/// The first pack from `from` on that the search of this node is about.
fn behind_others(from: PackNo, is_mine: &dyn Fn(u32) -> bool) -> PackNo {
    let node = owner(from);
    if is_mine(node) || node >= NODE_MAX {
        return from;
    }
    pack_of(node + 1, 0).unwrap_or(from)
}
