//! Implementations of the traits with faults that can be switched on and off while they are used, for tests
//! of the upper crates.
//!
//! [`FailingPacks`] and [`FailingOrigin`] pass everything on to what they wrap, unless their [`Faults`] say
//! otherwise. With no fault on they behave exactly like what they wrap. The conformance suites are run over
//! them to show it.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::time::BootTime;
use base::{BlobId, PackNo};
use parking_lot::Mutex;

use crate::access::Access;
use crate::completion::{Completion, Start};
use crate::pack::{PackStore, Space};
use crate::records::Records;
use crate::source::{BlobError, BlobSource, Onto, Origin, Part, SharedBytes};
use crate::stock::Buffer;
use crate::sums::Sums;

/// An operation that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`PackStore::create`].
    Create,
    /// [`PackStore::write`].
    Write,
    /// [`PackStore::read`], [`BlobSource::read_at`], and what fetches a blob or a part of it.
    Read,
    /// [`PackStore::sync`] and [`Origin::sync`].
    Sync,
    /// [`PackStore::seal`].
    Seal,
    /// [`PackStore::retire`].
    Retire,
    /// [`PackStore::discard`].
    Discard,
    /// [`Origin::adopt`], [`Origin::put`], [`Origin::put_shared`], and the calls of [`Records`] that write.
    Store,
    /// [`Origin::remove`] and [`Records::remove_record`].
    Remove,
    /// [`Origin::list`], [`Origin::size`], [`Origin::verify`], [`PackStore::open_packs`], and the calls of
    /// [`Records`] that read.
    Look,
}

const OPS: usize = Op::Look as usize + 1;
const NO_LIMIT: u64 = u64::MAX;

/// The faults. Shared between a test and one or several failing implementations. Everything is off at first.
#[derive(Debug)]
pub struct Faults {
    /// How many more calls of each operation fail.
    failing: [AtomicU64; OPS],
    calls: [AtomicU64; OPS],
    /// Bytes that can still be written.
    room: AtomicU64,
    damage: AtomicBool,
    delay_us: AtomicU64,
    held: AtomicBool,
    late: AtomicBool,
    /// Blobs that were stored while uploads were late.
    unsettled: Mutex<HashSet<BlobId>>,
}

impl Faults {
    /// All off.
    pub fn new() -> Arc<Faults> {
        Arc::new(Faults {
            failing: Default::default(),
            calls: Default::default(),
            room: AtomicU64::new(NO_LIMIT),
            damage: AtomicBool::new(false),
            delay_us: AtomicU64::new(0),
            held: AtomicBool::new(false),
            late: AtomicBool::new(false),
            unsettled: Mutex::default(),
        })
    }

    /// The next `times` calls of `op` fail with EIO and do nothing; `u64::MAX`: all from now on.
    pub fn fail(&self, op: Op, times: u64) {
        self.failing[op as usize].store(times, Ordering::SeqCst);
    }

    /// After `bytes` more bytes the disk is full.
    pub fn full_after(&self, bytes: u64) {
        self.room.store(bytes, Ordering::SeqCst);
    }

    /// Reads of packs return bytes with one bit flipped. Reads of blobs, which are verified, return
    /// `Damaged`.
    pub fn damage(&self, on: bool) {
        self.damage.store(on, Ordering::SeqCst);
    }

    /// Every call takes this much longer.
    pub fn delay(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::SeqCst);
    }

    /// While it is on, calls wait at their start.
    pub fn hold(&self, on: bool) {
        self.held.store(on, Ordering::SeqCst);
    }

    /// What is stored while it is on is not settled ([`Origin::is_settled`]) until it is off.
    pub fn late_uploads(&self, on: bool) {
        self.late.store(on, Ordering::SeqCst);
        if !on {
            self.unsettled.lock().clear();
        }
    }

    /// Switches everything off.
    pub fn heal(&self) {
        self.failing.iter().for_each(|left| left.store(0, Ordering::SeqCst));
        self.full_after(NO_LIMIT);
        self.damage(false);
        self.delay(Duration::ZERO);
        self.hold(false);
        self.late_uploads(false);
    }

    /// How often `op` was called, including calls that failed.
    pub fn calls(&self, op: Op) -> u64 {
        self.calls[op as usize].load(Ordering::SeqCst)
    }

    fn meet(&self, op: Op) -> Result<(), BlobError> {
        self.calls[op as usize].fetch_add(1, Ordering::SeqCst);
        let delay = self.delay_us.load(Ordering::SeqCst);
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay));
        }
        while self.held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let one_less = |left: u64| match left {
            0 => None,
            u64::MAX => Some(left),
            _ => Some(left - 1),
        };
        match self.failing[op as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
            Ok(_) => Err(BlobError::Io(io::Error::from_raw_os_error(libc::EIO))),
            Err(_) => Ok(()),
        }
    }

    fn take_room(&self, bytes: u64) -> Result<(), BlobError> {
        let less = |room: u64| {
            if room == NO_LIMIT { Some(room) } else { room.checked_sub(bytes) }
        };
        match self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Ok(()),
            Err(_) => Err(BlobError::Full),
        }
    }

    fn is_damaging(&self) -> bool {
        self.damage.load(Ordering::SeqCst)
    }
}

/// A pack store with faults.
pub struct FailingPacks {
    inner: Arc<dyn PackStore>,
    faults: Arc<Faults>,
}

impl FailingPacks {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn PackStore>, faults: Arc<Faults>) -> FailingPacks {
        FailingPacks { inner, faults }
    }
}

impl PackStore for FailingPacks {
    fn create(&self, pack: PackNo) -> Result<(), BlobError> {
        self.faults.meet(Op::Create)?;
        self.faults.take_room(1)?;
        self.inner.create(pack)
    }

    fn write(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError> {
        self.faults.meet(Op::Write)?;
        self.faults.take_room(bytes.len() as u64)?;
        self.inner.write(pack, offset, bytes)
    }

    fn write_summed(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<u32, BlobError> {
        self.faults.meet(Op::Write)?;
        self.faults.take_room(bytes.len() as u64)?;
        self.inner.write_summed(pack, offset, bytes)
    }

    fn prove(&self, pack: PackNo, offset: u32, len: u32, crc: u32) -> Result<bool, BlobError> {
        self.faults.meet(Op::Read)?;
        Ok(self.inner.prove(pack, offset, len, crc)? && !self.faults.is_damaging())
    }

    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.faults.meet(Op::Read)?;
        self.inner.read(pack, offset, buf)?;
        if let (true, Some(byte)) = (self.faults.is_damaging(), buf.first_mut()) {
            *byte ^= 1;
        }
        Ok(())
    }

    fn sync(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        self.faults.meet(Op::Sync)?;
        self.inner.sync(packs)
    }

    fn seal(&self, pack: PackNo, len: u32) -> Result<BlobId, BlobError> {
        self.faults.meet(Op::Seal)?;
        self.inner.seal(pack, len)
    }

    fn retire(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        self.faults.meet(Op::Retire)?;
        self.inner.retire(packs)
    }

    fn discard(&self, pack: PackNo) -> Result<(), BlobError> {
        self.faults.meet(Op::Discard)?;
        self.inner.discard(pack)
    }

    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError> {
        self.faults.meet(Op::Look)?;
        self.inner.open_packs()
    }

    fn space(&self) -> Result<Space, BlobError> {
        let space = self.inner.space()?;
        Ok(Space { available: space.available.min(self.faults.room.load(Ordering::SeqCst)), ..space })
    }
}

/// An origin with faults.
pub struct FailingOrigin {
    inner: Arc<dyn Origin>,
    faults: Arc<Faults>,
}

impl FailingOrigin {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Origin>, faults: Arc<Faults>) -> FailingOrigin {
        FailingOrigin { inner, faults }
    }

    fn meet_read(&self, id: &BlobId) -> Result<(), BlobError> {
        self.faults.meet(Op::Read)?;
        match self.faults.is_damaging() {
            true => Err(BlobError::Damaged { id: *id, what: "a test damaged it".to_owned() }),
            false => Ok(()),
        }
    }

    fn meet_store(&self, sums: &Sums) -> Result<(), BlobError> {
        self.faults.meet(Op::Store)?;
        if self.faults.late.load(Ordering::SeqCst) {
            self.faults.unsettled.lock().insert(sums.id());
        }
        self.faults.take_room(u64::from(sums.size()))
    }
}

impl BlobSource for FailingOrigin {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read_as(id, offset, buf, Access::Normal)
    }

    fn read_as(&self, id: &BlobId, offset: u32, buf: &mut [u8], access: Access) -> Result<(), BlobError> {
        self.meet_read(id)?;
        self.inner.read_as(id, offset, buf, access)
    }

    fn is_local(&self, id: &BlobId) -> bool {
        self.inner.is_local(id)
    }

    fn will_need(&self, id: &BlobId) {
        self.inner.will_need(id);
    }

    fn will_need_part(&self, id: &BlobId, offset: u32, len: u32) {
        self.inner.will_need_part(id, offset, len);
    }

    fn evict_last(&self, id: &BlobId) {
        self.inner.evict_last(id);
    }

    fn evict_as_usual(&self) {
        self.inner.evict_as_usual();
    }

    fn in_use(&self, id: &BlobId) -> bool {
        self.inner.in_use(id)
    }

    fn start_read(&self, id: &BlobId, range: Range<u32>, access: Access, completion: Completion) -> Start {
        self.inner.start_read(id, range, access, completion)
    }

    fn file_of(&self, id: &BlobId) -> Option<(File, Sums)> {
        self.meet_read(id).ok()?;
        self.inner.file_of(id)
    }
}

impl Records for FailingOrigin {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.faults.meet(Op::Look)?;
        self.inner.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.faults.meet(Op::Store)?;
        self.inner.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.faults.meet(Op::Store)?;
        self.inner.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.faults.meet(Op::Remove)?;
        self.inner.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.faults.meet(Op::Look)?;
        self.inner.records(folder)
    }
}

impl Origin for FailingOrigin {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        self.meet_store(sums)?;
        self.inner.adopt(id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        self.meet_store(sums)?;
        self.inner.put(id, sums, bytes)
    }

    fn put_shared(&self, id: &BlobId, sums: &Sums, bytes: SharedBytes) -> Result<(), BlobError> {
        self.meet_store(sums)?;
        self.inner.put_shared(id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        self.faults.meet(Op::Sync)?;
        self.inner.sync()
    }

    fn settle(&self, patience: Duration) -> Result<(), BlobError> {
        self.faults.meet(Op::Sync)?;
        self.inner.settle(patience)
    }

    fn is_settled(&self, id: &BlobId) -> bool {
        self.inner.is_settled(id) && !self.faults.unsettled.lock().contains(id)
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.faults.meet(Op::Remove)?;
        self.inner.remove(id)
    }

    fn remove_many(&self, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        self.faults.meet(Op::Remove)?;
        self.inner.remove_many(ids, until)
    }

    fn look(&self) -> Result<Option<String>, BlobError> {
        self.faults.meet(Op::Look)?;
        self.inner.look()
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        self.faults.meet(Op::Look)?;
        self.inner.size(id)
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.faults.meet(Op::Look)?;
        self.inner.list(each)
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.faults.meet(Op::Look)?;
        if self.faults.is_damaging() {
            return Err(BlobError::Damaged { id: *id, what: "a test damaged it".to_owned() });
        }
        self.inner.verify(id)
    }

    fn fetch(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        self.meet_read(id)?;
        self.inner.fetch(id)
    }

    fn fetch_onto(&self, id: &BlobId, onto: &Arc<dyn Onto>) -> Result<Option<(Sums, Buffer)>, BlobError> {
        self.meet_read(id)?;
        self.inner.fetch_onto(id, onto)
    }

    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        self.meet_read(id)?;
        self.inner.fetch_part(id, offset, len)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
