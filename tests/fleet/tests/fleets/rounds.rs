//! Random rounds: a fault begins, several readers read on several nodes meanwhile, everything is healed, all
//! nodes read again.
//!
//! The events of a round follow from its seed alone. The contents of the caches follow from earlier rounds.
//! So a failure prints both: the seed of the round, and how to repeat the rounds that led to it.
//!
//! - `COVEY_FLEET_SEED`: the seed of the first round [1].
//! - `COVEY_FLEET_ROUNDS`: how many in `make test-fleet` [1,000].
//!
//! In all rounds, the fourth node's cache is on a disk that is too small for the tree.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use covey_tests::Rng;
use nets::fleet::HANG;
use nets::readers::Plan;
use nets::{Fleet, How, Readers, Report, Tree, requires_nets, say};
use s3server::{Fault, Rule};

const NODES: usize = 4;
/// A request's deadline is 20 s here, so that no node that a fault spares has an error, however busy the
/// machine is. A long read is several requests.
const WITHIN: Duration = Duration::from_secs(40);

/// A fault, and the nodes that it affects.
#[derive(Clone, Debug)]
enum Trouble {
    Nothing,
    Kill { node: usize },
    KillAndBack { node: usize },
    KillAll,
    Freeze { node: usize, ms: u64 },
    Slow { node: usize, kbit: u64 },
    Part { a: usize, b: usize },
    OneWay { from: usize, to: usize },
    Halves,
    Unplug { node: usize },
    Outage,
    Storm,
    ThinStore,
    LateStore { ms: u64 },
    BrokenStore,
    LostCache { node: usize },
}

use Trouble::*;

impl Trouble {
    fn draw(rng: &mut Rng) -> Trouble {
        let node = rng.below(NODES as u64) as usize;
        let other = (node + 1 + rng.below(NODES as u64 - 1) as usize) % NODES;
        match rng.below(16) {
            0 => Nothing,
            1 => Kill { node },
            2 => KillAndBack { node },
            3 => KillAll,
            4 | 5 => Freeze { node, ms: 100 + rng.below(1_500) },
            6 => Slow { node, kbit: 500 + rng.below(20_000) },
            7 => Part { a: node, b: other },
            8 => OneWay { from: node, to: other },
            9 => Halves,
            10 => Unplug { node },
            11 => Outage,
            12 => Storm,
            13 => ThinStore,
            14 if rng.one_in(2) => LateStore { ms: 50 + rng.below(500) },
            14 => BrokenStore,
            _ => LostCache { node },
        }
    }

    fn name(&self) -> String {
        let text = format!("{self:?}");
        text.split([' ', '{']).next().unwrap_or_default().to_owned()
    }

    fn begin(&self, fleet: &mut Fleet) {
        let proxy = &fleet.store.proxy;
        match *self {
            Nothing => {}
            Kill { node } => fleet.nodes[node].kill(),
            KillAndBack { node } => {
                fleet.nodes[node].kill();
                fleet.nodes[node].start();
            }
            KillAll => fleet.nodes.iter_mut().for_each(nets::Node::kill),
            Freeze { node, .. } => fleet.nodes[node].freeze(),
            Slow { node, kbit } => fleet.nodes[node].port.shape(Some(kbit * 1000)),
            Part { a, b } => fleet.part(a, b),
            OneWay { from, to } => fleet.nodes[from].port.lose(&fleet.nodes[to].port),
            Halves => [(0, 2), (0, 3), (1, 2), (1, 3)].into_iter().for_each(|(a, b)| fleet.part(a, b)),
            Unplug { node } => fleet.nodes[node].port.plug(false),
            Outage => proxy.down(),
            Storm => {
                proxy.add(Rule::new(Fault::SlowDown).chance(0.3));
                proxy.add(Rule::new(Fault::Status(500)).chance(0.2));
            }
            ThinStore => fleet.store.port.shape(Some(20_000_000)),
            LateStore { ms } => fleet.store.be_like_a_store(Duration::from_millis(ms)),
            BrokenStore => {
                proxy.add(Rule::new(Fault::Flip).chance(0.1));
                proxy.add(Rule::new(Fault::Shorten(5_000)).chance(0.1));
                proxy.add(Rule::new(Fault::CutAnswer(70_000)).chance(0.2));
            }
            LostCache { node } => {
                fleet.nodes[node].kill();
                fleet.nodes[node].lose_cache();
                fleet.nodes[node].start();
            }
        }
    }

    /// How long the fault lasts beyond the time that it needs.
    fn lasts(&self, rng: &mut Rng) -> Duration {
        Duration::from_millis(match *self {
            Freeze { ms, .. } => ms,
            _ => 50 + rng.below(600),
        })
    }

    /// The nodes that must have no error at all.
    fn spares(&self) -> Vec<usize> {
        let but = |node: usize| (0..NODES).filter(|&other| other != node).collect();
        match *self {
            Kill { node }
            | KillAndBack { node }
            | LostCache { node }
            | Unplug { node }
            | Freeze { node, .. } => but(node),
            // A slow link to all others is an error once a request has waited long enough.
            Slow { node, .. } => but(node),
            Nothing | Part { .. } | OneWay { .. } | Halves | LateStore { .. } | Storm | BrokenStore => {
                (0..NODES).collect()
            }
            KillAll | Outage | ThinStore => Vec::new(),
        }
    }
}

fn fleet(seed: u64) -> Fleet {
    let how = How::default().with("deadline=20,cache_floor=1M");
    let mut fleet = Fleet::joined(Tree::of_tests(), NODES, seed, &how);
    fleet.nodes[NODES - 1].cache_on_tmpfs(40 << 20);
    fleet.start();
    fleet
}

fn round(fleet: &mut Fleet, seed: u64, hint: &str) -> (Trouble, Report) {
    let mut rng = Rng::new(seed);
    let trouble = Trouble::draw(&mut rng);
    let hint = format!("{hint}, {trouble:?}");
    let plan = Plan { readers: 2 + rng.below(6), ..fleet.plan(0, seed) };
    let readers = Readers::start(fleet.tree, &plan);
    std::thread::sleep(Duration::from_millis(rng.below(150)));
    trouble.begin(fleet);
    std::thread::sleep(trouble.lasts(&mut rng));
    // Sometimes two faults happen at once.
    let second = rng
        .one_in(5)
        .then(|| Trouble::draw(&mut rng))
        .filter(|second| !matches!(second, Kill { .. } | KillAndBack { .. } | KillAll | LostCache { .. }));
    if let Some(second) = &second {
        second.begin(fleet);
        std::thread::sleep(second.lasts(&mut rng));
    }
    fleet.heal();
    let report = fleet.join(readers, &hint);
    report.must_be_true(WITHIN, &hint);
    for node in trouble.spares() {
        let spared = second.as_ref().is_none_or(|second| second.spares().contains(&node));
        let outcome = &report.0[node];
        assert!(!spared || outcome.errors.is_empty(), "{hint}, {second:?}: node {node}: {outcome:?}");
    }
    fleet.start();
    fleet.settle(HANG);
    (trouble, report)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

fn rounds(count: u64) {
    let first = number("COVEY_FLEET_SEED").unwrap_or(1);
    let mut fleet = fleet(first);
    let (begun, mut all, mut by_name) =
        (Instant::now(), Report(Vec::new()), BTreeMap::<String, (u64, u64)>::new());
    for done in 0..count {
        let seed = first.wrapping_add(done);
        let hint = format!(
            "COVEY_FLEET_SEED={seed} (COVEY_FLEET_SEED={first} COVEY_FLEET_ROUNDS={} for all that led there)",
            done + 1
        );
        let (trouble, report) = round(&mut fleet, seed, &hint);
        let row = by_name.entry(trouble.name()).or_default();
        *row = (row.0 + 1, row.1 + report.errors());
        all.add(&report);
        if done % 25 == 24 {
            say(format_args!(
                "{} rounds, {} right reads, {} errors, {:.0?}",
                done + 1,
                all.right(),
                all.errors(),
                begun.elapsed()
            ));
        }
    }
    fleet.end();
    let rows: Vec<String> =
        by_name.iter().map(|(name, (rounds, errors))| format!("{name} {rounds} ({errors} errors)")).collect();
    let bytes: u64 = all.0.iter().map(|outcome| outcome.bytes).sum();
    say(format_args!(
        "{count} rounds from seed {first} in {:.0?}: {} right reads ({} MiB), {} errors, no wrong byte, no hang. {}",
        begun.elapsed(),
        all.right(),
        bytes >> 20,
        all.errors(),
        rows.join(", ")
    ));
}

/// As many as `make test` has time for.
#[test]
fn a_few_random_rounds() {
    requires_nets!();
    rounds(12);
}

#[test]
#[ignore = "many minutes: make test-fleet"]
fn many_random_rounds() {
    requires_nets!();
    rounds(number("COVEY_FLEET_ROUNDS").unwrap_or(1_000));
}
