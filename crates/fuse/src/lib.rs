//! A thin layer over the FUSE kernel protocol. It serves any [`fs::api::Filesystem`] on a mountpoint.
//!
//! ```text
//!  kernel ─► /dev/fuse ─► session (a reader thread per core) ─► dispatch ─► Filesystem
//!        └─► io_uring, a ring per CPU ─────────────────────────────┘
//!                ▲              channel: Source, Sink              │  │
//!                └──────────────────── reply ◄─────────────────────┘  └─► defer (must wait; deadline)
//! ```
//!
//! - [`session`]: mounting, the threads, the end. Start at [`Session::mount`].
//! - [`mount`]: mount(2), fusermount3, umount, and what is mounted where.
//! - [`channel`]: where requests come from and replies go. Another transport, such as a byte stream (crate
//!   `guests`), plugs in here.
//! - [`uring`]: the same over io_uring, a ring per CPU.
//! - [`dispatch`], [`execute`]: decode a request, call the filesystem, encode the reply.
//! - [`served`]: a kernel elsewhere, whose requests arrive in another way than through /dev/fuse.
//! - [`shared`]: mounts of a tree that other machines change too. `locks`: locks that reach the filesystem.
//!   [`swap`]: the filesystem is replaced while programs use the mount.
//! - [`defer`]: pending requests. [`late`]: reads that the kernel repeats after they failed.
//! - [`positions`]: where a listing continues, in 31 bits.
//! - `seek`: flushes dirty pages before SEEK_DATA and SEEK_HOLE. `through`, `apart`: opens files of the own
//!   mount, in a child process.
//! - [`notify`]: invalidations of the kernel's caches.
//! - [`counts`]: how many requests arrived. [`watch`]: how long they took, and in which phase.
//! - [`pending_flush`]: clears writeback errors that a killed program leaves behind.
//! - [`abi`]: the bytes, and [`abi::opcodes::OPCODES`], the table of opcodes that are served.
//! - [`promises`]: how long the kernel may keep what replies of a shared mount say.
//! - [`null`]: a filesystem that does nothing, the lower bound in measurements.
//!
//! **Few requests make the mount fast.** OPEN, OPENDIR, FLUSH and CREATE are answered ENOSYS. The kernel then
//! opens, closes and creates files by itself. It may keep names and attributes for ever, because every change
//! passes through it. In return the kernel always checks permissions (`default_permissions`). None of this
//! holds for a shared mount ([`shared`]), except for the checks.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod abi;
mod apart;
pub mod buffer;
mod caller;
pub mod channel;
pub mod counts;
pub mod defer;
pub mod dispatch;
pub mod execute;
mod kernel;
pub mod late;
mod locks;
pub mod mount;
pub mod notify;
pub mod null;
pub mod pending_flush;
pub mod positions;
pub mod promises;
mod refresh;
mod seek;
pub mod served;
pub mod session;
pub mod shared;
pub mod swap;
mod through;
pub mod uring;
pub mod watch;

pub use mount::{MountError, MountFlags, Unmount, UnmountError, unmount};
pub use notify::Notifier;
pub use session::{Ended, Options, Session, Unmounter};
pub use uring::Transport;

/// Receives the lines of the log.
pub type Log = std::sync::Arc<dyn Fn(&str) + Send + Sync>;
