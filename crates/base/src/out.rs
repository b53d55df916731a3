//! Lines for the person in front of a terminal.
//!
//! `println!` and `eprintln!` end the thread if nobody reads what they print: the reader of a pipe has ended,
//! or the disk of a log is full. Work that was asked for must not end because of that.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line. If it cannot be printed, it is lost.
pub fn line(text: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Prints a line about what went wrong. If it cannot be printed, it is lost.
pub fn complaint(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
