//! The options of a fleet, and which of them exclude each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use fetch::Verify;
use fleet::members::Contact;
use net::id::Zone;
use net::secret::Secret;
use net::tls::Tls;

/// The default weight of a node.
pub const WEIGHT: u16 = 100;

/// The certificates that encrypt connections to other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The node's certificate, PEM. It encrypts connections to other nodes. Either all nodes of a fleet do
    /// so, or none.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key.
    pub tls_key: Option<PathBuf>,
    /// The certificate of the fleet's CA. Nodes with a certificate signed by it are accepted.
    pub tls_ca: Option<PathBuf>,
}

impl TlsOptions {
    /// Whether any of the options is set.
    fn is_named(&self) -> bool {
        self.tls_cert.is_some() || self.tls_key.is_some() || self.tls_ca.is_some()
    }

    /// Reads the files. None if no file is named.
    pub fn load(&self) -> Result<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(ca)) => {
                crate::secrets::keep_from_dumps();
                Tls::from_files(certificate, key, ca).map(Some).map_err(|error| {
                    Failure::new("no-tls", "TLS between nodes cannot be used").why(error.to_string())
                })
            }
            _ => Err(Failure::usage("TLS between nodes needs three files, and some were not named")
                .why("a node shows its certificate, proves it by the key, and knows the others by the CA")
                .next("name all: --tls-cert FILE --tls-key FILE --tls-ca FILE")
                .next("docs/OPERATING.md has the commands that make them")),
        }
    }
}

/// How a node takes part in a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetOptions {
    /// Join a fleet through any of its nodes. A name may have many addresses.
    pub join: Option<String>,
    /// The address for the fleet, TCP and UDP.
    pub listen: Option<SocketAddr>,
    /// The address for other nodes, if it differs from `listen`.
    pub advertise: Option<SocketAddr>,
    /// The file with the fleet's secret.
    pub secret_file: Option<PathBuf>,
    /// The certificates that encrypt connections to other nodes.
    pub tls: TlsOptions,
    /// The zone of this node. Nodes of one zone send blobs to one another.
    pub zone: Option<String>,
    /// The node's share of the fleet's bookkeeping, relative to other nodes. 0 for none.
    pub weight: u16,
    /// How bytes from other nodes are checked.
    pub verify: Verify,
    /// The interface whose driver answers other nodes' questions about blobs.
    pub xdp: Option<String>,
}

impl Default for FleetOptions {
    fn default() -> FleetOptions {
        FleetOptions {
            join: None,
            listen: None,
            advertise: None,
            secret_file: None,
            tls: TlsOptions::default(),
            zone: None,
            weight: WEIGHT,
            verify: Verify::default(),
            xdp: None,
        }
    }
}

impl FleetOptions {
    /// Whether the node takes part in a fleet.
    pub fn is_on(&self) -> bool {
        self.join.is_some() || self.listen.is_some()
    }

    /// Refuses options that have no effect without a fleet, because they may be a mistake.
    pub fn check(&self) -> Result<()> {
        let chosen = self.weight != WEIGHT || self.verify != Verify::default() || self.xdp.is_some();
        let named = self.secret_file.is_some() || self.advertise.is_some() || self.tls.is_named();
        // A zone describes the machine, so it may be set for all of its mounts.
        if self.is_on() || !named && !chosen {
            return Ok(());
        }
        Err(Failure::usage("a fleet's options are given, and no fleet")
            .next("join one by any of its nodes: --join HOST:PORT")
            .next("or begin one: --listen ADDRESS:PORT"))
    }

    /// The secret that all nodes know.
    pub fn secret(&self) -> Result<Secret> {
        FleetOptions::secret_in(self.secret_file.as_deref())
    }

    /// Reads the secret from a file, if one is named.
    pub fn secret_in(file: Option<&Path>) -> Result<Secret> {
        let Some(file) = file else {
            return Err(Failure::usage("a fleet has a secret, and none was named")
                .why("only nodes that know it may ask others for blobs")
                .next("make one, once: covey fleet secret FILE; then copy FILE to every node")
                .next("name it: --secret-file FILE, or COVEY_SECRET_FILE in the environment"));
        };
        crate::secrets::keep_from_dumps();
        Secret::from_file(file).map_err(|error| {
            Failure::new("no-secret", "the fleet's secret cannot be used").why(error.to_string())
        })
    }

    /// The nodes through which it joins.
    pub fn contacts(&self) -> Result<Vec<Contact>> {
        Contact::parse(self.join.as_deref().unwrap_or("")).map_err(|error| Failure::usage(error.to_string()))
    }

    /// The address to listen at. By default only this machine can reach it.
    pub fn listen(&self, contacts: &[Contact]) -> Result<SocketAddr> {
        if let Some(listen) = self.listen {
            if listen.ip().is_unspecified() && self.advertise.is_none() {
                return Err(Failure::usage(format!(
                    "{listen} is no address at which others could reach this node"
                ))
                .next("name one address of this machine: --listen ADDRESS:PORT")
                .next("or where they reach it: --advertise ADDRESS:PORT"));
            }
            return Ok(listen);
        }
        let is_remote = |contact: &Contact| match contact {
            Contact::Address(address) => !address.ip().is_loopback(),
            Contact::Name(name) => !name.starts_with("localhost:"),
        };
        if contacts.iter().any(is_remote) {
            return Err(Failure::usage(
                "the fleet is on other machines, and this node would not be reached there",
            )
            .why("nothing listens beyond this machine unless that is said")
            .next("name an address of this machine and a port: --listen ADDRESS:PORT"));
        }
        Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    /// The zone of this node.
    pub fn zone(&self) -> Result<Zone> {
        let named = self.zone.as_deref().map(Zone::new).transpose();
        named.map(Option::unwrap_or_default).map_err(|error| Failure::usage(error.to_string()))
    }
}
