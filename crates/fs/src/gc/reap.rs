//! The reaper: deletes inodes that have lost their last name, once the kernel no longer refers to them.
//!
//! Each is deleted in steps of bounded size, in the background. If a crash interrupts that, the next open of
//! the volume finds the inode in the orphans' rows.

use std::time::Duration;

use base::Ino;
use meta::plan::{Op, Refusal};
use parking_lot::{Condvar, Mutex};

use crate::errno::Error;
use crate::volume::Core;

/// Inodes reaped between two checks for other work.
const BATCH: usize = 512;
/// How long inodes are gathered before they are reaped, unless they fill a batch. So a loop of unlinks does
/// not pay for one wake-up of the reaper per file.
const GATHER: Duration = Duration::from_millis(20);
/// After a failure of the store, the reaper tries again after this time.
const AGAIN: Duration = Duration::from_millis(500);
/// Unlinks wait while more inodes than this are to be reaped, so that dead rows do not pile up.
const MANY: usize = 100_000;

#[derive(Default)]
struct Queue {
    inos: Vec<Ino>,
    /// The reaper is working on a batch.
    busy: bool,
    stop: bool,
}

/// The inodes to reap.
pub(crate) struct Reaper {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Notified when some were reaped.
    less: Condvar,
}

impl Reaper {
    pub(crate) fn new() -> Reaper {
        Reaper { queue: Mutex::default(), work: Condvar::new(), less: Condvar::new() }
    }

    /// Queues inodes that have no name, or lost their last reference. Never waits.
    pub(crate) fn push(&self, inos: &[Ino]) {
        let mut queue = self.queue.lock();
        let were = queue.inos.len();
        queue.inos.extend_from_slice(inos);
        let are = queue.inos.len();
        if !queue.busy && (were == 0 || were < BATCH && are >= BATCH) {
            self.work.notify_one();
        }
    }

    /// Ends the gathering at once.
    pub(crate) fn hurry(&self) {
        self.work.notify_one();
    }

    /// Waits a little while far too many inodes are queued.
    pub(crate) fn hold_back(&self) {
        let mut queue = self.queue.lock();
        if queue.inos.len() > MANY && !queue.stop {
            self.less.wait_for(&mut queue, Duration::from_millis(100));
        }
    }

    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.work.notify_all();
        self.less.notify_all();
    }

    /// Whether nothing is left to do.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.queue.lock();
        queue.inos.is_empty() && !queue.busy
    }

    /// The next batch; none when stopped.
    fn next(&self) -> Option<Vec<Ino>> {
        let mut queue = self.queue.lock();
        queue.busy = false;
        let mut gathered = false;
        loop {
            if queue.stop {
                return None;
            }
            if !queue.inos.is_empty() && !gathered && queue.inos.len() < BATCH {
                gathered = true;
                self.work.wait_for(&mut queue, GATHER);
                continue;
            }
            if !queue.inos.is_empty() {
                queue.busy = true;
                let from = queue.inos.len().saturating_sub(BATCH);
                let batch = queue.inos.split_off(from);
                if queue.inos.capacity() > 4 * BATCH && queue.inos.len() < queue.inos.capacity() / 4 {
                    queue.inos.shrink_to(2 * BATCH);
                }
                self.less.notify_all();
                return Some(batch);
            }
            self.work.wait(&mut queue);
        }
    }
}

impl Core {
    /// The reaper's thread.
    pub(crate) fn reaper(&self) {
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
        let mut from = Ino(0);
        loop {
            let found = self.names.orphans(from, 4096)?;
            let Some(last) = found.last() else { return Ok(()) };
            from = Ino(last.0 + 1);
            self.reaper.push(&found);
            if self.stopping() {
                return Ok(());
            }
        }
    }

    /// Deletes an inode that has no name. If it is a directory (of an unfinished clone), its entries are
    /// deleted first.
    pub(crate) fn reap(&self, ino: Ino) -> Result<(), Error> {
        loop {
            match self.run(&Op::Reap { ino }) {
                Ok(change) if change.more => {}
                Err(Error::Refused(Refusal::NotEmpty)) => self.empty_nameless(ino)?,
                done => return done.map(drop),
            }
            if self.stopping() {
                return Ok(());
            }
        }
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
                    true => self.run(&Op::Rmdir { parent: at, name: &entry.name }),
                    false => self.run(&Op::Unlink { parent: at, name: &entry.name }),
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
