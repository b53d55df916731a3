//! Where cold bytes come from, and how long a reader waits for them: a peer, the depot, a depot 1 ms away, the store.
//!
//! Each read is 128 KiB of a blob that its node has nothing of; a blob is read once by a node, so there are as many reads as blobs.
//! Between two measurements nodes lose their caches.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::time::monotonic;
use nets::tree::File;
use nets::wire::Weather;
use nets::{Fleet, How, Node, Tree};

use super::{Args, FIRST_BYTE, facts};
use crate::Result;
use crate::interrupt;
use crate::run::{Bench, progress};
use crate::work::micros_at;

const READ: usize = 128 << 10;
/// The last part of the depot's address.
const DEPOT: u8 = 3;
/// Everybody knows everybody by then.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the cache of a depot may take.
const DEPOT_SIZE: &str = "8G";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Peer,
    Depot,
    FarDepot,
    Store,
}

impl Tier {
    const ALL: [Tier; 4] = [Tier::Peer, Tier::Depot, Tier::FarDepot, Tier::Store];

    fn name(self) -> &'static str {
        match self {
            Tier::Peer => "a peer",
            Tier::Depot => "the depot",
            Tier::FarDepot => "the depot, 1 ms away",
            Tier::Store => "the store",
        }
    }
}

/// What is read from: readers first, then who holds everything.
struct Ground {
    fleet: Fleet,
    readers: usize,
    depot: Option<Node>,
    joined: bool,
}

/// Measures it.
pub fn run(args: &Args, bench: &Bench, tree: &'static Tree) -> Result<()> {
    let mut sheet = bench.sheet("fleet-tiers", "Cold reads of 128 KiB: peer or central?");
    facts(args, &mut sheet);
    let tiers = Tier::ALL.into_iter().filter(|tier| *tier == Tier::Store || nets::fleet::can_join());
    let tiers: Vec<Tier> = tiers.collect();
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
                    let (mut times, sent, gets) = measure(&mut ground, args, readers)?;
                    let row = format!("{nodes} nodes, {readers} readers each");
                    let ms = |times: &mut Vec<Duration>, at: f64| micros_at(times, at) / 1e3;
                    let figures = [
                        ("p50", "ms", ms(&mut times, 0.5)),
                        ("p99", "ms", ms(&mut times, 0.99)),
                        ("the depot sent", "MiB", sent as f64 / f64::from(1 << 20)),
                        ("GETs", "requests", gets as f64),
                    ];
                    sheet.add(&row, tier.name(), &figures, 0.0);
                }
            }
        }
    }
    bench.finish(sheet, Vec::new())
}

fn prepare(args: &Args, tree: &'static Tree, readers: usize, tier: Tier) -> Result<Ground> {
    let how = How::default();
    let limit = |node: &Node| node.port.shape(Some(args.mbit * 1_000_000));
    if tier == Tier::Store {
        // These nodes do not know one another, whatever the program can.
        let mut fleet = Fleet::new(tree, readers, 1, &how);
        fleet.start();
        fleet.nodes.iter().for_each(limit);
        fleet.store.be_like_a_store(FIRST_BYTE);
        return Ok(Ground { fleet, readers, depot: None, joined: false });
    }
    let holders = usize::from(tier == Tier::Peer);
    let mut fleet = Fleet::joined(tree, readers + holders, 1, &how);
    let mut depot = None;
    if tier != Tier::Peer {
        let delay = if tier == Tier::FarDepot { Duration::from_micros(500) } else { Duration::ZERO };
        let mut node = match tier {
            Tier::FarDepot => {
                fleet.depot_behind("depot", DEPOT, DEPOT_SIZE, Weather { delay, lost_of_million: 0 })
            }
            _ => fleet.depot("depot", DEPOT, DEPOT_SIZE),
        };
        node.spawn();
        node.await_mounted(Duration::from_secs(60))?;
        depot = Some(node);
    }
    fleet.start();
    fleet.converge((readers + 1) as u64, PATIENCE);
    // Whoever is to have everything gets it now: the holder by reading, the depot by what the first node reads through it.
    let filler = if tier == Tier::Peer { readers } else { 0 };
    for file in tree.large() {
        let _ = std::fs::read(fleet.nodes[filler].mnt().join(&file.path))?;
    }
    fleet.nodes.iter().for_each(limit);
    if let (Some(depot), Tier::Depot) = (&depot, tier) {
        limit(depot);
    }
    fleet.store.be_like_a_store(FIRST_BYTE);
    Ok(Ground { fleet, readers, depot, joined: true })
}

/// One measurement: times of all reads, bytes that the depot sent, GETs of blobs.
fn measure(ground: &mut Ground, args: &Args, readers: u64) -> Result<(Vec<Duration>, u64, u64)> {
    for node in &mut ground.fleet.nodes[..ground.readers] {
        node.port.shape(None);
        node.end();
        node.lose_cache();
    }
    ground.fleet.start();
    if ground.joined {
        ground.fleet.converge((ground.readers + 1) as u64, PATIENCE);
    }
    for node in &ground.fleet.nodes[..ground.readers] {
        node.port.shape(Some(args.mbit * 1_000_000));
    }
    ground.fleet.store.forget();
    let fleet = &ground.fleet;
    let sent = || ground.depot.as_ref().map_or(0, |depot| depot.port.traffic().sent);
    let sent_before = sent();
    let files: Vec<&File> = fleet.tree.large().collect();
    let times = Mutex::new(Vec::new());
    let next: Vec<AtomicUsize> = (0..ground.readers).map(|_| AtomicUsize::new(0)).collect();
    let work = |node: usize| -> Result<()> {
        loop {
            let number = next[node].fetch_add(1, Ordering::SeqCst);
            let Some(file) = files.get(number) else { return Ok(()) };
            // Nodes go through the blobs in different orders, and each begins a read at a place of its own.
            let file = if node == 0 { file } else { &files[(number * 17 + node * 31) % files.len()] };
            let from = (number as u64 * 7919 * 4096) % (file.size - READ as u64);
            let begun = monotonic();
            let read = nets::readers::read(&fleet.nodes[node].mnt(), file, from, READ);
            let spent = begun.elapsed();
            match read {
                Ok(read) if file.differs(from, &read).is_none() => {}
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
    Ok((times.into_inner().map_err(|_| "a reader panicked")?, sent() - sent_before, gets))
}
