//! Error numbers as S3 errors. This is the only table.

use fs::Errno;
use s3s::{S3Error, S3ErrorCode, s3_error};

/// The result of every operation.
pub type Result<T> = std::result::Result<T, S3Error>;

/// The gateway's own folder is not its own. No filesystem has this error (EREMCHG).
pub const NOT_OURS: Errno = Errno(78);
/// What it means.
pub const NOT_OURS_TEXT: &str = "the folder .covey-s3 at the top of the bucket is not the gateway's own: \
    somebody else made it, or may use it; remove it, or give it to the user of the gateway with mode 700";

/// The S3 error for an error number of the filesystem.
pub fn of(errno: Errno) -> S3Error {
    match errno {
        NOT_OURS => s3_error!(AccessDenied, "{NOT_OURS_TEXT}"),
        Errno::ENOENT | Errno::ENODATA | Errno::ESTALE => s3_error!(NoSuchKey, "no object has this key"),
        Errno::EROFS => s3_error!(AccessDenied, "this bucket is read-only"),
        Errno::EACCES | Errno::EPERM => s3_error!(AccessDenied, "the filesystem refuses this"),
        Errno::ENOSPC | Errno::EDQUOT => {
            let mut full = custom("InsufficientStorage", "the volume is full: remove something first");
            full.set_status_code(http::StatusCode::INSUFFICIENT_STORAGE);
            full
        }
        Errno::ENAMETOOLONG => s3_error!(KeyTooLongError, "a part of the key is longer than 255 bytes"),
        Errno::ENOTDIR => s3_error!(InvalidArgument, "a part of the key is the name of an object or a link"),
        Errno::EISDIR | Errno::EEXIST | Errno::ENOTEMPTY => {
            s3_error!(InvalidArgument, "this key is a prefix of other keys")
        }
        Errno::EFBIG => s3_error!(EntityTooLarge, "the object would be larger than a file can be"),
        Errno::E2BIG | Errno::ERANGE => s3_error!(MetadataTooLarge, "the metadata is too large"),
        Errno::EINVAL => s3_error!(InvalidArgument, "the filesystem refuses these arguments"),
        Errno::EAGAIN | Errno::EBUSY | Errno::EINTR | Errno::ETIMEDOUT => {
            s3_error!(ServiceUnavailable, "the filesystem did not answer in time: try again")
        }
        Errno::EOPNOTSUPP | Errno::ENOSYS => s3_error!(NotImplemented, "this filesystem does not have this"),
        other => s3_error!(InternalError, "the filesystem failed: {other}"),
    }
}

/// Returns the S3 error for an error number of a read of bytes. The name was found before, so ESTALE does not
/// mean that a key is missing: the bytes are of another version of an object in the bucket that the tree is
/// an index of.
pub fn of_read(errno: Errno) -> S3Error {
    match errno {
        Errno::ESTALE => s3_error!(
            PreconditionFailed,
            "the object in the indexed bucket has changed since: make the index again"
        ),
        errno => of(errno),
    }
}

/// An error whose code s3s does not list.
pub fn custom(code: &'static str, message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::Custom(code.into()), message)
}

/// A failure inside the gateway.
pub fn internal(what: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InternalError, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_stale_object_is_not_answered_as_one_that_does_not_exist() {
        assert_eq!(*of_read(Errno::ESTALE).code(), S3ErrorCode::PreconditionFailed);
        assert_eq!(*of_read(Errno::ENOENT).code(), S3ErrorCode::NoSuchKey);
    }
}
