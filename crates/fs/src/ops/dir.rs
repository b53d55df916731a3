//! Listings.
//!
//! A position is a number from which a listing can be resumed without any state. 0 is the start, 1 follows
//! `.`, 2 follows `..`, and a name stands at the number derived from its hash ([`meta::key::name_position`]).
//! Two names may have the same number, with a probability of one in 2^63. They are never separated: the first
//! of them says that the listing resumes *at* their number. So a reader whose buffer ended between them gets
//! both again, and never loses the second.

use std::ops::ControlFlow;

use base::Ino;
use hashbrown::HashMap;
use meta::Key;
use meta::names::Listed;
use meta::record::InodeRecord;
use meta::store::StoreError;

use crate::api::{DirEntry, Entry, FileKind, Part};
use crate::errno::{Errno, Error};
use crate::volume::Core;

/// Names read from the store at a time.
const BATCH: usize = 256;

/// What a listing reads besides the names.
#[derive(Clone, Copy)]
enum With {
    Names,
    /// The leases of the directories in it.
    Leases,
    /// The inodes too, which are passed on.
    Inodes,
}

impl Core {
    pub(crate) fn readdir(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.list(ino, position, false, &mut |entry, _| each(entry))
    }

    pub(crate) fn readdir_plus(
        &self,
        ino: Ino,
        position: u64,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let (finding, mut has_held) = (self.refs.finding(), false);
        let listed = self.list(ino, position, true, &mut |entry, plus| {
            let child = entry.ino;
            let is_held = entry.kind == FileKind::Dir && finding.is_held(child);
            let found = plus.map(|plus| Entry { held: is_held, ..*plus });
            let taken = each(entry, found.as_ref());
            if taken.is_continue() && found.is_some() {
                finding.hold(child);
                has_held = true;
            }
            taken
        });
        // What was passed on counts as held, so it must reach the kernel. The next request meets the error.
        if has_held { Ok(()) } else { listed }
    }

    fn list(
        &self,
        ino: Ino,
        position: u64,
        plus: bool,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let dir = self.inode(ino)?;
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        self.touch_if_relative(ino, &dir);
        let with = match plus {
            true if self.is_kept(ino) => With::Inodes,
            true => With::Leases,
            false => With::Names,
        };
        let up = if ino == Ino::ROOT { ino } else { dir.parent };
        let dots: [(&[u8], Ino); 2] = [(b".", ino), (b"..", up)];
        for (at, (name, ino)) in dots.into_iter().enumerate().skip(position as usize) {
            let dot = DirEntry { name, ino, kind: FileKind::Dir, next: at as u64 + 1 };
            if each(dot, None).is_break() {
                return Ok(());
            }
        }
        let (mut position, mut begun) = (position.max(meta::key::FIRST_POSITION), false);
        loop {
            match self.list_batch(ino, position, with, each) {
                Ok(ControlFlow::Continue(Some(next))) => (position, begun) = (next, true),
                Ok(ControlFlow::Continue(None) | ControlFlow::Break(())) => return Ok(()),
                // The rest is asked for next.
                Err(Error::Store(StoreError::Waits)) if begun => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the kernel may keep names of a directory, so that it is worth giving it the attributes too.
    fn is_kept(&self, dir: Ino) -> bool {
        let leases = self.options.shared.as_ref().and_then(|sharing| sharing.leases.as_ref());
        leases.is_none_or(|leases| leases.keeps_names(dir))
    }

    /// Passes on one batch. Returns where the next one begins, if there may be more.
    fn list_batch(
        &self,
        dir: Ino,
        position: u64,
        with: With,
        each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), Option<u64>>, Error> {
        let batch = self.names.readdir(dir, position, BATCH)?;
        let mut records = match with {
            With::Names => Vec::new(),
            With::Leases => {
                // The program looks the names up next. Nothing depends on it.
                let _ = self.parts.store.prefetch(dir);
                Vec::new()
            }
            With::Inodes => self.records_of(dir, &batch)?,
        }
        .into_iter();
        for (at, found) in batch.iter().enumerate() {
            let follows = batch.get(at + 1).is_some_and(|next| next.position == found.position);
            let next = if follows { found.position } else { found.position + 1 };
            let entry = match records.next().flatten() {
                Some(record) if !is_gone(&record) => {
                    self.hints.named(&found.name, found.dentry.ino);
                    Some(self.entry_of(found.dentry.ino, &record)?)
                }
                // Its attributes cost round trips. Or the file was removed after the batch was read, and the
                // name may be that of another file by now. A program that wants the attributes looks it up.
                _ => None,
            };
            let kind = FileKind::from_mode(found.dentry.kind).ok_or(Errno::EIO)?;
            let row = DirEntry { name: &found.name, ino: found.dentry.ino, kind, next };
            if each(row, entry.as_ref()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let next = batch.last().filter(|_| batch.len() >= BATCH).map(|last| last.position + 1);
        Ok(ControlFlow::Continue(next))
    }

    /// The inodes of a batch, read together. A directory's counts and times are in further rows.
    fn records_of(&self, dir: Ino, batch: &[Listed]) -> Result<Vec<Option<InodeRecord>>, Error> {
        if self.is_shared() {
            // The directories among them have leases of their own.
            // Nothing depends on it.
            let _ = self.parts.store.prefetch(dir);
            let is_here = |name: &&Listed| {
                !name.dentry.is_dir() || self.is_part_here(&Part::Inode(name.dentry.ino), false)
            };
            let inos: Vec<Ino> = batch.iter().filter(is_here).map(|name| name.dentry.ino).collect();
            let known: HashMap<Ino, _> = inos.iter().copied().zip(self.names.attrs(&inos)?).collect();
            return Ok(batch.iter().map(|name| known.get(&name.dentry.ino).copied().flatten()).collect());
        }
        let keys: Vec<Key> = batch.iter().map(|name| Key::inode(name.dentry.ino)).collect();
        let rows = self.parts.store.get_many(&keys)?;
        let mut records = Vec::with_capacity(batch.len());
        for (name, row) in batch.iter().zip(rows) {
            records.push(match row {
                Some(_) if name.dentry.is_dir() => self.names.attr(name.dentry.ino)?,
                Some(row) => Some(InodeRecord::decode(&row)?),
                None => None,
            });
        }
        Ok(records)
    }
}

fn is_gone(record: &InodeRecord) -> bool {
    record.nlink == 0
}
