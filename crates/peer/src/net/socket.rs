//! The system calls that tokio does not have. None of them waits for a network: the sockets are non-blocking.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

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

/// Sends bytes from several places, one after the other. A place that cannot be read (a mapping of a file, when the disk does not give it) ends what is sent
/// before it; that none could be read is an error.
///
/// # Safety
/// Each place is memory or a mapping that is there until this returns. Its bytes may change, or not be to be had.
pub(crate) unsafe fn send_parts(stream: &TcpStream, parts: &mut [libc::iovec]) -> io::Result<usize> {
    stream.try_io(Interest::WRITABLE, || {
        // SAFETY: a header without an address and without control data is all zeros.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
        // SAFETY: the descriptor is open as long as `stream` is borrowed, the kernel reads `parts` and, by the caller's word, what they name.
        count(unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) })
    })
}

/// How often this thread has waited for a disk because it needed memory that was not there.
pub(crate) fn waits_for_disk() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage` at the place, which is all zeros before; both are a valid value.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_majflt
    }
}

/// Sends a part of a file from the page cache, or from the disk if it is not there. 0: the file ends before it.
pub(crate) fn send_file(stream: &TcpStream, file: &File, offset: u64, len: usize) -> io::Result<usize> {
    stream.try_io(Interest::WRITABLE, || {
        let mut offset = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: both descriptors are open as long as they are borrowed; `offset` is a number of our own that the kernel advances.
        count(unsafe { libc::sendfile(stream.as_raw_fd(), file.as_raw_fd(), &raw mut offset, len) })
    })
}

/// A pipe between files and one socket. What was put in and has not left yet is what the next [`Pipe::send`] begins with, so a
/// part of a file that was begun is ended before another is.
pub(crate) struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
    held: usize,
}

/// As many bytes as a pipe is asked to hold.
const PIPE: i32 = 1 << 20;

impl Pipe {
    pub(crate) fn new() -> io::Result<Pipe> {
        let mut ends: [RawFd; 2] = [-1; 2];
        // SAFETY: the kernel writes two descriptors into an array of two.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both were opened just now and belong to nobody else.
        let [out, into] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        // SAFETY: the descriptor is open. Where so much is not allowed the pipe stays as small as it is, and only takes more turns.
        unsafe { libc::fcntl(into.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE) };
        Ok(Pipe { out, into, held: 0 })
    }

    /// Like [`send_file`], by splice(2) into the pipe and out of it.
    pub(crate) fn send(
        &mut self,
        stream: &TcpStream,
        file: &File,
        offset: u64,
        len: usize,
    ) -> io::Result<usize> {
        let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
        if self.held == 0 {
            let mut offset =
                i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            let (from, into) = (file.as_raw_fd(), self.into.as_raw_fd());
            // SAFETY: both descriptors are open as long as they are borrowed; `offset` is a number of our own that the kernel advances.
            self.held =
                count(unsafe { libc::splice(from, &raw mut offset, into, ptr::null_mut(), len, flags) })?;
        }
        if self.held == 0 {
            return Ok(0);
        }
        let (held, more) = (self.held, if self.held < len { libc::SPLICE_F_MORE } else { 0 });
        let sent = stream.try_io(Interest::WRITABLE, || {
            let (from, into) = (self.out.as_raw_fd(), stream.as_raw_fd());
            // SAFETY: both descriptors are open as long as they are borrowed, and neither has an offset.
            count(unsafe { libc::splice(from, ptr::null_mut(), into, ptr::null_mut(), held, flags | more) })
        })?;
        self.held -= sent;
        Ok(sent)
    }
}

/// Puts `len` bytes of a file behind what is in `out`, as [`read_now`] does. False: nothing was put there.
pub(crate) fn append_now(file: &File, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<bool> {
    out.reserve(len);
    let read = read_now(file, &mut out.spare_capacity_mut()[..len], offset)?;
    if read {
        // SAFETY: `reserve` made the room, and the kernel has written all `len` bytes of it.
        unsafe { out.set_len(out.len() + len) };
    }
    Ok(read)
}

/// Fills `room` from the page cache. False: some of it is not there, or the filesystem cannot say; then what `room` holds is worthless.
pub(crate) fn read_now(file: &File, room: &mut [MaybeUninit<u8>], offset: u64) -> io::Result<bool> {
    let mut done = 0;
    while done < room.len() {
        let at = i64::try_from(offset + done as u64).map_err(|_| io::ErrorKind::InvalidInput)?;
        let rest = &mut room[done..];
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

/// A reader is woken at the latest when such a part of the room for what comes is full.
const LEFT_FREE: u32 = 4;

/// The reader is woken only when so many bytes are there, or a quarter of what the kernel has room for: who sends stands still while the rest is on its
/// way to be read, and the kernel makes the room larger only while it is not. With a mark of half the room, and 0.1 s there and back, a line of
/// 50 Mbit/s brought two thirds of that.
pub(crate) fn set_low_water(stream: &TcpStream, bytes: u32) {
    let most = (receive_room(stream) / LEFT_FREE).max(1);
    option(stream, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes.min(most));
}

/// Bytes that the kernel keeps for the reader now, with what they cost; 0 if it does not say.
fn receive_room(stream: &TcpStream) -> u32 {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: the descriptor is open, and the kernel writes an int and its length to places that live through the call.
    let failed =
        unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, at, &raw mut len) };
    if failed == 0 { u32::try_from(value).unwrap_or(0) } else { 0 }
}

/// So many bytes may be on their way here: the kernel asks for no more, nor takes back what it asked for. It is to be said again now and then, for the kernel
/// forgets it when it makes its buffer larger.
pub(crate) fn set_window(stream: &TcpStream, bytes: u32) {
    option(stream, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes);
}

/// How connections between neighbours share a line, whatever the machine uses for others. BBR, a common default, sends as much at a time as the quickest round
/// trip it has seen has room for: next door that is a dozen microseconds, and when the other direction is busy (a node that sends a blob on while it
/// receives the next ones) the acknowledgements take a thousand times as long. It then sends a tenth of what the line carries.
const SHARING: &CStr = c"cubic";

/// And how they begin: by doubling what is on its way until a packet is lost or the receiver wants no more ([`super::room`]). Cubic leaves that as soon as round
/// trips get longer, which they do when acknowledgements wait behind what the sender receives: seen after 36 packets, and eight seconds until the line was
/// full.
const BEGINNING: &CStr = c"reno";

/// So much has gone: the connection shares its line from now on as all others do.
pub(crate) fn go_on(stream: &TcpStream) {
    set_sharing(stream, SHARING);
}

fn set_sharing(stream: &TcpStream, sharing: &CStr) {
    let (name, len) = (sharing.as_ptr().cast(), sharing.count_bytes() as u32);
    // SAFETY: the descriptor is open, and the kernel reads `len` bytes of a string that lives for ever. That it fails is harmless: where the
    // kernel has no such thing, or allows it to nobody but root, the machine's own way is used.
    unsafe { libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name, len) };
}

/// Small frames go at once; what the other end does not acknowledge in time ends the connection.
pub(crate) fn prepare(stream: &TcpStream, silence_ms: u32) {
    set_sharing(stream, SHARING);
    set_sharing(stream, BEGINNING);
    option(stream, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    option(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence_ms);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was half of it, and the sender's window closed while the reader was on its way.
    #[test]
    fn regression_the_low_water_mark_leaves_most_of_the_room_to_the_sender() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let room = receive_room(&stream);
            assert!(room > 0);
            set_low_water(&stream, 512 << 10);
            let (mut mark, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
            let at = (&raw mut mark).cast();
            // SAFETY: as in `receive_room`.
            unsafe {
                libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVLOWAT, at, &raw mut len)
            };
            assert!((1..=512 << 10).contains(&mark) && mark as u32 <= receive_room(&stream) / LEFT_FREE);
        });
    }
}
