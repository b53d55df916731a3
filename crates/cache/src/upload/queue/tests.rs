//! The order of uploads. Tests pass time and random numbers in.

use super::*;

fn id(n: u8) -> BlobId {
    BlobId([n; 32])
}

fn today() -> Timestamp {
    Timestamp(7)
}

fn queue(blobs: u8) -> Queue {
    let mut queue = Queue::new(8);
    (0..blobs).for_each(|n| assert!(queue.note(id(n), 10, today(), false)));
    queue
}

fn take(queue: &mut Queue, now: Instant) -> Job {
    match queue.take(now) {
        Next::Job(job) => job,
        other => panic!("{other:?}"),
    }
}

/// The next job, and the time when it is due.
fn wait_for(queue: &mut Queue, mut now: Instant) -> (Job, Instant) {
    loop {
        match queue.take(now) {
            Next::Job(job) => return (job, now),
            Next::At(at) => now = at,
            Next::Nothing => panic!("nothing to wait for"),
        }
    }
}

fn away() -> Fault {
    Fault::Away("no answer".to_owned())
}

#[test]
fn the_oldest_goes_first_and_a_done_one_is_gone() {
    let (mut queue, now) = (queue(3), Instant::now());
    assert!(!queue.note(id(1), 10, today(), false), "noted already");
    let jobs: Vec<Job> = (0..3).map(|_| take(&mut queue, now)).collect();
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [id(0), id(1), id(2)]);
    assert_eq!(queue.take(now), Next::Nothing);
    assert_eq!(queue.succeeded(&jobs[1], true, now), (true, None));
    assert!(!queue.has(&id(1)) && queue.wants(&id(0)));
    assert_eq!(queue.pinned(), Pinned { blobs: 2, bytes: 20 });
    assert!(queue.note(id(1), 10, today(), false));
    assert!(take(&mut queue, now).ask_first, "it was sent a moment ago");
}

#[test]
fn in_an_outage_one_asks_at_a_time_and_the_line_is_said_once() {
    let (mut queue, start) = (queue(5), Instant::now());
    let jobs: Vec<Job> = (0..3).map(|_| take(&mut queue, start)).collect();
    let mut now = start + Duration::from_secs(1);
    let said: Vec<Event> = jobs.iter().filter_map(|job| queue.failed(job, away(), now, today(), 0)).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(queue.hands(), 1);
    let mut waits = Vec::new();
    for _ in 0..12 {
        assert!(matches!(queue.take(now), Next::At(_)), "it is held back");
        let (job, at) = wait_for(&mut queue, now);
        waits.push(at - now);
        now = at;
        assert_eq!(queue.take(now), Next::Nothing, "one at a time");
        assert_eq!(queue.failed(&job, away(), now, today(), 1023), None);
    }
    assert!(waits[11] >= AWAY.longest / 2 && waits[11] <= AWAY.longest * 2, "{waits:?}");
    let (job, at) = wait_for(&mut queue, now);
    let (done, event) = queue.succeeded(&job, true, at);
    assert!(done && matches!(event, Some(Event::Over(_))));
    // The other blobs are due shortly after the outage.
    let soon = at + AFTER_OUTAGE;
    for _ in 0..4 {
        let job = take(&mut queue, soon);
        queue.succeeded(&job, true, soon);
    }
}

#[test]
fn a_failure_halves_what_is_sent_at_a_time_and_successes_bring_it_back() {
    let (mut queue, now) = (queue(40), Instant::now());
    let under_way = |queue: &mut Queue, now| {
        let jobs = std::iter::from_fn(|| match queue.take(now) {
            Next::Job(job) => Some(job),
            _ => None,
        });
        jobs.collect::<Vec<Job>>()
    };
    let jobs = under_way(&mut queue, now);
    assert_eq!(jobs.len(), 8);
    queue.succeeded(&jobs[0], true, now);
    for job in &jobs[1..3] {
        queue.failed(job, away(), now, today(), 0);
    }
    jobs[3..].iter().for_each(|job| drop(queue.succeeded(job, true, now)));
    let later = now + AWAY.longest;
    assert_eq!(under_way(&mut queue, later).len(), 2 + 5, "a quarter of eight, and one for each success");
}

#[test]
fn a_blob_that_alone_fails_keeps_no_other_waiting() {
    let (mut queue, mut now) = (queue(40), Instant::now());
    let mut sent = 0;
    let mut held = Duration::ZERO;
    for _ in 0..1000 {
        if queue.pinned().blobs == 1 {
            break;
        }
        match queue.take(now) {
            Next::Job(job) if job.id == id(0) => {
                // Another upload succeeded since this attempt began, except at the very first attempt.
                assert!(queue.failed(&job, away(), now, today(), 5).is_none() || sent == 0);
            }
            Next::Job(job) => {
                queue.succeeded(&job, true, now);
                sent += 1;
            }
            Next::At(at) => {
                held += at - now;
                now = at;
            }
            Next::Nothing => panic!("{sent} sent"),
        }
        now += Duration::from_millis(1);
    }
    assert_eq!(sent, 39);
    assert!(held < Duration::from_secs(2), "{held:?}");
    assert!(queue.wants(&id(0)));
}

#[test]
fn a_refusal_is_said_even_after_silence_and_tried_again_slowly() {
    let (mut queue, now) = (queue(1), Instant::now());
    let job = take(&mut queue, now);
    assert!(matches!(queue.failed(&job, away(), now, today(), 0), Some(Event::Trouble(_))));
    let (job, at) = wait_for(&mut queue, now);
    let refused = Fault::Refused("access denied".to_owned());
    let event = queue.failed(&job, refused, at, Timestamp(9), 0);
    let wanted = Trouble { since: today(), refused: true, why: "access denied".to_owned() };
    assert_eq!(event, Some(Event::Trouble(wanted)));
    let Next::At(next) = queue.take(at) else { panic!("held back") };
    assert!(next - at >= REFUSED.first / 2);
    queue.hurry();
    let _ = take(&mut queue, at);
}

#[test]
fn what_is_forgotten_while_it_is_sent_ends_with_the_attempt() {
    let (mut queue, now) = (queue(2), Instant::now());
    let (first, second) = (take(&mut queue, now), take(&mut queue, now));
    queue.forget(&id(0));
    queue.forget(&id(1));
    assert_eq!(queue.pinned(), Pinned::default());
    assert!(queue.has(&id(0)) && !queue.wants(&id(0)));
    assert!(queue.note(id(1), 10, today(), false), "wanted again");
    assert!(!queue.note(id(1), 10, today(), false));
    assert_eq!(queue.succeeded(&first, true, now), (false, None));
    assert_eq!(queue.succeeded(&second, true, now), (false, None), "its note is a new one");
    assert!(!queue.has(&id(0)) && queue.wants(&id(1)));
    let again = take(&mut queue, now);
    assert!(again.id == id(1) && again.ask_first);
    queue.forget(&id(1));
    assert_eq!(queue.failed(&again, away(), now, today(), 0), None);
    assert!(!queue.has(&id(1)) && queue.is_idle());
}

#[test]
fn what_was_noted_before_a_mark_is_told_from_what_came_later() {
    let (mut queue, now) = (queue(2), Instant::now());
    let mark = queue.mark();
    queue.note(id(9), 5, today(), false);
    assert_eq!(queue.left(mark), Pinned { blobs: 2, bytes: 20 });
    let job = take(&mut queue, now);
    queue.succeeded(&job, false, now);
    assert!(!queue.is_settled(mark));
    queue.forget(&id(1));
    assert!(queue.is_settled(mark) && queue.wants(&id(9)));
    assert_eq!(queue.left(mark), Pinned::default());
}

#[test]
fn a_blob_that_cannot_be_read_here_says_nothing_of_the_origin() {
    let (mut queue, now) = (queue(2), Instant::now());
    let job = take(&mut queue, now);
    let local = || Fault::Local("input/output error".to_owned());
    assert!(matches!(
        queue.failed(&job, local(), now, today(), 0),
        Some(Event::Unreadable(which, _)) if which == id(0)
    ));
    assert_eq!((queue.unreadable(), queue.trouble()), (1, None));
    let other = take(&mut queue, now);
    assert_eq!(other.id, id(1));
    let later = now + REFUSED.longest;
    let job = take(&mut queue, later);
    assert_eq!(queue.failed(&job, local(), later, today(), 0), None, "said once");
    queue.forget(&id(0));
    assert_eq!(queue.unreadable(), 0);
}

fn refused() -> Fault {
    Fault::Refused("access denied".to_owned())
}

/// Works through the queue, whose store refuses some blobs, until only these are left or `most` has passed.
/// Returns the attempts, the time, and what was said.
fn work(queue: &mut Queue, most: Duration, refuses: impl Fn(&BlobId) -> bool) -> (u32, Duration, Vec<Event>) {
    let start = Instant::now();
    let (mut now, mut attempts, mut said) = (start, 0, Vec::new());
    while now - start < most && queue.first(usize::MAX).iter().any(|waiting| !refuses(&waiting.id)) {
        let mut jobs = Vec::new();
        let next = loop {
            match queue.take(now) {
                Next::Job(job) => jobs.push(job),
                other => break other,
            }
        };
        match (jobs.is_empty(), next) {
            (true, Next::At(at)) => now = at,
            (true, other) => panic!("{other:?}"),
            (false, _) => now += Duration::from_millis(1),
        }
        for job in jobs {
            attempts += 1;
            match refuses(&job.id) {
                true => said.extend(queue.failed(&job, refused(), now, today(), 7)),
                false => said.extend(queue.succeeded(&job, true, now).1),
            }
        }
    }
    (attempts, now - start, said)
}

/// One refused blob put the whole origin in doubt. Others were sent one at a time, many seconds apart.
#[test]
fn regression_refused_blobs_slow_no_other() {
    for refuses in [
        |id: &BlobId| id.0[0] == 0,
        |id: &BlobId| id.0[0] < 30,
        |id: &BlobId| id.0[0].is_multiple_of(2),
        |id: &BlobId| !id.0[0].is_multiple_of(9),
    ] {
        let mut queue = queue(200);
        let (attempts, took, said) = work(&mut queue, Duration::from_secs(3600), refuses);
        assert!(took < Duration::from_secs(1) && attempts <= 200, "{attempts} attempts in {took:?}");
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(queue.trouble().is_some_and(|trouble| trouble.refused), "some are refused");
        assert_eq!(queue.hands(), queue.pinned().blobs.min(8) as usize);
        // They are tried again, and when one is taken, all are due.
        let left = queue.pinned().blobs as u32;
        let (attempts, _, said) = work(&mut queue, Duration::from_secs(3600), |_| false);
        assert_eq!((attempts, queue.pinned().blobs), (left, 0));
        assert!(matches!(&said[..], [Event::Over(_)]), "{said:?}");
    }
}

#[test]
fn while_all_is_refused_little_is_sent() {
    let mut queue = queue(250);
    let minutes = Duration::from_secs(600);
    let refuses_all = |id: &BlobId| id.0[0] < 250;
    queue.note(id(255), 10, today(), false);
    // The last one would be taken, so the work goes on until the time is over or it was sent.
    let (attempts, took, said) = work(&mut queue, minutes, refuses_all);
    assert!(attempts <= MANY + 8 + 4 * took.as_secs() as u32, "{attempts} in {took:?}");
    assert!(took > Duration::from_secs(60), "{took:?}");
    assert_eq!(said.len(), 1, "{said:?}");
}
