//! The filesystem's error numbers as failures.

use std::io;

use api::error::Failure;

/// A failure with the text of one of the filesystem's error numbers.
pub fn errno_failure(what: impl Into<String>, errno: fs::Errno) -> Failure {
    let failure = Failure::io(what, &io::Error::from_raw_os_error(errno.0));
    match errno {
        fs::Errno::ESTALE => failure
            .why("it is gone; in the tree of a bucket, its object was replaced or removed since the index")
            .next("of a bucket: covey index lists it again, and --follow moves a mount to the new tree"),
        _ => failure,
    }
}
