//! Folders get their owner, permissions, attributes and times after everything in them was created. Until
//! then they belong to this user and are closed to others. So their default ACLs are not inherited, and
//! folders without write permission can be filled.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use api::error::{Context, Result};

use super::FOLDER;
use super::rules::{Dir, Rules, exchanged};
use crate::import::Item;
use crate::import::seen::Held;
use crate::sys;
use crate::sys::metadata;

/// A folder that waits for its attributes.
struct Waiting {
    item: Item,
    /// Device and inode of the folder.
    id: (u64, u64),
    /// Whether the folder was created below a default ACL.
    inherits: bool,
}

/// The folders that were created or found.
#[derive(Default)]
pub(super) struct Late {
    waiting: Vec<Waiting>,
    /// How many folders waited when the name of one came to belong to something else.
    replaced: HashMap<PathBuf, usize>,
    held: Held,
}

impl Late {
    /// Notes a folder, its device and inode, and whether it was created below a default ACL.
    pub(super) fn add(&mut self, item: Item, id: (u64, u64), inherits: bool) -> Result<()> {
        self.held.add(&item)?;
        self.waiting.push(Waiting { item, id, inherits });
        Ok(())
    }

    /// Forgets a folder, because its name now belongs to something else.
    pub(super) fn forget(&mut self, path: &Path) -> Result<()> {
        match self.replaced.insert(path.to_owned(), self.waiting.len()) {
            Some(_) => Ok(()),
            None => self.held.add_path(path),
        }
    }

    /// Sets everything, the deepest folders first. So nothing below a folder is accessed after the folder has
    /// been given to another user. If several members have one name, the last counts.
    pub(super) fn finish(mut self, rules: &Rules, root: &Dir) -> Result<()> {
        let replaced = std::mem::take(&mut self.replaced);
        let mut at = 0;
        self.waiting.retain(|waiting| {
            at += 1;
            replaced.get(&waiting.item.path).is_none_or(|&before| at > before)
        });
        self.waiting.reverse();
        self.waiting.sort_by_cached_key(|waiting| Reverse(waiting.item.path.components().count()));
        let mut done = HashSet::new();
        for Waiting { item, id, inherits } in self.waiting {
            if !done.insert(id) {
                continue;
            }
            let shown = rules.shown(&item.path);
            let fd = reopen(root, &item.path).at("enter", &shown)?;
            if metadata::look(&fd).at("look at", &shown)?.id != id {
                return Err(exchanged(&shown));
            }
            rules.dress(&item, &fd, inherits)?;
        }
        Ok(())
    }
}

fn reopen(root: &Dir, path: &Path) -> io::Result<OwnedFd> {
    let mut at = root.fd.try_clone()?;
    for name in path.components() {
        at = sys::open_at(&at, name.as_os_str(), FOLDER, 0)?;
    }
    Ok(at)
}
