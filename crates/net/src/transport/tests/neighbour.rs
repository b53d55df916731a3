//! A neighbour that uses more than its share, with each message that costs the receiver something.

use std::sync::atomic::AtomicBool;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::flood::{kernel, runtime, taken, unread};
use super::suspicions::WAITING;
use super::*;

fn blob(n: u32) -> BlobId {
    let mut id = [0; 32];
    id[..4].copy_from_slice(&n.to_le_bytes());
    BlobId(id)
}

/// A node whose blobs are all sound, and whose check takes as long as a test wants.
#[derive(Default)]
struct Sound {
    store: Store,
    inside: AtomicUsize,
    most: AtomicUsize,
    goes_on: AtomicBool,
}

impl Service for Sound {
    fn ask(&self, from: NodeId, ask: Ask) -> Vec<Answer> {
        self.store.ask(from, ask)
    }

    fn notes(&self, from: NodeId, notes: Vec<Note>) {
        self.store.notes(from, notes);
    }

    fn content(&self, id: &BlobId) -> Option<Content> {
        self.store.content(id)
    }

    fn suspect(&self, _: &BlobId) -> CopyState {
        let inside = 1 + self.inside.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(inside, Ordering::SeqCst);
        until("the test goes on", || self.goes_on.load(Ordering::SeqCst));
        self.inside.fetch_sub(1, Ordering::SeqCst);
        CopyState::Sound
    }

    fn list(&self, _: Prefix, _: usize) -> Listed {
        Listed::default()
    }
}

/// Five seconds of suspicions took 2.2 GiB and 523 threads, and others waited for seconds: each suspicion was
/// a thread that read and hashed a blob.
#[test]
fn regression_suspicions_are_looked_at_one_by_one_and_have_an_end() {
    const MANY: u32 = 20_000;
    let sound = Arc::new(Sound::default());
    let there =
        Net::start(options(), Arc::clone(&sound) as Arc<dyn Service>, Arc::new(|_: &str| {})).unwrap();
    let address = there.address().unwrap();
    let runtime = runtime();
    let mut stream = runtime.block_on(faults::by_hand(address, Class::Control));
    let frames = |range: std::ops::Range<u32>| {
        let mut frames = Vec::new();
        range.for_each(|n| frame::put(&mut frames, Type::Suspect, n, &blob(n).0));
        frames
    };
    runtime.block_on(async { stream.write_all(&frames(0..MANY)).await.unwrap() });
    until("all are taken", || there.counters().suspected == u64::from(MANY));
    until("one is looked at", || there.counters().compared == 1);
    assert_eq!(
        there.0.shared.suspicions.len(),
        WAITING,
        "only some suspicions should be kept for comparison"
    );
    let (here, _) = start(options());
    here.greet(Peer { address, node: None }, TIME).wait().unwrap();
    sound.goes_on.store(true, Ordering::SeqCst);
    until("all that wait are dealt with", || there.0.shared.suspicions.len() == 0);
    let compared = there.counters().compared;
    assert!(
        compared <= 9,
        "suspicions of a node that is always wrong are ignored: {compared} blobs were compared"
    );
    assert_eq!(sound.most.load(Ordering::SeqCst), 1);
    let ended = runtime.block_on(async {
        stream.write_all(&frames(0..1)).await.unwrap();
        let mut rest = Vec::new();
        tokio::time::timeout(TIME, stream.read_to_end(&mut rest)).await.is_ok()
    });
    assert!(ended, "the connection should be closed");
    here.greet(Peer { address, node: None }, TIME).wait().unwrap();
}

/// The refusals of a node that is not a depot were neither counted nor bounded.
#[test]
fn regression_unread_refusals_of_fills_are_bounded() {
    const MANY: u32 = 200_000;
    let (there, _) = start(options());
    let address = there.address().unwrap();
    let mut frames = Vec::new();
    (0..MANY).for_each(|n| frame::put(&mut frames, Type::Fill, n, &blob(n).0));
    let came = unread(address, frames, MANY as usize, || {
        let answer = (HEADER + 1 + Unfilled::NoDepot.to_string().len()) as u64;
        let (taken, most) = (taken(&there), (kernel() + (256 << 10) + (18 << 10) * 8) / answer);
        println!("{taken} of {MANY} fills were taken");
        assert!(taken <= most, "{taken} fills, not {most}");
    });
    assert!(came.iter().all(|(kind, _)| *kind == Type::Error));
}

/// Messages without an answer were read as long as they arrived, and the one thread for all control
/// connections did nothing else.
#[test]
fn regression_messages_without_an_answer_leave_others_their_turn() {
    let (there, _) = start(options());
    let peer = Peer { address: there.address().unwrap(), node: None };
    let runtime = runtime();
    let mut stream = runtime.block_on(faults::by_hand(peer.address, Class::Control));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let flood = runtime.spawn(async move {
        let mut frames = Vec::new();
        (0..2000).for_each(|n| frame::put(&mut frames, Type::Cancel, n, &[]));
        while !stopped.load(Ordering::SeqCst) {
            stream.write_all(&frames).await.unwrap();
        }
    });
    until("it floods", || there.counters().served > 10_000);
    let (here, _) = start(options());
    for _ in 0..20 {
        assert_eq!(here.notes(peer, &[], TIME).wait(), Ok(()));
    }
    stop.store(true, Ordering::SeqCst);
    runtime.block_on(flood).unwrap();
}

#[test]
fn regression_bodies_that_one_neighbour_waits_for_are_bounded() {
    let mut some = options();
    (some.limits.bodies, some.limits.bodies_each) = (5, 3);
    let (there, store) = start(some);
    let peer = Peer { address: there.address().unwrap(), node: None };
    let coming: Vec<_> = (0..6)
        .map(|n| {
            let coming = Arriving::new(Sums::of(&noise(9, n)).id(), Verify::Crc);
            store.blobs.lock().insert(coming.id(), Content::Arriving(Arc::clone(&coming)));
            coming.id()
        })
        .collect();
    let asks = |here: &Net| {
        let ids = coming.clone().into_iter();
        ids.map(|id| here.fetch_into(peer, &Arriving::new(id, Verify::Crc), TIME)).collect::<Vec<_>>()
    };
    let (one, other) = (start(options()).0, start(options()).0);
    let first = asks(&one);
    until("its share is taken", || one.counters().busy == 3);
    assert_eq!(there.0.shared.clients.bodies(), 3);
    let second = asks(&other);
    until("all that there is is taken", || other.counters().busy == 4);
    assert_eq!(there.0.shared.clients.bodies(), 5);
    drop((first, second));
    until("what is given up is free again", || there.0.shared.clients.bodies() == 0);
}

#[test]
fn regression_the_connections_of_one_neighbour_are_bounded() {
    let mut some = options();
    some.limits.connections_each = 4;
    let (there, _) = start(some);
    let address = there.address().unwrap();
    let (runtime, node) = (runtime(), NodeId([9; 16]));
    let mut all: Vec<_> =
        (0..6).map(|_| runtime.block_on(faults::by_hand_as(address, Class::Control, node))).collect();
    until("the oldest are ended", || there.counters().open == 4);
    let mut rest = Vec::new();
    let ended = runtime.block_on(async { tokio::time::timeout(TIME, all[0].read_to_end(&mut rest)).await });
    assert!(ended.is_ok());
    let alive = runtime.block_on(async {
        let mut frames = Vec::new();
        frame::put(&mut frames, Type::Ping, 1, &[]);
        all[5].write_all(&frames).await.unwrap();
        let mut head = [0; HEADER];
        tokio::time::timeout(TIME, all[5].read_exact(&mut head)).await.unwrap().unwrap();
        Header::decode(&head).unwrap().kind
    });
    assert_eq!(alive, Type::Pong, "the newest stay");
}

/// Silent connections kept new members out for the time limit of a handshake.
#[test]
fn regression_a_silent_crowd_keeps_no_member_out() {
    let mut some = options();
    some.limits.handshake = 6 * TIME;
    (some.limits.half_open, some.limits.half_open_each) = (16, 8);
    let (there, _) = start(some);
    let address = there.address().unwrap();
    let silent: Vec<_> = (0..40).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    until("the places are taken", || there.counters().displaced >= 32);
    let (here, _) = start(options());
    here.greet(Peer { address, node: None }, TIME).wait().unwrap();
    drop(silent);
}
