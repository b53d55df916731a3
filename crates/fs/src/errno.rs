//! Error numbers, as the kernel returns them to a program, and the one table that leads to them.
//!
//! Below this crate, errors say what happened. Here each becomes the number that tells a program what it can
//! do. The table is exhaustive: a new kind of error does not compile until somebody has chosen its number.

use std::fmt;

use blob::BlobError;
use meta::plan::Refusal;
use meta::store::StoreError;

/// A Linux error number, greater than 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! names {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub const $name: Errno = Errno(libc::$name);
            )*
            fn name(self) -> Option<&'static str> {
                match self.0 { $(libc::$name => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

names!(
    EPERM,
    ENOENT,
    EINTR,
    EIO,
    ENXIO,
    E2BIG,
    EBADF,
    EAGAIN,
    ENOMEM,
    EACCES,
    EBUSY,
    EEXIST,
    EXDEV,
    ENODEV,
    ENOTDIR,
    EISDIR,
    EINVAL,
    ETXTBSY,
    EFBIG,
    ENOSPC,
    ESPIPE,
    EROFS,
    EMLINK,
    ERANGE,
    ENAMETOOLONG,
    ENOSYS,
    ENOTEMPTY,
    ELOOP,
    ENODATA,
    EOVERFLOW,
    EOPNOTSUPP,
    ETIMEDOUT,
    ESTALE,
    ENOLCK,
    EDQUOT,
    ENOTTY,
);

impl Errno {
    /// No program sees this one: the request waits for another machine, and is to be made again on a thread
    /// that may wait. Nothing was changed.
    pub const WAITS: Errno = Errno(512);
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<Refusal> for Errno {
    fn from(refusal: Refusal) -> Errno {
        match refusal {
            Refusal::NotFound => Errno::ENOENT,
            Refusal::Exists => Errno::EEXIST,
            Refusal::NotDir => Errno::ENOTDIR,
            Refusal::IsDir => Errno::EISDIR,
            Refusal::NotEmpty => Errno::ENOTEMPTY,
            Refusal::Invalid => Errno::EINVAL,
            Refusal::NotPermitted => Errno::EPERM,
            Refusal::TooManyLinks => Errno::EMLINK,
            Refusal::TooLarge => Errno::EFBIG,
            Refusal::NameTooLong => Errno::ENAMETOOLONG,
            Refusal::NoAttribute => Errno::ENODATA,
            Refusal::AttributeTooLarge => Errno::ERANGE,
            Refusal::OverQuota => Errno::EDQUOT,
            Refusal::OtherQuota => Errno::EXDEV,
            Refusal::Busy => Errno::EBUSY,
            Refusal::Unsupported => Errno::EOPNOTSUPP,
            // The first two are handled inside. If one reaches this table, that is as bad as damage.
            Refusal::MustOutline | Refusal::ContentGone | Refusal::Changed | Refusal::Damaged => Errno::EIO,
        }
    }
}

impl From<&StoreError> for Errno {
    fn from(error: &StoreError) -> Errno {
        match error {
            StoreError::Full | StoreError::NoSpace(_) => Errno::ENOSPC,
            StoreError::Waits => Errno::WAITS,
            StoreError::Damaged(_)
            | StoreError::DamagedLog(_)
            | StoreError::Unavailable(_)
            | StoreError::Fenced(_) => Errno::EIO,
        }
    }
}

impl From<&BlobError> for Errno {
    fn from(error: &BlobError) -> Errno {
        match error {
            BlobError::Full => Errno::ENOSPC,
            BlobError::Stale(_) => Errno::ESTALE,
            BlobError::Missing(_)
            | BlobError::Damaged { .. }
            | BlobError::Unavailable(_)
            | BlobError::Refused(_)
            | BlobError::Io(_) => Errno::EIO,
        }
    }
}

/// An internal error. It becomes an [`Errno`], and is logged, where a request is answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operation is not possible in the current state.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The names could not be read or changed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Bytes could not be read or stored.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// Decided in this crate.
    #[error("{0}")]
    Errno(#[from] Errno),
}

impl From<&Error> for Errno {
    fn from(error: &Error) -> Errno {
        match error {
            Error::Refused(refusal) => (*refusal).into(),
            Error::Store(error) => error.into(),
            Error::Blob(error) => error.into(),
            Error::Errno(errno) => *errno,
        }
    }
}

impl From<meta::names::NamesError> for Error {
    fn from(error: meta::names::NamesError) -> Error {
        match error {
            meta::names::NamesError::Refused(refusal) => Error::Refused(refusal),
            meta::names::NamesError::Store(error) => Error::Store(error),
        }
    }
}

impl From<meta::record::BadRecord> for Error {
    fn from(bad: meta::record::BadRecord) -> Error {
        Error::Store(StoreError::Damaged(bad.to_string()))
    }
}

impl From<blob::extent::BadPage> for Error {
    fn from(bad: blob::extent::BadPage) -> Error {
        Error::Store(StoreError::Damaged(bad.to_string()))
    }
}
