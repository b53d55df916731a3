//! Copies of other nodes' packs on this node: when they are dropped, and what happens to those of a node that
//! is gone.
//!
//! While a pack's owner is there, it says when the origin has the pack. A copy that it does not mention is
//! asked for after a while.
//!
//! When the owner's session has ended, its pack is not named anew: nobody could say how long it is, and the
//! owner may come back and write more to it. Instead, the bytes of it that are here and that files refer to
//! are written to a pack of this node, and the files refer to that one from then on, as after a compaction.
//! This node uploads it like any other. Each file is changed by a commit of its own, under a lease like every
//! change, and only if it still refers to the bytes. So nothing is lost when several nodes do this, or when
//! the owner comes back meanwhile. What the owner did not sync stays where it is.
//!
//! A copy is dropped when nothing refers to any byte of it, at one moment. While a node may refer to a byte,
//! also in changes that are not stored, the database has a row that does (see the [module above](super)),
//! because an owner that is gone names no new bytes. If it comes back in between and sends more, the copy has
//! another version and stays.

use std::time::{Duration, Instant};

use base::size::MIB;
use base::{Deadline, PackNo, time};
use blob::{ExtentPage, Kept, KeptPack};
use hashbrown::HashMap;
use meta::plan::Op;
use meta::plan::op::Move;
use meta::store::StoreError;
use meta::{Key, PackRow};
use parking_lot::Mutex;

use super::delete::Present;
use crate::errno::Error;
use crate::gc::compact::merge_ranges;
use crate::packs::{Slot, Writer};
use crate::shared::{FromOwner, Sharing, owner};
use crate::volume::Core;

/// All copies are looked at so many times while a session lasts.
const LOOKS: u32 = 3;
/// An owner is asked about a copy after this long, and again each time.
const ASK: Duration = Duration::from_secs(60);
/// How long the origin may take to say whether it has a blob.
const ORIGIN: Duration = Duration::from_secs(5);
/// How long one round takes over packs. The others follow in the next one.
const ROUND: Duration = Duration::from_secs(3);
/// Copies that owners are asked about in one round.
const ASKED: usize = 64;

/// When copies were looked at.
#[derive(Default)]
pub(crate) struct KeptState(Mutex<Looked>);

#[derive(Default)]
struct Looked {
    next: Option<Instant>,
    /// When each copy was seen first, or when its owner was last asked about it.
    asked: HashMap<PackNo, Instant>,
}

impl Core {
    /// Looks at all copies, if that is due.
    pub(super) fn look_at_kept(&self, sharing: &Sharing, present: &Present) -> Result<(), Error> {
        let Some(kept) = sharing.kept.as_deref() else { return Ok(()) };
        let now = time::monotonic();
        let copies = kept.list();
        {
            let mut looked = self.deletions.kept.0.lock();
            if looked.next.is_some_and(|next| now < next) {
                return Ok(());
            }
            looked.next = Some(now + sharing.lease / LOOKS);
            let is_here = |pack: &PackNo| copies.iter().any(|copy| copy.pack == *pack);
            looked.asked.retain(|pack, _| is_here(pack));
        }
        let is_there =
            |copy: &&KeptPack| present.alive.iter().any(|session| session.node == owner(copy.pack));
        let (owned, left): (Vec<&KeptPack>, Vec<&KeptPack>) = copies.iter().partition(is_there);
        let due = |copy: &&&KeptPack| self.is_to_be_asked(copy.pack, now);
        // What fails is tried again in the next round, and the other copies do not wait for it.
        let mut done = Ok(());
        for copy in owned.iter().filter(due).take(ASKED) {
            done = done.and(self.ask_owner(sharing, kept, copy));
        }
        let mut origin_answers = true;
        for copy in left {
            if self.stopping() || time::monotonic().saturating_duration_since(now) > ROUND {
                break;
            }
            done = done.and(self.take_over(kept, copy, &mut origin_answers));
        }
        done
    }

    /// Whether it is time to ask the owner of a copy about it.
    fn is_to_be_asked(&self, pack: PackNo, now: Instant) -> bool {
        let mut looked = self.deletions.kept.0.lock();
        let asked = looked.asked.entry(pack).or_insert(now);
        let is_due = now.saturating_duration_since(*asked) >= ASK;
        if is_due {
            *asked = now;
        }
        is_due
    }

    fn ask_owner(&self, sharing: &Sharing, kept: &dyn Kept, copy: &KeptPack) -> Result<(), Error> {
        match sharing.others.read(copy.pack, 0, &mut [0; 1]) {
            Ok(FromOwner::InOrigin | FromOwner::Gone) => Ok(kept.remove(copy.pack, Some(copy.version))?),
            Ok(FromOwner::Bytes) | Err(_) => Ok(()),
        }
    }

    /// Moves what files refer to in a pack of a node that is gone to a pack of this node.
    fn take_over(&self, kept: &dyn Kept, copy: &KeptPack, origin_answers: &mut bool) -> Result<(), Error> {
        let pack = copy.pack;
        let row = self.pack_row(pack)?;
        if let Some(PackRow::Sealed { blob, .. } | PackRow::Condemned { blob, .. }) = row
            && *origin_answers
        {
            let size = Deadline::after(ORIGIN).scope(|| self.parts.origin.size(&blob));
            *origin_answers = size.is_ok();
            // The row still names the blob after that, so nothing deletes it.
            if self.parts.origin.is_settled(&blob)
                && matches!(size, Ok(Some(_)))
                && self.pack_row(pack)? == row
            {
                return Ok(kept.remove(pack, Some(copy.version))?);
            }
        }
        let (users, mut ranges) = self.live_ranges(pack)?;
        merge_ranges(&mut ranges);
        let both = common(&ranges, &kept.ranges(pack));
        if row.is_none() || both.is_empty() && self.is_unused(kept, pack)? {
            return Ok(kept.remove(pack, Some(copy.version))?);
        }
        let space = self.parts.packs.space()?;
        if space.available < crate::space::floor(space.total) + 4 * MIB {
            return Ok(());
        }
        let (mut moves, mut slots): (Vec<Move>, Vec<Slot>) = (Vec::new(), Vec::new());
        for (from_offset, len) in both {
            let mut bytes = vec![0; len as usize];
            if !matches!(kept.read(pack, from_offset, &mut bytes), Ok(true)) {
                // Damaged here. Another node may have it, or the owner when it comes back.
                continue;
            }
            let (slot, crc) = self.store_range(Writer::Mover, &bytes)?;
            let (to, to_offset) = (slot.pack(), slot.offset);
            moves.push(Move { from: pack, from_offset, len, to, to_offset, crc: Some(crc) });
            slots.push(slot);
        }
        for (ino, page) in users {
            self.run(&Op::Follow { ino, page, moves: &moves })?;
        }
        // Only this node has them now, until they are uploaded.
        self.flush()
    }
}

impl Core {
    /// Whether nothing refers to any byte of the copy, at one moment: a range may be copied from a file that
    /// was not looked at yet to one that was.
    fn is_unused(&self, kept: &dyn Kept, pack: PackNo) -> Result<bool, Error> {
        let snapshot = self.parts.store.snapshot()?;
        let mut users = Vec::new();
        snapshot.each(&Key::pack_users(pack), &mut |key, _| {
            users.push(Key::from_bytes(key).as_pack_user());
            true
        })?;
        let (have, mut live) = (kept.ranges(pack), Vec::new());
        for user in users {
            let damaged = || StoreError::Damaged(format!("a row of the users of {pack:?} is damaged"));
            let (_, ino, page) = user.ok_or_else(damaged)?;
            let Some(row) = snapshot.get(&Key::extents(ino, page))? else { continue };
            let extents = ExtentPage::decode(&row).map_err(|_| damaged())?;
            let mine = extents.extents().iter().filter(|extent| extent.pack == pack);
            live.extend(mine.map(|extent| (extent.offset, extent.len)));
        }
        merge_ranges(&mut live);
        Ok(common(&live, &have).is_empty())
    }
}

/// What is in both lists of ranges (offset, length), which are sorted and do not overlap.
fn common(one: &[(u32, u32)], other: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut both = Vec::new();
    for (a, a_len) in one {
        for (b, b_len) in other {
            let (from, to) = ((*a).max(*b), (a + a_len).min(b + b_len));
            if from < to {
                both.push((from, to - from));
            }
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use super::common;

    #[test]
    fn what_two_lists_have_in_common() {
        let both = common(&[(0, 10), (20, 10), (40, 5)], &[(5, 20), (28, 1), (60, 9)]);
        assert_eq!(both, [(5, 5), (20, 5), (28, 1)]);
        assert!(common(&[(0, 10)], &[(10, 10)]).is_empty());
    }
}
