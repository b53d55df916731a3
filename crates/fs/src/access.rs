//! Access hints: whether a file is read at random or as a stream, if a user or program has said so. The hints
//! are the mount's options by name, and the attribute `user.covey.access` of a file or a folder.
//!
//! The kernel does not tell a FUSE filesystem about `posix_fadvise` and `madvise`, so this replaces them. The
//! first of these that applies decides:
//!
//! 1. the file's attribute;
//! 2. a mount option whose pattern matches the file's name (the last such option);
//! 3. the same for the folder that contains it, and so on up to the root; a file with several names has no
//!    folder;
//! 4. the mount's default: `-o access=`.
//!
//! Hints matter only where blobs are remote. A file's result is cached for a while. Setting the attribute and
//! renaming invalidate the cache at once.

pub(crate) mod hints;

use std::sync::atomic::Ordering;

use base::Ino;
use blob::Access;
use meta::Key;
use meta::record::InodeRecord;

use crate::errno::Errno;
use crate::volume::Core;

pub use hints::{AccessRules, Pattern};

/// The attribute's name.
pub const ATTRIBUTE: &[u8] = b"user.covey.access";
/// The number of folders above a file that are searched.
const DEPTH: usize = 64;
/// Checks a value of the attribute.
///
/// # Errors
/// `EINVAL`: no such access mode.
pub(crate) fn check_value(value: &[u8]) -> Result<(), Errno> {
    Access::named(value).map(drop).ok_or(Errno::EINVAL)
}

impl Core {
    /// The access mode of a file; `record` was just read. If it cannot be told without waiting, the default.
    pub(crate) fn access_of(&self, ino: Ino, record: &InodeRecord) -> Access {
        if self.options.local {
            return Access::Normal;
        }
        if let Some(access) = self.hints.known(ino) {
            return access;
        }
        let age = self.hints.age.load(Ordering::Acquire);
        let (mut at, mut record, folder) = (ino, *record, record.parent);
        let mut found = None;
        for _ in 0..DEPTH {
            let Some(said) = self.said_of(at, &record) else { return self.hints.rules.default };
            let up = record.parent;
            found = said.or_else(|| self.hints.known(up));
            if found.is_some() || at == Ino::ROOT || up.0 == 0 {
                break;
            }
            if !self.is_at_hand(&Key::inode(up)) {
                return self.hints.rules.default;
            }
            match self.names.inode(up) {
                Ok(Some(above)) => (at, record) = (up, above),
                _ => break,
            }
        }
        let access = found.unwrap_or(self.hints.rules.default);
        if at != ino {
            // Nothing is set on the file itself, so the result also holds for its folder.
            self.hints.know(folder, age, access);
        }
        self.hints.know(ino, age, access);
        access
    }

    /// The hint set on an inode itself, if any. The outer `None` means that it cannot be told without
    /// waiting.
    fn said_of(&self, ino: Ino, record: &InodeRecord) -> Option<Option<Access>> {
        if record.has(InodeRecord::HAS_XATTRS) {
            if !self.is_at_hand(&Key::xattr(ino, ATTRIBUTE)) {
                return None;
            }
            let value = self.names.xattr(ino, ATTRIBUTE).ok().flatten();
            if let Some(access) = value.and_then(|value| Access::named(&value)) {
                return Some(Some(access));
            }
        }
        Some(self.hints.named.lock().get(&ino.0).copied())
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.options.names_local || base::thread::may_wait() || self.names.is_at_hand(key)
    }
}
