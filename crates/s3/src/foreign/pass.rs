//! Requests for a foreign bucket that are passed on to its store, and their answers.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use s3s::{Body, S3Request, S3Response, StdError, s3_error};

use super::body::{self, Arriving, Outgoing};
use super::{Answer, Away, Foreign, Passed, away, xml};
use crate::answers;
use crate::errors::{self, Result};
use crate::sums::{Algorithm, Expected, Hashing};

/// The largest XML of a client or of the store.
const XML_MAX: usize = 8 << 20;
/// Bytes that are escaped in a value of a query.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Bytes that are escaped in the source of a copy.
const PLAIN_PATH: &AsciiSet = &PLAIN.remove(b'/');

/// What a request of a bucket may ask for.
const OF_BUCKET: [&str; 15] = [
    "list-type",
    "prefix",
    "delimiter",
    "marker",
    "start-after",
    "continuation-token",
    "max-keys",
    "encoding-type",
    "fetch-owner",
    "uploads",
    "key-marker",
    "upload-id-marker",
    "max-uploads",
    "delete",
    "x-id",
];
/// What a request of an object may ask for, beside `response-`.
const OF_OBJECT: [&str; 10] = [
    "uploads",
    "uploadId",
    "partNumber",
    "tagging",
    "versionId",
    "attributes",
    "max-parts",
    "part-number-marker",
    "encoding-type",
    "x-id",
];
/// Parameters that are the beginning of a key.
const BEGINNINGS: [&str; 4] = ["prefix", "marker", "start-after", "key-marker"];
/// Parameters of a signature.
const OF_SIGNATURE: [&str; 8] = [
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-signedheaders",
    "x-amz-signature",
    "x-amz-security-token",
    "x-amz-content-sha256",
];
/// Headers of the client's connection and of its signature, which the store must not see.
const DROPPED: [&str; 23] = [
    "host",
    "authorization",
    "date",
    "connection",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
    "accept-encoding",
    "user-agent",
    "content-length",
    "x-amz-date",
    "x-amz-content-sha256",
    "x-amz-security-token",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
    "x-amz-user-agent",
    "x-amz-expected-bucket-owner",
    "x-amz-source-expected-bucket-owner",
];

/// Errors of the store that are about the gateway's own keys, and say nothing of the client's.
const OF_GATEWAY: [&str; 6] = [
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "AuthorizationHeaderMalformed",
];

/// Forgets keys when it is dropped, however a request that changes them ends.
struct Changing<'a>(&'a Foreign, Vec<String>);

impl<'a> Changing<'a> {
    fn begin(foreign: &'a Foreign, keys: Vec<String>) -> Changing<'a> {
        keys.iter().for_each(|key| foreign.entries.forget(key));
        Changing(foreign, keys)
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.1.iter().for_each(|key| self.0.entries.forget(key));
    }
}

impl Foreign {
    /// Passes a request on.
    pub(super) async fn pass(self: &Arc<Self>, key: Option<String>, request: S3Request<Body>) -> Answer {
        if key.is_none() && request.method == Method::GET && is_location(&request) {
            return Ok(S3Response::new(Body::from(Bytes::from_static(LOCATION))));
        }
        let query = self.query(&request, key.is_some())?;
        let asks = |name: &str| query.iter().any(|(asked, _)| asked == name);
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        match (&request.method, &key) {
            (&Method::PUT, None) if query.is_empty() => {
                return Err(s3_error!(BucketAlreadyOwnedByYou, "this bucket exists and may be used"));
            }
            (_, None) if !reads && (request.method != Method::POST || !asks("delete")) => {
                return Err(s3_error!(NotImplemented, "the bucket itself is changed in its own store only"));
            }
            _ => {}
        }
        let mut headers = self.headers(&request.headers)?;
        let (method, many) = (request.method.clone(), key.is_none() && asks("delete"));
        let is_object =
            key.is_some() && reads && !asks("uploadId") && !asks("tagging") && !asks("attributes");
        let mut changed: Vec<String> = key.iter().filter(|_| !reads).cloned().collect();
        let (outgoing, fault) = if many {
            let (text, keys) = self.deletion(request, &mut headers).await?;
            changed = keys;
            (Some(BoxBody::new(Full::new(Bytes::from(text)).map_err(|never| match never {}))), None)
        } else if reads || method == Method::DELETE {
            (None, None)
        } else {
            let (outgoing, fault) = arriving(request)?;
            (outgoing, Some(fault))
        };
        let changing = Changing::begin(self, changed);
        let query: Vec<String> = query
            .iter()
            .map(|(name, value)| {
                let name = utf8_percent_encode(name, PLAIN);
                match value {
                    Some(value) => format!("{name}={}", utf8_percent_encode(value, PLAIN)),
                    None => name.to_string(),
                }
            })
            .collect();
        let passed = Passed { method, key, query: query.join("&"), headers, body: outgoing };
        let answer = self.upstream.pass(passed).await;
        let answer = answer.map_err(|Away(why)| {
            let broken = fault.and_then(|fault| fault.lock().take());
            broken.unwrap_or_else(|| away(&why))
        })?;
        let answer = self.answered(answer, is_object).await;
        drop(changing);
        answer
    }

    /// The parameters for the store, decoded.
    fn query(&self, request: &S3Request<Body>, of_object: bool) -> Result<Vec<(String, Option<String>)>> {
        let (_, prefix) = self.upstream.place();
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            let text = percent_decode_str(&text).decode_utf8().map(|text| text.into_owned());
            text.map_err(|_| s3_error!(InvalidURI, "the query is not UTF-8"))
        };
        let mut query = Vec::new();
        for pair in request.uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = match pair.split_once('=') {
                Some((name, value)) => (decode(name)?, Some(decode(value)?)),
                None => (decode(pair)?, None),
            };
            if OF_SIGNATURE.contains(&name.to_ascii_lowercase().as_str()) {
                continue;
            }
            let known = match of_object {
                true => OF_OBJECT.contains(&name.as_str()) || name.starts_with("response-"),
                false => OF_BUCKET.contains(&name.as_str()),
            };
            if !known && !is_header(&name) {
                return Err(s3_error!(NotImplemented, "{name} is not offered for a bucket of another store"));
            }
            let begins = !of_object && BEGINNINGS.contains(&name.as_str());
            let value = match value {
                Some(text) if begins && (name == "prefix" || !text.is_empty()) => {
                    Some(format!("{prefix}{text}"))
                }
                other => other,
            };
            query.push((name, value));
        }
        let lists = !of_object && request.method == Method::GET;
        if lists && !prefix.is_empty() && !query.iter().any(|(name, _)| name == "prefix") {
            query.push(("prefix".to_owned(), Some(prefix.to_owned())));
        }
        Ok(query)
    }

    /// The headers for the store.
    fn headers(&self, from: &HeaderMap) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, value) in from {
            if !DROPPED.contains(&name.as_str()) {
                headers.append(name.clone(), value.clone());
            }
        }
        // The value follows the body, and the gateway compares it.
        if from.contains_key("x-amz-trailer") {
            headers.remove("x-amz-sdk-checksum-algorithm");
            headers.remove("x-amz-checksum-algorithm");
        }
        if let Some(encoding) = headers.remove(header::CONTENT_ENCODING)
            && let Some(kept) = answers::encoding(encoding.to_str().ok())
            && let Ok(value) = HeaderValue::from_str(&kept)
        {
            headers.insert(header::CONTENT_ENCODING, value);
        }
        if let Some(source) = headers.remove("x-amz-copy-source") {
            headers.insert("x-amz-copy-source", self.source(&source)?);
        }
        Ok(headers)
    }

    /// The source of a copy, by its name in the store. It is in the same bucket, which the client may write.
    fn source(&self, value: &HeaderValue) -> Result<HeaderValue> {
        let wrong = || s3_error!(InvalidArgument, "a source is BUCKET/KEY");
        let text = value.to_str().map_err(|_| wrong())?;
        let (path, version) = match text.split_once("?versionId=") {
            Some((path, version)) => (path, Some(version)),
            None => (text, None),
        };
        let path = percent_decode_str(path).decode_utf8().map_err(|_| wrong())?;
        let (bucket, key) = path.trim_start_matches('/').split_once('/').ok_or_else(wrong)?;
        if bucket != self.name {
            let why = "an object of a bucket of another store is copied within this bucket only";
            return Err(s3_error!(NotImplemented, "{}", why));
        }
        if key.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(wrong());
        }
        let (bucket, prefix) = self.upstream.place();
        let place = format!("{bucket}/{prefix}{key}");
        let mut text = utf8_percent_encode(&place, PLAIN_PATH).to_string();
        if let Some(version) = version {
            text.push_str(&format!("?versionId={version}"));
        }
        HeaderValue::from_str(&text).map_err(|_| wrong())
    }

    /// The XML that deletes several keys, for the store, and the keys.
    async fn deletion(
        &self,
        request: S3Request<Body>,
        headers: &mut HeaderMap,
    ) -> Result<(String, Vec<String>)> {
        let mut expected = Expected::default();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        expected.md5 = text("content-md5");
        for algorithm in Algorithm::ALL {
            if let Some(value) = text(&algorithm.header()) {
                crate::flow::set(&mut expected, algorithm, value);
            }
        }
        expected.check()?;
        let S3Request { input, .. } = request;
        let bytes = whole(input).await.map_err(|error| crate::flow::broken(&error))?;
        let bytes = bytes.ok_or_else(|| s3_error!(MalformedXML, "the body is too large"))?;
        let mut hashing = Hashing::new(&expected);
        hashing.update(&bytes);
        expected.compare(&hashing.finish())?;
        let xml =
            std::str::from_utf8(&bytes).map_err(|_| s3_error!(MalformedXML, "the body is not UTF-8"))?;
        let (_, prefix) = self.upstream.place();
        let (xml, keys) = xml::deletion(xml, prefix).ok_or_else(|| {
            s3_error!(MalformedXML, "the body is not Delete with one Key in each Object, as plain text")
        })?;
        let sums: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with("x-amz-checksum-")).cloned().collect();
        for name in sums {
            headers.remove(name);
        }
        headers.remove("x-amz-sdk-checksum-algorithm");
        let mut hashing = Hashing::of(&[]);
        hashing.update(xml.as_bytes());
        let md5 = base64_simd::STANDARD.encode_to_string(hashing.finish().md5);
        let md5 = HeaderValue::from_str(&md5).map_err(|_| errors::internal("an MD5 is no header"))?;
        headers.insert("content-md5", md5);
        Ok((xml, keys))
    }

    /// The answer of the store, for the client.
    async fn answered(
        &self,
        answer: http::Response<http_body_util::combinators::UnsyncBoxBody<Bytes, StdError>>,
        is_object: bool,
    ) -> Answer {
        let (parts, body) = answer.into_parts();
        let mut headers = parts.headers;
        for name in ["connection", "keep-alive", "transfer-encoding", "upgrade", "date", "server", "trailer"]
        {
            headers.remove(name);
        }
        let is_xml = headers
            .get(header::CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .is_some_and(|kind| kind.contains("xml"));
        let status = Some(parts.status);
        if !is_xml || is_object && parts.status.is_success() {
            let output = Body::http_body_unsync(body);
            return Ok(S3Response { status, headers, ..S3Response::new(output) });
        }
        let bytes = whole(body).await.map_err(|error| away(&error.to_string()))?;
        let bytes = bytes.ok_or_else(|| errors::internal("the answer of the store is too large"))?;
        let (_, prefix) = self.upstream.place();
        let text = std::str::from_utf8(&bytes);
        if let Some(code) = OF_GATEWAY
            .iter()
            .find(|code| text.is_ok_and(|text| text.contains(&format!("<Code>{code}</Code>"))))
        {
            return Err(away(&format!("it refuses the keys of the gateway ({code})")));
        }
        let bytes = match text {
            Ok(text) => Bytes::from(xml::to_client(text, prefix, &self.name)),
            Err(_) => Bytes::from(bytes),
        };
        headers.remove(header::CONTENT_LENGTH);
        Ok(S3Response { status, headers, ..S3Response::new(Body::from(bytes)) })
    }
}

/// Whether a parameter is a header of Amazon, as in a signed URL. The source of a copy is not one of them: it
/// names an object outside the prefix.
fn is_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let plain = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    name.strip_prefix("x-amz-").is_some_and(|rest| plain(rest) && !rest.starts_with("copy-source"))
}

/// All bytes of a body, up to [`XML_MAX`]. `None`: it has more.
async fn whole<B>(mut body: B) -> std::result::Result<Option<Vec<u8>>, StdError>
where
    B: http_body::Body<Data = Bytes, Error = StdError> + Unpin,
{
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame?.into_data() else { continue };
        bytes.extend_from_slice(&piece);
        if bytes.len() > XML_MAX {
            return Ok(None);
        }
    }
    Ok(Some(bytes))
}

/// The answer to GetBucketLocation: the region is that of every bucket here.
const LOCATION: &[u8] = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
    <LocationConstraint xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"/>";

fn is_location(request: &S3Request<Body>) -> bool {
    let mut pairs = request.uri.query().unwrap_or("").split('&');
    pairs.any(|pair| pair.split('=').next() == Some("location"))
}

/// The body of a request that stores something.
fn arriving(request: S3Request<Body>) -> Result<(Option<BoxBody<Bytes, StdError>>, body::Fault)> {
    let missing = || s3_error!(MissingContentLength, "the length of the body is missing");
    let length = match body::length(&request.headers) {
        Some(length) => length,
        None if request.method == Method::POST => 0,
        None => return Err(missing()),
    };
    if length == 0 {
        return Ok((None, body::Fault::default()));
    }
    let trailing = answers::trailing(&request.headers);
    let S3Request { input, trailing_headers, .. } = request;
    let arriving = Arriving { body: input, length, trailing, trailers: trailing_headers };
    let (outgoing, fault) = Outgoing::start(arriving);
    Ok((Some(BoxBody::new(outgoing)), fault))
}
