//! Counters of the transport.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// The counters' values at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn now(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Bytes received, headers included.
    bytes_in,
    /// Bytes sent, headers included.
    bytes_out,
    /// Bytes of blobs received.
    blob_bytes_in,
    /// Bytes of blobs sent.
    blob_bytes_out,
    /// Frames received.
    frames_in,
    /// Frames sent.
    frames_out,
    /// Writes of small frames. There are fewer writes than frames if some were merged.
    writes,
    /// Requests made to other nodes.
    asked,
    /// Requests of other nodes.
    served,
    /// Connections made to other nodes, handshake included.
    made,
    /// Connections of other nodes, handshake included.
    accepted,
    /// Connections that exist now, of both kinds.
    open,
    /// Connections and handshakes refused here: full, strangers, garbage.
    refused,
    /// Connections to other nodes that could not be made.
    unreachable,
    /// Requests to other nodes that timed out.
    late,
    /// Requests to other nodes whose connection ended.
    gone,
    /// Requests to other nodes for blobs that they did not have.
    missing,
    /// Answers that were not the blob's bytes.
    corrupt,
    /// Requests for which one of the two ends had no capacity.
    busy,
    /// Requests that failed for another reason.
    failed,
    /// Requests given up here.
    cancelled,
    /// Suspicions about blobs that are here, of other nodes and of this one.
    suspected,
    /// Blobs that were compared with their ids because of them.
    compared,
    /// Handshakes that were aborted for newer ones.
    displaced,
    /// How many times a reading loop was woken.
    wakeups,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed request.
    pub(crate) fn fail(&self, fail: &super::Fail) {
        use super::Fail;
        let counter = match fail {
            Fail::Unreachable { .. }
            | Fail::Stranger { .. }
            | Fail::Protocol(_)
            | Fail::Damaged
            | Fail::Unable(_) => &self.failed,
            Fail::Late(_) => &self.late,
            Fail::Gone(_) => &self.gone,
            Fail::Missing => &self.missing,
            Fail::Corrupt(_) => &self.corrupt,
            Fail::Busy => &self.busy,
            Fail::Closed => &self.cancelled,
        };
        Counters::one(counter);
    }
}
