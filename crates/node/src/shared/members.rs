//! The nodes of a shared volume as a fleet: they read blobs from one another before they read from the
//! origin.
//!
//! Nobody names its members. The addresses are those of the sessions in the database, and the secret is the
//! one that is kept beside them. So a node that may use the database may join. `--join` adds addresses.
//!
//! The fleet has no port of its own: it uses the transport by which the nodes ask one another for packs and
//! leases, and the UDP port of the same number for the membership. Where that does not pass, each node reads
//! from the origin, as if it were alone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::fleet::members::Contact;
use ::fleet::node::{Fleet, FleetParts, Groups, Transport};
use api::error::Result;
use blob::Origin;
use fetch::Table;
use net::id::{NodeId, Role, Zone};
use net::secret::Secret;

use super::Shared;
use crate::fleet::Joined;
use crate::fleet::options::FleetOptions;
use crate::log;

/// Through at most so many nodes a node joins. The others become known by these.
const CONTACTS: usize = 16;

/// What a node needs to join the fleet of its volume.
pub(super) struct Joining {
    secret: Secret,
    node: NodeId,
    volume: [u8; 16],
    zone: Zone,
    named: Vec<Contact>,
    advertise: Option<SocketAddr>,
    weight: u16,
    xdp: Option<String>,
}

impl Joining {
    /// Takes it from the options of a mount.
    ///
    /// # Errors
    /// `--join` or `--zone` is wrong.
    pub(super) fn new(
        options: &FleetOptions,
        secret: Secret,
        node: NodeId,
        volume: [u8; 16],
    ) -> Result<Joining> {
        let (zone, named) = (options.zone()?, options.contacts()?);
        let (advertise, weight, xdp) = (options.advertise, options.weight, options.xdp.clone());
        Ok(Joining { secret, node, volume, zone, named, advertise, weight, xdp })
    }
}

impl Shared {
    /// Joins the fleet of the volume, for a cache with this origin and this table. `patience` is the time
    /// after which a read fails. `None`: it cannot be joined, and the log says why.
    pub(crate) fn join_fleet(
        &self,
        origin: Arc<dyn Origin>,
        table: Arc<Table>,
        patience: Duration,
    ) -> Option<Joined> {
        let Joining { secret, node, volume, zone, named, advertise, weight, xdp } = &self.joining;
        let groups = Groups::new();
        let parts = FleetParts {
            transport: Transport::Shared { net: self.net.clone(), node: *node, run: self.epoch() },
            secret: secret.clone(),
            volume: *volume,
            advertise: *advertise,
            contacts: named.iter().cloned().chain(self.contacts()).collect(),
            zone: zone.clone(),
            role: Role::Node,
            keeps: false,
            weight: *weight,
            table,
            origin,
            // The fleet's error says why. So it must come before the reader's timeout, which says nothing.
            deadline: patience * 11 / 12,
            groups: groups.clone(),
            report: log::sink(),
        };
        match Fleet::start(parts) {
            Ok(fleet) => {
                self.server.join(fleet.service());
                Some(Joined::new(fleet, groups, xdp.clone()))
            }
            Err(error) => {
                log::warn(&format!(
                    "this node reads blobs from the origin only, and not from the other nodes: {error}"
                ));
                None
            }
        }
    }

    fn epoch(&self) -> u64 {
        self.names.session().and_then(|session| session.epoch.try_into().ok()).unwrap_or_default()
    }

    /// The addresses of the other nodes that have the volume mounted.
    fn contacts(&self) -> Vec<Contact> {
        let sessions = self.names.sessions().unwrap_or_default();
        let others = sessions.iter().filter(|row| row.alive && row.number != i64::from(self.number));
        let addresses = others.filter_map(|row| row.address.parse().ok().map(Contact::Address));
        addresses.take(CONTACTS).collect()
    }
}
