//! Nodes that reach the database and the origin, and not each other: behind a firewall, or at an address that
//! only their own machine has.
//!
//! - **It is said.** Each node asks all others, when it is mounted and now and then, and names those that do
//!   not answer in the log and in its status.
//! - **Bytes go by the origin.** A node that needs bytes of a pack and cannot reach the node that has them
//!   writes a row ([`Key::wanted`]). Each node looks for such rows of its own packs, and stores these packs
//!   in the origin. (Leases go by rows in the same way: [`meta::lease`].)

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use ::fs::shared::owner;
use ::fs::volume::Volume;
use base::PackNo;
use engines::Address;
use meta::Key;
use meta::key::tags;
use meta::store::{Commit, CommitError, StoreError};
use net::frame::PackAsk;
use net::transport::Fail;
use parking_lot::Mutex;

use super::peers::Peers;
use crate::log;

/// How long another node may take to answer.
const ANSWER: Duration = Duration::from_secs(3);
/// How long it may take to store packs that another node wants.
const STORED: Duration = Duration::from_secs(20);
/// So many looks at what is wanted come before the other nodes are asked again.
const ROUNDS: u32 = 20;
/// Addresses for documents (RFC 5737, RFC 3849). The way to them is the way out of this machine.
const OUTSIDE: [(&str, u16); 2] = [("198.51.100.1", 9), ("2001:db8::1", 9)];
/// Where a socket is bound to look for a way, for both kinds of addresses.
const BINDS: [(IpAddr, u16); 2] =
    [(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0), (IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)];

/// The nodes that do not answer this one, by number, each with what is said of it.
#[derive(Default)]
pub(super) struct Unreached {
    lines: Mutex<BTreeMap<u32, String>>,
    rounds: Mutex<u32>,
}

impl Unreached {
    /// A line for each.
    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.lock().values().cloned().collect()
    }
}

impl Peers {
    /// Looks for what other nodes want of this one, and now and then whether they answer. Without an answer
    /// of the database there is another time.
    pub(super) fn look_around(&self, volume: &Volume) {
        let _ = self.store_wanted(volume);
        let is_due = {
            let mut rounds = self.unreached.rounds.lock();
            *rounds = (*rounds + 1) % ROUNDS;
            *rounds == 1
        };
        if is_due {
            let _ = self.ask_all();
        }
    }

    /// Asks the owner of a pack, by the database, to store it in the origin. False: that node is gone.
    pub(super) fn want(&self, pack: PackNo) -> bool {
        let is_alive =
            self.look().is_ok_and(|nodes| nodes.get(&owner(pack)).is_some_and(|known| known.alive));
        let row = (Key::wanted(pack), Vec::new().into());
        is_alive && self.change(Commit { puts: vec![row], ..Commit::default() }).is_ok()
    }

    /// The pack is not wanted any more.
    pub(super) fn got(&self, pack: PackNo) {
        let _ = self.change(Commit { dels: vec![Key::wanted(pack)], ..Commit::default() });
    }

    fn change(&self, commit: Commit) -> Result<(), StoreError> {
        match self.names.commit(commit) {
            Ok(()) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    fn number(&self) -> Option<u32> {
        self.names.session().and_then(|session| u32::try_from(session.number).ok())
    }

    /// Stores this node's packs in the origin, if another node wants one.
    fn store_wanted(&self, volume: &Volume) -> Result<(), StoreError> {
        let me = self.number();
        let packs = |key: &Key| key.number().map(PackNo).filter(|pack| Some(owner(*pack)) == me);
        let rows = self.names.scan(&Key::kind(tags::WANTED), usize::MAX)?;
        let wanted: Vec<PackNo> = rows.iter().filter_map(|(key, _)| packs(key)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let stored = volume.seal_now(STORED).map_err(|error| error.to_string());
        let stored =
            stored.and_then(|()| volume.parts().origin.settle(STORED).map_err(|error| error.to_string()));
        match stored {
            Ok(()) => self
                .change(Commit { dels: wanted.into_iter().map(Key::wanted).collect(), ..Commit::default() }),
            Err(why) => {
                log::warn(&format!(
                    "another node wants bytes of this one, cannot reach it, and they cannot be stored in the origin: {why}"
                ));
                Ok(())
            }
        }
    }

    /// Asks each other node for something that it does not have. Any answer will do.
    fn ask_all(&self) -> Result<(), StoreError> {
        let Some(me) = self.number() else { return Ok(()) };
        let nodes = self.look()?;
        let own = nodes.get(&me).map_or("this machine", |known| known.host.as_str()).to_owned();
        let ask = PackAsk { pack: PackNo(0), offset: 0, len: 1 };
        let others = nodes.iter().filter(|(node, known)| **node != me && known.alive);
        // All are asked before the first answer is waited for.
        let calls: Vec<_> = others
            .map(|(node, known)| (*node, known, known.peer.map(|peer| self.net.pack(peer, &ask, ANSWER))))
            .collect();
        let mut found = BTreeMap::new();
        for (node, known, call) in calls {
            let why = match call.map(|call| call.wait()) {
                None => "its address is unknown".to_owned(),
                Some(Err(fail)) if is_cut_off(&fail) => fail.to_string(),
                Some(_) => continue,
            };
            let host = &known.host;
            found.insert(
                node,
                format!("this node ({me}, on {own}) does not reach the node {node} on {host}: {why}"),
            );
        }
        let before = std::mem::replace(&mut *self.unreached.lines.lock(), found.clone());
        for (node, line) in &found {
            if !before.contains_key(node) {
                log::warn(&format!(
                    "{line}; what one of them writes the other one reads by the origin, seconds later; open the way between them, or mount with --listen ADDRESS:PORT and --advertise ADDRESS:PORT"
                ));
            }
        }
        for (node, _) in before.iter().filter(|(node, _)| !found.contains_key(*node)) {
            log::line(&format!("the node {node} is reached again, or has left"));
        }
        Ok(())
    }
}

fn is_cut_off(fail: &Fail) -> bool {
    matches!(fail, Fail::Unreachable { .. } | Fail::Stranger { .. } | Fail::Late(_) | Fail::Gone(_))
}

/// The address of this machine at which other nodes most likely reach it: the one on the way to the database.
/// If the database is on this machine, the one on the way out of it, because the other nodes of such a volume
/// are on other machines or reach that one too.
pub(super) fn own_address(target: &Address) -> IpAddr {
    let way = |(host, port): &(String, u16)| {
        BINDS.iter().find_map(|local| {
            let socket = UdpSocket::bind(local).ok()?;
            // Nothing is sent.
            socket.connect((host.as_str(), *port)).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
    };
    let ways = target.servers().into_iter().chain(OUTSIDE.map(|(host, port)| (host.to_owned(), port)));
    let reached = |ip: &IpAddr| !ip.is_loopback() && !ip.is_unspecified();
    ways.filter_map(|server| way(&server)).find(reached).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node on the database's machine said that the others reach it at 127.0.0.1.
    #[test]
    fn regression_a_node_beside_its_database_names_an_address_of_its_machine() {
        let of = |text: &str| own_address(&Address::parse(text).unwrap());
        let beside = of("postgres://u@127.0.0.1/d?volume=v");
        assert_eq!(beside, of("postgres://u@%2Frun%2Fpostgresql/d?volume=v"));
        // Without any other way this machine is all that there is.
        let has_way_out = BINDS.iter().zip(OUTSIDE).any(|(local, outside)| {
            UdpSocket::bind(local).is_ok_and(|socket| socket.connect(outside).is_ok())
        });
        assert_eq!(beside.is_loopback(), !has_way_out, "{beside}");
    }
}
