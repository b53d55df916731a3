use stream::hello::Sharing;
use stream::socket::Receiver;

use super::*;
use crate::testing::{Gated, connection, init, message, next};

const FSYNC: u32 = 20;
const READ: u32 = 15;
const STATFS: u32 = 17;

struct World {
    fs: Arc<Gated>,
    guest: Arc<Guest>,
}

impl World {
    /// A guest that has mounted.
    fn new() -> World {
        let fs = Gated::new();
        let counted = Counted::new(Arc::clone(&fs) as _, Sharing::One, false, Arc::default());
        let options = Options::new("test", b"test", Arc::new(|_: &str| ()));
        let guest = Guest::new([1; 16], 1, counted, Arc::new(options));
        let world = World { fs, guest };
        let (link, mut receiver) = world.connect();
        world.say(Kind::Request, 0, 1, 0, &init(), &link).unwrap();
        assert_eq!(next(&mut receiver).unwrap().0.kind, Kind::Reply);
        world.guest.leave(&link);
        world
    }

    fn connect(&self) -> (Arc<Outbox>, Receiver) {
        let (link, receiver) = connection();
        assert!(self.guest.join(&link));
        (link, receiver)
    }

    /// The server reads a frame from a connection. `attempt`: how often the guest had sent it before.
    fn say(
        &self,
        kind: Kind,
        slot: u16,
        seq: u64,
        attempt: u8,
        payload: &[u8],
        link: &Arc<Outbox>,
    ) -> Result<(), Cut> {
        let (mut payload, mut room) = (payload.to_vec(), fuse::buffer::PageBuf::for_reply());
        let head = Head { len: payload.len(), flags: attempt << 1, ..Head::of_slot(kind, slot, seq) };
        self.guest.take(0, &head, &mut payload, room.bytes(), link)
    }

    /// Has the server read a request on a thread of its own, because the filesystem holds the call back.
    fn say_and_wait(&self, seq: u64, attempt: u8, request: Vec<u8>, link: &Arc<Outbox>) {
        let world = World { fs: Arc::clone(&self.fs), guest: Arc::clone(&self.guest) };
        let link = Arc::clone(link);
        let say = move || world.say(Kind::Request, 0, seq, attempt, &request, &link).unwrap();
        base::thread::spawn("test", say).unwrap();
    }
}

fn read() -> Vec<u8> {
    let mut arguments = [0; 40];
    arguments[16..20].copy_from_slice(&4096_u32.to_ne_bytes());
    message(READ, 9, 2, &arguments)
}

fn fsync() -> Vec<u8> {
    message(FSYNC, 9, 2, &[0; 16])
}

/// A connection that was dead for its guest still had a request that nothing had read. The guest had sent it
/// again on another one. The reply went to the dead one, and the program waited for ever.
#[test]
fn regression_a_copy_on_a_dead_connection_does_not_take_the_reply() {
    for kind in [Kind::Request, Kind::Cancel] {
        let world = World::new();
        let ((dead, _), (link, mut receiver)) = (world.connect(), world.connect());
        world.fs.set(true);
        world.say_and_wait(2, 2, fsync(), &link);
        world.fs.holds_back(1);
        let payload = if kind == Kind::Request { fsync() } else { Vec::new() };
        world.say(kind, 0, 2, 1, &payload, &dead).unwrap();
        world.guest.leave(&dead);
        world.fs.set(false);
        let (head, _) = next(&mut receiver).unwrap();
        assert_eq!((head.kind, head.slot, head.seq), (Kind::Reply, 0, 2));
    }
}

/// The reply to a READ is not kept. A copy of one on a dead connection was executed again, and the guest was
/// cut off because its next request came meanwhile.
#[test]
fn regression_a_copy_on_a_dead_connection_does_not_occupy_its_slot() {
    let world = World::new();
    let ((dead, _), (link, mut receiver)) = (world.connect(), world.connect());
    world.say(Kind::Request, 0, 2, 1, &read(), &link).unwrap();
    assert_eq!(next(&mut receiver).unwrap().0.seq, 2);
    world.fs.set(true);
    world.say_and_wait(2, 0, read(), &dead);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let next_one = message(STATFS, 9, 2, &[]);
    world.say(Kind::Request, 0, 3, 0, &next_one, &link).unwrap();
    assert_eq!(next(&mut receiver).unwrap().0.seq, 3);
    world.fs.set(false);
}

/// A copy of a request says nothing about the guest when the guest has used the slot again.
#[test]
fn regression_a_copy_of_an_older_request_breaks_no_rule() {
    let world = World::new();
    let ((dead, _), (link, mut receiver)) = (world.connect(), world.connect());
    for seq in [2, 3] {
        world.say(Kind::Request, 0, seq, 0, &fsync(), &link).unwrap();
        assert_eq!(next(&mut receiver).unwrap().0.seq, seq);
    }
    world.say(Kind::Request, 0, 2, 0, &fsync(), &dead).unwrap();
    world.say(Kind::Cancel, 0, 2, 0, &[], &dead).unwrap();
    assert_eq!(world.guest.running(), 0);
}

/// The newest copy decides where the reply goes, also if it is read last.
#[test]
fn the_reply_follows_the_newest_copy() {
    let world = World::new();
    let ((dead, _), (link, mut receiver)) = (world.connect(), world.connect());
    world.fs.set(true);
    world.say_and_wait(2, 0, fsync(), &dead);
    world.fs.holds_back(1);
    world.say(Kind::Request, 0, 2, 1, &fsync(), &link).unwrap();
    world.guest.leave(&dead);
    world.fs.set(false);
    assert_eq!(next(&mut receiver).unwrap().0.seq, 2);
}
