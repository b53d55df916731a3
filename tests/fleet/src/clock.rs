//! A clock of the day of a node's own, which jumps when a test says so.
//!
//! Debian's libfaketime, loaded into the node's process, adds what a file says to the time of day, and reads that file at each look.
//! The monotonic clock stays as it is, as it does where an administrator sets a machine's clock. A time namespace would move only that
//! one, and the machine's own clock is not the tests'.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The clock of one node.
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

/// Where the library is, if it is installed (Debian's package faketime).
pub fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1")).find(|file| file.is_file())
}

impl Clock {
    /// One that is right so far; what it is wrong by stands in `file`.
    pub fn new(file: &Path) -> Option<Clock> {
        let clock = Clock { library: library()?, file: file.to_owned() };
        clock.jump(0);
        Some(clock)
    }

    /// From now on it is wrong by so many seconds.
    pub fn jump(&self, seconds: i64) {
        // At once for whoever reads it meanwhile.
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(&fresh, &self.file).unwrap();
    }

    /// A program that looks at this clock.
    pub fn give(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        for switch in ["FAKETIME_NO_CACHE", "FAKETIME_DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"] {
            command.env(switch, "1");
        }
    }
}
