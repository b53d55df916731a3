//! Reads that are completed when their bytes arrive, without holding a thread until then.
//!
//! ```text
//!   reader ── start_read(range, completion) ──► source
//!                                                 │ Read:    the bytes are here, or nothing is known
//!                                                 │ Pending: a fetch in flight will complete it
//!                                                 ▼ Lead:    run the task, which fetches and completes it
//!   completion(Ok(bytes)), on the thread that received them
//! ```
//!
//! [`BlobSource::read_at`](crate::BlobSource::read_at) is always possible instead.

use crate::BlobError;

/// Why the expected bytes did not arrive.
#[derive(Debug)]
pub enum Missed {
    /// A read may still find them: in another copy, or wherever they are by now.
    Read,
    /// The fetch failed, and a read would fail with the same error.
    Failed(BlobError),
}

/// The argument of a completion: the bytes of the range, or why they did not arrive.
pub type Arrival<'a> = Result<&'a [u8], Missed>;

/// A completion: called at most once, on any thread. It must not block. Returns whether the bytes were of
/// use.
pub type Completion = Box<dyn FnOnce(Arrival<'_>) -> bool + Send>;

/// A fetch that the caller has to run on a thread that may wait. Returns false if the caller must read the
/// range after it. Then the completion was not called, and will not be.
pub type FetchTask = Box<dyn FnOnce() -> bool + Send>;

/// The answer to a request for bytes that may have to be fetched.
pub enum Start {
    /// Nothing is known about them, or they are on this machine: read. The completion was dropped.
    Read,
    /// A fetch is in flight, and will call the completion. It may have done so already.
    Pending,
    /// No fetch is in flight. This one has to be run. It calls the completion when the bytes arrive.
    Lead(FetchTask),
}

impl Start {
    /// Whether the completion is called without any further action.
    pub fn is_pending(&self) -> bool {
        matches!(self, Start::Pending)
    }
}

impl std::fmt::Debug for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Start::Read => "Read",
            Start::Pending => "Pending",
            Start::Lead(_) => "Lead",
        })
    }
}
