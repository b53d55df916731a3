//! Stores, and deletions in the origin.

use super::*;
use crate::residency::index::Rewrite;

#[test]
fn a_blob_is_written_once_and_pinned_until_it_is_uploaded() {
    use std::os::unix::fs::MetadataExt;

    let home = Home::new();
    let bytes = noise(300_000, 1);
    let (sums, pack) = (Sums::of(&bytes), home.dir.path().join("7"));
    let id = sums.id();
    fs::write(&pack, &bytes).unwrap();
    home.cache().adopt(&id, &sums, &pack).unwrap();
    home.cache().sync().unwrap();
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&pack), inode(&home.file(&id)));
    assert_eq!(inode(&pack), inode(&home.noted.file(&id).unwrap()));
    let stats = home.stats();
    assert_eq!((stats.pinned.blobs, stats.pinned.bytes, stats.stored_blobs), (1, 300_000, 1));
    assert!(home.cache().settle(Duration::ZERO).is_err());
    home.noted.upload_all(&home.far);
    home.cache().settle(Duration::ZERO).unwrap();
    assert_eq!(home.cache().evict(Evict::All).blobs, 1);
    assert_eq!(home.read(&id, 0, 300_000).unwrap(), bytes);
}

/// The fleet was told of blobs that were fetched, and not of those that were written here. So other nodes
/// read these from the origin.
#[test]
fn regression_the_fleet_is_told_of_blobs_that_are_written_here() {
    let home = Home::new();
    let (bytes, pack) = (noise(300_000, 1), home.dir.path().join("7"));
    fs::write(&pack, &bytes).unwrap();
    let sums = Sums::of(&bytes);
    home.cache().adopt(&sums.id(), &sums, &pack).unwrap();
    let put = home.put(&noise(300_000, 2));
    let known = |home: &Home| home.watched.0.lock().clone();
    assert_eq!(known(&home), HashSet::from([sums.id(), put]));
    assert_eq!(known(&home), home.cache().lendable().into_iter().collect());
    home.cache().remove(&put).unwrap();
    home.noted.upload_all(&home.far);
    assert_eq!(known(&home), HashSet::from([sums.id()]));
    assert_eq!(home.cache().evict(Evict::All).blobs, 1);
    assert_eq!(known(&home), HashSet::new());
}

#[test]
fn what_cannot_be_noted_is_not_stored() {
    let home = Home::new();
    home.noted.fails.store(true, Ordering::SeqCst);
    let sums = Sums::of(b"bytes");
    assert!(matches!(home.cache().put(&sums.id(), &sums, b"bytes"), Err(BlobError::Full)));
    home.noted.fails.store(false, Ordering::SeqCst);
    home.cache().put(&sums.id(), &sums, b"bytes").unwrap();
    assert!(home.noted.is_pending(&sums.id()));
}

#[test]
fn nothing_is_stored_where_nothing_may_be() {
    let home = Home::new();
    let bytes = noise(1000, 1);
    let id = home.far.take(&bytes);
    let parts = NodeParts {
        folder: home.dir.path().join("other/blobs"),
        index: home.dir.path().join("other/cache.idx"),
        remote: Arc::clone(&home.far) as Arc<dyn Origin>,
        tier: None,
        table: Table::new(Verify::Blake3, 64 << 20),
        pending: Arc::new(crate::StoresNothing),
        may_delete: None,
        watch: None,
        options: options(),
        report: Arc::new(|line: &str| panic!("{line}")),
    };
    let cache = NodeCache::open(parts).unwrap();
    let sums = Sums::of(b"new");
    assert!(matches!(cache.put(&sums.id(), &sums, b"new"), Err(BlobError::Io(_))));
    assert_eq!(cache.fetch(&id).unwrap().1, bytes);
}

#[test]
fn deletions_wait_for_an_origin_that_is_away_also_over_a_restart() {
    let mut home = Home::new();
    let ids: Vec<BlobId> = (0..20).map(|n| home.put(&noise(1000, n))).collect();
    home.noted.upload_all(&home.far);
    home.far.away.store(true, Ordering::SeqCst);
    home.far.held.store(true, Ordering::SeqCst);
    let answered = home.far.answered.load(Ordering::SeqCst);
    ids[..10].iter().for_each(|id| home.cache().remove(id).unwrap());
    assert_eq!(home.far.answered.load(Ordering::SeqCst), answered, "remove() must not wait for the origin");
    home.far.held.store(false, Ordering::SeqCst);
    home.until("it is tried", |stats| stats.removals_failed > 0);
    assert_eq!(home.stats().removing, 10);
    home.reopen();
    assert_eq!(home.stats().removing, 10);
    home.far.away.store(false, Ordering::SeqCst);
    home.until("all are deleted", |stats| stats.removing == 0);
    ids.iter().enumerate().for_each(|(n, id)| assert_eq!(home.far.has(id), n >= 10));
    home.reopen();
    assert_eq!(home.stats().removing, 0);
}

/// A pending deletion was carried out after the origin had become another volume's.
#[test]
fn regression_what_waits_to_be_deleted_is_left_alone_once_the_origin_is_anothers() {
    let mut home = Home::new();
    let id = home.put(&noise(1000, 1));
    home.noted.upload_all(&home.far);
    home.lost.store(true, Ordering::SeqCst);
    home.cache().remove(&id).unwrap();
    home.until("it is tried", |stats| stats.removals_failed > 0);
    home.reopen();
    home.until("it is tried again", |stats| stats.removals_failed > 0);
    assert!(home.far.has(&id) && home.stats().removing == 1);
    home.lost.store(false, Ordering::SeqCst);
    home.until("it is deleted", |stats| stats.removing == 0);
    assert!(!home.far.has(&id));
}

#[test]
fn what_is_stored_again_is_not_deleted() {
    let mut home = Home::new();
    let bytes = noise(1000, 1);
    let id = home.put(&bytes);
    home.noted.upload_all(&home.far);
    home.far.away.store(true, Ordering::SeqCst);
    home.cache().remove(&id).unwrap();
    home.until("it is tried", |stats| stats.removals_failed > 0);
    home.put(&bytes);
    home.cache().sync().unwrap();
    assert_eq!(home.stats().removing, 0);
    home.far.away.store(false, Ordering::SeqCst);
    home.noted.upload_all(&home.far);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(50));
        home.cache().evict(Evict::All);
        assert_eq!(home.read(&id, 0, 1000).unwrap(), bytes);
        home.rest();
        home.reopen();
    }
}

#[test]
fn storing_waits_for_a_deletion_that_is_under_way() {
    let home = Home::new();
    let bytes = noise(1000, 1);
    let id = home.put(&bytes);
    home.noted.upload_all(&home.far);
    home.far.delay_ms.store(200, Ordering::SeqCst);
    home.cache().remove(&id).unwrap();
    while home.far.removals.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    home.put(&bytes);
    assert!(!home.far.has(&id), "the deletion should end before the blob is stored");
    home.noted.upload_all(&home.far);
    std::thread::sleep(Duration::from_millis(300));
    assert!(home.far.has(&id));
}

#[test]
fn storing_waits_until_a_failed_deletion_cannot_happen_any_more() {
    base::trial::at_some_scale(|scale| waits_for_the_doubt(scale * Duration::from_secs(2))).unwrap();
}

fn waits_for_the_doubt(doubt: Duration) -> Result<(), String> {
    let home = Home::with(CacheOptions { doubt, ..options() });
    let (bytes, other) = (noise(1000, 1), noise(1000, 2));
    let id = home.put(&bytes);
    home.noted.upload_all(&home.far);
    home.far.away.store(true, Ordering::SeqCst);
    let began = Instant::now();
    home.cache().remove(&id).unwrap();
    home.until("it is tried", |stats| stats.removals_failed > 0);
    home.put(&other);
    base::trial::in_time(began.elapsed(), doubt * 9 / 10, "storing another blob")?;
    home.put(&bytes);
    assert!(began.elapsed() > doubt, "the blob was stored after {:?}, before {doubt:?}", began.elapsed());
    assert_eq!((home.stats().removing, home.stats().pinned.blobs), (0, 2));
    Ok(())
}

#[test]
fn a_deletion_waits_for_an_upload_that_is_under_way() {
    let home = Home::new();
    let bytes = noise(1000, 1);
    let id = home.put(&bytes);
    home.noted.lingering.lock().insert(id);
    home.cache().remove(&id).unwrap();
    assert!(matches!(home.read(&id, 0, 10), Err(BlobError::Missing(_))));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((home.far.removals.load(Ordering::SeqCst), home.stats().removing), (0, 1));
    // The upload arrives after all, and then the blob is deleted.
    home.far.take(&bytes);
    home.noted.lingering.lock().clear();
    home.until("it is deleted", |stats| stats.removing == 0);
    assert!(!home.far.has(&id));
}

/// The index was synced only after a deletion was cancelled, not after it was done and the blob stored again.
/// A power cut that took the end of the index revived the deletion, which then removed a blob in use. A
/// settle did not sync it at all.
#[test]
fn regression_a_power_cut_does_not_bring_back_the_deletion_of_what_was_stored_again() {
    for (killed, settle) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut home = Home::new();
        let bytes = noise(1000, 1);
        let id = home.put(&bytes);
        home.noted.upload_all(&home.far);
        home.far.away.store(true, Ordering::SeqCst);
        home.cache().remove(&id).unwrap();
        let asked_for = fs::metadata(home.index()).unwrap().len();
        home.far.away.store(false, Ordering::SeqCst);
        home.until("it is deleted", |stats| stats.removing == 0);
        home.put(&bytes);
        if killed {
            home.reopen();
        }
        if !settle {
            home.cache().sync().unwrap();
        }
        home.noted.upload_all(&home.far);
        if settle {
            home.cache().settle(Duration::ZERO).unwrap();
        }
        let durable = home.cache().core.ledger.durable_len();
        home.cache = None;
        // The record of the wanted deletion reached the disk by itself. Of the later records, only synced
        // ones are there.
        let left = durable.max(asked_for);
        fs::File::options().write(true).open(home.index()).unwrap().set_len(left).unwrap();
        home.reopen();
        home.until("nothing is left to delete", |stats| stats.removing == 0);
        assert!(home.far.has(&id));
        home.cache().evict(Evict::All);
        assert_eq!(home.read(&id, 0, 1000).unwrap(), bytes);
    }
}

/// The new index was written with the deletion, and replaced the old one before the record that cancels it
/// was durable. The sync in between was of the old one.
#[test]
fn regression_a_new_index_does_not_bring_back_the_deletion_of_what_was_stored_again() {
    for stored_again in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("index");
        let id = BlobId([7; 32]);
        let (ledger, opened) = Ledger::open(&path, Some(1 << 20), || None);
        opened.unwrap();
        ledger.unwant(&id);
        let all = ledger.begin_anew().unwrap();
        let new = Rewrite::begin(&path, &all);
        if stored_again {
            ledger.want(&id);
            ledger.sync().unwrap();
        } else {
            ledger.insert(&id, 5, false);
        }
        ledger.finish_anew(new).unwrap();
        let durable = ledger.durable_len();
        ledger.close();
        fs::File::options().write(true).open(&path).unwrap().set_len(durable).unwrap();
        let (ledger, opened) = Ledger::open(&path, Some(1 << 20), || None);
        opened.unwrap();
        assert_eq!(ledger.unwanted().is_empty(), stored_again);
    }
}
