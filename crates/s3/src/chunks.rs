//! Bodies in chunks (`aws-chunked`), made harmless. s3s holds a chunk in memory until it is complete, and the
//! client says how large it is: up to 4 GiB.
//!
//! ```text
//!   SIZE[;chunk-signature=...]\r\n  bytes \r\n  ...  0[;...]\r\n  trailers
//! ```
//!
//! A chunk without a signature may be divided: each piece that arrives becomes a chunk of its own. The size
//! of a chunk with a signature is limited. What is malformed passes as it is, and s3s refuses it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

/// The largest chunk with a signature.
const SIGNED_MAX: u64 = 16 << 20;
/// The longest line before a chunk. s3s has the same limit.
const LINE_MAX: usize = 1024;

/// Whether the body of such a request is in chunks. `Some(true)`: with a signature each.
pub fn kind(headers: &http::HeaderMap) -> Option<bool> {
    let value = headers.get("x-amz-content-sha256")?.as_bytes();
    value.starts_with(b"STREAMING-").then(|| !value.starts_with(b"STREAMING-UNSIGNED-"))
}

/// What comes next in a body.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// The line before a chunk; this much of it has arrived.
    Line(BytesMut),
    /// The bytes of a chunk; so many are left.
    Data(u64),
    /// The end of line behind the bytes; so many bytes of it are left.
    End(u8),
    /// Trailers, or what is malformed.
    Rest,
}

/// Divides chunks.
#[derive(Debug)]
pub struct Divider {
    signed: bool,
    state: State,
}

impl Divider {
    /// For a body whose chunks have a signature each, or none.
    pub fn new(signed: bool) -> Divider {
        Divider { signed, state: State::Line(BytesMut::new()) }
    }

    /// Takes bytes as they arrive. Returns what is passed on.
    ///
    /// # Errors
    /// A chunk with a signature is too large, or the end of a chunk without one is malformed.
    pub fn take(&mut self, mut bytes: Bytes) -> io::Result<Bytes> {
        let mut out = BytesMut::with_capacity(bytes.len() + 32);
        while !bytes.is_empty() {
            let state = std::mem::replace(&mut self.state, State::Rest);
            self.state = match state {
                State::Line(mut line) => {
                    let end = bytes.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
                    line.extend_from_slice(&bytes.split_to(end.unwrap_or(bytes.len())));
                    match end {
                        // However it arrives: s3s refuses such a line.
                        _ if line.len() > LINE_MAX => {
                            out.extend_from_slice(&line);
                            State::Rest
                        }
                        None => State::Line(line),
                        Some(_) => self.line(&line, &mut out)?,
                    }
                }
                State::Data(left) => {
                    let len = left.min(bytes.len() as u64);
                    let piece = bytes.split_to(len as usize);
                    if !self.signed {
                        out.extend_from_slice(format!("{len:x}\r\n").as_bytes());
                    }
                    out.extend_from_slice(&piece);
                    if !self.signed {
                        out.extend_from_slice(b"\r\n");
                    }
                    if left > len { State::Data(left - len) } else { State::End(2) }
                }
                State::End(left) => {
                    let len = usize::from(left).min(bytes.len());
                    let end = bytes.split_to(len);
                    if self.signed {
                        out.extend_from_slice(&end);
                    } else if !b"\r\n"[2 - usize::from(left)..].starts_with(&end) {
                        // The pieces were passed on as chunks, each with a good end.
                        return Err(io::Error::other("FormatError: a chunk does not end with a line end"));
                    }
                    if usize::from(left) > len {
                        State::End(left - len as u8)
                    } else {
                        State::Line(BytesMut::new())
                    }
                }
                State::Rest => {
                    out.extend_from_slice(&bytes);
                    bytes.clear();
                    State::Rest
                }
            };
        }
        Ok(out.freeze())
    }

    /// A line is complete, or too long.
    fn line(&self, line: &[u8], out: &mut BytesMut) -> io::Result<State> {
        let digits = line.split(|byte| matches!(byte, b';' | b'\r' | b'\n')).next().unwrap_or_default();
        let plain = digits.iter().all(u8::is_ascii_hexdigit);
        let digits = std::str::from_utf8(digits).ok().filter(|_| plain);
        let size = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0);
        if self.signed && size > SIGNED_MAX {
            return Err(io::Error::other("TooLarge: a chunk with a signature has at most 16 MiB"));
        }
        if size == 0 || self.signed {
            out.extend_from_slice(line);
        }
        Ok(if size == 0 { State::Rest } else { State::Data(size) })
    }
}

/// A body whose chunks are harmless.
pub struct Divided<B> {
    body: B,
    divider: Divider,
}

impl<B> Divided<B> {
    /// A body in chunks, with a signature each or without.
    pub fn new(body: B, signed: bool) -> Divided<B> {
        Divided { body, divider: Divider::new(signed) }
    }
}

impl<B> Body for Divided<B>
where
    B: Body<Data = Bytes, Error = s3s::StdError> + Unpin,
{
    type Data = Bytes;
    type Error = s3s::StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, s3s::StdError>>> {
        loop {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            let Ok(data) = frame.into_data() else { continue };
            match self.divider.take(data) {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(signed: bool, body: &[u8], piece: usize) -> io::Result<Vec<u8>> {
        let mut divider = Divider::new(signed);
        let mut out = Vec::new();
        for bytes in body.chunks(piece) {
            out.extend_from_slice(&divider.take(Bytes::copy_from_slice(bytes))?);
        }
        Ok(out)
    }

    /// The data of a body in chunks, and what follows it.
    fn content(mut body: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut data = Vec::new();
        loop {
            let end = body.iter().position(|&byte| byte == b'\n').unwrap();
            let size = std::str::from_utf8(&body[..end - 1]).unwrap();
            let size = usize::from_str_radix(size.split(';').next().unwrap(), 16).unwrap();
            body = &body[end + 1..];
            if size == 0 {
                return (data, body.to_vec());
            }
            data.extend_from_slice(&body[..size]);
            assert_eq!(&body[size..size + 2], b"\r\n");
            body = &body[size + 2..];
        }
    }

    #[test]
    fn data_and_trailers_pass_however_they_arrive() {
        let body = b"5\r\nhello\r\n1\r\n!\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        for piece in 1..body.len() {
            let (data, rest) = content(&passed(false, body, piece).unwrap());
            assert_eq!((&data[..], &rest[..]), (&b"hello!"[..], &b"x-amz-checksum-crc32:AAAA\r\n\r\n"[..]));
            assert_eq!(passed(true, body, piece).unwrap(), body, "signed chunks are not changed");
        }
    }

    #[test]
    fn a_huge_chunk_is_divided_or_refused() {
        let mut body = b"ffffffff\r\n".to_vec();
        body.resize(100_000, b'x');
        let out = passed(false, &body, 10_000).unwrap();
        assert!(out.starts_with(b"2706\r\nx"), "{:?}", &out[..20]);
        assert!(passed(true, b"1000001;chunk-signature=0\r\n", 7).is_err());
        assert!(passed(true, b"1000000;chunk-signature=0\r\n", 7).is_ok());
    }

    /// A line of more than 1,024 bytes was cut there, and its rest was passed on as data. The end of a chunk
    /// was replaced, whatever it was.
    #[test]
    fn regression_malformed_chunks_are_not_made_good() {
        let mut long = b"5;".to_vec();
        long.resize(2_000, b'x');
        for piece in [7, 1_024, 5_000] {
            assert_eq!(passed(false, &long, piece).unwrap(), long);
        }
        for piece in [1, 100] {
            assert!(passed(false, b"5\r\nhelloXX0\r\n\r\n", piece).is_err());
        }
        assert_eq!(passed(false, b"+5\r\nhello\r\n", 3).unwrap(), b"+5\r\nhello\r\n");
    }

    #[test]
    fn nonsense_passes_as_it_is() {
        let long = vec![b'a'; 5_000];
        for body in [&b"zz\r\nhello"[..], b"\r\n", b"0\r\n\r\n", &long] {
            let out = passed(false, body, 3).unwrap();
            assert_eq!(out, body, "{:?}", &body[..body.len().min(20)]);
        }
    }
}
