//! What a store says of an object's bytes, to be compared with those that come.
//!
//! The ETag of S3 is the MD5 of the bytes only if they were stored in one piece, and not encrypted with a key
//! of the user or of a key service. Checksums of parts say nothing of the whole, either.

use std::fmt;
use std::sync::Arc;

use base64_simd::STANDARD;
use crc_fast::{CrcAlgorithm, Digest as Crc};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use md5::Md5;
use object_store::aws::{AwsAuthorizer, AwsCredentialProvider};
use object_store::client::HttpRequest;
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::fault::Fault;
use super::spec::Store;

/// A request extension: the answer shall have the store's checksums. Amazon sends them only if it is asked,
/// and demands that the header is signed.
#[derive(Clone)]
pub(super) struct WithSums {
    pub(super) signs: AwsCredentialProvider,
    pub(super) region: String,
}

impl WithSums {
    /// Signs a request without a body anew.
    pub(super) async fn ask(&self, request: &mut HttpRequest) -> Result<(), Fault> {
        let credential = self.signs.get_credential().await.map_err(|error| Fault::of(&error))?;
        request.headers_mut().remove(AUTHORIZATION);
        request.headers_mut().insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
        let signer = AwsAuthorizer::new(&credential, "s3", &self.region);
        signer.try_authorize(request, None).map_err(|error| Fault::of(&error))
    }
}

/// An extension of an answer: its headers.
#[derive(Clone)]
pub(super) struct Headers(pub(super) Arc<HeaderMap>);

enum Hasher {
    Md5(Md5),
    Sha1(Sha1),
    Sha256(Sha256),
    Crc(Crc, usize),
}

impl Hasher {
    fn add(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Md5(hasher) => hasher.update(bytes),
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Crc(hasher, _) => hasher.update(bytes),
        }
    }

    fn end(self) -> Vec<u8> {
        match self {
            Hasher::Md5(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha1(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
            Hasher::Crc(hasher, len) => hasher.finalize().to_be_bytes()[8 - len..].to_vec(),
        }
    }
}

/// Compares the bytes of an object, from its first to its last, with what its store says of them.
#[derive(Default)]
pub struct Check(Vec<(&'static str, Hasher, Vec<u8>)>);

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, ..)| name)).finish()
    }
}

impl Check {
    /// From an object's ETag and the headers of an answer about the whole object.
    pub(super) fn new(store: Store, etag: &str, headers: &HeaderMap) -> Check {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut check = Check::default();
        match store {
            Store::S3 => {
                let by_service =
                    text("x-amz-server-side-encryption").is_some_and(|how| how.starts_with("aws:"));
                let by_user = text("x-amz-server-side-encryption-customer-algorithm").is_some();
                if !by_service && !by_user {
                    check.wants("MD5", Hasher::Md5(Md5::new()), from_hex(etag));
                }
                if text("x-amz-checksum-type") != Some("COMPOSITE") {
                    check.wants_sums(&|name| text(&format!("x-amz-checksum-{name}")));
                }
            }
            Store::Azure => {
                let md5 = text("content-md5").and_then(from_base64);
                check.wants("MD5", Hasher::Md5(Md5::new()), md5);
            }
            Store::Gcs if text("x-goog-stored-content-encoding").is_none_or(|how| how == "identity") => {
                let all = || headers.get_all("x-goog-hash").iter().filter_map(|value| value.to_str().ok());
                let named = |name: &str| {
                    let mut each = all().flat_map(|line| line.split(','));
                    each.find_map(|one| one.trim().strip_prefix(name)?.strip_prefix('='))
                };
                check.wants("MD5", Hasher::Md5(Md5::new()), named("md5").and_then(from_base64));
                check.wants_sums(&|name| named(name));
            }
            Store::Gcs => {}
        }
        check
    }

    fn wants_sums<'h>(&mut self, said: &dyn Fn(&str) -> Option<&'h str>) {
        let crc = |algorithm, len| Hasher::Crc(Crc::new(algorithm), len);
        let all = [
            ("crc32", "CRC32", crc(CrcAlgorithm::Crc32IsoHdlc, 4)),
            ("crc32c", "CRC32C", crc(CrcAlgorithm::Crc32Iscsi, 4)),
            ("crc64nvme", "CRC64NVME", crc(CrcAlgorithm::Crc64Nvme, 8)),
            ("sha1", "SHA1", Hasher::Sha1(Sha1::new())),
            ("sha256", "SHA256", Hasher::Sha256(Sha256::new())),
        ];
        for (name, shown, hasher) in all {
            self.wants(shown, hasher, said(name).and_then(from_base64));
        }
    }

    /// What has another length is no such sum.
    fn wants(&mut self, name: &'static str, hasher: Hasher, said: Option<Vec<u8>>) {
        let len = match &hasher {
            Hasher::Md5(_) => 16,
            Hasher::Sha1(_) => 20,
            Hasher::Sha256(_) => 32,
            Hasher::Crc(_, len) => *len,
        };
        self.0.extend(said.filter(|said| said.len() == len).map(|said| (name, hasher, said)));
    }

    /// Takes the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|(_, hasher, _)| hasher.add(bytes));
    }

    /// Says whether the bytes were those of the object.
    ///
    /// # Errors
    /// In words: what differs.
    pub fn end(self) -> Result<(), String> {
        for (name, hasher, said) in self.0 {
            if hasher.end() != said {
                return Err(format!("its bytes do not have the {name} that the store names"));
            }
        }
        Ok(())
    }
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode_to_vec(text.trim()).ok()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    (0..16).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(store: Store, etag: &str, said: &[(&'static str, &'static str)]) -> Check {
        let mut headers = HeaderMap::new();
        for (name, value) in said {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let mut check = Check::new(store, etag, &headers);
        check.add(b"1234");
        check.add(b"56789");
        check
    }

    const MD5: &str = "25f9e794323b453885f5181f1b624d0b";
    const OTHER: &str = "25f9e794323b453885f5181f1b624d0c";

    #[test]
    fn what_a_store_says_is_compared() {
        let sums = [
            ("x-amz-checksum-crc32", "y/Q5Jg=="),
            ("x-amz-checksum-crc32c", "4waSgw=="),
            ("x-amz-checksum-crc64nvme", "rosUhgp5mIg="),
            ("x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="),
            ("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
        ];
        let all = check(Store::S3, MD5, &sums);
        assert_eq!(all.0.len(), 6);
        for (name, hasher, said) in all.0 {
            assert_eq!(hasher.end(), said, "{name}");
        }
        assert!(check(Store::S3, OTHER, &[]).end().unwrap_err().contains("MD5"));
        assert!(check(Store::S3, MD5, &[("x-amz-checksum-crc32", "y/Q5Jw==")]).end().is_err());
        let google = [("x-goog-hash", "crc32c=4waSgw==,md5=JfnnlDI7RTiF9RgfG2JNCw==")];
        assert_eq!(check(Store::Gcs, OTHER, &google).0.len(), 2);
        assert!(check(Store::Gcs, OTHER, &google).end().is_ok());
        assert!(check(Store::Azure, "0x8D", &[("content-md5", "JfnnlDI7RTiF9RgfG2JNCw==")]).end().is_ok());
        assert!(check(Store::Azure, "0x8D", &[("content-md5", "JfnnlDI7RTiF9RgfG2JNDA==")]).end().is_err());
    }

    #[test]
    fn what_is_no_sum_of_the_bytes_is_not_compared() {
        for (etag, said) in [
            ("25f9e794323b453885f5181f1b624d0c-3", &[][..]),
            ("", &[]),
            (OTHER, &[("x-amz-server-side-encryption", "aws:kms")]),
            (OTHER, &[("x-amz-server-side-encryption", "aws:kms:dsse")]),
            (OTHER, &[("x-amz-server-side-encryption-customer-algorithm", "AES256")]),
            (MD5, &[("x-amz-checksum-crc32", "y/Q5Jw==-2")]),
            (MD5, &[("x-amz-checksum-crc32", "y/Q5Jw=="), ("x-amz-checksum-type", "COMPOSITE")]),
            (MD5, &[("x-amz-server-side-encryption", "AES256")]),
        ] {
            assert!(check(Store::S3, etag, said).end().is_ok(), "{etag} {said:?}");
        }
    }
}
