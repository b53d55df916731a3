//! Which MiB of which files this process reads most.
//!
//! Each read of a MiB adds 1 to its score, and a read counts half after [`HALF_LIFE_S`], as in the daemon of
//! a mount. The table holds [`MOST`] chunks. When it is full, the colder half leaves it and is counted as
//! lost. So the memory is bounded, however many files are read.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use base::Ino;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// A read counts half after this many seconds.
pub const HALF_LIFE_S: f64 = 60.0;
/// The most chunks that are remembered, of some 60 bytes each, and the paths of their files.
const MOST: usize = 8192;
const MIB: u64 = 1 << 20;

/// What is known of one MiB of a file.
#[derive(Clone, Copy)]
struct Chunk {
    score: f64,
    at: Instant,
    reads: u64,
    bytes: u64,
}

impl Chunk {
    fn score(&self, now: Instant) -> f64 {
        self.score * (-now.saturating_duration_since(self.at).as_secs_f64() / HALF_LIFE_S).exp2()
    }
}

#[derive(Default)]
struct Table {
    chunks: HashMap<(Ino, u64), Chunk>,
    paths: HashMap<Ino, OsString>,
    lost: u64,
}

impl Table {
    /// Removes the colder half.
    fn shrink(&mut self, now: Instant) {
        let mut order: Vec<((Ino, u64), f64)> =
            self.chunks.iter().map(|(key, chunk)| (*key, chunk.score(now))).collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        for (key, _) in &order[..order.len() / 2] {
            self.chunks.remove(key);
            self.lost += 1;
        }
        let files: HashSet<Ino> = self.chunks.keys().map(|(ino, _)| *ino).collect();
        self.paths.retain(|ino, _| files.contains(ino));
    }
}

/// The table. See the [module](self).
#[derive(Default)]
pub struct Heat(Mutex<Table>);

impl Heat {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a range of a file was read or mapped. `path` is one of its names.
    pub fn note(&self, path: &OsStr, ino: Ino, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (now, end) = (base::time::monotonic(), offset.saturating_add(length));
        let mut table = self.table();
        for mib in offset / MIB..=(end - 1) / MIB {
            if table.chunks.len() >= MOST && !table.chunks.contains_key(&(ino, mib)) {
                table.shrink(now);
            }
            let chunk = table.chunks.entry((ino, mib));
            let chunk = chunk.or_insert(Chunk { score: 0.0, at: now, reads: 0, bytes: 0 });
            *chunk = Chunk {
                score: chunk.score(now) + 1.0,
                at: now,
                reads: chunk.reads + 1,
                bytes: chunk.bytes + end.min((mib + 1) * MIB) - offset.max(mib * MIB),
            };
            // Inside the loop, because shrinking may have removed it.
            table.paths.entry(ino).or_insert_with(|| path.to_owned());
        }
    }

    /// Adds the hottest chunks to a dictionary, at most so many, hottest first.
    pub fn describe(&self, py: Python<'_>, top: usize, into: &Bound<'_, PyDict>) -> PyResult<()> {
        let now = base::time::monotonic();
        let (rows, known, lost) = py.detach(|| {
            let table = self.table();
            let mut rows: Vec<(OsString, u64, f64, Chunk)> = Vec::with_capacity(table.chunks.len());
            for ((ino, mib), chunk) in &table.chunks {
                let path = table.paths.get(ino).cloned().unwrap_or_default();
                rows.push((path, *mib, chunk.score(now), *chunk));
            }
            rows.sort_by(|a, b| b.2.total_cmp(&a.2).then_with(|| (&a.0, a.1).cmp(&(&b.0, b.1))));
            rows.truncate(top);
            (rows, table.chunks.len(), table.lost)
        });
        let chunks = PyList::empty(py);
        for (path, mib, score, chunk) in rows {
            let row = PyDict::new(py);
            row.set_item("path", path)?;
            row.set_item("mib", mib)?;
            row.set_item("score", score)?;
            row.set_item("reads", chunk.reads)?;
            row.set_item("bytes", chunk.bytes)?;
            chunks.append(row)?;
        }
        into.set_item("chunks", chunks)?;
        into.set_item("half_life_s", HALF_LIFE_S)?;
        into.set_item("known", known)?;
        into.set_item("lost", lost)
    }
}
