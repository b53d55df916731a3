//! The fleet: when a node misses its page cache and its disk, it gets the blob from another node.
//!
//! ```text
//!                     a node wants a blob                         another node has it
//!
//!   the node's cache ──► fleet: does what the plan says ──────► net: sends files with sendfile
//!                          │            │                              ▲
//!                          │            └── tracker: SERVE GO LEASE WAIT (a state machine, no I/O)
//!                          ▼
//!                 members: which nodes exist (SWIM)    placement: which node tracks a group
//! ```
//!
//! - [`id`]: the id of a node, and what is known about a node.
//! - [`members`]: which nodes are in the fleet.
//! - [`message`]: what nodes tell each other about blobs, and what it means.
//! - [`placement`]: which nodes track a group, and which depots keep a blob.
//! - [`tracker`]: answers which nodes have a blob and which node should fetch it.
//! - [`plan`]: the requester's side: which tracker to ask, where to fetch, when to hedge.
//! - [`secret`]: what a node must know to belong to the fleet.
//! - [`tls`]: which certificates are accepted when connections are encrypted.
//! - [`net`]: the transport: connections, requests, serving. [`frame`] and [`hello`]: what is sent on a
//!   connection, and how a connection begins.
//! - [`fleet`]: a node of a fleet, as the origin beneath its cache.
//! - [`arriving`]: a blob that is being received. It is verified as it arrives and passed on at once.
//! - [`seam`]: the interface through which this crate gets the blobs that a node can send.
//!
//! The state machines read no clock and no random numbers. The caller passes the time and a seed, so that the
//! simulation runs the same code.

pub mod arriving;
pub mod fleet;
pub mod frame;
pub mod hello;
pub mod id;
pub mod members;
pub mod message;
pub mod net;
pub mod placement;
pub mod plan;
pub mod seam;
pub mod secret;
pub mod tls;
pub mod tracker;
