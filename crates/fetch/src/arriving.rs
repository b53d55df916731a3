//! A blob that is being received. Bytes are verified as they arrive, and verified bytes can be read and
//! passed on at once.
//!
//! ```text
//!   0                   verified               filled                   size
//!   ├──── free to read ─────┼─── the one group ───┼── not there yet ───────┤
//!   │  bytes never change   │  that is arriving   │                        │
//! ```
//!
//! The blob's [`Sums`] come first. Their hash is the blob's id, so a sender cannot forge them. From then on
//! every group of 64 KiB is verified as soon as it is whole, in the buffer in which it stays. So a node can
//! send a blob while it is still arriving (a child reads up to `verified`), and after the last group the blob
//! can be admitted to the cache without hashing it again.
//!
//! Several sources may fill the same blob, one after the other or at the same time. The first one to reach
//! `filled` appends. Bytes of the others below it are skipped. If a source fails, the verified bytes stay,
//! and the next source is asked for the rest.
//!
//! [`Verify`] says which checks are made: the hash of each group or, for a fleet whose nodes trust each
//! other, only the CRCs of its segments.
//!
//! The id proves the chaining values and nothing else of the sums. Their CRCs and the length of the last
//! group are claims of the sender. With [`Verify::Blake3`], bytes with the right hash are right, whatever the
//! CRCs say. If the CRCs disagree, the sums are computed again before anyone gets them
//! ([`Arriving::into_parts`]), and nothing is served from here until then. If a forged length keeps correct
//! bytes out, [`Arriving::complete`] returns them to a caller that got them from the origin.

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use base::BlobId;
use base::size::GROUP;
use blob::{Buffer, Sums};
use parking_lot::{Condvar, Mutex};

use crate::waiter::Waiter;

#[cfg(test)]
mod tests;

/// How received bytes are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// By the blob's own hash tree, group by group. No sender can deceive, and only bytes that match the id
    /// are kept.
    #[default]
    Blake3,
    /// By the sender's CRC32C of each segment, and nothing is hashed. This finds every accident but trusts
    /// the sender's intentions. It costs a fifth. A node that lies can make this node keep wrong bytes under
    /// the blob's id.
    Crc,
}

/// Why bytes were not taken, or did not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The bytes are not the blob's.
    #[error("{0}")]
    Wrong(String),
    /// The bytes came without sums, for a place before which bytes are missing, or beyond the blob's end.
    #[error("{0}")]
    Misplaced(String),
    /// The bytes did not come within this time.
    #[error("not within {0:?}")]
    Late(Duration),
    /// The fetch was given up.
    #[error("the fetch was given up")]
    GivenUp,
}

/// Is notified at every step of a blob that is being received.
pub trait Bell: Send + Sync {
    /// Must not block.
    fn ring(&self);
}

/// A blob that is being received. The filling side and the readers share it.
pub struct Arriving {
    id: BlobId,
    verify: Verify,
    sums: OnceLock<Arc<Sums>>,
    room: OnceLock<Room>,
    /// Bytes below are verified and never change again. Stored with Release after they were written.
    verified: AtomicU32,
    /// Some bytes with the right hash had other CRCs than the sums say.
    doubtful: AtomicBool,
    /// Held while bytes are received and verified (never across a wait), so that there is one writer at a
    /// time.
    writing: Mutex<Writing>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// The number of waiters that took their bytes from here.
    served: Arc<AtomicU64>,
}

#[derive(Default)]
struct Writing {
    /// How many bytes have arrived. Those above `verified` are unchecked.
    filled: u32,
}

#[derive(Default)]
struct Waiting {
    failed: Option<Fault>,
    bells: Vec<Weak<dyn Bell>>,
    waiters: Vec<Arc<Waiter>>,
}

/// What happened to bytes that a source offered.
#[derive(Debug, PartialEq, Eq)]
pub enum Took {
    /// The number of bytes that were taken.
    Bytes(usize),
    /// The number of bytes that are already here. Skip them.
    Skip(usize),
}

impl Arriving {
    /// An empty one.
    pub fn new(id: BlobId, verify: Verify) -> Arc<Arriving> {
        Arriving::counting(id, verify, Arc::default())
    }

    /// Returns an empty buffer. `served` counts the waiters that take their bytes from it.
    pub(crate) fn counting(id: BlobId, verify: Verify, served: Arc<AtomicU64>) -> Arc<Arriving> {
        Arc::new(Arriving {
            id,
            verify,
            sums: OnceLock::new(),
            room: OnceLock::new(),
            verified: AtomicU32::new(0),
            doubtful: AtomicBool::new(false),
            writing: Mutex::default(),
            waiting: Mutex::default(),
            changed: Condvar::new(),
            served,
        })
    }

    /// A blob that is already here, whole and verified.
    pub(crate) fn here(id: BlobId, verify: Verify, sums: Arc<Sums>, bytes: Buffer) -> Arc<Arriving> {
        let arriving = Arriving::new(id, verify);
        arriving.settle(sums, bytes);
        arriving
    }

    /// Takes the whole blob, verified by the caller, if nothing of it has come yet. Returns whether it did.
    pub(crate) fn settle(&self, sums: Arc<Sums>, bytes: Buffer) -> bool {
        let mut writing = self.writing.lock();
        if self.sums.get().is_some() {
            return false;
        }
        let size = bytes.len() as u32;
        let _ = self.room.set(Room::full(bytes));
        let _ = self.sums.set(sums);
        writing.filled = size;
        self.verified.store(size, Ordering::Release);
        drop(writing);
        self.tell();
        true
    }

    /// The blob's id.
    pub fn id(&self) -> BlobId {
        self.id
    }

    /// Returns the blob's sums, once they have arrived.
    pub fn sums(&self) -> Option<&Arc<Sums>> {
        self.sums.get()
    }

    /// Returns the blob's size in bytes, once the sums have arrived.
    pub fn size(&self) -> Option<u32> {
        self.sums.get().map(|sums| sums.size())
    }

    /// How many bytes can be read, from the first on.
    pub fn verified(&self) -> u32 {
        self.verified.load(Ordering::Acquire)
    }

    /// Whether all of it is here.
    pub fn is_whole(&self) -> bool {
        self.size() == Some(self.verified())
    }

    /// The CRCs that came with it are wrong. It must not be passed on before they have been computed.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire)
    }

    /// Why its fetch was given up, if it was.
    pub fn failed(&self) -> Option<Fault> {
        self.waiting.lock().failed.clone()
    }

    /// Takes the sums, which come before the bytes. The same sums again are accepted: another source
    /// continues.
    ///
    /// # Errors
    /// [`Fault::Wrong`]: they are another blob's, or disagree with those that came before.
    pub fn begin(&self, sums: Sums) -> Result<(), Fault> {
        if !sums.belong_to(&self.id) {
            return Err(Fault::Wrong(format!("the sums are those of {}, not of {}", sums.id(), self.id)));
        }
        let writing = self.writing.lock();
        if let Some(known) = self.sums.get() {
            let same = **known == sums;
            return same.then_some(()).ok_or_else(|| Fault::Wrong("two senders' sums differ".to_owned()));
        }
        let size = sums.size() as usize;
        let _ = self.room.set(Room::empty(Buffer::with_room(size), size));
        let _ = self.sums.set(Arc::new(sums));
        drop(writing);
        self.tell();
        Ok(())
    }

    /// Receives the next bytes straight into their place. `from` is the source's position in the blob, `most`
    /// is how many bytes it has. `read` gets the memory and returns how many bytes it wrote. It must not
    /// wait.
    ///
    /// # Errors
    /// The error of `read`. [`Fault::Wrong`] inside: a whole group arrived and is wrong; verified bytes
    /// stay. [`Fault::Misplaced`]: the sums have not arrived, or nothing can be appended at the source's
    /// position.
    pub fn receive(
        &self,
        from: u32,
        most: usize,
        read: impl FnOnce(&mut [MaybeUninit<u8>]) -> io::Result<usize>,
    ) -> io::Result<Result<Took, Fault>> {
        let protocol = |what: &str| Ok(Err(Fault::Misplaced(what.to_owned())));
        let (Some(sums), Some(room)) = (self.sums.get(), self.room.get()) else {
            return protocol("bytes came before the sums");
        };
        let mut writing = self.writing.lock();
        let left = (sums.size() - writing.filled) as usize;
        if from < writing.filled {
            return Ok(Ok(Took::Skip(((writing.filled - from) as usize).min(most))));
        }
        if from > writing.filled {
            return protocol("bytes came for a place before which some are missing");
        }
        if left == 0 || most > left {
            return protocol("more bytes came than the blob has");
        }
        let at = writing.filled as usize;
        // SAFETY: `filled` never exceeds the room's size, and `most` not what is left. The lock makes this
        // the only writer, and readers only see bytes below `verified`, which is at most `filled`.
        let place = unsafe { room.unwritten(at..at + most) };
        let got = read(place)?.min(most);
        writing.filled += got as u32;
        let checked = self.check(sums, room, writing.filled);
        if checked.is_err() {
            writing.filled = self.verified();
        }
        drop(writing);
        if !matches!(checked, Ok(false)) {
            // Even before an error: the groups before the wrong one are free to read.
            self.tell();
        }
        Ok(checked.map(|_| Took::Bytes(got)))
    }

    /// Verifies the groups that are whole now and frees them for reading. True: there are some.
    fn check(&self, sums: &Sums, room: &Room, filled: u32) -> Result<bool, Fault> {
        let verified = self.verified();
        let end = if filled == sums.size() { filled } else { filled - filled % GROUP };
        if end <= verified {
            return Ok(false);
        }
        // SAFETY: bytes below `filled` have been written, and the caller holds the lock that every writer
        // needs.
        let bytes = unsafe { room.written(verified as usize..end as usize) };
        for (index, group) in bytes.chunks(GROUP as usize).enumerate() {
            let offset = verified + index as u32 * GROUP;
            let crcs = sums.check(offset, group);
            let right = match self.verify {
                Verify::Crc => crcs,
                Verify::Blake3 => {
                    let right = sums.check_group(offset, group);
                    if right.is_ok() && crcs.is_err() {
                        self.doubtful.store(true, Ordering::Release);
                    }
                    right
                }
            };
            if let Err(wrong) = right {
                self.verified.store(offset, Ordering::Release);
                return Err(Fault::Wrong(wrong.to_string()));
            }
        }
        self.verified.store(end, Ordering::Release);
        Ok(true)
    }

    /// Takes the whole blob from another place, such as the origin. It is hashed here, unless sums have come
    /// that match it.
    ///
    /// # Errors
    /// [`Fault::Wrong`], and the bytes back: they are another blob's, or disagree with the sums that came
    /// before.
    pub fn complete(&self, bytes: Buffer) -> Result<(), (Fault, Buffer)> {
        let corrupt = |why: String, bytes| Err((Fault::Wrong(why), bytes));
        if bytes.len() > base::size::BLOB_MAX as usize {
            return corrupt(format!("{} bytes are more than a blob has", bytes.len()), bytes);
        }
        if self.sums.get().is_none() {
            let sums = Sums::of(&bytes);
            if !sums.belong_to(&self.id) {
                return corrupt(format!("the bytes are those of {}, not of {}", sums.id(), self.id), bytes);
            }
            // The clone shares the memory.
            if self.settle(Arc::new(sums), bytes.clone()) {
                return Ok(());
            }
        }
        if self.size() != u32::try_from(bytes.len()).ok() {
            return corrupt("the blob has another size".to_owned(), bytes);
        }
        self.append(&bytes).map_err(|fail| (fail, bytes))
    }

    /// Takes what is not here yet from a prefix of the blob that another place delivers. The sums must be
    /// here.
    ///
    /// # Errors
    /// [`Fault::Wrong`]: they are wrong. [`Fault::Misplaced`]: no sums yet, or more bytes than the blob has.
    pub fn append(&self, bytes: &[u8]) -> Result<(), Fault> {
        let at = self.verified();
        self.take(at, bytes.get(at as usize..).unwrap_or_default())
    }

    /// Takes what is not here yet of the blob's bytes from `offset` on, if all bytes before them have
    /// arrived.
    ///
    /// # Errors
    /// As [`Arriving::append`].
    pub fn take(&self, offset: u32, bytes: &[u8]) -> Result<(), Fault> {
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let took = self.receive(offset + taken as u32, rest.len(), |room| Ok(copy(rest, room)));
            match took.map_err(|error| Fault::Misplaced(error.to_string()))?? {
                Took::Bytes(count) | Took::Skip(count) => taken += count,
            }
        }
        Ok(())
    }

    /// Gives up. All waiters get this error.
    pub fn fail(&self, why: Fault) {
        self.waiting.lock().failed.get_or_insert(why);
        self.tell();
    }

    /// The bytes of a range, if all of them have been verified.
    pub fn bytes(&self, range: Range<u32>) -> Option<&[u8]> {
        let fits = range.start <= range.end && range.end <= self.verified();
        let room = self.room.get().filter(|_| fits)?;
        // SAFETY: bytes below `verified` were written before it was stored with Release, and are never
        // written again.
        Some(unsafe { room.written(range.start as usize..range.end as usize) })
    }

    /// Waits on this thread until the bytes below `end` (or all, if the blob is shorter) can be read.
    ///
    /// # Errors
    /// [`Fault::Late`] at `until`, or why the fetch was given up.
    pub fn wait_for(&self, end: u32, until: Instant) -> Result<(), Fault> {
        let began = base::time::monotonic();
        let mut waiting = self.waiting.lock();
        loop {
            if self.reaches(end) {
                return Ok(());
            }
            if let Some(fail) = &waiting.failed {
                return Err(fail.clone());
            }
            if self.changed.wait_until(&mut waiting, until).timed_out() && !self.reaches(end) {
                return Err(waiting.failed.clone().unwrap_or_else(|| Fault::Late(began.elapsed())));
            }
        }
    }

    /// Completes the waiter as soon as its range is here, at once if it is. A fetch that fails does not
    /// complete it.
    pub(crate) fn notify(&self, waiter: &Arc<Waiter>) {
        let mut waiting = self.waiting.lock();
        if self.has(waiter) {
            drop(waiting);
            self.serve(waiter);
        } else if waiting.failed.is_none() {
            waiting.waiters.push(Arc::clone(waiter));
        }
    }

    /// Whether the waiter's range is here, and is known to be right.
    fn has(&self, waiter: &Waiter) -> bool {
        // If the sums are doubtful, the whole blob must be compared first.
        self.verified() >= waiter.range().end && !self.is_doubtful()
    }

    fn serve(&self, waiter: &Waiter) {
        if let Some(bytes) = self.bytes(waiter.range())
            && waiter.complete(Ok(bytes))
        {
            self.served.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the sums are here, and the bytes below `end` or all.
    fn reaches(&self, end: u32) -> bool {
        self.size().is_some_and(|size| self.verified() >= end.min(size))
    }

    /// Rings `bell` at every step from now on, as long as it exists.
    pub fn ring(&self, bell: &Arc<impl Bell + 'static>) {
        let bell: Weak<dyn Bell> = Arc::downgrade(bell) as Weak<dyn Bell>;
        let mut waiting = self.waiting.lock();
        waiting.bells.retain(|known| known.strong_count() > 0);
        if !waiting.bells.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), bell.as_ptr())) {
            waiting.bells.push(bell);
        }
    }

    fn tell(&self) {
        let mut waiting = self.waiting.lock();
        waiting.bells.iter().filter_map(Weak::upgrade).for_each(|bell| bell.ring());
        let over = waiting.failed.is_some();
        let due: Vec<_> = waiting.waiters.extract_if(.., |waiter| over || self.has(waiter)).collect();
        drop(waiting);
        self.changed.notify_all();
        // Only those whose range is here. The others have another completion to wait for.
        due.iter().filter(|waiter| self.has(waiter)).for_each(|waiter| self.serve(waiter));
    }

    /// The whole blob and its sums, ready to be admitted. Those who still read it here share the memory.
    /// None: it is not whole.
    pub fn into_parts(self: Arc<Arriving>) -> Option<(Arc<Sums>, Buffer)> {
        let sums = Arc::clone(self.sums.get()?);
        let room = self.room.get().filter(|_| self.is_whole())?;
        // Everything has arrived, so nothing is written to it any more.
        let bytes = room.buffer.clone().of_len(room.size);
        Some(if self.is_doubtful() { (Arc::new(Sums::of(&bytes)), bytes) } else { (sums, bytes) })
    }
}

impl std::fmt::Debug for Arriving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {:?} bytes of {}", self.verified(), self.size(), self.id)
    }
}

fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) -> usize {
    let count = from.len().min(to.len());
    to[..count].write_copy_of_slice(&from[..count]);
    count
}

/// Memory of a fixed size that is written from the front while what is already there is read.
struct Room {
    /// Where the buffer's memory begins. As long as slices of this exist, the memory is accessed only through
    /// this pointer.
    start: NonNull<u8>,
    size: usize,
    buffer: Buffer,
}

// SAFETY: it owns its memory, and its two functions state who may access which part of it.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    /// Memory to be written: the first `size` bytes of a buffer that has room for them.
    fn empty(mut buffer: Buffer, size: usize) -> Room {
        let size = size.min(buffer.room());
        let start = NonNull::from(buffer.whole_room()).cast();
        Room { start, size, buffer }
    }

    /// Memory that is completely written and may be shared. Only empty ranges of it are ever written.
    fn full(buffer: Buffer) -> Room {
        Room { start: NonNull::from(&*buffer).cast(), size: buffer.len(), buffer }
    }

    /// # Safety
    /// The range lies inside `size`, and nothing else reads or writes it while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the caller makes it the only one, by the lock that writers hold")]
    unsafe fn unwritten(&self, range: Range<usize>) -> &mut [MaybeUninit<u8>] {
        // SAFETY: inside one allocation, and exclusive, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start).cast(), range.len()) }
    }

    /// # Safety
    /// The range lies inside `size`, its bytes have been written, and nothing writes them while the slice
    /// lives.
    unsafe fn written(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: inside one allocation, written and unchanging, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }
}
