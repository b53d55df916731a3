//! The table: each waiter is completed once, no leader stays behind, nothing is left in the table.

mod model;
mod threads;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base::BlobId;
use base::size::GROUP;
use blob::completion::{Arrival, Missed};
use blob::{BlobError, Buffer, Part, Sums};
use parking_lot::Mutex;

use super::*;

fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
    out
}

/// A blob of a few groups.
struct Blob {
    id: BlobId,
    bytes: Vec<u8>,
    sums: Sums,
}

impl Blob {
    fn new(len: usize, seed: u8) -> Blob {
        let bytes = noise(len, seed);
        let sums = Sums::of(&bytes);
        Blob { id: sums.id(), bytes, sums }
    }

    fn part(&self, range: Range<u32>) -> Part {
        let bytes = &self.bytes[range.start as usize..range.end as usize];
        Part { sums: self.sums.clone(), offset: range.start, bytes: Buffer::from(bytes.to_vec()) }
    }

    fn whole(&self) -> Part {
        self.part(0..self.bytes.len() as u32)
    }
}

fn table() -> Arc<Table> {
    Table::new(Verify::Blake3, 64 << 20)
}

type Result<T> = std::result::Result<T, Missed>;

/// A waiter whose result comes through a channel.
fn waiter(range: Range<u32>) -> (Arc<Waiter>, Receiver<Result<Vec<u8>>>) {
    let (sender, receiver) = channel();
    let completion = move |arrival: Arrival<'_>| sender.send(arrival.map(<[u8]>::to_vec)).is_ok();
    (Waiter::new(range, Box::new(completion)), receiver)
}

fn lead<L>(join: Join<L>) -> L {
    match join {
        Join::Leader(lead) => lead,
        Join::Follower(_) => panic!("somebody fetches it already"),
    }
}

fn follow<L>(join: Join<L>) -> Arc<InFlight> {
    match join {
        Join::Leader(_) => panic!("nobody fetches it"),
        Join::Follower(fetch) => fetch,
    }
}

fn unavailable() -> BlobError {
    BlobError::Unavailable("the origin is away".to_owned())
}

/// Keeps whole blobs until the test drops them.
#[derive(Default)]
struct Keeper {
    completed: Mutex<Vec<Completed>>,
    failed: Mutex<Vec<BlobId>>,
}

impl Subscriber for Keeper {
    fn completed(&self, completed: Completed) {
        self.completed.lock().push(completed);
    }

    fn failed(&self, id: &BlobId, _: Purpose, _: &BlobError) {
        self.failed.lock().push(*id);
    }
}

fn with_keeper(table: &Table) -> Arc<Keeper> {
    let keeper = Arc::new(Keeper::default());
    let weak = Arc::downgrade(&keeper);
    table.subscribe(weak);
    keeper
}

#[test]
fn followers_get_the_beginning_of_a_blob_before_its_end() {
    let (table, blob) = (table(), Blob::new(200_000, 1));
    let lead = lead(table.join_whole(&blob.id, Purpose::Read));
    let fetch = follow(table.join_part(&blob.id, 0..1));
    let ((early, first), (late, last)) = (waiter(10..70_000), waiter(0..200_000));
    fetch.notify(&early);
    // The buffer comes into being after the first waiter.
    let buffer = lead.buffer();
    fetch.notify(&late);
    buffer.begin(blob.sums.clone()).unwrap();
    buffer.append(&blob.bytes[..140_000]).unwrap();
    assert_eq!(first.try_recv().unwrap().unwrap(), blob.bytes[10..70_000]);
    assert!(last.try_recv().is_err() && fetch.outcome().is_none());
    let mut some = [0; 9];
    fetch.read(131_000, &mut some).unwrap();
    assert_eq!(some, blob.bytes[131_000..131_009], "a thread does not wait for the rest either");
    lead.finish(Ok(blob.whole())).unwrap();
    assert_eq!(last.try_recv().unwrap().unwrap(), blob.bytes);
    assert_eq!((fetch.taken(), table.served_early(), table.len()), (269_990, 1, 0));
    assert!(fetch.read(199_999, &mut some).is_err(), "there is no such range");
}

/// The leader had less time than its followers. They got its error, although they had time to try again.
#[test]
fn regression_followers_of_a_leader_that_ran_out_of_time_try_again() {
    let (table, blob) = (table(), Blob::new(1000, 1));
    let over = base::Deadline::after(Duration::ZERO);
    let end_of = |deadline: base::Deadline| {
        let lead = lead(table.join_whole(&blob.id, Purpose::Read));
        let fetch = Arc::clone(lead.fetch());
        deadline.scope(|| assert!(lead.finish(Err(unavailable())).is_err()));
        fetch.wait()
    };
    assert!(matches!(end_of(base::Deadline::NEVER), Err(Ended::Failed(_))));
    assert!(matches!(end_of(over), Err(Ended::GivenUp)));
    let Join::Leader(lead) = table.join_part(&blob.id, 0..1) else { panic!("nothing is in flight") };
    let fetch = Arc::clone(lead.fetch());
    over.scope(|| assert!(lead.finish(Err(unavailable()), |_| ()).is_err()));
    assert!(matches!(fetch.wait(), Err(Ended::GivenUp)));
}

/// What a leader calls may have less time than the leader: its deadline was not over, and followers that had
/// come a moment before the end got its error at once.
#[test]
fn regression_followers_of_a_fetch_that_failed_late_try_again() {
    let (table, [whole, part]) = (table(), [Blob::new(1000, 1), Blob::new(1000, 2)]);
    let whole = lead(table.join_whole(&whole.id, Purpose::Read));
    let part = lead(table.join_part(&part.id, 0..1));
    let followers = [Arc::clone(whole.fetch()), Arc::clone(part.fetch())];
    std::thread::sleep(Duration::from_secs(1));
    assert!(whole.finish(Err(unavailable())).is_err() && part.finish(Err(unavailable()), |_| ()).is_err());
    for follower in followers {
        assert!(matches!(follower.wait(), Err(Ended::GivenUp)));
    }
}

#[test]
fn errors_go_to_followers_and_a_lead_that_is_dropped_makes_them_read() {
    let (table, blob) = (table(), Blob::new(1000, 1));
    let keeper = with_keeper(&table);
    type End = fn(WholeLead, &Blob);
    type Judge = fn(&Missed) -> bool;
    let ends: [(End, Judge); 4] = [
        (|lead, _| drop(lead.finish(Err(unavailable()))), |missed| matches!(missed, Missed::Failed(_))),
        (|lead, blob| drop(lead.finish(Err(BlobError::Missing(blob.id)))), |m| matches!(m, Missed::Read)),
        (|lead, _| drop(lead), |missed| matches!(missed, Missed::Read)),
        (|lead, _| drop(lead.finish(Ok(Blob::new(999, 2).whole()))), |missed| matches!(missed, Missed::Read)),
    ];
    for (end, is_right) in ends {
        let lead = lead(table.join_whole(&blob.id, Purpose::Read));
        let ((one, result), (other, nothing)) = (waiter(0..10), waiter(0..10));
        lead.fetch().notify(&one);
        lead.fetch().notify_of_bytes(&other);
        let buffer = lead.buffer();
        end(lead, &blob);
        let missed = result.try_recv().unwrap().unwrap_err();
        assert!(is_right(&missed), "{missed:?}");
        assert!(nothing.try_recv().is_err() && other.is_open(), "its task completes it");
        assert_eq!((buffer.failed(), table.len()), (Some(Fault::GivenUp), 0));
    }
    assert_eq!((keeper.failed.lock().len(), keeper.completed.lock().len()), (3, 0));
}

#[test]
fn a_group_is_fetched_once_and_never_beside_the_whole() {
    let (table, blob) = (table(), Blob::new(6 * GROUP as usize, 1));
    let middle = lead(table.join_part(&blob.id, 2..4));
    let first = lead(table.join_part(&blob.id, 0..6));
    assert_eq!((first.end(), table.parts(&blob.id).len()), (2 * GROUP, 2));
    let fetch = follow(table.join_part(&blob.id, 3..5));
    assert!(!fetch.is_whole() && fetch.covers(&(2 * GROUP..4 * GROUP)) && !fetch.covers(&(0..3 * GROUP)));
    let (waiter, result) = waiter(3 * GROUP..3 * GROUP + 5);
    fetch.notify(&waiter);
    // From the loop that receives them, before the leader knows.
    middle.arrivals().arrived(2 * GROUP, &blob.bytes[2 * GROUP as usize..4 * GROUP as usize]);
    let from = 3 * GROUP as usize;
    assert_eq!(result.try_recv().unwrap().unwrap(), blob.bytes[from..from + 5]);
    let whole = lead(table.join_whole(&blob.id, Purpose::Read));
    assert!(follow(table.join_part(&blob.id, 5..6)).is_whole());
    let kept = Mutex::new(Vec::new());
    let part = blob.part(2 * GROUP..4 * GROUP);
    middle.finish(Ok(part), |part| kept.lock().push(Arc::clone(part))).unwrap();
    assert!(first.finish(Err(unavailable()), |_| panic!("there is none")).is_err());
    assert_eq!((kept.lock().len(), table.parts(&blob.id).len(), table.len()), (1, 0, 1));
    drop(whole);
    assert!(table.is_empty());
}

#[test]
fn a_part_that_is_a_whole_blob_goes_to_the_subscriber() {
    let (table, blob) = (table(), Blob::new(1000, 1));
    let keeper = with_keeper(&table);
    let mut lead = lead(table.join_part(&blob.id, 0..1));
    lead.reserve(u64::from(GROUP)).unwrap();
    lead.finish(Ok(blob.whole()), |_| panic!("it is not a part")).unwrap();
    let completed = keeper.completed.lock().pop().unwrap();
    assert_eq!((completed.id, completed.part.bytes.len(), table.budget().used()), (blob.id, 1000, 1000));
    let found = table.whole(&blob.id).unwrap().wait().unwrap();
    assert!(found.bytes == blob.bytes, "it is in the table until it is on the disk");
    drop(completed);
    assert_eq!((table.len(), table.budget().used()), (0, 0));
}

/// A read waited for memory without regard to its deadline, as long as others held it.
#[test]
fn regression_waiting_for_memory_ends_with_the_deadline() {
    let (table, one, other) = (Table::new(Verify::Blake3, 8 << 20), Blob::new(1000, 1), Blob::new(1000, 2));
    let mut holds = lead(table.join_whole(&one.id, Purpose::Read));
    holds.reserve(8 << 20).unwrap();
    let mut waits = lead(table.join_whole(&other.id, Purpose::Read));
    let soon = base::Deadline::after(Duration::from_millis(200));
    assert!(matches!(soon.scope(|| waits.reserve(8 << 20)), Err(BlobError::Unavailable(_))));
    drop(holds);
    soon.scope(|| waits.reserve(8 << 20)).unwrap();
    assert_eq!(table.budget().used(), 8 << 20);
}

#[test]
fn what_is_announced_is_served_if_the_whole_follows() {
    let (table, blob) = (table(), Blob::new(300_000, 1));
    let part = lead(table.join_part(&blob.id, 0..1));
    let announcement = part.announce();
    let buffer = table.serve(&blob.id).unwrap();
    assert_eq!((table.arriving(), table.whole(&blob.id).is_none()), (1, true));
    drop(announcement);
    assert_eq!((buffer.failed(), table.serve(&blob.id).is_none()), (Some(Fault::GivenUp), true));
    // Two parts are asked about. One of them brings the lease.
    let other = lead(table.join_part(&blob.id, 1..2));
    let (one, two) = (part.announce(), other.announce());
    let buffer = table.serve(&blob.id).unwrap();
    let whole = one.begin_whole().unwrap();
    assert!(two.begin_whole().is_none());
    drop((one, two));
    assert!(buffer.failed().is_none() && Arc::ptr_eq(&buffer, &whole.buffer()));
    whole.finish(Ok(blob.whole())).unwrap();
    assert!(buffer.is_whole(), "its waiters have it");
    drop((part, other));
    assert!(table.is_empty());
    // A fetch that began before is announced with its own buffer.
    let whole = lead(table.join_whole(&blob.id, Purpose::Read));
    assert!(table.serve(&blob.id).is_none(), "no other node is sent here");
    let announcement = whole.part().announce();
    let buffer = table.serve(&blob.id).unwrap();
    assert!(announcement.begin_whole().is_none());
    drop(announcement);
    assert!(whole.finish(Err(unavailable())).is_err());
    assert_eq!(buffer.failed(), Some(Fault::GivenUp));
}

#[test]
fn what_has_come_is_served_from_memory_for_a_while() {
    let (table, now) = (table(), base::time::monotonic());
    table.remember(true);
    let keeper = with_keeper(&table);
    let blobs: Vec<Blob> = (0..19).map(|n| Blob::new(1000, n)).collect();
    for blob in &blobs {
        lead(table.join_whole(&blob.id, Purpose::Read)).finish(Ok(blob.whole())).unwrap();
        assert!(follow(table.join_whole(&blob.id, Purpose::Read)).wait().unwrap().bytes == blob.bytes);
        table.forget(&blob.id);
        assert!(table.has_whole(&blob.id), "the cache has not written it yet");
        keeper.completed.lock().pop().unwrap().kept();
        assert_eq!(table.serve(&blob.id).unwrap().bytes(0..1000), Some(&blob.bytes[..]));
    }
    let here = |table: &Table| blobs.iter().filter(|blob| table.has_whole(&blob.id)).count();
    assert_eq!((here(&table), table.len()), (16, 0));
    assert!(!table.has_whole(&blobs[2].id) && table.has_whole(&blobs[3].id));
    table.forget(&blobs[3].id);
    table.tidy(now);
    assert_eq!(here(&table), 15);
    // What the cache did not write does not stay.
    lead(table.join_whole(&blobs[0].id, Purpose::Read)).finish(Ok(blobs[0].whole())).unwrap();
    keeper.completed.lock().clear();
    assert_eq!(here(&table), 15);
    table.tidy(now + Duration::from_secs(11));
    assert_eq!((here(&table), table.is_forgotten()), (0, true));
}

/// The origin gave other sums than a node had made up before.
#[test]
fn a_buffer_with_made_up_sums_is_replaced() {
    let (table, blob) = (table(), Blob::new(200_000, 1));
    table.remember(true);
    let keeper = with_keeper(&table);
    let mut lie = blob.sums.encode();
    lie[8..12].copy_from_slice(&200_001u32.to_le_bytes());
    lie.truncate(lie.len() - 4);
    lie.extend_from_slice(&blob::sums::crc32c(&lie).to_le_bytes());
    let lead = lead(table.join_whole(&blob.id, Purpose::Others));
    let (waiter, result) = waiter(199_000..200_000);
    lead.fetch().notify(&waiter);
    let wrong = lead.buffer();
    wrong.begin(Sums::decode(&lie).unwrap()).unwrap();
    lead.finish(Ok(blob.whole())).unwrap();
    assert_eq!(result.try_recv().unwrap().unwrap(), blob.bytes[199_000..]);
    assert_eq!(wrong.failed(), Some(Fault::GivenUp));
    assert!(table.has_whole(&blob.id) && table.serve(&blob.id).unwrap().is_whole());
    drop(keeper);
}

#[test]
fn a_follower_waits_no_longer_than_its_deadline() {
    let (table, blob) = (table(), Blob::new(200_000, 1));
    let lead = lead(table.join_whole(&blob.id, Purpose::Read));
    let fetch = follow(table.join_whole(&blob.id, Purpose::Read));
    base::Deadline::after(Duration::from_millis(20)).scope(|| {
        let late = |ended| matches!(ended, Ended::Failed(BlobError::Unavailable(why)) if why.contains("did not arrive"));
        assert!(late(fetch.wait().err().unwrap()) && late(fetch.read(0, &mut [0; 4]).unwrap_err()));
    });
    drop(lead);
    assert!(matches!(fetch.wait(), Err(Ended::GivenUp)));
}
