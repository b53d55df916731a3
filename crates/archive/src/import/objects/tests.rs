use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use parking_lot::Mutex;

use super::there::OnMount;
use super::*;
use crate::import::place::Place;
use crate::transfer::{self, Summary, Watch};

/// A bucket in memory, with faults.
#[derive(Default)]
struct Memory {
    objects: BTreeMap<String, Vec<u8>>,
    /// The key whose reads fail from this offset on, and how.
    faults: Vec<(&'static str, u64, Unread)>,
    /// So many reads of this key give a wrong byte.
    wrong: Mutex<BTreeMap<&'static str, u32>>,
    reads: AtomicUsize,
    held: AtomicU64,
    most_held: AtomicU64,
}

impl Memory {
    fn of(keys: &[(&str, usize)]) -> Memory {
        let object = |(key, size): &(&str, usize)| ((*key).to_owned(), bytes(key, *size));
        Memory { objects: keys.iter().map(object).collect(), ..Memory::default() }
    }
}

fn bytes(key: &str, size: usize) -> Vec<u8> {
    key.bytes()
        .chain(0..=255)
        .cycle()
        .enumerate()
        .map(|(at, byte)| byte ^ (at >> 13) as u8)
        .take(size)
        .collect()
}

impl Bucket for Memory {
    fn shown(&self) -> String {
        "mem://b".to_owned()
    }

    fn list(&self, each: &mut dyn FnMut(Object) -> bool) -> Result<()> {
        for (key, bytes) in &self.objects {
            let etag =
                if key.contains("untagged") { String::new() } else { format!("{}-{key}", bytes.len()) };
            let modified = Timestamp::from_parts(1_000_000_000, 250_000_000);
            each(Object { key: key.clone(), size: bytes.len() as u64, etag, modified });
        }
        Ok(())
    }

    fn read(&self, object: &Object, range: Range<u64>) -> std::result::Result<Vec<u8>, Unread> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let held = self.held.fetch_add(range.end - range.start, Ordering::SeqCst) + range.end - range.start;
        self.most_held.fetch_max(held, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(object.size % 7));
        self.held.fetch_sub(range.end - range.start, Ordering::SeqCst);
        for (key, from, unread) in &self.faults {
            if object.key.starts_with(key) && range.end > *from {
                return Err(unread.clone());
            }
        }
        let mut bytes = self.objects[&object.key][range.start as usize..range.end as usize].to_vec();
        if let Some(left) = self.wrong.lock().get_mut(&*object.key).filter(|left| **left > 0) {
            *left -= 1;
            bytes[7] ^= 1;
        }
        Ok(bytes)
    }

    fn check(&self, object: &Object) -> std::result::Result<Box<dyn Check>, Unread> {
        Ok(Box::new(Wanted { right: self.objects[&object.key].clone(), came: Vec::new() }))
    }
}

/// The bytes that an object has, and those that came.
struct Wanted {
    right: Vec<u8>,
    came: Vec<u8>,
}

impl Check for Wanted {
    fn add(&mut self, bytes: &[u8]) {
        self.came.extend_from_slice(bytes);
    }

    fn end(self: Box<Self>) -> std::result::Result<(), String> {
        if self.came == self.right { Ok(()) } else { Err("its bytes differ".to_owned()) }
    }
}

/// A large object with a changed byte was imported, and nothing said so.
#[test]
fn regression_wrong_bytes_of_a_large_object_are_read_again_and_never_kept() {
    let temp = tempfile::tempdir().unwrap();
    let size = (17 << 20) + 1;
    let bucket = Memory::of(&[("a", 9), ("once", size), ("often", size), ("z", 9)]);
    *bucket.wrong.lock() = [("once", 2), ("often", u32::MAX)].into();
    let (bucket, to) = (Arc::new(bucket), temp.path().join("to"));
    let summary = import(&bucket, &to, false).unwrap();
    assert_eq!(whys(&summary), [("mem://b/often", "its bytes differ, in 3 reads")]);
    for key in ["a", "once", "z"] {
        assert!(fs::read(to.join(key)).unwrap() == bucket.objects[key], "{key}");
    }
    assert!(!to.join("often").exists());
}

fn import(bucket: &Arc<Memory>, to: &Path, overwrite: bool) -> Result<Summary> {
    let owner = Owner { uid: api::caller::euid(), gid: api::caller::egid(), umask: 0o027 };
    let source = Objects::new(bucket.clone(), Box::new(OnMount::new(to)), owner, overwrite);
    let mut sink = Place::new(to, overwrite)?;
    transfer::run(Box::new(source), &mut sink, Watch { stop: None, event: &mut |_| () })
}

fn whys(summary: &Summary) -> Vec<(&str, &str)> {
    summary.skipped.iter().map(|skipped| (&*skipped.path, &*skipped.why)).collect()
}

/// Whether this filesystem keeps the attribute that a second import needs.
fn has_xattrs(folder: &Path) -> bool {
    let set = rustix::fs::setxattr(folder, ETAG, b"x", rustix::fs::XattrFlags::empty());
    if set.is_err() {
        println!("skipped: lacks extended attributes of users");
    }
    set.is_ok()
}

#[test]
fn objects_become_files_with_their_times() {
    let temp = tempfile::tempdir().unwrap();
    if !has_xattrs(temp.path()) {
        return;
    }
    let to = temp.path().join("to");
    let mut keys: Vec<(String, usize)> =
        (0..1000).map(|n| (format!("many/{}/f{n}", n % 7), n * 37 % 3000)).collect();
    keys.push(("large".to_owned(), (20 << 20) + 3));
    keys.push(("empty".to_owned(), 0));
    keys.push(("marked/".to_owned(), 0));
    keys.push(("marked/ü &".to_owned(), 9));
    let keys: Vec<(&str, usize)> = keys.iter().map(|(key, size)| (&**key, *size)).collect();
    let bucket = Arc::new(Memory::of(&keys));
    let summary = import(&bucket, &to, false).unwrap();
    assert_eq!(whys(&summary), []);
    assert_eq!(summary.files, 1004);
    for (key, bytes) in bucket.objects.iter().filter(|(key, _)| !key.ends_with('/')) {
        assert!(fs::read(to.join(key)).unwrap() == *bytes, "{key}");
    }
    let about = fs::metadata(to.join("large")).unwrap();
    assert_eq!(
        (about.mtime(), about.mtime_nsec(), about.mode() & 0o777),
        (1_000_000_000, 250_000_000, 0o640)
    );
    let marked = fs::metadata(to.join("marked")).unwrap();
    assert_eq!((marked.mtime(), marked.mode() & 0o777), (1_000_000_000, 0o750));
    let most = bucket.most_held.load(Ordering::SeqCst);
    assert!(most <= reads::WINDOW + PART, "{most} bytes at a time");
    // Again: nothing is read.
    let before = bucket.reads.load(Ordering::SeqCst);
    let summary = import(&bucket, &to, false).unwrap();
    assert_eq!((summary.files, summary.already, whys(&summary).len()), (0, 1003, 0));
    assert_eq!(bucket.reads.load(Ordering::SeqCst), before);
    // Only what is missing or has changed is read, and that only if it may replace files.
    fs::remove_file(to.join("many/3/f3")).unwrap();
    let mut changed = Memory::of(&keys);
    changed.objects.insert("empty".to_owned(), b"now with bytes".to_vec());
    let changed = Arc::new(changed);
    let summary = import(&changed, &to, false).unwrap();
    assert_eq!((summary.files, summary.already, summary.skipped.len()), (1, 1001, 1));
    assert!(summary.skipped[0].path == "mem://b/empty" && summary.skipped[0].why.contains("--overwrite"));
    assert_eq!(import(&changed, &to, true).unwrap().files, 1);
    assert_eq!(fs::read(to.join("empty")).unwrap(), b"now with bytes");
    assert_eq!(changed.reads.load(Ordering::SeqCst), 2);
}

#[test]
fn keys_that_cannot_be_paths_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let to = temp.path().join("to");
    let long = format!("x/{}", "n".repeat(256));
    let bad = [
        "/a",
        "a//b",
        "b//",
        "..",
        "x/../y",
        "./z",
        "x/.",
        "n\0l",
        "new\nline",
        "untagged",
        "also/a",
        &long,
        "bytes/",
    ];
    let mut keys: Vec<(&str, usize)> = bad.iter().map(|key| (*key, 5)).collect();
    keys.extend([("also/a/b", 5), ("also/a.c", 5), ("a", 5), ("good", 5), ("", 0)]);
    let bucket = Arc::new(Memory::of(&keys));
    let summary = import(&bucket, &to, false).unwrap();
    let mut named: Vec<&str> =
        whys(&summary).iter().map(|(path, _)| path.strip_prefix("mem://b/").unwrap()).collect();
    named.sort_unstable();
    let mut bad = bad.to_vec();
    bad.sort_unstable();
    assert_eq!(named, bad);
    assert!(whys(&summary).iter().all(|(_, why)| !why.is_empty()));
    assert_eq!(summary.files, 4);
    for key in ["also/a/b", "also/a.c", "a", "good"] {
        assert_eq!(fs::read(to.join(key)).unwrap(), bytes(key, 5), "{key}");
    }
    assert!(!temp.path().join("y").exists() && !temp.path().join("z").exists());
}

#[test]
fn an_object_that_changes_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let to = temp.path().join("to");
    let mut bucket = Memory::of(&[("a", 9), ("large", 30 << 20), ("small", 9), ("z", 9)]);
    // The first two parts of it are read.
    bucket.faults = vec![("large", 17 << 20, Unread::Changed), ("small", 0, Unread::Changed)];
    let summary = import(&Arc::new(bucket), &to, false).unwrap();
    let named: Vec<&str> = whys(&summary).iter().map(|(path, _)| *path).collect();
    assert_eq!((named, summary.files), (vec!["mem://b/large", "mem://b/small"], 2));
    assert!(summary.skipped[0].why.contains("changed"));
    let mut there: Vec<_> = fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    there.sort();
    assert_eq!(there, ["a", "z"]);
}

#[test]
fn refusals_of_one_object_and_of_all_are_told_apart() {
    let temp = tempfile::tempdir().unwrap();
    let denied = || Unread::Denied(Failure::new("origin-denied", "access denied"));
    let keys: Vec<String> = (0..50).map(|n| format!("f{n:02}")).collect();
    let keys: Vec<(&str, usize)> = keys.iter().map(|key| (&**key, 5)).collect();
    let mut some = Memory::of(&keys);
    some.faults = vec![("f1", 0, denied()), ("f2", 0, Unread::Object("archived".to_owned()))];
    let summary = import(&Arc::new(some), &temp.path().join("some"), false).unwrap();
    assert_eq!((summary.files, summary.skipped.len()), (30, 20));
    let mut all = Memory::of(&keys);
    all.faults = vec![("f", 0, denied())];
    assert_eq!(import(&Arc::new(all), &temp.path().join("all"), false).unwrap_err().code, "origin-denied");
    let mut away = Memory::of(&keys);
    away.faults = vec![("f30", 0, Unread::Store(Failure::new("origin-away", "nothing answers")))];
    assert_eq!(import(&Arc::new(away), &temp.path().join("away"), false).unwrap_err().code, "origin-away");
    assert_eq!(fs::read_dir(temp.path().join("away")).unwrap().count(), 30);
    let none = import(&Arc::new(Memory::default()), &temp.path().join("none"), false).unwrap_err();
    assert!(none.code == "not-found" && none.what.contains("mem://b"), "{none}");
}
