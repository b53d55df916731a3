//! Failures as Python's exceptions.
//!
//! Python chooses the class of an `OSError` by its number: `FileNotFoundError`, `TimeoutError` and so on. So
//! a failure of a call needs its number and the path, and only failures of opening a tree are chosen here.

use std::ffi::OsStr;
use std::io;

use api::error::{Failure, plain};
use fs::Errno;
use node::reader::Failed;
use pyo3::exceptions::{PyConnectionError, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;

/// There is not enough memory for the bytes that were asked for. Python has a class of its own for it.
pub const NO_MEMORY: Errno = Errno(libc::ENOMEM);

/// So many zeros.
///
/// # Errors
/// [`NO_MEMORY`], where `vec!` would end the interpreter.
pub fn zeros(len: u64) -> Result<Vec<u8>, Errno> {
    let len = usize::try_from(len).map_err(|_| NO_MEMORY)?;
    // Only asks. To fill what it gives would touch all of it, which `vec!` leaves to the read.
    Vec::<u8>::new().try_reserve_exact(len).map_err(|_| NO_MEMORY)?;
    Ok(vec![0; len])
}

/// The exception for a failure at a path. It has the reason, if the number does not say everything.
pub fn at(failed: impl Into<Failed>, path: &OsStr) -> PyErr {
    let Failed { errno, why } = failed.into();
    let mut text = plain(&io::Error::from_raw_os_error(errno.0));
    if let Some(why) = why {
        text = format!("{text}: {why}");
    }
    if errno == NO_MEMORY {
        return PyMemoryError::new_err(format!("{text}: {}", path.display()));
    }
    PyOSError::new_err((errno.0, text, path.to_owned()))
}

/// Why a call on a tree failed.
pub enum Trouble {
    /// The tree could not be opened.
    Unopened(Failure),
    /// The tree was closed.
    Closed,
    /// The call itself failed.
    Failed(Failed),
}

impl From<Failed> for Trouble {
    fn from(failed: Failed) -> Trouble {
        Trouble::Failed(failed)
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Trouble {
        Trouble::Failed(errno.into())
    }
}

impl Trouble {
    /// The exception, of a call on a path.
    pub fn at(self, path: &OsStr) -> PyErr {
        match self {
            Trouble::Unopened(failure) => of(&failure),
            Trouble::Closed => closed(),
            Trouble::Failed(failed) => at(failed, path),
        }
    }
}

/// The exception for a tree that could not be opened, or could not say its figures.
pub fn of(failure: &Failure) -> PyErr {
    let line = failure.line();
    let number = match &*failure.code {
        "usage" => return PyValueError::new_err(line),
        "origin-away" => return PyConnectionError::new_err(line),
        "not-published" | "not-found" | "origin-gone" | "origin-bucket" => libc::ENOENT,
        "origin-keys" | "origin-denied" | "not-permitted" | "not-private" | "another-key"
        | "older-record" => libc::EACCES,
        "disk-full" => libc::ENOSPC,
        _ => libc::EIO,
    };
    PyOSError::new_err((number, line))
}

/// The exception for a mount whose daemon could not be asked, or refused.
pub fn of_mount(failure: &Failure) -> PyErr {
    let number = match &*failure.code {
        "not-mounted" => libc::ENODEV,
        "stale-mount" | "no-answer" => libc::ENOTCONN,
        "silent" => libc::ETIMEDOUT,
        // What this daemon, or this kind of mount, does not answer.
        "usage" => libc::EOPNOTSUPP,
        _ => return of(failure),
    };
    PyOSError::new_err((number, failure.line()))
}

/// The exception for a tree that was closed.
pub fn closed() -> PyErr {
    PyValueError::new_err("this tree is closed")
}
