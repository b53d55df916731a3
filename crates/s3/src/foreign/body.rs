//! The body of a client's request on its way to the store. A task reads it, so that the two connections wait
//! for each other only through a short queue.
//!
//! The last piece is held back until the checksums that follow the body fit. So the store never has a whole
//! body that the client would not stand for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use s3s::{Body, S3Error, StdError, TrailingHeaders};
use tokio::sync::mpsc;

use crate::errors::Result;
use crate::flow;
use crate::sums::{Algorithm, Expected, Hashing};

/// Pieces of a body that wait for the store.
const QUEUE: usize = 8;

/// What is known of a body.
pub struct Arriving {
    /// The bytes.
    pub body: Body,
    /// How many, as the client said.
    pub length: u64,
    /// The algorithms whose values follow them.
    pub trailing: Vec<Algorithm>,
    /// The values.
    pub trailers: Option<TrailingHeaders>,
}

/// Why the body broke, if it did.
pub type Fault = Arc<Mutex<Option<S3Error>>>;

/// A body for the store.
pub struct Outgoing {
    pieces: mpsc::Receiver<Bytes>,
    fault: Fault,
    left: u64,
}

impl Outgoing {
    /// Starts to read a body.
    pub fn start(arriving: Arriving) -> (Outgoing, Fault) {
        let (sender, pieces) = mpsc::channel(QUEUE);
        let fault = Fault::default();
        let (left, broken) = (arriving.length, fault.clone());
        tokio::spawn(async move {
            if let Err(error) = pump(arriving, &sender).await {
                *broken.lock() = Some(error);
            }
        });
        (Outgoing { pieces, fault: fault.clone(), left }, fault)
    }
}

async fn pump(arriving: Arriving, sender: &mpsc::Sender<Bytes>) -> Result<()> {
    let Arriving { mut body, length, trailing, trailers } = arriving;
    let mut expected = Expected::default();
    let mut hashing = (!trailing.is_empty()).then(|| Hashing::of(&trailing));
    let mut held: Option<Bytes> = None;
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|error| flow::broken(&error))?.into_data() else { continue };
        received += piece.len() as u64;
        if received > length {
            return Err(flow::incomplete());
        }
        if let Some(hashing) = &mut hashing {
            hashing.update(&piece);
        }
        if let Some(before) = held.replace(piece)
            && sender.send(before).await.is_err()
        {
            // The store has answered, or is gone.
            return Ok(());
        }
    }
    if received != length {
        return Err(flow::incomplete());
    }
    if let Some(hashing) = hashing {
        flow::follow(&mut expected, trailing, trailers.as_ref())?;
        expected.compare(&hashing.finish())?;
    }
    if let Some(last) = held {
        let _ = sender.send(last).await;
    }
    Ok(())
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, StdError>>> {
        let piece = std::task::ready!(self.pieces.poll_recv(cx));
        Poll::Ready(match piece {
            Some(piece) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                Some(Ok(Frame::data(piece)))
            }
            // The reader has ended, so the reason is there, if there is one.
            None if self.fault.lock().is_some() => Some(Err("the client's body broke".into())),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// The length of a body, as s3s left it: without what surrounds its chunks.
pub fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(http::header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}
