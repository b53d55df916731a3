//! The filesystem's error numbers as failures.

use std::io;

use api::error::Failure;

/// A failure with the text of one of the filesystem's error numbers.
pub fn errno_failure(what: impl Into<String>, errno: fs::Errno) -> Failure {
    let failure = Failure::io(what, &io::Error::from_raw_os_error(errno.0));
    match errno {
        fs::Errno::ESTALE => failure
            .why("its object in the bucket was replaced or removed since the bucket was indexed")
            .next("index the bucket again: covey index; then mount the new tree, or follow it"),
        _ => failure,
    }
}
