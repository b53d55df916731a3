//! The trash of a volume: its setting, and what is in it.

use std::sync::atomic::Ordering;

use base::Ino;

use super::{Names, NamesError, bad_key, damaged};
use crate::key::Key;
use crate::plan::{Change, Ctx, Op};
use crate::store::{Commit, CommitError, Expect, StoreError};
use crate::trash::{FORMAT, FORMAT_TRASH, ROW_FORMAT, ROW_TRASH, Setting, TrashRow};

impl Names {
    /// The setting, as [`Names::read_trash`] found it. Until it is called, nothing is kept.
    pub fn trash(&self) -> Setting {
        match self.trash.load(Ordering::Acquire) {
            0 => Setting::Never,
            1 => Setting::Off,
            kept => Setting::Keep(kept - 1),
        }
    }

    fn note_trash(&self, setting: Setting) {
        let number = match setting {
            Setting::Never => 0,
            Setting::Off => 1,
            Setting::Keep(millis) => millis.saturating_add(1),
        };
        self.trash.store(number, Ordering::Release);
    }

    /// Reads the setting.
    ///
    /// # Errors
    /// See [`StoreError`]. The setting that was read before stays in force.
    pub fn read_trash(&self) -> Result<Setting, StoreError> {
        let row = self.store.get(&Key::volume(ROW_TRASH))?;
        let setting = Setting::decode(row.as_deref()).map_err(damaged)?;
        self.note_trash(setting);
        Ok(setting)
    }

    /// Changes the setting, and with it the format of a volume that gets trash for the first time.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn set_trash(&self, setting: Setting) -> Result<(), StoreError> {
        let (key, format) = (Key::volume(ROW_TRASH), Key::volume(ROW_FORMAT));
        loop {
            let row = self.store.get(&key)?;
            let before = Setting::decode(row.as_deref()).map_err(damaged)?;
            // A volume that had trash once may still have rows of it.
            let setting = if setting == Setting::Never && before != setting { Setting::Off } else { setting };
            if setting == before {
                self.note_trash(setting);
                return Ok(());
            }
            let mut commit = Commit::default();
            commit.checks.push((key.clone(), row.map_or(Expect::Absent, Expect::Is)));
            commit.puts.extend(setting.encode().map(|value| (key.clone(), value)));
            if self.store.get(&format)?.as_deref() == Some(&FORMAT.to_be_bytes()[..]) {
                commit.puts.push((format.clone(), FORMAT_TRASH.to_be_bytes()[..].into()));
            }
            match self.store.commit(commit) {
                Ok(()) => {
                    self.note_trash(setting);
                    return self.store.flush();
                }
                Err(CommitError::Conflict { .. }) => {}
                Err(CommitError::Store(error)) => return Err(error),
            }
        }
    }

    /// Does an operation as [`Names::run`] does, but what loses its last name does not go to the trash.
    ///
    /// # Errors
    /// As [`Names::run`].
    pub fn run_for_good(&self, op: &Op<'_>, ctx: &Ctx) -> Result<Change, NamesError> {
        let trash = self.trash();
        self.run_with(op, ctx, if trash.keeps() { Setting::Off } else { trash })
    }

    /// At most `limit` inodes in the trash, from `from` on.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn in_trash(&self, from: Ino, limit: usize) -> Result<Vec<(Ino, TrashRow)>, StoreError> {
        let rows = self.store.scan(&Key::trash_from(from), limit)?;
        let row = |(key, row): &(Key, crate::store::Value)| {
            let ino = key.number().map(Ino).ok_or_else(|| bad_key(key))?;
            Ok((ino, TrashRow::decode(row).map_err(damaged)?))
        };
        rows.iter().map(row).collect()
    }

    /// The rows of these inodes in the trash, without those that are not there.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn trash_rows(&self, inos: &[Ino]) -> Result<Vec<(Ino, TrashRow)>, StoreError> {
        let keys: Vec<Key> = inos.iter().map(|ino| Key::trash(*ino)).collect();
        let rows = self.store.get_many(&keys)?;
        let there = inos.iter().zip(rows).filter_map(|(ino, row)| Some((*ino, row?)));
        there.map(|(ino, row)| Ok((ino, TrashRow::decode(&row).map_err(damaged)?))).collect()
    }

    /// An inode's row in the trash.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn trash_row(&self, ino: Ino) -> Result<Option<TrashRow>, StoreError> {
        self.decoded(&Key::trash(ino), TrashRow::decode)
    }
}
