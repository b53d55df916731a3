//! Makes files without an end, and says of each whether it was acknowledged. So a test can interrupt it at
//! any moment and then look for what was promised.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// The content of a file: it has its number, and a length that depends on it.
fn content(number: u64) -> Vec<u8> {
    let line = format!("{number:015}\n");
    line.repeat(1 + (number % 700) as usize).into_bytes()
}

/// A file is written under another name, synced and renamed. Prints `ok N`, or `failed N ERRNO`.
pub fn run(dir: &Path, stop: &Path) {
    let mut number = 0;
    while !stop.exists() {
        match make(dir, number) {
            Ok(()) => println!("ok {number}"),
            Err(error) => {
                println!("failed {number} {}", error.raw_os_error().unwrap_or(0));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        number += 1;
    }
}

fn make(dir: &Path, number: u64) -> std::io::Result<()> {
    let part = dir.join(format!("{number}.part"));
    let mut file = File::create(&part)?;
    file.write_all(&content(number))?;
    file.sync_all()?;
    fs::rename(&part, dir.join(number.to_string()))
}

/// Every file that was acknowledged is there and whole. No file that is there is truncated or mixed, whether
/// it was acknowledged or not. Prints how many were acknowledged.
pub fn check(dir: &Path, log: &Path) {
    let log = fs::read_to_string(log).unwrap();
    let acknowledged = log.lines().filter_map(|line| line.strip_prefix("ok "));
    let mut count = 0;
    for number in acknowledged {
        let got = fs::read(dir.join(number)).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert!(got == content(number.parse().unwrap()), "{number} has other bytes");
        count += 1;
    }
    for entry in fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if let Ok(number) = name.parse() {
            assert!(fs::read(dir.join(&name)).unwrap() == content(number), "{name} has other bytes");
        }
    }
    println!("{count}");
}

/// Locks a file for itself, without waiting.
pub fn lock(path: &Path) -> File {
    let file = File::options().write(true).create(true).truncate(false).open(path).unwrap();
    // SAFETY: the descriptor is open. The call takes numbers only.
    let done = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    assert!(done == 0, "{}: {}", path.display(), std::io::Error::last_os_error());
    file
}

/// Holds a lock, and a file of 20 MiB that has no name any more, until it is killed.
pub fn hold(dir: &Path) {
    let gone = dir.join("gone");
    let mut file = File::create(&gone).unwrap();
    file.write_all(&vec![1; 20 << 20]).unwrap();
    fs::remove_file(&gone).unwrap();
    let _locked = lock(&dir.join("locked"));
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
