use std::time::Instant;

use base::Deadline;
use proptest::prelude::*;

use super::format::{Found, FoundHeader, Kind, Place, SegmentHeader};
use super::*;
use crate::engine::Final;

fn arbitrary_rows() -> impl Strategy<Value = Vec<Final>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let row = (bytes(), prop::option::of(bytes()));
    prop::collection::vec(row.prop_map(|(k, v)| (Key::from_bytes(&k), v.map(Into::into))), 0..10)
}

fn arbitrary_fresh() -> impl Strategy<Value = Vec<FreshData>> {
    let one = any::<(u64, u32, u32, u32)>();
    let fresh = one.prop_map(|(pack, offset, len, crc)| FreshData { pack: PackNo(pack), offset, len, crc });
    prop::collection::vec(fresh, 0..4)
}

proptest! {
    #[test]
    fn commits_survive_encoding(rows in arbitrary_rows(), fresh in arbitrary_fresh(), seq: u64, segment: u64) {
        let mut buf = Vec::new();
        format::begin(&mut buf);
        format::put_commit(&mut buf, &rows, &fresh);
        let place = Place { segment, seq, key: 7 };
        format::finish(&mut buf, Kind::Commit, place);
        let Found::Record(Kind::Commit, payload) = format::find(&buf, place) else { panic!("not found") };
        prop_assert_eq!(format::get_commit(payload), Some((rows, fresh)));
        // A truncated record, or one at another place, is not accepted.
        for len in 0..buf.len() {
            prop_assert!(!matches!(format::find(&buf[..len], place), Found::Record(..)));
        }
        prop_assert_eq!(format::find(&buf, Place { segment, seq: seq.wrapping_add(1), key: 7 }), Found::End);
        prop_assert_eq!(format::find(&buf, Place { segment, seq, key: 8 }), Found::Torn, "of another log");
        prop_assert_eq!(format::find(&buf, Place { segment: segment.wrapping_add(1), seq, key: 7 }), Found::End);
        for len in 0..payload.len() {
            prop_assert_eq!(format::get_commit(&payload[..len]), None);
        }
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = format::get_commit(&bytes);
        let _ = format::get_data(&bytes);
        let _ = format::get_mark(&bytes);
        let _ = format::find(&bytes, Place { segment: 0, seq: 0, key: 0 });
        prop_assert_eq!(SegmentHeader::decode(&bytes), FoundHeader::None);
    }

    #[test]
    fn a_flipped_bit_is_detected(rows in arbitrary_rows(), at: prop::sample::Index, bit in 0..8u8) {
        let mut buf = Vec::new();
        format::begin(&mut buf);
        format::put_commit(&mut buf, &rows, &[]);
        let place = Place { segment: 3, seq: 9, key: 0 };
        format::finish(&mut buf, Kind::Commit, place);
        let at = at.index(buf.len());
        buf[at] ^= 1 << bit;
        prop_assert!(!matches!(format::find(&buf, place), Found::Record(..)));
    }
}

#[test]
fn zeros_are_the_end_of_the_log() {
    assert_eq!(format::find(&[0; 4096], Place { segment: 1, seq: 1, key: 0 }), Found::End);
    assert_eq!(SegmentHeader::decode(&[0; 4096]), FoundHeader::None);
}

#[test]
fn headers_survive_encoding() {
    let header = SegmentHeader {
        version: format::VERSION,
        log_id: [9; 16],
        segment: 5,
        first_seq: 1 << 40,
        len: 8 << 20,
    };
    assert_eq!(SegmentHeader::decode(&header.encode()), FoundHeader::Good(header));
    let mut newer = header.encode();
    newer[11] = 9;
    newer[50] = 9;
    assert_eq!(SegmentHeader::decode(&newer), FoundHeader::Unknown(9));
    // A flipped bit in the version of an otherwise valid header is not taken for a later version.
    for bit in 0..32 {
        let mut flipped = header.encode();
        flipped[8 + bit / 8] ^= 1 << (bit % 8);
        let decoded = SegmentHeader::decode(&flipped);
        assert!(decoded == FoundHeader::None || decoded == FoundHeader::Good(header), "{bit}: {decoded:?}");
    }
    let mut torn = header.encode();
    torn[20] ^= 1;
    assert_eq!(SegmentHeader::decode(&torn), FoundHeader::None);
}

#[test]
fn clean_rows_stay_within_their_bytes_and_keep_what_is_hot() {
    let clean = CleanRows::new(1 << 20);
    let key = |n: u64| Key::from_bytes(&n.to_be_bytes());
    let row = |n: u64| Some(Value::from([n as u8; 100].as_slice()));
    clean.insert(&key(0), &row(0));
    for n in 1..50_000 {
        clean.insert(&key(n), &row(n));
        assert_eq!(clean.get(&key(0)), Some(row(0)), "row 0 was used all the time");
    }
    let kept = (0..50_000).filter(|n| clean.get(&key(*n)).is_some()).count();
    assert!(kept > 1000 && kept * 200 < 2 << 20, "{kept} rows are kept");
    assert_eq!(clean.get(&key(49_999)), Some(row(49_999)));
    clean.insert(&key(0), &row(0));
    clean.insert(&key(49_999), &row(49_999));
    // After a refresh, kept rows are new, and removed rows are absent.
    let rows = [(key(0), row(77)), (key(49_999), None)].into_iter().collect();
    clean.refresh(&rows);
    assert_eq!(clean.get(&key(0)), Some(row(77)));
    assert_eq!(clean.get(&key(49_999)), Some(None));
    clean.insert(&key(0), &Some(vec![0; 1 << 20].into()));
    assert_eq!(clean.get(&key(0)), None, "too large to keep");
}

pub(super) struct NoPacks;

impl PackStore for NoPacks {
    fn create(&self, _: PackNo) -> Result<(), BlobError> {
        Ok(())
    }
    fn write(&self, _: PackNo, _: u32, _: &[u8]) -> Result<(), BlobError> {
        Ok(())
    }
    fn read(&self, _: PackNo, _: u32, _: &mut [u8]) -> Result<(), BlobError> {
        Err(BlobError::Io(io::ErrorKind::NotFound.into()))
    }
    fn sync(&self, _: &[PackNo]) -> Result<(), BlobError> {
        Ok(())
    }
    fn seal(&self, _: PackNo, _: u32) -> Result<base::BlobId, BlobError> {
        Err(BlobError::Full)
    }
    fn retire(&self, _: &[PackNo]) -> Result<(), BlobError> {
        Ok(())
    }
    fn discard(&self, _: PackNo) -> Result<(), BlobError> {
        Ok(())
    }
    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError> {
        Ok(Vec::new())
    }
    fn space(&self) -> Result<blob::Space, BlobError> {
        Ok(blob::Space::default())
    }
}

fn put(k: impl AsRef<[u8]>, v: impl AsRef<[u8]>) -> Commit {
    Commit { puts: vec![(Key::from_bytes(k.as_ref()), v.as_ref().into())], ..Commit::default() }
}

fn small() -> Options {
    Options {
        reserve_bytes: (1 << 20, 1 << 20),
        segment_bytes: 256 << 10,
        log_bytes: 1 << 20,
        ..Options::default()
    }
}

/// The thread moves commits into SQLite after the interval by itself; then it does nothing more.
#[test]
fn the_thread_drains_by_itself_and_then_rests() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { commit_every: Duration::from_millis(30), ..small() };
    let (journal, _) = Journal::open(folder.path(), Arc::new(NoPacks), options).unwrap();
    for n in 0..10u8 {
        journal.commit(put([n], "x")).unwrap();
    }
    let before = Instant::now();
    while journal.stats().overlay_rows > 0 {
        assert!(before.elapsed() < Duration::from_secs(120), "{:?}", journal.stats());
        std::thread::sleep(Duration::from_millis(5));
    }
    let rested = journal.stats();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(journal.stats(), rested);
    assert_eq!(journal.shared.sqlite.get(&Key::from_bytes(&[3])).unwrap().as_deref(), Some(&b"x"[..]));
}

/// Many threads commit and flush: a few syncs serve all of them, the bounds hold, and no commit is lost.
#[test]
fn flushes_are_shared_and_bounds_hold() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(disk::sim::SimDisk::new());
    let options = Options { overlay_rows: 1000, ..small() };
    let (journal, _) = Journal::open_on(folder.path(), disk.clone(), Arc::new(NoPacks), options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0..500u64 {
                    journal.commit(put((thread * 500 + n).to_be_bytes(), [0; 300])).unwrap();
                    if n % 5 == 0 {
                        journal.flush().unwrap();
                    }
                    let stats = journal.stats();
                    assert!(
                        stats.overlay_rows <= 1000 + 16 && stats.log_file_bytes <= (1 << 20) + (256 << 10),
                        "{stats:?}"
                    );
                }
            });
        }
    });
    journal.close().unwrap();
    let all = KeyRange { start: Key::from_bytes(b""), end: Key::from_bytes(&[0xFF; 9]) };
    assert_eq!(journal.shared.sqlite.scan(&all, 10_000).unwrap().len(), 4000);
    assert!(disk.syncs() < 900, "{} syncs for 800 flushes", disk.syncs());
    assert!(journal.commit(put("late", "")).is_err());
    let files: u64 = disk.contents().values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(files, 2 * (256 << 10), "a closed log has two segments");
}

/// The database's space runs out while the log still takes commits. Nothing is lost, reads continue, and once
/// there is room everything is drained.
#[test]
fn the_reserve_is_released_and_taken_back() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path(), Arc::new(NoPacks), small()).unwrap();
    let reserve = folder.path().join("reserve");
    assert_eq!(reserve.metadata().unwrap().len(), 1 << 20);
    assert!(!journal.is_tight());
    {
        // No more pages than there are now.
        let limit = |pages: i64| journal.shared.sqlite.limit_pages(pages);
        limit(1);
        for n in 0..200u8 {
            journal.commit(put([n, 1], [n; 500])).unwrap();
        }
        assert!(matches!(journal.drain(), Err(StoreError::Full)));
        assert_eq!(journal.get(&Key::from_bytes(&[7, 1])).unwrap().as_deref(), Some(&[7; 500][..]));
        limit(1 << 30);
    }
    journal.drain().unwrap();
    assert_eq!(reserve.metadata().unwrap().len(), 1 << 20, "it was lent and taken back");
    assert!(!journal.is_tight());
}

/// A drain waits for readers that were inside before it, and for no others. Nothing waits for the drain.
#[test]
fn the_gate_waits_for_earlier_readers_only() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) =
        Journal::open(folder.path(), Arc::new(NoPacks), Options { background: false, ..small() }).unwrap();
    journal.commit(put("a", "1")).unwrap();
    let before = journal.shared.gate.enter();
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| journal.drain());
        std::thread::sleep(Duration::from_millis(100));
        assert!(
            !drain.is_finished() && journal.stats().drained == 0,
            "a reader may still be reading the database"
        );
        let later = journal.shared.gate.enter();
        assert_eq!(journal.get(&Key::from_bytes(b"a")).unwrap().as_deref(), Some(&b"1"[..]));
        journal.commit(put("a", "2")).unwrap();
        drop(before);
        drain.join().unwrap().unwrap();
        drop(later);
    });
    assert_eq!(journal.stats().drained, 1);
    assert_eq!(journal.get(&Key::from_bytes(b"a")).unwrap().as_deref(), Some(&b"2"[..]));
}

/// A flush that had no room for its mark is made good by the next one, also if no more data was written. It
/// said that packs may be retired.
#[test]
fn regression_a_mark_that_had_no_room_is_written_later() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { background: false, ..small() };
    let (journal, _) = Journal::open(folder.path(), Arc::new(NoPacks), options).unwrap();
    journal.commit(put("a", "1")).unwrap();
    journal.flush().unwrap();
    let marks = |journal: &Journal| {
        let seq = journal.shared.log.lock().log.seq();
        journal.flush().unwrap();
        journal.shared.log.lock().log.seq() - seq
    };
    journal.commit(put("b", "2")).unwrap();
    let plain = marks(&journal);
    journal.commit(put("c", "3")).unwrap();
    journal.shared.log.lock().unmarked = true;
    assert_eq!(marks(&journal), plain + 1);
    assert!(!journal.shared.log.lock().unmarked);
}

/// The caller of a commit that has waited for too long was answered an error, and may have changed the same
/// since.
#[test]
fn regression_a_commit_that_was_given_up_is_not_made_later() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(folder.path(), Arc::new(NoPacks), small()).unwrap();
    let value = [7; 60_000];
    let late = |n: u8| Deadline::after(Duration::from_millis(50)).scope(|| journal.commit(put([n], value)));
    // While a reader reads, nothing is drained, so the log becomes full.
    let reader = journal.shared.gate.enter();
    let refused = (0..100).find_map(|n| late(n).err().map(|error| (n, error)));
    let (given_up, error) = refused.expect("the log has a limit");
    assert!(matches!(error, CommitError::Store(StoreError::Unavailable(_))), "{error:?}");
    drop(reader);
    journal.commit(put("a", value)).unwrap();
    journal.drain().unwrap();
    assert_eq!(journal.get(&Key::from_bytes(&[given_up])).unwrap(), None);
    assert!(journal.get(&Key::from_bytes(&[given_up - 1])).unwrap().is_some());
    journal.close().unwrap();
}
