//! What an open for writing may do, as a function of what the folder remembers and what the origin holds. No
//! I/O.
//!
//! | the origin's newest claim | the folder | answer |
//! |---|---|---|
//! | none | has made none | the first claim |
//! | none | has made some | refused: the origin has lost its claims |
//! | of another volume | | refused, always |
//! | the folder's own | is where it was | the next claim |
//! | the folder's own | is another instance: a copy, or moved to another disk | refused, unless the origin was copied with it |
//! | another | has made none | refused: another folder writes there |
//! | another, later | has made some | refused: another folder has written since, or this one is older than it was |
//! | another, not later | has made some | refused: the origin is older than the folder |
//! | the volume became a shared one | made that claim, and is where it was | the next claim: its names are here all the same |
//! | the volume became a shared one | any other | refused, always |
//! | a database holds the names | | refused, always |
//!
//! An explicit take-over allows what is refused here, except in another volume's origin and in that of a
//! shared volume.

use std::fmt;

use super::memory::{Made, Memory, same_instance};
use blob::claim::{Claim, Kind};

/// What is known when a volume is opened.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The volume's id.
    pub volume: [u8; 16],
    /// What the folder remembers.
    pub memory: Option<&'a Memory>,
    /// What distinguishes the folder from a copy.
    pub instance: &'a str,
    /// The origin is inside the folder.
    pub private: bool,
    /// The newest claim.
    pub newest: Option<&'a Claim>,
}

/// What the caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To open the volume.
    Open,
    /// To claim the origin for this folder, even if another folder has it.
    TakeOver,
    /// To claim it for a folder that was just restored.
    Restore,
}

/// Why this folder may not write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The origin is claimed for another volume.
    OtherVolume(Box<Claim>),
    /// The folder is a copy of the one that made the newest claim, or was moved to another disk.
    Copy(Box<Claim>),
    /// Another folder has claimed the origin since, or this folder was put back from a backup.
    Superseded(Box<Claim>),
    /// The volume became a shared one: its names are in a database.
    Promoted(Box<Claim>),
    /// The folder remembers a later claim than the origin holds: the origin was put back from a backup, or is
    /// another one.
    OriginOlder(Option<Box<Claim>>),
    /// The newest claim's record is damaged.
    Damaged(u64),
    /// A newer program wrote it.
    Newer(u64),
}

/// The kind of claim to make, or why none may be made.
///
/// # Errors
/// See [`Refusal`].
pub fn decide(seen: &Seen<'_>, wish: Wish) -> Result<Kind, Refusal> {
    if let Some(newest) = seen.newest.filter(|newest| newest.volume != seen.volume) {
        return Err(Refusal::OtherVolume(Box::new(newest.clone())));
    }
    match wish {
        Wish::Open | Wish::TakeOver if is_elsewhere(seen) => Err(seen
            .newest
            .map_or(Refusal::OriginOlder(None), |newest| Refusal::Promoted(Box::new(newest.clone())))),
        Wish::Open => may_open(seen).map(|()| Kind::Open),
        Wish::TakeOver => Ok(Kind::TakeOver),
        Wish::Restore => Ok(Kind::Restore),
    }
}

/// Whether the names are in a database. The folder that made the claim is asked to write only if they are
/// not: the promotion ended between the claim and its next and last step.
fn is_elsewhere(seen: &Seen<'_>) -> bool {
    let is_shared = |newest: &&Claim| matches!(newest.kind, Kind::Promoted | Kind::Database);
    let Some(newest) = seen.newest.filter(is_shared) else { return false };
    let found = Made { epoch: newest.epoch, token: newest.token };
    let own = |memory: &Memory| memory.knows(found) && same_instance(&memory.instance, seen.instance);
    !seen.memory.is_some_and(own)
}

fn may_open(seen: &Seen<'_>) -> Result<(), Refusal> {
    let current = seen.memory.and_then(|memory| memory.current);
    let Some(newest) = seen.newest else {
        return if current.is_none() { Ok(()) } else { Err(Refusal::OriginOlder(None)) };
    };
    let found = Made { epoch: newest.epoch, token: newest.token };
    let Some(memory) = seen.memory else { return Err(Refusal::Superseded(Box::new(newest.clone()))) };
    if memory.knows(found) {
        let same = same_instance(&memory.instance, seen.instance) || seen.private;
        return if same { Ok(()) } else { Err(Refusal::Copy(Box::new(newest.clone()))) };
    }
    match current {
        Some(current) if current.epoch >= newest.epoch => {
            Err(Refusal::OriginOlder(Some(Box::new(newest.clone()))))
        }
        _ => Err(Refusal::Superseded(Box::new(newest.clone()))),
    }
}

/// Whether the folder's rows must hold the published trees before anything is deleted: the rows may be older
/// than what is published.
pub fn must_hold(seen: &Seen<'_>, kind: Kind) -> bool {
    let first = seen.memory.is_none_or(|memory| memory.current.is_none() && memory.next.is_empty());
    kind != Kind::Open || first || seen.memory.is_some_and(|memory| memory.hold)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherVolume(claim) => write!(f, "the origin is another volume's (of {})", claim.place),
            Refusal::Copy(claim) => write!(
                f,
                "this folder is a copy of the one that writes to the origin ({}), or was moved to another disk",
                claim.place
            ),
            Refusal::Superseded(claim) => {
                let (place, did, epoch) = (&claim.place, claim.kind.did(), claim.epoch);
                write!(
                    f,
                    "the origin was taken over since this folder last wrote to it: {place} {did} (claim {epoch}); or this folder was put back from a backup"
                )
            }
            Refusal::Promoted(claim) => {
                let (place, epoch) = (&claim.place, claim.epoch);
                write!(
                    f,
                    "the volume became a shared one at {place} (claim {epoch}), and this folder is an older copy"
                )
            }
            Refusal::OriginOlder(None) => f.write_str(
                "the origin has lost its claims: it was emptied, or it is another place than it was",
            ),
            Refusal::OriginOlder(Some(claim)) => write!(
                f,
                "the origin is older than this folder: its last claim is {} of {}; it was put back from a backup, or it is another place than it was",
                claim.epoch, claim.place
            ),
            Refusal::Damaged(epoch) => write!(f, "the record of the origin's claim {epoch} is damaged"),
            Refusal::Newer(epoch) => write!(f, "the origin's claim {epoch} was written by a newer covey"),
        }
    }
}
