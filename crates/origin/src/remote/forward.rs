//! Requests of S3 clients, passed on to a bucket that others fill.
//!
//! A request arrives without its client's signature and is signed with this process's keys. Its body is not
//! part of the signature, because it is not read before it is sent. Nothing is retried: the client does that.
//! One exception: if the store refuses a request without a body, and the keys in their file are new ones, it
//! is sent again.

use std::sync::Arc;
use std::time::Duration;

use base::ForeignObject;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use object_store::CredentialProvider;
use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequestBody;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Body;

use super::connections::{Again, Connections};
use super::fault::Fault;
use super::keys::Keys;
use super::stats::{Kind, Stats};
use super::wire::deepest;
use super::{Bucket, RemoteSpec, Store};

/// The SHA-256 of no bytes.
const EMPTY: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24, 0x27,
    0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];
/// Bytes of a key that are written as they are, as Amazon's signatures demand.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

/// A service is asked for other keys at most so often.
const ASK_KEYS: Duration = Duration::from_secs(10);

/// A request to pass on.
#[derive(Debug)]
pub struct Passed {
    /// The method.
    pub method: Method,
    /// The key, without the bucket's prefix. None: the bucket itself.
    pub key: Option<String>,
    /// The query without its `?`, encoded.
    pub query: String,
    /// The headers that are meant for the store.
    pub headers: HeaderMap,
    body: Option<Body>,
}

impl Passed {
    /// A request without a body.
    pub fn new(method: Method, key: Option<String>, query: String, headers: HeaderMap) -> Passed {
        Passed { method, key, query, headers, body: None }
    }

    /// Adds a body to a request. Its length is that of its size hint.
    pub fn with_body<B>(self, body: B) -> Passed
    where
        B: http_body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Passed { body: Some(Body::wrap(body)), ..self }
    }
}

/// Why a request had no answer.
#[derive(Debug, thiserror::Error)]
pub enum NotPassed {
    /// The request cannot be sent to any store.
    #[error("{0}")]
    Unfit(&'static str),
    /// The store does not answer, or there are no keys for it.
    #[error("{0}")]
    Unreached(String),
}

/// Passes requests on. Its connections belong to the runtime that sends the first request.
pub struct Forward {
    connections: Arc<Connections>,
    signs: Arc<dyn CredentialProvider<Credential = AwsCredential>>,
    keys: Option<Arc<Keys>>,
    stats: Arc<Stats>,
    region: String,
    /// The URL of the bucket, without a `/` at its end.
    base: String,
    /// The bucket's name in its store.
    bucket: String,
    /// Keys begin with this.
    prefix: String,
    endpoint: Option<String>,
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Forward({}/{})", self.base, self.prefix)
    }
}

impl Bucket {
    /// The way for requests to this bucket. `None`: its store does not speak S3.
    pub fn forward(&self) -> Option<Forward> {
        let remote = &self.remote;
        let RemoteSpec { store, bucket, endpoint, region, .. } = remote.spec.clone();
        let signs = remote.engine.stores.signs.clone().filter(|_| store == Store::S3)?;
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        let base = match &endpoint {
            Some(endpoint) => format!("{}/{bucket}", endpoint.trim_end_matches('/')),
            // A bucket name with dots matches no certificate of the form *.s3.REGION.amazonaws.com.
            None if bucket.contains('.') => format!("https://s3.{region}.amazonaws.com/{bucket}"),
            None => format!("https://{bucket}.s3.{region}.amazonaws.com"),
        };
        Some(Forward {
            connections: remote.wire.connections(),
            signs,
            keys: remote.engine.keys.clone(),
            stats: remote.engine.stats.clone(),
            region,
            base,
            bucket,
            prefix: self.prefix.clone(),
            endpoint,
        })
    }
}

impl Forward {
    /// The bucket's name in its store, and the beginning of its keys.
    pub fn place(&self) -> (&str, &str) {
        (&self.bucket, &self.prefix)
    }

    /// The identity of a version of an object. `key` is without the prefix.
    pub fn identity(&self, key: &str, etag: &str, size: u64) -> ForeignObject {
        let key = format!("{}{key}", self.prefix);
        let endpoint = self.endpoint.as_deref();
        crate::foreign::identity(Store::S3.scheme(), endpoint, &self.bucket, &key, etag, size)
    }

    /// Sends a request and returns the head of the answer, with its body as it arrives.
    ///
    /// # Errors
    /// [`NotPassed`]. An answer that refuses is no error.
    pub async fn send(&self, passed: Passed) -> Result<Response<Body>, NotPassed> {
        let Passed { method, key, query, headers, body } = passed;
        let path = self.path(key.as_deref())?;
        let uri = if query.is_empty() { path } else { format!("{path}?{query}") };
        if headers.values().any(|value| std::str::from_utf8(value.as_bytes()).is_err()) {
            return Err(NotPassed::Unfit("a header is not UTF-8"));
        }
        let Some(body) = body else {
            let changes = self.keys.as_ref().map_or(0, |keys| keys.changes());
            let now = base::time::monotonic();
            let answer = self.once(&method, &uri, &headers, None).await?;
            let refused = matches!(answer.status(), StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST);
            // The reason is not read here. So a service of keys is not asked for each of many refusals.
            let began = now.checked_sub(ASK_KEYS).unwrap_or(now);
            if let Some(keys) = self.keys.as_ref().filter(|_| refused)
                && keys.differ_from(changes, began).await
            {
                return self.once(&method, &uri, &headers, None).await;
            }
            return Ok(answer);
        };
        self.once(&method, &uri, &headers, Some(body)).await
    }

    /// The URL of a key.
    fn path(&self, key: Option<&str>) -> Result<String, NotPassed> {
        let Some(key) = key else { return Ok(format!("{}/", self.base)) };
        // A URL with such parts names another key.
        if key.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(NotPassed::Unfit("a part of the key is . or .."));
        }
        let key = format!("{}{key}", self.prefix);
        Ok(format!("{}/{}", self.base, utf8_percent_encode(&key, PLAIN)))
    }

    async fn once(
        &self,
        method: &Method,
        uri: &str,
        headers: &HeaderMap,
        body: Option<Body>,
    ) -> Result<Response<Body>, NotPassed> {
        let unreached = |error: &(dyn std::error::Error + 'static)| NotPassed::Unreached(deepest(error));
        let credential = self.signs.get_credential().await.map_err(|error| unreached(&error))?;
        let request = Request::builder().method(method).uri(uri).body(HttpRequestBody::empty());
        let mut request = request.map_err(|_| NotPassed::Unfit("the request has no URL"))?;
        *request.headers_mut() = headers.clone();
        let signer = AwsAuthorizer::new(&credential, "s3", &self.region).with_sign_payload(body.is_none());
        signer.try_authorize(&mut request, Some(&EMPTY)).map_err(|error| unreached(&error))?;
        let url = uri.parse::<reqwest::Url>().map_err(|_| NotPassed::Unfit("the request has no URL"))?;
        let mut sent = reqwest::Request::new(method.clone(), url);
        *sent.headers_mut() = std::mem::take(request.headers_mut());
        // A body may take as long as the client's line takes.
        let how = match *method {
            _ if body.is_some() => Again::Large,
            Method::GET | Method::HEAD => Again::Beside,
            _ => Again::After,
        };
        *sent.body_mut() = body;
        let twin = (how == Again::Beside).then(|| sent.try_clone()).flatten();
        self.stats.request(match *method {
            Method::GET => Kind::Get,
            Method::HEAD => Kind::Head,
            Method::DELETE => Kind::Delete,
            _ => Kind::Put,
        });
        let fault = |error: &reqwest::Error| Fault::Cut(deepest(error));
        let answer = self.connections.send(how, sent, || twin, fault).await;
        answer.map(Response::from).map_err(|fault| match fault {
            Fault::Cut(what) => NotPassed::Unreached(what),
            other => NotPassed::Unreached(other.to_string()),
        })
    }
}
