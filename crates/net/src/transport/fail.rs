//! Why a request to another node fails. The kinds differ by what the requester does next.

use std::net::SocketAddr;
use std::time::Duration;

use fetch::Fault;

use crate::frame::ErrorKind;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fail {
    /// No connection could be made, or an attempt failed so recently that there is no new one yet.
    #[error("{address} cannot be reached: {why}")]
    Unreachable {
        /// The node's address.
        address: SocketAddr,
        /// The system's error.
        why: String,
    },
    /// The two nodes do not belong together: another secret, volume or version, or another node than
    /// expected.
    #[error("{address} and this node do not belong together: {why}")]
    Stranger {
        /// The node's address.
        address: SocketAddr,
        /// What differs, and what to do.
        why: String,
    },
    /// No answer came in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The connection ended before the answer was whole.
    #[error("the connection ended before the answer: {0}")]
    Gone(String),
    /// The other node does not have the blob, or no longer.
    #[error("it does not have the blob")]
    Missing,
    /// The other node found its copy damaged, and drops it.
    #[error("its copy of the blob is damaged")]
    Damaged,
    /// The received bytes are not the blob's. The other node has been told.
    #[error("it sent wrong bytes: {0}")]
    Corrupt(String),
    /// Too much is in progress at one of the two ends. Ask another node, or later.
    #[error("too many requests are under way")]
    Busy,
    /// The other node could not do it, and says why.
    #[error("{0}")]
    Unable(String),
    /// One end does not understand the other.
    #[error("it said something that makes no sense here: {0}")]
    Protocol(String),
    /// The request was given up, or this node is stopping.
    #[error("the request was given up")]
    Closed,
}

impl From<Fault> for Fail {
    fn from(fault: Fault) -> Fail {
        match fault {
            Fault::Wrong(what) => Fail::Corrupt(what),
            Fault::Misplaced(what) => Fail::Protocol(what),
            Fault::Late(time) => Fail::Late(time),
            Fault::GivenUp => Fail::Missing,
        }
    }
}

impl Fail {
    /// What an error frame means to the requester.
    pub(crate) fn of(kind: ErrorKind, text: &str) -> Fail {
        match kind {
            ErrorKind::Missing => Fail::Missing,
            ErrorKind::Damaged => Fail::Damaged,
            ErrorKind::Busy => Fail::Busy,
            ErrorKind::Failed => Fail::Unable(text.to_owned()),
            ErrorKind::Closing => Fail::Gone("the other node is stopping".to_owned()),
            ErrorKind::Bad | ErrorKind::Range | ErrorKind::Internal => Fail::Protocol(text.to_owned()),
        }
    }

    /// Whether the error is about the node itself, and not only about one blob there. Then the node is asked
    /// again only after a while.
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
