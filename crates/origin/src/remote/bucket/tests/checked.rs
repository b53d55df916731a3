//! Objects whose bytes change on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::remote::tests::little::{Answer, Little, Request};
use crate::tests::noise;

/// A store with one object. `wrong` of its answers have a changed byte.
struct World {
    bucket: Bucket,
    bytes: Vec<u8>,
    wrong: Arc<AtomicU64>,
    little: Little,
}

fn md5_hex(bytes: &[u8]) -> String {
    use md5::Digest;
    md5::Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn world(etag: &str, headers: &[(&'static str, &str)]) -> World {
    let bytes = noise(200_000, 5);
    let wrong = Arc::new(AtomicU64::new(0));
    let (body, left, tag) = (bytes.clone(), Arc::clone(&wrong), etag.to_owned());
    let more: Vec<_> = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let little = Little::start(move |Request { headers, .. }| {
        let mut body = body.clone();
        if left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            body[100_000] ^= 4;
        }
        let mut head = more.clone();
        head.push(("ETag", format!("\"{tag}\"")));
        let ranged = headers.get("range").and_then(|range| {
            let (from, to) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((from.parse::<usize>().ok()?, to.parse::<usize>().ok()?))
        });
        assert_eq!(headers.get("x-amz-checksum-mode").map(|mode| &**mode), Some("ENABLED"));
        assert!(headers["authorization"].contains("x-amz-checksum-mode"), "{headers:?}");
        let (status, body) = match ranged {
            Some((from, to)) => {
                head.push(("Content-Range", format!("bytes {from}-{to}/{}", body.len())));
                (206, body[from..=to].to_vec())
            }
            None => (200, body),
        };
        Answer { status, headers: head, body }
    });
    let environment = Environment::of(s3server::environment());
    let bucket = Bucket::open("s3://bucket", Some(&little.endpoint()), None, &environment).unwrap();
    World { bucket, bytes, wrong, little }
}

impl World {
    fn object(&self, etag: &str) -> Object {
        let modified = base::Timestamp::from_nanos(0);
        Object { key: "d/f".to_owned(), size: self.bytes.len() as u64, etag: etag.to_owned(), modified }
    }

    fn read(&self, etag: &str) -> Result<Vec<u8>, Unread> {
        self.bucket.read(&self.object(etag), 0..self.bytes.len() as u64)
    }

    /// Reads it in ranges, and compares the whole.
    fn check(&self, etag: &str) -> Result<(), String> {
        let object = self.object(etag);
        let mut check = self.bucket.check(&object).unwrap();
        for start in (0..object.size).step_by(50_000) {
            check.add(&self.bucket.read(&object, start..object.size.min(start + 50_000)).unwrap());
        }
        check.end()
    }
}

/// An import kept what came, although the store said another MD5.
#[test]
fn regression_bytes_that_changed_on_the_way_are_read_again_or_refused() {
    let right = md5_hex(&noise(200_000, 5));
    let sum = base64_simd::STANDARD.encode_to_string(
        (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &noise(200_000, 5)) as u32).to_be_bytes(),
    );
    let parts = format!("{right}-3");
    for (etag, headers, name) in
        [(&right, vec![], "MD5"), (&parts, vec![("x-amz-checksum-crc32", &*sum)], "CRC32")]
    {
        let world = world(etag, &headers);
        world.wrong.store(2, Ordering::SeqCst);
        assert!(world.read(etag).unwrap() == world.bytes, "{name}");
        assert_eq!(world.little.asked().len(), 3, "{name}");
        assert_eq!(world.check(etag), Ok(()), "{name}");
        world.wrong.store(u64::MAX, Ordering::SeqCst);
        match world.read(etag) {
            Err(Unread::Object(why)) => assert!(why.contains(name), "{why}"),
            other => panic!("{name}: {:?}", other.map(drop)),
        }
        assert!(world.check(etag).unwrap_err().contains(name));
    }
}

/// An ETag that is no MD5 of the bytes is not compared with them.
#[test]
fn what_is_no_md5_is_not_compared() {
    let other = md5_hex(b"another text");
    for (etag, headers) in [
        (&*format!("{other}-2"), vec![]),
        ("0123456789abcdef", vec![]),
        (&*other, vec![("x-amz-server-side-encryption", "aws:kms")]),
        (&*other, vec![("x-amz-server-side-encryption-customer-algorithm", "AES256")]),
    ] {
        let world = world(etag, &headers);
        assert!(world.read(etag).unwrap() == world.bytes, "{etag}");
        assert_eq!(world.check(etag), Ok(()), "{etag}");
    }
}
