//! What an object has beside its bytes, as extended attributes `user.s3.*` of its file.
//!
//! ```text
//!   user.s3.etag            CONTENT ETAG                the ETag, and the content that it belongs to
//!   user.s3.checksum        CONTENT ALGORITHM TYPE VALUE
//!   user.s3.parts           CONTENT COUNT*BYTES,...     the parts of a multipart upload
//!   user.s3.upload          the id of the upload that made it
//!   user.s3.content-type    and other headers, as the client sent them
//!   user.s3.meta.NAME       user metadata
//!   user.s3.tags            object tags, as the form key=value&...
//!   user.s3.folder          of a folder: it is an object itself
//!   user.s3.made            of a folder: the gateway made it, and removes it when it is empty
//! ```
//!
//! CONTENT is `SIZE@INODE.VERSION MTIME`. A program may write to the file through the mount. Then the version
//! of its bytes differs, also if the program puts size and time back, and what belongs to the old content is
//! not used any more. A copy of the attributes to another file is of no use there, because the inode differs.
//!
//! Earlier releases wrote `SIZE MTIME`. That counts until the first write by this release, which gives the
//! file a version.

use std::collections::HashMap;

use base::{Ino, Timestamp};
use fs::api::Attr;
use s3s::dto;
use s3s::s3_error;

use crate::bucket::{Bucket, Outcome};
use crate::errors::Result;

/// The ETag.
pub const ETAG: &str = "user.s3.etag";
/// A checksum that the client gave or asked for.
pub const CHECKSUM: &str = "user.s3.checksum";
/// The sizes of parts.
pub const PARTS: &str = "user.s3.parts";
/// The upload that made the object.
pub const UPLOAD: &str = "user.s3.upload";
/// Object tags.
pub const TAGS: &str = "user.s3.tags";
/// A folder that is an object.
pub const FOLDER: &str = "user.s3.folder";
/// A folder that the gateway made.
pub const MADE: &str = "user.s3.made";
/// User metadata begins with this.
const META: &str = "user.s3.meta.";

/// The most bytes of user metadata, names and values.
const META_MAX: usize = 2 << 10;
/// The longest value of another header.
const HEADER_MAX: usize = 4 << 10;

/// The headers that are kept and returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Content-Type.
    pub content_type: Option<String>,
    /// Cache-Control.
    pub cache_control: Option<String>,
    /// Content-Disposition.
    pub content_disposition: Option<String>,
    /// Content-Encoding, without `aws-chunked`.
    pub content_encoding: Option<String>,
    /// Content-Language.
    pub content_language: Option<String>,
    /// Expires, in seconds since 1970.
    pub expires: Option<String>,
    /// User metadata.
    pub meta: HashMap<String, String>,
}

impl Headers {
    /// Checks the sizes.
    pub fn check(&self) -> Result<()> {
        let bytes: usize = self.meta.iter().map(|(name, value)| name.len() + value.len()).sum();
        let too_long = self.meta.keys().any(|name| META.len() + name.len() > 255);
        if bytes > META_MAX || too_long {
            return Err(s3_error!(MetadataTooLarge, "user metadata has at most 2 KiB, a name 242 bytes"));
        }
        if self.named().iter().any(|(_, value)| value.is_some_and(|value| value.len() > HEADER_MAX)) {
            return Err(s3_error!(MetadataTooLarge, "a header that is kept has at most 4 KiB"));
        }
        Ok(())
    }

    fn named(&self) -> [(&'static str, Option<&str>); 6] {
        [
            ("user.s3.content-type", self.content_type.as_deref()),
            ("user.s3.cache-control", self.cache_control.as_deref()),
            ("user.s3.content-disposition", self.content_disposition.as_deref()),
            ("user.s3.content-encoding", self.content_encoding.as_deref()),
            ("user.s3.content-language", self.content_language.as_deref()),
            ("user.s3.expires", self.expires.as_deref()),
        ]
    }

    fn slot(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            "user.s3.content-type" => &mut self.content_type,
            "user.s3.cache-control" => &mut self.cache_control,
            "user.s3.content-disposition" => &mut self.content_disposition,
            "user.s3.content-encoding" => &mut self.content_encoding,
            "user.s3.content-language" => &mut self.content_language,
            "user.s3.expires" => &mut self.expires,
            _ => return None,
        })
    }

    /// Writes them to an inode that has none yet.
    pub fn write(&self, bucket: &Bucket, node: Ino) -> Outcome<()> {
        for (name, value) in self.named() {
            if let Some(value) = value {
                bucket.set(node, name, value.as_bytes())?;
            }
        }
        for (name, value) in &self.meta {
            bucket.set(node, &format!("{META}{name}"), value.as_bytes())?;
        }
        Ok(())
    }

    /// Removes them from an inode.
    pub fn clear(bucket: &Bucket, node: Ino) -> Outcome<()> {
        for name in names(bucket, node)? {
            if name.starts_with("user.s3.") && name != MADE {
                bucket.unset(node, &name)?;
            }
        }
        Ok(())
    }

    /// Reads them from an inode.
    pub fn read(bucket: &Bucket, node: Ino) -> Outcome<Headers> {
        let mut headers = Headers::default();
        for name in names(bucket, node)? {
            let Some(value) = bucket.get(node, &name)? else { continue };
            if let Some(meta) = name.strip_prefix(META) {
                headers.meta.insert(meta.to_owned(), value);
            } else if let Some(slot) = headers.slot(&name) {
                *slot = Some(value);
            }
        }
        Ok(headers)
    }
}

/// The names of an inode's attributes that are text.
fn names(bucket: &Bucket, node: Ino) -> Outcome<Vec<String>> {
    let list = bucket.fs().listxattr(node)?;
    let names = list.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect())
}

/// Writes a value that belongs to the content that an inode has now.
pub fn stamp(bucket: &Bucket, node: Ino, attr: &Attr, name: &str, value: &str) -> Outcome<()> {
    let Attr { size, ino, version, mtime, .. } = attr;
    bucket.set(node, name, format!("{size}@{}.{version} {} {value}", ino.0, mtime.0).as_bytes())
}

/// A value that belongs to the content with these attributes.
pub fn stamped(bucket: &Bucket, node: Ino, attr: &Attr, name: &str) -> Outcome<Option<String>> {
    Ok(bucket.get(node, name)?.and_then(|text| belonging(&text, attr)))
}

/// The value in a text, if it belongs to the content with these attributes.
fn belonging(text: &str, attr: &Attr) -> Option<String> {
    let mut words = text.splitn(3, ' ');
    let content = words.next()?;
    let (size, bytes) = content.split_once('@').map_or((content, None), |(size, bytes)| (size, Some(bytes)));
    let is_same = match bytes {
        Some(bytes) => bytes == format!("{}.{}", attr.ino.0, attr.version),
        None => attr.version == 0,
    };
    let mtime: i128 = words.next()?.parse().ok()?;
    let is_same = is_same && size.parse() == Ok(attr.size) && Timestamp(mtime) == attr.mtime;
    is_same.then(|| words.next().unwrap_or("").to_owned())
}

/// The checksum of the content with these attributes.
pub fn sum(bucket: &Bucket, node: Ino, attr: &Attr) -> Outcome<Option<Sum>> {
    Ok(stamped(bucket, node, attr, CHECKSUM)?.and_then(|text| Sum::from_text(&text)))
}

/// An object's ETag, without quotes. Content that was written through the mount has one that is not an MD5.
pub fn etag(bucket: &Bucket, node: Ino, attr: &Attr) -> Outcome<String> {
    Ok(stamped(bucket, node, attr, ETAG)?.unwrap_or_else(|| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&attr.ino.0.to_be_bytes()).update(&attr.size.to_be_bytes());
        hasher.update(&attr.mtime.0.to_be_bytes()).update(&attr.version.to_be_bytes());
        let hex = hasher.finalize().to_hex();
        format!("{}-0", hex.get(..32).unwrap_or_default())
    }))
}

/// A checksum of the whole object, as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// The algorithm, as S3 names it.
    pub algorithm: String,
    /// `FULL_OBJECT` or `COMPOSITE`.
    pub kind: String,
    /// The value.
    pub value: String,
}

impl Sum {
    /// The text that is kept.
    pub fn to_text(&self) -> String {
        format!("{} {} {}", self.algorithm, self.kind, self.value)
    }

    /// From the text that is kept.
    pub fn from_text(text: &str) -> Option<Sum> {
        let mut words = text.split(' ').map(str::to_owned);
        Some(Sum { algorithm: words.next()?, kind: words.next()?, value: words.next()? })
    }

    /// The form of answers.
    pub fn to_dto(&self) -> dto::Checksum {
        let mut sums = dto::Checksum::default();
        let value = Some(self.value.clone());
        match self.algorithm.as_str() {
            "CRC32" => sums.checksum_crc32 = value,
            "CRC32C" => sums.checksum_crc32c = value,
            "CRC64NVME" => sums.checksum_crc64nvme = value,
            "SHA1" => sums.checksum_sha1 = value,
            "SHA256" => sums.checksum_sha256 = value,
            _ => return sums,
        }
        sums.checksum_type = Some(dto::ChecksumType::from(self.kind.clone()));
        sums
    }
}

/// The sizes of the parts of an object, as runs of equal sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts(Vec<(u64, u64)>);

impl Parts {
    /// Adds a part.
    pub fn push(&mut self, size: u64) {
        match self.0.last_mut() {
            Some((count, same)) if *same == size => *count += 1,
            _ => self.0.push((1, size)),
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(count, _)| count).sum()
    }

    /// The range of a part; the first has the number 1.
    pub fn range(&self, number: u64) -> Option<(u64, u64)> {
        let mut before = number.checked_sub(1)?;
        let mut start = 0;
        for &(count, size) in &self.0 {
            if before < count {
                return Some((start + before * size, size));
            }
            before -= count;
            start += count * size;
        }
        None
    }

    /// The text that is kept.
    pub fn to_text(&self) -> String {
        let runs: Vec<String> = self.0.iter().map(|(count, size)| format!("{count}*{size}")).collect();
        runs.join(",")
    }

    /// From the text that is kept. `None` if it says nothing or cannot be true.
    pub fn from_text(text: &str, of: u64) -> Option<Parts> {
        let run = |text: &str| -> Option<(u64, u64)> {
            let (count, size) = text.split_once('*')?;
            Some((count.parse().ok()?, size.parse().ok()?))
        };
        let parts = Parts(text.split(',').map(run).collect::<Option<Vec<_>>>()?);
        let total =
            parts.0.iter().try_fold(0_u64, |sum, (count, size)| sum.checked_add(count.checked_mul(*size)?));
        (total == Some(of)).then_some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_and_have_ranges() {
        let mut parts = Parts::default();
        [8, 8, 8, 3].into_iter().for_each(|size| parts.push(size));
        assert_eq!(parts.to_text(), "3*8,1*3");
        assert_eq!(Parts::from_text("3*8,1*3", 27), Some(parts.clone()));
        assert_eq!(parts.count(), 4);
        let ranges: Vec<_> = (0..6).map(|number| parts.range(number)).collect();
        assert_eq!(ranges, [None, Some((0, 8)), Some((8, 8)), Some((16, 8)), Some((24, 3)), None]);
    }

    #[test]
    fn what_is_no_list_of_parts_is_none() {
        for text in ["", "x", "3", "3*", "*3", "1*5", "99999999999999999999*1", "18446744073709551615*2"] {
            assert_eq!(Parts::from_text(text, 3), None, "{text}");
        }
    }

    #[test]
    fn sums_come_back() {
        let sum = Sum { algorithm: "CRC32".into(), kind: "FULL_OBJECT".into(), value: "AAAAAA==".into() };
        assert_eq!(Sum::from_text(&sum.to_text()), Some(sum.clone()));
        assert_eq!(sum.to_dto().checksum_crc32.as_deref(), Some("AAAAAA=="));
        assert_eq!(Sum::from_text("CRC32 x"), None);
    }
}
