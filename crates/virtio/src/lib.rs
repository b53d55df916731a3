//! Serves a filesystem to virtual machines as a vhost-user back end: the guest mounts it with its own
//! virtiofs driver, and needs no program of ours.
//!
//! ```text
//!   VMM ── socket ──► backend: memory, queues, features          (guest-vmm, one for each socket)
//!   guest ─ virtqueue ─► ring: a thread takes a chain ─► session ─► fuse's dispatcher ─► Filesystem
//!             ▲                                                                     │
//!             └── used ring, in any order ◄── chain: the reply, copied once ◄───────┘
//! ```
//!
//! - [`server`]: the socket; one VMM at a time. Start at [`server::Socket::listen`].
//! - [`backend`]: what a VMM says: memory, addresses of rings, where to notify.
//! - [`memory`]: the guest's memory, mapped here.
//! - [`ring`]: one virtqueue: its threads, what is in flight, how it stops.
//! - [`chain`]: one request: a chain of descriptors, checked before a byte of it is used.
//! - [`session`]: the kernel of a guest, from INIT to DESTROY.
//!
//! Crates of rust-vmm read the VMM's messages, walk the rings and map memory. What meets here is a chain of
//! descriptors and the dispatcher that also serves `/dev/fuse`.
//!
//! **Nothing that a guest or its VMM says is believed.** Every address is looked up in the mapped memory at
//! each use. A chain that cannot be one stops its queue. A request that makes no sense gets EIO. A guest has
//! its own threads, its own view of the filesystem and its own bounds, so it disturbs no other.
//!
//! **The kernel of such a guest cannot be told anything**: virtiofs has no notifications. So what it may keep
//! ends by itself, after [`server::Options::keep`].

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod backend;
pub mod chain;
pub mod memory;
pub mod ring;
pub mod server;
pub mod session;
