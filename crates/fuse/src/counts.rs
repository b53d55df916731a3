//! Counts requests of each kind, failures, and the bytes moved. Tests compare these counts with the request
//! budgets.
//!
//! Each reader thread counts in its own lane, so that counting never moves a cache line between cores.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::opcodes::{OPCODES, op};
use crate::watch::Outcome;

/// Opcodes below this number are counted one by one. All others are counted together, as "OTHER".
pub(crate) const KINDS: usize = 64;

/// The index at which an opcode is counted.
pub(crate) fn kind_of(opcode: u32) -> usize {
    (opcode as usize).min(KINDS - 1)
}

/// The counts of one reader thread.
#[derive(Debug)]
#[repr(align(128))]
pub struct Lane {
    received: [AtomicU64; KINDS],
    failed: [AtomicU64; KINDS],
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            received: [const { AtomicU64::new(0) }; KINDS],
            failed: [const { AtomicU64::new(0) }; KINDS],
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
        }
    }

    /// Counts one request.
    pub fn count(&self, opcode: u32) {
        self.received[kind_of(opcode)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts its outcome.
    pub(crate) fn ended(&self, opcode: u32, outcome: Outcome) {
        if outcome.error != 0 {
            self.failed[kind_of(opcode)].fetch_add(1, Ordering::Relaxed);
        } else if outcome.bytes != 0 {
            let bytes = if opcode == op::WRITE { &self.written_bytes } else { &self.read_bytes };
            bytes.fetch_add(u64::from(outcome.bytes), Ordering::Relaxed);
        }
    }
}

/// The bytes that requests moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes in replies to READ.
    pub read_bytes: u64,
    /// Bytes in successful WRITEs.
    pub written_bytes: u64,
}

/// The counts of a mount.
#[derive(Debug)]
pub struct Counts(Vec<Lane>);

impl Counts {
    /// Zero counts for this many reader threads.
    pub fn new(lanes: usize) -> Counts {
        Counts((0..lanes.max(1)).map(|_| Lane::new()).collect())
    }

    /// The counts of one thread.
    pub fn lane(&self, index: usize) -> &Lane {
        &self.0[index % self.0.len()]
    }

    /// The number of requests so far, by opcode name. Opcodes without a request are left out.
    pub fn totals(&self) -> Vec<(&'static str, u64)> {
        self.sums(|lane| &lane.received)
    }

    /// The number of requests answered with an error so far, likewise. This includes what the opcode table
    /// refuses, and lookups of missing names if no negative entry can be given.
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        self.sums(|lane| &lane.failed)
    }

    fn sums(&self, of: impl Fn(&Lane) -> &[AtomicU64; KINDS]) -> Vec<(&'static str, u64)> {
        let total =
            |kind: usize| self.0.iter().map(|lane| of(lane)[kind].load(Ordering::Relaxed)).sum::<u64>();
        let mut totals: Vec<_> = OPCODES
            .iter()
            .filter(|line| (line.number as usize) < KINDS - 1)
            .map(|line| (line.name, total(line.number as usize)))
            .collect();
        totals.push(("OTHER", total(KINDS - 1)));
        totals.retain(|&(_, count)| count > 0);
        totals
    }

    /// The bytes moved so far.
    pub fn moved(&self) -> Moved {
        let sum =
            |of: fn(&Lane) -> &AtomicU64| self.0.iter().map(|lane| of(lane).load(Ordering::Relaxed)).sum();
        Moved { read_bytes: sum(|lane| &lane.read_bytes), written_bytes: sum(|lane| &lane.written_bytes) }
    }
}
