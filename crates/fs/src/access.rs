//! How files are read, where somebody has said so: the mount's options by name, and the attribute `user.covey.access` of a file or a folder.
//!
//! The kernel tells a FUSE filesystem nothing of `posix_fadvise` and `madvise`, so this is how a program or a person says that a
//! file is read at random, or as a stream. The first of these that says something decides:
//!
//! 1. the file's attribute;
//! 2. a mount option whose pattern the file's name matches (the last such option);
//! 3. the same of the folder it lies in, and so on up to the root; a file with several names has no folder;
//! 4. the mount's own: `-o access=`.
//!
//! It matters only where blobs are remote. What was found out of a file is remembered for a while; setting the attribute and renaming
//! end that at once.

use std::sync::atomic::{AtomicU64, Ordering};

use base::Ino;
use blob::Access;
use hashbrown::HashMap;
use meta::Key;
use meta::record::InodeRecord;
use parking_lot::Mutex;

use crate::errno::Errno;
use crate::volume::Core;

/// The attribute's name.
pub(crate) const ATTRIBUTE: &[u8] = b"user.covey.access";
/// Of so many inodes it is remembered.
const KNOWN: usize = 256;
/// Folders above a file that are looked at.
const DEPTH: usize = 64;
/// Names that match a pattern and are remembered, about 32 bytes each; those that come later count as if they matched none.
const NAMED: usize = 1 << 20;

/// A pattern of names: `*` stands for any number of bytes, `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Box<[u8]>);

impl std::fmt::Display for Pattern {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(out)
    }
}

impl Pattern {
    /// `None` if no name can match it: it is empty, longer than names are, or has a `/`.
    pub fn new(text: &str) -> Option<Pattern> {
        let fits = !text.is_empty() && text.len() <= base::size::NAME_MAX && !text.contains(['/', '\0']);
        fits.then(|| Pattern(text.as_bytes().into()))
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        let (pattern, mut at, mut from) = (&*self.0, 0, 0);
        // Behind the last star, and where in the name it ended.
        let mut star: Option<(usize, usize)> = None;
        while from < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at + 1, from));
                    at += 1;
                }
                Some(byte) if *byte == b'?' || *byte == name[from] => (at, from) = (at + 1, from + 1),
                _ => match star {
                    Some((behind, end)) => {
                        star = Some((behind, end + 1));
                        (at, from) = (behind, end + 1);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }
}

/// What the mount's options say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    /// Of all that nothing else is said of.
    pub default: Access,
    /// Of what has such a name, and all that lies below it; later ones win.
    pub names: Vec<(Pattern, Access)>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    ino: u64,
    /// In which age of all hints.
    age: u64,
    access: Access,
}

/// See the [module](self).
pub(crate) struct Hints {
    rules: AccessRules,
    /// What was looked up and has a name that a rule has.
    named: Mutex<HashMap<u64, Access>>,
    known: [Mutex<Known>; KNOWN],
    age: AtomicU64,
}

impl Hints {
    pub(crate) fn new(rules: AccessRules) -> Hints {
        let known = std::array::from_fn(|_| Mutex::default());
        Hints { rules, named: Mutex::default(), known, age: AtomicU64::new(1) }
    }

    /// A name was found, or made: it stands for this inode.
    pub(crate) fn named(&self, name: &[u8], ino: Ino) {
        if self.rules.names.is_empty() {
            return;
        }
        let rule = self.rules.names.iter().rev().find(|(pattern, _)| pattern.matches(name));
        let mut named = self.named.lock();
        match rule {
            Some((_, access)) if named.len() < NAMED || named.contains_key(&ino.0) => {
                if named.insert(ino.0, *access) != Some(*access) {
                    self.changed();
                }
            }
            Some(_) => {}
            None => {
                if named.remove(&ino.0).is_some() {
                    self.changed();
                }
            }
        }
    }

    /// What was found out may be wrong now.
    pub(crate) fn changed(&self) {
        self.age.fetch_add(1, Ordering::AcqRel);
    }

    fn known(&self, ino: Ino) -> Option<Access> {
        let known = *self.known[ino.0 as usize % KNOWN].lock();
        (known.ino == ino.0 && known.age == self.age.load(Ordering::Acquire)).then_some(known.access)
    }

    fn know(&self, ino: Ino, age: u64, access: Access) {
        *self.known[ino.0 as usize % KNOWN].lock() = Known { ino: ino.0, age, access };
    }
}

/// The value of the attribute.
///
/// # Errors
/// `EINVAL`: there is no such access.
pub(crate) fn check_value(value: &[u8]) -> Result<(), Errno> {
    Access::named(value).map(drop).ok_or(Errno::EINVAL)
}

impl Core {
    /// How a file is read, as far as that is known without waiting.
    pub(crate) fn access_known(&self, ino: Ino) -> Access {
        self.hints.known(ino).unwrap_or(self.hints.rules.default)
    }

    /// How a file is read, of which `record` was just read. What cannot be told counts as not said.
    pub(crate) fn access_of(&self, ino: Ino, record: &InodeRecord) -> Access {
        if self.options.near {
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
            // Nothing is said of the file itself, so its neighbours are the same.
            self.hints.know(folder, age, access);
        }
        self.hints.know(ino, age, access);
        access
    }

    /// What is said of an inode itself, if anything; the outer `None` if that cannot be told without waiting.
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
        self.options.names_near || base::thread::may_wait() || self.names.is_at_hand(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let cases = [
            ("*.h5", "a.h5", true),
            ("*.h5", ".h5", true),
            ("*.h5", "a.h5x", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "anything", true),
            ("*a*b", "xaxbxab", true),
            ("*a*b", "xaxbxa", false),
            ("train-*-of-*", "train-3-of-9", true),
            ("plain", "plain", true),
            ("plain", "plai", false),
        ];
        for (pattern, name, matches) in cases {
            assert_eq!(Pattern::new(pattern).unwrap().matches(name.as_bytes()), matches, "{pattern} {name}");
        }
        assert!(["", "a/b", "/"].iter().all(|text| Pattern::new(text).is_none()));
        // Many stars are no reason to take long.
        assert!(!Pattern::new(&"*a".repeat(100)).unwrap().matches("a".repeat(99).as_bytes()));
    }
}
