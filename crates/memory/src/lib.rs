//! The memory of virtual machines that start from a snapshot, restored page by page.
//!
//! A VMM (Firecracker, or one that does as it does) maps empty memory, registers it with userfaultfd(2), and
//! passes the descriptor to this server. From then on the kernel asks the server for each page that the
//! machine touches. So a machine starts at once, and only what it touches is read. One server holds one
//! snapshot file and serves any number of machines, the clones.
//!
//! ```text
//!   handshake.rs   what the VMM sends, decoded and checked; no I/O
//!   receive.rs     the same from a socket, with the descriptor and a time limit
//!   uffd.rs        the kernel's interface: copy, zero, poison, wake, events
//!   layout.rs      the regions of a clone, cut into blocks
//!   removed.rs     pages that the clone gave back
//!   clone.rs       a clone: its faults, its events, its end; clone/install.rs puts bytes in their place
//!   list.rs        what the last clone touched, so that the next one has it before it asks
//!   source.rs      where the bytes come from
//!   server.rs      listens, and holds the clones
//!   vmm.rs         the VMM's side, for tests and measurements
//! ```
//!
//! Two things are always true. A page of a clone holds what the snapshot holds, or zeros after the clone gave
//! it back, and nothing else. A page that cannot be had is never answered with other bytes: the clone is
//! ended, and its VMM gets SIGBUS.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod clone;
pub mod handshake;
mod layout;
pub mod list;
pub mod receive;
mod removed;
pub mod server;
pub mod source;
pub mod uffd;
pub mod vmm;
