//! FUSE over a byte stream: a guest mounts what a server on another kernel serves.
//!
//! ```text
//!   guest                                                    host
//!   kernel ─► /dev/fuse ─► attach ──frames over a socket──► crate guests ─► fuse's dispatcher ─► Filesystem
//! ```
//!
//! - [`frame`], [`hello`]: the wire, without I/O. [`request`]: what the relay knows of FUSE messages.
//! - [`slots`]: the server's table of requests, which makes each happen at most once.
//! - [`address`], [`socket`]: unix, TCP and vsock sockets.
//! - [`attach`]: the guest's side. The program `covey-attach` is this and nothing else, so it is small and
//!   needs no library on the guest. `covey attach` is the same code.
//!
//! The server's side is crate `guests`. This crate knows no filesystem, so the guest's program does not
//! either.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod address;
pub mod attach;
pub mod frame;
pub mod hello;
pub mod request;
pub mod slots;
pub mod socket;
pub mod times;
