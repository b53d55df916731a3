//! The filesystem's error numbers as failures.

use std::io;

use api::error::Failure;

/// A failure with the text of one of the filesystem's error numbers.
pub fn errno_failure(what: impl Into<String>, errno: fs::Errno) -> Failure {
    Failure::io(what, &io::Error::from_raw_os_error(errno.0))
}
