//! One origin, one writer: which folder may store, delete and publish in an origin, and how that is known.
//!
//! ```text
//!   origin:  records/claims/00000000000000000007    made once, by a conditional write, and never changed
//!   folder:  VOLUME/claim.json                      the token of the last claim that this folder made
//! ```
//!
//! **A claim** is a small numbered record. The claim with the highest number (its *epoch*) holds. Only one
//! writer can make the next number, because a record is created only where none exists. A store needs nothing
//! more than that, and a folder has it too (link(2)). Each claim contains a random *token*, and the folder
//! that made it remembers the token. A folder may make the next claim if the origin's newest claim is the one
//! that it remembers ([`decide`]): then no other folder has written since. So a copy that was opened in
//! between, a volume that was restored elsewhere, and a folder put back from a backup are all detected,
//! whatever their clocks say. A copy that opens *first* is detected by something that no copy has: the
//! kernel's handle of a file in the folder ([`Folder::instance`](memory::Remember::instance)).
//!
//! **Every open for writing, every publication, and an orderly close make a new claim.** While blobs are
//! deleted, a new one is made each [`RENEW`]. So a backup of the folder that is older than any of these is
//! known to be old.
//!
//! **A writer checks its claim** ([`Keeper::check`]): its own record exists and the next number does not. A
//! deletion relies on a check that *began* at most [`HOLDS`] ago, by the clock that also runs during a
//! suspend. No request for a deletion is sent later. So a writer that takes an origin over and then waits
//! [`SETTLE`] knows that the earlier writer sends no more deletions.
//!
//! - [`blob::claim`]: a claim's bytes. [`decide`]: what an open may do, as a pure function. [`memory`]: what
//!   a folder remembers.
//! - [`keeper`]: makes claims and checks them. [`guarded`]: an origin that stores and deletes only while the
//!   claim holds.

pub mod decide;
pub mod guarded;
pub mod keeper;
pub mod memory;
#[cfg(test)]
mod model;
pub mod newest;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use blob::claim::{Claim, Kind, Token};
pub use decide::Refusal;
pub use guarded::Guarded;
pub use keeper::{Keeper, Standing};
pub use memory::{Memory, Remember};
pub use newest::newest;

/// A writer checks its claim this often, even when it is idle.
pub const LOOK: Duration = Duration::from_secs(5);
/// A deletion needs no new check if the last one began at most this long ago.
pub const FRESH: Duration = Duration::from_secs(2);
/// For this long after a check began, deletions that rely on it may be sent. The clock is read before each
/// try.
pub const HOLDS: Duration = Duration::from_secs(10);
/// How long a take-over waits if the earlier writer did not close in order. By then its last request must
/// have been sent, and the store has had some time to act on it.
pub const SETTLE: Duration = Duration::from_secs(15);
/// How often a new claim is made while blobs are deleted, so that older copies of the folder are known to be
/// old.
pub const RENEW: Duration = Duration::from_secs(60);
