//! The row that says which nodes have a lease.
//!
//! ```text
//!   version:1  mode:1  seq:8  (node:4 epoch:8)...
//! ```
//!
//! `seq` differs in any two rows that a directory or file ever had. So a node that replaces the row that it
//! has read replaces no later one.

use crate::store::{Session, Value};

/// What a lease permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// To answer reads from memory. Any number of nodes may have it.
    Read = 1,
    /// To change as well. One node has it, and no other node has any.
    Write = 2,
    /// No node has a lease, and none may remember anything: what several nodes change all the time is read
    /// from the engine, and changed by commits of their own ([`super::contend`]).
    Contended = 3,
}

/// A session that has a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The node's number.
    pub node: u32,
    /// The epoch of its session.
    pub epoch: u64,
}

impl From<Holder> for Session {
    fn from(holder: Holder) -> Session {
        Session { number: holder.node.into(), epoch: i64::try_from(holder.epoch).unwrap_or(i64::MAX) }
    }
}

/// A lease row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub mode: Mode,
    pub seq: u64,
    pub holders: Vec<Holder>,
}

impl Row {
    const VERSION: u8 = 1;
    const HEAD: usize = 10;

    pub fn encode(&self) -> Value {
        let mut out = vec![Self::VERSION, self.mode as u8];
        out.extend(self.seq.to_be_bytes());
        for holder in &self.holders {
            out.extend(holder.node.to_be_bytes());
            out.extend(holder.epoch.to_be_bytes());
        }
        out.into()
    }

    /// `None`: it is no lease row.
    pub fn decode(bytes: &[u8]) -> Option<Row> {
        let (head, rest) = bytes.split_at_checked(Self::HEAD)?;
        let mode = match head {
            [Self::VERSION, 1, ..] => Mode::Read,
            [Self::VERSION, 2, ..] => Mode::Write,
            [Self::VERSION, 3, ..] => Mode::Contended,
            _ => return None,
        };
        let seq = u64::from_be_bytes(head.get(2..)?.try_into().ok()?);
        let holder = |bytes: &[u8]| {
            let (node, epoch) = bytes.split_at_checked(4)?;
            let (node, epoch) = (node.try_into().ok()?, epoch.try_into().ok()?);
            Some(Holder { node: u32::from_be_bytes(node), epoch: u64::from_be_bytes(epoch) })
        };
        let holders: Option<Vec<Holder>> = rest.chunks(12).map(holder).collect();
        Some(Row { mode, seq, holders: holders? })
    }

    /// Whether an earlier session of this node may have lent it ([`super::lend`]).
    pub fn is_of_former(&self, me: Holder) -> bool {
        let is_former = |holder: &Holder| holder.node == me.node && holder.epoch != me.epoch;
        self.mode == Mode::Write && self.holders.iter().any(is_former)
    }

    /// Whether a commit of this session may still come in under the lease: one whose answer was lost.
    pub fn may_change(&self, me: Holder) -> bool {
        self.mode == Mode::Write && self.holders.contains(&me)
    }

    /// Whether a lease row says that the unit is contended.
    pub fn is_contended(bytes: &[u8]) -> bool {
        Row::decode(bytes).is_some_and(|row| row.mode == Mode::Contended)
    }

    /// The row that makes a unit contended.
    pub fn contended(before: Option<&Row>) -> Row {
        Row { mode: Mode::Contended, seq: Row::next_seq(before), holders: Vec::new() }
    }

    /// Whether a node may have a lease of this mode without another one giving back its own.
    pub fn admits(&self, mode: Mode, me: Holder) -> bool {
        if self.mode == Mode::Contended {
            return false;
        }
        self.is_free(me) || mode == Mode::Read && self.mode == Mode::Read
    }

    /// Whether no other node has a lease.
    pub fn is_free(&self, me: Holder) -> bool {
        self.holders.iter().all(|holder| holder.node == me.node)
    }

    /// The row with one more holder. Where no other node has a lease, it is for writing at once, unless it is
    /// to be `shared`.
    pub fn joined(before: Option<&Row>, me: Holder, shared: bool) -> Row {
        let mut holders: Vec<Holder> = before.iter().flat_map(|row| &row.holders).copied().collect();
        holders.retain(|holder| holder.node != me.node);
        let mode = if holders.is_empty() && !shared { Mode::Write } else { Mode::Read };
        holders.push(me);
        Row { mode, seq: Row::next_seq(before), holders }
    }

    /// A `seq` that no row of this directory or file had before. It is the time in microseconds, or more: so
    /// it does not begin again after the row was removed.
    pub fn next_seq(before: Option<&Row>) -> u64 {
        let micros = u64::try_from(base::time::now().0 / 1000).unwrap_or(0);
        before.map_or(micros, |row| micros.max(row.seq.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let holders = vec![Holder { node: 7, epoch: 1 << 40 }, Holder { node: 8, epoch: 2 }];
        for mode in [Mode::Read, Mode::Write, Mode::Contended] {
            let row = Row { mode, seq: 5, holders: holders.clone() };
            assert_eq!(Row::decode(&row.encode()), Some(row));
        }
        for bad in [&[][..], &[1, 4, 0, 0, 0, 0, 0, 0, 0, 0], &[2, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[1; 9]] {
            assert_eq!(Row::decode(bad), None);
        }
        let cut = Row { mode: Mode::Read, seq: 1, holders }.encode();
        assert_eq!(Row::decode(&cut[..cut.len() - 1]), None);
    }

    proptest! {
        #[test]
        fn whatever_comes_is_refused_or_has_one_form(
            head in (0..3u8, 0..5u8),
            rest in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let bytes = [&[head.0, head.1][..], &rest].concat();
            if let Some(row) = Row::decode(&bytes) {
                prop_assert_eq!(&row.encode()[..], &bytes[..]);
            }
        }
    }

    #[test]
    fn no_number_comes_twice() {
        let first = Row { mode: Mode::Read, seq: Row::next_seq(None), holders: Vec::new() };
        assert!(Row::next_seq(Some(&first)) > first.seq);
        let ahead = Row { seq: u64::MAX / 2, ..first };
        assert_eq!(Row::next_seq(Some(&ahead)), u64::MAX / 2 + 1);
    }
}
