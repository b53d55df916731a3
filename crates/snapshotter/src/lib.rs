//! A snapshotter for containerd. A layer that a folder of images has is not fetched and not unpacked.
//!
//! containerd keeps an image as a chain of snapshots, one for each layer, and asks a snapshotter for them
//! over gRPC. Before it fetches a layer, it asks to prepare a snapshot for it, and names the layer by its
//! chain id:
//!
//! ```text
//!   chain id of the lowest layer    its diff id
//!   chain id of a layer above       SHA-256 of "CHAIN-ID-BELOW DIFF-ID"
//! ```
//!
//! If the folder of images has that layer, the answer is "it exists already", and the snapshot is a link to
//! the layer's folder. Otherwise containerd unpacks the layer into a folder of this machine. What it mounts
//! is an overlay of these folders, which it makes itself.
//!
//! ```text
//!   server      the unix socket and the threads
//!   service     gRPC: paths, requests, answers, status codes
//!   proto       its messages
//!   filter      containerd's filters of snapshots
//!   snapshots   what the operations do
//!   store       the folder with the snapshots; mounts: the mounts that they are
//!   record      what is kept of each snapshot
//!   layers      which layer of the folder of images has a chain id
//!   asking      questions to that folder, which may hang
//! ```

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

mod asking;
pub mod filter;
pub mod layers;
mod mounts;
pub mod proto;
pub mod record;
pub mod server;
mod service;
pub mod snapshots;
pub mod store;
