//! A look at an S3 endpoint from outside, as a client: one signed request, its answer, the certificate.
//!
//! It runs on the caller's thread and every step has a time limit. The certificate is not trusted or
//! distrusted: it is read.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequestBody;
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
    StreamOwned,
};

/// How long a step may take: to connect, to send, to receive.
const STEP: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const ANSWER_MAX: u64 = 256 << 10;
/// A time after every certificate's end: the year 9999.
const LATE: Duration = Duration::from_secs(253_370_764_800);

/// An endpoint to look at.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// `HOST:PORT`.
    pub address: &'a str,
    /// Whether it uses TLS.
    pub tls: bool,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The HTTP status.
    pub status: u16,
    /// The code of the S3 error, if the answer is one.
    pub code: Option<String>,
    /// The buckets in the answer.
    pub buckets: Vec<String>,
    /// Seconds by which this machine's clock is ahead of the gateway's.
    pub ahead: Option<i64>,
    /// With TLS: when the certificate ends, in seconds since 1970.
    pub certificate_ends: Option<i64>,
}

/// Asks for the list of buckets, signed with this key and secret.
///
/// # Errors
/// It cannot be reached, or does not speak HTTP or TLS. `InvalidInput`: the address has no such form.
pub fn list_buckets(place: Place<'_>, key: &str, secret: &str) -> io::Result<Seen> {
    let head = signed(place, key, secret)?;
    let mut addresses = place.address.to_socket_addrs()?;
    let address = addresses.next().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let stream = TcpStream::connect_timeout(&address, STEP)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    if !place.tls {
        return Ok(read(&exchange(stream, &head)?, base::time::now().seconds()));
    }
    let look = Arc::new(Look {
        provider: Arc::new(rustls::crypto::ring::default_provider()),
        leaf: Mutex::default(),
    });
    let config = ClientConfig::builder_with_provider(look.provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(look.clone())
        .with_no_client_auth();
    let host = place.address.rsplit_once(':').map_or(place.address, |(host, _)| host);
    let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let answer = exchange(StreamOwned::new(connection, stream), &head)?;
    let mut seen = read(&answer, base::time::now().seconds());
    seen.certificate_ends = look.leaf.lock().as_ref().and_then(|leaf| ends(leaf, &look.provider));
    Ok(seen)
}

/// The head of the request.
fn signed(place: Place<'_>, key: &str, secret: &str) -> io::Result<String> {
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, "write HOST:PORT");
    let scheme = if place.tls { "https" } else { "http" };
    let uri = format!("{scheme}://{}/", place.address);
    let mut request = http::Request::get(&uri).body(HttpRequestBody::empty()).map_err(wrong)?;
    let port = if place.tls { ":443" } else { ":80" };
    if place.address.is_empty() || request.uri().port().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "write HOST:PORT"));
    }
    let credential = AwsCredential { key_id: key.to_owned(), secret_key: secret.to_owned(), token: None };
    let signer = AwsAuthorizer::new(&credential, "s3", gateway::REGION);
    signer.try_authorize(&mut request, None).map_err(io::Error::other)?;
    // The port of the scheme is not part of what was signed.
    let host = place.address.strip_suffix(port).unwrap_or(place.address);
    let mut head = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in request.headers() {
        let value = value.to_str().map_err(io::Error::other)?;
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    Ok(head + "\r\n")
}

/// Sends a request, and reads until the gateway ends the connection.
fn exchange(mut stream: impl Read + Write, head: &str) -> io::Result<Vec<u8>> {
    stream.write_all(head.as_bytes())?;
    stream.flush()?;
    let mut answer = Vec::new();
    let end = stream.take(ANSWER_MAX).read_to_end(&mut answer);
    match end {
        // Some servers end TLS without a farewell.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
        _ if !answer.starts_with(b"HTTP/1.") => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "it does not answer as an HTTP server"))
        }
        _ => Ok(answer),
    }
}

/// Reads an answer that arrived at this second.
fn read(answer: &[u8], now: i64) -> Seen {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let date = head.lines().filter_map(|line| line.split_once(':'));
    let date = date.filter(|(name, _)| name.eq_ignore_ascii_case("date")).map(|(_, value)| value.trim());
    let date = date.filter_map(|value| httpdate::parse_http_date(value).ok()).next();
    let date = date.and_then(|date| date.duration_since(SystemTime::UNIX_EPOCH).ok());
    let between = |begin: &str, end: &str| -> Vec<String> {
        let rest = body.split(begin).skip(1);
        rest.filter_map(|rest| Some(rest.split_once(end)?.0.to_owned())).collect()
    };
    Seen {
        status,
        code: between("<Code>", "</Code>").into_iter().next(),
        buckets: between("<Name>", "</Name>"),
        ahead: date.map(|date| now - i64::try_from(date.as_secs()).unwrap_or(i64::MAX)),
        certificate_ends: None,
    }
}

/// When a certificate ends. It is verified at a time that is too late for every certificate, and the error
/// says when it would not have been.
fn ends(leaf: &CertificateDer<'_>, provider: &Arc<CryptoProvider>) -> Option<i64> {
    let mut roots = RootCertStore::empty();
    roots.add(leaf.clone().into_owned()).ok()?;
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().ok()?;
    let name = ServerName::try_from("localhost").ok()?;
    match verifier.verify_server_cert(leaf, &[], &name, &[], UnixTime::since_unix_epoch(LATE)) {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            i64::try_from(not_after.as_secs()).ok()
        }
        _ => None,
    }
}

/// Keeps the certificate, and accepts it: the doctor looks at what is there, and sends no secret.
#[derive(Debug)]
struct Look {
    provider: Arc<CryptoProvider>,
    leaf: Mutex<Option<CertificateDer<'static>>>,
}

impl ServerCertVerifier for Look {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.leaf.lock() = Some(leaf.clone().into_owned());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, leaf, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, leaf, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let answer = b"HTTP/1.1 403 Forbidden\r\ndate: Thu, 01 Jan 1970 00:01:00 GMT\r\n\r\n<Error><Code>AccessDenied</Code></Error>";
        let seen = read(answer, 50);
        assert_eq!((seen.status, seen.code.as_deref(), seen.ahead), (403, Some("AccessDenied"), Some(-10)));
        let seen = read(b"HTTP/1.1 200 OK\r\n\r\n<Bucket><Name>a</Name></Bucket><Bucket><Name>b</Name>", 0);
        assert_eq!(
            (seen.status, seen.buckets, seen.ahead),
            (200, vec!["a".to_owned(), "b".to_owned()], None)
        );
        assert_eq!(read(b"HTTP/1.1", 0), Seen::default());
    }

    #[test]
    fn an_address_needs_a_port() {
        for bad in ["", "host", "host:", "a b:1"] {
            let place = Place { address: bad, tls: false };
            assert_eq!(signed(place, "K", "s").unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bad}");
        }
        let head = signed(Place { address: "[::1]:443", tls: true }, "K", "s").unwrap();
        assert!(head.contains("Host: [::1]\r\n") && head.contains("Credential=K/"), "{head}");
    }
}
