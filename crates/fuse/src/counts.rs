//! How many requests of each kind came: what the request budgets are tested against.
//!
//! Each reader thread counts in a lane of its own, so that counting never moves a cache line between cores.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::opcodes::OPCODES;

/// Opcodes below this are counted one by one; the others together, as "OTHER".
const KINDS: usize = 64;

/// The counts of one reader thread.
#[derive(Debug)]
#[repr(align(128))]
pub struct Lane([AtomicU64; KINDS]);

impl Lane {
    fn new() -> Lane {
        Lane([const { AtomicU64::new(0) }; KINDS])
    }

    /// Counts one request.
    pub fn count(&self, opcode: u32) {
        let kind = (opcode as usize).min(KINDS - 1);
        self.0[kind].fetch_add(1, Ordering::Relaxed);
    }
}

/// The counts of a mount.
#[derive(Debug)]
pub struct Counts(Vec<Lane>);

impl Counts {
    /// All zero, for so many reader threads.
    pub fn new(lanes: usize) -> Counts {
        Counts((0..lanes.max(1)).map(|_| Lane::new()).collect())
    }

    /// The counts of one thread.
    pub fn lane(&self, index: usize) -> &Lane {
        &self.0[index % self.0.len()]
    }

    /// Requests that came so far, by opcode name, those that never came left out.
    pub fn totals(&self) -> Vec<(&'static str, u64)> {
        let total = |kind: usize| self.0.iter().map(|lane| lane.0[kind].load(Ordering::Relaxed)).sum::<u64>();
        let mut totals: Vec<_> = OPCODES
            .iter()
            .filter(|line| (line.number as usize) < KINDS - 1)
            .map(|line| (line.name, total(line.number as usize)))
            .collect();
        totals.push(("OTHER", total(KINDS - 1)));
        totals.retain(|&(_, count)| count > 0);
        totals
    }
}
