//! The VMM's side: what Firecracker does to have its memory served. For tests and measurements.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use libc::c_ulong;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

const API: c_ulong = 0xc018_aa3f;
const REGISTER: c_ulong = 0xc020_aa00;
/// The version of the interface.
const VERSION: u64 = 0xaa;
/// The VMM tells the server what it gives back.
const EVENT_REMOVE: u64 = 1 << 3;
/// Faults of missing pages.
const MISSING: u64 = 1;
/// Where memory is mapped if the address is free: far below all that the kernel places. If a part of it is
/// unmapped, no later mapping of this process is put there.
const PLACE: usize = 0x1000_0000_0000;

/// Memory without bytes, whose faults a server answers.
#[derive(Debug)]
pub struct Memory {
    base: u64,
    len: u64,
    page: u64,
    /// The kernel serves faults through it. Firecracker keeps it open too: the memory then never turns to
    /// zeros when the server ends.
    uffd: OwnedFd,
}

impl Memory {
    /// Maps memory and registers it. `huge`: of huge pages of 2 MiB.
    ///
    /// # Errors
    /// The kernel's error: EPERM without root.
    pub fn new(len: u64, huge: bool) -> io::Result<Memory> {
        let page = if huge { 2 << 20 } else { 4096 };
        let more = if huge { libc::MAP_HUGETLB | libc::MAP_HUGE_2MB } else { 0 };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | more;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping. The address is a hint: the kernel replaces nothing that is there.
        let base = unsafe { libc::mmap(PLACE as *mut libc::c_void, len as usize, access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = base as u64;
        let unmap = |error| {
            // SAFETY: the mapping was made above, and nothing refers to it.
            unsafe { libc::munmap(base as *mut libc::c_void, len as usize) };
            error
        };
        let uffd = register(base, len).map_err(unmap)?;
        Ok(Memory { base, len, page, uffd })
    }

    /// The bytes. Each may wait for the server.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as this value. What is read first is put there by the kernel.
        unsafe { std::slice::from_raw_parts(self.base as *const u8, self.len as usize) }
    }

    /// Returns the bytes, to be changed. Each may wait for the server.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this value is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.base as *mut u8, self.len as usize) }
    }

    /// Gives pages back, as a balloon does. They hold zeros then.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn give_back(&self, offset: u64, len: u64) -> io::Result<()> {
        let start = (self.base + offset) as *mut libc::c_void;
        // SAFETY: the range is of this mapping. What refers to its bytes finds zeros, as the kernel promises.
        match unsafe { libc::madvise(start, len as usize, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The region as Firecracker names it. `offset`: where its bytes begin in the snapshot.
    pub fn region(&self, offset: u64) -> Value {
        let Memory { base, len, page, .. } = self;
        json!({ "base_host_virt_addr": base, "size": len, "offset": offset, "page_size": page, "page_size_kib": page })
    }

    /// The descriptor.
    pub fn uffd(&self) -> BorrowedFd<'_> {
        self.uffd.as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and what borrowed its bytes is gone.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.len as usize) };
    }
}

/// A userfaultfd that is not set up.
///
/// # Errors
/// The kernel's error: EPERM without root.
pub fn bare() -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn register(base: u64, len: u64) -> io::Result<OwnedFd> {
    let fd = bare()?;
    let mut api = [VERSION, EVENT_REMOVE, 0];
    let mut range = [base, len, MISSING, 0];
    // SAFETY: the arguments have the layouts of uffdio_api and uffdio_register, 24 and 32 bytes.
    let failed = unsafe {
        libc::ioctl(fd.as_raw_fd(), API as _, api.as_mut_ptr()) != 0
            || libc::ioctl(fd.as_raw_fd(), REGISTER as _, range.as_mut_ptr()) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

/// Connects and sends a text with descriptors, in one message.
///
/// # Errors
/// The system's error.
pub fn send(socket: &Path, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    let mut space = vec![MaybeUninit::uninit(); 1024];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    sendmsg(&stream, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(stream)
}

/// Maps memory for a whole snapshot, as one region, and has it served.
///
/// # Errors
/// The system's error.
pub fn load(socket: &Path, len: u64) -> io::Result<(Memory, UnixStream)> {
    let memory = Memory::new(len, false)?;
    let stream = send(socket, &json!([memory.region(0)]).to_string(), &[memory.uffd()])?;
    Ok((memory, stream))
}
