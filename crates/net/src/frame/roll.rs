//! The list of members, as a node sends it to another that need not be a member: byte for byte as in
//! docs/PROTOCOL.md.

use std::net::{IpAddr, SocketAddr};

use super::BadFrame;
use super::payload::Reader;
use crate::id::{Member, Role, Seen, ZONE_MAX, Zone};
use crate::transport::service::Roll;

/// How many nodes fit in one answer, whatever the names of their zones.
pub(crate) const ROLL_MAX: usize = (super::SMALL_MAX as usize - 1) / (54 + ZONE_MAX);

/// A roll: more u8, then for each node: id 16, generation u64, 4 or 6 and an address, port u16, role u8,
/// state u8, weight u16, free u32, load u16, length of the zone's name u8, the zone's name.
pub fn encode_roll(roll: &Roll) -> Vec<u8> {
    let mut out = vec![u8::from(roll.more || roll.members.len() > ROLL_MAX)];
    for seen in roll.members.iter().take(ROLL_MAX) {
        let member = &seen.member;
        out.extend_from_slice(&member.node.0);
        out.extend_from_slice(&member.generation.to_le_bytes());
        match member.address.ip() {
            IpAddr::V4(ip) => {
                out.push(4);
                out.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                out.push(6);
                out.extend_from_slice(&ip.octets());
            }
        }
        out.extend_from_slice(&member.address.port().to_le_bytes());
        out.push(u8::from(member.role == Role::Depot));
        out.push(match (seen.is_own, seen.is_suspect) {
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => 0,
        });
        out.extend_from_slice(&member.weight.to_le_bytes());
        out.extend_from_slice(&member.free.to_le_bytes());
        out.extend_from_slice(&member.load.to_le_bytes());
        let zone = member.zone.as_str().as_bytes();
        // The name of a zone has at most 63 bytes.
        out.push(zone.len() as u8);
        out.extend_from_slice(zone);
    }
    out
}

/// Reads a roll.
///
/// # Errors
/// [`BadFrame`].
pub fn decode_roll(bytes: &[u8]) -> Result<Roll, BadFrame> {
    let mut reader = Reader(bytes);
    let more = match reader.u8()? {
        0 => false,
        1 => true,
        _ => return Err(BadFrame::Payload("a roll goes on or does not")),
    };
    let mut members = Vec::new();
    while !reader.0.is_empty() {
        if members.len() >= ROLL_MAX {
            return Err(BadFrame::Payload("more nodes than one answer has"));
        }
        members.push(seen(&mut reader)?);
    }
    Ok(Roll { members, more })
}

fn seen(reader: &mut Reader<'_>) -> Result<Seen, BadFrame> {
    let (node, generation) = (reader.node()?, reader.u64()?);
    let ip = match reader.u8()? {
        4 => IpAddr::from(reader.array::<4>()?),
        6 => IpAddr::from(reader.array::<16>()?),
        _ => return Err(BadFrame::Payload("an address is 4 or 6")),
    };
    let address = SocketAddr::new(ip, reader.u16()?);
    let role = match reader.u8()? {
        0 => Role::Node,
        1 => Role::Depot,
        _ => return Err(BadFrame::Payload("a role that no node has")),
    };
    let (is_own, is_suspect) = match reader.u8()? {
        0 => (false, false),
        1 => (false, true),
        2 => (true, false),
        _ => return Err(BadFrame::Payload("a state that no node is in")),
    };
    let (weight, free, load) = (reader.u16()?, reader.u32()?, reader.u16()?);
    let length = usize::from(reader.u8()?);
    let name = std::str::from_utf8(reader.take(length)?).ok().and_then(|name| Zone::new(name).ok());
    let zone = name.ok_or(BadFrame::Payload("the name of a zone that is none"))?;
    let member = Member { node, generation, address, zone, role, weight, free, load };
    Ok(Seen { member, is_own, is_suspect })
}
