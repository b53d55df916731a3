//! The user and the process at the other end of a socket, and the user of this process.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The credentials of the other end of a socket, as the kernel recorded them at listen(2) or connect(2).
pub fn of(socket: &impl AsFd) -> io::Result<libc::ucred> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open. `who` and `len` are live values, and `len` is the size of `who`.
    let status = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut len)
    };
    if status == 0 { Ok(who) } else { Err(io::Error::last_os_error()) }
}

/// Whether a group is among those of the other end: its own, or a supplementary one.
pub fn is_in_group(socket: &impl AsFd, group: u32) -> io::Result<bool> {
    // The kernel allows 65,536 groups.
    let mut groups = vec![0_u32; 1 << 16];
    let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
    let own = of(socket)?.gid;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open. `groups` and `len` are live, and `len` is the size of `groups` in
    // bytes.
    let status = unsafe {
        libc::getsockopt(
            socket,
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    groups.truncate(len as usize / size_of::<u32>());
    Ok(own == group || groups.contains(&group))
}

/// The user at the other end.
pub fn user(socket: &impl AsFd) -> io::Result<u32> {
    of(socket).map(|who| who.uid)
}

/// Returns the effective group of this process.
pub fn egid() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Returns the effective user of this process.
pub fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}
