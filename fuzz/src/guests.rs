//! The target of guests: what a server does with the bytes of a stream, and a guest with those of a server.

use stream::frame::{self, Head, Kind};
use stream::hello::{Challenge, Found, Hello, Sharing, VERSION, Welcome, decode_refusal, encode_refusal};
use stream::request::{self, Asked};
use stream::slots::{Arrival, Slots, WAITS_AT};
use stream::times::Times;

/// Frames, greetings, FUSE messages and slots.
pub fn stream(data: &[u8]) {
    let mut slots = Slots::with_waits(4, 4, 4 << 20);
    let mut rest = data;
    // A fuzzer does not find checksums, so each header is also read without its own.
    while let Some(header) = rest.first_chunk::<{ frame::HEADER }>() {
        let Ok(head) = frame::decode(header) else { break };
        let Some(payload) = rest[frame::HEADER..].get(..head.len) else { break };
        if let Ok(Some((again, same, _))) = frame::split(rest) {
            assert_eq!((again, same), (head, payload));
        }
        one(&head, payload, &mut slots);
        rest = &rest[frame::HEADER + head.len..];
    }
}

fn one(head: &Head, payload: &[u8], slots: &mut Slots) {
    match head.kind {
        Kind::Hello => {
            same(Hello::decode(payload).filter(|hello| hello.version == VERSION), payload, |it| it.encode())
        }
        Kind::Challenge => {
            same(Challenge::decode(payload).filter(|it| it.version == VERSION), payload, |it| it.encode());
        }
        Kind::Welcome => drop(Welcome::decode(payload)),
        Kind::Refuse => drop(decode_refusal(payload)),
        Kind::About => drop(stream::hello::text(payload)),
        Kind::Request => {
            let Some(asked) = Asked::read(payload) else { return };
            let cost = request::cost(&asked, payload);
            drop((request::doubts(&asked, payload), request::forgotten(&asked, payload)));
            let waits = request::waits_for_lock(&asked, payload);
            assert!(!waits || request::lock_asked(&asked, payload).is_some_and(|lock| !lock.unlocks));
            assert!(request::lock_ended(&asked, payload).is_none() || !waits);
            if slots.arrive(head.slot, head.seq, head.attempt(), cost) == Ok(Arrival::Execute)
                && head.flags & 1 == 0
            {
                assert!(slots.done(head.slot, head.seq, asked.is_kept().then(|| payload[..8].to_vec())));
            }
        }
        Kind::Reply => {
            let asked = Asked { opcode: u32::from(head.flags), unique: head.seq, node: 1, pid: 1 };
            drop((request::is_reply(head.seq, payload), request::references(&asked, payload)));
            request::agreed(payload);
        }
        Kind::Times => same(Times::decode(payload), payload, |it| it.encode().to_vec()),
        Kind::Cancel => drop(slots.cancel(head.slot, head.seq, head.attempt(), &[])),
        Kind::Notify => drop((request::is_notification(payload), request::is_quick(payload))),
        _ => {}
    }
    assert!(slots.running() <= 4);
}

fn same<T>(read: Option<T>, payload: &[u8], encode: impl Fn(&T) -> Vec<u8>) {
    if let Some(read) = read {
        assert_eq!(encode(&read), payload);
    }
}

/// A greeting and some requests.
pub fn stream_seeds() -> Vec<Vec<u8>> {
    let hello = Hello { version: VERSION, features: 0, session: [1; 16], nonce: [2; 32], index: 0 };
    let challenge =
        Challenge { version: VERSION, features: 0, instance: [3; 16], nonce: [4; 32], secret: true };
    let welcome = Welcome {
        proof: [5; 32],
        session: [1; 16],
        found: Found::New,
        slots: 4,
        bytes: 4 << 20,
        root_mode: 0o40755,
        read_only: false,
        sharing: Sharing::One,
        source: [6; 16],
        boot: [7; 16],
        name: "volume".to_owned(),
    };
    let forget = request::batch_forget(&[(9, 1), (10, 2)]);
    let mut wait = vec![0; request::IN_HEADER + 48];
    wait[..4].copy_from_slice(&((request::IN_HEADER + 48) as u32).to_ne_bytes());
    wait[4..8].copy_from_slice(&request::op::SETLKW.to_ne_bytes());
    wait[request::IN_HEADER + 32] = 1;
    let plain = Head::plain;
    let frames = [
        (plain(Kind::Hello), hello.encode()),
        (plain(Kind::Challenge), challenge.encode()),
        (plain(Kind::Welcome), welcome.encode()),
        (plain(Kind::Refuse), encode_refusal(stream::hello::Refusal::Busy, "busy")),
        (plain(Kind::About), b"covey 1.0".to_vec()),
        (Head::of_slot(Kind::Request, 1, 1), forget),
        (Head::of_slot(Kind::Request, WAITS_AT + 1, 1), wait),
        (Head { flags: 44, ..Head::of_slot(Kind::Reply, 1, 1) }, vec![0; 400]),
        (Head::of_slot(Kind::Cancel, 2, 1), Vec::new()),
        (plain(Kind::Notify), request::drop_all_names()),
    ];
    let each = frames.iter().map(|(head, payload)| [&frame::encode(head, &[payload])[..], payload].concat());
    let mut seeds: Vec<Vec<u8>> = each.collect();
    seeds.push(seeds.concat());
    seeds
}
