//! Checksums of what arrives: the MD5 for the ETag, and what the client gives or asks for.

use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::dto;
use s3s::s3_error;

use crate::attributes::Sum;
use crate::errors::Result;

/// An algorithm that clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// CRC-32.
    Crc32,
    /// CRC-32C.
    Crc32c,
    /// CRC-64/NVME.
    Crc64Nvme,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 5] =
        [Algorithm::Crc32, Algorithm::Crc32c, Algorithm::Crc64Nvme, Algorithm::Sha1, Algorithm::Sha256];

    /// Returns the algorithm's name in S3.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Crc32 => "CRC32",
            Algorithm::Crc32c => "CRC32C",
            Algorithm::Crc64Nvme => "CRC64NVME",
            Algorithm::Sha1 => "SHA1",
            Algorithm::Sha256 => "SHA256",
        }
    }

    /// The header or trailer that carries its value.
    pub fn header(self) -> String {
        format!("x-amz-checksum-{}", self.name().to_ascii_lowercase())
    }

    /// From its name in S3.
    pub fn named(name: &str) -> Result<Algorithm> {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| s3_error!(InvalidRequest, "this checksum algorithm is not known"))
    }

    /// Returns the algorithm's value among those of a request.
    pub fn of(self, sums: &dto::Checksum) -> Option<&String> {
        match self {
            Algorithm::Crc32 => sums.checksum_crc32.as_ref(),
            Algorithm::Crc32c => sums.checksum_crc32c.as_ref(),
            Algorithm::Crc64Nvme => sums.checksum_crc64nvme.as_ref(),
            Algorithm::Sha1 => sums.checksum_sha1.as_ref(),
            Algorithm::Sha256 => sums.checksum_sha256.as_ref(),
        }
    }
}

/// What a client says of a body.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Content-MD5.
    pub md5: Option<String>,
    /// The checksum headers.
    pub sums: dto::Checksum,
    /// Algorithms whose values follow the body, and one that the client wants computed.
    pub also: Vec<Algorithm>,
}

impl Expected {
    /// The algorithms that must be computed.
    fn algorithms(&self) -> Vec<Algorithm> {
        let given =
            |algorithm: &Algorithm| algorithm.of(&self.sums).is_some() || self.also.contains(algorithm);
        Algorithm::ALL.into_iter().filter(given).collect()
    }

    /// Checks the form of Content-MD5.
    pub fn check(&self) -> Result<()> {
        let Some(md5) = &self.md5 else { return Ok(()) };
        match base64_simd::STANDARD.decode_to_vec(md5) {
            Ok(bytes) if bytes.len() == 16 => Ok(()),
            _ => Err(s3_error!(InvalidDigest, "Content-MD5 is not the base64 of an MD5")),
        }
    }

    /// Compares what arrived with what was said.
    pub fn compare(&self, digests: &Digests) -> Result<()> {
        if self.md5.as_ref().is_some_and(|md5| *md5 != base64_simd::STANDARD.encode_to_string(digests.md5)) {
            return Err(s3_error!(BadDigest, "the body does not have the given MD5"));
        }
        for algorithm in Algorithm::ALL {
            let given = algorithm.of(&self.sums);
            if given.is_some_and(|given| Some(given) != algorithm.of(&digests.sums)) {
                return Err(s3_error!(BadDigest, "the body does not have the given {}", algorithm.name()));
            }
        }
        Ok(())
    }
}

/// The checksums of a body.
#[derive(Clone, Debug, Default)]
pub struct Digests {
    /// The MD5.
    pub md5: [u8; 16],
    /// The others.
    pub sums: dto::Checksum,
}

impl Digests {
    /// The MD5 as text.
    pub fn md5_hex(&self) -> String {
        hex(&self.md5)
    }

    /// The checksum to keep: the first that was computed.
    pub fn kept(&self) -> Option<Sum> {
        Algorithm::ALL.into_iter().find_map(|algorithm| self.sum_by(algorithm))
    }

    /// The checksum by this algorithm, if it was computed.
    pub fn sum_by(&self, algorithm: Algorithm) -> Option<Sum> {
        let value = algorithm.of(&self.sums)?.clone();
        Some(Sum { algorithm: algorithm.name().to_owned(), kind: "FULL_OBJECT".to_owned(), value })
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Computes checksums while bytes pass.
pub struct Hashing {
    md5: Md5,
    sums: ChecksumHasher,
}

impl Hashing {
    /// For what is expected of a body.
    pub fn new(expected: &Expected) -> Hashing {
        Hashing::of(&expected.algorithms())
    }

    /// For these algorithms, and the MD5.
    pub fn of(algorithms: &[Algorithm]) -> Hashing {
        let mut sums = ChecksumHasher::default();
        for algorithm in algorithms {
            match algorithm {
                Algorithm::Crc32 => sums.crc32 = Some(Crc32::new()),
                Algorithm::Crc32c => sums.crc32c = Some(Crc32c::new()),
                Algorithm::Crc64Nvme => sums.crc64nvme = Some(Crc64Nvme::new()),
                Algorithm::Sha1 => sums.sha1 = Some(Sha1::new()),
                Algorithm::Sha256 => sums.sha256 = Some(Sha256::new()),
            }
        }
        Hashing { md5: Md5::new(), sums }
    }

    /// Takes bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        self.sums.update(bytes);
    }

    /// The values.
    pub fn finish(self) -> Digests {
        let mut sums = self.sums.finalize();
        sums.checksum_type = None;
        Digests { md5: self.md5.finalize(), sums }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_compared() {
        let digests = |expected: &Expected| {
            let mut hashing = Hashing::new(expected);
            hashing.update(b"123456789");
            hashing.finish()
        };
        let mut expected = Expected { also: vec![Algorithm::Crc32], ..Expected::default() };
        let found = digests(&expected);
        assert_eq!(found.md5_hex(), "25f9e794323b453885f5181f1b624d0b");
        assert_eq!(found.sums.checksum_crc32.as_deref(), Some("y/Q5Jg=="));
        assert_eq!(found.kept().unwrap().algorithm, "CRC32");
        expected.compare(&found).unwrap();
        expected.sums.checksum_crc32 = Some("y/Q5Jg==".to_owned());
        expected.compare(&digests(&expected)).unwrap();
        expected.sums.checksum_crc32 = Some("AAAAAA==".to_owned());
        assert!(expected.compare(&digests(&expected)).is_err());
        let md5 = Expected { md5: Some("x".to_owned()), ..Expected::default() };
        assert!(md5.check().is_err() && md5.compare(&digests(&md5)).is_err());
    }
}
