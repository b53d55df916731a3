//! The daemon's own counters of accesses, from the records of its requests. Reads that the page cache answers
//! do not appear in them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::size::MIB;
use fuse::Session;
use fuse::abi::opcodes::op;
use fuse::watch::{Cursor, Hold, Record, Watch};

/// As many chunks as the kernel's table has.
const CHUNKS_MAX: usize = 64 << 10;

/// How heat is counted.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// A chunk is hot from so many accesses on.
    pub hot: u32,
    /// An access counts half after this time.
    pub half_life: Duration,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule { hot: 2, half_life: Duration::from_secs(60) }
    }
}

impl Rule {
    /// Returns the score from which on a chunk is hot. It is rounded: when the second access comes, the first
    /// counts a little less already.
    pub fn score(self) -> f64 {
        f64::from(self.hot) - 0.5
    }
}

/// The accesses of one chunk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Read requests.
    pub requests: u64,
    /// Accesses at the last one, where older ones count less.
    pub score: f64,
    /// The last access, on the monotonic clock.
    pub last: u64,
    /// Whether it was hot then.
    pub hot: bool,
}

/// The counters of a mount.
pub struct Counters {
    watch: Arc<Watch>,
    _hold: Hold,
    cursor: Cursor,
    table: Table,
}

impl Counters {
    /// Starts with nothing counted.
    pub fn new(session: &Session, rule: Rule) -> Counters {
        let watch = session.watch();
        let hold = watch.record(1);
        let cursor = watch.now();
        Counters { watch, _hold: hold, cursor, table: Table::new(rule) }
    }

    /// Counts the requests since the last look. Returns how many chunks became hot.
    pub fn look(&mut self) -> u64 {
        let Counters { watch, cursor, table, .. } = self;
        let mut hot = 0;
        watch.read(cursor, &mut |record| hot += table.count(&record));
        hot
    }

    /// Every chunk that was accessed.
    pub fn all(&self) -> impl Iterator<Item = ((u64, u32), Count)> {
        self.table.counts.iter().map(|(key, count)| (*key, *count))
    }

    /// Requests that were not counted.
    pub fn lost(&self) -> u64 {
        self.cursor.lost + self.table.lost
    }
}

struct Table {
    rule: Rule,
    counts: HashMap<(u64, u32), Count>,
    lost: u64,
}

impl Table {
    fn new(rule: Rule) -> Table {
        Table { rule, counts: HashMap::new(), lost: 0 }
    }

    /// Counts a request for each chunk that it touches. Returns how many of them became hot.
    fn count(&mut self, record: &Record) -> u64 {
        if record.opcode != op::READ || record.bytes == 0 {
            return 0;
        }
        let last = record.offset + u64::from(record.bytes) - 1;
        let chunks = record.offset / MIB..=last / MIB;
        chunks.map(|chunk| u64::from(self.access((record.ino, chunk as u32), record.at))).sum()
    }

    fn access(&mut self, key: (u64, u32), at: u64) -> bool {
        if self.counts.len() >= CHUNKS_MAX && !self.counts.contains_key(&key) {
            self.lost += 1;
            return false;
        }
        let count = self.counts.entry(key).or_default();
        let hot_from = self.rule.score();
        let score = decayed(count.score, at.saturating_sub(count.last), self.rule);
        let was_hot = count.hot && score >= hot_from / 2.0;
        let score = score + 1.0;
        let hot = was_hot || score >= hot_from;
        *count = Count { requests: count.requests + 1, score, last: at.max(count.last), hot };
        hot && !was_hot
    }
}

/// What is left of a score after this many nanoseconds.
pub fn decayed(score: f64, ns: u64, rule: Rule) -> f64 {
    let half_life = rule.half_life.as_nanos() as f64;
    if half_life == 0.0 { score } else { score * (-(ns as f64) / half_life).exp2() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ino: u64, offset: u64, bytes: u32, at: u64) -> Record {
        Record { opcode: op::READ, ino, offset, bytes, at, ..Record::default() }
    }

    #[test]
    fn a_chunk_becomes_hot_once_and_cools() {
        let mut table = Table::new(Rule { hot: 2, half_life: Duration::from_secs(1) });
        assert_eq!(table.count(&read(7, 0, 4096, 0)), 0);
        assert_eq!(table.count(&read(7, 4096, 4096, 1)), 1, "also though the first counts a little less");
        assert_eq!(table.count(&read(7, 8192, 4096, 2)), 0);
        assert_eq!(table.count(&read(7, 8192, 4096, 3)), 0, "it is hot already");
        let later = 60_000_000_000;
        assert_eq!(table.count(&read(7, 0, 4096, later)), 0, "it had cooled");
        assert_eq!(table.counts[&(7, 0)].requests, 5);
        assert!(!table.counts[&(7, 0)].hot);
    }

    #[test]
    fn a_read_counts_for_each_chunk_that_it_touches() {
        let mut table = Table::new(Rule::default());
        table.count(&read(1, MIB - 1, 2, 0));
        table.count(&read(1, 3 * MIB, MIB as u32, 0));
        table.count(&read(1, 0, 0, 0));
        table.count(&Record { opcode: op::WRITE, ..read(1, 0, 9, 0) });
        let mut chunks: Vec<u32> = table.counts.keys().map(|(_, chunk)| *chunk).collect();
        chunks.sort_unstable();
        assert_eq!(chunks, [0, 1, 3]);
    }

    #[test]
    fn the_table_is_bounded_and_says_what_it_leaves_out() {
        let mut table = Table::new(Rule::default());
        for ino in 0..CHUNKS_MAX as u64 + 5 {
            table.count(&read(ino, 0, 1, 0));
        }
        assert_eq!((table.counts.len(), table.lost), (CHUNKS_MAX, 5));
        table.count(&read(0, 0, 1, 0));
        assert_eq!(table.lost, 5);
    }
}
