//! A gate before new bytes: who stores faster than the origin takes waits here.
//!
//! A node that cannot hand on what it was given keeps it, and a disk has an end. The gate is asked before a program's bytes are taken,
//! where no lock is held, so that those who make room (sealing, uploading, deleting) are never behind it.

use crate::source::BlobError;

/// Whether new bytes may come. Asked for every write, so it must be quick.
pub trait Gate: Send + Sync {
    /// Whether [`Gate::pass`] would return at once.
    fn is_open(&self) -> bool;

    /// Waits until new bytes may come.
    ///
    /// # Errors
    /// `Full` after a bounded time; the gate has said why, once.
    fn pass(&self) -> Result<(), BlobError>;
}

/// A gate that is always open.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGate;

impl Gate for NoGate {
    fn is_open(&self) -> bool {
        true
    }

    fn pass(&self) -> Result<(), BlobError> {
        Ok(())
    }
}
