//! What belongs to the bytes of an object, and what a program does to them.

use base::Timestamp;
use fs::api::{Allocate, SetAttr, SetTime};

use super::*;
use crate::attributes::{self, Sum};
use crate::bucket::Found;

/// An object with a checksum.
fn summed(bucket: &Arc<Bucket>, text: &str, data: &[u8]) -> Found {
    let mut staged = Staged::new(bucket, &Expected::default()).unwrap();
    staged.write(data).unwrap();
    let (whole, digests) = staged.finish();
    let sum = Sum { algorithm: "CRC32".into(), kind: "FULL_OBJECT".into(), value: "AAAAAA==".into() };
    whole.dress(&Dress { etag: digests.md5_hex(), sum: Some(sum), ..Dress::default() }).unwrap();
    whole.publish(&key(text), &Conditions::default()).unwrap();
    object::open(bucket, text).unwrap().found
}

/// Puts the time of change back, as `cp -p`, `rsync -t` and `touch -r` do.
fn put_back(bucket: &Arc<Bucket>, found: &Found) {
    let set = SetAttr { mtime: Some(SetTime::To(found.attr.mtime)), ..SetAttr::default() };
    bucket.fs().setattr(&ROOT, found.node(), &set).unwrap();
}

fn resize(bucket: &Arc<Bucket>, found: &Found, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    bucket.fs().setattr(&ROOT, found.node(), &set).unwrap();
}

/// The ETag and the checksum of an object belonged to its size and time. A program that wrote other bytes of
/// the same size and put the time back left them: a cache was told that nothing had changed, and If-Match let
/// a writer replace what it had not seen.
#[test]
fn regression_an_etag_changes_with_the_bytes_whatever_the_time_says() {
    type Change = fn(&Arc<Bucket>, &Found);
    let changes: [(&str, Change); 5] = [
        ("a write", |bucket, found| {
            bucket.fs().write(found.node(), 0, b"x", None, false).unwrap();
        }),
        ("a page of the kernel", |bucket, found| {
            bucket.fs().write(found.node(), 0, b"x", None, true).unwrap();
        }),
        ("a hole", |bucket, found| {
            bucket.fs().allocate(found.node(), 0, 4, Allocate::PunchHole).unwrap();
        }),
        ("a cut", |bucket, found| {
            resize(bucket, found, 3);
            resize(bucket, found, found.attr.size);
        }),
        ("a copied range", |bucket, found| {
            put(bucket, "other", &vec![9; found.attr.size as usize]);
            let other = object::open(bucket, "other").unwrap().found;
            bucket.fs().copy_range(other.node(), 0, found.node(), 0, found.attr.size).unwrap();
        }),
    ];
    for size in [8, 100 << 10, 5 << 20] {
        for (what, change) in changes {
            let bucket = bucket();
            let found = summed(&bucket, "k", &vec![7; size]);
            let before = object::open(&bucket, "k").unwrap();
            assert!(before.sum.is_some() && before.etag.len() == 32);
            let mut seen = vec![before.etag.clone()];
            for _ in 0..3 {
                change(&bucket, &found);
                put_back(&bucket, &found);
                let after = object::open(&bucket, "k").unwrap();
                assert_eq!((after.size, after.modified), (before.size, before.modified), "{what}");
                assert!(after.etag.ends_with("-0") && after.etag.len() == 34, "{what}: {}", after.etag);
                assert!(!seen.contains(&after.etag), "{what} of {size}");
                assert_eq!(after.sum, None, "{what} of {size}");
                seen.push(after.etag);
            }
            let known = |etag: &str| Conditions {
                if_match: Some(ETagCondition::ETag(s3s::dto::ETag::Strong(etag.to_owned()))),
                ..Conditions::default()
            };
            assert_eq!(code(put_if(&bucket, "k", b"2", &known(&seen[0]))), "PreconditionFailed", "{what}");
            assert_eq!(code(put_if(&bucket, "k", b"2", &known(&seen[3]))), "fine", "{what}");
        }
    }
}

#[test]
fn what_changes_no_byte_keeps_the_etag() {
    for size in [8, 100 << 10] {
        let bucket = bucket();
        let found = summed(&bucket, "k", &vec![7; size]);
        let made = bucket.fs().mknod(
            &ROOT,
            Ino::ROOT,
            b"written",
            &NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 },
        );
        let written = bucket.hold(made.unwrap().node);
        bucket.fs().write(written.node(), 0, &vec![3; size], None, false).unwrap();
        let of = |key: &str| {
            let object = object::open(&bucket, key).unwrap();
            (object.etag, object.sum)
        };
        let before = (of("k"), of("written"));
        for node in [found.node(), written.node()] {
            let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            bucket.fs().setattr(&ROOT, node, &mode).unwrap();
            bucket.set(node, attributes::TAGS, b"a=b").unwrap();
            bucket.fs().link(node, Ino::ROOT, format!("link-{}", node.0).as_bytes()).unwrap();
        }
        assert_eq!((of("k"), of("written")), before);
        // A copy moves the bytes of a small file out of its row.
        let conditions = ReadConditions::default();
        for from in ["k", "written"] {
            let from = From { bucket: &bucket, key: from, conditions: &conditions };
            copying::object(&from, &bucket, "copy", Instead::default(), &Conditions::default()).unwrap();
        }
        assert_eq!((of("k"), of("written")), before);
    }
}

/// Attributes that a program copies to another file, as `cp -a` does, say nothing of that one.
#[test]
fn an_etag_belongs_to_one_file() {
    let bucket = bucket();
    let one = summed(&bucket, "one", b"1");
    let other = summed(&bucket, "other", b"2");
    put_back(&bucket, &Found { held: bucket.lookup(Ino::ROOT, b"other").unwrap().held, attr: one.attr });
    for name in [attributes::ETAG, attributes::CHECKSUM] {
        let value = bucket.get(one.node(), name).unwrap().unwrap();
        bucket.set(other.node(), name, value.as_bytes()).unwrap();
    }
    let object = object::open(&bucket, "other").unwrap();
    assert_eq!((object.etag.len(), object.sum), (34, None));
}

/// Earlier releases wrote size and time alone. Their objects keep what they have until a program writes.
#[test]
fn an_etag_of_an_earlier_release_counts_until_the_first_write() {
    let bucket = bucket();
    let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    let held = bucket.hold(bucket.fs().mknod(&ROOT, Ino::ROOT, b"k", &node).unwrap().node);
    let mtime = SetAttr { mtime: Some(SetTime::To(Timestamp(5))), ..SetAttr::default() };
    bucket.fs().setattr(&ROOT, held.node(), &mtime).unwrap();
    bucket.set(held.node(), attributes::ETAG, b"0 5 d41d8cd98f00b204e9800998ecf8427e").unwrap();
    assert_eq!(object::open(&bucket, "k").unwrap().etag, crate::list::EMPTY);
    bucket.fs().write(held.node(), 0, b"1", None, false).unwrap();
    let none = SetAttr { size: Some(0), ..mtime };
    bucket.fs().setattr(&ROOT, held.node(), &none).unwrap();
    bucket.fs().setattr(&ROOT, held.node(), &mtime).unwrap();
    let object = object::open(&bucket, "k").unwrap();
    assert!(object.modified == Timestamp(5) && object.etag.ends_with("-0"), "{}", object.etag);
}
