//! Virtual machines for tests: a Linux kernel of a distribution under QEMU, which attaches to what
//! `covey serve` serves on this machine, over a vsock device.
//!
//! ```text
//!   host                                              guest
//!   covey serve ─ UDS_5001 ─ vhost-device-vsock ─ virtio ─ AF_VSOCK 2:5001 ─ covey-attach ─ /dev/fuse
//!   test ──────── UNIX socket ──── QEMU ──── second serial port ─ a shell, one script at a time
//! ```
//!
//! - [`kit`]: the kernel and the programs, and what is lacking.
//! - [`image`]: the file system in memory from which a guest boots.
//! - [`machine`]: the processes of one guest. They end with the test, also if it fails.
//! - [`console`]: runs scripts in the guest.
//! - [`serve`]: what the host serves.
//!
//! The guest's image has busybox, `covey-attach` and kernel modules, and nothing else. Compilers, git and
//! other programs come from the host's /usr, which the host serves read-only.

// Tests may unwrap, read the clock and start threads, and so may this library, which only they use.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

pub mod console;
pub mod image;
pub mod kit;
pub mod machine;
pub mod process;
pub mod serve;
