//! Tests of the policy against traces and a model, and of the index against truncation.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;

use proptest::prelude::*;

use super::index::{Index, Record, Rewrite};
use super::*;

const NOBODY: &dyn Fn(&BlobId) -> bool = &|_| false;

fn id(n: u64) -> BlobId {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    BlobId(std::array::from_fn(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    }))
}

/// A cache under measurement. `read` returns whether the blob was there, and inserts it.
trait Cache {
    fn read(&mut self, n: u64, now: u32) -> bool;
}

impl Cache for Policy {
    fn read(&mut self, n: u64, now: u32) -> bool {
        if self.touch(&id(n), now) {
            return true;
        }
        self.insert(&id(n), SIZE, Cost::Origin, now);
        while self.bytes() > self.budget() {
            self.victim(NOBODY).unwrap();
        }
        false
    }
}

/// LRU, for comparison.
struct Lru {
    room: usize,
    at: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    clock: u64,
}

impl Cache for Lru {
    fn read(&mut self, n: u64, _: u32) -> bool {
        self.clock += 1;
        let hit = self.at.insert(n, self.clock).is_some();
        self.order.push_back((n, self.clock));
        while self.at.len() > self.room {
            let (n, at) = self.order.pop_front().unwrap();
            if self.at[&n] == at {
                self.at.remove(&n);
            } else {
                continue;
            }
        }
        self.order.retain_front(&self.at);
        hit
    }
}

trait RetainFront {
    fn retain_front(&mut self, at: &HashMap<u64, u64>);
}

impl RetainFront for VecDeque<(u64, u64)> {
    fn retain_front(&mut self, at: &HashMap<u64, u64>) {
        while self.front().is_some_and(|(n, then)| at.get(n) != Some(then)) {
            self.pop_front();
        }
    }
}

const SIZE: u32 = 1 << 20;
const ROOM: usize = 1000;

fn lru() -> Lru {
    Lru { room: ROOM, at: HashMap::new(), order: VecDeque::new(), clock: 0 }
}

fn policy() -> Policy {
    Policy::new(ROOM as u64 * charge(SIZE))
}

/// Numbers from 0 on with a Zipf distribution, exponent 1, over `many`.
struct Zipf {
    sums: Vec<f64>,
    state: u64,
}

impl Zipf {
    fn new(many: usize) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=many)
            .map(|n| {
                sum += 1.0 / n as f64;
                sum
            })
            .collect();
        Zipf { sums, state: 88172645463325252 }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let at = (self.state >> 11) as f64 / (1u64 << 53) as f64 * self.sums[self.sums.len() - 1];
        self.sums.partition_point(|sum| *sum < at) as u64
    }
}

/// The hit ratio of skewed reads. After each round of them comes a scan over blobs that are read once.
fn ratio(cache: &mut dyn Cache, scan: u64) -> f64 {
    let (mut zipf, mut now, mut fresh) = (Zipf::new(20_000), 0, 1 << 40);
    let (mut hits, mut reads) = (0, 0);
    for round in 0..20 {
        for _ in 0..10_000 {
            now += 1;
            let hit = cache.read(zipf.next(), now);
            if round >= 2 {
                hits += u64::from(hit);
                reads += 1;
            }
        }
        for _ in 0..scan {
            fresh += 1;
            cache.read(fresh, now);
        }
    }
    hits as f64 / reads as f64
}

#[test]
fn skewed_reads_are_hits_and_a_scan_changes_little() {
    let plain = (ratio(&mut policy(), 0), ratio(&mut lru(), 0));
    let scanned = (ratio(&mut policy(), 2 * ROOM as u64), ratio(&mut lru(), 2 * ROOM as u64));
    println!("hit ratio of skewed reads, this policy and LRU: plain {plain:.3?}, with scans {scanned:.3?}");
    assert!(plain.0 >= plain.1, "{plain:?}");
    assert!(scanned.0 > scanned.1 + 0.02, "{scanned:?}");
    assert!(scanned.0 > plain.0 - 0.03, "{plain:?} {scanned:?}");
}

#[test]
fn a_scan_of_twice_the_budget_leaves_the_hot_set_where_it_is() {
    let hot = |cache: &mut dyn Cache| {
        let mut now = 0;
        for _ in 0..4 {
            now += 2 * ONE_USE_S;
            (0..600).for_each(|n| {
                cache.read(n, now);
            });
        }
        // Each blob of the scan is read in many requests, as by a real reader.
        for n in 10_000..10_000 + 2 * ROOM as u64 {
            (0..32).for_each(|_| {
                cache.read(n, now);
            });
        }
        (0..600).filter(|n| cache.read(*n, now)).count()
    };
    let (ours, theirs) = (hot(&mut policy()), hot(&mut lru()));
    println!("of 600 hot blobs there are after a scan: {ours}; with LRU {theirs}");
    assert_eq!((ours, theirs), (600, 0));
}

#[test]
fn what_comes_back_soon_is_proven() {
    let mut policy = policy();
    (0..2000).for_each(|n| {
        policy.read(n, 0);
    });
    // The blob was evicted from the small queue recently.
    assert!(!policy.contains(&id(950)));
    policy.read(950, 1);
    (5000..6500).for_each(|n| {
        policy.read(n, 2);
    });
    assert!(policy.contains(&id(950)) && !policy.contains(&id(1990)));
}

#[test]
fn what_is_dear_stays_longer() {
    let mut policy = Policy::new(100 * charge(SIZE));
    let cost = |n| [Cost::Origin, Cost::Depot, Cost::Peer][n as usize % 3];
    (0..90).for_each(|n| {
        policy.insert(&id(n), SIZE, cost(n), 0);
    });
    // Each blob is used twice after its insertion. That is enough for blobs that only the origin or a depot
    // has, but not for those that peers have.
    for now in [ONE_USE_S, 2 * ONE_USE_S] {
        (0..90).for_each(|n| assert!(policy.touch(&id(n), now)));
    }
    (1000..1300).for_each(|n| {
        policy.read(n, 30);
    });
    let left = |of| (0..90).filter(|n| n % 3 == of && policy.contains(&id(*n))).count();
    assert_eq!([left(0), left(1), left(2)], [30, 30, 0]);
}

#[test]
fn pinned_blobs_are_never_victims_and_newcomers_when_unpinned() {
    let mut policy = Policy::new(100 * charge(SIZE));
    let pinned: RefCell<HashSet<BlobId>> = RefCell::new((0..150).map(id).collect());
    let is_pinned = |id: &BlobId| pinned.borrow().contains(id);
    (0..100).for_each(|n| {
        policy.insert_held(&id(n), SIZE, Cost::Origin, 0);
    });
    // These are pinned only after their insertion.
    (100..150).for_each(|n| {
        policy.insert(&id(n), SIZE, Cost::Origin, 0);
    });
    (200..300).for_each(|n| {
        policy.insert(&id(n), SIZE, Cost::Origin, 0);
    });
    let mut gone = HashSet::new();
    while let Some(victim) = policy.victim(&is_pinned) {
        assert!(gone.insert(victim.id));
    }
    assert_eq!(gone, (200..300).map(id).collect());
    assert_eq!(policy.len(), 150);
    (0..150).for_each(|n| assert!(policy.contains(&id(n))));
    pinned.borrow_mut().retain(|blob| *blob != id(77) && *blob != id(120));
    policy.look_at_all_held(&is_pinned);
    let next: HashSet<BlobId> = std::iter::from_fn(|| policy.victim(&is_pinned)).map(|v| v.id).collect();
    assert_eq!(next, [id(77), id(120)].into());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Compares the policy with a map: the blobs here and their bytes. Pinned blobs are never evicted.
    /// Restoring from the records gives the same set.
    #[test]
    fn the_policy_agrees_with_a_map(steps in prop::collection::vec((0..7u8, 0..40u64, 1..3000u32), 1..300)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("idx");
        let mut index = Index::open(&path, &mut |_| panic!("a new index is empty")).unwrap();
        let mut policy = Policy::new(20 * charge(2000));
        let (mut model, mut pinned, mut now) = (HashMap::new(), HashSet::new(), 0);
        for (what, n, size) in steps {
            let id = id(n);
            now += size / 100;
            match what {
                0 | 1 => if policy.insert(&id, size, Cost::Origin, now) {
                    prop_assert!(model.insert(id, size).is_none());
                    index.append(&[Record::Here { id, size, cost: Cost::Origin, rank: Rank::New }]).unwrap();
                },
                2 => prop_assert_eq!(policy.touch(&id, now), model.contains_key(&id)),
                3 => if pinned.len() < 10 { pinned.insert(id); },
                4 => { pinned.remove(&id); },
                5 => {
                    prop_assert_eq!(policy.remove(&id), model.remove(&id));
                    index.append(&[Record::Gone(id)]).unwrap();
                },
                _ => while policy.bytes() > policy.budget() {
                    let Some(victim) = policy.victim(&|id| pinned.contains(id)) else { break };
                    prop_assert_eq!(model.remove(&victim.id), Some(victim.size));
                    prop_assert!(!pinned.contains(&victim.id));
                    index.append(&[Record::Gone(victim.id)]).unwrap();
                },
            }
            prop_assert_eq!(policy.len(), model.len());
            prop_assert_eq!(policy.bytes(), model.values().map(|size| charge(*size)).sum::<u64>());
        }
        drop(index);
        let mut again = Policy::new(20 * charge(2000));
        Index::open(&path, &mut |record| match record {
            Record::Here { id, size, cost, rank } => again.restore(&id, size, cost, rank),
            Record::Gone(id) => { again.remove(&id); },
            other => panic!("{other:?}"),
        }).unwrap();
        let mut found = HashMap::new();
        again.each(|id, size, _, _| { found.insert(*id, size); });
        prop_assert_eq!(&found, &model);
        prop_assert_eq!(again.unconfirmed().len(), model.len());
        model.keys().for_each(|id| assert!(again.confirm(id)));
        prop_assert_eq!(again.unconfirmed(), vec![]);
    }

    /// A file cut or damaged anywhere yields the records before that point, and takes appends again.
    #[test]
    fn an_index_is_cut_at_the_first_bad_record(count in 0..60u64, cut in any::<prop::sample::Index>(), flip in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("idx");
        let records: Vec<Record> = (0..count).map(|n| match n % 5 {
            0 => Record::Here { id: id(n), size: n as u32, cost: Cost::Depot, rank: Rank::Proven },
            1 => Record::Gone(id(n)),
            2 => Record::Ranked(id(n), if n % 2 == 0 { Rank::Kept } else { Rank::Proven }),
            3 => Record::Unwanted(id(n)),
            _ => Record::Settled(id(n)),
        }).collect();
        let mut index = Index::open(&path, &mut |_| {}).unwrap();
        index.append(&records).unwrap();
        index.sync().unwrap();
        drop(index);
        let mut bytes = fs::read(&path).unwrap();
        prop_assert_eq!(bytes.len() as u64, 16 + 44 * count);
        let cut = cut.index(bytes.len());
        if flip { bytes[cut] ^= 4 } else { bytes.truncate(cut) }
        fs::write(&path, &bytes).unwrap();
        let whole = if cut < 16 { 0 } else { (cut - 16) / 44 };
        let mut found = Vec::new();
        let mut index = Index::open(&path, &mut |record| found.push(record)).unwrap();
        prop_assert_eq!(&found, &records[..whole]);
        index.append(&[Record::Gone(id(999))]).unwrap();
        drop(index);
        found.clear();
        Index::open(&path, &mut |record| found.push(record)).unwrap();
        prop_assert_eq!(found.len(), whole + 1);
        prop_assert_eq!(found[whole], Record::Gone(id(999)));
    }
}

#[test]
fn an_index_written_anew_has_what_came_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("idx");
    let mut index = Index::open(&path, &mut |_| {}).unwrap();
    (0..100).for_each(|n| index.append(&[Record::Gone(id(n))]).unwrap());
    let new = Rewrite::begin(&path, &[Record::Ranked(id(1), Rank::Proven)]).unwrap();
    let late = Record::Unwanted(id(2));
    index.append(&[late]).unwrap();
    let mut index = new.install(&[late]).unwrap();
    assert_eq!((index.records(), index.is_broken()), (2, false));
    index.append(&[Record::Settled(id(2))]).unwrap();
    index.sync().unwrap();
    drop(index);
    let mut found = Vec::new();
    Index::open(&path, &mut |record| found.push(record)).unwrap();
    assert_eq!(found, [Record::Ranked(id(1), Rank::Proven), late, Record::Settled(id(2))]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_index_of_another_version_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("idx");
    for head in [&b"covI\0\0\0\x02\0\0\0\0\0\0\0\0"[..], b"", b"covI", b"something else, longer than that"] {
        fs::write(&path, head).unwrap();
        let mut index = Index::open(&path, &mut |record| panic!("{record:?}")).unwrap();
        index.append(&[Record::Gone(id(1))]).unwrap();
        drop(index);
        let mut found = 0;
        Index::open(&path, &mut |_| found += 1).unwrap();
        assert_eq!(found, 1);
    }
}

/// `cargo test --release -p covey-cache -- --ignored --nocapture a_million`
#[test]
#[ignore = "a measurement"]
fn a_million_entries_are_read_in_well_under_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("idx");
    let mut index = Index::open(&path, &mut |_| {}).unwrap();
    let here = |n| Record::Here { id: id(n), size: SIZE, cost: Cost::Origin, rank: Rank::New };
    for n in (0..1_000_000).step_by(10_000) {
        index.append(&(n..n + 10_000).map(here).collect::<Vec<_>>()).unwrap();
    }
    drop(index);
    let resident = || {
        let text = fs::read_to_string("/proc/self/statm").unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let (before, started) = (resident(), base::time::monotonic());
    let mut policy = Policy::new(u64::MAX);
    policy.prepare_for(Index::expected(&path));
    Index::open(&path, &mut |record| match record {
        Record::Here { id, size, cost, rank } => policy.restore(&id, size, cost, rank),
        other => panic!("{other:?}"),
    })
    .unwrap();
    let took = started.elapsed();
    println!(
        "{} entries in {took:?}, {} bytes of memory each",
        policy.len(),
        (resident() - before) / 1_000_000
    );
    assert_eq!(policy.len(), 1_000_000);
}

/// Fills a node with blobs, some of which are the zone's only copies (`dear`). Returns how many of each kind
/// were evicted and how many are left: first the others, then the only copies.
fn full_of(dear: impl Fn(u64) -> bool, count: u64) -> ([u64; 2], [u64; 2]) {
    let mut policy = Policy::new(200 * charge(SIZE));
    let (mut gone, mut come) = ([0; 2], [0; 2]);
    for n in 0..count {
        let cost = if dear(n) { Cost::Origin } else { Cost::Peer };
        policy.insert(&id(n), SIZE, cost, n as u32);
        come[usize::from(dear(n))] += 1;
        while policy.bytes() > policy.budget() {
            let victim = policy.victim(NOBODY).unwrap();
            let known = (0..=n).find(|m| id(*m) == victim.id).unwrap();
            gone[usize::from(dear(known))] += 1;
        }
    }
    (gone, [come[0] - gone[0], come[1] - gone[1]])
}

#[test]
fn the_only_copies_of_a_zone_stay_longer_than_those_that_neighbours_have() {
    let (gone, left) = full_of(|n| n % 2 == 0, 1_000);
    assert_eq!(gone.iter().sum::<u64>(), 800, "the costs should not change how many blobs are evicted");
    assert!(left[1] >= 120, "of 200 that stay, half of which came so, {left:?}");
    let (_, left) = full_of(|n| n % 10 == 0, 1_000);
    assert!(left[1] >= 30, "{left:?}");
    // If all are only copies, nothing is spared, and the oldest are evicted first.
    let mut policy = Policy::new(10 * charge(SIZE));
    (0..10).for_each(|n| assert!(policy.insert(&id(n), SIZE, Cost::Origin, 0)));
    let order: Vec<BlobId> = std::iter::from_fn(|| policy.victim(NOBODY)).map(|victim| victim.id).collect();
    assert_eq!(order, (0..10).map(id).collect::<Vec<_>>());
}

proptest! {
    /// In any state, evictions make room as long as something is not pinned, and nothing is counted twice.
    #[test]
    fn sparing_changes_who_goes_and_never_whether(
        costs in prop::collection::vec(0u64..3, 20..300),
        touched in prop::collection::vec(0usize..300, 0..100),
    ) {
        let cost = |n: usize| [Cost::Origin, Cost::Depot, Cost::Peer][costs[n] as usize];
        let mut mixed = Policy::new(10 * charge(SIZE));
        for n in 0..costs.len() {
            mixed.insert(&id(n as u64), SIZE, cost(n), n as u32);
        }
        for n in touched {
            mixed.touch(&id(n as u64), 1_000 + n as u32);
        }
        let cheap = (0..costs.len()).filter(|n| cost(*n) != Cost::Origin).count();
        prop_assert_eq!(mixed.cheap, cheap);
        let mut gone = HashSet::new();
        while let Some(victim) = mixed.victim(NOBODY) {
            prop_assert!(gone.insert(victim.id));
        }
        prop_assert_eq!((gone.len(), mixed.len(), mixed.cheap), (costs.len(), 0, 0));
    }
}

#[test]
fn kept_blobs_outlive_a_scan_and_take_half_of_the_budget_at_most() {
    let room = 40;
    let mut policy = Policy::new(room * charge(SIZE));
    for n in 0..10 {
        policy.read(n, 0);
        assert!(policy.keep(&id(n)));
    }
    // A scan through fifty times the budget, each blob read twice, so that it is proven.
    for n in 1_000..1_000 + 50 * room {
        policy.read(n, 1);
        policy.read(n, 1);
    }
    assert!((0..10).all(|n| policy.touch(&id(n), 2)), "the kept blobs are here");
    // More than half: those that were kept first are ordinary blobs again.
    for n in 100..130 {
        policy.read(n, 3);
        policy.keep(&id(n));
        assert!(policy.kept_bytes() <= policy.budget() / 2);
    }
    assert_eq!(policy.kept_bytes(), room / 2 * charge(SIZE));
    for n in 5_000..5_000 + 50 * room {
        policy.read(n, 4);
    }
    assert!((110..130).all(|n| policy.touch(&id(n), 5)));
    // Without the hint they are ordinary blobs.
    policy.keep_none();
    assert_eq!(policy.kept_bytes(), 0);
    assert!(!policy.keep(&id(77_777)), "it is not here");
}

#[test]
fn what_is_kept_is_kept_after_a_restart_and_goes_when_nothing_else_is_left() {
    let mut policy = Policy::new(8 * charge(SIZE));
    for n in 0..4 {
        policy.insert(&id(n), SIZE, Cost::Origin, 0);
        policy.keep(&id(n));
    }
    let mut restored = Policy::new(8 * charge(SIZE));
    policy.each(|id, size, cost, rank| {
        assert_eq!(rank, Rank::Kept);
        restored.restore(id, size, cost, rank);
        restored.confirm(id);
    });
    assert_eq!(restored.kept_bytes(), 4 * charge(SIZE));
    restored.insert(&id(9), SIZE, Cost::Origin, 1);
    assert_eq!(restored.victim(NOBODY).map(|victim| victim.id), Some(id(9)));
    assert_eq!(restored.victim(NOBODY).map(|victim| victim.id), Some(id(0)), "the one kept first");
}
