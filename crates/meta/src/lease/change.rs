//! A commit under this node's leases: what it needs, whether its checks hold, and what it makes of the rows
//! in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use base::Ino;
use hashbrown::HashMap;

use super::journal::record::Basis;
use super::queue::{added, raised};
use super::row::{Holder, Mode, Row};
use super::state::{Home, Need, State, Unit, home_of};
use crate::key::{Key, tags};
use crate::record::InodeRecord;
use crate::shared::TOTALS;
use crate::store::{Commit, CommitError, Expect, Value};

/// What a commit touches.
#[derive(Default)]
pub(super) struct Survey {
    /// Units whose rows it writes, without those that it makes.
    pub writes: BTreeSet<Ino>,
    /// Units whose rows it checks.
    pub reads: BTreeSet<Ino>,
    /// New inodes, and the units that they belong to.
    pub born: HashMap<Ino, Ino>,
    /// Inodes that move to another unit: the inode, from, to.
    pub moved: Vec<(Ino, Ino, Ino)>,
    /// Contended units whose rows it writes or checks, with their lease rows. They are in neither of the
    /// others.
    pub contended: BTreeMap<Ino, Value>,
    /// The commit rests on rows, or writes rows, that no lease covers. So only the engine can decide.
    pub is_foreign: bool,
}

/// The checks that failed, as the engines return them.
pub(super) type Failed = (Vec<(Key, Option<Value>)>, bool);

/// The leases that a change rests on, the units that it made, and what it checks.
pub(super) type OwnBasis = (Vec<(Ino, Value)>, Vec<Ino>, Vec<(Key, Expect)>);

/// Whether a commit writes rows that leases cover. The others go to the engine as they are.
pub(super) fn is_covered(commit: &Commit) -> bool {
    let puts = commit.puts.iter().map(|(key, _)| key);
    let counters = commit.adds.iter().map(|(key, _)| key).chain(commit.maxs.iter().map(|(key, _)| key));
    puts.chain(&commit.dels).chain(counters).any(is_of_inode)
}

/// Rows without a lease that a batch may write: no commit that rests on them is decided in memory.
fn is_free(key: &Key) -> bool {
    match key.tag() {
        tags::PACK_LIVE | tags::PACK_USER | tags::CONTENT | tags::QUOTA_USED => true,
        tags::VOLUME => TOTALS.iter().any(|name| key.as_bytes().get(1..) == Some(name.as_bytes())),
        _ => false,
    }
}

fn number(key: &Key) -> Ino {
    Ino(key.number().unwrap_or_default())
}

impl State {
    /// Finds what a commit touches, and asks for the leases that it needs.
    pub fn survey(&mut self, commit: &Commit) -> Result<Survey, Need> {
        let mut survey = Survey::default();
        for (key, value) in commit.puts.iter().filter(|(key, _)| key.tag() == tags::INODE) {
            let ino = number(key);
            let record = InodeRecord::decode(value).ok();
            let home = home_of(ino, record.as_ref());
            let is_new =
                !self.homes.contains_key(&ino) && commit.checks.iter().all(|(other, _)| other != key);
            if is_new {
                survey.born.insert(ino, home);
                if home != ino {
                    survey.writes.insert(home);
                }
                continue;
            }
            let before = self.home(ino)?;
            if before != home {
                survey.writes.insert(home);
                survey.moved.push((ino, before, home));
            }
        }
        let written = commit.puts.iter().map(|(key, _)| key).chain(&commit.dels);
        let counted = commit.adds.iter().map(|(key, _)| key).chain(commit.maxs.iter().map(|(key, _)| key));
        for key in written.chain(counted) {
            match self.unit_or_born(key, &survey)? {
                Some(unit) => _ = survey.writes.insert(unit),
                None => survey.is_foreign |= !is_free(key) && !survey.born.contains_key(&number(key)),
            }
        }
        for key in
            commit.checks.iter().map(|(key, _)| key).chain(commit.empty.iter().map(|range| &range.start))
        {
            match self.unit_or_born(key, &survey)? {
                Some(unit) => _ = survey.reads.insert(unit),
                None => survey.is_foreign |= !survey.born.contains_key(&number(key)),
            }
        }
        for range in &commit.empty {
            // A directory with very many names is not remembered.
            survey.is_foreign |= matches!(self.range(range, 1), Err(Need::Engine(_)));
        }
        for unit in &survey.writes {
            if let Err(need) = self.held(*unit, Mode::Write) {
                survey.contended.extend([self.contended_in(need)?]);
            }
        }
        for unit in &survey.reads {
            match self.held(*unit, Mode::Read).map(|held| held.loan.is_some()) {
                Ok(false) => {}
                // The loan may be over before the commit is stored.
                Ok(true) => return Err(Need::Lease(*unit, Mode::Write)),
                Err(need) => survey.contended.extend([self.contended_in(need)?]),
            }
        }
        let Survey { writes, reads, contended, .. } = &mut survey;
        writes.retain(|unit| !contended.contains_key(unit));
        reads.retain(|unit| !contended.contains_key(unit));
        survey.is_foreign |= !survey.contended.is_empty();
        Ok(survey)
    }

    /// A contended unit and its lease row. It is no need of a commit, which the engine decides then. No
    /// commit rests on a unit that is only read without a lease.
    fn contended_in(&self, need: Need) -> Result<(Ino, Value), Need> {
        let Need::Direct(unit) = need else { return Err(need) };
        self.contended(unit).map(|row| (unit, row.clone())).ok_or(Need::Lease(unit, Mode::Write))
    }

    /// The unit of a row that exists already. `None`: no lease covers it, or the commit makes its unit.
    pub fn unit_or_born(&self, key: &Key, survey: &Survey) -> Result<Option<Ino>, Need> {
        match survey.born.get(&number(key)) {
            Some(home) if is_of_inode(key) => Ok(Some(*home).filter(|home| *home != number(key))),
            _ => self.unit_of(key),
        }
    }

    /// Whether the checks of a commit hold, by what is remembered.
    pub fn verify(&mut self, commit: &Commit, survey: &Survey) -> Result<Result<(), Failed>, Need> {
        let mut failed = Vec::new();
        for (key, expect) in &commit.checks {
            let is_new = survey.born.contains_key(&number(key)) && is_of_inode(key);
            let value = match is_new {
                true => None,
                false => match self.value(key) {
                    Err(Need::Rows(..)) => return Err(self.missing(commit, survey)),
                    value => value?,
                },
            };
            let holds = match expect {
                Expect::Is(expected) => value.as_ref() == Some(expected),
                Expect::Absent => value.is_none(),
                Expect::Exists => value.is_some(),
            };
            if !holds {
                failed.push((key.clone(), value));
            }
        }
        let mut not_empty = false;
        for range in &commit.empty {
            not_empty |= !self.range(range, 1)?.is_empty();
        }
        if failed.is_empty() && !not_empty { Ok(Ok(())) } else { Ok(Err((failed, not_empty))) }
    }

    /// All rows that are missing to verify a commit: they are read together. A clone checks a thousand rows,
    /// and the lease may be wanted by another node.
    fn missing(&mut self, commit: &Commit, survey: &Survey) -> Need {
        let is_new = |key: &Key| survey.born.contains_key(&number(key)) && is_of_inode(key);
        let covered = commit.checks.iter().map(|(key, _)| key).filter(|key| is_of_inode(key) && !is_new(key));
        let keys: Vec<Key> = covered.cloned().collect();
        self.values(&keys).err().unwrap_or(Need::Turn)
    }

    /// The rows of counters that a commit changes must be known before it is applied.
    pub fn know_counters(&mut self, commit: &Commit, survey: &Survey) -> Result<(), Need> {
        let counters = commit.adds.iter().map(|(key, _)| key).chain(commit.maxs.iter().map(|(key, _)| key));
        for key in counters {
            let unit = self.unit_or_born(key, survey)?;
            if unit.is_some_and(|unit| !survey.contended.contains_key(&unit)) {
                self.value(key)?;
            }
        }
        Ok(())
    }

    /// Makes a commit's changes in memory. Returns the units that it made.
    pub fn apply(&mut self, commit: &Commit, survey: &Survey, me: Holder) -> Vec<Ino> {
        let mut made = Vec::new();
        for (ino, home) in &survey.born {
            if ino == home {
                let row = Row { mode: Mode::Write, seq: Row::next_seq(None), holders: vec![me] };
                let mut unit = Unit::new(Mode::Write, row.seq, row.encode());
                (unit.has_names, unit.has_dirs, unit.used) = (true, true, true);
                // What is true of the directory's maker is true of the directory.
                let parent =
                    survey.writes.iter().filter_map(|unit| self.units.get(unit)).map(|unit| unit.since);
                unit.since = parent.min().unwrap_or(unit.since);
                self.units.insert(*ino, unit);
                made.push(*ino);
            }
            self.homes.insert(*ino, Home { unit: *home, whole: true, large: false });
        }
        commit.puts.iter().for_each(|(key, value)| self.set(key, |_| Some(value.clone())));
        // A directory that was in the trash may be a unit again, and so may a file that gets a second name.
        let there = |unit: &Ino| {
            let is_home = |value: &Value| home_of(*unit, InodeRecord::decode(value).ok().as_ref()) == *unit;
            commit.puts.iter().any(|(key, value)| *key == Key::inode(*unit) && is_home(value))
        };
        self.dead.retain(|unit| !there(unit));
        commit.dels.iter().for_each(|key| self.set(key, |_| None));
        commit.adds.iter().for_each(|(key, by)| self.set(key, |value| added(value, *by)));
        commit.maxs.iter().for_each(|(key, to)| self.set(key, |value| raised(value, *to)));
        survey.moved.iter().for_each(|(ino, from, to)| self.relocate(*ino, *from, *to));
        // A new file that got its first name. As long as it was a unit it had a lease row, from its birth on.
        // So no node can have seen it as a unit without one, and the row may go.
        let is_named = |ino: &Ino| commit.dels.contains(&Key::orphan(*ino));
        let named = survey.moved.iter().filter(|(ino, from, _)| from == ino && is_named(ino));
        self.dead.extend(named.map(|(ino, ..)| *ino));
        let collected = commit.dels.iter().filter(|key| key.tag() == tags::ORPHAN);
        collected.for_each(|key| self.note_dead(number(key)));
        made
    }

    /// Adds a change to the queue, and to the journal before anything is told of it. `basis`: the leases that
    /// it rests on, the units that it made, and what it checks. False: the journal cannot take it.
    pub fn enqueue(&mut self, commit: &Commit, basis: OwnBasis, me: Holder, now: Instant) -> bool {
        let (leases, made, checks) = basis;
        let lease = |ino: Ino| self.units.get(&ino).map(|unit| (ino, unit.lease.clone()));
        let made: Vec<(Ino, Value)> = made.into_iter().filter_map(lease).collect();
        if let Some(journal) = &mut self.journal {
            let basis = Basis { leases: &leases, made: &made, checks: &checks };
            journal.prepare(me, commit, &basis);
        }
        self.queue.add(commit, leases, checks, now);
        made.iter().for_each(|(ino, lease)| self.queue.filling.make(*ino, lease));
        let before = self.stored.filter(|(holder, _)| *holder == me).map_or(0, |(_, batch)| batch);
        let (queued, done) = (self.queue.current, self.queue.done);
        // Batches are stored one after the other, so this is the number that the batch will have.
        let batch = before + (queued - done);
        self.journal.as_mut().is_none_or(|journal| journal.write(batch, queued, done))
    }

    /// An inode without a name was deleted, or got a name. If nothing is left of the unit, its lease row goes
    /// too.
    fn note_dead(&mut self, ino: Ino) {
        let Ok(unit) = self.home(ino) else { return };
        let gone = |key: Key| self.units.get(&unit).is_some_and(|held| held.rows.get(&key) == Some(&None));
        let trash = self.units.get(&unit).and_then(|held| held.rows.get(&Key::trash(unit)));
        let in_trash = trash.is_some_and(Option::is_some);
        if gone(Key::inode(unit)) && gone(Key::orphan(unit)) && !in_trash {
            self.dead.push(unit);
        }
    }

    /// Changes a row in memory, if it belongs to a unit that this node has.
    fn set(&mut self, key: &Key, change: impl FnOnce(Option<&[u8]>) -> Option<Value>) {
        let Ok(Some(unit)) = self.unit_of(key) else { return };
        let Some(held) = self.units.get_mut(&unit) else { return };
        let value = change(held.rows.get(key).and_then(|value| value.as_deref()));
        if value.is_none() && held.has_names && key.tag() == tags::DENTRY {
            held.rows.remove(key);
        } else {
            held.rows.insert(key.clone(), value);
        }
    }

    /// Notes which inodes a change has moved. `batch`: the one that the change is in, or 0 if the engine has
    /// it.
    pub fn note_moved(&mut self, survey: &Survey, batch: u64) {
        let done = self.queue.done;
        survey.moved.iter().for_each(|(ino, ..)| self.moves.note(*ino, batch, done));
    }

    /// The rows of an inode follow it to another unit.
    fn relocate(&mut self, ino: Ino, from: Ino, to: Ino) {
        let (mut moved, mut told, mut until) = (Vec::new(), false, None);
        if let Some(unit) = self.units.get_mut(&from) {
            for tag in [tags::INODE, tags::EXTENTS, tags::INLINE, tags::XATTR, tags::ORPHAN, tags::TRASH] {
                let start = Key::from_bytes(&[&[tag][..], &ino.0.to_be_bytes()].concat());
                let end = Key::from_bytes(&[&[tag][..], &(ino.0 + 1).to_be_bytes()].concat());
                moved.extend(unit.rows.range(start..end).map(|(key, value)| (key.clone(), value.clone())));
            }
            moved.iter().for_each(|(key, _)| _ = unit.rows.remove(key));
            // What the kernel may keep of it, it may keep still.
            (told, until) = (unit.told.remove(&ino), unit.names_until);
        }
        if let Some(unit) = self.units.get_mut(&to) {
            unit.rows.extend(moved);
            if told {
                unit.told.insert(ino);
            }
            unit.names_until = unit.names_until.max(until);
        }
        if let Some(home) = self.homes.get_mut(&ino) {
            home.unit = to;
        }
    }

    /// The lease rows of units that are written. They stay as they are as long as this node has the leases.
    pub fn leases_of(&self, units: &BTreeSet<Ino>) -> Vec<(Ino, Value)> {
        units.iter().filter_map(|unit| Some((*unit, self.units.get(unit)?.lease.clone()))).collect()
    }

    /// The checks of rows that this node has a lease for reading on. Another node's lease beside it changes
    /// the lease row, so these rows are checked themselves.
    pub fn checks_of_read(&self, commit: &Commit) -> Vec<(Key, Expect)> {
        let is_read = |key: &Key| {
            let unit = self.unit_of(key).ok().flatten().and_then(|unit| self.units.get(&unit));
            unit.is_some_and(|unit| unit.mode == Mode::Read)
        };
        commit.checks.iter().filter(|(key, _)| is_read(key)).cloned().collect()
    }
}

/// Whether a row belongs to the inode in its key. These are the rows that leases cover.
pub(super) fn is_of_inode(key: &Key) -> bool {
    let tag = key.tag();
    matches!(tag, tags::INODE | tags::DENTRY | tags::EXTENTS | tags::INLINE | tags::XATTR)
        || matches!(tag, tags::DIR_CHANGED | tags::SUBDIRS | tags::ORPHAN | tags::TRASH)
}

/// A refusal of the engines' form.
pub(super) fn conflict((rows, not_empty): Failed) -> CommitError {
    CommitError::Conflict { rows, not_empty }
}
