//! Real guests: what Covey serves to a Linux kernel in a virtual machine, over AF_VSOCK.
//!
//! Each test boots a guest of its own, and leaves no process and no socket behind.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod broken;
mod files;
mod nested;
mod suites;
mod virtiofs;
mod world;
