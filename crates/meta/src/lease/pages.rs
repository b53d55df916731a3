//! The pages of open files that the kernel keeps, and when it must drop them.
//!
//! What this node reads is true as long as it has a lease or a loan of the file's unit. So are the pages that
//! the kernel made of it. They are dropped before the lease is given back. A read that a recall overtook, or
//! whose unit has no lease, is answered, and the kernel drops the pages right after it
//! ([`Leases::kept_since`]).
//!
//! What remains: a loan may end by its time, because the way between two nodes is cut. Its pages are dropped
//! when the unit is wanted next. Until then sendfile(2) and mappings show them.

use std::time::Instant;

use base::Ino;

use super::state::State;
use super::{Core, Leases};

impl Leases {
    /// Whether this node had the lease of a file, or a loan, since an operation has begun. `mark`: see
    /// [`Leases::mark`].
    pub fn kept_since(&self, ino: Ino, mark: u64, began: Instant) -> bool {
        let state = self.core.state.lock();
        let held = state.homes.get(&ino).and_then(|home| state.units.get(&home.unit));
        held.is_some_and(|held| {
            !held.leaving && held.lasts() && (state.recalls == mark || held.since < began)
        })
    }
}

impl Core {
    /// The open files of a unit.
    pub(super) fn open_files_of(&self, state: &State, unit: Ino) -> Vec<Ino> {
        let Some(kernel) = self.kernel.read().clone() else { return Vec::new() };
        let is_of = |ino: &Ino| state.homes.get(ino).is_some_and(|home| home.unit == unit);
        kernel.open_files().into_iter().filter(is_of).collect()
    }

    /// Makes the kernel drop pages.
    pub(super) fn drop_pages(&self, files: &[Ino]) {
        let kernel = self.kernel.read().clone().filter(|_| !files.is_empty());
        kernel.iter().for_each(|kernel| kernel.drop_pages(files));
    }

    /// The same for all open files.
    pub(super) fn drop_all_pages(&self) {
        let kernel = self.kernel.read().clone();
        self.drop_pages(&kernel.map(|kernel| kernel.open_files()).unwrap_or_default());
    }

    /// Ends a loan. Returns the files whose pages the kernel must drop before the loan is given back, and
    /// before the unit is used again.
    #[must_use]
    pub(super) fn end_loan(&self, state: &mut State, unit: Ino) -> Vec<Ino> {
        let files = self.open_files_of(state, unit);
        state.forget(unit);
        // What was read under it is no longer promised to the kernel.
        state.recalls += 1;
        files
    }
}
