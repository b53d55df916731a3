//! The packs of a publication: every pack that the snapshot refers to becomes a blob in the origin.
//!
//! | pack | its bytes come from |
//! |---|---|
//! | sealed and uploaded, by any node | the origin, which has them |
//! | of this node | this node's uploads, which a publication waits for |
//! | of another node: sealed, not uploaded | that node |
//! | of another node: open | that node; what the snapshot refers to is copied into a blob |
//!
//! An open pack only grows, and each of its bytes is written once. So the copy of an open pack holds what the
//! snapshot needs at the same offsets. The tree has the copy under the pack's number. The volume itself goes
//! on to use the pack.

use std::time::{Duration, Instant};

use ::fs::shared::{FromOwner, Others, owner};
use ::fs::volume::Volume;
use base::PackNo;
use blob::sums::Sums;
use blob::{BlobError, ExtentPage};
use meta::engine::moment::Moment;
use meta::key::tags;
use meta::record::{HeldRow, decode_i64};
use meta::store::{Snapshot, StoreError};
use meta::{Key, MetaStore, PackRow};
use parking_lot::Mutex;
use tree::TreeError;
use tree::rows::Pack;

use crate::shared::Shared;

/// So many packs are looked for at a time.
const THREADS: usize = 8;
/// How long a pack may change from open to sealed and uploaded.
const SETTLING: Duration = Duration::from_secs(60);
/// The pause between two looks at such a pack.
const LOOK: Duration = Duration::from_millis(50);

/// Why the packs are not in the origin.
pub(super) enum Failed {
    /// A pack was dropped since the snapshot, because all its files were removed. Another snapshot does not
    /// need it.
    Dropped,
    /// Another error.
    Tree(TreeError),
}

impl<E: Into<TreeError>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed::Tree(error.into())
    }
}

type Result<T> = std::result::Result<T, Failed>;

/// Every pack with live bytes, by number, after its blob is in the origin or handed over to it.
pub(super) fn in_origin(volume: &Volume, shared: &Shared, rows: &Moment, tree: &str) -> Result<Vec<Pack>> {
    let packs = Packs { volume, others: &*shared.others(), number: shared.number(), rows, tree };
    let live = packs.live()?;
    let found = Mutex::new(Vec::with_capacity(live.len()));
    base::thread::for_each("covey-publish", THREADS, &live, |(no, live)| {
        let (blob, size) = packs.blob(*no)?;
        found.lock().push(Pack { no: *no, blob, size, live: *live });
        Ok::<(), Failed>(())
    })?;
    let mut found = found.into_inner();
    found.sort_unstable_by_key(|pack| pack.no);
    Ok(found)
}

struct Packs<'a> {
    volume: &'a Volume,
    others: &'a dyn Others,
    /// The number of this node.
    number: u32,
    rows: &'a Moment,
    tree: &'a str,
}

impl Packs<'_> {
    fn live(&self) -> Result<Vec<(PackNo, u64)>> {
        let mut live = Vec::new();
        let mut failed = None;
        self.rows.each(&Key::kind(tags::PACK_LIVE), &mut |key, row| {
            let key = Key::from_bytes(key);
            match (key.number(), decode_i64(Some(row))) {
                (Some(no), Ok(bytes)) if bytes > 0 => live.push((PackNo(no), bytes.unsigned_abs())),
                (Some(_), Ok(_)) => {}
                _ => failed = Some(damaged(format!("the row {key:?} is damaged"))),
            }
            failed.is_none()
        })?;
        failed.map_or(Ok(live), |error: TreeError| Err(error.into()))
    }

    /// The blob of a pack and its size.
    fn blob(&self, no: PackNo) -> Result<(base::BlobId, u32)> {
        let until = base::time::monotonic() + SETTLING;
        loop {
            // As it is now: it may have been sealed since the snapshot.
            let row = self.volume.parts().store.get(&Key::pack(no))?;
            let row = row.ok_or(Failed::Dropped)?;
            let row = PackRow::decode(&row).map_err(|error| damaged(error.to_string()))?;
            let is_own = owner(no) == self.number;
            match row {
                PackRow::Sealed { blob, size } | PackRow::Condemned { blob, size } => {
                    if is_own || self.has(&blob)? || self.copy_sealed(no, &blob, size)? {
                        return Ok((blob, size));
                    }
                }
                PackRow::Open if is_own => wait(until, &format!("{no} did not become a blob"))?,
                PackRow::Open => {
                    if let Some(copied) = self.copy_open(no)? {
                        return Ok(copied);
                    }
                }
            }
            wait(until, &format!("{no} of the node {} was not uploaded", owner(no)))?;
        }
    }

    /// Whether the origin has a blob.
    fn has(&self, blob: &base::BlobId) -> Result<bool> {
        let held = MetaStore::get(&*self.volume.parts().store, &Key::held(blob, self.tree))?;
        // The tree that is published under the name already needs it.
        if held.is_some_and(|row| matches!(HeldRow::decode(&row), Ok(HeldRow::Held))) {
            return Ok(true);
        }
        Ok(self.volume.parts().origin.size(blob)?.is_some())
    }

    /// Copies a sealed pack from its node to the origin. False: the node has uploaded it in the meantime.
    fn copy_sealed(&self, no: PackNo, blob: &base::BlobId, size: u32) -> Result<bool> {
        let mut bytes = vec![0; size as usize];
        match self.others.read(no, 0, &mut bytes) {
            Ok(FromOwner::Bytes) => {}
            Ok(FromOwner::InOrigin | FromOwner::Gone) => return Ok(false),
            // It may have uploaded it just before it ended.
            Err(error) => return if self.has(blob)? { Ok(true) } else { Err(error.into()) },
        }
        let sums = Sums::of(&bytes);
        if !sums.belong_to(blob) {
            let what = format!("the node {} sent other bytes for the pack {no}", owner(no));
            return Err(BlobError::Damaged { id: *blob, what }.into());
        }
        self.volume.parts().origin.put(blob, &sums, &bytes)?;
        Ok(true)
    }

    /// Copies what the snapshot needs of an open pack. None: it was sealed in the meantime.
    fn copy_open(&self, no: PackNo) -> Result<Option<(base::BlobId, u32)>> {
        let ranges = self.ranges(no)?;
        let end = ranges.iter().map(|(offset, len)| offset + len).max().unwrap_or(0);
        let mut bytes = vec![0; end as usize];
        for (offset, len) in ranges {
            let Some(buf) = bytes.get_mut(offset as usize..(offset + len) as usize) else { continue };
            match self.others.read(no, offset, buf)? {
                FromOwner::Bytes => {}
                FromOwner::InOrigin | FromOwner::Gone => return Ok(None),
            }
        }
        let sums = Sums::of(&bytes);
        let blob = sums.id();
        // Held before it is stored, as every blob of a tree.
        let held = self.volume.hold(self.tree, &mut std::iter::once(blob));
        held.map_err(crate::publish::tree_error)?;
        self.volume.parts().origin.put(&blob, &sums, &bytes)?;
        Ok(Some((blob, end)))
    }

    /// The ranges of a pack that the snapshot refers to, without overlaps: offset and length.
    fn ranges(&self, no: PackNo) -> Result<Vec<(u32, u32)>> {
        let mut users = Vec::new();
        self.rows.each(&Key::pack_users(no), &mut |key, _| {
            users.extend(Key::from_bytes(key).as_pack_user());
            true
        })?;
        let mut ranges = Vec::new();
        for (_, ino, page) in users {
            let row = MetaStore::get(self.rows, &Key::extents(ino, page))?;
            let page = row.map(|row| ExtentPage::decode(&row)).transpose();
            let page = page.map_err(|_| damaged(format!("a page of the inode {ino} is damaged")))?;
            let extents = page.iter().flat_map(|page| page.extents());
            ranges
                .extend(extents.filter(|extent| extent.pack == no).map(|extent| (extent.offset, extent.len)));
        }
        Ok(merged(ranges))
    }
}

fn merged(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut out: Vec<(u32, u32)> = Vec::new();
    for (offset, len) in ranges {
        match out.last_mut() {
            Some((start, so_far)) if offset <= *start + *so_far => {
                *so_far = (*so_far).max(offset + len - *start)
            }
            _ => out.push((offset, len)),
        }
    }
    out
}

fn damaged(what: String) -> TreeError {
    TreeError::Store(StoreError::Damaged(format!("{what}; run `covey fsck`")))
}

fn wait(until: Instant, what: &str) -> Result<()> {
    if base::time::monotonic() >= until {
        return Err(BlobError::Unavailable(format!("{what} in time")).into());
    }
    std::thread::sleep(LOOK);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn ranges_are_merged() {
        let merged = super::merged;
        assert_eq!(merged(vec![(10, 5), (0, 4), (4, 2), (12, 1), (20, 1)]), [(0, 6), (10, 5), (20, 1)]);
        assert_eq!(merged(Vec::new()), []);
    }
}
