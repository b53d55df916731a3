//! A blob that is being received: bytes are verified as they come, and what is verified can be read and passed on at once.
//!
//! ```text
//!      0                    verified              filled                    size
//!      ├──── anyone reads ─────┼─── the one group ───┼── not there yet ───────┤
//!      │ bytes never change    │ that is coming      │                        │
//! ```
//!
//! The blob's [`Sums`] come first. They lead to its name, so a sender cannot make them up; from then on every group of 64 KiB is checked as
//! soon as it is whole, in the buffer that it stays in. So a node can serve a blob while it is still coming (a child reads up to
//! `verified`), and when the last group is there the blob can be admitted without hashing it again.
//!
//! Several sources may fill the same blob, one after the other or even together: whoever comes to `filled` first appends, the other's
//! bytes below it are skipped. A source that goes away leaves what was verified, and the next one is asked for the rest.
//!
//! Which checks are made is [`Verify`]: the hash of each group, or only the CRCs of its segments, for a fleet whose nodes trust each other.
//!
//! The name proves the chaining values, and nothing else of the sums: their CRCs and the length of the last group are the sender's word.
//! With [`Verify::Blake3`] bytes that have the right hash are right, whatever the CRCs say; if those say otherwise the sums are computed
//! anew before anybody is given them ([`Arriving::into_parts`]), and nobody is served from here until then. Where a made-up length keeps
//! honest bytes out, [`Arriving::complete`] hands them back to a caller that had them from the origin.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use base::BlobId;
use base::size::GROUP;
use blob::coming::{Missed, Then};
use blob::{Buffer, Sums};
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::net::Fail;

#[cfg(test)]
mod tests;

/// How what comes is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// By the blob's own hash tree, group by group: nobody can deceive. Only what has the name is ever kept.
    #[default]
    Blake3,
    /// By the CRC32C of each segment as the sender has it, and nothing is hashed: finds every accident, trusts the sender's intentions. A
    /// fifth of the cost. A node that lies can have other bytes kept here under the blob's name.
    Crc,
}

/// A blob that is being received. Shared between who fills it and who reads it.
pub struct Arriving {
    id: BlobId,
    verify: Verify,
    sums: OnceLock<Arc<Sums>>,
    room: OnceLock<Room>,
    /// Bytes below are checked and never change again. Stored with Release after they were written.
    verified: AtomicU32,
    /// Bytes with the right hash had other CRCs than the sums say.
    doubtful: AtomicBool,
    /// Held while bytes are received and checked (never across a wait), so that there is one writer at a time.
    writing: Mutex<Writing>,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Writing {
    /// How far bytes have come; those above `verified` are unchecked.
    filled: u32,
}

/// Who is to be given a range as soon as it is here, or told that it will not be.
pub(crate) struct Await {
    /// Where in the blob it is.
    pub(crate) range: Range<u32>,
    /// Is called once, by whoever brings the bytes: a loop that has other connections to read.
    pub(crate) then: Then,
}

impl Await {
    fn tell(self, arriving: &Arriving) {
        // With sums that are in doubt all of it is compared first.
        let bytes = arriving.bytes(self.range).filter(|_| !arriving.is_doubtful());
        (self.then)(bytes.ok_or(Missed::Read));
    }
}

#[derive(Default)]
struct Waiting {
    failed: Option<Fail>,
    wakers: Vec<Waker>,
    bells: Vec<Weak<Notify>>,
    awaits: Vec<Await>,
}

/// What became of bytes that a source offered.
#[derive(Debug, PartialEq, Eq)]
pub enum Took {
    /// So many were taken.
    Bytes(usize),
    /// So many are here already: leave them out.
    Skip(usize),
}

impl Arriving {
    /// Nothing of it is here.
    pub fn new(id: BlobId, verify: Verify) -> Arc<Arriving> {
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
        })
    }

    /// One that is here already, whole and right: for those who ask for it before it is anywhere else.
    pub(crate) fn here(id: BlobId, verify: Verify, sums: Arc<Sums>, bytes: Buffer) -> Arc<Arriving> {
        let (arriving, size) = (Arriving::new(id, verify), bytes.len() as u32);
        let _ = arriving.room.set(Room::full(bytes));
        let _ = arriving.sums.set(sums);
        arriving.writing.lock().filled = size;
        arriving.verified.store(size, Ordering::Release);
        arriving
    }

    /// The blob's name.
    pub fn id(&self) -> BlobId {
        self.id
    }

    /// Its sums, once they have come.
    pub fn sums(&self) -> Option<&Arc<Sums>> {
        self.sums.get()
    }

    /// Its size in bytes, once the sums have come.
    pub fn size(&self) -> Option<u32> {
        self.sums.get().map(|sums| sums.size())
    }

    /// How many bytes from the first on can be read.
    pub fn verified(&self) -> u32 {
        self.verified.load(Ordering::Acquire)
    }

    /// All of it is here.
    pub fn is_whole(&self) -> bool {
        self.size() == Some(self.verified())
    }

    /// The CRCs that came with it are wrong: it is passed on only when they have been computed.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire)
    }

    /// Why nobody goes on with it, if that is so.
    pub fn failed(&self) -> Option<Fail> {
        self.waiting.lock().failed.clone()
    }

    /// Takes the sums, which come before the bytes. The same ones again are fine: another source goes on.
    ///
    /// # Errors
    /// [`Fail::Corrupt`]: they are another blob's, or disagree with those that came before.
    pub fn begin(&self, sums: Sums) -> Result<(), Fail> {
        if sums.id() != self.id {
            return Err(Fail::Corrupt(format!("the sums are those of {}, not of {}", sums.id(), self.id)));
        }
        let writing = self.writing.lock();
        if let Some(known) = self.sums.get() {
            let same = **known == sums;
            return same.then_some(()).ok_or_else(|| Fail::Corrupt("two senders' sums differ".to_owned()));
        }
        let size = sums.size() as usize;
        let _ = self.room.set(Room::empty(Buffer::with_room(size), size));
        let _ = self.sums.set(Arc::new(sums));
        drop(writing);
        self.tell();
        Ok(())
    }

    /// Receives the next bytes straight into their place: `from` is where in the blob the source stands, `most` how many it has.
    /// `read` is given the room and says how many bytes it wrote; it must not wait.
    ///
    /// # Errors
    /// What `read` says. [`Fail::Corrupt`] inside: a whole group came and is wrong; what was verified stays. [`Fail::Protocol`]: the sums have
    /// not come, or the source stands where nothing can be appended.
    pub fn receive(
        &self,
        from: u32,
        most: usize,
        read: impl FnOnce(&mut [MaybeUninit<u8>]) -> io::Result<usize>,
    ) -> io::Result<Result<Took, Fail>> {
        let protocol = |what: &str| Ok(Err(Fail::Protocol(what.to_owned())));
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
        // SAFETY: `filled` never exceeds the room's size and `most` not what is left; the lock makes this the only writer, and readers
        // only ever see bytes below `verified`, which is at most `filled`.
        let place = unsafe { room.unwritten(at..at + most) };
        let got = read(place)?.min(most);
        writing.filled += got as u32;
        let checked = self.check(sums, room, writing.filled);
        if checked.is_err() {
            writing.filled = self.verified();
        }
        drop(writing);
        if !matches!(checked, Ok(false)) {
            // Also before an error: groups before the wrong one are free.
            self.tell();
        }
        Ok(checked.map(|_| Took::Bytes(got)))
    }

    /// Checks the groups that are whole now and gives them free. True: there are some.
    fn check(&self, sums: &Sums, room: &Room, filled: u32) -> Result<bool, Fail> {
        let verified = self.verified();
        let end = if filled == sums.size() { filled } else { filled - filled % GROUP };
        if end <= verified {
            return Ok(false);
        }
        // SAFETY: bytes below `filled` have been written, and the caller holds the lock that every writer needs.
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
                return Err(Fail::Corrupt(wrong.to_string()));
            }
        }
        self.verified.store(end, Ordering::Release);
        Ok(true)
    }

    /// Takes the whole blob from elsewhere, as from the origin. It is hashed here, unless sums have come that it agrees with.
    ///
    /// # Errors
    /// [`Fail::Corrupt`], and the bytes again: they are another blob's, or disagree with the sums that came before.
    pub fn complete(&self, bytes: Buffer) -> Result<(), (Fail, Buffer)> {
        let corrupt = |why: String, bytes| Err((Fail::Corrupt(why), bytes));
        if bytes.len() > base::size::BLOB_MAX as usize {
            return corrupt(format!("{} bytes are more than a blob has", bytes.len()), bytes);
        }
        if self.sums.get().is_none() {
            let sums = Sums::of(&bytes);
            if sums.id() != self.id {
                return corrupt(format!("the bytes are those of {}, not of {}", sums.id(), self.id), bytes);
            }
            let mut writing = self.writing.lock();
            if self.sums.get().is_none() {
                let size = sums.size();
                let _ = self.room.set(Room::full(bytes));
                let _ = self.sums.set(Arc::new(sums));
                writing.filled = size;
                self.verified.store(size, Ordering::Release);
                drop(writing);
                self.tell();
                return Ok(());
            }
        }
        if self.size() != u32::try_from(bytes.len()).ok() {
            return corrupt("the blob has another size".to_owned(), bytes);
        }
        self.append(&bytes).map_err(|fail| (fail, bytes))
    }

    /// Takes what is not here yet from the blob's first bytes, as they come from elsewhere; the sums must be here.
    ///
    /// # Errors
    /// [`Fail::Corrupt`]: they are wrong. [`Fail::Protocol`]: no sums yet, or more bytes than the blob has.
    pub fn append(&self, bytes: &[u8]) -> Result<(), Fail> {
        let at = self.verified();
        self.take(at, bytes.get(at as usize..).unwrap_or_default())
    }

    /// The same of bytes from `offset` on, if all before them have come.
    ///
    /// # Errors
    /// As [`Arriving::append`].
    pub fn take(&self, offset: u32, bytes: &[u8]) -> Result<(), Fail> {
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let took = self.receive(offset + taken as u32, rest.len(), |room| Ok(copy(rest, room)));
            match took.map_err(|error| Fail::Protocol(error.to_string()))?? {
                Took::Bytes(count) | Took::Skip(count) => taken += count,
            }
        }
        Ok(())
    }

    /// Nobody goes on: whoever waits gets this.
    pub fn fail(&self, why: Fail) {
        self.waiting.lock().failed.get_or_insert(why);
        self.tell();
    }

    /// The bytes of a range, when they have all been verified.
    pub fn bytes(&self, range: Range<u32>) -> Option<&[u8]> {
        let fits = range.start <= range.end && range.end <= self.verified();
        let room = self.room.get().filter(|_| fits)?;
        // SAFETY: bytes below `verified` were written before it was stored with Release, and are never written again.
        Some(unsafe { room.written(range.start as usize..range.end as usize) })
    }

    /// Waits on this thread until the bytes below `end` (or all, if the blob is shorter) can be read.
    ///
    /// # Errors
    /// [`Fail::Late`] at `until`, or why it came to nothing.
    pub fn wait_for(&self, end: u32, until: Instant) -> Result<(), Fail> {
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
                return Err(waiting.failed.clone().unwrap_or_else(|| Fail::Late(began.elapsed())));
            }
        }
    }

    /// The same to be awaited, without a time.
    pub fn reach(&self, end: u32) -> Reach<'_> {
        Reach { arriving: self, end }
    }

    /// Gives a range to whoever awaits it: when it is here or all has failed, or at once.
    pub(crate) fn give(&self, wait: Await) {
        let mut waiting = self.waiting.lock();
        if self.reaches(wait.range.end) || waiting.failed.is_some() {
            drop(waiting);
            wait.tell(self);
        } else {
            waiting.awaits.push(wait);
        }
    }

    /// Those who wait for what has not come.
    pub(crate) fn take_awaits(&self) -> Vec<Await> {
        std::mem::take(&mut self.waiting.lock().awaits)
    }

    /// Whether the sums are here, and the bytes below `end` or all.
    fn reaches(&self, end: u32) -> bool {
        self.size().is_some_and(|size| self.verified() >= end.min(size))
    }

    /// Rings at every step from now on, as long as the bell exists.
    pub(crate) fn ring(&self, bell: &Arc<Notify>) {
        let mut waiting = self.waiting.lock();
        waiting.bells.retain(|known| known.strong_count() > 0);
        if !waiting.bells.iter().any(|known| known.as_ptr() == Arc::as_ptr(bell)) {
            waiting.bells.push(Arc::downgrade(bell));
        }
    }

    fn tell(&self) {
        let mut waiting = self.waiting.lock();
        let wakers = std::mem::take(&mut waiting.wakers);
        waiting.bells.iter().filter_map(Weak::upgrade).for_each(|bell| bell.notify_one());
        let over = waiting.failed.is_some();
        let due = |wait: &mut Await| over || self.reaches(wait.range.end);
        let due: Vec<Await> = waiting.awaits.extract_if(.., due).collect();
        drop(waiting);
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
        due.into_iter().for_each(|wait| wait.tell(self));
    }

    /// The whole blob and its sums, ready to be admitted. The memory is shared with those who still read it here.
    /// None: it is not whole.
    pub fn into_parts(self: Arc<Arriving>) -> Option<(Arc<Sums>, Buffer)> {
        let sums = Arc::clone(self.sums.get()?);
        let room = self.room.get().filter(|_| self.is_whole())?;
        // Nobody writes to it any more: all that there is to come has come.
        let bytes = room.buffer.clone().of_len(room.size);
        Some(if self.is_doubtful() { (Arc::new(Sums::of(&bytes)), bytes) } else { (sums, bytes) })
    }
}

impl std::fmt::Debug for Arriving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {:?} bytes of {}", self.verified(), self.size(), self.id)
    }
}

/// See [`Arriving::reach`].
pub struct Reach<'a> {
    arriving: &'a Arriving,
    end: u32,
}

impl Future for Reach<'_> {
    type Output = Result<(), Fail>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut waiting = self.arriving.waiting.lock();
        if self.arriving.reaches(self.end) {
            return Poll::Ready(Ok(()));
        }
        if let Some(fail) = &waiting.failed {
            return Poll::Ready(Err(fail.clone()));
        }
        if !waiting.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) -> usize {
    let count = from.len().min(to.len());
    to[..count].write_copy_of_slice(&from[..count]);
    count
}

/// Memory of a fixed size that is written from the front while what is already there is read.
struct Room {
    /// Where the buffer's memory begins: as long as there are references to this, the memory is reached from here only.
    start: NonNull<u8>,
    size: usize,
    buffer: Buffer,
}

// SAFETY: it is memory that it owns; who may touch which part is said at its two functions.
unsafe impl Send for Room {}
// SAFETY: as above.
unsafe impl Sync for Room {}

impl Room {
    /// To be written: the first `size` bytes of a buffer with room for so many.
    fn empty(mut buffer: Buffer, size: usize) -> Room {
        let size = size.min(buffer.room());
        let start = NonNull::from(buffer.whole_room()).cast();
        Room { start, size, buffer }
    }

    /// All of it is written, and others may have it as well: nothing but empty ranges is ever written to it.
    fn full(buffer: Buffer) -> Room {
        Room { start: NonNull::from(&*buffer).cast(), size: buffer.len(), buffer }
    }

    /// # Safety
    /// The range lies inside `size`, and nobody else reads or writes it while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the caller makes it the only one, by the lock that writers hold")]
    unsafe fn unwritten(&self, range: Range<usize>) -> &mut [MaybeUninit<u8>] {
        // SAFETY: inside one allocation, and exclusive, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start).cast(), range.len()) }
    }

    /// # Safety
    /// The range lies inside `size`, its bytes have been written, and nobody writes them while the slice lives.
    unsafe fn written(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: inside one allocation, written and unchanging, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }
}
