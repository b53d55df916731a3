//! Where requests come from and replies go: the interface below the dispatcher.
//!
//! ```text
//!   Source::receive ──► dispatch: decode ─► Filesystem ─► encode ──► Sink::reply
//! ```
//!
//! [`Device`] is both ends over /dev/fuse: one read(2) per request, one writev(2) per reply. [`crate::uring`]
//! receives requests from its own rings and has a sink per ring entry, which passes a reply back to the ring
//! that owns the entry. A byte stream to a guest fits the same interface: its source splits the stream by the
//! length in each header. No code above this file knows a file descriptor.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::abi::header::{OUT_HEADER, out_header};

/// The FUSE device.
pub const DEVICE: &str = "/dev/fuse";

/// The result of receiving.
#[derive(Debug)]
pub enum Received {
    /// A request of this many bytes.
    Request(usize),
    /// No request this time. Call again.
    Nothing,
    /// The mount has ended.
    Unmounted,
    /// The connection was cut (`/sys/fs/fuse/connections/N/abort`).
    Aborted,
}

/// The end that delivers requests. Each reader thread has its own.
pub trait Source: Send {
    /// Waits for a request and writes it to the start of `room`.
    ///
    /// # Errors
    /// The system's error, if the caller should neither call again nor end.
    fn receive(&self, room: &mut [u8]) -> io::Result<Received>;
}

/// The end that takes replies and notifications, from any thread.
pub trait Sink: Send + Sync {
    /// Replies to a request. `error` is 0 or a negative error number.
    ///
    /// # Errors
    /// The reply was not taken: the other end is gone, or no longer wants it.
    fn reply(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()>;

    /// Sends the kernel a notification. This may block while the kernel waits for locks that a request holds,
    /// so never call it from a thread that answers requests.
    ///
    /// # Errors
    /// `NotFound` if the kernel does not hold the object in question, otherwise the system's error.
    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()>;

    /// States that this request may be answered at any time, as one that waits for a lock. The reply to any
    /// other request is overdue some time after the deadline, and a sink may then send EIO in its place.
    fn has_no_deadline(&self, _unique: u64) {}
}

/// A descriptor of /dev/fuse.
#[derive(Debug)]
pub struct Device(File);

impl Device {
    /// Opens /dev/fuse.
    ///
    /// # Errors
    /// There is none, or this user may not open it.
    pub fn open() -> io::Result<Device> {
        let options = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE)?;
        Ok(Device(options))
    }

    /// Takes a descriptor that is already mounted.
    pub fn from_fd(fd: OwnedFd) -> Device {
        Device(File::from(fd))
    }

    /// Whether this machine has /dev/fuse at all.
    pub fn exists() -> bool {
        Path::new(DEVICE).exists()
    }

    /// The descriptor's number, for mount(2).
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// A second descriptor of the same connection, with its own queue for the requests that it has received.
    /// So two threads do not contend.
    ///
    /// # Errors
    /// This user may not open /dev/fuse (then threads share one descriptor).
    pub fn cloned(&self) -> io::Result<Device> {
        // The ioctl FUSE_DEV_IOC_CLONE: _IOR(229, 0, u32)
        const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
        let other = Device::open()?;
        let number = self.number() as u32;
        // SAFETY: CLONE reads one u32, which `number` is, and both descriptors are open.
        let done = unsafe { libc::ioctl(other.number(), CLONE, &raw const number) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(other) }
    }
}

impl Source for Device {
    fn receive(&self, room: &mut [u8]) -> io::Result<Received> {
        match (&self.0).read(room) {
            Ok(0) => Ok(Received::Unmounted),
            Ok(len) => Ok(Received::Request(len)),
            Err(error) => match error.raw_os_error() {
                // ENOENT: the request was withdrawn between being chosen and being copied.
                Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => Ok(Received::Nothing),
                Some(libc::ENODEV) => Ok(Received::Unmounted),
                Some(libc::ECONNABORTED) => Ok(Received::Aborted),
                _ => Err(error),
            },
        }
    }
}

impl Sink for Device {
    fn reply(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        let header: [u8; OUT_HEADER] = out_header(body.len(), error, unique);
        // The device takes a message whole or not at all.
        let sent = if body.is_empty() {
            (&self.0).write(&header)
        } else {
            (&self.0).write_vectored(&[IoSlice::new(&header), IoSlice::new(body)])
        };
        sent.map(drop)
    }

    fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        let body = parts.iter().map(|part| part.len()).sum();
        let header = out_header(body, code, 0);
        let mut slices = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(&header));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        (&self.0).write_vectored(&slices).map(drop)
    }
}
