//! Looking at a fleet from outside: asks one of its nodes for the list of nodes. The caller does not join the
//! fleet, and only the node that it asks learns of it. It needs the secret, but not the volume that the fleet
//! reads.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use api::status::fleet::PeerRow;
use fleet::members::Contact;
use net::hello::Identity;
use net::id::{NodeId, Role, Seen};
use net::message::{Answer, Ask, Note};
use net::secret::Secret;
use net::tls::Tls;
use net::transport::{Content, CopyState, Fail, Listed, Net, Options, Peer, Prefix, Service};

use super::options::{FleetOptions, TlsOptions};
use super::shown;

/// The time limit for a node's greeting.
const GREETING: Duration = Duration::from_secs(3);
/// The time limit for one page of the list, greeting included.
const PAGE: Duration = Duration::from_secs(6);
/// At most this many addresses are tried, all in parallel.
const ADDRESSES: usize = 16;

/// Asks the first of these nodes that answers. `join` is `HOST:PORT,...`.
pub fn look(join: &str, secret_file: Option<&Path>, tls: &TlsOptions) -> Result<Vec<PeerRow>> {
    let secret = FleetOptions::secret_in(secret_file)?;
    let tls = tls.load()?;
    let contacts = Contact::parse(join).map_err(|error| Failure::usage(error.to_string()))?;
    let addresses = addresses(&contacts)?;
    let net = start(&secret, tls)?;
    let time = PAGE;
    let calls: Vec<_> = addresses
        .iter()
        .map(|address| Peer { address: *address, node: None })
        .map(|peer| (peer, net.members(peer, NodeId([0; 16]), time)))
        .collect();
    let mut failed = Vec::new();
    for (peer, call) in calls {
        let done = call.wait().and_then(|first| {
            let mut all = first.members;
            let mut more = first.more;
            while let (true, Some(last)) = (more, all.last().map(|seen| seen.member.node)) {
                let page = net.members(peer, last, time).wait()?;
                more = page.more && page.members.last().is_some_and(|seen| seen.member.node > last);
                all.extend(page.members);
            }
            Ok(all)
        });
        match done {
            Ok(seen) => return Ok(seen.iter().map(row).collect()),
            Err(fail) => failed.push((peer.address, fail)),
        }
    }
    Err(failure(join, failed))
}

fn row(seen: &Seen) -> PeerRow {
    let row = shown::peer(seen);
    match seen.is_own {
        true => PeerRow { state: "asked".to_owned(), ..row },
        false => row,
    }
}

fn addresses(contacts: &[Contact]) -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    let mut unknown = None;
    for contact in contacts {
        match contact.addresses() {
            Ok(found) => addresses.extend(found),
            Err(error) => unknown = Some((contact, error)),
        }
    }
    addresses.truncate(ADDRESSES);
    match unknown {
        Some((Contact::Name(name), error)) if addresses.is_empty() => {
            Err(Failure::new("not-reached", format!("{name} has no address"))
                .why(api::error::plain(&error))
                .next("name a node by its address: --join 10.0.0.1:7171"))
        }
        _ if addresses.is_empty() => {
            Err(Failure::usage("no node was named").next("name one of the fleet's: --join HOST:PORT"))
        }
        _ => Ok(addresses),
    }
}

/// A transport that only sends requests.
fn start(secret: &Secret, tls: Option<Tls>) -> Result<Net> {
    let options = Options {
        identity: Identity { node: NodeId::random(), role: Role::Node, volume: [0; 16] },
        secret: secret.clone(),
        tls,
        listen: None,
        verify: Default::default(),
        limits: net::transport::Limits { handshake: GREETING, threads: 1, ..Default::default() },
    };
    // Its messages are also in the answers, so they are not logged.
    Net::start(options, Arc::new(NoService), Arc::new(|_: &str| ()))
        .map_err(|error| Failure::new("not-reached", "cannot ask the fleet").why(error.to_string()))
}

/// Chooses the failure to report. One that names a difference comes before one that says only that no node
/// answered.
fn failure(join: &str, failed: Vec<(SocketAddr, Fail)>) -> Failure {
    let strange = failed.iter().find(|(_, fail)| matches!(fail, Fail::Stranger { .. }));
    let Some((address, fail)) = strange.or(failed.first()) else {
        return Failure::new("not-reached", format!("nobody answers at {join}"));
    };
    match fail {
        Fail::Stranger { why, .. } => {
            // The reason itself says what to do, except where to name the secret.
            let failure =
                Failure::new("refused", format!("the node at {address} does not let this one in: {why}"));
            if why.contains("secret") {
                failure.next("name the file that its nodes have: --secret-file FILE")
            } else {
                failure
            }
        }
        Fail::Unreachable { why, .. } => {
            Failure::new("not-reached", format!("no node of a fleet can be reached at {address}: {why}"))
                .next("name another node: --join HOST:PORT; nodes say in their log where they listen")
        }
        other => Failure::new("not-reached", format!("the node at {address} did not say who is there"))
            .why(other.to_string())
            .next("it may run another version of covey; ask another node: --join HOST:PORT"),
    }
}

/// Serves nothing: no node can send a request to one that does not listen.
struct NoService;

impl Service for NoService {
    fn ask(&self, _: NodeId, ask: Ask) -> Vec<Answer> {
        vec![Answer::NotMine; ask.blobs.len()]
    }

    fn notes(&self, _: NodeId, _: Vec<Note>) {}

    fn content(&self, _: &base::BlobId) -> Option<Content> {
        None
    }

    fn suspect(&self, _: &base::BlobId) -> CopyState {
        CopyState::Absent
    }

    fn list(&self, _: Prefix, _: usize) -> Listed {
        Listed::default()
    }
}
