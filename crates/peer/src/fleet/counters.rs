//! What the fleet has done for this node, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::plan::{Source, Why};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counted while it happens.
        #[derive(Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        /// As they were at one moment.
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
    /// Blobs that came from a node that had them.
    peer_blobs,
    /// Their bytes.
    peer_bytes,
    /// Blobs that came from a node while it was fetching them.
    stream_blobs,
    /// Their bytes.
    stream_bytes,
    /// Blobs that came from a depot, whatever made this node ask it.
    depot_blobs,
    /// Their bytes.
    depot_bytes,
    /// Blobs that came from the origin.
    origin_blobs,
    /// Their bytes.
    origin_bytes,
    /// Parts of blobs that came from other nodes, without the rest.
    peer_parts,
    /// Their bytes.
    peer_part_bytes,
    /// Parts of blobs that came from depots.
    depot_parts,
    /// Their bytes.
    depot_part_bytes,
    /// Parts that came from the origin, of blobs that nobody had.
    origin_parts,
    /// Their bytes.
    origin_part_bytes,
    /// Fetches from the origin because the tracker said so.
    origin_told,
    /// Fetches from the origin because what was under way took too long.
    origin_hedged,
    /// Fetches from the origin because nobody in the fleet could be asked.
    origin_alone,
    /// Second fetches from the fleet because the first took too long.
    hedges,
    /// Fetches from other nodes that came to nothing.
    failed,
    /// Blobs that could not be had at all.
    lost,
    /// Questions to trackers.
    asks,
    /// Of these, not answered in time: whoever is asked next may not know that somebody fetches already.
    asks_late,
    /// Blobs that somebody here waited for because they were being fetched already.
    shared,
    /// Ranges that readers here were given by the loop that received them.
    direct,
    /// Questions answered as a tracker.
    answered,
    /// Notes told to trackers.
    notes,
    /// Blobs fetched from the origin for others, as a depot.
    filled,
    /// Blobs fetched from the origin because somebody warmed this depot.
    warmed,
    /// Copies made of what this node tracks, as one that only lends its disk.
    kept,
}

impl FleetCounts {
    /// How often the fleet was slow or in trouble, so that a blob may have come from the origin once more than all would need.
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

    /// A fetch begins.
    pub(super) fn begins(&self, from: Source, why: Why) {
        match (from, why) {
            (Source::Origin, Why::Told) => Counters::one(&self.origin_told),
            (Source::Origin, Why::Hedge) => Counters::one(&self.origin_hedged),
            (Source::Origin, Why::Alone) => Counters::one(&self.origin_alone),
            (_, Why::Hedge) => Counters::one(&self.hedges),
            _ => {}
        }
    }

    /// A blob of so many bytes came.
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
