//! The headers of requests, replies and notifications.

use base::Ino;
use fs::Errno;
use fs::api::Caller;

use super::Take;

/// Length of a request's header, in bytes.
pub const IN_HEADER: usize = 40;
/// Length of a reply's header, in bytes.
pub const OUT_HEADER: usize = 16;

/// Notification codes. A reply header without a request carries the code in its error field.
pub mod notify {
    /// Drop an inode's attributes and a range of its pages.
    pub const INVAL_INODE: i32 = 2;
    /// Drop a name.
    pub const INVAL_ENTRY: i32 = 3;
    /// Drop a name because it was removed.
    pub const DELETE: i32 = 6;
    /// Drop inodes that are only remembered. Since minor 45.
    pub const PRUNE: i32 = 9;
}

/// The start of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of the operation.
    pub opcode: u32,
    /// The number of this request. The reply repeats it.
    pub unique: u64,
    /// The inode of the request.
    pub ino: Ino,
    /// The caller.
    pub caller: Caller,
}

impl Header {
    /// Splits a request into its header and its arguments.
    ///
    /// # Errors
    /// `EIO` if it is shorter than a header, or shorter than the length in its header.
    pub fn split(request: &[u8]) -> Result<(Header, &[u8]), Errno> {
        let mut take = Take::new(request);
        let len = take.u32()? as usize;
        let opcode = take.u32()?;
        let unique = take.u64()?;
        let ino = Ino(take.u64()?);
        let caller = Caller { uid: take.u32()?, gid: take.u32()?, pid: take.u32()? };
        // The length of extensions (in units of 8 bytes) and padding. INIT negotiates no extensions.
        take.u32()?;
        let arguments = request.get(IN_HEADER..len).ok_or(Errno::EIO)?;
        Ok((Header { opcode, unique, ino, caller }, arguments))
    }

    /// The request's number, even if the rest of it makes no sense.
    pub fn unique_of(request: &[u8]) -> Option<u64> {
        let mut take = Take::new(request);
        take.skip(8).ok()?;
        take.u64().ok()
    }
}

/// A reply's header. `error` is 0 or a negative error number. In a notification (unique 0) it is the code.
pub fn out_header(body: usize, error: i32, unique: u64) -> [u8; OUT_HEADER] {
    let mut header = [0; OUT_HEADER];
    // A body is at most MAX_WRITE and a page, far below 4 GiB.
    header[..4].copy_from_slice(&((OUT_HEADER + body) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}
