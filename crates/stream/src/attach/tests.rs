use super::*;
use crate::frame::PAYLOAD_MAX;
use crate::socket::{Listener, Receiver, Socket};

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

#[test]
fn the_caller_can_give_up_while_a_server_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("s"));
    let listener = Listener::bind(&address).unwrap();
    let accepted = Arc::new(AtomicBool::new(false));
    let told = accepted.clone();
    let silent = base::thread::spawn("test", move || {
        let socket = listener.accept().unwrap();
        told.store(true, Ordering::Release);
        socket
    });
    let options = Options {
        address: address.clone(),
        secret: None,
        readers: 1,
        connections: 1,
        wait: Duration::from_secs(60),
        flags: Flags::default(),
        trace: 0,
    };
    let stops = || accepted.load(Ordering::Acquire);
    match Attached::attach(options, folder.path(), |_| (), &stops) {
        Err(AttachError::Stopped(at)) => assert_eq!(at, address),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("nothing has answered"),
    }
    drop(silent.unwrap().join());
}

/// A relay without a mount. The kernel is the other end of a socket.
struct Relay {
    shared: Arc<Shared>,
    kernel: UnixDatagram,
}

impl Relay {
    fn new(slots: u16) -> Relay {
        let (kernel, device) = UnixDatagram::pair().unwrap();
        Relay { shared: shared(vec![Device::of(File::from(OwnedFd::from(device)))], slots), kernel }
    }

    /// The kernel has a GETATTR of a process, and the relay has read it.
    fn ask(&self, unique: u64, pid: u32) {
        let mut message = vec![0; request::IN_HEADER + 16];
        message[..4].copy_from_slice(&((request::IN_HEADER + 16) as u32).to_ne_bytes());
        message[4..8].copy_from_slice(&3_u32.to_ne_bytes());
        message[8..16].copy_from_slice(&unique.to_ne_bytes());
        message[16] = 1;
        message[32..36].copy_from_slice(&pid.to_ne_bytes());
        let len = message.len();
        message.resize(PAYLOAD_MAX, 0);
        self.shared.relay(0, &mut message, len);
    }

    /// The next reply that the kernel has: the error, and to which request.
    fn replied(&self) -> Option<(i32, u64)> {
        self.kernel.set_nonblocking(true).unwrap();
        let mut reply = [0; 16];
        let len = self.kernel.recv(&mut reply).ok()?;
        assert_eq!(len, 16);
        let (error, unique) = (reply[4..8].first_chunk().unwrap(), reply[8..].first_chunk().unwrap());
        Some((-i32::from_ne_bytes(*error), u64::from_ne_bytes(*unique)))
    }
}

fn shared(devices: Vec<Device>, slots: u16) -> Arc<Shared> {
    let options = Options {
        address: "unix:/nothing".parse().unwrap(),
        secret: None,
        readers: devices.len(),
        connections: 1,
        wait: Duration::from_secs(600),
        flags: Flags::default(),
        trace: 0,
    };
    let shared = Shared {
        keys: Keys::new(None),
        flight: Flight::default(),
        links: vec![Link::default()],
        session: Mutex::new(Session { id: [1; 16], number: 1, source: [1; 16], boot: [1; 16] }),
        held: Mutex::default(),
        has_locks: false,
        sharing: Sharing::Many,
        read_only: false,
        locks: Mutex::default(),
        early: Mutex::default(),
        figures: Figures::default(),
        readers_left: AtomicUsize::new(devices.len()),
        devices,
        rooms: Arc::default(),
        notes: Notes::default(),
        state: Mutex::default(),
        changed: Condvar::new(),
        next_link: AtomicU64::new(1),
        failing: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        wrote: AtomicBool::new(false),
        tracer: Tracer::default(),
        options,
        log: |_| (),
    };
    shared.flight.grant(slots, 1 << 20, false);
    Arc::new(shared)
}

/// With no server and no free slot, every reader waited for a slot. So none read that programs were killed.
#[test]
fn regression_a_program_that_waits_for_a_slot_can_be_killed() {
    let relay = Relay::new(1);
    let (me, gone) = (std::process::id(), u32::MAX >> 1);
    relay.ask(1, me);
    relay.ask(2, me);
    relay.ask(3, gone);
    assert_eq!((relay.shared.flight.figures(), relay.replied()), ((1, 0, 2), None));
    relay.shared.interrupt(2);
    assert_eq!(relay.replied(), None, "a usual signal does not end it");
    relay.shared.interrupt(3);
    assert_eq!(relay.replied(), Some((libc::EINTR, 3)));
    // The one in the slot is given up, and the next one of the line takes the slot, with its signal.
    let first = relay.shared.flight.by_unique(1).unwrap();
    relay.shared.give_up(&first, libc::EINTR);
    relay.shared.advance();
    assert_eq!(relay.replied(), Some((libc::EINTR, 1)));
    assert!(relay.shared.flight.by_unique(2).is_some_and(|second| second.signalled));
    assert_eq!(relay.shared.flight.figures(), (1, 0, 0));
}

/// A signal that comes before its request is known in the line too.
#[test]
fn a_signal_can_come_before_a_request_that_waits_for_a_slot() {
    let relay = Relay::new(1);
    relay.ask(1, std::process::id());
    relay.shared.interrupt(2);
    relay.ask(2, u32::MAX >> 1);
    assert_eq!(relay.replied(), Some((libc::EINTR, 2)));
    relay.shared.flight.set_failing(true);
    relay.ask(3, 1);
    assert_eq!(relay.replied(), Some((libc::EIO, 3)));
}

/// A request was given up and withdrawn. The next one had its slot and its number, and a thread that still
/// had the first one marked the second as given up: its program waited for ever.
#[test]
fn regression_giving_up_an_old_request_spares_the_one_in_its_place() {
    let relay = Relay::new(1);
    relay.ask(1, 1);
    let old = relay.shared.flight.by_unique(1).unwrap();
    relay.shared.give_up(&old, libc::EINTR);
    assert_eq!(relay.replied(), Some((libc::EINTR, 1)));
    relay.ask(2, 1);
    relay.shared.give_up(&old, libc::EINTR);
    assert_eq!(relay.replied(), None);
    let second = relay.shared.flight.by_unique(2).unwrap();
    assert!((second.slot, second.seq) == (old.slot, old.seq) && !second.given_up);
}

/// One failing read of the device ended the requests of all other readers without an answer.
#[test]
fn regression_a_failing_read_of_the_device_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    // A folder can be opened and not read.
    let device = || Device::of(File::open(folder.path()).unwrap());
    let shared = shared(vec![device(), device()], 1);
    let reading = Arc::clone(&shared);
    let reader = base::thread::spawn("test", move || reading.read_device(0)).unwrap();
    std::thread::sleep(3 * LOOK);
    assert!(!reader.is_finished());
    shared.ended.store(true, Ordering::Release);
    reader.join().unwrap();
}

#[test]
fn a_request_after_the_end_is_answered() {
    let relay = Relay::new(1);
    relay.ask(1, 1);
    relay.ask(2, 1);
    relay.shared.flight.close();
    relay.shared.advance();
    relay.ask(3, 1);
    assert_eq!(relay.replied(), Some((libc::ENOTCONN, 2)));
    assert_eq!(relay.replied(), Some((libc::ENOTCONN, 3)));
}

/// A reply that took longer than a dead connection was cut off while it came, again and again.
#[test]
fn regression_bytes_of_a_frame_that_is_not_whole_are_heard() {
    let (here, there) = Socket::pair().unwrap();
    let mut receiver = Receiver::new(here);
    let heard = receiver.heard();
    heard.store(0, Ordering::Relaxed);
    let reader = base::thread::spawn("test", move || receiver.receive(&mut vec![0; PAYLOAD_MAX]).is_err());
    there.send_bytes(&[1]).unwrap();
    let until = base::Deadline::after(Duration::from_secs(60));
    while heard.load(Ordering::Relaxed) == 0 {
        assert!(!until.is_over(), "a byte has come, and is not heard");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(there);
    assert!(reader.unwrap().join().unwrap());
}

/// What the server takes of a large request counts too.
#[test]
fn the_socket_says_how_much_was_not_taken() {
    let (here, there) = Socket::pair().unwrap();
    assert_eq!(here.unsent(), 0);
    here.send_bytes(&[0; 1000]).unwrap();
    assert!(here.unsent() >= 1000);
    std::io::Read::read_exact(&mut there.into_stream(), &mut [0; 1000]).unwrap();
    assert_eq!(here.unsent(), 0);
}
