//! A simulated disk in memory that separates what was synced from what was only written, so that a test can
//! cut the power.
//!
//! A write changes the file as the process sees it, and is added to a list of unsynced ranges. A sync empties
//! the list. After a power cut each sector of 512 bytes on that list may have reached the disk or not:
//! [`SimDisk::after_power_cut`] lets the caller choose. [`SimDisk::after_kill`] keeps everything. Both return
//! separate disks, so one run can be cut many times.
//!
//! Faults can be switched on and off while the disk is in use.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{LogDisk, LogFile};

/// The unit that a disk writes whole or not at all, in bytes.
pub const SECTOR: usize = 512;

/// The faults of a disk. All are off at first.
#[derive(Debug)]
pub struct Faults {
    /// Writes fail with EIO, after their first half.
    pub writes: AtomicBool,
    /// Writes fail with EIO, after all bytes were written.
    pub late_writes: AtomicBool,
    /// Syncs fail with EIO.
    pub syncs: AtomicBool,
    /// Bytes of files that can still be created.
    pub room: AtomicU64,
}

#[derive(Clone)]
struct Data {
    seen: Vec<u8>,
    durable: Vec<u8>,
    /// Offset and length of what was written since the last sync.
    unsynced: Vec<(usize, usize)>,
}

type Shared = Arc<Mutex<Data>>;

/// A folder of files in memory.
pub struct SimDisk {
    files: Mutex<BTreeMap<String, Shared>>,
    reserved: AtomicBool,
    faults: Arc<Faults>,
    syncs: Arc<AtomicU64>,
}

impl Default for SimDisk {
    fn default() -> Self {
        SimDisk::new()
    }
}

impl SimDisk {
    /// An empty disk without faults.
    pub fn new() -> SimDisk {
        let faults = Faults {
            writes: false.into(),
            late_writes: false.into(),
            syncs: false.into(),
            room: u64::MAX.into(),
        };
        SimDisk {
            files: Mutex::default(),
            reserved: false.into(),
            faults: Arc::new(faults),
            syncs: Arc::default(),
        }
    }

    /// The switches of the faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// How many syncs there were.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::SeqCst)
    }

    /// The disk after a kill of the process: every write is there.
    pub fn after_kill(&self) -> SimDisk {
        self.copy(|data| data.seen.clone())
    }

    /// The disk after a power cut: everything synced, and of the sectors written since, those for which
    /// `kept` returns true.
    pub fn after_power_cut(&self, mut kept: impl FnMut() -> bool) -> SimDisk {
        self.copy(|data| {
            let mut left = data.durable.clone();
            for &(start, len) in &data.unsynced {
                let mut at = start;
                while at < start + len {
                    let stop = ((at / SECTOR + 1) * SECTOR).min(start + len);
                    if kept() {
                        left[at..stop].copy_from_slice(&data.seen[at..stop]);
                    }
                    at = stop;
                }
            }
            left
        })
    }

    /// Every file's name and bytes, as the process sees them.
    pub fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let files = self.files.lock();
        files.iter().map(|(name, data)| (name.clone(), data.lock().seen.clone())).collect()
    }

    /// A disk with these files, all of them durable.
    pub fn with_contents(contents: BTreeMap<String, Vec<u8>>) -> SimDisk {
        let disk = SimDisk::new();
        let file = |bytes: Vec<u8>| Data { durable: bytes.clone(), seen: bytes, unsynced: Vec::new() };
        *disk.files.lock() =
            contents.into_iter().map(|(name, bytes)| (name, Arc::new(Mutex::new(file(bytes))))).collect();
        disk
    }

    fn copy(&self, mut left: impl FnMut(&Data) -> Vec<u8>) -> SimDisk {
        let files = self.files.lock();
        SimDisk::with_contents(files.iter().map(|(name, data)| (name.clone(), left(&data.lock()))).collect())
    }

    fn file(&self, data: &Shared) -> Arc<dyn LogFile> {
        let len = data.lock().seen.len() as u64;
        Arc::new(SimFile { data: data.clone(), len, faults: self.faults.clone(), syncs: self.syncs.clone() })
    }
}

impl LogDisk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let files = self.files.lock();
        files.get(name).map(|data| self.file(data)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn LogFile>> {
        let fits = |room: u64| if room == u64::MAX { Some(room) } else { room.checked_sub(len) };
        let taken = self.faults.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits);
        taken.map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
        let zeros = vec![0; len as usize];
        let data = Arc::new(Mutex::new(Data { durable: zeros.clone(), seen: zeros, unsynced: Vec::new() }));
        self.files.lock().insert(name.to_owned(), data.clone());
        Ok(self.file(&data))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.lock().remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn reserve(&self, _inside: u64) -> io::Result<bool> {
        self.reserved.store(true, Ordering::SeqCst);
        Ok(true)
    }

    fn release(&self) -> io::Result<bool> {
        Ok(self.reserved.swap(false, Ordering::SeqCst))
    }
}

struct SimFile {
    data: Shared,
    len: u64,
    faults: Arc<Faults>,
    syncs: Arc<AtomicU64>,
}

impl LogFile for SimFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let failing = self.faults.writes.load(Ordering::SeqCst);
        let bytes = if failing { &bytes[..bytes.len() / 2] } else { bytes };
        let mut data = self.data.lock();
        let start = offset as usize;
        data.seen
            .get_mut(start..start + bytes.len())
            .ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(bytes);
        data.unsynced.push((start, bytes.len()));
        let failing = failing || self.faults.late_writes.load(Ordering::SeqCst);
        if failing { Err(io::Error::other("a fault that a test asked for")) } else { Ok(()) }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let data = self.data.lock();
        let start = offset as usize;
        let from = data.seen.get(start..start + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if self.faults.syncs.load(Ordering::SeqCst) {
            return Err(io::Error::other("a fault that a test asked for"));
        }
        let mut data = self.data.lock();
        let Data { seen, durable, unsynced } = &mut *data;
        for (start, len) in unsynced.drain(..) {
            durable[start..start + len].copy_from_slice(&seen[start..start + len]);
        }
        Ok(())
    }
}
