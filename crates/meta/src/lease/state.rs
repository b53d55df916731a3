//! What this node remembers under its leases.
//!
//! A [`Unit`] is what one lease covers: a directory (its own rows, its names, and the rows of those of its
//! children that are no directories and have one name), or, for every other inode, that inode alone. The
//! record of an inode says which unit it belongs to ([`home_of`]). So its rows are trusted only if its record
//! was read under the lease of that unit, and says so.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::Ino;
use hashbrown::{HashMap, HashSet};

use super::ahead::Ahead;
use super::contend::Contended;
use super::journal::Journal;
use super::loan::{Borrowed, Borrowing, Lent, Loose, Notes};
use super::moves::{Moves, Read};
use super::own_packs::OwnPacks;
use super::queue::Queue;
use super::retake::Steps;
use super::row::{Holder, Mode};
use crate::key::{Key, KeyRange, tags};
use crate::record::{Dentry, InodeRecord, mode};
use crate::store::{Limit, Rows, Value};

/// Guesses of one generation.
const HINTS: usize = 1 << 16;
/// How many large directories are noted, and for how long.
const LARGE_MAX: usize = 1 << 12;
const LARGE: Duration = Duration::from_secs(30);

/// What is missing for an answer from memory.
#[derive(Debug)]
pub(super) enum Need {
    /// A lease.
    Lease(Ino, Mode),
    /// Other nodes must give back what this node has lent them of the unit.
    Loans(Ino),
    /// Another thread is about to change the unit: look again when it has.
    Turn,
    /// Which units these inodes belong to.
    Homes(Vec<Ino>),
    /// Rows of a unit.
    Rows(Ino, Vec<Key>),
    /// The names of a directory whose lease this node has.
    Names(Ino),
    /// All rows of an inode of a unit.
    Whole(Ino, Ino),
    /// Rows that are not remembered: ask the engine, under the leases of these units.
    Engine(Vec<Ino>),
    /// The unit is contended: its rows are remembered by no node ([`super::contend`]). Or a lease for reading
    /// cannot be had ([`super::space`]).
    Direct(Ino),
}

/// A row that is remembered, or the contended unit that it belongs to.
pub(super) type Place = Result<Option<Value>, Ino>;

/// A lease that this node has, and what it remembers under it.
pub(super) struct Unit {
    pub mode: Mode,
    pub seq: u64,
    /// The lease row.
    pub lease: Value,
    /// The loan, if this is no lease: another node has the lease, and has lent this one the unit.
    pub loan: Option<Borrowed>,
    /// Rows that were read or written. `None`: it is absent.
    pub rows: BTreeMap<Key, Option<Value>>,
    /// All names of the directory are in `rows`.
    pub has_names: bool,
    /// The unit was leased without its names, which are read when they are wanted.
    pub is_bare: bool,
    /// A program has listed it.
    pub was_listed: bool,
    /// The last file in it whose bytes were looked for in the engine.
    pub last_file: Option<u64>,
    /// The leases of the directories in it were asked for, as far as they are free.
    pub has_dirs: bool,
    /// The lease is being given back.
    pub leaving: bool,
    /// A commit to the engine is under way.
    pub busy: bool,
    /// When this node got the lease.
    pub since: Instant,
    /// How long it took to get it.
    pub cost: Duration,
    /// No other node had it when this node took it.
    pub was_free: bool,
    /// An operation has used it.
    pub used: bool,
    /// When an operation used it last.
    pub last: Instant,
    /// When rows of it were read from the engine for an operation that has not used them yet.
    pub read: Option<Instant>,
    /// When this node changed it last.
    pub changed: Option<Instant>,
    /// The last batch that holds a change of it.
    pub batch: u64,
    /// Inodes whose attributes the kernel may keep.
    pub told: HashSet<Ino>,
    /// Until when the kernel may keep names of the directory.
    pub names_until: Option<Instant>,
}

impl Unit {
    pub fn new(mode: Mode, seq: u64, lease: Value) -> Unit {
        let now = base::time::monotonic();
        Unit {
            mode,
            seq,
            lease,
            loan: None,
            rows: BTreeMap::new(),
            has_names: false,
            is_bare: false,
            was_listed: false,
            last_file: None,
            has_dirs: false,
            leaving: false,
            busy: false,
            since: now,
            cost: Duration::ZERO,
            was_free: false,
            used: false,
            last: now,
            read: None,
            changed: None,
            batch: 0,
            told: HashSet::new(),
            names_until: None,
        }
    }

    /// Whether it may be used. A loan has an end.
    pub fn lasts(&self) -> bool {
        self.loan.is_none_or(|loan| base::time::boot() < loan.until)
    }
}

/// A lease that is being asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct Wanted {
    /// The highest `seq` that another node asked for meanwhile.
    pub recalled: u64,
    /// The `seq` of the row that names this node, when it does. What is left is to read the unit's rows.
    pub won: Option<u64>,
    /// A loan may be on its way.
    pub borrows: bool,
}

/// Where an inode's rows are remembered.
#[derive(Clone, Copy)]
pub(super) struct Home {
    pub unit: Ino,
    /// Rows that are not remembered are absent.
    pub whole: bool,
    /// There are too many rows to remember all of them.
    pub large: bool,
}

/// The unit of an inode. `None`: there is no such inode, or it is a directory without a name.
pub(super) fn home_of(ino: Ino, record: Option<&InodeRecord>) -> Ino {
    match record {
        Some(record) if !record.is_dir() && record.parent != Ino(0) => record.parent,
        _ => ino,
    }
}

/// Everything that is remembered.
#[derive(Default)]
pub(super) struct State {
    pub units: HashMap<Ino, Unit>,
    pub homes: HashMap<Ino, Home>,
    hints: [HashMap<Ino, Ino>; 2],
    /// Leases that are being asked for.
    pub wanted: HashMap<Ino, Wanted>,
    /// How many operations read rows of a unit from the engine just now, to use them under its lease.
    pub reading: HashMap<Ino, u32>,
    /// Inodes that have moved since such a read began.
    pub moves: Moves,
    /// Directories that had too many names to be remembered, and when that was seen.
    large: HashMap<Ino, Instant>,
    /// What this node has lent. It stays when the lease is forgotten.
    pub lent: HashMap<Ino, Lent>,
    /// The number of the last loan that was given.
    pub loans: u64,
    /// What it knows of units that it might borrow.
    pub borrowing: Borrowing,
    /// Leases that could not be had, with the moment and the reason. Threads that waited for them fail too.
    pub failed: HashMap<Ino, (Instant, String)>,
    /// Units that no node has a lease of.
    pub contended: Contended,
    /// Units of inodes that are no more: their lease rows are to be removed.
    pub dead: Vec<Ino>,
    pub queue: Queue,
    /// Why the engine refuses the batch that is on its way: it has no space ([`super::space`]).
    pub no_space: Option<String>,
    /// Units that are read without a lease meanwhile.
    pub loose: Notes<Loose>,
    /// What is read before it is asked for.
    pub ahead: Ahead,
    /// How often everything was forgotten: a session ended, or the engine had forgotten something.
    pub sessions: u64,
    /// How often a session ended, and this node joined again.
    pub joins: u64,
    /// What waited to be stored was lost with those before this one.
    pub lossless_since: u64,
    /// The engine may have forgotten what it confirmed ([`super::forgot`]).
    pub is_suspect: bool,
    /// In how many batches of each unit are changes that the engine lacks. `None`: that is not known.
    pub lacking: Option<HashMap<Ino, usize>>,
    /// How many leases were recalled.
    pub recalls: u64,
    /// So many threads have forgotten units of which the kernel may still keep something.
    pub letting_go: u32,
    /// Inodes whose acknowledged changes were lost with a session.
    pub lost: HashSet<Ino>,
    pub stopping: bool,
    /// What this node has written to the pack table.
    pub own_packs: OwnPacks,
    pub steps: Steps,
    /// Where changes are before they are acknowledged.
    pub journal: Option<Journal>,
    /// The last batch of a session that the engine has.
    pub stored: Option<(Holder, u64)>,
}

impl State {
    /// Nothing, in front of an engine that likes commits of this size.
    pub fn new(limit: Limit) -> State {
        State { queue: Queue::new(limit), ..State::default() }
    }

    /// Guesses which unit an inode belongs to.
    pub fn hint(&mut self, ino: Ino, unit: Ino) {
        if self.hints[0].len() >= HINTS {
            self.hints[1] = std::mem::take(&mut self.hints[0]);
        }
        self.hints[0].insert(ino, unit);
    }

    /// Guesses from a name which unit an inode belongs to.
    pub fn hint_name(&mut self, parent: Ino, value: &[u8]) {
        if let Ok(dentry) = Dentry::decode(value)
            && !self.homes.contains_key(&dentry.ino)
            && self.hinted(dentry.ino).is_none()
        {
            self.hint(dentry.ino, if dentry.is_dir() { dentry.ino } else { parent });
        }
    }

    /// The engine says to which unit an inode belongs, and another one was guessed.
    pub fn correct(&mut self, ino: Ino, unit: Ino) {
        if self.homes.get(&ino).is_none_or(|home| !self.units.contains_key(&home.unit)) {
            self.homes.remove(&ino);
            self.hint(ino, unit);
        }
    }

    fn hinted(&self, ino: Ino) -> Option<Ino> {
        self.hints.iter().find_map(|hints| hints.get(&ino)).copied()
    }

    /// The unit that an inode belongs to, as far as is known.
    pub fn home(&self, ino: Ino) -> Result<Ino, Need> {
        self.homes
            .get(&ino)
            .map(|home| home.unit)
            .or_else(|| self.hinted(ino))
            .ok_or_else(|| Need::Homes(vec![ino]))
    }

    /// The unit that a row belongs to. `None`: leases do not cover it.
    pub fn unit_of(&self, key: &Key) -> Result<Option<Ino>, Need> {
        let Some(number) = key.number() else { return Ok(None) };
        match key.tag() {
            tags::DENTRY => Ok(Some(Ino(number))),
            tags::DIR_CHANGED | tags::SUBDIRS => Ok(Some(self.home(Ino(number)).unwrap_or(Ino(number)))),
            tags::INODE | tags::EXTENTS | tags::INLINE | tags::XATTR | tags::ORPHAN | tags::TRASH => {
                self.home(Ino(number)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// A unit whose lease permits this.
    pub fn held(&mut self, unit: Ino, mode: Mode) -> Result<&mut Unit, Need> {
        let is_loose = mode == Mode::Read && self.is_loose(unit);
        match self.units.get_mut(&unit) {
            Some(held) if held.leaving || held.busy => Err(Need::Turn),
            Some(held) if held.mode >= mode && held.lasts() => {
                match self.lent.get(&unit).filter(|_| mode == Mode::Write) {
                    Some(lent) if lent.is_changing() => return Err(Need::Turn),
                    Some(lent) if lent.is_lent() => return Err(Need::Loans(unit)),
                    _ => {}
                }
                (held.used, held.last, held.read) = (true, base::time::monotonic(), None);
                Ok(held)
            }
            _ if self.contended.is_direct(unit) => Err(Need::Direct(unit)),
            _ if is_loose => Err(Need::Direct(unit)),
            _ => Err(Need::Lease(unit, mode)),
        }
    }

    /// A row that leases cover.
    pub fn value(&mut self, key: &Key) -> Result<Option<Value>, Need> {
        let Some(unit) = self.unit_of(key)? else { return Err(Need::Engine(Vec::new())) };
        if let Err(need) = self.held(unit, Mode::Read) {
            if let Need::Lease(..) = need {
                self.note_asked(unit, key);
            }
            return Err(need);
        }
        let held = self.units.get(&unit).ok_or(Need::Turn)?;
        if let Some(value) = held.rows.get(key) {
            return Ok(value.clone());
        }
        if key.tag() == tags::DENTRY && held.has_names {
            return Ok(None);
        }
        if key.tag() == tags::DENTRY && held.is_bare {
            return Err(Need::Names(unit));
        }
        if key.tag() != tags::DENTRY && key.tag() != tags::INODE && self.is_absent(unit, key)? {
            return Ok(None);
        }
        Err(Need::Rows(unit, vec![key.clone()]))
    }

    /// Several rows, none of a contended unit.
    pub fn values(&mut self, keys: &[Key]) -> Result<Vec<Option<Value>>, Need> {
        self.places(keys)?.into_iter().map(|place| place.map_err(Need::Direct)).collect()
    }

    /// Several rows. What is missing for them is asked for together.
    pub fn places(&mut self, keys: &[Key]) -> Result<Vec<Place>, Need> {
        let (mut values, mut need) = (Vec::with_capacity(keys.len()), None);
        for key in keys {
            match (self.value(key), &mut need) {
                (Ok(value), _) => values.push(Ok(value)),
                (Err(Need::Direct(unit)), _) => values.push(Err(unit)),
                (Err(first), None) => need = Some(first),
                (Err(Need::Rows(unit, rows)), Some(Need::Rows(other, all))) if unit == *other => {
                    all.extend(rows.into_iter().filter(|key| !all.contains(key)).collect::<Vec<_>>());
                }
                (Err(Need::Homes(inos)), Some(Need::Homes(all))) => all.extend(inos),
                (Err(_), Some(_)) => {}
            }
        }
        need.map_or(Ok(values), Err)
    }

    /// Whether a row that is not remembered is known to be absent, by what the inode's record says.
    fn is_absent(&self, unit: Ino, key: &Key) -> Result<bool, Need> {
        let ino = Ino(key.number().unwrap_or_default());
        let inode = Key::inode(ino);
        let Some(home) = self.homes.get(&ino).filter(|home| home.unit == unit) else {
            // Without the record it is not known whether the inode belongs to this unit.
            return Err(Need::Rows(unit, vec![inode]));
        };
        if home.whole {
            return Ok(true);
        }
        let row = self.units.get(&unit).and_then(|unit| unit.rows.get(&inode)).cloned().flatten();
        let Some(record) = row.and_then(|row| InodeRecord::decode(&row).ok()) else { return Ok(false) };
        Ok(match key.tag() {
            tags::EXTENTS => !record.is_file() || record.stored == 0 || record.has(InodeRecord::INLINE),
            tags::INLINE => !record.has(InodeRecord::INLINE) && record.kind() != mode::S_IFLNK,
            tags::XATTR => !record.has(InodeRecord::HAS_XATTRS),
            tags::ORPHAN | tags::TRASH => record.is_dir() || record.nlink > 0,
            tags::DIR_CHANGED | tags::SUBDIRS => !record.is_dir(),
            _ => false,
        })
    }

    /// At most `limit` rows of a range.
    pub fn range(&mut self, range: &KeyRange, limit: usize) -> Result<Rows, Need> {
        let Some((tag, ino)) = one_inode(range) else { return Err(Need::Engine(Vec::new())) };
        let unit = match tag {
            tags::DENTRY => {
                let held = self.held(ino, Mode::Read)?;
                if !held.has_names {
                    return Err(self.names_of(ino));
                }
                ino
            }
            tags::EXTENTS | tags::XATTR => {
                let unit = self.home(ino)?;
                self.held(unit, Mode::Read)?;
                if !self.is_absent(unit, &range.start)? {
                    let large = self.homes.get(&ino).is_some_and(|home| home.large);
                    return Err(if large { Need::Engine(vec![unit]) } else { Need::Whole(unit, ino) });
                }
                unit
            }
            _ => return Err(Need::Engine(Vec::new())),
        };
        let rows = &self.units.get(&unit).ok_or(Need::Turn)?.rows;
        let there = rows.range(range.start.clone()..range.end.clone());
        let found = there.filter_map(|(key, value)| Some((key.clone(), value.clone()?)));
        let found: Rows = found.take(limit).collect();
        if tag == tags::DENTRY {
            found.iter().for_each(|(_, value)| self.hint_name(ino, value));
            if limit > 1 {
                self.note_listed(ino);
            }
        }
        Ok(found)
    }

    /// Remembers a row that was read under the lease of a unit. A row of an inode that belongs to another
    /// unit is not remembered.
    pub fn install(&mut self, unit: Ino, key: Key, value: Option<Value>) {
        if key.tag() == tags::INODE {
            let ino = Ino(key.number().unwrap_or_default());
            if self.homes.get(&ino).is_some_and(|home| home.unit != unit) {
                // It is in another unit of this node, and the engine may not know it yet.
                return;
            }
            let record = value.as_deref().map(InodeRecord::decode).and_then(Result::ok);
            let home = home_of(ino, record.as_ref());
            if home != unit {
                self.hint(ino, home);
                return;
            }
            self.homes.entry(ino).or_insert(Home { unit, whole: false, large: false }).unit = unit;
        }
        let Some(held) = self.units.get_mut(&unit) else { return };
        // What was written here since is newer.
        held.rows.entry(key).or_insert(value);
    }

    /// Remembers a row as [`State::install`] does, of a read that other operations went on beside.
    pub fn install_read(&mut self, unit: Ino, key: Key, value: Option<Value>, read: Read) {
        let is_name = key.tag() == tags::DENTRY;
        if is_name || !self.has_moved(Ino(key.number().unwrap_or_default()), unit, read) {
            self.install(unit, key, value);
        }
    }

    /// Whether what a read found of an inode must not be remembered in a unit, because the inode has moved.
    pub fn has_moved(&self, ino: Ino, unit: Ino, read: Read) -> bool {
        let is_home = self.homes.get(&ino).is_some_and(|home| home.unit == unit);
        self.moves.since(read, ino, is_home)
    }

    /// An operation reads rows of these units. Until it has them and has used them, the leases are not given
    /// back ([`super::recall`]).
    pub fn begin_reading(&mut self, units: &[Ino]) -> Read {
        units.iter().for_each(|unit| *self.reading.entry(*unit).or_default() += 1);
        self.moves.begin(self.queue.done)
    }

    /// Notes that an operation has the rows of these units that it read.
    pub fn end_reading(&mut self, units: &[Ino], read: Read) {
        self.moves.end(read);
        let now = base::time::monotonic();
        for unit in units {
            if let Some(count) = self.reading.get_mut(unit) {
                *count -= 1;
                if *count == 0 {
                    self.reading.remove(unit);
                }
            }
            self.units.get_mut(unit).into_iter().for_each(|held| held.read = Some(now));
        }
    }

    /// Notes that a directory has too many names to be remembered.
    pub fn note_large(&mut self, unit: Ino) {
        if self.large.len() >= LARGE_MAX {
            self.large.clear();
        }
        self.large.insert(unit, base::time::monotonic());
    }

    /// Whether a directory had too many names a short time ago.
    pub fn is_large(&self, unit: Ino) -> bool {
        self.large.get(&unit).is_some_and(|seen| seen.elapsed() < LARGE)
    }

    /// Forgets a unit.
    pub fn forget(&mut self, unit: Ino) -> Option<Unit> {
        let held = self.units.remove(&unit)?;
        for key in held.rows.keys().filter(|key| key.tag() == tags::INODE) {
            let ino = Ino(key.number().unwrap_or_default());
            if self.homes.get(&ino).is_some_and(|home| home.unit == unit) {
                self.homes.remove(&ino);
                self.hint(ino, unit);
            }
        }
        Some(held)
    }

    /// Forgets everything: the session has ended, or the engine has forgotten something.
    pub fn forget_all(&mut self) {
        self.sessions += 1;
        self.recalls += 1;
        self.units.clear();
        self.homes.clear();
        self.forget_contended();
        self.ahead.clear();
        self.loose.0.clear();
        self.hints = Default::default();
    }
}

/// The kind of row and the inode, if a range covers rows of one inode only.
fn one_inode(range: &KeyRange) -> Option<(u8, Ino)> {
    let (tag, first, last) = (range.start.tag(), range.start.number()?, range.end.number()?);
    let ends_there = last == first || last == first.checked_add(1)? && range.end.as_bytes().len() == 9;
    (range.end.tag() == tag && ends_there).then_some((tag, Ino(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_one_inode_is_recognised() {
        let ino = Ino(7);
        for (range, of) in [
            (Key::dentries(ino, 0), Some((tags::DENTRY, ino))),
            (Key::dentries(ino, 99), Some((tags::DENTRY, ino))),
            (
                KeyRange { start: Key::dentries(ino, 5).start, end: Key::dentries(ino, 6).start },
                Some((tags::DENTRY, ino)),
            ),
            (Key::xattrs(ino), Some((tags::XATTR, ino))),
            (Key::extents_from(ino, 3), Some((tags::EXTENTS, ino))),
            (Key::all_extents_from(ino, 3), None),
            (Key::orphans(), None),
            (Key::kind(tags::VOLUME), None),
        ] {
            assert_eq!(one_inode(&range), of, "{range:?}");
        }
        let two = KeyRange { start: Key::dentries(ino, 0).start, end: Key::dentries(Ino(8), 5).start };
        assert_eq!(one_inode(&two), None);
    }
}
