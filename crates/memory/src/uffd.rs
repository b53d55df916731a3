//! The kernel's interface to page faults: userfaultfd(2), by its ioctls.
//!
//! The descriptor is the VMM's, and so are the addresses. Each call names addresses of the VMM, and the
//! kernel checks them against that process. So no address that a VMM names can touch this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_ulong};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// `_IOWR(0xAA, number, size)`, or `_IOR` for one of these.
const fn request(read_only: bool, number: c_ulong, size: usize) -> c_ulong {
    let direction = if read_only { 2 } else { 3 };
    (direction << 30) | ((size as c_ulong) << 16) | (0xAA << 8) | number
}

const REGISTER: c_ulong = request(false, 0, 32);
const WAKE: c_ulong = request(true, 2, 16);
const COPY: c_ulong = request(false, 3, 40);
const ZEROPAGE: c_ulong = request(false, 4, 32);
const POISON: c_ulong = request(false, 8, 32);

/// The length of a message of the kernel.
const MESSAGE: usize = 32;
/// Messages that are received at a time.
const AT_ONCE: usize = 32;

/// A page was touched that is not there.
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
/// The flags of a fault that this server does not serve: write protection, and minor faults.
const FAULT_OTHER: u64 = 2 | 4;

/// What the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A page was touched that is not there. A thread of the VMM waits for it.
    Fault(u64),
    /// The VMM gave back a range: from the first address on, to the second.
    Removed(u64, u64),
    /// Something that this server does not serve, in words.
    Other(&'static str),
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// So many bytes were put in their place.
    Bytes(u64),
    /// The first page is there already.
    Exists,
    /// The kernel waits for its events to be read. Read them, and call again.
    Again,
    /// The VMM is gone.
    Gone,
    /// The kernel's error.
    Failed(Errno),
}

/// The descriptor of a VMM.
#[derive(Debug)]
pub struct Uffd(OwnedFd);

impl Uffd {
    /// Takes a descriptor that a VMM sent.
    ///
    /// # Errors
    /// It is no userfaultfd, or one that was never set up.
    pub fn take(fd: OwnedFd) -> io::Result<Uffd> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if link.as_os_str() != "anon_inode:[userfaultfd]" {
            let text = format!("the descriptor that it sent is no userfaultfd: {}", link.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // The kernel does not poll one that blocks.
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        let uffd = Uffd(fd);
        if uffd.is_broken() {
            let text = "the userfaultfd that it sent is not set up: UFFDIO_API was never called on it";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(uffd)
    }

    /// One that [`Uffd::take`] refuses, because it is not set up.
    #[cfg(test)]
    pub fn bare() -> io::Result<Uffd> {
        crate::vmm::bare().map(Uffd)
    }

    /// Whether the kernel says nothing on it, because it is not set up or blocks. Every wait for the kernel
    /// ends at once then.
    pub fn is_broken(&self) -> bool {
        let mut on = [PollFd::new(self, PollFlags::IN)];
        let polled = poll(&mut on, Some(&Timespec::default()));
        polled.is_ok() && on[0].revents().contains(PollFlags::ERR)
    }

    /// Puts bytes in their place and wakes what waits for them. Whole pages of the region.
    pub fn copy(&self, address: u64, bytes: &[u8]) -> Done {
        let len = bytes.len() as u64;
        let mut call = [address, bytes.as_ptr() as u64, len, 0, 0];
        // SAFETY: `call` has the layout of uffdio_copy, 40 bytes. The kernel reads `len` bytes at the address
        // of `bytes`, which lives through the call, and writes to the other process only.
        let result = unsafe { self.call(COPY, call.as_mut_ptr().cast()) };
        done(result, len, call[4])
    }

    /// Puts zeros in their place and wakes what waits for them. Not for huge pages.
    pub fn zero(&self, address: u64, len: u64) -> Done {
        let mut call = [address, len, 0, 0];
        // SAFETY: `call` has the layout of uffdio_zeropage, 32 bytes, and the kernel touches no other memory
        // of this process.
        let result = unsafe { self.call(ZEROPAGE, call.as_mut_ptr().cast()) };
        done(result, len, call[3])
    }

    /// Makes the VMM get SIGBUS where it touches these pages.
    pub fn poison(&self, address: u64, len: u64) -> Done {
        let mut call = [address, len, 0, 0];
        // SAFETY: `call` has the layout of uffdio_poison, 32 bytes, and the kernel touches no other memory of
        // this process.
        let result = unsafe { self.call(POISON, call.as_mut_ptr().cast()) };
        done(result, len, call[3])
    }

    /// Wakes what waits for these pages. It touches them again.
    pub fn wake(&self, address: u64, len: u64) {
        let mut call = [address, len];
        // SAFETY: `call` has the layout of uffdio_range, 16 bytes, and the kernel only reads it.
        let _ = unsafe { self.call(WAKE, call.as_mut_ptr().cast()) };
    }

    /// Whether the VMM has something mapped where these pages are that could be registered. If it was not
    /// registered, it is from now on.
    pub fn is_mapped(&self, address: u64, len: u64) -> bool {
        const MISSING: u64 = 1;
        let mut call = [address, len, MISSING, 0];
        // SAFETY: `call` has the layout of uffdio_register, 32 bytes, and the kernel touches no other memory
        // of this process.
        unsafe { self.call(REGISTER, call.as_mut_ptr().cast()) == 0 }
    }

    /// Whether the VMM's memory is gone: the process has ended.
    pub fn is_gone(&self) -> bool {
        // The kernel looks for the process first, and then for the address, where a VMM has nothing.
        const NOWHERE: u64 = 1 << 20;
        self.zero(NOWHERE, 4096) == Done::Gone
    }

    /// Passes what the kernel has to say to `each`, and returns when that is all. It never waits, whatever
    /// the VMM does: the VMM has the same open file, and can make it block at any time.
    ///
    /// # Errors
    /// The descriptor cannot be read. The VMM has not set it up, or made it block on a kernel before Linux
    /// 6.10.
    pub fn events(&self, each: &mut dyn FnMut(Event)) -> io::Result<()> {
        let mut buffer = [0; MESSAGE * AT_ONCE];
        loop {
            let count = match self.read(&mut buffer) {
                Ok(count) => count,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let messages = buffer[..count].chunks_exact(MESSAGE);
            if messages.len() == 0 {
                return Ok(());
            }
            messages.for_each(|message| each(event(message)));
        }
    }

    /// One read of what is there. EAGAIN if nothing is.
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // What a stream is read by: its position.
        const HERE: u64 = u64::MAX;
        let read = preadv2(self, &mut [io::IoSliceMut::new(buffer)], HERE, ReadWriteFlags::NOWAIT);
        match read {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.read_promised(buffer),
            other => other,
        }
    }

    /// Reads what is there, once, on a kernel before Linux 6.10, which cannot be told not to wait. A read
    /// returns what is there if something is, and waits only for the first message. So each read needs a
    /// promise of its own.
    fn read_promised(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut on = [PollFd::new(self, PollFlags::IN)];
        poll(&mut on, Some(&Timespec::default()))?;
        match on[0].revents() {
            revents if revents.contains(PollFlags::ERR) => Err(Errno::INVAL),
            revents if revents.contains(PollFlags::IN) => rustix::io::read(self, buffer),
            _ => Err(Errno::AGAIN),
        }
    }

    /// # Safety
    /// `argument` points at what the kernel expects for this request.
    unsafe fn call(&self, request: c_ulong, argument: *mut libc::c_void) -> c_int {
        // SAFETY: the caller promises the argument; the descriptor is open.
        unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, argument) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `moved`: what the kernel wrote back, bytes or an error.
fn done(result: c_int, len: u64, moved: u64) -> Done {
    if result == 0 {
        return Done::Bytes(len);
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        Some(Errno::AGAIN) if (moved as i64) > 0 => Done::Bytes(moved),
        Some(Errno::AGAIN) => Done::Again,
        Some(Errno::EXIST) => Done::Exists,
        Some(Errno::SRCH) => Done::Gone,
        Some(error) => Done::Failed(error),
        None => Done::Failed(Errno::IO),
    }
}

fn event(message: &[u8]) -> Event {
    let word = |at: usize| message[at * 8..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
    match message[0] {
        EVENT_PAGEFAULT if word(1) & FAULT_OTHER == 0 => Event::Fault(word(2)),
        EVENT_PAGEFAULT => Event::Other("it registered its memory for other faults than of missing pages"),
        // What is not mapped any more is not touched any more. If the range is mapped anew, it is empty.
        EVENT_REMOVE | EVENT_UNMAP => Event::Removed(word(1), word(2)),
        EVENT_REMAP => Event::Other("it moved its memory to other addresses"),
        EVENT_FORK => {
            let [a, b, c, d, ..] = word(1).to_ne_bytes();
            let number = c_int::from_ne_bytes([a, b, c, d]);
            // SAFETY: the kernel has just created this descriptor for the message, and nothing else has it.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
            Event::Other("it forked, and asked that its child's memory is served too")
        }
        _ => Event::Other("its kernel sent an event of an unknown kind"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;
    use crate::vmm::Memory;

    /// A kernel before Linux 6.10 cannot be told not to wait.
    #[test]
    fn an_old_kernel_is_asked_before_each_read() {
        let Ok(memory) = Memory::new(4096, false) else {
            return eprintln!("skipped: lacks userfaultfd, which needs root");
        };
        let uffd = Uffd::take(memory.uffd().try_clone_to_owned().unwrap()).unwrap();
        let mut buffer = [0; MESSAGE * AT_ONCE];
        assert_eq!(uffd.read_promised(&mut buffer), Err(Errno::AGAIN));
        let address = memory.bytes().as_ptr() as u64;
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(memory.bytes()[7], 0));
            while uffd.read_promised(&mut buffer) != Ok(MESSAGE) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(event(&buffer[..MESSAGE]), Event::Fault(address));
            assert_eq!(uffd.zero(address, 4096), Done::Bytes(4096));
        });
        fcntl_setfl(memory.uffd(), OFlags::empty()).unwrap();
        assert_eq!(uffd.read_promised(&mut buffer), Err(Errno::INVAL));
    }
}
