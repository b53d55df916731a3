//! The messages that commands, front ends and daemons exchange.
//!
//! ```text
//!   control.rs   one request, progress messages, one answer, over the control socket of a daemon
//!   watch.rs     what a front end that watches a mount asks for and receives
//!   status.rs    the figures of a mount
//!   heat.rs      which parts of which files are read most
//!   answers.rs   the results of long operations
//!   info.rs      what a file consists of
//!   metrics.rs   the figures for Prometheus
//!   error.rs     what happened, why, what to do next
//!   source.rs    how the source of a mount is written
//!   reads.rs     lists of what was read of a mount, in order
//!   raw_path.rs  paths in JSON that need not be UTF-8
//!   text.rs      numbers, moments and names as people read them
//!   caller.rs    the user and the process at the other end of a socket
//!   own.rs       files of this program: which of them it trusts
//! ```
//!
//! This crate knows no filesystem, no cache and no origin. A front end that talks to a daemon needs only
//! these types.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod answers;
pub mod caller;
pub mod control;
pub mod error;
pub mod heat;
pub mod info;
pub mod metrics;
pub mod own;
pub mod raw_path;
pub mod reads;
pub mod source;
pub mod status;
pub mod text;
pub mod watch;
