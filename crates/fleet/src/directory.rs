//! Which blobs this node has, for other nodes that ask by datagram.
//!
//! ```text
//!   question  3 0 count 0, number 8, names 16 each, always 8 of them
//!   answer    3 1 count 0, the same number, for each name a proof of 8 bytes or zeros, and 8 zeros
//! ```
//!
//! Both have 140 bytes, so no answer is longer than its question. They are not encrypted: a program in the
//! driver of an interface can answer instead of the daemon ([`Mirror`]). A name is BLAKE3 of the blob's id,
//! keyed with this fleet's key. A program without the secret cannot ask for a blob that it knows. A proof is
//! BLAKE3 of the name with another key. Only a node with the secret can have it, or a program that heard it
//! before. So a recorded answer can be given again: it may say that a node has a blob that it had once.
//! Nothing is fetched because of an answer.

mod ask;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use base::BlobId;
use net::secret::Secret;
use parking_lot::Mutex;

pub use ask::{Holder, QUESTIONS_MAX, ask};

/// The first byte of questions and answers. Gossip has another one.
pub const VERSION: u8 = 3;
/// Names in a datagram.
pub const NAMES: usize = 8;
/// The length of a question, and of an answer.
pub const LENGTH: usize = HEAD + NAMES * NAME;
const HEAD: usize = 12;
const NAME: usize = 16;
const QUESTION: u8 = 0;
const ANSWER: u8 = 1;

/// The keyed name of a blob.
pub type Name = [u8; NAME];
/// What proves that a node has a blob.
pub type Proof = [u8; 8];
/// What an answer repeats of its question.
pub type Number = [u8; 8];

/// A copy of the names elsewhere, which answers instead of this node.
pub trait Mirror: Send {
    /// Records that this node has a blob from now on.
    fn insert(&mut self, name: &Name, proof: &Proof);

    /// Records that this node does not have a blob any more.
    fn remove(&mut self, name: &Name);

    /// Every blob of this node has been inserted.
    fn complete(&mut self);
}

/// The keys of one fleet.
pub struct Keys {
    names: [u8; 32],
    proofs: [u8; 32],
}

impl Keys {
    /// For the fleet of one volume, by its id.
    pub fn new(secret: &Secret, fleet: &[u8; 16]) -> Keys {
        let key = |purpose: &str| *blake3::keyed_hash(&secret.key(purpose), fleet).as_bytes();
        Keys { names: key("directory names"), proofs: key("directory proofs") }
    }

    /// A blob's name in questions.
    pub fn name(&self, id: &BlobId) -> Name {
        first(blake3::keyed_hash(&self.names, &id.0).as_bytes())
    }

    fn proof(&self, name: &Name) -> Proof {
        first(blake3::keyed_hash(&self.proofs, name).as_bytes())
    }
}

/// The first bytes of a hash.
fn first<const N: usize>(hash: &[u8; 32]) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(hash).for_each(|(to, from)| *to = *from);
    out
}

#[derive(Default)]
struct Held {
    names: HashSet<Name>,
    mirror: Option<Box<dyn Mirror>>,
}

/// The names of the blobs on this node's disk.
pub struct Directory {
    keys: Keys,
    held: Mutex<Held>,
}

impl Directory {
    /// Without any blob.
    pub fn new(keys: Keys) -> Directory {
        Directory { keys, held: Mutex::default() }
    }

    /// The keys of this fleet.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Records that this node has a blob.
    pub fn insert(&self, id: &BlobId) {
        let name = self.keys.name(id);
        let mut held = self.held.lock();
        if held.names.insert(name)
            && let Some(mirror) = &mut held.mirror
        {
            mirror.insert(&name, &self.keys.proof(&name));
        }
    }

    /// Records that this node does not have a blob any more.
    pub fn remove(&self, id: &BlobId) {
        let name = self.keys.name(id);
        let mut held = self.held.lock();
        if held.names.remove(&name)
            && let Some(mirror) = &mut held.mirror
        {
            mirror.remove(&name);
        }
    }

    /// How many of these blobs this node has.
    pub fn count(&self, blobs: &[BlobId]) -> usize {
        let held = self.held.lock();
        blobs.iter().filter(|id| held.names.contains(&self.keys.name(id))).count()
    }

    /// From now on a copy of the names is kept there. All names that are known now are inserted first.
    pub fn mirror(&self, mut mirror: Box<dyn Mirror>) {
        let mut held = self.held.lock();
        held.names.iter().for_each(|name| mirror.insert(name, &self.keys.proof(name)));
        mirror.complete();
        held.mirror = Some(mirror);
    }

    /// The answer to a datagram. None if it is no question.
    pub fn answer(&self, datagram: &[u8]) -> Option<[u8; LENGTH]> {
        let (count, number, names) = read(datagram, QUESTION)?;
        let mut out = head(ANSWER, count, number);
        let held = self.held.lock();
        let places = out.iter_mut().skip(HEAD);
        let mut bytes = names.iter().take(count).flat_map(|name| {
            let proof = if held.names.contains(name) { self.keys.proof(name) } else { Proof::default() };
            proof.into_iter().chain([0; NAME - size_of::<Proof>()])
        });
        places.for_each(|place| *place = bytes.next().unwrap_or(0));
        drop(bytes);
        Some(out)
    }
}

/// A question about at most [`NAMES`] names; more are left out.
pub fn question(number: Number, names: &[Name]) -> [u8; LENGTH] {
    let mut out = head(QUESTION, names.len().min(NAMES), number);
    let bytes = names.iter().take(NAMES).flatten();
    out.iter_mut().skip(HEAD).zip(bytes).for_each(|(to, from)| *to = *from);
    out
}

/// The number and the proofs of an answer. None if the datagram is none.
pub fn read_answer(datagram: &[u8]) -> Option<(Number, Vec<Proof>)> {
    let (count, number, fields) = read(datagram, ANSWER)?;
    Some((number, fields.iter().take(count).map(first_of).collect()))
}

fn first_of(field: &Name) -> Proof {
    let mut out = Proof::default();
    out.iter_mut().zip(field).for_each(|(to, from)| *to = *from);
    out
}

fn head(kind: u8, count: usize, number: Number) -> [u8; LENGTH] {
    let mut out = [0; LENGTH];
    let start = [VERSION, kind, count as u8, 0].into_iter().chain(number);
    out.iter_mut().zip(start).for_each(|(to, from)| *to = from);
    out
}

/// The count, the number and the fields of a datagram of this kind.
fn read(datagram: &[u8], kind: u8) -> Option<(usize, Number, Vec<Name>)> {
    let (start, rest) = datagram.split_first_chunk::<4>()?;
    let (number, fields) = rest.split_first_chunk::<8>()?;
    let [version, is, count, _] = *start;
    let fits = datagram.len() == LENGTH && version == VERSION && is == kind;
    let count = usize::from(count);
    if !fits || !(1..=NAMES).contains(&count) {
        return None;
    }
    let fields = fields.chunks_exact(NAME).filter_map(|field| field.try_into().ok());
    Some((count, *number, fields.collect()))
}
