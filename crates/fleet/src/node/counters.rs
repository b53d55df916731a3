//! Counters of what the fleet did for this node.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::plan::{Source, Why};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters.
        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        /// The counters' values at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct FleetCounts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(super) fn now(&self) -> FleetCounts {
                FleetCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Blobs from nodes that had them.
    peer_blobs,
    /// Bytes of blobs from nodes that had them.
    peer_bytes,
    /// Blobs from nodes that were still fetching them.
    stream_blobs,
    /// Bytes of blobs from nodes that were still fetching them.
    stream_bytes,
    /// Blobs from depots, whatever made this node ask one.
    depot_blobs,
    /// Bytes of blobs from depots.
    depot_bytes,
    /// Blobs from the origin.
    origin_blobs,
    /// Bytes of blobs from the origin.
    origin_bytes,
    /// Parts of blobs from other nodes, without the rest.
    peer_parts,
    /// Bytes of parts of blobs from other nodes.
    peer_part_bytes,
    /// Parts of blobs from depots.
    depot_parts,
    /// Bytes of parts of blobs from depots.
    depot_part_bytes,
    /// Parts from the origin, of blobs that no node had.
    origin_parts,
    /// Bytes of parts from the origin.
    origin_part_bytes,
    /// Fetches from the origin because the tracker said so.
    origin_told,
    /// Fetches from the origin because what was in flight took too long.
    origin_hedged,
    /// Fetches from the origin because no node of the fleet could be asked.
    origin_alone,
    /// Second fetches from the fleet because the first took too long.
    hedges,
    /// Fetches from other nodes that failed.
    failed,
    /// Blobs that could not be fetched at all.
    lost,
    /// Questions to trackers.
    asks,
    /// Of these, not answered in time. The next tracker may not know that a node is already fetching.
    asks_late,
    /// Ranges that readers here got from the receiving loop.
    direct,
    /// Questions answered as a tracker.
    answered,
    /// Notes sent to trackers.
    notes,
    /// Blobs fetched from the origin for others, as a depot.
    filled,
    /// Blobs that this depot fetched from the origin for warming.
    warmed,
    /// Copies made of what this node tracks, as a node that only lends its disk.
    kept,
}

impl FleetCounts {
    /// How often the fleet was slow or failing, so that a blob may have come from the origin once more than
    /// necessary.
    pub fn troubles(&self) -> u64 {
        self.origin_hedged + self.origin_alone + self.asks_late + self.failed
    }
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn one(counter: &AtomicU64) {
        Counters::add(counter, 1);
    }

    /// Counts the begin of a fetch.
    pub(super) fn begins(&self, from: Source, why: Why) {
        match (from, why) {
            (Source::Origin, Why::Told) => Counters::one(&self.origin_told),
            (Source::Origin, Why::Hedge) => Counters::one(&self.origin_hedged),
            (Source::Origin, Why::Alone) => Counters::one(&self.origin_alone),
            (_, Why::Hedge) => Counters::one(&self.hedges),
            _ => {}
        }
    }

    /// Counts a fetched blob of this size.
    pub(super) fn came(&self, from: Source, size: u64) {
        let (blobs, bytes) = match from {
            Source::Peer(_) => (&self.peer_blobs, &self.peer_bytes),
            Source::Stream(_) => (&self.stream_blobs, &self.stream_bytes),
            Source::Depot(_) => (&self.depot_blobs, &self.depot_bytes),
            Source::Origin => (&self.origin_blobs, &self.origin_bytes),
        };
        Counters::one(blobs);
        Counters::add(bytes, size);
    }
}
