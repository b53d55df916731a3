//! The VMM: this program, started by a test. It works in the test's folder, and says how far it is by files.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::Duration;

use memory::vmm::{self, Memory};

/// The variable that makes this program a VMM.
pub const JOB: &str = "COVEY_VMM_JOB";
const PAGE: usize = 4096;

/// Does a job and exits: 0 if everything was as it should be.
///
/// - `check`: compares all bytes, page by page in an odd order.
/// - `half`: compares the first half, waits for the file `go`, and compares the rest.
/// - `late`: waits for the file `go` before it touches anything.
/// - `hang-up`: waits for the server to end the connection, and is then still alive.
/// - `map`: maps the file `memory` privately, reads all of it, and waits for `go`.
pub fn run(job: &str) -> ! {
    let name = PathBuf::from(std::env::var("COVEY_VMM_NAME").unwrap());
    match job {
        "check" => {
            let (memory, expected, _stream) = load();
            compare(&memory, &expected, 0, expected.len());
        }
        "half" => {
            let (memory, expected, _stream) = load();
            compare(&memory, &expected, 0, expected.len() / 2);
            step(&name, "half");
            wait_for(&name.with_extension("go"));
            compare(&memory, &expected, expected.len() / 2, expected.len());
        }
        "late" => {
            let (memory, expected, _stream) = load();
            step(&name, "loaded");
            wait_for(&name.with_extension("go"));
            compare(&memory, &expected, 0, expected.len());
        }
        "hang-up" => {
            let (_memory, _, mut stream) = load();
            step(&name, "loaded");
            let mut said = String::new();
            let _ = stream.read_to_string(&mut said);
            println!("the server said: {said}");
        }
        "map" => {
            map();
            step(&name, "mapped");
            wait_for(&name.with_extension("go"));
        }
        job => panic!("{job} is no job"),
    }
    exit(0);
}

fn load() -> (Memory, Vec<u8>, std::os::unix::net::UnixStream) {
    let expected = fs::read("memory").unwrap();
    let (memory, stream) = vmm::load(Path::new("s"), expected.len() as u64).unwrap();
    (memory, expected, stream)
}

/// A guest touches its memory in no order.
fn compare(memory: &Memory, expected: &[u8], from: usize, to: usize) {
    let pages = (to - from) / PAGE;
    for page in 0..pages {
        // The factor is a prime larger than any file here has pages, so each page has its turn.
        let at = from + page * 1_000_003 % pages * PAGE;
        if memory.bytes()[at..at + PAGE] != expected[at..at + PAGE] {
            eprintln!("the page at {at} is not the snapshot's");
            exit(3);
        }
    }
}

fn map() {
    let file = File::open(std::env::var("COVEY_VMM_FILE").unwrap_or_else(|_| "memory".into())).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of an open file.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            access,
            libc::MAP_PRIVATE,
            std::os::fd::AsRawFd::as_raw_fd(&file),
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping has `len` bytes, and stays until this process ends.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) };
    let sum: u64 = bytes.iter().step_by(PAGE).map(|byte| u64::from(*byte)).sum();
    println!("{sum}");
}

fn step(name: &Path, step: &str) {
    fs::write(name.with_extension(step), "").unwrap();
}

fn wait_for(path: &Path) {
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}
