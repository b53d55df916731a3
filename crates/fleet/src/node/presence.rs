//! Which node of a fleet this is, and the transport and the port by which others reach it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use net::hello::Identity;
use net::id::NodeId;
use net::tls::Tls;
use net::transport::Net;

use super::service::Serving;
use super::{FleetError, FleetParts, Inner};
use crate::members::NodeHome;
use crate::members::incarnation::first_generation;

/// The address of a node that does not listen.
pub(super) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Which node this is, and the transport by which it sends and is asked for blobs.
pub enum Transport {
    /// The node's own transport: [`Fleet::close`] ends it.
    Own {
        /// The node's identity across restarts.
        home: Arc<NodeHome>,
        /// The TLS setup for connections. None leaves them unencrypted.
        tls: Option<Tls>,
        /// Where it listens, TCP and UDP. Port 0 takes a free one.
        listen: SocketAddr,
    },
    /// One that serves other requests too. It must pass requests about blobs to [`Fleet::service`]. The
    /// membership takes the UDP port of the same number.
    Shared {
        /// The transport, which listens.
        net: Net,
        /// The node's id there.
        node: NodeId,
        /// How many times this node was started. It never gets smaller.
        run: u64,
    },
}

impl Transport {
    pub(super) fn node(&self) -> NodeId {
        match self {
            Transport::Own { home, .. } => home.node(),
            Transport::Shared { node, .. } => *node,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        match self {
            Transport::Own { home, .. } => home.generation(),
            Transport::Shared { run, .. } => first_generation(*run),
        }
    }
}

/// Returns the transport (TCP), and the socket of the membership (UDP) on the same port.
pub(super) fn listen(parts: &FleetParts, inner: &Arc<Inner>) -> Result<(Net, UdpSocket), FleetError> {
    match &parts.transport {
        Transport::Own { home, tls, listen } => listen_at(*listen, home, tls.as_ref(), parts, inner),
        Transport::Shared { net, .. } => Ok((net.clone(), beside(net)?)),
    }
}

/// Binds the membership (UDP) to the port of a transport.
fn beside(net: &Net) -> Result<UdpSocket, FleetError> {
    let address = net.address().unwrap_or(NOWHERE);
    base::lock::bind(|| UdpSocket::bind(address)).map_err(|error| FleetError::Listen { address, error })
}

/// Listens for the transport (TCP) and the membership (UDP) on one port.
fn listen_at(
    listen: SocketAddr,
    home: &NodeHome,
    tls: Option<&Tls>,
    parts: &FleetParts,
    inner: &Arc<Inner>,
) -> Result<(Net, UdpSocket), FleetError> {
    let identity = Identity { node: home.node(), role: parts.role, volume: parts.volume };
    // A free TCP port is not always a free UDP port.
    let tries = if listen.port() == 0 { 16 } else { 1 };
    let mut tried = 0;
    loop {
        tried += 1;
        let options = net::transport::Options {
            identity,
            secret: parts.secret.clone(),
            tls: tls.cloned(),
            listen: Some(listen),
            verify: parts.table.verify(),
            limits: net::transport::Limits::default(),
        };
        let service = Arc::new(Serving(Arc::downgrade(inner)));
        let net = Net::start(options, service, Arc::clone(&parts.report))?;
        let address = net.address().unwrap_or(listen);
        match base::lock::bind(|| UdpSocket::bind(address)) {
            Ok(socket) => return Ok((net, socket)),
            Err(_) if tried < tries => net.close(),
            Err(error) => return Err(FleetError::Listen { address, error }),
        }
    }
}
