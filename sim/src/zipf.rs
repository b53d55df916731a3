//! The node cache's eviction policy beside others, on the same reads: how many reads and bytes hit the node's
//! disk.
//!
//! Each policy gets the same trace and the same space, a part of what all blobs of the trace take. The first
//! quarter of the reads fills the disk and is not counted. Time matters to one policy only:
//! [`crate::evict::READS_PER_S`] reads are a second.

use serde_json::{Value, json};

use crate::evict::{Evict, NAMES, all};
use crate::trace::{Kind, Trace};

/// The space of the disk, in per cent of all blobs.
pub const ROOMS: [u64; 4] = [1, 5, 10, 20];

/// The result of one policy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// The fraction of reads whose blob was there.
    pub hits: f64,
    /// The fraction of bytes of all blobs read that need not come from elsewhere.
    pub bytes: f64,
}

/// One row: all policies on one trace with one amount of space.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The trace.
    pub kind: Kind,
    /// Per cent.
    pub room: u64,
    /// In the order of [`NAMES`].
    pub scores: [Score; 5],
}

/// Runs every trace with every amount of space. Passes a row on as soon as it is known.
pub fn run(reads: usize, seed: u64, mut each: impl FnMut(&Row)) -> Vec<Row> {
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let trace = Trace::new(kind, reads, seed);
        for room in ROOMS {
            let budget = trace.footprint() / 100 * room;
            let scores = all(&trace, budget).map(|mut policy| score(&trace, policy.as_mut()));
            rows.push(Row { kind, room, scores });
            rows.last().into_iter().for_each(&mut each);
        }
    }
    rows
}

fn score(trace: &Trace, policy: &mut dyn Evict) -> Score {
    let counted = trace.reads.len() / 4;
    let (mut hits, mut hit_bytes, mut bytes) = (0u64, 0, 0);
    for (at, blob) in trace.reads.iter().enumerate() {
        let hit = policy.read(at, *blob);
        (1..trace.kind.requests).for_each(|_| policy.again(at, *blob));
        if at < counted {
            continue;
        }
        let size = u64::from(trace.sizes[*blob as usize]);
        bytes += size;
        if hit {
            hits += 1;
            hit_bytes += size;
        }
    }
    let reads = (trace.reads.len() - counted).max(1);
    Score { hits: hits as f64 / reads as f64, bytes: hit_bytes as f64 / bytes.max(1) as f64 }
}

impl Row {
    /// The heads of the table's columns.
    pub fn head() -> String {
        let names: Vec<String> = NAMES.iter().map(|name| format!("{name:>13}")).collect();
        format!("{:<32} {:>6}{}", "hits, % of reads (of bytes)", "room", names.concat())
    }

    /// Its line.
    pub fn line(&self) -> String {
        let score = |score: &Score| format!("  {:>4.1} ({:>4.1})", 100.0 * score.hits, 100.0 * score.bytes);
        let scores: Vec<String> = self.scores.iter().map(score).collect();
        format!("{:<32} {:>4} %{}", self.kind.name(), self.room, scores.concat())
    }

    /// All of it.
    pub fn json(&self) -> Value {
        let policies: serde_json::Map<String, Value> = NAMES
            .iter()
            .zip(&self.scores)
            .map(|(name, score)| {
                ((*name).to_owned(), json!({ "hits": score.hits, "byte_hits": score.bytes }))
            })
            .collect();
        json!({ "trace": self.kind.name(), "skew": self.kind.skew, "scans": self.kind.scans, "shifts": self.kind.shifts,
            "requests": self.kind.requests, "room_percent": self.room, "policies": policies })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the cache's essay promises: a scan does not displace popular blobs, and many requests for one
    /// read count as one.
    #[test]
    fn the_own_policy_holds_against_scans_and_many_requests() {
        let rows = run(100_000, 1, |_| {});
        assert_eq!(rows.len(), Kind::ALL.len() * ROOMS.len());
        for row in rows.iter().filter(|row| row.kind.scans && row.room <= 10) {
            let [own, lru, fifo, ..] = row.scores;
            assert!(own.hits > lru.hits && lru.hits > fifo.hits, "{}", row.line());
        }
        let of =
            |requests| move |row: &&Row| row.kind.scans && row.kind.requests == requests && row.room == 5;
        let hits = |requests| rows.iter().find(of(requests)).map_or(0.0, |row| row.scores[0].hits);
        assert!((hits(1) - hits(32)).abs() < 0.001, "{} {}", hits(1), hits(32));
    }
}
