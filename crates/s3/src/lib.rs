//! An S3 endpoint whose buckets are filesystems. It sees a bucket as a [`fs::api::Filesystem`], and as
//! something that hears of changes. Whether that is a mounted volume, a volume without a mount or a published
//! tree is decided above.
pub mod answers;
pub mod attributes;
pub mod bucket;
pub mod errors;
pub mod guard;
pub mod keyring;
pub mod keys;
pub mod list;
pub mod object;
pub mod patience;
pub mod server;
pub mod service;
pub mod showing;
pub mod stage;
pub mod sums;
pub mod copying;
pub mod flow;
pub mod tags;
pub mod uploads;

/// The region of every bucket.
pub const REGION: &str = "us-east-1";

#[cfg(test)]
mod tests;
