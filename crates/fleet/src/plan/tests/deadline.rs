//! A reader with a short deadline on a link where fetches take long.

use super::*;

/// Fetches have taken ten seconds on this link, and the reader has eight.
fn hurried() -> Setup {
    let plain = setup(&[1], &[]);
    let pace = Pace { peer: PACE_MOST, stream: PACE_MOST, origin: PACE_MOST, ..plain.pace };
    Setup { pace, deadline: Duration::from_secs(8), ..plain }
}

/// Runs the plan until `end` while the tracker always gives this answer and no byte of the blob arrives, but
/// other blobs from the same node do. Returns when each fetch began.
fn begun(told: Answer, end: u64) -> Vec<(u64, Source)> {
    let (mut plan, actions) = Plan::new(0, hurried());
    let mut begun = Vec::new();
    let mut queue: Vec<(u64, Action)> = actions.into_iter().map(|action| (0, action)).collect();
    let mut now = 0;
    while now < end * MS {
        while let Some((at, action)) = queue.pop() {
            let more = match action {
                Action::Ask { rank, .. } => answer(&mut plan, now, rank, told),
                Action::Fetch { from, .. } => {
                    begun.push((at / MS, from));
                    Vec::new()
                }
                _ => Vec::new(),
            };
            queue.extend(more.into_iter().map(|action| (now, action)));
        }
        now += 20 * MS;
        queue.extend(plan.handle(now, Event::Alive { fetch: 0 }).into_iter().map(|action| (now, action)));
    }
    begun
}

/// The only holder was behind a slow link and sent other blobs first. Fetches had taken so long on that link
/// that no hedge was due before the deadline. The reader got EIO, although the store had the blob.
#[test]
fn regression_a_queued_blob_is_taken_from_the_origin_before_the_deadline() {
    let fetches = begun(go(5, None), 7_990);
    assert_eq!(fetches[0], (0, Source::Peer(node(5))));
    assert_eq!(fetches.len(), 2, "{fetches:?}");
    let (at, from) = fetches[1];
    assert!(from == Source::Origin && (2_000..=5_400).contains(&at), "{fetches:?}");
}

/// If a slow origin could make every node ask the origin as well, it would become slower.
#[test]
fn a_node_that_waits_for_a_fetch_from_the_origin_does_not_ask_the_origin() {
    let wait = Answer::Wait { parent: node(7), time: Duration::from_millis(900) };
    assert_eq!(begun(wait, 5_400), [(0, Source::Stream(node(7)))]);
}
