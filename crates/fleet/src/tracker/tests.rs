use std::collections::{HashMap, HashSet};

use net::message::Group;
use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000;

fn node(i: u8) -> NodeId {
    NodeId([i; 16])
}

fn blob(i: u8) -> BlobId {
    BlobId([i; 32])
}

fn ask_of(blobs: &[u8], not: &[u8]) -> Ask {
    let blobs = blobs.iter().map(|i| blob(*i)).collect();
    Ask {
        group: Group(1),
        blobs,
        backlog: 0,
        not: not.iter().map(|i| node(*i)).collect(),
        sender: None,
        part: false,
    }
}

fn tracker() -> Tracker {
    Tracker::new(node(0), 1, Limits::default())
}

fn ask(tracker: &mut Tracker, now: u64, from: u8, not: &[u8]) -> Answer {
    tracker.ask(now, node(from), &ask_of(&[1], not), &|_| false)[0]
}

fn tell(tracker: &mut Tracker, now: u64, from: u8, what: What) {
    tracker.note(now, node(from), &Note { group: Group(1), blob: blob(1), what });
}

fn lease(answer: Answer) -> u64 {
    match answer {
        Answer::Lease { lease, .. } => lease,
        other => panic!("{other:?} is not a lease"),
    }
}

#[test]
fn a_requester_of_a_part_takes_no_slot_and_is_not_named() {
    let mut tracker = tracker();
    let part = |tracker: &mut Tracker, from: u8| {
        tracker.ask(0, node(from), &Ask { part: true, ..ask_of(&[1], &[]) }, &|_| false)[0]
    };
    // The first node that wants a part of a blob without holders gets no lease, however often it asks.
    assert_eq!([part(&mut tracker, 50), part(&mut tracker, 50)], [Answer::NotMine; 2]);
    assert_eq!(tracker.counts().copies, 0);
    let first = lease(part(&mut tracker, 1));
    assert_eq!(lease(ask(&mut tracker, 0, 1, &[])), first, "the rest is fetched with the same lease");
    for from in 2..50 {
        assert!(matches!(part(&mut tracker, from), Answer::Wait { parent, .. } if parent == node(1)));
    }
    tell(&mut tracker, MS, 1, What::Have);
    for from in 2..50 {
        assert_eq!(part(&mut tracker, from), Answer::Go { first: node(1), second: None });
    }
    tracker.states[&blob(1)].check();
    assert_eq!(tracker.counts().copies, 1);
}

/// A holder whose slots are all taken is better for a part than a node that has nothing yet.
#[test]
fn a_part_comes_from_a_holder_even_when_all_slots_are_taken() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 1, What::Have);
    (2..8).for_each(|from| _ = ask(&mut tracker, 0, from, &[]));
    let part = Ask { part: true, ..ask_of(&[1], &[]) };
    for from in 50..60 {
        let answer = tracker.ask(0, node(from), &part, &|_| false)[0];
        assert_eq!(answer, Answer::Go { first: node(1), second: None });
    }
}

#[test]
fn the_first_fetches_and_the_others_wait_in_a_tree() {
    let mut tracker = tracker();
    lease(ask(&mut tracker, 0, 1, &[]));
    let mut children: HashMap<NodeId, u16> = HashMap::new();
    for from in 2..=200 {
        match ask(&mut tracker, 0, from, &[]) {
            Answer::Wait { parent, .. } => *children.entry(parent).or_default() += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(children.values().all(|count| *count <= SLOTS), "{children:?}");
    tracker.states[&blob(1)].check();
    tell(&mut tracker, 50 * MS, 1, What::Have);
    for from in 2..=200 {
        tell(&mut tracker, 60 * MS, from, What::Have);
    }
    tracker.states[&blob(1)].check();
    assert!(matches!(ask(&mut tracker, 70 * MS, 201, &[]), Answer::Go { second: Some(_), .. }));
    assert_eq!(tracker.counts().leased, 1);
}

/// A tracker knows best how much it has to send itself, and names another node if that is much. It knew only
/// the work that it had given itself, which faded.
#[test]
fn regression_a_tracker_that_is_busy_does_not_serve() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 9, What::Have);
    tracker.raise_load(node(0), 40);
    let answer = tracker.ask(MS, node(1), &ask_of(&[1], &[]), &|_| true)[0];
    assert!(matches!(answer, Answer::Go { first, .. } if first == node(9)), "{answer:?}");
    tracker.raise_load(node(0), 3);
    assert_eq!(
        tracker.names.load(tracker.names.find(&node(0)).unwrap()),
        40,
        "what it was given has not arrived yet"
    );
}

/// The first tracker has died. Requesters that ask the next are sent to the node with the first one's lease,
/// unless its fetch failed.
#[test]
fn a_lease_of_the_tracker_before_is_as_good_as_a_copy() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 1, What::Fetching);
    assert_eq!(ask(&mut tracker, MS, 2, &[]), Answer::Go { first: node(1), second: None });
    for from in 3..=9 {
        assert!(
            matches!(ask(&mut tracker, MS, from, &[]), Answer::Go { .. } | Answer::Wait { .. }),
            "{from}"
        );
    }
    tracker.states[&blob(1)].check();
    assert_eq!(tracker.counts().leased, 0);
    (2..=3).for_each(|from| tell(&mut tracker, 2 * MS, from, What::Refused { by: node(1) }));
    lease(ask(&mut tracker, 2 * MS, 1, &[]));
}

#[test]
fn the_tracker_serves_what_it_has_until_its_slots_are_taken() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 9, What::Have);
    let mut ask = |from: u8| {
        // Its work is done by then.
        (0..5).for_each(|_| tracker.names.fade());
        tracker.ask(0, node(from), &ask_of(&[1], &[]), &|_| true)[0]
    };
    for from in 1..=u8::try_from(SLOTS).unwrap() {
        assert_eq!(ask(from), Answer::Serve);
    }
    assert_eq!(ask(7), Answer::Go { first: node(9), second: None });
    assert!(!matches!(tracker.ask(0, node(8), &ask_of(&[1], &[0]), &|_| true)[0], Answer::Serve));
}

#[test]
fn when_all_slots_are_taken_the_least_busy_takes_one_more() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 1, What::Have);
    // A node that is sent there excludes all others the next time, so that none of them can be a parent.
    for from in 2..=20 {
        let others: Vec<u8> = (2..=20).collect();
        assert_eq!(ask(&mut tracker, 0, from, &others), Answer::Go { first: node(1), second: None });
    }
    assert_eq!(tracker.counts().crowded, 19 - u64::from(SLOTS));
    assert_eq!(tracker.counts().leased, 0);
}

#[test]
fn a_lease_that_is_late_failed_refused_or_orphaned_goes_to_the_next() {
    let mut tracker = tracker();
    let first = lease(ask(&mut tracker, 0, 1, &[]));
    assert_eq!(lease(ask(&mut tracker, 10, 1, &[])), first, "the same lease again");
    let late = micros(Duration::from_secs(3)) + 11;
    let second = lease(ask(&mut tracker, late, 2, &[]));
    assert_ne!(first, second);
    tell(&mut tracker, late, 1, What::Failed { lease: first });
    assert!(matches!(ask(&mut tracker, late, 3, &[]), Answer::Wait { .. }), "an old lease frees nothing");
    tell(&mut tracker, late, 2, What::Failed { lease: second });
    lease(ask(&mut tracker, late, 4, &[]));
    tell(&mut tracker, late, 5, What::Refused { by: node(4) });
    assert!(matches!(ask(&mut tracker, late, 5, &[]), Answer::Wait { .. }));
    tell(&mut tracker, late, 6, What::Refused { by: node(4) });
    lease(ask(&mut tracker, late, 6, &[]));
    tracker.member_gone(&node(6));
    lease(ask(&mut tracker, late, 7, &[]));
    // The requester cannot reach node 7 and takes the lease over.
    lease(ask(&mut tracker, late, 8, &[7]));
    assert_eq!(tracker.counts().overtaken, 1);
    assert_eq!(
        ask(&mut tracker, late, 7, &[]),
        Answer::Wait { parent: node(8), time: Duration::from_millis(999) }
    );
}

/// A lease that had ended was dropped when the blob's records were swept, and then it was not counted. Nor
/// was a lease to a node that could not reach a holder.
#[test]
fn regression_second_leases_are_counted() {
    let mut tracker = tracker();
    let mut expired = |now: u64, from: u8, tick: bool| {
        if tick {
            tracker.tick(now * MS);
        }
        lease(ask(&mut tracker, now * MS, from, &[]));
        tracker.counts().expired
    };
    assert_eq!(expired(0, 1, false), 0);
    assert_eq!(expired(100, 1, false), 0, "it is the same lease");
    assert_eq!(expired(2_000, 2, false), 1);
    assert_eq!(expired(4_000, 3, true), 2);
    // The end of this one is known in time.
    tell(&mut tracker, 4_100 * MS, 3, What::Have);
    tell(&mut tracker, 4_200 * MS, 3, What::Gone);
    lease(ask(&mut tracker, 6_000 * MS, 4, &[]));
    assert_eq!(tracker.counts().again(), 2);
    tell(&mut tracker, 6_100 * MS, 4, What::Have);
    lease(ask(&mut tracker, 6_200 * MS, 5, &[4]));
    assert_eq!((tracker.counts().expired, tracker.counts().overtaken), (2, 1));
}

/// The nodes in its queue reported it as if it had refused. A slow node in front of all others was believed
/// to have nothing as soon as two had waited for a p99, and nearly every blob was fetched once more.
#[test]
fn regression_a_silent_node_keeps_its_blobs() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 1, What::Have);
    (2..6).for_each(|from| tell(&mut tracker, 0, from, What::Silent { by: node(1) }));
    assert_eq!(ask(&mut tracker, 0, 2, &[]), Answer::Go { first: node(1), second: None });
    // It is busy: a node that takes the blob from it is named first.
    assert!(matches!(ask(&mut tracker, 0, 3, &[]), Answer::Wait { parent, .. } if parent == node(2)));
    // A node that cannot reach either gets the lease.
    lease(ask(&mut tracker, 0, 4, &[1, 2, 3]));
}

#[test]
fn a_busy_node_is_busy_for_some_seconds() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 1, What::Have);
    tell(&mut tracker, 0, 2, What::Silent { by: node(1) });
    ask(&mut tracker, 0, 2, &[]);
    let waits = |tracker: &mut Tracker, from| matches!(ask(tracker, 0, from, &[]), Answer::Wait { .. });
    assert!(waits(&mut tracker, 3));
    (0..20).for_each(|_| tracker.names.fade());
    // Both have got it, and no node takes it from the first any more.
    (2..=3).for_each(|from| tell(&mut tracker, 0, from, What::Have));
    (2..=3).for_each(|from| tell(&mut tracker, 0, from, What::Gone));
    assert!(!waits(&mut tracker, 4));
}

#[test]
fn a_holder_that_is_refused_twice_is_forgotten_and_comes_back_with_a_note() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 1, What::Have);
    let go = Answer::Go { first: node(1), second: None };
    assert_eq!(ask(&mut tracker, 0, 2, &[]), go);
    tell(&mut tracker, 0, 2, What::Refused { by: node(1) });
    tell(&mut tracker, 0, 3, What::Refused { by: node(1) });
    lease(ask(&mut tracker, 0, 2, &[]));
    tell(&mut tracker, 0, 1, What::Have);
    // Its penalty lasts for some seconds more.
    (0..20).for_each(|_| tracker.names.fade());
    assert_eq!(ask(&mut tracker, 0, 3, &[]), go);
    tell(&mut tracker, 0, 1, What::Gone);
    assert!(matches!(ask(&mut tracker, 0, 4, &[]), Answer::Wait { .. }));
}

/// A tracker that had not recorded itself yet did not find itself among the excluded nodes, and named itself.
#[test]
fn regression_a_tracker_that_is_ruled_out_in_the_first_question_does_not_serve() {
    let answer = tracker().ask(0, node(1), &ask_of(&[1], &[0]), &|_| true)[0];
    lease(answer);
}

#[test]
fn the_busy_are_spared() {
    let mut tracker = tracker();
    for from in 1..=4 {
        tell(&mut tracker, 0, from, What::Have);
        let busy = Ask { backlog: u16::from(from) * 100, ..ask_of(&[2], &[]) };
        tracker.ask(0, node(from), &busy, &|_| false);
    }
    assert_eq!(ask(&mut tracker, 0, 9, &[]), Answer::Go { first: node(1), second: Some(node(2)) });
}

/// A node ticked ten times a second, and each time a quarter of the loads faded. A node with a hundred blobs
/// to send, which asked nothing, counted as idle a second later and was given a hundred more.
#[test]
fn regression_loads_fade_independently_of_the_tick_rate() {
    let mut tracker = tracker();
    for (from, backlog) in [(1, 100), (2, 20)] {
        tell(&mut tracker, 0, from, What::Have);
        tracker.ask(0, node(from), &Ask { backlog, ..ask_of(&[2], &[]) }, &|_| false);
    }
    (1..=30).for_each(|tenth| tracker.tick(tenth * 100 * MS));
    let loads: Vec<u16> =
        (1..=2).map(|n| tracker.names.load(tracker.names.find(&node(n)).unwrap())).collect();
    assert!((30..=60).contains(&loads[0]) && loads[0] > 2 * loads[1], "{loads:?}");
}

/// Otherwise a ring of nodes, each of which sends to one and receives from one, would not remain a ring.
#[test]
fn the_upstream_is_named_again_unless_it_is_much_busier() {
    let named = |load: u16| {
        let mut tracker = tracker();
        for from in 1..=4 {
            tell(&mut tracker, 0, from, What::Have);
        }
        let busy = Ask { backlog: load, ..ask_of(&[2], &[]) };
        tracker.ask(0, node(3), &busy, &|_| false);
        let asks = Ask { sender: Some(node(3)), ..ask_of(&[1], &[]) };
        match tracker.ask(0, node(9), &asks, &|_| true)[0] {
            Answer::Go { first, .. } => first,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([0, 15].map(named), [node(3); 2], "rather than the tracker itself");
    assert!([17, 100].map(named).iter().all(|first| *first != node(3)));
}

/// Two followers would have half a link each, and so would all nodes behind them.
#[test]
fn of_two_followers_the_first_stays_and_the_other_goes_to_the_end_of_the_chain() {
    const LONG: u64 = 20_000 * MS;
    let mut tracker = tracker();
    let mut named = |now: u64, from: u8, upstream: u8| {
        // A new blob each time, so that the earlier answer has no influence.
        let mut id = BlobId([from; 32]);
        id.0[..8].copy_from_slice(&now.to_be_bytes());
        let group = Group(1);
        (3..=5).for_each(|has| tracker.note(now, node(has), &Note { group, blob: id, what: What::Have }));
        let asks = Ask { blobs: vec![id], sender: Some(node(upstream)), ..ask_of(&[], &[]) };
        let answer = tracker.ask(now, node(from), &asks, &|_| false)[0];
        tracker.note(now, node(from), &Note { group, blob: id, what: What::Have });
        match answer {
            Answer::Go { first, .. } => first,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((named(1, 8, 4), named(2, 9, 3)), (node(4), node(3)));
    for now in 3..20 {
        assert_eq!(named(now, 7, 3), node(5), "the node without a follower");
        assert_eq!(named(now, 9, 3), node(3));
    }
    assert_eq!(
        (named(20, 9, 5), named(21, 7, 3)),
        (node(5), node(3)),
        "a node whose place is free should be named"
    );
    assert_ne!(named(22, 9, 3), node(3), "a node whose place is taken should not be named");
    assert_eq!(named(22 + LONG, 9, 3), node(3), "the other has not asked for long");
}

/// A request for a part names no upstream. The node counted as having none from then on, and another took its
/// place.
#[test]
fn regression_a_request_for_a_part_keeps_the_upstream() {
    let mut tracker = tracker();
    let has = |tracker: &mut Tracker, blob: u8| {
        (3..=4).for_each(|from| {
            tracker.note(0, node(from), &Note { group: Group(1), blob: self::blob(blob), what: What::Have });
        });
    };
    let follow = |tracker: &mut Tracker, from: u8, blob: u8| {
        has(tracker, blob);
        let asks = Ask { sender: Some(node(3)), ..ask_of(&[blob], &[]) };
        tracker.ask(0, node(from), &asks, &|_| false)[0]
    };
    let go = |answer: Answer| match answer {
        Answer::Go { first, .. } => first,
        other => panic!("{other:?}"),
    };
    assert_eq!(go(follow(&mut tracker, 7, 1)), node(3));
    has(&mut tracker, 2);
    let part = Ask { part: true, ..ask_of(&[2], &[]) };
    go(tracker.ask(0, node(7), &part, &|_| false)[0]);
    assert_eq!(go(follow(&mut tracker, 8, 3)), node(4), "the next free node should be named");
    assert_eq!(go(follow(&mut tracker, 7, 4)), node(3));
}

/// Even if the node that got it has a little more to send than the node that sent it.
#[test]
fn a_blob_is_passed_on_by_the_nodes_that_got_it() {
    let mut tracker = tracker();
    lease(ask(&mut tracker, 0, 1, &[]));
    for from in 2..=6 {
        let before = node(from - 1);
        let busy = Ask { backlog: 5, ..ask_of(&[1], &[]) };
        let answer = tracker.ask(0, node(from), &busy, &|_| false)[0];
        assert!(matches!(answer, Answer::Wait { parent, .. } if parent == before), "{from}: {answer:?}");
    }
}

/// The first known holder was named to all requesters of a part. Parts take no slot, and so it did not become
/// busier.
#[test]
fn regression_parts_come_from_all_equally_idle_holders() {
    let mut tracker = tracker();
    (1..=4).for_each(|from| tell(&mut tracker, 0, from, What::Have));
    let mut named = BTreeMap::new();
    for from in 10..90 {
        let part = Ask { part: true, ..ask_of(&[1], &[]) };
        let Answer::Go { first, .. } = tracker.ask(0, node(from), &part, &|_| false)[0] else { panic!() };
        *named.entry(first).or_insert(0) += 1;
    }
    assert!(named.len() == 4 && named.values().all(|count| *count >= 8), "{named:?}");
}

#[test]
fn memory_is_bounded_and_what_is_over_is_dropped() {
    let mut tracker = Tracker::new(node(0), 1, Limits { blobs: 10, copies: 40 });
    for i in 0..200u8 {
        for from in 1..=8 {
            let note = Note { group: Group(0), blob: blob(i), what: What::Have };
            tracker.note(0, node(from), &note);
            let counts = tracker.counts();
            assert!(counts.blobs <= 10 && counts.copies <= 40, "{counts:?}");
        }
        tracker.ask(0, node(9), &ask_of(&[i], &[]), &|_| false);
    }
    assert!(tracker.counts().forgotten >= 190);
    for from in 1..=9 {
        tracker.member_gone(&node(from));
    }
    tracker.tick(60_000 * MS);
    let counts = tracker.counts();
    assert_eq!((counts.blobs, counts.copies), (0, 0));
    for from in 100..200 {
        ask(&mut tracker, 60_000 * MS, from, &[]);
        tracker.member_gone(&node(from));
        tracker.tick(61_000 * MS);
    }
    assert!(tracker.names.len() < 120, "{}", tracker.names.len());
}

/// A node that is no member is never reported as gone. Each id that a question came with kept a number for
/// ever.
#[test]
fn regression_nodes_that_asked_once_are_forgotten() {
    let mut tracker = tracker();
    tell(&mut tracker, 0, 1, What::Have);
    let part = Ask { part: true, ..ask_of(&[1], &[]) };
    tracker.ask(0, node(2), &part, &|_| false);
    for n in 0..100_000u32 {
        let mut id = [9; 16];
        id[..4].copy_from_slice(&n.to_le_bytes());
        tracker.ask(0, NodeId(id), &part, &|_| false);
    }
    tracker.tick(60_000 * MS);
    assert!(tracker.names.len() > 100_000, "they may still be about to ask again");
    // It follows one that is forgotten.
    let sender = Some(tracker.names.node(tracker.names.len() as u32 - 1));
    tracker.ask(400_000 * MS, node(2), &Ask { sender, ..ask_of(&[1], &[]) }, &|_| false);
    tracker.tick(400_000 * MS);
    assert!(tracker.names.len() < 10, "{}", tracker.names.len());
    let answer = tracker.ask(401_000 * MS, node(2), &part, &|_| false)[0];
    assert_eq!(answer, Answer::Go { first: node(1), second: None }, "a node with a blob is not forgotten");
    assert_eq!(ask(&mut tracker, 402_000 * MS, 2, &[]), Answer::Go { first: node(1), second: None });
    tracker.states[&blob(1)].check();
}

#[test]
fn leases_are_as_long_as_fetches_take() {
    let mut tracker = tracker();
    for i in 0..200 {
        tracker.ask(0, node(1), &ask_of(&[i], &[]), &|_| false);
    }
    for i in 0..200 {
        tracker.note(200 * MS, node(1), &Note { group: Group(1), blob: blob(i), what: What::Have });
    }
    let millis = tracker.lease_time().as_millis();
    assert!((600..=680).contains(&millis), "{millis}");
}

#[derive(Clone, Debug)]
enum Step {
    Ask { from: u8, blobs: Vec<u8>, not: Vec<u8> },
    Have { from: u8, blob: u8 },
    Fetching { from: u8, blob: u8 },
    Gone { from: u8, blob: u8 },
    Failed { from: u8, blob: u8 },
    Refused { from: u8, blob: u8, by: u8 },
    Lost { node: u8 },
    Pass { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let node = || 0u8..12;
    let blob = || 0u8..3;
    prop_oneof![
        8 => (node(), prop::collection::vec(blob(), 1..3), prop::collection::vec(node(), 0..3))
            .prop_map(|(from, blobs, not)| Step::Ask { from, blobs, not }),
        3 => (node(), blob()).prop_map(|(from, blob)| Step::Have { from, blob }),
        1 => (node(), blob()).prop_map(|(from, blob)| Step::Fetching { from, blob }),
        1 => (node(), blob()).prop_map(|(from, blob)| Step::Gone { from, blob }),
        1 => (node(), blob()).prop_map(|(from, blob)| Step::Failed { from, blob }),
        1 => (node(), blob(), node()).prop_map(|(from, blob, by)| Step::Refused { from, blob, by }),
        1 => node().prop_map(|node| Step::Lost { node }),
        2 => (0u64..4_000).prop_map(|millis| Step::Pass { millis }),
    ]
}

/// The tracker's answers, as seen from outside.
#[derive(Default)]
struct Seen {
    /// For each blob: which node got which lease last, and until when.
    leases: HashMap<u8, (u64, u8, u64)>,
    gone: HashSet<u8>,
}

impl Seen {
    fn answered(&mut self, now: u64, from: u8, of: u8, not: &[u8], answer: Answer) {
        let named = match answer {
            Answer::Serve => vec![node(0)],
            Answer::Go { first, second } => [Some(first), second].into_iter().flatten().collect(),
            Answer::Wait { parent, .. } => vec![parent],
            Answer::NotMine => panic!("the tracker does not say that"),
            Answer::Lease { lease, time } => {
                if let Some((id, holder, until)) = self.leases.get(&of) {
                    let live = *until > now;
                    assert!(!live || *id == lease || not.contains(holder), "two leases for blob {of}");
                }
                self.leases.insert(of, (lease, from, now + micros(time)));
                Vec::new()
            }
        };
        for named in named {
            let i = named.0[0];
            assert_ne!(i, from, "sent to itself");
            assert!(!not.contains(&i) && !self.gone.contains(&i), "sent to {i}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_the_promises_hold(seed: u64, steps in prop::collection::vec(step(), 1..120), tracker_has: bool) {
        let mut tracker = Tracker::new(node(0), seed, Limits { blobs: 3, copies: 1_000 });
        let (mut now, mut seen) = (0, Seen::default());
        for step in steps {
            match step {
                Step::Ask { from, blobs, not } => {
                    seen.gone.remove(&from);
                    let answers = tracker.ask(now, node(from), &ask_of(&blobs, &not), &|id| tracker_has && id.0[0] == 1);
                    prop_assert_eq!(answers.len(), blobs.len());
                    for (of, answer) in blobs.iter().zip(answers) {
                        seen.answered(now, from, *of, &not, answer);
                    }
                }
                Step::Have { from, blob: of } => {
                    seen.gone.remove(&from);
                    tracker.note(now, node(from), &Note { group: Group(1), blob: blob(of), what: What::Have });
                    seen.leases.retain(|leased, (_, holder, _)| !(*leased == of && *holder == from));
                }
                Step::Fetching { from, blob: of } => {
                    seen.gone.remove(&from);
                    tracker.note(now, node(from), &Note { group: Group(1), blob: blob(of), what: What::Fetching });
                }
                Step::Gone { from, blob: of } => {
                    seen.gone.remove(&from);
                    tracker.note(now, node(from), &Note { group: Group(1), blob: blob(of), what: What::Gone });
                }
                Step::Failed { from, blob: of } => {
                    seen.gone.remove(&from);
                    let lease = seen.leases.get(&of).map_or(7, |(id, ..)| *id);
                    let what = What::Failed { lease };
                    tracker.note(now, node(from), &Note { group: Group(1), blob: blob(of), what });
                    seen.leases.retain(|leased, (_, holder, _)| !(*leased == of && *holder == from));
                }
                Step::Refused { from, blob: of, by } => {
                    seen.gone.remove(&from);
                    let what = What::Refused { by: node(by) };
                    tracker.note(now, node(from), &Note { group: Group(1), blob: blob(of), what });
                    // It may or may not have ended the lease, so it does not count.
                    seen.leases.retain(|leased, (_, holder, _)| !(*leased == of && *holder == by));
                }
                Step::Lost { node: lost } if lost != 0 => {
                    tracker.member_gone(&node(lost));
                    seen.gone.insert(lost);
                    seen.leases.retain(|_, (_, holder, _)| *holder != lost);
                }
                Step::Lost { .. } => {}
                Step::Pass { millis } => {
                    now += millis * MS;
                    tracker.tick(now);
                }
            }
            // What a tick dropped may be leased again.
            seen.leases.retain(|leased, _| tracker.states.contains_key(&blob(*leased)));
            tracker.states.values().for_each(BlobState::check);
            let counts = tracker.counts();
            prop_assert!(counts.blobs <= tracker.limits.blobs as u64);
            prop_assert_eq!(counts.copies, tracker.states.values().map(|state| state.len() as u64).sum::<u64>());
        }
    }
}
