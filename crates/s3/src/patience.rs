//! Clients that are too slow. A client has an allowance of time in which the server waits for it. Waiting
//! uses it up, and each byte that moves restores some. So a slow client is served as long as it moves a
//! kilobyte per second on average, and one that stands still, or sends a byte a minute, is cut.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::flow::TOO_SLOW;

/// The bytes that restore one second.
const BYTES_A_SECOND: u32 = 1024;

/// The time that is left.
struct Allowance {
    most: Duration,
    left: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Allowance {
    fn new(most: Duration) -> Allowance {
        Allowance { most, left: most, waiting: None }
    }

    /// Bytes moved: the wait is over.
    fn moved(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.left = self.left.saturating_sub(base::time::monotonic().saturating_duration_since(since));
        }
        let earned = Duration::from_secs_f64(bytes as f64 / f64::from(BYTES_A_SECOND));
        self.left = self.left.saturating_add(earned).min(self.most);
    }

    /// The client is waited for. Ready when its time is used up.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let left = self.left;
        let start = || (base::time::monotonic(), Box::pin(tokio::time::sleep(left)));
        let (_, sleep) = self.waiting.get_or_insert_with(start);
        sleep.as_mut().poll(cx)
    }
}

/// A request's body that must arrive in time.
pub struct Arriving {
    body: Incoming,
    allowance: Allowance,
}

impl Arriving {
    /// A body whose client has this allowance.
    pub fn new(body: Incoming, most: Duration) -> Arriving {
        Arriving { body, allowance: Allowance::new(most) }
    }
}

fn too_slow(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
                let bytes = data.map_or(0, Bytes::len);
                self.allowance.moved(bytes);
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                ready!(self.allowance.wait(cx));
                Poll::Ready(Some(Err(too_slow(TOO_SLOW).into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose client must take what is written in time.
pub struct Leaving<S> {
    stream: S,
    allowance: Allowance,
}

impl<S> Leaving<S> {
    /// A connection whose client has this allowance.
    pub fn new(stream: S, most: Duration) -> Leaving<S> {
        Leaving { stream, allowance: Allowance::new(most) }
    }

    fn written(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Ready(outcome) => {
                self.allowance.moved(outcome.as_ref().map_or(0, |&bytes| bytes));
                Poll::Ready(outcome)
            }
            Poll::Pending => {
                ready!(self.allowance.wait(cx));
                Poll::Ready(Err(too_slow("the client reads too slowly")))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Leaving<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Leaving<S> {
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
        let flushed = Pin::new(&mut self.stream).poll_flush(cx).map_ok(|()| 0);
        self.written(cx, flushed).map_ok(drop)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
