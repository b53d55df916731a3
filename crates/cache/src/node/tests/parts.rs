//! Test doubles for the cache's surroundings: an origin that is slow or away, a list of uploads, and a disk
//! that is full or broken.

use std::collections::HashMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use blob::records::RecordMap;
use blob::{Buffer, Space};
use fetch::{PartLead, WholeLead};

use super::*;

/// An origin that counts, waits, fails and returns wrong bytes on demand.
#[derive(Default)]
pub(super) struct Far {
    blobs: Mutex<HashMap<BlobId, Vec<u8>>>,
    records: RecordMap,
    pub(super) delay_ms: AtomicU64,
    /// While it is set, no request is answered, for a minute at most.
    pub(super) held: AtomicBool,
    /// Requests that were answered.
    pub(super) answered: AtomicU64,
    pub(super) away: AtomicBool,
    pub(super) lies: AtomicBool,
    pub(super) parts: AtomicU64,
    pub(super) wholes: AtomicU64,
    pub(super) removals: AtomicU64,
    /// Bytes that were returned.
    pub(super) given: AtomicU64,
    now: AtomicU64,
    pub(super) most_at_once: AtomicU64,
    /// How many prefetches it allows at a time. 0: no limit.
    pub(super) ahead: AtomicU64,
    /// Whether other nodes want its blobs too.
    pub(super) shared: AtomicBool,
    /// The sums of the next part give a size that is larger by this.
    pub(super) off: AtomicI32,
}

/// Sums with the same hashes and another size, in the same segment. The blob's name follows from them too.
fn resized(sums: &Sums, by: i32) -> Sums {
    let mut bytes = sums.encode();
    let size = sums.size().checked_add_signed(by).unwrap();
    bytes[8..12].copy_from_slice(&size.to_le_bytes());
    let content = bytes.len() - 4;
    let own = blob::sums::crc32c(&bytes[..content]);
    bytes[content..].copy_from_slice(&own.to_le_bytes());
    Sums::decode(&bytes).unwrap()
}

impl Far {
    pub(super) fn has(&self, id: &BlobId) -> bool {
        self.blobs.lock().contains_key(id)
    }

    pub(super) fn take(&self, bytes: &[u8]) -> BlobId {
        let id = Sums::of(bytes).id();
        self.blobs.lock().insert(id, bytes.to_vec());
        id
    }

    pub(super) fn requests(&self) -> (u64, u64) {
        (self.parts.load(Ordering::SeqCst), self.wholes.load(Ordering::SeqCst))
    }

    fn meet(&self) -> Result<(), BlobError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::SeqCst)));
        let began = Instant::now();
        while self.held.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.answered.fetch_add(1, Ordering::SeqCst);
        self.now.fetch_sub(1, Ordering::SeqCst);
        match self.away.load(Ordering::SeqCst) {
            true => Err(BlobError::Unavailable("the origin is away".to_owned())),
            false => Ok(()),
        }
    }

    fn get(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        self.meet()?;
        let mut bytes = self.blobs.lock().get(id).cloned().ok_or(BlobError::Missing(*id))?;
        let sums = Sums::of(&bytes);
        if self.lies.load(Ordering::SeqCst) {
            bytes.iter_mut().take(1).for_each(|byte| *byte ^= 1);
        }
        Ok((sums, bytes.into()))
    }
}

impl BlobSource for Far {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let (sums, bytes) = self.get(id)?;
        let from = offset as usize;
        let range = bytes.get(from..from + buf.len());
        buf.copy_from_slice(range.ok_or_else(|| blob::folder::past_end(id, sums.size()))?);
        Ok(())
    }

    fn is_local(&self, _: &BlobId) -> bool {
        false
    }
}

impl Records for Far {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.records.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.records.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.records.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.records.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.records.records(folder)
    }
}

impl Origin for Far {
    fn adopt(&self, _: &BlobId, _: &Sums, file: &Path) -> Result<(), BlobError> {
        self.meet()?;
        self.take(&fs::read(file)?);
        Ok(())
    }

    fn put(&self, _: &BlobId, _: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.meet()?;
        self.take(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<(), BlobError> {
        Ok(())
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.removals.fetch_add(1, Ordering::SeqCst);
        self.meet()?;
        self.blobs.lock().remove(id);
        Ok(())
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        self.meet()?;
        Ok(self.blobs.lock().get(id).map(|bytes| bytes.len() as u64))
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.meet()?;
        let all: Vec<(BlobId, u64)> =
            self.blobs.lock().iter().map(|(id, bytes)| (*id, bytes.len() as u64)).collect();
        all.into_iter().all(|(id, size)| each(id, size));
        Ok(())
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.get(id).map(drop)
    }

    fn fetch(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        self.wholes.fetch_add(1, Ordering::SeqCst);
        let (sums, bytes) = self.get(id)?;
        self.given.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Ok((sums, bytes))
    }

    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        self.parts.fetch_add(1, Ordering::SeqCst);
        let (sums, bytes) = self.get(id)?;
        let end = offset + len;
        if end > sums.size() {
            return Err(blob::folder::past_end(id, sums.size()));
        }
        let (from, to) = (offset - offset % GROUP, end.next_multiple_of(GROUP).min(sums.size()));
        self.given.fetch_add(u64::from(to - from), Ordering::SeqCst);
        let sums = resized(&sums, self.off.swap(0, Ordering::SeqCst));
        Ok(Part { sums, offset: from, bytes: bytes[from as usize..to as usize].into() })
    }

    fn describe(&self) -> String {
        "far:".to_owned()
    }
}

impl Tier for Far {
    fn whole(&self, lead: &WholeLead) -> Result<(Sums, Buffer), BlobError> {
        self.fetch(lead.id())
    }

    fn part(&self, lead: &PartLead, offset: u32, len: u32) -> Result<Part, BlobError> {
        self.fetch_part(lead.id(), offset, len)
    }

    fn rest_by_parts(&self, _: &BlobId) -> bool {
        !self.shared.load(Ordering::SeqCst)
    }

    fn prefetches(&self) -> usize {
        match self.ahead.load(Ordering::SeqCst) {
            0 => usize::MAX,
            most => most as usize,
        }
    }
}

/// Uploads that happen when a test says so. Links are kept as in the real ones.
pub(super) struct Noted {
    dir: PathBuf,
    noted: Mutex<HashMap<BlobId, u64>>,
    /// Blobs being uploaded, perhaps forgotten since.
    pub(super) lingering: Mutex<HashSet<BlobId>>,
    pub(super) fails: AtomicBool,
}

impl Noted {
    pub(super) fn open(dir: &Path) -> Noted {
        fs::create_dir_all(dir).unwrap();
        let noted = fs::read_dir(dir).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().to_str().unwrap().parse().unwrap(), entry.metadata().unwrap().len())
        });
        Noted {
            noted: Mutex::new(noted.collect()),
            dir: dir.to_owned(),
            lingering: Mutex::default(),
            fails: AtomicBool::new(false),
        }
    }

    fn link(&self, id: &BlobId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Uploads a blob. False while the origin does not take it.
    pub(super) fn upload(&self, far: &Far, id: &BlobId) -> bool {
        self.lingering.lock().insert(*id);
        let done = self.try_upload(far, id);
        self.lingering.lock().remove(id);
        done
    }

    fn try_upload(&self, far: &Far, id: &BlobId) -> bool {
        // It may have been forgotten.
        let Ok(bytes) = fs::read(self.link(id)) else { return true };
        let sums = Sums::of(&bytes);
        assert_eq!(sums.id(), *id, "what is pinned is the blob");
        if far.put(id, &sums, &bytes).is_err() {
            return false;
        }
        let mut noted = self.noted.lock();
        if noted.remove(id).is_some() {
            fs::remove_file(self.link(id)).unwrap();
        }
        true
    }

    pub(super) fn upload_all(&self, far: &Far) {
        self.list().iter().for_each(|(id, _)| {
            self.upload(far, id);
        });
    }
}

impl Pending for Noted {
    fn note(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(BlobError::Full);
        }
        let mut noted = self.noted.lock();
        match fs::hard_link(file, self.link(id)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        noted.insert(*id, u64::from(sums.size()));
        Ok(())
    }

    fn is_pending(&self, id: &BlobId) -> bool {
        self.noted.lock().contains_key(id) || self.lingering.lock().contains(id)
    }

    fn forget(&self, id: &BlobId) -> Result<(), BlobError> {
        let mut noted = self.noted.lock();
        if noted.remove(id).is_some() {
            fs::remove_file(self.link(id))?;
        }
        Ok(())
    }

    fn file(&self, id: &BlobId) -> Option<PathBuf> {
        self.noted.lock().contains_key(id).then(|| self.link(id))
    }

    fn list(&self) -> Vec<(BlobId, u64)> {
        self.noted.lock().iter().map(|(id, size)| (*id, *size)).collect()
    }

    fn pinned(&self) -> pending::Pinned {
        let noted = self.noted.lock();
        pending::Pinned { blobs: noted.len() as u64, bytes: noted.values().sum() }
    }

    fn sync(&self) -> Result<(), BlobError> {
        Ok(())
    }

    fn settle(&self, _: Duration) -> Result<(), BlobError> {
        match self.noted.lock().len() {
            0 => Ok(()),
            some => Err(BlobError::Unavailable(format!("{some} blobs are not uploaded"))),
        }
    }
}

/// What is wrong with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Full,
    ReadOnly,
    /// Every read and write is an error.
    Broken,
}

/// The size of a disk whose use is not counted.
pub(super) const VAST: u64 = 1 << 50;

/// A folder on a disk of a given size, which fails on demand.
pub(super) struct Disk {
    folder: BlobFolder,
    pub(super) trouble: Mutex<Option<Trouble>>,
    pub(super) room: AtomicU64,
    /// Bytes that others take.
    pub(super) others: AtomicU64,
    /// Blobs that were kept with writes that bypass the page cache.
    pub(super) aside: AtomicU64,
    /// Evicted blobs whose files may be overwritten.
    pub(super) retired: AtomicU64,
}

impl Disk {
    pub(super) fn open(dir: &Path) -> Disk {
        Disk {
            folder: BlobFolder::create(dir).unwrap(),
            trouble: Mutex::new(None),
            room: AtomicU64::new(VAST),
            others: AtomicU64::new(0),
            aside: AtomicU64::new(0),
            retired: AtomicU64::new(0),
        }
    }

    /// Bytes used by the cache and by others.
    pub(super) fn used(&self) -> u64 {
        if self.room.load(Ordering::SeqCst) == VAST {
            return 0;
        }
        let mut used = self.others.load(Ordering::SeqCst);
        self.folder
            .list(&mut |_, size| {
                used += crate::residency::charge(size as u32);
                true
            })
            .unwrap();
        used
    }

    fn write(&self, bytes: u64) -> Result<(), BlobError> {
        match *self.trouble.lock() {
            Some(Trouble::Full) => Err(BlobError::Full),
            Some(Trouble::ReadOnly) => Err(io::Error::from_raw_os_error(libc::EROFS).into()),
            Some(Trouble::Broken) => Err(io::Error::from_raw_os_error(libc::EIO).into()),
            None if bytes > 0 && self.used() + bytes > self.room.load(Ordering::SeqCst) => {
                Err(BlobError::Full)
            }
            None => Ok(()),
        }
    }

    fn read(&self) -> Result<(), BlobError> {
        match *self.trouble.lock() {
            Some(Trouble::Broken) => Err(io::Error::from_raw_os_error(libc::EIO).into()),
            _ => Ok(()),
        }
    }
}

impl BlobSource for Disk {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read()?;
        self.folder.read_at(id, offset, buf)
    }

    fn is_local(&self, id: &BlobId) -> bool {
        self.folder.is_local(id)
    }
}

impl DiskStore for Disk {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        self.write(u64::from(sums.size()))?;
        self.folder.adopt(id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.write(u64::from(sums.size()))?;
        self.folder.put(id, sums, bytes)
    }

    fn keep(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.write(u64::from(sums.size()))?;
        self.folder.keep(id, sums, bytes)
    }

    fn keep_for_later(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.aside.fetch_add(1, Ordering::SeqCst);
        self.keep(id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        self.write(0)?;
        self.folder.sync()
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        match *self.trouble.lock() {
            None | Some(Trouble::Full) => self.folder.remove(id),
            _ => Err(io::Error::from_raw_os_error(libc::EIO).into()),
        }
    }

    fn retire(&self, id: &BlobId) -> Result<(), BlobError> {
        self.retired.fetch_add(1, Ordering::SeqCst);
        self.remove(id)
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        self.read()?;
        self.folder.size(id)
    }

    fn sums(&self, id: &BlobId) -> Result<Sums, BlobError> {
        self.read()?;
        self.folder.sums(id)
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.read()?;
        self.folder.verify(id)
    }

    fn file(&self, id: &BlobId) -> PathBuf {
        self.folder.file(id)
    }

    fn list_of(&self, first: u8) -> Result<Vec<(BlobId, u64)>, BlobError> {
        DiskStore::list_of(&self.folder, first)
    }

    fn probe(&self) -> io::Result<()> {
        match self.write(1) {
            Ok(()) => Ok(()),
            Err(BlobError::Io(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn space(&self) -> Result<Space, BlobError> {
        let total = self.room.load(Ordering::SeqCst);
        Ok(Space { total, available: total.saturating_sub(self.used()), reserve: 0 })
    }
}
