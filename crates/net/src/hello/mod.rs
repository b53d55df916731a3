//! The handshake: both ends prove that they know the fleet's secret before anything else is sent.
//!
//! ```text
//!   connects                                                          accepts
//!   HELLO      node, role, class, volume's tag, nonce     ──────►
//!                                                         ◄──────     CHALLENGE  node, role, nonce
//!   PROOF      MAC(client's key, both of the above)       ──────►     compares; REFUSE or
//!                                                         ◄──────     WELCOME    MAC(server's key, both)
//! ```
//!
//! - The keys of the two proofs differ and are derived from the secret, so a proof that is sent back to its
//!   maker is worthless. Each proof covers the nonces of both ends, so an old one is worthless too.
//! - The listening node proves nothing to a stranger: the connecting one goes first.
//! - All sizes are fixed and read one by one. So a stranger costs a few hundred bytes and at most the time of
//!   a handshake.
//! - The volume's tag is a hash of its id. All that it reveals is whether two are equal.
//! - Without TLS, nothing after the handshake is encrypted or signed. The network is trusted not to change
//!   data (content is still verified by its id). With TLS ([`crate::tls`]) the handshake runs inside, and the
//!   proofs cover a value that only the two ends of the TLS connection know. So a third party between them
//!   cannot relay a handshake.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::frame::{BadFrame, HEADER, Header, Refusal, Texted, Type, VERSION, put};
use crate::id::{NodeId, Role};
use crate::secret::Secret;

#[cfg(test)]
mod tests;

/// The identity of a node towards other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node's id.
    pub node: NodeId,
    /// The node's purpose.
    pub role: Role,
    /// The volume, or whatever the fleet has in common. Only nodes with the same one communicate.
    pub volume: [u8; 16],
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Many small frames.
    Control,
    /// Bytes of blobs.
    Bulk,
    /// Requests for the list of members only. It is open to every node that knows the secret, whatever is
    /// mounted there.
    Look,
}

impl Class {
    fn byte(self) -> u8 {
        match self {
            Class::Control => 0,
            Class::Bulk => 1,
            Class::Look => 2,
        }
    }
}

/// The node at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Other {
    /// The node's id.
    pub node: NodeId,
    /// The node's purpose.
    pub role: Role,
    /// What the connection is for.
    pub class: Class,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The two do not belong together.
    #[error("{}", line(*.0))]
    Refused(Refusal),
    /// The received bytes were not a handshake.
    #[error("{0}")]
    Frame(#[from] BadFrame),
    /// Another node answers at the address.
    #[error("it is {0}, another node than was expected there: its record is out of date")]
    Another(NodeId),
    /// TLS could not be established.
    #[error("{0}")]
    Tls(String),
    /// The handshake took too long.
    #[error("the handshake did not end within {0:?}")]
    Slow(Duration),
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
}

impl HelloError {
    /// Whether a later attempt would fail as well.
    pub fn is_for_good(&self) -> bool {
        match self {
            HelloError::Refused(refusal) => *refusal != Refusal::Full,
            HelloError::Frame(_) | HelloError::Another(_) | HelloError::Tls(_) => true,
            HelloError::Slow(_) | HelloError::Io(_) => false,
        }
    }
}

/// The message for a person. It is the same at both ends.
pub fn line(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Secret => "the fleet's secret differs: give both nodes the same one",
        Refusal::Volume => "it serves another volume or published tree: join the fleet of this one",
        Refusal::Version => "it speaks another version of the protocol: bring both nodes to one release",
        Refusal::Full => "it has too many connections; they are made again later",
        Refusal::Bad => "its greeting makes no sense to the other end",
        Refusal::Myself => "that is this node itself",
        Refusal::Tls => {
            "one of the two has TLS and the other has not: give both --tls-cert, --tls-key and --tls-ca, or neither"
        }
    }
}

type Proof = [u8; 32];

/// The node's own side of handshakes.
#[derive(Clone, Debug)]
pub struct Greeter {
    identity: Identity,
    tag: [u8; 32],
    client: Proof,
    server: Proof,
    /// What the proofs cover besides the messages: nothing, or a value that only the two ends of a TLS
    /// connection know.
    channel: Vec<u8>,
    time: Duration,
}

impl Greeter {
    /// `time` is the time limit of a handshake.
    pub fn new(identity: Identity, secret: &Secret, time: Duration) -> Greeter {
        Greeter {
            identity,
            tag: blake3::derive_key("covey 2026-11 peer volume tag", &identity.volume),
            client: secret.key("handshake client"),
            server: secret.key("handshake server"),
            channel: Vec::new(),
            time,
        }
    }

    /// Returns a greeter for use inside a TLS connection. Its proofs are valid only there.
    pub(crate) fn within(&self, channel: [u8; 32]) -> Greeter {
        Greeter { channel: channel.to_vec(), ..self.clone() }
    }

    fn mac(&self, key: &Proof, hello: &[u8], challenge: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(&[VERSION]).update(hello).update(challenge).update(&self.channel).finalize()
    }

    /// The identity of this node.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The handshake with the node that this one connected to. `expected` is the node that should be there.
    ///
    /// # Errors
    /// [`HelloError`].
    pub async fn connect<S>(
        &self,
        stream: &mut S,
        class: Class,
        expected: Option<NodeId>,
    ) -> Result<Other, HelloError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let done = tokio::time::timeout(self.time, self.connect_now(stream, class, expected)).await;
        done.unwrap_or(Err(HelloError::Slow(self.time)))
    }

    async fn connect_now<S>(
        &self,
        stream: &mut S,
        class: Class,
        expected: Option<NodeId>,
    ) -> Result<Other, HelloError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let hello = self.hello(class);
        send(stream, Type::Hello, &hello).await?;
        let challenge: [u8; 52] = receive(stream, Type::Challenge).await?;
        let (node, role) = (node_at(&challenge), role_of(challenge[16])?);
        if expected.is_some_and(|expected| expected != node) {
            return Err(HelloError::Another(node));
        }
        if node == self.identity.node {
            return Err(HelloError::Refused(Refusal::Myself));
        }
        send(stream, Type::Proof, self.mac(&self.client, &hello, &challenge).as_bytes()).await?;
        let welcome: Proof = receive(stream, Type::Welcome).await?;
        // Compared in constant time: `blake3::Hash` promises that.
        if self.mac(&self.server, &hello, &challenge) != welcome {
            return Err(HelloError::Refused(Refusal::Secret));
        }
        Ok(Other { node, role, class })
    }

    /// The handshake with a node that has connected. If the two do not belong together, the other end is told
    /// why.
    ///
    /// # Errors
    /// [`HelloError`].
    pub async fn accept<S>(&self, stream: &mut S) -> Result<Other, HelloError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let greet = async {
            let done = self.accept_now(stream).await;
            let refusal = match &done {
                Err(HelloError::Refused(refusal)) => Some(*refusal),
                Err(HelloError::Frame(BadFrame::Version(_))) => Some(Refusal::Version),
                _ => None,
            };
            if let Some(kind) = refusal {
                refuse(stream, kind).await;
            }
            done
        };
        let done = tokio::time::timeout(self.time, greet).await;
        done.unwrap_or(Err(HelloError::Slow(self.time)))
    }

    async fn accept_now<S>(&self, stream: &mut S) -> Result<Other, HelloError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let hello: [u8; 84] = receive(stream, Type::Hello).await?;
        let (node, role) = (node_at(&hello), role_of(hello[16])?);
        let class = match hello[17] {
            0 => Class::Control,
            1 => Class::Bulk,
            2 => Class::Look,
            _ => return Err(HelloError::Refused(Refusal::Bad)),
        };
        if class != Class::Look && hello[20..52] != self.tag {
            return Err(HelloError::Refused(Refusal::Volume));
        }
        if node == self.identity.node {
            return Err(HelloError::Refused(Refusal::Myself));
        }
        let mut challenge = [0; 52];
        challenge[..16].copy_from_slice(&self.identity.node.0);
        challenge[16] = byte_of(self.identity.role);
        base::random::fill(&mut challenge[20..]);
        send(stream, Type::Challenge, &challenge).await?;
        let proof: Proof = receive(stream, Type::Proof).await?;
        if self.mac(&self.client, &hello, &challenge) != proof {
            return Err(HelloError::Refused(Refusal::Secret));
        }
        send(stream, Type::Welcome, self.mac(&self.server, &hello, &challenge).as_bytes()).await?;
        Ok(Other { node, role, class })
    }

    fn hello(&self, class: Class) -> [u8; 84] {
        let mut hello = [0; 84];
        hello[..16].copy_from_slice(&self.identity.node.0);
        hello[16] = byte_of(self.identity.role);
        hello[17] = class.byte();
        hello[20..52].copy_from_slice(&self.tag);
        base::random::fill(&mut hello[52..]);
        hello
    }
}

/// Reads a HELLO and refuses the connection in any case. Returns the reason.
pub(crate) async fn turn_away<S>(stream: &mut S, kind: Refusal) -> HelloError
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match receive::<84, S>(stream, Type::Hello).await {
        Ok(_) => {
            refuse(stream, kind).await;
            HelloError::Refused(kind)
        }
        Err(error) => {
            if let HelloError::Frame(BadFrame::Version(_)) = error {
                refuse(stream, Refusal::Version).await;
            }
            error
        }
    }
}

/// Tells the other end why it is refused, without waiting for it to read that.
pub(crate) async fn refuse<S: AsyncWrite + Unpin>(stream: &mut S, kind: Refusal) {
    let payload = Texted { kind, text: line(kind).to_owned() }.encode();
    let _ = send(stream, Type::Refuse, &payload).await;
    let _ = stream.shutdown().await;
}

fn node_at(payload: &[u8]) -> NodeId {
    let mut node = [0; 16];
    node.copy_from_slice(&payload[..16]);
    NodeId(node)
}

fn byte_of(role: Role) -> u8 {
    match role {
        Role::Node => 0,
        Role::Depot => 1,
    }
}

fn role_of(byte: u8) -> Result<Role, HelloError> {
    match byte {
        0 => Ok(Role::Node),
        1 => Ok(Role::Depot),
        _ => Err(HelloError::Refused(Refusal::Bad)),
    }
}

async fn send<S>(stream: &mut S, kind: Type, payload: &[u8]) -> Result<(), HelloError>
where
    S: AsyncWrite + Unpin,
{
    let mut out = Vec::with_capacity(HEADER + payload.len());
    put(&mut out, kind, 0, payload);
    stream.write_all(&out).await?;
    Ok(stream.flush().await?)
}

/// Receives a frame of this type, with a payload of N bytes, or a refusal instead.
async fn receive<const N: usize, S>(stream: &mut S, expected: Type) -> Result<[u8; N], HelloError>
where
    S: AsyncRead + Unpin,
{
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).await?;
    let header = Header::decode(&head)?;
    if header.kind == Type::Refuse {
        let mut text = vec![0; header.length as usize];
        stream.read_exact(&mut text).await?;
        header.check(&text)?;
        return Err(HelloError::Refused(Texted::<Refusal>::decode(&text)?.kind));
    }
    if header.kind != expected || header.length as usize != N {
        return Err(HelloError::Refused(Refusal::Bad));
    }
    let mut payload = [0; N];
    stream.read_exact(&mut payload).await?;
    header.check(&payload)?;
    Ok(payload)
}
