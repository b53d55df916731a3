//! How a connection begins on either end: TLS if this node has it, then the handshake of [`crate::hello`].
//!
//! The first byte tells the two apart: a TLS record begins with 22, a frame with `C`. A node with TLS does
//! not talk to a node without, nor the other way round. The connecting node gets the reason as a plain
//! REFUSE, which rustls reports as not being TLS.

use std::net::IpAddr;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ConnectionCommon, SideData};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::Shared;
use super::link::Link;
use crate::frame::Refusal;
use crate::hello::{self, Class, HelloError, Other};
use crate::id::NodeId;
use crate::tls::{self, Tls};

/// The first byte of a TLS connection.
const RECORD: u8 = 22;
/// The largest size of a first record.
const RECORD_MAX: usize = 16 << 10;
/// A refused node has this much time, and this many bytes, to read the reason.
const LINGER: (Duration, u64) = (Duration::from_secs(1), 64 << 10);

/// The handshake with the node that this one connected to. `expected` is the node that should be there.
///
/// # Errors
/// [`HelloError`].
pub(super) async fn connect(
    shared: &Shared,
    mut stream: TcpStream,
    class: Class,
    expected: Option<NodeId>,
) -> Result<Link, HelloError> {
    let greet = async {
        let Some(tls) = &shared.tls else {
            shared.greeter.connect(&mut stream, class, expected).await?;
            return Ok(Link::plain(stream));
        };
        let name: IpAddr = stream.peer_addr()?.ip();
        let connecting = TlsConnector::from(tls.client()).connect(ServerName::from(name), stream);
        let mut stream = connecting.await?;
        let greeter = shared.greeter.within(channel(stream.get_ref().1)?);
        greeter.connect(&mut stream, class, expected).await?;
        let (stream, tls) = stream.into_inner();
        Ok(Link::sealed(stream, tls.into(), Some(class)))
    };
    within(shared, greet).await
}

/// The handshake with a node that has connected.
///
/// # Errors
/// [`HelloError`].
pub(super) async fn accept(shared: &Shared, mut stream: TcpStream) -> Result<(Link, Other), HelloError> {
    let greet = async {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        match (&shared.tls, first[0] == RECORD) {
            (None, false) => {
                let other = shared.greeter.accept(&mut stream).await?;
                Ok((Link::plain(stream), other))
            }
            (None, true) => {
                skip_record(&mut stream).await?;
                hello::refuse(&mut stream, Refusal::Tls).await;
                Err(HelloError::Refused(Refusal::Tls))
            }
            (Some(_), false) => Err(hello::turn_away(&mut stream, Refusal::Tls).await),
            (Some(tls), true) => accept_sealed(shared, tls, stream).await,
        }
    };
    within(shared, greet).await
}

async fn accept_sealed(shared: &Shared, tls: &Tls, stream: TcpStream) -> Result<(Link, Other), HelloError> {
    let taken = TlsAcceptor::from(tls.server()).accept(stream).into_fallible().await;
    let mut stream = match taken {
        Ok(stream) => stream,
        Err((error, stream)) => {
            linger(stream).await;
            return Err(error.into());
        }
    };
    let greeter = shared.greeter.within(channel(stream.get_ref().1)?);
    let other = greeter.accept(&mut stream).await?;
    let (stream, tls) = stream.into_inner();
    Ok((Link::sealed(stream, tls.into(), None), other))
}

/// Bounds the whole handshake in time, and recognizes errors of TLS.
async fn within<T>(
    shared: &Shared,
    greet: impl Future<Output = Result<T, HelloError>>,
) -> Result<T, HelloError> {
    let time = shared.limits.handshake;
    match tokio::time::timeout(time, greet).await {
        Ok(Err(HelloError::Io(error))) => {
            Err(tls::why(&error).map_or(HelloError::Io(error), HelloError::Tls))
        }
        Ok(done) => done,
        Err(_) => Err(HelloError::Slow(time)),
    }
}

/// A value that only the two ends of this TLS connection know.
fn channel<S: SideData>(tls: &ConnectionCommon<S>) -> Result<[u8; 32], HelloError> {
    let made = tls.export_keying_material([0; 32], b"EXPORTER-covey-hello", None);
    made.map_err(|error| HelloError::Tls(error.to_string()))
}

/// Reads a whole record and discards it. If bytes are unread when a connection is closed, the answer can be
/// lost.
async fn skip_record(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).await?;
    let len = usize::from(u16::from_be_bytes([head[3], head[4]])).min(RECORD_MAX);
    stream.read_exact(&mut vec![0; len]).await.map(drop)
}

/// Gives the other end time to read the reason. An alert is lost if the connection is closed with unread
/// bytes.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) {
    let _ = stream.shutdown().await;
    let rest = async { tokio::io::copy(&mut stream.take(LINGER.1), &mut tokio::io::sink()).await };
    let _ = tokio::time::timeout(LINGER.0, rest).await;
}
