//! Uploads against an origin that fails on demand: no noted blob is ever lost.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::BlobId;
use blob::failing::{FailingOrigin, Faults, Op};
use blob::{BlobError, Gate, Origin, Sums};
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::tests::origins::InMemory;

const LONG: Duration = Duration::from_secs(120);

/// A node's folder, a remote origin with faults, and the reported lines.
struct World {
    temp: tempfile::TempDir,
    origin: Arc<dyn Origin>,
    faults: Arc<Faults>,
    said: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new() -> World {
        let faults = Faults::new();
        let inner: Arc<dyn Origin> = Arc::new(InMemory::default());
        let origin: Arc<dyn Origin> = Arc::new(FailingOrigin::new(inner, faults.clone()));
        World { temp: tempfile::tempdir().unwrap(), origin, faults, said: Arc::default() }
    }

    fn dir(&self) -> std::path::PathBuf {
        self.temp.path().join("upload")
    }

    fn open_with(&self, options: UploadOptions) -> Uploads {
        let said = self.said.clone();
        let report: Report = Arc::new(move |line| said.lock().push(line.to_owned()));
        Uploads::open(&self.dir(), self.origin.clone(), options, report).unwrap()
    }

    fn open(&self) -> Uploads {
        self.open_with(UploadOptions::default())
    }

    /// Makes a blob in a file of its own.
    fn blob(&self, n: u32, len: usize) -> (BlobId, Sums, std::path::PathBuf) {
        let bytes: Vec<u8> = n.to_le_bytes().iter().copied().cycle().take(len.max(4)).collect();
        let sums = Sums::of(&bytes);
        let file = self.temp.path().join(format!("file{n}"));
        fs::write(&file, bytes).unwrap();
        (sums.id(), sums, file)
    }

    fn note(&self, uploads: &Uploads, n: u32, len: usize) -> BlobId {
        let (id, sums, file) = self.blob(n, len);
        uploads.note(&id, &sums, &file).unwrap();
        // The folder of blobs may remove its own name at once.
        fs::remove_file(file).unwrap();
        id
    }

    fn noted(&self) -> usize {
        fs::read_dir(self.dir()).unwrap().count()
    }

    fn has(&self, id: &BlobId) -> bool {
        loop {
            match self.origin.size(id) {
                Ok(size) => return size.is_some(),
                Err(_) => continue,
            }
        }
    }

    fn lines(&self, with: &str) -> usize {
        self.said.lock().iter().filter(|line| line.contains(with)).count()
    }
}

fn eventually(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < until, "not true after {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn what_is_noted_reaches_the_origin_and_its_note_goes() {
    let world = World::new();
    let uploads = world.open();
    let ids: Vec<BlobId> = (0..50).map(|n| world.note(&uploads, n, 1000 + n as usize)).collect();
    uploads.sync().unwrap();
    let mut ticks = 0;
    uploads.wait(LONG, &mut |_| ticks += 1).unwrap();
    assert!(ids.iter().all(|id| world.has(id) && !uploads.is_pending(id) && uploads.file(id).is_none()));
    assert_eq!((uploads.pinned(), world.noted()), (Pinned::default(), 0));
    let stats = uploads.stats();
    assert_eq!((stats.sent_blobs, stats.failures, stats.oldest), (50, 0, None));
    assert!(world.said.lock().is_empty());
    // Stored again: the origin is asked for it, and it is not sent.
    world.note(&uploads, 7, 1007);
    uploads.settle(LONG).unwrap();
    assert_eq!((uploads.stats().sent_blobs, uploads.stats().found_blobs), (50, 1));
}

#[test]
fn what_a_kill_leaves_is_uploaded_by_the_next_run() {
    let world = World::new();
    world.faults.fail(Op::Store, u64::MAX);
    let uploads = world.open();
    let ids: Vec<BlobId> = (0..10).map(|n| world.note(&uploads, n, 5000)).collect();
    drop(uploads);
    fs::write(world.dir().join("half.new"), "left by a crash").unwrap();
    fs::write(world.dir().join("notes.txt"), "not ours").unwrap();
    world.faults.heal();
    // A node without workers changes nothing.
    let looking = world.open_with(UploadOptions { workers: 0, ..UploadOptions::default() });
    assert_eq!((looking.pinned(), looking.list().len()), (Pinned { blobs: 10, bytes: 50_000 }, 10));
    assert!(matches!(looking.settle(Duration::from_millis(20)), Err(BlobError::Unavailable(_))));
    drop(looking);
    assert_eq!(world.noted(), 12);
    let uploads = world.open();
    uploads.settle(LONG).unwrap();
    assert!(ids.iter().all(|id| world.has(id)));
    assert_eq!(world.noted(), 1, "what is not ours stays");
}

#[test]
fn an_outage_is_said_once_and_over_once_and_nothing_is_dropped() {
    let world = World::new();
    let uploads = world.open();
    world.note(&uploads, 0, 100);
    uploads.settle(LONG).unwrap();
    world.faults.fail(Op::Store, u64::MAX);
    world.faults.fail(Op::Look, u64::MAX);
    let ids: Vec<BlobId> = (1..30).map(|n| world.note(&uploads, n, 100)).collect();
    eventually("the outage", || uploads.stats().trouble.is_some());
    let failed = uploads.settle(Duration::from_millis(300)).unwrap_err();
    assert!(failed.to_string().contains("29 blobs"), "{failed}");
    eventually("further attempts", || uploads.stats().failures >= 3);
    assert!(ids.iter().all(|id| uploads.is_pending(id)) && world.noted() == 29);
    assert_eq!(world.lines("does not answer"), 1, "{:?}", world.said.lock());
    world.faults.heal();
    uploads.hurry();
    uploads.settle(LONG).unwrap();
    eventually("the line", || world.lines("takes uploads again") == 1);
    assert!(ids.iter().all(|id| world.has(id)) && uploads.stats().trouble.is_none());
}

#[test]
fn a_damaged_note_is_kept_while_it_may_be_needed() {
    let world = World::new();
    let before = world.open_with(UploadOptions { workers: 0, ..UploadOptions::default() });
    let (rotten, orphan) = (world.note(&before, 1, 9000), world.note(&before, 2, 9000));
    drop(before);
    for id in [rotten, orphan] {
        fs::write(world.dir().join(id.to_string()), "as a power cut may leave it").unwrap();
    }
    let uploads = world.open();
    eventually("it is seen", || uploads.stats().unreadable == 2);
    assert_eq!(world.lines("cannot be uploaded"), 2);
    uploads.ask_whether_needed(move |id| *id == rotten);
    eventually("the orphan goes", || !uploads.is_pending(&orphan));
    assert!(uploads.is_pending(&rotten) && world.noted() == 1);
    assert!(!world.has(&rotten) && !world.has(&orphan), "wrong bytes are never sent");
    assert!(uploads.stats().trouble.is_none(), "it says nothing of the origin");
    // A sound copy replaces the damaged one.
    uploads.forget(&rotten).unwrap();
    fs::write(world.dir().join(rotten.to_string()), "left over").unwrap();
    world.note(&uploads, 1, 9000);
    uploads.settle(LONG).unwrap();
    assert!(world.has(&rotten));
}

#[test]
fn what_is_forgotten_while_it_is_sent_is_pending_until_that_has_ended() {
    let world = World::new();
    let uploads = world.open();
    world.faults.hold(true);
    let id = world.note(&uploads, 1, 100);
    eventually("it is under way", || uploads.stats().under_way == 1);
    uploads.forget(&id).unwrap();
    assert!(uploads.is_pending(&id) && uploads.pinned().blobs == 0 && world.noted() == 0);
    world.faults.hold(false);
    eventually("its end", || !uploads.is_pending(&id));
    assert!(world.has(&id));
    // Forgotten, and wanted again while the first attempt is in flight.
    world.faults.hold(true);
    let id = world.note(&uploads, 2, 100);
    eventually("it is under way", || uploads.stats().under_way == 1);
    uploads.forget(&id).unwrap();
    world.note(&uploads, 2, 100);
    assert_eq!((uploads.pinned().blobs, world.noted()), (1, 1));
    world.faults.hold(false);
    uploads.settle(LONG).unwrap();
    assert!(world.has(&id) && !uploads.is_pending(&id) && world.noted() == 0);
}

#[test]
fn writers_wait_at_the_gate_until_uploads_make_room() {
    let world = World::new();
    let options = UploadOptions { budget: 10_000, patience: LONG, ..UploadOptions::default() };
    let uploads = Arc::new(world.open_with(options));
    uploads.pass().unwrap();
    world.faults.fail(Op::Store, u64::MAX);
    world.note(&uploads, 1, 8000);
    assert!(uploads.is_open());
    world.note(&uploads, 2, 8000);
    assert!(!uploads.is_open());
    let passed = Arc::new(AtomicBool::new(false));
    let (theirs, flag) = (uploads.clone(), passed.clone());
    let writer = std::thread::spawn(move || {
        theirs.pass().unwrap();
        flag.store(true, Ordering::SeqCst);
    });
    eventually("the line", || world.lines("writes wait") == 1);
    assert!(!passed.load(Ordering::SeqCst) && uploads.stats().writers_waiting == 1);
    world.faults.heal();
    uploads.hurry();
    writer.join().unwrap();
    eventually("the other line", || world.lines("writes go on") == 1);
    assert!(uploads.is_open() && uploads.stats().writes_refused == 0);
}

#[test]
fn a_writer_is_refused_in_time_and_the_next_at_once() {
    let world = World::new();
    let patience = Duration::from_millis(300);
    let uploads = world.open_with(UploadOptions { budget: 1000, patience, ..UploadOptions::default() });
    world.faults.fail(Op::Store, u64::MAX);
    world.note(&uploads, 1, 8000);
    let began = Instant::now();
    assert!(matches!(uploads.pass(), Err(BlobError::Full)));
    assert!(began.elapsed() >= patience && began.elapsed() < LONG, "{:?}", began.elapsed());
    let again = Instant::now();
    (0..100).for_each(|_| assert!(matches!(uploads.pass(), Err(BlobError::Full))));
    let took = again.elapsed();
    assert!(took < 50 * patience, "100 writers should not wait {patience:?} each, and took {took:?}");
    assert_eq!((world.lines("writes are refused"), uploads.stats().writes_refused), (1, 101));
    assert!(uploads.pinned().blobs == 1 && world.noted() == 1, "nothing is dropped");
}

#[test]
fn the_gate_closes_on_a_low_disk_only_while_something_waits() {
    let world = World::new();
    let options =
        UploadOptions { floor: u64::MAX, patience: Duration::from_millis(50), ..UploadOptions::default() };
    let uploads = world.open_with(options);
    assert!(uploads.is_open(), "uploads would make no room");
    world.faults.fail(Op::Store, u64::MAX);
    world.note(&uploads, 1, 10);
    assert!(!uploads.is_open());
    assert!(matches!(uploads.pass(), Err(BlobError::Full)));
}

#[test]
fn closing_leaves_what_is_not_sent_and_says_how_much() {
    let world = World::new();
    let uploads = world.open();
    world.faults.fail(Op::Store, u64::MAX);
    for n in 0..5 {
        world.note(&uploads, n, 100);
    }
    let began = Instant::now();
    assert_eq!(uploads.close(LONG), Pinned { blobs: 5, bytes: 500 });
    assert!(began.elapsed() < LONG / 2);
    assert_eq!(world.noted(), 5);
}

/// A run that is just ending removed notes while the next one read the folder.
#[test]
fn regression_a_note_that_goes_while_the_folder_is_read_is_no_error() {
    let world = World::new();
    let before = world.open();
    world.faults.delay(Duration::from_millis(1));
    for round in 0..10 {
        for n in 0..200 {
            world.note(&before, round * 200 + n, 64);
        }
        while before.pinned().blobs > 0 {
            drop(world.open_with(UploadOptions { workers: 0, ..UploadOptions::default() }));
        }
    }
}

/// When the same bytes were stored again, a damaged note stayed as it was, and the blob never reached the
/// origin.
#[test]
fn regression_a_note_that_rotted_is_replaced_when_its_bytes_are_stored_again() {
    let world = World::new();
    let uploads = world.open();
    world.faults.fail(Op::Store, u64::MAX);
    let id = world.note(&uploads, 1, 5000);
    let noted = world.dir().join(id.to_string());
    fs::write(&noted, b"rot").unwrap();
    world.faults.fail(Op::Store, 0);
    uploads.hurry();
    while uploads.stats().unreadable == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(world.note(&uploads, 1, 5000), id);
    assert_eq!(uploads.stats().unreadable, 0);
    uploads.settle(LONG).unwrap();
    assert!(world.has(&id));
    // A sound note is left as it is.
    world.faults.fail(Op::Store, u64::MAX);
    let id = world.note(&uploads, 2, 5000);
    let before = fs::metadata(world.dir().join(id.to_string())).unwrap().ino();
    assert_eq!(world.note(&uploads, 2, 5000), id);
    assert_eq!(fs::metadata(world.dir().join(id.to_string())).unwrap().ino(), before);
}

/// The next run assumed that the origin had a blob because an object of its name and size was there.
#[test]
fn regression_a_damaged_copy_in_the_origin_is_no_upload() {
    let temp = tempfile::tempdir().unwrap();
    let origin = Arc::new(crate::tests::origins::InFolder::new(temp.path()));
    let bytes = vec![7; 5000];
    let sums = Sums::of(&bytes);
    let id = sums.id();
    origin.put(&id, &sums, &bytes).unwrap();
    let object = origin.path(&id);
    let mut rotten = fs::read(&object).unwrap();
    rotten[10] ^= 1;
    fs::remove_file(&object).unwrap();
    fs::write(&object, rotten).unwrap();
    let notes = temp.path().join("upload");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join(id.to_string()), &bytes).unwrap();
    let uploads = Uploads::open(&notes, origin.clone(), UploadOptions::default(), Arc::new(|_| ())).unwrap();
    uploads.settle(LONG).unwrap();
    origin.verify(&id).unwrap();
}

/// What may happen to a node that stores.
#[derive(Clone, Copy, Debug)]
enum Step {
    Note(u32),
    Forget(u32),
    Fail(bool),
    Slow(bool),
    Pause,
    Sync,
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u32..12).prop_map(Step::Note),
        2 => (0_u32..12).prop_map(Step::Forget),
        2 => any::<bool>().prop_map(Step::Fail),
        1 => any::<bool>().prop_map(Step::Slow),
        2 => Just(Step::Pause),
        1 => Just(Step::Sync),
        2 => Just(Step::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_blob_is_noted_or_in_the_origin_whatever_happens(steps in prop::collection::vec(step(), 1..60)) {
        let world = World::new();
        let mut uploads = world.open();
        let mut wanted = std::collections::HashSet::new();
        // The note is removed only after the origin has the blob. So checking in this order finds one of
        // them.
        let kept = |world: &World, id: &BlobId| world.dir().join(id.to_string()).exists() || {
            world.faults.fail(Op::Look, 0);
            world.has(id)
        };
        for step in steps {
            match step {
                Step::Note(n) => {
                    wanted.insert(world.note(&uploads, n, 64));
                }
                Step::Forget(n) => {
                    let (id, ..) = world.blob(n, 64);
                    uploads.forget(&id).unwrap();
                    wanted.remove(&id);
                }
                Step::Fail(on) => {
                    for op in [Op::Store, Op::Look] {
                        world.faults.fail(op, if on { u64::MAX } else { 0 });
                    }
                }
                Step::Slow(on) => world.faults.delay(Duration::from_millis(if on { 2 } else { 0 })),
                Step::Pause => std::thread::sleep(Duration::from_millis(3)),
                Step::Sync => uploads.sync().unwrap(),
                Step::Kill => {
                    drop(uploads);
                    uploads = world.open();
                }
            }
            for id in &wanted {
                prop_assert!(kept(&world, id), "{id} is lost after {step:?}");
            }
        }
        world.faults.heal();
        uploads.hurry();
        uploads.settle(LONG).unwrap();
        for id in &wanted {
            prop_assert!(world.has(id));
        }
        prop_assert_eq!(world.noted(), 0);
    }
}

#[test]
fn no_more_are_sent_at_a_time_than_there_are_workers() {
    let world = World::new();
    world.faults.delay(Duration::from_millis(5));
    let uploads = world.open_with(UploadOptions { workers: 3, ..UploadOptions::default() });
    for n in 0..40 {
        world.note(&uploads, n, 100);
    }
    let mut most = 0;
    while uploads.pinned().blobs > 0 {
        most = most.max(uploads.stats().under_way);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!((2..=3).contains(&most), "{most}");
}
