//! The greeting: both ends learn the other's version, and prove that they know the secret if there is one.
//!
//! ```text
//!   guest                                          server
//!   HELLO: version, features,             ───►
//!          session or zeros, nonce
//!                                         ◄───     CHALLENGE: version, features, instance, nonce
//!   PROOF: MAC(guest's key, both above)   ───►     compares
//!                                         ◄───     REFUSE, or WELCOME: MAC(server's key, both), session
//! ```
//!
//! - The two proofs have different keys, both derived from the secret, and cover the nonces of both ends. So
//!   a proof that is sent back or sent again is worthless. The guest proves first.
//! - Without a secret the proofs are zeros. Then the permissions of the socket's path decide.
//! - HELLO and CHALLENGE begin with the version in every version. So two versions understand enough of each
//!   other to say what is wrong.
//! - The session's id is random and 16 bytes long. A guest that comes back names it, and no other guest can
//!   guess it.

use base::secret::Secret;

use crate::frame::Take;

/// The version of the wire.
pub const VERSION: u16 = 1;
/// A feature: the server measures traced requests ([`crate::times`]).
pub const TIMES: u32 = 1;
/// A feature: locks are decided by the server, for all guests. Requests that wait for one have slots of their
/// own ([`crate::slots::WAITS_AT`]).
pub const LOCKS: u32 = 2;
/// A feature: the server says which program it is.
pub const ABOUT: u32 = 4;
/// Length of ids and of the identity of what is served, in bytes.
pub type Id = [u8; 16];
/// A proof. Zeros without a secret.
pub type Proof = [u8; 32];

/// The longest text of a REFUSE and longest name in a WELCOME, in bytes.
const TEXT_MAX: usize = 1024;

/// The guest's first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The guest's version.
    pub version: u16,
    /// What it can do beyond the version: bits such as [`TIMES`].
    pub features: u32,
    /// The session to which the connection belongs; zeros: a new one.
    pub session: Id,
    /// Random.
    pub nonce: [u8; 32],
    /// 0 for the connection that may begin a session. Others must find theirs.
    pub index: u16,
}

/// The server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The server's version.
    pub version: u16,
    /// What both can do.
    pub features: u32,
    /// The run of the server. Another run knows nothing of what was in flight.
    pub instance: Id,
    /// Random.
    pub nonce: [u8; 32],
    /// Whether it demands a proof.
    pub secret: bool,
}

/// How long the guest's kernel may keep what it learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// For ever: the tree cannot change.
    Frozen,
    /// For ever: this guest alone changes the tree.
    One,
    /// Not at all, or until the file is opened again.
    Many,
}

/// What became of the session that the guest named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The guest named no session: here is a new one.
    New,
    /// The session goes on.
    Resumed,
    /// The session is not known here: here is a new one.
    Lost,
}

/// The server's consent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The server's proof.
    pub proof: Proof,
    /// The session.
    pub session: Id,
    /// What became of the one that was named.
    pub found: Found,
    /// Credit: the most requests in flight.
    pub slots: u16,
    /// Credit: the most bytes of requests, and of the data that READs ask for, in flight.
    pub bytes: u32,
    /// The mode of the root directory.
    pub root_mode: u32,
    /// Whether changes are refused.
    pub read_only: bool,
    /// How long the kernel may keep things.
    pub sharing: Sharing,
    /// What is served: the same bytes for the same volume, tree or folder.
    pub source: Id,
    /// The boot of the server's machine. After another one, what was not synced may be lost.
    pub boot: Id,
    /// The name of what is served, for people.
    pub name: String,
}

/// Why a connection is refused or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The versions differ.
    Version,
    /// The proof is wrong, or only one of the two has a secret.
    Secret,
    /// Another guest has it, and it is served to one guest at a time.
    Busy,
    /// A further connection of a session that is not known.
    NoSession,
    /// Too many guests or connections.
    Full,
    /// The peer broke the rules of this protocol.
    Broken,
    /// What the guest may have kept is out of date: it must attach again.
    Stale,
    /// The server ends.
    Ending,
}

const REFUSALS: [Refusal; 8] = [
    Refusal::Version,
    Refusal::Secret,
    Refusal::Busy,
    Refusal::NoSession,
    Refusal::Full,
    Refusal::Broken,
    Refusal::Stale,
    Refusal::Ending,
];

impl Refusal {
    /// Whether a later attempt with the same words could succeed.
    pub fn may_pass(self) -> bool {
        matches!(self, Refusal::Full | Refusal::NoSession | Refusal::Ending | Refusal::Broken)
    }
}

impl Hello {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend(self.version.to_le_bytes());
        out.extend(self.features.to_le_bytes());
        out.extend(self.session);
        out.extend(self.nonce);
        out.extend(self.index.to_le_bytes());
        out
    }

    /// Reads a payload. Of another version, only the version is read. `None` if it is truncated or too long.
    pub fn decode(payload: &[u8]) -> Option<Hello> {
        let mut take = Take(payload);
        let version = take.u16()?;
        if version != VERSION {
            return Some(Hello { version, features: 0, session: [0; 16], nonce: [0; 32], index: 0 });
        }
        let (features, session, nonce) = (take.u32()?, take.array()?, take.array()?);
        let index = take.u16()?;
        take.0.is_empty().then_some(Hello { version, features, session, nonce, index })
    }
}

impl Challenge {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.extend(self.version.to_le_bytes());
        out.extend(self.features.to_le_bytes());
        out.extend(self.instance);
        out.extend(self.nonce);
        out.push(u8::from(self.secret));
        out
    }

    /// Reads a payload, as [`Hello::decode`].
    pub fn decode(payload: &[u8]) -> Option<Challenge> {
        let mut take = Take(payload);
        let version = take.u16()?;
        if version != VERSION {
            return Some(Challenge {
                version,
                features: 0,
                instance: [0; 16],
                nonce: [0; 32],
                secret: false,
            });
        }
        let (features, instance, nonce) = (take.u32()?, take.array()?, take.array()?);
        let secret = flag(take.u8()?)?;
        take.0.is_empty().then_some(Challenge { version, features, instance, nonce, secret })
    }
}

impl Welcome {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        out.extend(self.proof);
        out.extend(self.session);
        out.push(self.found as u8);
        out.extend(self.slots.to_le_bytes());
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.root_mode.to_le_bytes());
        out.push(u8::from(self.read_only));
        out.push(self.sharing as u8);
        out.extend(self.source);
        out.extend(self.boot);
        out.extend(clipped(&self.name).as_bytes());
        out
    }

    /// Reads a payload. `None` if it makes no sense.
    pub fn decode(payload: &[u8]) -> Option<Welcome> {
        let mut take = Take(payload);
        let (proof, session) = (take.array()?, take.array()?);
        let found = *[Found::New, Found::Resumed, Found::Lost].get(usize::from(take.u8()?))?;
        let (slots, bytes, root_mode) = (take.u16()?, take.u32()?, take.u32()?);
        let read_only = flag(take.u8()?)?;
        let sharing = *[Sharing::Frozen, Sharing::One, Sharing::Many].get(usize::from(take.u8()?))?;
        let (source, boot) = (take.array()?, take.array()?);
        let name = text(take.0)?;
        Some(Welcome {
            proof,
            session,
            found,
            slots,
            bytes,
            root_mode,
            read_only,
            sharing,
            source,
            boot,
            name,
        })
    }
}

/// The payload of a REFUSE.
pub fn encode_refusal(why: Refusal, say: &str) -> Vec<u8> {
    let mut out = vec![why as u8];
    out.extend(clipped(say).as_bytes());
    out
}

/// Reads the payload of a REFUSE. Control characters in its text are replaced, because it comes from a
/// stranger and is shown on a terminal.
pub fn decode_refusal(payload: &[u8]) -> Option<(Refusal, String)> {
    let (why, say) = payload.split_first()?;
    Some((*REFUSALS.get(usize::from(*why))?, text(say)?))
}

fn flag(byte: u8) -> Option<bool> {
    (byte < 2).then_some(byte == 1)
}

fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

/// Reads a text of the other end. Control characters are replaced, because it is shown on a terminal.
pub fn text(bytes: &[u8]) -> Option<String> {
    if bytes.len() > TEXT_MAX {
        return None;
    }
    let text = String::from_utf8_lossy(bytes);
    Some(text.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
}

/// The keys of both proofs. Without a secret the proofs are zeros.
pub struct Keys(Option<(Proof, Proof)>);

impl Keys {
    /// Derives the keys.
    pub fn new(secret: Option<&Secret>) -> Keys {
        Keys(secret.map(|secret| (secret.key("guest stream guest"), secret.key("guest stream server"))))
    }

    /// Whether there is a secret.
    pub fn has_secret(&self) -> bool {
        self.0.is_some()
    }

    /// The guest's proof over both greetings.
    pub fn guest(&self, hello: &[u8], challenge: &[u8]) -> Proof {
        self.0.map_or([0; 32], |(key, _)| mac(&key, hello, challenge))
    }

    /// The server's proof over both greetings.
    pub fn server(&self, hello: &[u8], challenge: &[u8]) -> Proof {
        self.0.map_or([0; 32], |(_, key)| mac(&key, hello, challenge))
    }
}

fn mac(key: &Proof, hello: &[u8], challenge: &[u8]) -> Proof {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&(hello.len() as u64).to_le_bytes()).update(hello).update(challenge);
    *hasher.finalize().as_bytes()
}

/// Compares two proofs in a time that says nothing about where they differ.
pub fn same(one: &Proof, other: &Proof) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn greetings_come_back() {
        let hello = Hello { version: VERSION, features: 5, session: [1; 16], nonce: [2; 32], index: 3 };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        let challenge =
            Challenge { version: VERSION, features: 0, instance: [4; 16], nonce: [5; 32], secret: true };
        assert_eq!(Challenge::decode(&challenge.encode()), Some(challenge));
        let welcome = Welcome {
            proof: [6; 32],
            session: [7; 16],
            found: Found::Lost,
            slots: 128,
            bytes: 1 << 25,
            root_mode: 0o40755,
            read_only: true,
            sharing: Sharing::Many,
            source: [8; 16],
            boot: [9; 16],
            name: "the volume".to_owned(),
        };
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        for why in REFUSALS {
            let got = decode_refusal(&encode_refusal(why, "because\x1b[2J"));
            assert_eq!(got, Some((why, "because?[2J".to_owned())));
        }
    }

    #[test]
    fn another_version_is_read_as_far_as_its_number() {
        let other = [9_u8, 0, 1, 2, 3];
        assert_eq!(Hello::decode(&other).unwrap().version, 9);
        assert_eq!(Challenge::decode(&other).unwrap().version, 9);
    }

    #[test]
    fn proofs_depend_on_secret_side_and_both_greetings() {
        let one = Keys::new(Some(&Secret::from_text("0123456789abcdef").unwrap()));
        let two = Keys::new(Some(&Secret::from_text("0123456789abcdeF").unwrap()));
        let proof = one.guest(b"hello", b"challenge");
        assert!(same(&proof, &one.guest(b"hello", b"challenge")));
        for other in [
            one.server(b"hello", b"challenge"),
            two.guest(b"hello", b"challenge"),
            one.guest(b"hellO", b"challenge"),
            one.guest(b"hello", b"challengE"),
            one.guest(b"helloc", b"hallenge"),
            [0; 32],
        ] {
            assert!(!same(&proof, &other));
        }
    }

    proptest! {
        #[test]
        fn any_payload_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = (Hello::decode(&bytes), Challenge::decode(&bytes), Welcome::decode(&bytes));
            if let Some((_, say)) = decode_refusal(&bytes) {
                prop_assert!(!say.chars().any(char::is_control));
            }
        }
    }
}
