//! A node's own wall clock, which jumps when a test says so.
//!
//! Debian's libfaketime is loaded into the node's process. It adds an offset from a file to the wall clock,
//! and reads that file each time. The monotonic clock is not changed, as when an administrator sets a
//! machine's clock. A time namespace would change only the monotonic clock, and the tests must not change the
//! machine's own clock.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The clock of one node.
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

/// The path of the library, if it is installed (Debian's package faketime).
pub fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|file| file.is_file())
}

/// Removes what libfaketime leaves of processes that were killed. A later process with the same number would
/// not start: its own file exists already.
fn sweep() {
    for entry in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number = name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"));
        if number.is_some_and(|number| !Path::new("/proc").join(number).exists()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        sweep();
    }
}

impl Clock {
    /// A clock that is correct at first. `file` holds its offset.
    pub fn new(file: &Path) -> Option<Clock> {
        sweep();
        let clock = Clock { library: library()?, file: file.to_owned() };
        clock.jump(0);
        Some(clock)
    }

    /// Sets the offset in seconds.
    pub fn jump(&self, seconds: i64) {
        // Atomic for a concurrent reader.
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(&fresh, &self.file).unwrap();
    }

    /// Makes a program use this clock.
    pub fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        for switch in ["FAKETIME_NO_CACHE", "FAKETIME_DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"] {
            command.env(switch, "1");
        }
    }
}
