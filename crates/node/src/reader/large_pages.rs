//! Brings a file into the page cache in large pieces.
//!
//! The kernel's readahead brings a file in by pieces of up to 128 KiB. A mapping of them takes a page fault
//! for each 64 KiB, which costs a third of the time of a pass through the bytes. A mapping that asks for huge
//! pages reads pieces of 2 MiB instead, where the filesystem can (ext4, xfs, btrfs). They stay in the page
//! cache, so every later mapping takes one fault for each. Where that is not possible, nothing changes.

use std::fs::File;
use std::ptr::null_mut;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Brings the first `len` bytes of a file into the page cache. What is there already stays as it is.
pub fn load(file: &File, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: a new mapping at an address that the kernel chooses. Nothing reads its memory: the kernel fills
    // the page cache, and reports an error of the disk as the error of that call.
    let Ok(pages) = (unsafe { mmap(null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }) else {
        return;
    };
    // SAFETY: the range is that mapping, and the advice changes no bytes.
    let asked = unsafe { madvise(pages, len, Advice::LinuxHugepage) };
    if asked.is_ok() {
        // A failure leaves it to the read that follows.
        // SAFETY: as above.
        let _ = unsafe { madvise(pages, len, Advice::LinuxPopulateRead) };
    }
    // SAFETY: nothing refers to the mapping.
    let _ = unsafe { munmap(pages, len) };
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn the_bytes_are_what_they_were() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..5_000_000_u32).map(|n| ((n * 7) >> 3) as u8).collect();
        file.write_all(&bytes).unwrap();
        // Also beyond the end of the file, and of an empty one.
        for len in [0, 1, 4096, bytes.len(), bytes.len() * 2] {
            load(&file, len);
        }
        load(&tempfile::tempfile().unwrap(), 10);
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes);
    }
}
