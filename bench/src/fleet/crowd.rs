//! Many nodes read one tree at the same time.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use base::time::monotonic;
use nets::tree::{File, Shape};
use nets::{Fleet, Tree};

use super::{Args, column, facts, started};
use crate::Result;
use crate::chart::Lines;
use crate::interrupt;
use crate::run::{Bench, progress};
use crate::sheet::{Bound, Sheet};

const LIMIT: &str = "limit";
const LAST: &str = "last node done";
const GETS: &str = "GETs of a blob";
const HEDGES: &str = "of these, to overtake slow ones, in all";
const PLAIN: &str = "GETs of a blob but for those";
const AGGREGATE: &str = "rate of all, for each node";
const TOTAL: &str = "rate of all";
/// The size of a file, which is one blob.
const FILE: u64 = 4 << 20;

/// The tree that is read. It lives as long as the program.
pub fn tree(args: &Args) -> &'static Tree {
    let mib = args.mib.unwrap_or(args.common.size(1024, 64));
    progress(&format!("publishing a tree of {mib} MiB"));
    let shape = Shape { large: (mib << 20).div_ceil(FILE), large_bytes: FILE, small: 0 };
    Box::leak(Box::new(Tree::publish(shape)))
}

/// One measurement: how long the last node took, and what it cost.
struct Crowd {
    last: Duration,
    gets_of_a_blob: f64,
    /// The same without hedged requests.
    plain: f64,
    store_bytes: f64,
    /// Blobs that were fetched from the store again because the first fetch was slow, and hedged GETs.
    hedged: f64,
    /// Fetches of parts of blobs.
    parts: f64,
    cpu: f64,
}

/// All nodes read all files. Node `n` starts `n * apart` of the tree further on.
fn crowd(fleet: &Fleet, apart: f64) -> Result<Crowd> {
    let cpu = || fleet.nodes.iter().map(nets::Node::cpu_seconds).sum::<f64>();
    let (cpu_before, begun) = (cpu(), monotonic());
    let read = |node: usize| -> Result<Duration> {
        let files: Vec<&File> = fleet.tree.large().collect();
        let first = (files.len() as f64 * apart * node as f64) as usize;
        let mut buf = vec![0; FILE as usize + 1];
        for number in 0..files.len() {
            interrupt::check()?;
            let file = files[(first + number) % files.len()];
            let len = read_whole(&fleet.nodes[node].mnt().join(&file.path), &mut buf)?;
            if len as u64 != file.size || file.differs(0, &buf[..len]).is_some() {
                return Err(format!("node {node} read wrong bytes in {}", file.path.display()).into());
            }
        }
        Ok(begun.elapsed())
    };
    let times = std::thread::scope(|scope| {
        let read = &read;
        let threads: Vec<_> = (0..fleet.nodes.len()).map(|node| scope.spawn(move || read(node))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a reader panicked")?)
            .collect::<Result<Vec<_>>>()
    })?;
    let hedged = (fleet.sum("/fleet/origin_hedged") + fleet.sum("/far/requests/hedges")) as f64;
    let blobs = fleet.store.blobs();
    let (gets, bytes) =
        blobs.values().fold((0, 0), |(gets, bytes), got| (gets + got.gets, bytes + got.bytes));
    Ok(Crowd {
        last: times.into_iter().max().unwrap_or_default(),
        gets_of_a_blob: gets as f64 / blobs.len().max(1) as f64,
        // Hedges for records are included, which are no blobs: there is at least one GET for each blob.
        plain: (gets as f64 - hedged).max(blobs.len() as f64) / blobs.len().max(1) as f64,
        store_bytes: bytes as f64 / fleet.tree.bytes() as f64,
        hedged,
        parts: fleet.sum("/fleet/origin_part/hits") as f64,
        cpu: cpu() - cpu_before,
    })
}

/// Reads a file to its end, or until the buffer is full. All reads use the same buffer, so that the kernel
/// need not clear new pages.
fn read_whole(path: &Path, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut file = std::fs::File::open(path)?;
    let mut len = 0;
    loop {
        match file.read(&mut buf[len..])? {
            0 => return Ok(len),
            more => len += more,
        }
    }
}

/// P4: all nodes start at the same place.
pub fn flash(args: &Args, bench: &Bench, tree: &'static Tree) -> Result<()> {
    let mut sheet =
        bench.sheet("fleet-flash", "P4, a flash crowd: nodes begin to read one tree at once, cold");
    facts(args, &mut sheet);
    sheet.fact("caches", args.caches.words());
    sheet.fact("tree", &format!("{} MiB in files of 4 MiB", tree.bytes() >> 20));
    sheet.columns(args.nodes.iter().map(|&nodes| column(nodes.into())));
    sheet.columns([LIMIT.to_owned()]);
    for round in 0..bench.common.rounds() {
        for &nodes in &args.nodes {
            progress(&format!("flash, round {}: {nodes} nodes", round + 1));
            let fleet = started(args, tree, nodes.into(), round as u64);
            let crowd = crowd(&fleet, 0.0)?;
            let place = column(nodes.into());
            sheet.add(LAST, &place, &[("", "s", crowd.last.as_secs_f64())], crowd.cpu);
            sheet.add(GETS, &place, &[("", "requests", crowd.gets_of_a_blob)], 0.0);
            sheet.add(HEDGES, &place, &[("", "GETs", crowd.hedged)], 0.0);
            sheet.add(PLAIN, &place, &[("", "requests", crowd.plain)], 0.0);
            sheet.add("parts of blobs fetched", &place, &[("", "GETs", crowd.parts)], 0.0);
            sheet.add(
                "bytes from the store for each of the tree",
                &place,
                &[("", "x", crowd.store_bytes)],
                0.0,
            );
        }
    }
    sheet.add(PLAIN, LIMIT, &[("", "requests", 1.0)], 0.0);
    for &nodes in args.nodes.iter().filter(|&&nodes| nodes > 1) {
        sheet.target(LAST.to_owned(), &column(nodes.into()), &column(1), Bound::AtMost(1.3));
        sheet.target(PLAIN.to_owned(), &column(nodes.into()), LIMIT, Bound::AtMost(1.0));
    }
    chart(args, &mut sheet, "seconds", &[LAST], "P4: when the last node of a flash crowd is done");
    bench.finish(sheet, Vec::new())
}

/// A chart of rows by the number of nodes.
fn chart(args: &Args, sheet: &mut Sheet, unit: &str, rows: &[&str], title: &str) {
    let line = |row: &str| -> Vec<(f64, f64)> {
        let point = |&nodes: &u8| Some((f64::from(nodes), sheet.median(row, &column(nodes.into()))?));
        args.nodes.iter().filter_map(point).collect()
    };
    let series = rows.iter().map(|&row| (row.to_owned(), line(row))).collect();
    let axes = ("nodes".to_owned(), unit.to_owned());
    sheet.chart_lines("nodes", Lines { title: title.to_owned(), axes, series });
}

/// P5: each node starts at a different place, and all read everything.
pub fn scale(args: &Args, bench: &Bench, tree: &'static Tree) -> Result<()> {
    let mut sheet = bench.sheet("fleet-scale", "P5, scaling out: one data set, read by more and more nodes");
    facts(args, &mut sheet);
    sheet.fact("caches", args.caches.words());
    sheet.columns(args.nodes.iter().map(|&nodes| column(nodes.into())));
    let mib = tree.bytes() as f64 / f64::from(1 << 20);
    for round in 0..bench.common.rounds() {
        for &nodes in &args.nodes {
            progress(&format!("scale, round {}: {nodes} nodes", round + 1));
            let fleet = started(args, tree, nodes.into(), 100 + round as u64);
            let crowd = crowd(&fleet, 1.0 / f64::from(nodes))?;
            let place = column(nodes.into());
            let each = mib / crowd.last.as_secs_f64();
            sheet.add(AGGREGATE, &place, &[("", "MiB/s", each)], crowd.cpu);
            sheet.add(TOTAL, &place, &[("", "MiB/s", each * f64::from(nodes))], 0.0);
            sheet.add(GETS, &place, &[("", "requests", crowd.gets_of_a_blob)], 0.0);
        }
    }
    for &nodes in args.nodes.iter().filter(|&&nodes| nodes > 1) {
        sheet.target(AGGREGATE.to_owned(), &column(nodes.into()), &column(1), Bound::AtLeast(0.97));
    }
    chart(args, &mut sheet, "MiB/s", &[TOTAL, AGGREGATE], "P5: one data set, read by more and more nodes");
    bench.finish(sheet, Vec::new())
}
