//! The server: `s3s` over `s3s-fs`, with what those two lack.
//!
//! - It counts requests and bytes by kind, and what was fetched of each key.
//! - A request to a bucket that does not exist is refused; `s3s-fs` would create the bucket.
//! - Objects of a blob's size are read in one piece; `s3s-fs` reads 4 KiB at a time.
//! - Conditional PUTs are serialized; `s3s-fs` checks first and writes later, so that two could succeed.
//! - Listings and GETs name ETags, which follow from a file's time and size, and GETs check `If-Match`.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::Scratch;
use crate::fault::error_body;

/// The access key that the server knows.
pub const KEY: &str = "COVEYTESTKEY";
/// Its secret.
pub const SECRET: &str = "covey/test+secret=0123456789";
/// The bucket that exists.
pub const BUCKET: &str = "bucket";

/// Objects up to this size (a blob with its sums) are read in one piece.
const AT_ONCE: u64 = 5 << 20;

/// The requests that the server received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// GETs of objects.
    pub get: u64,
    /// PUTs.
    pub put: u64,
    /// HEADs.
    pub head: u64,
    /// DELETEs of one key, and POSTs that remove many.
    pub delete: u64,
    /// Listings.
    pub list: u64,
    /// Bytes of request bodies.
    pub received: u64,
    /// Bytes of answers' bodies, by their announced lengths.
    pub sent: u64,
}

/// What was fetched of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Got {
    /// GETs, of the whole object or of a range.
    pub gets: u64,
    /// Bytes sent, by their announced lengths.
    pub bytes: u64,
}

#[derive(Default)]
struct Counters {
    by_key: std::sync::Mutex<BTreeMap<String, Got>>,
    get: AtomicU64,
    put: AtomicU64,
    head: AtomicU64,
    delete: AtomicU64,
    list: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

struct Shared {
    s3: S3Service,
    counters: Counters,
    root: PathBuf,
    conditional: Mutex<()>,
    open: bool,
}

/// Where a server listens and what it serves.
struct Start<'s> {
    keys: bool,
    listen: SocketAddr,
    over: Option<&'s Path>,
}

/// The environment variables that give a client access.
pub fn environment() -> Vec<(String, String)> {
    let all = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", "us-east-1")];
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

/// An S3 server. See the [module](self).
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
    _dir: Option<Scratch>,
}

impl Server {
    /// Starts one on a free port, with the empty bucket [`BUCKET`].
    pub fn start() -> Server {
        Server::start_with(&Start { keys: true, listen: loopback(), over: None })
    }

    /// Starts one over another's [root](Server::root), which it leaves in place. Several may share it, as
    /// long as none writes.
    pub fn start_over(root: &Path) -> Server {
        Server::start_with(&Start { keys: true, listen: loopback(), over: Some(root) })
    }

    /// Starts one without access control, for clients whose signatures it does not know.
    pub fn start_open() -> Server {
        Server::start_with(&Start { keys: false, listen: loopback(), over: None })
    }

    fn start_with(how: &Start<'_>) -> Server {
        let (keys, listen) = (how.keys, how.listen);
        let dir = how.over.is_none().then(Scratch::new);
        let root = dir.as_ref().map(Scratch::path).or(how.over).unwrap().to_owned();
        std::fs::create_dir_all(root.join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(&root).unwrap());
        if keys {
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        }
        let shared = Arc::new(Shared {
            s3: builder.build(),
            counters: Counters::default(),
            root,
            conditional: Mutex::new(()),
            open: !keys,
        });
        let runtime = crate::runtime("s3-server");
        let listener = crate::wait(&runtime, async move { TcpListener::bind(listen).await.unwrap() });
        let address = listener.local_addr().unwrap();
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Server { address, shared, runtime: Some(runtime), _dir: dir }
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The folder with the bucket's objects.
    pub fn folder(&self) -> PathBuf {
        self.shared.root.join(BUCKET)
    }

    /// The folder that holds the bucket, for [`Server::start_over`].
    pub fn root(&self) -> PathBuf {
        self.shared.root.clone()
    }

    /// What was fetched of each key since the start or the last call of [`Server::forget`].
    pub fn got(&self) -> BTreeMap<String, Got> {
        self.shared.counters.by_key.lock().unwrap().clone()
    }

    /// Resets the counts by key.
    pub fn forget(&self) {
        self.shared.counters.by_key.lock().unwrap().clear();
    }

    /// The requests since the start.
    pub fn counts(&self) -> Counts {
        let counters = &self.shared.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        Counts {
            get: get(&counters.get),
            put: get(&counters.put),
            head: get(&counters.head),
            delete: get(&counters.delete),
            list: get(&counters.list),
            received: get(&counters.received),
            sent: get(&counters.sent),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A free port of an address of this machine that hardly any earlier server had. What is remembered of a
/// store (which key signs a tree) is remembered by its endpoint, and ports come again.
fn loopback() -> SocketAddr {
    let [one, two, three, ..] = RandomState::new().hash_one(()).to_le_bytes();
    SocketAddr::from(([127, one, two, three.clamp(1, 254)], 0))
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        let _ = socket.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let serve = service_fn(|request| answer(Arc::clone(&shared), request));
            // A client that disconnects is no error of the server.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), serve).await;
        });
    }
}

async fn answer(shared: Arc<Shared>, mut request: Request<Incoming>) -> Result<Response<Body>, HttpError> {
    shared.counters.note(&request);
    if shared.open {
        request.headers_mut().remove("authorization");
    }
    let bucket = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or("");
    if !bucket.is_empty() && !shared.root.join(bucket).is_dir() {
        let mut refusal = Response::new(Body::from(error_body("NoSuchBucket", "")));
        *refusal.status_mut() = StatusCode::NOT_FOUND;
        return Ok(refusal);
    }
    let conditional = request.headers().contains_key("if-none-match");
    let _one = if conditional { Some(shared.conditional.lock().await) } else { None };
    let key = got_key(&request);
    let listed = request.uri().query().is_some_and(|query| query.contains("list-type=2"));
    let (root, bucket) = (shared.root.clone(), bucket.to_owned());
    let object = root.join(decoded(request.uri().path().trim_start_matches('/')));
    let reads = key.is_some() || *request.method() == Method::HEAD;
    let etag = if reads { etag_of(&object) } else { None };
    let wanted = request.headers().get("if-match").and_then(|value| value.to_str().ok().map(str::to_owned));
    if etag.is_some() && wanted.is_some() && wanted != etag {
        let mut refusal = Response::new(Body::from(error_body("PreconditionFailed", "")));
        *refusal.status_mut() = StatusCode::PRECONDITION_FAILED;
        return Ok(refusal);
    }
    let mut answer = Service::call(&shared.s3, request).await?;
    if key.is_some() && answer.status() == StatusCode::OK {
        at_once(&object, &mut answer);
    }
    if let Some(etag) = etag.filter(|_| answer.status().is_success()) {
        answer.headers_mut().insert("etag", etag.parse().unwrap());
    }
    if listed && answer.status().is_success() {
        answer = with_etags(answer, &root.join(bucket)).await;
    }
    let went = length(answer.headers());
    shared.counters.sent.fetch_add(went, Ordering::SeqCst);
    if let (Some(key), true) = (key, answer.status().is_success()) {
        let mut by_key = shared.counters.by_key.lock().unwrap();
        let got = by_key.entry(key).or_default();
        got.gets += 1;
        got.bytes += went;
    }
    Ok(answer)
}

/// The body of a whole object that is no larger than a blob, read in one piece. `s3s-fs` passes each 4 KiB
/// from thread to thread, so that two dozen GETs of blobs at once wait half a second for the processors of a
/// machine that stands for many.
fn at_once(object: &Path, answer: &mut Response<Body>) {
    let len = length(answer.headers());
    let is_small = (1..=AT_ONCE).contains(&len);
    let read = || std::fs::read(object).ok().filter(|bytes| bytes.len() as u64 == len);
    if is_small && let Some(bytes) = tokio::task::block_in_place(read) {
        *answer.body_mut() = Body::from(bytes);
    }
}

/// The ETag of an object. It changes with each write.
fn etag_of(object: &Path) -> Option<String> {
    let about = std::fs::metadata(object).ok().filter(std::fs::Metadata::is_file)?;
    Some(format!("\"{:x}.{:x}-{:x}\"", about.mtime(), about.mtime_nsec(), about.len()))
}

/// A listing in which each object has its ETag.
async fn with_etags(answer: Response<Body>, bucket: &Path) -> Response<Body> {
    let (mut parts, body) = answer.into_parts();
    let Ok(body) = body.collect().await else { return Response::from_parts(parts, Body::empty()) };
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let mut out = String::with_capacity(text.len() * 2);
    let mut pieces = text.split("<Key>");
    out.push_str(pieces.next().unwrap());
    for piece in pieces {
        let (key, rest) = piece.split_once("</Key>").unwrap();
        let plain =
            key.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
        let etag = etag_of(&bucket.join(plain)).unwrap_or_default().replace('"', "&quot;");
        out.push_str(&format!("<Key>{key}</Key><ETag>{etag}</ETag>{rest}"));
    }
    parts.headers.insert("content-length", out.len().into());
    Response::from_parts(parts, Body::from(out))
}

/// A path of a URL without its percent signs.
fn decoded(path: &str) -> String {
    let mut parts = path.split('%');
    let mut out = parts.next().unwrap_or("").as_bytes().to_vec();
    for part in parts {
        out.extend(u8::from_str_radix(part.get(..2).unwrap_or(""), 16));
        out.extend_from_slice(part.get(2..).unwrap_or("").as_bytes());
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The key of a GET, without the bucket.
fn got_key(request: &Request<Incoming>) -> Option<String> {
    let (_, key) = request.uri().path().strip_prefix('/')?.split_once('/')?;
    (*request.method() == Method::GET && !key.is_empty()).then(|| key.to_owned())
}

fn length(headers: &http::HeaderMap) -> u64 {
    let length = headers.get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
    length.unwrap_or(0)
}

impl Counters {
    fn note(&self, request: &Request<Incoming>) {
        let query = request.uri().query().unwrap_or("");
        let counter = match *request.method() {
            Method::GET if query.contains("list-type=2") => &self.list,
            Method::GET => &self.get,
            Method::HEAD => &self.head,
            Method::DELETE | Method::POST => &self.delete,
            _ => &self.put,
        };
        counter.fetch_add(1, Ordering::SeqCst);
        self.received.fetch_add(length(request.headers()), Ordering::SeqCst);
    }
}
