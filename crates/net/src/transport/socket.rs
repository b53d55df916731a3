//! The system calls that tokio does not have. None of them waits for a network: the sockets are non-blocking.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

use tokio::io::Interest;
use tokio::net::TcpStream;

fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Receives into memory that need not be initialized. 0: the other end has closed.
pub(crate) fn receive(stream: &TcpStream, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    stream.try_io(Interest::READABLE, || {
        // SAFETY: the descriptor is open while `stream` is borrowed, and the kernel writes at most
        // `room.len()` bytes at `room`.
        count(unsafe { libc::recv(stream.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) })
    })
}

/// Sends bytes that are followed by more at once, so that they share a packet.
pub(crate) fn send_more(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_MORE | libc::MSG_NOSIGNAL;
    stream.try_io(Interest::WRITABLE, || {
        // SAFETY: the descriptor is open while `stream` is borrowed, and the kernel only reads `bytes`.
        count(unsafe { libc::send(stream.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
    })
}

/// Sends a part of a file from the page cache, or from the disk if it is not there. 0: the file ends before
/// it.
pub(crate) fn send_file(stream: &TcpStream, file: &File, offset: u64, len: usize) -> io::Result<usize> {
    stream.try_io(Interest::WRITABLE, || {
        let mut offset = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: both descriptors are open while they are borrowed. `offset` is a local number that the
        // kernel advances.
        count(unsafe { libc::sendfile(stream.as_raw_fd(), file.as_raw_fd(), &raw mut offset, len) })
    })
}

fn option(stream: &TcpStream, level: i32, name: i32, value: u32) {
    let value = i32::try_from(value).unwrap_or(i32::MAX);
    // SAFETY: the descriptor is open, and the option's value is an int that lives through the call. A failure
    // is harmless: every one of these options only makes things cheaper or faster.
    unsafe {
        libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<i32>() as u32)
    };
}

/// The reader wakes at the latest when this fraction of the receive buffer is full.
const LEFT_FREE: u32 = 4;

/// The reader wakes only when this many bytes are there, or a quarter of the kernel's receive buffer. While
/// bytes wait to be read, the sender may stall, and the kernel enlarges the buffer only while it does not.
/// With a mark of half the buffer and a round trip of 0.1 s, a link of 50 Mbit/s delivered two thirds of its
/// rate.
pub(crate) fn set_low_water(stream: &TcpStream, bytes: u32) {
    let most = (receive_room(stream) / LEFT_FREE).max(1);
    option(stream, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes.min(most));
}

/// The size of the kernel's receive buffer in bytes, including its overhead. 0 if unknown.
fn receive_room(stream: &TcpStream) -> u32 {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: the descriptor is open, and the kernel writes an int and its length to places that live through
    // the call.
    let failed =
        unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, at, &raw mut len) };
    if failed == 0 { u32::try_from(value).unwrap_or(0) } else { 0 }
}

/// Bounds the bytes in flight to this node. The kernel announces no larger window, but does not shrink an
/// announced one. It must be set again from time to time, because the kernel forgets it when it enlarges its
/// buffer.
pub(crate) fn set_window(stream: &TcpStream, bytes: u32) {
    option(stream, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes);
}

/// The congestion control that neighbours use to share a link, whatever the machine uses for other
/// connections. BBR, a common default, limits what is in flight by the shortest round trip that it has seen.
/// Between neighbours that is a dozen microseconds. If the other direction is busy (a node sends a blob on
/// while it receives the next ones), acknowledgements take a thousand times as long. BBR then sends a tenth
/// of what the link carries.
const SHARING: &CStr = c"cubic";

/// The congestion control at the beginning: it doubles what is in flight until a packet is lost or the
/// receiver's window is full ([`super::window`]). Cubic stops doubling as soon as round trips get longer,
/// which happens when acknowledgements queue behind what the sender receives. It was seen to stop after 36
/// packets and to need eight seconds until the link was full.
const BEGINNING: &CStr = c"reno";

/// Enough has been sent. From now on the connection shares its link like all others.
pub(crate) fn go_on(stream: &TcpStream) {
    set_sharing(stream, SHARING);
}

fn set_sharing(stream: &TcpStream, sharing: &CStr) {
    let (name, len) = (sharing.as_ptr().cast(), sharing.count_bytes() as u32);
    // SAFETY: the descriptor is open, and the kernel reads `len` bytes of a static string. A failure is
    // harmless: if the kernel lacks the algorithm, or allows it only to root, the machine's default is used.
    unsafe { libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, name, len) };
}

/// Sends small frames at once, and ends the connection if the other end does not acknowledge in time.
pub(crate) fn prepare(stream: &TcpStream, silence_ms: u32) {
    set_sharing(stream, SHARING);
    set_sharing(stream, BEGINNING);
    option(stream, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    option(stream, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, silence_ms);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mark was half of the buffer, and the sender's window closed before the reader had woken.
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
