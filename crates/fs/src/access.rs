//! Hints: whether a file is read at random or as a stream, and whether its blobs are to stay on the disk of
//! this machine, if a user or program has said so. The hints are the mount's options by name, and the
//! attributes `user.covey.access` and `user.covey.keep` of a file or a folder.
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
//! For `user.covey.keep`, the nearest attribute decides. The two do not affect each other.
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
use crate::volume::{Core, Volume};

pub(crate) use hints::Hint;

pub use hints::{AccessRules, Pattern};

/// The name of the attribute for access.
pub const ATTRIBUTE: &[u8] = b"user.covey.access";
/// The name of the attribute for what is to stay on the disk. Its values are [`KEEP`] and [`DO_NOT_KEEP`].
pub const KEEP_ATTRIBUTE: &[u8] = b"user.covey.keep";
/// The blobs of the file are evicted last.
pub const KEEP: &[u8] = b"yes";
/// The blobs of the file are evicted as others are, whatever holds for the folder.
pub const DO_NOT_KEEP: &[u8] = b"no";
/// The number of folders above a file that are searched.
const DEPTH: usize = 64;

/// What was said of one inode.
#[derive(Clone, Copy, Default)]
struct Said {
    access: Option<Access>,
    keep: Option<bool>,
}

impl Said {
    fn of(hint: Hint) -> Said {
        Said { access: Some(hint.access), keep: Some(hint.keep) }
    }

    /// Fills in what was not said of the inode with what a folder above says.
    fn or(self, above: Said) -> Said {
        Said { access: self.access.or(above.access), keep: self.keep.or(above.keep) }
    }
}

/// What a value of the attribute [`KEEP_ATTRIBUTE`] means.
pub fn keep_named(value: &[u8]) -> Option<bool> {
    match value {
        KEEP => Some(true),
        DO_NOT_KEEP => Some(false),
        _ => None,
    }
}

/// Checks a value of an attribute that may be a hint.
///
/// # Errors
/// `EINVAL`: it is one, and has no such value.
pub(crate) fn check_value(name: &[u8], value: &[u8]) -> Result<(), Errno> {
    let fits = match name {
        ATTRIBUTE => Access::named(value).is_some(),
        KEEP_ATTRIBUTE => keep_named(value).is_some(),
        _ => true,
    };
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

impl Core {
    /// Called when this attribute was set or removed.
    pub(crate) fn attribute_changed(&self, name: &[u8]) {
        if name == ATTRIBUTE || name == KEEP_ATTRIBUTE {
            self.hints.changed();
        }
        if name == KEEP_ATTRIBUTE {
            // Which blobs are still to be kept shows with the next reads.
            self.parts.source.evict_as_usual();
        }
    }

    /// What applies to a file; `record` was just read. If it cannot be told without waiting, the default.
    pub(crate) fn hint_of(&self, ino: Ino, record: &InodeRecord) -> Hint {
        if self.options.local {
            return Hint::default();
        }
        if let Some(hint) = self.hints.known(ino) {
            return hint;
        }
        let default = Hint { access: self.hints.rules.default, keep: false };
        let age = self.hints.age.load(Ordering::Acquire);
        let (mut at, mut record, folder) = (ino, *record, record.parent);
        let (mut found, mut is_own) = (Said::default(), false);
        for _ in 0..DEPTH {
            let Some(said) = self.said_of(at, &record) else { return default };
            is_own |= at == ino && (said.access.is_some() || said.keep.is_some());
            let up = record.parent;
            found = found.or(said).or(self.hints.known(up).map(Said::of).unwrap_or_default());
            if found.access.is_some() && found.keep.is_some() || at == Ino::ROOT || up.0 == 0 {
                break;
            }
            if !self.is_at_hand(&Key::inode(up)) {
                return default;
            }
            match self.names.inode(up) {
                Ok(Some(above)) => (at, record) = (up, above),
                _ => break,
            }
        }
        let hint =
            Hint { access: found.access.unwrap_or(default.access), keep: found.keep.unwrap_or(default.keep) };
        if at != ino && !is_own {
            // Nothing is set on the file itself, so the result also holds for its folder.
            self.hints.know(folder, age, hint);
        }
        self.hints.know(ino, age, hint);
        hint
    }

    /// The hints set on an inode itself. `None` means that they cannot be told without waiting.
    fn said_of(&self, ino: Ino, record: &InodeRecord) -> Option<Said> {
        let mut said = Said::default();
        if record.has(InodeRecord::HAS_XATTRS) {
            said.access = self.attribute(ino, ATTRIBUTE)?.and_then(|value| Access::named(&value));
            said.keep = self.attribute(ino, KEEP_ATTRIBUTE)?.and_then(|value| keep_named(&value));
        }
        said.access = said.access.or_else(|| self.hints.named.lock().get(&ino.0).copied());
        Some(said)
    }

    /// The outer `None` means that it cannot be told without waiting.
    fn attribute(&self, ino: Ino, name: &[u8]) -> Option<Option<Vec<u8>>> {
        if !self.is_at_hand(&Key::xattr(ino, name)) {
            return None;
        }
        Some(self.names.xattr(ino, name).ok().flatten().map(|value| value.to_vec()))
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.options.names_local || base::thread::may_wait() || self.names.is_at_hand(key)
    }
}

impl Volume {
    /// Whether a user wants the blobs of this file to stay on this machine. False if it cannot be told.
    pub fn is_kept(&self, ino: Ino) -> bool {
        let record = self.core.names.inode(ino).ok().flatten();
        record.is_some_and(|record| self.core.hint_of(ino, &record).keep)
    }
}
