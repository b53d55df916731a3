//! The cache behaves as every origin does, whatever was uploaded and whatever is still on the disk.

use super::*;

/// What happens between a store and a read.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    Uploaded,
    /// Uploaded, and then evicted, so that only the origin has it.
    Evicted,
    /// Uploaded, and then the cache is opened again.
    Reopened,
}

struct Case {
    home: Home,
    then: Then,
}

impl Case {
    fn go_on(&mut self) {
        match self.then {
            Then::Nothing => {}
            Then::Uploaded => self.home.noted.upload_all(&self.home.far),
            Then::Evicted => {
                self.home.noted.upload_all(&self.home.far);
                self.home.cache().evict(Evict::All);
                self.home.rest();
            }
            Then::Reopened => {
                self.home.noted.upload_all(&self.home.far);
                self.home.reopen();
            }
        }
    }

    fn adopt(&self, bytes: &[u8]) -> BlobId {
        let (sums, file) = (Sums::of(bytes), self.home.dir.path().join("pack"));
        fs::write(&file, bytes).unwrap();
        self.home.cache().adopt(&sums.id(), &sums, &file).unwrap();
        fs::remove_file(&file).unwrap();
        sums.id()
    }

    fn listed(&self) -> Vec<(BlobId, u64)> {
        let mut all = Vec::new();
        let mut each = |id, size| {
            all.push((id, size));
            true
        };
        self.home.cache().list(&mut each).unwrap();
        all.sort();
        all
    }
}

fn conform(check: impl Fn(&mut Case)) {
    for then in [Then::Nothing, Then::Uploaded, Then::Evicted, Then::Reopened] {
        println!("{then:?}");
        check(&mut Case { home: Home::new(), then });
    }
}

const SIZES: [usize; 8] = [0, 1, 4096, 65_535, 65_536, 65_537, 1_000_000, 4 << 20];

#[test]
fn what_is_stored_is_read_whichever_way_it_came() {
    conform(|case| {
        let mut all = Vec::new();
        for (i, size) in SIZES.into_iter().enumerate() {
            let bytes = [0, 1].map(|way| noise(size, (i * 2 + way) as u64));
            all.push((case.home.put(&bytes[0]), bytes[0].clone()));
            all.push((case.adopt(&bytes[1]), bytes[1].clone()));
        }
        case.home.cache().sync().unwrap();
        for (id, bytes) in &all {
            let size = bytes.len();
            case.go_on();
            let (sums, whole) = case.home.cache().fetch(id).unwrap();
            assert_eq!((sums.id(), whole.to_vec()), (*id, bytes.clone()));
            case.go_on();
            assert_eq!(case.home.read(id, size / 3, size / 2).unwrap(), bytes[size / 3..size / 3 + size / 2]);
            case.go_on();
            assert_eq!(case.home.read(id, 0, size).unwrap(), *bytes);
            assert_eq!(case.home.read(id, size, 0).unwrap(), []);
            assert_eq!(case.home.cache().size(id).unwrap(), Some(size as u64));
            case.home.cache().verify(id).unwrap();
            if size > 0 {
                case.go_on();
                let part = case.home.cache().fetch_part(id, size as u32 - 1, 1).unwrap();
                let from = part.offset as usize;
                assert_eq!(part.bytes, bytes[from..from + part.bytes.len()]);
                assert_eq!(from + part.bytes.len(), size);
            }
        }
    });
}

#[test]
fn storing_again_is_no_error_and_changes_nothing() {
    conform(|case| {
        let bytes = noise(200_000, 1);
        let id = case.home.put(&bytes);
        for _ in 0..2 {
            case.go_on();
            assert_eq!([case.home.put(&bytes), case.adopt(&bytes)], [id; 2]);
            assert_eq!(case.home.read(&id, 0, bytes.len()).unwrap(), bytes);
            assert_eq!(case.listed(), [(id, 200_000)]);
        }
    });
}

#[test]
fn a_range_past_the_end_is_invalid() {
    conform(|case| {
        let id = case.home.put(&noise(70_000, 2));
        for (at, len) in [(0, 70_001), (69_999, 2), (70_000, 1), (70_001, 0), (u32::MAX as usize, 5)] {
            case.go_on();
            match case.home.read(&id, at, len) {
                Err(BlobError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::InvalidInput),
                other => panic!("{at} {len} {other:?}"),
            }
        }
    });
}

#[test]
fn what_is_absent_is_missing() {
    conform(|case| {
        case.go_on();
        let id = Sums::of(b"never stored").id();
        let cache = case.home.cache();
        assert!(matches!(case.home.read(&id, 0, 1), Err(BlobError::Missing(missing)) if missing == id));
        assert!(matches!(case.home.read(&id, 0, 1 << 20), Err(BlobError::Missing(_))));
        assert!(matches!(cache.verify(&id), Err(BlobError::Missing(_))));
        assert!(matches!(cache.warm(&id), Err(BlobError::Missing(_))));
        assert!(!cache.is_local(&id));
        assert_eq!(cache.size(&id).unwrap(), None);
        cache.remove(&id).unwrap();
        assert_eq!(case.listed(), []);
    });
}

#[test]
fn what_is_removed_is_gone_and_can_come_again() {
    conform(|case| {
        let (gone, stays) = (noise(100_000, 3), noise(100_000, 4));
        let (id, other) = (case.home.put(&gone), case.home.put(&stays));
        case.go_on();
        case.home.cache().remove(&id).unwrap();
        assert!(matches!(case.home.read(&id, 0, 1), Err(BlobError::Missing(_))));
        assert!(matches!(case.home.cache().fetch(&id), Err(BlobError::Missing(_))));
        assert!(matches!(case.home.cache().verify(&id), Err(BlobError::Missing(_))));
        assert_eq!(case.home.cache().size(&id).unwrap(), None);
        assert_eq!(case.listed(), [(other, 100_000)]);
        case.home.until("it is deleted", |stats| stats.removing == 0);
        assert!(!case.home.far.has(&id));
        case.home.cache().sync().unwrap();
        assert_eq!(case.home.put(&gone), id);
        case.go_on();
        assert_eq!(case.home.read(&id, 0, 100_000).unwrap(), gone);
        assert_eq!(case.home.read(&other, 0, 100_000).unwrap(), stays);
    });
}

/// The listing read the origin's list before a deletion ended. The blob was in that list, but its deletion
/// was no longer outstanding, so it was listed.
#[test]
fn regression_a_deletion_that_ends_during_a_listing_does_not_bring_the_blob_back() {
    conform(|case| {
        let ids: Vec<BlobId> = (0..20).map(|n| case.home.put(&noise(1000 + n as usize, n))).collect();
        case.go_on();
        case.home.cache().remove(&ids[0]).unwrap();
        let mut seen = Vec::new();
        let mut each = |id, _| {
            case.home.until("it is deleted", |stats| stats.removing == 0);
            seen.push(id);
            true
        };
        case.home.cache().list(&mut each).unwrap();
        assert!(seen.len() == 19 && !seen.contains(&ids[0]), "{} blobs", seen.len());
    });
}

#[test]
fn a_listing_ends_when_told_and_allows_removal() {
    conform(|case| {
        let mut ids: Vec<BlobId> = (0..40).map(|i| case.home.put(&noise(i as usize + 1, i))).collect();
        case.go_on();
        let mut seen = 0;
        let cache = case.home.cache();
        cache
            .list(&mut |_, _| {
                seen += 1;
                seen < 7
            })
            .unwrap();
        assert_eq!(seen, 7);
        let mut removed = Vec::new();
        cache
            .list(&mut |id, _| {
                cache.remove(&id).unwrap();
                removed.push(id);
                true
            })
            .unwrap();
        removed.sort();
        ids.sort();
        assert_eq!(removed, ids);
        assert_eq!(case.listed(), []);
    });
}

#[test]
fn sums_that_do_not_belong_are_refused() {
    conform(|case| {
        let id = Sums::of(b"one").id();
        assert!(matches!(case.home.cache().put(&id, &Sums::of(b"two"), b"one"), Err(BlobError::Io(_))));
        assert_eq!(case.home.cache().size(&id).unwrap(), None);
        assert_eq!(case.home.stats().pinned.blobs, 0);
    });
}

#[test]
fn records_are_the_origins() {
    let home = Home::new();
    assert!(home.cache().create_record("published/a", b"1").unwrap());
    assert!(!home.cache().create_record("published/a", b"2").unwrap());
    home.cache().put_record("b", b"3").unwrap();
    assert_eq!(home.far.record("published/a").unwrap().unwrap(), b"1");
    assert_eq!(home.cache().records("published").unwrap(), ["published/a"]);
    assert_eq!(home.cache().record("b").unwrap().unwrap(), b"3");
    home.cache().remove_record("b").unwrap();
    assert_eq!(home.far.record("b").unwrap(), None);
    assert_eq!(home.cache().describe(), "far:");
}

#[test]
fn many_threads_store_the_same_and_read_it_while_it_is_uploaded_and_evicted() {
    let home = Home::new();
    let blobs: Vec<Vec<u8>> = (0..6).map(|i| noise(150_000, 100 + i)).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for bytes in blobs.iter().chain(&blobs) {
                    let id = home.put(bytes);
                    assert_eq!(home.read(&id, 0, bytes.len()).unwrap(), *bytes);
                    home.cache().sync().unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..50 {
                // Concurrent calls would upload the same blob twice. Real uploads do not.
                home.noted.upload_all(&home.far);
                home.cache().evict(Evict::All);
            }
        });
    });
    home.noted.upload_all(&home.far);
    for bytes in &blobs {
        home.cache().evict(Evict::All);
        assert_eq!(home.read(&Sums::of(bytes).id(), 0, bytes.len()).unwrap(), *bytes);
    }
}
