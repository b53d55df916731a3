//! A seeded world: up to ten thousand nodes in one thread, which read through the fleet's own placement, tracker and plan.
//!
//! What is real: `peer::placement`, `peer::tracker`, `peer::plan`, line by line as a node runs them. What is modelled, coarsely, in [`model`]:
//!
//! - A link of 25 Gb/s (`--mbit`) each way per node, first come first served in both directions; 0.25 ms there and back.
//! - An origin: a lognormal first byte (median 30 ms, sigma 0.6), then 100 MB/s per GET, 25 GB/s for all of the zone.
//! - A copy arrives evenly from its first byte to its last. Who streams from a node that is still receiving is behind it by a piece of 256 KiB
//!   and never ahead of it: cut-through, also of what comes from the origin.
//! - A node may be slow (a tenth of the link), or crash: half of those that crash answer nothing any more, of the others the kernel still says that
//!   the port is closed. The membership tells everybody of a death after 10 s.
//! - Questions travel in groups, notes in batches of 100 ms. Each message
//!   costs its bytes and the frame's header of 32; with the packet's headers it is shown beside that.
//!
//! - A depot is one more machine with the same link and a larger disk: it tracks, is asked by who has the lease, and gets from the origin what it
//!   does not have, as many at a time as are asked for. The nodes' and the depots' disks keep what the node cache's own policy keeps, which is told what a
//!   blob costs to fetch again as a node tells it: by where it came from.
//! - A plan is fed as a node feeds it: how many blobs are on their way, what the line brought of late, whom the node follows, whether the tracker sends
//!   here, which fetches bring bytes and whose nodes send others. But it is told of bytes only when it wants to be called (a node looks every
//!   20 ms), and the line is reckoned by whole blobs. A tracker knows what its own node has to send.
//!
//! Not modelled: CPU, loss of packets, congestion between switches, the disk; answers of trackers that wait in full queues (they take 0.25 ms or never come);
//! how far is read ahead by what the line brings (16 blobs always); parts of blobs; the gossip of members, which costs bytes too. All weights are equal,
//! as they are unless somebody says otherwise; with `--mixed-weights` they are 50, 100 and 200.
//!
//! - [`world`]: events in the order of time. [`drive`]: what a node does with its plans. [`wire`]: links, requests and streams.
//! - [`flash`]: all read the same blobs in the same order. [`steady`]: each reads what it likes, by Zipf's law, from a cache that is too small.
//! - [`outcome`]: what is counted. [`heard`]: what a node knows of its line. [`gossip`]: a table of holders on every node, instead of trackers; to compare with.
//!
//! Beside the world, without network and fleet: [`zipf`] runs the node cache's policy and others ([`evict`]) on the same reads ([`trace`]).
//!
//! The same seed gives the same outcome to the last byte; a test says so.

pub mod cache;
pub mod drive;
pub mod evict;
pub mod flash;
pub mod gossip;
pub mod heard;
pub mod model;
pub mod outcome;
pub mod steady;
pub mod trace;
pub mod wire;
pub mod world;
pub mod zipf;
