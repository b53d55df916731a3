//! Filesystems that fail, requests that meet, and other nodes.

use fs::Errno;
use fs::api::{Coherence, Filesystem, XattrMode};
use parking_lot::Mutex;

use super::odd::{Call, Odd};
use super::*;
use crate::attributes;
use crate::bucket::Changes;
use crate::keys::HIDDEN;

fn made(fs: &Arc<Odd>, changes: Arc<dyn Changes>) -> Arc<Bucket> {
    let (name, fs) = ("bucket".to_owned(), fs.clone());
    Arc::new(Bucket::new(Made { name, fs, changes, read_only: false, owner: (0, 0) }))
}

/// A bucket, and the filesystem below it.
fn odd() -> (Arc<Odd>, Arc<Bucket>) {
    let fs = Odd::over(volume(), Coherence::Exclusive);
    (fs.clone(), made(&fs, Arc::new(NotMounted)))
}

fn new_only() -> Conditions {
    Conditions { if_none_match: Some(ETagCondition::Any), ..Conditions::default() }
}

fn listed(bucket: &Arc<Bucket>, prefix: &str) -> std::result::Result<Vec<String>, Errno> {
    let order = Order { prefix: prefix.to_owned(), max: 100, ..Order::default() };
    list(bucket, &order).map(|page| keys(&page))
}

/// The folder of an upload.
fn upload_of(bucket: &Arc<Bucket>, id: &str) -> fs::api::Result<Ino> {
    let mut at = Ino::ROOT;
    for name in [HIDDEN, "uploads", id] {
        at = bucket.fs().lookup(at, name.as_bytes())?.node;
    }
    Ok(at)
}

/// An upload with one part, and what completes it.
fn upload(bucket: &Arc<Bucket>) -> (String, Completion) {
    let id = uploads::create(bucket, "big/x", &Dress::default(), None).unwrap();
    let parts = vec![part(bucket, &id, 1, b"a part")];
    (id, Completion { parts, ..Completion::default() })
}

#[test]
fn regression_a_listing_fails_where_a_name_cannot_be_read() {
    let (fs, bucket) = odd();
    ["a", "b/c", "d/e", "f/"].iter().for_each(|key| put(&bucket, key, b""));
    for (prefix, name) in [("", "a"), ("", "b"), ("b/", "b"), ("b/", "c"), ("", "e"), ("", "f")] {
        for errno in [Errno::EIO, Errno::ETIMEDOUT] {
            fs.fail(Call::Lookup(name.as_bytes().to_vec()), errno);
            assert_eq!(listed(&bucket, prefix), Err(errno), "{prefix} {name}");
        }
    }
    for attribute in [attributes::ETAG, attributes::FOLDER] {
        fs.fail(Call::Getxattr(attribute.as_bytes().to_vec()), Errno::EIO);
        assert_eq!(listed(&bucket, ""), Err(Errno::EIO), "{attribute}");
    }
    // What is gone is left out.
    fs.fail(Call::Lookup(b"a".to_vec()), Errno::ENOENT);
    assert_eq!(listed(&bucket, "").unwrap(), ["b/c", "d/e", "f/"]);
    fs.fail(Call::Lookup(b"b".to_vec()), Errno::ENOTDIR);
    assert_eq!(listed(&bucket, "").unwrap(), ["a", "d/e", "f/"]);
    assert_eq!(listed(&bucket, "b/").unwrap(), [] as [&str; 0]);
    fs.calm();
    assert_eq!(listed(&bucket, &format!("{}/", "x".repeat(300))).unwrap(), [] as [&str; 0]);
}

#[test]
fn regression_a_folder_that_another_request_makes_first_is_used() {
    let (fs, bucket) = odd();
    let volume = fs.volume.clone();
    fs.ask_first(move |call| {
        if let Call::Mkdir(parent, name) = call {
            volume.mkdir(&ROOT, parent, &name, 0o700, 0).unwrap();
        }
        None
    });
    put(&bucket, "a/b/c", b"1");
    fs.calm();
    assert_eq!(get(&bucket, "a/b/c").as_deref(), Some(&b"1"[..]));
}

#[test]
fn regression_what_cannot_be_read_is_not_taken_for_absent() {
    let (fs, bucket) = odd();
    let (id, completion) = upload(&bucket);
    fs.fail(Call::Getxattr(b"user.s3.key".to_vec()), Errno::EIO);
    assert_eq!(code(uploads::find(&bucket, "big/x", &id)), "InternalError");
    assert!(uploads::all(&bucket).is_err());
    uploads::clean(&bucket).unwrap();
    fs.calm();
    uploads::complete(&bucket, "big/x", &id, &completion).unwrap();
    let conditions = ReadConditions::default();
    let from = From { bucket: &bucket, key: "big/x", conditions: &conditions };
    let copy = || copying::object(&from, &bucket, "y", Instead::default(), &Conditions::default());
    for attribute in [attributes::TAGS, attributes::ETAG, attributes::PARTS] {
        fs.fail(Call::Getxattr(attribute.as_bytes().to_vec()), Errno::EIO);
        assert_eq!(code(copy()), "InternalError", "{attribute}");
    }
    fs.fail(Call::Getxattr(attributes::ETAG.as_bytes().to_vec()), Errno::EIO);
    assert_eq!(code(put_if(&bucket, "big/x", b"", &new_only())), "InternalError");
    fs.calm();
    copy().unwrap();
}

#[test]
fn regression_an_abort_and_a_completion_exclude_each_other() {
    let (fs, bucket) = odd();
    let (id, completion) = upload(&bucket);
    let aborts = (bucket.clone(), id.clone());
    // The completion has found the upload, and makes the object.
    fs.ask_first(move |call| {
        if call == Call::CopyRange {
            uploads::abort(&aborts.0, "big/x", &aborts.1).unwrap();
        }
        None
    });
    assert_eq!(code(uploads::complete(&bucket, "big/x", &id, &completion)), "NoSuchUpload");
    fs.calm();
    assert_eq!(get(&bucket, "big/x"), None);
    assert_eq!(names(&bucket, Ino::ROOT), [] as [&str; 0]);
}

/// Does something once, when a change is about to be answered.
#[derive(Default)]
struct Once(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Changes for Once {
    fn settle(&self) {
        let then = self.0.lock().take();
        then.into_iter().for_each(|then| then());
    }
}

#[test]
fn regression_a_repeated_completion_replaces_no_newer_object() {
    let fs = Odd::over(volume(), Coherence::Exclusive);
    let once = Arc::new(Once::default());
    let bucket = made(&fs, once.clone());
    let (id, completion) = upload(&bucket);
    let first = Completion { conditions: new_only(), ..completion };
    let (meanwhile, again, same) = (bucket.clone(), first.clone(), id.clone());
    // The object has its name, and the upload is still there.
    *once.0.lock() = Some(Box::new(move || {
        assert_eq!(upload_of(&meanwhile, &same).map(drop), Ok(()));
        assert!(uploads::all(&meanwhile).unwrap().is_empty());
        uploads::complete(&meanwhile, "big/x", &same, &again).unwrap();
        put(&meanwhile, "big/x", b"newer");
        assert_eq!(code(uploads::complete(&meanwhile, "big/x", &same, &again)), "NoSuchUpload");
        assert_eq!(code(uploads::abort(&meanwhile, "big/x", &same)), "NoSuchUpload");
    }));
    uploads::complete(&bucket, "big/x", &id, &first).unwrap();
    assert!(once.0.lock().is_none());
    assert_eq!(get(&bucket, "big/x").as_deref(), Some(&b"newer"[..]));
    assert_eq!(upload_of(&bucket, &id), Err(Errno::ENOENT));
}

#[test]
fn regression_a_start_ends_a_completion_that_was_cut_off() {
    let (fs, bucket) = odd();
    // Before the object got its name: the parts were answered, so the upload goes on.
    let (id, completion) = upload(&bucket);
    uploads::claim(&bucket, upload_of(&bucket, &id).unwrap()).unwrap();
    assert_eq!(code(uploads::complete(&bucket, "big/x", &id, &completion)), "NoSuchUpload");
    uploads::clean(&bucket).unwrap();
    // Behind it: the upload is over.
    fs.fail(Call::Removexattr(b"user.s3.key".to_vec()), Errno::EIO);
    let done = uploads::complete(&bucket, "big/x", &id, &completion).unwrap();
    assert_eq!(upload_of(&bucket, &id).map(drop), Ok(()));
    fs.calm();
    assert_eq!(uploads::complete(&bucket, "big/x", &id, &completion).unwrap().etag, done.etag);
    uploads::clean(&bucket).unwrap();
    assert_eq!(upload_of(&bucket, &id), Err(Errno::ENOENT));
    assert_eq!(get(&bucket, "big/x").as_deref(), Some(&b"a part"[..]));
}

#[test]
fn a_completion_that_is_refused_can_be_repeated() {
    let (_, bucket) = odd();
    put(&bucket, "big/x", b"there");
    let (id, completion) = upload(&bucket);
    let refused = Completion { conditions: new_only(), ..completion.clone() };
    assert_eq!(code(uploads::complete(&bucket, "big/x", &id, &refused)), "PreconditionFailed");
    uploads::complete(&bucket, "big/x", &id, &completion).unwrap();
    assert_eq!(get(&bucket, "big/x").as_deref(), Some(&b"a part"[..]));
}

#[test]
fn regression_a_part_that_comes_late_does_not_keep_an_upload() {
    let (fs, bucket) = odd();
    let (id, _) = upload(&bucket);
    let (volume, mut come) = (fs.volume.clone(), false);
    fs.ask_first(move |call| {
        if let Call::Rmdir(parent, name) = call
            && !std::mem::replace(&mut come, true)
        {
            let node = volume.lookup(parent, &name).unwrap().node;
            let file = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
            volume.mknod(&ROOT, node, b"00009", &file).unwrap();
        }
        None
    });
    uploads::abort(&bucket, "big/x", &id).unwrap();
    fs.calm();
    assert_eq!(upload_of(&bucket, &id), Err(Errno::ENOENT));
}

#[test]
fn regression_a_read_only_bucket_is_not_tidied_up() {
    let volume = volume();
    let bucket = bucket_over(volume.clone(), false);
    let (id, _) = upload(&bucket);
    let node = upload_of(&bucket, &id).unwrap();
    bucket.unset(node, "user.s3.key").unwrap();
    let published = bucket_over(volume, true);
    stage::clean(&published).unwrap();
    uploads::clean(&published).unwrap();
    assert_eq!(names(&published, node), ["00001"]);
    uploads::clean(&bucket).unwrap();
    assert_eq!(upload_of(&bucket, &id), Err(Errno::ENOENT));
}

#[test]
fn regression_other_nodes_of_a_shared_volume_are_thought_of() {
    let volume = volume();
    let bucket = made(&Odd::over(volume.clone(), Coherence::Shared), Arc::new(NotMounted));
    let alone = made(&Odd::over(volume, Coherence::Exclusive), Arc::new(NotMounted));
    put_if(&bucket, "k", b"1", &new_only()).unwrap();
    assert_eq!(code(put_if(&bucket, "k", b"2", &new_only())), "PreconditionFailed");
    let is = Conditions { if_match: Some(ETagCondition::Any), ..Conditions::default() };
    assert_eq!(code(put_if(&bucket, "k", b"2", &is)), "NotImplemented");
    assert_eq!(code(put_if(&bucket, "f/", b"", &new_only())), "NotImplemented");
    assert_eq!(code(stage::remove(&bucket, &key("k"), &is)), "NotImplemented");
    put(&bucket, "k", b"2");
    // Another node replaces an object, and begins an upload.
    let stage = bucket.hidden(b"stage").unwrap();
    let file = NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 };
    bucket.fs().mknod(&ROOT, stage.node(), b"aside", &file).unwrap();
    let (id, _) = upload(&bucket);
    bucket.unset(upload_of(&bucket, &id).unwrap(), "user.s3.key").unwrap();
    for (cleaning, left) in [(&bucket, 1), (&alone, 0)] {
        stage::clean(cleaning).unwrap();
        uploads::clean(cleaning).unwrap();
        assert_eq!(names(&bucket, stage.node()).len(), left);
        assert_eq!(upload_of(&bucket, &id).is_ok(), left == 1);
    }
}

#[test]
fn an_upload_is_ended_once_also_by_other_nodes() {
    let volume = volume();
    let one = made(&Odd::over(volume.clone(), Coherence::Shared), Arc::new(NotMounted));
    let (id, completion) = upload(&one);
    let node = upload_of(&one, &id).unwrap();
    volume.setxattr(node, b"user.s3.ended", b"1", XattrMode::Create, false).unwrap();
    assert_eq!(code(uploads::complete(&one, "big/x", &id, &completion)), "NoSuchUpload");
    assert_eq!(code(uploads::claim(&one, node)), "NoSuchUpload");
}

#[test]
fn regression_a_copy_keeps_the_conditions_on_what_it_replaces() {
    let (_, bucket) = odd();
    put(&bucket, "from", b"1");
    put(&bucket, "to", b"2");
    let conditions = ReadConditions::default();
    let from = From { bucket: &bucket, key: "from", conditions: &conditions };
    let copied = copying::object(&from, &bucket, "to", Instead::default(), &new_only());
    assert_eq!(code(copied), "PreconditionFailed");
    copying::object(&from, &bucket, "new", Instead::default(), &new_only()).unwrap();
    assert_eq!(get(&bucket, "to").as_deref(), Some(&b"2"[..]));
}

#[test]
fn regression_a_checksum_is_compared_although_the_upload_began_without_one() {
    let (_, bucket) = odd();
    let (id, completion) = upload(&bucket);
    let crc = completion.parts[0].sums.checksum_crc32.clone();
    let with = |crc: Option<String>| {
        let mut completion = completion.clone();
        completion.sums.checksum_crc32 = crc;
        uploads::complete(&bucket, "big/x", &id, &completion)
    };
    assert_eq!(code(with(Some("AAAAAA==".to_owned()))), "BadDigest");
    assert_eq!(code(with(crc)), "fine");
}

/// minio-go leaves out the number of parts behind a checksum of checksums, and its uploads were refused.
#[test]
fn regression_a_checksum_of_checksums_may_come_without_the_number_of_parts() {
    for (summing, given) in [(Some("CRC32"), true), (None, true), (Some("CRC32"), false)] {
        let bucket = bucket();
        let summing = Summing::asked(summing, None).unwrap();
        let id = uploads::create(&bucket, "big/x", &Dress::default(), summing).unwrap();
        let parts = vec![part(&bucket, &id, 1, b"data")];
        let raw =
            base64_simd::STANDARD.decode_to_vec(parts[0].sums.checksum_crc32.as_ref().unwrap()).unwrap();
        let sum = <s3s::crypto::Crc32 as s3s::crypto::Checksum>::checksum(&raw);
        let mut completion = Completion { parts, ..Completion::default() };
        let sum = if given { base64_simd::STANDARD.encode_to_string(sum) } else { "AAAAAA==".to_owned() };
        completion.sums.checksum_crc32 = Some(sum);
        let wanted = if given { "fine" } else { "BadDigest" };
        assert_eq!(code(uploads::complete(&bucket, "big/x", &id, &completion)), wanted);
    }
}

/// Everybody may make files at the top of some mounts. A user made the gateway's folder first, and could read
/// the parts that clients sent, and exchange them.
#[test]
fn regression_a_folder_that_somebody_else_made_is_not_used() {
    let other = Caller { uid: 1234, gid: 1234, pid: 0 };
    let tries = |bucket: &Arc<Bucket>| {
        let key_of = |text| put_if(bucket, text, b"1", &Conditions::default());
        [
            code(key_of("k")),
            code(uploads::create(bucket, "k", &Dress::default(), None)),
            code(uploads::all(bucket)),
        ]
    };
    let hidden = |bucket: &Arc<Bucket>, by: &Caller, perm, below: bool| {
        let top = bucket.fs().mkdir(by, Ino::ROOT, HIDDEN.as_bytes(), perm, 0).unwrap().node;
        for name in [b"stage".as_slice(), b"uploads"].into_iter().filter(|_| below) {
            bucket.fs().mkdir(by, top, name, perm, 0).unwrap();
        }
    };
    for (by, perm) in [(&other, 0o777), (&other, 0o700), (&ROOT, 0o777), (&ROOT, 0o750)] {
        let bucket = bucket();
        hidden(&bucket, by, perm, true);
        assert_eq!(tries(&bucket), ["AccessDenied"; 3], "{} {perm:o}", by.uid);
        let said = put_if(&bucket, "k", b"1", &Conditions::default()).unwrap_err();
        assert!(said.message().unwrap().contains(HIDDEN), "{said:?}");
        assert_eq!(stage::clean(&bucket), Err(crate::errors::NOT_OURS));
        assert_eq!(all(&bucket, "", None, 10).0, [] as [&str; 0], "and what is there can be listed");
    }
    let linked = bucket();
    linked.fs().symlink(&other, Ino::ROOT, HIDDEN.as_bytes(), b"elsewhere").unwrap();
    assert_eq!(tries(&linked)[..2], ["AccessDenied"; 2]);
    let fine = bucket();
    hidden(&fine, &ROOT, 0o700, true);
    assert_eq!(tries(&fine), ["fine"; 3]);
}

/// A folder below one that was open once is looked at too.
#[test]
fn an_upload_in_a_folder_of_somebody_else_is_not_found() {
    let bucket = bucket();
    let (id, completion) = upload(&bucket);
    let set = fs::api::SetAttr { uid: Some(1234), ..Default::default() };
    bucket.fs().setattr(&ROOT, upload_of(&bucket, &id).unwrap(), &set).unwrap();
    assert_eq!(code(uploads::complete(&bucket, "big/x", &id, &completion)), "AccessDenied");
    uploads::clean(&bucket).unwrap();
}
