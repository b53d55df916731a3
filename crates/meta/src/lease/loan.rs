//! What is known of loans: by the node that lends ([`super::lend`]), and by the one that borrows
//! ([`super::borrow`]).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::Ino;
use base::time::BootTime;

use crate::key::Key;
use crate::store::Value;

/// How many units are noted of each kind.
const NOTED: usize = 1024;

/// What a borrower asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoanAsk {
    /// The directory or file.
    pub unit: Ino,
    /// The borrower gives the loan back as soon as it has been used ([`super::Leases::returned`]).
    pub returns: bool,
    /// Rows that it is about to read.
    pub keys: Vec<Key>,
}

/// What a node lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loan {
    /// The number of the holder's lease.
    pub seq: u64,
    /// No other loan of the holder has this number.
    pub number: u64,
    /// How often the unit has changed.
    pub version: u64,
    /// How long it may be used, from the moment it was asked for.
    pub lasts: Duration,
    /// The rows have all names of the directory.
    pub has_names: bool,
    /// Rows as they are in the engine. `None`: it is absent.
    pub rows: Vec<(Key, Option<Value>)>,
    /// Of these rows, the extents that have changed last. They are not sent.
    pub fresh: Vec<Key>,
}

/// What this node has lent of a unit.
#[derive(Default)]
pub(super) struct Lent {
    pub loans: Vec<Loaned>,
    /// How many threads wait until the unit's changes are stored, to lend it then. It does not change
    /// meanwhile.
    pub lending: usize,
    /// A thread makes the borrowers give their loans back.
    pub calling: bool,
    /// When they had given them back.
    pub called: Option<Instant>,
    /// The change for which they did has not happened yet.
    pub is_due: bool,
    /// How long after it was given the last loan was returned.
    pub back: Option<Duration>,
    /// How often the unit has changed.
    pub version: u64,
    /// When it was lent last.
    pub last: Option<Instant>,
    /// The inodes that changed last.
    pub recent: VecDeque<Ino>,
}

/// A unit that is read without a lease or a loan ([`super::space`]).
pub(super) struct Loose {
    pub until: Instant,
    /// The lease row that was beside its rows first. `None`: they were not read yet.
    pub row: Option<Option<Value>>,
}

/// A loan that this node has given.
#[derive(Clone, PartialEq)]
pub(super) struct Loaned {
    /// `None`: it is unknown whether there is a loan, and which node has it.
    pub node: Option<u32>,
    pub number: u64,
    pub given: Instant,
    pub returns: bool,
    pub seq: u64,
    pub until: BootTime,
}

impl Lent {
    /// Whether a loan may still be in use.
    pub fn is_lent(&self) -> bool {
        !self.loans.is_empty() && {
            let now = base::time::boot();
            self.loans.iter().any(|loan| loan.until > now)
        }
    }

    /// Whether a thread lends the unit just now, or makes others give it back.
    pub fn is_changing(&self) -> bool {
        self.lending > 0 || self.calling
    }

    /// How long until the last loan is over.
    pub fn left(&self) -> Option<Duration> {
        let now = base::time::boot();
        let left = self.loans.iter().map(|loan| loan.until.since(now)).max();
        left.filter(|left| !left.is_zero())
    }
}

/// A loan that this node has.
#[derive(Clone, Copy)]
pub(super) struct Borrowed {
    /// No two loans of this node have the same.
    pub number: u64,
    pub until: BootTime,
    /// The node that gave it, and its number there.
    pub from: (u32, u64),
    /// The loan is given back as soon as it was used.
    pub returns: bool,
}

/// What this node knows of units that it might borrow.
#[derive(Default)]
pub(super) struct Borrowing {
    /// How many loans there were.
    pub count: u64,
    /// The node that lent the unit last.
    pub lenders: Notes<u32>,
    /// When this node wanted to change the unit last.
    pub wrote: Notes<Instant>,
    /// What became of earlier loans.
    pub habits: Notes<Habit>,
    /// Units that are to be given back soon.
    pub returning: Vec<Ino>,
    /// When a row of a lent unit was read by itself last, and how many were, one soon after the other.
    pub single: Notes<(Instant, u32)>,
    /// Rows that were looked for and need a lease.
    pub asked: Notes<Vec<Key>>,
}

/// What became of earlier loans of a unit.
#[derive(Default)]
pub(super) struct Habit {
    /// How often loans were called back after they had been used, less the returns that were of no use.
    pub score: i32,
    /// How often the unit had changed at the last loan.
    pub version: u64,
}

/// Notes about units. If there are too many, all are forgotten.
pub(super) struct Notes<T>(pub hashbrown::HashMap<Ino, T>);

impl<T> Default for Notes<T> {
    fn default() -> Notes<T> {
        Notes(hashbrown::HashMap::new())
    }
}

impl<T> Notes<T> {
    /// The note about a unit.
    pub fn of(&mut self, unit: Ino) -> hashbrown::hash_map::Entry<'_, Ino, T, hashbrown::DefaultHashBuilder> {
        if self.0.len() >= NOTED {
            self.0.clear();
        }
        self.0.entry(unit)
    }
}
