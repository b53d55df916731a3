//! Writing a large copy past the page cache (O_DIRECT).
//!
//! A streamed blob is read once from memory, and stored on the disk for later. Through the page cache that
//! costs a second copy of every byte, and its memory. On a virtual machine whose host takes back free pages,
//! this was measured as nearly half of the processor time of a cold read. The usual way is taken if the
//! filesystem does not support it, and for the last bytes, which do not fill a block.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_setfl};

/// Shorter writes take the usual way.
const LEAST: usize = 1 << 20;
/// The alignment of addresses, lengths and offsets: no disk requires more.
const BLOCK: usize = 4096;
const PIECE: usize = 512 << 10;
/// How many buffers are kept: as many as there are concurrent writers.
const SPARE: usize = 4;

#[repr(C, align(4096))]
struct Buffer([u8; PIECE]);

/// Nobody waits for this lock, so that a forked process, in which it may stay locked, can write too.
static BUFFERS: Mutex<Vec<Box<Buffer>>> = Mutex::new(Vec::new());

/// Writes all of `bytes` to a new file.
pub(super) fn write(file: &File, bytes: &[u8]) -> io::Result<()> {
    let blocks = bytes.len() / BLOCK * BLOCK;
    let mut done = 0;
    if bytes.len() >= LEAST && set_direct(file, true) {
        let written = match bytes.as_ptr().align_offset(BLOCK) {
            0 => write_piece(file, &bytes[..blocks], 0).map(|all| if all { blocks } else { 0 }),
            _ => write_copies(file, &bytes[..blocks]),
        };
        set_direct(file, false);
        done = written?;
    }
    file.write_all_at(&bytes[done..], done as u64)
}

/// Overwrites a file with all of `bytes`, which must be whole blocks. False: direct writing is impossible
/// here, and the file's contents are then worthless.
pub(super) fn write_over(file: &File, bytes: &[u8]) -> io::Result<bool> {
    if !bytes.len().is_multiple_of(BLOCK) || !set_direct(file, true) {
        return Ok(false);
    }
    match bytes.as_ptr().align_offset(BLOCK) {
        0 => write_piece(file, bytes, 0),
        _ => write_copies(file, bytes).map(|done| done == bytes.len()),
    }
}

/// Bytes that are not aligned to a block go through a buffer that is. Returns how much was written before the
/// filesystem refused.
fn write_copies(file: &File, bytes: &[u8]) -> io::Result<usize> {
    let spare = BUFFERS.try_lock().and_then(|mut spare| spare.pop());
    let mut buffer = spare.unwrap_or_else(|| Box::new(Buffer([0; PIECE])));
    let mut done = 0;
    for piece in bytes.chunks(PIECE) {
        let aligned = &mut buffer.0[..piece.len()];
        aligned.copy_from_slice(piece);
        if !write_piece(file, aligned, done)? {
            break;
        }
        done += piece.len();
    }
    if let Some(mut spare) = BUFFERS.try_lock()
        && spare.len() < SPARE
    {
        spare.push(buffer);
    }
    Ok(done)
}

/// False: the filesystem does not support it.
fn write_piece(file: &File, bytes: &[u8], at: usize) -> io::Result<bool> {
    match file.write_all_at(bytes, at as u64) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the filesystem accepts the flag.
fn set_direct(file: &File, on: bool) -> bool {
    // A new file has no other flags that this could change.
    fcntl_setfl(file, if on { OFlags::DIRECT } else { OFlags::empty() }).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_arrives_whole() {
        for dir in ["/dev/shm", "."] {
            let Ok(dir) = tempfile::tempdir_in(dir) else { continue };
            for len in [0, 1, LEAST - 1, LEAST, LEAST + 1, PIECE * 3 + BLOCK + 17, 4 << 20] {
                let bytes: Vec<u8> = (0..len).map(|n| ((n * 31) >> 3) as u8).collect();
                let path = dir.path().join(len.to_string());
                write(&File::create(&path).unwrap(), &bytes).unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes, "{len} bytes");
                // Directly from its memory, which begins at a page boundary.
                write(&File::create(&path).unwrap(), &crate::Buffer::from(&bytes[..])).unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes, "{len} bytes of a buffer");
            }
        }
    }
}
