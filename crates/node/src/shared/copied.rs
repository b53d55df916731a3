//! A node's folder that was copied to another disk: what the original had and nobody else.
//!
//! A copy has another id, and so it is another node with another number: two folders with one number would
//! give the same names to different bytes. Its open packs belong to the original. So they become copies of
//! another node's packs, as if the original had sent them to this node before ([`KeptPacks`]). All nodes read
//! them here while the original does not answer, and this node uploads what files refer to when the
//! original's session has ended. A copy that is older than the original does no harm: packs only grow, and
//! what it lacks it does not answer.

use std::sync::Arc;

use ::fs::shared::owner;
use api::error::{Context, Failure, Result};
use api::text::bytes as readable;
use base::PackNo;
use blob::{BlobError, PackStore};
use cache::{DiskPacks, KeptPacks};
use meta::engine::database::Database;
use meta::lease::Left;

use super::{resuming, setup_failure};
use crate::log;
use crate::volume_dir::VolumeDir;

/// How much is copied at a time.
const STEP: u32 = 1 << 20;
/// The smallest part that is tried where a part cannot be read.
const PART: u32 = 4096;

/// Takes the packs of other nodes, which are here because the folder is a copy, for copies of them.
pub(super) fn take_packs(dir: &VolumeDir, number: u32) -> Result<()> {
    let failed = |error: BlobError| {
        let what = format!(
            "the packs in {} cannot be kept for the node that wrote them",
            dir.open_packs().display()
        );
        Failure::new("not-kept", what)
            .why(error.to_string())
            .next("this folder is a copy of that node's; nothing of it was removed")
            .next("see to the cause, such as a full disk, and mount it again; or mount with another --cache DIR")
    };
    // Nothing is sealed here, so no origin is needed.
    let packs = DiskPacks::open(&dir.open_packs(), Arc::new(origin::Memory::new()));
    let packs = packs.at("read", &dir.open_packs())?;
    let mut foreign = packs.open_packs().map_err(failed)?;
    foreign.retain(|(pack, _)| owner(*pack) != number && owner(*pack) != 0);
    let Some((first, _)) = foreign.first() else { return Ok(()) };
    let kept = KeptPacks::open(&dir.kept(), u64::MAX, 0).at("open", &dir.kept())?;
    let (mut taken, mut unread) = (0, 0);
    for (pack, len) in &foreign {
        let len = u32::try_from(*len).unwrap_or(u32::MAX);
        let missing = copy(&packs, &kept, *pack, len).map_err(failed)?;
        taken += u64::from(len - missing);
        unread += u64::from(missing);
        if missing == 0 {
            packs.discard(*pack).map_err(failed)?;
        }
    }
    log::warn(&format!(
        "this folder is a copy of the folder of node {}: {} of its packs are kept here for it, and uploaded when its session has ended",
        owner(*first),
        readable(taken)
    ));
    if unread > 0 {
        log::warn(&format!(
            "{} of them cannot be read, and stay where they are: the copy is damaged",
            readable(unread)
        ));
    }
    Ok(())
}

/// Copies a pack. Returns how many of its bytes cannot be read.
fn copy(packs: &DiskPacks, kept: &KeptPacks, pack: PackNo, len: u32) -> std::result::Result<u32, BlobError> {
    let mut missing = 0;
    let mut buf = vec![0; STEP as usize];
    let mut at = 0;
    let mut step = STEP;
    while at < len {
        let count = step.min(len - at);
        let part = &mut buf[..count as usize];
        match packs.read(pack, at, part) {
            Ok(()) => {
                kept.write(pack, at, part)?;
                at += count;
                step = STEP;
            }
            Err(_) if count > PART => step = PART,
            Err(_) => {
                missing += count;
                at += count;
            }
        }
    }
    match missing == len {
        true => Ok(missing),
        false => kept.sync(pack).map(|()| missing),
    }
}

/// Says what changes the original had acknowledged, and had perhaps not stored, when the folder was copied.
/// Only the original's own session can store them.
pub(super) fn say_left(dir: &VolumeDir, names: &dyn Database) -> Result<()> {
    let folder = resuming::place(dir);
    let left = Left::read_any(&folder);
    if left.is_empty() {
        return Ok(());
    }
    let done = left.refuse(names).map_err(|error| setup_failure(error.into()))?;
    if let Some(line) = done.line() {
        let path = done.keep(&folder).at("write to", &folder)?;
        let file = path.map(|path| format!("; they are listed in {}", path.display()));
        log::warn(&format!("this folder is a copy: {line}{}", file.unwrap_or_default()));
    }
    Ok(())
}
