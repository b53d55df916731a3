//! Requests of s3s as the types of this crate, and back.

use std::sync::Arc;

use base::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::{self, ETag, ETagCondition};
use s3s::{S3Request, s3_error};

use crate::attributes::Headers;
use crate::errors::Result;
use crate::flow::Upload;
use crate::list::{Order, Page};
use crate::object::{Object, Wanted, content_range};
use crate::stage::Conditions;
use crate::sums::{Algorithm, Expected};
use crate::tags;

/// The most keys in an answer.
const KEYS_MAX: i32 = 1_000;
/// What encoding-type=url leaves as it is.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/').remove(b'*');
/// The owner of everything.
pub const OWNER: &str = "covey";
/// The type of content without a type.
const BINARY: &str = "binary/octet-stream";

/// The conditions on the object that a request replaces, where the type of the request has no field for them.
pub fn conditions(headers: &http::HeaderMap) -> Result<Conditions> {
    let condition = |name: &str| -> Result<Option<ETagCondition>> {
        let Some(value) = headers.get(name) else { return Ok(None) };
        let parsed = ETagCondition::parse_http_header(value.as_bytes());
        parsed.map(Some).map_err(|_| s3_error!(InvalidArgument, "{name} is not an ETag or *"))
    };
    Ok(Conditions { if_match: condition("if-match")?, if_none_match: condition("if-none-match")? })
}

/// The value of If-Range.
pub fn if_range(headers: &http::HeaderMap) -> Option<Vec<u8>> {
    headers.get(http::header::IF_RANGE).map(|value| value.as_bytes().to_vec())
}

/// A time as s3s has it.
pub fn time(time: Timestamp) -> dto::Timestamp {
    let moment = time::OffsetDateTime::from_unix_timestamp_nanos(time.0);
    moment.map(dto::Timestamp::from).unwrap_or_default()
}

/// An ETag as s3s has it.
pub fn etag(text: impl Into<String>) -> Option<ETag> {
    Some(ETag::Strong(text.into()))
}

/// The owner of everything.
pub fn owner() -> dto::Owner {
    dto::Owner { display_name: Some(OWNER.to_owned()), id: Some(OWNER.to_owned()) }
}

/// The algorithms of x-amz-trailer.
pub(crate) fn trailing(headers: &http::HeaderMap) -> Vec<Algorithm> {
    let words = headers.get_all("x-amz-trailer").iter().filter_map(|value| value.to_str().ok());
    let words: Vec<&str> = words.flat_map(|value| value.split(',')).map(str::trim).collect();
    let listed =
        |algorithm: &Algorithm| words.iter().any(|word| word.eq_ignore_ascii_case(&algorithm.header()));
    Algorithm::ALL.into_iter().filter(listed).collect()
}

/// The body of a request. `md5`, `sums` and `computed` are what its headers say.
pub fn upload<T>(
    request: &S3Request<T>,
    body: Option<dto::StreamingBlob>,
    (md5, sums, computed): (Option<String>, dto::Checksum, Option<&str>),
) -> Result<Upload> {
    let number = |name: &str| -> Result<Option<u64>> {
        let Some(value) = request.headers.get(name) else { return Ok(None) };
        let number = value.to_str().ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| s3_error!(InvalidArgument, "{name} is not a number"))
    };
    let length = number("x-amz-decoded-content-length")?.or(number("content-length")?);
    let length =
        length.ok_or_else(|| s3_error!(MissingContentLength, "the length of the body is missing"))?;
    let trailing = trailing(&request.headers);
    let also = computed.map(Algorithm::named).transpose()?.into_iter().collect();
    let expected = Expected { md5, sums, also };
    Ok(Upload { body, length: Some(length), expected, trailers: request.trailing_headers.clone(), trailing })
}

/// Collects the checksum fields of a request.
#[macro_export]
#[doc(hidden)]
macro_rules! sums_of {
    ($input:expr) => {
        s3s::dto::Checksum {
            checksum_crc32: $input.checksum_crc32.clone(),
            checksum_crc32c: $input.checksum_crc32c.clone(),
            checksum_crc64nvme: $input.checksum_crc64nvme.clone(),
            checksum_sha1: $input.checksum_sha1.clone(),
            checksum_sha256: $input.checksum_sha256.clone(),
            ..s3s::dto::Checksum::default()
        }
    };
}

/// Sets the checksum fields of an answer from values with fields of the same names; with `checksum_type`,
/// also the type, which some answers do not have.
#[macro_export]
#[doc(hidden)]
macro_rules! set_sums {
    ($answer:ident, $sums:ident $(, $kind:ident)?) => {{
        $answer.checksum_crc32 = $sums.checksum_crc32;
        $answer.checksum_crc32c = $sums.checksum_crc32c;
        $answer.checksum_crc64nvme = $sums.checksum_crc64nvme;
        $answer.checksum_sha1 = $sums.checksum_sha1;
        $answer.checksum_sha256 = $sums.checksum_sha256;
        $($answer.$kind = $sums.$kind;)?
    }};
}

/// Collects the headers that are kept, and refuses what this gateway does not do for an object.
#[macro_export]
#[doc(hidden)]
macro_rules! headers_of {
    ($input:expr) => {{
        $crate::answers::refuse(&[
            (
                "server-side encryption",
                $input.server_side_encryption.is_some() || $input.ssekms_key_id.is_some(),
            ),
            (
                "encryption with customer keys",
                $input.sse_customer_algorithm.is_some() || $input.sse_customer_key.is_some(),
            ),
            (
                "a storage class",
                $input.storage_class.as_ref().is_some_and(|class| class.as_str() != "STANDARD"),
            ),
            (
                "object lock",
                $input.object_lock_mode.is_some() || $input.object_lock_legal_hold_status.is_some(),
            ),
            ("website redirects", $input.website_redirect_location.is_some()),
            ("this ACL", $input.acl.as_ref().is_some_and(|acl| !$crate::answers::is_private(acl.as_str()))),
            ("grants", $input.grant_read.is_some() || $input.grant_full_control.is_some()),
            ("grants", $input.grant_read_acp.is_some() || $input.grant_write_acp.is_some()),
        ])?;
        $crate::attributes::Headers {
            content_type: $input.content_type.clone(),
            cache_control: $input.cache_control.clone(),
            content_disposition: $input.content_disposition.clone(),
            content_encoding: $crate::answers::encoding($input.content_encoding.as_deref()),
            content_language: $input.content_language.clone(),
            expires: $crate::answers::seconds($input.expires.as_ref()),
            meta: $input.metadata.clone().unwrap_or_default(),
        }
    }};
}

/// Refuses the first of these that a request asks for.
pub fn refuse(asked: &[(&str, bool)]) -> Result<()> {
    match asked.iter().find(|(_, asked)| *asked) {
        Some((what, _)) => Err(s3_error!(NotImplemented, "{what} is not offered here")),
        None => Ok(()),
    }
}

/// Whether an ACL says what is true anyway.
pub fn is_private(acl: &str) -> bool {
    matches!(acl, "private" | "bucket-owner-full-control" | "bucket-owner-read")
}

/// Content-Encoding without the encoding of the transfer.
pub fn encoding(value: Option<&str>) -> Option<String> {
    let value = value?;
    if !value.contains("aws-chunked") {
        return Some(value.to_owned()).filter(|value| !value.is_empty());
    }
    let words = value.split(',').map(str::trim).filter(|word| *word != "aws-chunked" && !word.is_empty());
    Some(words.collect::<Vec<_>>().join(", ")).filter(|rest| !rest.is_empty())
}

/// A time as it is kept.
pub fn seconds(time: Option<&dto::Timestamp>) -> Option<String> {
    let time = time::OffsetDateTime::from(time?.clone());
    Some(time.unix_timestamp().to_string())
}

fn expires(headers: &Headers) -> Option<dto::Timestamp> {
    let seconds = headers.expires.as_ref()?.parse().ok()?;
    time::OffsetDateTime::from_unix_timestamp(seconds).ok().map(dto::Timestamp::from)
}

/// The answer to a GET, without the body. `sums`: with checksums.
pub fn got(object: &Object, wanted: &Wanted, by_part: bool, sums: bool) -> dto::GetObjectOutput {
    let Headers {
        content_type,
        cache_control,
        content_disposition,
        content_encoding,
        content_language,
        meta,
        ..
    } = object.headers.clone();
    // The checksum is that of the whole object.
    let whole = wanted.len == object.size;
    let sum = object.sum.as_ref().filter(|_| sums && whole).map(|sum| sum.to_dto()).unwrap_or_default();
    let count = |parts: &crate::attributes::Parts| i32::try_from(parts.count()).ok();
    let mut output = dto::GetObjectOutput {
        accept_ranges: Some("bytes".to_owned()),
        content_length: i64::try_from(wanted.len).ok(),
        content_range: content_range(object, wanted),
        content_type: content_type.or_else(|| Some(BINARY.to_owned())),
        cache_control,
        content_disposition,
        content_encoding,
        content_language,
        expires: expires(&object.headers),
        e_tag: etag(object.etag.clone()),
        last_modified: Some(time(object.modified)),
        metadata: Some(meta).filter(|meta| !meta.is_empty()),
        parts_count: object.parts.as_ref().filter(|_| by_part).and_then(count),
        tag_count: tags::count(object.tags.as_deref()),
        ..dto::GetObjectOutput::default()
    };
    set_sums!(output, sum, checksum_type);
    output
}

/// The answer to a HEAD.
pub fn head(got: dto::GetObjectOutput) -> dto::HeadObjectOutput {
    let mut output = dto::HeadObjectOutput {
        accept_ranges: got.accept_ranges,
        content_length: got.content_length,
        content_range: got.content_range,
        content_type: got.content_type,
        cache_control: got.cache_control,
        content_disposition: got.content_disposition,
        content_encoding: got.content_encoding,
        content_language: got.content_language,
        expires: got.expires,
        e_tag: got.e_tag,
        last_modified: got.last_modified,
        metadata: got.metadata,
        parts_count: got.parts_count,
        ..dto::HeadObjectOutput::default()
    };
    set_sums!(output, got, checksum_type);
    output
}

/// Whether a request wants keys to be encoded.
pub fn encoded(kind: Option<&dto::EncodingType>) -> Result<bool> {
    match kind.map(dto::EncodingType::as_str) {
        None => Ok(false),
        Some("url") => Ok(true),
        Some(_) => Err(s3_error!(InvalidArgument, "the only encoding-type is url")),
    }
}

/// A key in an answer.
pub fn text(key: &str, encode: bool) -> String {
    if encode { utf8_percent_encode(key, PLAIN).to_string() } else { key.to_owned() }
}

/// How many keys a request wants at most.
pub fn max_keys(max: Option<i32>) -> Result<i32> {
    match max {
        Some(max) if max < 0 => Err(s3_error!(InvalidArgument, "max-keys is negative")),
        max => Ok(max.unwrap_or(KEYS_MAX).min(KEYS_MAX)),
    }
}

/// The order of a request for a listing.
pub fn order(prefix: Option<String>, delimiter: Option<String>, after: String, max: i32) -> Order {
    let delimiter = delimiter.filter(|delimiter| !delimiter.is_empty());
    Order { prefix: prefix.unwrap_or_default(), delimiter, after, max: usize::try_from(max).unwrap_or(0) }
}

/// A position of a listing as a token, and back.
pub fn token(after: &str) -> String {
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(after)
}

/// See [`token`].
pub fn from_token(token: &str) -> Result<String> {
    let bytes = base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| s3_error!(InvalidArgument, "the continuation token is not one of this service"))
}

/// The objects and groups of a page.
pub fn contents(page: &Page, encode: bool, owners: bool) -> (Vec<dto::Object>, Vec<dto::CommonPrefix>) {
    let objects = page.objects.iter().map(|object| dto::Object {
        key: Some(text(&object.key, encode)),
        size: i64::try_from(object.size).ok(),
        e_tag: etag(object.etag.clone()),
        last_modified: Some(time(object.modified)),
        storage_class: Some(dto::ObjectStorageClass::from_static(dto::ObjectStorageClass::STANDARD)),
        owner: owners.then(owner),
        ..dto::Object::default()
    });
    let groups = page.groups.iter().map(|group| dto::CommonPrefix { prefix: Some(text(group, encode)) });
    (objects.collect(), groups.collect())
}

/// The bucket of a name among several.
pub type Buckets = std::collections::BTreeMap<String, Arc<crate::bucket::Bucket>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_and_others_are_refused() {
        for key in ["", "a/b", "ä", "a b+c"] {
            assert_eq!(from_token(&token(key)).unwrap(), key);
        }
        for bad in ["!", "gA", "YQ==="] {
            assert_eq!(from_token(bad).unwrap_err().code().as_str(), "InvalidArgument", "{bad}");
        }
    }

    #[test]
    fn regression_conditions_of_a_copy_are_read() {
        let mut headers = http::HeaderMap::new();
        assert!(conditions(&headers).unwrap().if_match.is_none());
        headers.insert("if-none-match", http::HeaderValue::from_static("*"));
        headers.insert("if-match", http::HeaderValue::from_static("\"00\""));
        let found = conditions(&headers).unwrap();
        assert_eq!(found.if_none_match, Some(ETagCondition::Any));
        assert_eq!(found.if_match, Some("\"00\"".parse().unwrap()));
        headers.insert("if-match", http::HeaderValue::from_static("\"00"));
        assert_eq!(conditions(&headers).unwrap_err().code().as_str(), "InvalidArgument");
    }

    #[test]
    fn keys_are_encoded_and_the_transfer_is_not_kept() {
        assert_eq!(text("a b/ä+%\u{1}", true), "a%20b/%C3%A4%2B%25%01");
        assert_eq!(text("a b", false), "a b");
        assert_eq!(encoding(Some("aws-chunked")), None);
        assert_eq!(encoding(Some("gzip, aws-chunked")).as_deref(), Some("gzip"));
    }
}
