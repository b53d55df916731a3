//! Shared by the tests of `meta` and `engines`: packs that lose power, packs in a folder, keys and commits.

#![allow(dead_code, reason = "each test program uses its part")]

pub mod script;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{BlobId, PackNo};
use blob::sums::crc32c;
use blob::{BlobError, PackStore, Space};
use meta::key::KeyRange;
use meta::store::FreshData;
use meta::{Commit, Key, Value};
use parking_lot::Mutex;

/// Joins with a session that is not renewed, and commits until it is fenced. `join` is given how long the
/// session is to last, and whether it takes an earlier one over. On a busy machine a session may be over
/// before its first commit, so the next one lasts longer. Returns the last session and the number of commits.
pub fn commit_until_fenced<S>(join: impl Fn(Duration, bool) -> S, is_fenced: impl Fn() -> bool) -> (S, i64) {
    let begun = Instant::now();
    let mut ttl = Duration::from_millis(200);
    let mut session = join(ttl, false);
    let mut done = 0;
    loop {
        while !is_fenced() {
            done += 1;
            assert!(begun.elapsed() < Duration::from_secs(120), "it is not fenced");
            std::thread::sleep(Duration::from_millis(5));
        }
        if done > 0 {
            return (session, done);
        }
        assert!(ttl < Duration::from_secs(10), "nothing is committed");
        ttl *= 4;
        session = join(ttl, true);
    }
}

/// A key of any bytes.
pub fn key(bytes: impl AsRef<[u8]>) -> Key {
    Key::from_bytes(bytes.as_ref())
}

/// A value of any bytes.
pub fn value(bytes: impl AsRef<[u8]>) -> Value {
    bytes.as_ref().into()
}

/// Keys from `start` to before `end`.
pub fn range(start: impl AsRef<[u8]>, end: impl AsRef<[u8]>) -> KeyRange {
    KeyRange { start: key(start), end: key(end) }
}

/// A commit that writes one row.
pub fn put(k: impl AsRef<[u8]>, v: impl AsRef<[u8]>) -> Commit {
    Commit { puts: vec![(key(k), value(v))], ..Commit::default() }
}

/// A commit that removes one row.
pub fn del(k: impl AsRef<[u8]>) -> Commit {
    Commit { dels: vec![key(k)], ..Commit::default() }
}

/// A random generator whose runs can be repeated: xorshift.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        (self.roll() >> 11) % limit
    }
}

#[derive(Clone, Default)]
struct Pack {
    seen: Vec<u8>,
    durable: Vec<u8>,
    named: bool,
    unsynced: Vec<(usize, usize)>,
}

/// Packs in memory that separate what was synced from what was only written.
#[derive(Default)]
pub struct SimPacks {
    packs: Mutex<BTreeMap<PackNo, Pack>>,
    pub fail_syncs: AtomicBool,
    pub fail_reads: AtomicBool,
    /// Called once, in the middle of the next sync.
    pub in_sync: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pub syncs: AtomicU64,
}

impl SimPacks {
    /// The packs after a kill.
    pub fn after_kill(&self) -> SimPacks {
        let packs = self.packs.lock().clone();
        SimPacks { packs: Mutex::new(packs), ..SimPacks::default() }
    }

    /// The packs after a power cut. `kept` decides about each name and each piece that was not synced.
    pub fn after_power_cut(&self, mut kept: impl FnMut() -> bool) -> SimPacks {
        let mut left = BTreeMap::new();
        for (number, pack) in self.packs.lock().iter() {
            if !pack.named && !kept() {
                continue;
            }
            let mut bytes = pack.durable.clone();
            for &(at, len) in &pack.unsynced {
                if kept() {
                    if bytes.len() < at + len {
                        bytes.resize(at + len, 0);
                    }
                    bytes[at..at + len].copy_from_slice(&pack.seen[at..at + len]);
                }
            }
            left.insert(*number, Pack { seen: bytes.clone(), durable: bytes, named: true, unsynced: vec![] });
        }
        SimPacks { packs: Mutex::new(left), ..SimPacks::default() }
    }

    /// Writes bytes and returns the entry for a commit.
    pub fn fresh(&self, pack: u64, bytes: &[u8]) -> FreshData {
        let number = PackNo(pack);
        let offset = {
            let mut packs = self.packs.lock();
            packs.entry(number).or_default().seen.len() as u32
        };
        self.write(number, offset, bytes).unwrap();
        FreshData { pack: number, offset, len: bytes.len() as u32, crc: crc32c(bytes) }
    }

    /// Whether the bytes exist and match what was committed.
    pub fn holds(&self, data: &FreshData) -> bool {
        let mut bytes = vec![0; data.len as usize];
        self.read(data.pack, data.offset, &mut bytes).is_ok() && crc32c(&bytes) == data.crc
    }

    /// Whether the bytes would survive a power cut.
    pub fn holds_durably(&self, data: &FreshData) -> bool {
        self.after_power_cut(|| false).holds(data)
    }

    pub fn forget(&self, pack: u64) {
        self.packs.lock().remove(&PackNo(pack));
    }
}

fn fault() -> BlobError {
    BlobError::Io(io::Error::other("a fault that a test asked for"))
}

fn gone() -> BlobError {
    BlobError::Io(io::ErrorKind::NotFound.into())
}

impl PackStore for SimPacks {
    fn create(&self, pack: PackNo) -> Result<(), BlobError> {
        self.packs.lock().insert(pack, Pack::default());
        Ok(())
    }

    fn write(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError> {
        let mut packs = self.packs.lock();
        let pack = packs.get_mut(&pack).ok_or_else(gone)?;
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if pack.seen.len() < end {
            pack.seen.resize(end, 0);
        }
        pack.seen[start..end].copy_from_slice(bytes);
        pack.unsynced.push((start, bytes.len()));
        Ok(())
    }

    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        if self.fail_reads.load(Ordering::SeqCst) {
            return Err(fault());
        }
        let packs = self.packs.lock();
        let bytes = packs.get(&pack).ok_or_else(gone)?.seen.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(bytes.ok_or_else(|| BlobError::Io(io::ErrorKind::UnexpectedEof.into()))?);
        Ok(())
    }

    fn sync(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let act = self.in_sync.lock().take();
        if let Some(act) = act {
            act();
        }
        if self.fail_syncs.load(Ordering::SeqCst) {
            return Err(fault());
        }
        let mut all = self.packs.lock();
        for number in packs {
            if let Some(pack) = all.get_mut(number) {
                pack.durable = pack.seen.clone();
                pack.named = true;
                pack.unsynced.clear();
            }
        }
        Ok(())
    }

    fn seal(&self, _: PackNo, _: u32) -> Result<BlobId, BlobError> {
        Ok(BlobId([0; 32]))
    }

    fn retire(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        let mut all = self.packs.lock();
        packs.iter().for_each(|pack| drop(all.remove(pack)));
        Ok(())
    }

    fn discard(&self, pack: PackNo) -> Result<(), BlobError> {
        self.retire(&[pack])
    }

    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError> {
        Ok(self.packs.lock().iter().map(|(number, pack)| (*number, pack.seen.len() as u64)).collect())
    }

    fn space(&self) -> Result<Space, BlobError> {
        Ok(Space::default())
    }
}

/// Packs as files of a folder, for tests with several processes.
pub struct FolderPacks(pub PathBuf);

impl FolderPacks {
    pub fn new(folder: &Path) -> FolderPacks {
        fs::create_dir_all(folder).unwrap();
        FolderPacks(folder.to_owned())
    }

    fn path(&self, pack: PackNo) -> PathBuf {
        self.0.join(pack.0.to_string())
    }
}

impl PackStore for FolderPacks {
    fn create(&self, pack: PackNo) -> Result<(), BlobError> {
        File::create_new(self.path(pack))?;
        Ok(())
    }

    fn write(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError> {
        Ok(OpenOptions::new().write(true).open(self.path(pack))?.write_all_at(bytes, u64::from(offset))?)
    }

    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        Ok(File::open(self.path(pack))?.read_exact_at(buf, u64::from(offset))?)
    }

    fn sync(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        for pack in packs {
            if let Ok(file) = File::open(self.path(*pack)) {
                file.sync_all()?;
            }
        }
        Ok(File::open(&self.0)?.sync_all()?)
    }

    fn seal(&self, _: PackNo, _: u32) -> Result<BlobId, BlobError> {
        Ok(BlobId([0; 32]))
    }

    fn retire(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        packs.iter().try_for_each(|pack| Ok(fs::remove_file(self.path(*pack))?))
    }

    fn discard(&self, pack: PackNo) -> Result<(), BlobError> {
        self.retire(&[pack])
    }

    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError> {
        let mut packs = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let number = entry.file_name().to_string_lossy().parse();
            packs.extend(number.map(PackNo).map(|number| (number, entry.metadata().map_or(0, |m| m.len()))));
        }
        Ok(packs)
    }

    fn space(&self) -> Result<Space, BlobError> {
        Ok(Space::default())
    }
}
