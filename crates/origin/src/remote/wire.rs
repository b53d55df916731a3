//! HTTP, as the `object_store` crate sees it: one request, one answer. Every unsuccessful answer, and every
//! failed connection, leaves here as a [`Fault`]. Neither this module nor that crate retries, so that
//! deadlines, budgets and counts have one owner.
//!
//! HTTP/1.1 only: the streams of one HTTP/2 connection share one TCP window, and 64 large reads want 64.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, Once};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use parking_lot::Mutex;
use reqwest::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, DATE, HeaderMap, HeaderValue,
    PRAGMA, RETRY_AFTER,
};
use reqwest::{Body, Method, Request, StatusCode, Url};

use super::connections::{Again, Connections, IDLE};
use super::contents::{Headers, WithSums};
use super::engine::UNTIL;
use super::fault::{Fault, Head, Unreached, first_words, json, read_refusal, tag};
use super::forms::trimmed;
use super::keys::Keys;
use super::listing::moment;
use super::roles::Ends;
use super::stats::{Kind, Stats};

/// Time limit of making a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Connections that were idle for this long are closed; stores close theirs a little later.
const POOL_IDLE: Duration = Duration::from_secs(15);

/// A longer body is large.
const LARGE_BODY: usize = 64 << 10;

/// How much of an unsuccessful answer is read.
const REFUSAL_MAX: usize = 64 << 10;

/// The longest wait that a store may ask for; more is ignored.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A request extension: answers from a proxy's cache are not wanted.
#[derive(Clone, Copy)]
pub(crate) struct Fresh;

/// A request extension: the object may be anything, also an HTML page. Our own objects never are, so that
/// such an answer is one of a proxy.
#[derive(Clone, Copy)]
pub(crate) struct AnyBody;

/// A request extension: the body of a successful answer goes here, and not to the `object_store` crate.
#[derive(Clone)]
pub(crate) struct Tap(pub(crate) Arc<Mutex<Option<Vec<u8>>>>);

/// The longest body for a [`Tap`]: 5000 keys of a kilobyte, escaped.
const TAPPED_MAX: usize = 32 << 20;

/// Sent bytes that are not acknowledged for so long mean that the connection is dead.
const UNHEARD: Duration = Duration::from_secs(20);

/// See the [module](self).
#[derive(Clone)]
pub(crate) struct Wire {
    connections: Arc<Connections>,
    stats: Arc<Stats>,
    keys: Option<Arc<Keys>>,
    /// Requests are for keys, and their announced end goes here.
    ends: Option<Ends>,
    /// Requests go to this URL, with this token.
    elsewhere: Option<(Url, Option<HeaderValue>)>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire(...)")
    }
}

impl Wire {
    /// `tls`: whether any request will use it; if not, no roots are loaded. `direct`: bypasses the proxies of
    /// the environment.
    ///
    /// # Errors
    /// There are no roots on this machine, or a proxy of the environment is malformed.
    pub(crate) fn new(
        tls: bool,
        direct: bool,
        stats: Arc<Stats>,
        keys: Option<Arc<Keys>>,
    ) -> Result<Wire, Fault> {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // Another part of the program may have installed it first; one is enough.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let client = move |idle: Option<Duration>| {
            let mut builder = reqwest::Client::builder()
                .user_agent(concat!("covey/", env!("CARGO_PKG_VERSION")))
                .http1_only()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT)
                .tcp_user_timeout(UNHEARD)
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(128);
            if let Some(idle) = idle {
                builder = builder.read_timeout(idle);
            }
            if !tls {
                builder = builder.tls_certs_only(std::iter::empty());
            }
            if direct {
                builder = builder.no_proxy();
            }
            builder.build().map_err(|error| Fault::Unreached {
                how: Unreached::Tls,
                host: "the store".to_owned(),
                what: deepest(&error),
            })
        };
        // For large bodies: the wait for an answer begins before the body has been sent, which is slow on a
        // slow line. So only the try's own limit applies.
        let connections = Connections::new(move || client(Some(IDLE)), move || client(None))?;
        Ok(Wire { connections: Arc::new(connections), stats, keys, ends: None, elsewhere: None })
    }

    /// Returns a wire for requests that ask for keys. Their announced end goes to `ends`.
    pub(crate) fn for_keys(&self, ends: &Ends) -> Wire {
        Wire { keys: None, ends: Some(Arc::clone(ends)), ..self.clone() }
    }

    /// Returns a wire for requests to one URL, whatever they ask for.
    pub(crate) fn elsewhere(&self, url: Url, token: Option<HeaderValue>) -> Wire {
        Wire { elsewhere: Some((url, token)), ..self.clone() }
    }

    /// The connections, for requests of others.
    pub(crate) fn connections(&self) -> Arc<Connections> {
        Arc::clone(&self.connections)
    }

    async fn exchange(&self, mut request: HttpRequest) -> Result<HttpResponse, Fault> {
        if let Some(sums) = request.extensions().get::<WithSums>().cloned() {
            sums.ask(&mut request).await?;
        }
        let (parts, body) = request.into_parts();
        let host = parts.uri.authority().map_or_else(String::new, |host| host.to_string());
        let kind = match self.ends {
            Some(_) => Kind::Keys,
            None => kind_of(&parts.method, &host, parts.uri.query().unwrap_or("")),
        };
        let url: Url =
            parts.uri.to_string().parse().map_err(|_| Fault::Odd("the request has no URL".to_owned()))?;
        let any_body = parts.extensions.get::<AnyBody>().is_some();
        let tap = parts.extensions.get::<Tap>().cloned();
        let how = match parts.method {
            _ if body.content_length() > LARGE_BODY => Again::Large,
            Method::GET | Method::HEAD => Again::Beside,
            _ => Again::After,
        };
        let asked = parts.method.clone();
        let mut request = Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        let body = self.with_token(&mut request, body)?;
        if let Some((url, token)) = &self.elsewhere {
            request.url_mut().clone_from(url);
            token.iter().for_each(|token| drop(request.headers_mut().insert(AUTHORIZATION, token.clone())));
        }
        if parts.extensions.get::<Fresh>().is_some() {
            request.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            request.headers_mut().insert(PRAGMA, HeaderValue::from_static("no-cache"));
        }
        // The last moment before it is sent: it may have waited for a slot in flight, or for keys.
        if UNTIL.try_with(|until| base::time::boot() >= *until).unwrap_or(false) {
            return Err(Fault::Slow(Duration::ZERO));
        }
        self.stats.request(kind);
        self.stats.send(body.content_length() as u64);
        *request.body_mut() = Some(outgoing(body));
        let twin = (how == Again::Beside).then(|| request.try_clone()).flatten();
        let again = || {
            self.stats.request(kind);
            twin
        };
        let answer = self.connections.send(how, request, again, |error| fault_of(error, &host)).await?;
        let answer: http::Response<Body> = answer.into();
        let (mut parts, body) = answer.into_parts();
        if any_body {
            parts.extensions.insert(Headers(Arc::new(parts.headers.clone())));
        }
        time_of(&parts.headers).into_iter().for_each(|seconds| self.stats.told_time(seconds));
        let head = Head { keys: kind == Kind::Keys, ..read_head(&parts.headers) };
        if parts.status.is_success() && (!head.html || any_body) {
            return self.served((parts, body), &asked, tap, host).await;
        }
        let text = read_some(body, REFUSAL_MAX).await;
        self.stats.receive(text.len() as u64);
        let text = String::from_utf8_lossy(&text);
        let scrub = |text: &str| self.keys.as_ref().map_or_else(|| text.to_owned(), |keys| keys.scrub(text));
        Err(read_refusal(parts.status.as_u16(), &host, &head, &text, scrub))
    }

    /// A request for keys with its token as it should be sent. See [`super::forms`].
    fn with_token(&self, request: &mut Request, body: HttpRequestBody) -> Result<HttpRequestBody, Fault> {
        if self.ends.is_some()
            && let Some(query) = request.url().query()
        {
            let query = trimmed(query)?;
            request.url_mut().set_query(Some(&query));
        }
        let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_form = kind.is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
        let text = body.as_bytes().filter(|_| is_form).and_then(|bytes| std::str::from_utf8(bytes).ok());
        let Some(text) = text else { return Ok(body) };
        let text = trimmed(text)?;
        request.headers_mut().remove(CONTENT_LENGTH);
        Ok(text.into())
    }

    /// A successful answer.
    async fn served(
        &self,
        (mut parts, body): (http::response::Parts, Body),
        asked: &Method,
        tap: Option<Tap>,
        host: String,
    ) -> Result<HttpResponse, Fault> {
        let has_length = parts.headers.contains_key(CONTENT_LENGTH);
        if !has_length && let Some(length) = length_of_range(&parts) {
            parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        } else if tap.is_some() || self.ends.is_some() || (!has_length && *asked == Method::GET) {
            let text = read_whole(body, TAPPED_MAX).await.map_err(|error| match error {
                Some(error) => fault_of(&error, &host),
                None => Fault::Odd("an answer that is too long".to_owned()),
            })?;
            if let Some(ends) = &self.ends {
                let end = end_of_keys(&String::from_utf8_lossy(&text));
                let mut ends = ends.lock();
                *ends = end.or(*ends);
            }
            let Some(tap) = tap else {
                parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
                return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(text)));
            };
            self.stats.receive(text.len() as u64);
            *tap.0.lock() = Some(text);
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(Vec::new())));
        }
        let broken =
            move |error: reqwest::Error| HttpError::new(HttpErrorKind::Unknown, fault_of(&error, &host));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body.map_err(broken))))
    }
}

/// The length of a body that is a range of an object, as its other header has it. Gateways that pass on
/// bodies in pieces leave out Content-Length.
fn length_of_range(parts: &http::response::Parts) -> Option<u64> {
    if parts.status != StatusCode::PARTIAL_CONTENT {
        return None;
    }
    let range = parts.headers.get(CONTENT_RANGE)?.to_str().ok()?.trim().strip_prefix("bytes ")?;
    let (first, last) = range.split_once('/')?.0.split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

/// When the keys in an answer end, as it says.
fn end_of_keys(text: &str) -> Option<base::Timestamp> {
    moment(tag(text, "Expiration").or_else(|| json(text, "Expiration"))?)
}

#[async_trait]
impl HttpService for Wire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.exchange(request).await.map_err(|fault| HttpError::new(HttpErrorKind::Unknown, fault))
    }
}

impl HttpConnector for Wire {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

fn outgoing(body: HttpRequestBody) -> Body {
    match body.as_bytes() {
        Some(bytes) => Body::from(bytes.clone()),
        None => Body::wrap(body),
    }
}

/// The first bytes of a body, up to an error.
async fn read_some(mut body: Body, most: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while out.len() < most {
        let Some(Ok(frame)) = body.frame().await else { break };
        if let Some(data) = frame.data_ref() {
            out.extend_from_slice(&data[..data.len().min(most - out.len())]);
        }
    }
    out
}

/// A whole body. The error is none if it is longer than `most`.
async fn read_whole(mut body: Body, most: usize) -> Result<Vec<u8>, Option<reqwest::Error>> {
    let mut out = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame.map_err(Some)?.data_ref() {
            if out.len() + data.len() > most {
                return Err(None);
            }
            out.extend_from_slice(data);
        }
    }
    Ok(out)
}

fn read_head(headers: &HeaderMap) -> Head {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let html = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    Head {
        region: text("x-amz-bucket-region"),
        code: text("x-ms-error-code"),
        html: html.is_some_and(|kind| kind.starts_with("text/html")),
        keys: false,
        wait: seconds.map(|seconds| Duration::from_secs(seconds).min(WAIT_MAX)),
    }
}

/// The store's time when it answered, in seconds since 1970.
fn time_of(headers: &HeaderMap) -> Option<i64> {
    let date = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    i64::try_from(date.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs()).ok()
}

/// The kind that stores charge a request as.
fn kind_of(method: &Method, host: &str, query: &str) -> Kind {
    let keys = ["169.254.", "sts.", "oauth2.", "metadata.google", "login.microsoftonline"];
    let has = |name: &str| query.split('&').any(|part| part == name || part.split('=').next() == Some(name));
    let lists = has("list-type") || has("prefix") || query.contains("comp=list");
    match *method {
        _ if keys.iter().any(|start| host.starts_with(start)) => Kind::Keys,
        Method::PUT => Kind::Put,
        Method::HEAD => Kind::Head,
        Method::DELETE => Kind::Delete,
        Method::POST if has("delete") || query.contains("comp=batch") => Kind::Delete,
        Method::POST => Kind::Keys,
        _ if lists => Kind::List,
        _ => Kind::Get,
    }
}

/// The fault for an error of the HTTP library.
fn fault_of(error: &reqwest::Error, host: &str) -> Fault {
    let what = deepest(error);
    let unreached = |how| Fault::Unreached { how, host: host.to_owned(), what: what.clone() };
    let causes = causes_of(error);
    if causes.iter().any(|cause| is_tls(*cause)) {
        return unreached(Unreached::Tls);
    }
    if error.is_connect() {
        let refused = causes.iter().any(|cause| {
            let cause = cause.downcast_ref::<io::Error>();
            cause.is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
        });
        let named = causes.iter().any(|cause| cause.to_string().contains("dns error"));
        let what = if error.is_timeout() {
            format!("no connection in {} s", CONNECT.as_secs())
        } else {
            what.clone()
        };
        let how = match (refused, named) {
            (true, _) => Unreached::Refused,
            (_, true) => Unreached::Name,
            _ => Unreached::Other,
        };
        return Fault::Unreached { how, host: host.to_owned(), what };
    }
    if error.is_timeout() {
        return Fault::Slow(IDLE);
    }
    Fault::Cut(what)
}

/// Whether the error is one of TLS, or wraps one. An I/O error does not list what it wraps among its causes.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    held.is_some_and(|held| is_tls(held))
}

fn causes_of<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let mut causes = vec![error];
    let mut at = error;
    while let Some(below) = at.source() {
        causes.push(below);
        at = below;
    }
    causes
}

/// The message of the last cause: those above it repeat the URL.
pub(crate) fn deepest(error: &(dyn Error + 'static)) -> String {
    first_words(&causes_of(error).last().map_or_else(String::new, |last| last.to_string()), 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_as_stores_charge_them() {
        for (method, host, query, kind) in [
            (Method::GET, "s3.x", "", Kind::Get),
            (Method::GET, "s3.x", "list-type=2&prefix=a%2F", Kind::List),
            (Method::GET, "x.blob", "restype=container&comp=list", Kind::List),
            (Method::HEAD, "s3.x", "", Kind::Head),
            (Method::PUT, "s3.x", "", Kind::Put),
            (Method::DELETE, "s3.x", "", Kind::Delete),
            (Method::POST, "s3.x", "delete", Kind::Delete),
            (Method::POST, "sts.eu-west-1.amazonaws.com", "Action=x", Kind::Keys),
            (Method::GET, "169.254.169.254", "", Kind::Keys),
        ] {
            assert_eq!(kind_of(&method, host, query), kind, "{method} {host} {query}");
        }
    }
}
