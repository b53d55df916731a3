//! Gossip messages as bytes: foca's headers and members, field by field, big-endian.
//!
//! ```text
//! name      node 16 | generation 8 | 4: IPv4 4, or 6: IPv6 16 | port 2
//! who       name | role 1 | weight 2 | length of the zone's name 1 | the zone's name
//! header    who (from) | incarnation 2 | name (to) | message 1 | its payload: name and number, or number
//! member    who | incarnation 2 | state 1
//! ```
//!
//! Only the sender and members are sent completely. For the receiver, or a node to probe, the name is enough.
//! Its other fields are filled in here and are never read ([`Incarnation`]'s equality).
//!
//! Every length is checked before it is read, and only the name of a zone is allocated. Anything that is not
//! understood is an error, and the whole datagram is dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Buf, BufMut};
use foca::{Codec, Header, Member, Message, State};
use net::id::{NodeId, Role, ZONE_MAX, Zone};

use super::incarnation::Incarnation;

/// The longest [`Incarnation`], in bytes.
pub const WHO_MAX: usize = 16 + 8 + 1 + 16 + 2 + 1 + 2 + 1 + ZONE_MAX;

/// Why bytes are not gossip, or gossip does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The bytes end too early.
    #[error("a gossip message ends too early")]
    Short,
    /// A field has an invalid value.
    #[error("a gossip message holds no valid {0}")]
    Field(&'static str),
    /// No room is left in the datagram.
    #[error("no room is left in the datagram")]
    Full,
}

/// The codec. It has no state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compact;

fn take<const N: usize>(buf: &mut impl Buf) -> Result<[u8; N], CodecError> {
    if buf.remaining() < N {
        return Err(CodecError::Short);
    }
    let mut bytes = [0; N];
    buf.copy_to_slice(&mut bytes);
    Ok(bytes)
}

fn take_u8(buf: &mut impl Buf) -> Result<u8, CodecError> {
    take::<1>(buf).map(|[byte]| byte)
}

fn take_u16(buf: &mut impl Buf) -> Result<u16, CodecError> {
    take(buf).map(u16::from_be_bytes)
}

fn take_name(buf: &mut impl Buf) -> Result<(NodeId, u64, SocketAddr), CodecError> {
    let node = NodeId(take(buf)?);
    let generation = u64::from_be_bytes(take(buf)?);
    let ip: IpAddr = match take_u8(buf)? {
        4 => Ipv4Addr::from(take::<4>(buf)?).into(),
        6 => Ipv6Addr::from(take::<16>(buf)?).into(),
        _ => return Err(CodecError::Field("kind of address")),
    };
    Ok((node, generation, SocketAddr::new(ip, take_u16(buf)?)))
}

fn take_meant(buf: &mut impl Buf) -> Result<Incarnation, CodecError> {
    let (node, generation, address) = take_name(buf)?;
    Ok(Incarnation { node, generation, address, zone: Zone::default(), role: Role::Node, weight: 0 })
}

/// Reads a node.
///
/// # Errors
/// [`CodecError`].
pub fn take_who(buf: &mut impl Buf) -> Result<Incarnation, CodecError> {
    let (node, generation, address) = take_name(buf)?;
    let role = match take_u8(buf)? {
        0 => Role::Node,
        1 => Role::Depot,
        _ => return Err(CodecError::Field("role")),
    };
    let weight = take_u16(buf)?;
    let len = usize::from(take_u8(buf)?);
    let mut name = [0; ZONE_MAX];
    let name = name.get_mut(..len).ok_or(CodecError::Field("name of a zone"))?;
    if buf.remaining() < len {
        return Err(CodecError::Short);
    }
    buf.copy_to_slice(name);
    let name = std::str::from_utf8(name).map_err(|_| CodecError::Field("name of a zone"))?;
    let zone = Zone::new(name).map_err(|_| CodecError::Field("name of a zone"))?;
    Ok(Incarnation { node, generation, address, zone, role, weight })
}

fn name_len(who: &Incarnation) -> usize {
    16 + 8 + 1 + if who.address.is_ipv4() { 4 } else { 16 } + 2
}

fn who_len(who: &Incarnation) -> usize {
    name_len(who) + 1 + 2 + 1 + who.zone.as_str().len()
}

fn put_name(who: &Incarnation, buf: &mut impl BufMut) {
    buf.put_slice(&who.node.0);
    buf.put_u64(who.generation);
    match who.address.ip() {
        IpAddr::V4(ip) => {
            buf.put_u8(4);
            buf.put_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            buf.put_u8(6);
            buf.put_slice(&ip.octets());
        }
    }
    buf.put_u16(who.address.port());
}

/// Writes a node.
///
/// # Errors
/// [`CodecError::Full`], and then nothing is written.
pub fn put_who(who: &Incarnation, buf: &mut impl BufMut) -> Result<(), CodecError> {
    if buf.remaining_mut() < who_len(who) {
        return Err(CodecError::Full);
    }
    put_name(who, buf);
    buf.put_u8(match who.role {
        Role::Node => 0,
        Role::Depot => 1,
    });
    buf.put_u16(who.weight);
    let zone = who.zone.as_str().as_bytes();
    // The name of a zone is never longer than ZONE_MAX, which fits.
    buf.put_u8(zone.len() as u8);
    buf.put_slice(zone);
    Ok(())
}

/// The message's number, its probe number if it has one, and the node in it if there is one.
fn parts(message: &Message<Incarnation>) -> (u8, Option<u8>, Option<&Incarnation>) {
    match message {
        Message::Ping(number) => (0, Some(*number), None),
        Message::Ack(number) => (1, Some(*number), None),
        Message::PingReq { target, probe_number } => (2, Some(*probe_number), Some(target)),
        Message::IndirectPing { origin, probe_number } => (3, Some(*probe_number), Some(origin)),
        Message::IndirectAck { target, probe_number } => (4, Some(*probe_number), Some(target)),
        Message::ForwardedAck { origin, probe_number } => (5, Some(*probe_number), Some(origin)),
        Message::Announce => (6, None, None),
        Message::Feed => (7, None, None),
        Message::Gossip => (8, None, None),
        Message::Broadcast => (9, None, None),
        Message::TurnUndead => (10, None, None),
    }
}

fn take_message(buf: &mut impl Buf) -> Result<Message<Incarnation>, CodecError> {
    let message = match take_u8(buf)? {
        0 => Message::Ping(take_u8(buf)?),
        1 => Message::Ack(take_u8(buf)?),
        2 => Message::PingReq { target: take_meant(buf)?, probe_number: take_u8(buf)? },
        3 => Message::IndirectPing { origin: take_meant(buf)?, probe_number: take_u8(buf)? },
        4 => Message::IndirectAck { target: take_meant(buf)?, probe_number: take_u8(buf)? },
        5 => Message::ForwardedAck { origin: take_meant(buf)?, probe_number: take_u8(buf)? },
        6 => Message::Announce,
        7 => Message::Feed,
        8 => Message::Gossip,
        9 => Message::Broadcast,
        10 => Message::TurnUndead,
        _ => return Err(CodecError::Field("message")),
    };
    Ok(message)
}

impl Codec<Incarnation> for Compact {
    type Error = CodecError;

    fn encode_header(
        &mut self,
        header: &Header<Incarnation>,
        mut buf: impl BufMut,
    ) -> Result<(), CodecError> {
        let (kind, number, named) = parts(&header.message);
        let len = who_len(&header.src) + 2 + name_len(&header.dst) + 1;
        let len = len + usize::from(number.is_some()) + named.map_or(0, name_len);
        if buf.remaining_mut() < len {
            return Err(CodecError::Full);
        }
        put_who(&header.src, &mut buf)?;
        buf.put_u16(header.src_incarnation);
        put_name(&header.dst, &mut buf);
        buf.put_u8(kind);
        if let Some(who) = named {
            put_name(who, &mut buf);
        }
        if let Some(number) = number {
            buf.put_u8(number);
        }
        Ok(())
    }

    fn decode_header(&mut self, mut buf: impl Buf) -> Result<Header<Incarnation>, CodecError> {
        Ok(Header {
            src: take_who(&mut buf)?,
            src_incarnation: take_u16(&mut buf)?,
            dst: take_meant(&mut buf)?,
            message: take_message(&mut buf)?,
        })
    }

    fn encode_member(
        &mut self,
        member: &Member<Incarnation>,
        mut buf: impl BufMut,
    ) -> Result<(), CodecError> {
        if buf.remaining_mut() < who_len(member.id()) + 3 {
            return Err(CodecError::Full);
        }
        put_who(member.id(), &mut buf)?;
        buf.put_u16(member.incarnation());
        buf.put_u8(match member.state() {
            State::Alive => 0,
            State::Suspect => 1,
            State::Down => 2,
        });
        Ok(())
    }

    fn decode_member(&mut self, mut buf: impl Buf) -> Result<Member<Incarnation>, CodecError> {
        let who = take_who(&mut buf)?;
        let incarnation = take_u16(&mut buf)?;
        let state = match take_u8(&mut buf)? {
            0 => State::Alive,
            1 => State::Suspect,
            2 => State::Down,
            _ => return Err(CodecError::Field("state")),
        };
        Ok(Member::new(who, incarnation, state))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn who() -> impl Strategy<Value = Incarnation> {
        let address = (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port));
        let role = prop_oneof![Just(Role::Node), Just(Role::Depot)];
        (any::<[u8; 16]>(), any::<u64>(), address, "[a-z0-9._-]{1,63}", role, any::<u16>()).prop_map(
            |(node, generation, address, zone, role, weight)| Incarnation {
                node: NodeId(node),
                generation,
                address,
                zone: Zone::new(&zone).unwrap(),
                role,
                weight,
            },
        )
    }

    fn message() -> impl Strategy<Value = Message<Incarnation>> {
        (0u8..11, who(), any::<u8>()).prop_map(|(kind, who, probe_number)| match kind {
            0 => Message::Ping(probe_number),
            1 => Message::Ack(probe_number),
            2 => Message::PingReq { target: who, probe_number },
            3 => Message::IndirectPing { origin: who, probe_number },
            4 => Message::IndirectAck { target: who, probe_number },
            5 => Message::ForwardedAck { origin: who, probe_number },
            6 => Message::Announce,
            7 => Message::Feed,
            8 => Message::Gossip,
            9 => Message::Broadcast,
            _ => Message::TurnUndead,
        })
    }

    fn whole(who: &Incarnation) -> (Incarnation, Zone, Role, u16) {
        (who.clone(), who.zone.clone(), who.role, who.weight)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(src in who(), dst in who(), message in message(), incarnation: u16, state in 0u8..3) {
            let header = Header { src: src.clone(), src_incarnation: incarnation, dst, message };
            let mut bytes = Vec::new();
            Compact.encode_header(&header, &mut bytes).unwrap();
            let read = Compact.decode_header(&bytes[..]).unwrap();
            prop_assert_eq!(&read, &header);
            prop_assert_eq!(whole(&read.src), whole(&src));
            for end in 0..bytes.len() {
                prop_assert!(Compact.decode_header(&bytes[..end]).is_err(), "cut at {}", end);
            }

            let state = [State::Alive, State::Suspect, State::Down][usize::from(state)];
            let member = Member::new(src, incarnation, state);
            let mut bytes = Vec::new();
            Compact.encode_member(&member, &mut bytes).unwrap();
            prop_assert!(bytes.len() <= WHO_MAX + 3);
            prop_assert_eq!(&Compact.decode_member(&bytes[..]).unwrap(), &member);
            for room in 0..bytes.len() {
                let mut short = Vec::new();
                let full = Compact.encode_member(&member, (&mut short).limit(room));
                prop_assert_eq!((full, short.len()), (Err(CodecError::Full), 0));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Compact.decode_header(&bytes[..]);
            let _ = Compact.decode_member(&bytes[..]);
        }
    }
}
