//! Reads the names of directories, and the inodes of their files, after their leases were taken: of the one
//! that is used, and of those that a program lists next.
//!
//! A program that lists a tree asks for one directory after the other, and each would be two round trips to
//! the engine. So when it has begun, a thread reads the next ones, several at a time. That is in the order of
//! their names, as ls(1) goes, unless the first directory that was listed is the first of the listing.
//!
//! A program that lists a single directory reads nothing ahead, unless that is the first one.
//!
//! A program that looks names up in one directory after the other, as `git status` does, lists none of them.
//! From the second directory in the order of their names on, the next ones are read as well.
//!
//! A program that reads the files of a directory needs the row of each one that says where its bytes are.
//! From the second file on, the rows of the next files come with it. From the third such directory on, they
//! are read with the names.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Ino;
use hashbrown::{HashMap, HashSet};
use parking_lot::Condvar;

use super::fetch::{Loaded, NAMES_MAX};
use super::state::{Need, State, Unit};
use super::{Core, TURN};
use crate::key::{Key, tags};
use crate::record::{Dentry, InodeRecord};
use crate::store::StoreError;

/// How many directories are read together.
const AT_ONCE: usize = 16;
/// How many directories are read before they are listed.
const AHEAD: usize = 48;
/// Directories with more names are read when they are listed.
const NAMES: usize = 1_000;
/// After so many directories in order, a program lists the whole tree, as long as no more time passes between
/// them than [`TREES`].
const STEPS: usize = 3;
/// A program goes through a tree if no more time passes between one directory and the next.
const TREES: Duration = Duration::from_secs(1);
/// The rows that say where the bytes of files are: those of so many files come with that of one, ...
const FILES: usize = 256;
/// ... and at most so many of files in other directories.
const ROWS: usize = 1_000;
/// No more is read ahead while so many directories were read and are not listed yet.
const UNLISTED: usize = 256;
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
    /// Walks through directories that were leased because a program looks names up in them.
    visits: VecDeque<Walk>,
    /// Directories of which names are being read, or are about to be.
    coming: HashSet<Ino>,
    /// Directories that were read ahead and are not listed yet.
    unlisted: HashSet<Ino>,
    /// When a directory was last listed in order, and how many one after the other.
    walked: Option<(Instant, usize)>,
    /// The last directory of which files were read, when, and how many came before it.
    files: Option<(Ino, Instant, u32)>,
}

impl Ahead {
    /// Forgets what was noted: the session has ended.
    pub fn clear(&mut self) {
        for dir in self.queue.drain(..).flatten() {
            self.coming.remove(&dir);
        }
        self.unlisted.clear();
        self.walks.clear();
        self.visits.clear();
    }
}

/// The order in which the directories in one are listed.
struct Walk {
    parent: Ino,
    dirs: Vec<Ino>,
    at: HashMap<Ino, usize>,
    /// The next one, if the order holds.
    next: usize,
    /// The directories from `from` to before `read` have been read, or are about to be.
    from: usize,
    read: usize,
}

impl Walk {
    fn new(parent: Ino, dirs: Vec<Ino>) -> Walk {
        let at = dirs.iter().enumerate().map(|(at, dir)| (*dir, at)).collect();
        Walk { parent, dirs, at, next: 0, from: 0, read: 0 }
    }

    /// A directory is listed. Returns whether that was in order, and what is to be read now.
    fn listed(&mut self, dir: Ino) -> (bool, Vec<Vec<Ino>>) {
        let mut groups = Vec::new();
        let Some(at) = self.at.get(&dir).copied() else { return (false, groups) };
        // What was read ahead may have been passed without a word.
        let holds = at == self.next || self.from < self.read && (self.from..=self.read).contains(&at);
        self.next = at + 1;
        if !holds {
            (self.from, self.read) = (at, at);
        }
        self.read = self.read.max(at + 1);
        while holds && self.read < self.dirs.len().min(at + 1 + AHEAD) {
            let end = self.dirs.len().min(self.read + AT_ONCE);
            groups.extend(self.dirs.get(self.read..end).map(<[Ino]>::to_vec));
            self.read = end;
        }
        (holds, groups)
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
        let Some(parent) = self.parent_of(dir) else { return };
        let walks = &mut self.ahead.walks;
        let known = walks.iter().position(|walk| walk.parent == parent && walk.at.contains_key(&dir));
        let Some(mut walk) = known.and_then(|at| walks.remove(at)).or_else(|| self.walk(parent, dir)) else {
            return;
        };
        let (holds, groups) = walk.listed(dir);
        let before = self.walked();
        if before.is_none() {
            // What was read for an earlier program, and it did not list, counts no longer.
            self.ahead.unlisted.clear();
        }
        self.ahead.unlisted.remove(&dir);
        self.ahead.walked = holds.then(|| (base::time::monotonic(), before.map_or(1, |steps| steps + 1)));
        self.ahead.walks.retain(|other| other.parent != parent);
        self.ahead.walks.truncate(WALKS - 1);
        self.ahead.walks.push_front(walk);
        groups.into_iter().for_each(|dirs| self.read_soon(dirs));
    }

    /// A directory was leased because a program looks names up in it.
    pub fn note_visited(&mut self, dir: Ino) {
        let Some(parent) = self.parent_of(dir).filter(|parent| *parent != dir) else { return };
        let visits = &mut self.ahead.visits;
        let known = visits.iter().position(|walk| walk.parent == parent && walk.at.contains_key(&dir));
        let known = known.and_then(|at| visits.remove(at));
        let Some(mut walk) = known.or_else(|| self.visit(parent)) else { return };
        let (_, groups) = walk.listed(dir);
        self.ahead.visits.retain(|other| other.parent != parent);
        self.ahead.visits.truncate(WALKS - 1);
        self.ahead.visits.push_front(walk);
        groups.into_iter().for_each(|dirs| self.read_soon(dirs));
    }

    /// The parent of a directory whose record is remembered.
    fn parent_of(&self, dir: Ino) -> Option<Ino> {
        let record = self.units.get(&dir)?.rows.get(&Key::inode(dir))?.as_deref();
        record.and_then(|row| InodeRecord::decode(row).ok()).filter(InodeRecord::is_dir).map(|row| row.parent)
    }

    /// Whether the directories in one that is listed are to be read ahead, all of them: a program that has
    /// listed several directories in order came to this one.
    pub fn reads_below(&mut self, dirs: &[Ino]) -> bool {
        let groups = dirs.len().div_ceil(AT_ONCE);
        if self.walked().is_none_or(|steps| steps < STEPS) || self.ahead.queue.len() + groups > QUEUE {
            return false;
        }
        dirs.chunks(AT_ONCE).for_each(|dirs| self.read_soon(dirs.to_vec()));
        true
    }

    /// How many directories were listed in order, the last one just now.
    fn walked(&self) -> Option<usize> {
        self.ahead.walked.filter(|(when, _)| when.elapsed() < TREES).map(|(_, steps)| steps)
    }

    /// Has the thread read the directories in those that it has just read, if a program goes through the
    /// tree.
    fn read_deeper(&mut self, dirs: &[Ino]) {
        self.ahead.unlisted.extend(dirs);
        if self.walked().is_none_or(|steps| steps < STEPS) || self.ahead.unlisted.len() >= UNLISTED {
            return;
        }
        let has_dirs = |dir: &&Ino| self.units.get(*dir).is_some_and(|held| held.has_names && !held.has_dirs);
        let read: Vec<Ino> = dirs.iter().filter(has_dirs).copied().collect();
        let below: Vec<Ino> = read.iter().flat_map(|dir| self.dirs_in(*dir)).map(|(_, dir)| dir).collect();
        if self.ahead.queue.len() + below.len().div_ceil(AT_ONCE) <= QUEUE {
            below.chunks(AT_ONCE).for_each(|dirs| self.read_soon(dirs.to_vec()));
            for dir in read {
                self.units.get_mut(&dir).into_iter().for_each(|held| held.has_dirs = true);
            }
        }
    }

    /// The directories in one of which all names are remembered, in the order of its listing.
    pub fn dirs_in(&self, dir: Ino) -> Vec<(&[u8], Ino)> {
        let rows = self.units.get(&dir).map(|held| held.rows.range(Key::dentries(dir, 0).start..));
        let names = rows.into_iter().flatten().take_while(|(key, _)| key.tag() == tags::DENTRY);
        let dentries = names.filter_map(|(key, value)| Some((key, Dentry::decode(value.as_deref()?).ok()?)));
        let dirs = dentries.filter(|(_, dentry)| dentry.is_dir());
        dirs.filter_map(|(key, dentry)| Some((key.as_dentry()?.name, dentry.ino))).collect()
    }

    /// Has the thread read directories, as far as that is not done yet.
    fn read_soon(&mut self, mut dirs: Vec<Ino>) {
        // Of one without a lease, another node has it.
        let is_bare = |dir: &Ino| self.units.get(dir).is_none_or(|held| held.is_bare && !held.leaving);
        dirs.retain(|dir| is_bare(dir) && !self.ahead.coming.contains(dir));
        if !dirs.is_empty() && self.ahead.queue.len() < QUEUE {
            self.ahead.coming.extend(&dirs);
            self.ahead.queue.push_back(dirs);
            self.ahead.wakes.notify_one();
        }
    }

    /// Rows that say where the first bytes of files are, of directories beside and in this one that were not
    /// read from yet, if a program reads the files of one directory after the other.
    pub fn next_dirs(&mut self, unit: Ino) -> Vec<(Ino, Vec<Key>)> {
        if !self.reads_trees() {
            return Vec::new();
        }
        let beside = self.parent_of(unit).into_iter().flat_map(|parent| self.dirs_in(parent));
        let dirs: Vec<Ino> = self.dirs_in(unit).into_iter().chain(beside).map(|(_, dir)| dir).collect();
        let (mut next, mut rows) = (Vec::new(), 0);
        for dir in dirs {
            let is_new = |held: &&mut Unit| held.has_names && held.last_file.is_none() && !held.leaving;
            let Some(held) = self.units.get_mut(&dir).filter(is_new).filter(|held| held.lasts()) else {
                continue;
            };
            let keys: Vec<Key> = held.files_after(0).take(FILES).collect();
            rows += keys.len();
            if rows > ROWS {
                break;
            }
            held.last_file = Some(0);
            if !keys.is_empty() {
                next.push((dir, keys));
            }
        }
        next
    }

    /// Whether a unit is about to be leased, with those beside it.
    pub fn is_coming(&self, unit: Ino) -> bool {
        self.ahead.coming.contains(&unit) && !self.units.contains_key(&unit)
    }

    /// Whether a program reads the files of one directory after the other.
    pub fn reads_trees(&self) -> bool {
        self.ahead.files.is_some_and(|(_, when, dirs)| dirs > 1 && when.elapsed() < TREES)
    }

    /// Files of a directory are being read.
    fn note_files(&mut self, dir: Ino) {
        let now = base::time::monotonic();
        let dirs = match self.ahead.files {
            Some((last, _, dirs)) if last == dir => dirs,
            Some((_, when, dirs)) if now.saturating_duration_since(when) < TREES => dirs.saturating_add(1),
            _ => 1,
        };
        self.ahead.files = Some((dir, now, dirs));
    }

    /// Adds the rows that say where the bytes of the next files of a directory are, if these keys ask for
    /// that of one, and another one was asked for before. The order is that of their numbers, which is mostly
    /// the order in which they were made. After the last one comes the first.
    pub fn add_next_files(&mut self, unit: Ino, keys: &mut Vec<Key>) {
        let of_bytes = |key: &&Key| matches!(key.tag(), tags::INLINE | tags::EXTENTS);
        let Some(file) = keys.iter().find(of_bytes).and_then(Key::number).filter(|file| *file != unit.0)
        else {
            return;
        };
        let reads_trees = self.reads_trees();
        let Some(held) = self.units.get_mut(&unit) else { return };
        let last = held.last_file.replace(file);
        if last == Some(file) || last.is_none() && !reads_trees {
            return;
        }
        self.note_files(unit);
        let Some(held) = self.units.get(&unit) else { return };
        let next: Vec<Key> = held.files_after(file).take(FILES).collect();
        keys.extend(next);
    }

    /// The order in which a program lists the directories in `parent` that lists `first` first.
    fn walk(&self, parent: Ino, first: Ino) -> Option<Walk> {
        self.units.get(&parent).filter(|held| held.has_names)?;
        let mut dirs = self.dirs_in(parent);
        if dirs.first().is_some_and(|(_, dir)| *dir != first) {
            dirs.sort_unstable();
        }
        Some(Walk::new(parent, dirs.into_iter().map(|(_, dir)| dir).collect()))
    }

    /// The order in which a program looks names up in the directories in `parent`. One alone is no order.
    fn visit(&self, parent: Ino) -> Option<Walk> {
        self.units.get(&parent).filter(|held| held.has_names)?;
        let mut dirs = self.dirs_in(parent);
        dirs.sort_unstable();
        let walk = Walk::new(parent, dirs.into_iter().map(|(_, dir)| dir).collect());
        Some(Walk { next: usize::MAX, ..walk })
    }
}

impl Unit {
    /// The rows that say where the first bytes of the files are, as far as they are not remembered: of the
    /// files with higher numbers than this one first.
    fn files_after(&self, file: u64) -> impl Iterator<Item = Key> {
        let all = Key::inode(Ino(0))..Key::inode(Ino(u64::MAX));
        let after = self.rows.range(Key::inode(Ino(file.saturating_add(1)))..all.end);
        let before = self.rows.range(all.start..Key::inode(Ino(file)));
        after.chain(before).filter_map(|(key, value)| {
            let (ino, record) = (Ino(key.number()?), InodeRecord::decode(value.as_deref()?).ok()?);
            let key = match record.has(InodeRecord::INLINE) {
                true => Key::inline(ino),
                false => Key::extents(ino, 0),
            };
            (record.is_file() && record.size > 0 && !self.rows.contains_key(&key)).then_some(key)
        })
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
            // If it fails, that is done when they are asked for.
            let _ = self.prefetch_some(&dirs, Some(NAMES));
            let _ = self.read_names(&dirs, NAMES);
            state = self.state.lock();
            state.read_deeper(&dirs);
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
                    .1
                    .into_iter()
                    .inspect(|group| assert!(group.len() <= AT_ONCE))
                    .flatten(),
            );
            assert!(read.len() <= (listed - 9) as usize + AHEAD + AT_ONCE, "too much is read");
        }
        assert_eq!(read.len(), 100, "each is read once");
    }

    #[test]
    fn what_was_read_ahead_may_be_passed() {
        let mut walk = walk(100);
        let groups =
            |read: (bool, Vec<Vec<Ino>>)| read.1.into_iter().flatten().map(|dir| dir.0).collect::<Vec<_>>();
        assert_eq!(groups(walk.listed(Ino(10))), (11..11 + AHEAD as u64).collect::<Vec<_>>());
        let after = 11 + AHEAD as u64;
        assert_eq!(
            groups(walk.listed(Ino(after))),
            (after + 1..after + 1 + AHEAD as u64).collect::<Vec<_>>()
        );
    }

    #[test]
    fn directories_that_are_listed_in_no_order_are_not_read_ahead() {
        let mut walk = walk(100);
        for listed in [50, 20, 90, 12, 70] {
            assert_eq!(walk.listed(Ino(listed)), (false, Vec::new()), "{listed}");
        }
        assert_eq!(walk.listed(Ino(7)), (false, Vec::new()), "it is new");
    }
}
