//! A VMM for measurements: maps memory, has it served or maps the file, touches a part of it, prints times,
//! and waits for the end of its input.
//!
//! ```text
//!   vmm uffd SOCKET BYTES TOUCHED      vmm mmap FILE BYTES TOUCHED
//! ```

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use covey_memory::vmm;

const PAGE: usize = 4096;
/// A guest's working set lies in pieces.
const PIECE: usize = 64 << 10;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, kind, place, len, touched] = &args[..] else { panic!("vmm KIND PLACE BYTES TOUCHED") };
    let (len, touched): (usize, usize) = (len.parse().unwrap(), touched.parse().unwrap());
    let began = Instant::now();
    let (at, _keep) = match kind.as_str() {
        "uffd" => {
            let (memory, stream) = vmm::load(Path::new(place), len as u64).unwrap();
            (memory.bytes().as_ptr().cast_mut(), Some((memory, stream)))
        }
        _ => (map(Path::new(place), len), None),
    };
    let loaded = began.elapsed();
    // SAFETY: the mapping has `len` bytes, and stays until this process ends. Nothing else refers to it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at, len) };
    let sum = u64::from(bytes[len / 2]);
    let first = began.elapsed() - loaded;
    let sum = sum + touch(bytes, touched);
    let all = began.elapsed();
    let micros = [loaded, first, all].map(|time| time.as_micros());
    println!("{{\"load\": {}, \"first\": {}, \"all\": {}, \"sum\": {sum}}}", micros[0], micros[1], micros[2]);
    let _ = std::io::stdin().read(&mut [0]);
}

/// Reads pieces in no order, and writes to an eighth of the pages.
fn touch(bytes: &mut [u8], touched: usize) -> u64 {
    let pieces = bytes.len() / PIECE;
    let mut sum = 0;
    for piece in 0..touched / PIECE {
        let from = piece * 1_000_003 % pieces * PIECE;
        for at in (from..from + PIECE).step_by(PAGE) {
            sum += u64::from(bytes[at]);
            if (at / PAGE).is_multiple_of(8) {
                bytes[at + 1] = 1;
            }
        }
    }
    sum
}

fn map(path: &Path, len: usize) -> *mut u8 {
    let file = File::open(path).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}
