//! Reads rows from the engine, to remember them under a lease.

use base::Ino;
use hashbrown::{HashMap, HashSet};

use super::Core;
use super::moves::Read;
use super::state::{Home, State, home_of};
use crate::key::{Key, KeyRange, tags};
use crate::record::{Dentry, InodeRecord};
use crate::store::{Rows, StoreError, Value};

/// A directory with more names than this is not remembered whole: its names are read one by one.
pub(super) const NAMES_MAX: usize = 9_999;
/// A file with more rows of extents than this is not remembered whole.
const PAGES_MAX: usize = 4_096;
/// How many files' inodes are read with their directories.
const FILES: usize = 10_000;
/// Of how many files the rows that say where the first bytes are come along, if a program reads files.
const FILES_READ: usize = 1_000;
/// Rows of a unit that are looked at before its lease is taken, its lease row first.
const ROWS: usize = 5;

fn rows_of(unit: Ino) -> [Key; ROWS] {
    [Key::lease(unit), Key::inode(unit), Key::dir_changed(unit), Key::subdirs(unit), Key::orphan(unit)]
}

/// What a unit was seen to be.
pub(super) struct Seen {
    /// The lease row, then the unit's own rows.
    rows: Vec<Option<Value>>,
    list: Rows,
    /// The list has all its names.
    is_whole: bool,
}

impl Seen {
    /// Whether all its names were seen.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The row of the unit's own inode.
    pub fn inode(&self) -> Option<Value> {
        self.rows.get(1).cloned().flatten()
    }

    /// The lease row.
    pub fn lease(&self) -> Option<Value> {
        self.rows.first().cloned().flatten()
    }
}

/// What is read with a new lease.
#[derive(Default)]
pub(super) struct Loaded {
    rows: Vec<(Key, Option<Value>)>,
    /// Where the first bytes of files are that are most likely of the unit.
    bytes: Vec<(Key, Option<Value>)>,
    has_names: bool,
    /// The unit did not have too many names.
    pub fits: bool,
}

impl Loaded {
    /// Makes a `Loaded` of these rows, without the bytes of files.
    pub fn new(rows: Vec<(Key, Option<Value>)>, has_names: bool) -> Loaded {
        Loaded { rows, has_names, fits: true, bytes: Vec::new() }
    }

    /// Remembers it. `read`: other operations could change the unit meanwhile.
    pub fn install(self, state: &mut State, unit: Ino, read: Option<Read>) {
        let is_dir = |value: &Value| Dentry::decode(value).is_ok_and(|dentry| dentry.is_dir());
        let names = self.rows.iter().filter(|(key, _)| key.tag() == tags::DENTRY);
        let has_dirs = names.filter_map(|(_, value)| value.as_ref()).any(is_dir);
        for (key, value) in self.rows {
            if let (tags::DENTRY, Some(value)) = (key.tag(), &value) {
                state.hint_name(unit, value);
            }
            match read {
                Some(read) => state.install_read(unit, key, value, read),
                None => state.install(unit, key, value),
            }
        }
        for (key, value) in self.bytes {
            let ino = Ino(key.number().unwrap_or_default());
            let is_home = state.homes.get(&ino).is_some_and(|home| home.unit == unit);
            if is_home && read.is_none_or(|read| !state.has_moved(ino, unit, read)) {
                state.install(unit, key, value);
            }
        }
        if let Some(held) = state.units.get_mut(&unit) {
            held.has_names |= self.has_names;
            // There are none to ask for.
            held.has_dirs |= self.has_names && !has_dirs;
        }
    }
}

/// Rows of units are being read from the engine, for an operation that uses them under the leases. Until this
/// is dropped, and the rows are used, the leases are not given back: otherwise nodes that take turns could
/// take them from one another forever, before any of them has read what it needs ([`super::recall`]).
pub(super) struct Reading<'a>(&'a Core, &'a [Ino], Read);

impl Reading<'_> {
    /// Which read it is.
    pub fn read(&self) -> Read {
        self.2
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.state.lock().end_reading(self.1, self.2);
        self.0.changed.notify_all();
    }
}

impl Core {
    /// Notes that rows of these units are being read.
    pub(super) fn reading<'a>(&'a self, units: &'a [Ino]) -> Reading<'a> {
        let read = self.state.lock().begin_reading(units);
        Reading(self, units, read)
    }

    /// Looks at the lease row of each unit, and at its own rows.
    pub(super) fn look_at_rows(&self, units: &[Ino]) -> Result<Vec<Seen>, StoreError> {
        let keys: Vec<Key> = units.iter().flat_map(|unit| rows_of(*unit)).collect();
        let rows = self.inner.get_many(&keys)?;
        let seen = |rows: &[Option<Value>]| Seen { rows: rows.to_vec(), list: Rows::new(), is_whole: false };
        Ok(rows.chunks(ROWS).map(seen).collect())
    }

    /// Looks at the lease row of each unit, at its own rows, and at its names.
    pub(super) fn look_at(&self, units: &[Ino], names: usize) -> Result<Vec<Seen>, StoreError> {
        let keys: Vec<Key> = units.iter().flat_map(|unit| rows_of(*unit)).collect();
        let ranges: Vec<KeyRange> = units.iter().map(|unit| Key::dentries(*unit, 0)).collect();
        let looked = self.inner.look(&keys, &ranges, names + 1)?;
        let own = looked.rows.chunks(ROWS).map(<[_]>::to_vec);
        let seen =
            |(rows, list): (Vec<Option<Value>>, Rows)| Seen { rows, is_whole: list.len() <= names, list };
        Ok(own.zip(looked.ranges).map(seen).collect())
    }

    /// Makes of what was seen what is remembered: of a directory its own rows, its names, and the inodes of
    /// its files. Call it when this node has the leases.
    pub(super) fn load(&self, units: Vec<(Ino, Seen)>) -> Result<Vec<(Ino, Loaded)>, StoreError> {
        let file = |value: &Value| Dentry::decode(value).ok().filter(|dentry| !dentry.is_dir());
        let of_all = units.iter().filter(|(_, seen)| seen.is_whole).flat_map(|(_, seen)| &seen.list);
        let files: Vec<Ino> = of_all.filter_map(|(_, value)| Some(file(value)?.ino)).take(FILES).collect();
        let of_bytes = if self.state.lock().reads_trees() { FILES_READ } else { 0 };
        let inodes = files.iter().map(|ino| Key::inode(*ino));
        let bytes = files.iter().take(of_bytes).flat_map(|ino| [Key::inline(*ino), Key::extents(*ino, 0)]);
        let keys: Vec<Key> = inodes.chain(bytes).collect();
        let values = if keys.is_empty() { Vec::new() } else { self.inner.get_many(&keys)? };
        let mut of_files: HashMap<Key, Option<Value>> = keys.into_iter().zip(values).collect();
        let loaded = units.into_iter().map(|(unit, seen)| {
            let is_dir = seen.rows.get(1).and_then(Option::as_deref).map(InodeRecord::decode);
            let is_dir = is_dir.is_some_and(|record| record.is_ok_and(|record| record.is_dir()));
            // Of a file, its record alone says whether it belongs to this unit.
            let own = if is_dir { ROWS } else { 2 };
            let mut rows: Vec<_> = rows_of(unit).into_iter().zip(seen.rows).take(own).skip(1).collect();
            let has_names = is_dir && seen.is_whole;
            let mut bytes = Vec::new();
            for (key, value) in seen.list.into_iter().filter(|_| has_names) {
                if let Some(Dentry { ino, .. }) = file(&value) {
                    let [inode, rest @ ..] = [Key::inode(ino), Key::inline(ino), Key::extents(ino, 0)];
                    rows.extend(of_files.remove(&inode).map(|value| (inode, value)));
                    bytes.extend(rest.into_iter().filter_map(|key| of_files.remove_entry(&key)));
                }
                rows.push((key, Some(value)));
            }
            (unit, Loaded { rows, bytes, has_names, fits: seen.is_whole })
        });
        Ok(loaded.collect())
    }

    /// Reads rows of a unit: these and those of files that will be read next, or all names of a lent
    /// directory and the inodes of its files.
    pub(super) fn fetch(&self, unit: Ino, mut keys: Vec<Key>) -> Result<(), StoreError> {
        let (wants_all, more) = {
            let mut state = self.state.lock();
            let wants_all = state.wants_all(unit, &keys);
            state.add_next_files(unit, &mut keys);
            (wants_all, if wants_all { Vec::new() } else { state.next_dirs(unit) })
        };
        let units: Vec<Ino> = more.iter().map(|(dir, _)| *dir).chain([unit]).collect();
        let reading = self.reading(&units);
        let marks: Vec<_> = {
            let mut state = self.state.lock();
            units.iter().map(|unit| self.marks(&mut state, &[*unit])).collect()
        };
        if wants_all {
            let seen = self.look_at(&units, NAMES_MAX)?.pop();
            let loaded = self.load(seen.map(|seen| (unit, seen)).into_iter().collect())?.pop();
            let mut state = self.state.lock();
            if Some(&self.marks(&mut state, &units)) == marks.last()
                && let Some((_, loaded)) = loaded
            {
                if !loaded.fits {
                    state.note_large(unit);
                }
                loaded.install(&mut state, unit, Some(reading.read()));
            }
            return Ok(());
        }
        let wanted: Vec<(Ino, Key)> = more
            .into_iter()
            .chain([(unit, keys)])
            .flat_map(|(unit, keys)| keys.into_iter().map(move |key| (unit, key)))
            .collect();
        let keys: Vec<Key> = wanted.iter().map(|(_, key)| key.clone()).collect();
        let values = self.inner.get_many(&keys)?;
        let mut state = self.state.lock();
        let is_same = |(unit, mark): (Ino, _)| (self.marks(&mut state, &[unit]) == mark).then_some(unit);
        let same: HashSet<Ino> = units.iter().copied().zip(marks).filter_map(is_same).collect();
        for ((unit, key), value) in wanted.into_iter().zip(values) {
            if same.contains(&unit) {
                state.install_read(unit, key, value, reading.read());
            }
        }
        Ok(())
    }

    /// Reads all rows of an inode that belongs to a unit.
    pub(super) fn fetch_whole(&self, unit: Ino, ino: Ino) -> Result<(), StoreError> {
        let units = [unit];
        let reading = self.reading(&units);
        let mark = self.marks(&mut self.state.lock(), &units);
        let pages = self.inner.scan(&Key::extents_from(ino, 0), PAGES_MAX + 1)?;
        let large = pages.len() > PAGES_MAX;
        let removed = [Key::orphan(ino), Key::trash(ino)];
        let single =
            [[Key::inline(ino), Key::dir_changed(ino), Key::subdirs(ino)].as_slice(), &removed].concat();
        let values = self.inner.get_many(&single)?;
        let xattrs: Rows = self.inner.scan(&Key::xattrs(ino), usize::MAX)?;
        let mut state = self.state.lock();
        if self.marks(&mut state, &[unit]) != mark || state.has_moved(ino, unit, reading.read()) {
            return Ok(());
        }
        if !large {
            let many = pages.into_iter().chain(xattrs).map(|(key, value)| (key, Some(value)));
            let all = many.chain(single.into_iter().zip(values));
            all.for_each(|(key, value)| state.install(unit, key, value));
        }
        if let Some(home) = state.homes.get_mut(&ino).filter(|home| home.unit == unit) {
            *home = Home { whole: !large, large, ..*home };
        }
        Ok(())
    }

    /// Finds which units inodes belong to. It may be wrong by the time it is used: the record is read again
    /// under the lease.
    pub(super) fn find_homes(&self, inos: &[Ino]) -> Result<(), StoreError> {
        let keys: Vec<Key> = inos.iter().map(|ino| Key::inode(*ino)).collect();
        let values = self.inner.get_many(&keys)?;
        let mut state = self.state.lock();
        for (ino, value) in inos.iter().zip(values) {
            let record = value.as_deref().map(InodeRecord::decode).and_then(Result::ok);
            state.hint(*ino, home_of(*ino, record.as_ref()));
        }
        Ok(())
    }
}
