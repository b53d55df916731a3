//! How many connections there are, and how many writes.

use std::sync::mpsc::{Sender, channel};

use super::*;

/// A blob of which no bytes have arrived there. Fetches of it stay in flight until they do.
fn coming(store: &Store, bytes: &[u8]) -> Arc<Arriving> {
    let source = Arriving::new(Sums::of(bytes).id(), Verify::Crc);
    store.blobs.lock().insert(source.id(), Content::Arriving(Arc::clone(&source)));
    source
}

fn fetch(net: &Net, peer: Peer, source: &Arriving) -> Call<()> {
    net.fetch_into(peer, &Arriving::new(source.id(), Verify::Crc), TIME)
}

#[test]
fn bulk_connections_grow_with_what_is_under_way_from_one_to_four() {
    for most in [4, 1] {
        let (here, there, store, peer) = pair(|options| options.limits.bulk = most as usize);
        let bytes = noise(100_000, 1);
        let source = coming(&store, &bytes);
        let mut calls = Vec::new();
        for under_way in 1..=24u64 {
            calls.push(fetch(&here, peer, &source));
            // Another one is opened when each has four.
            let right = under_way.div_ceil(4).min(most);
            until("there are as many as that needs", || {
                let made = here.counters().made;
                assert!(made <= right, "{made} for {under_way}");
                made == right
            });
        }
        source.complete(bytes.into()).unwrap();
        for call in calls {
            call.wait().unwrap();
        }
        fetch(&here, peer, &source).wait().unwrap();
        assert_eq!((here.counters().made, there.counters().accepted), (most, most));
    }
}

/// Keeps a node's control thread busy until the returned value is dropped. Requests in the meantime
/// accumulate.
fn hold(net: &Net) -> Sender<()> {
    let ((holds, held), (begins, begun)) = (channel::<()>(), channel());
    net.spawn(async move {
        begins.send(()).unwrap();
        let _ = held.recv();
    });
    begun.recv().unwrap();
    holds
}

#[test]
fn many_small_requests_and_answers_share_few_writes() {
    const MANY: u32 = 500;
    let (here, there, _, peer) = pair(|_| {});
    here.greet(peer, TIME).wait().unwrap();
    let writes = || [here.counters().writes, there.counters().writes];
    let (before, held) = (writes(), hold(&here));
    let calls: Vec<_> = (0..MANY).map(|_| here.notes(peer, &[], TIME)).collect();
    drop(held);
    for call in calls {
        call.wait().unwrap();
    }
    let [asked, answered] = [0, 1].map(|at| writes()[at] - before[at]);
    println!("{MANY} notes: {asked} writes, {answered} of answers");
    let few = u64::from(MANY / 10);
    assert!(asked <= few && answered <= few, "{asked}, {answered}");
}

/// The answers are more than the other end buffers at a time. That end continues with the requests that it
/// has already read as soon as those have been sent.
#[test]
pub(super) fn large_answers_to_what_was_asked_at_once_come_without_a_pause() {
    let (here, _there, store, peer) = pair(|_| {});
    // The ids of 2,000 blobs take almost 64 KiB.
    let one = store.keep(b"one of them");
    let content = store.content(&one).unwrap();
    for n in 1..2000u16 {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&n.to_le_bytes());
        store.blobs.lock().insert(BlobId(id), content.clone());
    }
    here.greet(peer, TIME).wait().unwrap();
    let held = hold(&here);
    let calls: Vec<_> = (0..100).map(|_| here.list(peer, Prefix::ALL, TIME)).collect();
    drop(held);
    for call in calls {
        assert_eq!(call.wait().unwrap().blobs.len(), 2000);
    }
}

#[test]
fn more_requests_than_are_allowed_come_back_busy_at_once() {
    let peer = faults::impostor(|mut stream| async move {
        // It reads everything and says nothing.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    });
    let (here, _) = start(options());
    let ask = || here.notes(peer, &[], TIME);
    let mut calls: Vec<_> = (0..Limits::default().requests).map(|_| ask()).collect();
    assert_eq!(calls.len(), 1024, "as docs/PROTOCOL.md says");
    assert_eq!(ask().wait(), Err(Fail::Busy));
    assert_eq!(here.counters().busy, 1);
    assert!(calls.iter().all(|call| !call.is_over()), "the others are unharmed");
    // Room for one.
    drop(calls.pop());
    calls.push(ask());
    assert!(calls.iter().all(|call| !call.is_over()));
    assert_eq!(ask().wait(), Err(Fail::Busy));
}

#[test]
fn more_requests_than_the_other_end_allows_are_answered_busy() {
    let mut few = options();
    few.limits.requests = 8;
    let (there, store) = start(few);
    let peer = Peer { address: there.address().unwrap(), node: None };
    let mut one = options();
    one.limits.bulk = 1;
    let (here, _) = start(one);
    let bytes = noise(100_000, 3);
    let source = coming(&store, &bytes);
    let mut calls: Vec<_> = (0..8).map(|_| fetch(&here, peer, &source)).collect();
    for _ in 0..3 {
        assert_eq!(fetch(&here, peer, &source).wait(), Err(Fail::Busy));
    }
    assert_eq!(here.counters().busy, 3);
    // Room for one.
    drop(calls.pop());
    calls.push(fetch(&here, peer, &source));
    assert_eq!(fetch(&here, peer, &source).wait(), Err(Fail::Busy));
    source.complete(bytes.into()).unwrap();
    for call in calls {
        call.wait().unwrap();
    }
}

/// Another connection to a busy node could not be made. Until the next attempt nothing was asked of that
/// node, although the first connection was sound.
#[test]
fn regression_a_busy_connection_serves_while_no_other_can_be_made() {
    let (there, store) = start(options());
    let (between, to) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), there.address().unwrap());
    let peer = Peer { address: between.local_addr().unwrap(), node: None };
    let act = move || {
        // The first connection is passed on. Later ones are refused.
        let (mut from, _) = between.accept().unwrap();
        drop(between);
        let mut to = std::net::TcpStream::connect(to).unwrap();
        let (mut back, mut answers) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        let up = base::thread::spawn("up", move || std::io::copy(&mut from, &mut to).map(drop)).unwrap();
        let _ = std::io::copy(&mut answers, &mut back);
        drop(up);
    };
    drop(base::thread::spawn("between", act).unwrap());
    let mut narrow = options();
    (narrow.limits.window, narrow.limits.backoff) = (1, TIME);
    let (here, _) = start(narrow);
    let (long, short) = (noise(100_000, 1), noise(1000, 2));
    let source = coming(&store, &long);
    let id = store.keep(&short);
    let first = fetch(&here, peer, &source);
    until("the connection is there", || here.counters().made == 1);
    let refused = read(&here, peer, &id, 0, 1000);
    assert!(matches!(refused, Err(Fail::Unreachable { .. })), "{refused:?}");
    for _ in 0..2 {
        assert!(read(&here, peer, &id, 0, 1000).unwrap() == short);
    }
    source.complete(long.into()).unwrap();
    first.wait().unwrap();
    assert_eq!(here.counters().made, 1);
}
