//! What the transport has done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counted while it happens.
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// As they were at one moment.
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
    /// Writes that small frames left in: fewer than these where some were merged.
    writes,
    /// Requests made to others.
    asked,
    /// Requests of others.
    served,
    /// Connections made to others, handshake included.
    made,
    /// Connections of others, handshake included.
    accepted,
    /// Connections that are there now, both kinds.
    open,
    /// Connections and handshakes refused here: full, strangers, garbage.
    refused,
    /// Connections to others that did not come about.
    unreachable,
    /// Requests to others that ended at their time.
    late,
    /// Requests to others whose connection ended.
    gone,
    /// Requests to others for blobs that they did not have.
    missing,
    /// Answers that were not the blob's bytes.
    corrupt,
    /// Requests that one of the two ends had no room for.
    busy,
    /// Requests that failed for another reason.
    failed,
    /// Requests given up here.
    cancelled,
    /// Complaints about bytes that came from here, others' and this node's own.
    suspected,
    /// Blobs that were compared with their names because of them.
    compared,
    /// Handshakes that were given up for newer ones.
    displaced,
    /// Times that a reading loop was woken.
    wakeups,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that came to nothing.
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
