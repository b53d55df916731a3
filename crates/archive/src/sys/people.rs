//! Ids of users and groups by their names.

use std::ffi::CString;

/// The buffer for one entry of the user database. An entry of a group with very many members may need more.
/// Then the group counts as unknown.
const ROOM: usize = 64 << 10;

/// A user's id.
pub fn user(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut room = vec![0; ROOM];
    let mut found = std::ptr::null_mut();
    // SAFETY: this struct holds numbers and pointers, and all zero bytes are a valid value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: `name` ends with NUL. `entry`, `room` (with its length) and `found` outlive the call, which
    // fills them.
    let status = unsafe {
        libc::getpwnam_r(name.as_ptr(), &raw mut entry, room.as_mut_ptr(), room.len(), &raw mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.pw_uid)
}

/// A group's id.
pub fn group(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut room = vec![0; ROOM];
    let mut found = std::ptr::null_mut();
    // SAFETY: this struct holds numbers and pointers, and all zero bytes are a valid value.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    // SAFETY: `name` ends with NUL. `entry`, `room` (with its length) and `found` outlive the call, which
    // fills them.
    let status = unsafe {
        libc::getgrnam_r(name.as_ptr(), &raw mut entry, room.as_mut_ptr(), room.len(), &raw mut found)
    };
    (status == 0 && !found.is_null()).then_some(entry.gr_gid)
}
