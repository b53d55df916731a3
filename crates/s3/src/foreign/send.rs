//! GET and HEAD of an object of a foreign bucket: from its entry, and from the bytes of its version.

use std::sync::Arc;
use std::time::SystemTime;

use base::time::monotonic;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_body::Frame;
use http_body_util::StreamBody;
use percent_encoding::percent_decode_str;
use s3s::dto::Range;
use s3s::{Body, S3Error, S3Request, S3Response, StdError, s3_error};

use super::entry::{Entry, Version};
use super::{Away, Foreign, Passed, Unread, away};
use crate::errors::{self, Result};

/// Pieces of an answer that are read at a time.
const AT_ONCE: usize = 4;
/// How often an answer is begun anew because its object was replaced before the first byte.
const TRIES: usize = 3;

/// Headers of the store that belong to an object. Also those that begin with `x-amz-meta-` or
/// `x-amz-checksum-`.
const OF_OBJECT: [HeaderName; 8] = [
    header::CONTENT_TYPE,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_DISPOSITION,
    header::CACHE_CONTROL,
    header::EXPIRES,
    header::LAST_MODIFIED,
    header::ETAG,
];
/// Headers of the store, with Amazon's own names, that belong to an object.
const OF_AMAZON: [&str; 4] =
    ["x-amz-version-id", "x-amz-storage-class", "x-amz-tagging-count", "x-amz-server-side-encryption"];
/// Beginning of checksum headers.
const SUMS: &str = "x-amz-checksum-";

/// A request that an entry can answer.
#[derive(Debug)]
pub struct Wanted {
    head: bool,
    range: Option<Range>,
    sums: bool,
    /// Headers that replace those of the object.
    instead: Vec<(HeaderName, HeaderValue)>,
    headers: HeaderMap,
}

impl Wanted {
    /// A GET of the whole object, without conditions.
    #[cfg(test)]
    pub(super) fn all() -> Wanted {
        Wanted::part(None)
    }

    /// A GET of a range, without conditions.
    #[cfg(test)]
    pub(super) fn part(range: Option<Range>) -> Wanted {
        let headers = HeaderMap::new();
        Wanted { head: false, range, sums: false, instead: Vec::new(), headers }
    }

    /// What a request wants. `None`: it is one to pass on.
    pub fn of(request: &S3Request<Body>) -> Result<Option<Wanted>> {
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Ok(None);
        }
        let mut instead = Vec::new();
        for pair in request.uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if name.to_ascii_lowercase().starts_with("x-amz-") || name == "x-id" {
                continue;
            }
            let Some(name) = name.strip_prefix("response-") else { return Ok(None) };
            let value = percent_decode_str(value).collect::<Vec<u8>>();
            let wrong = |_| s3_error!(InvalidArgument, "response-{name} is no header");
            let value = HeaderValue::from_bytes(&value).map_err(wrong)?;
            match OF_OBJECT.iter().find(|known| known.as_str() == name) {
                Some(known) => instead.push((known.clone(), value)),
                None => return Ok(None),
            }
        }
        let headers = &request.headers;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let customer = |name: &HeaderName| name.as_str().starts_with("x-amz-server-side-encryption-customer");
        if headers.contains_key(header::IF_RANGE) || headers.keys().any(customer) {
            return Ok(None);
        }
        let range = match headers.get(header::RANGE) {
            None => None,
            Some(_) => match text("range").and_then(|range| Range::parse(range).ok()) {
                Some(range) => Some(range),
                // Several ranges, or nonsense: the store knows what to say.
                None => return Ok(None),
            },
        };
        let sums = text("x-amz-checksum-mode").is_some_and(|mode| mode.eq_ignore_ascii_case("ENABLED"));
        let head = request.method == Method::HEAD;
        Ok(Some(Wanted { head, range, sums, instead, headers: headers.clone() }))
    }

    /// Checks the conditions in the order of RFC 9110.
    fn check(&self, entry: &Entry) -> Result<()> {
        let text = |name: HeaderName| self.headers.get(name).and_then(|value| value.to_str().ok());
        let names = |list: &str| {
            let tags = list.split(',').map(|tag| tag.trim().trim_start_matches("W/"));
            list.trim() == "*" || tags.map(|tag| tag.trim_matches('"')).any(|tag| tag == entry.version.etag)
        };
        let changed = entry.headers.get(header::LAST_MODIFIED).and_then(time);
        let since = |name| Some(changed? > text(name).and_then(|text| httpdate::parse_http_date(text).ok())?);
        match text(header::IF_MATCH) {
            Some(list) if !names(list) => return Err(failed()),
            None if since(header::IF_UNMODIFIED_SINCE) == Some(true) => return Err(failed()),
            _ => {}
        }
        match text(header::IF_NONE_MATCH) {
            Some(list) if names(list) => Err(unchanged(entry)),
            None if since(header::IF_MODIFIED_SINCE) == Some(false) => Err(unchanged(entry)),
            _ => Ok(()),
        }
    }
}

fn time(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

fn failed() -> S3Error {
    s3_error!(PreconditionFailed, "the object is not as the request demands")
}

fn unchanged(entry: &Entry) -> S3Error {
    let mut error = s3_error!(NotModified, "the object was not changed");
    let mut headers = HeaderMap::new();
    headers.extend(entry.headers.get(header::ETAG).map(|etag| (header::ETAG, etag.clone())));
    error.set_headers(headers);
    error
}

/// What the store says of an object.
enum Found {
    Entry(Entry),
    /// Something that only a request that is passed on can show.
    Other,
}

impl Foreign {
    /// Answers from an entry. `None`: the request must be passed on.
    pub(super) async fn send(
        self: &Arc<Self>,
        key: &str,
        wanted: &Wanted,
    ) -> Result<Option<S3Response<Body>>> {
        for _ in 0..TRIES {
            let entry = match self.entry(key).await? {
                Found::Entry(entry) => entry,
                Found::Other => return Ok(None),
            };
            wanted.check(&entry)?;
            let size = entry.version.size;
            let range = match &wanted.range {
                None => 0..size,
                // The end of nothing is nothing: there is no such range.
                Some(_) if size == 0 => return Err(unsatisfiable(0)),
                Some(range) => range.check(size).map_err(|_| unsatisfiable(size))?,
            };
            let headers = answer_headers(&entry, &range, wanted)?;
            let status = wanted.range.as_ref().map(|_| StatusCode::PARTIAL_CONTENT);
            if wanted.head || range.is_empty() {
                let answer = S3Response { status, headers, ..S3Response::new(Body::empty()) };
                return Ok(Some(answer));
            }
            match self.begin(&entry.version, range).await {
                Ok(body) => return Ok(Some(S3Response { status, headers, ..S3Response::new(body) })),
                Err(Unread::Stale) => self.entries.forget_version(&entry.version),
                Err(Unread::Away(why)) => return Err(away(&why)),
            }
        }
        Err(s3_error!(OperationAborted, "the object is being replaced all the time: try again"))
    }

    /// The entry of a key. The store is asked if it is not fresh.
    async fn entry(&self, key: &str) -> Result<Found> {
        if let Some(entry) = self.entries.fresh(key, self.revalidate) {
            return Ok(Found::Entry(entry));
        }
        let (changes, asked) = (self.entries.changes(key), monotonic());
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
        let key = key.to_owned();
        let request = Passed {
            method: Method::HEAD,
            key: Some(key.clone()),
            query: String::new(),
            headers,
            body: None,
        };
        let answer = self.upstream.pass(request).await.map_err(|Away(why)| away(&why))?;
        let status = answer.status();
        if status == StatusCode::NOT_FOUND {
            self.entries.forget(&key);
            return Err(s3_error!(NoSuchKey, "no object has this key"));
        }
        if status.is_server_error() {
            return Err(away(&format!("it answers {status}")));
        }
        let text = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let size = text(header::CONTENT_LENGTH).and_then(|text| text.parse().ok());
        let etag = text(header::ETAG).filter(|etag| !etag.starts_with("W/"));
        let (StatusCode::OK, Some(size), Some(etag)) = (status, size, etag) else { return Ok(Found::Other) };
        let version = Version { key, etag: etag.trim_matches('"').to_owned(), size };
        let of_object = |name: &HeaderName| {
            let text = name.as_str();
            OF_OBJECT.contains(name)
                || OF_AMAZON.contains(&text)
                || text.starts_with("x-amz-meta-")
                || text.starts_with(SUMS)
        };
        let mut headers = answer.headers().clone();
        let others: Vec<HeaderName> = headers.keys().filter(|name| !of_object(name)).cloned().collect();
        for name in others {
            headers.remove(name);
        }
        let entry = Entry::new(version, headers, asked);
        self.entries.keep(entry.clone(), changes);
        Ok(Found::Entry(entry))
    }

    /// Reads the first piece, and returns it with all that follow.
    async fn begin(
        self: &Arc<Self>,
        version: &Arc<Version>,
        range: std::ops::Range<u64>,
    ) -> std::result::Result<Body, Unread> {
        let piece = self.upstream.piece().max(1);
        let (mut pieces, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let end = range.end.min((at / piece + 1) * piece);
            pieces.push(at..end);
            at = end;
        }
        let reading = (self.clone(), version.clone());
        let read = move |piece| reading.0.clone().read(reading.1.clone(), piece);
        // The others begin with the first: each may take a round trip to the store.
        let mut reads = Box::pin(stream::iter(pieces).map(read).buffered(AT_ONCE));
        let first = reads.next().await.transpose()?.unwrap_or_default();
        let (foreign, version) = (self.clone(), version.clone());
        let rest = reads.map(move |read| {
            if let Err(Unread::Stale) = &read {
                foreign.entries.forget_version(&version);
            }
            // It ends the connection before the announced length.
            read.map_err(|_| StdError::from("the object was replaced, or its store is away"))
        });
        let all = stream::once(async move { Ok(first) }).chain(rest);
        Ok(Body::http_body_unsync(StreamBody::new(all.map_ok(Frame::data))))
    }

    async fn read(
        self: Arc<Self>,
        version: Arc<Version>,
        range: std::ops::Range<u64>,
    ) -> std::result::Result<Bytes, Unread> {
        let work = tokio::task::spawn_blocking(move || {
            let mut buf = vec![0; (range.end - range.start) as usize];
            self.upstream.read(&version, range.start, &mut buf)?;
            Ok(Bytes::from(buf))
        });
        work.await.unwrap_or_else(|_| Err(Unread::Away("the gateway failed while it read".to_owned())))
    }
}

fn unsatisfiable(size: u64) -> S3Error {
    let mut error = s3_error!(InvalidRange, "the object has {size} bytes");
    let mut headers = HeaderMap::new();
    headers
        .extend(HeaderValue::from_str(&format!("bytes */{size}")).ok().map(|v| (header::CONTENT_RANGE, v)));
    error.set_headers(headers);
    error
}

/// The headers of an answer.
fn answer_headers(entry: &Entry, range: &std::ops::Range<u64>, wanted: &Wanted) -> Result<HeaderMap> {
    let mut headers = (*entry.headers).clone();
    let size = entry.version.size;
    if !wanted.sums || range.end - range.start != size {
        let sums: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with(SUMS)).cloned().collect();
        for name in sums {
            headers.remove(name);
        }
    }
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
    if wanted.range.is_some() {
        let text = format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1));
        let value = HeaderValue::from_str(&text).map_err(|_| errors::internal("a range is no header"))?;
        headers.insert(header::CONTENT_RANGE, value);
    }
    wanted.instead.iter().for_each(|(name, value)| {
        headers.insert(name.clone(), value.clone());
    });
    Ok(headers)
}
