//! Reads of contended units ([`super::contend`]): from the engine, with the lease rows beside them. Units of
//! which no lease can be had, because the engine has no space ([`super::space`]), are read in the same way.
//!
//! The engine gives the rows and the lease rows as of one moment. If the units were contended then, every
//! acknowledged change of them was in the engine, so the answer was true at that moment. Otherwise it is not
//! used, and the operation looks again.
//!
//! **An inode may have moved to another unit.** So the record of each inode is read beside its rows, and says
//! which unit it belongs to.
//!
//! **An answer with rows of leased units too** was true at one moment, if those are the same before and after
//! the engine was asked. If they change each time, they wait for one question. A name in a contended
//! directory and a directory that it stands for are an exception: the directory's attributes may be newer
//! than the name, as they are for a program that first looks a path up.
//!
//! **The kernel keeps nothing of such an answer**: it counts as a recall ([`super::promise`]).

use std::collections::BTreeMap;
use std::time::Instant;

use base::Ino;
use hashbrown::HashMap;

use super::Core;
use super::row::Row;
use super::state::{Need, Place, State, home_of};
use crate::key::{Key, KeyRange, tags};
use crate::record::{Dentry, InodeRecord};
use crate::store::{Linked, Rows, StoreError, Value, linked_keys};

/// After so many questions, the rows of leased units wait for the answer.
const TRIES: u32 = 3;
/// How many rows of a range are read at once: fewer than any engine gives.
const PAGE: usize = 5_000;

/// Leased units that do not change while the engine is asked.
struct Waiting<'a>(&'a Core, u64, Vec<Ino>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Waiting(core, sessions, units) = self;
        core.state.lock().end_busy(units, *sessions);
        core.changed.notify_all();
    }
}

/// What must be beside the rows of a unit that is read without a lease.
enum Beside {
    /// The lease row of a contended unit.
    Contended(Value),
    /// The row that was there first.
    Same,
}

/// The leases of some rows, or loans.
type Stamps = Vec<Option<(u64, u64)>>;

/// What is known of a row that leads to others.
enum First {
    /// All that was asked for.
    All(Linked),
    /// The row, or that it belongs to a contended unit. Others may too.
    Some(Option<Value>),
    /// All that is known so far belongs to one contended unit, which has this lease row.
    Direct(Ino, Value),
}

impl State {
    /// `None`: the unit needs a lease.
    fn beside(&self, unit: Ino) -> Option<Beside> {
        let contended = self.contended(unit).cloned().map(Beside::Contended);
        contended.or_else(|| self.is_loose(unit).then_some(Beside::Same))
    }

    /// Whether the lease row that was read beside the rows of a unit is as expected.
    fn is_sound(&mut self, unit: Ino, beside: &Beside, lease: Option<&Value>) -> bool {
        match beside {
            Beside::Contended(row) => self.is_still(unit, row, lease),
            Beside::Same => self.is_still_loose(unit, lease),
        }
    }

    fn unit_of_leased(&self, key: &Key) -> Option<Ino> {
        self.unit_of(key).ok().flatten().filter(|unit| self.units.contains_key(unit))
    }

    fn stamps(&self, keys: &[Key], places: &[Place]) -> Stamps {
        let leased = keys.iter().zip(places).filter(|(_, place)| place.is_ok());
        let stamp = |(key, _): (&Key, &Place)| {
            let held = self.units.get(&self.unit_of_leased(key)?)?;
            Some((held.seq, held.loan.map_or(0, |loan| loan.number)))
        };
        leased.map(stamp).collect()
    }

    /// Makes the leased units of these rows wait.
    fn make_wait(&mut self, keys: &[Key], places: &[Place]) -> Vec<Ino> {
        let leased = keys.iter().zip(places).filter(|(_, place)| place.is_ok());
        let mut units: Vec<Ino> = leased.filter_map(|(key, _)| self.unit_of_leased(key)).collect();
        units.sort_unstable();
        units.dedup();
        units.iter().for_each(|unit| self.units.get_mut(unit).into_iter().for_each(|unit| unit.busy = true));
        units
    }

    fn first(&mut self, from: &Key, also: &[Key], tags: &[u8]) -> Result<First, Need> {
        let first = match self.value(from) {
            Err(Need::Direct(unit)) => {
                let is_one = also.iter().all(|key| matches!(self.unit_of(key), Ok(Some(of)) if of == unit));
                let row = self.contended(unit).filter(|_| is_one && from.tag() == tags::DENTRY);
                return Ok(row.map_or(First::Some(None), |row| First::Direct(unit, row.clone())));
            }
            first => first?,
        };
        let parent = Ino(from.number().unwrap_or_default());
        let linked = match &first {
            Some(value) => {
                self.hint_name(parent, value);
                linked_keys(value, tags)
            }
            None => Vec::new(),
        };
        match self.values(also).and_then(|also| Ok((also, self.values(&linked)?))) {
            Err(Need::Direct(_)) => Ok(First::Some(first)),
            Err(need) => Err(need),
            Ok((also, _)) if first.is_none() => {
                Ok(First::All(Linked { from: None, also, linked: vec![None; tags.len()] }))
            }
            Ok((also, linked)) => Ok(First::All(Linked { from: first, also, linked })),
        }
    }
}

impl Core {
    /// Several rows that leases cover, as of one moment.
    pub(super) fn values(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        let began = base::time::monotonic();
        for tries in 0.. {
            let (places, around) = self.with(began, |state| {
                let places = state.places(keys)?;
                let is_direct = places.iter().any(Result::is_err);
                let around = is_direct.then(|| {
                    let waits = tries >= TRIES;
                    let units = if waits { state.make_wait(keys, &places) } else { Vec::new() };
                    (state.stamps(keys, &places), waits.then(|| Waiting(self, state.sessions, units)))
                });
                Ok((places, around))
            })?;
            let Some((stamps, waiting)) = around else {
                return Ok(places.into_iter().map(Result::unwrap_or_default).collect());
            };
            let direct =
                keys.iter().zip(&places).filter_map(|(key, place)| Some((key, *place.as_ref().err()?)));
            let direct: Vec<(&Key, Ino)> = direct.collect();
            let Some(found) = self.values_direct(&direct)? else { continue };
            if waiting.is_none() && direct.len() < keys.len() {
                let mut state = self.state.lock();
                let again = state.places(keys).ok().filter(|again| *again == places);
                if again.is_none_or(|again| state.stamps(keys, &again) != stamps) {
                    continue;
                }
            }
            let mut found = found.into_iter();
            let value = |place: Place| place.unwrap_or_else(|_| found.next().flatten());
            return Ok(places.into_iter().map(value).collect());
        }
        Ok(Vec::new())
    }

    /// Rows of units that are read without a lease. `None`: a unit needs one now, or a row belongs to another
    /// unit.
    pub(super) fn values_direct(
        &self,
        keys: &[(&Key, Ino)],
    ) -> Result<Option<Vec<Option<Value>>>, StoreError> {
        if !base::thread::may_wait() {
            return Err(StoreError::Waits);
        }
        let (mut units, mut inos) = (BTreeMap::new(), BTreeMap::new());
        {
            let state = self.state.lock();
            for (key, unit) in keys {
                let Some(beside) = state.beside(*unit) else { return Ok(None) };
                units.insert(*unit, beside);
                if key.tag() != tags::DENTRY {
                    inos.insert(Ino(key.number().unwrap_or_default()), *unit);
                }
            }
        }
        let beside = units.keys().flat_map(|unit| [Key::lease(*unit), Key::dir_changed(*unit)]);
        let mut asked: Vec<Key> = beside.chain(inos.keys().map(|ino| Key::inode(*ino))).collect();
        asked.extend(keys.iter().map(|(key, _)| (*key).clone()));
        asked.sort_unstable();
        asked.dedup();
        let values = self.inner.get_many(&asked)?;
        self.term.check()?;
        let found: HashMap<Key, Option<Value>> = asked.into_iter().zip(values).collect();
        let of = |key: &Key| found.get(key).and_then(Option::as_ref);
        let mut state = self.state.lock();
        state.recalls += 1;
        let mut is_sound = true;
        for (unit, beside) in &units {
            is_sound &= state.is_sound(*unit, beside, of(&Key::lease(*unit)));
            state.note_use(*unit, of(&Key::dir_changed(*unit)));
        }
        for (ino, unit) in inos {
            let home = home_in(ino, of(&Key::inode(ino)));
            if home != unit {
                state.correct(ino, home);
                is_sound = false;
            }
        }
        for (key, unit) in keys.iter().filter(|(key, _)| is_sound && key.tag() == tags::DENTRY) {
            of(key).into_iter().for_each(|value| state.hint_name(*unit, value));
        }
        Ok(is_sound.then(|| keys.iter().map(|(key, _)| of(key).cloned()).collect()))
    }

    /// Rows of a range that covers one inode of a unit that is read without a lease. `None`: look again.
    pub(super) fn range_direct(
        &self,
        unit: Ino,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Option<Rows>, StoreError> {
        if !base::thread::may_wait() {
            return Err(StoreError::Waits);
        }
        let Some(beside) = self.state.lock().beside(unit) else { return Ok(None) };
        let (ino, is_list) =
            (Ino(range.start.number().unwrap_or_default()), range.start.tag() == tags::DENTRY);
        let keys = [Key::lease(unit), Key::dir_changed(unit), Key::inode(ino)];
        let (mut rows, mut rest, mut record) = (Rows::new(), range.clone(), None);
        loop {
            let page = PAGE.min(limit - rows.len());
            let looked = self.inner.look(&keys, std::slice::from_ref(&rest), page)?;
            self.term.check()?;
            let [lease, changed, inode] = <[_; 3]>::try_from(looked.rows).unwrap_or_default();
            let mut more = looked.ranges.into_iter().next().unwrap_or_default();
            more.truncate(page);
            let mut state = self.state.lock();
            state.recalls += 1;
            if !state.is_sound(unit, &beside, lease.as_ref()) {
                return Ok(None);
            }
            state.note_use(unit, changed.as_ref());
            let home = home_in(ino, inode.as_ref());
            if !is_list && home != unit {
                state.correct(ino, home);
                return Ok(None);
            }
            // A file that changed between two pages is read again. A list says of each name what was true
            // when it was read.
            if !is_list && record.replace(inode.clone()).is_some_and(|before| before != inode) {
                return Ok(None);
            }
            if is_list {
                more.iter().for_each(|(_, value)| state.hint_name(unit, value));
            }
            let is_last = more.len() < page;
            rows.extend(more);
            match rows.last() {
                Some((last, _)) if !is_last && rows.len() < limit => rest.start = last.successor(),
                _ => return Ok(Some(rows)),
            }
        }
    }

    /// See [`crate::MetaStore::get_linked`].
    pub(super) fn linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        let began = base::time::monotonic();
        loop {
            let first = match self.with(began, |state| state.first(from, also, tags))? {
                First::All(linked) => return Ok(linked),
                First::Direct(unit, row) => {
                    match self.linked_direct((unit, row), (from, also, tags), began)? {
                        Some(linked) => return Ok(linked),
                        None => continue,
                    }
                }
                First::Some(Some(first)) => Some(first),
                First::Some(None) => self.values(std::slice::from_ref(from))?.pop().flatten(),
            };
            let linked = first.as_ref().map_or_else(Vec::new, |value| linked_keys(value, tags));
            let keys: Vec<Key> = std::iter::once(from).chain(also).chain(&linked).cloned().collect();
            let mut values = self.values(&keys)?.into_iter();
            if values.next().flatten() != first {
                continue;
            }
            let also: Vec<Option<Value>> = values.by_ref().take(also.len()).collect();
            let linked = if first.is_some() { values.collect() } else { vec![None; tags.len()] };
            return Ok(Linked { from: first, also, linked });
        }
    }

    /// A name in a contended directory, and what it stands for, in one question. `None`: look again.
    fn linked_direct(
        &self,
        (unit, row): (Ino, Value),
        (from, also, tags): (&Key, &[Key], &[u8]),
        began: Instant,
    ) -> Result<Option<Linked>, StoreError> {
        if !base::thread::may_wait() {
            return Err(StoreError::Waits);
        }
        let beside = [also, &[Key::lease(unit), Key::dir_changed(unit)]].concat();
        let asked = [tags, &[tags::INODE, tags::LEASE]].concat();
        let mut found = self.inner.get_linked(from, &beside, &asked)?;
        self.term.check()?;
        let (changed, lease) = (found.also.pop().flatten(), found.also.pop().flatten());
        let (lease_of_child, inode) = (found.linked.pop().flatten(), found.linked.pop().flatten());
        let mut state = self.state.lock();
        state.recalls += 1;
        if !state.is_still(unit, &row, lease.as_ref()) {
            return Ok(None);
        }
        state.note_use(unit, changed.as_ref());
        let Some(child) = found.from.as_deref().and_then(|value| Dentry::decode(value).ok()) else {
            return Ok(Some(found));
        };
        let home = home_in(child.ino, inode.as_ref());
        if home == unit {
            state.correct(child.ino, unit);
            return Ok(Some(found));
        }
        if let Some(lease) = lease_of_child.filter(|lease| home == child.ino && Row::is_contended(lease)) {
            state.correct(child.ino, home);
            state.note_contended(home, &lease);
            return Ok(Some(found));
        }
        state.correct(child.ino, home);
        let keys = found.from.as_deref().map_or_else(Vec::new, |value| linked_keys(value, &asked));
        match state.values(&keys[..keys.len() - 1]) {
            // If it has been removed, the name was too.
            Ok(values) if values.last().is_some_and(Option::is_some) => {
                found.linked = values;
                found.linked.pop();
                Ok(Some(found))
            }
            Ok(_) => Ok(None),
            Err(Need::Direct(other)) if state.is_loose(other) => Ok(Some(found)),
            Err(Need::Direct(other)) => {
                state.note_leased(other);
                Ok(None)
            }
            Err(need) => {
                drop(state);
                self.meet(need, began)?;
                Ok(None)
            }
        }
    }
}

/// The unit of an inode by its row.
fn home_in(ino: Ino, row: Option<&Value>) -> Ino {
    home_of(ino, row.and_then(|row| InodeRecord::decode(row).ok()).as_ref())
}
