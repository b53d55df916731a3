//! Exports from a volume. It adds sources and sinks for the queue of [`crate::import`].
//!
//! ```text
//!   folder  (a path on a mount) ────┐                        ┌── place    (a folder)
//!                                   ├── items, with contents ┤
//!   inside  (a volume not mounted) ─┘                        └── archive  (tar, plain or compressed)
//! ```
//!
//! An export followed by an import preserves everything: names of any bytes, modes, owners, times to the
//! nanosecond, extended attributes and ACLs, hard and symbolic links, device nodes, holes.

pub mod archive;
pub mod inside;
