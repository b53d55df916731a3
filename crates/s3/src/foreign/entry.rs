//! What is known of the objects of a foreign bucket: version and headers, by key, within a bound.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::time::monotonic;
use http::HeaderMap;
use parking_lot::Mutex;

use super::Revalidate;

/// The most entries in each of the two halves.
const HALF: usize = 32_768;
/// Groups of keys whose changes are counted together.
const GROUPS: usize = 256;

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The key.
    pub key: String,
    /// The ETag, without quotes.
    pub etag: String,
    /// The size in bytes.
    pub size: u64,
}

/// What the store said of an object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The version.
    pub version: Arc<Version>,
    /// The headers of its answer that belong to the object.
    pub headers: Arc<HeaderMap>,
    /// When the store was asked.
    asked: Instant,
}

impl Entry {
    /// What the store says now, asked at `asked`.
    pub fn new(version: Version, headers: HeaderMap, asked: Instant) -> Entry {
        Entry { version: Arc::new(version), headers: Arc::new(headers), asked }
    }

    /// Whether it may be used without asking the store.
    fn is_fresh(&self, revalidate: Revalidate) -> bool {
        match revalidate {
            Revalidate::Never => true,
            Revalidate::Every(Duration::ZERO) => false,
            Revalidate::Every(time) => monotonic().duration_since(self.asked) < time,
        }
    }
}

/// The two halves: entries enter `young`. When it is full, it becomes `old`, and what was in `old` is
/// forgotten. An entry that is found in `old` enters `young` again.
#[derive(Default)]
struct Halves {
    young: HashMap<String, Entry>,
    old: HashMap<String, Entry>,
}

impl Halves {
    fn insert(&mut self, entry: Entry) {
        if self.young.len() >= HALF {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(entry.version.key.clone(), entry);
    }
}

/// The entries of a bucket.
pub struct Entries {
    halves: Mutex<Halves>,
    /// How often a key of each group was changed. An answer of the store that was asked for before a change
    /// is not kept.
    changes: [AtomicU64; GROUPS],
}

impl Default for Entries {
    fn default() -> Entries {
        Entries { halves: Mutex::default(), changes: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Entries {
    fn group(&self, key: &str) -> &AtomicU64 {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        &self.changes[hasher.finish() as usize % GROUPS]
    }

    /// The entry of a key, if it may be used without asking the store.
    pub fn fresh(&self, key: &str, revalidate: Revalidate) -> Option<Entry> {
        let mut halves = self.halves.lock();
        if let Some(entry) = halves.young.get(key) {
            return Some(entry.clone()).filter(|entry| entry.is_fresh(revalidate));
        }
        let entry = halves.old.remove(key)?;
        halves.insert(entry.clone());
        Some(entry).filter(|entry| entry.is_fresh(revalidate))
    }

    /// A number to give to [`Entries::keep`], taken before the store is asked.
    pub fn changes(&self, key: &str) -> u64 {
        self.group(key).load(Ordering::SeqCst)
    }

    /// Keeps what the store said, unless the key was changed since.
    pub fn keep(&self, entry: Entry, changes: u64) {
        let mut halves = self.halves.lock();
        if self.changes(&entry.version.key) == changes {
            halves.insert(entry);
        }
    }

    /// Forgets a key.
    pub fn forget(&self, key: &str) {
        let mut halves = self.halves.lock();
        self.group(key).fetch_add(1, Ordering::SeqCst);
        halves.young.remove(key);
        halves.old.remove(key);
    }

    /// Forgets a version, unless the key has another one by now.
    pub fn forget_version(&self, version: &Version) {
        let mut halves = self.halves.lock();
        let Halves { young, old } = &mut *halves;
        for half in [young, old] {
            if half.get(&version.key).is_some_and(|entry| *entry.version == *version) {
                half.remove(&version.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, etag: &str) -> Entry {
        let version = Version { key: key.to_owned(), etag: etag.to_owned(), size: 1 };
        Entry::new(version, HeaderMap::new(), monotonic())
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let entries = Entries::default();
        let has = |key: &str| entries.fresh(key, Revalidate::Never).is_some();
        let before = entries.changes("a");
        entries.forget("a");
        entries.keep(entry("a", "1"), before);
        assert!(!has("a"));
        entries.keep(entry("a", "1"), entries.changes("a"));
        assert!(has("a"));
        entries.forget_version(&entry("a", "2").version);
        assert!(has("a"));
        entries.forget_version(&entry("a", "1").version);
        assert!(!has("a"));
    }

    #[test]
    fn time_makes_an_entry_old() {
        let entries = Entries::default();
        entries.keep(entry("a", "1"), entries.changes("a"));
        assert!(entries.fresh("a", Revalidate::Every(Duration::from_secs(3600))).is_some());
        assert!(entries.fresh("a", Revalidate::Every(Duration::ZERO)).is_none());
        assert!(entries.fresh("a", Revalidate::Every(Duration::from_nanos(1))).is_none());
    }

    #[test]
    fn entries_are_bounded_and_those_in_use_stay() {
        let entries = Entries::default();
        for n in 0..3 * HALF {
            let key = format!("{n}");
            entries.keep(entry(&key, "1"), entries.changes(&key));
            assert!(entries.fresh("0", Revalidate::Never).is_some(), "it is used all the time");
        }
        let halves = entries.halves.lock();
        assert!(halves.young.len() <= HALF && halves.old.len() <= HALF);
    }
}
