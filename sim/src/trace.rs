//! The reads of one node, made from a seed: which blob, in which order, and how large the blobs are.
//!
//! The sizes are those of a volume's blobs. Most are full ([`BLOB_MAX`]: pieces of large files, and packs of
//! small ones that were sealed when they were full). The others are packs that were sealed early and the ends
//! of files, from 4 KiB up, uniform over the logarithm. A blob's size is independent of how often it is read.

use base::BlobId;
use base::dice::Dice;
use base::size::BLOB_MAX;
use cache::residency::charge;

use crate::model::blob_id;

/// The number of blobs for the skewed reads.
pub const POPULAR: u32 = 50_000;
/// The number of blobs for scans, which go over them in the same order each time.
const SCANNED: u32 = 20_000;
/// After this many skewed reads comes a scan, or a change of popularity.
const ROUND: usize = 40_000;
/// The length of a scan. Two of them go over all blobs.
const SCAN: u32 = 10_000;
/// How many blobs of a hundred are full.
const FULL: usize = 60;
/// The smallest blob, in bytes.
const LEAST: f64 = 4096.0;
/// Every this many ranks, a rank gets another blob when popularity shifts.
const SHIFTED: usize = 10;

/// The kind of reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// The exponent of Zipf's law.
    pub skew: f64,
    /// With scans in between.
    pub scans: bool,
    /// With popularity that changes.
    pub shifts: bool,
    /// How many requests of the kernel each read is.
    pub requests: u32,
}

impl Kind {
    const PLAIN: Kind = Kind { skew: 0.9, scans: false, shifts: false, requests: 1 };

    /// All kinds that are run.
    pub const ALL: [Kind; 6] = [
        Kind { skew: 0.7, ..Kind::PLAIN },
        Kind::PLAIN,
        Kind { skew: 1.1, ..Kind::PLAIN },
        Kind { scans: true, ..Kind::PLAIN },
        Kind { scans: true, requests: 32, ..Kind::PLAIN },
        Kind { shifts: true, ..Kind::PLAIN },
    ];

    /// For the tables.
    pub fn name(&self) -> String {
        let scans = if self.scans { ", scans" } else { "" };
        let shifts = if self.shifts { ", shifting" } else { "" };
        let requests = match self.requests {
            1 => String::new(),
            many => format!(", {many} requests each"),
        };
        format!("Zipf {}{scans}{shifts}{requests}", self.skew)
    }
}

/// See the module.
pub struct Trace {
    /// The kind of its reads.
    pub kind: Kind,
    /// Blobs by their numbers, in the order of the reads.
    pub reads: Vec<u32>,
    /// By blob: its id.
    pub ids: Vec<BlobId>,
    /// By blob: its size in bytes.
    pub sizes: Vec<u32>,
    /// By blob: the space it takes.
    pub charges: Vec<u64>,
}

impl Trace {
    /// Makes at least this many reads.
    pub fn new(kind: Kind, reads: usize, seed: u64) -> Trace {
        let mut dice = Dice::new(seed);
        let blobs = POPULAR + if kind.scans { SCANNED } else { 0 };
        let sizes: Vec<u32> = (0..blobs).map(|_| size(&mut dice)).collect();
        let mut trace = Trace {
            kind,
            reads: Vec::with_capacity(reads),
            ids: (0..blobs).map(blob_id).collect(),
            charges: sizes.iter().map(|size| charge(*size)).collect(),
            sizes,
        };
        let zipf = Zipf::new(POPULAR, kind.skew);
        let mut ranked: Vec<u32> = (0..POPULAR).collect();
        shuffle(&mut ranked, &mut dice);
        let mut scanned = 0;
        while trace.reads.len() < reads {
            for _ in 0..ROUND.min(reads - trace.reads.len()) {
                trace.reads.push(ranked[zipf.rank(&mut dice)]);
            }
            if kind.scans {
                trace.reads.extend((0..SCAN).map(|n| POPULAR + (scanned + n) % SCANNED));
                scanned = (scanned + SCAN) % SCANNED;
            }
            if kind.shifts {
                for rank in (0..ranked.len()).step_by(SHIFTED) {
                    let other = dice.below(ranked.len());
                    ranked.swap(rank, other);
                }
            }
        }
        trace
    }

    /// The space of all blobs that are read.
    pub fn footprint(&self) -> u64 {
        let mut read = vec![false; self.charges.len()];
        self.reads.iter().for_each(|blob| read[*blob as usize] = true);
        read.iter().zip(&self.charges).filter(|(read, _)| **read).map(|(_, charge)| charge).sum()
    }
}

fn size(dice: &mut Dice) -> u32 {
    if dice.below(100) < FULL {
        return BLOB_MAX;
    }
    let most = f64::from(BLOB_MAX) / LEAST;
    (LEAST * most.powf(dice.unit())) as u32
}

fn shuffle(all: &mut [u32], dice: &mut Dice) {
    for last in (1..all.len()).rev() {
        all.swap(last, dice.below(last + 1));
    }
}

/// Ranks by Zipf's law: the cumulative sums of the shares.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(ranks: u32, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let sums = (1..=ranks).map(|rank| {
            sum += f64::from(rank).powf(-skew);
            sum
        });
        Zipf(sums.collect())
    }

    /// A rank, from 0.
    fn rank(&self, dice: &mut Dice) -> usize {
        let at = dice.unit() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|sum| *sum <= at).min(self.0.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_decided_by_its_seed_and_skewed_as_it_says() {
        let make = |seed| Trace::new(Kind::ALL[1], 100_000, seed);
        let (trace, same, other) = (make(1), make(1), make(2));
        assert_eq!((&trace.reads, &trace.sizes), (&same.reads, &same.sizes));
        assert_ne!(trace.reads, other.reads);
        let mut counts = vec![0u32; POPULAR as usize];
        trace.reads.iter().for_each(|blob| counts[*blob as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The tenth rank is read 10 to the power of 0.9 times as often as the hundredth.
        let ratio = f64::from(counts[9]) / f64::from(counts[99]);
        assert!((5.0..12.0).contains(&ratio), "{ratio}");
        let full = trace.sizes.iter().filter(|size| **size == BLOB_MAX).count();
        assert!((28_000..32_000).contains(&full), "{full}");
        assert!(trace.sizes.iter().all(|size| (4096..=BLOB_MAX).contains(size)));
    }

    #[test]
    fn scans_read_blobs_of_their_own() {
        let trace = Trace::new(Kind::ALL[3], 100_000, 1);
        let scanned = trace.reads.iter().filter(|blob| **blob >= POPULAR).count();
        assert_eq!((trace.reads.len(), scanned), (100_000, 20_000));
        assert!(trace.footprint() < trace.charges.iter().sum());
    }
}
