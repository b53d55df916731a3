//! The listener: connections, TLS, and what one client may take of the machine.
//!
//! ```text
//!   TCP ── a place ── TLS ── HTTP/1.1 ── guard ── s3s: signature, rights ── service ── pool ── filesystem
//! ```
//!
//! The number of connections, the size of a request's head and the time that the server waits for a client
//! are limited. A connection works on one request at a time and has at most a few megabytes in memory. One
//! that has no signed request is a stranger: see [`base::places`].

use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use api::error::{Failure, Result};
use base::Deadline;
use base::places::{self, Full, Peer, Place, Places, Work};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::validation::{AwsNameValidation, NameValidation};
use s3s::{HttpError, StdError};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

use crate::bucket::{Bucket, Made};
use crate::chunks::{self, Divided};
use crate::errors::{NOT_OURS, NOT_OURS_TEXT};
use crate::foreign::{self, Foreign, Route};
use crate::hosts::Hosts;
use crate::keyring::Shared as SharedKeys;
use crate::patience::{Arriving, Leaving};
use crate::reload::Keys;
use crate::service::Gateway;
use crate::{guard, stage, sums, uploads};

pub use crate::reload::Log;

/// The most bytes of a request's head, and of a connection's read buffer.
const HEAD_MAX: usize = 128 << 10;
/// The most headers of a request.
const HEADERS_MAX: usize = 200;
/// The largest XML body: 10,000 parts with their checksums.
const XML_MAX: usize = 4 << 20;
/// How long a TLS handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long the end waits for requests that are under way.
const ENDING: Duration = Duration::from_secs(10);
/// How long after a connection could not be accepted, or found no place, the next attempt is made.
const AGAIN: Duration = Duration::from_millis(20);
/// Threads that serve connections.
const THREADS: usize = 4;

/// Limits on what clients may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time. A further one takes the place of one that asks nothing, or waits.
    pub connections: usize,
    /// How long a connection may wait for the head of a request.
    pub idle: Duration,
    /// How long a client may stand still within a request.
    pub patience: Duration,
    /// Filesystem calls at a time.
    pub calls: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        let idle = Duration::from_secs(60);
        Limits { connections: 512, idle, patience: Duration::from_secs(30), calls: 64 }
    }
}

/// How a server listens.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `ADDRESS:PORT`.
    pub listen: String,
    /// The files with the certificate chain and its private key, for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Names of this service. A request to `BUCKET.NAME` is for that bucket.
    pub domains: Vec<String>,
    /// Limits.
    pub limits: Limits,
}

/// A listener that is bound, before its buckets are open.
pub struct Bound {
    listener: StdListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
    options: Options,
    keys: Keys,
}

impl Bound {
    /// Reads the keys and the certificate, and binds the address.
    pub fn new(options: Options, keys: &Path) -> Result<Bound> {
        let keys = Keys::open(keys)?;
        let tls = options.tls.as_ref().map(|(chain, key)| acceptor(chain, key)).transpose()?;
        let at = &options.listen;
        let cannot = |error: std::io::Error| {
            Failure::io(format!("cannot listen on {at}"), &error)
                .next("write ADDRESS:PORT, like 127.0.0.1:9878, with a free port")
        };
        let listener = base::lock::bind(|| StdListener::bind(at)).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        Ok(Bound { listener, address, tls, options, keys })
    }

    /// Returns the address that is bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What a person should know about how it listens.
    pub fn warning(&self) -> Option<String> {
        let open = self.tls.is_none() && !self.address.ip().is_loopback();
        open.then(|| {
            format!(
                "S3 on {} is without TLS: others in the network can read what is sent; name --tls-cert and --tls-key",
                self.address
            )
        })
    }

    /// Where it listens, its file of keys, and whether it uses TLS.
    pub fn shown(&self) -> (SocketAddr, &Path, bool) {
        (self.address, self.keys.path(), self.tls.is_some())
    }

    /// Serves these buckets, and these of other stores. `log` receives a line when the keys are read again.
    pub fn serve(self, buckets: Vec<Made>, foreign: Vec<foreign::Made>, log: Log) -> Result<Server> {
        let buckets = buckets.into_iter().map(|made| opened(made, &log)).collect::<Result<Vec<_>>>()?;
        let Bound { listener, address, tls, options, keys } = self;
        let keys = Arc::new(keys);
        let hosts = Hosts { domains: options.domains.clone() };
        foreign.iter().try_for_each(|made| check_name(&made.name))?;
        let names = foreign.iter().map(|made| made.name.clone()).collect();
        let foreign = foreign.into_iter().map(Foreign::new).map(Arc::new).collect();
        let mut builder = S3ServiceBuilder::new(Gateway::new(buckets, names, keys.clone()));
        builder.set_route(Route::new(foreign, SharedKeys(keys.clone()), hosts.clone()));
        builder.set_auth(SharedKeys(keys.clone()));
        builder.set_access(SharedKeys(keys.clone()));
        builder.set_host(hosts);
        let mut config = S3Config::default();
        config.xml_max_body_size = XML_MAX;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        let cannot =
            |error: std::io::Error| Failure::io("cannot start the threads of the S3 service", &error);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores.min(THREADS))
            .max_blocking_threads(options.limits.calls.max(1))
            .thread_name("covey-s3")
            .enable_all()
            .build()
            .map_err(cannot)?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(cannot)?
        };
        let places = Places::new(places::Limits::of(options.limits.connections));
        let shared = Arc::new(Shared { s3: builder.build(), tls, limits: options.limits, places });
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(keys.follow(log, stopped.clone()));
        runtime.spawn(accept(listener, shared.clone(), stopped));
        Ok(Server { address, stop, shared, runtime: Some(runtime) })
    }
}

/// Opens a bucket, and removes what an earlier run left half done.
fn opened(made: Made, log: &Log) -> Result<Arc<Bucket>> {
    let name = &made.name;
    check_name(name)?;
    let bucket = Bucket::new(made);
    let cleaned = match stage::clean(&bucket).and_then(|()| uploads::clean(&bucket)) {
        // A user who may make a folder in the bucket does not keep it from being read.
        Err(NOT_OURS) => {
            log(&format!("nothing can be put into the bucket {}: {NOT_OURS_TEXT}", bucket.name()));
            Ok(())
        }
        cleaned => cleaned,
    };
    cleaned.map_err(|errno| {
        let error = std::io::Error::from_raw_os_error(errno.0);
        Failure::io(format!("cannot tidy up the bucket {}", bucket.name()), &error)
    })?;
    Ok(Arc::new(bucket))
}

/// Checks the name of a bucket.
pub fn check_name(name: &str) -> Result<()> {
    if AwsNameValidation::new().validate_bucket_name(name) {
        return Ok(());
    }
    Err(Failure::usage(format!("{name} cannot be the name of a bucket"))
        .next("use 3 to 63 lowercase letters, digits, hyphens and dots"))
}

fn acceptor(chain: &Path, key: &Path) -> Result<TlsAcceptor> {
    let wrong = |path: &Path, why: String| {
        Failure::new("tls", format!("cannot use {} for TLS", path.display()))
            .why(why)
            .next("it must be PEM: the certificate and its chain in one file, the private key in the other")
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|error| wrong(chain, error.to_string()))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(certificates, private))
        .map_err(|error| wrong(chain, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// A server that is running. It ends when it is dropped.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

impl Server {
    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no further request, waits for those that are under way, and ends. The filesystems are not used
    /// any more when this returns, unless one of them does not answer.
    pub fn end(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.stop.send_replace(true);
        let until = Deadline::after(ENDING);
        while self.shared.places.count() > 0 && !until.is_over() {
            std::thread::sleep(AGAIN / 4);
        }
        runtime.shutdown_timeout(ENDING);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

struct Shared {
    s3: S3Service,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    places: Places,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stop: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = next(&listener, &shared.places) => accepted,
            _ = stop.changed() => return,
        };
        match accepted {
            Some((stream, place, cut)) => {
                let served = connection(stream, place, shared.clone(), stop.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = served => {}
                        () = cut.notified() => {}
                    }
                });
            }
            // No descriptors are left, or the client is gone already.
            None => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// The next connection, its place as soon as there is one, and what tells it that it has lost the place.
async fn next(listener: &TcpListener, places: &Places) -> Option<(TcpStream, Arc<Place>, Arc<Notify>)> {
    let (stream, from) = listener.accept().await.ok()?;
    let (peer, cut) = (Peer::of_address(from.ip()), Arc::new(Notify::new()));
    loop {
        let end = cut.clone();
        match places.enter(peer, false, move || end.notify_one()) {
            Ok(place) => return Some((stream, Arc::new(place), cut)),
            Err(Full) => tokio::time::sleep(AGAIN).await,
        }
    }
}

async fn connection(stream: TcpStream, place: Arc<Place>, shared: Arc<Shared>, stop: watch::Receiver<bool>) {
    let _ = stream.set_nodelay(true);
    let stream = Leaving::new(stream, shared.limits.patience);
    match shared.tls.clone() {
        None => talk(stream, place, shared, stop).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
                talk(stream, place, shared, stop).await;
            }
        }
    }
}

async fn talk<S>(stream: S, place: Arc<Place>, shared: Arc<Shared>, mut stop: watch::Receiver<bool>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let serve = {
        let shared = shared.clone();
        service_fn(move |request| serve(shared.clone(), place.clone(), request))
    };
    let mut talking = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(shared.limits.idle)
            .max_buf_size(HEAD_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), serve)
    );
    // How a client ends a connection is no matter of the server.
    tokio::select! {
        _ = talking.as_mut() => return,
        _ = stop.changed() => talking.as_mut().graceful_shutdown(),
    }
    let _ = talking.await;
}

/// The body of an answer. Until it is sent, the connection is at work.
struct Answering {
    body: s3s::Body,
    _work: Work,
}

impl http_body::Body for Answering {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, StdError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn serve(
    shared: Arc<Shared>,
    place: Arc<Place>,
    request: http::Request<Incoming>,
) -> std::result::Result<http::Response<Answering>, HttpError> {
    let work = place.work();
    let (mut parts, body) = request.into_parts();
    // A check of a signature that is right tells the place.
    parts.extensions.insert(place);
    let ends = waits_in_vain(&parts.headers);
    let answered = match guard::check(&parts.method, &parts.uri, &parts.headers) {
        Ok(()) => {
            let body = Arriving::new(body, shared.limits.patience);
            let body = match chunks::kind(&parts.headers) {
                Some(signed) => s3s::Body::http_body(Divided::new(body, signed)),
                None => s3s::Body::http_body(body),
            };
            shared.s3.call(http::Request::from_parts(parts, body)).await
        }
        Err(error) => error.to_http_response().map_err(|error| HttpError::new(Box::new(error))),
    };
    answered.map(|mut answer| {
        let id = sums::hex(&base::random::u64().to_be_bytes());
        if let Ok(id) = http::HeaderValue::from_str(&id) {
            answer.headers_mut().insert("x-amz-request-id", id);
        }
        if ends {
            answer.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
        }
        answer.map(|body| Answering { body, _work: work })
    })
}

/// Whether a client waits for `100 Continue` before it sends nothing. hyper then answers at once, and
/// botocore takes the next answer on that connection for one without headers. So that connection must end.
fn waits_in_vain(headers: &http::HeaderMap) -> bool {
    let is = |name: http::HeaderName, value: &str| headers.get(name).is_some_and(|found| found == value);
    headers.contains_key(http::header::EXPECT) && is(http::header::CONTENT_LENGTH, "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_buckets_are_checked() {
        for good in ["data", "my-bucket.2"] {
            check_name(good).unwrap();
        }
        for bad in ["", "a", "Data", "a_b", "10.0.0.1"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
