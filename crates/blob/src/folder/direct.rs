//! Writing a large copy past the kernel's pages (O_DIRECT).
//!
//! What a stream brings is read once, from memory, and put on the disk for another time. Through the kernel's pages that costs a second copy of
//! every byte and the room of another: measured on a virtual machine whose free pages its host takes back, nearly half of all the processor time of a
//! cold read. Where a filesystem cannot do it, and for the last bytes, which are no whole block, the usual way is taken.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;

/// Less is written the usual way.
const LEAST: usize = 1 << 20;
/// What addresses, lengths and places must be multiples of: no disk asks for more.
const BLOCK: usize = 4096;
const PIECE: usize = 512 << 10;
/// Buffers that are kept for the next: as many as write at once.
const SPARE: usize = 4;

#[repr(C, align(4096))]
struct Buffer([u8; PIECE]);

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

/// Writes all of `bytes`, whole blocks, over those that a file has. False: it cannot be done past the kernel's pages; what the file holds then is worthless.
pub(super) fn write_over(file: &File, bytes: &[u8]) -> io::Result<bool> {
    if !bytes.len().is_multiple_of(BLOCK) || !set_direct(file, true) {
        return Ok(false);
    }
    match bytes.as_ptr().align_offset(BLOCK) {
        0 => write_piece(file, bytes, 0),
        _ => write_copies(file, bytes).map(|done| done == bytes.len()),
    }
}

/// Bytes that do not begin with a block go by way of a buffer that does: how much was written when the filesystem would have no more of it.
fn write_copies(file: &File, bytes: &[u8]) -> io::Result<usize> {
    let spare = BUFFERS.lock().pop();
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
    let mut spare = BUFFERS.lock();
    if spare.len() < SPARE {
        spare.push(buffer);
    }
    Ok(done)
}

/// False: the filesystem will not have it this way.
fn write_piece(file: &File, bytes: &[u8], at: usize) -> io::Result<bool> {
    match file.write_all_at(bytes, at as u64) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the filesystem takes the switch.
fn set_direct(file: &File, on: bool) -> bool {
    let flags = if on { libc::O_DIRECT } else { 0 };
    // SAFETY: fcntl(2) with numbers, on a descriptor that `file` keeps open; a new file has no other flags that this could change.
    (unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) }) == 0
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
                // As it lies: its memory begins with a page.
                write(&File::create(&path).unwrap(), &crate::Buffer::from(&bytes[..])).unwrap();
                assert!(std::fs::read(&path).unwrap() == bytes, "{len} bytes of a buffer");
            }
        }
    }
}
