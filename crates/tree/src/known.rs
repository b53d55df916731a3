//! What a reader remembers of an origin: the keys that it accepts, and the newest record it has seen of each
//! name.
//!
//! ```text
//!   covey known 1
//!   origin s3://bucket/prefix
//!   key 0f3a...                            64 hexadecimal digits, one line each
//!   name latest 1764085456123456789 17 9be1...     name, moment, sequence, hash of the top node
//! ```
//!
//! **Why keys are remembered.** The record `owner` of an origin is not signed: anybody who may write there
//! can put another key into it and sign trees with that key. So only the keys of the first use are accepted
//! later ([`Known::judge`]), and a person must accept another key. Old keys beside a new one in the record
//! prove nothing: the writer of the record writes them too.
//!
//! **Why records are remembered.** An older record has a valid signature as well. A record that was seen is
//! never replaced by an older one.
//!
//! **Which record is newer** is decided by the *moment* in it. The moment is signed, and a publisher never
//! sets it back ([`mod@crate::publish`]): each publication of a name is later than the one before, also by
//! another owner after a restore, and whatever the clocks say. The sequence number alone cannot decide it: it
//! restarts at 1 when a name was removed and is published again. Publishers before this rule could stamp an
//! earlier moment after their clock was set back. So the direct successor of the last seen record always
//! counts as newer: it has the next sequence number and names the tree before it.

use std::collections::BTreeMap;

use crate::TreeError;
use crate::node::Hash;
use crate::root::{PublicKey, Root, from_hex, hex, is_name};

const HEAD: &str = "covey known 1";
/// The maximum length of such a file, in bytes.
pub const LONGEST: u64 = 4 << 20;
/// The maximum number of remembered keys.
const KEYS_MAX: usize = 1000;

/// The newest record of a name that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When it was published, in nanoseconds since 1970.
    pub moment: i64,
    /// The record's sequence number.
    pub sequence: u64,
    /// The hash of its top node.
    pub top: Hash,
}

impl Seen {
    /// The essentials of a record.
    pub fn of(root: &Root) -> Seen {
        Seen { moment: root.moment.as_nanos(), sequence: root.sequence, top: root.top.hash }
    }

    /// Whether `root` was published after this one.
    fn is_before(&self, root: &Root) -> bool {
        let follows = self.sequence.checked_add(1) == Some(root.sequence) && root.before == Some(self.top);
        root.moment.as_nanos() > self.moment || follows
    }
}

/// What is remembered of one origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The origin, for people.
    pub origin: String,
    keys: Vec<PublicKey>,
    names: BTreeMap<String, Seen>,
}

/// The judgement on a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The record is the one that was seen last.
    Same,
    /// The record is newer, or the first of its name.
    Newer,
    /// The record is signed by a key that is not accepted here. Holds the accepted keys.
    OtherKey(Vec<PublicKey>),
    /// A newer one was seen.
    Older(Seen),
}

impl Known {
    /// Creates an empty memory of this origin.
    pub fn new(origin: &str) -> Known {
        Known { origin: origin.to_owned(), ..Known::default() }
    }

    /// Whether no key was accepted yet.
    pub fn is_new(&self) -> bool {
        self.keys.is_empty()
    }

    /// The accepted keys.
    pub fn keys(&self) -> &[PublicKey] {
        &self.keys
    }

    /// The newest record seen of a name.
    pub fn seen(&self, name: &str) -> Option<&Seen> {
        self.names.get(name)
    }

    /// Accepts a key from now on.
    pub fn accept(&mut self, key: PublicKey) {
        if !self.keys.contains(&key) && self.keys.len() < KEYS_MAX {
            self.keys.push(key);
        }
    }

    /// Judges a record whose signature was verified.
    pub fn judge(&self, root: &Root) -> Verdict {
        if !self.keys.contains(&root.key) {
            return Verdict::OtherKey(self.keys.clone());
        }
        match self.names.get(&root.name) {
            Some(seen) if *seen == Seen::of(root) => Verdict::Same,
            Some(seen) if !seen.is_before(root) => Verdict::Older(*seen),
            _ => Verdict::Newer,
        }
    }

    /// Remembers a record as the newest of its name, whatever was seen before.
    pub fn remember(&mut self, root: &Root) {
        self.names.insert(root.name.clone(), Seen::of(root));
    }

    /// Encodes this as a file.
    pub fn encode(&self) -> String {
        let mut out = format!("{HEAD}\norigin {}\n", self.origin.replace(char::is_control, " "));
        self.keys.iter().for_each(|key| out.push_str(&format!("key {}\n", hex(key))));
        for (name, Seen { moment, sequence, top }) in &self.names {
            out.push_str(&format!("name {name} {moment} {sequence} {}\n", hex(top)));
        }
        out
    }

    /// Reads a file. Unknown content is an error, so that nothing remembered is lost silently.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn decode(text: &str) -> Result<Known, TreeError> {
        Known::read(text).ok_or_else(|| TreeError::Damaged("it cannot be understood".to_owned()))
    }

    fn read(text: &str) -> Option<Known> {
        // A truncated file ends in the middle of a line.
        let mut lines = text.strip_suffix('\n')?.split('\n');
        if lines.next()? != HEAD {
            return None;
        }
        let mut known = Known::new(lines.next()?.strip_prefix("origin ")?);
        if known.origin.contains(char::is_control) {
            return None;
        }
        for line in lines {
            match line.split_once(' ')? {
                ("key", key) => {
                    let key = from_hex(key).filter(|key| !known.keys.contains(key))?;
                    known.keys.push(key);
                }
                ("name", rest) => {
                    let mut words = rest.split(' ');
                    let name = words.next().filter(|name| is_name(name))?;
                    let seen = Seen {
                        moment: words.next()?.parse().ok()?,
                        sequence: words.next()?.parse().ok()?,
                        top: from_hex(words.next()?)?,
                    };
                    if words.next().is_some() || known.names.insert(name.to_owned(), seen).is_some() {
                        return None;
                    }
                }
                _ => return None,
            }
        }
        (known.keys.len() <= KEYS_MAX).then_some(known)
    }

    /// The name of the file for an origin: a part that people recognise, and a hash that distinguishes it
    /// from others.
    pub fn file_name(origin: &str, endpoint: Option<&str>) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let mut hasher = blake3::Hasher::new();
        hasher.update(origin.as_bytes()).update(&[0]).update(endpoint.unwrap_or_default().as_bytes());
        let begin: String = origin.chars().map(plain).take(100).collect();
        format!("{begin}-{}", hex(&hasher.finalize().as_bytes()[..8]))
    }
}

#[cfg(test)]
mod tests {
    use base::{BlobId, Timestamp};

    use super::*;
    use crate::node::Pointer;

    fn root(sequence: u64, moment: i64, top: u8, before: Option<u8>) -> Root {
        Root {
            name: "latest".to_owned(),
            volume: [1; 16],
            sequence,
            moment: Timestamp::from_nanos(moment),
            inodes: 1,
            bytes: 1,
            top: Pointer { hash: [top; 32], blob: BlobId([top; 32]), offset: 0, len: 1, rows: 1 },
            level: 0,
            nodes: 1,
            before: before.map(|before| [before; 32]),
            source: None,
            key: [7; 32],
        }
    }

    fn known() -> Known {
        let mut known = Known::new("s3://b/p");
        known.accept([7; 32]);
        known
    }

    /// A mount moved back to an older record that was put back with its old signature.
    #[test]
    fn regression_an_older_record_is_no_newer_one() {
        let mut known = known();
        assert_eq!(known.judge(&root(5, 500, 5, Some(4))), Verdict::Newer, "the first that is seen");
        known.remember(&root(5, 500, 5, Some(4)));
        let older = Verdict::Older(Seen { moment: 500, sequence: 5, top: [5; 32] });
        assert_eq!(known.judge(&root(5, 500, 5, Some(4))), Verdict::Same);
        assert_eq!(known.judge(&root(4, 400, 4, Some(3))), older);
        assert_eq!(known.judge(&root(5, 500, 9, Some(4))), older, "another of the same number");
        assert_eq!(known.judge(&root(6, 600, 6, Some(5))), Verdict::Newer);
        assert_eq!(known.judge(&root(9, 900, 9, Some(8))), Verdict::Newer, "not all are seen");
        assert_eq!(known.judge(&root(6, 100, 6, Some(5))), Verdict::Newer, "a clock was set back");
        assert_eq!(known.judge(&root(6, 100, 6, Some(4))), older, "it follows another tree");
    }

    #[test]
    fn a_name_that_was_taken_away_and_published_again_goes_on() {
        let mut known = known();
        known.remember(&root(50, 500, 5, None));
        assert_eq!(known.judge(&root(1, 600, 6, None)), Verdict::Newer);
        known.remember(&root(1, 600, 6, None));
        assert!(matches!(known.judge(&root(50, 500, 5, None)), Verdict::Older(_)), "its first life is over");
    }

    /// The owner's record is not signed, so a key in it that was not accepted stays unaccepted, also beside
    /// accepted ones.
    #[test]
    fn regression_another_key_is_accepted_by_a_person_only() {
        let mut known = known();
        let other = Root { key: [8; 32], ..root(6, 600, 6, Some(5)) };
        assert_eq!(known.judge(&other), Verdict::OtherKey(vec![[7; 32]]));
        known.accept([8; 32]);
        assert_eq!(known.judge(&other), Verdict::Newer);
        assert_eq!(known.judge(&root(5, 500, 5, None)), Verdict::Newer, "other names bear the old key");
    }

    #[test]
    fn it_is_read_as_it_was_written_and_nothing_else_is_read() {
        let mut known = known();
        known.accept([8; 32]);
        known.remember(&root(3, -5, 1, None));
        known.remember(&Root { name: "v1.0".to_owned(), ..root(u64::MAX, i64::MAX, 2, None) });
        let text = known.encode();
        assert_eq!(Known::decode(&text).unwrap(), known);
        for end in 0..text.len() {
            let cut = Known::decode(&text[..end]);
            assert!(cut.is_err() || text[..end].ends_with('\n'), "{end}");
        }
        let key = "07".repeat(32);
        for bad in [
            String::new(),
            "covey known 2\norigin x\n".to_owned(),
            format!("{HEAD}\norigin x\nkey {key}\nkey {key}\n"),
            format!("{HEAD}\norigin x\nkey 07\n"),
            format!("{HEAD}\norigin x\nname a/b 1 1 {key}\n"),
            format!("{HEAD}\norigin x\nname a 1 1 {key} more\n"),
            format!("{HEAD}\norigin x\nname a 1 -1 {key}\n"),
            format!("{HEAD}\norigin x\nname a 1 1 {key}\nname a 2 2 {key}\n"),
            format!("{HEAD}\norigin x\nelse\n"),
        ] {
            assert!(Known::decode(&bad).is_err(), "{bad}");
        }
        let name = Known::file_name("s3://b/p", None);
        assert!(name.starts_with("s3---b-p-") && name != Known::file_name("s3://b/p", Some("http://x")));
    }
}
