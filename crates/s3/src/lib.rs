//! An S3 endpoint whose buckets are filesystems. It sees a bucket as a [`fs::api::Filesystem`], and as
//! something that hears of changes. Whether that is a mounted volume, a volume without a mount or a published
//! tree is decided above.
//!
//! ```text
//!   server.rs      connections, TLS, limits          guard.rs     what is refused before s3s
//!   patience.rs    slow clients                      chunks.rs    bodies in chunks
//!   keyring.rs     the file of keys, and rights      reload.rs    the keys in use
//!   service.rs     the operations                    showing.rs   listings of uploads and parts
//!   answers.rs     requests and answers as types     sums.rs      checksums
//!   flow.rs        bytes into files and out of them  bucket.rs    ways through a filesystem
//!   keys.rs        keys as paths                     stage.rs     PUT and DELETE
//!   object.rs      GET and HEAD                      copying.rs   copies
//!   list.rs        listings; sorted.rs: folders      tags.rs      object tags
//!   uploads.rs     uploads in parts                  errors.rs    error numbers as S3 errors
//!   attributes.rs  what an object has beside bytes   foreign.rs   buckets of other stores
//!   hosts.rs       names of this endpoint
//! ```
//!
//! Requests are decoded and signatures verified by `s3s`. Filesystem calls run on a bounded pool of threads.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod answers;
pub mod attributes;
pub mod bucket;
pub mod chunks;
pub mod copying;
pub mod errors;
pub mod flow;
pub mod foreign;
pub mod guard;
pub mod hosts;
pub mod keyring;
pub mod keys;
pub mod list;
pub mod object;
pub mod patience;
pub mod reload;
pub mod server;
pub mod service;
pub mod showing;
pub mod sorted;
pub mod stage;
pub mod sums;
pub mod tags;
pub mod uploads;

/// The region of every bucket.
pub const REGION: &str = "us-east-1";

#[cfg(test)]
mod tests;
