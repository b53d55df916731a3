//! Connections of browsers, and what one client may take: the number of connections, the time for the head of
//! a request, and the time in which it takes nothing of an answer are limited.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use base::places::{self, Full, Peer, Place, Places, Work};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::Sleep;
use tower_service::Service;

use crate::guard::Guard;

/// How long after a connection could not be accepted the next one is.
const AGAIN: Duration = Duration::from_millis(50);

/// Limits on what clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time. A further one takes the place of one that asks nothing, or waits. WebSockets
    /// count as streams only.
    pub connections: usize,
    /// How long a connection may wait for the head of a request.
    pub idle: Duration,
    /// How long a client may take nothing of what is sent.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 256, idle: Duration::from_secs(60), patience: Duration::from_secs(30) }
    }
}

/// Accepts connections until it is stopped.
pub async fn accept(
    listener: TcpListener,
    (router, guard): (Router, Arc<Guard>),
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let places = Places::new(places::Limits::keeping_work(limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = next(&listener, &places) => accepted,
            _ = stop.wait_for(|stopped| *stopped) => return,
        };
        match accepted {
            Some((stream, place, cut)) => {
                let served = (router.clone(), guard.clone());
                let talk = talk(stream, place, served, limits, stop.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = talk => {}
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

async fn talk(
    stream: TcpStream,
    place: Arc<Place>,
    (router, guard): (Router, Arc<Guard>),
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let stream = Leaving { stream, patience: limits.patience, waiting: None };
    let serve = service_fn(move |request| answer(router.clone(), place.clone(), guard.clone(), request));
    let mut talking = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle)
            .serve_connection(TokioIo::new(stream), serve)
            .with_upgrades()
    );
    // How a client ends a connection is no matter of the server.
    let has_ended = tokio::select! {
        _ = talking.as_mut() => true,
        _ = stop.wait_for(|stopped| *stopped) => false,
    };
    if !has_ended {
        talking.as_mut().graceful_shutdown();
        let _ = talking.await;
    }
}

/// Answers a request. A client that shows the token is known from then on.
async fn answer(
    mut router: Router,
    place: Arc<Place>,
    guard: Arc<Guard>,
    request: hyper::Request<Incoming>,
) -> Result<Response<Answering>, Infallible> {
    if guard.is_known(request.headers()) {
        place.know();
    }
    let Some(work) = place.try_work() else {
        let why = "too many requests without the token are answered at the moment\n";
        let answer = (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
        return Ok(answer.map(|body| Answering { body, _work: None }));
    };
    Ok(router.call(request).await?.map(|body| Answering { body, _work: Some(work) }))
}

/// The body of an answer. Until it is sent, the connection is at work.
struct Answering {
    body: Body,
    _work: Option<Work>,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose client must take something of what is written in time. One that does not is cut, and
/// its stream gives its place back.
struct Leaving {
    stream: TcpStream,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Leaving {
    fn written<T>(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if wrote.is_ready() {
            self.waiting = None;
            return wrote;
        }
        let patience = self.patience;
        let sleep = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(sleep.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl AsyncRead for Leaving {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Leaving {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
