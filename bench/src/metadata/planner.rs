//! The planner with the journal and SQLite below it, as in a mount, called directly.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Ino;
use cache::MemoryPacks;
use meta::journal::{Journal, Options};
use meta::plan::op::{Ctx, Make, Op, RenameMode};
use parking_lot::RwLock;

use super::Names;
use crate::Result;

/// Clones share their state.
#[derive(Clone)]
pub struct Planner(Arc<State>);

struct State {
    journal: Arc<Journal>,
    names: meta::Names,
    next: AtomicU64,
    /// Inode numbers of directories, indexed by directory number.
    folders: RwLock<Vec<Ino>>,
}

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;

impl Planner {
    /// A new planner, in a folder of its own.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn open(folder: &Path) -> Result<Planner> {
        std::fs::create_dir_all(folder)?;
        // No bytes are written here, so any pack store will do.
        let packs = Arc::new(MemoryPacks::new(Arc::new(origin::Memory::new())));
        let (journal, _) = Journal::open(folder, packs, Options::default())?;
        let journal = Arc::new(journal);
        let names = meta::Names::new(Arc::clone(&journal) as _);
        let next = AtomicU64::new(Ino::ROOT.0 + 1);
        let planner = Planner(Arc::new(State { journal, names, next, folders: RwLock::default() }));
        planner.change(&Op::Format { rows: &[] })?;
        Ok(planner)
    }

    /// Closes it.
    ///
    /// # Errors
    /// The log cannot be drained into the database.
    pub fn close(&self) -> Result<()> {
        Ok(self.0.journal.close()?)
    }

    fn change(&self, op: &Op<'_>) -> Result<()> {
        let ctx = Ctx { now: base::time::now(), uid: 0, gid: 0 };
        self.0.names.run(op, &ctx)?;
        Ok(())
    }

    fn make(&self, parent: Ino, name: &str, mode: u32) -> Result<Ino> {
        let ino = Ino(self.0.next.fetch_add(1, Ordering::Relaxed));
        let make = Make { ino, mode, umask: 0, rdev: 0, target: &[] };
        self.change(&Op::Create { parent, name: name.as_bytes(), make })?;
        Ok(ino)
    }

    fn ino(&self, folder: u64) -> Result<Ino> {
        let folders = self.0.folders.read();
        Ok(*folders.get(folder as usize).ok_or("this directory was not made")?)
    }
}

impl Names for Planner {
    fn folder(&self, folder: u64) -> Result<()> {
        let ino = self.make(Ino::ROOT, &format!("d{folder}"), DIRECTORY)?;
        let mut folders = self.0.folders.write();
        let count = folders.len().max(folder as usize + 1);
        folders.resize(count, Ino(0));
        folders[folder as usize] = ino;
        Ok(())
    }

    fn create(&self, folder: u64, name: &str) -> Result<()> {
        self.make(self.ino(folder)?, name, FILE).map(drop)
    }

    fn lookup(&self, folder: u64, name: &str) -> Result<()> {
        let names = &self.0.names;
        let found = names.lookup(self.ino(folder)?, name.as_bytes())?;
        let ino = found.ok_or_else(|| format!("{name} was not found"))?.ino;
        names.attr(ino)?.map(drop).ok_or_else(|| format!("{name} has no inode").into())
    }

    fn rename(&self, folder: u64, name: &str, to: &str) -> Result<()> {
        let parent = self.ino(folder)?;
        self.change(&Op::Rename {
            parent,
            name: name.as_bytes(),
            to: parent,
            to_name: to.as_bytes(),
            mode: RenameMode::Replace,
        })
    }

    /// Deletes the inode too, as the last close of a file without a name does.
    fn remove(&self, folder: u64, name: &str) -> Result<()> {
        let parent = self.ino(folder)?;
        let found = self.0.names.lookup(parent, name.as_bytes())?;
        let ino = found.ok_or_else(|| format!("{name} was not found"))?.ino;
        self.change(&Op::Unlink { parent, name: name.as_bytes() })?;
        self.change(&Op::Reap { ino })
    }

    fn remove_folder(&self, folder: u64) -> Result<()> {
        let ino = self.ino(folder)?;
        self.change(&Op::Rmdir { parent: Ino::ROOT, name: format!("d{folder}").as_bytes() })?;
        self.change(&Op::Reap { ino })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_and_go() {
        let scratch = tempfile::tempdir().unwrap();
        let planner = Planner::open(scratch.path()).unwrap();
        planner.folder(3).unwrap();
        planner.create(3, "a").unwrap();
        assert!(planner.create(3, "a").is_err());
        planner.rename(3, "a", "b").unwrap();
        assert!(planner.lookup(3, "a").is_err());
        planner.lookup(3, "b").unwrap();
        planner.remove(3, "b").unwrap();
        assert!(planner.lookup(3, "b").is_err());
        planner.remove_folder(3).unwrap();
        assert!(planner.create(2, "a").is_err(), "no such directory");
        planner.close().unwrap();
    }
}
