//! TLS between nodes: which certificates are accepted, and the messages for those that are not.
//!
//! TLS is off by default. With it a node has three files: its certificate, the certificate's key, and the
//! certificates of the fleet's CA. Both ends of a connection present a certificate. It must be signed by the
//! CA and not be expired:
//!
//! - **Names in certificates are ignored.** Nodes are found by address, addresses change, and the handshake
//!   says which node it is. A certificate only says that the CA admitted its owner.
//! - **The secret is still needed.** The handshake of [`crate::hello`] runs inside, and its proofs cover a
//!   value that only the two ends of this one TLS connection know. So a program that has a certificate of the
//!   CA but not the secret cannot relay a handshake either, and the CA may also sign for other purposes.
//! - TLS 1.3 only, without tickets and early data: each connection is proved anew. AES-128-GCM is preferred,
//!   because it is the cheapest on processors with AES.
//!
//! The files are read once, at the start of the node. Its own certificate is then checked against its own CA,
//! so that the operator who made a mistake is told.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, InvalidMessage,
    RootCertStore, ServerConfig, SignatureScheme, version,
};
use zeroize::Zeroizing;

use crate::frame::Refusal;
use crate::hello::line;

#[cfg(test)]
pub(crate) mod tests;

/// Longer files hold something else.
const FILE_MAX: u64 = 1 << 20;
/// The mode bits for other users, and for a group that writes: as with the secret.
const OTHERS: u32 = 0o027;

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// A file holds something else.
    #[error("{} holds no {what} in PEM (-----BEGIN ...): is it the right file?", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The key belongs to another user, who can read and change it whatever its mode is.
    #[error("the key {} belongs to user {owner}: make it your own, with chown", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The file's owner.
        owner: u32,
    },
    /// Other users could have read the key.
    #[error(
        "the key {} has mode {mode:04o}: others can get at it; `chmod 600 {}`, and make a new one if somebody may have read it",
        path.display(), path.display()
    )]
    Open {
        /// The key's file.
        path: PathBuf,
        /// The file's mode.
        mode: u32,
    },
    /// The three files do not fit together, or the certificate has expired.
    #[error("the certificate {} cannot be used: {why}", path.display())]
    Unfit {
        /// The certificate's file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
}

/// A node's certificate and key, and the CA that it accepts. Clones share them.
#[derive(Clone)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls(its key is not shown)")
    }
}

impl Tls {
    /// From three files in PEM: the node's certificate (with the intermediate ones, if any), its key, and the
    /// CA's certificate, or several while one CA replaces another.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn from_files(certificate: &Path, key: &Path, ca: &Path) -> Result<Tls, TlsError> {
        let chain = certificates(certificate)?;
        let roots = certificates(ca)?;
        let unfit = |error: &Error| TlsError::Unfit { path: certificate.to_owned(), why: own(error, ca) };
        let key = private_key(key)?;
        check(&chain, &roots).map_err(|error| unfit(&error))?;
        Tls::new(chain, key, roots).map_err(|error| unfit(&error))
    }

    /// Builds the TLS setup from values in memory. The certificate is not checked against the CA.
    pub(crate) fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        ca: Vec<CertificateDer<'static>>,
    ) -> Result<Tls, Error> {
        let (provider, roots) = (provider(), Arc::new(store(&ca)?));
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())?;
        server.send_tls13_tickets = 0;
        let servers = Arc::new(OfTheCa { roots, provider: Arc::clone(&provider) });
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(servers)
            .with_client_auth_cert(chain, key)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }
}

/// `ring`, which the object stores' client uses as well.
fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

fn store(ca: &[CertificateDer<'static>]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    ca.iter().try_for_each(|certificate| roots.add(certificate.clone()))?;
    Ok(roots)
}

/// Checks a node's own certificate against its own CA, for both ends of a connection.
fn check(chain: &[CertificateDer<'static>], ca: &[CertificateDer<'static>]) -> Result<(), Error> {
    let (provider, roots) = (provider(), Arc::new(store(ca)?));
    let Some((own, between)) = chain.split_first() else { return Err(Error::NoCertificatesPresented) };
    let seconds = u64::try_from(base::time::now().seconds()).unwrap_or(0);
    let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let algorithms = provider.signature_verification_algorithms.all;
    let parsed = ParsedCertificate::try_from(own)?;
    verify_server_cert_signed_by_trust_anchor(&parsed, &roots, between, now, algorithms)?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
    let clients = clients.map_err(|error| Error::General(error.to_string()))?;
    clients.verify_client_cert(own, between, now).map(drop)
}

fn read(path: &Path, secret: bool) -> Result<Zeroizing<Vec<u8>>, TlsError> {
    let failed = |error| TlsError::Read { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    let mode = about.mode() & 0o7777;
    if secret && mode & OTHERS != 0 {
        return Err(TlsError::Open { path: path.to_owned(), mode });
    }
    let owner = about.uid();
    if secret && owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(TlsError::Foreign { path: path.to_owned(), owner });
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(about.size().min(FILE_MAX) as usize + 1));
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path, false)?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    let what = "certificate";
    if all.is_empty() { Err(TlsError::NotPem { path: path.to_owned(), what }) } else { Ok(all) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read(path, true)?;
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| TlsError::NotPem { path: path.to_owned(), what: "private key" })
}

/// Accepts any certificate that the CA signed and that has not expired, whatever its name.
#[derive(Debug)]
struct OfTheCa {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OfTheCa {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, between, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// What is wrong with a node's own files.
fn own(error: &Error, ca: &Path) -> String {
    use CertificateError as C;
    match error {
        Error::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => {
            "it has expired; have the CA sign a new one".to_owned()
        }
        Error::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => {
            "it is not valid yet; is this machine's clock right?".to_owned()
        }
        Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => {
            format!("it was not signed by the CA in {}", ca.display())
        }
        Error::InvalidCertificate(C::InvalidPurpose | C::InvalidPurposeContext { .. }) => {
            "its extendedKeyUsage must have both serverAuth and clientAuth, or be left out: a node is at either end".to_owned()
        }
        Error::InconsistentKeys(_) => "the key is another certificate's".to_owned(),
        other => other.to_string(),
    }
}

/// The message for a TLS error of a connection. None if the error is not one of TLS. "It" is the other end.
pub(crate) fn why(error: &io::Error) -> Option<String> {
    use AlertDescription as A;
    use CertificateError as C;
    let text = match error.get_ref()?.downcast_ref::<Error>()? {
        Error::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => {
            "its certificate has expired: have the CA sign a new one for it"
        }
        Error::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => {
            "its certificate is not valid yet: are both clocks right?"
        }
        Error::InvalidCertificate(C::UnknownIssuer | C::BadSignature) => {
            "its certificate is not from this fleet's CA: give both nodes the same --tls-ca"
        }
        Error::NoCertificatesPresented => "it shows no certificate",
        Error::AlertReceived(A::CertificateExpired) => {
            "it says that this node's certificate has expired: have the CA sign a new one"
        }
        Error::AlertReceived(A::UnknownCA | A::DecryptError | A::BadCertificate | A::CertificateUnknown) => {
            "it does not take this node's certificate: give both nodes the same --tls-ca"
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => line(Refusal::Tls),
        other => return Some(format!("TLS failed: {other}")),
    };
    Some(text.to_owned())
}
