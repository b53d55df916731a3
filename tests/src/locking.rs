//! Locks of whole files, by the calls of all three kinds.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Locks a file, or releases it, without waiting. `style` is "flock", "ofd" or "posix"; `kind` as in
/// `l_type`. The error is that of the system.
pub fn set(file: &File, style: &str, kind: i32) -> Result<(), i32> {
    let mut range =
        libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 };
    let command = if style == "ofd" { libc::F_OFD_SETLK } else { libc::F_SETLK };
    let operation = if kind == libc::F_UNLCK { libc::LOCK_UN } else { libc::LOCK_EX | libc::LOCK_NB };
    let result = match style {
        // SAFETY: the descriptor is open. The call takes numbers only.
        "flock" => unsafe { libc::flock(file.as_raw_fd(), operation) },
        // SAFETY: the descriptor is open, and `range` is a flock that lives through the call.
        _ => unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) },
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap()) }
}
