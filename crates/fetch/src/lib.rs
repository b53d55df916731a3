//! One table of in-flight fetches: "is somebody fetching this?" is answered once, for everything that wants
//! bytes of a blob: reads, prefetch, other nodes, warming.
//!
//! ```text
//!   join ──► Leader ──► the tier fetches, and fills ──► finish ──► subscriber (the cache keeps a whole blob)
//!     │                        │ bytes arrive            │
//!     └────► Follower ◄────────┴── completed ────────────┘
//! ```
//!
//! The first request for bytes that nobody fetches becomes the **leader**, and gets a value to finish or
//! drop. All others are **followers**. A follower waits on a thread, or registers a [`Waiter`], which is
//! completed once, by whatever delivers its bytes: the loop that receives them, or the end of the fetch.
//!
//! - [`table`]: the table: whole blobs and parts of blobs, in flight and just received.
//! - [`lead`]: what a leader can do: fetch, finish, give up.
//! - [`in_flight`]: one fetch, with its waiters and its outcome.
//! - [`arriving`]: the buffer of a whole blob, verified group by group. Other nodes are served from it while
//!   it arrives.
//! - [`waiter`]: a range and the completion that wants it.
//! - [`budget`]: the memory that fetches may take.
//! - [`tier`]: where a leader gets the bytes: the origin, or a fleet in front of it.
//!
//! Nothing here calls the cache or the fleet: both hold the same table. The cache subscribes to whole blobs,
//! whatever fetched them.
//!
//! Lock order: the table, a fetch, its buffer. Completions and the subscriber are called without a lock.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod arriving;
pub mod budget;
pub mod in_flight;
pub mod lead;
pub mod table;
#[cfg(test)]
mod tests;
pub mod tier;
pub mod waiter;

pub use arriving::{Arriving, Bell, Fault, Verify};
pub use in_flight::{Ended, InFlight, Outcome, same};
pub use lead::{Announcement, Arrivals, Completed, PartLead, Purpose, WholeLead, check};
pub use table::{Join, Subscriber, Table};
pub use tier::{Direct, Tier};
pub use waiter::Waiter;
