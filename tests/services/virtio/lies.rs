//! Guests and VMMs that break the rules: an error, or the end of the queue, with a line in the log. Others go
//! on, and the server too.

use std::time::Duration;

use covey_tests::Rng;
use stream::hello::Sharing;

use super::driver::{Descriptor, INDIRECT, MEMORY, NEXT, SIZE, Vmm, WRITE, message};
use super::world::{PATIENCE, World, until};

const GETATTR: u32 = 3;
const FSYNC: u32 = 20;

type Lie = fn(&mut Vmm);

/// A request at head 0 that is right, for a lie to spoil.
fn getattr(vmm: &Vmm) -> [u64; 2] {
    let [at, room] = Vmm::places(0);
    vmm.put(at, &message(GETATTR, 77, 1, &[0; 16]));
    [at, room]
}

fn chain(vmm: &mut Vmm, descriptors: &[Descriptor]) {
    for (index, descriptor) in descriptors.iter().enumerate() {
        vmm.describe(1, index as u16, *descriptor);
    }
    vmm.offer(1, 0);
    vmm.kick(1);
}

fn descriptor(at: u64, len: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { at, len, flags, next }
}

/// What ends a queue, with a word of its line in the log.
const ENDS: [(&str, Lie); 11] = [
    ("does not end", |vmm| {
        let [at, _] = getattr(vmm);
        chain(vmm, &[descriptor(at, 28, NEXT, 1), descriptor(at + 28, 28, NEXT, 0)]);
    }),
    ("does not end", |vmm| {
        let [at, _] = getattr(vmm);
        chain(vmm, &[descriptor(at, 56, NEXT, SIZE)]);
    }),
    ("does not end", |vmm| {
        vmm.offer(1, SIZE + 3);
        vmm.kick(1);
    }),
    ("outside of the guest's memory", |vmm| {
        let [at, _] = getattr(vmm);
        chain(vmm, &[descriptor(at, 56, NEXT, 1), descriptor(MEMORY - 8, 120, WRITE, 0)]);
    }),
    ("outside of the guest's memory", |vmm| {
        chain(vmm, &[descriptor(u64::MAX - 10, 56, NEXT, 1), descriptor(0, 120, WRITE, 0)]);
    }),
    ("outside of the guest's memory", |vmm| {
        let [at, _] = getattr(vmm);
        chain(vmm, &[descriptor(at, u32::MAX, NEXT, 1), descriptor(0, 120, WRITE, 0)]);
    }),
    ("reads after it writes", |vmm| {
        let [at, room] = getattr(vmm);
        chain(vmm, &[descriptor(room, 120, NEXT | WRITE, 1), descriptor(at, 56, 0, 0)]);
    }),
    ("does not end", |vmm| {
        // A table in a table.
        let [at, _] = getattr(vmm);
        vmm.put(at + 0x1000, &descriptor(at + 0x1000, 16, INDIRECT, 0).bytes());
        chain(vmm, &[descriptor(at + 0x1000, 16, INDIRECT, 0)]);
    }),
    ("does not end", |vmm| {
        let [at, _] = getattr(vmm);
        chain(vmm, &[descriptor(at, 17, INDIRECT, 0)]);
    }),
    ("does not end", |vmm| chain(vmm, &[descriptor(MEMORY - 8, 160, INDIRECT, 0)])),
    ("more descriptors to process than queue size", |vmm| {
        vmm.claim(1, 40_000);
        vmm.kick(1);
    }),
];

/// Each of these ends its queue. The guest's other queues go on, and so does another guest.
#[test]
fn a_broken_queue_ends_alone() {
    for (index, (words, lie)) in ENDS.iter().enumerate() {
        let world = World::new(Sharing::Many, 1);
        let (mut liar, mut other) =
            (Vmm::mounted(&world.path("one"), 3), Vmm::mounted(&world.path("two"), 2));
        lie(&mut liar);
        world.says("queue 1 stopped for good");
        assert!(world.log().contains(words), "{index}: {}", world.log());
        assert_eq!(liar.used(1, Duration::ZERO), None, "{index}: it got a reply");
        let reply = liar.ask(2, GETATTR, 1, &[0; 16], 104);
        assert_eq!(reply.error, 0, "{index}: its other queue");
        assert!(other.is_served(), "{index}: the other guest");
        drop(liar);
        world.says("its VMM is gone");
        assert!(Vmm::mounted(&world.path("one"), 2).is_served(), "{index}: the next guest");
    }
}

/// Requests that make no sense get an error, and their queue goes on.
#[test]
fn a_request_without_sense_gets_an_error() {
    let world = World::new(Sharing::Many, 1);
    let mut vmm = Vmm::mounted(&world.path("one"), 2);
    let ended = |vmm: &mut Vmm, request: &[u8], room: usize| {
        vmm.send(1, request, room);
        let (head, len) = vmm.used(1, PATIENCE).unwrap();
        (len, (len > 0).then(|| vmm.reply(head, len).error))
    };
    let right = message(GETATTR, 9, 1, &[0; 16]);
    let with_len = |len: u32| [&len.to_ne_bytes(), &right[4..]].concat();
    let error = |error: i32| (16, Some(-error));
    assert_eq!(ended(&mut vmm, &with_len(57), 120), error(libc::EIO), "longer than it is");
    assert_eq!(ended(&mut vmm, &with_len(40), 120), error(libc::EIO), "shorter than it is");
    assert_eq!(ended(&mut vmm, &with_len(u32::MAX), 120), error(libc::EIO));
    assert_eq!(ended(&mut vmm, &with_len(0), 120), error(libc::EIO));
    assert_eq!(ended(&mut vmm, &right[..20], 120), error(libc::EIO), "half a header");
    assert_eq!(ended(&mut vmm, &right[..3], 120), (0, None), "nothing to reply to");
    assert_eq!(ended(&mut vmm, &message(999, 9, 1, &[0; 16]), 120), error(libc::ENOSYS), "unknown");
    assert_eq!(ended(&mut vmm, &message(48, 9, 1, &[0; 40]), 120), error(libc::ENOSYS), "a DAX window");
    assert_eq!(ended(&mut vmm, &right, 119), error(libc::EIO), "too little room for the reply");
    assert_eq!(ended(&mut vmm, &right, 16), error(libc::EIO));
    assert_eq!(ended(&mut vmm, &right, 15), (0, None), "no room for an error");
    assert_eq!(ended(&mut vmm, &right, 0), (0, None));
    let mut read = [0; 40];
    read[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
    let (_, much) = ended(&mut vmm, &message(15, 9, 2, &read), 4096);
    assert!(much.is_some_and(|error| error < 0), "more than any read");
    assert!(vmm.is_served());
    for words in ["another length than it says", "too little room for its reply"] {
        assert!(world.log().contains(words), "{}", world.log());
    }
    assert!(!world.log().contains("stopped for good"), "{}", world.log());
    // A guest that goes on like this does not fill the log.
    (0..100).for_each(|_| assert_eq!(ended(&mut vmm, &with_len(57), 120).0, 16));
    assert!(world.log().lines().count() < 40 && world.log().contains("more of this is not logged"));
    let mut fresh = Vmm::connect(&world.path("two"), 2);
    assert_eq!(fresh.ask(1, GETATTR, 1, &[0; 16], 104).error, -libc::EIO, "before INIT");
}

/// A reply that cannot be delivered gives back the reference that it would have taken.
#[test]
fn a_reply_without_room_leaves_no_reference() {
    let world = World::new(Sharing::Many, 1);
    let mut vmm = Vmm::mounted(&world.path("one"), 2);
    let before = world.watched.references();
    let head = vmm.send(1, &message(1, 1001, 1, b"0\0"), 100);
    let (_, len) = vmm.used(1, PATIENCE).unwrap();
    assert_eq!(vmm.reply(head, len).error, -libc::EIO);
    until("it is given back", || world.watched.references() == before);
}

/// A driver that offers the same chain again and again, without waiting for it, takes bounded memory: it has
/// more requests in flight than descriptors, and its queue ends.
#[test]
fn a_flood_ends_its_queue() {
    let world = World::new(Sharing::Many, 1);
    let (mut vmm, mut other) = (Vmm::mounted(&world.path("one"), 2), Vmm::mounted(&world.path("two"), 2));
    world.watched.hold_back(true);
    let head = vmm.send(1, &message(FSYNC, 1001, 2, &[0; 16]), 16);
    const FLOOD: &str = "more requests are in flight than it has descriptors";
    for _ in 0..4 * SIZE {
        vmm.offer(1, head);
        vmm.kick(1);
        // More chains that the server has not taken yet than the ring has places are another mistake.
        until("the server takes them", || vmm.untaken(1) < SIZE / 2 || world.log().contains(FLOOD));
    }
    world.says(FLOOD);
    assert!(other.is_served());
    world.watched.hold_back(false);
}

/// A VMM that says what cannot be is disconnected with a reason, and the next one is served.
#[test]
fn a_vmm_that_lies_is_disconnected() {
    let outside: [u64; 3] = [0x7f00_0000_1000, 0x7f00_0000_2000, 0x1234];
    type Said = fn(&mut Vmm, [u64; 3]) -> bool;
    let said: [(&str, Said); 3] = [
        ("outside of the guest's memory", |vmm, outside| vmm.start_at(1, 0, outside).is_err()),
        ("outside of the guest's memory", |vmm, _| {
            let end = 0x7f00_0000_0000 + MEMORY - 16;
            vmm.start_at(1, 0, [end, end - 4096, end - 8192]).is_err()
        }),
        ("cannot have 63 descriptors", |vmm, _| {
            use vhost::VhostBackend;
            vmm.frontend().set_vring_num(1, 63).is_err()
        }),
    ];
    for (words, lie) in said {
        let world = World::new(Sharing::Many, 1);
        let mut vmm = Vmm::mounted(&world.path("one"), 2);
        vmm.stop(1);
        assert!(lie(&mut vmm, outside), "{words}: it was believed");
        world.says("its VMM was disconnected");
        assert!(world.log().contains(words), "{}", world.log());
        assert!(Vmm::mounted(&world.path("one"), 2).is_served());
    }
}

/// Random rings, descriptors and bytes: the server neither panics nor hangs, and serves the next guest.
#[test]
fn random_queues_do_no_harm() {
    let seed = std::env::var("COVEY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(base::random::u64);
    println!("COVEY_SEED={seed}");
    let mut rng = Rng::new(seed);
    let world = World::new(Sharing::Many, 1);
    for _ in 0..150 {
        let mut vmm = Vmm::mounted(&world.path("one"), 3);
        for queue in 1..3 {
            for index in 0..SIZE {
                vmm.describe(queue, index, random_descriptor(&mut rng));
            }
        }
        for head in 0..8 {
            let len = rng.below(200) as usize;
            let mut bytes = rng.bytes(40 + len);
            bytes[..4].copy_from_slice(&((40 + len) as u32).to_ne_bytes());
            bytes[4..8].copy_from_slice(&(rng.below(60) as u32).to_ne_bytes());
            vmm.put(Vmm::places(head)[0], &bytes);
        }
        for _ in 0..rng.below(40) {
            let queue = 1 + rng.below(2) as usize;
            vmm.offer(queue, rng.below(u64::from(SIZE) + 2) as u16);
            vmm.kick(queue);
        }
        if rng.below(4) == 0 {
            vmm.claim(1, rng.below(1 << 16) as u16);
            vmm.kick(1);
        }
        drop(vmm);
    }
    assert!(!world.log().contains("panicked"), "{}", world.log());
    assert!(Vmm::mounted(&world.path("one"), 2).is_served());
}

fn random_descriptor(rng: &mut Rng) -> Descriptor {
    let near = Vmm::places(rng.below(8) as u16)[rng.below(2) as usize];
    let at = match rng.below(10) {
        0 => rng.below(u64::MAX),
        1 => MEMORY - rng.below(100),
        // The rings themselves.
        2 => 0x1000 + rng.below(0xc000),
        _ => near,
    };
    let len = [0, 1, 16, 40, 56, 120, 4096, 0x20000, u32::MAX][rng.below(9) as usize];
    let flags = [0, NEXT, NEXT, NEXT | WRITE, WRITE, INDIRECT, 0xffff][rng.below(7) as usize];
    Descriptor { at, len, flags, next: rng.below(u64::from(SIZE) + 1) as u16 }
}
