//! What a node knows about its own link and its upstream. It is the computation of `capacity` and `activity`
//! in `peer::fleet`, which are private to a node, with the same constants. A node counts bytes as they
//! arrive. This counts whole blobs at their last byte.

use std::collections::BTreeMap;

use crate::model::BLOB;

/// Bytes are counted for this long to get a rate.
const WINDOW: u64 = 1_000_000;
/// A node that sent something within this time is sending.
const FRESH: u64 = 500_000;
/// Bytes that arrived longer ago than this count half. After the same time again they count a quarter.
const HALF: u64 = 1_000_000;
/// A node that has sent nothing for this long cannot be the upstream.
const UPSTREAM: u64 = 4 * HALF;
/// Nor can a node that sends less than this fraction of what the link delivers in a second.
const FAIR: u64 = 4;

/// The bytes from one node.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// When the last of them arrived.
    at: u64,
    /// Recent bytes, as they counted at `since`.
    bytes: u64,
    since: u64,
}

impl Sent {
    /// The same, as they count now.
    fn aged(self, now: u64) -> Sent {
        let halves = now.saturating_sub(self.since) / HALF;
        let bytes = self.bytes.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0);
        Sent { bytes, since: self.since + halves * HALF, ..self }
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    since: u64,
    bytes: u64,
    /// Bytes a second: the recent maximum, and those of the last window.
    most: u64,
    last: u64,
    by: BTreeMap<u32, Sent>,
    /// The node that sends the most.
    first: Option<u32>,
}

impl Heard {
    /// A blob arrived, from a node or from the origin.
    pub fn came(&mut self, now: u64, from: Option<u32>) {
        self.bytes += BLOB;
        let time = now.saturating_sub(self.since);
        if time >= WINDOW {
            let rate = self.bytes.saturating_mul(1_000_000) / time;
            self.most = rate.max(self.most - self.most / 16);
            (self.since, self.bytes, self.last) = (now, 0, rate);
        }
        let Some(node) = from else { return };
        let sent = self.by.entry(node).or_default();
        *sent = sent.aged(now);
        (sent.at, sent.bytes) = (now, sent.bytes + BLOB);
        let bytes = sent.bytes;
        let before = self.first.and_then(|first| self.by.get(&first)).map_or(0, |sent| sent.aged(now).bytes);
        if bytes >= before {
            self.first = Some(node);
        }
    }

    /// The link's capacity in bytes a second. 0 before anything is known.
    pub fn rate(&self) -> u64 {
        self.most
    }

    /// Less than half of the capacity was used recently.
    pub fn is_slack(&self) -> bool {
        self.last < self.most / 2
    }

    /// Whether a node has sent something recently.
    pub fn is_fresh(&self, now: u64, node: u32) -> bool {
        self.by.get(&node).is_some_and(|sent| now < sent.at + FRESH)
    }

    /// The node's upstream: the node that sent the most recently, if it sent more than a single blob and a
    /// fair share of the link's capacity.
    pub fn upstream(&self, now: u64) -> Option<u32> {
        let least = BLOB.max(self.most / FAIR);
        let sends = |node: &u32| {
            let sent = self.by.get(node).map(|sent| sent.aged(now));
            sent.is_some_and(|sent| now < sent.at + UPSTREAM && sent.bytes > least)
        };
        self.first.filter(sends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_that_sent_the_most_recently_is_followed() {
        let mut heard = Heard::default();
        heard.came(10, Some(1));
        assert_eq!(heard.upstream(10), None, "a single blob");
        heard.came(20, Some(1));
        assert_eq!((heard.upstream(20), heard.rate()), (Some(1), 0));
        (0..3).for_each(|_| heard.came(1_000_030, Some(2)));
        assert_eq!(heard.upstream(1_000_030), Some(2));
        assert!(heard.is_fresh(1_000_030, 2) && !heard.is_fresh(1_000_030, 1));
        assert!(heard.rate() > 0 && !heard.is_slack());
        assert_eq!(heard.upstream(6_000_000), None);
        heard.came(9_000_000, None);
        assert!(heard.is_slack());
    }
}
