use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base::{BlobId, PackNo};
use blob::Sums;
use parking_lot::Mutex;

use super::*;
use crate::frame::{HEADER, Header};
use crate::id::Role;
use crate::message::{Group, What};
use crate::seam::Held;

mod fair;
mod faults;
mod flood;
mod lanes;
mod looking;
mod neighbour;
mod sealed;
mod window;
mod wrong;

const TIME: Duration = Duration::from_secs(60);

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

/// A node's blobs, and the messages it received.
#[derive(Default)]
struct Store {
    blobs: Mutex<HashMap<BlobId, Content>>,
    suspects: Mutex<Vec<BlobId>>,
    /// Whether blobs that are suspected are sound.
    sound: std::sync::atomic::AtomicBool,
    notes: AtomicUsize,
    lines: Mutex<Vec<String>>,
}

impl Store {
    fn keep(&self, bytes: &[u8]) -> BlobId {
        self.keep_as(bytes, Sums::of(bytes))
    }

    fn keep_as(&self, bytes: &[u8], sums: Sums) -> BlobId {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"before").unwrap();
        file.write_all(bytes).unwrap();
        let id = sums.id();
        let held = Held { file: Arc::new(file), offset: 6, sums: Arc::new(sums) };
        self.blobs.lock().insert(id, Content::Held(held));
        id
    }
}

impl Service for Store {
    fn ask(&self, _: NodeId, ask: Ask) -> Vec<Answer> {
        ask.blobs.iter().map(|_| Answer::Serve).collect()
    }

    fn notes(&self, _: NodeId, notes: Vec<Note>) {
        self.notes.fetch_add(notes.len(), Ordering::SeqCst);
    }

    fn content(&self, id: &BlobId) -> Option<Content> {
        self.blobs.lock().get(id).cloned()
    }

    fn suspect(&self, id: &BlobId) -> CopyState {
        self.suspects.lock().push(*id);
        let sound = self.sound.load(Ordering::SeqCst);
        if sound { CopyState::Sound } else { CopyState::Damaged }
    }

    fn members(&self, after: NodeId, most: usize) -> Roll {
        looking::members(after, most)
    }

    fn pack(&self, ask: PackAsk) -> Result<PackPart, String> {
        match ask.pack.0 {
            1 => Ok(PackPart::Bytes(vec![ask.offset as u8; ask.len as usize])),
            2 => Ok(PackPart::InOrigin),
            3 => Ok(PackPart::Gone),
            _ => Err("the disk failed".to_owned()),
        }
    }

    fn keep(&self, _: NodeId, ask: KeepAsk) -> Result<u64, String> {
        if ask.pack.0 == 1 { Ok(u64::from(ask.offset)) } else { Err("the disk is full".to_owned()) }
    }

    fn list(&self, prefix: Prefix, most: usize) -> Listed {
        let all: Vec<BlobId> = self.blobs.lock().keys().copied().filter(|id| prefix.holds(id)).collect();
        let more = all.len() > most;
        Listed { blobs: all.into_iter().take(most).collect(), more }
    }
}

thread_local! {
    /// With the TLS of this test's nodes: see `sealed`.
    static TLS: std::cell::RefCell<Option<Tls>> = const { std::cell::RefCell::new(None) };
}

fn options() -> Options {
    Options {
        tls: TLS.with_borrow(Clone::clone),
        identity: Identity { node: NodeId::random(), role: Role::Node, volume: [7; 16] },
        secret: Secret::from_text("a secret of the tests").unwrap(),
        listen: Some("127.0.0.1:0".parse().unwrap()),
        verify: Verify::Blake3,
        limits: Limits { half_open_each: 512, threads: 1, ..Limits::default() },
    }
}

fn start(options: Options) -> (Net, Arc<Store>) {
    let store = Arc::new(Store::default());
    let lines = Arc::clone(&store);
    let report: Report = Arc::new(move |line: &str| lines.lines.lock().push(line.to_owned()));
    (Net::start(options, Arc::clone(&store) as Arc<dyn Service>, report).unwrap(), store)
}

fn pair(change: impl Fn(&mut Options)) -> (Net, Net, Arc<Store>, Peer) {
    let (mut here, mut there) = (options(), options());
    change(&mut here);
    change(&mut there);
    let (here, _) = start(here);
    let (there, store) = start(there);
    let peer = Peer { address: there.address().unwrap(), node: None };
    (here, there, store, peer)
}

/// Reads a range, as a part of its groups.
fn read(net: &Net, peer: Peer, id: &BlobId, offset: u32, len: u32) -> Result<Vec<u8>, Fail> {
    let (_, groups) = net.read_groups(peer, id, offset, len, TIME).wait()?;
    let from = (offset % GROUP) as usize;
    Ok(groups[from..from + len as usize].to_vec())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = base::time::monotonic();
    while !done() {
        assert!(begun.elapsed() < TIME, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn ranges_and_whole_blobs_come_byte_for_byte() {
    for verify in [Verify::Blake3, Verify::Crc] {
        let (here, _there, store, peer) = pair(|options| options.verify = verify);
        for (seed, size) in [0, 1, 4096, 65_536, 65_537, 1_000_003, 4 << 20].into_iter().enumerate() {
            let bytes = noise(size, seed as u64);
            let id = store.keep(&bytes);
            let arriving = Arriving::new(id, verify);
            here.fetch_into(peer, &arriving, TIME).wait().unwrap();
            let (sums, got) = arriving.into_parts().unwrap();
            assert!(got == bytes && *sums == Sums::of(&bytes), "{size} bytes, {verify:?}");
            for round in 0..if size == 0 { 0 } else { 12u64 } {
                let lot = |n: u64, below: usize| {
                    (noise(8, seed as u64 * 100 + round * 7 + n)[..8]
                        .iter()
                        .fold(0usize, |a, b| a << 7 ^ *b as usize))
                        % below
                };
                let offset = lot(1, size);
                let len = 1 + lot(2, size - offset);
                let (sums, groups) =
                    here.read_groups(peer, &id, offset as u32, len as u32, TIME).wait().unwrap();
                let from = offset - offset % base::size::GROUP as usize;
                let until = (offset + len).next_multiple_of(base::size::GROUP as usize).min(size);
                assert!(
                    sums == Sums::of(&bytes) && groups == bytes[from..until],
                    "{len} at {offset} of {size}"
                );
            }
        }
        let counts = here.counters();
        assert!(counts.corrupt + counts.gone + counts.failed == 0, "{counts:?}");
    }
}

#[test]
fn questions_notes_and_lists_are_answered() {
    let (here, _there, store, peer) = pair(|_| {});
    let id = store.keep(b"abc");
    let ask = Ask {
        group: Group(1),
        blobs: vec![id; 16],
        backlog: 3,
        not: vec![NodeId([1; 16]); 8],
        sender: None,
        part: false,
    };
    assert_eq!(here.ask(peer, &ask, TIME).wait(), Ok(vec![Answer::Serve; 16]));
    let note = Note { group: Group(2), blob: id, what: What::Have };
    assert_eq!(here.notes(peer, &[note; 256], TIME).wait(), Ok(()));
    assert_eq!(store.notes.load(Ordering::SeqCst), 256);
    let listed = here.list(peer, Prefix::ALL, TIME).wait().unwrap();
    assert_eq!(listed, Listed { blobs: vec![id], more: false });
    assert_eq!(here.greet(peer, TIME).wait(), Ok(()));
    let pack = |pack, offset, len| here.pack(peer, &PackAsk { pack, offset, len }, TIME).wait();
    let bytes = PackPart::Bytes(vec![7; frame::PACK_MAX as usize]);
    assert_eq!(pack(PackNo(1), 7, frame::PACK_MAX), Ok(bytes));
    assert_eq!(pack(PackNo(2), 0, 1), Ok(PackPart::InOrigin));
    assert_eq!(pack(PackNo(3), 0, 1), Ok(PackPart::Gone));
    assert!(matches!(pack(PackNo(4), 0, 1), Err(Fail::Unable(why)) if why.contains("the disk failed")));
    let keep = |pack: u64, len: u32| {
        let bytes = vec![1; len as usize];
        here.keep(peer, &KeepAsk { pack: PackNo(pack), offset: 5, what: frame::Keep::Sync, bytes }, TIME)
            .wait()
    };
    assert_eq!((keep(1, 0), keep(1, frame::KEEP_MAX)), (Ok(5), Ok(5)));
    assert!(matches!(keep(2, 1), Err(Fail::Unable(why)) if why.contains("the disk is full")));
    // All of it used one connection.
    assert_eq!(here.counters().made, 1);
    let nobody = BlobId([5; 32]);
    assert_eq!(read(&here, peer, &nobody, 0, 1), Err(Fail::Missing));
    for (offset, len) in [(2, 2), (3, 1), (70_000, 1)] {
        let got = here.read_groups(peer, &id, offset, len, TIME).wait();
        assert!(matches!(got, Err(Fail::Protocol(_))), "{len} at {offset}: {got:?}");
    }
    assert_eq!(here.fetch_into(peer, &Arriving::new(nobody, Verify::Crc), TIME).wait(), Err(Fail::Missing));
}

#[test]
fn a_blob_passes_through_a_node_that_does_not_have_it_yet() {
    let bytes = noise(3 << 20, 1);
    let sums = Sums::of(&bytes);
    let id = sums.id();
    let (first, _f, first_shelf, first_peer) = pair(|_| {});
    let (middle, middle_shelf) = start(options());
    let middle_peer = Peer { address: middle.address().unwrap(), node: None };
    // The source itself is still receiving it.
    let source = Arriving::new(id, Verify::Blake3);
    first_shelf.blobs.lock().insert(id, Content::Arriving(Arc::clone(&source)));
    let through = Arriving::new(id, Verify::Blake3);
    middle_shelf.blobs.lock().insert(id, Content::Arriving(Arc::clone(&through)));
    let end = Arriving::new(id, Verify::Blake3);
    let fetch_middle = middle.fetch_into(first_peer, &through, TIME);
    let fetch_end = first.fetch_into(middle_peer, &end, TIME);
    source.begin(sums).unwrap();
    // A small piece is already passed on.
    let piece = 256 << 10;
    source.append(&bytes[..piece]).unwrap();
    // All but less than 128 KiB of it: the first bytes may have been sent separately.
    end.wait_for((piece as u32) / 2, base::time::monotonic() + TIME).unwrap();
    let half = 2 << 20;
    source.append(&bytes[..half]).unwrap();
    end.wait_for(1 << 20, base::time::monotonic() + TIME).unwrap();
    assert!(!source.is_whole() && !through.is_whole());
    assert_eq!(end.bytes(0..100), Some(&bytes[..100]));
    source.append(&bytes).unwrap();
    assert_eq!((fetch_middle.wait(), fetch_end.wait()), (Ok(()), Ok(())));
    assert!(end.into_parts().unwrap().1 == bytes);
}

/// As many bodies as take turns on all connections, none of which has a byte yet: what is here is sent all
/// the same. Otherwise two nodes that pass blobs on to one another would wait for each other until their
/// deadlines.
#[test]
fn regression_what_is_here_does_not_wait_behind_what_is_not() {
    let (here, _there, store, peer) = pair(|_| {});
    let coming: Vec<_> = (0..40).map(|seed| (noise(1 << 20, seed), Verify::Blake3)).collect();
    let (mut sources, mut calls) = (Vec::new(), Vec::new());
    for (bytes, verify) in &coming {
        let source = Arriving::new(Sums::of(bytes).id(), *verify);
        store.blobs.lock().insert(source.id(), Content::Arriving(Arc::clone(&source)));
        let arriving = Arriving::new(source.id(), *verify);
        calls.push(here.fetch_into(peer, &arriving, TIME));
        sources.push(source);
    }
    let id = store.keep(&noise(1 << 20, 100));
    here.fetch_into(peer, &Arriving::new(id, Verify::Blake3), TIME).wait().unwrap();
    assert!(calls.iter().all(|call| !call.is_over()));
    for (source, (bytes, _)) in sources.iter().zip(&coming) {
        source.complete(bytes.clone().into()).unwrap();
    }
    for call in calls {
        call.wait().unwrap();
    }
}

#[test]
fn wrong_bytes_are_never_passed_on_and_the_sender_is_told() {
    for verify in [Verify::Blake3, Verify::Crc] {
        let (here, _there, store, peer) = pair(|options| options.verify = verify);
        let bytes = noise(1 << 20, 3);
        let mut rotten = bytes.clone();
        rotten[700_000] ^= 1;
        let id = store.keep_as(&rotten, Sums::of(&bytes));
        let good = store.keep(&noise(1 << 20, 4));
        let arriving = Arriving::new(id, verify);
        let (bad, fine) = (Arriving::new(good, verify), here.fetch_into(peer, &arriving, TIME));
        let beside = here.fetch_into(peer, &bad, TIME);
        assert!(matches!(fine.wait(), Err(Fail::Corrupt(_))));
        assert_eq!(arriving.verified(), 655_360, "what came before it stays");
        assert_eq!(beside.wait(), Ok(()), "the next blob on the connection is not harmed");
        assert!(matches!(read(&here, peer, &id, 600_000, 200_000), Err(Fail::Corrupt(_))));
        until("the sender is told", || store.suspects.lock().contains(&id));
        // Another node has the right bytes: the rest comes from there.
        let (_other, other_shelf) = start(options());
        other_shelf.keep(&bytes);
        let other = Peer { address: _other.address().unwrap(), node: None };
        here.fetch_into(other, &arriving, TIME).wait().unwrap();
        assert!(arriving.into_parts().unwrap().1 == bytes);
    }
}

#[test]
fn a_file_that_is_cut_short_ends_the_connection_and_nothing_else() {
    let (here, _there, store, peer) = pair(|_| {});
    let bytes = noise(1 << 20, 5);
    let id = store.keep_as(&bytes[..300_000], Sums::of(&bytes));
    let arriving = Arriving::new(id, Verify::Blake3);
    assert!(matches!(here.fetch_into(peer, &arriving, TIME).wait(), Err(Fail::Gone(_))));
    let good = store.keep(&bytes[..100_000]);
    let arriving = Arriving::new(good, Verify::Blake3);
    assert_eq!(here.fetch_into(peer, &arriving, TIME).wait(), Ok(()));
    until("it is suspected", || store.suspects.lock().contains(&id));
}

#[test]
fn a_stranger_is_refused_with_one_line_at_both_ends() {
    let (_there, store) = start(options());
    let peer = Peer { address: _there.address().unwrap(), node: None };
    let mut wrong = options();
    wrong.secret = Secret::from_text("another secret of them").unwrap();
    let mut other = options();
    other.identity.volume = [8; 16];
    for (options, word) in [(wrong, "secret"), (other, "volume")] {
        store.lines.lock().clear();
        _there.0.shared.said.lock().clear();
        let (here, own) = start(options);
        for _ in 0..3 {
            let Err(Fail::Stranger { why, .. }) = here.greet(peer, TIME).wait() else { panic!("{word}") };
            assert!(why.contains(word), "{why}");
        }
        until("a line at the other end", || !store.lines.lock().is_empty());
        assert!(store.lines.lock()[0].contains(word), "{:?}", store.lines.lock());
        assert_eq!((store.lines.lock().len(), own.lines.lock().len()), (1, 1));
    }
    let (here, _own) = start(options());
    let wanted = Peer { node: Some(NodeId([3; 16])), ..peer };
    assert!(matches!(here.greet(wanted, TIME).wait(), Err(Fail::Stranger { .. })));
    let myself = Peer { address: here.address().unwrap(), node: None };
    assert!(matches!(here.greet(myself, TIME).wait(), Err(Fail::Stranger { .. })));
}

/// Sends some bytes and reads until the other end closes.
fn poke(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIME)).unwrap();
    let _ = stream.write_all(bytes);
    let mut out = Vec::new();
    let _ = stream.read_to_end(&mut out);
    out
}

#[test]
fn garbage_other_versions_and_slow_strangers_are_turned_away() {
    let mut some = options();
    some.limits.handshake = 6 * TIME;
    some.limits.half_open_each = 4;
    let (there, store) = start(some);
    let address = there.address().unwrap();
    assert!(poke(address, &noise(500, 1)).is_empty());
    assert!(poke(address, b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n").is_empty());
    let mut newer = Header::bare(Type::Hello, 0).encode();
    newer[2] = 2;
    let heard = poke(address, &newer);
    assert!(heard.len() > HEADER && heard[3] == Type::Refuse as u8);
    let mut long = Header::bare(Type::Hello, 0);
    long.length = u32::MAX;
    assert!(poke(address, &long.encode()).is_empty(), "refused before memory is taken for it");
    let mut hasty = options();
    hasty.limits.handshake = Duration::from_millis(200);
    let (hasty, _) = start(hasty);
    let begun = base::time::monotonic();
    assert!(poke(hasty.address().unwrap(), &Header::bare(Type::Hello, 0).encode()[..5]).is_empty());
    assert!(begun.elapsed() < TIME, "a connection without a whole greeting should be closed after 200 ms");
    // Four silent connections take all places of their address. A fifth replaces the first.
    let silent: Vec<_> = (0..5).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    until("one gives way", || there.counters().displaced > 0);
    let (here, _) = start(options());
    let id = store.keep(b"still here");
    let peer = Peer { address, node: None };
    assert_eq!(read(&here, peer, &id, 0, 10), Ok(b"still here".to_vec()));
    drop(silent);
}

#[test]
fn a_peer_that_says_nothing_costs_the_deadline_and_no_more() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, _) = start(options());
    let peer = Peer { address: listener.local_addr().unwrap(), node: None };
    let begun = base::time::monotonic();
    let time = Duration::from_millis(150);
    assert_eq!(here.notes(peer, &[], time).wait(), Err(Fail::Late(time)));
    assert!(begun.elapsed() >= time, "the call ended after {:?}, before its deadline", begun.elapsed());
    drop(listener);
    let nobody = Peer { address: "127.0.0.1:1".parse().unwrap(), node: None };
    assert!(matches!(here.greet(nobody, TIME).wait(), Err(Fail::Unreachable { .. })));
}

#[test]
fn what_is_given_up_leaves_nothing_behind() {
    let (here, there, store, peer) = pair(|_| {});
    let bytes = noise(4 << 20, 6);
    let id = store.keep(&bytes);
    let waiting = Arriving::new(Sums::of(&noise(9, 9)).id(), Verify::Crc);
    store.blobs.lock().insert(waiting.id(), Content::Arriving(Arc::clone(&waiting)));
    for _ in 0..20 {
        drop(here.fetch_into(peer, &Arriving::new(id, Verify::Crc), TIME));
        drop(here.fetch_into(peer, &Arriving::new(waiting.id(), Verify::Crc), TIME));
    }
    let arriving = Arriving::new(id, Verify::Crc);
    here.fetch_into(peer, &arriving, TIME).wait().unwrap();
    assert!(arriving.into_parts().unwrap().1 == bytes);
    until("the other end forgets them too", || {
        let Some(Content::Arriving(one)) = store.content(&waiting.id()) else { return false };
        // The test's, the map's and this one.
        Arc::strong_count(&one) == 3
    });
    assert!(here.counters().cancelled >= 20);
    drop(there);
    until("a lost node is noticed", || {
        matches!(read(&here, peer, &id, 0, 10), Err(Fail::Gone(_) | Fail::Unreachable { .. }))
    });
}

#[test]
fn a_connection_that_breaks_is_made_again_and_the_rest_comes() {
    let (here, _there, store, peer) = pair(|_| {});
    let bytes = noise(4 << 20, 7);
    let sums = Sums::of(&bytes);
    let source = Arriving::new(sums.id(), Verify::Blake3);
    store.blobs.lock().insert(sums.id(), Content::Arriving(Arc::clone(&source)));
    source.begin(sums).unwrap();
    source.append(&bytes[..2 << 20]).unwrap();
    let arriving = Arriving::new(source.id(), Verify::Blake3);
    let fetch = here.fetch_into(peer, &arriving, TIME);
    arriving.wait_for(1 << 20, base::time::monotonic() + TIME).unwrap();
    here.forget(peer.address);
    assert_eq!(fetch.wait(), Err(Fail::Closed));
    source.append(&bytes).unwrap();
    here.fetch_into(peer, &arriving, TIME).wait().unwrap();
    assert!(arriving.into_parts().unwrap().1 == bytes);
}

#[test]
fn two_hundred_nodes_and_a_greedy_one_are_all_served() {
    // All of the two hundred have one id here.
    let (here, _there, store, peer) = pair(|options| options.limits.connections_each = 256);
    let bytes = noise(4 << 20, 8);
    let id = store.keep(&bytes);
    let greedy: Vec<_> = (0..24)
        .map(|_| {
            let arriving = Arriving::new(id, Verify::Crc);
            (here.fetch_into(peer, &arriving, TIME * 3), arriving)
        })
        .collect();
    let begun: Instant = base::time::monotonic();
    here.notes(peer, &[], TIME).wait().unwrap();
    let small = begun.elapsed();
    let ended = greedy.iter().filter(|(call, _)| call.is_over()).count();
    println!("a question beside a greedy reader: {small:?}, {ended} of 24 blobs were done");
    assert!(here.counters().made <= 5, "there should be at most four bulk connections");
    for (call, _) in greedy {
        call.wait().unwrap();
    }
    // One connection each, as with 200 nodes.
    let mut many = options();
    (many.limits.bulk, many.limits.window) = (200, 1);
    let (crowd, _) = start(many);
    let calls: Vec<_> = (0..200).map(|_| crowd.read_groups(peer, &id, 0, 4096, TIME)).collect();
    for call in calls {
        assert_eq!(call.wait().unwrap().1, bytes[..64 << 10]);
    }
    assert_eq!(crowd.counters().made, 200);
}
