use std::time::Duration;

use base::{BlobId, Ino};

use super::*;
use crate::journal::tests::NoPacks;
use crate::journal::{Journal, Options};
use crate::store::{Commit, MetaStore, Value};

fn open(dir: &std::path::Path) -> Journal {
    let options = Options { commit_every: Duration::from_millis(5), ..Options::default() };
    Journal::open(dir, Arc::new(NoPacks), options).unwrap().0
}

fn name(n: u64) -> Key {
    Key::dentry(Ino::ROOT, format!("file-{n}").as_bytes())
}

fn put(journal: &Journal, key: Key) {
    let value = Value::from(b"value".as_slice());
    journal.commit(Commit { puts: vec![(key, value)], ..Commit::default() }).unwrap();
}

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = base::time::monotonic();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_filter_never_misses_and_seldom_errs() {
    let filter = Filter::for_keys(100_000);
    (0..100_000).for_each(|n| filter.put(name(n).as_bytes()));
    assert!((0..100_000).all(|n| filter.may_have(name(n).as_bytes())));
    assert!(!filter.is_full());
    let wrong = (100_000..200_000).filter(|n| filter.may_have(name(*n).as_bytes())).count();
    assert!(wrong < 8_000, "{wrong} of 100,000 absent keys are looked up needlessly");
}

#[test]
fn numbers_beyond_the_highest_are_absent_even_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    let absent = &journal.shared.absent;
    let ino = Ino(1000);
    let keys =
        [Key::inode(ino), Key::extents(ino, 3), Key::xattr(ino, b"user.x"), Key::dentry(ino, b"in it")];
    assert!(keys.iter().all(|key| absent.is_absent(key)));
    keys.iter().for_each(|key| put(&journal, key.clone()));
    journal.drain().unwrap();
    assert!(!keys.iter().any(|key| absent.is_absent(key)));
    assert!(absent.is_absent(&Key::inode(Ino(1001))));
    assert!(absent.is_absent(&Key::inline(Ino(1))), "no row of this kind was ever there");
    assert!(absent.is_empty(&Key::extents_from(Ino(1001), 0)));
    assert!(!absent.is_empty(&Key::extents_from(Ino(999), 0)) && !absent.is_empty(&Key::kind(tags::EXTENTS)));
    journal.close().unwrap();
    drop(journal);
    let journal = open(dir.path());
    for key in &keys {
        assert!(journal.get(key).unwrap().is_some(), "{key:?}");
    }
    assert!(journal.shared.absent.is_absent(&Key::inode(Ino(1001))));
}

#[test]
fn existing_names_are_found_during_and_after_a_filter_build() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    let count = 3 * SCAN_ROWS as u64;
    (0..count).for_each(|n| put(&journal, name(n)));
    put(&journal, Key::content(&BlobId([7; 32])));
    journal.close().unwrap();
    drop(journal);
    let journal = open(dir.path());
    assert!(!journal.shared.absent.complete.load(Ordering::Acquire));
    assert!(!journal.shared.absent.is_absent(&name(count)), "the filter is not complete yet");
    put(&journal, name(count));
    until("no filter was made", || journal.shared.absent.complete.load(Ordering::Acquire));
    journal.drain().unwrap();
    for n in 0..=count {
        assert!(journal.get(&name(n)).unwrap().is_some(), "name {n}");
    }
    assert!(journal.get(&Key::content(&BlobId([7; 32]))).unwrap().is_some());
    let spared = (1..=1000).filter(|n| journal.shared.absent.is_absent(&name(count + n))).count();
    assert!(spared > 800, "{spared} of 1,000 absent names are known to be absent");
}

/// Rows are added and removed: keys put in long ago must not make the filter useless.
#[test]
fn an_overfull_filter_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    let first = journal.shared.absent.filters.read().0.clone();
    let rows: RowMap = (0..=KEYS_MIN as u64).map(|n| (name(n), Some(Value::from(&b""[..])))).collect();
    journal.shared.absent.announce(&rows);
    assert!(first.is_full());
    put(&journal, name(u64::MAX));
    until("no new filter", || {
        put(&journal, name(u64::MAX));
        !Arc::ptr_eq(&first, &journal.shared.absent.filters.read().0)
    });
    assert!(journal.get(&name(u64::MAX)).unwrap().is_some());
    assert!(journal.shared.absent.is_absent(&name(1)) || journal.shared.absent.is_absent(&name(2)));
}

#[test]
fn rows_drained_during_a_filter_build_are_in_the_filter() {
    let dir = tempfile::tempdir().unwrap();
    let absent = Absent::of(&Sqlite::open(&dir.path().join("names.db")).unwrap()).unwrap();
    let made = absent.begin(0);
    absent.announce(&[(name(1), Some(Value::from(&b""[..]))), (name(2), None)].into_iter().collect());
    absent.end(Some(made));
    assert!(!absent.is_absent(&name(1)));
    assert!(absent.is_absent(&name(2)) && absent.is_absent(&name(3)));
}
