//! The fleet: when a node misses its page cache and its disk, it gets the blob from another node.
//!
//! ```text
//!                     a node wants a blob                         another node has it
//!
//!   the node's cache ──► node: does what the plan says ───────► net: sends files with sendfile
//!                          │            │                              ▲
//!                          │            └── tracker: SERVE GO LEASE WAIT (a state machine, no I/O)
//!                          ▼
//!                 members: which nodes exist (SWIM)    placement: which node tracks a group
//! ```
//!
//! - [`directory`]: which blobs a node has, answered by datagram.
//! - [`members`]: which nodes are in the fleet.
//! - [`placement`]: which nodes track a group, and which depots keep a blob.
//! - [`tracker`]: answers which nodes have a blob and which node should fetch it.
//! - [`plan`]: the requester's side: which tracker to ask, where to fetch, when to hedge.
//! - [`node`]: a node of a fleet, as the origin beneath its cache.
//!
//! The messages and connections are those of crate [`net`]. The state machines read no clock and no random
//! numbers. The caller passes the time and a seed, so that the simulation runs the same code.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod directory;
pub mod members;
pub mod node;
pub mod placement;
pub mod plan;
pub mod tracker;
