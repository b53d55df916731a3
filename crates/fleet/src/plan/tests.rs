use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

mod deadline;
mod slack;

const MS: u64 = 1_000;

fn node(i: u8) -> NodeId {
    NodeId([i; 16])
}

fn setup(trackers: &[u8], depots: &[u8]) -> Setup {
    let millis = Duration::from_millis;
    let pace = Pace {
        peer: millis(20),
        stream: millis(200),
        depot: millis(100),
        origin: millis(300),
        answer: millis(50),
        share: Duration::ZERO,
        soon: Duration::ZERO,
    };
    let nodes = |list: &[u8]| list.iter().map(|i| node(*i)).collect();
    Setup {
        own: node(0),
        trackers: nodes(trackers),
        depots: nodes(depots),
        upstream: None,
        pace,
        deadline: Duration::from_secs(10),
    }
}

fn answer(plan: &mut Plan, now: u64, rank: usize, answer: Answer) -> Vec<Action> {
    plan.handle(now, Event::Answered { rank, answer })
}

fn go(first: u8, second: Option<u8>) -> Answer {
    Answer::Go { first: node(first), second: second.map(node) }
}

fn lease(lease: u64) -> Answer {
    Answer::Lease { lease, time: Duration::from_millis(900) }
}

fn fetch(fetch: FetchNo, from: Source, why: Why) -> Action {
    Action::Fetch { fetch, from, why }
}

fn ask(rank: usize, tracker: u8, not: &[u8]) -> Action {
    Action::Ask { rank, tracker: node(tracker), not: not.iter().map(|i| node(*i)).collect() }
}

fn note(tracker: u8, what: What) -> Action {
    Action::Note { tracker: node(tracker), what }
}

/// A node that asked just before its upstream was sent to the head of the chain, and took half of its link
/// from then on.
#[test]
fn regression_a_node_in_a_chain_waits_a_moment_for_its_upstream() {
    let wait = |parent: u8| Answer::Wait { parent: node(parent), time: Duration::from_millis(900) };
    let soon = |pace: Pace| Pace { soon: Duration::from_millis(90), ..pace };
    let row = || Setup { upstream: Some(node(7)), pace: soon(setup(&[1], &[]).pace), ..setup(&[1], &[]) };
    let streams = |from: u8| vec![fetch(0, Source::Stream(node(from)), Why::Told)];
    let (mut plan, _) = Plan::new(0, row());
    assert_eq!(answer(&mut plan, MS, 0, wait(5)), []);
    assert_eq!(plan.wake(), Some(91 * MS));
    assert_eq!(plan.handle(91 * MS, Event::Tick), [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 92 * MS, 0, wait(7)), streams(7));
    // The upstream does not fetch it: the node that does is as good as another.
    let (mut plan, _) = Plan::new(0, row());
    for turn in 0..u64::from(PATIENCE) {
        assert_eq!(answer(&mut plan, turn * 100 * MS, 0, wait(5)), []);
        assert_eq!(plan.handle((turn * 100 + 90) * MS, Event::Tick), [ask(0, 1, &[])]);
    }
    assert_eq!(answer(&mut plan, 400 * MS, 0, wait(5)), streams(5));
    // A tracker that is slow to answer would be slow three times more: reads of a fleet whose tracker had a
    // narrow link took 17 s.
    let (mut plan, _) =
        Plan::new(0, Setup { pace: Pace { soon: Duration::from_millis(10), ..row().pace }, ..row() });
    assert_eq!(answer(&mut plan, 41 * MS, 0, wait(5)), streams(5));
    // An answer that waited in two full queues is not slow.
    let (mut plan, _) =
        Plan::new(0, Setup { pace: Pace { soon: Duration::from_millis(10), ..row().pace }, ..row() });
    assert_eq!(answer(&mut plan, 39 * MS, 0, wait(5)), []);
    // There is nothing to wait for: a node has it, there is no upstream, or the link is fast.
    let (mut plan, _) = Plan::new(0, row());
    assert_eq!(answer(&mut plan, MS, 0, go(5, None)), [fetch(0, Source::Peer(node(5)), Why::Told)]);
    for setup in [Setup { upstream: None, ..row() }, Setup { pace: setup(&[1], &[]).pace, ..row() }] {
        let (mut plan, _) = Plan::new(0, setup);
        assert_eq!(answer(&mut plan, MS, 0, wait(5)), streams(5));
    }
    let pace = setup(&[1], &[]).pace;
    let soon = |rate: u64| pace.with_link_rate(rate, 4).soon.as_millis();
    assert_eq!([0, 6 << 20, 25 << 20, 1 << 30].map(soon), [0, 83, 20, 0]);
}

#[test]
fn the_tracker_says_where_and_hears_what_became_of_it() {
    let (mut plan, first) = Plan::new(0, setup(&[1, 2], &[]));
    assert_eq!(first, [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 1, 0, go(5, Some(6))), [fetch(0, Source::Peer(node(5)), Why::Told)]);
    assert_eq!(plan.handle(9, Event::Arrived { fetch: 0 }), [note(1, What::Have), Action::Done { fetch: 0 }]);
    assert!(plan.is_over() && plan.wake().is_none());
    assert_eq!(plan.handle(10, Event::Arrived { fetch: 0 }), []);
}

/// On a link that a dozen blobs share, one of them stalls for a second. Its holder, the only one, must not be
/// excluded for that. It was, and the tracker, which knew no other holder, gave a second lease.
#[test]
fn regression_one_blob_of_many_may_stand_still() {
    let ruled_out_at = |share: u64| {
        let setup = setup(&[1], &[]);
        let pace = Pace { share: Duration::from_millis(share), ..setup.pace };
        let (mut plan, _) = Plan::new(0, Setup { pace, ..setup });
        answer(&mut plan, 0, 0, go(5, None));
        plan.handle(MS, Event::Progress { fetch: 0, came: 1 << 20 });
        loop {
            let now = plan.wake().unwrap();
            let out = plan.handle(now, Event::Tick);
            let rules_out = |action: &Action| matches!(action, Action::Ask { not, .. } if !not.is_empty());
            if out.iter().any(rules_out) {
                return now / MS;
            }
            assert!(!plan.is_over());
            if out.iter().any(|action| matches!(action, Action::Ask { .. })) {
                answer(&mut plan, now, 0, go(5, None));
            }
        }
    };
    let (alone, shared) = (ruled_out_at(0), ruled_out_at(300));
    assert!(alone < 200 && shared >= 300, "{alone} {shared}");
    let line = |rate, under_way| Pace::of(&Latencies::default(), 1).with_link_rate(rate, under_way).share;
    assert_eq!(line(0, 12), Duration::ZERO, "nothing is known");
    assert_eq!(line(1 << 22, 3), Duration::from_secs(3));
    assert_eq!(line(1, 12), PACE_MOST);
}

/// A peer that has not begun when another has is cancelled: both would send the same over one link.
#[test]
fn the_first_to_begin_continues_alone() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    answer(&mut plan, 0, 0, go(5, Some(6)));
    let out = plan.handle(20 * MS, Event::Tick);
    assert!(out.contains(&fetch(1, Source::Peer(node(6)), Why::Hedge)));
    assert_eq!(
        plan.handle(21 * MS, Event::Progress { fetch: 1, came: 1 << 20 }),
        [Action::Cancel { fetch: 0 }]
    );
    assert_eq!(plan.handle(22 * MS, Event::Progress { fetch: 0, came: 1 << 20 }), []);
    let end = plan.handle(23 * MS, Event::Arrived { fetch: 1 });
    assert_eq!(end, [note(1, What::Have), Action::Done { fetch: 1 }]);
}

/// When the first tracker dies, the others know which node fetches and which has it. No node is sent to the
/// origin once more.
#[test]
fn the_other_trackers_hear_of_a_lease() {
    let (mut plan, _) = Plan::new(0, setup(&[1, 2, 3], &[]));
    let told = |what| [note(2, what), note(3, what)];
    let fetching = [&told(What::Fetching)[..], &[fetch(0, Source::Origin, Why::Told)]].concat();
    assert_eq!(answer(&mut plan, 1, 0, lease(7)), fetching);
    plan.handle(299 * MS, Event::Progress { fetch: 0, came: 1 << 20 });
    assert_eq!(plan.handle(301 * MS, Event::Tick), [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 302 * MS, 0, lease(7)), [], "once is enough");
    let have = [note(1, What::Have), Action::Done { fetch: 0 }];
    assert_eq!(plan.handle(400 * MS, Event::Arrived { fetch: 0 }), have);
}

#[test]
fn slow_peers_are_hedged_step_by_step() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[8]));
    answer(&mut plan, 0, 0, go(5, Some(6)));
    let mut steps = Vec::new();
    while steps.len() < 4 {
        let now = plan.wake().unwrap();
        steps.extend(plan.handle(now, Event::Tick).into_iter().map(|action| (now / MS, action)));
    }
    let silent = note(1, What::Silent { by: node(5) });
    let hedges = [
        (20, silent),
        (20, fetch(1, Source::Peer(node(6)), Why::Hedge)),
        (40, fetch(2, Source::Depot(node(8)), Why::Hedge)),
        (80, ask(0, 1, &[5, 6, 8])),
    ];
    assert_eq!(steps, hedges);
    // The tracker knows no other node. Only its lease, and not a hedge, sends the plan to the origin.
    assert_eq!(answer(&mut plan, 81 * MS, 0, lease(1)), [fetch(3, Source::Origin, Why::Told)]);
    let end = plan.handle(90 * MS, Event::Arrived { fetch: 1 });
    let cancelled = end.iter().filter(|action| matches!(action, Action::Cancel { .. })).count();
    assert_eq!((cancelled, end.last()), (3, Some(&Action::Done { fetch: 1 })));
}

#[test]
fn others_are_spared_while_bytes_come() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    answer(&mut plan, 0, 0, go(5, None));
    for now in (0..4_000).step_by(5) {
        let out = plan.handle(now * MS, Event::Progress { fetch: 0, came: now << 10 });
        assert_eq!(out, [], "{now}");
    }
    assert_eq!(plan.handle(4_100 * MS, Event::Tick), [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 4_101 * MS, 0, go(6, None)), [fetch(1, Source::Peer(node(6)), Why::Told)]);
}

#[test]
fn regression_a_sender_of_other_blobs_is_neither_silent_nor_excluded() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    answer(&mut plan, 0, 0, go(5, None));
    // Until 190 ms the peer sends another blob, then nothing.
    let mut said = Vec::new();
    for now in (5..1_000).step_by(5) {
        let event = if now <= 190 { Event::Alive { fetch: 0 } } else { Event::Tick };
        let actions = plan.handle(now * MS, event);
        for action in actions {
            // The tracker knows no other node, and gives no lease until this one is excluded.
            if matches!(&action, Action::Ask { not, .. } if not.is_empty()) {
                let again = answer(&mut plan, now * MS, 0, go(5, None));
                assert_eq!(again, [], "at {now} ms");
            }
            said.push((now, action));
        }
    }
    let silent =
        |(_, action): &(u64, Action)| matches!(action, Action::Note { what: What::Silent { .. }, .. });
    assert!(!said.iter().any(silent), "{said:?}");
    let ruled_out =
        said.iter().find(|(_, action)| matches!(action, Action::Ask { not, .. } if !not.is_empty()));
    assert!(ruled_out.is_some_and(|(now, _)| *now > 200), "{said:?}");
}

#[test]
fn regression_answers_have_longer_while_much_is_on_its_way() {
    let answer = |under_way| Pace::of(&Latencies::default(), under_way).answer;
    // In the first second of a crowd answers are late, and nothing is known yet. With 0.1 s the next tracker
    // was asked, and gave a second lease.
    assert!((290..=330).contains(&answer(0).as_millis()), "{:?}", answer(0));
    // A queue of 100 ms on this node's link and on the tracker's, and as much again.
    assert!(answer(12) >= Duration::from_millis(390), "{:?}", answer(12));
    assert!(answer(1_000) <= SILENT_MOST && answer(1_000) == answer(32));
    let busy = Pace::of(&Latencies::default(), 1).with_busy_tracker();
    assert_eq!(busy.answer, SILENT_BUSY, "a tracker that sends something else is not silent");
}

#[test]
fn a_silent_tracker_is_followed_by_the_next_and_its_late_lease_is_no_second_fetch() {
    let (mut plan, _) = Plan::new(0, setup(&[1, 2, 3], &[]));
    assert_eq!(plan.wake(), Some(50 * MS));
    assert_eq!(plan.handle(50 * MS, Event::Tick), [Action::Silent { tracker: node(1) }, ask(1, 2, &[])]);
    let told = [note(3, What::Fetching), fetch(0, Source::Origin, Why::Told)];
    assert_eq!(answer(&mut plan, 51 * MS, 1, lease(7)), told);
    assert_eq!(answer(&mut plan, 60 * MS, 0, lease(8)), [note(3, What::Fetching)]);
    let end = plan.handle(61 * MS, Event::Failed { fetch: 0 });
    let back = |tracker, lease| note(tracker, What::Failed { lease });
    assert_eq!(end, [back(2, 7), back(1, 8), Action::Fail(Failure::Origin)]);
}

#[test]
fn without_any_tracker_it_goes_alone() {
    let (_, out) = Plan::new(0, setup(&[], &[]));
    assert_eq!(out, [fetch(0, Source::Origin, Why::Alone)]);
    let (mut plan, _) = Plan::new(0, setup(&[1, 2], &[8]));
    assert_eq!(plan.handle(1, Event::Unreachable { rank: 0 }), [ask(1, 2, &[])]);
    assert_eq!(answer(&mut plan, 2, 1, Answer::NotMine), [fetch(0, Source::Depot(node(8)), Why::Alone)]);
    let out = plan.handle(3, Event::Failed { fetch: 0 });
    assert_eq!(out, [fetch(1, Source::Origin, Why::Alone)]);
}

#[test]
fn a_failing_node_is_reported_and_excluded() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    answer(&mut plan, 1, 0, go(5, Some(6)));
    let refused = |by| note(1, What::Refused { by: node(by) });
    let out = plan.handle(2, Event::Failed { fetch: 0 });
    assert_eq!(out, [refused(5), fetch(1, Source::Peer(node(6)), Why::Told)]);
    assert_eq!(plan.handle(3, Event::Failed { fetch: 1 }), [refused(6), ask(0, 1, &[5, 6])]);
    let wait = Answer::Wait { parent: node(7), time: Duration::from_millis(900) };
    assert_eq!(answer(&mut plan, 4, 0, wait), [fetch(2, Source::Stream(node(7)), Why::Told)]);
    assert_eq!(plan.handle(5, Event::Failed { fetch: 2 }), [refused(7), ask(0, 1, &[5, 6, 7])]);
    assert_eq!(answer(&mut plan, 6, 0, lease(1)), [fetch(3, Source::Origin, Why::Told)]);
}

#[test]
fn a_waiting_node_does_not_overtake_a_lease() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    let wait = Answer::Wait { parent: node(7), time: Duration::from_millis(900) };
    answer(&mut plan, 0, 0, wait);
    assert_eq!(plan.handle(200 * MS, Event::Tick), [ask(0, 1, &[])]);
    // The same parent again: its fetch is already in flight. And no other source is the origin before the
    // lease ends.
    assert_eq!(answer(&mut plan, 201 * MS, 0, wait), []);
    assert_eq!(plan.handle(400 * MS, Event::Tick), []);
    assert_eq!(plan.handle(800 * MS, Event::Tick), []);
    assert_eq!(plan.wake(), Some(1_101 * MS));
    assert_eq!(plan.handle(1_101 * MS, Event::Tick), [ask(0, 1, &[])]);
    // The tracker is gone as well. Now the plan goes to the origin by itself.
    let mut out = Vec::new();
    while out.len() < 2 {
        let now = plan.wake().unwrap();
        out.extend(plan.handle(now, Event::Tick));
    }
    assert_eq!(out, [Action::Silent { tracker: node(1) }, fetch(1, Source::Origin, Why::Hedge)]);
}

/// The origin was a hedging step of every plan. A slow source is slow for all its waiters, so in a crowd of
/// ten thousand each blob was fetched seven times, without any fault.
#[test]
fn regression_a_crowd_that_waits_for_a_slow_node_does_not_go_to_the_origin() {
    let mut gets = 0;
    for _ in 0..100 {
        let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
        let mut out = answer(&mut plan, 0, 0, go(5, None));
        let mut named = 10;
        while plan.wake().is_some_and(|wake| wake < 800 * MS) {
            let now = plan.wake().unwrap();
            gets += out
                .iter()
                .filter(|action| matches!(action, Action::Fetch { from: Source::Origin, .. }))
                .count();
            out = plan.handle(now, Event::Tick);
            if out.iter().any(|action| matches!(action, Action::Ask { .. })) {
                named += 1;
                out.extend(answer(&mut plan, now, 0, go(named, None)));
            }
        }
    }
    assert_eq!(gets, 0);
}

/// Five nodes streamed from one another when the first one's parent died, and its tracker. Each asked the
/// next tracker and excluded the node before it, which had just got the lease: five leases for one blob.
#[test]
fn regression_a_stalled_stream_is_not_excluded_at_once() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    let wait = Answer::Wait { parent: node(7), time: Duration::from_millis(900) };
    answer(&mut plan, 0, 0, wait);
    let mut asked = Vec::new();
    while asked.len() < 3 {
        let now = plan.wake().unwrap();
        for action in plan.handle(now, Event::Tick) {
            let Action::Ask { not, .. } = action else { panic!("{action:?}") };
            asked.push(not);
            assert_eq!(answer(&mut plan, now, 0, wait), []);
        }
    }
    assert_eq!(asked, [vec![], vec![], vec![node(7)]]);
}

#[test]
fn a_node_that_is_sent_on_and_on_ends_at_the_origin() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    answer(&mut plan, 0, 0, go(5, None));
    let (mut named, mut why) = (10, None);
    while let Some(now) = plan.wake().filter(|_| why.is_none()) {
        for action in plan.handle(now, Event::Tick) {
            match action {
                Action::Ask { .. } => {
                    named += 1;
                    answer(&mut plan, now, 0, go(named, None));
                }
                Action::Fetch { from: Source::Origin, why: because, .. } => why = Some((now / MS, because)),
                _ => {}
            }
        }
    }
    let (when, why) = why.unwrap();
    assert_eq!(why, Why::Hedge);
    assert!((200..3_000).contains(&when), "{when}");
}

#[test]
fn a_repeated_question_may_get_the_lease() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    answer(&mut plan, 0, 0, Answer::Wait { parent: node(7), time: Duration::from_millis(900) });
    assert_eq!(plan.handle(200 * MS, Event::Tick), [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 201 * MS, 0, lease(3)), [fetch(1, Source::Origin, Why::Told)]);
}

#[test]
fn a_lease_is_renewed_while_bytes_come_only() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    answer(&mut plan, 0, 0, lease(3));
    assert_eq!(plan.wake(), Some(300 * MS));
    plan.handle(290 * MS, Event::Progress { fetch: 0, came: 1 << 20 });
    assert_eq!(plan.handle(300 * MS, Event::Tick), [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 301 * MS, 0, lease(3)), []);
    assert_eq!(plan.wake(), Some(601 * MS));
    assert_eq!(plan.handle(601 * MS, Event::Tick), []);
    // It has ended, and may be another node's.
    plan.handle(1_300 * MS, Event::Tick);
    assert_eq!(plan.handle(1_310 * MS, Event::Progress { fetch: 0, came: 1 << 20 }), []);
    let end = plan.handle(10_000 * MS, Event::Tick);
    assert_eq!(end.last(), Some(&Action::Fail(Failure::Deadline { peers: 0, origin: true })));
}

/// The only holder of a blob was behind a slow link. Its bytes trickled and postponed every hedge for half of
/// the plan's deadline. The reader's own deadline passed first.
#[test]
fn regression_a_crawling_sender_is_excluded_and_not_waited_for() {
    let patient = |deadline| Setup { deadline: Duration::from_secs(deadline), ..setup(&[1], &[]) };
    let first_step = |setup: Setup, told: Answer, rate: u64, until: u64| {
        let (mut plan, _) = Plan::new(0, setup);
        answer(&mut plan, 0, 0, told);
        for now in (100..until).step_by(100) {
            let out = plan.handle(now * MS, Event::Progress { fetch: 0, came: rate * now / 1_000 });
            if !out.is_empty() {
                return Some((now, out));
            }
        }
        None
    };
    let slow = first_step(patient(55), go(5, None), 3 << 16, 9_000);
    let steps = vec![note(1, What::Silent { by: node(5) }), ask(0, 1, &[5])];
    assert_eq!(first_step(patient(55), go(5, None), 2 << 18, 7_900), None, "eight seconds are acceptable");
    assert_eq!(slow, Some((4_100, steps.clone())));
    let hurried = first_step(patient(8), go(5, None), 2 << 18, 7_900);
    assert_eq!(hurried, Some((1_000, steps)), "but not with a deadline of eight");
    // A dozen blobs that share a link are all slow.
    let shared = patient(55);
    let pace = Pace { share: Duration::from_secs(8), ..shared.pace };
    assert_eq!(first_step(Setup { pace, ..shared }, go(5, None), 1 << 18, 9_000), None);
    // A node that passes on what comes from the origin is as slow as the origin. It is kept for half of the
    // time.
    let wait = Answer::Wait { parent: node(7), time: Duration::from_millis(900) };
    assert_eq!(first_step(patient(20), wait, 1 << 17, 9_900), None);
    assert!(first_step(patient(20), wait, 1 << 17, 10_200).is_some());
}

/// The resulting lease is used although the slow fetch continues, and the bytes of the slow fetch are used
/// too.
#[test]
fn a_crawling_sender_may_still_be_first() {
    let (mut plan, _) = Plan::new(0, Setup { deadline: Duration::from_secs(55), ..setup(&[1], &[]) });
    answer(&mut plan, 0, 0, go(5, None));
    for now in [100, 4_100] {
        plan.handle(now * MS, Event::Progress { fetch: 0, came: now << 7 });
    }
    assert_eq!(answer(&mut plan, 4_101 * MS, 0, lease(3)), [fetch(1, Source::Origin, Why::Told)]);
    let end = plan.handle(4_200 * MS, Event::Arrived { fetch: 0 });
    assert_eq!(end, [note(1, What::Have), Action::Cancel { fetch: 1 }, Action::Done { fetch: 0 }]);
}

/// A store's connections may take a second to begin, if a dozen begin at once on a full link. The lease was
/// checked once before that, and never again.
#[test]
fn regression_a_lease_whose_bytes_come_late_is_renewed_then() {
    let (mut plan, _) = Plan::new(0, setup(&[1], &[]));
    answer(&mut plan, 0, 0, lease(3));
    while let Some(now) = plan.wake().filter(|now| *now < 850 * MS) {
        assert_eq!(plan.handle(now, Event::Tick), []);
    }
    assert_eq!(plan.handle(850 * MS, Event::Progress { fetch: 0, came: 1 << 20 }), [ask(0, 1, &[])]);
}

/// The lease was checked 20 times a second until it ended, for bytes that would have triggered an event
/// themselves.
#[test]
fn regression_leases_without_bytes_cause_no_wakeups() {
    let (mut plan, _) = Plan::new(0, setup(&[1, 2, 3], &[]));
    for now in [50, 100] {
        plan.handle(now * MS, Event::Tick);
    }
    for rank in 0..3 {
        answer(&mut plan, 101 * MS, rank, Answer::Lease { lease: 0, time: Duration::from_secs(3) });
    }
    let wakes = std::iter::from_fn(|| plan.wake().inspect(|now| drop(plan.handle(*now, Event::Tick))));
    assert_eq!(wakes.collect::<Vec<_>>(), [1_101 * MS, 10_000 * MS]);
}

#[derive(Clone, Debug)]
enum Chance {
    Answer(usize, Answer),
    Event(Event),
    Pass(u64),
    Wake,
}

fn chance() -> impl Strategy<Value = Chance> {
    let nodes = || (0u8..12).prop_map(node);
    let millis = || (0u64..3_000).prop_map(Duration::from_millis);
    let answers = prop_oneof![
        Just(Answer::Serve),
        Just(Answer::NotMine),
        (nodes(), prop::option::of(nodes())).prop_map(|(first, second)| Answer::Go { first, second }),
        (any::<u64>(), millis()).prop_map(|(lease, time)| Answer::Lease { lease, time }),
        (nodes(), millis()).prop_map(|(parent, time)| Answer::Wait { parent, time }),
    ];
    let fetch = || 0u32..8;
    let events = prop_oneof![
        Just(Event::Tick),
        Just(Event::Slack),
        (0usize..4).prop_map(|rank| Event::Unreachable { rank }),
        (fetch(), 0u64..5 << 20).prop_map(|(fetch, came)| Event::Progress { fetch, came }),
        fetch().prop_map(|fetch| Event::Failed { fetch }),
        fetch().prop_map(|fetch| Event::Failed { fetch }),
    ];
    prop_oneof![
        4 => (0usize..4, answers).prop_map(|(rank, answer)| Chance::Answer(rank, answer)),
        4 => events.prop_map(Chance::Event),
        1 => fetch().prop_map(|fetch| Chance::Event(Event::Arrived { fetch })),
        2 => (0u64..200).prop_map(Chance::Pass),
        2 => Just(Chance::Wake),
    ]
}

/// Checks a plan as its driver sees it.
#[derive(Default)]
struct Watch {
    started: Vec<Source>,
    failed: HashSet<NodeId>,
    running: HashSet<FetchNo>,
    ends: u32,
    asks: u32,
}

impl Watch {
    fn see(&mut self, actions: &[Action]) {
        for action in actions {
            assert_eq!(self.ends, 0, "{action:?} after the end");
            match action {
                Action::Fetch { fetch, from, .. } => {
                    assert_eq!(*fetch as usize, self.started.len());
                    let node = from.node();
                    assert!(node.is_none_or(|from| from != node_own() && !self.failed.contains(&from)));
                    self.started.push(*from);
                    self.running.insert(*fetch);
                }
                Action::Cancel { fetch } => assert!(self.running.remove(fetch)),
                Action::Done { .. } | Action::Fail(_) => self.ends += 1,
                Action::Ask { not, .. } => {
                    self.asks += 1;
                    assert!(not.len() <= NOT_MAX);
                }
                Action::Note { .. } | Action::Silent { .. } => {}
            }
        }
        assert!(
            self.started.iter().filter(|from| **from == Source::Origin).count() <= 1,
            "twice from the origin"
        );
    }

    fn hand(&mut self, plan: &mut Plan, now: u64, event: Event) {
        match event {
            Event::Failed { fetch } if self.running.remove(&fetch) => {
                self.failed.extend(self.started[fetch as usize].node());
            }
            Event::Arrived { fetch } => {
                self.running.remove(&fetch);
            }
            _ => {}
        }
        let actions = plan.handle(now, event);
        self.see(&actions);
        assert_eq!(plan.is_over(), self.ends == 1);
        match plan.wake() {
            None => assert_eq!(self.ends, 1),
            Some(wake) => assert!(wake > now, "it would spin: {plan:?}"),
        }
    }
}

fn node_own() -> NodeId {
    node(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn it_always_ends_whatever_happens(trackers in 0usize..4, depots in 0usize..3, chances in prop::collection::vec(chance(), 0..60)) {
        let trackers: Vec<u8> = (1..=trackers as u8).collect();
        let depots: Vec<u8> = (20..20 + depots as u8).collect();
        let (mut plan, first) = Plan::new(0, setup(&trackers, &depots));
        let (mut watch, mut now) = (Watch::default(), 0);
        watch.see(&first);
        for chance in chances {
            match chance {
                Chance::Answer(rank, answer) => watch.hand(&mut plan, now, Event::Answered { rank, answer }),
                Chance::Event(event) => watch.hand(&mut plan, now, event),
                Chance::Pass(millis) => now += millis * MS,
                Chance::Wake => {
                    now = plan.wake().unwrap_or(now);
                    watch.hand(&mut plan, now, Event::Tick);
                }
            }
        }
        // From here on nothing happens but time.
        let mut turns = 0;
        while let Some(wake) = plan.wake() {
            prop_assert!(wake <= 10_000 * MS);
            now = now.max(wake);
            watch.hand(&mut plan, now, Event::Tick);
            turns += 1;
            prop_assert!(turns < 100);
        }
        prop_assert_eq!(watch.ends, 1);
        prop_assert!(watch.running.is_empty(), "fetches that were not ended");
        // Six questions and a few renewals of a lease, at most one for each answer.
        prop_assert!(watch.asks < 6 + 60);
    }
}
