//! Receives what a VMM sends: the regions and one descriptor, on a unix socket, within a time limit.

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use base::Deadline;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::handshake::{self, MESSAGE_MOST, Refused, Region};
use crate::uffd::Uffd;

/// Descriptors for which there is room, so that too many are seen as such.
const ROOM: usize = 8;

/// Why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub enum NoClone {
    /// The VMM sent nothing. A probe whether the server is there.
    #[error("it sent nothing")]
    Silent,
    /// The VMM took too long.
    #[error("it did not say within {0:?} which memory it has")]
    Slow(Duration),
    /// The connection ended in the middle.
    #[error("it closed the connection before it had said which memory it has")]
    Closed,
    /// Regions that make no sense.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// The wrong number of descriptors.
    #[error("it sent {0} descriptors with its regions; one is needed, of userfaultfd")]
    Descriptors(usize),
    /// The system's error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Receives the regions of a clone and its descriptor. `len`: the length of the snapshot file, in bytes.
///
/// # Errors
/// [`NoClone`]. The connection is of no more use.
pub fn receive(socket: &UnixStream, len: u64, limit: Duration) -> Result<(Vec<Region>, Uffd), NoClone> {
    let deadline = Deadline::after(limit);
    let mut said = Vec::new();
    let mut fds = Vec::new();
    let regions = loop {
        if deadline.is_over() {
            return Err(NoClone::Slow(limit));
        }
        socket.set_read_timeout(Some(deadline.left().max(Duration::from_millis(1))))?;
        match part(socket, &mut said, &mut fds) {
            Ok(0) if said.is_empty() && fds.is_empty() => return Err(NoClone::Silent),
            Ok(0) => return Err(NoClone::Closed),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => continue,
            Err(Errno::TOOBIG) => return Err(NoClone::Descriptors(ROOM + 1)),
            Err(error) => return Err(NoClone::Io(error.into())),
        }
        if fds.len() > 1 {
            return Err(NoClone::Descriptors(fds.len()));
        }
        if let Some(regions) = handshake::decode(&said)? {
            break handshake::check(regions, len)?;
        }
    };
    let Some(fd) = fds.pop() else { return Err(NoClone::Descriptors(0)) };
    Ok((regions, Uffd::take(fd)?))
}

/// Receives once. Returns the number of bytes.
fn part(socket: &UnixStream, said: &mut Vec<u8>, fds: &mut Vec<OwnedFd>) -> Result<usize, Errno> {
    let mut bytes = [0; 8192];
    let room = bytes.len().min(MESSAGE_MOST.saturating_sub(said.len()).max(1));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ROOM))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let slice = IoSliceMut::new(&mut bytes[..room]);
    let got = recvmsg(socket, &mut [slice], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        // The kernel closed those that had no room: more than one in any case.
        return Err(Errno::TOOBIG);
    }
    said.extend_from_slice(&bytes[..got.bytes]);
    Ok(got.bytes)
}

/// Tells a VMM why it is not served, as a line of JSON, if it still listens.
pub fn tell(mut socket: &UnixStream, why: &str) {
    let line = format!("{}\n", serde_json::json!({ "error": why }));
    // A VMM that reads nothing must hold nothing up.
    let _ = socket.set_nonblocking(true);
    let _ = socket.write_all(line.as_bytes());
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

/// The process at the other end, as pidfd_open(2) names it: the descriptor becomes readable when the process
/// has ended. `None` if it has no number here: it is in another namespace, and the kernel is older than Linux
/// 6.5.
pub fn process(socket: &UnixStream) -> Option<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut len = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: the kernel writes an int of that length, which lives through the call.
    let done = unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERPIDFD);
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut fd).cast(), &raw mut len)
    };
    if done == 0 && fd >= 0 {
        // SAFETY: the kernel has just made this descriptor for the call, and nothing else has it.
        return Some(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    let pid = peer(socket).and_then(rustix::process::Pid::from_raw)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// The number of the process at the other end. `None` if it has none here: it is in another namespace.
pub fn peer(socket: &UnixStream) -> Option<i32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the kernel writes a ucred of that length, which lives through the call.
    let done = unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut peer).cast(), &raw mut len)
    };
    (done == 0 && peer.pid != 0).then_some(peer.pid)
}
