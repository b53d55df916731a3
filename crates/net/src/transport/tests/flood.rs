//! A client that requests much and does not read the answers.

use std::sync::atomic::AtomicBool;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use super::*;

pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// How many requests a node has taken, once it has taken no more for a while.
pub(super) fn taken(there: &Net) -> u64 {
    let mut last = (u64::MAX, base::time::monotonic());
    until("it takes no more", || {
        let now = there.counters().served;
        if now != last.0 {
            last = (now, base::time::monotonic());
        }
        now > 0 && last.1.elapsed() > Duration::from_millis(300)
    });
    last.0
}

/// The most that the kernel buffers of answers for a client that does not read.
pub(super) fn kernel() -> u64 {
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap();
    known.split_whitespace().last().unwrap().parse().unwrap()
}

/// Makes requests by hand, on one connection, and lets the test check before any answer is read. Returns the
/// answers' types and lengths.
pub(super) fn unread(
    address: SocketAddr,
    frames: Vec<u8>,
    answers: usize,
    look: impl FnOnce(),
) -> Vec<(Type, u32)> {
    let runtime = runtime();
    let (mut reads, mut writes) =
        tokio::io::split(runtime.block_on(faults::by_hand(address, Class::Control)));
    // In its own thread, because the other end stops reading.
    let writing = runtime.spawn(async move {
        writes.write_all(&frames).await.unwrap();
        writes.flush().await.unwrap();
        writes
    });
    look();
    let reading = async move {
        let mut came = Vec::new();
        for _ in 0..answers {
            let mut head = [0; HEADER];
            reads.read_exact(&mut head).await.unwrap();
            let header = Header::decode(&head).unwrap();
            reads.read_exact(&mut vec![0; header.length as usize]).await.unwrap();
            came.push((header.kind, header.length));
        }
        drop(writing.await.unwrap());
        came
    };
    runtime.block_on(async { tokio::time::timeout(3 * TIME, reading).await.expect("all answers come") })
}

#[test]
pub(super) fn a_client_that_reads_no_answers_costs_one_buffer() {
    const MANY: u32 = 1000;
    /// The least size of an answer.
    const LEN: u32 = 24 << 10;
    let (there, _) = start(options());
    let address = there.address().unwrap();
    let mut frames = Vec::new();
    // Members with long descriptions: each answer is a full page.
    (0..MANY).for_each(|request| frame::put(&mut frames, Type::Members, request, &[0; 16]));
    let came = unread(address, frames, MANY as usize, || {
        let (taken, kernel) = (taken(&there), kernel());
        // What is in the kernel and in the buffer, plus the reader's kernel and the answer that filled the
        // buffer.
        let most = (kernel + (256 << 10)) / u64::from(LEN) + 8;
        println!("{taken} of {MANY} requests were taken; {kernel} bytes are the kernel's");
        assert!(taken <= most, "{taken} requests, not {most}");
        let (here, _) = start(options());
        here.greet(Peer { address, node: None }, TIME).wait().unwrap();
    });
    // A client that reads in the end gets all of it.
    assert_eq!(came.len(), MANY as usize);
    assert!(came.iter().all(|(kind, length)| *kind == Type::Roll && *length > LEN));
}

/// A node whose list takes as long as a test wants.
#[derive(Default)]
struct Slow {
    store: Store,
    inside: AtomicUsize,
    goes_on: AtomicBool,
}

impl Service for Slow {
    fn ask(&self, from: NodeId, ask: Ask) -> Vec<Answer> {
        self.store.ask(from, ask)
    }

    fn notes(&self, from: NodeId, notes: Vec<Note>) {
        self.store.notes(from, notes);
    }

    fn content(&self, id: &BlobId) -> Option<Content> {
        self.store.content(id)
    }

    fn suspect(&self, id: &BlobId) -> CopyState {
        self.store.suspect(id)
    }

    fn list(&self, _: Prefix, most: usize) -> Listed {
        self.inside.fetch_add(1, Ordering::SeqCst);
        until("the test goes on", || self.goes_on.load(Ordering::SeqCst));
        Listed { blobs: vec![BlobId([1; 32]); most], more: true }
    }
}

/// A list is up to 64 KiB, and was neither counted nor bounded. Ten thousand requests, which fit into a
/// socket, became as many answers in memory.
#[test]
pub(super) fn regression_unread_lists_are_bounded_too() {
    const MANY: u32 = 1000;
    let slow = Arc::new(Slow::default());
    let there = Net::start(options(), Arc::clone(&slow) as Arc<dyn Service>, Arc::new(|_: &str| {})).unwrap();
    let address = there.address().unwrap();
    let mut frames = Vec::new();
    let list = ListAsk { prefix: Prefix::ALL, most: u16::MAX }.encode();
    (0..MANY).for_each(|request| frame::put(&mut frames, Type::List, request, &list));
    let came = unread(address, frames, MANY as usize, || {
        until("helpers work on as many as they may", || slow.inside.load(Ordering::SeqCst) == 32);
        assert_eq!(taken(&there), 32, "and no more is read");
        let (here, _) = start(options());
        here.greet(Peer { address, node: None }, TIME).wait().unwrap();
        slow.goes_on.store(true, Ordering::SeqCst);
        // What the kernel and the buffer take, and what helpers were working on in the meantime.
        let (taken, most) = (taken(&there), (kernel() + (256 << 10)) / (64 << 10) + 32 + 8);
        println!("{taken} of {MANY} lists were made");
        assert!(taken <= most, "{taken} lists, not {most}");
    });
    assert_eq!(came.len(), MANY as usize);
    assert!(came.iter().all(|(kind, length)| *kind == Type::Listed && *length > 65_000));
}

/// What the helpers still worked on did not count any more when its connection ended. So a node that
/// connected again and again, which ends its oldest connection, could start as many again each time.
#[test]
pub(super) fn regression_a_new_connection_has_no_new_helpers() {
    let slow = Arc::new(Slow::default());
    let mut one = options();
    one.limits.connections_each = 1;
    let there = Net::start(one, Arc::clone(&slow) as Arc<dyn Service>, Arc::new(|_: &str| {})).unwrap();
    let (address, node, runtime) = (there.address().unwrap(), NodeId::random(), runtime());
    let list = ListAsk { prefix: Prefix::ALL, most: 1 }.encode();
    let mut frames = Vec::new();
    (0..32).for_each(|request| frame::put(&mut frames, Type::List, request, &list));
    let connect = || {
        runtime.block_on(async {
            let mut stream = faults::by_hand_as(address, Class::Control, node).await;
            stream.write_all(&frames).await.unwrap();
            stream.flush().await.unwrap();
            stream
        })
    };
    let _first = connect();
    until("helpers work on all of them", || slow.inside.load(Ordering::SeqCst) == 32);
    let _second = connect();
    until("the first connection has ended", || {
        let counts = there.counters();
        (counts.accepted, counts.open) == (2, 1)
    });
    assert_eq!((taken(&there), slow.inside.load(Ordering::SeqCst)), (32, 32));
    slow.goes_on.store(true, Ordering::SeqCst);
    until("the rest is done too", || slow.inside.load(Ordering::SeqCst) == 64);
}
