//! Real guests: what Covey serves to a Linux kernel in a virtual machine, over AF_VSOCK.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod files;
