//! Commits that the engine decides: they rest on rows that no lease covers, or on rows of contended units
//! ([`super::contend`]).
//!
//! Nothing else happens meanwhile in the leased units that such a commit touches, and what this node has
//! changed before is in the engine first: all of it, or, while the engine has no space ([`super::space`]),
//! what these units have. The commit checks the lease rows of the leased units that it writes, and of all
//! contended ones. It is in the engine when it is acknowledged.
//!
//! **A commit may move a name from a leased directory to a contended one.** The kernel may keep that name and
//! its inode under the lease, and must not under none. So it forgets before.

use std::collections::BTreeSet;
use std::time::Instant;

use base::Ino;
use parking_lot::MutexGuard;

use super::change::{Survey, is_of_inode};
use super::promise::KeptByKernel;
use super::row::Holder;
use super::state::{State, Unit, home_of};
use super::{Core, PATIENCE};
use crate::key::{Key, tags};
use crate::record::InodeRecord;
use crate::shared::outage::counted;
use crate::store::{Commit, CommitError, Expect, StoreError, Value, in_time};

fn number(key: &Key) -> Ino {
    Ino(key.number().unwrap_or_default())
}

fn written(commit: &Commit) -> impl Iterator<Item = &Key> {
    let counters = commit.adds.iter().map(|(key, _)| key).chain(commit.maxs.iter().map(|(key, _)| key));
    commit.puts.iter().map(|(key, _)| key).chain(&commit.dels).chain(counters)
}

/// What a commit on contended units needs beside their lease rows.
struct Direct {
    /// The commit without its rows of contended units.
    local: Commit,
    /// Inodes of contended units that it touches and whose records it does not check, with their units.
    unchecked: Vec<(Ino, Ino)>,
    /// Leased units of which names, or inodes, move to contended ones.
    left: BTreeSet<Ino>,
}

impl State {
    /// `None`: an inode belongs to another unit than was guessed.
    fn direct(&mut self, commit: &Commit, survey: &Survey) -> Option<Direct> {
        let unit_of = |state: &State, key: &Key| state.unit_or_born(key, survey).ok().flatten();
        let is_direct = |state: &State, key: &Key| {
            unit_of(state, key).is_some_and(|unit| survey.contended.contains_key(&unit))
        };
        let mut local = commit.clone();
        local.puts.retain(|(key, _)| !is_direct(self, key));
        local.dels.retain(|key| !is_direct(self, key));
        local.adds.retain(|(key, _)| !is_direct(self, key));
        local.maxs.retain(|(key, _)| !is_direct(self, key));

        let mut unchecked = BTreeSet::new();
        for key in written(commit).chain(commit.checks.iter().map(|(key, _)| key)) {
            let ino = number(key);
            // Rows of names and of counters are those of a directory, which is its own unit.
            let is_own = matches!(key.tag(), tags::DENTRY | tags::DIR_CHANGED | tags::SUBDIRS);
            if !is_own && is_of_inode(key) && !survey.born.contains_key(&ino) && is_direct(self, key) {
                unchecked.insert((ino, unit_of(self, key)?));
            }
        }
        let mut is_sound = true;
        for (key, expect) in commit.checks.iter().filter(|(key, _)| key.tag() == tags::INODE) {
            let record = match expect {
                Expect::Is(row) => InodeRecord::decode(row).ok(),
                Expect::Absent => None,
                Expect::Exists => continue,
            };
            let ino = number(key);
            let home = home_of(ino, record.as_ref());
            unchecked.retain(|(other, unit)| {
                let is_wrong = *other == ino && *unit != home;
                if is_wrong {
                    self.correct(ino, home);
                    is_sound = false;
                }
                *other != ino
            });
        }
        let leaves = |(_, from, to): &&(Ino, Ino, Ino)| {
            survey.contended.contains_key(to) && !survey.contended.contains_key(from)
        };
        let mut left: BTreeSet<Ino> = survey.moved.iter().filter(leaves).map(|(_, from, _)| *from).collect();
        let is_name = |key: &&Key| key.tag() == tags::DENTRY;
        if commit.puts.iter().any(|(key, _)| is_name(&key) && is_direct(self, key)) {
            left.extend(written(&local).filter(is_name).map(number));
        }
        is_sound.then(|| Direct { local, unchecked: unchecked.into_iter().collect(), left })
    }

    /// Notes that these units are not busy any more. After another session began, they are other leases,
    /// which other commits may use.
    pub fn end_busy(&mut self, units: &[Ino], sessions: u64) {
        if self.sessions == sessions {
            units
                .iter()
                .for_each(|unit| self.units.get_mut(unit).into_iter().for_each(|unit| unit.busy = false));
        }
    }

    /// What the engine has made of a commit is made in memory too, except in contended units.
    fn apply_foreign(&mut self, local: &Commit, survey: &Survey, me: Holder) {
        let is_direct = |unit: &Ino| survey.contended.contains_key(unit);
        for (ino, home) in survey.born.iter().filter(|(_, home)| is_direct(home)) {
            self.hint(*ino, *home);
        }
        let mut inside =
            Survey { born: survey.born.clone(), moved: survey.moved.clone(), ..Survey::default() };
        inside.born.retain(|ino, home| ino != home && !is_direct(home));
        inside.moved.retain(|(_, from, to)| !is_direct(from) && !is_direct(to));
        self.apply(local, &inside, me);
        for (ino, from, to) in survey.moved.iter().filter(|(_, from, to)| is_direct(from) || is_direct(to)) {
            self.leave(*ino, *from, *to);
            // A new file that got its first name: see [`State::apply`].
            if from == ino && !is_direct(from) && local.dels.contains(&Key::orphan(*ino)) {
                self.dead.push(*ino);
            }
        }
        self.note_moved(survey, 0);
        self.note_changes(local, &inside, base::time::monotonic());
    }

    /// Forgets the rows of an inode that has moved to another unit.
    fn leave(&mut self, ino: Ino, from: Ino, to: Ino) {
        if let Some(unit) = self.units.get_mut(&from) {
            unit.rows.retain(|key, _| key.tag() == tags::DENTRY || number(key) != ino);
            unit.told.remove(&ino);
        }
        if self.homes.get(&ino).is_some_and(|home| home.unit == from) {
            self.homes.remove(&ino);
        }
        self.hint(ino, to);
    }

    /// A conflict on lease rows. Returns whether leases of this node were among them.
    fn lost_leases(&mut self, survey: &Survey, rows: &[(Key, Option<Value>)]) -> bool {
        let mut is_own = false;
        for (key, now) in rows.iter().filter(|(key, _)| key.tag() == tags::LEASE) {
            match survey.contended.get(&number(key)) {
                Some(before) => _ = self.is_still(number(key), before, now.as_ref()),
                None => is_own = true,
            }
        }
        is_own
    }
}

impl Core {
    /// A commit that the engine decides. Meanwhile nothing else happens in its leased units. False: look
    /// again.
    pub(super) fn commit_foreign(
        &self,
        mut state: MutexGuard<'_, State>,
        commit: &Commit,
        survey: &Survey,
        me: Holder,
    ) -> Result<bool, CommitError> {
        let Some(direct) = state.direct(commit, survey) else { return Ok(false) };
        let units: Vec<Ino> = survey.writes.union(&survey.reads).copied().collect();
        let leases = state.leases_of(&survey.writes);
        let (sessions, before) = (state.sessions, state.upto_of(&units));
        units.iter().for_each(|unit| state.units.get_mut(unit).into_iter().for_each(|unit| unit.busy = true));
        survey.contended.keys().for_each(|unit| state.note_direct(*unit, commit));
        drop(state);
        let mut whole = Commit { session: Some(me.into()), ..commit.clone() };
        let rows = leases.iter().map(|(unit, lease)| (unit, lease)).chain(&survey.contended);
        whole.checks.extend(rows.map(|(unit, row)| (Key::lease(*unit), Expect::Is(row.clone()))));
        let send = |whole| counted(self.inner.commit(whole)).map(|()| true);
        let done = self
            .drain(before, base::time::monotonic() + PATIENCE)
            .and_then(|()| self.let_go(survey, &direct.left).and_then(|()| in_time()))
            .and_then(|()| self.pin(&mut whole, &direct.unchecked))
            .map_err(CommitError::from)
            .and_then(|is_sound| if is_sound { send(whole) } else { Ok(false) });
        let mut state = self.state.lock();
        state.end_busy(&units, sessions);
        // What is answered of contended units, the kernel must not keep.
        state.recalls += u64::from(!survey.contended.is_empty());
        self.changed.notify_all();
        if state.sessions != sessions || matches!(done, Err(CommitError::Store(StoreError::NoSpace(_)))) {
            // It was decided by the engine alone, and nothing is remembered of it. Or nothing was changed.
            return done;
        }
        match done {
            Ok(false) => Ok(false),
            Ok(true) => {
                state.apply_foreign(&direct.local, survey, me);
                let gone = commit.dels.iter().filter(|key| key.tag() == tags::ORPHAN).map(number);
                gone.filter(|ino| survey.contended.contains_key(ino))
                    .for_each(|ino| state.note_dead_direct(ino));
                Ok(true)
            }
            Err(CommitError::Conflict { rows, .. })
                if rows.iter().any(|(key, _)| key.tag() == tags::LEASE) =>
            {
                if state.lost_leases(survey, &rows) {
                    units.iter().for_each(|unit| _ = state.forget(*unit));
                }
                Ok(false)
            }
            Err(CommitError::Conflict { rows, not_empty }) => {
                for (key, value) in rows.iter().filter(|(key, _)| key.tag() == tags::INODE) {
                    let record = value.as_deref().map(InodeRecord::decode).and_then(Result::ok);
                    state.correct(number(key), home_of(number(key), record.as_ref()));
                }
                Err(CommitError::Conflict { rows, not_empty })
            }
            Err(error) => {
                // It is unknown whether it was applied.
                let left: Vec<Unit> = units.iter().filter_map(|unit| state.forget(*unit)).collect();
                state.recalls += 1;
                state.letting_go += 1;
                drop(state);
                self.kernel_lets_go_of_the_forgotten(&KeptByKernel::of(&left));
                Err(error)
            }
        }
    }

    /// Makes the kernel forget what it keeps under the leases of these units, of the inodes that move to
    /// contended ones. The units are busy, so it is told nothing new of them.
    fn let_go(&self, survey: &Survey, units: &BTreeSet<Ino>) -> Result<(), StoreError> {
        if units.is_empty() {
            return Ok(());
        }
        self.state.lock().recalls += 1;
        // Replies that permit the kernel to keep something have been sent by now.
        drop(self.replies.write());
        let (told, names, files) = {
            let mut state = self.state.lock();
            let moved = survey.moved.iter().filter(|(_, from, _)| units.contains(from));
            let is_told = |(ino, from, _): &&(Ino, Ino, Ino)| {
                state.units.get_mut(from).is_some_and(|unit| unit.told.contains(ino))
            };
            let told = moved.filter(is_told).map(|(ino, ..)| *ino).collect();
            let names: Option<Instant> =
                units.iter().filter_map(|unit| state.units.get(unit)?.names_until).max();
            let mut files: Vec<Ino> =
                units.iter().flat_map(|unit| self.open_files_of(&state, *unit)).collect();
            files.retain(|ino| survey.moved.iter().any(|(moved, ..)| moved == ino));
            (told, names, files)
        };
        self.look_again(&files);
        self.kernel_lets_go(&told, names)
    }

    /// Makes a commit check the records of these inodes, which say what units they belong to. False: look
    /// again.
    fn pin(&self, whole: &mut Commit, inos: &[(Ino, Ino)]) -> Result<bool, StoreError> {
        if inos.is_empty() {
            return Ok(true);
        }
        let keys: Vec<(Key, Ino)> = inos.iter().map(|(ino, unit)| (Key::inode(*ino), *unit)).collect();
        let asked: Vec<(&Key, Ino)> = keys.iter().map(|(key, unit)| (key, *unit)).collect();
        let Some(rows) = self.values_direct(&asked)? else { return Ok(false) };
        for ((key, _), row) in keys.into_iter().zip(rows) {
            let is_checked = whole.checks.iter().any(|(other, _)| *other == key);
            match row {
                Some(row) => {
                    whole.checks.retain(|(other, _)| *other != key);
                    whole.checks.push((key, Expect::Is(row)));
                }
                None if !is_checked => whole.checks.push((key, Expect::Absent)),
                // It must exist, and does not.
                None => {}
            }
        }
        Ok(true)
    }
}
