//! The conformance suite that every origin passes, and tests of each kind.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use base::BlobId;
use blob::failing::{FailingOrigin, Faults, Op};
use blob::{BlobError, SharedBytes, Sums};
use proptest::prelude::*;
use s3server::{Fault, Proxy, Rule};
use std::sync::OnceLock;
use std::time::Duration;

use super::*;

/// Reproducible bytes that differ for every seed.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut out: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next()).collect();
    out.truncate(len);
    out
}

type Make = fn(&Path) -> Arc<dyn Origin>;

/// Share of requests that the proxy of the last origin below disturbs. A retry always succeeds.
const FAULTS: f64 = 0.04;

fn every_origin() -> Vec<(&'static str, Make)> {
    fn folder(dir: &Path) -> Arc<dyn Origin> {
        Spec::Folder(dir.join("origin")).format("v").unwrap()
    }
    fn memory(_: &Path) -> Arc<dyn Origin> {
        Spec::Memory.format("v").unwrap()
    }
    fn remote(_: &Path) -> Arc<dyn Origin> {
        Arc::new(remote::tests::fresh(&remote::tests::server().endpoint(), Limits::default()))
    }
    fn beset(_: &Path) -> Arc<dyn Origin> {
        static PROXY: OnceLock<Proxy> = OnceLock::new();
        let proxy = PROXY.get_or_init(|| {
            let proxy = Proxy::start(remote::tests::server().address(), 4);
            let faults = [
                Fault::SlowDown,
                Fault::Status(500),
                Fault::Drop,
                Fault::Lose,
                Fault::CutAnswer(70_000),
                Fault::CutRequest(1000),
                Fault::Wait(Duration::from_millis(30)),
            ];
            faults.into_iter().for_each(|fault| proxy.add(Rule::new(fault).chance(FAULTS)));
            proxy
        });
        Arc::new(remote::tests::fresh(&proxy.endpoint(), Limits::default()))
    }
    fn minio(_: &Path) -> Arc<dyn Origin> {
        let minio = remote::tests::minio().expect("it was there before");
        Arc::new(remote::tests::fresh(&minio.endpoint(), Limits::default()))
    }
    let mut all: Vec<(&'static str, Make)> = vec![
        ("folder", folder),
        ("memory", memory),
        ("failing folder, fault off", |dir| Arc::new(FailingOrigin::new(folder(dir), Faults::new()))),
        ("failing memory, fault off", |dir| Arc::new(FailingOrigin::new(memory(dir), Faults::new()))),
        ("S3 server", remote),
        ("S3 server behind faults", beset),
    ];
    if remote::tests::minio().is_ok() {
        all.push(("MinIO", minio));
    }
    all
}

/// Runs `check` over every kind of origin, each with an empty folder to work in.
fn conform(check: fn(&dyn Origin, &Path)) {
    for (name, make) in every_origin() {
        println!("{name}");
        let dir = tempfile::tempdir().unwrap();
        check(&*make(dir.path()), dir.path());
    }
}

fn put(origin: &dyn Origin, bytes: &[u8]) -> BlobId {
    let sums = Sums::of(bytes);
    origin.put(&sums.id(), &sums, bytes).unwrap();
    sums.id()
}

fn adopt(origin: &dyn Origin, dir: &Path, bytes: &[u8]) -> BlobId {
    let (sums, file) = (Sums::of(bytes), dir.join("pack"));
    fs::write(&file, bytes).unwrap();
    origin.adopt(&sums.id(), &sums, &file).unwrap();
    assert_eq!(fs::read(&file).unwrap(), bytes, "the file stays where it is");
    fs::remove_file(&file).unwrap();
    sums.id()
}

fn put_shared(origin: &dyn Origin, bytes: &[u8]) -> BlobId {
    let (sums, bytes) = (Sums::of(bytes), Arc::new(bytes.to_vec()));
    origin.put_shared(&sums.id(), &sums, bytes as SharedBytes).unwrap();
    sums.id()
}

fn read(origin: &dyn Origin, id: &BlobId, at: usize, len: usize) -> Result<Vec<u8>, BlobError> {
    let mut buf = vec![0xee; len];
    origin.read_at(id, at as u32, &mut buf).map(|()| buf)
}

fn listed(origin: &dyn Origin) -> Vec<(BlobId, u64)> {
    let mut all = Vec::new();
    origin
        .list(&mut |id, size| {
            all.push((id, size));
            true
        })
        .unwrap();
    all.sort();
    all
}

const SIZES: [usize; 8] = [0, 1, 4096, 65_535, 65_536, 65_537, 1_000_000, 4 << 20];

#[test]
fn what_is_stored_is_read_whichever_way_it_came() {
    conform(|origin, dir| {
        for (i, size) in SIZES.into_iter().enumerate() {
            let bytes = [0, 1, 2].map(|way| noise(size, (i * 3 + way) as u64));
            let ids = [put(origin, &bytes[0]), adopt(origin, dir, &bytes[1]), put_shared(origin, &bytes[2])];
            for (id, bytes) in ids.iter().zip(&bytes) {
                assert_eq!(origin.is_local(id), !origin.describe().starts_with("s3://"));
                assert_eq!(read(origin, id, 0, size).unwrap(), *bytes);
                assert_eq!(
                    read(origin, id, size / 3, size / 2).unwrap(),
                    bytes[size / 3..size / 3 + size / 2]
                );
                assert!(read(origin, id, size, 0).unwrap().is_empty());
                assert_eq!(origin.size(id).unwrap(), Some(size as u64));
                origin.verify(id).unwrap();
            }
        }
        origin.sync().unwrap();
        origin.sync().unwrap();
    });
}

#[test]
fn storing_again_is_no_error_and_changes_nothing() {
    conform(|origin, dir| {
        let bytes = noise(200_000, 1);
        let id = put(origin, &bytes);
        for _ in 0..2 {
            assert_eq!(
                [put(origin, &bytes), adopt(origin, dir, &bytes), put_shared(origin, &bytes)],
                [id; 3]
            );
            assert_eq!(read(origin, &id, 0, bytes.len()).unwrap(), bytes);
            assert_eq!(listed(origin), [(id, 200_000)]);
        }
    });
}

#[test]
fn a_range_past_the_end_is_invalid() {
    conform(|origin, _| {
        let id = put(origin, &noise(70_000, 2));
        for (at, len) in [(0, 70_001), (69_999, 2), (70_000, 1), (70_001, 0), (u32::MAX as usize, 5)] {
            match read(origin, &id, at, len) {
                Err(BlobError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::InvalidInput),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn what_is_absent_is_missing() {
    conform(|origin, _| {
        let id = Sums::of(b"never stored").id();
        assert!(matches!(read(origin, &id, 0, 1), Err(BlobError::Missing(missing)) if missing == id));
        assert!(matches!(origin.verify(&id), Err(BlobError::Missing(_))));
        assert_eq!(origin.size(&id).unwrap(), None);
        origin.remove(&id).unwrap();
        assert_eq!(listed(origin), []);
    });
}

#[test]
fn what_is_removed_is_gone_and_can_come_again() {
    conform(|origin, _| {
        let (gone, stays) = (noise(100_000, 3), noise(100_000, 4));
        let (id, other) = (put(origin, &gone), put(origin, &stays));
        assert_eq!(read(origin, &id, 0, 100_000).unwrap(), gone);
        origin.remove(&id).unwrap();
        assert!(matches!(read(origin, &id, 0, 1), Err(BlobError::Missing(_))));
        assert_eq!(origin.size(&id).unwrap(), None);
        assert_eq!(listed(origin), [(other, 100_000)]);
        origin.sync().unwrap();
        assert_eq!(put(origin, &gone), id);
        assert_eq!(read(origin, &id, 0, 100_000).unwrap(), gone);
        assert_eq!(read(origin, &other, 0, 100_000).unwrap(), stays);
    });
}

#[test]
fn a_listing_ends_when_told_and_allows_removal() {
    conform(|origin, _| {
        let mut ids: Vec<BlobId> = (0..40).map(|i| put(origin, &noise(i as usize + 1, i))).collect();
        let mut seen = 0;
        origin
            .list(&mut |_, _| {
                seen += 1;
                seen < 7
            })
            .unwrap();
        assert_eq!(seen, 7);
        let mut removed = Vec::new();
        origin
            .list(&mut |id, _| {
                origin.remove(&id).unwrap();
                removed.push(id);
                true
            })
            .unwrap();
        removed.sort();
        ids.sort();
        assert_eq!(removed, ids);
        assert_eq!(listed(origin), []);
    });
}

#[test]
fn sums_that_do_not_belong_are_refused() {
    conform(|origin, _| {
        let id = Sums::of(b"one").id();
        assert!(matches!(origin.put(&id, &Sums::of(b"two"), b"one"), Err(BlobError::Io(_))));
        assert_eq!(origin.size(&id).unwrap(), None);
    });
}

#[test]
fn many_threads_store_the_same_and_read_it() {
    conform(|origin, dir| {
        let blobs: Vec<Vec<u8>> = (0..6).map(|i| noise(150_000, 100 + i)).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (blobs, own) = (&blobs, dir.join(thread.to_string()));
                scope.spawn(move || {
                    fs::create_dir(&own).unwrap();
                    for bytes in blobs {
                        let id =
                            if thread % 2 == 0 { put(origin, bytes) } else { adopt(origin, &own, bytes) };
                        assert_eq!(read(origin, &id, 0, bytes.len()).unwrap(), *bytes);
                        origin.sync().unwrap();
                    }
                });
            }
        });
        assert_eq!(listed(origin).len(), 6);
        listed(origin).iter().for_each(|(id, _)| origin.verify(id).unwrap());
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn an_origin_behaves_like_a_map(steps in prop::collection::vec((0..5u8, 0..8u64), 1..40)) {
        // Behind faults it needs many retries, which take long; the suite above covers that.
        for (_, make) in every_origin().into_iter().filter(|(name, _)| !name.contains("behind")) {
            let dir = tempfile::tempdir().unwrap();
            let origin = make(dir.path());
            let mut model = std::collections::BTreeMap::new();
            for (what, which) in &steps {
                let bytes = noise(*which as usize * 10_007, *which);
                let id = Sums::of(&bytes).id();
                match what {
                    0 => { put(&*origin, &bytes); model.insert(id, bytes.len() as u64); }
                    1 => { adopt(&*origin, dir.path(), &bytes); model.insert(id, bytes.len() as u64); }
                    2 => { origin.remove(&id).unwrap(); model.remove(&id); }
                    3 => origin.sync().unwrap(),
                    _ => prop_assert_eq!(read(&*origin, &id, 0, bytes.len()).ok(), model.get(&id).map(|_| bytes)),
                }
                prop_assert_eq!(origin.size(&id).unwrap(), model.get(&id).copied());
            }
            prop_assert_eq!(listed(&*origin), model.into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn faults_happen_when_they_are_on_and_only_then() {
    let faults = Faults::new();
    let origin = FailingOrigin::new(Arc::new(Memory::new()), Arc::clone(&faults));
    let id = put(&origin, b"bytes");
    faults.fail(Op::Store, 1);
    let (sums, bytes) = (Sums::of(b"more"), b"more");
    assert!(matches!(origin.put(&sums.id(), &sums, bytes), Err(BlobError::Io(_))));
    assert_eq!(origin.size(&sums.id()).unwrap(), None);
    faults.full_after(5);
    origin.put(&sums.id(), &sums, bytes).unwrap();
    assert!(matches!(origin.put(&sums.id(), &sums, bytes), Err(BlobError::Full)));
    faults.damage(true);
    assert!(matches!(read(&origin, &id, 0, 5), Err(BlobError::Damaged { .. })));
    faults.heal();
    faults.fail(Op::Sync, u64::MAX);
    assert!(origin.sync().is_err() && origin.sync().is_err());
    faults.heal();
    origin.sync().unwrap();
    assert_eq!(read(&origin, &id, 0, 5).unwrap(), b"bytes");
    assert_eq!((faults.calls(Op::Store), faults.calls(Op::Sync)), (4, 3));
}

#[test]
fn what_a_user_writes_is_understood_or_explained() {
    assert_eq!(parse("mem:").unwrap(), Spec::Memory);
    for (text, dir) in
        [("file:/srv/x", "/srv/x"), ("file:x/y", "x/y"), ("file:///srv/x", "/srv/x"), ("file:a b", "a b")]
    {
        assert_eq!(parse(text).unwrap(), Spec::Folder(dir.into()));
        assert_eq!(parse(&parse(text).unwrap().to_string()).unwrap(), parse(text).unwrap());
    }
    assert_eq!(parse("s3://bucket/a/b").unwrap().remote().unwrap().prefix, "a/b");
    assert_eq!(parse("s3://bucket/a").unwrap().to_string(), "s3://bucket/a");
    assert!(matches!(parse("s3://"), Err(OriginError::BadRemote { .. })));
    for text in ["", "memory", "mem:x", "FILE:/x"] {
        let message = text.parse::<Spec>().unwrap_err().to_string();
        assert!(
            message.contains("file:DIR") && message.contains("mem:") && message.contains("s3://"),
            "{message}"
        );
    }
    let forgotten = parse("/srv/x").unwrap_err();
    assert_eq!(forgotten.next().unwrap(), "for a folder write file:/srv/x");
    let web = parse("https://s3.example.com/bucket").unwrap_err();
    assert!(web.next().unwrap().contains("--endpoint"), "{web}");
    assert!(parse("file:").unwrap_err().to_string().contains("file:/srv/covey/blobs"));
}

#[test]
fn a_folder_is_formatted_once_and_opened_after() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("new/origin");
    assert!(matches!(Folder::open(&home, Access::ReadWrite), Err(OriginError::Absent(_))));
    let id = put(&Folder::format(&home, "v").unwrap(), b"kept");
    assert_eq!(read(&Folder::open(&home, Access::ReadWrite).unwrap(), &id, 0, 4).unwrap(), b"kept");
    assert_eq!(Folder::open(&home, Access::ReadOnly).unwrap().describe(), format!("file:{}", home.display()));
}

/// Two volumes were made with one folder as their origin, and collected each other's blobs.
#[test]
fn regression_a_folder_is_one_volumes_origin() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("origin");
    assert_eq!(Folder::format(&home, "first").unwrap().volume().as_deref(), Some("first"));
    assert!(matches!(Folder::format(&home, "second"), Err(OriginError::Taken(_))));
    assert!(matches!(Folder::format(&home, "first"), Err(OriginError::Taken(_))));
    let open = || Folder::open(&home, Access::ReadWrite).unwrap();
    assert_eq!(open().volume().as_deref(), Some("first"));
    // As it was created before markers named their volume: it opens, and the volume that claims it gets it.
    fs::write(home.join(folder::MARKER), "covey origin 1\n").unwrap();
    let earlier = open();
    assert_eq!(earlier.volume(), None);
    assert!(matches!(Folder::format(&home, "second"), Err(OriginError::Taken(_))));
    assert_eq!(earlier.look().unwrap(), None);
    earlier.adopt_by("third").unwrap();
    assert_eq!(open().volume().as_deref(), Some("third"));
    assert_eq!(earlier.look().unwrap(), None);
    fs::write(home.join(folder::MARKER), "covey origin 2\nvolume fourth\n").unwrap();
    assert!(earlier.look().unwrap().unwrap().contains("another volume"));
}

#[test]
fn a_marker_that_was_lost_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("origin");
    let origin = Folder::format(&home, "v").unwrap();
    let id = put(&origin, b"kept");
    fs::remove_file(home.join(folder::MARKER)).unwrap();
    assert!(origin.look().unwrap().unwrap().contains("covey origin mark"));
    assert!(matches!(Folder::open(&home, Access::ReadOnly), Err(OriginError::NotAnOrigin(_))));
    let bare = Folder::unmarked(&home).unwrap();
    assert_eq!(listed(&bare), [(id, 4)]);
    assert!(bare.mark("v").unwrap() && !bare.mark("v").unwrap());
    assert!(matches!(bare.mark("w"), Err(OriginError::Taken(_))));
    assert_eq!(origin.look().unwrap(), None);
}

#[test]
fn a_folder_that_is_no_origin_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = |home: &Path| Folder::open(home, Access::ReadWrite).err().unwrap().to_string();
    assert!(refusal(dir.path()).contains("check that its disk is mounted"));
    fs::write(dir.path().join("thesis.txt"), b"mine").unwrap();
    assert!(matches!(Folder::format(dir.path(), "v"), Err(OriginError::NotEmpty(_))));
    assert!(matches!(Folder::format(&dir.path().join("thesis.txt"), "v"), Err(OriginError::NotAFolder(_))));
    assert!(matches!(Folder::format(&dir.path().join("thesis.txt/x"), "v"), Err(OriginError::NotAFolder(_))));
    let home = dir.path().join("home");
    Folder::format(&home, "v").unwrap();
    fs::write(home.join(folder::MARKER), b"covey origin 3\nmore").unwrap();
    assert!(refusal(&home).contains("newer covey"));
    assert!(matches!(Folder::format(&home, "v"), Err(OriginError::Newer { .. })));
    fs::write(home.join(folder::MARKER), b"\xff\xfe").unwrap();
    assert!(matches!(Folder::open(&home, Access::ReadOnly), Err(OriginError::NotAnOrigin(_))));
}

#[test]
fn a_format_that_was_killed_half_way_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lost+found")).unwrap();
    fs::write(dir.path().join(folder::MARKER), b"").unwrap();
    assert!(matches!(Folder::open(dir.path(), Access::ReadWrite), Err(OriginError::NotAnOrigin(_))));
    Folder::format(dir.path(), "v").unwrap();
    Folder::open(dir.path(), Access::ReadWrite).unwrap();
}

#[test]
fn a_folder_opened_for_reading_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let id = put(&Folder::format(&home, "v").unwrap(), b"kept");
    let origin = Folder::open(&home, Access::ReadOnly).unwrap();
    let sums = Sums::of(b"new");
    assert!(matches!(origin.put(&sums.id(), &sums, b"new"), Err(BlobError::Io(_))));
    assert!(matches!(origin.remove(&id), Err(BlobError::Io(_))));
    assert_eq!(read(&origin, &id, 0, 4).unwrap(), b"kept");
}

#[test]
fn a_folder_without_write_permission_is_refused_for_writing() {
    let dir = tempfile::tempdir().unwrap();
    if fs::metadata(dir.path()).unwrap().uid() == 0 {
        return println!("root may write everywhere; this needs an ordinary user: skipped");
    }
    let home = dir.path().join("home");
    Folder::format(&home, "v").unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o500)).unwrap();
    assert!(matches!(Folder::open(&home, Access::ReadWrite), Err(OriginError::ReadOnly { .. })));
    Folder::open(&home, Access::ReadOnly).unwrap();
}

#[test]
fn an_origin_whose_disk_went_away_is_unavailable_not_empty() {
    let dir = tempfile::tempdir().unwrap();
    let (home, away) = (dir.path().join("home"), dir.path().join("away"));
    let origin = Folder::format(&home, "v").unwrap();
    let id = put(&origin, b"kept");
    fs::rename(&home, &away).unwrap();
    // An unmounted disk leaves an empty folder behind.
    fs::create_dir(&home).unwrap();
    let sums = Sums::of(b"new");
    let unavailable = |result: Result<(), BlobError>| matches!(result, Err(BlobError::Unavailable(what)) if what.contains("gone"));
    assert!(unavailable(read(&origin, &id, 0, 4).map(drop)));
    assert!(unavailable(origin.put(&sums.id(), &sums, b"new")));
    assert!(unavailable(origin.size(&id).map(drop)));
    assert!(unavailable(origin.list(&mut |_, _| true)));
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "nothing went to the wrong disk");
    fs::remove_dir(&home).unwrap();
    fs::rename(&away, &home).unwrap();
    assert_eq!(read(&origin, &id, 0, 4).unwrap(), b"kept");
}

#[test]
fn memory_keeps_large_shared_bytes_without_a_copy() {
    let origin = Memory::new();
    let bytes: SharedBytes = Arc::new(noise(1 << 20, 8));
    let sums = Sums::of((*bytes).as_ref());
    origin.put_shared(&sums.id(), &sums, Arc::clone(&bytes)).unwrap();
    assert_eq!(Arc::strong_count(&bytes), 2);
    assert_eq!(origin.bytes(), 1 << 20);
    origin.remove(&sums.id()).unwrap();
    assert_eq!(Arc::strong_count(&bytes), 1);
    put(&origin, b"tiny");
    assert_eq!(origin.bytes(), 4);
}

#[test]
fn records_are_made_replaced_listed_and_removed() {
    conform(|origin, _| {
        assert_eq!(origin.records("").unwrap(), Vec::<String>::new());
        assert_eq!(origin.record("published/nightly").unwrap(), None);
        origin.put_record("published/nightly", b"one").unwrap();
        origin.put_record("published/nightly", b"two").unwrap();
        assert!(!origin.create_record("published/nightly", b"three").unwrap());
        assert!(origin.create_record("published/a.b-c_d=1", b"").unwrap());
        assert!(origin.create_record("volume", b"v").unwrap());
        assert_eq!(origin.record("published/nightly").unwrap().unwrap(), b"two");
        assert_eq!(origin.records("published").unwrap(), ["published/a.b-c_d=1", "published/nightly"]);
        assert_eq!(origin.records("").unwrap().len(), 3);
        assert_eq!(origin.records("publish").unwrap(), Vec::<String>::new());
        assert_eq!(listed(origin), [], "a record is no blob");
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", "a b", "a~b", "\u{e9}"] {
            assert!(matches!(origin.put_record(bad, b"x"), Err(BlobError::Io(_))), "{bad:?}");
        }
        assert!(origin.put_record("large", &vec![0; (1 << 20) + 1]).is_err());
        origin.remove_record("published/nightly").unwrap();
        origin.remove_record("published/nightly").unwrap();
        assert_eq!(origin.record("published/nightly").unwrap(), None);
    });
}

#[test]
fn one_of_many_makes_a_record() {
    conform(|origin, _| {
        let made = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..8u8)
                .map(|i| scope.spawn(move || origin.create_record("root", &[i]).unwrap().then_some(i)))
                .collect();
            tries.into_iter().filter_map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(made.len(), 1);
        assert_eq!(origin.record("root").unwrap().unwrap(), made);
    });
}

#[test]
fn a_whole_blob_and_a_part_of_it_come_with_their_sums() {
    conform(|origin, _| {
        for size in SIZES {
            let bytes = noise(size, 77 + size as u64);
            let id = put(origin, &bytes);
            let (sums, fetched) = origin.fetch(&id).unwrap();
            assert!(sums == Sums::of(&bytes) && fetched == bytes);
            let (at, len) = (size / 2, size / 4);
            let part = origin.fetch_part(&id, at as u32, len as u32).unwrap();
            let from = at - part.offset as usize;
            assert_eq!(part.bytes[from..from + len], bytes[at..at + len]);
            assert!(part.sums == sums);
            assert!(origin.fetch_part(&id, size as u32, 1).is_err());
        }
        let none = BlobId([7; 32]);
        assert!(matches!(origin.fetch(&none), Err(BlobError::Missing(id)) if id == none));
    });
}
