//! Damage of a log: what was synced is never lost silently. Opening refuses and changes nothing. Salvage
//! recovers what comes before the damage, keeps a copy of the log, and says what is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use base::PackNo;
use blob::PackStore;
use meta::journal::damage::Damage;
use meta::journal::disk::sim::SimDisk;
use meta::journal::format::{self, SEGMENT_HEADER};
use meta::journal::{Journal, Options, Recovered};
use meta::store::StoreError;
use meta::{Key, MetaStore, PackRow};
use tempfile::TempDir;

use crate::support::{self, Dice, SimPacks, put, range};

type Files = BTreeMap<String, Vec<u8>>;

fn options(salvage: Option<&Path>) -> Options {
    Options {
        background: false,
        segment_bytes: 8 << 10,
        log_bytes: 256 << 10,
        inline_bytes: 1000,
        salvage: salvage.map(Path::to_owned),
        ..Options::default()
    }
}

fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// A log of many synced operations that a kill left, and its contents.
struct Synced {
    folder: TempDir,
    files: Files,
    packs: SimPacks,
    /// Operations.
    count: u64,
}

/// Operation `n` writes the rows `count` and `n`. If `each` is set, every one is flushed singly; otherwise
/// all are flushed at the end.
fn synced(count: u64, wide: usize, each: bool) -> Synced {
    let (folder, disk, packs) = (folder(), Arc::new(SimDisk::new()), Arc::new(SimPacks::default()));
    packs.create(PackNo(1)).unwrap();
    let (journal, _) = Journal::open_on(folder.path(), disk.clone(), packs.clone(), options(None)).unwrap();
    for n in 1..=count {
        let mut commit = put("count", n.to_be_bytes());
        commit.puts.push((support::key(format!("row {n:04}")), support::value(vec![n as u8; wide])));
        if n == 1 {
            commit.puts.push((Key::pack(PackNo(1)), PackRow::Open.encode()));
        }
        if n % 3 == 0 {
            commit.fresh = vec![packs.fresh(1, &vec![n as u8; 50 + n as usize])];
        }
        journal.commit(commit).unwrap();
        if each || n == count {
            journal.flush().unwrap();
        }
    }
    drop(journal);
    let files = disk.contents();
    Synced { folder, files, packs: packs.after_kill(), count }
}

struct Opened {
    disk: Arc<SimDisk>,
    outcome: Result<(Journal, Recovered), StoreError>,
    _folder: TempDir,
}

impl Synced {
    fn open(&self, files: &Files, packs: &SimPacks, salvage: Option<&Path>) -> Opened {
        let to = folder();
        for name in ["names.db", "names.db-wal"] {
            if self.folder.path().join(name).exists() {
                std::fs::copy(self.folder.path().join(name), to.path().join(name)).unwrap();
            }
        }
        let disk = Arc::new(SimDisk::with_contents(files.clone()));
        let outcome =
            Journal::open_on(to.path(), disk.clone(), Arc::new(packs.after_kill()), options(salvage));
        Opened { disk, outcome, _folder: to }
    }

    /// Opens a damaged log. If it is refused, nothing may have changed, and salvage has to account for every
    /// operation. If it opens, all operations must be there.
    fn check_not_lost_silently(&self, files: &Files, packs: &SimPacks, what: &str) -> Option<Damage> {
        let opened = self.open(files, packs, None);
        match opened.outcome {
            Ok((journal, recovered)) => {
                assert_eq!(rows(&journal), self.count, "{what}: {recovered:?}");
                None
            }
            Err(StoreError::DamagedLog(why)) => {
                assert_eq!(opened.disk.contents(), *files, "{what}: {why}");
                Some(self.salvage(files, packs, what))
            }
            Err(other) => panic!("{what}: {other}"),
        }
    }

    fn salvage(&self, files: &Files, packs: &SimPacks, what: &str) -> Damage {
        let copies = folder();
        let to = copies.path().join("log");
        let opened = self.open(files, packs, Some(&to));
        let (journal, recovered) = opened.outcome.unwrap();
        let damage = recovered.damage.expect(what);
        let there = rows(&journal);
        assert_eq!(there, damage.sound, "{what}: {damage:?}");
        let accounted = there + damage.readable + damage.unreadable;
        assert!(accounted >= self.count, "{what}: {there} of {} are there, {damage:?}", self.count);
        for (name, bytes) in files {
            assert_eq!(&std::fs::read(to.join(name)).unwrap(), bytes, "{what}: the copy of {name}");
        }
        // The volume works, and nothing that was given up comes back.
        journal.commit(put("count", (there + 1).to_be_bytes())).unwrap();
        journal.commit(put(format!("row {:04}", there + 1), "new")).unwrap();
        journal.flush().unwrap();
        drop(journal);
        let again = Journal::open_on(
            opened._folder.path(),
            Arc::new(opened.disk.after_kill()),
            Arc::new(packs.after_kill()),
            options(None),
        );
        assert_eq!(rows(&again.unwrap().0), there + 1, "{what}");
        damage
    }
}

/// How many operations there are. They must be exactly the first ones.
fn rows(journal: &Journal) -> u64 {
    let rows = journal.scan(&range("row ", "row!"), 10_000).unwrap();
    let count = journal.get(&support::key("count")).unwrap();
    let count = count.map_or(0, |count| u64::from_be_bytes((*count).try_into().unwrap()));
    let names: Vec<String> =
        rows.iter().map(|(key, _)| String::from_utf8(key.as_bytes().to_vec()).unwrap()).collect();
    assert_eq!(names, (1..=count).map(|n| format!("row {n:04}")).collect::<Vec<_>>());
    count
}

/// Length of a file up to its last non-zero byte.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}

/// A log was synced 200 times and then killed. One bit early in it had flipped. 12 of 200 operations were
/// left, and no error was reported.
#[test]
fn regression_a_flipped_bit_early_in_a_synced_log_is_damage() {
    let world = synced(200, 40, true);
    let (name, _) = world.files.iter().find(|(_, bytes)| used(bytes) > 0).unwrap();
    let mut files = world.files.clone();
    files.get_mut(name).unwrap()[SEGMENT_HEADER as usize + 1000] ^= 4;
    let opened = world.open(&files, &world.packs, None);
    let Err(StoreError::DamagedLog(why)) = opened.outcome else { panic!("it was opened") };
    assert!(why.contains("is damaged or missing") && why.contains("synced up to"), "{why}");
    let damage = world.check_not_lost_silently(&files, &world.packs, "early").unwrap();
    assert!(damage.sound > 0 && damage.readable > 150 && damage.unreadable == 1, "{damage:?}");
    let lost: BTreeSet<_> = damage.rows.iter().map(|row| row.key.clone()).collect();
    assert!(lost.contains(&support::key("row 0200")) && lost.contains(&support::key("count")));
}

/// Every bit of a synced log is flipped once: all operations are there, or opening refuses and salvage
/// accounts for each of them.
#[test]
fn regression_no_flipped_bit_loses_what_was_synced_in_silence() {
    let world = synced(24, 700, false);
    assert!(world.files.values().filter(|bytes| used(bytes) > 0).count() >= 3, "several segments");
    let mut refused = 0;
    let mut dice = Dice(11);
    for (name, bytes) in &world.files {
        let mut at = 0;
        while at < used(bytes) {
            let mut files = world.files.clone();
            files.get_mut(name).unwrap()[at] ^= 1 << dice.below(8);
            let what = format!("{name} at {at}");
            refused += u64::from(world.check_not_lost_silently(&files, &world.packs, &what).is_some());
            // The headers of segments and the first record byte by byte, then in steps.
            at += match at {
                0..60 => 1,
                60..4090 => 1009,
                4090..4140 => 1,
                _ => 23,
            };
        }
    }
    assert!(refused > 20, "only {refused} were refused");
}

/// A lost block of the log, header, segment or file is damage, never a shorter log.
#[test]
fn regression_a_lost_block_or_segment_is_damage() {
    let world = synced(60, 300, true);
    let mut dice = Dice(5);
    let mut segments: Vec<(u64, String)> = world
        .files
        .iter()
        .filter_map(|(name, bytes)| Some((format::peek(bytes.get(4096..)?)?.1, name.clone())))
        .collect();
    segments.sort();
    assert!(segments.len() >= 4);
    for (n, (_, name)) in segments.iter().enumerate() {
        let is_last = n + 1 == segments.len();
        for (from, to) in [(0, 4096), (4096, 8192), (0, 8192)] {
            let mut files = world.files.clone();
            let bytes = files.get_mut(name).unwrap();
            bytes[from..to].iter_mut().for_each(|byte| *byte = dice.roll() as u8);
            let what = format!("{name}, bytes {from} to {to}");
            if !is_last {
                let damage = world.check_not_lost_silently(&files, &world.packs, &what);
                // A header holds nothing that its records do not.
                assert_eq!(damage.is_some(), to > 4096, "{what}");
            } else if from == 0 && to == 4096 {
                assert!(world.check_not_lost_silently(&files, &world.packs, &what).is_none());
            }
        }
        let mut files = world.files.clone();
        files.remove(name);
        if !is_last {
            assert!(world.check_not_lost_silently(&files, &world.packs, name).is_some(), "{name} is gone");
        }
    }
}

/// Bytes of an open pack were synced and have changed since: the log's commits reveal it.
#[test]
fn regression_synced_data_that_rotted_is_damage() {
    let world = synced(30, 10, false);
    let rotted = world.packs.after_kill();
    rotted.write(PackNo(1), 5, &[0xFF]).unwrap();
    let healed = world.check_not_lost_silently(&world.files, &rotted, "the log has these bytes, too");
    let large = {
        let world = synced(60, 10, false);
        let rotted = world.packs.after_kill();
        rotted.write(PackNo(1), 5, &[0xFF]).unwrap();
        world.check_not_lost_silently(&world.files, &rotted, "only the pack has them").unwrap()
    };
    assert_eq!(healed, None);
    assert!(large.broken.is_none() && large.ranges.len() == 1 && large.readable == 0, "{large:?}");
    assert_eq!(large.sound, 60);
}

/// A user's data may look like a log: this one's, or another volume's, also with future sequence numbers.
#[test]
fn bytes_that_look_like_records_confuse_nothing() {
    let world = synced(20, 200, true);
    let files = world.files.clone();
    let (_, source) = files.iter().find(|(_, bytes)| used(bytes) > 5000).unwrap();
    let copied = source[4096..4096 + 3000].to_vec();
    let (folder, disk) = (folder(), Arc::new(SimDisk::new()));
    let packs = Arc::new(SimPacks::default());
    let (journal, _) = Journal::open_on(folder.path(), disk.clone(), packs.clone(), options(None)).unwrap();
    journal.commit(put("count", 1u64.to_be_bytes())).unwrap();
    journal.commit(put("row 0001", copied)).unwrap();
    journal.flush().unwrap();
    drop(journal);
    // The tail is torn where the copy lies. The copy's records have higher numbers, valid checksums, and
    // marks.
    let mut torn = disk.contents();
    for bytes in torn.values_mut().filter(|bytes| used(bytes) > 5000) {
        bytes[4096 + 60] ^= 1;
    }
    let left = Journal::open_on(folder.path(), Arc::new(SimDisk::with_contents(torn)), packs, options(None));
    match left {
        Err(StoreError::DamagedLog(why)) => assert!(why.contains("0 behind it can be read"), "{why}"),
        other => panic!("{:?}", other.map(|(_, recovered)| recovered)),
    }
}
