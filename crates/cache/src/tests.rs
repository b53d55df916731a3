//! The conformance suite that every pack store passes, over origins that link, copy and share.

pub(crate) mod origins;
mod power;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::size::{BLOB_MAX, MIB};
use base::{BlobId, PackNo};
use blob::failing::{FailingOrigin, FailingPacks, Faults, Op};
use blob::{BlobError, Origin, PackStore};
use proptest::prelude::*;

use super::*;
use origins::{InFolder, InMemory};

/// Bytes that differ for every seed, without a random generator.
fn noise(len: usize, seed: u64) -> Vec<u8> {
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

/// A store, its origin, and the folder that both may use.
struct Node {
    packs: Arc<dyn PackStore>,
    origin: Arc<dyn Origin>,
    dir: PathBuf,
}

impl Node {
    fn read(&self, pack: u64, at: u32, len: usize) -> Result<Vec<u8>, BlobError> {
        let mut buf = vec![0xee; len];
        self.packs.read(PackNo(pack), at, &mut buf).map(|()| buf)
    }

    fn blob(&self, id: &BlobId, len: usize) -> Vec<u8> {
        let mut buf = vec![0xee; len];
        self.origin.read_at(id, 0, &mut buf).unwrap();
        buf
    }

    fn filled(&self, pack: u64, bytes: &[u8]) {
        self.packs.create(PackNo(pack)).unwrap();
        self.packs.write(PackNo(pack), 0, bytes).unwrap();
    }
}

fn disk(dir: &Path, origin: Arc<dyn Origin>) -> Arc<dyn PackStore> {
    Arc::new(DiskPacks::open(&dir.join("open"), origin).unwrap())
}

type MakeOrigin = fn(&Path) -> Arc<dyn Origin>;
type MakePacks = fn(&Path, Arc<dyn Origin>) -> Arc<dyn PackStore>;

/// Runs `check` over every store with every origin.
fn conform(check: impl Fn(&Node)) {
    let origins: [(&str, MakeOrigin); 2] =
        [("folder", |dir| Arc::new(InFolder::new(dir))), ("memory", |_| Arc::new(InMemory::default()))];
    let stores: [(&str, MakePacks); 3] = [
        ("disk", disk),
        ("memory", |_, origin| Arc::new(MemoryPacks::new(origin))),
        ("failing disk, fault off", |dir, origin| {
            Arc::new(FailingPacks::new(disk(dir, origin), Faults::new()))
        }),
    ];
    for (kind, make_origin) in origins {
        for (name, make) in stores {
            println!("{name} packs, {kind} origin");
            let home = tempfile::tempdir().unwrap();
            let origin = make_origin(home.path());
            let packs = make(home.path(), Arc::clone(&origin));
            check(&Node { packs, origin, dir: home.path().to_owned() });
        }
    }
}

fn is_io<T: std::fmt::Debug>(result: Result<T, BlobError>, kind: io::ErrorKind) -> bool {
    match result {
        Err(BlobError::Io(error)) if error.kind() == kind => true,
        other => panic!("{other:?} instead of {kind}"),
    }
}

#[test]
fn a_pack_goes_its_way_from_open_to_blob() {
    conform(|node| {
        for (i, size) in [0, 1, 5000, 65_536, 300_000, BLOB_MAX as usize].into_iter().enumerate() {
            let (no, bytes) = (i as u64 + 1, noise(size, i as u64));
            node.packs.create(PackNo(no)).unwrap();
            // Ranges are written in any order.
            let (first, second) = bytes.split_at(size / 2);
            node.packs.write(PackNo(no), first.len() as u32, second).unwrap();
            node.packs.write(PackNo(no), 0, first).unwrap();
            assert_eq!(node.read(no, 0, size).unwrap(), bytes);
            assert_eq!(node.packs.open_packs().unwrap(), [(PackNo(no), size as u64)]);
            let id = node.packs.seal(PackNo(no), size as u32).unwrap();
            assert_eq!(id.0, *blake3::hash(&bytes).as_bytes());
            assert_eq!(node.blob(&id, size), bytes);
            assert_eq!(node.origin.size(&id).unwrap(), Some(size as u64));
            // Until the pack is retired, its open name stays and can be read, synced and sealed again.
            assert_eq!(node.read(no, 0, size).unwrap(), bytes);
            node.packs.sync(&[PackNo(no)]).unwrap();
            assert_eq!(node.packs.seal(PackNo(no), size as u32).unwrap(), id);
            node.packs.retire(&[PackNo(no)]).unwrap();
            assert_eq!(node.packs.open_packs().unwrap(), []);
            assert!(is_io(node.read(no, 0, 1), io::ErrorKind::NotFound));
            assert_eq!(node.blob(&id, size), bytes);
            node.origin.verify(&id).unwrap();
            node.packs.retire(&[PackNo(no)]).unwrap();
            node.packs.sync(&[PackNo(no)]).unwrap();
        }
    });
}

#[test]
fn sealing_keeps_the_first_bytes_only() {
    conform(|node| {
        let bytes = noise(200_000, 1);
        node.filled(1, &bytes);
        let id = node.packs.seal(PackNo(1), 150_000).unwrap();
        assert_eq!(id.0, *blake3::hash(&bytes[..150_000]).as_bytes());
        assert_eq!(node.packs.open_packs().unwrap(), [(PackNo(1), 150_000)]);
        node.packs.retire(&[PackNo(1)]).unwrap();
        assert_eq!(node.blob(&id, 150_000), bytes[..150_000]);
        node.filled(2, b"short");
        assert!(is_io(node.packs.seal(PackNo(2), 6), io::ErrorKind::UnexpectedEof));
        node.packs.seal(PackNo(2), 5).unwrap();
    });
}

#[test]
fn gaps_read_as_zeros_and_the_end_is_an_end() {
    conform(|node| {
        node.filled(7, b"");
        node.packs.write(PackNo(7), 100, b"far").unwrap();
        assert_eq!(node.read(7, 98, 5).unwrap(), b"\0\0far");
        assert!(is_io(node.read(7, 100, 4), io::ErrorKind::UnexpectedEof));
        assert!(is_io(node.read(7, 4000, 1), io::ErrorKind::UnexpectedEof));
        assert!(is_io(node.packs.write(PackNo(7), BLOB_MAX - 1, b"xy"), io::ErrorKind::InvalidInput));
        assert!(is_io(node.packs.write(PackNo(7), u32::MAX, b"xy"), io::ErrorKind::InvalidInput));
        assert!(is_io(node.packs.seal(PackNo(7), BLOB_MAX + 1), io::ErrorKind::InvalidInput));
        node.packs.write(PackNo(7), BLOB_MAX - 1, b"x").unwrap();
    });
}

#[test]
fn what_is_not_open_is_an_error_or_passed_over() {
    conform(|node| {
        assert!(is_io(node.packs.write(PackNo(1), 0, b"x"), io::ErrorKind::NotFound));
        assert!(is_io(node.packs.seal(PackNo(1), 0), io::ErrorKind::NotFound));
        node.packs.sync(&[PackNo(1), PackNo(2)]).unwrap();
        node.packs.discard(PackNo(1)).unwrap();
        node.filled(1, b"mine");
        assert!(is_io(node.packs.create(PackNo(1)), io::ErrorKind::AlreadyExists));
        assert_eq!(node.read(1, 0, 4).unwrap(), b"mine");
        node.packs.discard(PackNo(1)).unwrap();
        assert_eq!(node.packs.open_packs().unwrap(), []);
        assert!(is_io(node.read(1, 0, 1), io::ErrorKind::NotFound));
        node.packs.sync(&[PackNo(1)]).unwrap();
    });
}

#[test]
fn equal_packs_become_one_blob() {
    conform(|node| {
        let bytes = noise(100_000, 2);
        let ids = [1, 2, 3].map(|no| {
            node.filled(no, &bytes);
            node.packs.seal(PackNo(no), 100_000).unwrap()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
        node.packs.retire(&[PackNo(1), PackNo(2)]).unwrap();
        assert_eq!(node.read(3, 0, 100_000).unwrap(), bytes);
        node.packs.retire(&[PackNo(3)]).unwrap();
        assert_eq!(node.blob(&ids[0], 100_000), bytes);
    });
}

#[test]
fn many_threads_fill_one_pack_and_many_packs() {
    conform(|node| {
        node.filled(1000, b"");
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let own = noise(4096, thread);
                    node.packs.create(PackNo(thread)).unwrap();
                    for i in 0..40u32 {
                        node.packs.write(PackNo(1000), (i * 4 + thread as u32) * 4096, &own).unwrap();
                        node.packs.write(PackNo(thread), i * 4096, &own).unwrap();
                        if i % 10 == thread as u32 {
                            node.packs.sync(&[PackNo(1000), PackNo(thread)]).unwrap();
                        }
                        assert_eq!(node.read(1000, (i * 4 + thread as u32) * 4096, 4096).unwrap(), own);
                    }
                    node.packs.seal(PackNo(thread), 40 * 4096).unwrap();
                    node.packs.retire(&[PackNo(thread)]).unwrap();
                });
            }
        });
        let id = node.packs.seal(PackNo(1000), 160 * 4096).unwrap();
        let expected: Vec<u8> = (0..40).flat_map(|_| (0..4).flat_map(|thread| noise(4096, thread))).collect();
        assert_eq!(node.blob(&id, expected.len()), expected);
    });
}

#[test]
fn a_store_knows_its_room() {
    conform(|node| {
        let space = node.packs.space().unwrap();
        assert!(space.available > 0 && space.available <= space.total, "{space:?}");
    });
}

#[test]
fn a_seal_that_failed_leaves_the_pack_open() {
    for memory in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let faults = Faults::new();
        let inner: Arc<dyn Origin> = Arc::new(InFolder::new(home.path()));
        let origin: Arc<dyn Origin> = Arc::new(FailingOrigin::new(inner, Arc::clone(&faults)));
        let packs: Arc<dyn PackStore> = if memory {
            Arc::new(MemoryPacks::new(Arc::clone(&origin)))
        } else {
            disk(home.path(), Arc::clone(&origin))
        };
        let node = Node { packs, origin, dir: home.path().to_owned() };
        node.filled(1, b"four");
        faults.full_after(3);
        assert!(matches!(node.packs.seal(PackNo(1), 4), Err(BlobError::Full)));
        faults.fail(Op::Store, 1);
        assert!(is_io(node.packs.seal(PackNo(1), 4), io::Error::from_raw_os_error(libc::EIO).kind()));
        assert_eq!(node.read(1, 0, 4).unwrap(), b"four");
        faults.heal();
        let id = node.packs.seal(PackNo(1), 4).unwrap();
        faults.fail(Op::Sync, 1);
        assert!(node.packs.retire(&[PackNo(1)]).is_err());
        assert_eq!(node.read(1, 0, 4).unwrap(), b"four");
        node.packs.retire(&[PackNo(1)]).unwrap();
        assert_eq!(node.blob(&id, 4), b"four");
    }
}

#[test]
fn faults_of_a_store_happen_when_they_are_on_and_only_then() {
    let home = tempfile::tempdir().unwrap();
    let (faults, origin) = (Faults::new(), Arc::new(InMemory::default()));
    let packs: Arc<dyn PackStore> =
        Arc::new(FailingPacks::new(disk(home.path(), Arc::clone(&origin) as _), Arc::clone(&faults)));
    let node = Node { packs, origin, dir: home.path().to_owned() };
    node.filled(1, b"bytes");
    faults.full_after(7);
    node.packs.write(PackNo(1), 5, b"fits").unwrap();
    assert!(matches!(node.packs.write(PackNo(1), 9, b"does not"), Err(BlobError::Full)));
    assert_eq!(node.packs.space().unwrap().available, 3);
    faults.damage(true);
    assert_ne!(node.read(1, 0, 9).unwrap(), b"bytesfits");
    faults.heal();
    assert_eq!(node.read(1, 0, 9).unwrap(), b"bytesfits");
    for op in [Op::Read, Op::Write, Op::Sync, Op::Seal, Op::Retire, Op::Look, Op::Create, Op::Discard] {
        faults.fail(op, 1);
        let results = || {
            [
                node.read(1, 0, 1).is_ok(),
                node.packs.write(PackNo(1), 9, b"x").is_ok(),
                node.packs.sync(&[PackNo(1)]).is_ok(),
                node.packs.open_packs().is_ok(),
                node.packs.create(PackNo(2)).is_ok(),
                node.packs.discard(PackNo(2)).is_ok(),
                node.packs.seal(PackNo(1), 9).is_ok(),
                node.packs.retire(&[]).is_ok(),
            ]
        };
        assert_eq!(results().iter().filter(|ok| !**ok).count(), 1, "{op:?} fails once");
        node.packs.discard(PackNo(2)).unwrap();
        assert!(results().iter().all(|ok| *ok), "{op:?} is over");
    }
    faults.delay(std::time::Duration::from_millis(20));
    let start = base::time::monotonic();
    node.read(1, 0, 1).unwrap();
    assert!(start.elapsed().as_millis() >= 20);
}

#[test]
fn a_crash_leaves_what_was_written() {
    let home = tempfile::tempdir().unwrap();
    let start = || {
        let origin: Arc<dyn Origin> = Arc::new(InFolder::new(home.path()));
        Node { packs: disk(home.path(), Arc::clone(&origin)), origin, dir: home.path().to_owned() }
    };
    let (open, sealed) = (noise(10_000, 1), noise(90_000, 2));
    let before = start();
    before.filled(3, &open);
    before.filled(12, &sealed);
    let id = before.packs.seal(PackNo(12), 90_000).unwrap();
    drop(before);
    for stray in ["notes", "007", "+5", "-1", "99999999999999999999999"] {
        fs::write(home.path().join("open").join(stray), b"").unwrap();
    }

    let node = start();
    assert_eq!(node.packs.open_packs().unwrap(), [(PackNo(3), 10_000), (PackNo(12), 90_000)]);
    assert!(is_io(node.packs.create(PackNo(3)), io::ErrorKind::AlreadyExists));
    assert_eq!(node.read(3, 0, 10_000).unwrap(), open);
    node.packs.sync(&[PackNo(3), PackNo(12)]).unwrap();
    node.packs.write(PackNo(3), 10_000, b"more").unwrap();
    assert_eq!(node.packs.seal(PackNo(12), 90_000).unwrap(), id);
    let other = node.packs.seal(PackNo(3), 10_004).unwrap();
    node.packs.retire(&[PackNo(3), PackNo(12)]).unwrap();
    drop(node);

    let node = start();
    assert_eq!(node.packs.open_packs().unwrap(), []);
    assert_eq!(node.blob(&id, 90_000), sealed);
    assert_eq!(node.blob(&other, 10_004), [&open[..], b"more"].concat());
}

#[test]
fn on_one_filesystem_sealing_writes_no_byte_twice() {
    let home = tempfile::tempdir().unwrap();
    let origin = Arc::new(InFolder::new(home.path()));
    let node = Node {
        packs: disk(home.path(), Arc::clone(&origin) as _),
        origin: Arc::clone(&origin) as _,
        dir: home.path().to_owned(),
    };
    node.filled(1, &noise(500_000, 3));
    let id = node.packs.seal(PackNo(1), 500_000).unwrap();
    let (pack, blob) = (node.dir.join("open/1"), origin.path(&id));
    assert_eq!(fs::metadata(pack).unwrap().ino(), fs::metadata(&blob).unwrap().ino());
    node.packs.retire(&[PackNo(1)]).unwrap();
    assert_eq!(fs::metadata(&blob).unwrap().nlink(), 1);
}

#[test]
fn file_handles_are_bounded() {
    let home = tempfile::tempdir().unwrap();
    let packs = DiskPacks::open(&home.path().join("open"), Arc::new(InMemory::default())).unwrap();
    for no in 0..1500 {
        packs.create(PackNo(no)).unwrap();
        packs.write(PackNo(no), 0, &no.to_le_bytes()).unwrap();
    }
    assert!(packs.handles() <= 512, "{}", packs.handles());
    for no in (0..1500).rev() {
        let mut buf = [0; 8];
        packs.read(PackNo(no), 0, &mut buf).unwrap();
        assert_eq!(buf, no.to_le_bytes());
    }
    packs.sync(&(0..1500).step_by(100).map(PackNo).collect::<Vec<_>>()).unwrap();
    assert!(packs.handles() <= 512, "{}", packs.handles());
}

/// A filesystem of 1 MiB, unmounted at the end.
pub(crate) struct SmallDisk(pub(crate) tempfile::TempDir);

impl SmallDisk {
    pub(crate) fn mount() -> Option<SmallDisk> {
        let disk = tempfile::tempdir().unwrap();
        let done = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "none"])
            .arg(disk.path())
            .output();
        done.is_ok_and(|done| done.status.success()).then(|| SmallDisk(disk))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = base::trial::unmount(self.0.path());
    }
}

#[test]
fn a_full_disk_says_so_and_recovers() {
    let Some(small) = SmallDisk::mount() else {
        return println!("a small filesystem cannot be mounted here (not root): skipped");
    };
    let origin: Arc<dyn Origin> = Arc::new(InFolder::new(small.0.path()));
    let node =
        Node { packs: disk(small.0.path(), Arc::clone(&origin)), origin, dir: small.0.path().to_owned() };
    assert!(node.packs.space().unwrap().total <= MIB);
    node.filled(1, &noise(300_000, 1));
    node.packs.create(PackNo(2)).unwrap();
    assert!(matches!(node.packs.write(PackNo(2), 0, &noise(2 << 20, 2)), Err(BlobError::Full)));
    assert!(node.packs.space().unwrap().available < 64 << 10);
    // Even the sums of the first pack find no room. The pack stays open.
    let mut fill = 3;
    while node.packs.create(PackNo(fill)).and_then(|()| node.packs.write(PackNo(fill), 0, &[1; 4096])).is_ok()
    {
        fill += 1;
    }
    assert!(matches!(node.packs.seal(PackNo(1), 300_000), Err(BlobError::Full)));
    assert_eq!(node.read(1, 0, 300_000).unwrap(), noise(300_000, 1));
    node.packs.discard(PackNo(2)).unwrap();
    let id = node.packs.seal(PackNo(1), 300_000).unwrap();
    node.packs.retire(&[PackNo(1)]).unwrap();
    assert_eq!(node.blob(&id, 300_000), noise(300_000, 1));
}

/// The anonymous memory of this process, in bytes.
fn anonymous_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// Runs itself by name in a child process, so that the memory of other tests is not counted.
#[test]
fn sealed_memory_is_shared_and_goes_back_at_once() {
    const CHILD: &str = "COVEY_TEST_ALONE";
    if std::env::var_os(CHILD).is_none() {
        let me = std::env::current_exe().unwrap();
        let name = "tests::sealed_memory_is_shared_and_goes_back_at_once";
        let child = std::process::Command::new(me)
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    }
    let origin = Arc::new(InMemory::default());
    let packs = MemoryPacks::new(Arc::clone(&origin) as _);
    let before = anonymous_memory();
    let held = || anonymous_memory().saturating_sub(before);
    let (mut stored, mut ids) = (0, Vec::new());
    for no in 0..48u64 {
        // Two full packs, then one that is a third full.
        let size = if no % 3 == 2 { 1_400_000 } else { BLOB_MAX as usize };
        packs.create(PackNo(no)).unwrap();
        (0..size).step_by(100_000).for_each(|at| {
            let bytes = noise(100_000.min(size - at), no * 100 + at as u64);
            packs.write(PackNo(no), at as u32, &bytes).unwrap();
        });
        ids.push(packs.seal(PackNo(no), size as u32).unwrap());
        stored += size as u64;
    }
    assert!(held() <= stored + stored / 20, "{} held for {stored} stored, before retiring", held());
    packs.retire(&(0..48).map(PackNo).collect::<Vec<_>>()).unwrap();
    assert!(held() >= stored && held() <= stored + stored / 20, "{} held for {stored} stored", held());
    ids.iter().for_each(|id| origin.remove(id).unwrap());
    assert!(held() < MIB, "{} held for nothing stored", held());
}

#[derive(Clone, Debug)]
enum Step {
    Write { len: usize },
    Sync,
    Seal { cut: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![0..5000usize, 0..300_000usize];
    prop_oneof![6 => len.prop_map(|len| Step::Write { len }), 1 => Just(Step::Sync), 1 => (0..1000usize).prop_map(|cut| Step::Seal { cut })]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_what_the_origin_gives(steps in prop::collection::vec(step(), 1..40), seed in any::<u64>()) {
        conform(|node| {
            let (mut no, mut model) = (1, Vec::new());
            node.packs.create(PackNo(no)).unwrap();
            for (i, step) in steps.iter().enumerate() {
                match *step {
                    Step::Write { len } => {
                        let bytes = noise(len, seed.wrapping_add(i as u64));
                        node.packs.write(PackNo(no), model.len() as u32, &bytes).unwrap();
                        model.extend_from_slice(&bytes);
                        assert_eq!(node.read(no, 0, model.len()).unwrap(), model);
                    }
                    Step::Sync => node.packs.sync(&[PackNo(no)]).unwrap(),
                    Step::Seal { cut } => {
                        model.truncate(model.len() - cut.min(model.len()));
                        let id = node.packs.seal(PackNo(no), model.len() as u32).unwrap();
                        assert_eq!(node.blob(&id, model.len()), model);
                        node.packs.retire(&[PackNo(no)]).unwrap();
                        assert_eq!(node.blob(&id, model.len()), model);
                        node.origin.verify(&id).unwrap();
                        (no, model) = (no + 1, Vec::new());
                        node.packs.create(PackNo(no)).unwrap();
                    }
                }
            }
            assert_eq!(node.packs.open_packs().unwrap(), [(PackNo(no), model.len() as u64)]);
        });
    }
}

/// `cargo test --release -p covey-cache -- --ignored --nocapture pack_speed`
#[test]
#[ignore = "a measurement"]
fn pack_speed() {
    const PACKS: u64 = 64;
    let bytes = noise(BLOB_MAX as usize, 1);
    let gib = |start: std::time::Instant| PACKS as f64 * 4.0 / 1024.0 / start.elapsed().as_secs_f64();
    conform(|node| {
        let all: Vec<PackNo> = (0..PACKS).map(PackNo).collect();
        let start = base::time::monotonic();
        for no in &all {
            node.packs.create(*no).unwrap();
            node.packs.write(*no, 0, &no.0.to_le_bytes()).unwrap();
            for at in (8..bytes.len()).step_by(128 << 10) {
                let end = bytes.len().min(at + (128 << 10));
                node.packs.write(*no, at as u32, &bytes[at..end]).unwrap();
            }
        }
        println!("  write in pieces of 128 KiB: {:.2} GiB/s", gib(start));
        let start = base::time::monotonic();
        let ids: Vec<BlobId> = all.iter().map(|no| node.packs.seal(*no, BLOB_MAX).unwrap()).collect();
        println!("  seal: {:.2} GiB/s", gib(start));
        let start = base::time::monotonic();
        node.packs.sync(&all).unwrap();
        println!("  sync of {PACKS} packs: {:.2} GiB/s, {:?}", gib(start), start.elapsed());
        let start = base::time::monotonic();
        node.packs.retire(&all).unwrap();
        println!("  retire of {PACKS} packs: {:?}", start.elapsed());
        let mut buf = vec![0; 128 << 10];
        let start = base::time::monotonic();
        for id in &ids {
            (0..BLOB_MAX).step_by(buf.len()).for_each(|at| node.origin.read_at(id, at, &mut buf).unwrap());
        }
        println!("  origin, read_at of 128 KiB: {:.2} GiB/s", gib(start));
        let start = base::time::monotonic();
        for (i, id) in ids.iter().enumerate() {
            for at in (0..BLOB_MAX).step_by(64 << 10) {
                node.origin.read_at(id, at + (i as u32 * 4096) % (60 << 10), &mut buf[..4096]).unwrap();
            }
        }
        println!("  origin, read_at of 4 KiB: {:?} each", start.elapsed() / (PACKS as u32 * 64));
        let start = base::time::monotonic();
        node.packs.create(PackNo(5000)).unwrap();
        (0..1000u32).for_each(|i| node.packs.write(PackNo(5000), i * 4096, &buf[..4096]).unwrap());
        println!("  write of 4 KiB: {:?} each", start.elapsed() / 1000);
        let start = base::time::monotonic();
        (0..1000u32).for_each(|i| node.packs.read(PackNo(5000), i * 4096, &mut buf[..4096]).unwrap());
        println!("  read of 4 KiB from an open pack: {:?} each", start.elapsed() / 1000);
    });
}

/// Damaged bytes in an open pack were served, and sealing gave them a matching name.
#[test]
fn regression_rot_in_an_open_pack_is_neither_served_nor_sealed() {
    let home = tempfile::tempdir().unwrap();
    let origin: Arc<dyn Origin> = Arc::new(InFolder::new(home.path()));
    let mut packs = disk(home.path(), origin.clone());
    let bytes = noise(300_000, 1);
    let no = PackNo(1);
    packs.create(no).unwrap();
    // In pieces of any size and order.
    for (from, to) in [(100_000, 300_000), (0, 700), (700, 50_000), (50_000, 100_000)] {
        let crc = packs.write_summed(no, from, &bytes[from as usize..to]).unwrap();
        assert_eq!(crc, blob::sums::crc32c(&bytes[from as usize..to]));
    }
    packs.sync(&[no]).unwrap();
    let path = home.path().join("open/1");
    let good = fs::read(&path).unwrap();
    let mut rotten = good.clone();
    rotten[150_000] ^= 8;
    fs::write(&path, &rotten).unwrap();
    // In the run that wrote it, and in the next one.
    for run in 0..2 {
        let read = |at: u32, len: usize| {
            let mut buf = vec![0; len];
            packs.read(no, at, &mut buf).map(|()| buf)
        };
        for (at, len) in [(150_000, 1), (149_000, 4096), (0, 300_000), (140_000, 100_000), (131_072, 32_768)]
        {
            assert!(is_io(read(at, len), io::ErrorKind::InvalidData), "{len} bytes at {at}, run {run}");
        }
        // The bytes beside the damage can be read.
        for (at, len) in [(0, 131_072), (300, 4096), (163_840, 136_160), (200_001, 50_000)] {
            assert_eq!(read(at, len).unwrap(), bytes[at as usize..at as usize + len], "run {run}");
        }
        assert!(is_io(packs.seal(no, 300_000), io::ErrorKind::InvalidData));
        assert_eq!(origin.size(&BlobId(*blake3::hash(&rotten).as_bytes())).unwrap(), None);
        drop(packs);
        packs = disk(home.path(), origin.clone());
    }
    fs::write(&path, &good).unwrap();
    assert_eq!(packs.seal(no, 300_000).unwrap().0, *blake3::hash(&bytes).as_bytes());
}

/// After a crash, unsynced bytes have no sum until the log proves them.
#[test]
fn what_is_proven_after_a_crash_is_checked_from_then_on() {
    let home = tempfile::tempdir().unwrap();
    let origin: Arc<dyn Origin> = Arc::new(InMemory::default());
    let bytes = noise(50_000, 2);
    let crc = {
        let packs = disk(home.path(), origin.clone());
        packs.create(PackNo(1)).unwrap();
        packs.write_summed(PackNo(1), 0, &bytes).unwrap()
    };
    let packs = disk(home.path(), origin);
    assert!(!packs.prove(PackNo(1), 0, 50_000, crc ^ 1).unwrap());
    assert!(!packs.prove(PackNo(1), 1, 50_000, crc).unwrap());
    assert!(!packs.prove(PackNo(2), 0, 50_000, crc).unwrap());
    assert!(packs.prove(PackNo(1), 0, 50_000, crc).unwrap());
    let path = home.path().join("open/1");
    let mut rotten = fs::read(&path).unwrap();
    rotten[40_000] ^= 1;
    fs::write(&path, rotten).unwrap();
    let mut buf = [0; 100];
    assert!(is_io(packs.read(PackNo(1), 39_950, &mut buf), io::ErrorKind::InvalidData));
    packs.read(PackNo(1), 0, &mut buf).unwrap();
}
