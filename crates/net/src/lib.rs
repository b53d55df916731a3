//! What nodes say to each other, and the connections over which they say it.
//!
//! ```text
//!   a node wants a blob                                           another node has it
//!
//!   fleet ──► transport: requests ──frames over TCP, maybe TLS──► transport: sends files with sendfile
//!                 │                                                         │
//!                 └──► fetch: verified as it arrives                        └──► seam: the blobs here
//! ```
//!
//! - [`id`]: the id of a node, and what is known about a node.
//! - [`message`]: what nodes tell each other about blobs, and what it means.
//! - [`secret`]: what a node must know to belong to the fleet.
//! - [`tls`]: which certificates are accepted when connections are encrypted.
//! - [`frame`] and [`hello`]: what is sent on a connection, and how a connection begins.
//! - [`transport`]: connections, requests, serving.
//! - [`seam`]: the interface through which this crate gets the blobs that a node can send.
//!
//! A blob that is being received is verified as it arrives, and passed on at once: [`fetch::arriving`].
//!
//! This crate decides nothing. Crate `fleet` decides which nodes exist, which of them is asked, and what a
//! node answers. It calls this crate and implements [`transport::Service`].

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod frame;
pub mod hello;
pub mod id;
pub mod message;
pub mod seam;
pub mod tls;
pub mod transport;

pub use base::secret;
