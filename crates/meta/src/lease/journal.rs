//! The journal of acknowledged changes: what a batch needs, on this node's disk before a program is answered.
//!
//! ```text
//!   FOLDER/0, FOLDER/1    two files that are used again and again; record.rs has their format
//!   FOLDER/refused-*      changes that could not be stored, as text, for a person
//! ```
//!
//! A change under a lease is acknowledged before it is in the engine ([`super::behind`]). Its record is in a
//! file before that. So if the process is killed, the next one finds what is missing in the engine
//! ([`Left::read`]) and stores it ([`super::replay`]), before other nodes may consider the session over.
//!
//! - **A record is written, and not synced.** It survives a kill of the process, and not a power cut. A
//!   volume of one node promises the same.
//! - **Records come in the order of the changes**, and the same lock serialises both. A record is written
//!   before the change is acknowledged. So a record that a kill tore belongs to no acknowledged change.
//! - **When nothing is outstanding, the file begins again**, with a header of a higher number. While
//!   something always is, the other file takes over as soon as all of its own changes are in the engine. So
//!   the files are as long as what is outstanding, which the queue limits, and [`FILE`] more.
//! - **If a record cannot be written** (a full disk), changes are acknowledged when they are in the engine,
//!   until nothing is outstanding.

pub(super) mod record;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base::size::MIB;

use super::row::Holder;
use crate::journal::format::{self, Found, Kind, Place, RECORD_HEADER};
use crate::store::Commit;
use record::{Basis, Change, HEADER, Header};

/// From this length on a file is followed by the other one. So much is allocated in advance.
const FILE: u64 = MIB;
/// A file that was longer is cut when it begins again.
const FILE_MAX: u64 = 8 * MIB;
/// So many zeros are passed over at once.
static ZEROS: [u8; 1024] = [0; 1024];

fn path(dir: &Path, file: usize) -> PathBuf {
    dir.join(file.to_string())
}

/// The journal of a node, to which changes are added. See the [module](self).
pub struct Journal {
    files: [File; 2],
    active: usize,
    node: [u8; 16],
    /// The place of the next record. Its segment is the number of the active file.
    place: Place,
    /// The offset of the next record.
    at: u64,
    /// The last batch, by the number of the queue, of which each file has a change.
    last: [u64; 2],
    /// A record could not be written: the changes after it are in no file either.
    is_broken: bool,
    buf: Vec<u8>,
}

impl Journal {
    /// Opens the journal of a node in a folder, which is made if it is absent. What is in it is given up: it
    /// was stored, or refused, before ([`Left`]).
    ///
    /// # Errors
    /// The system's error.
    pub fn open(dir: &Path, node: [u8; 16]) -> io::Result<Journal> {
        fs::DirBuilder::new().mode(0o700).recursive(true).create(dir)?;
        let open = |file: usize| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path(dir, file))
        };
        let files = [open(0)?, open(1)?];
        let mut number = 0;
        for file in &files {
            let mut bytes = vec![0; HEADER as usize];
            let read = file.read_at(&mut bytes, 0)?;
            number = number.max(Header::decode(&bytes[..read]).map_or(0, |header| header.number));
            // Without it a full disk is noticed when a record is written.
            let _ = rustix::fs::fallocate(file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, FILE);
        }
        let place = Place { segment: number, seq: 1, key: record::key_of(&node) };
        let mut journal = Journal {
            files,
            active: 0,
            node,
            place,
            at: HEADER,
            last: [0; 2],
            is_broken: false,
            buf: Vec::new(),
        };
        journal.begin(0, number + 1)?;
        Ok(journal)
    }

    /// Begins a file. Those below `floor` hold nothing any more.
    fn begin(&mut self, file: usize, floor: u64) -> io::Result<()> {
        let number = self.place.segment + 1;
        let header = Header { node: self.node, number, floor };
        self.files[file].write_all_at(&header.encode(), 0)?;
        (self.active, self.at, self.place.segment) = (file, HEADER, number);
        Ok(())
    }

    /// Prepares the record of a change. It is not written yet.
    pub(super) fn prepare(&mut self, holder: Holder, commit: &Commit, basis: &Basis<'_>) {
        if !self.is_broken {
            record::put_change(&mut self.buf, holder, commit, basis);
        }
    }

    /// Writes the prepared record. The change is in batch `queued` of the queue, of which `done` are in the
    /// engine, and in batch `batch` of the session. False: it could not be written.
    pub(super) fn write(&mut self, batch: u64, queued: u64, done: u64) -> bool {
        if self.is_broken {
            return false;
        }
        let other = 1 - self.active;
        if self.at >= FILE && self.last[other] <= done && self.begin(other, self.place.segment).is_err() {
            self.is_broken = true;
            return false;
        }
        record::seal(&mut self.buf, batch, self.place);
        self.last[self.active] = queued;
        self.append()
    }

    /// Notes that the engine has a batch of the session, and those before it. With `all`, nothing else is
    /// outstanding.
    pub(super) fn done(&mut self, batch: u64, all: bool) {
        if all {
            self.restart();
        } else if !self.is_broken {
            record::put_done(&mut self.buf, batch, self.place);
            // Without this record the engine says so.
            self.append();
        }
    }

    /// Nothing is outstanding any more.
    pub(super) fn restart(&mut self) {
        let is_long = self.at > FILE_MAX;
        if self.at == HEADER && !self.is_broken {
            return;
        }
        // If this fails, the records stay. The engine, or the end of their session, says what they are worth.
        self.is_broken = self.begin(self.active, self.place.segment + 1).is_err();
        if is_long && !self.is_broken {
            let _ = self.files[self.active].set_len(FILE);
        }
    }

    /// Whether changes are acknowledged only when the engine has them.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn append(&mut self) -> bool {
        match self.files[self.active].write_all_at(&self.buf, self.at) {
            Ok(()) => {
                self.at += self.buf.len() as u64;
                self.place.seq += 1;
                true
            }
            Err(_) => {
                self.is_broken = true;
                false
            }
        }
    }
}

/// What a process left in its journal.
#[derive(Debug, Default)]
pub struct Left {
    /// The changes that are not known to be in the engine, in their order.
    pub(super) changes: Vec<Change>,
    /// How many changes lie behind damage. They are in `changes` too, at its end.
    pub(super) behind: usize,
    /// A header is damaged: the changes that followed it are not known.
    pub(super) is_headless: bool,
}

/// The records of one file.
struct Records {
    header: Header,
    /// The number of the first record. 0: there is none.
    first: u64,
    /// The number that the next record would have.
    next: u64,
    changes: Vec<Change>,
    /// Changes behind bytes that are no records.
    behind: Vec<Change>,
    done: u64,
}

impl Left {
    /// Reads what a process of this node left in a folder. A journal of another node, in a copy of its
    /// folder, counts as none.
    ///
    /// # Errors
    /// The system's error, also for a journal of a newer format.
    pub fn read(dir: &Path, node: [u8; 16]) -> io::Result<Left> {
        let mut left = Left::default();
        let mut files = Vec::new();
        for file in 0..2 {
            let bytes = match fs::read(path(dir, file)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                bytes => bytes?,
            };
            if Header::is_newer(&bytes) {
                let what = "a newer version of covey wrote it, and knows how to store what is in it";
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
            match Header::decode(&bytes) {
                Some(header) if header.node == node => files.push(Records::read(header, &bytes)),
                Some(_) => {}
                None => left.is_headless |= bytes.iter().take(RECORD_HEADER).any(|byte| *byte != 0),
            }
        }
        files.sort_by_key(|records| records.header.number);
        let floor = files.last().map_or(0, |records| records.header.floor);
        let files = files.into_iter().filter(|records| records.header.number >= floor);
        let (mut done, mut next, mut behind) = (0, None, Vec::new());
        for mut records in files {
            done = done.max(records.done);
            // Where the first file ends early, records before those of the second are missing.
            let is_cut = next.is_some_and(|next| next != records.first) || !behind.is_empty();
            let into = if is_cut { &mut behind } else { &mut left.changes };
            into.append(&mut records.changes);
            behind.append(&mut records.behind);
            next = Some(records.next);
        }
        left.changes.retain(|change| change.batch > done);
        behind.retain(|change| change.batch > done);
        left.behind = behind.len();
        left.changes.append(&mut behind);
        Ok(left)
    }

    /// Reads what a process left in a folder, whichever node's journal it is, as far as can be read.
    pub fn read_any(dir: &Path) -> Left {
        let node = |file: usize| {
            let mut bytes = vec![0; HEADER as usize];
            let read = File::open(path(dir, file)).ok()?.read_at(&mut bytes, 0).ok()?;
            Header::decode(&bytes[..read]).map(|header| header.node)
        };
        let node = node(0).or_else(|| node(1));
        node.and_then(|node| Left::read(dir, node).ok()).unwrap_or_default()
    }

    /// Whether everything that was acknowledged is in the engine.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && !self.is_headless
    }

    /// How many changes are not known to be in the engine.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// The session in which the changes were made.
    pub fn session(&self) -> Option<Holder> {
        self.changes.first().map(|change| change.holder)
    }
}

impl Records {
    fn read(header: Header, bytes: &[u8]) -> Records {
        let mut records =
            Records { header, first: 0, next: 0, changes: Vec::new(), behind: Vec::new(), done: 0 };
        let mut at = HEADER as usize;
        while let Some((place, end)) = records.next_at(bytes, at) {
            records.take(place, &bytes[at..end], false);
            at = end;
        }
        // What a kill tore is the end. Records behind it were written later, so it is damage.
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() > RECORD_HEADER) {
            match records.next_at(bytes, at) {
                Some((place, end)) => {
                    records.take(place, &bytes[at..end], true);
                    at = end;
                }
                // A record may begin in the last zeros.
                None if rest.starts_with(&ZEROS) => at += ZEROS.len() - RECORD_HEADER,
                None => at += 1,
            }
        }
        records
    }

    /// The record that begins here: its place, and where it ends.
    fn next_at(&self, bytes: &[u8], at: usize) -> Option<(Place, usize)> {
        let rest = bytes.get(at..)?;
        let (segment, seq) = format::peek(rest).filter(|_| rest.len() > RECORD_HEADER)?;
        let is_next = segment == self.header.number && (self.next == 0 || seq >= self.next);
        let place = Place { segment, seq, key: record::key_of(&self.header.node) };
        match format::find(rest, place) {
            Found::Record(_, payload) if is_next => Some((place, at + RECORD_HEADER + payload.len())),
            _ => None,
        }
    }

    fn take(&mut self, place: Place, bytes: &[u8], behind: bool) {
        if self.first == 0 && !behind {
            self.first = place.seq;
        }
        self.next = place.seq + 1;
        match format::find(bytes, place) {
            Found::Record(Kind::Commit, payload) => match record::get_change(payload) {
                Some(change) if behind => self.behind.push(change),
                Some(change) => self.changes.push(change),
                None => {}
            },
            Found::Record(Kind::Mark, payload) => {
                self.done = self.done.max(record::get_done(payload).unwrap_or(0));
            }
            _ => {}
        }
    }
}
