//! The reaper: deletes inodes that have lost their last name, once the kernel no longer refers to them.
//!
//! Each is deleted in steps of bounded size, in the background. If a crash interrupts that, the next open of
//! the volume finds the inode in the orphans' rows.

use std::time::Duration;

use base::Ino;
use meta::Key;
use meta::plan::{Op, Refusal};
use meta::store::StoreError;

use crate::errno::Error;
use crate::volume::Core;

/// After a failure of the store, the reaper tries again after this time.
const AGAIN: Duration = Duration::from_millis(500);
impl Core {
    /// The reaper's thread.
    pub(crate) fn reaper(&self) {
        if let Some(sharing) = &self.options.shared {
            return self.reap_shared(sharing);
        }
        if let Err(error) = self.queue_orphans() {
            self.report(&format!("inodes without a name could not be listed: {error}"));
        }
        let mut complained = false;
        while let Some(mut batch) = self.reaper.next() {
            self.refs.unheld(&mut batch);
            while let Some(ino) = batch.pop() {
                if self.stopping() {
                    break;
                }
                match self.reap(ino) {
                    Ok(()) => complained = false,
                    Err(Error::Store(_)) => {
                        batch.push(ino);
                        break;
                    }
                    // Inconsistent rows are for fsck. The inode keeps its mark, and is tried again at the
                    // next open.
                    Err(error) => {
                        self.report(&format!("{ino:?} has no name and could not be removed: {error}"))
                    }
                }
            }
            if !batch.is_empty() && !self.stopping() {
                if !complained {
                    self.report("inodes without a name cannot be removed now; this will be repeated");
                }
                complained = true;
                self.reaper.push(&batch);
                self.sweep.pause(AGAIN);
            }
        }
    }

    /// Queues the inodes without a name that a crash or a kill left.
    fn queue_orphans(&self) -> Result<(), Error> {
        self.each_orphans(&mut |found| self.reaper.push(found)).map_err(Error::Store)
    }

    fn each_orphans(&self, each: &mut dyn FnMut(&[Ino])) -> Result<(), StoreError> {
        let mut from = Ino(0);
        while !self.stopping() {
            let found = self.names.orphans(from, 4096)?;
            let Some(last) = found.last() else { break };
            from = Ino(last.0 + 1);
            each(&found);
        }
        Ok(())
    }

    /// Holds all inodes without a name for the kernels that may come back. Call it before the reaper starts.
    pub(crate) fn hold_orphans(&self) -> Result<Vec<Ino>, StoreError> {
        let (finding, mut held) = (self.refs.finding(), Vec::new());
        self.each_orphans(&mut |found| held.extend_from_slice(found))?;
        held.iter().for_each(|ino| finding.hold(*ino));
        Ok(held)
    }

    /// Lets these go after a while. At the close they stay for the next opening, as all that is held.
    pub(crate) fn let_orphans_go(&self, orphans: &[Ino]) {
        let until = base::Deadline::after(self.options.orphans_stay);
        while !self.stopping() && !until.is_over() {
            self.sweep.pause(until.left());
        }
        if !self.stopping() {
            orphans.iter().for_each(|ino| self.forget(*ino, 1));
        }
    }

    /// No kernel refers to anything any more, unless it may come back to the next opening.
    pub(crate) fn let_all_go(&self) {
        // What is held stays so to the end: inodes may still be queued that lost their names just now.
        if self.options.orphans_stay.is_zero() || self.is_shared() {
            let nameless = self.refs.clear();
            self.reaper.push(&nameless);
        }
    }

    /// Deletes an inode that has no name. If it is a directory (of an unfinished clone), its entries are
    /// deleted first.
    pub(crate) fn reap(&self, ino: Ino) -> Result<(), Error> {
        loop {
            match self.run(&self.reap_op(ino)) {
                Ok(change) if change.more => {}
                Err(Error::Refused(Refusal::NotEmpty)) => self.empty_nameless(ino)?,
                done => return done.map(drop),
            }
            if self.stopping() {
                return Ok(());
            }
        }
    }

    /// Deletes an inode that never had a name, such as a clone that failed, and all below it. Afterwards it
    /// counts for no quota, so the caller can make room and try again. What cannot be deleted now is left to
    /// the reaper.
    pub(crate) fn discard(&self, ino: Ino) {
        let mut unheld = vec![ino];
        self.refs.unheld(&mut unheld);
        if !unheld.is_empty() && self.try_discard(ino).is_err() {
            self.reaper.push(&[ino]);
        }
    }

    fn try_discard(&self, ino: Ino) -> Result<(), Error> {
        if self.names.inode(ino)?.is_some_and(|record| record.is_dir()) {
            self.empty_nameless(ino)?;
        }
        // While it was built, this node may have said that it holds it.
        if let Some(sharing) = &self.options.shared {
            self.remove_holds(vec![Key::hold(ino, sharing.node)])?;
        }
        self.reap(ino)
    }

    /// Unlinks everything below a directory that has no name, the deepest first.
    fn empty_nameless(&self, dir: Ino) -> Result<(), Error> {
        let mut todo = vec![dir];
        while let Some(&at) = todo.last() {
            let mut deeper = false;
            let batch = self.names.readdir(at, 0, 256)?;
            if batch.is_empty() {
                todo.pop();
                continue;
            }
            for entry in &batch {
                let removed = match entry.dentry.is_dir() {
                    true => self.run_for_good(&Op::Rmdir { parent: at, name: &entry.name }),
                    false => self.run_for_good(&Op::Unlink { parent: at, name: &entry.name }),
                };
                match removed {
                    Err(Error::Refused(Refusal::NotEmpty)) => {
                        todo.push(entry.dentry.ino);
                        deeper = true;
                        break;
                    }
                    Err(Error::Refused(Refusal::NotFound)) => {}
                    Err(error) => return Err(error),
                    Ok(_) => {}
                }
            }
            if deeper && self.stopping() {
                return Ok(());
            }
        }
        Ok(())
    }
}
