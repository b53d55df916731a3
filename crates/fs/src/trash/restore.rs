//! Out of the trash, back into the tree.
//!
//! A folder comes back with what was removed with it. `rm -rf` removes the contents first, one by one. So
//! what counts is, of each name, the newest entry below the folder, going back from the removal of the folder
//! until there is a pause of more than [`PAUSE`]. What was removed earlier was not meant to go with it.
//!
//! Folders come back before what is in them, each by a commit of its own. If the daemon is killed in between,
//! the rest is still in the trash, below a folder that exists: to restore the folder again continues.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::{Ino, Timestamp, time};
use hashbrown::HashSet;
use meta::plan::{Op, Refusal};
use meta::trash::TrashRow;

use super::{AT_ONCE, DEEPEST, Paths, joined};
use crate::api::FileKind;
use crate::errno::{Errno, Error};
use crate::volume::{Core, Volume};

/// A pause between removals that is longer than this separates two of them.
const PAUSE: Duration = Duration::from_secs(60);
/// How long to wait for a kernel that forgets removed folders.
const FORGETS: Duration = Duration::from_secs(2);
/// How often progress is reported.
const REPORT_EVERY: u64 = 256;

/// What to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picked<'a> {
    /// The inode with this number.
    Ino(Ino),
    /// The newest entry that was at this path, from the root, with a leading `/`. If there is none, and a
    /// folder is there: what was removed from it last.
    Path(&'a [u8]),
}

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// Back to where it was. Folders on the way that were removed since come back too.
    Back,
    /// To this folder, with this name. None: with its own.
    At(Ino, Option<&'a [u8]>),
}

/// What was restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Where it was, from the root.
    pub path: Vec<u8>,
    /// How many files and folders have a name again.
    pub files: u64,
    /// Entries below the folder that stay in the trash, because they were removed earlier, or because their
    /// names are taken.
    pub left: u64,
}

/// Why nothing was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// What was picked is not in the trash.
    NotThere,
    /// There is something of that name. Its path.
    Taken(Vec<u8>),
    /// The folder that it was in is gone for good.
    NoFolder,
    /// A program of this node still uses the removed folder, of this path.
    InUse(Vec<u8>),
    /// Another error. What was restored before it stays so.
    Failed(Errno),
}

/// The kernel that has the volume mounted, if any has. It did not ask for what is done here.
pub trait Told {
    /// An inode has this name in this folder again.
    fn came_back(&self, parent: Ino, name: &[u8], ino: Ino);
    /// Tells that a name was removed from a folder, perhaps by another node. If the kernel has not heard of
    /// it, it still refers to the inode.
    fn was_removed(&self, parent: Ino, name: &[u8]);
}

/// No kernel.
impl Told for () {
    fn came_back(&self, _: Ino, _: &[u8], _: Ino) {}
    fn was_removed(&self, _: Ino, _: &[u8]) {}
}

/// An inode, and the name that it gets.
struct Step {
    ino: Ino,
    parent: Ino,
    name: Box<[u8]>,
    /// Of a folder: where it was.
    dir: Option<(Ino, Box<[u8]>)>,
}

impl Step {
    fn new(ino: Ino, row: &TrashRow, parent: Ino, name: &[u8]) -> Step {
        let dir = row.dir.map(|_| (row.parent, row.name.clone()));
        Step { ino, parent, name: name.into(), dir }
    }
}

/// What will be done.
#[derive(Default)]
struct Steps {
    /// Folders on the way, and the entry itself.
    first: Vec<Step>,
    /// What is below it.
    below: Vec<Step>,
    left: u64,
    path: Vec<u8>,
}

impl Volume {
    /// Gives what was removed its name again. `all`: with a folder comes back whatever was removed from it,
    /// at any time. `tick` hears how many names there are.
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub fn restore_trash(
        &self,
        picked: Picked<'_>,
        place: Place<'_>,
        all: bool,
        told: &dyn Told,
        tick: &mut dyn FnMut(u64),
    ) -> Result<Restored, RestoreError> {
        if self.core.is_read_only() {
            return Err(RestoreError::Failed(Errno::EROFS));
        }
        let failed = |error| RestoreError::Failed(self.core.answer("trash", Ino::ROOT, error));
        let steps = self.core.plan_restore(picked, place, all).map_err(failed)??;
        self.core.wait_for_kernel(&steps, told)?;
        self.core.do_restore(steps, told, tick).map_err(failed)?
    }
}

/// An answer for the caller within an error of the names.
type Answer<T> = Result<Result<T, RestoreError>, Error>;

impl Core {
    fn plan_restore(&self, picked: Picked<'_>, place: Place<'_>, all: bool) -> Answer<Steps> {
        let mut paths = Paths::read(self);
        let found = match picked {
            Picked::Ino(ino) => self.trashed(ino)?.map(|row| (ino, row)),
            Picked::Path(path) => self.newest_at(&mut paths, path)?,
        };
        let (ino, row) = match (found, picked) {
            (Some(found), _) => found,
            (None, Picked::Path(path)) if place == Place::Back => return self.plan_contents(path, all),
            (None, _) => return Ok(Err(RestoreError::NotThere)),
        };
        let folder = paths.of(row.parent)?;
        let path = joined(folder.as_deref().unwrap_or_default(), &row.name, folder.is_some());
        let mut steps = Steps { path, ..Steps::default() };
        let (parent, name) = match place {
            Place::At(parent, name) => (parent, name.unwrap_or(&row.name)),
            Place::Back => match self.plan_way(&row, &mut steps)? {
                Ok(parent) => (parent, &*row.name),
                Err(error) => return Ok(Err(error)),
            },
        };
        if !steps.first.iter().any(|step| step.ino == parent) && self.names.lookup(parent, name)?.is_some() {
            let folder = paths.of(parent)?.unwrap_or_default();
            return Ok(Err(RestoreError::Taken(joined(&folder, name, true))));
        }
        steps.first.push(Step::new(ino, &row, parent, name));
        if row.dir.is_some() {
            let inside = Inside::read(self)?;
            self.plan_below(&inside, (ino, false), (!all).then_some(row.at), &mut steps)?;
        }
        Ok(Ok(steps))
    }

    /// An inode's entry. Reads no other one.
    fn trashed(&self, ino: Ino) -> Result<Option<TrashRow>, Error> {
        let first = self.names.in_trash(ino, 1)?.pop();
        Ok(first.filter(|(found, _)| *found == ino).map(|(_, row)| row))
    }

    /// The newest entry that was at a path. All entries are read, because they have no order of paths, and
    /// one is held.
    fn newest_at(&self, paths: &mut Paths<'_>, path: &[u8]) -> Result<Option<(Ino, TrashRow)>, Error> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let mut named = Vec::new();
        self.each_in_trash(&mut |ino, row| {
            if *row.name == *name {
                named.push((row.at, ino, row.parent));
            }
        })?;
        named.sort_unstable_by(|a, b| b.cmp(a));
        for (at, ino, parent) in named {
            if paths.of(parent)?.is_some_and(|folder| joined(&folder, name, true) == path)
                && let Some(row) = self.trashed(ino)?.filter(|row| row.at == at)
            {
                return Ok(Some((ino, row)));
            }
        }
        Ok(None)
    }

    /// Finds the folders on the way to an entry's place that come back too. Returns the folder it will be in.
    fn plan_way(&self, row: &TrashRow, steps: &mut Steps) -> Answer<Ino> {
        let (mut way, mut at) = (Vec::new(), row.parent);
        while let Some(row) = self.trashed(at)?.filter(|_| way.len() < DEEPEST) {
            let parent = row.parent;
            way.push((at, row));
            at = parent;
        }
        if !self.names.inode(at)?.is_some_and(|record| record.is_dir() && record.nlink > 0) {
            return Ok(Err(RestoreError::NoFolder));
        }
        let mut exists = true;
        for (ino, row) in way.into_iter().rev() {
            let there = if exists { self.names.lookup(at, &row.name)? } else { None };
            match there {
                // A folder was made in its place.
                Some(dentry) if dentry.is_dir() => at = dentry.ino,
                Some(_) => {
                    let folder = Paths::read(self).of(at)?.unwrap_or_default();
                    return Ok(Err(RestoreError::Taken(joined(&folder, &row.name, true))));
                }
                None => {
                    steps.first.push(Step::new(ino, &row, at, &row.name));
                    (at, exists) = (ino, false);
                }
            }
        }
        Ok(Ok(at))
    }

    /// What was removed from a folder that exists.
    fn plan_contents(&self, path: &[u8], all: bool) -> Answer<Steps> {
        let found = match self.resolve(path, true) {
            Err(Error::Errno(Errno::ENOENT | Errno::ENOTDIR)) => return Ok(Err(RestoreError::NotThere)),
            found => found?,
        };
        if found.kind != FileKind::Dir {
            return Ok(Err(RestoreError::NotThere));
        }
        let inside = Inside::read(self)?;
        let Some(last) = inside.last_of(found.ino) else { return Ok(Err(RestoreError::NotThere)) };
        let mut steps = Steps { path: path.to_vec(), ..Steps::default() };
        self.plan_below(&inside, (found.ino, true), (!all).then_some(last), &mut steps)?;
        Ok(Ok(steps))
    }

    /// Finds what comes back below a folder, which exists or is in the trash itself. `last`: the last removal
    /// that belongs to it; none: all do.
    fn plan_below(
        &self,
        inside: &Inside,
        (top, exists): (Ino, bool),
        last: Option<Timestamp>,
        steps: &mut Steps,
    ) -> Result<(), Error> {
        let (mut found, mut todo) = (Vec::new(), VecDeque::from([top]));
        let mut seen: HashSet<Ino> = HashSet::new();
        while let Some(dir) = todo.pop_front() {
            // Damage: entries that are in one another.
            if !seen.insert(dir) {
                continue;
            }
            let mut entries = Vec::new();
            for part in inside.of(dir).chunks(AT_ONCE) {
                let inos: Vec<Ino> = part.iter().map(|entry| entry.ino).collect();
                entries
                    .extend(self.names.trash_rows(&inos)?.into_iter().filter(|(_, row)| row.parent == dir));
            }
            steps.left += entries.len() as u64;
            // The newest of each name comes first.
            entries.sort_by(|a, b| (&a.1.name, b.1.at, b.0).cmp(&(&b.1.name, a.1.at, a.0)));
            entries.dedup_by(|next, before| next.1.name == before.1.name);
            for (ino, row) in entries {
                if exists && dir == top && self.names.lookup(top, &row.name)?.is_some() {
                    continue;
                }
                if row.dir.is_some() {
                    todo.push_back(ino);
                }
                found.push((ino, row));
            }
        }
        let since = last.map(|last| beginning(last, found.iter().map(|(_, row)| row.at).collect()));
        let mut comes: HashSet<Ino> = HashSet::from([top]);
        for (ino, row) in found {
            if since.is_none_or(|since| row.at >= since) && comes.contains(&row.parent) {
                comes.insert(ino);
                steps.below.push(Step::new(ino, &row, row.parent, &row.name));
            }
        }
        steps.left -= steps.below.len() as u64;
        Ok(())
    }

    /// A kernel that still refers to a removed folder, because a program has it open, makes nothing in it any
    /// more, also if it has a name again. So such a folder stays in the trash.
    fn wait_for_kernel(&self, steps: &Steps, told: &dyn Told) -> Result<(), RestoreError> {
        let until: Instant = time::monotonic() + FORGETS;
        let all = || steps.first.iter().chain(&steps.below);
        let held = || all().filter(|step| step.dir.is_some() && self.refs.of(step.ino) > 0);
        // What the kernel remembers in such a folder holds the folder, also when no program has it open any
        // more.
        let folders: HashSet<Ino> = held().map(|step| step.ino).collect();
        let inside = steps.below.iter().rev().filter(|step| folders.contains(&step.parent));
        inside.for_each(|step| told.was_removed(step.parent, &step.name));
        held().for_each(|step| step.dir.iter().for_each(|(parent, name)| told.was_removed(*parent, name)));
        for step in held() {
            while self.refs.of(step.ino) > 0 {
                if time::monotonic() > until {
                    return Err(RestoreError::InUse(step.name.to_vec()));
                }
                self.sweep.pause(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    fn do_restore(&self, steps: Steps, told: &dyn Told, tick: &mut dyn FnMut(u64)) -> Answer<Restored> {
        let done = self.do_steps(steps, told, tick);
        if !self.names.quotas().list().is_empty() {
            // A folder with a quota may be within another one now.
            self.names.read_quotas()?;
        }
        done
    }

    fn do_steps(&self, steps: Steps, told: &dyn Told, tick: &mut dyn FnMut(u64)) -> Answer<Restored> {
        let mut done = Restored { path: steps.path, files: 0, left: steps.left };
        let firsts = steps.first.len();
        for (at, step) in steps.first.into_iter().chain(steps.below).enumerate() {
            match self.run(&Op::Restore { ino: step.ino, parent: step.parent, name: &step.name }) {
                Ok(_) => {
                    done.files += 1;
                    told.came_back(step.parent, &step.name, step.ino);
                }
                // It expired, or another node was first, or a program has made such a name.
                Err(Error::Refused(Refusal::NotFound | Refusal::Exists)) if at >= firsts => done.left += 1,
                Err(Error::Refused(Refusal::NotFound)) => return Ok(Err(RestoreError::NotThere)),
                Err(Error::Refused(Refusal::Exists)) => {
                    return Ok(Err(RestoreError::Taken(done.path)));
                }
                Err(error) => return Err(error),
            }
            if done.files.is_multiple_of(REPORT_EVERY) {
                tick(done.files);
                if self.stopping() {
                    return Err(Errno::EINTR.into());
                }
            }
        }
        Ok(Ok(done))
    }
}

/// An entry of the trash, and the folder that it was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct In {
    parent: Ino,
    ino: Ino,
    at: Timestamp,
}

/// What is in the trash, by the folders that it was in. Only a folder needs it: of all entries, each is read
/// once, and 32 bytes of it are held.
struct Inside(Vec<In>);

impl Inside {
    fn read(core: &Core) -> Result<Inside, Error> {
        let mut all = Vec::new();
        core.each_in_trash(&mut |ino, row| all.push(In { parent: row.parent, ino, at: row.at }))?;
        all.sort_unstable();
        Ok(Inside(all))
    }

    /// What was in a folder.
    fn of(&self, parent: Ino) -> &[In] {
        let from = self.0.partition_point(|entry| entry.parent < parent);
        let len = self.0.get(from..).map_or(0, |rest| rest.partition_point(|entry| entry.parent == parent));
        self.0.get(from..from + len).unwrap_or_default()
    }

    /// When something was removed from a folder last.
    fn last_of(&self, parent: Ino) -> Option<Timestamp> {
        self.of(parent).iter().map(|entry| entry.at).max()
    }
}

/// When the series of removals that ends with the last one began.
fn beginning(last: Timestamp, mut times: Vec<Timestamp>) -> Timestamp {
    times.sort_unstable();
    let mut first = last;
    for at in times.into_iter().rev() {
        if first.0 - at.0 > PAUSE.as_nanos() as i128 {
            break;
        }
        first = first.min(at);
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_of_removals_ends_at_a_pause() {
        let at = |seconds: i64| Timestamp::from_parts(seconds, 0);
        let times = [1000, 990, 950, 900, 839, 800].map(at).to_vec();
        assert_eq!(beginning(at(1001), times.clone()), at(900));
        assert_eq!(beginning(at(2000), times), at(2000));
        assert_eq!(beginning(at(5), vec![]), at(5));
    }
}
