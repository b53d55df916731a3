//! Other nodes that lie, die or fall silent.

use std::net::TcpListener;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::frame::LAST;

/// Sums whose hash is the id of `right`, with the CRCs of `other`, which has the same size.
fn forged(right: &[u8], other: &[u8]) -> Sums {
    let mut bytes = Sums::of(right).encode();
    let other = Sums::of(other);
    let from = bytes.len() - 4 - other.segments().len() * 4;
    let crcs: Vec<u8> = other.segments().iter().flat_map(|crc| crc.to_le_bytes()).collect();
    bytes.truncate(from);
    bytes.extend_from_slice(&crcs);
    let own = blob::sums::crc32c(&bytes);
    bytes.extend_from_slice(&own.to_le_bytes());
    Sums::decode(&bytes).unwrap()
}

/// What is guaranteed, and what is not, if a node of the fleet lies on purpose. docs/PROTOCOL.md says the
/// same.
#[test]
pub(super) fn wrong_bytes_under_crcs_of_their_own_pass_only_where_the_sender_is_trusted() {
    for verify in [Verify::Blake3, Verify::Crc] {
        let (here, _there, store, peer) = pair(|options| options.verify = verify);
        let right = noise(1 << 20, 11);
        let mut wrong = right.clone();
        wrong[300_000] ^= 1;
        let id = store.keep_as(&wrong, forged(&right, &wrong));
        let arriving = Arriving::new(id, verify);
        let whole = here.fetch_into(peer, &arriving, TIME).wait();
        let part = read(&here, peer, &id, 299_999, 3);
        match verify {
            Verify::Blake3 => {
                assert!(matches!(whole, Err(Fail::Corrupt(_))), "{whole:?}");
                assert!(matches!(part, Err(Fail::Corrupt(_))), "{part:?}");
                assert!(
                    !arriving.is_whole() && arriving.into_parts().is_none(),
                    "a corrupt blob should not be kept"
                );
                until("the sender is told", || store.suspects.lock().contains(&id));
            }
            Verify::Crc => assert!(whole.is_ok() && part.unwrap() == wrong[299_999..300_002]),
        }
    }
}

/// A plain connection or one under TLS.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Wire for S {}

pub(super) type Stream = Box<dyn Wire>;

/// The value that the proofs cover under TLS.
fn channel<S: rustls::SideData>(tls: &rustls::ConnectionCommon<S>) -> [u8; 32] {
    tls.export_keying_material([0; 32], b"EXPORTER-covey-hello", None).unwrap()
}

/// A program that knows the secret, and then does `and_then` with the connection.
pub(super) fn impostor<W>(and_then: impl FnOnce(Stream) -> W + Send + 'static) -> Peer
where
    W: Future<Output = ()>,
{
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = Peer { address: listener.local_addr().unwrap(), node: None };
    listener.set_nonblocking(true).unwrap();
    let options = options();
    let act = move || {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let mut greeter = Greeter::new(options.identity, &options.secret, TIME);
            let mut stream: Stream = match &options.tls {
                None => Box::new(stream),
                Some(tls) => {
                    let stream = TlsAcceptor::from(tls.server()).accept(stream).await.unwrap();
                    greeter = greeter.within(channel(stream.get_ref().1));
                    Box::new(stream)
                }
            };
            greeter.accept(&mut stream).await.unwrap();
            and_then(stream).await;
        });
    };
    // It ends with its connection.
    drop(base::thread::spawn("impostor", act).unwrap());
    peer
}

/// The number of the next request.
pub(super) async fn request(stream: &mut Stream) -> u32 {
    let mut head = [0; HEADER];
    stream.read_exact(&mut head).await.unwrap();
    let header = Header::decode(&head).unwrap();
    stream.read_exact(&mut vec![0; header.length as usize]).await.unwrap();
    header.request
}

#[test]
pub(super) fn a_node_that_dies_in_the_middle_of_a_body_leaves_what_was_verified() {
    let bytes = noise(1 << 20, 12);
    let (sums, id) = (Sums::of(&bytes), Sums::of(&bytes).id());
    let sent = bytes[..700_000].to_vec();
    let peer = impostor(move |mut stream| async move {
        let request = request(&mut stream).await;
        let mut out = Vec::new();
        frame::put(&mut out, Type::Sums, request, &sums.encode());
        let crc = sums.crc_of(0, 1 << 20).unwrap();
        let bare = Header::bare(Type::Data, request);
        out.extend(Header { flags: LAST, length: 1 << 20, crc, total: 1 << 20, ..bare }.encode());
        out.extend(sent);
        stream.write_all(&out).await.unwrap();
        stream.flush().await.unwrap();
    });
    let (here, _) = start(options());
    let arriving = Arriving::new(id, Verify::Blake3);
    assert!(matches!(here.fetch_into(peer, &arriving, TIME).wait(), Err(Fail::Gone(_))));
    assert_eq!(arriving.verified(), 655_360);
    let (there, store) = start(options());
    store.keep(&bytes);
    let other = Peer { address: there.address().unwrap(), node: None };
    here.fetch_into(other, &arriving, TIME).wait().unwrap();
    assert!(there.counters().blob_bytes_out < 400_000, "only the rest is sent");
    assert!(arriving.into_parts().unwrap().1 == bytes);
}

#[test]
pub(super) fn regression_a_node_that_falls_silent_is_given_up_and_its_connection_closed() {
    let (heard, hears) = std::sync::mpsc::channel();
    let peer = impostor(move |mut stream| async move {
        // It reads everything and says nothing.
        let mut head = [0; HEADER];
        while stream.read_exact(&mut head).await.is_ok() {
            let header = Header::decode(&head).unwrap();
            stream.read_exact(&mut vec![0; header.length as usize]).await.unwrap();
            let _ = heard.send(header.kind);
        }
    });
    let mut short = options();
    short.limits.quiet = Duration::from_millis(100);
    let (here, _) = start(short);
    let begun = base::time::monotonic();
    let fail = here.notes(peer, &[], TIME).wait().unwrap_err();
    assert!(matches!(&fail, Fail::Gone(why) if why.contains("nothing was heard")), "{fail}");
    assert!(
        begun.elapsed() < TIME / 2,
        "a silent node should be given up after 100 ms, not after the request's time"
    );
    // It ends only when its connection has been closed at this end too.
    let heard: Vec<Type> = hears.iter().collect();
    assert_eq!(heard, [Type::Notes, Type::Ping]);
}

/// Each PING was answered. The answers to a node that did not read them took memory without bound.
#[test]
pub(super) fn regression_pings_without_end_end_the_connection() {
    // More answers than the kernel buffers at both ends.
    const MANY: usize = 1_000_000;
    let (ended, ends) = std::sync::mpsc::channel();
    let peer = impostor(move |mut stream| async move {
        let request = request(&mut stream).await;
        let mut out = Vec::with_capacity((MANY + 1) * HEADER);
        frame::put(&mut out, Type::Done, request, &[]);
        (0..MANY).for_each(|_| frame::put(&mut out, Type::Ping, 0, &[]));
        let mut written = stream.write_all(&out).await;
        if written.is_ok() {
            written = stream.flush().await;
        }
        let _ = ended.send(written.is_err());
    });
    let (here, _) = start(options());
    here.notes(peer, &[], TIME).wait().unwrap();
    assert!(ends.recv_timeout(TIME).unwrap(), "all PINGs were taken");
}

#[test]
pub(super) fn connections_that_are_not_used_end_and_come_back() {
    base::trial::at_some_scale(end_and_come_back).unwrap();
}

/// An end that does not get the processor for as long as a silent node is waited for counts as gone.
fn end_and_come_back(scale: u32) -> Result<(), String> {
    let (here, there, store, peer) = pair(|options| {
        options.limits.bulk_idle = scale * Duration::from_millis(100);
        options.limits.control_idle = scale * Duration::from_millis(150);
        options.limits.quiet = scale * Duration::from_millis(60);
    });
    let bytes = noise(200_000, 13);
    let id = store.keep(&bytes);
    for round in 1..=2 {
        let blob = here.fetch_into(peer, &Arriving::new(id, Verify::Blake3), TIME).wait();
        blob.and_then(|()| here.notes(peer, &[], TIME).wait()).map_err(|fail| fail.to_string())?;
        assert_eq!(here.counters().made, 2 * round);
        until("both end", || there.counters().open == 0);
    }
    let counts = here.counters();
    match (counts.gone, counts.failed, counts.late) {
        (0, 0, 0) => Ok(()),
        _ => Err(format!("{counts:?}")),
    }
}

#[test]
pub(super) fn what_others_wait_for_is_counted_in_mebibytes() {
    let (here, there, store, peer) = pair(|_| {});
    let bytes = noise(4 << 20, 14);
    let sums = Sums::of(&bytes);
    let source = Arriving::new(sums.id(), Verify::Blake3);
    store.blobs.lock().insert(sums.id(), Content::Arriving(Arc::clone(&source)));
    here.greet(peer, TIME).wait().unwrap();
    assert_eq!(there.backlog(), 0, "an idle connection should not count as work");
    let calls: Vec<_> =
        (0..3).map(|_| here.fetch_into(peer, &Arriving::new(sums.id(), Verify::Blake3), TIME)).collect();
    source.begin(sums).unwrap();
    until("three blobs are waited for", || there.backlog() == 12);
    source.append(&bytes[..2 << 20]).unwrap();
    until("half of it went", || there.backlog() == 6);
    drop(calls);
    until("and nothing waits any more", || there.backlog() == 0);
}

/// A connection of a class, operated by hand, with a small receive buffer.
pub(super) async fn by_hand(address: std::net::SocketAddr, class: Class) -> Stream {
    by_hand_as(address, class, NodeId::random()).await
}

/// Returns a connection as [`by_hand`] does, of a node with this id.
pub(super) async fn by_hand_as(address: std::net::SocketAddr, class: Class, node: NodeId) -> Stream {
    let mut options = options();
    options.identity.node = node;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    let stream = socket.connect(address).await.unwrap();
    let mut greeter = Greeter::new(options.identity, &options.secret, TIME);
    let mut stream: Stream = match &options.tls {
        None => Box::new(stream),
        Some(tls) => {
            let name = rustls::pki_types::ServerName::from(address.ip());
            let stream = TlsConnector::from(tls.client()).connect(name, stream).await.unwrap();
            greeter = greeter.within(channel(stream.get_ref().1));
            Box::new(stream)
        }
    };
    greeter.connect(&mut stream, class, None).await.unwrap();
    stream
}

/// A cancelled answer continued to the blob's end, over a link that was full.
#[test]
pub(super) fn regression_what_is_cancelled_ends_with_its_slice() {
    let (there, store) = start(options());
    let id = store.keep(&noise(4 << 20, 17));
    let address = there.address().unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let came = runtime.block_on(async {
        let mut stream = by_hand(address, Class::Bulk).await;
        let mut out = Vec::new();
        let get = Get { blob: id, offset: 0, len: Get::REST }.encode();
        let taken = there.counters().served;
        (0..4).for_each(|request| frame::put(&mut out, Type::Get, request, &get));
        stream.write_all(&out).await.unwrap();
        // The first byte is here. The others are not read, so one of them is in the middle of a slice.
        let mut head = [0; HEADER];
        stream.read_exact(&mut head[..1]).await.unwrap();
        out.clear();
        (0..4).for_each(|request| frame::put(&mut out, Type::Cancel, request, &[]));
        stream.write_all(&out).await.unwrap();
        let end = base::time::monotonic() + TIME;
        while there.counters().served < taken + 8 {
            assert!(base::time::monotonic() < end, "what is cancelled is not heard");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let mut known = 1;
        let mut came = [0; 4];
        // What is in flight arrives at once, and then no more.
        while let Ok(Ok(_)) = tokio::time::timeout(Duration::from_millis(200), async {
            stream.read_exact(&mut head[std::mem::take(&mut known)..]).await?;
            let header = Header::decode(&head).unwrap();
            came[header.request as usize] += header.length;
            stream.read_exact(&mut vec![0; header.length as usize]).await
        })
        .await
        {}
        came
    });
    assert!(came.iter().any(|bytes| *bytes > 0) && came.iter().all(|bytes| *bytes < 4 << 20), "{came:?}");
    until("nothing is owed", || there.backlog() == 0);
}

#[test]
pub(super) fn bodies_do_not_travel_on_a_control_connection() {
    let (there, store) = start(options());
    let id = store.keep(&noise(200_000, 15));
    let address = there.address().unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let kinds = runtime.block_on(async move {
        let mut stream = by_hand(address, Class::Control).await;
        let mut out = Vec::new();
        for len in [Get::REST, 65_537, 1] {
            frame::put(&mut out, Type::Get, 1, &Get { blob: id, offset: 0, len }.encode());
        }
        stream.write_all(&out).await.unwrap();
        let mut kinds = Vec::new();
        for _ in 0..3 {
            let mut head = [0; HEADER];
            stream.read_exact(&mut head).await.unwrap();
            let header = Header::decode(&head).unwrap();
            stream.read_exact(&mut vec![0; header.length as usize]).await.unwrap();
            kinds.push(header.kind);
        }
        kinds
    });
    assert_eq!(kinds, [Type::Error; 3]);
}
