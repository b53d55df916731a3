//! Fleets in virtual time: machines, a network that loses, delays, duplicates and cuts, and one clock for
//! all.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use net::id::{Role, Zone};
use proptest::prelude::*;

use super::*;
use crate::members::seal::SEAL;
use crate::members::who::first_generation;

/// What IPv4 and UDP add to a datagram.
const HEADERS: u64 = 28;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn address(n: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 7171))
}

fn member(n: usize, run: u64) -> Member {
    let mut node = [0; 16];
    // Real ids are random, so the ids of neighbours must not be neighbours.
    node[..8].copy_from_slice(&Dice::new(n as u64 + 1).throw().to_be_bytes());
    Member {
        node: NodeId(node),
        generation: first_generation(run),
        address: address(n),
        zone: Zone::new("zone-a").unwrap(),
        role: Role::Node,
        weight: 100,
        free: n as u32,
        load: 0,
    }
}

struct Node {
    machine: Machine,
    events: Vec<(Duration, Event)>,
    bytes: u64,
    tick: Duration,
}

/// The time, the order within that time, the receiver, and a datagram. None: a tick.
type Happening = Reverse<(Duration, u64, usize, Option<Vec<u8>>)>;

/// The simulated world.
struct World {
    now: Duration,
    dice: Dice,
    nodes: BTreeMap<usize, Node>,
    by_address: HashMap<SocketAddr, usize>,
    heap: BinaryHeap<Happening>,
    count: u64,
    loss: f64,
    twice: f64,
    cut: Option<usize>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            now: Duration::ZERO,
            dice: Dice::new(seed),
            nodes: BTreeMap::new(),
            by_address: HashMap::new(),
            heap: BinaryHeap::new(),
            count: 0,
            loss: 0.0,
            twice: 0.0,
            cut: None,
        }
    }

    /// Nodes `0..n`, each of which knows node 0 and, if it exists, node 1.
    fn fleet(n: usize, seed: u64) -> World {
        let mut world = World::new(seed);
        for node in 0..n {
            world.start(node, 1, vec![address(0), address(1)]);
        }
        world
    }

    fn chance(&mut self, of: f64) -> bool {
        (self.dice.below(1 << 20) as f64) < of * f64::from(1 << 20)
    }

    fn start(&mut self, n: usize, run: u64, contacts: Vec<SocketAddr>) {
        let machine = Machine::new(&member(n, run), contacts, self.dice.throw(), self.now);
        self.by_address.insert(address(n), n);
        self.nodes.insert(n, Node { machine, events: Vec::new(), bytes: 0, tick: Duration::MAX });
        self.after(n);
    }

    fn kill(&mut self, n: usize) {
        self.nodes.remove(&n);
    }

    fn push(&mut self, at: Duration, n: usize, what: Option<Vec<u8>>) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count, n, what)));
    }

    /// Collects what a node sends, and when it wants to be called.
    fn after(&mut self, n: usize) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&n) else {
            return;
        };
        node.events.extend(node.machine.events().into_iter().map(|event| (now, event)));
        let sends = node.machine.sends();
        for (_, bytes) in &sends {
            assert!(bytes.len() <= PLAIN_MAX, "{} bytes", bytes.len());
            node.bytes += (bytes.len() + SEAL) as u64 + HEADERS;
        }
        let next = node.machine.next().max(now);
        if next < node.tick || node.tick < now {
            node.tick = next;
            self.push(next, n, None);
        }
        for (to, bytes) in sends {
            let Some(&to) = self.by_address.get(&to) else {
                continue;
            };
            let cut = self.cut.is_some_and(|cut| (n < cut) != (to < cut));
            if cut || self.chance(self.loss) {
                continue;
            }
            for _ in 0..1 + usize::from(self.chance(self.twice)) {
                let delay = Duration::from_micros(200 + self.dice.below(20_000) as u64);
                self.push(now + delay, to, Some(bytes.clone()));
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.heap.peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            let Some(Reverse((at, _, n, what))) = self.heap.pop() else {
                break;
            };
            self.now = at;
            let Some(node) = self.nodes.get_mut(&n) else {
                continue;
            };
            match what {
                Some(bytes) => node.machine.receive(at, &bytes),
                None if node.tick == at => {
                    node.tick = Duration::MAX;
                    node.machine.tick(at);
                }
                None => continue,
            }
            self.after(n);
        }
        self.now = end;
    }

    /// How long it takes until the condition holds, in steps of half a second.
    fn until(&mut self, limit: Duration, so: impl Fn(&World) -> bool) -> Duration {
        let start = self.now;
        while !so(self) {
            assert!(self.now - start < limit, "not within {limit:?}: {:?}", self.sizes());
            self.run(Duration::from_millis(500));
        }
        self.now - start
    }

    fn sizes(&self) -> Vec<usize> {
        self.nodes.values().map(|node| node.machine.roster().members.len()).collect()
    }

    fn all_see(&self, n: usize) -> bool {
        self.sizes().iter().all(|size| *size == n)
    }

    fn sees(&self, n: usize, other: usize) -> bool {
        self.nodes[&n].machine.roster().get(member(other, 1).node).is_some()
    }

    /// Bytes sent per node and second over the next `time`, headers included.
    fn traffic(&mut self, time: Duration) -> f64 {
        let bytes = |world: &World| world.nodes.values().map(|node| node.bytes).sum::<u64>();
        let before = bytes(self);
        self.run(time);
        (bytes(self) - before) as f64 / self.nodes.len() as f64 / time.as_secs_f64()
    }

    fn gone(&self, since: Duration) -> usize {
        let events = self.nodes.values().flat_map(|node| &node.events);
        events
            .filter(|(at, event)| {
                *at > since && matches!(event, Event::Changed(change) if !change.gone.is_empty())
            })
            .count()
    }
}

#[test]
fn fleets_join_stay_quiet_and_notice_a_death() {
    for (n, quiet) in [(3, 320.0), (50, 380.0), (100, 390.0)] {
        let mut world = World::fleet(n, 7);
        let joined = world.until(secs(60), |world| world.all_see(n));
        world.run(secs(60));
        let since = world.now;
        let bytes = world.traffic(secs(120));
        assert_eq!(world.gone(since), 0, "no false deaths");
        world.kill(n - 1);
        let noticed = world.until(secs(40), |world| world.all_see(n - 1));
        println!(
            "{n} nodes: joined in {joined:?}, {bytes:.0} B/s a node, a death known to all in {noticed:?}"
        );
        assert!(bytes < quiet, "{bytes} B/s a node with {n} nodes");
        assert!(noticed < secs(25), "{noticed:?}");
    }
}

#[test]
fn three_hundred_start_at_once() {
    let mut world = World::fleet(300, 11);
    let joined = world.until(secs(90), |world| world.all_see(300));
    println!("300 nodes: joined in {joined:?}");
}

#[test]
fn a_lossy_network_that_doubles_has_no_false_deaths_for_long() {
    let mut world = World::fleet(50, 3);
    (world.loss, world.twice) = (0.05, 0.05);
    world.until(secs(90), |world| world.all_see(50));
    let early: u64 = world.nodes.values().map(|node| node.machine.returns()).sum();
    println!("{early} returns while joining");
    world.run(secs(180));
    // A return is a false death. It must be rare, and heal.
    let returns: u64 = world.nodes.values().map(|node| node.machine.returns()).sum();
    assert!(returns <= 5, "{returns} returns");
    world.loss = 0.3;
    world.run(secs(60));
    (world.loss, world.twice) = (0.0, 0.0);
    world.until(secs(120), |world| world.all_see(50));
}

/// A node that was unreachable for three seconds was declared down although it answered again: all messages
/// about the suspicion had been sent while it could not receive them. Also, a suspicion that was refuted in
/// time ended in "you are down" all the same.
#[test]
fn regression_a_node_that_was_cut_off_learns_of_its_suspicion() {
    let mut world = World::fleet(50, 13);
    world.until(secs(60), |world| world.all_see(50));
    world.run(secs(20));
    // Nothing reaches the first node, or leaves it, for three seconds. That is long enough to be suspected by
    // some.
    for _ in 0..5 {
        world.cut = Some(1);
        world.run(secs(3));
        world.cut = None;
        world.run(secs(20));
    }
    let returns: u64 = world.nodes.values().map(|node| node.machine.returns()).sum();
    assert_eq!(returns, 0);
}

#[test]
fn halves_find_each_other_again() {
    for (n, cut, time) in [(10, 3, 60), (50, 25, 300), (6, 3, 8 * 3600)] {
        let mut world = World::fleet(n, 5);
        world.until(secs(60), |world| world.all_see(n));
        world.cut = Some(cut);
        world.until(secs(120), |world| {
            let mut sizes = world.sizes().into_iter();
            sizes.by_ref().take(cut).all(|size| size == cut) && sizes.all(|size| size == n - cut)
        });
        world.run(secs(time));
        world.cut = None;
        let healed = world.until(secs(300), |world| world.all_see(n));
        println!("{n} nodes cut at {cut} for {time} s: whole again after {healed:?}");
    }
}

#[test]
fn all_restarted_at_once_find_each_other() {
    let mut world = World::fleet(50, 9);
    world.until(secs(60), |world| world.all_see(50));
    (0..50).for_each(|n| world.kill(n));
    world.run(secs(5));
    (0..50).for_each(|n| world.start(n, 2, vec![address(0), address(1)]));
    let joined = world.until(secs(60), |world| world.all_see(50));
    println!("50 nodes restarted: whole after {joined:?}");

    // Without a contact that answers: from the addresses that the earlier runs had seen.
    let remembered: Vec<_> = world.nodes.iter().map(|(n, node)| (*n, node.machine.remembered())).collect();
    (0..50).for_each(|n| world.kill(n));
    for (n, remembered) in remembered.into_iter().filter(|(n, _)| *n > 1) {
        world.start(n, 3, vec![address(0), address(1)]);
        world.nodes.get_mut(&n).unwrap().machine.remember(remembered);
    }
    let joined = world.until(secs(90), |world| world.all_see(48));
    println!("48 of 50 restarted, no contact among them: whole after {joined:?}");
}

#[test]
fn a_restart_is_seen_as_another_run_and_a_move_as_the_same_node() {
    let mut world = World::fleet(5, 2);
    world.until(secs(30), |world| world.all_see(5));
    world.kill(4);
    world.start(4, 2, vec![address(0)]);
    world.until(secs(30), |world| {
        let roster = world.nodes[&1].machine.roster();
        roster.get(member(4, 1).node).is_some_and(|seen| run_of(seen.generation) == 2)
            && roster.members.len() == 5
    });
    let restarted = |(_, event): &(Duration, Event)| {
        matches!(event, Event::Changed(change)
        if change.gone == [member(4, 1).node] && change.joined.len() == 1)
    };
    assert!(world.nodes[&1].events.iter().any(restarted), "told as a restart");

    // It comes back on another address, before any node has missed it.
    world.kill(4);
    let moved = Member { address: address(40), ..member(4, 3) };
    let machine = Machine::new(&moved, vec![address(0)], 1, world.now);
    world.by_address.insert(address(40), 40);
    world.nodes.insert(40, Node { machine, events: Vec::new(), bytes: 0, tick: Duration::MAX });
    world.after(40);
    world.until(secs(60), |world| {
        let sees = |node: &Node| {
            node.machine.roster().get(moved.node).is_some_and(|seen| seen.address == address(40))
        };
        world.nodes.values().all(sees) && world.all_see(5)
    });
}

#[test]
fn a_node_that_leaves_is_known_to_be_gone_within_seconds() {
    let mut world = World::fleet(50, 4);
    world.until(secs(60), |world| world.all_see(50));
    let now = world.now;
    world.nodes.get_mut(&30).unwrap().machine.leave(now);
    world.after(30);
    world.kill(30);
    let noticed = world.until(secs(10), |world| world.all_see(49));
    println!("50 nodes: a leave known to all in {noticed:?}");
    assert!(noticed <= secs(5), "{noticed:?}");
}

#[test]
fn loads_arrive() {
    let mut world = World::fleet(50, 6);
    world.until(secs(60), |world| world.all_see(50));
    world.run(secs(30));
    world.nodes.get_mut(&7).unwrap().machine.vitals(123_456, 77);
    let told = |world: &World| {
        let loads = |node: &Node| {
            node.machine.roster().get(member(7, 1).node).map(|seen| (seen.free / 64, seen.load))
        };
        world.nodes.values().filter(|node| loads(node) == Some((123_456 / 64, 77))).count()
    };
    let took = world.until(secs(30), |world| told(world) >= 40);
    println!("50 nodes: a load known to 40 of them in {took:?}");
    let epochs: Vec<u64> = world.nodes.values().map(|node| node.machine.roster().epoch).collect();
    world.run(secs(10));
    let after: Vec<u64> = world.nodes.values().map(|node| node.machine.roster().epoch).collect();
    assert_eq!(epochs, after, "a load is no change of the members");
}

#[test]
fn a_node_that_is_alone_says_so_once_and_is_found() {
    let mut world = World::new(1);
    world.start(5, 1, vec![address(0), address(5)]);
    world.run(secs(120));
    let alone = |world: &World| {
        let events = &world.nodes[&5].events;
        events.iter().filter(|(_, event)| matches!(event, Event::Alone { addresses: 1 })).count()
    };
    assert_eq!(alone(&world), 1);
    assert!(world.nodes[&5].bytes < 120 * 60, "{} bytes", world.nodes[&5].bytes);
    world.start(0, 1, vec![]);
    let found = world.until(secs(30), |world| world.all_see(2));
    println!("alone for 120 s, then found in {found:?}");
    assert!(world.nodes[&5].events.iter().any(|(_, event)| matches!(event, Event::Found)));
    assert!(world.nodes[&0].events.iter().all(|(_, event)| !matches!(event, Event::Alone { .. })));
}

#[test]
fn a_copied_folder_is_told() {
    let mut world = World::fleet(4, 8);
    world.until(secs(30), |world| world.all_see(4));
    // Node 2's folder, on another machine.
    let twin = Member { address: address(9), ..member(2, 1) };
    let machine = Machine::new(&twin, vec![address(2)], 1, world.now);
    world.by_address.insert(address(9), 9);
    world.nodes.insert(9, Node { machine, events: Vec::new(), bytes: 0, tick: Duration::MAX });
    world.after(9);
    world.run(secs(30));
    let told =
        |(_, event): &(Duration, Event)| matches!(event, Event::Twin { address: at } if *at == address(9));
    assert_eq!(world.nodes[&2].events.iter().filter(|event| told(event)).count(), 1);
}

#[test]
fn time_that_stood_still_heals() {
    // A machine that was suspended: it sends and receives nothing for ten minutes, then all its timers are
    // due at once.
    let mut world = World::fleet(10, 12);
    world.until(secs(30), |world| world.all_see(10));
    let asleep = world.nodes.remove(&3).unwrap();
    world.until(secs(60), |world| world.all_see(9));
    world.run(secs(600));
    world.nodes.insert(3, Node { tick: Duration::MAX, ..asleep });
    let now = world.now;
    world.nodes.get_mut(&3).unwrap().machine.tick(now);
    world.after(3);
    let healed = world.until(secs(120), |world| world.all_see(10));
    println!("10 nodes, one asleep for ten minutes: whole again after {healed:?}");
    assert!(world.sees(0, 3));
}

#[test]
fn what_is_no_gossip_is_counted_and_does_no_harm() {
    let mut machine = Machine::new(&member(0, 1), vec![], 1, Duration::ZERO);
    let garbage: &[&[u8]] = &[
        &[],
        &[0],
        &[0, 0],
        &[0, 0, 0, 0, 0, 9],
        &[0, 0, 0, 0, 0, 0],
        &[1],
        &[2, 3],
        &[3; 60],
        &[4; 60],
        &[5],
        &[255; 100],
    ];
    for (at, bytes) in garbage.iter().enumerate() {
        machine.receive(secs(at as u64), bytes);
        assert_eq!(machine.malformed(), at as u64 + 1, "{bytes:?}");
    }
    assert!(machine.sends().is_empty() && machine.roster().members.len() == 1);
}

/// Datagrams of every kind that occurs in a fleet.
fn said() -> Vec<Vec<u8>> {
    let mut world = World::fleet(6, 1);
    world.loss = 0.2;
    let mut said = Vec::new();
    for _ in 0..400 {
        let Some(Reverse((at, _, n, what))) = world.heap.pop() else {
            break;
        };
        world.now = at;
        let Some(node) = world.nodes.get_mut(&n) else {
            continue;
        };
        match &what {
            Some(bytes) => node.machine.receive(at, bytes),
            None => node.machine.tick(at),
        }
        world.after(n);
        said.extend(what);
    }
    said
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn changed_datagrams_neither_break_nor_flood(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..60),
    ) {
        thread_local!(static SAID: Vec<Vec<u8>> = said());
        let mut machine = Machine::new(&member(1, 1), vec![address(0)], 1, Duration::ZERO);
        for (step, (which, at, to, cut)) in changes.into_iter().enumerate() {
            let mut bytes = SAID.with(|said| said[which.index(said.len())].clone());
            let at = at.index(bytes.len());
            bytes[at] = to;
            if cut {
                bytes.truncate(at);
            }
            let now = secs(step as u64);
            machine.receive(now, &bytes);
            machine.tick(now);
            let sends = machine.sends();
            prop_assert!(sends.len() < 64, "{} answers", sends.len());
            prop_assert!(sends.iter().all(|(_, bytes)| bytes.len() <= PLAIN_MAX));
        }
    }
}

/// The only datagram that this machine sends.
fn only(machine: &mut Machine) -> Vec<u8> {
    let mut sends = machine.sends();
    assert_eq!(sends.len(), 1, "{sends:?}");
    sends.pop().unwrap().1
}

/// A recorded LIST of some eighty bytes caused a page of 1,400, and a recorded HERE or announcement as much.
#[test]
fn regression_no_answer_is_longer_than_its_question() {
    let mut here = Machine::new(&member(1, 1), vec![address(2)], 1, secs(0));
    let mut there = Machine::new(&member(2, 1), vec![], 2, secs(0));
    here.tick(secs(0));
    let knock = only(&mut here);
    there.receive(secs(0), &knock);
    let answer = only(&mut there);
    assert_eq!((knock[0], answer[0], answer.len()), (KNOCK, HERE, knock.len()));
    here.receive(secs(0), &answer);
    let announce = only(&mut here);
    assert_eq!(announce.len(), PLAIN_MAX, "a feed may be as long");
    there.receive(secs(0), &announce[..200]);
    assert_eq!((there.sends().len(), there.malformed()), (0, 1), "a short one has no answer");
    there.receive(secs(0), &announce);
    // It requests the list as well, as it does every eight seconds at most.
    let feeds: Vec<usize> =
        there.sends().iter().filter(|(_, bytes)| bytes[0] == GOSSIP).map(|(_, bytes)| bytes.len()).collect();
    assert!(feeds.len() == 1 && feeds[0] <= announce.len(), "{feeds:?}");
    let mut list = Vec::new();
    list.put_u8(LIST);
    put_who(&Who::from(&member(1, 1)), &mut list).unwrap();
    list.extend_from_slice(&[0; 16]);
    there.receive(secs(0), &list);
    assert_eq!((there.sends().len(), there.malformed()), (0, 2));
    list.resize(PLAIN_MAX, 0);
    there.receive(secs(0), &list);
    assert!(only(&mut there).len() <= list.len());
}

#[test]
fn regression_a_recorded_here_is_no_reason_to_announce() {
    let mut here = Machine::new(&member(1, 1), vec![address(2)], 1, secs(0));
    let mut there = Machine::new(&member(2, 1), vec![], 2, secs(0));
    here.tick(secs(0));
    there.receive(secs(0), &only(&mut here));
    let recorded = only(&mut there);
    for second in [10, 60] {
        here.tick(secs(second));
        assert_eq!(only(&mut here)[0], KNOCK);
    }
    here.receive(secs(60), &recorded);
    assert!(here.sends().is_empty() && here.malformed() == 0);
}

/// A node that knows the secret could invent members without end, and every node would remember each for
/// hours.
#[test]
fn regression_members_are_not_made_up_without_end() {
    let mut here = Machine::new(&member(1, 1), vec![], 1, secs(0));
    here.most = 20;
    let page = |of: std::ops::Range<usize>| {
        let mut page = Vec::new();
        page.put_u8(LISTED);
        put_who(&Who::from(&member(2, 1)), &mut page).unwrap();
        for n in of {
            let made_up = foca::Member::new(Who::from(&member(n, 1)), 0, State::Alive);
            Compact.encode_member(&made_up, &mut page).unwrap();
        }
        page
    };
    for n in 0..50 {
        here.receive(secs(n), &page(10 + 10 * n as usize..20 + 10 * n as usize));
        here.sends();
        here.tick(secs(n));
    }
    let known = here.foca.iter_membership_state().len();
    assert!((20..=30).contains(&known), "{known} are known");
    // Nor by gossip. News about known members still count.
    let mut there = Machine::new(&member(900, 1), vec![address(1)], 9, secs(0));
    there.tick(secs(0));
    here.receive(secs(60), &only(&mut there));
    let answer = here.sends().into_iter().find(|(to, _)| *to == address(900)).unwrap().1;
    there.receive(secs(0), &answer);
    here.receive(secs(60), &only(&mut there));
    assert_eq!(here.foca.iter_membership_state().len(), known);
}
