//! Numbers of users and groups by their names.

use std::ffi::CString;

/// Space for what the system says of one. A group of very many members may need more; it is then not known.
const ROOM: usize = 64 << 10;

/// A user's number.
pub fn user(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut room = vec![0; ROOM];
    let mut found = std::ptr::null_mut();
    // SAFETY: all zero bytes are a value of this struct of numbers and pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: `name` ends with NUL; `entry`, `room` (with its length) and `found` live through the call and are what it fills.
    let status = unsafe {
        libc::getpwnam_r(name.as_ptr(), &raw mut entry, room.as_mut_ptr(), room.len(), &raw mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.pw_uid)
}

/// A group's number.
pub fn group(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut room = vec![0; ROOM];
    let mut found = std::ptr::null_mut();
    // SAFETY: all zero bytes are a value of this struct of numbers and pointers.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    // SAFETY: `name` ends with NUL; `entry`, `room` (with its length) and `found` live through the call and are what it fills.
    let status = unsafe {
        libc::getgrnam_r(name.as_ptr(), &raw mut entry, room.as_mut_ptr(), room.len(), &raw mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.gr_gid)
}
