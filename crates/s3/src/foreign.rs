//! Buckets that others fill, served read-through. A bucket here is not a filesystem but an [`Upstream`]: a
//! store that speaks S3, and bytes of its objects by version, which a cache may have.
//!
//! ```text
//!   GET, HEAD of an object ── entry, fresh? ──no── HEAD to the store
//!                                 │
//!                                 └── conditions, range ── bytes of that version: memory, disk, fleet, store
//!   everything else ── passed on, signed with the gateway's keys; what it changes is forgotten here
//! ```
//!
//! **A client's right is checked first**, by its signature and the file of keys, also for what is cached.
//! **Versions never mix.** An answer has the ETag of its entry, and its bytes are read by that ETag. If the
//! object was replaced before the first byte, the answer is made anew. Later, the connection is cut.

pub mod body;
pub mod entry;
pub mod pass;
mod send;
pub mod xml;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Uri};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use s3s::route::S3Route;
use s3s::{Body, S3Request, S3Response, S3Result, StdError, s3_error};

use crate::errors::Result;
use crate::hosts::Hosts;
use crate::keyring::{Right, Shared, know};
use entry::{Entries, Version};

/// How fresh an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revalidate {
    /// An object that was seen once is served without a question to the store.
    Never,
    /// The store is asked for an object at most this often. Zero: for each request.
    Every(Duration),
}

/// A request to the store.
#[derive(Debug)]
pub struct Passed {
    /// The method.
    pub method: Method,
    /// The key. `None`: the bucket itself.
    pub key: Option<String>,
    /// The query without its `?`, encoded.
    pub query: String,
    /// The headers for the store, without a signature.
    pub headers: HeaderMap,
    /// The body.
    pub body: Option<BoxBody<Bytes, StdError>>,
}

/// The store does not answer, or cannot be asked. The text says why.
#[derive(Debug)]
pub struct Away(pub String);

/// Why bytes of a version cannot be had.
#[derive(Debug)]
pub enum Unread {
    /// The object is another version now, or is gone, and no cache has these bytes.
    Stale,
    /// The bytes cannot be had now. The text says why.
    Away(String),
}

/// A bucket of another store.
#[async_trait::async_trait]
pub trait Upstream: Send + Sync + 'static {
    /// The bucket's name there, and the beginning of its keys.
    fn place(&self) -> (&str, &str);

    /// Sends a request. An answer that refuses is an answer.
    ///
    /// # Errors
    /// [`Away`].
    async fn pass(
        &self,
        request: Passed,
    ) -> std::result::Result<http::Response<UnsyncBoxBody<Bytes, StdError>>, Away>;

    /// Bytes that are cheap to read together, of an object: reads begin at multiples of it.
    fn piece(&self) -> u64;

    /// Fills `buf` with the bytes of a version from `offset` on, from the cache or the store. Blocks.
    ///
    /// # Errors
    /// [`Unread`].
    fn read(&self, version: &Version, offset: u64, buf: &mut [u8]) -> std::result::Result<(), Unread>;
}

/// What the gateway is told of a foreign bucket.
pub struct Made {
    /// The bucket's name here.
    pub name: String,
    /// Where its objects are.
    pub upstream: Arc<dyn Upstream>,
    /// How fresh answers are.
    pub revalidate: Revalidate,
}

/// A foreign bucket.
pub struct Foreign {
    name: String,
    upstream: Arc<dyn Upstream>,
    revalidate: Revalidate,
    entries: Entries,
}

impl Foreign {
    /// Nothing of it is known yet.
    pub fn new(made: Made) -> Foreign {
        let Made { name, upstream, revalidate } = made;
        Foreign { name, upstream, revalidate, entries: Entries::default() }
    }

    /// Returns the bucket's name here.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A bucket and a key that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    bucket: String,
    /// `None`: the bucket itself.
    key: Option<String>,
}

/// The way of requests for foreign buckets, in front of the operations of s3s.
pub struct Route {
    foreign: Vec<Arc<Foreign>>,
    rights: Shared,
    hosts: Hosts,
}

impl Route {
    /// A way to these buckets.
    pub(crate) fn new(foreign: Vec<Arc<Foreign>>, rights: Shared, hosts: Hosts) -> Route {
        Route { foreign, rights, hosts }
    }

    fn named(&self, uri: &Uri, headers: &HeaderMap) -> Option<(Arc<Foreign>, Named)> {
        let path = percent_encoding::percent_decode_str(uri.path()).decode_utf8().ok()?;
        let path = path.strip_prefix('/')?;
        let host = headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
        let (bucket, key) = match self.hosts.bucket(host) {
            Some((_, bucket)) => (bucket.to_owned(), path),
            None => {
                let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
                (bucket.to_owned(), key)
            }
        };
        let found = self.foreign.iter().find(|foreign| foreign.name == bucket)?.clone();
        let key = (!key.is_empty()).then(|| key.to_owned());
        Some((found, Named { bucket, key }))
    }
}

#[async_trait::async_trait]
impl S3Route for Route {
    fn is_match(&self, _: &Method, uri: &Uri, headers: &HeaderMap, _: &mut http::Extensions) -> bool {
        self.named(uri, headers).is_some()
    }

    /// The signature was verified before this.
    async fn check_access(&self, request: &mut S3Request<Body>) -> S3Result<()> {
        if request.credentials.is_some() {
            know(&request.extensions);
        }
        let named = self.named(&request.uri, &request.headers);
        let (_, named) = named.ok_or_else(|| s3_error!(NoSuchBucket, "there is no bucket of this name"))?;
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        let needed = if reads { Right::Read } else { Right::Write };
        self.rights.allow(request.credentials.as_ref(), &named.bucket, needed)
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let named = self.named(&request.uri, &request.headers);
        let (foreign, named) =
            named.ok_or_else(|| s3_error!(NoSuchBucket, "there is no bucket of this name"))?;
        if let Some(key) = &named.key
            && let Some(wanted) = send::Wanted::of(&request)?
        {
            match foreign.send(key, &wanted).await? {
                Some(answer) => return Ok(answer),
                None => return foreign.pass(named.key, request).await,
            }
        }
        foreign.pass(named.key, request).await
    }
}

/// 503 that tells a client when to come again.
pub(crate) fn away(why: &str) -> s3s::S3Error {
    let mut error = s3_error!(ServiceUnavailable, "the store of this bucket does not answer: {why}");
    let mut headers = HeaderMap::new();
    headers.insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("5"));
    error.set_headers(headers);
    error
}

/// The result of work that the store may refuse.
pub(crate) type Answer = Result<S3Response<Body>>;

#[cfg(test)]
mod tests;
