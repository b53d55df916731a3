//! Bytes on their way: from a request into a file, from a file into an answer.
//!
//! Filesystem calls may wait for a disk or a network. They run on the runtime's pool of blocking threads,
//! never on the threads that serve connections. A transfer has at most two pieces in memory.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use s3s::dto::StreamingBlob;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Error, StdError, TrailingHeaders, s3_error};
use tokio::task::JoinHandle;

use crate::bucket::{Bucket, Held};
use crate::errors::{self, Result};
use crate::stage::{Staged, Whole};
use crate::sums::{Algorithm, Digests, Expected};

/// Bytes of a transfer that are read or written at a time.
pub const PIECE: usize = 1 << 20;
/// What an error of a body says if the client was too slow.
pub const TOO_SLOW: &str = "the body arrived too slowly";

/// Runs filesystem work on the pool.
pub async fn blocking<T, F>(work: F) -> Result<T>
where
    F: FnOnce() -> Result<T> + Send + 'static,
    T: Send + 'static,
{
    finished(tokio::task::spawn_blocking(work)).await
}

async fn finished<T>(work: JoinHandle<Result<T>>) -> Result<T> {
    work.await.unwrap_or_else(|_| Err(errors::internal("the gateway failed while it worked on this")))
}

/// The body of a request.
pub struct Upload {
    /// The bytes.
    pub body: Option<StreamingBlob>,
    /// How many, as the client said.
    pub length: Option<u64>,
    /// What the client says of them.
    pub expected: Expected,
    /// What follows them.
    pub trailers: Option<TrailingHeaders>,
    /// The algorithms whose values follow them.
    pub trailing: Vec<Algorithm>,
}

/// Receives a body into a file without a name, and compares it with what the client said of it.
pub async fn receive(bucket: &Arc<Bucket>, upload: Upload) -> Result<(Whole, Digests, u64)> {
    let Upload { body, length, mut expected, trailers, trailing } = upload;
    expected.check()?;
    expected.also.extend(&trailing);
    // The file is made together with its first piece, so that a small object waits for the pool once.
    let mut writing: Option<JoinHandle<Result<Staged>>> = None;
    let write = |staged: Option<Staged>, piece: Vec<u8>| {
        let (bucket, expected) = (bucket.clone(), expected.clone());
        tokio::task::spawn_blocking(move || {
            let made = staged.map_or_else(|| Staged::new(&bucket, &expected), Ok);
            let mut staged = made.map_err(errors::of)?;
            if !piece.is_empty() {
                staged.write(&piece).map_err(errors::of)?;
            }
            Ok(staged)
        })
    };
    let mut received = 0;
    if let Some(mut body) = body {
        let mut rest = Bytes::new();
        while let Some(piece) = next_piece(&mut body, &mut rest, length).await? {
            received += piece.len() as u64;
            if length.is_some_and(|length| received > length) {
                return Err(incomplete());
            }
            let staged = match writing.take() {
                Some(writing) => Some(finished(writing).await?),
                None => None,
            };
            writing = Some(write(staged, piece));
        }
    }
    let staged = finished(writing.unwrap_or_else(|| write(None, Vec::new()))).await?;
    if length.is_some_and(|length| received != length) {
        return Err(incomplete());
    }
    follow(&mut expected, trailing, trailers.as_ref())?;
    let (whole, digests) = staged.finish();
    expected.compare(&digests)?;
    Ok((whole, digests, received))
}

/// Adds the values that followed a body to what is expected of it.
pub(crate) fn follow(
    expected: &mut Expected,
    trailing: Vec<Algorithm>,
    trailers: Option<&TrailingHeaders>,
) -> Result<()> {
    for algorithm in trailing {
        let value = trailers.and_then(|trailers| {
            let text = |map: &http::HeaderMap| Some(map.get(algorithm.header())?.to_str().ok()?.to_owned());
            trailers.read(text).flatten()
        });
        let value = value.ok_or_else(|| {
            s3_error!(InvalidRequest, "{} is announced as a trailer and missing", algorithm.header())
        })?;
        set(expected, algorithm, value);
    }
    Ok(())
}

pub(crate) fn set(expected: &mut Expected, algorithm: Algorithm, value: String) {
    let slot = match algorithm {
        Algorithm::Crc32 => &mut expected.sums.checksum_crc32,
        Algorithm::Crc32c => &mut expected.sums.checksum_crc32c,
        Algorithm::Crc64Nvme => &mut expected.sums.checksum_crc64nvme,
        Algorithm::Sha1 => &mut expected.sums.checksum_sha1,
        Algorithm::Sha256 => &mut expected.sums.checksum_sha256,
    };
    *slot = Some(value);
}

pub(crate) fn incomplete() -> S3Error {
    s3_error!(IncompleteBody, "the body does not have the announced length")
}

/// Gathers bytes of a body up to a piece. `None` at the end.
async fn next_piece(
    body: &mut StreamingBlob,
    rest: &mut Bytes,
    length: Option<u64>,
) -> Result<Option<Vec<u8>>> {
    let room = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(PIECE).min(PIECE);
    let mut piece = Vec::with_capacity(room);
    loop {
        let some = rest.split_to(rest.len().min(PIECE - piece.len()));
        piece.extend_from_slice(&some);
        if piece.len() == PIECE {
            return Ok(Some(piece));
        }
        match body.next().await {
            Some(Ok(bytes)) => *rest = bytes,
            Some(Err(error)) => return Err(broken(&error)),
            None => return Ok((!piece.is_empty()).then_some(piece)),
        }
    }
}

/// The S3 error for a body that broke. s3s does not export the types of its errors, only their texts.
pub(crate) fn broken(error: &StdError) -> S3Error {
    let text = error.to_string();
    let says = |word: &str| text.contains(word);
    if says(TOO_SLOW) {
        s3_error!(RequestTimeout, "the body arrived too slowly")
    } else if says("Sha256Mismatch") {
        let mut wrong = errors::custom(
            "XAmzContentSHA256Mismatch",
            "the body does not have the SHA-256 of x-amz-content-sha256",
        );
        wrong.set_status_code(http::StatusCode::BAD_REQUEST);
        wrong
    } else if says("SignatureMismatch") {
        s3_error!(SignatureDoesNotMatch, "a chunk of the body does not have its signature")
    } else if says("FormatError") || says("TooLarge") || says("TooMany") {
        s3_error!(InvalidRequest, "the body is not in the form aws-chunked")
    } else {
        incomplete()
    }
}

/// Reads a range of a file, which must be there as a whole.
pub fn read(bucket: &Bucket, held: &Held, offset: u64, len: u64) -> Result<Bytes> {
    if len == 0 {
        // It may be a folder.
        return Ok(Bytes::new());
    }
    let mut piece = vec![0; len as usize];
    let done = bucket.fs().read(held.node(), offset, &mut piece).map_err(errors::of_read)?;
    if done as u64 == len { Ok(Bytes::from(piece)) } else { Err(errors::internal("the file was cut")) }
}

/// A range of a file as the body of an answer.
pub struct Sending {
    bucket: Arc<Bucket>,
    held: Arc<Held>,
    offset: u64,
    left: u64,
    reading: Option<JoinHandle<Result<Bytes>>>,
    /// Bytes that were not handed on yet.
    unsent: u64,
}

impl Sending {
    /// Sends `len` bytes from `offset` on.
    pub fn new(bucket: Arc<Bucket>, held: Held, offset: u64, len: u64) -> Sending {
        Sending { bucket, held: Arc::new(held), offset, left: len, reading: None, unsent: len }
    }

    /// Returns the range as a body.
    pub fn into_body(self) -> StreamingBlob {
        StreamingBlob::new(self)
    }

    /// Starts to read the next piece.
    fn read_on(&mut self) {
        if self.reading.is_some() || self.left == 0 {
            return;
        }
        let len = self.left.min(PIECE as u64);
        let (bucket, held, offset) = (self.bucket.clone(), self.held.clone(), self.offset);
        self.offset += len;
        self.left -= len;
        self.reading = Some(tokio::task::spawn_blocking(move || read(&bucket, &held, offset, len)));
    }
}

impl Stream for Sending {
    type Item = std::result::Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.read_on();
        let Some(reading) = self.reading.as_mut() else { return Poll::Ready(None) };
        let read = ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        let bytes = match read {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(error)) => return Poll::Ready(Some(Err(Box::new(error)))),
            Err(error) => return Poll::Ready(Some(Err(Box::new(error)))),
        };
        self.unsent = self.unsent.saturating_sub(bytes.len() as u64);
        self.read_on();
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl ByteStream for Sending {
    fn remaining_length(&self) -> RemainingLength {
        usize::try_from(self.unsent).map_or_else(|_| RemainingLength::unknown(), RemainingLength::new_exact)
    }
}
