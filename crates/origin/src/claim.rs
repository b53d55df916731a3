//! One origin, one writer: who may store, delete and publish in an origin, and how it is known.
//!
//! ```text
//!   origin:  records/claims/00000000000000000007    made once, by a conditional write, and never changed
//!   folder:  VOLUME/claim.json                      the token of the last claim that this folder made
//! ```
//!
//! **A claim** is a small numbered record. The one with the highest number (its *epoch*) is the claim that holds; the next number can be made by
//! one only, because a record is made only where none is. Nothing more is needed of a store than that, and a folder has it too (link(2)).
//! Each claim bears a random *token*, and the folder that made it remembers the token. A folder may make the next claim if the origin's newest
//! is the one that it remembers ([`decide`]): then nobody else has written since. A copy that opened in between, a volume that was restored
//! elsewhere, or a folder put back from a backup is found by that, whatever its clock says. A copy that opens *first* is found by something
//! that no copy carries: the kernel's handle of a file in the folder ([`Folder::instance`](memory::Remember::instance)).
//!
//! **Every open for writing, every publication, and an orderly end make a new claim**, and while blobs are deleted a new one is made each
//! [`RENEW`]. So a backup of the folder that is older than any of these is known to be old.
//!
//! **A writer checks its claim** ([`Keeper::check`]): its own record is there and the next number is not. A deletion relies on a check that *began* no longer
//! than [`HOLDS`] ago, by the clock that goes on during a suspend, and no request for one is sent later. So a writer that takes an
//! origin over and then waits [`SETTLE`] knows that the earlier writer sends no deletion any more.
//!
//! - [`blob::claim`]: a claim's bytes. [`decide`]: what an open may do, as a function of what was seen. [`memory`]: what a folder remembers.
//! - [`keeper`]: makes claims and looks after them. [`guarded`]: an origin that stores and deletes only while the claim holds.

pub mod decide;
pub mod guarded;
pub mod keeper;
pub mod memory;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use blob::claim::{Claim, Kind, Token};
pub use decide::Refusal;
pub use guarded::Guarded;
pub use keeper::{Keeper, Standing};
pub use memory::{Memory, Remember};

/// A writer checks its claim this often, also when it has nothing to do.
pub const LOOK: Duration = Duration::from_secs(5);
/// A check that began no longer ago than this is good enough for the next deletion.
pub const FRESH: Duration = Duration::from_secs(2);
/// For this long after a check began, deletions that rely on it may be sent. The clock is compared before each try.
pub const HOLDS: Duration = Duration::from_secs(10);
/// A take-over waits this long if the earlier writer did not close in good order: until its last request must have been sent, and a while in
/// which the store may act on it.
pub const SETTLE: Duration = Duration::from_secs(15);
/// While blobs are deleted, a new claim is made this often: so older copies of the folder are known to be old.
pub const RENEW: Duration = Duration::from_secs(60);
