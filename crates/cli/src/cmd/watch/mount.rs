//! `covey watch mount`: which parts of which files are hot, by what the page cache answers.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use api::text::count;
use serde::Serialize;
use watch::mount::{Chunk, Heat, Lost, MountWatch, Requests};
use watch::{Cost, Event};

use super::{Rhythm, cost_text, failure};
use crate::looking::parse_time;
use crate::table::Table;
use crate::term::Term;

/// Files whose names are looked for.
const FILES_MAX: usize = 1_000_000;

/// Shows which parts of which files are hot, reads that the page cache answers included
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey watch mount /mnt/covey\n  \
    covey watch mount /mnt/covey --interval 10s --count 1 --json\n\n\
    Counts begin when the command begins. reads: system calls; maps and faults: of mappings; filled and evicted: pages\n\
    of 4 KiB that entered and left the page cache. A part is hot from --hot accesses on; an access counts half after\n\
    --half-life.")]
pub struct Args {
    /// A path on a mount
    path: PathBuf,
    #[command(flatten)]
    rhythm: Rhythm,
    /// A part is hot from so many accesses on
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    hot: u32,
    /// An access counts half after this time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
    half_life: std::time::Duration,
}

/// One table.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    /// The hottest parts.
    chunks: Vec<Named>,
    requests: &'a [Requests],
    /// Processes that ended and had not synced what they wrote.
    unsynced: &'a [Unsynced],
    hot_events: u64,
    lost: Lost,
    costs: Vec<Cost>,
}

#[derive(Debug, Serialize)]
struct Named {
    path: String,
    #[serde(flatten)]
    chunk: Chunk,
}

#[derive(Clone, Debug, Serialize)]
struct Unsynced {
    pid: u32,
    name: String,
    files: u64,
    pages: u64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let top = mountpoint(&args.path)?;
    let heat = Heat { hot: args.hot, half_life: args.half_life };
    let watch = MountWatch::attach(&top, heat).map_err(failure)?;
    let _measured = watch::object::measure().map_err(failure)?;
    watch.unseen().iter().for_each(|line| term.warn(line));
    let watch = std::cell::RefCell::new(watch);
    let seen = std::cell::RefCell::new((0_u64, Vec::<Unsynced>::new()));
    let mut names = Names { top, paths: HashMap::new() };
    let step = |left| {
        let (mut watch, mut seen) = (watch.borrow_mut(), seen.borrow_mut());
        watch.events().wait(left).map_err(failure)?;
        watch.events().drain(&mut |event| match event {
            Event::Hot { .. } => seen.0 += 1,
            // Only a daemon can fetch ahead.
            Event::Stream { .. } => {}
            Event::Unsynced { pid, name, files, pages } => seen.1.push(Unsynced { pid, name, files, pages }),
        });
        Ok(())
    };
    let show = || {
        let (watch, mut seen) = (watch.borrow(), seen.borrow_mut());
        let mut chunks = watch.chunks().map_err(failure)?;
        chunks.sort_by_key(|chunk| std::cmp::Reverse((chunk.score, chunk.reads + chunk.maps + chunk.faults)));
        chunks.truncate(args.rhythm.top);
        names.find(&chunks);
        let named = chunks.into_iter().map(|chunk| Named { path: names.path(chunk.ino), chunk }).collect();
        let requests = watch.requests().map_err(failure)?;
        let lost = watch.lost().map_err(failure)?;
        let shown = Shown {
            chunks: named,
            requests: &requests,
            unsynced: &seen.1,
            hot_events: seen.0,
            lost,
            costs: watch.costs(),
        };
        term.line(Some(&shown), || text(&shown));
        seen.1.clear();
        Ok(())
    };
    args.rhythm.run(step, show)?;
    Ok(0)
}

/// The mountpoint of the Covey mount that a path is on.
fn mountpoint(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize().map_err(|error| Failure::io(path.display().to_string(), &error))?;
    let mounts = node::trust::mounts();
    let found = mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.path))
        .max_by_key(|mount| mount.path.as_os_str().len());
    found.map(|mount| mount.path.clone()).ok_or_else(|| {
        Failure::usage(format!("{} is on no mount of Covey", path.display())).next("see the mounts: covey df")
    })
}

/// The paths of inodes, found by walking over the mount when there is an unknown one.
struct Names {
    top: PathBuf,
    paths: HashMap<u64, String>,
}

impl Names {
    fn path(&self, ino: u64) -> String {
        self.paths
            .get(&ino)
            .filter(|path| !path.is_empty())
            .cloned()
            .unwrap_or_else(|| format!("inode {ino}"))
    }

    /// Walks until all are found. What is not found is not looked for again.
    fn find(&mut self, chunks: &[Chunk]) {
        let mut wanted: std::collections::HashSet<u64> = chunks.iter().map(|chunk| chunk.ino).collect();
        wanted.retain(|ino| !self.paths.contains_key(ino));
        let (mut folders, mut left) = (vec![self.top.clone()], FILES_MAX);
        while let Some(folder) = folders.pop().filter(|_| !wanted.is_empty() && left > 0) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                left = left.saturating_sub(1);
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                    continue;
                }
                let Ok(found) = entry.metadata() else { continue };
                if wanted.remove(&found.ino()) {
                    let path = entry.path();
                    let path = path.strip_prefix(&self.top).unwrap_or(&path).display().to_string();
                    self.paths.insert(found.ino(), path);
                }
            }
        }
        self.paths.extend(wanted.into_iter().map(|ino| (ino, String::new())));
    }
}

fn text(shown: &Shown<'_>) -> String {
    let mut table =
        Table::new(&["score ", "reads ", "maps ", "faults ", "filled ", "evicted ", "MiB ", "file"]);
    for Named { path, chunk } in &shown.chunks {
        let score = format!("{}{:.1}", if chunk.hot { "hot " } else { "" }, f64::from(chunk.score) / 1e3);
        let counts = [chunk.reads, chunk.maps, chunk.faults, chunk.fills, chunk.evictions].map(count);
        let last = [count(chunk.chunk.into()), path.clone()];
        table.row([score].into_iter().chain(counts).chain(last).collect());
    }
    let mut out = table.text();
    let requests: u64 = shown.requests.iter().map(|kind| kind.count).sum();
    let ns: u64 = shown.requests.iter().map(|kind| kind.ns).sum();
    let mean = if requests == 0 { 0.0 } else { ns as f64 / requests as f64 / 1e3 };
    out += &format!(
        "requests to the daemon: {}, {mean:.1} us each, from the queue to the end\n",
        count(requests)
    );
    for Unsynced { pid, name, files, pages } in shown.unsynced {
        let kib = count(pages * 4);
        out +=
            &format!("not synced: {name} {pid} ended after writing {kib} KiB to {} files\n", count(*files));
    }
    let Lost { chunks, events, requests } = shown.lost;
    if chunks + events + requests > 0 {
        out += &format!(
            "not seen, because the kernel's tables were full: {} accesses, {} events, {} requests\n",
            count(chunks),
            count(events),
            count(requests)
        );
    }
    out + &cost_text(&shown.costs)
}
