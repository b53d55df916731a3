//! What names an inode between two requests: its handle, or a descriptor.
//!
//! ```text
//!   handle (name_to_handle_at) ─► open_by_handle_at ─► a descriptor, kept if it was used lately
//!   descriptor                 ─► stays open: no handles here, or the file has lost its last name
//! ```
//!
//! A kernel holds the inodes of all names that it has looked up, up to millions. A descriptor for each of
//! them would take those of every other guest. A handle takes memory only. It holds the generation of the
//! inode, so it never leads to another file that got the same number. The filesystem must give handles,
//! and this process must have CAP_DAC_READ_SEARCH, as root of the machine has it.
//!
//! A handle does not keep a file alive. So what loses its last name through this process, while a kernel
//! holds it, keeps a descriptor from then on, as many as [`Pins::kept`]. What a program of this machine
//! removes is gone as soon as its descriptor was not among the last ones.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use fs::Errno;
use fs::api::Result;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::process::{Resource, getrlimit};

/// Bytes of the largest handle (Linux).
const HANDLE_MAX: usize = 128;
/// At most so many descriptors are kept open beside those of files that have no handle.
const KEPT_MAX: u64 = 1 << 16;

/// How many descriptors one purpose may take: files that are known, files without a name, locks. The rest is
/// for open files and connections.
pub(crate) fn share() -> usize {
    let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from((most / 8).clamp(16, KEPT_MAX)).unwrap_or(16)
}

/// The kernel's name of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    kind: i32,
    bytes: Box<[u8]>,
}

/// `struct file_handle` with room.
#[repr(C)]
struct Raw {
    len: u32,
    kind: i32,
    bytes: [MaybeUninit<u8>; HANDLE_MAX],
}

impl Handle {
    /// The handle of an open inode.
    fn of(fd: &OwnedFd) -> Result<Handle> {
        let mut raw = Raw { len: HANDLE_MAX as u32, kind: 0, bytes: [MaybeUninit::new(0); HANDLE_MAX] };
        let mut mount = 0;
        // SAFETY: the path is a C string, and `raw` has the form of a file_handle with room for as many bytes
        // as `len` says, all of which are initialized. The kernel writes to these and to `mount`.
        let done = unsafe {
            libc::name_to_handle_at(
                fd.as_raw_fd(),
                c"".as_ptr(),
                (&raw mut raw).cast(),
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if done != 0 {
            return Err(last_error());
        }
        let len = (raw.len as usize).min(HANDLE_MAX);
        // SAFETY: all bytes were initialized above.
        let bytes = raw.bytes[..len].iter().map(|byte| unsafe { byte.assume_init() }).collect();
        Ok(Handle { kind: raw.kind, bytes })
    }

    /// Opens the inode (`O_PATH`). `mount` is any file of its filesystem.
    fn open(&self, mount: &OwnedFd) -> Result<OwnedFd> {
        let mut raw =
            Raw { len: self.bytes.len() as u32, kind: self.kind, bytes: [MaybeUninit::new(0); HANDLE_MAX] };
        for (to, from) in raw.bytes.iter_mut().zip(&self.bytes) {
            to.write(*from);
        }
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `raw` has the form of a file_handle, and `len` bytes of it are initialized. The kernel only
        // reads it.
        let opened = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut raw).cast(), flags) };
        if opened < 0 {
            return Err(last_error());
        }
        // SAFETY: the kernel has just given this descriptor to this call alone.
        Ok(unsafe { OwnedFd::from_raw_fd(opened) })
    }
}

fn last_error() -> Errno {
    let error = rustix::io::Errno::from_io_error(&std::io::Error::last_os_error());
    crate::errno(error.unwrap_or(rustix::io::Errno::IO))
}

/// Opens inodes again, and keeps the descriptors used last.
pub(crate) struct Pins {
    /// A file of the filesystem. None: it gives no handles, or this process may not use them.
    mount: Option<OwnedFd>,
    /// How many descriptors are kept open for inodes with handles, and how many for those without a name.
    kept: usize,
    queue: Mutex<VecDeque<Weak<Slot>>>,
    nameless: AtomicUsize,
}

/// The descriptor of an inode, if it is open.
#[derive(Default)]
struct Slot {
    fd: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether the descriptor was used since it was looked at last.
    used: AtomicBool,
    /// Whether the descriptor stays open.
    stays: AtomicBool,
}

/// Names an inode.
pub(crate) struct Pin {
    handle: Option<Handle>,
    slot: Arc<Slot>,
    pins: Arc<Pins>,
}

impl Pins {
    /// For the filesystem of a folder.
    pub(crate) fn new(root: &OwnedFd) -> Pins {
        Pins::with(root, share(), true)
    }

    /// Keeps so many descriptors. Without `handles`, all of them.
    pub(crate) fn with(root: &OwnedFd, kept: usize, handles: bool) -> Pins {
        // What is opened with O_PATH does not do.
        let mount = crate::reopen(root, OFlags::RDONLY | OFlags::DIRECTORY).ok();
        let works = |mount: &OwnedFd| Handle::of(root).and_then(|handle| handle.open(mount)).is_ok();
        let mount = mount.filter(|mount| handles && works(mount));
        Pins { mount, kept, queue: Mutex::default(), nameless: AtomicUsize::new(0) }
    }

    /// Whether inodes need no descriptors.
    pub(crate) fn has_handles(&self) -> bool {
        self.mount.is_some()
    }

    /// Names an open inode.
    pub(crate) fn pin(self: &Arc<Self>, fd: OwnedFd) -> Pin {
        let handle = self.mount.as_ref().and_then(|_| Handle::of(&fd).ok());
        let slot = Arc::new(Slot { fd: Mutex::new(Some(Arc::new(fd))), ..Slot::default() });
        Pin { handle, slot, pins: Arc::clone(self) }
    }

    /// A descriptor was opened. Others that were not used since they were looked at last are closed, so that
    /// no more are open than may be.
    fn opened(&self, slot: &Arc<Slot>) {
        let mut close = Vec::new();
        let mut queue = self.queue.lock();
        queue.push_back(Arc::downgrade(slot));
        let mut looks = 2 * queue.len();
        while queue.len() > self.kept && looks > 0 {
            looks -= 1;
            let Some(oldest) = queue.pop_front().and_then(|oldest| oldest.upgrade()) else { continue };
            if oldest.stays.load(Ordering::Relaxed) {
                continue;
            }
            match oldest.used.swap(false, Ordering::Relaxed) {
                true => queue.push_back(Arc::downgrade(&oldest)),
                false => close.push(oldest),
            }
        }
        drop(queue);
        for slot in close {
            let mut fd = slot.fd.lock();
            if !slot.stays.load(Ordering::Relaxed) {
                *fd = None;
            }
        }
    }
}

impl Pin {
    /// A descriptor of the inode (`O_PATH`).
    ///
    /// # Errors
    /// ESTALE: it was removed, and nothing has kept it. Or the system's error.
    pub(crate) fn fd(&self) -> Result<Arc<OwnedFd>> {
        self.slot.used.store(true, Ordering::Relaxed);
        let mut fd = self.slot.fd.lock();
        if let Some(fd) = &*fd {
            return Ok(Arc::clone(fd));
        }
        let (Some(handle), Some(mount)) = (&self.handle, &self.pins.mount) else {
            return Err(Errno(libc::ESTALE));
        };
        let opened = Arc::new(handle.open(mount)?);
        *fd = Some(Arc::clone(&opened));
        drop(fd);
        self.pins.opened(&self.slot);
        Ok(opened)
    }

    /// The inode is held from now on: its descriptor is one of those that are kept.
    pub(crate) fn held(&self) {
        if self.handle.is_some() {
            self.pins.opened(&self.slot);
        }
    }

    /// Whether this is the same inode, of two with the same number.
    pub(crate) fn is(&self, other: &Pin) -> bool {
        self.handle == other.handle
    }

    /// Keeps the inode alive although it loses its last name, unless very many have lost theirs.
    pub(crate) fn keep(&self) {
        if self.handle.is_none() {
            return;
        }
        if self.pins.nameless.fetch_add(1, Ordering::Relaxed) >= self.pins.kept {
            self.pins.nameless.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let open = self.fd();
        let mut fd = self.slot.fd.lock();
        if fd.is_none() {
            *fd = open.ok();
        }
        if self.slot.stays.swap(true, Ordering::Relaxed) {
            self.pins.nameless.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends [`Pin::keep`]: the inode has not lost its last name after all, unless somebody else removed it.
    pub(crate) fn release(&self) {
        let has_name = self.fd().is_ok_and(|fd| rustix::fs::fstat(&fd).is_ok_and(|about| about.st_nlink > 0));
        if has_name && self.slot.stays.swap(false, Ordering::Relaxed) {
            self.pins.nameless.fetch_sub(1, Ordering::Relaxed);
            self.pins.opened(&self.slot);
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.slot.stays.load(Ordering::Relaxed) {
            self.pins.nameless.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
