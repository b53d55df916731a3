//! The pages of open files that the kernel keeps, and when it looks whether they are still true.
//!
//! What this node reads is true as long as it has a lease or a loan of the file's unit. When that goes, the
//! kernel is made to look at the open files of the unit again, soon after: [`KernelCache::look_again`]. This
//! takes a lease anew, so the next change of another node is noticed too.
//!
//! The pages are not dropped by a notification: it would also make the kernel forget which attributes are
//! newer than a read that is under way. If another node cuts the file meanwhile, that read would show zeros
//! up to the old end.
//!
//! [`KernelCache::look_again`]: super::KernelCache::look_again

use base::Ino;

use super::Core;
use super::state::State;

impl Core {
    /// The open files of a unit.
    pub(super) fn open_files_of(&self, state: &State, unit: Ino) -> Vec<Ino> {
        let Some(kernel) = self.kernel.read().clone() else { return Vec::new() };
        let is_of = |ino: &Ino| state.homes.get(ino).is_some_and(|home| home.unit == unit);
        kernel.open_files().into_iter().filter(is_of).collect()
    }

    /// Makes the kernel look at files again.
    pub(super) fn look_again(&self, files: &[Ino]) {
        let kernel = self.kernel.read().clone().filter(|_| !files.is_empty());
        kernel.iter().for_each(|kernel| kernel.look_again(files));
    }

    /// Makes the kernel look at all open files again.
    pub(super) fn look_again_at_all(&self) {
        let kernel = self.kernel.read().clone();
        self.look_again(&kernel.map(|kernel| kernel.open_files()).unwrap_or_default());
    }

    /// Ends a loan. Returns the open files that the kernel must look at again.
    #[must_use]
    pub(super) fn end_loan(&self, state: &mut State, unit: Ino) -> Vec<Ino> {
        let files = self.open_files_of(state, unit);
        state.forget(unit);
        // What was read under it is no longer promised to the kernel.
        state.recalls += 1;
        files
    }
}
