//! The trash of a volume: what is in it, how it comes back, and when it is deleted. [`meta::trash`] has the
//! rows, and why each way out of the trash is one commit.
//!
//! **Old entries are found by a scan.** The trash has no order of time, because a removal must cost nothing
//! more. The oldest entry of a scan says when the next one is due, and a scan is made at most once in a
//! sixteenth of the time that the trash is kept.
//!
//! **In a shared volume the node that has the lease deletes.** Any other would take the lease away from it.
//! The node with the lowest number deletes what is still there some time later.

mod restore;
pub(crate) mod state;

use std::ops::ControlFlow;
use std::time::Duration;

use base::{Ino, Timestamp, time};
use hashbrown::HashMap;
use meta::Key;
use meta::plan::Op;
use meta::store::StoreError;
pub use meta::trash::Setting;
use meta::trash::TrashRow;

use crate::api::FileKind;
use crate::errno::{Errno, Error};
use crate::volume::{Core, Volume};
use state::Counted;

pub use restore::{Picked, Place, RestoreError, Restored, Told};

/// Rows read at a time.
const BATCH: usize = 4096;
/// The shortest and the longest time between two scans.
const SCAN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1800)];
/// How long a count of what is in the trash is good enough, at least.
const COUNT: Duration = Duration::from_secs(2);
/// How many entries expire before the thread does its other work.
const AT_ONCE: usize = 1000;
/// How many leases the first node waits for the node that has the lease of an inode.
const LATE: u32 = 4;
/// How much is given up at a time when the disk is full, in bytes of files.
const GIVE_UP: u64 = 64 << 20;
/// So many paths of folders are remembered for a listing.
const KNOWN: usize = 10_000;
/// No path has more components than this.
const DEEPEST: usize = 4096;

/// An entry of the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trashed {
    /// The inode.
    pub ino: Ino,
    /// When it lost its last name.
    pub at: Timestamp,
    /// What it is.
    pub kind: FileKind,
    /// The inode's size when it lost its last name, in bytes.
    pub size: u64,
    /// Where it was, from the root, with a leading `/`. If a folder on the way is gone for good: only the
    /// name.
    pub path: Vec<u8>,
    /// The folder that it was in exists, or is in the trash.
    pub has_folder: bool,
}

/// What was deleted, or is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emptied {
    /// Files and folders.
    pub files: u64,
    /// The total of the sizes of the files and folders, in bytes.
    pub bytes: u64,
}

impl Volume {
    /// How long the trash is kept, as the volume says now.
    ///
    /// # Errors
    /// The names could not be read.
    pub fn trash_setting(&self) -> Result<Setting, Errno> {
        self.core.names.read_trash().map_err(|error| self.core.answer("trash", Ino::ROOT, error.into()))
    }

    /// Sets how long the trash is kept. It holds for all nodes of a shared volume, which learn of it within
    /// some seconds. What is in the trash already stays.
    ///
    /// # Errors
    /// `EROFS`, or the names could not be changed.
    pub fn set_trash(&self, keep: Option<Duration>) -> Result<(), Errno> {
        if self.core.is_read_only() {
            return Err(Errno::EROFS);
        }
        let millis = |keep: Duration| u64::try_from(keep.as_millis()).unwrap_or(u64::MAX).max(1);
        let setting = keep.map_or(Setting::Never, |keep| Setting::Keep(millis(keep)));
        let done = self.core.names.set_trash(setting);
        *self.core.trash.next.lock() = None;
        done.map_err(|error| self.core.answer("trash", Ino::ROOT, error.into()))
    }

    /// Reads the setting of a shared volume again, which another node may have changed.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn refresh_trash(&self) -> Result<(), StoreError> {
        let before = self.core.names.trash();
        if self.core.names.read_trash()? != before {
            *self.core.trash.next.lock() = None;
        }
        Ok(())
    }

    /// How many files and folders are in the trash, and their sizes. Counted at most every few seconds, and
    /// less often if that takes long.
    ///
    /// # Errors
    /// The names could not be read.
    pub fn trash_figures(&self) -> Result<Emptied, Errno> {
        self.core.count_trash().map_err(|error| self.core.answer("trash", Ino::ROOT, error))
    }

    /// Passes on what is in the trash, the newest first, until `each` breaks. It takes 32 bytes of memory for
    /// each entry, and not more for long names.
    ///
    /// # Errors
    /// The names could not be read. `EINTR`: the volume is being closed.
    pub fn each_in_trash(&self, each: &mut dyn FnMut(Trashed) -> ControlFlow<()>) -> Result<(), Errno> {
        self.core.list_trash(each).map_err(|error| self.core.answer("trash", Ino::ROOT, error))
    }

    /// All of it.
    ///
    /// # Errors
    /// See [`Volume::each_in_trash`].
    pub fn trash(&self) -> Result<Vec<Trashed>, Errno> {
        let mut all = Vec::new();
        self.each_in_trash(&mut |entry| {
            all.push(entry);
            ControlFlow::Continue(())
        })?;
        Ok(all)
    }

    /// Deletes what went to the trash at this moment or before. `tick` hears of the progress.
    ///
    /// # Errors
    /// `EROFS`, or the names could not be changed. `EINTR`: the volume is being closed.
    pub fn empty_trash(&self, until: Timestamp, tick: &mut dyn FnMut(Emptied)) -> Result<Emptied, Errno> {
        if self.core.is_read_only() {
            return Err(Errno::EROFS);
        }
        let done = self.core.empty_trash(until, tick);
        done.map_err(|error| self.core.answer("trash", Ino::ROOT, error))
    }
}

impl Core {
    /// Calls `each` with every entry, in order of the inodes.
    fn each_in_trash(&self, each: &mut dyn FnMut(Ino, TrashRow)) -> Result<(), Error> {
        let mut from = Ino(0);
        loop {
            let found = self.names.in_trash(from, BATCH)?;
            let (Some(last), is_last) = (found.last(), found.len() < BATCH) else { return Ok(()) };
            from = Ino(last.0.0.saturating_add(1));
            found.into_iter().for_each(|(ino, row)| each(ino, row));
            if is_last {
                return Ok(());
            }
            if self.stopping() {
                return Err(Errno::EINTR.into());
            }
        }
    }

    fn count_trash(&self) -> Result<Emptied, Error> {
        if self.names.trash() == Setting::Never {
            return Ok(Emptied::default());
        }
        let mut counted = self.trash.counted.lock();
        let began = time::monotonic();
        if let Some(Counted { until, files, bytes }) = *counted
            && began < until
        {
            return Ok(Emptied { files, bytes });
        }
        let mut all = Emptied::default();
        self.each_in_trash(&mut |_, row| {
            (all.files, all.bytes) = (all.files + 1, all.bytes.saturating_add(row.size));
        })?;
        let now = time::monotonic();
        let took = now.saturating_duration_since(began);
        *counted = Some(Counted { until: now + COUNT.max(took * 20), files: all.files, bytes: all.bytes });
        Ok(all)
    }

    fn list_trash(&self, each: &mut dyn FnMut(Trashed) -> ControlFlow<()>) -> Result<(), Error> {
        let mut order = Vec::new();
        self.each_in_trash(&mut |ino, row| order.push((row.at, ino)))?;
        order.sort_unstable_by(|a, b| b.cmp(a));
        let mut paths = Paths::read(self);
        for part in order.chunks(AT_ONCE) {
            let inos: Vec<Ino> = part.iter().map(|(_, ino)| *ino).collect();
            // What was restored or deleted meanwhile is left out.
            for (ino, row) in self.names.trash_rows(&inos)? {
                let folder = paths.of(row.parent)?;
                let entry = Trashed {
                    ino,
                    at: row.at,
                    kind: FileKind::from_mode(row.kind).ok_or(Errno::EIO)?,
                    size: row.size,
                    path: joined(folder.as_deref().unwrap_or_default(), &row.name, folder.is_some()),
                    has_folder: folder.is_some(),
                };
                if each(entry).is_break() {
                    return Ok(());
                }
            }
            if self.stopping() {
                return Err(Errno::EINTR.into());
            }
        }
        Ok(())
    }

    fn empty_trash(&self, until: Timestamp, tick: &mut dyn FnMut(Emptied)) -> Result<Emptied, Error> {
        let mut old = Vec::new();
        self.each_in_trash(&mut |ino, row| {
            if row.at <= until {
                old.push((ino, row.at, row.size));
            }
        })?;
        let mut done = Emptied::default();
        let mut failed = Ok(());
        for (ino, at, size) in old {
            if self.expire_or_pass(ino, at, &mut failed)? {
                (done.files, done.bytes) = (done.files + 1, done.bytes + size);
            }
            if done.files.is_multiple_of(256) {
                tick(done);
                if self.stopping() {
                    return Err(Errno::EINTR.into());
                }
            }
        }
        self.reaper.hurry();
        failed.map(|()| done)
    }

    /// Takes an entry out of the trash, to be deleted. False: it is not there any more.
    fn expire(&self, ino: Ino, at: Timestamp) -> Result<bool, Error> {
        Ok(!self.run(&Op::Expire { ino, at })?.orphaned.is_empty())
    }

    /// As [`Core::expire`]. If the entry itself is at fault, such as one whose rows are damaged, it is false,
    /// and the error goes into `failed`. So it does not keep the others from expiring.
    fn expire_or_pass(&self, ino: Ino, at: Timestamp, failed: &mut Result<(), Error>) -> Result<bool, Error> {
        match self.expire(ino, at) {
            Err(error @ (Error::Refused(_) | Error::Store(StoreError::Damaged(_)))) => {
                *failed = Err(error);
                Ok(false)
            }
            done => done,
        }
    }

    /// Lets expire what is old enough, if it is time to look. Call it often.
    pub(crate) fn trash_round(&self) -> Result<(), Error> {
        let Setting::Keep(millis) = self.names.trash() else { return Ok(()) };
        let now = time::monotonic();
        if self.trash.next.lock().is_some_and(|next| next > now) || self.is_read_only() {
            return Ok(());
        }
        let keep = Duration::from_millis(millis);
        // If this fails, the next try is some time later.
        *self.trash.next.lock() = Some(now + SCAN[0]);
        let limit = Timestamp(time::now().0 - keep.as_nanos().min(i64::MAX as u128) as i128);
        let (mut old, mut oldest) = (Vec::new(), None::<Timestamp>);
        let read = self.each_in_trash(&mut |ino, row| {
            if row.at > limit {
                oldest = Some(oldest.map_or(row.at, |oldest| oldest.min(row.at)));
            } else if old.len() <= AT_ONCE {
                old.push((ino, row.at));
            }
        });
        match read {
            // The volume is being closed.
            Err(Error::Errno(Errno::EINTR)) => return Ok(()),
            read => read?,
        }
        let more = old.len() > AT_ONCE;
        let (mut left, mut is_first, mut failed) = (false, None, Ok(()));
        for (ino, at) in old {
            if self.stopping() {
                return Ok(());
            }
            let late = Duration::from_nanos((limit.0 - at.0).max(0) as u64);
            match self.is_mine_to_delete(ino, late, &mut is_first)? {
                true => _ = self.expire_or_pass(ino, at, &mut failed)?,
                false => left = true,
            }
        }
        let wait = match oldest {
            _ if more => Duration::ZERO,
            _ if left || failed.is_err() => SCAN[0] * 10,
            Some(oldest) => Duration::from_nanos((oldest.0 - limit.0).max(0) as u64)
                .max(keep / 16)
                .clamp(SCAN[0], SCAN[1]),
            // What comes now expires after the whole time.
            None => keep.clamp(SCAN[0], SCAN[1]),
        };
        *self.trash.next.lock() = Some(now + wait);
        failed
    }

    /// See the [module](self). `late`: how long it could have been deleted. `is_first`: whether this node has
    /// the lowest number, once that was asked.
    fn is_mine_to_delete(
        &self,
        ino: Ino,
        late: Duration,
        is_first: &mut Option<bool>,
    ) -> Result<bool, Error> {
        let Some(sharing) = &self.options.shared else { return Ok(true) };
        if self.names.is_changeable(&Key::trash(ino)) {
            return Ok(true);
        }
        if late < LATE * sharing.lease {
            return Ok(false);
        }
        if is_first.is_none() {
            let lowest = sharing.others.alive()?.iter().map(|session| session.node).min();
            *is_first = Some(lowest == Some(sharing.node));
        }
        Ok(*is_first == Some(true))
    }

    /// Gives up the oldest entries, because the disk is full. Returns whether that frees space.
    pub(crate) fn give_up_trash(&self) -> bool {
        if self.names.trash() == Setting::Never || self.is_shared() || !self.options.local {
            // Elsewhere the bytes are not on this disk.
            return false;
        }
        let _one = self.trash.giving_up.lock();
        let mut all = Vec::new();
        let read = self.each_in_trash(&mut |ino, row| all.push((row.at, ino, row.size)));
        if read.is_err() || all.is_empty() {
            return false;
        }
        all.sort_unstable();
        let (mut files, mut bytes) = (0u64, 0u64);
        for (at, ino, size) in all {
            if bytes >= GIVE_UP {
                break;
            }
            if self.expire(ino, at).is_ok_and(|done| done) {
                (files, bytes) = (files + 1, bytes + size);
            }
        }
        if files > 0 {
            self.report(&format!(
                "the disk is nearly full: the oldest {files} files and folders in the trash are deleted"
            ));
            self.reaper.hurry();
        }
        files > 0
    }
}

/// A path from a folder's and a name.
fn joined(folder: &[u8], name: &[u8], is_rooted: bool) -> Vec<u8> {
    let slash: &[u8] = if is_rooted { b"/" } else { b"" };
    [folder, slash, name].concat()
}

/// A folder, and a name in it.
type NameIn = (Ino, Box<[u8]>);

/// The paths of folders, those in the trash included.
struct Paths<'a> {
    core: &'a Core,
    known: HashMap<Ino, Option<Vec<u8>>>,
}

impl<'a> Paths<'a> {
    fn read(core: &'a Core) -> Paths<'a> {
        Paths { core, known: HashMap::from([(Ino::ROOT, Some(Vec::new()))]) }
    }

    /// Where a folder was when it went to the trash.
    fn removed_from(&self, folder: Ino) -> Result<Option<NameIn>, Error> {
        Ok(self.core.names.trash_row(folder)?.map(|row| (row.parent, row.name)))
    }

    /// The path of a folder, without a `/` at its end. None if it is gone for good.
    fn of(&mut self, folder: Ino) -> Result<Option<Vec<u8>>, Error> {
        if self.known.len() > KNOWN {
            self.known = Paths::read(self.core).known;
        }
        let (mut way, mut at) = (Vec::new(), folder);
        let mut path = loop {
            if let Some(path) = self.known.get(&at) {
                break path.clone();
            }
            let found = match self.removed_from(at)? {
                None => self.core.name_of_dir(at)?,
                found => found,
            };
            match found {
                Some((parent, name)) if way.len() < DEEPEST => {
                    way.push((at, name));
                    at = parent;
                }
                _ => {
                    self.known.insert(at, None);
                    break None;
                }
            }
        };
        for (ino, name) in way.into_iter().rev() {
            path = path.map(|path| joined(&path, &name, true));
            self.known.insert(ino, path.clone());
        }
        Ok(path)
    }
}

impl Core {
    /// The folder that has the name of a folder, and the name.
    fn name_of_dir(&self, dir: Ino) -> Result<Option<NameIn>, Error> {
        let Some(record) = self.names.inode(dir)?.filter(|record| record.is_dir() && record.nlink > 0) else {
            return Ok(None);
        };
        let name = crate::fsck::name_in(&self.names, record.parent, dir)?;
        Ok(name.map(|name| (record.parent, name)))
    }
}
