//! Objects in a volume in memory.

mod content;
mod faults;
mod odd;
mod strangers;

use std::ops::ControlFlow;
use std::sync::Arc;

use base::Ino;
use fs::api::{Caller, FileKind, NewNode};
use fs::volume::{FormatRequest, Options, Parts, Volume};
use s3s::dto::ETagCondition;

use crate::attributes::Headers;
use crate::bucket::{Bucket, Made, NotMounted};
use crate::copying::{self, From, Instead, ToPart};
use crate::errors::Result;
use crate::keys::Key;
use crate::list::{Order, Page, list};
use crate::object::{self, ReadConditions};
use crate::stage::{self, Conditions, Dress, Staged};
use crate::sums::Expected;
use crate::uploads::{self, Completion, Named, Summing};

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };

struct OriginSource(Arc<dyn blob::Origin>);

impl blob::BlobSource for OriginSource {
    fn read_at(
        &self,
        id: &base::BlobId,
        offset: u32,
        buf: &mut [u8],
    ) -> std::result::Result<(), blob::BlobError> {
        self.0.read_at(id, offset, buf)
    }

    fn is_local(&self, id: &base::BlobId) -> bool {
        self.0.is_local(id)
    }
}

fn volume() -> Arc<Volume> {
    let origin: Arc<dyn blob::Origin> = Arc::new(origin::Memory::new());
    let packs = Arc::new(cache::MemoryPacks::new(origin.clone()));
    let store = Arc::new(meta::engine::memory::Memory::new());
    let parts = Parts { store, packs, source: Arc::new(OriginSource(origin.clone())), origin };
    Volume::format(&parts, &FormatRequest::default()).unwrap();
    Arc::new(Volume::open(parts, Options::default()).unwrap())
}

/// A bucket over a volume in memory.
pub(crate) fn bucket_over(fs: Arc<Volume>, read_only: bool) -> Arc<Bucket> {
    let name = "bucket".to_owned();
    Arc::new(Bucket::new(Made { name, fs, changes: Arc::new(NotMounted), read_only, owner: (0, 0) }))
}

/// A new one.
pub(crate) fn bucket() -> Arc<Bucket> {
    bucket_over(volume(), false)
}

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn put_if(bucket: &Arc<Bucket>, text: &str, data: &[u8], conditions: &Conditions) -> Result<()> {
    let key = Key::parse(text)?;
    if key.is_folder() {
        return stage::make_folder(bucket, &key, &Dress::default(), conditions);
    }
    let mut staged = Staged::new(bucket, &Expected::default()).map_err(crate::errors::of)?;
    staged.write(data).map_err(crate::errors::of)?;
    let (whole, digests) = staged.finish();
    whole.dress(&Dress { etag: digests.md5_hex(), ..Dress::default() }).map_err(crate::errors::of)?;
    whole.publish(&key, conditions)
}

fn put(bucket: &Arc<Bucket>, text: &str, data: &[u8]) {
    put_if(bucket, text, data, &Conditions::default()).unwrap();
}

fn get(bucket: &Arc<Bucket>, text: &str) -> Option<Vec<u8>> {
    let object = object::open(bucket, text).ok()?;
    let mut data = vec![0; object.size as usize];
    if object.size > 0 {
        bucket.fs().read(object.found.node(), 0, &mut data).unwrap();
    }
    Some(data)
}

fn delete(bucket: &Arc<Bucket>, text: &str) -> bool {
    stage::remove(bucket, &key(text), &Conditions::default()).unwrap()
}

fn code<T>(result: Result<T>) -> String {
    result.map_or_else(|error| error.code().as_str().to_owned(), |_| "fine".to_owned())
}

fn names(bucket: &Arc<Bucket>, folder: Ino) -> Vec<String> {
    let mut names = Vec::new();
    bucket
        .fs()
        .readdir(folder, 0, &mut |entry| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            if !name.starts_with('.') {
                names.push(name);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    names.sort();
    names
}

fn keys(page: &Page) -> Vec<String> {
    page.objects.iter().map(|object| object.key.clone()).collect()
}

fn all(
    bucket: &Arc<Bucket>,
    prefix: &str,
    delimiter: Option<&str>,
    max: usize,
) -> (Vec<String>, Vec<String>) {
    let (mut objects, mut groups) = (Vec::new(), Vec::new());
    let delimiter = delimiter.map(str::to_owned);
    let mut order = Order { prefix: prefix.to_owned(), delimiter, after: String::new(), max };
    loop {
        let page = list(bucket, &order).unwrap();
        assert!(page.objects.len() + page.groups.len() <= max);
        objects.extend(keys(&page));
        groups.extend(page.groups);
        match page.next {
            Some(next) => order.after = next,
            None => return (objects, groups),
        }
    }
}

#[test]
fn an_object_comes_back_and_goes() {
    let bucket = bucket();
    put(&bucket, "a/b/c", b"hello");
    assert_eq!(get(&bucket, "a/b/c").as_deref(), Some(&b"hello"[..]));
    let object = object::open(&bucket, "a/b/c").unwrap();
    assert_eq!(object.etag, "5d41402abc4b2a76b9719d911017c592");
    put(&bucket, "a/b/c", b"other");
    assert_eq!(get(&bucket, "a/b/c").as_deref(), Some(&b"other"[..]));
    for key in ["a", "a/", "a/b", "a/b/", "a/b/c/", "a/b/c/d", "x", "", "a//b", "../a"] {
        assert_eq!(code(object::open(&bucket, key)), "NoSuchKey", "{key}");
    }
    assert!(delete(&bucket, "a/b/c") && !delete(&bucket, "a/b/c"));
    assert_eq!(names(&bucket, Ino::ROOT), [] as [&str; 0]);
}

#[test]
fn folders_of_users_stay_and_folders_of_the_gateway_go() {
    let bucket = bucket();
    let mine = bucket.fs().mkdir(&ROOT, Ino::ROOT, b"mine", 0o755, 0).unwrap();
    put(&bucket, "mine/deep/er/x", b"1");
    put(&bucket, "mine/deep/y", b"2");
    delete(&bucket, "mine/deep/er/x");
    assert_eq!(names(&bucket, mine.node), ["deep"]);
    delete(&bucket, "mine/deep/y");
    assert_eq!(names(&bucket, mine.node), [] as [&str; 0]);
    assert_eq!(names(&bucket, Ino::ROOT), ["mine"]);
    // A folder that is an object itself stays until it is deleted.
    put(&bucket, "f/", b"");
    put(&bucket, "f/x", b"");
    delete(&bucket, "f/x");
    assert_eq!(get(&bucket, "f/").as_deref(), Some(&b""[..]));
    delete(&bucket, "f/");
    assert_eq!(names(&bucket, Ino::ROOT), ["mine"]);
    // With something in it, it becomes a folder like any other.
    put(&bucket, "f/", b"");
    put(&bucket, "f/x", b"");
    delete(&bucket, "f/");
    assert_eq!(all(&bucket, "", None, 10).0, ["f/x"]);
    delete(&bucket, "f/x");
    assert_eq!(names(&bucket, Ino::ROOT), ["mine"]);
}

#[test]
fn a_key_that_is_a_prefix_of_another_is_refused() {
    let bucket = bucket();
    put(&bucket, "a/b", b"1");
    put(&bucket, "x", b"1");
    for key in ["a", "a/b/c", "x/y", "x/"] {
        assert_eq!(code(put_if(&bucket, key, b"", &Conditions::default())), "InvalidArgument", "{key}");
    }
    assert_eq!(all(&bucket, "", None, 10).0, ["a/b", "x"]);
}

#[test]
fn what_fails_leaves_no_folder() {
    let bucket = bucket();
    let must_exist = Conditions { if_match: Some(ETagCondition::Any), ..Conditions::default() };
    assert_eq!(code(put_if(&bucket, "p/q/r", b"", &must_exist)), "NoSuchKey");
    assert_eq!(names(&bucket, Ino::ROOT), [] as [&str; 0]);
}

#[test]
fn conditions_hold() {
    let bucket = bucket();
    let new = Conditions { if_none_match: Some(ETagCondition::Any), ..Conditions::default() };
    put_if(&bucket, "k", b"1", &new).unwrap();
    assert_eq!(code(put_if(&bucket, "k", b"2", &new)), "PreconditionFailed");
    let is = |etag: &str| Conditions { if_match: Some(etag.parse().unwrap()), ..Conditions::default() };
    assert_eq!(code(put_if(&bucket, "k", b"2", &is("\"00\""))), "PreconditionFailed");
    put_if(&bucket, "k", b"2", &is("\"c4ca4238a0b923820dcc509a6f75849b\"")).unwrap();
    assert_eq!(get(&bucket, "k").as_deref(), Some(&b"2"[..]));
}

#[test]
fn listings_are_in_the_order_of_keys() {
    let bucket = bucket();
    let mut wanted = vec!["a-b", "a.b", "a/c", "a/d/e", "a0", "b", "ä/x"];
    for key in &wanted {
        put(&bucket, key, b"");
    }
    wanted.sort_unstable();
    for max in [1, 2, 3, 100] {
        assert_eq!(all(&bucket, "", None, max).0, wanted, "{max}");
        let (objects, groups) = all(&bucket, "", Some("/"), max);
        assert_eq!(
            (objects, groups),
            (
                ["a-b", "a.b", "a0", "b"].iter().map(|s| s.to_string()).collect(),
                vec!["a/".to_owned(), "ä/".to_owned()]
            )
        );
        assert_eq!(all(&bucket, "a/", Some("/"), max), (vec!["a/c".to_owned()], vec!["a/d/".to_owned()]));
        assert_eq!(all(&bucket, "a", None, max).0, ["a-b", "a.b", "a/c", "a/d/e", "a0"]);
        assert_eq!(all(&bucket, "a/d", Some("/"), max).1, ["a/d/"]);
        assert_eq!(all(&bucket, "", Some("-"), max).1, ["a-"]);
    }
    for nothing in ["x", "b/", "a//", "/", "../", ".covey-s3/", ".covey"] {
        assert_eq!(all(&bucket, nothing, None, 10), (vec![], vec![]), "{nothing}");
    }
    let after = |after: &str| {
        let order = Order { after: after.to_owned(), max: 100, ..Order::default() };
        keys(&list(&bucket, &order).unwrap())
    };
    assert_eq!(after("a/c"), ["a/d/e", "a0", "b", "ä/x"]);
    assert_eq!(after("a/d/"), ["a/d/e", "a0", "b", "ä/x"]);
    assert_eq!(after("a/"), ["a/c", "a/d/e", "a0", "b", "ä/x"]);
    assert_eq!(after("a/zzz"), ["a0", "b", "ä/x"]);
}

#[test]
fn a_listing_passes_what_is_no_object() {
    let bucket = bucket();
    let fs = bucket.fs().clone();
    fs.symlink(&ROOT, Ino::ROOT, b"link", b"x").unwrap();
    let fifo = NewNode { kind: FileKind::Fifo, perm: 0o644, umask: 0, rdev: 0 };
    fs.mknod(&ROOT, Ino::ROOT, b"fifo", &fifo).unwrap();
    let file = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    fs.mknod(&ROOT, Ino::ROOT, b"no\xfftext", &file).unwrap();
    fs.mknod(&ROOT, Ino::ROOT, b"file", &file).unwrap();
    put(&bucket, "folder/", b"");
    put(&bucket, "x", b"");
    assert_eq!(all(&bucket, "", None, 2).0, ["file", "folder/", "x"]);
    assert_eq!(all(&bucket, "folder/", Some("/"), 2).0, ["folder/"]);
    assert!(object::open(&bucket, "file").unwrap().etag.ends_with("-0"));
}

#[test]
fn a_folder_of_more_entries_than_a_batch_is_listed() {
    let bucket = bucket();
    let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    let mut wanted: Vec<String> =
        (0..3_000).map(|n: u32| format!("{:08x}", n.wrapping_mul(2_654_435_761))).collect();
    let mut changed = std::time::Instant::now();
    for name in &wanted {
        changed = std::time::Instant::now();
        bucket.fs().mknod(&ROOT, Ino::ROOT, name.as_bytes(), &node).unwrap();
    }
    wanted.sort();
    assert_eq!(all(&bucket, "", None, 1_000).0, wanted);
    assert_eq!(all(&bucket, "", Some("/"), 999).0, wanted);
    let is_quiet = changed.elapsed() > std::time::Duration::from_secs(1);
    assert!(is_quiet || bucket.ahead.lock().is_none());
    // Once the folder has been quiet for a second, pages come from what the first pass kept.
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    assert_eq!(all(&bucket, "", None, 700).0, wanted);
    assert!(bucket.ahead.lock().is_some());
    assert_eq!(all(&bucket, "", Some("/"), 1_000).0, wanted);
    assert_eq!(
        all(&bucket, "8", None, 10).0,
        wanted.iter().filter(|name| name.starts_with('8')).cloned().collect::<Vec<_>>()
    );
    put(&bucket, "80/x", b"");
    delete(&bucket, &wanted[7]);
    let gone = wanted.remove(7);
    wanted.push("80/x".to_owned());
    wanted.sort();
    assert_eq!(all(&bucket, "", None, 500).0, wanted, "without {gone}");
    std::thread::sleep(std::time::Duration::from_millis(1_200));
    assert_eq!(all(&bucket, "", None, 1).0, wanted);
}

#[test]
fn a_read_only_bucket_refuses_changes() {
    let volume = volume();
    put(&bucket_over(volume.clone(), false), "k", b"1");
    let bucket = bucket_over(volume, true);
    assert_eq!(get(&bucket, "k").as_deref(), Some(&b"1"[..]));
    assert_eq!(code(put_if(&bucket, "k", b"2", &Conditions::default())), "AccessDenied");
    assert_eq!(code(put_if(&bucket, "f/", b"", &Conditions::default())), "AccessDenied");
    assert_eq!(code(stage::remove(&bucket, &key("k"), &Conditions::default())), "AccessDenied");
}

#[test]
fn copies_share_bytes_and_keep_headers() {
    let (bucket, other) = (bucket(), bucket());
    let headers = Headers { content_type: Some("text/x".to_owned()), ..Headers::default() };
    let big = vec![7; 3 << 20];
    let mut staged = Staged::new(&bucket, &Expected::default()).unwrap();
    staged.write(&big).unwrap();
    let (whole, digests) = staged.finish();
    whole.dress(&Dress { headers: headers.clone(), etag: digests.md5_hex(), ..Dress::default() }).unwrap();
    whole.publish(&key("from"), &Conditions::default()).unwrap();
    let conditions = ReadConditions::default();
    let from = From { bucket: &bucket, key: "from", conditions: &conditions };
    for to in [&bucket, &other] {
        let copied = copying::object(&from, to, "to/x", Instead::default(), &Conditions::default()).unwrap();
        assert_eq!(copied.etag, digests.md5_hex());
        assert_eq!(get(to, "to/x").unwrap(), big);
        assert_eq!(object::open(to, "to/x").unwrap().headers, headers);
    }
    assert_eq!(
        code(copying::object(&from, &bucket, "from", Instead::default(), &Conditions::default())),
        "InvalidRequest"
    );
    let instead = Instead { headers: Some(Headers::default()), tags: None };
    copying::object(&from, &bucket, "from", instead, &Conditions::default()).unwrap();
    assert_eq!(object::open(&bucket, "from").unwrap().headers, Headers::default());
}

fn part(bucket: &Arc<Bucket>, id: &str, number: i32, data: &[u8]) -> Named {
    let expected = Expected { also: vec![crate::sums::Algorithm::Crc32], ..Expected::default() };
    let mut staged = Staged::new(bucket, &expected).unwrap();
    staged.write(data).unwrap();
    let (whole, digests) = staged.finish();
    let dress = Dress { etag: digests.md5_hex(), sum: digests.kept(), ..Dress::default() };
    uploads::keep(bucket, "big/x", id, number, &whole, &dress).unwrap();
    Named { number, etag: Some(digests.md5_hex()), sums: digests.sums }
}

#[test]
fn an_upload_in_parts_becomes_an_object() {
    let bucket = bucket();
    let summing = Summing::asked(Some("CRC32"), Some("FULL_OBJECT")).unwrap();
    let id = uploads::create(&bucket, "big/x", &Dress::default(), summing).unwrap();
    assert_eq!(names(&bucket, Ino::ROOT), [] as [&str; 0]);
    part(&bucket, &id, 1, b"replaced");
    let (one, two) = (vec![1; 5 << 20], vec![2; 1000]);
    let parts = vec![part(&bucket, &id, 1, &one), part(&bucket, &id, 7, &two)];
    assert_eq!(uploads::all(&bucket).unwrap().len(), 1);
    stage::clean(&bucket).unwrap();
    uploads::clean(&bucket).unwrap();
    let with = |parts: &[Named]| Completion { parts: parts.to_vec(), ..Completion::default() };
    let fails = |parts: &[Named]| code(uploads::complete(&bucket, "big/x", &id, &with(parts)));
    assert_eq!(fails(&[]), "MalformedXML");
    assert_eq!(fails(&[parts[1].clone(), parts[0].clone()]), "InvalidPartOrder");
    assert_eq!(fails(&[Named { number: 2, ..parts[0].clone() }]), "InvalidPart");
    assert_eq!(fails(&[Named { etag: Some("00".to_owned()), ..parts[0].clone() }]), "InvalidPart");
    let three = part(&bucket, &id, 8, &two);
    assert_eq!(fails(&[parts[0].clone(), parts[1].clone(), three]), "EntityTooSmall");
    let done = uploads::complete(&bucket, "big/x", &id, &with(&parts)).unwrap();
    let whole = [one, two].concat();
    assert_eq!(get(&bucket, "big/x").unwrap(), whole);
    assert!(done.etag.ends_with("-2"), "{}", done.etag);
    let mut hashing = crate::sums::Hashing::of(&[crate::sums::Algorithm::Crc32]);
    hashing.update(&whole);
    assert_eq!(done.sum.unwrap().value, hashing.finish().sums.checksum_crc32.unwrap());
    let object = object::open(&bucket, "big/x").unwrap();
    assert_eq!(object::wanted(&object, None, Some(2)).unwrap().len, 1000);
    assert_eq!(uploads::all(&bucket).unwrap().len(), 0);
    // A client that asks again gets the same answer.
    assert_eq!(uploads::complete(&bucket, "big/x", &id, &with(&parts)).unwrap().etag, done.etag);
    assert_eq!(code(uploads::complete(&bucket, "big/y", &id, &with(&parts))), "NoSuchUpload");
    assert_eq!(code(uploads::abort(&bucket, "big/x", &id)), "NoSuchUpload");
}

#[test]
fn a_part_is_copied_from_an_object() {
    let bucket = bucket();
    put(&bucket, "from", b"0123456789");
    let id = uploads::create(&bucket, "to", &Dress::default(), None).unwrap();
    let conditions = ReadConditions::default();
    let from = From { bucket: &bucket, key: "from", conditions: &conditions };
    let to = ToPart { bucket: &bucket, key: "to", id: &id, number: 1 };
    for bad in ["bytes=0-10", "bytes=5-4", "bytes=-3", "x", "bytes=0-"] {
        assert_eq!(code(copying::part(&from, &to, Some(bad))), "InvalidArgument", "{bad}");
    }
    let copied = copying::part(&from, &to, Some("bytes=2-4")).unwrap();
    let named = Named { number: 1, etag: Some(copied.etag), sums: Default::default() };
    uploads::complete(&bucket, "to", &id, &Completion { parts: vec![named], ..Completion::default() })
        .unwrap();
    assert_eq!(get(&bucket, "to").as_deref(), Some(&b"234"[..]));
}
