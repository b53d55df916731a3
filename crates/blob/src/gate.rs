//! Backpressure on new bytes: a program that stores faster than the origin takes waits at this gate.
//!
//! A node keeps what it cannot upload yet, and its disk is finite. The gate is asked before a program's bytes
//! are taken, while no lock is held. So the work that makes room (sealing, uploading, deleting) never waits
//! behind it.

use crate::source::BlobError;

/// Whether new bytes are admitted. Asked for every write, so it must be quick.
pub trait Gate: Send + Sync {
    /// Whether [`Gate::pass`] would return at once.
    fn is_open(&self) -> bool;

    /// Waits until new bytes are admitted.
    ///
    /// # Errors
    /// `Full` after a bounded time. The gate has logged the reason, once.
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
