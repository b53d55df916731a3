//! What GET and HEAD show of an object, and the conditions under which they show it.

use base::Timestamp;
use fs::api::FileKind;
use s3s::dto::{self, ETagCondition};
use s3s::{S3Error, s3_error};

use crate::attributes::{self, Headers, Parts, Sum};
use crate::bucket::{Bucket, Found};
use crate::errors::{self, Result};
use crate::keys::Key;
use crate::list::EMPTY;

/// An object.
pub struct Object {
    /// The object's inode.
    pub found: Found,
    /// The object's size in bytes.
    pub size: u64,
    /// The object's ETag, without quotes.
    pub etag: String,
    /// When it was last changed.
    pub modified: Timestamp,
    /// Headers and metadata.
    pub headers: Headers,
    /// A checksum of the whole.
    pub sum: Option<Sum>,
    /// The sizes of its parts.
    pub parts: Option<Parts>,
    /// The object's tags, in the form that is kept.
    pub tags: Option<String>,
}

/// Finds an object. A key that cannot be a path has none.
pub fn open(bucket: &Bucket, key: &str) -> Result<Object> {
    let key = Key::parse(key).map_err(|_| errors::of(fs::Errno::ENOENT))?;
    let found = bucket.find(&key).map_err(errors::of)?;
    let (node, attr) = (found.node(), found.attr);
    let headers = Headers::read(bucket, node).map_err(errors::of)?;
    let tags = bucket.get(node, attributes::TAGS).map_err(errors::of)?;
    let is_folder = attr.kind == FileKind::Dir;
    let size = if is_folder { 0 } else { attr.size };
    let etag = match is_folder {
        true => EMPTY.to_owned(),
        false => attributes::etag(bucket, node, &attr).map_err(errors::of)?,
    };
    let sum = attributes::sum(bucket, node, &attr).map_err(errors::of)?;
    let parts = attributes::stamped(bucket, node, &attr, attributes::PARTS).map_err(errors::of)?;
    let parts = parts.and_then(|text| Parts::from_text(&text, size));
    Ok(Object { found, size, etag, modified: attr.mtime, headers, sum, parts, tags })
}

/// The conditions of a read.
#[derive(Clone, Debug, Default)]
pub struct ReadConditions {
    /// If-Match.
    pub if_match: Option<ETagCondition>,
    /// If-None-Match.
    pub if_none_match: Option<ETagCondition>,
    /// If-Modified-Since.
    pub if_modified_since: Option<dto::Timestamp>,
    /// If-Unmodified-Since.
    pub if_unmodified_since: Option<dto::Timestamp>,
}

impl ReadConditions {
    /// Checks them in the order of RFC 9110: a condition on the ETag takes the place of that on the time.
    pub fn check(&self, object: &Object) -> Result<()> {
        let modified = self.since(object);
        match &self.if_match {
            Some(wanted) if !matches(wanted, &object.etag, false) => return Err(failed()),
            None if modified(&self.if_unmodified_since) == Some(true) => return Err(failed()),
            _ => {}
        }
        match &self.if_none_match {
            Some(known) if matches(known, &object.etag, true) => Err(unchanged(object)),
            None if modified(&self.if_modified_since) == Some(false) => Err(unchanged(object)),
            _ => Ok(()),
        }
    }

    /// Checks the conditions on the source of a copy, where all failures are PreconditionFailed.
    pub fn check_source(&self, object: &Object) -> Result<()> {
        self.check(object).map_err(|_| failed())
    }

    /// Whether the object was changed after a time. HTTP has whole seconds.
    fn since(&self, object: &Object) -> impl Fn(&Option<dto::Timestamp>) -> Option<bool> {
        let changed = object.modified.seconds();
        move |time| {
            let time = time::OffsetDateTime::from(time.clone()?);
            Some(changed > time.unix_timestamp())
        }
    }
}

fn matches(condition: &ETagCondition, etag: &str, weak: bool) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(tag) if weak => tag.value() == etag,
        ETagCondition::ETag(tag) => tag.as_strong() == Some(etag),
    }
}

fn failed() -> S3Error {
    s3_error!(PreconditionFailed, "the object is not as the request demands")
}

/// 304, which names the ETag.
fn unchanged(object: &Object) -> S3Error {
    let mut error = s3_error!(NotModified, "the object was not changed");
    let mut headers = http::HeaderMap::new();
    if let Ok(value) = http::HeaderValue::from_str(&format!("\"{}\"", object.etag)) {
        headers.insert(http::header::ETAG, value);
    }
    error.set_headers(headers);
    error
}

/// The part of an object that a request wants: offset, length, and whether it is a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
    /// The answer is partial.
    pub partial: bool,
}

/// Whether a range holds under If-Range. A time does not tell two versions within a second apart, so only the
/// ETag does.
pub fn holds(if_range: Option<&[u8]>, etag: &str) -> bool {
    if_range.is_none_or(|tag| tag == format!("\"{etag}\"").as_bytes())
}

/// The part of an object that a range or a part's number names.
pub fn wanted(object: &Object, range: Option<dto::Range>, part: Option<i32>) -> Result<Wanted> {
    let size = object.size;
    match (range, part) {
        (Some(_), Some(_)) => Err(s3_error!(InvalidRequest, "Range and partNumber exclude each other")),
        (None, None) => Ok(Wanted { offset: 0, len: size, partial: false }),
        (Some(range), None) => {
            let range = if size == 0 { None } else { range.check(size).ok() };
            let range = range.ok_or_else(|| unsatisfiable(size))?;
            Ok(Wanted { offset: range.start, len: range.end - range.start, partial: true })
        }
        (None, Some(number)) => {
            let number = u64::try_from(number).ok().filter(|number| (1..=10_000).contains(number));
            let number =
                number.ok_or_else(|| s3_error!(InvalidArgument, "parts have the numbers 1 to 10,000"))?;
            let found = match &object.parts {
                Some(parts) => parts.range(number),
                None => (number == 1).then_some((0, size)),
            };
            let (offset, len) = found.ok_or_else(no_part)?;
            Ok(Wanted { offset, len, partial: size > 0 })
        }
    }
}

fn no_part() -> S3Error {
    let mut error = errors::custom("InvalidPartNumber", "the object has no such part");
    error.set_status_code(http::StatusCode::RANGE_NOT_SATISFIABLE);
    error
}

fn unsatisfiable(size: u64) -> S3Error {
    let mut error = s3_error!(InvalidRange, "the object has {size} bytes");
    let mut headers = http::HeaderMap::new();
    if let Ok(value) = http::HeaderValue::from_str(&format!("bytes */{size}")) {
        headers.insert(http::header::CONTENT_RANGE, value);
    }
    error.set_headers(headers);
    error
}

/// The Content-Range of a part.
pub fn content_range(object: &Object, wanted: &Wanted) -> Option<String> {
    let last = (wanted.offset + wanted.len).checked_sub(1)?;
    wanted.partial.then(|| format!("bytes {}-{last}/{}", wanted.offset, object.size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_range_of_another_version_is_not_sent() {
        assert!(holds(None, "e") && holds(Some(b"\"e\""), "e"));
        for other in ["\"f\"", "W/\"e\"", "e", "Sat, 01 Jan 2028 00:00:00 GMT", ""] {
            assert!(!holds(Some(other.as_bytes()), "e"), "{other}");
        }
    }
}
