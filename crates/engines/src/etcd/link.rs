//! One connection to a member of the cluster, used by one thread at a time.
//!
//! The client library is asynchronous. Each connection has a runtime of its own that runs on the thread that
//! uses the connection, and only while it is used. So there is no hand-over between threads, and no thread of
//! its own. Every use has a deadline of the caller's: a member that was stopped, or one that is cut off from
//! the others, would otherwise block the caller for ever. After a missed deadline the connection is dropped.
//!
//! Any member serves: it asks the leader for what it does not know itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, Error, KvClient, LeaseClient, MaintenanceClient};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::errors::{Failure, explain, unconnected};
use super::incarnation::Opened;
use super::secrets;
use super::target::{Target, TlsMode};
use crate::secrets::Secrets;

/// The largest answer. The engine asks for pages, so an answer is far below it.
const ANSWER_MAX: usize = 1 << 30;

/// How to reach a cluster.
pub(super) struct Door {
    /// The cluster's address.
    pub(super) target: Target,
    /// The member that was found to answer last.
    chosen: AtomicUsize,
    secrets: Secrets,
    tls: Option<ClientTlsConfig>,
    /// The cluster that all members must be of.
    pub(super) opened: Opened,
}

impl Door {
    /// Reads the certificates that the address names.
    pub(super) fn new(target: Target, secrets: Secrets) -> Result<Door, Failure> {
        let tls = tls_of(&target).map_err(Failure::refused)?;
        // Nodes begin with different members.
        let first = base::random::u64() as usize % target.servers.len().max(1);
        Ok(Door { target, chosen: AtomicUsize::new(first), secrets, tls, opened: Opened::default() })
    }

    /// The next connection goes to another member than this one.
    fn leave(&self, server: usize) {
        let next = (server + 1) % self.target.servers.len().max(1);
        let _ = self.chosen.compare_exchange(server, next, Ordering::AcqRel, Ordering::Acquire);
    }

    fn name(&self, server: usize) -> (String, String) {
        let (host, port) = self.target.servers.get(server).cloned().unwrap_or_default();
        (format!("{host}:{port}"), host)
    }

    fn endpoint(&self, server: usize) -> Result<Endpoint, Failure> {
        let (name, host) = self.name(server);
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let port = self.target.servers.get(server).map_or(0, |(_, port)| *port);
        let unusable =
            |error: tonic::transport::Error| Failure::refused(format!("{name} is no server's name: {error}"));
        let endpoint = Endpoint::from_shared(format!("{scheme}://{host}:{port}")).map_err(unusable)?;
        let endpoint = endpoint.tcp_nodelay(true).tcp_keepalive(Some(Duration::from_secs(30)));
        match &self.tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| {
                Failure::refused(format!("TLS to {name} cannot be used: {}", super::errors::causes(&error)))
            }),
            None => Ok(endpoint),
        }
    }

    fn options(&self) -> Result<ConnectOptions, Failure> {
        let mut options = ConnectOptions::new().with_require_leader(true).with_auto_token_refresh(true);
        if let Some(user) = &self.target.user {
            let password = secrets::find(&self.secrets).map_err(Failure::refused)?.ok_or_else(|| {
                Failure::refused(format!(
                    "the address names user {user}, and there is no password; give it in ETCD_PASSFILE or ETCD_PASSWORD"
                ))
            })?;
            options = options.with_user(user, password);
        }
        Ok(options)
    }
}

fn tls_of(target: &Target) -> Result<Option<ClientTlsConfig>, String> {
    if target.tls == TlsMode::Disable {
        return Ok(None);
    }
    let read = |what: &str, path: &std::path::Path| {
        std::fs::read(path).map_err(|error| format!("{what}={} cannot be read: {error}", path.display()))
    };
    let mut tls = ClientTlsConfig::new();
    tls = match &target.root_cert {
        Some(path) => tls.ca_certificate(Certificate::from_pem(read("sslrootcert", path)?)),
        None => tls.with_native_roots(),
    };
    if let Some((cert, key)) = &target.cert {
        tls = tls.identity(Identity::from_pem(read("sslcert", cert)?, read("sslkey", key)?));
    }
    Ok(Some(tls))
}

/// The parts of etcd's interface that the engine uses, over one connection.
#[derive(Clone)]
pub(super) struct Wires {
    pub(super) kv: KvClient,
    pub(super) lease: LeaseClient,
    pub(super) maintenance: MaintenanceClient,
}

/// An open connection.
pub(super) struct Link {
    /// The member: `host:port`.
    pub(super) name: String,
    server: usize,
    /// Gone only while this is dropped.
    runtime: Option<Runtime>,
    wires: Wires,
}

impl Link {
    /// Connects to the member that answered last. If that fails, the next attempt goes to another one.
    pub(super) fn open(door: &Door, limit: Duration) -> Result<Link, Failure> {
        let server = door.chosen.load(Ordering::Acquire);
        Link::open_at(door, server, limit).inspect_err(|_| door.leave(server))
    }

    /// Connects to one of the members.
    pub(super) fn open_at(door: &Door, server: usize, limit: Duration) -> Result<Link, Failure> {
        let (name, host) = door.name(server);
        let (endpoint, options) = (door.endpoint(server)?.connect_timeout(limit), door.options()?);
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime
            .map_err(|error| Failure::refused(format!("this machine refuses a connection: {error}")))?;
        let connecting = async {
            let channel = endpoint.connect().await.map_err(|error| unconnected(&name, &host, &error))?;
            let client = Client::from_channel(Channel::Tonic(channel), Some(options)).await;
            client.map_err(|error| explain(&door.target, &name, &error))
        };
        let connected = runtime.block_on(async { tokio::time::timeout(limit, connecting).await });
        let connected = connected.unwrap_or_else(|_| Err(late(&name, limit)));
        match connected {
            Ok(client) => {
                let kv = client.kv_client().max_decoding_message_size(ANSWER_MAX);
                let wires =
                    Wires { kv, lease: client.lease_client(), maintenance: client.maintenance_client() };
                Ok(Link { name, server, runtime: Some(runtime), wires })
            }
            Err(failure) => {
                // The look-up of a name cannot be stopped; it must not hold up this thread.
                runtime.shutdown_background();
                Err(failure)
            }
        }
    }

    /// Makes a request, within a time limit. After `Lost` the connection is of no use.
    pub(super) fn run<T>(
        &mut self,
        door: &Door,
        limit: Duration,
        work: impl AsyncFnOnce(Wires) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let Some(runtime) = &self.runtime else {
            return Err(Failure::Lost(format!("the connection to {} is closed", self.name)));
        };
        let wires = self.wires.clone();
        let done = runtime.block_on(async { tokio::time::timeout(limit, work(wires)).await });
        let done = match done {
            Ok(done) => done.map_err(|error| explain(&door.target, &self.name, &error)),
            Err(_) => Err(late(&self.name, limit)),
        };
        if matches!(done, Err(Failure::Lost(_))) {
            door.leave(self.server);
        }
        done
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn late(server: &str, limit: Duration) -> Failure {
    Failure::Lost(format!(
        "the server {server} did not answer within {:.1} s; check that etcd runs there, that most members of its cluster do, and that its disk is not overloaded",
        limit.as_secs_f64()
    ))
}
