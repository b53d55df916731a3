//! What makes a datagram worth reading: only who knows the fleet's secret can have written it, and nobody else can read it.
//!
//! ```text
//! 0        1                        9              13
//! version  this process, at random  how many sent  what is said, encrypted  tag 16
//! ```
//!
//! ChaCha20-Poly1305 with a key of this fleet's own. The nonce is eight random bytes, drawn anew at each start and whenever the counter
//! is used up, and a counter: that two processes of a fleet ever draw the same eight takes more restarts than a fleet sees.
//!
//! **A datagram that was recorded and is sent again opens.** It does little: what it says of a node loses against what that node has
//! said since (generations, incarnations and the stamps of loads only grow); a node that somebody declares down by it comes back within a
//! second with the next generation; one long dead appears until it has not answered; and answers go to where the nodes listen, each
//! no larger than a few of the questions. Keeping the clock out of it is worth more here: a node whose clock jumps stays in the fleet.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::secret::Secret;
use base::Must;

/// The first byte of every datagram. Another number is another protocol.
pub const VERSION: u8 = 1;
/// What sealing adds, in bytes.
pub const SEAL: usize = 1 + NONCE_LEN + 16;
/// The longest datagram, in bytes: it travels in one piece on every network that is in use.
pub const DATAGRAM_MAX: usize = 1400;
/// The most that can be said in one, in bytes.
pub const PLAIN_MAX: usize = DATAGRAM_MAX - SEAL;

/// Why a datagram is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Sealed {
    /// It is shorter or longer than any that this program sends.
    #[error("its length is impossible")]
    Length,
    /// Another version of the protocol, or none of ours.
    #[error("it is of version {0}")]
    Version(u8),
    /// Sealed with another secret, for another fleet, or changed on its way.
    #[error("it is not of this fleet")]
    Stranger,
}

/// Seals and opens the datagrams of one fleet.
pub struct Seal {
    key: LessSafeKey,
    process: [u8; 8],
    sent: u32,
}

impl Seal {
    /// For the fleet of one volume, by its id.
    pub fn new(secret: &Secret, fleet: &[u8; 16]) -> Seal {
        let key = blake3::keyed_hash(&secret.key("gossip"), fleet);
        let key = UnboundKey::new(&CHACHA20_POLY1305, key.as_bytes()).must("the key has the length it needs");
        Seal { key: LessSafeKey::new(key), process: base::random::u64().to_be_bytes(), sent: 0 }
    }

    /// Seals what is said; at most [`PLAIN_MAX`] bytes, or the others drop it.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        if self.sent == u32::MAX {
            (self.process, self.sent) = (base::random::u64().to_be_bytes(), 0);
        }
        self.sent += 1;
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.process);
        nonce[8..].copy_from_slice(&self.sent.to_be_bytes());
        let mut datagram = Vec::with_capacity(plain.len() + SEAL);
        datagram.push(VERSION);
        datagram.extend_from_slice(&nonce);
        datagram.extend_from_slice(plain);
        let (_, said) = datagram.split_at_mut(1 + NONCE_LEN);
        let tag = self
            .key
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from([VERSION]), said)
            .must("a datagram is far below what the cipher can take");
        datagram.extend_from_slice(tag.as_ref());
        datagram
    }

    /// Opens a datagram in place.
    ///
    /// # Errors
    /// [`Sealed`]; what the datagram holds is worthless then.
    pub fn open<'d>(&self, datagram: &'d mut [u8]) -> Result<&'d [u8], Sealed> {
        if !(SEAL..=DATAGRAM_MAX).contains(&datagram.len()) {
            return Err(Sealed::Length);
        }
        let (head, said) = datagram.split_at_mut(1 + NONCE_LEN);
        let [version, nonce @ ..] = head else {
            return Err(Sealed::Length);
        };
        if *version != VERSION {
            return Err(Sealed::Version(*version));
        }
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Sealed::Length)?;
        let plain = self.key.open_in_place(nonce, Aad::from([VERSION]), said);
        plain.map(|plain| &*plain).map_err(|_| Sealed::Stranger)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seal(secret: &str, fleet: u8) -> Seal {
        Seal::new(&Secret::from_text(&secret.repeat(16)).unwrap(), &[fleet; 16])
    }

    #[test]
    fn only_the_same_fleet_opens() {
        let mut ours = seal("a", 1);
        let datagram = ours.seal(b"hello");
        assert_eq!(seal("a", 1).open(&mut datagram.clone()), Ok(&b"hello"[..]));
        assert_eq!(seal("b", 1).open(&mut datagram.clone()), Err(Sealed::Stranger));
        assert_eq!(seal("a", 2).open(&mut datagram.clone()), Err(Sealed::Stranger));
        let mut newer = datagram.clone();
        newer[0] = 2;
        assert_eq!(ours.open(&mut newer), Err(Sealed::Version(2)));
        assert_eq!(ours.open(&mut [VERSION; SEAL - 1]), Err(Sealed::Length));
        assert_eq!(ours.open(&mut [VERSION; DATAGRAM_MAX + 1]), Err(Sealed::Length));
        assert!(!datagram.windows(5).any(|window| window == b"hello"));
        assert_ne!(ours.seal(b"hello"), datagram, "a nonce is used once");
    }

    #[test]
    fn a_counter_that_ends_begins_anew_with_other_bytes() {
        let mut ours = seal("a", 1);
        ours.sent = u32::MAX - 1;
        let nonces: std::collections::HashSet<Vec<u8>> =
            (0..4).map(|_| ours.seal(b"")[1..13].to_vec()).collect();
        assert_eq!(nonces.len(), 4);
    }

    proptest! {
        #[test]
        fn a_changed_byte_is_seen(said in proptest::collection::vec(any::<u8>(), 0..100), at: usize, change in 1u8..) {
            let mut ours = seal("a", 1);
            let mut datagram = ours.seal(&said);
            let mut copy = datagram.clone();
            prop_assert_eq!(ours.open(&mut copy), Ok(&said[..]));
            let at = at % datagram.len();
            datagram[at] ^= change;
            prop_assert!(ours.open(&mut datagram).is_err());
        }

        #[test]
        fn garbage_is_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
            prop_assert!(seal("a", 1).open(&mut bytes).is_err());
        }
    }
}
