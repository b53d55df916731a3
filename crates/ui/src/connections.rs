//! Connections of browsers, and what one client may take: the number of connections, the time for the head of
//! a request, and the time in which it takes nothing of an answer are limited.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;
use tower_service::Service;

/// How long after a connection could not be accepted the next one is.
const AGAIN: Duration = Duration::from_millis(50);

/// Limits on what clients may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time. Others wait until one ends. WebSockets count as streams only.
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
pub async fn accept(listener: TcpListener, router: Router, limits: Limits, mut stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    loop {
        let accepted = tokio::select! {
            accepted = next(&listener, &slots) => accepted,
            _ = stop.wait_for(|stopped| *stopped) => return,
        };
        match accepted {
            Some((stream, slot)) => {
                tokio::spawn(talk(stream, slot, router.clone(), limits, stop.clone()));
            }
            // No descriptors are left, or the client is gone already.
            None => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// The next connection, as soon as there is room for it.
async fn next(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.ok()?;
    let (stream, _) = listener.accept().await.ok()?;
    Some((stream, slot))
}

async fn talk(
    stream: TcpStream,
    slot: OwnedSemaphorePermit,
    router: Router,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let stream = Leaving { stream, patience: limits.patience, waiting: None };
    let serve = service_fn(move |request: hyper::Request<Incoming>| router.clone().call(request));
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
    drop(slot);
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
