//! Invalid messages of a member of the fleet: its connection ends, and nothing else.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::frame::{LAST, SLICE};

/// A frame of any type, valid or not, with any length, under a right CRC.
fn odd(kind: u8, request: u32, length: u32) -> Vec<u8> {
    let mut head = Header::bare(Type::Ping, request).encode();
    head[3] = kind;
    head[16..20].copy_from_slice(&length.to_le_bytes());
    let own = blob::sums::crc32c(&head[..28]);
    head[28..].copy_from_slice(&own.to_le_bytes());
    head.to_vec()
}

fn framed(kind: Type, request: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put(&mut out, kind, request, payload);
    out
}

/// The header of a blob's bytes, without the bytes.
fn data(request: u32, offset: u32, length: u32) -> Vec<u8> {
    let total = offset + length;
    Header { flags: LAST, offset, length, total, ..Header::bare(Type::Data, request) }.encode().to_vec()
}

/// Sends bytes by hand and closes the sending side. Returns everything that comes back until the other end
/// has closed.
fn said(address: SocketAddr, class: Class, bytes: &[u8]) -> Vec<u8> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async move {
        let mut stream = faults::by_hand(address, class).await;
        stream.write_all(bytes).await.unwrap();
        let _ = stream.shutdown().await;
        let mut out = Vec::new();
        tokio::time::timeout(TIME, stream.read_to_end(&mut out)).await.expect("it is closed").ok();
        out
    })
}

#[test]
pub(super) fn a_request_that_makes_no_sense_ends_its_connection_with_a_line_and_no_other() {
    let (there, store) = start(options());
    let address = there.address().unwrap();
    let bytes = noise(2 << 20, 1);
    let id = store.keep(&bytes);
    let (here, _) = start(options());
    let peer = Peer { address, node: None };
    let goes_on = || {
        here.notes(peer, &[], TIME).wait().unwrap();
        here.fetch_into(peer, &Arriving::new(id, Verify::Crc), TIME).wait().unwrap();
    };
    goes_on();
    let mut damaged = framed(Type::Get, 1, &Get { blob: id, offset: 0, len: 1 }.encode());
    *damaged.last_mut().unwrap() ^= 1;
    let cases = [
        ("unknown type 99", odd(99, 1, 0)),
        ("says that it has", odd(Type::Get as u8, 1, u32::MAX)),
        ("says that it has", odd(Type::Ask as u8, 1, 1025)),
        ("a request is too long", data(1, 0, SLICE)),
        ("past the end", odd(Type::Data as u8, 1, 9)),
        ("checksum", damaged),
        ("checksum", [&odd(99, 1, 0)[..31], b"?"].concat()),
        ("not Covey's", noise(HEADER, 1)),
        ("that is no request", framed(Type::Answers, 1, &[0])),
        ("that is no request", framed(Type::Done, 1, &[])),
        ("make sense", framed(Type::Get, 1, b"abc")),
        ("make sense", framed(Type::Ask, 1, &[255; 90])),
        ("make sense", framed(Type::Notes, 1, &[255; 90])),
        ("make sense", framed(Type::List, 1, &[255; 15])),
        ("32 bytes", framed(Type::Fill, 1, &[1; 31])),
        ("16 bytes", framed(Type::Members, 1, &[1; 15])),
    ];
    for class in [Class::Control, Class::Bulk] {
        for (word, bytes) in &cases {
            store.lines.lock().clear();
            there.0.shared.said.lock().clear();
            let before = there.counters();
            assert!(said(address, class, bytes).is_empty(), "{word}");
            until("a line says so", || !store.lines.lock().is_empty());
            let lines = store.lines.lock().clone();
            assert!(lines.len() == 1 && lines[0].contains(word), "{word}: {lines:?}");
            until("it is closed", || there.counters().open == before.open);
            assert_eq!(there.counters().refused, before.refused + 1);
        }
        goes_on();
    }
    assert_eq!((here.counters().made, here.counters().gone), (2, 0), "over the same connections");
}

#[test]
pub(super) fn a_connection_that_ends_within_a_request_just_ends() {
    let (there, store) = start(options());
    let address = there.address().unwrap();
    let (here, _) = start(options());
    let peer = Peer { address, node: None };
    here.greet(peer, TIME).wait().unwrap();
    let whole = framed(Type::Get, 1, &Get { blob: BlobId([1; 32]), offset: 0, len: 10 }.encode());
    for class in [Class::Control, Class::Bulk] {
        for cut in [0, 1, HEADER - 1, HEADER, HEADER + 1, whole.len() - 1] {
            // A complete request before it may be answered.
            let bytes = [&framed(Type::Ping, 7, &[])[..], &whole[..cut]].concat();
            let heard = said(address, class, &bytes);
            assert!(heard.is_empty() || heard == Header::bare(Type::Pong, 7).encode(), "{heard:?}");
            until("it is closed", || there.counters().open == 1);
        }
    }
    here.notes(peer, &[], TIME).wait().unwrap();
    assert_eq!((here.counters().made, store.lines.lock().len()), (1, 0));
}

#[test]
pub(super) fn a_request_that_comes_in_pieces_is_answered() {
    let (there, store) = start(options());
    let address = there.address().unwrap();
    let id = store.keep(b"still here");
    let whole = framed(Type::Get, 1, &Get { blob: id, offset: 0, len: 10 }.encode());
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let asking = async {
        let mut stream = faults::by_hand(address, Class::Bulk).await;
        for cut in [1, HEADER - 1, HEADER, HEADER + 1, whole.len() - 1] {
            stream.write_all(&whole[..cut]).await.unwrap();
            stream.flush().await.unwrap();
            // Most likely the other end reads the first piece now.
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(&whole[cut..]).await.unwrap();
            stream.flush().await.unwrap();
            let mut answer = [0; HEADER + 10];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer[HEADER..], b"still here", "in two from {cut}");
        }
    };
    runtime.block_on(async { tokio::time::timeout(TIME, asking).await.expect("it is answered") });
}

/// A node that answers its first request so, and then listens until its connection is closed, which it
/// reports to the receiver.
fn answers(
    answer: impl Fn(u32) -> Vec<u8> + Send + 'static,
    ends: bool,
) -> (Peer, std::sync::mpsc::Receiver<()>) {
    let (closes, closed) = std::sync::mpsc::channel();
    let peer = faults::impostor(move |mut stream| async move {
        let request = faults::request(&mut stream).await;
        stream.write_all(&answer(request)).await.unwrap();
        stream.flush().await.unwrap();
        if ends {
            let _ = stream.shutdown().await;
        }
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
        let _ = closes.send(());
    });
    (peer, closed)
}

type Wrong = fn(u32) -> Vec<u8>;

/// Invalid answers, on connections of both classes.
const EVERYWHERE: [(&str, Wrong); 9] = [
    ("unknown type 99", |request| odd(99, request, 0)),
    ("says that it has", |request| odd(Type::Data as u8, request, SLICE + 1)),
    ("says that it has", |request| odd(Type::Done as u8, request, 1)),
    ("past the end", |request| odd(Type::Data as u8, request, 9)),
    ("not Covey's", |_| noise(HEADER, 1)),
    ("checksum", |request| {
        let mut wrong = framed(Type::Error, request, &[1, b'a']);
        *wrong.last_mut().unwrap() ^= 1;
        wrong
    }),
    ("not asked for", |request| [data(request + 7, 0, 4), vec![0; 4]].concat()),
    ("is nothing that answers", |request| framed(Type::Get, request, &[0; 40])),
    ("is nothing that answers", |request| framed(Type::Suspect, request, &[0; 32])),
];

#[test]
pub(super) fn an_answer_that_makes_no_sense_ends_its_connection_and_no_other() {
    let (there, store) = start(options());
    let good = Peer { address: there.address().unwrap(), node: None };
    let id = store.keep(b"still here");
    let too_long: (&str, Wrong) =
        ("too long for this connection", |request| odd(Type::Listed as u8, request, 60_000));
    let (here, _) = start(options());
    here.greet(good, TIME).wait().unwrap();
    for class in [Class::Control, Class::Bulk] {
        let own = if class == Class::Bulk { &[too_long][..] } else { &[] };
        for (word, answer) in EVERYWHERE.iter().chain(own) {
            let (peer, closed) = answers(*answer, false);
            let ask = || match class {
                Class::Bulk => here.fetch_into(peer, &Arriving::new(id, Verify::Crc), TIME),
                _ => here.notes(peer, &[], TIME),
            };
            let both = [ask(), ask()];
            for call in both {
                let end = call.wait();
                assert!(matches!(&end, Err(Fail::Protocol(why)) if why.contains(word)), "{word}: {end:?}");
            }
            closed.recv_timeout(TIME).expect("this end has closed it");
        }
        here.notes(good, &[], TIME).wait().unwrap();
    }
    assert_eq!(there.counters().accepted, 1, "over the same connection");
}

/// The requester learns that the bytes are of another place. The next request on the connection is unharmed.
#[test]
pub(super) fn bytes_of_another_place_end_their_request_only() {
    let (peer, _closed) = answers(
        move |request| {
            let bytes = [0; 4];
            let crc = blob::sums::crc32c(&bytes);
            let head = Header::decode(data(request, 3, 4).first_chunk().unwrap()).unwrap();
            let mut out = Header { crc, ..head }.encode().to_vec();
            out.extend(bytes);
            out.extend(framed(Type::Error, request + 1, &[1]));
            out
        },
        false,
    );
    let mut one = options();
    one.limits.bulk = 1;
    let (here, _) = start(one);
    let ask = || here.read_groups(peer, &BlobId([1; 32]), 0, 4, TIME);
    let (first, second) = (ask(), ask());
    let end = first.wait();
    assert!(matches!(&end, Err(Fail::Protocol(why)) if why.contains("another place")), "{end:?}");
    assert_eq!(second.wait(), Err(Fail::Missing));
}

#[test]
pub(super) fn a_connection_that_ends_within_an_answer_is_gone() {
    for class in [Class::Control, Class::Bulk] {
        for cut in [1, HEADER - 1, HEADER, HEADER + 1] {
            let (peer, closed) =
                answers(move |request| framed(Type::Error, request, &[1, b'a', b'b'])[..cut].to_vec(), true);
            let (here, _) = start(options());
            let end = match class {
                Class::Bulk => here.fetch_into(peer, &Arriving::new(BlobId([1; 32]), Verify::Crc), TIME),
                _ => here.notes(peer, &[], TIME),
            };
            let end = end.wait();
            assert!(matches!(end, Err(Fail::Gone(_))), "{cut}: {end:?}");
            closed.recv_timeout(TIME).expect("this end has closed it");
        }
    }
}
