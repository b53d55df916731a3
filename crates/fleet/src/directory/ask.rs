//! Asking other nodes which blobs they have.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use base::{BlobId, Deadline};
use net::id::NodeId;

use super::{Keys, LENGTH, NAMES, Name, Number, Proof, question, read_answer};

/// Blobs that can be asked for at a time, and nodes that are asked about them.
pub const QUESTIONS_MAX: usize = 512;
/// An answer takes less, within a data centre. Then the question is sent again.
const TURN: Duration = Duration::from_millis(100);
/// How often a question is sent to a node that does not answer.
const TRIES: u32 = 3;

/// What one node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// How many of the blobs it has. None if it did not answer.
    pub held: Option<usize>,
}

/// A question that is not answered yet.
struct Open {
    node: usize,
    names: Vec<Name>,
}

/// Asks each of these nodes which of the blobs it has. At most [`QUESTIONS_MAX`] of each count.
///
/// # Errors
/// There is no socket, or the system refuses to send.
pub fn ask(keys: &Keys, nodes: &[(NodeId, SocketAddr)], blobs: &[BlobId]) -> io::Result<Vec<Holder>> {
    let nodes = nodes.get(..QUESTIONS_MAX).unwrap_or(nodes);
    let names: Vec<Name> = blobs.iter().take(QUESTIONS_MAX).map(|id| keys.name(id)).collect();
    let sockets = [UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)), UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))];
    let mut held = vec![Some(0); nodes.len()];
    for some in names.chunks(NAMES) {
        let asked = nodes.iter().enumerate().filter(|(n, _)| held.get(*n).is_some_and(Option::is_some));
        let mut open: HashMap<Number, Open> = asked
            .map(|(node, _)| (base::random::u64().to_ne_bytes(), Open { node, names: some.to_vec() }))
            .collect();
        let mut tries = 0;
        while !open.is_empty() && tries < TRIES {
            tries += 1;
            for (socket, is_v4) in sockets.iter().zip([true, false]) {
                let of =
                    |open: &Open| nodes.get(open.node).map(|(_, to)| *to).filter(|to| to.is_ipv4() == is_v4);
                let sends: Vec<_> = open
                    .iter()
                    .filter_map(|(number, open)| Some((question(*number, &open.names), of(open)?)))
                    .collect();
                if sends.is_empty() {
                    continue;
                }
                let socket = socket.as_ref().map_err(|error| io::Error::from(error.kind()))?;
                // One that cannot be sent is one without an answer.
                sends.iter().for_each(|(bytes, to)| drop(socket.send_to(bytes, to)));
                hear(socket, keys, nodes, &mut open, &mut held, is_v4)?;
            }
        }
        // A node that does not answer now is not asked again.
        for Open { node, .. } in open.into_values() {
            if let Some(held) = held.get_mut(node) {
                *held = None;
            }
        }
    }
    Ok(nodes.iter().zip(held).map(|((node, _), held)| Holder { node: *node, held }).collect())
}

/// Counts answers until all have come, or for a while.
fn hear(
    socket: &UdpSocket,
    keys: &Keys,
    nodes: &[(NodeId, SocketAddr)],
    open: &mut HashMap<Number, Open>,
    held: &mut [Option<usize>],
    is_v4: bool,
) -> io::Result<()> {
    let deadline = Deadline::after(TURN);
    // One byte more, so that longer datagrams are recognized.
    let mut buffer = [0; LENGTH + 1];
    let waits = |open: &HashMap<Number, Open>| {
        open.values().any(|open| nodes.get(open.node).is_some_and(|(_, to)| to.is_ipv4() == is_v4))
    };
    while waits(open) && !deadline.is_over() {
        socket.set_read_timeout(Some(deadline.left().max(Duration::from_millis(1))))?;
        let (len, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            // A node that refuses has no open port: it does not answer.
            Err(_) => continue,
        };
        let Some((number, proofs)) = read_answer(buffer.get(..len).unwrap_or_default()) else { continue };
        let is_from = |open: &Open| nodes.get(open.node).is_some_and(|(_, to)| *to == from);
        if !open.get(&number).is_some_and(is_from) {
            continue;
        }
        let Some(Open { node, names }) = open.remove(&number) else { continue };
        let is_right = |(name, proof): &(&Name, &Proof)| keys.proof(name) == **proof;
        if let Some(Some(held)) = held.get_mut(node) {
            *held += names.iter().zip(&proofs).filter(is_right).count();
        }
    }
    Ok(())
}
