//! Guests that break the rules: each is cut off with a reason, costs little, and disturbs no other.

use std::fs;
use std::path::Path;
use std::time::Duration;

use covey_tests::{Need, proc, requires};
use stream::address::Address;
use stream::attach::greet::{Greeted, greet};
use stream::frame::{Head, Kind, PAYLOAD_MAX, encode};
use stream::hello::{Keys, decode_refusal};
use stream::socket::{Lost, Receiver};

use super::world::{Guest, PATIENCE, Place, Server, until};

/// A request of the kernel's. INIT first, or nothing is served.
fn message(opcode: u32, unique: u64, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    bytes[..4].copy_from_slice(&((40 + arguments.len()) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
    bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
    bytes[16] = 1;
    bytes.extend(arguments);
    bytes
}

fn init() -> Vec<u8> {
    let mut arguments = Vec::new();
    let flags: u64 = !(1 << 41);
    for number in [7, 40, 1 << 20, flags as u32, (flags >> 32) as u32] {
        arguments.extend(number.to_ne_bytes());
    }
    arguments.resize(64, 0);
    message(26, 2, &arguments)
}

struct Liar {
    receiver: Receiver,
    slots: u16,
}

impl Liar {
    fn greet(place: &Place) -> Liar {
        let address: Address = place.unix("s").parse().unwrap();
        let Greeted { receiver, welcome, .. } = greet(&address, &Keys::new(None), [0; 16], 0)
            .unwrap_or_else(|trouble| panic!("{}", trouble.text));
        receiver.socket().limit(Some(PATIENCE), Some(Duration::from_secs(2))).unwrap();
        Liar { receiver, slots: welcome.slots }
    }

    /// One that has mounted.
    fn mounted(place: &Place) -> Liar {
        let mut liar = Liar::greet(place);
        liar.say(Kind::Request, 0, 1, &init());
        assert_eq!(liar.next().unwrap().0.kind, Kind::Reply);
        liar
    }

    fn say(&self, kind: Kind, slot: u16, seq: u64, payload: &[u8]) {
        // It fails when the server has cut.
        let _ = self.receiver.socket().send(&Head::of_slot(kind, slot, seq), &[payload]);
    }

    fn raw(&self, bytes: &[u8]) {
        let _ = self.receiver.socket().send_bytes(bytes);
    }

    fn next(&mut self) -> Result<(Head, Vec<u8>), Lost> {
        let mut room = vec![0; PAYLOAD_MAX];
        let head = self.receiver.receive(&mut room)?;
        room.truncate(head.len);
        Ok((head, room))
    }

    /// The reason for which it was cut off. It may have been cut before the reason arrived.
    fn why_cut(mut self) -> String {
        loop {
            match self.next() {
                Ok((head, payload)) if head.kind == Kind::Refuse => {
                    let why = decode_refusal(&payload).unwrap().1;
                    while self.next().is_ok() {}
                    return why;
                }
                Ok(_) => {}
                Err(_) => return String::new(),
            }
        }
    }
}

fn world() -> (Place, Server, Guest) {
    let place = Place::new();
    let server = place.serve(&["--many", "--linger", "1"]);
    let guest = Guest::attach(&place, "mnt", &place.unix("s"), &[]);
    fs::write(guest.join("f"), "x").unwrap();
    (place, server, guest)
}

#[test]
fn every_lie_ends_its_own_connection_only() {
    requires!(Need::Root, Need::Covey);
    let (place, server, guest) = world();
    let getattr = message(3, 9, &[0; 16]);
    let mut wrong_sum = encode(&Head::of_slot(Kind::Request, 0, 2), &[&getattr]).to_vec();
    wrong_sum.extend(&getattr);
    *wrong_sum.last_mut().unwrap() ^= 1;
    let mut long = encode(&Head::of_slot(Kind::Request, 0, 2), &[&getattr]);
    long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut unknown = long;
    unknown[4] = 200;
    let mut wrong_length = getattr.clone();
    wrong_length[0] += 1;
    type Lie<'a> = Box<dyn Fn(&Liar) + 'a>;
    let lies: Vec<(&str, Lie<'_>)> = vec![
        ("checksum", Box::new(|liar| liar.raw(&wrong_sum))),
        ("announces", Box::new(|liar| liar.raw(&long))),
        ("unknown kind", Box::new(|liar| liar.raw(&unknown))),
        ("makes no sense", Box::new(|liar| liar.say(Kind::Request, 0, 2, &wrong_length))),
        ("makes no sense", Box::new(|liar| liar.say(Kind::Request, 0, 2, b"short"))),
        ("makes no sense", Box::new(|liar| liar.say(Kind::Welcome, 0, 0, b""))),
        ("used slot", Box::new(|liar| liar.say(Kind::Request, liar.slots, 1, &getattr))),
        ("after", Box::new(|liar| liar.say(Kind::Request, 0, 77, &getattr))),
        ("after", Box::new(|liar| liar.say(Kind::Cancel, 0, 77, &[]))),
        ("wrong order", Box::new(|liar| liar.say(Kind::Agreed, 0, 0, &[0; 12]))),
    ];
    for (wanted, lie) in lies {
        let liar = Liar::mounted(&place);
        lie(&liar);
        let why = liar.why_cut();
        assert!(why.contains(wanted), "wanted {wanted:?}, and the server said {why:?}");
        assert_eq!(fs::read_to_string(guest.join("f")).unwrap(), "x");
    }
    let liar = Liar::greet(&place);
    liar.say(Kind::Request, 0, 1, &getattr);
    assert!(liar.why_cut().contains("wrong order"), "a request came before INIT");
    until("the log says it", || server.log().contains("cut off"));
    guest.end();
}

/// A guest that forgets what it does not hold takes nothing from others.
#[test]
fn forged_references_and_numbers_hurt_nobody_else() {
    requires!(Need::Root, Need::Covey);
    let (place, _server, guest) = world();
    let open = fs::File::open(guest.join("f")).unwrap();
    let ino = std::os::unix::fs::MetadataExt::ino(&open.metadata().unwrap());
    fs::remove_file(guest.join("f")).unwrap();
    let mut liar = Liar::mounted(&place);
    let mut forget = message(2, 0, &u64::MAX.to_ne_bytes());
    forget[16..24].copy_from_slice(&ino.to_ne_bytes());
    liar.say(Kind::Request, 0, 2, &forget);
    assert_eq!(liar.next().unwrap().0.kind, Kind::Reply);
    for (seq, node) in [(3, 0), (4, u64::MAX), (5, 1 << 40)] {
        let mut getattr = message(3, 9, &[0; 16]);
        getattr[16..24].copy_from_slice(&u64::to_ne_bytes(node));
        liar.say(Kind::Request, 0, seq, &getattr);
        let reply = liar.next().unwrap().1;
        assert!(reply.len() == 16 && reply[4..8] != [0; 4], "inode {node} has attributes: {reply:?}");
    }
    std::thread::sleep(Duration::from_millis(1500));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut &open, &mut text).unwrap();
    assert_eq!(text, "x", "another guest's open file is gone");
    drop(open);
    guest.end();
}

/// A guest that sends more than its credits, or never reads, is cut off before it costs much memory.
#[test]
fn floods_are_bounded() {
    requires!(Need::Root, Need::Covey);
    let (place, server, guest) = world();
    fs::write(guest.join("big"), vec![1; 4 << 20]).unwrap();
    let before = proc::rss_kib(server.pid());
    for round in 0..3 {
        let mut liar = Liar::mounted(&place);
        // Reads of all slots, again and again, and no reply is read.
        let read = |unique| {
            let mut arguments = [0; 40];
            arguments[16..20].copy_from_slice(&(1_u32 << 20).to_ne_bytes());
            message(15, unique, &arguments)
        };
        let lookup = message(1, 8, b"big\0");
        liar.say(Kind::Request, 0, 2, &lookup);
        let node = liar.next().unwrap().1[16..24].to_vec();
        for turn in 0..40 {
            for slot in 1..liar.slots {
                let mut request = read(u64::from(slot));
                request[16..24].copy_from_slice(&node);
                liar.say(Kind::Request, slot, turn + 1, &request);
            }
            if round == 1 {
                (0..20_000).for_each(|_| liar.say(Kind::Ping, 0, 0, &[]));
                break;
            }
        }
        assert_eq!(fs::read_to_string(guest.join("f")).unwrap(), "x", "others go on meanwhile");
        drop(liar);
    }
    until("the liars are forgotten", || server.log().matches("is forgotten").count() >= 3);
    let grown = proc::rss_kib(server.pid()).saturating_sub(before);
    assert!(grown < 400 << 10, "the server grew by {grown} KiB");
    assert_eq!(fs::read(guest.join("big")).unwrap().len(), 4 << 20);
    guest.end();
}

/// Connections that say nothing, or that only greet, do not keep others out.
#[test]
fn silent_strangers_are_no_guests() {
    requires!(Need::Root, Need::Covey);
    let (place, _server, guest) = world();
    let address: Address = place.unix("s").parse().unwrap();
    let silent: Vec<_> =
        (0..50).map(|_| stream::socket::Socket::connect(&address, PATIENCE).unwrap()).collect();
    silent[0].send_bytes(b"GET / HTTP/1.1\r\n\r\n and more than a header").unwrap();
    let second = Guest::attach(&place, "second", &place.unix("s"), &[]);
    assert_eq!(fs::read_to_string(second.join("f")).unwrap(), "x");
    second.end();
    guest.end();
}

/// A guest's machine that lost its power, over TCP, was never missed: its locks stayed, and with one guest at
/// a time no other could attach.
#[test]
fn regression_a_guest_that_vanishes_without_a_word_is_missed() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let secret = place.secret("secret");
    let server = place.serve(&["--linger", "1", "--on", "tcp:127.0.0.1:0", "--secret-file", &secret]);
    let address: Address = server.tcp().parse().unwrap();
    let keys = Keys::new(Some(&base::secret::Secret::from_file(Path::new(&secret)).unwrap()));
    let greeted = greet(&address, &keys, [0; 16], 0).unwrap_or_else(|trouble| panic!("{}", trouble.text));
    until("it is attached", || server.log().contains("guest 1 attached"));
    vanish(greeted.receiver.socket());
    drop(greeted);
    until("the server misses it", || server.log().contains("is forgotten"));
    server.end();
}

/// From now on the machine says nothing of this connection, also not that it ends.
fn vanish(socket: &stream::socket::Socket) {
    let (on, len) = (1_i32, size_of::<i32>() as libc::socklen_t);
    let stream = socket.cloned().unwrap().into_stream();
    // SAFETY: the descriptor is open, and the kernel reads `len` bytes of a number that lives through the
    // call.
    let done = unsafe {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&stream);
        libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, (&raw const on).cast(), len)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
