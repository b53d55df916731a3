//! The engine has no space: it refuses changes, and answers reads.
//!
//! - **Changes are refused at once** as soon as a batch was refused for that reason, and so is what waits for
//!   the batch. The batch is tried again until there is space, and then all goes on by itself.
//! - **What only removes goes to the engine by itself**, past the batch that waits, if nothing that waits is
//!   about the same units. It may fit, and may make space.
//! - **A unit that needs a lease is read without one**, because a lease is a row. The answers are what the
//!   engine has. A change that another node has acknowledged and could not store is not in them, nor is, for
//!   [`LASTS`], what that node changes when there is space again. No change rests on such an answer, and the
//!   kernel keeps nothing of it.

use std::time::Duration;

use base::Ino;

use super::Core;
use super::behind::Upto;
use super::loan::Loose;
use super::state::State;
use crate::key::tags;
use crate::store::{Commit, StoreError, Value};

/// How long a unit is read without a lease, before the lease is asked for again.
const LASTS: Duration = Duration::from_millis(500);
/// The pause before a batch that had no space is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(250);

/// Whether a commit removes something, and brings neither bytes nor content.
pub(super) fn removes(commit: &Commit) -> bool {
    let is_content = |tag: u8| matches!(tag, tags::EXTENTS | tags::INLINE | tags::XATTR);
    let brings = |(key, _): &(_, Value)| is_content(crate::key::Key::tag(key));
    !commit.dels.is_empty() && commit.fresh.is_empty() && !commit.puts.iter().any(brings)
}

impl State {
    /// The failure of what needs space, while the engine has none.
    pub fn lacks_space(&self) -> Option<StoreError> {
        self.no_space.clone().map(StoreError::NoSpace)
    }

    /// What must be in the engine before it is asked about these units: all batches, or, while the engine has
    /// no space, those that hold changes of them.
    pub fn upto_of(&self, units: &[Ino]) -> Upto {
        let batch = |unit: &Ino| self.units.get(unit).map_or(0, |held| held.batch);
        match self.no_space {
            Some(_) => Upto { batch: units.iter().map(batch).max().unwrap_or(0), sessions: self.sessions },
            None => self.last(),
        }
    }

    /// A lease of this unit could not be had, because the engine has no space for its row.
    pub fn note_loose(&mut self, unit: Ino) {
        let until = base::time::monotonic() + LASTS;
        self.loose.of(unit).insert(Loose { until, row: None });
    }

    /// Whether the unit is read without a lease.
    pub fn is_loose(&self, unit: Ino) -> bool {
        self.loose.0.get(&unit).is_some_and(|loose| base::time::monotonic() < loose.until)
    }

    /// Compares the lease row of such a unit with the one that was there first. False: a node has taken a
    /// lease, so there is space again.
    pub fn is_still_loose(&mut self, unit: Ino, now: Option<&Value>) -> bool {
        let Some(loose) = self.loose.0.get_mut(&unit) else { return false };
        let is_same = loose.row.get_or_insert_with(|| now.cloned()).as_ref() == now;
        if !is_same {
            self.loose.0.remove(&unit);
        }
        is_same
    }
}

impl Core {
    /// Whether the engine has no space.
    pub(super) fn lacks_space(&self) -> bool {
        self.state.lock().no_space.is_some()
    }

    /// Waits until what this node has changed is in the engine, before rows of these units are read there. No
    /// units: rows that all changes may be about.
    pub(super) fn drain_before(&self, units: &[Ino]) -> Result<(), StoreError> {
        let state = self.state.lock();
        let upto = if units.is_empty() { state.last() } else { state.upto_of(units) };
        drop(state);
        self.drain(upto, base::time::monotonic() + super::PATIENCE)
    }
}
