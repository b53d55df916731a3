//! Targets of datagrams: gossip, and questions about blobs.

use std::cell::RefCell;
use std::time::Duration;

use base::{BlobId, Must};
use fleet::directory::{self, Directory};
use fleet::members::machine::Machine;
use fleet::members::seal::{PLAIN_MAX, Seal};
use net::id::{Member, NodeId, Role, Zone};
use net::secret::Secret;

/// A node.
pub fn member(n: u8) -> Member {
    Member {
        node: NodeId([n; 16]),
        generation: 1 << 16,
        address: ([10, 0, 0, n], 7171).into(),
        zone: Zone::default(),
        role: Role::Node,
        weight: 1,
        free: 9,
        load: 1,
    }
}

/// The datagrams of an input. Each is preceded by its length in two bytes.
fn datagrams(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = data.split_first_chunk::<2>()?;
        let (one, rest) = rest.split_at(rest.len().min(usize::from(u16::from_be_bytes(*len))));
        data = rest;
        Some(one)
    })
}

/// What machines of the membership do with datagrams.
pub fn gossip(data: &[u8]) {
    let mut machine = Machine::new(&member(1), vec![member(2).address], 1, Duration::ZERO);
    for (n, datagram) in datagrams(data).take(64).enumerate() {
        let now = Duration::from_millis(700 * n as u64);
        machine.receive(now, datagram);
        machine.tick(now);
        let sends = machine.sends();
        assert!(sends.len() < 64 && sends.iter().all(|(_, bytes)| bytes.len() <= PLAIN_MAX));
        machine.events();
        assert!(machine.roster().get(member(1).node).is_some(), "a node is in its own roster");
    }
}

/// What two other nodes send to node 1 in a minute.
pub fn gossip_seeds() -> Vec<Vec<u8>> {
    let mut others: Vec<Machine> = (2..4)
        .map(|n| Machine::new(&member(n), vec![member(1).address, member(2).address], 3, Duration::ZERO))
        .collect();
    let mut me = Machine::new(&member(1), vec![], 1, Duration::ZERO);
    let (mut seeds, mut all) = (Vec::new(), Vec::new());
    for step in 0..600u64 {
        let now = Duration::from_millis(step * 100);
        others.iter_mut().for_each(|other| other.tick(now));
        me.tick(now);
        if step == 500 {
            others.iter_mut().for_each(|other| other.leave(now));
        }
        let mut sends: Vec<_> = others.iter_mut().flat_map(Machine::sends).collect();
        sends.extend(me.sends());
        for (to, bytes) in sends {
            if to == member(1).address {
                let mut one = (bytes.len() as u16).to_be_bytes().to_vec();
                one.extend_from_slice(&bytes);
                all.extend_from_slice(&one);
                if step % 7 == 0 {
                    seeds.push(one);
                }
                me.receive(now, &bytes);
            } else if let Some(other) = (2..4).position(|n| member(n).address == to) {
                others[other].receive(now, &bytes);
            }
        }
    }
    all.truncate(4000);
    seeds.truncate(30);
    seeds.push(all);
    seeds
}

fn with_seal<T>(use_it: impl FnOnce(&Seal) -> T) -> T {
    thread_local!(static SEAL: RefCell<Option<Seal>> = const { RefCell::new(None) });
    SEAL.with_borrow_mut(|seal| {
        use_it(seal.get_or_insert_with(|| {
            let secret = Secret::from_text("a secret of the fuzzer").must("it is long enough");
            Seal::new(&secret, &[1; 16])
        }))
    })
}

/// Questions of other nodes which blobs are here, and answers.
pub fn questions(data: &[u8]) {
    thread_local!(static HERE: Directory = here());
    HERE.with(|here| {
        if let Some(answer) = here.answer(data) {
            let (_, proofs) = directory::read_answer(&answer).must("an answer can be read");
            assert_eq!((answer.len(), proofs.len()), (data.len(), usize::from(data[2])));
            assert!(here.answer(&answer).is_none(), "an answer is no question");
        }
    });
    if let Some((_, proofs)) = directory::read_answer(data) {
        assert!((1..=directory::NAMES).contains(&proofs.len()));
    }
}

fn here() -> Directory {
    let secret = Secret::from_text("a secret of the fuzzer").must("it is long enough");
    let here = Directory::new(directory::Keys::new(&secret, &[1; 16]));
    here.insert(&BlobId([1; 32]));
    here
}

/// Its seeds.
pub fn questions_seeds() -> Vec<Vec<u8>> {
    let here = here();
    let names = [1, 2].map(|n| here.keys().name(&BlobId([n; 32])));
    let question = directory::question([7; 8], &names);
    let answer = here.answer(&question).must("it is a question");
    vec![question.to_vec(), answer.to_vec()]
}

/// Datagrams as they come from the network.
pub fn sealed(data: &[u8]) {
    with_seal(|seal| {
        // Random bytes never open. What was sealed opens to the original bytes.
        assert!(seal.open(&mut data.to_vec()).is_err());
        let said = &data[..data.len().min(PLAIN_MAX)];
        let mut datagram = seal.seal(said);
        assert_eq!(seal.open(&mut datagram).map(|(plain, _)| plain), Ok(said));
    });
}

/// Its seeds.
pub fn sealed_seeds() -> Vec<Vec<u8>> {
    vec![vec![2; 41], vec![2; 300], vec![1; 41], vec![]]
}
