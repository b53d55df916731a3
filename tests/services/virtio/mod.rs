//! vhost-user: virtqueues in a file, driven by the test in place of a virtual machine.
//!
//! The driver here can do what a guest's kernel never does, and it needs no QEMU. Real guests are in
//! `tests/vm`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod driver;
mod files;
mod lies;
mod refusals;
mod waits;
mod world;
