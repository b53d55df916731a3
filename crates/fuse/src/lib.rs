//! The FUSE kernel protocol, thin: any [`fs::api::Filesystem`] on a mountpoint.
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
//! - [`channel`]: where requests come from and replies go; the seam for a byte stream.
//! - [`uring`]: the same over io_uring, a ring per CPU.
//! - [`dispatch`], [`execute`]: decode, ask, encode. [`defer`]: requests that must wait; [`late`]: what the kernel asks for twice. [`seek`]: dirty pages first.
//! - [`notify`]: what the kernel is to forget. [`counts`]: how many requests came. [`watch`]: how long they took, on what.
//! - [`pending_flush`]: writeback errors that a killed program leaves behind, cleared.
//! - [`abi`]: the bytes, and [`abi::opcodes::OPCODES`], the table of what is served.
//! - [`null`]: a filesystem that does nothing, for the floor of measurements; `uncached`: a mount as others are, for their ceiling.
//!
//! **What decides speed is how few requests come.** OPEN, OPENDIR, FLUSH and CREATE are answered ENOSYS, after which the
//! kernel opens, closes and creates files by itself; what it was told of names and attributes it may keep for ever,
//! because every change passes through it. Permissions are then the kernel's to check, always (`default_permissions`).

pub mod abi;
pub mod buffer;
mod caller;
pub mod channel;
pub mod counts;
pub mod defer;
pub mod dispatch;
pub mod execute;
pub mod late;
pub mod mount;
pub mod notify;
pub mod null;
pub mod pending_flush;
pub mod seek;
pub mod session;
mod uncached;
pub mod uring;
pub mod watch;

pub use mount::{MountError, MountFlags, Unmount, UnmountError, unmount};
pub use notify::Notifier;
pub use session::{Ended, Options, Session, Unmounter};
pub use uring::Transport;

/// Where lines meant for a person go.
pub type Log = std::sync::Arc<dyn Fn(&str) + Send + Sync>;
