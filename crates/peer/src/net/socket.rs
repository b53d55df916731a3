//! The system calls that tokio does not have. None of them waits for a network: the sockets are non-blocking.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::net::TcpStream;

fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Receives into memory that need not have been written before. 0: the other end has closed.
pub(crate) fn receive(stream: &TcpStream, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    stream.try_io(Interest::READABLE, || {
        // SAFETY: the descriptor is open as long as `stream` is borrowed, and the kernel writes at most `room.len()` bytes at `room`.
        count(unsafe { libc::recv(stream.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) })
    })
}

/// Sends bytes after which more follow at once, so that they travel in one packet with it.
pub(crate) fn send_more(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_MORE | libc::MSG_NOSIGNAL;
    stream.try_io(Interest::WRITABLE, || {
        // SAFETY: the descriptor is open as long as `stream` is borrowed, and the kernel only reads `bytes`.
        count(unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
    })
}

/// Sends a part of a file from the page cache, or from the disk if it is not there. 0: the file ends before it.
pub(crate) fn send_file(stream: &TcpStream, file: &File, offset: u64, len: usize) -> io::Result<usize> {
    stream.try_io(Interest::WRITABLE, || {
        let mut offset = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: both descriptors are open as long as they are borrowed; `offset` is a number of our own that the kernel advances.
        count(unsafe { libc::sendfile(stream.as_raw_fd(), file.as_raw_fd(), &raw mut offset, len) })
    })
}

/// Fills `bytes` from the page cache. False: some of it is not there, or the filesystem cannot say; then what `bytes` holds is worthless.
pub(crate) fn read_now(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<bool> {
    let mut done = 0;
    while done < bytes.len() {
        let at = i64::try_from(offset + done as u64).map_err(|_| io::ErrorKind::InvalidInput)?;
        let rest = &mut bytes[done..];
        let part = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        // SAFETY: the descriptor is open as long as `file` is borrowed; there is one part, which the kernel fills up to its length.
        let got = count(unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, at, libc::RWF_NOWAIT) });
        match got {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => done += got,
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => return Ok(false),
                Some(libc::EINTR) => {}
                _ => return Err(error),
            },
        }
    }
    Ok(true)
}

fn option(stream: &TcpStream, level: i32, name: i32, value: u32) {
    let value = i32::try_from(value).unwrap_or(i32::MAX);
    // SAFETY: the descriptor is open, and the option's value is an int that lives through the call. That it fails is harmless: every
    // one of these options only makes things cheaper or sooner.
    unsafe {
        libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<i32>() as u32)
    };
}

/// The reader is woken only when so many bytes are there.
pub(crate) fn set_low_water(stream: &TcpStream, bytes: u32) {
    option(stream, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
}

/// Small frames go at once; what the other end does not acknowledge in time ends the connection.
pub(crate) fn prepare(stream: &TcpStream, silence_ms: u32) {
    option(stream, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    option(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence_ms);
}
