//! Figures of a mount at intervals: the difference between two readings of counters that only grow.

use std::collections::BTreeMap;
use std::time::Duration;

use api::control::{Heard, Wire};
use api::error::Result;
use api::watch::{Hits, StatsLine};
use fs::stats::{Reads, Sources};
use fuse::Session;
use fuse::counts::Moved;
use fuse::watch::Histogram;
use serde_json::Value;

use super::has_ended;
use crate::mount::Mount;

/// The kind under which an operation is counted.
fn kind_of(op: &str) -> &'static str {
    match op {
        "READ" => "read",
        "WRITE" => "write",
        "LOOKUP" => "lookup",
        "GETATTR" | "SETATTR" | "GETXATTR" | "SETXATTR" | "LISTXATTR" | "REMOVEXATTR" => "attr",
        "READDIR" | "READDIRPLUS" => "list",
        "MKNOD" | "MKDIR" | "SYMLINK" | "LINK" | "TMPFILE" | "RENAME" | "RENAME2" => "make",
        "UNLINK" | "RMDIR" => "remove",
        "FSYNC" | "FSYNCDIR" | "SYNCFS" => "sync",
        _ => "other",
    }
}

/// All counters at one moment.
struct Now {
    kinds: BTreeMap<&'static str, u64>,
    errors: u64,
    moved: Moved,
    sources: Sources,
    times: Histogram,
}

impl Now {
    fn look(node: &Mount, session: &Session) -> Now {
        let mut kinds = BTreeMap::new();
        for (op, count) in session.counts() {
            *kinds.entry(kind_of(op)).or_default() += count;
        }
        let mut times = Histogram::default();
        session.watch().times().iter().for_each(|(_, hist)| times.merge(hist));
        Now {
            kinds,
            errors: session.failures().iter().map(|(_, count)| count).sum(),
            moved: session.moved(),
            sources: node.as_node().map(|node| node.shown().sources()).unwrap_or_default(),
            times,
        }
    }

    fn since(&self, before: &Now, took: Duration, waiting: u64) -> StatsLine {
        let kinds: BTreeMap<String, u64> = self
            .kinds
            .iter()
            .map(|(kind, count)| ((*kind).to_owned(), count - before.kinds.get(kind).copied().unwrap_or(0)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let times = self.times.since(&before.times);
        let hits =
            |now: Reads, then: Reads| Hits { count: now.count - then.count, bytes: now.bytes - then.bytes };
        let (now, then) = (&self.sources, &before.sources);
        let sources = [
            ("names", hits(now.names, then.names)),
            ("cache", hits(now.open, then.open)),
            ("origin", hits(now.blobs, then.blobs)),
        ];
        StatsLine {
            seconds: took.as_secs_f64(),
            requests: kinds.values().sum(),
            kinds,
            errors: self.errors - before.errors,
            read_bytes: self.moved.read_bytes - before.moved.read_bytes,
            written_bytes: self.moved.written_bytes - before.moved.written_bytes,
            sources: sources.map(|(name, hits)| (name.to_owned(), hits)).into(),
            p50_ns: times.quantile(0.5),
            p99_ns: times.quantile(0.99),
            waiting,
        }
    }
}

/// Sends a line for each interval until the command stops it.
pub(super) fn serve(node: &Mount, session: &Session, interval: Duration, wire: &Wire<'_>) -> Result<Value> {
    let _hold = session.watch().measure();
    let mut before = Now::look(node, session);
    let mut begun = base::time::monotonic();
    loop {
        let heard = wire.heard(interval.saturating_sub(begun.elapsed()));
        if heard == Heard::Gone {
            break;
        }
        let ended = heard == Heard::Stop || has_ended(session);
        if begun.elapsed() < interval && !ended {
            continue;
        }
        let now = Now::look(node, session);
        let line = now.since(&before, begun.elapsed(), session.waiting() as u64);
        if ended || !wire.note(&line) {
            break;
        }
        before = now;
        begun = base::time::monotonic();
    }
    Ok(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_what_came_between() {
        let now = |n: u64| {
            let mut times = Histogram::default();
            (0..n).for_each(|_| times.add(n * 1_000));
            Now {
                kinds: [("read", n), ("write", 5)].into(),
                errors: n,
                moved: Moved { read_bytes: n * 10, written_bytes: 7 },
                sources: Sources { open: Reads { count: n, bytes: n * 10 }, ..Sources::default() },
                times,
            }
        };
        let line = now(300).since(&now(100), Duration::from_secs(2), 1);
        assert_eq!((line.requests, line.errors, line.read_bytes, line.written_bytes), (200, 200, 2_000, 0));
        assert_eq!(line.kinds, [("read".to_owned(), 200)].into());
        assert_eq!(line.sources["cache"], Hits { count: 200, bytes: 2_000 });
        assert!((280_000..320_000).contains(&line.p50_ns), "{line:?}");
    }
}
