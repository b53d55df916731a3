use std::time::Duration;

use base::BlobId;
use proptest::prelude::*;

use super::*;
use crate::id::NodeId;
use crate::id::{Member, Role, Seen, Zone};
use crate::message::{Answer, Ask, Group, Note, What};
use crate::transport::service::{Listed, Prefix, Roll};

/// The format cannot drift by accident: nodes of version 1 send these bytes.
#[test]
fn golden_bytes() {
    let header = Header {
        kind: Type::Data,
        flags: LAST,
        backlog: 0x0102,
        request: 0x0304_0506,
        offset: 0x0001_0000,
        length: 0x1000,
        crc: 0xaabb_ccdd,
        total: 0x0040_0000,
    };
    let hex: String = header.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(&hex[..56], "4356012201000201060504030000010000100000ddccbbaa00004000");
    assert_eq!(u32::from_le_bytes(*header.encode().last_chunk().unwrap()), crc32c(&header.encode()[..28]));
    let ask = Ask {
        group: Group(1),
        blobs: vec![BlobId([2; 32])],
        backlog: 3,
        not: vec![NodeId([4; 16])],
        sender: Some(NodeId([5; 16])),
        part: false,
    };
    let mut right = vec![1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 1, 1, 1];
    right.extend([2; 32]);
    right.extend([4; 16]);
    right.extend([5; 16]);
    assert_eq!(encode_ask(&ask), right);
    let lease = Answer::Lease { lease: 7, time: Duration::from_millis(300) };
    assert_eq!(encode_answers(&[lease]), [1, 3, 7, 0, 0, 0, 0, 0, 0, 0, 44, 1, 0, 0]);
    let note = Note { group: Group(1), blob: BlobId([2; 32]), what: What::Gone };
    let mut right = vec![1, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    right.extend([2; 32]);
    right.push(1);
    assert_eq!(encode_notes(&[note]), right);
    let get = Get { blob: BlobId([9; 32]), offset: 1, len: Get::REST };
    assert_eq!(get.encode()[32..], [1, 0, 0, 0, 255, 255, 255, 255]);
}

#[test]
fn the_limits_are_kept() {
    let long = Header { length: Type::Ask.most() + 1, ..Header::bare(Type::Ask, 0) };
    assert!(matches!(Header::decode(&long.encode()), Err(BadFrame::Long { .. })));
    let past = Header { offset: 10, length: 10, total: 19, ..Header::bare(Type::Data, 0) };
    assert!(matches!(Header::decode(&past.encode()), Err(BadFrame::Payload(_))));
    let full = Ask {
        group: Group(0),
        blobs: vec![BlobId([0; 32]); 16],
        backlog: 0,
        not: vec![NodeId([0; 16]); 8],
        sender: Some(NodeId([0; 16])),
        part: false,
    };
    assert!(encode_ask(&full).len() as u32 <= Type::Ask.most());
    let note = Note { group: Group(0), blob: BlobId([0; 32]), what: What::Refused { by: NodeId([0; 16]) } };
    assert!(encode_notes(&[note; 256]).len() as u32 <= Type::Notes.most());
    let listed = Listed { blobs: vec![BlobId([0; 32]); 5000], more: false };
    let bytes = encode_listed(&listed);
    assert!(bytes.len() as u32 <= Type::Listed.most() && decode_listed(&bytes).unwrap().more);
    let mut newer = Header::bare(Type::Ping, 0).encode();
    newer[2] = 9;
    assert_eq!(Header::decode(&newer), Err(BadFrame::Version(9)));
    let text = Texted { kind: ErrorKind::Bad, text: "ä\n".repeat(200) }.encode();
    assert!(text.len() <= 256);
    assert!(!Texted::<ErrorKind>::decode(&text).unwrap().text.contains('\n'));
}

fn node() -> impl Strategy<Value = NodeId> {
    any::<[u8; 16]>().prop_map(NodeId)
}

fn blob() -> impl Strategy<Value = BlobId> {
    any::<[u8; 32]>().prop_map(BlobId)
}

fn time() -> impl Strategy<Value = Duration> {
    any::<u32>().prop_map(|ms| Duration::from_millis(u64::from(ms)))
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        Just(Answer::Serve),
        Just(Answer::NotMine),
        (node(), prop::option::of(node())).prop_map(|(first, second)| Answer::Go { first, second }),
        (any::<u64>(), time()).prop_map(|(lease, time)| Answer::Lease { lease, time }),
        (node(), time()).prop_map(|(parent, time)| Answer::Wait { parent, time }),
    ]
}

fn seen() -> impl Strategy<Value = Seen> {
    let of_it = (any::<u64>(), any::<std::net::IpAddr>(), any::<u16>(), any::<bool>(), 0..3u8);
    let rest = (any::<u16>(), any::<u32>(), any::<u16>(), "[a-z0-9.]{1,63}");
    (node(), of_it, rest).prop_map(
        |(node, (generation, ip, port, depot, state), (weight, free, load, zone))| {
            let role = if depot { Role::Depot } else { Role::Node };
            let (address, zone) = (std::net::SocketAddr::new(ip, port), Zone::new(&zone).unwrap());
            let member = Member { node, generation, address, zone, role, weight, free, load };
            Seen { member, is_own: state == 2, is_suspect: state == 1 }
        },
    )
}

#[test]
fn a_full_roll_fits_in_its_frame() {
    let member = Member {
        node: NodeId([1; 16]),
        generation: 1,
        address: "[::1]:1".parse().unwrap(),
        zone: Zone::new(&"z".repeat(63)).unwrap(),
        role: Role::Node,
        weight: 1,
        free: 1,
        load: 1,
    };
    let seen = Seen { member, is_own: false, is_suspect: false };
    let bytes = encode_roll(&Roll { members: vec![seen; ROLL_MAX + 1], more: false });
    assert!(bytes.len() as u32 <= Type::Roll.most());
    let read = decode_roll(&bytes).unwrap();
    assert!(read.more && read.members.len() == ROLL_MAX);
    assert!(decode_roll(&bytes[..bytes.len() - 1]).is_err() && decode_roll(&[2]).is_err());
}

fn note() -> impl Strategy<Value = Note> {
    let what = prop_oneof![
        Just(What::Have),
        Just(What::Gone),
        Just(What::Fetching),
        any::<u64>().prop_map(|lease| What::Failed { lease }),
        node().prop_map(|by| What::Refused { by }),
        node().prop_map(|by| What::Silent { by }),
    ];
    (any::<u64>(), blob(), what).prop_map(|(group, blob, what)| Note { group: Group(group), blob, what })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_is_said_is_heard(
        group in any::<u64>(),
        blobs in prop::collection::vec(blob(), 1..=16),
        not in prop::collection::vec(node(), 0..=8),
        (backlog, upstream) in (any::<u16>(), prop::option::of(node())),
        answers in prop::collection::vec(answer(), 0..=16),
        notes in prop::collection::vec(note(), 0..=256),
        roll in prop::collection::vec(seen(), 0..20),
        (value, bits, more) in (any::<u32>(), 0..=32u8, any::<bool>()),
    ) {
        let listed = Listed { blobs: blobs.clone(), more };
        prop_assert_eq!(decode_listed(&encode_listed(&listed)), Ok(listed));
        let ask = Ask { group: Group(group), blobs, backlog, not, sender: upstream, part: false };
        prop_assert_eq!(decode_ask(&encode_ask(&ask)), Ok(ask));
        prop_assert_eq!(decode_answers(&encode_answers(&answers)), Ok(answers));
        prop_assert_eq!(decode_notes(&encode_notes(&notes)), Ok(notes));
        let roll = Roll { members: roll, more };
        prop_assert!(encode_roll(&roll).len() as u32 <= Type::Roll.most());
        prop_assert_eq!(decode_roll(&encode_roll(&roll)), Ok(roll));
        let list = ListAsk { prefix: Prefix { value, bits }, most: backlog };
        prop_assert_eq!(ListAsk::decode(&list.encode()), Ok(list));
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), head in any::<[u8; 32]>(), fix in any::<bool>()) {
        let mut head = head;
        if fix {
            head[..3].copy_from_slice(b"CV\x01");
            let own = crc32c(&head[..28]);
            head[28..].copy_from_slice(&own.to_le_bytes());
        }
        if let Ok(header) = Header::decode(&head) {
            prop_assert!(header.length <= header.kind.most());
        }
        let _ = decode_ask(&bytes);
        let _ = decode_answers(&bytes);
        let _ = decode_notes(&bytes);
        let _ = decode_listed(&bytes);
        let _ = decode_roll(&bytes);
        let _ = decode_filled(&bytes);
        let _ = ListAsk::decode(&bytes);
        let _ = RecallAsk::decode(&bytes);
        let _ = LendAsk::decode(&bytes);
        let _ = LoanPart::decode(&bytes);
        let _ = Returned::decode(&bytes);
        let _ = Get::decode(&bytes);
        let _ = Texted::<ErrorKind>::decode(&bytes);
        let _ = Texted::<Refusal>::decode(&bytes);
    }
}
