//! Encryption and authentication of datagrams: only a program that knows the fleet's secret can write or read
//! one.
//!
//! ```text
//! 0        1        25
//! version  salt 24  what is said, encrypted  tag 16
//! ```
//!
//! The cipher is ChaCha20-Poly1305 with a key for each datagram: BLAKE3 of the salt, keyed with this fleet's
//! key. The salt is BLAKE3 of 32 random bytes and of the plaintext, keyed with another key. So no counter and
//! no state are needed. Two datagrams with different content have different salts, even on two machines that
//! were resumed from one snapshot and draw the same random bytes.
//!
//! **A recorded datagram that is sent again is accepted by the cipher.** A receiver remembers the last
//! [`REMEMBERED`] datagrams ([`Heard`]) and drops those. An older one does little harm. What it says of a
//! node is overridden by later statements of that node (generations, incarnations and the stamps of loads
//! only grow). A node that is declared down by it comes back within a second with the next generation. A node
//! that died long ago appears until it has not answered. Answers go to the nodes' own addresses, and none is
//! longer than the longest datagram. A request with a long answer is itself as long ([`super::machine`]). It
//! is more important to do without the clock: a node whose clock jumps stays in the fleet.

use std::collections::{HashSet, VecDeque};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use base::Must;
use net::secret::Secret;

/// The first byte of every datagram. Another number means another protocol.
pub const VERSION: u8 = 2;
/// The salt, from which a datagram's key is derived.
const SALT: usize = 24;
/// What sealing adds, in bytes.
pub const SEAL: usize = 1 + SALT + 16;
/// The longest datagram, in bytes. Every common network carries it in one piece.
pub const DATAGRAM_MAX: usize = 1400;
/// The longest plaintext of a datagram, in bytes.
pub const PLAIN_MAX: usize = DATAGRAM_MAX - SEAL;
/// How many datagrams are remembered. They take less than a mebibyte, and cover an hour of a fleet without
/// changes.
pub const REMEMBERED: usize = 16 << 10;

/// Why a datagram is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Sealed {
    /// The datagram is shorter or longer than any that this program sends.
    #[error("its length is impossible")]
    Length,
    /// Another version of the protocol, or another protocol.
    #[error("it is of version {0}")]
    Version(u8),
    /// Made with another secret, for another fleet, or changed on its way.
    #[error("it is not of this fleet")]
    Stranger,
}

/// Identifies a datagram: the first bytes of its salt.
pub type Mark = [u8; 8];

/// The recently received datagrams, so that none counts twice.
#[derive(Default)]
pub struct Heard {
    all: HashSet<Mark>,
    order: VecDeque<Mark>,
}

impl Heard {
    /// False: it was received before. Call it only for datagrams that opened, so that others take no space.
    pub fn is_new(&mut self, mark: Mark) -> bool {
        if !self.all.insert(mark) {
            return false;
        }
        self.order.push_back(mark);
        if self.order.len() > REMEMBERED
            && let Some(first) = self.order.pop_front()
        {
            self.all.remove(&first);
        }
        true
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether none is remembered.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

/// Seals and opens the datagrams of one fleet.
pub struct Seal {
    /// A datagram's key derives from it and the salt.
    keys: [u8; 32],
    salts: [u8; 32],
}

impl Seal {
    /// For the fleet of one volume, by its id.
    pub fn new(secret: &Secret, fleet: &[u8; 16]) -> Seal {
        let key = |purpose: &str| *blake3::keyed_hash(&secret.key(purpose), fleet).as_bytes();
        Seal { keys: key("gossip 2 keys"), salts: key("gossip 2 salts") }
    }

    fn salt(&self, random: &[u8; 32], plain: &[u8]) -> [u8; SALT] {
        let mut salt = [0; SALT];
        let mut hasher = blake3::Hasher::new_keyed(&self.salts);
        hasher.update(random).update(plain).finalize_xof().fill(&mut salt);
        salt
    }

    fn cipher(&self, salt: &[u8]) -> LessSafeKey {
        let key = blake3::keyed_hash(&self.keys, salt);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_bytes()).must("the key has the length it needs");
        LessSafeKey::new(key)
    }

    /// Seals a plaintext of at most [`PLAIN_MAX`] bytes. Longer ones would be dropped by the receivers.
    pub fn seal(&self, plain: &[u8]) -> Vec<u8> {
        let mut random = [0; 32];
        base::random::fill(&mut random);
        self.seal_with(&random, plain)
    }

    fn seal_with(&self, random: &[u8; 32], plain: &[u8]) -> Vec<u8> {
        let salt = self.salt(random, plain);
        let mut datagram = Vec::with_capacity(plain.len() + SEAL);
        datagram.push(VERSION);
        datagram.extend_from_slice(&salt);
        datagram.extend_from_slice(plain);
        let (_, said) = datagram.split_at_mut(1 + SALT);
        // The key is used for this datagram only.
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let tag = self
            .cipher(&salt)
            .seal_in_place_separate_tag(nonce, Aad::from([VERSION]), said)
            .must("a datagram is far below what the cipher can take");
        datagram.extend_from_slice(tag.as_ref());
        datagram
    }

    /// Opens a datagram in place. Returns the plaintext and the mark.
    ///
    /// # Errors
    /// [`Sealed`]. The contents of the datagram are then meaningless.
    pub fn open<'d>(&self, datagram: &'d mut [u8]) -> Result<(&'d [u8], Mark), Sealed> {
        if !(SEAL..=DATAGRAM_MAX).contains(&datagram.len()) {
            return Err(Sealed::Length);
        }
        let (head, said) = datagram.split_at_mut(1 + SALT);
        let [version, salt @ ..] = head else {
            return Err(Sealed::Length);
        };
        if *version != VERSION {
            return Err(Sealed::Version(*version));
        }
        let mark = *salt.first_chunk().ok_or(Sealed::Length)?;
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let plain = self.cipher(salt).open_in_place(nonce, Aad::from([VERSION]), said);
        plain.map(|plain| (&*plain, mark)).map_err(|_| Sealed::Stranger)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seal(secret: &str, fleet: u8) -> Seal {
        Seal::new(&Secret::from_text(&secret.repeat(16)).unwrap(), &[fleet; 16])
    }

    fn opened(seal: &Seal, datagram: &[u8]) -> Result<Vec<u8>, Sealed> {
        seal.open(&mut datagram.to_vec()).map(|(plain, _)| plain.to_vec())
    }

    #[test]
    fn only_the_same_fleet_opens() {
        let ours = seal("a", 1);
        let datagram = ours.seal(b"hello");
        assert_eq!(opened(&seal("a", 1), &datagram), Ok(b"hello".to_vec()));
        assert_eq!(opened(&seal("b", 1), &datagram), Err(Sealed::Stranger));
        assert_eq!(opened(&seal("a", 2), &datagram), Err(Sealed::Stranger));
        let mut older = datagram.clone();
        older[0] = 1;
        assert_eq!(opened(&ours, &older), Err(Sealed::Version(1)));
        assert_eq!(opened(&ours, &[VERSION; SEAL - 1]), Err(Sealed::Length));
        assert_eq!(opened(&ours, &[VERSION; DATAGRAM_MAX + 1]), Err(Sealed::Length));
        assert!(!datagram.windows(5).any(|window| window == b"hello"));
        assert_ne!(ours.seal(b"hello"), datagram, "a key is used once");
    }

    /// A machine that was resumed from a snapshot continued counting from the snapshot, and used its nonces a
    /// second time. Two machines that are resumed from one snapshot also draw the same random bytes.
    #[test]
    fn regression_a_resumed_snapshot_uses_no_key_twice() {
        let (one, other) = (seal("a", 1), seal("a", 1));
        let random = [7; 32];
        let (first, second) =
            (one.seal_with(&random, b"this is said"), other.seal_with(&random, b"that is said"));
        assert_ne!(first[1..1 + SALT], second[1..1 + SALT]);
        let streams = first[1 + SALT..].iter().zip(&second[1 + SALT..]).map(|(a, b)| a ^ b);
        let difference: Vec<u8> = streams.take(12).collect();
        let plain: Vec<u8> = b"this is said".iter().zip(b"that is said").map(|(a, b)| a ^ b).collect();
        assert_ne!(difference, plain, "one key for both would show what differs");
    }

    /// A recorded datagram was accepted each time it was sent again.
    #[test]
    fn regression_what_was_heard_lately_is_not_heard_again() {
        let (ours, mut heard) = (seal("a", 1), Heard::default());
        let recorded: Vec<Mark> = (0..100u8).map(|n| ours.open(&mut ours.seal(&[n])).unwrap().1).collect();
        assert!(recorded.iter().all(|mark| heard.is_new(*mark)));
        assert!(recorded.iter().all(|mark| !heard.is_new(*mark)));
        for n in 0..2 * REMEMBERED as u64 {
            heard.is_new(n.to_be_bytes());
        }
        assert_eq!((heard.len(), heard.all.len()), (REMEMBERED, REMEMBERED), "and that is bounded");
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_seen(said in proptest::collection::vec(any::<u8>(), 0..100), at: usize, change in 1u8..) {
            let ours = seal("a", 1);
            let mut datagram = ours.seal(&said);
            prop_assert_eq!(opened(&ours, &datagram), Ok(said));
            let at = at % datagram.len();
            datagram[at] ^= change;
            prop_assert!(opened(&ours, &datagram).is_err());
        }

        #[test]
        fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
            prop_assert!(opened(&seal("a", 1), &bytes).is_err());
        }
    }
}
