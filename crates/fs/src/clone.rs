//! Clones of files and trees: names are copied, bytes are not.
//!
//! The copy is built without a name and gets it last. So a half-built clone is never visible, and what a
//! crash leaves is collected like any other inode without a name. Each file is copied as it was at one moment
//! of the clone. If a program changes several files meanwhile, the clone may have one from before the change
//! and another from after it. Hard links within the tree stay hard links.
//!
//! In a shared volume this node looks at each directory and file under a lease ([`meta::lease`]), so it sees
//! what any node has done before it looks. The copies refer to the same bytes by commits that check the
//! source, as copy_file_range(2) does, and no byte that they refer to is deleted (`gc::shared`). A file that
//! is copied in several steps is copied anew if another node changes it in between. While the clone is built,
//! this node says that it holds it (`gc::shared_orphans`); when it is gone, another node removes it.

use std::ops::ControlFlow;

use base::Ino;
use hashbrown::HashMap;
use meta::names::Listed;
use meta::plan::op::SetAttrs;
use meta::plan::{Op, Refusal};
use meta::record::InodeRecord;

use crate::errno::{Errno, Error};
use crate::ops::check_name;
use crate::volume::{Core, Volume};

/// The progress of a clone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cloned {
    /// Directories.
    pub dirs: u64,
    /// Everything else, each inode once.
    pub files: u64,
    /// Further names of inodes that were copied already.
    pub links: u64,
    /// Bytes that the copies refer to.
    pub bytes: u64,
}

/// Entries of a directory read at a time.
const BATCH: usize = 512;
/// So often a file of more than 4 GiB is copied anew because another node has changed it meanwhile.
const ATTEMPTS: u32 = 16;
/// Progress is reported after so many inodes.
const REPORT_EVERY: u64 = 64;

/// A directory whose entries are being copied.
struct Level {
    from: Ino,
    to: Ino,
    /// The original's record. Its times are set on the copy once the entries are made.
    record: InodeRecord,
    position: u64,
    batch: Vec<Listed>,
}

impl Volume {
    /// Makes `name` in `parent` a copy of `from`, a file or a whole tree. `progress` is called now and then.
    /// If it breaks, the clone ends with EINTR.
    ///
    /// # Errors
    /// `EEXIST` where the name exists; `EBUSY` if other nodes of a shared volume change a file of more than
    /// 4 GiB all the time; otherwise as for creating files.
    pub fn clone_tree(
        &self,
        from: Ino,
        parent: Ino,
        name: &[u8],
        progress: &mut dyn FnMut(Cloned) -> ControlFlow<()>,
    ) -> Result<Cloned, Errno> {
        if self.core.is_read_only() {
            return Err(Errno::EROFS);
        }
        self.core
            .clone_tree(from, parent, name, progress)
            .map_err(|error| self.core.answer("clone", from, error))
    }
}

impl Core {
    fn clone_tree(
        &self,
        from: Ino,
        parent: Ino,
        name: &[u8],
        progress: &mut dyn FnMut(Cloned) -> ControlFlow<()>,
    ) -> Result<Cloned, Error> {
        check_name(name)?;
        self.admit(0)?;
        if self.names.lookup(parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let mut counts = Cloned::default();
        // The copy counts for the quota of the directory that it is made in.
        let quota = self.inode(parent)?.quota_below(parent);
        let (top, record) = self.clone_inode(from, quota)?;
        let built = self.clone_below(from, top, &record, quota, &mut counts, progress);
        let attached = built.and_then(|()| self.run(&Op::Attach { ino: top, parent, name }));
        self.release(top, attached.is_ok());
        attached?;
        progress(counts).is_continue();
        Ok(counts)
    }

    /// Copies one inode with all of its contents; the copy has no name yet. Returns the copy, and the record
    /// of the original. The copy counts as held, so that the reaper, which looks for inodes without a name
    /// after an open, leaves it alone: see [`Core::release`].
    fn clone_inode(&self, from: Ino, quota: Ino) -> Result<(Ino, InodeRecord), Error> {
        for _ in 0..ATTEMPTS {
            let ino = self.next_ino()?;
            self.refs.finding().hold(ino);
            match self.clone_contents(from, ino, quota) {
                Ok(record) => return Ok((ino, record)),
                // Another node has changed the file between two steps.
                Err(Error::Refused(Refusal::Changed)) => self.release(ino, false),
                Err(error) => {
                    self.release(ino, false);
                    return Err(error);
                }
            }
        }
        Err(Errno::EBUSY.into())
    }

    /// Releases a copy that now has its name, or never gets one.
    fn release(&self, copy: Ino, named: bool) {
        if self.refs.forget(copy, 1) && named {
            self.reaper.push(&[copy]);
        }
        if !named {
            self.discard(copy);
        }
    }

    fn clone_contents(&self, from: Ino, ino: Ino, quota: Ino) -> Result<InodeRecord, Error> {
        // Excludes this node's writers from a file that is copied in several steps.
        let _whole = self.lock_of(from).write();
        let record = self.attr(from)?;
        let mut change = self.run(&Op::CloneInode { from, ino, quota })?;
        // Other nodes of a shared volume are not excluded.
        let over = Some(change.first).filter(|_| self.is_shared());
        while change.more {
            let page = change.done as u32;
            change = self.run(&Op::CloneMore { from, ino, page, over })?;
        }
        Ok(record)
    }

    fn clone_below(
        &self,
        from: Ino,
        top: Ino,
        record: &InodeRecord,
        quota: Ino,
        counts: &mut Cloned,
        progress: &mut dyn FnMut(Cloned) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        if !record.is_dir() {
            counts.files += 1;
            counts.bytes += record.stored;
            return Ok(());
        }
        counts.dirs += 1;
        let level = |from, to, record| Level { from, to, record, position: 0, batch: Vec::new() };
        let mut stack = vec![level(from, top, *record)];
        let mut linked: HashMap<Ino, Ino> = HashMap::new();
        let mut reported = 0;
        while let Some(at) = stack.last_mut() {
            let Some(entry) = self.next_entry(at)? else {
                self.settle_times(at)?;
                stack.pop();
                continue;
            };
            let (to, child) = (at.to, entry.dentry.ino);
            if let Some(copy) = linked.get(&child) {
                self.run(&Op::Link { ino: *copy, parent: to, name: &entry.name })?;
                counts.links += 1;
                continue;
            }
            // Damage, which `covey fsck` finds: the copy would never end.
            if entry.dentry.is_dir() && stack.iter().any(|level| level.from == child) {
                return Err(Errno::ELOOP.into());
            }
            let (copy, record) = match self.clone_inode(child, quota) {
                // Removed since the listing was read.
                Err(Error::Errno(Errno::ENOENT) | Error::Refused(Refusal::NotFound)) => continue,
                made => made?,
            };
            let attached = self.run(&Op::Attach { ino: copy, parent: to, name: &entry.name });
            self.release(copy, attached.is_ok());
            attached?;
            if record.is_dir() {
                counts.dirs += 1;
                stack.push(level(child, copy, record));
            } else {
                counts.files += 1;
                counts.bytes += record.stored;
                if record.nlink > 1 {
                    linked.insert(child, copy);
                }
            }
            if counts.files + counts.dirs >= reported + REPORT_EVERY {
                reported = counts.files + counts.dirs;
                self.admit(0)?;
                if progress(*counts).is_break() || self.stopping() {
                    return Err(Errno::EINTR.into());
                }
            }
        }
        Ok(())
    }

    fn next_entry(&self, level: &mut Level) -> Result<Option<Listed>, Error> {
        if level.batch.is_empty() {
            level.batch = self.names.readdir(level.from, level.position, BATCH)?;
            match level.batch.last() {
                Some(last) => level.position = last.position + 1,
                None => return Ok(None),
            }
            level.batch.reverse();
        }
        Ok(level.batch.pop())
    }

    /// Sets a directory's times to those of the original: creating its entries changed them.
    fn settle_times(&self, level: &Level) -> Result<(), Error> {
        let set = SetAttrs {
            atime: Some(level.record.atime),
            mtime: Some(level.record.mtime),
            ..SetAttrs::default()
        };
        self.run(&Op::SetAttr { ino: level.to, set }).map(drop)
    }
}
