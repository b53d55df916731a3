//! What waits, what is given back, and how queues stop.

use std::time::Duration;

use stream::hello::Sharing;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserConfigFlags;

use super::driver::{Vmm, message};
use super::world::{PATIENCE, World, until};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const MKDIR: u32 = 9;
const FSYNC: u32 = 20;
const FALLOCATE: u32 = 43;

/// A request that waits delays no other on its queue, also with all threads of the queue: replies come in
/// any order.
#[test]
fn replies_come_in_any_order() {
    let world = World::new(Sharing::Many, 1);
    let mut vmm = Vmm::mounted(&world.path("one"), 2);
    world.watched.hold_back(true);
    let fsync = |unique| message(FSYNC, unique, 2, &[0; 16]);
    let waiting: Vec<u16> = (0..5).map(|at| vmm.send(1, &fsync(1001 + 2 * at), 16)).collect();
    for _ in 0..20 {
        assert!(vmm.is_served());
    }
    assert_eq!(vmm.used(1, Duration::from_millis(50)), None, "an fsync has ended");
    world.watched.hold_back(false);
    let mut ended: Vec<u16> = (0..5)
        .map(|_| {
            let (head, len) = vmm.used(1, PATIENCE).unwrap();
            assert_eq!(vmm.reply(head, len).error, 0);
            head
        })
        .collect();
    ended.sort_unstable();
    assert_eq!(ended, waiting);
}

/// A queue that the VMM stops finishes what it has taken, and goes on where it was. A guest that only paused
/// misses nothing.
#[test]
fn a_stopped_queue_finishes_what_it_took() {
    let world = World::new(Sharing::Many, 1);
    let mut vmm = Vmm::mounted(&world.path("one"), 2);
    world.watched.hold_back(true);
    let head = vmm.send(1, &message(FSYNC, 1001, 2, &[0; 16]), 16);
    assert!(vmm.is_served());
    let watched = std::sync::Arc::clone(&world.watched);
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        watched.hold_back(false);
    });
    let position = vmm.stop(1);
    later.join().unwrap();
    let (used, len) = vmm.used(1, Duration::ZERO).expect("the queue stopped without its reply");
    assert_eq!((used, vmm.reply(used, len).error), (head, 0));
    // While it is stopped, nothing is taken.
    let head = vmm.send(1, &message(GETATTR, 1003, 1, &[0; 16]), 16 + 104);
    assert_eq!(vmm.used(1, Duration::from_millis(50)), None);
    vmm.start(1, position as u16).unwrap();
    assert_eq!(vmm.used(1, PATIENCE).unwrap().0, head);
    assert!(vmm.is_served());
}

/// FORGETs come on a queue of their own, or among the requests, and get no reply. What a guest holds is given
/// back when its VMM goes, when it unmounts, and when it mounts anew without a word.
#[test]
fn what_a_guest_held_is_given_back() {
    let world = World::new(Sharing::One, 1);
    let mut vmm = Vmm::mounted(&world.path("one"), 2);
    let before = world.watched.references();
    let look = |vmm: &mut Vmm| assert_eq!(vmm.ask(1, LOOKUP, 1, b"0\0", 128).error, 0);
    (0..3).for_each(|_| look(&mut vmm));
    assert_eq!(world.watched.references(), before + 1, "a guest counts as one reference");
    // The kernel that sends one among its requests waits for its end.
    for (queue, count) in [(1, 2_u64), (0, 1)] {
        let forget = message(FORGET, 1001, 2, &count.to_ne_bytes());
        let head = vmm.send(queue, &forget, 0);
        assert_eq!(vmm.used(queue, PATIENCE), Some((head, 0)));
    }
    assert_eq!(world.watched.references(), before);
    for end in 0..3 {
        look(&mut vmm);
        match end {
            0 => vmm.init(),
            1 => {
                assert_eq!(vmm.ask(1, 38, 0, &[], 0).error, 0, "DESTROY");
                vmm.init();
            }
            _ => drop(std::mem::replace(&mut vmm, Vmm::connect_again(&world))),
        }
        until("its references are given back", || world.watched.references() == before);
    }
    world.says("its VMM is gone");
}

impl Vmm {
    /// Another VMM at the other socket. With one guest at a time it is refused first.
    fn connect_again(world: &World) -> Vmm {
        assert!(Vmm::try_connect(&world.path("two"), 2).is_err(), "two guests at a time");
        world.says("a VMM was refused: another guest is attached");
        let other = World::new(Sharing::One, 1);
        Vmm::mounted(&other.path("one"), 2)
    }
}

/// The set-id bits of a file are never kept, because a write drops them and the kernel cannot be told.
#[test]
fn set_id_bits_are_not_kept() {
    for (sharing, keep) in [(Sharing::One, 7), (Sharing::Many, 7), (Sharing::Many, 0)] {
        let world = World::new(sharing, keep);
        let mut vmm = Vmm::mounted(&world.path("one"), 2);
        let body = vmm.ask(1, LOOKUP, 1, b"0\0", 128).body;
        let [name, attributes] = [16, 24].map(|at| u64::from_ne_bytes(body[at..at + 8].try_into().unwrap()));
        assert_eq!((name, attributes), (keep, 0), "{sharing:?}");
        let root = vmm.ask(1, GETATTR, 1, &[0; 16], 104).body;
        assert_eq!(u64::from_ne_bytes(root[..8].try_into().unwrap()), keep, "{sharing:?}");
    }
}

/// A change that waits gets EIO at the deadline, and the guest sees what became of it when its names have
/// expired. A change of data does not: pages that are wrong would stay in the guest's kernel for ever.
#[test]
fn a_change_of_data_gets_no_early_reply() {
    let world = World::with(Sharing::One, 1, Duration::from_millis(200));
    let mut vmm = Vmm::mounted(&world.path("one"), 2);
    world.watched.hold_back(true);
    let punch = [&[0; 16][..], &4096_u64.to_ne_bytes(), &3_u32.to_ne_bytes(), &[0; 4]].concat();
    let head = vmm.send(1, &message(FALLOCATE, 1001, 2, &punch), 16);
    let mkdir = [&0o755_u32.to_ne_bytes()[..], &[0; 4], b"dir\0"].concat();
    assert_eq!(vmm.ask(1, MKDIR, 1, &mkdir, 128).error, -libc::EIO);
    assert_eq!(vmm.used(1, Duration::from_millis(400)), None, "it was answered early");
    world.watched.hold_back(false);
    let (used, len) = vmm.used(1, PATIENCE).unwrap();
    assert_eq!((used, vmm.reply(used, len).error), (head, 0));
}

/// What a VMM that is gone had asked for was done after the next guest had its place, and changed files that
/// the kernel of that one remembered.
#[test]
fn regression_the_place_of_a_guest_is_free_after_its_last_change() {
    let world = World::new(Sharing::One, 1);
    let mut vmm = Vmm::mounted(&world.path("one"), 2);
    world.watched.hold_back(true);
    let punch = [&[0; 16][..], &4096_u64.to_ne_bytes(), &3_u32.to_ne_bytes(), &[0; 4]].concat();
    vmm.send(1, &message(FALLOCATE, 1001, 2, &punch), 16);
    until("the change is under way", || world.watched.waiting() == 1);
    drop(vmm);
    let comes_in = || Vmm::try_connect(&world.path("two"), 2).is_ok();
    let is_early = (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        comes_in()
    });
    world.watched.hold_back(false);
    assert!(!is_early, "the change was not done yet");
    until("the place is free", comes_in);
}

/// The server ends while requests wait: it is not held up, and the VMM sees the end.
#[test]
fn a_server_ends_under_a_vmm() {
    let mut world = World::new(Sharing::Many, 1);
    let mut vmm = Vmm::mounted(&world.path("one"), 2);
    let _idle = Vmm::mounted(&world.path("two"), 2);
    world.watched.hold_back(true);
    vmm.send(1, &message(FSYNC, 1001, 2, &[0; 16]), 16);
    assert!(vmm.is_served());
    let watched = std::sync::Arc::clone(&world.watched);
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        watched.hold_back(false);
    });
    world.sockets.iter().for_each(virtio::server::Socket::end);
    later.join().unwrap();
    let (head, len) = vmm.used(1, Duration::ZERO).expect("the server ended without the reply");
    assert_eq!(vmm.reply(head, len).error, 0);
    world.server.end();
    assert!(vmm.frontend().get_features().is_err());
    assert!(!world.path("one").exists(), "the socket is left");
}

/// A VMM that asks for the configuration gets the tag.
#[test]
fn a_vmm_may_ask_for_the_tag() {
    let world = World::new(Sharing::Many, 1);
    let mut vmm = Vmm::connect(&world.path("one"), 2);
    let config = vmm.frontend().get_config(0, 40, VhostUserConfigFlags::empty(), &[0; 40]).unwrap().1;
    assert_eq!(&config[..7], b"models\0");
    assert_eq!(config[36..40], 1_u32.to_le_bytes());
}
