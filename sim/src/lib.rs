//! A seeded world: up to ten thousand nodes in one thread, which read through the fleet's own placement,
//! tracker and plan.
//!
//! What is real: the fleet's placement, tracker and plan, and what a node knows of its link and its sources
//! (`capacity`, `activity`) run the same code as in a node. What is modelled, coarsely, in [`model`]:
//!
//! - Each node has a link of 25 Gb/s (`--mbit`) each way, first come first served in both directions. The
//!   round trip is 0.25 ms.
//! - The origin has a lognormal first byte (median 30 ms, sigma 0.6), then 100 MB/s per GET, and 25 GB/s for
//!   the zone.
//! - A copy arrives evenly from its first byte to its last. A node that streams from a node that is still
//!   receiving is behind it by a piece of 256 KiB, and never ahead of it: cut-through, also for data from the
//!   origin.
//! - A node may be slow (a tenth of the link), or crash. Half of the crashed nodes do not answer at all. For
//!   the others the kernel still says that the port is closed. The membership tells all nodes of a death
//!   after 10 s.
//! - Questions are sent in groups, notes in batches of 100 ms. Each message costs its bytes and the frame's
//!   header of 32. The cost with the packet's headers is shown beside that.
//! - A depot is one more machine with the same link and a larger disk. It tracks, is asked by nodes with a
//!   lease, and fetches from the origin what it lacks, as many blobs at a time as are requested. The disks of
//!   nodes and depots apply the node cache's own policy. The policy is told the cost of fetching a blob again
//!   as in a node: by the blob's source.
//! - A plan gets the same inputs as in a node: how many blobs are in flight, what the link delivered
//!   recently, the node's upstream, whether the tracker sends to this node, which fetches deliver bytes, and
//!   whose nodes send other blobs. But it is told of bytes only when it wants to be called (a node looks
//!   every 20 ms), and the link is measured by whole blobs. A tracker knows what its own node has to send.
//!
//! Not modelled: CPU, packet loss, congestion between switches, and the disk; trackers' answers that wait in
//! full queues (they take 0.25 ms or never come); read-ahead that depends on the link (always 16 blobs);
//! parts of blobs; the gossip of members, which costs bytes too. All weights are equal, as they are by
//! default. With `--mixed-weights` they are 50, 100 and 200.
//!
//! - [`world`]: events in the order of time. [`drive`]: what a node does with its plans. [`wire`]: links,
//!   requests and streams.
//! - [`flash`]: all nodes read the same blobs in the same order. [`steady`]: each node reads by Zipf's law,
//!   from a cache that is too small.
//! - [`outcome`]: what is counted. [`gossip`]: a table of holders on every node instead of trackers, for
//!   comparison.
//!
//! Beside the world, without network and fleet, [`zipf`] runs the node cache's policy and others ([`evict`])
//! on the same reads ([`trace`]).
//!
//! The same seed gives the same outcome to the last byte. A test checks this.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod cache;
pub mod drive;
pub mod evict;
pub mod flash;
pub mod gossip;
pub mod model;
pub mod outcome;
pub mod steady;
pub mod trace;
pub mod wire;
pub mod world;
pub mod zipf;
