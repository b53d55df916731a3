//! What commands, front ends and daemons say to each other.
//!
//! ```text
//!   control.rs   one request, some progress, one answer, over the control socket of a daemon
//!   watch.rs     what a front end asks for that looks on at a mount, and what it is sent
//!   status.rs    the figures of what is mounted; answers.rs: what came of long work; info.rs: what a file is made of
//!   metrics.rs   the figures for Prometheus
//!   error.rs     what happened, why, what to do next
//!   source.rs    how the source of a mount is written
//!   raw_path.rs  paths in JSON that need not be UTF-8; text.rs: numbers, moments and names as people read them
//!   caller.rs    the user and the process at the other end of a socket
//! ```
//!
//! This crate knows no filesystem, no cache and no origin. A front end that speaks to a daemon needs nothing else of it
//! than these types.

pub mod answers;
pub mod caller;
pub mod control;
pub mod error;
pub mod info;
pub mod metrics;
pub mod raw_path;
pub mod source;
pub mod status;
pub mod text;
pub mod watch;
