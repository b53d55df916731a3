//! The proxy: it takes a request, asks the server, and returns the answer, unless a fault applies.
//!
//! Bodies are kept in memory (they are at most a few megabytes here), and each request opens a connection to
//! the server. Headers pass unchanged, including `Host`, so that signatures stay valid.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::fault::{Fault, Faults, Rule, error_body};

/// Bytes of bodies sent to each client.
type Given = Arc<Mutex<BTreeMap<IpAddr, u64>>>;

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

enum Order {
    Down(std::sync::mpsc::Sender<()>),
    Up(std::sync::mpsc::Sender<()>),
}

/// A proxy with faults. See the [module](self).
pub struct Proxy {
    address: SocketAddr,
    faults: Arc<Faults>,
    given: Given,
    orders: mpsc::UnboundedSender<Order>,
    runtime: Option<Runtime>,
}

impl Proxy {
    /// Starts one on a free port in front of a server. Random choices follow from `seed`.
    pub fn start(server: SocketAddr, seed: u64) -> Proxy {
        Proxy::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), server, seed)
    }

    /// The same at a given address.
    pub fn start_at(listen: SocketAddr, server: SocketAddr, seed: u64) -> Proxy {
        let runtime = crate::runtime("s3-proxy");
        let listener = crate::wait(&runtime, async move { TcpListener::bind(listen).await.unwrap() });
        let address = listener.local_addr().unwrap();
        let faults = Arc::new(Faults::new(seed));
        let (orders, receiver) = mpsc::unbounded_channel();
        let given = Given::default();
        let way = Way { server, faults: Arc::clone(&faults), given: Arc::clone(&given) };
        runtime.spawn(run(listener, address, way, receiver));
        Proxy { address, faults, given, orders, runtime: Some(runtime) }
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Bytes of answers that each client received, by their announced lengths.
    pub fn given(&self) -> BTreeMap<IpAddr, u64> {
        self.given.lock().unwrap().clone()
    }

    /// The faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) {
        self.faults.add(rule);
    }

    /// Stops listening and cuts every connection, until [`Proxy::up`].
    pub fn down(&self) {
        self.order(Order::Down);
    }

    /// Listens again at the same address.
    pub fn up(&self) {
        self.order(Order::Up);
    }

    fn order(&self, order: fn(std::sync::mpsc::Sender<()>) -> Order) {
        let (done, wait) = std::sync::mpsc::channel();
        self.orders.send(order(done)).unwrap();
        wait.recv().unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The path between a client and the server.
#[derive(Clone)]
struct Way {
    server: SocketAddr,
    faults: Arc<Faults>,
    given: Given,
}

async fn run(
    listener: TcpListener,
    address: SocketAddr,
    way: Way,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Down(done)) => {
                    listener = None;
                    connections.shutdown().await;
                    let _ = done.send(());
                }
                Some(Order::Up(done)) => {
                    while listener.is_none() {
                        listener = TcpListener::bind(address).await.ok();
                    }
                    let _ = done.send(());
                }
                None => return,
            },
            accepted = accepted => {
                let Ok((socket, client)) = accepted else { continue };
                let _ = socket.set_nodelay(true);
                let way = way.clone();
                connections.spawn(async move {
                    let began = Instant::now();
                    let serve = service_fn(|request| counted(request, client.ip(), began, &way));
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), serve).await;
                });
            }
            // Reaps the connections that have ended.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// The error that makes hyper close a connection in the middle.
fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "a test cut it")
}

async fn counted(
    request: Request<Incoming>,
    client: IpAddr,
    began: Instant,
    way: &Way,
) -> Result<Answer, io::Error> {
    let answer = answer(request, way.server, began, Arc::clone(&way.faults)).await?;
    let length =
        answer.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    *way.given.lock().unwrap().entry(client).or_default() += length.unwrap_or(0);
    Ok(answer)
}

async fn answer(
    request: Request<Incoming>,
    server: SocketAddr,
    began: Instant,
    faults: Arc<Faults>,
) -> Result<Answer, io::Error> {
    let mut met = faults.meet(request.method(), request.uri().path());
    let past_caches = request.headers().get(CACHE_CONTROL).is_some_and(|value| value == "no-cache");
    met.retain(|fault| *fault != Fault::Stale || !past_caches);
    let method = request.method().clone();
    let (parts, mut body) = request.into_parts();
    for fault in &met {
        match fault {
            Fault::Drop => return Err(broken()),
            Fault::Hang => std::future::pending::<()>().await,
            Fault::Dead(moment) if began < *moment => std::future::pending::<()>().await,
            Fault::CutRequest(after) => {
                let mut came = 0;
                while came < *after {
                    let Some(Ok(frame)) = body.frame().await else { break };
                    came += frame.data_ref().map_or(0, Bytes::len);
                }
                return Err(broken());
            }
            _ => {}
        }
    }
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
    for fault in &met {
        match fault {
            Fault::SlowDown => {
                return Ok(canned(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "application/xml",
                    error_body("SlowDown", ""),
                ));
            }
            Fault::Status(status) => {
                let status = StatusCode::from_u16(*status).map_err(io::Error::other)?;
                return Ok(canned(status, "text/plain", String::new()));
            }
            Fault::Answer(answer) => {
                let (status, kind, body) = answer.answer();
                let mut answer = canned(status, kind, body);
                later(&mut answer, &met);
                return Ok(answer);
            }
            _ => {}
        }
    }
    let answer = forward(Request::from_parts(parts, Full::new(bytes)), server).await?;
    if met.contains(&Fault::Lose) {
        return Err(broken());
    }
    let mut answer = spoil(answer, &method, &met, &faults).await?;
    later(&mut answer, &met);
    Ok(answer)
}

/// Sets a wrong date, if a fault says so.
fn later(answer: &mut Answer, met: &[Fault]) {
    for seconds in met.iter().filter_map(|fault| if let Fault::Clock(s) = fault { Some(*s) } else { None }) {
        let shift = Duration::from_secs(seconds.unsigned_abs());
        let now = std::time::SystemTime::now();
        let date = if seconds < 0 { now - shift } else { now + shift };
        let text = httpdate::fmt_http_date(date);
        answer.headers_mut().insert(DATE, HeaderValue::try_from(text).unwrap());
    }
}

fn canned(status: StatusCode, kind: &'static str, body: String) -> Answer {
    let mut answer = Response::new(whole(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn whole(bytes: Bytes) -> UnsyncBoxBody<Bytes, io::Error> {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed_unsync()
}

async fn forward(request: Request<Full<Bytes>>, server: SocketAddr) -> io::Result<Response<Bytes>> {
    let socket = TcpStream::connect(server).await?;
    socket.set_nodelay(true)?;
    let (mut sender, connection) = client::handshake(TokioIo::new(socket)).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(io::Error::other)?;
    let (mut parts, body) = answer.into_parts();
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
    connection.abort();
    parts.headers.remove(TRANSFER_ENCODING);
    parts.headers.remove(CONNECTION);
    Ok(Response::from_parts(parts, bytes))
}

/// Sends the answer with the faults applied.
async fn spoil(
    answer: Response<Bytes>,
    method: &Method,
    met: &[Fault],
    faults: &Faults,
) -> io::Result<Answer> {
    let (mut parts, mut bytes) = answer.into_parts();
    let announced = bytes.len();
    let mut cut = None;
    let mut trickle = None;
    for fault in met {
        match fault {
            Fault::Wait(wait) => tokio::time::sleep(*wait).await,
            Fault::Hold => {
                faults.hold();
                while faults.holds() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            Fault::WaitLike { median, sigma } => {
                tokio::time::sleep(median.mul_f64((sigma * faults.normal()).exp())).await
            }
            Fault::WaitPerMib(wait) => {
                tokio::time::sleep(wait.mul_f64(announced as f64 / f64::from(1 << 20))).await
            }
            Fault::Shorten(to) => bytes.truncate(*to),
            Fault::CutAnswer(after) => cut = Some(*after),
            Fault::Trickle(speed) => trickle = Some(*speed),
            Fault::Flip | Fault::Stale if parts.status.is_success() && !bytes.is_empty() => {
                let mut copy = bytes.to_vec();
                copy[faults.below(announced)] ^= 1 << faults.below(8);
                bytes = copy.into();
            }
            _ => {}
        }
    }
    let chunked = met.contains(&Fault::Chunked);
    if chunked {
        parts.headers.remove(CONTENT_LENGTH);
    } else if *method != Method::HEAD {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    }
    let body = match (cut, trickle) {
        (Some(after), _) => {
            let first = Ok(Frame::data(bytes.slice(..after.min(bytes.len()))));
            // The pause lets the first part be sent before the connection closes.
            let rest = stream::once(async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Err(broken())
            });
            StreamBody::new(stream::iter([first]).chain(rest)).boxed_unsync()
        }
        (None, Some(speed)) => StreamBody::new(slowly(bytes, speed)).boxed_unsync(),
        (None, None) if chunked => StreamBody::new(stream::iter([Ok(Frame::data(bytes))])).boxed_unsync(),
        (None, None) => whole(bytes),
    };
    Ok(Response::from_parts(parts, body))
}

/// Yields the bytes a few at a time, twenty times a second.
fn slowly(bytes: Bytes, speed: usize) -> impl stream::Stream<Item = io::Result<Frame<Bytes>>> {
    let step = (speed / 20).max(1);
    stream::unfold(bytes, move |mut left| async move {
        if left.is_empty() {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        let piece = left.split_to(step.min(left.len()));
        Some((Ok(Frame::data(piece)), left))
    })
}
