//! How a request to another node comes to nothing, by what the asker does next.

use std::net::SocketAddr;
use std::time::Duration;

use crate::frame::ErrorKind;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fail {
    /// No connection came about, or it was tried so lately that it is not tried again yet.
    #[error("{address} cannot be reached: {why}")]
    Unreachable {
        /// Whom.
        address: SocketAddr,
        /// What the system said.
        why: String,
    },
    /// The two do not belong together: another secret, volume or version, or not the node that was expected there.
    #[error("{address} and this node do not belong together: {why}")]
    Stranger {
        /// Who.
        address: SocketAddr,
        /// What differs, and what to do.
        why: String,
    },
    /// Nothing came in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The connection ended before the answer was whole.
    #[error("the connection ended before the answer: {0}")]
    Gone(String),
    /// The other does not have the blob, or not any more.
    #[error("it does not have the blob")]
    Missing,
    /// The other found its own copy to be damaged; it drops it.
    #[error("its copy of the blob is damaged")]
    Damaged,
    /// What came are not the blob's bytes. The other has been told.
    #[error("it sent wrong bytes: {0}")]
    Corrupt(String),
    /// Too much is under way at one of the two ends: ask somebody else, or later.
    #[error("too many requests are under way")]
    Busy,
    /// The other could not do it, and says why.
    #[error("{0}")]
    Unable(String),
    /// One end does not understand the other.
    #[error("it said something that makes no sense here: {0}")]
    Protocol(String),
    /// This node ends, or the request was given up.
    #[error("the request was given up")]
    Closed,
}

impl Fail {
    /// What an error frame means to the one who asked.
    pub(crate) fn of(kind: ErrorKind, text: &str) -> Fail {
        match kind {
            ErrorKind::Missing => Fail::Missing,
            ErrorKind::Damaged => Fail::Damaged,
            ErrorKind::Busy => Fail::Busy,
            ErrorKind::Failed => Fail::Unable(text.to_owned()),
            ErrorKind::Closing => Fail::Gone("the other node ends".to_owned()),
            ErrorKind::Bad | ErrorKind::Range | ErrorKind::Internal => Fail::Protocol(text.to_owned()),
        }
    }

    /// Whether the node itself is in doubt (rather than this one blob at it): asked again only after a while.
    pub fn is_about_the_node(&self) -> bool {
        matches!(
            self,
            Fail::Unreachable { .. }
                | Fail::Stranger { .. }
                | Fail::Late(_)
                | Fail::Gone(_)
                | Fail::Protocol(_)
                | Fail::Corrupt(_)
        )
    }
}
