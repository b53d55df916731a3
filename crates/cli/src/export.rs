//! Bringing what is in a volume elsewhere: other ends to the queue of [`crate::import`].
//!
//! ```text
//!   folder  (a path on a mount) ────┐                        ┌── place    (a folder)
//!                                   ├── items, with contents ┤
//!   inside  (a volume not mounted) ─┘                        └── archive  (tar, plain or compressed)
//! ```
//!
//! What was exported and imported again is what it was: names of any bytes, modes, owners, times to the nanosecond, extended
//! attributes and ACLs, hard and symbolic links, device nodes, holes.

pub mod archive;
pub mod inside;
