//! Membership over real sockets, on loopback: joining, leaving, dying, coming back, and what does not belong.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of real time")]

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use net::id::{Member, NodeId, Role, Zone};
use net::secret::Secret;

use covey_fleet::directory::{Directory, Keys};
use covey_fleet::members::{Contact, Event, Members, NodeHome, Setup, StartError};

struct Node {
    members: Members,
    events: Receiver<Event>,
    me: Member,
}

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn start_with(secret: &str, contacts: &str, home: Option<Arc<NodeHome>>) -> Node {
    let (socket, address) = socket();
    let me = Member {
        node: home.as_ref().map_or_else(NodeId::random, |home| home.node()),
        generation: home.as_ref().map_or(1 << 16, |home| home.generation()),
        address,
        zone: Zone::default(),
        role: Role::Node,
        weight: 1,
        free: 0,
        load: 0,
    };
    let secret = Secret::from_text(&secret.repeat(16)).unwrap();
    let directory = Arc::new(Directory::new(Keys::new(&secret, &[7; 16])));
    let contacts = Contact::parse(contacts).unwrap();
    let setup = Setup { me: me.clone(), contacts, secret, fleet: [7; 16], home, directory };
    let (tell, events) = channel();
    let members = Members::start(setup, socket, move |event| drop(tell.send(event))).unwrap();
    Node { members, events, me }
}

fn start(contacts: &str) -> Node {
    start_with("a", contacts, None)
}

fn until(what: &str, limit: Duration, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{what}: {:?}", start.elapsed());
}

fn size(node: &Node) -> usize {
    node.members.roster().members.len()
}

const SOON: Duration = Duration::from_secs(120);

#[test]
fn nodes_join_leave_die_and_come_back_as_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let home = Arc::new(NodeHome::open(folder.path()).unwrap());
    let first = start("");
    let by = first.me.address.to_string();
    // A contact that does not answer, and a name, besides the one that answers.
    let (_nobody, nowhere) = socket();
    let second = start(&format!("{nowhere},{by}"));
    let third = start_with("a", &format!("localhost:{}", first.me.address.port()), Some(Arc::clone(&home)));
    until("three joined", SOON, || [&first, &second, &third].iter().all(|node| size(node) == 3));
    let joined = |event: Event| matches!(event, Event::Changed(change) if !change.joined.is_empty());
    assert!(joined(first.events.recv_timeout(SOON).unwrap()));

    second.members.set_vitals(1000, 5);
    let loaded = |node: &Node| node.members.roster().get(second.me.node).map(|seen| (seen.free, seen.load));
    until("a load arrived", SOON, || loaded(&first) == Some((1000, 5)));

    second.members.leave();
    until("one left", SOON, || size(&first) == 2 && size(&third) == 2);

    // Killed without a farewell, and started again with its folder, on another port.
    let node = third.me.node;
    drop(third);
    assert!(matches!(NodeHome::open(folder.path()), Err(covey_fleet::members::HomeError::Taken { .. })));
    drop(home);
    let home = Arc::new(NodeHome::open(folder.path()).unwrap());
    let again = start_with("a", &by, Some(home));
    assert_eq!(again.me.node, node);
    let moved = || first.members.roster().get(node).map(|seen| seen.address) == Some(again.me.address);
    until("it came back as itself", SOON, moved);
    assert_eq!(size(&first), 2);

    drop(again);
    until("a death was noticed", SOON, || size(&first) == 1);
    assert_eq!(first.members.stats().malformed, 0);
}

#[test]
fn a_restarted_node_finds_the_others_by_kept_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let other = start("");
    let home = Arc::new(NodeHome::open(folder.path()).unwrap());
    let node = start_with("a", &other.me.address.to_string(), Some(home));
    until("joined", SOON, || size(&node) == 2);
    node.members.leave();
    drop(node);
    let home = Arc::new(NodeHome::open(folder.path()).unwrap());
    assert_eq!(home.peers(), [other.me.address]);
    let node = start_with("a", "", Some(home));
    until("joined without a contact", SOON, || size(&node) == 2 && size(&other) == 2);
}

#[test]
fn strangers_and_garbage_are_counted_and_change_nothing() {
    let node = start("");
    let by = node.me.address;
    let stranger = start_with("b", &by.to_string(), None);
    let (socket, _) = socket();
    for len in [0, 1, 28, 29, 500, 1400, 1401, 9000] {
        socket.send_to(&vec![1; len], by).unwrap();
        socket.send_to(&vec![9; len], by).unwrap();
    }
    let counted = || {
        let stats = node.members.stats();
        stats.strangers >= 5 && stats.foreign >= 11
    };
    until("all counted", SOON, counted);
    let stats = node.members.stats();
    assert_eq!((stats.received, stats.sent, stats.malformed), (0, 0, 0), "{stats:?}");
    assert_eq!((size(&node), size(&stranger)), (1, 1));
    let alone = |event: Event| matches!(event, Event::Alone { addresses: 1 });
    assert!(
        alone(stranger.events.recv_timeout(SOON).unwrap()),
        "the node with another secret reports that none answers"
    );
}

#[test]
fn a_suspect_is_one_for_a_while_and_for_this_node_only() {
    let node = start("");
    let other = NodeId([3; 16]);
    assert!(!node.members.is_suspect(other));
    node.members.suspect(other);
    assert!(node.members.is_suspect(other));
    node.members.trust(other);
    assert!(!node.members.is_suspect(other));
}

#[test]
fn an_unreachable_address_is_refused() {
    for address in ["0.0.0.0:7", "127.0.0.1:0", "[::]:7", "224.0.0.1:7"] {
        let me = Member {
            node: NodeId::random(),
            generation: 1,
            address: address.parse().unwrap(),
            zone: Zone::default(),
            role: Role::Node,
            weight: 1,
            free: 0,
            load: 0,
        };
        let secret = Secret::from_text(&Secret::generate_text()).unwrap();
        let directory = Arc::new(Directory::new(Keys::new(&secret, &[0; 16])));
        let setup = Setup { me, contacts: vec![], secret, fleet: [0; 16], home: None, directory };
        let error = Members::start(setup, socket().0, |_| {}).err().unwrap();
        assert!(matches!(error, StartError::Address(_)) && error.to_string().contains("--listen"), "{error}");
    }
}
