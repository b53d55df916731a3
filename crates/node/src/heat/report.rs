//! The answer to a question about heat: the chunks in order, with their names and reasons.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use api::error::Result;
use api::heat::{Chunk, Heat, Program, View};
use api::raw_path::RawPath;
use base::Ino;
use base::time::monotonic_ns;
use fs::api::FileKind;
use meta::Names;

use super::counters::decayed;
use super::{Source, Work};
use crate::errno::errno_failure;
use crate::paths;

/// What the daemon's own counters do not see.
pub const PAGE_CACHE_UNSEEN: &str = "not seen: reads that the page cache answers";
/// Files whose names are looked for, for one answer.
const NAMES_MAX: usize = 10_000;

/// Chunks of which files are listed.
enum Of {
    All,
    File(u64),
    Below(PathBuf),
}

impl Work {
    pub(super) fn report(&self, path: Option<&Path>, top: usize) -> Result<Heat> {
        let of = self.of(path)?;
        let mut rows = self.rows()?;
        if let Of::File(ino) = of {
            rows.retain(|row| row.inode == ino);
        }
        rows.sort_by(|a, b| {
            b.score.total_cmp(&a.score).then_with(|| (a.inode, a.mib).cmp(&(b.inode, b.mib)))
        });
        let hot = rows.iter().filter(|row| row.hot).count() as u64;
        let known = rows.len() as u64;
        let chunks = self.named(rows, &of, top);
        let (view, lost, programs) = self.view()?;
        Ok(Heat {
            view,
            unseen: self.unseen.clone(),
            hot_from: f64::from(self.rule.hot),
            half_life_s: self.rule.half_life.as_secs_f64(),
            chunks,
            known,
            hot,
            events: self.events,
            delay_us: self.delay / 1_000,
            lost,
            protected: self.protected,
            ahead: self.ahead,
            programs,
        })
    }

    fn of(&self, path: Option<&Path>) -> Result<Of> {
        let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { return Ok(Of::All) };
        let found = self.mount.node()?.shown().resolve(path.as_os_str().as_bytes(), false);
        let found =
            found.map_err(|errno| errno_failure(format!("cannot look at /{}", path.display()), errno))?;
        Ok(if found.kind == FileKind::Dir { Of::Below(path.to_owned()) } else { Of::File(found.ino.0) })
    }

    /// Every chunk, without its name.
    fn rows(&self) -> Result<Vec<Chunk>> {
        let (now, hot_from) = (monotonic_ns(), self.rule.score());
        let row = |inode, mib, score, last: u64, was_hot: bool| {
            let ago = now.saturating_sub(last);
            let score = decayed(score, ago, self.rule);
            let hot = was_hot && score >= hot_from / 2.0;
            let (reads, maps, faults, requests, pages) = (0, 0, 0, 0, 0);
            let why = String::new();
            (Chunk { path: None, inode, mib, score, hot, reads, maps, faults, requests, pages, why }, ago)
        };
        match &self.source {
            Source::Kernel(kernel) => {
                let shown = kernel.chunks()?.into_iter().map(|seen| {
                    let (mut row, ago) = row(seen.inode, seen.mib, seen.score, seen.last, seen.hot);
                    (row.reads, row.maps, row.faults) = (seen.reads, seen.maps, seen.faults);
                    row.pages = seen.pages;
                    because(row, ago, hot_from)
                });
                // The others entered the page cache by read-ahead only.
                Ok(shown.filter(|row| row.reads + row.maps + row.faults > 0).collect())
            }
            Source::Daemon(counters) => Ok(counters
                .all()
                .map(|((ino, chunk), count)| {
                    let (mut row, ago) = row(ino, chunk, count.score, count.last, count.hot);
                    row.requests = count.requests;
                    because(row, ago, hot_from)
                })
                .collect()),
        }
    }

    fn view(&self) -> Result<(View, u64, Vec<Program>)> {
        match &self.source {
            Source::Kernel(kernel) => Ok((View::Kernel, kernel.lost()?, kernel.costs())),
            Source::Daemon(counters) => Ok((View::Daemon, counters.lost(), Vec::new())),
        }
    }

    /// The first `top` rows, with names.
    fn named(&self, rows: Vec<Chunk>, of: &Of, top: usize) -> Vec<Chunk> {
        let names = self.mount.as_node().map(|node| Names::new(node.store()));
        let mut known: HashMap<u64, Option<PathBuf>> = HashMap::new();
        let mut named = Vec::new();
        for mut row in rows {
            if named.len() >= top || known.len() >= NAMES_MAX {
                break;
            }
            let find = || names.as_ref().and_then(|names| paths::path_of(names, Ino(row.inode)));
            let path = known.entry(row.inode).or_insert_with(find);
            let listed = match of {
                Of::Below(folder) => path.as_ref().is_some_and(|path| path.starts_with(folder)),
                _ => true,
            };
            if listed {
                row.path = path.as_deref().map(RawPath::from);
                named.push(row);
            }
        }
        named
    }
}

/// Says why a chunk is hot or not.
fn because(mut row: Chunk, ago_ns: u64, hot_from: f64) -> Chunk {
    let parts =
        [(row.reads, "reads"), (row.maps, "mapped"), (row.faults, "faults"), (row.requests, "requests")];
    let counts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    let ago = ago_ns / 1_000_000_000;
    let rest = format!("{}, the last {ago} s ago", counts.join(", "));
    row.why = match (row.hot, row.score < hot_from / 2.0) {
        (true, _) => format!("hot: {rest}"),
        (false, true) if row.reads + row.maps + row.faults + row.requests > hot_from as u64 => {
            format!("cooled: {rest}")
        }
        _ => format!("not hot: {rest}"),
    };
    row
}
