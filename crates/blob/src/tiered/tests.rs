use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;

/// Answers every read the same way.
struct Says {
    near: bool,
    answer: fn(&BlobId) -> Result<u8, BlobError>,
    asked: AtomicUsize,
}

fn says(near: bool, answer: fn(&BlobId) -> Result<u8, BlobError>) -> Arc<Says> {
    Arc::new(Says { near, answer, asked: AtomicUsize::new(0) })
}

impl BlobSource for Says {
    fn read_at(&self, id: &BlobId, _: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        (self.answer)(id).map(|byte| buf.fill(byte))
    }

    fn is_near(&self, _: &BlobId) -> bool {
        self.near
    }
}

fn missing(id: &BlobId) -> Result<u8, BlobError> {
    Err(BlobError::Missing(*id))
}

fn damaged(id: &BlobId) -> Result<u8, BlobError> {
    Err(BlobError::Damaged { id: *id, what: "rot".to_owned() })
}

fn past_end(id: &BlobId) -> Result<u8, BlobError> {
    Err(crate::folder::past_end(id, 3))
}

fn away(_: &BlobId) -> Result<u8, BlobError> {
    Err(BlobError::Unavailable("asleep".to_owned()))
}

const ID: BlobId = BlobId([7; 32]);

type Seen = Arc<Mutex<Vec<(usize, String)>>>;

fn tiered(sources: &[&Arc<Says>]) -> (Tiered, Seen) {
    let seen = Seen::default();
    let note = Arc::clone(&seen);
    let sources = sources.iter().map(|source| Arc::clone(source) as Arc<dyn BlobSource>).collect();
    let on_damage = move |place: usize, id: &BlobId, what: &str| {
        assert_eq!(*id, ID);
        note.lock().push((place, what.to_owned()));
    };
    (Tiered::new(sources, Box::new(on_damage)), seen)
}

fn read(tiered: &Tiered) -> Result<u8, BlobError> {
    let mut buf = [0; 3];
    tiered.read_at(&ID, 0, &mut buf).map(|()| buf[0])
}

#[test]
fn a_local_source_is_tried_first_and_alone() {
    let (far, near) = (says(false, |_| Ok(1)), says(true, |_| Ok(2)));
    let (all, seen) = tiered(&[&far, &near]);
    assert_eq!(read(&all).unwrap(), 2);
    assert_eq!(far.asked.load(Ordering::SeqCst), 0);
    assert!(all.is_near(&ID) && seen.lock().is_empty());
    assert!(!tiered(&[&far]).0.is_near(&ID));
}

#[test]
fn any_error_leads_to_the_next_source_and_damage_is_reported() {
    let sources = [says(true, missing), says(true, damaged), says(false, away), says(false, |_| Ok(9))];
    let (all, seen) = tiered(&sources.each_ref());
    assert_eq!(read(&all).unwrap(), 9);
    assert_eq!(*seen.lock(), [(1, "rot".to_owned())]);
    assert!(sources.iter().all(|source| source.asked.load(Ordering::SeqCst) == 1));
}

#[test]
fn the_error_is_the_last_that_says_more_than_missing() {
    assert!(matches!(read(&tiered(&[]).0), Err(BlobError::Missing(_))));
    let (nobody, rotten, asleep) = (says(true, missing), says(true, damaged), says(true, away));
    assert!(matches!(read(&tiered(&[&nobody, &nobody]).0), Err(BlobError::Missing(_))));
    assert!(matches!(read(&tiered(&[&asleep, &rotten, &nobody]).0), Err(BlobError::Damaged { .. })));
    assert!(matches!(read(&tiered(&[&rotten, &asleep, &nobody]).0), Err(BlobError::Unavailable(_))));
}

#[test]
fn a_range_past_the_end_is_refused_at_once() {
    let (first, second) = (says(true, past_end), says(true, |_| Ok(1)));
    assert!(matches!(read(&tiered(&[&first, &second]).0), Err(BlobError::Io(_))));
    assert_eq!(second.asked.load(Ordering::SeqCst), 0);
}
