//! How long the kernel may keep what a reply says, on a shared mount whose filesystem has leases.
//!
//! A reply is written with times of 0. [`Keep`] says where the times are, and of which inode and name. Just
//! before the reply is sent, the leases decide, and the times are filled in.

use std::time::Duration;

use base::Ino;
use fs::api::{Leases, Promise};

use crate::abi::out;

/// What a reply says that the kernel could keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Where it is in the reply's body.
    pub at: usize,
    /// Whether it is an entry, or attributes alone.
    pub is_entry: bool,
    /// The inode, and the directory that names it.
    pub promise: Promise,
}

impl Keep {
    /// An entry: a name in `parent` (0: none) for an inode. Inode 0: the absence of the name.
    pub fn entry(at: usize, ino: Ino, parent: Ino) -> Keep {
        Keep { at, is_entry: true, promise: Promise::of(ino, parent) }
    }

    /// Attributes.
    pub fn attributes(at: usize, ino: Ino) -> Keep {
        Keep { at, is_entry: false, promise: Promise::of(ino, Ino(0)) }
    }
}

/// Sends a reply that says this, of an operation that began when the leases said `mark`.
pub fn deliver<T>(
    leases: &Leases,
    mark: u64,
    keeps: &[Keep],
    body: &mut [u8],
    send: impl FnOnce(&[u8]) -> T,
) -> T {
    if keeps.is_empty() {
        return send(body);
    }
    let mut promises: Vec<Promise> = keeps.iter().map(|keep| keep.promise).collect();
    leases.deliver(mark, &mut promises, |promises| {
        for (keep, promise) in keeps.iter().zip(promises) {
            out::keep(body, keep.at, keep.is_entry, promise);
        }
        send(body)
    })
}

/// Fills in that the kernel may keep all of this for so long.
pub fn permit(keeps: &[Keep], body: &mut [u8], time: Duration) {
    for keep in keeps {
        let promise = Promise { attributes: time, name: time, ..keep.promise };
        out::keep(body, keep.at, keep.is_entry, &promise);
    }
}

/// Fills in times as [`permit`] does, for a kernel that cannot be told what to drop. Such a kernel never
/// keeps the attributes of a file with set-id bits: a write by a user drops these bits here, and the kernel
/// asks for size and times only.
pub fn permit_untold(keeps: &[Keep], body: &mut [u8], time: Duration) {
    for keep in keeps {
        let dropped_by_writes = out::mode(body, keep.at, keep.is_entry).is_some_and(has_set_id);
        let attributes = if dropped_by_writes { Duration::ZERO } else { time };
        let promise = Promise { attributes, name: time, ..keep.promise };
        out::keep(body, keep.at, keep.is_entry, &promise);
    }
}

/// Whether this is the mode of a regular file with set-id bits.
fn has_set_id(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG && mode & (libc::S_ISUID | libc::S_ISGID) != 0
}
