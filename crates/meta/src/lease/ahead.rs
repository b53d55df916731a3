//! Reads the names of directories, and the inodes of their files, after their leases were taken: of the one
//! that is used, and of those that a program lists next.
//!
//! A program that lists a tree asks for one directory after the other, and each would be two round trips to
//! the engine. So when it has begun, a thread reads the next ones, several at a time. That is in the order of
//! their names, as ls(1) goes, unless the first directory that was listed is the first of the listing.
//!
//! A program that lists a single directory reads nothing ahead, unless that is the first one.

use std::collections::VecDeque;
use std::sync::Arc;

use base::Ino;
use hashbrown::{HashMap, HashSet};
use parking_lot::Condvar;

use super::fetch::{Loaded, NAMES_MAX};
use super::state::{Need, State};
use super::{Core, TURN};
use crate::key::{Key, tags};
use crate::record::{Dentry, InodeRecord};
use crate::store::StoreError;

/// How many directories are read together.
const AT_ONCE: usize = 8;
/// How many directories are read before they are listed.
const AHEAD: usize = 16;
/// Directories with more names are read when they are listed.
const NAMES: usize = 1_000;
/// How many groups may wait to be read. More are dropped.
const QUEUE: usize = 8;
/// Of how many directories it is noted in which order those in them are listed.
const WALKS: usize = 8;

/// What is to be read before it is asked for.
#[derive(Default)]
pub(super) struct Ahead {
    /// There is something to read.
    pub wakes: Arc<Condvar>,
    queue: VecDeque<Vec<Ino>>,
    walks: VecDeque<Walk>,
    /// Directories of which names are being read, or are about to be.
    coming: HashSet<Ino>,
}

impl Ahead {
    /// Forgets what was noted: the session has ended.
    pub fn clear(&mut self) {
        for dir in self.queue.drain(..).flatten() {
            self.coming.remove(&dir);
        }
        self.walks.clear();
    }
}

/// The order in which the directories in one are listed.
struct Walk {
    parent: Ino,
    dirs: Vec<Ino>,
    at: HashMap<Ino, usize>,
    /// The next one, if the order holds.
    next: usize,
    /// Those before this one have been read, or are about to be.
    read: usize,
}

impl Walk {
    fn new(parent: Ino, dirs: Vec<Ino>) -> Walk {
        let at = dirs.iter().enumerate().map(|(at, dir)| (*dir, at)).collect();
        Walk { parent, dirs, at, next: 0, read: 0 }
    }

    /// A directory is listed. Returns what is to be read now.
    fn listed(&mut self, dir: Ino) -> Vec<Vec<Ino>> {
        let mut groups = Vec::new();
        let Some(at) = self.at.get(&dir).copied() else { return groups };
        let holds = at == self.next || at < self.read;
        self.next = at + 1;
        self.read = self.read.max(at + 1);
        while holds && self.read < self.dirs.len().min(at + 1 + AHEAD) {
            let end = self.dirs.len().min(self.read + AT_ONCE);
            groups.extend(self.dirs.get(self.read..end).map(<[Ino]>::to_vec));
            self.read = end;
        }
        groups
    }
}

impl State {
    /// What a listing of a directory without remembered names needs.
    pub fn names_of(&self, dir: Ino) -> Need {
        match self.units.get(&dir) {
            Some(held) if held.is_bare => Need::Names(dir),
            _ => Need::Engine(vec![dir]),
        }
    }

    /// A directory was listed from memory.
    pub fn note_listed(&mut self, dir: Ino) {
        let Some(held) = self.units.get_mut(&dir).filter(|held| !held.was_listed) else { return };
        held.was_listed = true;
        let record = held.rows.get(&Key::inode(dir)).and_then(Option::as_deref);
        let Some(parent) = record.and_then(|row| InodeRecord::decode(row).ok()).map(|record| record.parent)
        else {
            return;
        };
        let walks = &mut self.ahead.walks;
        let known = walks.iter().position(|walk| walk.parent == parent && walk.at.contains_key(&dir));
        let Some(mut walk) = known.and_then(|at| walks.remove(at)).or_else(|| self.walk(parent, dir)) else {
            return;
        };
        let groups = walk.listed(dir);
        self.ahead.walks.retain(|other| other.parent != parent);
        self.ahead.walks.truncate(WALKS - 1);
        self.ahead.walks.push_front(walk);
        for mut dirs in groups {
            let is_bare = |dir: &Ino| self.units.get(dir).is_some_and(|held| held.is_bare && !held.leaving);
            dirs.retain(|dir| is_bare(dir) && !self.ahead.coming.contains(dir));
            if !dirs.is_empty() && self.ahead.queue.len() < QUEUE {
                self.ahead.coming.extend(&dirs);
                self.ahead.queue.push_back(dirs);
                self.ahead.wakes.notify_one();
            }
        }
    }

    /// The order in which a program lists the directories in `parent` that lists `first` first.
    fn walk(&self, parent: Ino, first: Ino) -> Option<Walk> {
        let held = self.units.get(&parent).filter(|held| held.has_names)?;
        let names = held.rows.range(Key::dentries(parent, 0).start..);
        let names = names.take_while(|(key, _)| key.tag() == tags::DENTRY);
        let dentries = names.filter_map(|(key, value)| Some((key, Dentry::decode(value.as_deref()?).ok()?)));
        let mut dirs: Vec<(&[u8], Ino)> = dentries
            .filter(|(_, dentry)| dentry.is_dir())
            .filter_map(|(key, dentry)| Some((key.as_dentry()?.name, dentry.ino)))
            .collect();
        if dirs.first().is_some_and(|(_, dir)| *dir != first) {
            dirs.sort_unstable();
        }
        Some(Walk::new(parent, dirs.into_iter().map(|(_, dir)| dir).collect()))
    }
}

impl Core {
    /// Reads the names of a directory that is about to be used.
    pub(super) fn fetch_names(&self, dir: Ino) -> Result<(), StoreError> {
        {
            let mut state = self.state.lock();
            if !state.ahead.coming.insert(dir) {
                self.changed.wait_for(&mut state, TURN);
                return Ok(());
            }
        }
        self.read_names(&[dir], NAMES_MAX)
    }

    /// Reads the names of directories, as far as this node has leases of them and has not read them, and the
    /// inodes of their files. Other threads wait for that.
    fn read_names(&self, coming: &[Ino], most: usize) -> Result<(), StoreError> {
        let (dirs, marks) = {
            let mut state = self.state.lock();
            let held = |dir: &Ino| state.units.get(dir).filter(|held| held.is_bare && !held.leaving);
            let dirs: Vec<Ino> = coming.iter().filter(|dir| held(dir).is_some()).copied().collect();
            let marks: Vec<_> = dirs.iter().map(|dir| self.marks(&mut state, &[*dir])).collect();
            (dirs, marks)
        };
        let reading = self.reading(&dirs);
        let loaded = self.load_names(&dirs, most);
        let mut state = self.state.lock();
        coming.iter().for_each(|dir| _ = state.ahead.coming.remove(dir));
        self.changed.notify_all();
        for ((dir, loaded), mark) in loaded?.into_iter().zip(marks) {
            if self.marks(&mut state, &[dir]) != mark {
                continue;
            }
            let fits = loaded.fits;
            loaded.install(&mut state, dir, Some(reading.read()));
            if (fits || most == NAMES_MAX)
                && let Some(held) = state.units.get_mut(&dir)
            {
                (held.is_bare, held.last) = (false, base::time::monotonic());
            }
            if !fits && most == NAMES_MAX {
                state.note_large(dir);
            }
        }
        Ok(())
    }

    fn load_names(&self, dirs: &[Ino], most: usize) -> Result<Vec<(Ino, Loaded)>, StoreError> {
        self.term.check()?;
        if dirs.is_empty() {
            return Ok(Vec::new());
        }
        let seen = self.look_at(dirs, most)?;
        self.load(dirs.iter().copied().zip(seen).collect())
    }

    /// The thread that reads names before they are asked for.
    pub(super) fn read_ahead(&self) {
        let mut state = self.state.lock();
        while !state.stopping {
            let Some(dirs) = state.ahead.queue.pop_front() else {
                let wakes = Arc::clone(&state.ahead.wakes);
                wakes.wait(&mut state);
                continue;
            };
            drop(state);
            // If it fails, the names are read when they are asked for.
            let _ = self.read_names(&dirs, NAMES);
            state = self.state.lock();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(dirs: u64) -> Walk {
        Walk::new(Ino(1), (10..10 + dirs).map(Ino).collect())
    }

    #[test]
    fn the_next_directories_are_read_in_groups_while_the_order_holds() {
        let mut walk = walk(100);
        let mut read = vec![Ino(10)];
        for listed in 10..110 {
            assert!(read.contains(&Ino(listed)), "{listed} was not read before it is listed");
            read.extend(
                walk.listed(Ino(listed))
                    .into_iter()
                    .inspect(|group| assert!(group.len() <= AT_ONCE))
                    .flatten(),
            );
            assert!(read.len() <= (listed - 9) as usize + AHEAD + AT_ONCE, "too much is read");
        }
        assert_eq!(read.len(), 100, "each is read once");
    }

    #[test]
    fn directories_that_are_listed_in_no_order_are_not_read_ahead() {
        let mut walk = walk(100);
        for listed in [50, 20, 90, 12, 70] {
            assert_eq!(walk.listed(Ino(listed)), Vec::<Vec<Ino>>::new(), "{listed}");
        }
        assert_eq!(walk.listed(Ino(7)), Vec::<Vec<Ino>>::new(), "it is new");
    }
}
