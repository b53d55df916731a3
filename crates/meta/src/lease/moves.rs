//! Which inodes have moved to another unit since a read of rows began.
//!
//! A row that was read before its inode left a unit must not be remembered in that unit: no lease keeps it
//! true there, and the inode may come back. That holds for a move in the engine, and for one in memory that
//! the engine did not have when the read began.
//!
//! A read that begins after the move is sound in the unit to which the inode moved: this node had the leases
//! of both, so the engine has what no node has changed in memory.

use std::collections::BTreeMap;

use base::Ino;
use hashbrown::HashMap;

/// So many moves are noted before it is looked which of them no read began before.
const FEW: usize = 1024;

/// A read of rows: its number, and the last batch that the engine had when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    number: u64,
    done: u64,
}

#[derive(Clone, Copy)]
struct Move {
    /// The batch that tells the engine. 0: the engine has it.
    batch: u64,
    /// The last read that began before.
    after: u64,
}

impl Move {
    /// Whether the read may have seen the inode where it was.
    fn is_new_to(self, read: Read) -> bool {
        self.batch > read.done || self.after >= read.number
    }
}

/// The moves that a read under way, or one that begins now, may not have seen.
#[derive(Default)]
pub(super) struct Moves {
    /// How many reads have begun.
    begun: u64,
    /// Reads under way, by number, with the last batch that the engine had.
    reads: BTreeMap<u64, u64>,
    last: HashMap<Ino, Move>,
    /// How many moves are noted before the old ones are dropped.
    limit: usize,
}

impl Moves {
    /// A read begins. The engine has all batches up to `done`.
    pub fn begin(&mut self, done: u64) -> Read {
        self.begun += 1;
        self.reads.insert(self.begun, done);
        Read { number: self.begun, done }
    }

    /// A read has ended, and what it found is remembered.
    pub fn end(&mut self, read: Read) {
        self.reads.remove(&read.number);
    }

    /// An inode moved. `batch`: the one that tells the engine, or 0 if the engine has it. `done`: the last
    /// batch that the engine has.
    pub fn note(&mut self, ino: Ino, batch: u64, done: u64) {
        if self.last.len() >= self.limit.max(FEW) {
            let oldest = self.reads.first_key_value().map(|(number, done)| (*number, *done));
            let (number, done) = oldest.unwrap_or((self.begun + 1, done));
            self.last.retain(|_, moved| moved.is_new_to(Read { number, done }));
            self.limit = self.last.len() * 2;
        }
        self.last.insert(ino, Move { batch, after: self.begun });
    }

    /// Whether what the read found of an inode may be from before a move. `is_home`: it is to be remembered
    /// in the unit where the inode is now.
    pub fn since(&self, read: Read, ino: Ino, is_home: bool) -> bool {
        let is_stale = |moved: &Move| match is_home {
            true => moved.after >= read.number,
            false => moved.is_new_to(read),
        };
        self.last.get(&ino).is_some_and(is_stale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_does_not_know_moves_that_the_engine_had_not() {
        let mut moves = Moves::default();
        let before = moves.begin(4);
        moves.note(Ino(7), 5, 4);
        let between = moves.begin(4);
        let after = moves.begin(5);
        assert!(moves.since(before, Ino(7), false) && moves.since(between, Ino(7), false));
        assert!(!moves.since(after, Ino(7), false) && !moves.since(before, Ino(8), false));
        assert!(moves.since(before, Ino(7), true) && !moves.since(between, Ino(7), true));
    }

    #[test]
    fn a_read_does_not_know_moves_that_the_engine_made_meanwhile() {
        let mut moves = Moves::default();
        let before = moves.begin(4);
        moves.note(Ino(7), 0, 4);
        assert!([true, false].iter().all(|is_home| moves.since(before, Ino(7), *is_home)));
        let after = moves.begin(4);
        assert!(!moves.since(after, Ino(7), false));
    }

    #[test]
    fn moves_that_every_read_knows_are_dropped() {
        let mut moves = Moves::default();
        let read = moves.begin(0);
        for n in 0..10 * FEW as u64 {
            moves.note(Ino(n), n + 1, n);
        }
        assert!((0..10 * FEW as u64).all(|n| moves.since(read, Ino(n), false)), "a read is under way");
        moves.end(read);
        for n in 0..100 * FEW as u64 {
            moves.note(Ino(n), n + 10 * FEW as u64, n + 10 * FEW as u64 - 1);
        }
        assert!(moves.last.len() <= 20 * FEW, "{}", moves.last.len());
    }
}
