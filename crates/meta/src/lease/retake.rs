//! Leases that the engine has forgotten, and that this node takes again.
//!
//! A batch that is sent once more ([`super::forgot`]) holds only with its leases. This node may have taken
//! them after the last commit that the engine still has. So it remembers how it replaced lease rows lately.
//! If its own steps lead from the row that is there to the one that a batch needs, no other node has taken
//! the lease since, and the row is written again. Nodes that the older row names are asked to give the lease
//! back, as before: what they have to send once more comes first.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use base::Ino;

use super::Core;
use super::queue::Batch;
use super::row::{Holder, Mode, Row};
use crate::key::{Key, tags};
use crate::store::{Commit, CommitError, Expect, StoreError, Value};

/// Steps are remembered for so long, as batches are, and no more of them than this.
const KEEP: Duration = Duration::from_secs(600);
const KEEP_MAX: usize = 20_000;
/// How long another node may take to send what the engine lacks of its own.
const PATIENCE: Duration = Duration::from_secs(5);
/// The pause before it is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// A lease row that this node has replaced, and by what. `None`: there is no row.
type Step = (Option<Value>, Option<Value>);

/// How this node has replaced lease rows.
#[derive(Default)]
pub(super) struct Steps {
    of: HashMap<Ino, VecDeque<Step>>,
    order: VecDeque<(Instant, Ino)>,
}

impl Steps {
    /// The engine has confirmed this commit.
    pub fn note(&mut self, commit: &Commit) {
        let now = base::time::monotonic();
        let leases = commit.checks.iter().filter(|(key, _)| key.tag() == tags::LEASE);
        for (key, expect) in leases {
            let before = match expect {
                Expect::Is(row) => Some(row.clone()),
                _ => None,
            };
            let put = commit.puts.iter().find(|(other, _)| other == key).map(|(_, row)| row.clone());
            let (Some(unit), true) = (key.number().map(Ino), put.is_some() || commit.dels.contains(key))
            else {
                continue;
            };
            self.of.entry(unit).or_default().push_back((before, put));
            self.order.push_back((now, unit));
        }
        while self.order.front().is_some_and(|(at, _)| self.order.len() > KEEP_MAX || now - *at > KEEP) {
            let Some((_, unit)) = self.order.pop_front() else { return };
            let Some(steps) = self.of.get_mut(&unit) else { continue };
            steps.pop_front();
            if steps.is_empty() {
                self.of.remove(&unit);
            }
        }
    }

    /// Whether this node's steps lead from one row to another.
    fn lead(&self, unit: Ino, from: Option<&Value>, to: &Value) -> bool {
        let mut at = None;
        for (before, after) in self.of.get(&unit).into_iter().flatten() {
            if before.as_ref() == from {
                at = Some(after);
            } else if at.is_some_and(|at| at != before) {
                at = None;
            } else if at.is_some() {
                at = Some(after);
            }
            if at.is_some_and(|at| at.as_ref() == Some(to)) {
                return true;
            }
        }
        false
    }
}

impl Core {
    /// Commits a change of lease rows, and remembers it.
    pub(super) fn replace_leases(&self, commit: Commit) -> Result<(), CommitError> {
        self.inner.commit(commit.clone())?;
        self.state.lock().steps.note(&commit);
        Ok(())
    }

    /// Takes the leases of a batch again that the engine has forgotten. Those that others have taken since
    /// stay theirs.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) fn retake(&self, me: Holder, batch: &Batch) -> Result<(), StoreError> {
        let needed: Vec<(Ino, Value)> = batch.needed().map(|(unit, row)| (unit, row.clone())).collect();
        if needed.is_empty() {
            return Ok(());
        }
        let keys: Vec<Key> = needed.iter().map(|(unit, _)| Key::lease(*unit)).collect();
        let found = self.inner.get_many(&keys)?;
        let mut commit = Commit { session: Some(me.into()), ..Commit::default() };
        for (((unit, row), key), found) in needed.iter().zip(keys).zip(found) {
            let leads =
                found.as_ref() != Some(row) && self.state.lock().steps.lead(*unit, found.as_ref(), row);
            if leads && self.is_given(me, *unit, found.as_ref(), row) {
                commit.checks.push((key.clone(), found.map_or(Expect::Absent, Expect::Is)));
                commit.puts.push((key, row.clone()));
            }
        }
        if commit.puts.is_empty() {
            return Ok(());
        }
        match self.inner.commit(commit) {
            // Another node has just taken one of them. The batch is refused.
            Ok(()) | Err(CommitError::Conflict { .. }) => Ok(()),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    /// Whether the other nodes that the older row names have given the lease back.
    fn is_given(&self, me: Holder, unit: Ino, found: Option<&Value>, row: &Value) -> bool {
        let Some(older) = found.and_then(|found| Row::decode(found)) else { return true };
        let mode = Row::decode(row).map_or(Mode::Write, |row| row.mode);
        if older.admits(mode, me) {
            return true;
        }
        older.holders.iter().filter(|holder| holder.node != me.node).all(|holder| {
            let end = base::time::monotonic() + PATIENCE;
            while self.nodes.recall(holder.node, unit, older.seq).is_err() {
                if self.nodes.alive().is_ok_and(|alive| !alive.contains(holder)) {
                    return true;
                }
                if base::time::monotonic() > end {
                    return false;
                }
                std::thread::sleep(AGAIN);
            }
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u8) -> Value {
        vec![n].into()
    }

    #[test]
    fn steps_lead_only_where_all_are_of_this_node() {
        let (unit, mut steps) = (Ino(7), Steps::default());
        let mut step = |from: Option<u8>, to: u8| {
            let expect = from.map_or(Expect::Absent, |from| Expect::Is(row(from)));
            let checks = vec![(Key::lease(unit), expect)];
            steps.note(&Commit { checks, puts: vec![(Key::lease(unit), row(to))], ..Commit::default() });
        };
        step(None, 1);
        step(Some(1), 2);
        // Another node replaces it by 3.
        step(Some(3), 4);
        step(Some(4), 5);
        let lead = |from: Option<u8>, to| steps.lead(unit, from.map(row).as_ref(), &row(to));
        assert!(lead(None, 1) && lead(None, 2) && lead(Some(1), 2) && lead(Some(3), 5) && lead(Some(4), 5));
        assert!(
            !lead(None, 4) && !lead(Some(1), 5) && !lead(Some(2), 4) && !lead(Some(5), 4) && !lead(None, 3)
        );
        assert!(!steps.lead(Ino(8), None, &row(1)));
    }
}
