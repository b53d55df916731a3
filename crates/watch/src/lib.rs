//! What the kernel sees of a node and the daemon does not, through eBPF programs.
//!
//! The page cache answers most reads of a mount, and the daemon never hears of them. Programs on this machine
//! talk to an object store, and Covey is not in between. Four objects of eBPF programs count such things:
//!
//! - [`mount`]: one mount: its page cache for each file and MiB, its requests, and processes that end without
//!   having synced what they wrote.
//! - [`store`]: requests of S3 clients on one interface, and connections of one cgroup to the store.
//! - [`redirect`]: connections of one cgroup to the store go to this node's S3 gateway instead.
//! - [`driver`]: what other machines ask of this one, in the driver of one interface.
//!
//! Nothing depends on them to be correct. Each attaches only to what it was told to. Nothing is pinned: the
//! programs are gone when the process that attached them ends, however it ends. [`status`] says what can be
//! loaded here, or what is missing.
//!
//! - [`object`]: the compiled objects, and loading one.
//! - [`event`]: what programs write into their ring buffer.
//! - [`counts`]: reading counters and histograms.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod counts;
pub mod driver;
pub mod event;
mod interface;
pub mod mount;
pub mod object;
pub mod redirect;
pub mod status;
pub mod store;

pub use event::Event;
pub use object::{Cost, WatchError};
