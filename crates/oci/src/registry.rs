//! Images of a registry, by the OCI distribution protocol.
//!
//! ```text
//!   GET /v2/NAME/manifests/TAG or DIGEST      a manifest or an index
//!   GET /v2/NAME/blobs/DIGEST                 a blob; with Range after an interruption
//! ```
//!
//! A registry that wants a token says where it is had ([`auth`]). Only the registry itself is believed that,
//! and no host to which it redirects: the user's password goes there. Requests use https, and http only to
//! this machine itself. Every request has a limit of time and of tries: a request that the registry refuses
//! is not repeated; one that got no answer, an answer of a proxy (5xx) or "too many requests" is.
//!
//! The runtime has no thread of its own. It runs while the thread that reads waits for it. Its helpers look
//! names up.

pub mod auth;
pub mod reference;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use bytes::Bytes as Piece;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, RANGE, RETRY_AFTER, WWW_AUTHENTICATE};
use reqwest::{Response, StatusCode, Url};
use tokio::runtime::Runtime;

use crate::digest::Digest;
use crate::manifest::{Descriptor, INDEXES, MANIFEST_MAX, MANIFESTS};
use crate::{Blobs, Bytes};
use auth::{Challenge, Keys};
use reference::Reference;

/// The limit for a connection, and for each part of an answer.
const CONNECT: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(30);
/// The limit for an answer that is no blob, and for what comes before a blob.
const ANSWER: Duration = Duration::from_secs(60);
/// Tries of one request that bring nothing, and waits between them.
const TRIES: u32 = 5;
const WAIT_FIRST: Duration = Duration::from_millis(300);
const WAIT_MOST: Duration = Duration::from_secs(20);
/// Blobs are moved to other hosts, but not for ever.
const REDIRECTS: usize = 5;
/// How rustls begins what it says of a certificate. Asking again does not change that.
const UNTRUSTED: &str = "invalid peer certificate";
/// The largest answer that is no blob, in bytes.
const ANSWER_MAX: usize = MANIFEST_MAX as usize;

/// A connection to one repository of a registry.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    client: reqwest::Client,
    reference: Reference,
    keys: Keys,
    /// The value of the header that a refused request got.
    token: Mutex<Option<String>>,
}

/// Why a request brought no answer that can be used.
enum Fault {
    /// The answer may be different next time. With the time that the registry wants to wait.
    Again(String, Option<Duration>),
    /// The answer will not be different next time.
    Final(Failure),
}

impl Registry {
    /// Prepares requests to the registry of a reference. Nothing is sent yet.
    ///
    /// # Errors
    /// The machine has no certificates, or a file of credentials cannot be understood.
    pub fn new(reference: &Reference) -> Result<Registry> {
        // Another part of the program may have installed it first; one is enough.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let local = reference.is_local();
        let policy = reqwest::redirect::Policy::custom(move |attempt| match attempt.url().scheme() {
            _ if attempt.previous().len() > REDIRECTS => attempt.error("it is moved too often"),
            "https" => attempt.follow(),
            "http" if local && attempt.url().host_str().is_some_and(reference::is_loopback) => {
                attempt.follow()
            }
            _ => attempt.error("it is moved to an address without TLS"),
        });
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("covey/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .redirect(policy)
            .connect_timeout(CONNECT)
            .read_timeout(IDLE);
        if local {
            builder = builder.tls_certs_only(std::iter::empty()).no_proxy();
        }
        let client = builder.build().map_err(|error| {
            Failure::new("io", "cannot prepare requests to the registry").why(deepest(&error))
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("covey-registry")
            .max_blocking_threads(4)
            .build()
            .map_err(|error| Failure::io("cannot prepare requests to the registry", &error))?;
        let keys = Keys::of(reference)?;
        let reference = reference.clone();
        Ok(Registry(Arc::new(Inner { runtime, client, reference, keys, token: Mutex::new(None) })))
    }

    /// The manifest or index that the reference names.
    ///
    /// # Errors
    /// The registry is not there, refuses, or has no such image.
    pub fn named(&self) -> Result<Descriptor> {
        let Inner { reference, .. } = &*self.0;
        let wanted = reference.digest.map_or_else(|| reference.tag.clone(), |digest| digest.to_string());
        let url = self.url(&format!("manifests/{wanted}"))?;
        let (headers, bytes) = self.small(&url)?;
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let media_type = media_type.split(';').next().unwrap_or("").trim();
        let found = Descriptor::of(media_type, &bytes);
        let said = headers.get("docker-content-digest").and_then(|value| value.to_str().ok());
        for expected in [reference.digest, said.and_then(Digest::parse)].into_iter().flatten() {
            if expected != found.digest {
                return Err(Failure::new(
                    "damaged",
                    format!("the manifest of {reference} is not {expected}"),
                )
                .why(format!("its bytes have the digest {}", found.digest))
                .next("try again; if it stays, the registry is damaged"));
            }
        }
        Ok(found)
    }

    fn url(&self, rest: &str) -> Result<Url> {
        let text = format!("{}/v2/{}/{rest}", self.0.reference.base(), self.0.reference.repository);
        Url::parse(&text).map_err(|error| {
            Failure::usage(format!("{} cannot be asked for", self.0.reference)).why(error.to_string())
        })
    }

    /// The head of an answer and its body, which is not long.
    fn small(&self, url: &Url) -> Result<(HeaderMap, Vec<u8>)> {
        self.tries(|| {
            let response = self.0.runtime.block_on(self.send(url, 0))?;
            let headers = response.headers().clone();
            Ok((headers, self.0.runtime.block_on(in_time(ANSWER, body(response)))?))
        })
    }

    /// Runs one request again and again, within bounds.
    fn tries<T>(&self, mut work: impl FnMut() -> std::result::Result<T, Fault>) -> Result<T> {
        let mut wait = WAIT_FIRST;
        for at in 1..=TRIES {
            match work() {
                Ok(done) => return Ok(done),
                Err(Fault::Final(failure)) => return Err(failure),
                Err(Fault::Again(why, _)) if at == TRIES => return Err(self.away(&why)),
                Err(Fault::Again(_, asked)) => {
                    std::thread::sleep(asked.unwrap_or(wait).min(WAIT_MOST));
                    wait = (wait * 2).min(WAIT_MOST);
                }
            }
        }
        Err(self.away("it does not answer"))
    }

    fn away(&self, why: &str) -> Failure {
        let host = &self.0.reference.host;
        Failure::new("no-answer", format!("the registry {host} does not answer"))
            .why(why.to_owned())
            .next("check the name and the network; what is there already is not fetched again")
    }

    /// Sends a request, and receives the head of its answer.
    async fn send(&self, url: &Url, from: u64) -> std::result::Result<Response, Fault> {
        in_time(ANSWER, self.exchange(url, from)).await
    }

    /// Sends a request, with the token that is wanted. `from`: the first byte that is wanted.
    async fn exchange(&self, url: &Url, from: u64) -> std::result::Result<Response, Fault> {
        let had_token = self.0.token.lock().clone();
        let response = self.once(url, from, had_token.as_deref()).await?;
        if response.status() == StatusCode::UNAUTHORIZED && response.url().origin() != url.origin() {
            let other = response.url().host_str().unwrap_or_default();
            let said = format!("it redirects to {other}, which wants credentials; they are not sent there");
            return Err(Fault::Final(self.refused(Some(said))));
        }
        let response = if response.status() == StatusCode::UNAUTHORIZED {
            let challenge = response.headers().get_all(WWW_AUTHENTICATE).iter();
            let challenge = challenge.filter_map(|value| Challenge::parse(value.to_str().ok()?)).next();
            let token = self.authorize(challenge).await?;
            *self.0.token.lock() = Some(token.clone());
            self.once(url, from, Some(&token)).await?
        } else {
            response
        };
        self.judge(response).await
    }

    async fn once(&self, url: &Url, from: u64, token: Option<&str>) -> std::result::Result<Response, Fault> {
        let accept = [&MANIFESTS[..], &INDEXES[..], &["*/*"]].concat().join(", ");
        let mut request = self.0.client.get(url.clone()).header(ACCEPT, accept);
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, token);
        }
        request.send().await.map_err(|error| match deepest(&error) {
            why if error.is_redirect() => Fault::Final(self.away(&why)),
            why if why.starts_with(UNTRUSTED) => Fault::Final(self.untrusted(&why)),
            why => Fault::Again(why, None),
        })
    }

    fn untrusted(&self, why: &str) -> Failure {
        let host = &self.0.reference.host;
        Failure::new("untrusted", format!("the certificate of the registry {host} is not trusted"))
            .why(why.to_owned())
            .next("add the certificate of its authority to this machine's, or name its file: SSL_CERT_FILE=FILE")
    }

    /// Gets a token, or the user's own credentials.
    async fn authorize(&self, challenge: Option<Challenge>) -> std::result::Result<String, Fault> {
        let Inner { reference, keys, client, .. } = &*self.0;
        match challenge {
            Some(Challenge::Basic) => keys.basic().ok_or_else(|| Fault::Final(self.refused(None))),
            Some(Challenge::Bearer { realm, service }) => {
                let url = auth::token_url(&realm, service.as_deref(), reference).map_err(Fault::Final)?;
                let mut request = client.get(url);
                if let Some(basic) = keys.basic() {
                    request = request.header(AUTHORIZATION, basic);
                }
                let response = request.send().await.map_err(|error| Fault::Again(deepest(&error), None))?;
                let status = response.status();
                if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
                    return Err(Fault::Final(self.refused(None)));
                }
                let response = self.judge(response).await?;
                auth::token(&body(response).await?).map_err(Fault::Final)
            }
            None => Err(Fault::Final(self.refused(None))),
        }
    }

    /// Whether an answer can be used, and what else it means.
    async fn judge(&self, response: Response) -> std::result::Result<Response, Fault> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let reference = &self.0.reference;
        let what = format!("the registry answers {status}");
        if status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
        {
            return Err(Fault::Again(what, asked.map(Duration::from_secs)));
        }
        let said = body(response).await.ok().and_then(|bytes| auth::said(&bytes));
        Err(Fault::Final(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.refused(said),
            StatusCode::NOT_FOUND => {
                let failure = Failure::new("not-found", format!("{reference} is not in its registry"));
                failure.why(said.unwrap_or(what)).next("check the name and the tag")
            }
            _ => Failure::new("refused", format!("{reference} cannot be had")).why(said.unwrap_or(what)),
        }))
    }

    fn refused(&self, said: Option<String>) -> Failure {
        let Inner { reference, keys, .. } = &*self.0;
        let failure = Failure::new("not-permitted", format!("the registry does not give {reference}"));
        let failure = said.into_iter().fold(failure, Failure::why);
        failure.why(keys.shown()).next(
            "log in with docker login or skopeo login, or set COVEY_REGISTRY_USER and COVEY_REGISTRY_PASSWORD",
        )
    }
}

/// Waits at most so long. A registry that sends a byte now and then would hold an import for ever.
async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = std::result::Result<T, Fault>>,
) -> std::result::Result<T, Fault> {
    let slow = || Fault::Again(format!("its answer takes more than {} s", limit.as_secs()), None);
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(slow()))
}

/// The whole body of an answer that is no blob. It is waited for with [`in_time`].
async fn body(mut response: Response) -> std::result::Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| Fault::Again(deepest(&error), None))? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > ANSWER_MAX {
            return Err(Fault::Final(
                Failure::new("damaged", "the registry's answer is longer than a manifest may be")
                    .why(format!("none has more than {ANSWER_MAX} bytes")),
            ));
        }
    }
    Ok(bytes)
}

/// The innermost cause, which says the most.
fn deepest(error: &reqwest::Error) -> String {
    let mut at: &dyn std::error::Error = error;
    while let Some(source) = at.source() {
        at = source;
    }
    let text = at.to_string();
    text.split(" (os error").next().unwrap_or("").to_owned()
}

impl Blobs for Registry {
    fn open(&self, blob: &Descriptor) -> Result<Bytes> {
        let url = self.url(&format!("blobs/{}", blob.digest))?;
        let (piece, beyond) = (Piece::new(), Piece::new());
        let registry = self.clone();
        let mut body = Body { registry, url, at: 0, size: blob.size, piece, beyond, response: None };
        body.reopen()?;
        Ok(Box::new(body))
    }

    fn open_manifest(&self, blob: &Descriptor) -> Result<Bytes> {
        let url = self.url(&format!("manifests/{}", blob.digest))?;
        Ok(Box::new(io::Cursor::new(self.small(&url)?.1)))
    }
}

/// A blob that arrives. After an interruption it goes on where it was.
struct Body {
    registry: Registry,
    url: Url,
    /// Bytes that have arrived.
    at: u64,
    size: u64,
    piece: Piece,
    /// What came with the bytes that were skipped.
    beyond: Piece,
    response: Option<Response>,
}

impl Body {
    fn reopen(&mut self) -> Result<()> {
        let Registry(inner) = &self.registry;
        let (url, at) = (self.url.clone(), self.at);
        let response = self.registry.tries(|| {
            let mut response = inner.runtime.block_on(self.registry.send(&url, at))?;
            let is_whole = response.status() != StatusCode::PARTIAL_CONTENT;
            let beyond = match is_whole && at > 0 {
                true => inner.runtime.block_on(skip(&mut response, at))?,
                false => Piece::new(),
            };
            Ok((response, beyond))
        });
        let (response, beyond) = response?;
        self.at += beyond.len() as u64;
        (self.response, self.beyond) = (Some(response), beyond);
        Ok(())
    }

    /// The next bytes, or an empty piece at the end.
    fn next(&mut self) -> Result<Piece> {
        let mut idle_tries = 0;
        loop {
            if !self.beyond.is_empty() {
                return Ok(std::mem::take(&mut self.beyond));
            }
            let Some(response) = &mut self.response else {
                self.reopen()?;
                continue;
            };
            let got = self.registry.0.runtime.block_on(response.chunk());
            let why = match got {
                Ok(Some(piece)) if piece.is_empty() => continue,
                Ok(Some(piece)) => {
                    self.at += piece.len() as u64;
                    return Ok(piece);
                }
                Ok(None) if self.at >= self.size => return Ok(Piece::new()),
                Ok(None) => "the answer ends early".to_owned(),
                Err(error) => deepest(&error),
            };
            self.response = None;
            idle_tries += 1;
            if idle_tries >= TRIES {
                return Err(self.registry.away(&why));
            }
        }
    }
}

/// Reads over bytes that are there already, of a registry that knows no ranges. Returns what came beyond
/// them.
async fn skip(response: &mut Response, mut left: u64) -> std::result::Result<Piece, Fault> {
    let again = |why: String| Fault::Again(why, None);
    loop {
        let piece = response.chunk().await.map_err(|error| again(deepest(&error)))?;
        let mut piece = piece.ok_or_else(|| again("the answer ends early".to_owned()))?;
        match left.checked_sub(piece.len() as u64) {
            Some(0) => return Ok(Piece::new()),
            Some(rest) => left = rest,
            None => return Ok(piece.split_off(left as usize)),
        }
    }
}

impl Read for Body {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.piece.is_empty() {
            self.piece = self.next().map_err(|failure| io::Error::other(failure.in_one_line()))?;
        }
        let len = self.piece.len().min(buf.len());
        buf[..len].copy_from_slice(&self.piece.split_to(len));
        Ok(len)
    }
}
