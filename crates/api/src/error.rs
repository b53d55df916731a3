//! The report of a failure to a person or a script: what happened, why, what to do next.
//!
//! A [`Failure`] crosses three borders unchanged. The command that met it prints it. A daemon sends it over
//! its control socket to the command that asked. A background mount hands it to the parent that waits. Its
//! `code` is a stable word for scripts. All other fields are for people.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::text::{Lines, shown};

/// Shorthand for the results of commands.
pub type Result<T> = std::result::Result<T, Failure>;

/// One failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// A stable word: `not-a-volume`, `in-use`, `disk-full`, ...
    pub code: Cow<'static, str>,
    /// What happened, as a sentence without a full stop.
    pub what: String,
    /// Why, as far as it is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next: Vec<String>,
    /// The exit status: 1 failed or damage found, 2 wrong usage.
    pub status: u8,
}

impl Failure {
    /// Something failed.
    pub fn new(code: &'static str, what: impl Into<String>) -> Failure {
        Failure { code: Cow::Borrowed(code), what: what.into(), why: Vec::new(), next: Vec::new(), status: 1 }
    }

    /// The command was called wrongly.
    pub fn usage(what: impl Into<String>) -> Failure {
        Failure { status: 2, ..Failure::new("usage", what) }
    }

    /// A system call failed. What to do next follows from the kind of error.
    pub fn io(what: impl Into<String>, error: &io::Error) -> Failure {
        let failure = Failure::new(code_of(error), what).why(plain(error));
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => failure.next("free some room on that disk, then try again"),
            Some(libc::EACCES | libc::EPERM) => {
                failure.next("run it as root (or with sudo), or use a folder that is yours")
            }
            Some(libc::EROFS) => {
                failure.next("that filesystem is mounted read-only: remount it, or use another folder")
            }
            Some(libc::ENOENT) => failure.next("check the path"),
            Some(libc::EMFILE | libc::ENFILE) => {
                failure.next("raise the limit of open files: ulimit -n 65536")
            }
            Some(libc::EIO) => failure.next("look at the kernel's messages: dmesg | tail"),
            Some(libc::ENOTCONN) => failure.next("a dead mount is in the way: covey umount MOUNTPOINT"),
            _ => failure,
        }
    }

    /// Adds a reason.
    pub fn why(mut self, why: impl Into<String>) -> Failure {
        self.why.push(why.into());
        self
    }

    /// The whole failure in one line, for lists of failures.
    pub fn line(&self) -> String {
        let why = if self.why.is_empty() { String::new() } else { format!(" ({})", self.why.join("; ")) };
        let next: String = self.next.iter().map(|next| format!("; next: {next}")).collect();
        format!("{}{why}{next}", self.what)
    }

    /// Replaces what to do next.
    pub fn map_next(mut self, next: impl Into<String>) -> Failure {
        self.next = vec![next.into()];
        self
    }

    /// Adds what to do next.
    pub fn next(mut self, next: impl Into<String>) -> Failure {
        self.next.push(next.into());
        self
    }
}

/// The system's message without Rust's "(os error 13)".
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}

fn code_of(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "disk-full",
        Some(libc::EACCES | libc::EPERM) => "not-permitted",
        Some(libc::EROFS) => "read-only",
        Some(libc::ENOENT) => "not-found",
        Some(libc::EEXIST) => "exists",
        Some(libc::EBUSY) => "busy",
        Some(libc::ENOTCONN) => "stale-mount",
        _ => "io",
    }
}

impl Failure {
    /// What happened and why, for a line of the log or of a status.
    pub fn in_one_line(&self) -> String {
        self.why.iter().fold(self.what.clone(), |line, why| line + ": " + why)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text contains names, and it may come from another user's daemon.
        let line = |text| shown(text, Lines::Many).replace('\n', "\n        ");
        write!(f, "covey: {}", line(&self.what))?;
        for why in &self.why {
            write!(f, "\n  why:  {}", line(why))?;
        }
        for next in &self.next {
            write!(f, "\n  next: {}", line(next))?;
        }
        Ok(())
    }
}

/// Adds the missing path or action to the errors of the standard library.
pub trait Context<T> {
    /// `what` says what was being done, with the path.
    fn or_fail(self, what: impl FnOnce() -> String) -> Result<T>;

    /// Adds the common "cannot <verb> <path>" to an error.
    fn at(self, verb: &str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn or_fail(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::io(what(), &error))
    }

    fn at(self, verb: &str, path: &Path) -> Result<T> {
        self.or_fail(|| format!("cannot {verb} {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_why_and_next() {
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let text = Failure::io("cannot open /x", &error).to_string();
        assert_eq!(
            text,
            "covey: cannot open /x\n  why:  permission denied\n  next: run it as root (or with sudo), or use a folder that is yours"
        );
    }

    #[test]
    fn a_failure_survives_its_journey() {
        let sent = Failure::usage("no").why("a").next("b");
        let text = serde_json::to_string(&sent).unwrap();
        let got: Failure = serde_json::from_str(&text).unwrap();
        assert_eq!((got.status, got.code.as_ref(), got.to_string()), (2, "usage", sent.to_string()));
    }
}
