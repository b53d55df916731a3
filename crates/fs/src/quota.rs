//! Quotas of directories: given, changed, taken away. [`meta::quota`] says what counts for a quota, and how.
//!
//! **What is in the directory already must be made to count.** The directory gets the quota first. From then
//! on, what is made in it counts. Then every inode below is moved to the quota, a directory always before its
//! entries are listed. So a file that is made meanwhile is either made in a directory that counts already, or
//! it is listed later. A directory that does not count yet cannot be moved into one that does, nor back, nor
//! be renamed in one that does: rename(2) returns EXDEV. A file that is renamed where others count is made to
//! count by that.
//!
//! If this is interrupted, the quota stays "being counted", and less counts for it than there is. The same
//! command continues.

use base::Ino;
use meta::plan::Op;
use meta::quota::{Limits, Quota, QuotaRow, State};
use meta::record::InodeRecord;
use meta::store::StoreError;

use crate::errno::{Errno, Error};
use crate::volume::{Core, Volume};

/// Entries of a directory read at a time.
const BATCH: usize = 512;
/// Progress is reported after so many inodes.
const REPORT_EVERY: u64 = 256;

/// A folder is at most so many levels deep.
const DEEPEST: usize = 4096;

/// Reports how many inodes were counted.
pub type Counted<'a> = dyn FnMut(u64) + 'a;

impl Volume {
    /// Gives a directory a quota, or other limits than it had. What is above a limit already stays, but does
    /// not grow.
    ///
    /// # Errors
    /// `ENOTDIR`, `EROFS`, or the names could not be changed. `EBUSY`: another node changed the same quota
    /// meanwhile. `EINTR`: the volume is being closed.
    pub fn set_quota(&self, dir: Ino, limits: Limits, counted: &mut Counted<'_>) -> Result<(), Errno> {
        self.change_quota(dir, |core| core.set_quota(dir, limits, counted))
    }

    /// Takes a directory's quota away. Returns whether it had one.
    ///
    /// # Errors
    /// As [`Volume::set_quota`].
    pub fn remove_quota(&self, dir: Ino, counted: &mut Counted<'_>) -> Result<bool, Errno> {
        self.change_quota(dir, |core| core.remove_quota(dir, counted))
    }

    fn change_quota<T>(&self, dir: Ino, work: impl FnOnce(&Core) -> Result<T, Error>) -> Result<T, Errno> {
        if self.core.is_read_only() {
            return Err(Errno::EROFS);
        }
        let _one = self.core.quota_changes.lock();
        work(&self.core).map_err(|error| match error {
            Error::Refused(meta::plan::Refusal::Changed) => Errno::EBUSY,
            error => self.core.answer("quota", dir, error),
        })
    }

    /// All quotas, with what is used of them, by directory.
    ///
    /// # Errors
    /// The names could not be read.
    pub fn quotas(&self) -> Result<Vec<Quota>, Errno> {
        let read = self.refresh_quotas();
        read.map_err(|error| self.core.answer("quota", Ino::ROOT, error.into()))?;
        Ok(self.core.names.quotas().list())
    }

    /// The path of a directory from the root, with a leading `/`. None if it has no name.
    ///
    /// # Errors
    /// The names could not be read.
    pub fn path_of(&self, dir: Ino) -> Result<Option<String>, Errno> {
        let path = crate::fsck::path_of(&self.core.names, dir);
        path.map_err(|error| self.core.answer("look-up", dir, error))
    }

    /// Reads the quotas of a shared volume again, with what all nodes use. An exclusive volume knows them,
    /// unless it only reads.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn refresh_quotas(&self) -> Result<(), StoreError> {
        if self.core.is_shared() || self.core.is_read_only() { self.core.names.read_quotas() } else { Ok(()) }
    }
}

impl Core {
    /// A directory's record, and the row of its quota.
    fn quota_of(&self, dir: Ino) -> Result<(InodeRecord, Option<QuotaRow>), Error> {
        let record = self.inode(dir)?;
        if !record.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        Ok((record, self.names.quota_row(dir)?))
    }

    fn write_quota(&self, dir: Ino, was: Option<QuotaRow>, row: Option<QuotaRow>) -> Result<(), Error> {
        self.run(&Op::SetQuota { dir, was, row })?;
        Ok(self.names.read_quotas()?)
    }

    fn set_quota(&self, dir: Ino, limits: Limits, counted: &mut Counted<'_>) -> Result<(), Error> {
        let (record, was) = self.quota_of(dir)?;
        self.names.quotas().expect_some();
        let row = |state| QuotaRow { limits, state, outer: record.quota };
        if was.is_some_and(|was| was.state == State::Set) {
            return self.write_quota(dir, was, Some(row(State::Set)));
        }
        self.write_quota(dir, was, Some(row(State::Counting)))?;
        // Another quota above may be counted or taken away at this moment, or this was interrupted. Then what
        // is below counts for that one, or for none.
        let from = self.above(&record)?;
        self.move_below(dir, &from, dir, counted)?;
        self.write_quota(dir, Some(row(State::Counting)), Some(row(State::Set)))
    }

    fn remove_quota(&self, dir: Ino, counted: &mut Counted<'_>) -> Result<bool, Error> {
        let (record, was) = self.quota_of(dir)?;
        let Some(row) = was else { return Ok(false) };
        let row = QuotaRow { state: State::Removing, ..row };
        self.write_quota(dir, was, Some(row))?;
        self.move_below(dir, &[dir], record.quota, counted)?;
        self.move_nameless(dir, record.quota)?;
        self.write_quota(dir, Some(row), None)?;
        self.names.forget_quota(dir)?;
        Ok(true)
    }

    /// The quotas that what is below a directory without one may count for: none, and those of the
    /// directories above it.
    fn above(&self, dir: &InodeRecord) -> Result<Vec<Ino>, Error> {
        let (mut above, mut at) = (vec![Ino(0), dir.quota], dir.parent);
        for _ in 0..DEEPEST {
            above.push(at);
            if at == Ino::ROOT {
                break;
            }
            match self.names.inode(at)? {
                Some(record) => at = record.parent,
                None => break,
            }
        }
        Ok(above)
    }

    /// Makes what is below a directory count for another quota. What counts for a quota within stays.
    fn move_below(&self, top: Ino, from: &[Ino], to: Ino, counted: &mut Counted<'_>) -> Result<(), Error> {
        let (mut dirs, mut done) = (vec![top], 0u64);
        while let Some(dir) = dirs.pop() {
            let mut position = 0;
            loop {
                let batch = self.names.readdir(dir, position, BATCH)?;
                let Some(last) = batch.last() else { break };
                position = last.position + 1;
                for entry in &batch {
                    let ino = entry.dentry.ino;
                    self.run(&Op::MoveToQuota { ino, from, to })?;
                    let is_inner = || {
                        Ok::<_, Error>(
                            self.names.inode(ino)?.is_some_and(|inode| inode.has(InodeRecord::QUOTA_ROOT)),
                        )
                    };
                    if entry.dentry.is_dir() && !is_inner()? {
                        dirs.push(ino);
                    }
                    done += 1;
                    if done.is_multiple_of(REPORT_EVERY) {
                        counted(done);
                        if self.stopping() {
                            return Err(Errno::EINTR.into());
                        }
                    }
                }
            }
        }
        counted(done);
        Ok(())
    }

    /// Makes the inodes without a name that count for the quota `from` count for `to`.
    fn move_nameless(&self, from: Ino, to: Ino) -> Result<(), Error> {
        let mut start = Ino(0);
        loop {
            let batch = self.names.orphans(start, BATCH)?;
            let Some(last) = batch.last() else { return Ok(()) };
            start = Ino(last.0 + 1);
            for ino in batch {
                self.run(&Op::MoveToQuota { ino, from: &[from], to })?;
            }
        }
    }
}
