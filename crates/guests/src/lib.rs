//! Serves a filesystem to guests: machines whose kernels mount it over a byte stream.
//!
//! Crate `stream` has the wire and the guest's side. Here is the server's side:
//!
//! - [`server`]: listening, greeting, and the threads. Start at [`server::Server::start`].
//! - [`guest`]: a guest's session. It outlives connections, and keeps what may have to be said again.
//! - [`outbox`]: what goes to a guest, without waiting for it.
//! - [`counted`]: what a guest holds and may do. [`locks`]: what it has locked.
//!
//! Requests are decoded, executed and answered by crate `fuse`, as if they had come from `/dev/fuse`.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod counted;
pub mod guest;
pub mod locks;
pub mod outbox;
pub mod server;
#[cfg(test)]
mod testing;
