//! One entry of a ring: the memory for one request and its reply, and the sink that replies to it.
//!
//! ```text
//!  header page                                                  payload: 1 MiB, page-aligned
//!  ├ in_out 128 │ op_in 128 │ in_out of the entry 32 │ ... free ... ║ names, data, replies
//!                                              ◄─ request: header, arguments ─┘ (put together in place)
//! ```
//!
//! The kernel delivers a request in three pieces: its header, the operation's fixed arguments, and the rest
//! as payload. The first two (at most 168 bytes) are copied to the space just below the payload. This makes
//! one contiguous request, so the data of a WRITE is never copied.
//!
//! **Who may touch the memory.** Between a fetch and the commit the memory is ours. First it belongs to the
//! ring thread, which serves the request. After that (`parked`) it belongs to the thread that takes the right
//! to reply by setting `unique` to 0. At all other times it is the kernel's. Anonymous pages take memory only
//! once they are written to: an entry that has only seen small requests costs 8 KiB.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::ring::Mailbox;
use crate::abi::header::{IN_HEADER, OUT_HEADER, out_header};
use crate::abi::{MAX_WRITE, PAGE};
use crate::channel::{Device, Sink};

/// Bytes of payload that the kernel demands of an entry: the size of the largest READ and WRITE.
pub(super) const PAYLOAD: usize = MAX_WRITE;
/// Bytes of an entry, including its header page.
const ENTRY: usize = PAGE + PAYLOAD;
/// The length of the kernel's header structure, and the offsets of its parts.
pub(super) const HEADERS: usize = 288;
const OP_IN: usize = 128;
const OP_IN_LEN: usize = 128;
const PAYLOAD_LEN: usize = 256 + 16;

/// The memory of all entries of one ring.
pub(super) struct Region {
    base: *mut u8,
    len: usize,
}

// SAFETY: the region is plain memory. The rules above say who may touch which part of it, and `Entry` keeps
// them.
unsafe impl Send for Region {}
// SAFETY: as for Send.
unsafe impl Sync for Region {}

impl Region {
    /// Memory for `depth` entries.
    ///
    /// # Errors
    /// The system has no memory.
    pub(super) fn new(depth: usize) -> io::Result<Arc<Region>> {
        let len = depth * ENTRY;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: this makes a new anonymous mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Huge pages would take 2 MiB for each name that is looked up. Without huge pages the call fails
        // harmlessly.
        // SAFETY: this is exactly the mapping made above.
        unsafe { libc::madvise(base, len, libc::MADV_NOHUGEPAGE) };
        Ok(Arc::new(Region { base: base.cast(), len }))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is exactly the mapping made in `new`. Its last user has dropped it.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// The body of a reply on its way to the ring thread.
pub(super) enum Body {
    /// The body is already in the payload.
    Here(usize),
    /// An entry, attributes, a count. Nearly every reply is small.
    Small([u8; SMALL], usize),
    /// Anything else.
    Own(Vec<u8>),
}

/// Large enough for every reply of fixed size.
const SMALL: usize = 160;

/// What happens to the request that an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The ring thread serves it.
    Serving,
    /// Another thread will reply.
    Waiting,
    /// Another thread will reply, at any time: the request has no deadline.
    Endless,
    /// The ring thread has to commit the reply.
    Answered,
}

/// One entry. It is also the sink for the request that it holds.
pub(super) struct Entry {
    index: usize,
    headers: *mut u8,
    /// The request that has no reply yet, or 0.
    unique: AtomicU64,
    parked: AtomicBool,
    /// The request that the kernel has put in here, until the commit: its number, or 0, and its opcode.
    held: AtomicU64,
    opcode: AtomicU32,
    /// The last request that has no deadline.
    endless: AtomicU64,
    mailbox: Arc<Mailbox>,
    device: Arc<Device>,
    _region: Arc<Region>,
}

// SAFETY: `headers` points into the region, which lives as long as this. The rules of access are stated
// above.
unsafe impl Send for Entry {}
// SAFETY: as for Send.
unsafe impl Sync for Entry {}

impl Entry {
    pub(super) fn new(
        region: &Arc<Region>,
        index: usize,
        mailbox: &Arc<Mailbox>,
        device: &Arc<Device>,
    ) -> Entry {
        assert!((index + 1) * ENTRY <= region.len);
        Entry {
            index,
            // SAFETY: the index was just checked, so this is within the region.
            headers: unsafe { region.base.add(index * ENTRY) },
            unique: AtomicU64::new(0),
            parked: AtomicBool::new(false),
            held: AtomicU64::new(0),
            opcode: AtomicU32::new(0),
            endless: AtomicU64::new(0),
            mailbox: Arc::clone(mailbox),
            device: Arc::clone(device),
            _region: Arc::clone(region),
        }
    }

    /// Both pieces of memory, as the kernel expects them when the entry is registered.
    pub(super) fn pieces(&self) -> [libc::iovec; 2] {
        let piece = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
        [piece(self.headers, HEADERS), piece(self.payload(), PAYLOAD)]
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: the payload follows the header page within the entry.
        unsafe { self.headers.add(PAGE) }
    }

    #[allow(
        clippy::mut_from_ref,
        reason = "the buffer is the kernel's memory, lent to us, and not a part of this struct"
    )]
    /// Puts together the request that the kernel has just delivered. Returns its bytes. If the payload is not
    /// part of it, returns the payload as room for the reply. An empty request means that its lengths make no
    /// sense.
    ///
    /// # Safety
    /// The caller is the ring thread. The entry has been fetched and not yet committed. The returned slices
    /// are not used after [`Entry::park`].
    pub(super) unsafe fn open(&self) -> (u64, &[u8], Option<&mut [u8]>) {
        // SAFETY: the caller promises that the entry is ours. All offsets are within the header page.
        let (header, arguments, filled) = unsafe {
            (
                self.headers.cast::<[u8; IN_HEADER]>().read(),
                self.headers.add(OP_IN).cast::<[u8; OP_IN_LEN]>().read(),
                self.headers.add(PAYLOAD_LEN).cast::<u32>().read_unaligned() as usize,
            )
        };
        let number = |at: usize, len: usize| {
            header[at..at + len].iter().rev().fold(0_u64, |all, &byte| all << 8 | u64::from(byte))
        };
        let (total, unique) = (number(0, 4) as usize, number(8, 8));
        self.parked.store(false, Ordering::Relaxed);
        self.opcode.store(number(4, 4) as u32, Ordering::Relaxed);
        self.unique.store(unique, Ordering::Release);
        self.held.store(unique, Ordering::Release);
        let fixed = total.wrapping_sub(IN_HEADER).wrapping_sub(filled);
        if fixed > OP_IN_LEN || filled > PAYLOAD {
            return (unique, &[], None);
        }
        let before = IN_HEADER + fixed;
        // SAFETY: `before` is at most 168, which is free space at the end of the header page, and `filled` is
        // at most the payload. Both slices are disjoint, and nobody else touches the entry until it is
        // parked.
        unsafe {
            let begin = self.payload().sub(before);
            begin.cast::<[u8; IN_HEADER]>().write(header);
            begin.add(IN_HEADER).copy_from_nonoverlapping(arguments.as_ptr(), fixed);
            let request = std::slice::from_raw_parts(begin, before + filled);
            let room = (filled == 0).then(|| std::slice::from_raw_parts_mut(self.payload(), PAYLOAD));
            (unique, request, room)
        }
    }

    /// The opcode of the request that was put together last.
    pub(super) fn opcode(&self) -> u32 {
        self.opcode.load(Ordering::Relaxed)
    }

    /// The request that the kernel has put in here and that was not committed, and what happens to it.
    pub(super) fn held(&self) -> Option<(u64, Stage)> {
        let held = self.held.load(Ordering::Acquire);
        let stage = if self.unique.load(Ordering::Acquire) != held {
            Stage::Answered
        } else if self.endless.load(Ordering::Acquire) == held {
            Stage::Endless
        } else if self.parked.load(Ordering::Acquire) {
            Stage::Waiting
        } else {
            Stage::Serving
        };
        (held != 0).then_some((held, stage))
    }

    /// The ring thread no longer uses the request. From now on any thread may write a reply to the payload.
    pub(super) fn park(&self) {
        self.parked.store(true, Ordering::Release);
    }

    /// Writes a reply where the kernel expects it at the commit.
    ///
    /// # Safety
    /// The caller is the ring thread. The request was answered ([`Sink::reply`] put the answer into the
    /// mailbox), and the entry was not committed since.
    pub(super) unsafe fn seal(&self, unique: u64, error: i32, body: &Body) {
        let len = match body {
            Body::Here(len) => *len,
            // SAFETY: at most SMALL bytes go to the payload, which is ours.
            Body::Small(bytes, len) => unsafe { self.fill(&bytes[..*len]) },
            // SAFETY: `reply` lets no body through that is longer than the payload.
            Body::Own(bytes) => unsafe { self.fill(bytes) },
        };
        let header: [u8; OUT_HEADER] = out_header(len, error, unique);
        self.held.store(0, Ordering::Release);
        // SAFETY: both offsets are within the header page, which is ours.
        unsafe {
            self.headers.cast::<[u8; OUT_HEADER]>().write(header);
            self.headers.add(PAYLOAD_LEN).cast::<u32>().write_unaligned(len as u32);
        }
    }

    /// # Safety
    /// The payload is the caller's, and `bytes` are not part of it.
    unsafe fn fill(&self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(PAYLOAD);
        // SAFETY: the caller promises this. The length is never more than the payload holds.
        unsafe { self.payload().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        len
    }
}

impl Sink for Entry {
    fn reply(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        if body.len() > PAYLOAD {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        if self.mailbox.is_closed() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        // The thread that takes the number out of here replies, once. A reply to an earlier request finds
        // another number.
        if self.unique.compare_exchange(unique, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        let body = if body.is_empty() {
            Body::Here(0)
        } else if std::ptr::eq(body.as_ptr(), self.payload()) {
            Body::Here(body.len())
        } else if body.len() <= SMALL {
            let mut bytes = [0; SMALL];
            bytes[..body.len()].copy_from_slice(body);
            Body::Small(bytes, body.len())
        } else if self.parked.load(Ordering::Acquire) {
            // SAFETY: the ring thread has parked the entry, and only this call took the right to reply.
            // `body` is the caller's own memory, as the test above shows.
            Body::Here(unsafe { self.fill(body) })
        } else {
            Body::Own(body.to_vec())
        };
        self.mailbox.post(self.index, unique, error, body);
        Ok(())
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.device.notify(code, parts)
    }

    fn has_no_deadline(&self, unique: u64) {
        self.endless.store(unique, Ordering::Release);
    }
}
