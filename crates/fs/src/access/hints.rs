//! What a mount knows of access hints: its rules, the inodes that were looked up under a name with a rule,
//! and a cache of results.

use std::sync::atomic::{AtomicU64, Ordering};

use base::Ino;
use blob::Access;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// What applies to a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    pub(crate) access: Access,
    pub(crate) keep: bool,
}

/// The number of inodes whose result is cached.
const KNOWN: usize = 256;
/// The number of inodes with a matching name that are remembered, about 32 bytes each. Later ones count as if
/// they matched no pattern.
const NAMED: usize = 1 << 20;

/// A pattern for names: `*` matches any number of bytes, `?` matches one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Box<[u8]>);

impl std::fmt::Display for Pattern {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        String::from_utf8_lossy(&self.0).fmt(out)
    }
}

impl Pattern {
    /// `None` if no name can match: the pattern is empty, longer than a name may be, or contains a `/`.
    pub fn new(text: &str) -> Option<Pattern> {
        let fits = !text.is_empty() && text.len() <= base::size::NAME_MAX && !text.contains(['/', '\0']);
        fits.then(|| Pattern(text.as_bytes().into()))
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        let (pattern, mut at, mut from) = (&*self.0, 0, 0);
        // The position after the last star in the pattern, and the end of the star's match in the name.
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

/// The rules given by mount options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    /// For everything that no other rule covers.
    pub default: Access,
    /// For inodes with a matching name, and everything below them. Later rules win.
    pub names: Vec<(Pattern, Access)>,
}

impl AccessRules {
    /// The rule that applies to a name.
    pub fn of_name(&self, name: &[u8]) -> Option<&(Pattern, Access)> {
        self.names.iter().rev().find(|(pattern, _)| pattern.matches(name))
    }
}

#[derive(Clone, Copy, Default)]
struct Known {
    ino: u64,
    /// The age of all hints at which it was stored.
    age: u64,
    hint: Hint,
}

/// The rules, and what is known of the hints of inodes.
pub(crate) struct Hints {
    pub(super) rules: AccessRules,
    /// Inodes that were looked up under a name that matches a rule.
    pub(super) named: Mutex<HashMap<u64, Access>>,
    known: [Mutex<Known>; KNOWN],
    pub(super) age: AtomicU64,
}

impl Hints {
    pub(crate) fn new(rules: AccessRules) -> Hints {
        let known = std::array::from_fn(|_| Mutex::default());
        Hints { rules, named: Mutex::default(), known, age: AtomicU64::new(1) }
    }

    pub(crate) fn rules(&self) -> &AccessRules {
        &self.rules
    }

    /// Records that a name was found or created for this inode.
    pub(crate) fn named(&self, name: &[u8], ino: Ino) {
        if self.rules.names.is_empty() {
            return;
        }
        let rule = self.rules.of_name(name);
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

    /// Invalidates all cached results.
    pub(crate) fn changed(&self) {
        self.age.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn known(&self, ino: Ino) -> Option<Hint> {
        let known = *self.known[ino.0 as usize % KNOWN].lock();
        (known.ino == ino.0 && known.age == self.age.load(Ordering::Acquire)).then_some(known.hint)
    }

    pub(super) fn know(&self, ino: Ino, age: u64, hint: Hint) {
        *self.known[ino.0 as usize % KNOWN].lock() = Known { ino: ino.0, age, hint };
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
        // Many stars must not take long.
        assert!(!Pattern::new(&"*a".repeat(100)).unwrap().matches("a".repeat(99).as_bytes()));
    }
}
