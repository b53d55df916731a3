mod checked;

use std::fs;
use std::time::Duration;

use http::Method;
use s3server::{BUCKET, Canned, Fault, Proxy, Rule, Server, environment};

use super::*;
use crate::tests::noise;

fn open(text: &str, endpoint: &str) -> Bucket {
    Bucket::open(text, Some(endpoint), None, &Environment::of(environment())).unwrap()
}

fn all(bucket: &Bucket) -> Vec<Object> {
    let mut all = Vec::new();
    bucket
        .list(&mut |object| {
            all.push(object);
            true
        })
        .unwrap();
    all
}

fn put(server: &Server, key: &str, bytes: &[u8]) {
    let file = server.folder().join(key);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, bytes).unwrap();
}

#[test]
fn objects_of_others_are_listed_and_read_as_they_are() {
    let server = Server::start();
    let large = noise(20 << 20, 7);
    put(&server, "a b/é&<.html", b"<html>not of a proxy</html>");
    put(&server, "a b/large", &large);
    put(&server, "a bc", b"beside it");
    for n in 0..2500 {
        put(&server, &format!("many/{n:05}"), n.to_string().as_bytes());
    }
    let bucket = open(&format!("s3://{BUCKET}/a b"), &server.endpoint());
    let objects = all(&bucket);
    let keys: Vec<&str> = objects.iter().map(|object| &*object.key).collect();
    assert_eq!(keys, ["large", "é&<.html"]);
    assert!(bucket.read(&objects[1], 0..27).unwrap() == b"<html>not of a proxy</html>");
    assert!(bucket.read(&objects[0], 0..20 << 20).unwrap() == large);
    assert!(bucket.read(&objects[0], 9 << 20..17 << 20).unwrap() == large[9 << 20..17 << 20]);
    assert!(objects.iter().all(|object| object.modified.seconds() > 1_600_000_000));
    let many = all(&open(&format!("s3://{BUCKET}/many/"), &server.endpoint()));
    assert_eq!((many.len(), &*many[2499].key), (2500, "02499"));
    assert_eq!(all(&open(&format!("s3://{BUCKET}"), &server.endpoint())).len(), 2503);
}

#[test]
fn another_version_is_never_read() {
    let server = Server::start();
    put(&server, "f", b"one");
    put(&server, "g", b"one");
    let bucket = open(&format!("s3://{BUCKET}"), &server.endpoint());
    let objects = all(&bucket);
    std::thread::sleep(Duration::from_millis(5));
    put(&server, "f", b"two");
    fs::remove_file(server.folder().join("g")).unwrap();
    for object in &objects {
        assert!(matches!(bucket.read(object, 0..3), Err(Unread::Changed)), "{}", object.key);
    }
    // A store that checks no condition still names what it sent.
    let mut object = all(&bucket).remove(0);
    assert!(bucket.read(&object, 0..3).unwrap() == b"two");
    object.size = 4;
    assert!(matches!(bucket.read(&object, 0..4), Err(Unread::Changed)));
}

#[test]
fn faults_that_pass_are_retried_and_others_are_told_apart() {
    let server = Server::start();
    put(&server, "f", &noise(300_000, 1));
    let proxy = Proxy::start(server.address(), 3);
    let bucket = open(&format!("s3://{BUCKET}"), &proxy.endpoint());
    for fault in [Fault::SlowDown, Fault::Drop, Fault::CutAnswer(10), Fault::Status(500), Fault::Shorten(9)] {
        proxy.add(Rule::new(fault).times(2).only(Method::GET));
        let objects = all(&bucket);
        assert!(bucket.read(&objects[0], 0..300_000).unwrap() == noise(300_000, 1));
        proxy.faults().clear();
    }
    let objects = all(&bucket);
    proxy.add(Rule::new(Fault::Answer(Canned::AccessDenied)));
    for _ in 0..5 {
        match bucket.read(&objects[0], 0..3) {
            Err(Unread::Denied(error)) => {
                assert!(error.to_string().contains("to get and list objects of bucket"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    proxy.faults().clear();
    assert!(bucket.read(&objects[0], 0..3).is_ok(), "a refused object holds back no other");
    proxy.add(Rule::new(Fault::Answer(Canned::NoSuchBucket)));
    let refused = bucket.list(&mut |_| true).unwrap_err().to_string();
    assert!(refused.contains("there is no bucket"), "{refused}");
    assert!(matches!(bucket.read(&objects[0], 0..3), Err(Unread::Store(_))));
}

#[test]
fn places_are_split_into_bucket_and_prefix() {
    for (text, bucket, prefix) in [
        ("s3://b-1", "s3://b-1", ""),
        ("s3://b-1/", "s3://b-1", ""),
        ("gs://b-1/a b/@c/", "gs://b-1", "a b/@c/"),
        ("az://con/ü", "az://con", "ü/"),
    ] {
        assert_eq!(split(text).unwrap(), (bucket, prefix.to_owned()), "{text}");
    }
    for bad in ["s3://b-1/a//b", "s3://b-1/../x"] {
        assert!(split(bad).is_err(), "{bad}");
    }
    let environment = Environment::of(environment());
    for secret in ["s3://AKIAKEY:SE/CRET@bucket/x", "s3://AKIAKEY:SECRET@bucket", "s3://AKIA/K:SECRET@bucket"]
    {
        let said = Bucket::open(secret, None, None, &environment).unwrap_err().to_string();
        assert!(!said.contains("CRET") && !said.contains("AKIA"), "{said}");
    }
}
