//! A kill, a power cut, or a torn or damaged log leaves a prefix of the commits. The prefix includes the last
//! flush, and no row mentions missing bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::{BlobId, PackNo};
use blob::PackStore;
use meta::journal::disk::LogDisk;
use meta::journal::disk::sim::SimDisk;
use meta::journal::format::{self, Found, FoundHeader, Kind, Place, SegmentHeader};
use meta::journal::{Journal, Options, Recovered};
use meta::store::{CommitError, FreshData, StoreError};
use meta::{Commit, Key, MetaStore, PackRow, Value};
use tempfile::TempDir;

use crate::support::{Dice, SimPacks, key, put, range, value};

type State = BTreeMap<Key, Value>;

fn options() -> Options {
    Options {
        background: false,
        segment_bytes: 8 << 10,
        log_bytes: 256 << 10,
        inline_bytes: 1000,
        ..Options::default()
    }
}

/// In memory if the machine has such a folder: this does not test SQLite's syncs.
fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn copy(from: &Path) -> TempDir {
    let to = folder();
    for name in ["names.db", "names.db-wal"] {
        if from.join(name).exists() {
            fs::copy(from.join(name), to.path().join(name)).unwrap();
        }
    }
    to
}

/// A volume with everything under it, and its expected states.
struct World {
    folder: TempDir,
    disk: Arc<SimDisk>,
    packs: Arc<SimPacks>,
    journal: Option<Journal>,
    recovered: Recovered,
    /// The expected rows after each number of commits.
    states: Vec<State>,
    /// How many commits were flushed.
    flushed: usize,
    /// The pack that receives writes.
    pack: u64,
}

impl World {
    fn new() -> World {
        let world = World {
            folder: folder(),
            disk: Arc::default(),
            packs: Arc::default(),
            journal: None,
            recovered: Recovered::default(),
            states: vec![State::new()],
            flushed: 0,
            pack: 0,
        };
        let mut world = world.opened();
        world.new_pack();
        world
    }

    fn opened(mut self) -> World {
        let (journal, recovered) =
            Journal::open_on(self.folder.path(), self.disk.clone(), self.packs.clone(), options()).unwrap();
        self.journal = Some(journal);
        self.recovered = recovered;
        self
    }

    /// The world after a crash: the same history, on what the crash left.
    fn left(&self, disk: SimDisk, packs: SimPacks) -> World {
        World {
            folder: copy(self.folder.path()),
            disk: Arc::new(disk),
            packs: Arc::new(packs),
            journal: None,
            recovered: Recovered::default(),
            states: self.states.clone(),
            flushed: self.flushed,
            pack: self.pack,
        }
        .opened()
    }

    fn journal(&self) -> &Journal {
        self.journal.as_ref().unwrap()
    }

    fn commit(&mut self, commit: Commit) {
        let mut state = self.states.last().unwrap().clone();
        for (key, value) in &commit.puts {
            state.insert(key.clone(), value.clone());
        }
        for key in &commit.dels {
            state.remove(key);
        }
        self.journal().commit(commit).unwrap();
        self.states.push(state);
    }

    fn new_pack(&mut self) {
        self.pack += 1;
        self.packs.create(PackNo(self.pack)).unwrap();
        let row = (Key::pack(PackNo(self.pack)), PackRow::Open.encode());
        self.step(vec![row], vec![]);
    }

    fn seal_and_retire(&mut self) {
        let pack = PackNo(self.pack);
        let row = PackRow::Sealed { blob: BlobId([1; 32]), size: 1 };
        self.step(vec![(Key::pack(pack), row.encode())], vec![]);
        self.flush();
        self.packs.retire(&[pack]).unwrap();
        self.new_pack();
    }

    /// A commit whose rows say which commit it is.
    fn step(&mut self, rows: Vec<(Key, Value)>, fresh: Vec<FreshData>) {
        let n = self.states.len() as u64;
        let mut puts = rows;
        puts.push((key("count"), value(n.to_be_bytes())));
        puts.push((key(format!("some {}", n % 5)), value(n.to_be_bytes())));
        puts.extend(fresh.iter().map(|data| (key(format!("uses {}", n % 9)), encode_fresh(data))));
        let dels = if n.is_multiple_of(4) { vec![key(format!("uses {}", (n + 3) % 9))] } else { vec![] };
        self.commit(Commit { puts, dels, fresh, ..Commit::default() });
    }

    fn write(&mut self, len: usize) {
        let n = self.states.len();
        let data = self.packs.fresh(self.pack, &vec![n as u8 | 1; len]);
        self.step(vec![], vec![data]);
    }

    fn flush(&mut self) {
        self.journal().flush().unwrap();
        self.flushed = self.states.len() - 1;
    }

    fn drain(&mut self) {
        self.journal().drain().unwrap();
        self.flushed = self.states.len() - 1;
    }

    /// How many commits there are. Panics unless the rows are exactly those after that many, and every
    /// mentioned byte exists.
    fn prefix(&self) -> usize {
        let rows = self.journal().scan(&range([], [0xFF; 300]), usize::MAX).unwrap();
        let count = self.journal().get(&key("count")).unwrap();
        let count = count.map_or(0, |n| u64::from_be_bytes((*n).try_into().unwrap())) as usize;
        let expected: Vec<_> = self.states[count].clone().into_iter().collect();
        assert_eq!(rows, expected, "the rows are not those after {count} commits");
        for (row, row_value) in rows.iter().filter(|(row, _)| row.as_bytes().starts_with(b"uses")) {
            let data = decode_fresh(row_value);
            let sealed = self.journal().get(&Key::pack(data.pack)).unwrap() != Some(PackRow::Open.encode());
            assert!(sealed || self.packs.holds(&data), "{row:?} mentions bytes that are not there: {data:?}");
            // Recovered rows are in SQLite, so their bytes must not depend on the log any more.
            assert!(
                sealed || self.packs.holds_durably(&data),
                "{row:?} mentions bytes that a power cut can lose"
            );
        }
        count
    }

    /// After a power cut at least the flushed commits are there. Truncates the history to what is left, so
    /// that the run can continue.
    fn survives(&mut self, at_least: usize) -> usize {
        let count = self.prefix();
        assert!(count >= at_least, "{count} commits are left of at least {at_least}: {:?}", self.recovered);
        self.states.truncate(count + 1);
        self.flushed = count;
        self.packs.create_if_gone(self.pack);
        count
    }
}

impl SimPacks {
    fn create_if_gone(&self, pack: u64) {
        if !self.open_packs().unwrap().iter().any(|(there, _)| there.0 == pack) {
            self.create(PackNo(pack)).unwrap();
        }
    }
}

fn encode_fresh(data: &FreshData) -> Value {
    let words = [data.offset, data.len, data.crc].map(u32::to_be_bytes).concat();
    value([&data.pack.0.to_be_bytes()[..], &words].concat())
}

fn decode_fresh(row_value: &[u8]) -> FreshData {
    let word = |at: usize| u32::from_be_bytes(row_value[at..at + 4].try_into().unwrap());
    let pack = PackNo(u64::from_be_bytes(row_value[..8].try_into().unwrap()));
    FreshData { pack, offset: word(8), len: word(12), crc: word(16) }
}

/// One random step of a script.
fn act(world: &mut World, dice: &mut Dice) {
    match dice.below(20) {
        0..=5 => world.write(1 + dice.below(300) as usize),
        6 => world.write(5000),
        7..=13 => world.step(vec![], vec![]),
        14..=16 => world.flush(),
        17 => world.drain(),
        18 => world.seal_and_retire(),
        _ => world.new_pack(),
    }
}

fn cut_power(world: &World, dice: &mut Dice, share: u64) -> World {
    let (mut log, mut data) = (Dice(dice.roll() | 1), Dice(dice.roll() | 1));
    let disk = world.disk.after_power_cut(|| log.below(100) < share);
    let packs = world.packs.after_power_cut(|| data.below(100) < share);
    world.left(disk, packs)
}

/// After any crash the volume equals a prefix of its commits: all of them after a kill, and at least the
/// flushed ones after a power cut. No row mentions missing bytes. Repeated, each run continuing from what the
/// last one left.
#[test]
fn a_crash_leaves_a_prefix() {
    for seed in 1..=60u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut world = World::new();
        for _life in 0..6 {
            for _ in 0..dice.below(25) {
                act(&mut world, &mut dice);
            }
            let committed = world.states.len() - 1;
            world.journal = None;
            if dice.below(3) == 0 {
                world = world.left(world.disk.after_kill(), world.packs.after_kill());
                assert_eq!(world.survives(committed), committed, "seed {seed}");
                assert_eq!(world.recovered.cut, 0, "seed {seed}");
            } else {
                let share = [0, 50, 90, 100][dice.below(4) as usize];
                world = cut_power(&world, &mut dice, share);
                let flushed = world.flushed;
                let left = world.survives(flushed);
                println!("seed {seed}: {left} of {committed}, {flushed} flushed, {:?}", world.recovered);
            }
        }
    }
}

/// Where each record of the log begins: file, offset, and the record's kind.
fn records(disk: &SimDisk) -> Vec<(String, usize, Kind)> {
    let mut segments: Vec<(SegmentHeader, String, Vec<u8>)> = Vec::new();
    for (name, bytes) in disk.contents() {
        if let FoundHeader::Good(header) = SegmentHeader::decode(&bytes) {
            segments.push((header, name, bytes));
        }
    }
    segments.sort_by_key(|(header, ..)| header.segment);
    let mut records = Vec::new();
    for (header, name, bytes) in segments {
        let (mut at, mut seq) = (format::SEGMENT_HEADER as usize, header.first_seq);
        while let Found::Record(kind, payload) =
            format::find(&bytes[at..], Place { segment: header.segment, seq, key: header.key() })
        {
            records.push((name.clone(), at, kind));
            at += format::RECORD_HEADER + payload.len();
            seq += 1;
        }
    }
    records
}

/// Enough commits for several segments, and none of them drained.
fn long_log() -> World {
    let mut world = World::new();
    for n in 0..24 {
        world.write(100 + n);
        world.step(vec![(key(format!("big {n}")), value(vec![n as u8; 1500]))], vec![]);
        if n % 5 == 4 {
            world.flush();
        }
    }
    world.journal = None;
    world
}

/// The log without record `n` and everything after it.
fn cut_at(disk: &SimDisk, records: &[(String, usize, Kind)], n: usize) -> SimDisk {
    let mut contents = disk.contents();
    for (name, at, _) in &records[n..] {
        contents.get_mut(name).unwrap()[*at..].fill(0);
    }
    SimDisk::with_contents(contents)
}

/// The log cut at every record: exactly the commits before it are left.
#[test]
fn the_log_cut_at_every_record() {
    let world = long_log();
    let records = records(&world.disk);
    let segments: std::collections::BTreeSet<_> = records.iter().map(|(name, ..)| name).collect();
    assert!(segments.len() >= 3, "the log has {} segments", segments.len());
    let mut commits = 0;
    for (n, (.., kind)) in records.iter().enumerate() {
        let left = world.left(cut_at(&world.disk, &records, n), world.packs.after_kill());
        assert_eq!(left.prefix(), commits, "cut at record {n}");
        commits += usize::from(*kind == Kind::Commit);
    }
    assert_eq!(commits, world.states.len() - 1);
}

/// The log lost from any byte on, or with one bit flipped in what was not synced: a prefix is left, and the
/// log can be continued.
#[test]
fn the_log_cut_or_damaged_at_any_byte() {
    let world = long_log();
    let records = records(&world.disk);
    let mut dice = Dice(7);
    for round in 0..80 {
        let n = dice.below(records.len() as u64) as usize;
        let (name, start, _) = &records[n];
        let commits = records[..n].iter().filter(|(.., kind)| *kind == Kind::Commit).count();
        let mut contents = cut_at(&world.disk, &records, n + 1).contents();
        let bytes = contents.get_mut(name).unwrap();
        let at = (start + dice.below(120) as usize).min(bytes.len() - 1);
        match round % 2 {
            0 => bytes[at..].fill(0),
            _ => bytes[at] ^= 1 << dice.below(8),
        }
        let mut left = world.left(SimDisk::with_contents(contents), world.packs.after_kill());
        let count = left.prefix();
        assert!(count >= commits, "{count} of {commits}");
        // It continues, and what was cut does not come back.
        left.survives(0);
        left.step(vec![], vec![]);
        left.journal = None;
        let again = left.left(left.disk.after_kill(), left.packs.after_kill());
        assert_eq!(again.prefix(), count + 1);
    }
}

/// Bytes of packs that were never synced are zeros after the power cut. The commits that mention them are
/// cut; what a flush put into the log comes back.
#[test]
fn data_that_is_lost_cuts_and_data_in_the_log_comes_back() {
    let mut world = World::new();
    world.write(200);
    world.flush();
    assert_eq!(world.packs.syncs.load(Ordering::SeqCst), 0, "a small flush leaves the pack alone");
    world.write(300);
    world.step(vec![], vec![]);
    world.journal = None;
    // The log reached the disk whole; of the packs, nothing did.
    let left = world.left(world.disk.after_kill(), world.packs.after_power_cut(|| false));
    assert_eq!(left.prefix(), 2);
    assert_eq!((left.recovered.replayed, left.recovered.cut, left.recovered.restored), (2, 2, 1));
    assert!(left.recovered.reason.as_ref().unwrap().contains("300 bytes"), "{:?}", left.recovered);
    // The same with the pack's name on disk, but zeros in it.
    let zeroed = world.packs.after_kill();
    zeroed.write(PackNo(1), 200, &[0; 300]).unwrap();
    let left = world.left(world.disk.after_kill(), zeroed);
    assert_eq!(left.prefix(), 2);
}

/// A large flush syncs packs before the log. Data that is only in the log is synced before SQLite gets its
/// rows.
#[test]
fn packs_are_synced_before_names() {
    let mut world = World::new();
    world.write(5000);
    world.flush();
    assert_eq!(world.packs.syncs.load(Ordering::SeqCst), 1);
    world.write(10);
    world.flush();
    assert_eq!(world.packs.syncs.load(Ordering::SeqCst), 1);
    world.drain();
    assert_eq!(world.packs.syncs.load(Ordering::SeqCst), 2);
    world.journal = None;
    // Only what was synced: everything is there, and nothing is needed from the log.
    let left = world.left(world.disk.after_power_cut(|| false), world.packs.after_power_cut(|| false));
    assert_eq!(left.prefix(), 3);
    assert_eq!(left.recovered, Recovered::default());
}

/// A pack that was sealed, flushed and retired is no longer an open pack, and its commits are still in the
/// log. They are not cut.
#[test]
fn what_a_retired_pack_held_is_trusted() {
    let mut world = World::new();
    world.write(100);
    world.write(5000);
    world.seal_and_retire();
    world.flush();
    world.journal = None;
    let flushed = world.flushed;
    for left in [
        world.left(world.disk.after_kill(), world.packs.after_kill()),
        world.left(world.disk.after_power_cut(|| false), world.packs.after_power_cut(|| false)),
    ] {
        assert_eq!(left.prefix(), flushed);
        assert_eq!(left.recovered.cut, 0);
    }
}

/// A pack whose `Sealed` row reached the disk by chance, without a flush after it, and whose bytes did not:
/// cut, not trusted.
#[test]
fn a_sealed_row_alone_proves_nothing() {
    let mut world = World::new();
    world.flush();
    world.write(100);
    let row = PackRow::Sealed { blob: BlobId([1; 32]), size: 1 };
    world.step(vec![(Key::pack(PackNo(1)), row.encode())], vec![]);
    world.journal = None;
    let left = world.left(world.disk.after_kill(), world.packs.after_power_cut(|| false));
    assert_eq!(left.prefix(), 1);
}

/// Bytes are flushed into the log only, then the pack is sealed and flushed again, then the power fails: the
/// flush of the seal synced the pack.
#[test]
fn sealing_brings_logged_bytes_into_the_pack() {
    let mut world = World::new();
    world.write(100);
    world.flush();
    let row = PackRow::Sealed { blob: BlobId([1; 32]), size: 1 };
    let data = decode_fresh(&world.journal().get(&key("uses 2")).unwrap().unwrap());
    world.step(vec![(Key::pack(PackNo(1)), row.encode())], vec![]);
    world.flush();
    assert!(world.packs.holds_durably(&data));
}

/// What was cut stays cut, even if the missing bytes appear after all and the log that continued is lost.
#[test]
fn what_was_cut_does_not_come_back() {
    let mut world = World::new();
    world.flush();
    world.write(300);
    world.step(vec![(key("first life"), value(""))], vec![]);
    world.journal = None;
    let mut second = world.left(world.disk.after_kill(), world.packs.after_power_cut(|| false));
    assert_eq!(second.survives(1), 1);
    second.write(300);
    second.step(vec![(key("second life"), value(""))], vec![]);
    second.journal = None;
    let third = second.left(second.disk.after_power_cut(|| false), second.packs.after_kill());
    assert_eq!(third.prefix(), 1);
}

/// Commits made while a generation is being drained stay in the log, however many segments they fill, and are
/// always visible.
#[test]
fn a_drain_takes_only_what_it_rotated() {
    let mut world = World::new();
    world.write(10);
    let journal = Arc::new(world.journal.take().unwrap());
    let (inner, first) = (journal.clone(), world.states.len() as u64);
    *world.packs.in_sync.lock() = Some(Box::new(move || {
        for n in first..first + 40 {
            inner.commit(put("count", n.to_be_bytes())).unwrap();
            inner.commit(put(format!("wide {n}"), vec![n as u8; 400])).unwrap();
            assert_eq!(inner.get(&key("count")).unwrap(), Some(value(n.to_be_bytes())));
        }
        assert_eq!(inner.scan(&range("wide", "x"), 100).unwrap().len(), 40);
    }));
    journal.drain().unwrap();
    assert!(world.packs.in_sync.lock().is_none());
    // Into segments that are free now.
    for n in 0..40u8 {
        journal.commit(put("last", vec![n; 400])).unwrap();
    }
    drop(journal);
    let folder = copy(world.folder.path());
    let again = Journal::open_on(
        folder.path(),
        Arc::new(world.disk.after_kill()),
        Arc::new(world.packs.after_kill()),
        options(),
    );
    let (journal, recovered) = again.unwrap();
    assert_eq!((recovered.replayed, recovered.cut), (120, 0), "{recovered:?}");
    assert_eq!(journal.scan(&range("wide", "x"), 100).unwrap().len(), 40);
}

/// A commit made while a flush syncs packs is not covered by that flush's mark. If its bytes are lost, it is
/// cut.
#[test]
fn a_flush_covers_only_earlier_commits() {
    let mut world = World::new();
    world.write(5000);
    world.packs.create(PackNo(9)).unwrap();
    let journal = Arc::new(world.journal.take().unwrap());
    let inner = journal.clone();
    let late = Commit { fresh: vec![world.packs.fresh(9, &[1; 50])], ..put("count", 99u64.to_be_bytes()) };
    *world.packs.in_sync.lock() = Some(Box::new(move || inner.commit(late).unwrap()));
    journal.flush().unwrap();
    drop(journal);
    let left = world.left(world.disk.after_kill(), world.packs.after_power_cut(|| false));
    assert_eq!(left.prefix(), world.states.len() - 1);
    assert_eq!(left.recovered.cut, 1);
}

/// After a failed sync no later flush or commit is acknowledged, reads continue, and the next mount finds
/// what was flushed before.
#[test]
fn a_failed_sync_poisons() {
    for log in [true, false] {
        let mut world = World::new();
        world.write(10);
        world.flush();
        world.write(5000);
        world.disk.faults().syncs.store(log, Ordering::SeqCst);
        world.packs.fail_syncs.store(!log, Ordering::SeqCst);
        let first = world.journal().flush().unwrap_err().to_string();
        assert!(first.contains("unmount") && first.contains("check the disk"), "{first}");
        world.disk.faults().syncs.store(false, Ordering::SeqCst);
        world.packs.fail_syncs.store(false, Ordering::SeqCst);
        assert_eq!(world.journal().flush().unwrap_err().to_string(), first);
        assert!(matches!(
            world.journal().commit(put("a", "b")),
            Err(CommitError::Store(StoreError::Unavailable(_)))
        ));
        assert!(world.journal().close().is_err());
        assert!(world.journal().get(&key("count")).unwrap().is_some());
        world.journal = None;
        let left = world.left(world.disk.after_power_cut(|| false), world.packs.after_power_cut(|| false));
        assert!(left.prefix() >= 2);
    }
}

/// A write that the log's disk refuses, half way or after writing all of it: the commit does not exist,
/// neither now nor after a kill, and the next one works.
#[test]
fn a_refused_write_leaves_nothing() {
    for late in [false, true] {
        let mut world = World::new();
        world.step(vec![], vec![]);
        let before = world.states.len() - 1;
        let faults = if late { &world.disk.faults().late_writes } else { &world.disk.faults().writes };
        faults.store(true, Ordering::SeqCst);
        assert!(world.journal().commit(put("count", 99u64.to_be_bytes())).is_err());
        faults.store(false, Ordering::SeqCst);
        assert_eq!(world.prefix(), before);
        let left = world.left(world.disk.after_kill(), world.packs.after_kill());
        assert_eq!(left.prefix(), before);
        world.step(vec![], vec![]);
        let left = world.left(world.disk.after_kill(), world.packs.after_kill());
        assert_eq!(left.prefix(), before + 1);
    }
}

/// No room for more log: small commits continue, because drains free segments. A commit that needs its own
/// file is refused and leaves nothing. Once there is room again it succeeds.
#[test]
fn a_full_disk_refuses_and_the_journal_continues() {
    let mut world = World::new();
    world.disk.faults().room.store(0, Ordering::SeqCst);
    for n in 0..200 {
        world.step(vec![(key("fill"), value(vec![n as u8; 1000]))], vec![]);
    }
    let before = world.states.len() - 1;
    let large = || Commit { puts: vec![(key("count"), value(vec![1; 40_000]))], ..Commit::default() };
    assert!(matches!(world.journal().commit(large()), Err(CommitError::Store(StoreError::Full))));
    assert_eq!(world.prefix(), before);
    world.step(vec![], vec![]);
    world.flush();
    world.disk.faults().room.store(u64::MAX, Ordering::SeqCst);
    world.journal().commit(large()).unwrap();
    let left = world.left(world.disk.after_kill(), world.packs.after_kill());
    assert_eq!(left.journal().get(&key("count")).unwrap().unwrap().len(), 40_000);
}

/// A log of a newer format is not touched, and the message says what to do.
#[test]
fn a_newer_log_is_refused() {
    let mut world = World::new();
    world.step(vec![], vec![]);
    world.journal = None;
    let mut contents = world.disk.contents();
    for bytes in contents.values_mut().filter(|bytes| bytes.starts_with(b"COVEYLOG")) {
        bytes[11] = 9;
        bytes[50] ^= 1;
    }
    let disk = Arc::new(SimDisk::with_contents(contents.clone()));
    let opened = Journal::open_on(world.folder.path(), disk.clone(), world.packs.clone(), options());
    let error = opened.err().unwrap().to_string();
    assert!(error.contains("format 9") && error.contains("version of covey"), "{error}");
    assert_eq!(disk.contents(), contents);
}

/// The database is missing and its log exists: that is not a new volume.
#[test]
fn a_missing_database_is_not_made_anew() {
    let mut world = World::new();
    world.journal = None;
    let database = world.folder.path().join("names.db");
    fs::write(&database, "").unwrap();
    let opened = Journal::open_on(world.folder.path(), world.disk.clone(), world.packs.clone(), options());
    assert!(matches!(opened.err().unwrap(), StoreError::Damaged(what) if what.contains("backup")));
    fs::remove_file(&database).unwrap();
    let opened = Journal::open_on(world.folder.path(), world.disk.clone(), world.packs.clone(), options());
    assert!(matches!(opened.err().unwrap(), StoreError::Damaged(what) if what.contains("backup")));
    assert!(!world.disk.list().unwrap().is_empty());
}
