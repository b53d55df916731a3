//! Where cold bytes come from, and how long a reader waits for them: a peer, the depot, a depot 1 ms away,
//! the store.
//!
//! ```text
//!   readers  n1 .. nN, links of --mbit
//!   holders  as many, links of --mbit, a part of the blobs each     (a peer)
//!   depot    a link of 1 Gbit/s, all blobs                          (the depot, with and without the delay)
//!   store    no limit but its own                                   (the store)
//! ```
//!
//! Each read is 128 KiB of a blob that its node does not have. A node reads a blob once, and nodes start at
//! different places of the tree. While there are no more readers than blobs for each node, no blob is read by
//! two nodes, so all bytes come from the intended place. With more readers, nodes also get blobs from one
//! another; a row of the table shows how many came from elsewhere. Between two measurements the nodes lose
//! their caches and wait until all nodes know one another, because a node that has just started uses only the
//! store.
//!
//! The break-even point is where the medians of two places cross as the number of readers grows
//! ([`crossing`]).

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::time::monotonic;
use nets::tree::File;
use nets::wire::Weather;
use nets::{Fleet, How, Node, Tree};

use super::{Args, FIRST_BYTE, facts};
use crate::Result;
use crate::chart::Lines;
use crate::interrupt;
use crate::run::{Bench, progress};
use crate::sheet::{Bound, Sheet};
use crate::work::micros_at;

const READ: usize = 128 << 10;
/// The last part of the depot's address.
const DEPOT: u8 = 3;
/// The round trip to the remote depot.
const REMOTE_RTT: Duration = Duration::from_millis(1);
/// By then all nodes know one another.
const PATIENCE: Duration = Duration::from_secs(30);
/// The size of a depot's cache.
const DEPOT_SIZE: &str = "8G";
/// A depot has a wider link than a node: about the bandwidth of the delayed link, too.
const DEPOT_BITS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Peer,
    Depot,
    RemoteDepot,
    Store,
}

impl Tier {
    const ALL: [Tier; 4] = [Tier::Peer, Tier::Depot, Tier::RemoteDepot, Tier::Store];

    fn name(self) -> &'static str {
        match self {
            Tier::Peer => "a peer",
            Tier::Depot => "the depot",
            Tier::RemoteDepot => "the depot, 1 ms away",
            Tier::Store => "the store",
        }
    }

    /// Whether bytes come from other nodes.
    fn is_peer(self) -> bool {
        self == Tier::Peer
    }

    /// The nodes' counters for this source.
    fn counters(self) -> &'static [&'static str] {
        match self {
            Tier::Peer => &["peer", "stream"],
            Tier::Depot | Tier::RemoteDepot => &["depot"],
            Tier::Store => &["origin"],
        }
    }
}

/// The pairs whose break-even point is reported.
const PAIRS: [(Tier, Tier); 5] = [
    (Tier::Peer, Tier::Depot),
    (Tier::Peer, Tier::RemoteDepot),
    (Tier::Peer, Tier::Store),
    (Tier::Depot, Tier::Store),
    (Tier::RemoteDepot, Tier::Store),
];

/// The nodes of a measurement: readers first, then the holders of everything.
struct Ground {
    fleet: Fleet,
    readers: usize,
    depot: Option<Node>,
    tier: Tier,
}

/// The result of one measurement.
struct Seen {
    times: Vec<Duration>,
    depot_sent: u64,
    gets: u64,
    /// Bytes that the readers' links carried away from them, except blobs: requests, membership,
    /// acknowledgements, with headers.
    said: u64,
    /// Processor time of all nodes, the depot included and the store not, in seconds.
    cpu: f64,
    /// Percentage of blobs that came from another source than intended; only nodes of a fleet know.
    elsewhere: Option<f64>,
}

/// Runs the measurement.
pub fn run(args: &Args, bench: &Bench, tree: &'static Tree) -> Result<()> {
    let mut sheet = bench.sheet("fleet-tiers", "P3, cold reads of 128 KiB: peer or central?");
    facts(args, &mut sheet);
    sheet.fact("tree", &format!("{} MiB in files of 4 MiB", tree.bytes() >> 20));
    sheet.fact("the depot's link", "1 Gbit/s; 1 ms away: not limited, about the same");
    let tiers = Tier::ALL;
    sheet.columns(tiers.iter().map(|tier| tier.name().to_owned()));
    for &nodes in args.nodes.iter().filter(|&&nodes| nodes > 1) {
        for &tier in &tiers {
            let mut ground = prepare(args, tree, nodes.into(), tier)?;
            for &readers in &args.readers {
                for round in 0..bench.common.rounds() {
                    interrupt::check()?;
                    progress(&format!(
                        "tiers, round {}: {nodes} nodes, {readers} readers, {}",
                        round + 1,
                        tier.name()
                    ));
                    let seen = measure(&mut ground, args, readers)?;
                    add(&mut sheet, &row(nodes, readers), tier, seen);
                }
            }
        }
        say(args, nodes, &tiers, &mut sheet);
    }
    bench.finish(sheet, Vec::new())
}

fn row(nodes: u8, readers: u64) -> String {
    format!("{nodes} nodes, {readers} readers each")
}

fn add(sheet: &mut Sheet, row: &str, tier: Tier, mut seen: Seen) {
    let reads = seen.times.len().max(1) as f64;
    let mut ms = |at: f64| micros_at(&mut seen.times, at) / 1e3;
    let mut figures = vec![("p50", "ms", ms(0.5)), ("p99", "ms", ms(0.99))];
    if let Some(elsewhere) = seen.elsewhere {
        figures.push(("from elsewhere", "% of blobs", elsewhere));
    }
    figures.push(("the depot sent", "MiB", seen.depot_sent as f64 / f64::from(1 << 20)));
    figures.push(("GETs", "requests", seen.gets as f64));
    figures.push(("said for a read", "KiB", seen.said as f64 / 1024.0 / reads));
    figures.push(("CPU for a read", "ms", seen.cpu * 1e3 / reads));
    sheet.add(row, tier.name(), &figures, 0.0);
}

/// Adds the chart for a number of nodes, and where its lines cross.
fn say(args: &Args, nodes: u8, tiers: &[Tier], sheet: &mut Sheet) {
    let median =
        |readers: u64, tier: Tier| sheet.median(&format!("{}, p50", row(nodes, readers)), tier.name());
    let line = |tier: Tier| -> Vec<(f64, f64)> {
        let point = |&readers: &u64| Some((readers as f64, median(readers, tier)?));
        args.readers.iter().filter_map(point).collect()
    };
    let series = tiers.iter().map(|&tier| (tier.name().to_owned(), line(tier))).collect();
    let notes: Vec<String> = PAIRS
        .iter()
        .filter(|(a, b)| tiers.contains(a) && tiers.contains(b))
        .map(|&(a, b)| {
            let when = crossing(&line(a), &line(b));
            format!(
                "{nodes} nodes, break-even by the medians: {} is sooner than {} {when}.",
                a.name(),
                b.name()
            )
        })
        .collect();
    notes.into_iter().for_each(|note| sheet.note(note));
    let title = format!("P3, {nodes} nodes: the median of cold reads of 128 KiB");
    let axes = ("readers on each node".to_owned(), "milliseconds".to_owned());
    sheet.chart_lines(&format!("{nodes}-nodes"), Lines { title, axes, series });
    for &readers in &args.readers {
        let row = format!("{}, p50", row(nodes, readers));
        for (a, b) in PAIRS.iter().filter(|(a, _)| *a == Tier::Peer) {
            if tiers.contains(b) {
                sheet.target(row.clone(), a.name(), b.name(), Bound::Shown);
            }
        }
    }
}

/// For how many readers the first line is below the second, as text. Between two points both lines are taken
/// to be straight on logarithmic axes.
fn crossing(a: &[(f64, f64)], b: &[(f64, f64)]) -> String {
    let both: Vec<(f64, f64)> = a.iter().zip(b).map(|(a, b)| (a.0, (a.1 / b.1).ln())).collect();
    let sooner = |point: &(f64, f64)| point.1 < 0.0;
    let turns: Vec<f64> = both
        .windows(2)
        .filter(|pair| sooner(&pair[0]) != sooner(&pair[1]))
        .map(|pair| {
            let ((from, before), (to, after)) = (pair[0], pair[1]);
            (from.ln() + (to.ln() - from.ln()) * before / (before - after)).exp()
        })
        .collect();
    match (both.first().map(sooner), &turns[..]) {
        (None, _) => "nowhere: nothing was measured".to_owned(),
        (Some(true), []) => "at every number of readers".to_owned(),
        (Some(false), []) => "at no number of readers".to_owned(),
        (Some(true), [turn]) => format!("up to about {turn:.0} readers a node"),
        (Some(false), [turn]) => format!("from about {turn:.0} readers a node on"),
        (Some(_), many) => {
            let turns: Vec<String> = many.iter().map(|turn| format!("{turn:.0}")).collect();
            format!("at some numbers of readers only: it turns at about {}", turns.join(", "))
        }
    }
}

fn prepare(args: &Args, tree: &'static Tree, readers: usize, tier: Tier) -> Result<Ground> {
    let how = How::default();
    let limit = |node: &Node| node.port.shape(Some(args.mbit * 1_000_000));
    if tier == Tier::Store {
        // These nodes do not know one another, whatever the program can do.
        let mut fleet = Fleet::new(tree, readers, 1, &how);
        fleet.start();
        fleet.nodes.iter().for_each(limit);
        fleet.store.be_like_a_store(FIRST_BYTE);
        return Ok(Ground { fleet, readers, depot: None, tier });
    }
    let holders = if tier.is_peer() { readers } else { 0 };
    let mut fleet = Fleet::joined(tree, readers + holders, 1, &how);
    let mut depot = None;
    if !tier.is_peer() {
        let weather = Weather { delay: REMOTE_RTT / 2, lost_of_million: 0 };
        let mut node = match tier {
            Tier::RemoteDepot => fleet.depot_behind("depot", DEPOT, DEPOT_SIZE, weather),
            _ => fleet.depot("depot", DEPOT, DEPOT_SIZE),
        };
        node.spawn();
        node.await_mounted(Duration::from_secs(60))?;
        depot = Some(node);
    }
    fleet.start();
    fleet.converge(known(&fleet, depot.is_some()), PATIENCE);
    // Fills the sources: holders read a part each, and the depot gets what the first node reads through it.
    let files: Vec<&File> = tree.large().collect();
    let fillers = &fleet.nodes[if tier.is_peer() { readers } else { 0 }..][..holders.max(1)];
    for (filler, files) in fillers.iter().zip(files.chunks(files.len().div_ceil(fillers.len()))) {
        for file in files {
            drop(std::fs::read(filler.mnt().join(&file.path))?);
        }
    }
    fleet.nodes.iter().for_each(limit);
    if let (Some(depot), Tier::Depot) = (&depot, tier) {
        depot.port.shape(Some(DEPOT_BITS));
    }
    fleet.store.be_like_a_store(FIRST_BYTE);
    Ok(Ground { fleet, readers, depot, tier })
}

/// The number of members when all are present.
fn known(fleet: &Fleet, depot: bool) -> u64 {
    fleet.nodes.len() as u64 + u64::from(depot)
}

/// Restarts the readers with empty caches.
fn forget(ground: &mut Ground, args: &Args) {
    for node in &mut ground.fleet.nodes[..ground.readers] {
        node.port.shape(None);
        node.end();
        node.lose_cache();
    }
    ground.fleet.start();
    if ground.tier != Tier::Store {
        ground.fleet.converge(known(&ground.fleet, ground.depot.is_some()), PATIENCE);
    }
    for node in &ground.fleet.nodes[..ground.readers] {
        node.port.shape(Some(args.mbit * 1_000_000));
    }
    ground.fleet.store.forget();
}

/// The files that a node reads, in order: starting at a place of its own, and no more than its own share as
/// long as that is enough for all of its readers.
fn files_of<'t>(all: &[&'t File], node: usize, nodes: usize, readers: u64) -> Vec<&'t File> {
    let first = all.len() * node / nodes;
    let own = all.len() * (node + 1) / nodes - first;
    let many = own.max((readers as usize).min(all.len()));
    all.iter().cycle().skip(first).take(many).copied().collect()
}

/// Runs one measurement.
fn measure(ground: &mut Ground, args: &Args, readers: u64) -> Result<Seen> {
    forget(ground, args);
    let fleet = &ground.fleet;
    let sent = || ground.depot.as_ref().map_or(0, |depot| depot.port.traffic().sent);
    let cpu = || fleet.nodes.iter().chain(&ground.depot).map(Node::cpu_seconds).sum::<f64>();
    let before = (sent(), came(ground)?, said(ground)?, cpu());
    let all: Vec<&File> = fleet.tree.large().collect();
    let times = Mutex::new(Vec::new());
    let lists: Vec<Vec<&File>> =
        (0..ground.readers).map(|node| files_of(&all, node, ground.readers, readers)).collect();
    let next: Vec<AtomicUsize> = lists.iter().map(|_| AtomicUsize::new(0)).collect();
    let work = |node: usize| -> Result<()> {
        loop {
            let number = next[node].fetch_add(1, Ordering::SeqCst);
            let Some(file) = lists[node].get(number) else { return Ok(()) };
            let from = (number as u64 * 7919 * 4096) % (file.size - READ as u64);
            let begun = monotonic();
            let read = nets::readers::read(&fleet.nodes[node].mnt(), file, from, READ);
            let spent = begun.elapsed();
            match read {
                Ok(read) if read.len() == READ && file.differs(from, &read).is_none() => {}
                other => {
                    return Err(format!("{}: {:?}", file.path.display(), other.map(|read| read.len())).into());
                }
            }
            times.lock().map_err(|_| "a reader panicked")?.push(spent);
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..ground.readers)
            .flat_map(|node| (0..readers).map(move |_| node))
            .map(|node| scope.spawn(move || work(node)))
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a reader panicked")?)
    })?;
    let gets = fleet.store.blobs().values().map(|got| got.gets).sum();
    let (all, meant) = came(ground)?;
    let (all, meant) = (all - before.1.0, meant - before.1.1);
    let elsewhere = (all > 0).then(|| 100.0 * (all - meant) as f64 / all as f64);
    let times = times.into_inner().map_err(|_| "a reader panicked")?;
    let said = said(ground)?.saturating_sub(before.2);
    Ok(Seen { times, depot_sent: sent() - before.0, gets, said, cpu: cpu() - before.3, elsewhere })
}

/// Bytes that readers sent so far, except blobs.
fn said(ground: &Ground) -> Result<u64> {
    let mut said = 0;
    for node in &ground.fleet.nodes[..ground.readers] {
        let status = node.try_status()?;
        let blobs = status.pointer("/fleet/sent_bytes").and_then(serde_json::Value::as_u64);
        said += node.port.traffic().sent.saturating_sub(blobs.unwrap_or(0));
    }
    Ok(said)
}

/// Blobs that readers received so far, and those of them from the intended source; none where nodes do not
/// count.
fn came(ground: &Ground) -> Result<(u64, u64)> {
    if ground.tier == Tier::Store {
        return Ok((0, 0));
    }
    let (mut all, mut meant) = (0, 0);
    for node in &ground.fleet.nodes[..ground.readers] {
        let status = node.try_status()?;
        for tier in ["peer", "stream", "depot", "origin"] {
            let hits = status.pointer(&format!("/fleet/{tier}/hits")).and_then(serde_json::Value::as_u64);
            let hits = hits.ok_or("covey status says nothing of the fleet's tiers")?;
            all += hits;
            meant += if ground.tier.counters().contains(&tier) { hits } else { 0 };
        }
    }
    Ok((all, meant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cross_where_they_do() {
        let line = |values: [f64; 3]| [1.0, 4.0, 16.0].into_iter().zip(values).collect::<Vec<_>>();
        let flat = line([10.0, 10.0, 10.0]);
        let says = |values| crossing(&line(values), &flat);
        assert_eq!(says([1.0, 2.0, 9.0]), "at every number of readers");
        assert_eq!(says([11.0, 12.0, 13.0]), "at no number of readers");
        // On logarithmic axes this is halfway from 4 to 16.
        assert_eq!(says([1.0, 5.0, 20.0]), "up to about 8 readers a node");
        assert_eq!(says([40.0, 20.0, 5.0]), "from about 8 readers a node on");
        assert_eq!(says([5.0, 20.0, 5.0]), "at some numbers of readers only: it turns at about 2, 8");
        assert_eq!(crossing(&[], &[]), "nowhere: nothing was measured");
    }

    #[test]
    fn nodes_read_different_blobs_while_there_are_enough() {
        let files: Vec<File> =
            (0..16).map(|n| File { path: n.to_string().into(), size: 1, seed: n }).collect();
        let all: Vec<&File> = files.iter().collect();
        let of =
            |node, readers| files_of(&all, node, 4, readers).iter().map(|file| file.seed).collect::<Vec<_>>();
        assert_eq!((of(0, 1), of(3, 4)), (vec![0, 1, 2, 3], vec![12, 13, 14, 15]));
        assert_eq!(of(3, 6), [12, 13, 14, 15, 0, 1]);
        assert_eq!(of(1, 500).len(), 16);
    }
}
