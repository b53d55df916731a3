//! Checks of a mount that is a node of a fleet: whether other nodes can reach it, which nodes are silent, and
//! whether its zone has a depot. Clocks are not compared, because nodes exchange durations and never times of
//! day.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use api::control::{ControlAddress, Request};
use api::status::fleet::{FleetStatus, PeerRow};
use fuse::mount::Mounted;
use node::control;
use node::fleet::is_in_the_clear;

use super::{Check, note, ok, tip, wrong};

/// The time limit for connecting to the node itself.
const ANSWER: Duration = Duration::from_secs(2);

/// The findings for a mount. Empty if it is not a node of a fleet.
pub fn of_mount(mount: &Mounted) -> Vec<Check> {
    let address = ControlAddress::of_source(Path::new(&mount.source));
    let rows: Vec<PeerRow> = control::ask(&address, &Request::Peers, &mut |_| ()).unwrap_or_default();
    let Some(own) = rows.iter().find(|row| row.state == "own") else { return Vec::new() };
    vec![listens(own, &rows), depot(own, &rows)]
}

/// A finding if the connections of the fleet are not encrypted. None if the node listens only on this
/// machine.
pub fn clear(fleet: &FleetStatus) -> Option<Check> {
    let address: SocketAddr = fleet.address.parse().ok()?;
    let is_encrypted = fleet.encrypted?;
    if address.ip().to_canonical().is_loopback() {
        return None;
    }
    Some(match is_in_the_clear(address, is_encrypted) {
        false => ok("encryption", format!("connections of the fleet to {address} are encrypted")),
        true => note(
            "encryption",
            format!(
                "connections of the fleet to {address} are not encrypted: who is on the way reads the bytes, and can answer falsely"
            ),
            "give all nodes --tls-cert FILE --tls-key FILE --tls-ca FILE (docs/OPERATING.md), or keep the fleet inside a VPN",
        ),
    })
}

fn listens(own: &PeerRow, rows: &[PeerRow]) -> Check {
    let address = &own.address;
    let open = "open its port for TCP and UDP, or say where others reach it: --advertise ADDRESS:PORT";
    let reached = address.parse::<SocketAddr>().map_err(|error| error.to_string()).and_then(|address| {
        TcpStream::connect_timeout(&address, ANSWER).map_err(|error| api::error::plain(&error))
    });
    if let Err(why) = reached {
        return wrong("fleet", format!("this node is not reached at {address}: {why}"), open);
    }
    let silent = rows.iter().filter(|row| row.state == "silent").count();
    let others = rows.len() - 1;
    match silent {
        0 => ok("fleet", format!("this node answers at {address}; {others} others are there")),
        n => note("fleet", format!("{n} of {others} other nodes do not answer this one at {address}"), open),
    }
}

fn depot(own: &PeerRow, rows: &[PeerRow]) -> Check {
    let zone = &own.zone;
    match rows.iter().filter(|row| row.role == "depot" && row.zone == *zone).count() {
        0 => tip(
            "depot",
            format!("zone {zone} has no depot: what its nodes let go of comes from the store again"),
            format!("covey depot --zone {zone} --join {} ...", own.address),
        ),
        n => ok("depot", format!("zone {zone} has {n}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn regression_a_fleet_in_the_clear_is_a_finding() {
        let level = |address: &str, encrypted| {
            let fleet = FleetStatus { address: address.to_owned(), encrypted, ..FleetStatus::default() };
            clear(&fleet).map(|check| check.level)
        };
        assert_eq!(level("10.0.0.1:7", Some(false)), Some(Level::Note));
        assert_eq!(level("10.0.0.1:7", Some(true)), Some(Level::Ok));
        assert_eq!((level("127.0.0.1:7", Some(false)), level("10.0.0.1:7", None)), (None, None));
    }
}
