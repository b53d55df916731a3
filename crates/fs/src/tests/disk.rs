//! The volume on a disk: after a kill, everything that was acknowledged is there.

use std::path::Path;

use base::size::MIB;
use meta::Journal;

use super::*;
use crate::fsck::{self, Callbacks, Depth};

/// A folder that holds everything a volume stores on a disk.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    fn new() -> Disk {
        let disk = Disk { dir: tempfile::tempdir().unwrap() };
        origin::Folder::format(&disk.path().join("blobs"), "of-a-test").unwrap();
        std::fs::create_dir(disk.path().join("meta")).unwrap();
        let (parts, journal) = disk.parts();
        Volume::format(&parts, &FormatRequest::default()).unwrap();
        journal.close().unwrap();
        disk
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn parts(&self) -> (Parts, Arc<Journal>) {
        let kept = origin::Folder::open(&self.path().join("blobs"), origin::Access::ReadWrite).unwrap();
        let origin: Arc<dyn Origin> = Arc::new(kept);
        let packs = cache::DiskPacks::open(&self.path().join("open"), origin.clone()).unwrap();
        let packs: Arc<dyn PackStore> = Arc::new(packs);
        let options = meta::journal::Options { background: false, ..Default::default() };
        let (journal, _) = Journal::open(&self.path().join("meta"), packs.clone(), options).unwrap();
        let journal = Arc::new(journal);
        (
            Parts { store: journal.clone(), packs, source: Arc::new(OriginSource(origin.clone())), origin },
            journal,
        )
    }

    fn open(&self) -> (Volume, Arc<Journal>) {
        self.open_with(Options { commit: Duration::from_millis(100), ..Options::default() })
    }

    fn open_with(&self, options: Options) -> (Volume, Arc<Journal>) {
        let (parts, journal) = self.parts();
        (Volume::open(parts, options).unwrap(), journal)
    }

    fn stored(&self) -> u64 {
        fn size(path: &Path) -> u64 {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries
                .map(
                    |e| if e.path().is_dir() { size(&e.path()) } else { e.metadata().map_or(0, |m| m.len()) },
                )
                .sum()
        }
        size(&self.path().join("blobs")) + size(&self.path().join("open"))
    }

    fn check(&self) {
        let (parts, _journal) = self.parts();
        let mut findings = Vec::new();
        let mut callbacks = Callbacks { found: &mut |finding| findings.push(finding), progress: &mut |_| {} };
        fsck::check(&parts, Depth::Full, &mut callbacks).unwrap();
        findings.retain(|finding| !finding.is_harmless());
        assert_eq!(findings, []);
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_at_any_moment() {
    let disk = Disk::new();
    let mut model: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..8u64 {
        let (v, journal) = disk.open();
        for (name, bytes) in &model {
            let attr = v.resolve(name.as_bytes(), true).unwrap();
            assert!(v.get(attr.ino) == *bytes, "{name} in round {round}");
        }
        for n in 0..30u64 {
            let name = format!("r{round}n{n}");
            let f = v.file(Ino::ROOT, &name);
            let mut bytes = noise(round * 100 + n, [100, 700, 40_000, MIB as usize][(n % 4) as usize]);
            v.put(f, 0, &bytes);
            v.put(f, 50, &noise(n, 600));
            let len = bytes.len().max(650);
            bytes.resize(len, 0);
            bytes[50..650].copy_from_slice(&noise(n, 600));
            model.push((name, bytes));
            if n % 7 == 0 && model.len() > 3 {
                let (gone, _) = model.remove((round * 13 + n) as usize % (model.len() - 2));
                v.unlink(Ino::ROOT, gone.as_bytes()).unwrap();
                v.unmounted();
            }
            if n == 20 {
                v.core.packs.close_all();
            }
        }
        if round % 2 == 0 {
            v.sync().unwrap();
        }
        if round % 4 == 3 {
            std::thread::sleep(Duration::from_millis(700));
        }
        drop(v);
        drop(journal);
        disk.check();
    }
    let (v, journal) = disk.open();
    for name in v.names(Ino::ROOT).iter().filter(|name| !name.starts_with('.')) {
        v.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    }
    eventually("all is gone", || {
        v.core.packs.close_all();
        disk.stored() < 4096
    });
    v.close().unwrap();
    journal.close().unwrap();
}

/// Every byte is written once: the pack's file becomes the blob.
#[test]
fn sealing_writes_nothing_twice() {
    let disk = Disk::new();
    let (v, journal) = disk.open();
    let f = v.file(Ino::ROOT, "f");
    for n in 0..32 {
        v.put(f, n * MIB, &noise(n, MIB as usize));
    }
    v.close().unwrap();
    journal.close().unwrap();
    let stored = disk.stored();
    assert!(stored < 32 * MIB + MIB / 4, "{stored}");
    assert_eq!(v.stats().unwrap().written_bytes, 32 * MIB);
    drop(v);
    drop(journal);
    disk.check();
}

#[test]
fn a_flipped_bit_on_the_disk_is_an_error_and_fsck_names_the_file() {
    let disk = Disk::new();
    let (v, journal) = disk.open();
    let f = v.file(Ino::ROOT, "f");
    for n in 0..4 {
        v.put(f, n * MIB, &noise(n, MIB as usize));
    }
    v.close().unwrap();
    journal.close().unwrap();
    drop((v, journal));
    let (parts, _journal) = disk.parts();
    let mut id = None;
    parts
        .origin
        .list(&mut |found, _| {
            id = Some(found);
            false
        })
        .unwrap();
    let hex = id.unwrap().to_string();
    let blob = disk.path().join("blobs").join(&hex[..2]).join(&hex);
    let mut bytes = std::fs::read(&blob).unwrap();
    bytes[2_000_000] ^= 4;
    std::fs::write(&blob, &bytes).unwrap();
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = lines.clone();
    let report: crate::volume::Report = Arc::new(move |line| sink.lock().push(line.to_owned()));
    let v = Volume::open(parts.clone(), Options { report, ..Options::default() }).unwrap();
    let mut buf = vec![0; 4096];
    assert_eq!(v.read(f, 2_000_000 - 100, &mut buf), Err(Errno::EIO));
    assert_eq!(v.read(f, 0, &mut buf), Ok(4096));
    assert!(buf == noise(0, MIB as usize)[..4096]);
    assert!(lines.lock().iter().any(|line| line.contains("damaged")), "{:?}", lines.lock());
    drop(v);
    let mut findings = Vec::new();
    let mut callbacks = Callbacks { found: &mut |finding| findings.push(finding), progress: &mut |_| {} };
    fsck::check(&parts, Depth::Full, &mut callbacks).unwrap();
    assert!(
        matches!(&findings[..], [fsck::Finding::DamagedBlob { files, .. }] if files[0].path.as_deref() == Some("/f")),
        "{findings:?}"
    );
}

/// Flips a bit of these bytes in a file of this folder.
fn rot(dir: &Path, bytes: &[u8]) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let mut all = std::fs::read(&path).unwrap();
        if let Some(at) = all.windows(64).position(|window| window == &bytes[..64]) {
            all[at + 20] ^= 1;
            std::fs::write(&path, all).unwrap();
            return;
        }
    }
    panic!("no file of {} holds these bytes", dir.display());
}

/// A file equal to one whose blob had rotted used to be stored as a reference to the rot. A blob that is
/// stored again under its name replaces the rotted one.
#[test]
fn regression_a_blob_that_rotted_is_no_target_and_is_replaced() {
    // Alone in its blob, and together with others.
    for alone in [true, false] {
        let disk = Disk::new();
        let (v, journal) = disk.open();
        let body = noise(1, 3000);
        let f = v.file(Ino::ROOT, "f");
        v.put(f, 0, &body);
        if !alone {
            let other = v.file(Ino::ROOT, "other");
            v.put(other, 0, &noise(2, 3000));
        }
        v.close().unwrap();
        journal.close().unwrap();
        drop((v, journal));
        let mut folder = std::path::PathBuf::new();
        let (parts, journal) = disk.parts();
        let mut found = |id: base::BlobId, _| {
            folder = disk.path().join("blobs").join(&id.to_string()[..2]);
            true
        };
        parts.origin.list(&mut found).unwrap();
        drop((parts, journal));
        rot(&folder, &body);
        let (v, journal) = disk.open();
        let mut buf = [0; 3000];
        assert_eq!(v.read(f, 0, &mut buf), Err(Errno::EIO));
        let g = v.file(Ino::ROOT, "g");
        v.put(g, 0, &body);
        assert!(v.get(g) == body && v.get(f) == body);
        v.close().unwrap();
        journal.close().unwrap();
        drop((v, journal));
        let (v, journal) = disk.open();
        assert!(v.get(g) == body && v.get(f) == body);
        drop((v, journal));
        if alone {
            disk.check();
        }
    }
}

/// Rot in an open pack used to be served, by the run that wrote it and by the next one, and sealing made it
/// the content of a blob.
#[test]
fn regression_rot_in_an_open_pack_is_an_error_and_the_rest_of_it_is_sealed() {
    for again in [false, true] {
        let disk = Disk::new();
        let hour = Duration::from_secs(3600);
        let (mut v, mut journal) = disk.open_with(Options { seal_small: hour, ..Options::default() });
        let (bad, good) = (noise(1, 5000), noise(2, 60_000));
        let f = v.file(Ino::ROOT, "bad");
        v.put(f, 0, &bad);
        let g = v.file(Ino::ROOT, "good");
        v.put(g, 0, &good);
        // Drains the log into the packs and the database, so that only the sums can detect the rot.
        v.sync().unwrap();
        journal.drain().unwrap();
        if again {
            drop((v, journal));
            rot(&disk.path().join("open"), &bad);
            let mut findings = Vec::new();
            let mut callbacks =
                Callbacks { found: &mut |finding| findings.push(finding), progress: &mut |_| {} };
            fsck::check(&disk.parts().0, Depth::Sums, &mut callbacks).unwrap();
            findings.retain(|finding| !finding.is_harmless());
            let named = |files: &[fsck::FileRange]| files[0].path.as_deref() == Some("/bad");
            assert!(
                matches!(&findings[..], [fsck::Finding::DamagedOpenPack { files, .. }] if named(files)),
                "{findings:?}"
            );
            (v, journal) = disk.open();
        } else {
            rot(&disk.path().join("open"), &bad);
        }
        let mut buf = vec![0; 5000];
        assert_eq!(v.read(f, 0, &mut buf), Err(Errno::EIO));
        v.core.packs.close_all();
        eventually("what can be read of it is a blob", || {
            v.core.packs.close_all();
            v.core.packs.any_quarantined().is_some() && v.core.packs.all_sealed()
        });
        assert_eq!(v.read(f, 0, &mut buf), Err(Errno::EIO));
        // The first segment is lost with the file. The bytes behind it are not.
        let mut tail = vec![0; 20_000];
        assert_eq!(v.read(g, 40_000, &mut tail), Ok(20_000));
        assert!(tail == good[40_000..]);
        assert!(v.seal_now(Duration::from_secs(5)).is_err(), "not everything is in the origin");
        // Both are whole after they are written again.
        for (name, body) in [("bad", &bad), ("good", &good)] {
            v.unlink(Ino::ROOT, name.as_bytes()).unwrap();
            let f = v.file(Ino::ROOT, name);
            v.put(f, 0, body);
            assert!(v.get(f) == *body);
        }
        v.unmounted();
        eventually("nothing of it is left", || v.core.packs.any_quarantined().is_none());
        v.close().unwrap();
        journal.close().unwrap();
        drop((v, journal));
        disk.check();
    }
}

/// A power cut between sealing and retiring may leave half of a blob under its name. The open pack still
/// exists, and is trusted.
#[test]
fn regression_half_a_blob_that_a_power_cut_left_is_replaced() {
    let disk = Disk::new();
    let (v, journal) = disk.open();
    let f = v.file(Ino::ROOT, "f");
    v.put(f, 0, &noise(1, MIB as usize));
    // Seals the pack and flushes its row, and stops there.
    v.core.stopping.store(true, std::sync::atomic::Ordering::SeqCst);
    v.core.sweep.stop();
    eventually("the threads rest", || v.core.seal_all().is_ok() && v.core.packs.all_sealed());
    v.sync().unwrap();
    drop((v, journal));
    let mut blobs = Vec::new();
    let (parts, journal) = disk.parts();
    parts
        .origin
        .list(&mut |id, _| {
            blobs.push(id.to_string());
            true
        })
        .unwrap();
    assert_eq!((blobs.len(), parts.packs.open_packs().unwrap().len()), (1, 1));
    drop((parts, journal));
    let blob = disk.path().join("blobs").join(&blobs[0][..2]).join(&blobs[0]);
    let half = std::fs::read(&blob).unwrap()[..MIB as usize / 2].to_vec();
    std::fs::remove_file(&blob).unwrap();
    std::fs::write(&blob, half).unwrap();
    disk.check();
    // A read-only mount reads it, too.
    let (parts, journal) = disk.parts();
    let v = Volume::open(parts, Options { read_only: true, ..Options::default() }).unwrap();
    assert!(v.get(f) == noise(1, MIB as usize));
    drop((v, journal));
    let (v, journal) = disk.open();
    assert!(v.get(f) == noise(1, MIB as usize));
    eventually("it is whole again", || v.core.parts.packs.open_packs().unwrap().is_empty());
    assert!(v.get(f) == noise(1, MIB as usize));
    drop((v, journal));
    disk.check();
}
