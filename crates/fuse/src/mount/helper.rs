//! Mounting for users other than root, through the set-user-id program `fusermount3`.
//!
//! The helper opens /dev/fuse and mounts. It sends the descriptor over a unix socket, whose number it finds
//! in an environment variable.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{MountError, MountFlags, Unmount, UnmountError};
use crate::channel::Device;

const HELPER: &str = "fusermount3";

pub(super) fn mount(path: &Path, flags: &MountFlags) -> Result<Device, MountError> {
    let socket_error = MountError::io("asking fusermount3 to mount");
    let (ours, theirs) = UnixStream::pair().map_err(&socket_error)?;
    let number = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(options(flags)).arg("--").arg(path);
    command.env("_FUSE_COMMFD", number.to_string()).stdin(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: between fork and exec the closure calls only fcntl, which is async-signal-safe, on a descriptor
    // that the parent holds open until the child has been started.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(number, libc::F_SETFD, 0) < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(MountError::NotAllowed(error)),
        Err(error) => return Err(socket_error(error)),
    };
    // Close our copy: if the helper ends without sending, reading the socket must return its end.
    drop(theirs);
    let received = receive_fd(&ours);
    let output = child.wait_with_output().map_err(&socket_error)?;
    match received {
        Ok(fd) if output.status.success() => Ok(Device::from_fd(fd)),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(MountError::Helper(if said.is_empty() { output.status.to_string() } else { said }))
        }
    }
}

pub(super) fn unmount(path: &Path, how: Unmount) -> Result<(), UnmountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u").arg("-q");
    if how != Unmount::Polite {
        command.arg("-z");
    }
    let status = command
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .status()
        .map_err(|source| UnmountError::Io { path: path.to_owned(), source })?;
    match (status.success(), super::find(path)) {
        (true, _) => Ok(()),
        (false, Some(mounted)) if mounted.is_fuse() => Err(UnmountError::Busy(path.to_owned())),
        (false, _) => Err(UnmountError::NotMounted(path.to_owned())),
    }
}

/// The helper's options. A comma or backslash in the source must be escaped.
pub(super) fn options(flags: &MountFlags) -> String {
    let mut source = String::with_capacity(flags.source.len());
    for letter in flags.source.chars() {
        if matches!(letter, ',' | '\\') {
            source.push('\\');
        }
        source.push(letter);
    }
    let mut options = format!("nosuid,nodev,default_permissions,subtype=covey,fsname={source}");
    for (set, name) in [
        (flags.read_only, ",ro"),
        (flags.noexec, ",noexec"),
        (flags.allow_other.unwrap_or(false), ",allow_other"),
    ] {
        if set {
            options.push_str(name);
        }
    }
    options
}

/// Receives one descriptor from the socket.
fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 1];
    let mut slice = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // Space for one descriptor. The u64 elements give it the alignment of a control header.
    let mut control = [MaybeUninit::<u64>::zeroed(); 8];
    // SAFETY: msghdr is numbers and pointers, for which all zero bytes are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points at one byte and at the control buffer, both of which outlive the call.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: recvmsg filled in the message. The macro stays within msg_controllen.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: a header that is not null lies within the control buffer.
    let is_fd = !header.is_null() && unsafe { (*header).cmsg_type == libc::SCM_RIGHTS };
    if count == 0 || !is_fd {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no descriptor arrived"));
    }
    // SAFETY: a message of type SCM_RIGHTS carries at least one descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned()) })
}
