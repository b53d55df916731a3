//! The fleet: a node that misses its page cache and its disk asks the worker next door.
//!
//! ```text
//!                     who wants a blob                                   who has it
//!
//!   the node's cache ──► fleet: asks as the plan says ──────────► net: serves files as they are
//!                          │            │                              ▲
//!                          │            └── tracker: SERVE GO LEASE WAIT (a state machine, no I/O)
//!                          ▼
//!                 members: who is there (SWIM)        placement: which node tracks a group
//! ```
//!
//! - [`id`]: what a node is called and what is known of it.
//! - [`members`]: who is there.
//! - [`message`]: what nodes say to one another about blobs, and what that means.
//! - [`placement`]: which nodes track a group, and which depots keep a blob.
//! - [`tracker`]: answers who has a blob and who shall fetch it.
//! - [`plan`]: the asker's side: whom to ask, where to fetch, when to try elsewhere.
//! - [`dice`]: chance from a seed.
//! - [`secret`]: what a node must know to belong to the fleet.
//! - [`tls`]: whose certificates are taken, where connections are encrypted.
//! - [`net`]: the transport: connections, requests, serving; [`frame`], [`hello`]: what goes over them, and how they begin.
//! - [`fleet`]: a node of a fleet, as the origin beneath its cache.
//! - [`arriving`]: a blob that is being received, checked as it comes and passed on at once.
//! - [`seam`]: what this crate is handed: the blobs that a node can give away.
//!
//! Nothing here decides on its own clock or chance what goes where: the state machines are told the time and take a seed, so that the
//! simulation runs the same lines.

pub mod arriving;
pub mod dice;
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
