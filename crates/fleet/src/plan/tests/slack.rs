//! A link that has room: what a plan does about slow senders, and about late trackers.

use super::*;

/// A plan on a narrow link, where nothing else happens soon.
fn narrow(trackers: &[u8]) -> Setup {
    let plain = setup(trackers, &[]);
    let pace = Pace { peer: PACE_MOST, share: Duration::from_secs(3), ..plain.pace };
    Setup { pace, deadline: Duration::from_secs(60), ..plain }
}

/// A fetch that has been delivering for 1.5 s, and would need ten more.
fn lagging() -> Plan {
    let (mut plan, _) = Plan::new(0, narrow(&[1, 2]));
    assert_eq!(answer(&mut plan, MS, 0, go(5, None)), [fetch(0, Source::Peer(node(5)), Why::Told)]);
    assert_eq!(plan.handle(100 * MS, Event::Progress { fetch: 0, came: 1_000 }), []);
    assert_eq!(plan.handle(1_590 * MS, Event::Progress { fetch: 0, came: 600_000 }), []);
    plan
}

/// The second tracker was asked because the first was slow. It named a node with other receivers, while the
/// upstream was idle. All prefetched blobs waited for this one: ten of sixty seconds, with eight nodes.
#[test]
fn regression_a_holder_that_lags_on_an_idle_line_is_left_for_another() {
    let mut plan = lagging();
    assert_eq!(plan.handle(1_600 * MS, Event::Slack), [ask(0, 1, &[])], "no node is excluded");
    assert_eq!(plan.handle(1_601 * MS, Event::Slack), [], "one question at a time");
    assert_eq!(answer(&mut plan, 1_602 * MS, 0, go(6, None)), [fetch(1, Source::Peer(node(6)), Why::Told)]);
    let end = plan.handle(1_700 * MS, Event::Arrived { fetch: 1 });
    assert_eq!(end, [note(1, What::Have), Action::Cancel { fetch: 0 }, Action::Done { fetch: 1 }]);
}

#[test]
fn a_lagging_only_holder_continues() {
    let mut plan = lagging();
    assert_eq!(plan.handle(1_600 * MS, Event::Slack), [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 1_601 * MS, 0, go(5, None)), []);
    assert_eq!(plan.handle(1_602 * MS, Event::Slack), [], "not at once again");
    assert_eq!(plan.handle(3_590 * MS, Event::Progress { fetch: 0, came: 1_200_000 }), []);
    assert_eq!(plan.handle(3_601 * MS, Event::Slack), [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 3_602 * MS, 0, go(5, None)), []);
    assert_eq!(plan.handle(5_590 * MS, Event::Progress { fetch: 0, came: 1_900_000 }), []);
    assert_eq!(plan.handle(5_700 * MS, Event::Slack), [], "twice is enough");
    // A tracker that knows no other holder: slow bytes are better than a new fetch.
    let mut plan = lagging();
    assert_eq!(plan.handle(1_600 * MS, Event::Slack), [ask(0, 1, &[])]);
    assert_eq!(answer(&mut plan, 1_601 * MS, 0, lease(9)), [note(2, What::Fetching)]);
    let end = plan.handle(1_800 * MS, Event::Arrived { fetch: 0 });
    assert_eq!(end, [note(1, What::Have), Action::Done { fetch: 0 }], "the lease has ended with success");
}

#[test]
fn a_fast_sender_or_a_stream_is_left_alone() {
    let begin = |named: Answer, came: u64| {
        let (mut plan, _) = Plan::new(0, narrow(&[1]));
        answer(&mut plan, MS, 0, named);
        plan.handle(10 * MS, Event::Progress { fetch: 0, came: 1_000 });
        assert_eq!(plan.handle(150 * MS, Event::Slack), [], "too early to say");
        plan.handle(1_590 * MS, Event::Progress { fetch: 0, came });
        plan.handle(1_600 * MS, Event::Slack)
    };
    assert_eq!(begin(go(5, None), 3 << 20), []);
    let wait = Answer::Wait { parent: node(5), time: Duration::from_millis(900) };
    assert_eq!(begin(wait, 600_000), [], "the sender has no more itself");
    assert_eq!(begin(go(5, None), 600_000).len(), 1);
}

#[test]
fn a_late_tracker_counts_if_it_names_the_upstream() {
    let late = |sender: u8, begun: bool, named: Answer| {
        let (mut plan, _) = Plan::new(0, Setup { upstream: Some(node(sender)), ..setup(&[1, 2], &[]) });
        plan.handle(50 * MS, Event::Tick);
        assert_eq!(answer(&mut plan, 51 * MS, 1, go(5, None)), [fetch(0, Source::Peer(node(5)), Why::Told)]);
        if begun {
            plan.handle(52 * MS, Event::Progress { fetch: 0, came: 1_000 });
        }
        answer(&mut plan, 53 * MS, 0, named)
    };
    assert_eq!(late(7, false, go(7, None)), [fetch(1, Source::Peer(node(7)), Why::Told)]);
    assert_eq!(late(1, false, Answer::Serve), [fetch(1, Source::Peer(node(1)), Why::Told)]);
    assert_eq!(late(7, true, go(7, None)), [], "the other node has begun");
    assert_eq!(late(7, false, go(6, None)), [], "one as good as the other");
    assert_eq!(
        late(7, false, lease(3)).iter().filter(|action| matches!(action, Action::Fetch { .. })).count(),
        0
    );
}
