//! What a killed process had acknowledged is stored: before this node joins again, under the old session.
//!
//! Each batch is composed as before, from the changes that have its number, and gets the same number in the
//! row of the session. So a batch that the engine has, or that a dying connection still brings, is not
//! applied twice: of two commits with one number the engine takes one, and both are the same.
//!
//! What is stored is a prefix. At the first change that cannot be stored, this one and all later ones are
//! refused, because they may rest on it: its lease went to another node, the session was ended, its bytes are
//! not on this disk, or its record is damaged.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::Ino;
use blob::PackStore;

use super::forgot::counted_in;
use super::journal::Left;
use super::journal::record::Change;
use super::queue::{Batch, name_in};
use super::row::Holder;
use crate::key::{Key, tags};
use crate::record::{Dentry, decode_u64};
use crate::store::{CommitError, MetaStore, StoreError};

/// How long a batch is tried. A large commit of the killed process may stand in the way for a while.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause before a batch is tried again.
const AGAIN: Duration = Duration::from_millis(50);
/// How many files of refused changes are kept.
const KEPT: usize = 16;
/// How many lines such a file has.
const LINES: usize = 100_000;

/// What became of the changes that a process left.
#[derive(Debug, Default)]
pub struct Replayed {
    /// How many changes were stored, or had been.
    pub stored: usize,
    refused: Vec<Change>,
    /// Some of those may have been stored.
    is_unsure: bool,
    /// Why the others were not.
    why: String,
}

/// The session of the killed process, under which its changes are stored.
pub trait OldSession {
    /// Renews it, if much of it is over. This is called before each attempt to store a batch.
    ///
    /// # Errors
    /// `Fenced` if it is over, or another error of the engine.
    fn renew(&self) -> Result<(), StoreError>;

    /// Continues it after it was found over. A session that has only expired can be continued, as long as no
    /// node has ended it.
    ///
    /// # Errors
    /// `Fenced` if it was ended, so that it never comes back, or another error of the engine.
    fn resume(&self) -> Result<(), StoreError>;
}

/// Stores what a process left in its journal, through the store of its session.
///
/// # Errors
/// The engine or the disk cannot be used now. Nothing was refused, and it can be tried again.
pub fn replay(
    left: Left,
    store: &dyn MetaStore,
    packs: &dyn PackStore,
    session: &dyn OldSession,
) -> Result<Replayed, StoreError> {
    let Some(me) = left.session() else { return Ok(Replayed::default()) };
    let mut run = Run { me, last: stored(store, me)?, store, packs, session };
    let sound = left.len() - left.behind;
    let (mut at, mut began) = (0, base::time::monotonic());
    while at < sound {
        let number = left.changes[at].batch;
        let same = left.changes[at..sound].iter().take_while(|change| change.batch == number).count();
        match run.attempt(&left.changes[at..at + same], at) {
            Ok(()) => (at, began) = (at + same, base::time::monotonic()),
            Err(Refused::For { from, why }) => return Ok(left.refused(from, why)),
            Err(Refused::Now(StoreError::Unavailable(_))) if is_early(began) => std::thread::sleep(AGAIN),
            Err(Refused::Now(error)) => return Err(error),
            Err(Refused::Over(why)) => return Err(StoreError::Fenced(why)),
        }
    }
    if run.last != stored(store, me)? {
        return Ok(left.refused(0, "the database does not have what it confirmed".to_owned()));
    }
    let why = "the journal is damaged before them".to_owned();
    Ok(if left.behind > 0 || left.is_headless {
        left.refused(sound, why)
    } else {
        left.refused(sound, String::new())
    })
}

fn is_early(began: Instant) -> bool {
    base::time::monotonic().saturating_duration_since(began) < PATIENCE
}

/// The last batch of a session that the engine has.
fn stored(store: &dyn MetaStore, me: Holder) -> Result<u64, StoreError> {
    Ok(noted(store, me)?.unwrap_or(0))
}

/// Reads the last batch of a session that the engine has. `None`: none, or the row went with the session.
fn noted(store: &dyn MetaStore, me: Holder) -> Result<Option<u64>, StoreError> {
    let row = store.get(&Key::batch(me.node, me.epoch))?;
    let last = row.map(|row| decode_u64(Some(&*row))).transpose();
    last.map_err(|error| StoreError::Damaged(error.to_string()))
}

/// Why changes were not stored.
enum Refused {
    /// The changes from this one on will never be.
    For { from: usize, why: String },
    /// The changes can be tried again.
    Now(StoreError),
    /// The session is over, perhaps only because it was not renewed in time.
    Over(String),
}

impl Refused {
    fn of(from: usize, why: String) -> Refused {
        Refused::For { from, why }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Refused {
        match error {
            StoreError::Fenced(why) => Refused::Over(why),
            error => Refused::Now(error),
        }
    }
}

struct Run<'a> {
    me: Holder,
    last: u64,
    store: &'a dyn MetaStore,
    packs: &'a dyn PackStore,
    session: &'a dyn OldSession,
}

impl Run<'_> {
    fn attempt(&mut self, changes: &[Change], at: usize) -> Result<(), Refused> {
        let done = self.session.renew().map_err(Refused::from).and_then(|()| self.store(changes, at));
        let Err(Refused::Over(why)) = done else { return done };
        match self.session.resume() {
            Ok(()) => Err(Refused::Now(StoreError::Unavailable(why))),
            Err(StoreError::Fenced(why)) => Err(Refused::of(at, why)),
            Err(error) => Err(Refused::Now(error)),
        }
    }

    /// Stores the changes of one batch. The first of them is number `at`.
    fn store(&mut self, changes: &[Change], at: usize) -> Result<(), Refused> {
        let number = changes.first().map_or(0, |change| change.batch);
        if number <= self.last {
            return Ok(());
        }
        if number != self.last + 1 {
            return Err(Refused::of(at, "changes before them are missing".to_owned()));
        }
        let whole = self.proven(changes)?;
        let mut batch = Batch::default();
        for change in &changes[..whole] {
            batch.add(&change.commit, change.leases.clone(), change.checks.clone());
            change.made.iter().for_each(|(ino, lease)| batch.make(*ino, lease));
        }
        if whole > 0 {
            self.commit(&batch, at)?;
        }
        if whole < changes.len() {
            let why = "their bytes are not on this disk".to_owned();
            return Err(Refused::of(at + whole, why));
        }
        Ok(())
    }

    /// How many of the changes have all bytes that they mention for the first time.
    fn proven(&self, changes: &[Change]) -> Result<usize, Refused> {
        for (count, change) in changes.iter().enumerate() {
            for fresh in &change.commit.fresh {
                match self.packs.prove(fresh.pack, fresh.offset, fresh.len, fresh.crc) {
                    Ok(true) => {}
                    Ok(false) => return Ok(count),
                    Err(error) => {
                        let why = format!("bytes of this node cannot be read: {error}");
                        return Err(Refused::Now(StoreError::Unavailable(why)));
                    }
                }
            }
        }
        Ok(changes.len())
    }

    fn commit(&mut self, batch: &Batch, at: usize) -> Result<(), Refused> {
        let key = Key::batch(self.me.node, self.me.epoch);
        match self.store.commit(batch.numbered(self.me, self.last)) {
            Ok(()) => {}
            // The killed process had sent it.
            Err(CommitError::Conflict { rows, .. }) if counted_in(&rows, &key) == Some(self.last + 1) => {}
            Err(CommitError::Conflict { .. }) => {
                return Err(Refused::of(at, "another node has taken their leases over".to_owned()));
            }
            Err(CommitError::Store(error)) => return Err(error.into()),
        }
        self.last += 1;
        Ok(())
    }
}

impl Left {
    /// The session of the changes is over, so none is stored. Those that the engine has are not refused. If
    /// another node has cleaned up after the session, it is not known which these are, and all are refused.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn refuse(self, engine: &dyn MetaStore) -> Result<Replayed, StoreError> {
        let Some(me) = self.session() else {
            return Ok(self.refused(0, "the journal is damaged".to_owned()));
        };
        let last = noted(engine, me)?;
        let stored =
            self.changes.iter().take_while(|change| last.is_some_and(|last| change.batch <= last)).count();
        let why = "the session in which they were made was ended meanwhile".to_owned();
        Ok(Replayed { is_unsure: last.is_none(), ..self.refused(stored, why) })
    }

    fn refused(mut self, from: usize, why: String) -> Replayed {
        let refused = self.changes.split_off(from.min(self.changes.len()));
        Replayed { stored: self.changes.len(), refused, is_unsure: false, why }
    }
}

impl Replayed {
    /// What is said of changes that were refused, in one line. `None`: there are none.
    pub fn line(&self) -> Option<String> {
        if self.why.is_empty() {
            return None;
        }
        if self.refused.is_empty() {
            return Some(format!("changes that this node had acknowledged may be lost: {}", self.why));
        }
        let about = self.inodes();
        let names: Vec<String> = self.names().take(3).collect();
        let such = if names.is_empty() { String::new() } else { format!(", such as {}", names.join(", ")) };
        let count = self.refused.len();
        let became = if self.is_unsure { "may not be stored" } else { "could not be stored" };
        Some(format!(
            "{count} changes of {} files and folders{such}, which this node had acknowledged, {became}: {}",
            about.len(),
            self.why
        ))
    }

    /// Writes what was refused to a file beside the journal, and removes old ones. Its path, if there is
    /// anything to write.
    ///
    /// # Errors
    /// The system's error.
    pub fn keep(&self, dir: &Path) -> io::Result<Option<PathBuf>> {
        let Some(line) = self.line() else { return Ok(None) };
        fs::create_dir_all(dir)?;
        let micros = base::time::now().0 / 1000;
        let path = dir.join(format!("refused-{micros}"));
        let mut out = io::BufWriter::new(fs::File::create(&path)?);
        writeln!(out, "{line}")?;
        for line in self.refused.iter().flat_map(lines).take(LINES) {
            writeln!(out, "{line}")?;
        }
        out.into_inner()?.sync_all()?;
        let mut kept: Vec<PathBuf> = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
        let is_one = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"refused-"))
        };
        kept.retain(is_one);
        kept.sort();
        for old in kept.iter().rev().skip(KEPT) {
            fs::remove_file(old)?;
        }
        Ok(Some(path))
    }

    /// How many changes were refused.
    pub fn refused(&self) -> usize {
        self.refused.len()
    }

    /// The inodes that were to be changed.
    fn inodes(&self) -> hashbrown::HashSet<Ino> {
        let mut batch = Batch::default();
        let none = (Vec::new(), Vec::new());
        self.refused.iter().for_each(|change| batch.add(&change.commit, none.0.clone(), none.1.clone()));
        batch.inodes().collect()
    }

    /// Names that were to be made or removed.
    fn names(&self) -> impl Iterator<Item = String> {
        let keys = self
            .refused
            .iter()
            .flat_map(|change| change.commit.puts.iter().map(|(key, _)| key).chain(&change.commit.dels));
        keys.filter_map(name_in)
    }
}

/// A change for a person.
fn lines(change: &Change) -> Vec<String> {
    let mut lines = Vec::new();
    for (key, value) in &change.commit.puts {
        if let (Some(name), Ok(dentry)) = (key.as_dentry(), Dentry::decode(value)) {
            let text = String::from_utf8_lossy(name.name).into_owned();
            lines.push(format!("name {text:?} in folder {} for inode {}", name.parent.0, dentry.ino.0));
        } else {
            lines.push(format!("write {} of inode {}: {} bytes", what(key), number(key), value.len()));
        }
    }
    for key in &change.commit.dels {
        match key.as_dentry() {
            Some(name) => {
                let text = String::from_utf8_lossy(name.name).into_owned();
                lines.push(format!("no name {text:?} in folder {}", name.parent.0));
            }
            None => lines.push(format!("remove {} of inode {}", what(key), number(key))),
        }
    }
    lines
}

fn number(key: &Key) -> u64 {
    key.number().unwrap_or_default()
}

fn what(key: &Key) -> &'static str {
    match key.tag() {
        tags::INODE => "attributes",
        tags::EXTENTS => "the list of pieces",
        tags::INLINE => "the content",
        tags::XATTR => "an extended attribute",
        tags::ORPHAN => "the note that it has no name",
        _ => "a row",
    }
}
