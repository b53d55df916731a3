//! Copies of other nodes' packs: what was synced there and is not in the origin yet.
//!
//! ```text
//!   VOLUME/kept/PACK:  header, bytes │ header, bytes │ ...        appended, never changed
//! ```
//!
//! A header says which range of the pack follows, and has the range's CRC32C and its own. So a restart finds
//! what is there without reading it, and a read returns nothing that differs from what was sent. A record
//! that a power cut tore is cut off, with what follows it: nothing of it was acknowledged, because an
//! acknowledgement comes after fdatasync(2). Of two records of one range, the later one counts.
//!
//! **It is bounded.** Beyond the budget, or when the disk has too little free space, ranges are refused. The
//! other node then asks another one, or waits for the origin.
//!
//! **A run has a number**, random at each start. A node that sends ranges in several requests and syncs them
//! in a last one compares it: what was written by an earlier run is perhaps not durable.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::PackNo;
use base::size::BLOB_MAX;
use blob::sums::crc32c;
use blob::{BlobError, Kept, KeptPack};
use parking_lot::Mutex;

use crate::disk::{Durable, space_of};
use crate::end_of;

/// A record's header: magic, length, pack, offset, CRC of the bytes, CRC of the header.
const HEADER: usize = 28;
const MAGIC: u32 = u32::from_le_bytes(*b"CVK1");
/// A copy takes no more records beyond this: a pack has 4 MiB, and small ranges take a header each.
const FILE_MAX: u64 = 4 * BLOB_MAX as u64;

/// Copies of packs, and the room they take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptStats {
    /// Packs of which something is here.
    pub packs: u64,
    /// What they take on the disk.
    pub bytes: u64,
    /// What they may take.
    pub budget: u64,
    /// Ranges refused for want of room since the start.
    pub refused: u64,
}

#[derive(Clone, Copy)]
struct Record {
    offset: u32,
    len: u32,
    crc: u32,
    /// Where in the file the bytes begin.
    at: u64,
    /// Written by this run.
    own: bool,
}

/// A copy.
struct Copy {
    state: Mutex<CopyState>,
    durable: Durable,
}

#[derive(Default)]
struct CopyState {
    records: Vec<Record>,
    /// The length of the file's sound part.
    len: u64,
    version: u64,
    removed: bool,
}

#[derive(Default)]
struct State {
    copies: HashMap<PackNo, Arc<Copy>>,
    bytes: u64,
    refused: u64,
}

/// The copies in a folder. See the [module](self).
pub struct KeptPacks {
    dir: PathBuf,
    /// The folder itself, for fsync and for the free space.
    handle: File,
    names: Durable,
    budget: u64,
    /// Bytes of the disk that stay free.
    floor: u64,
    run: u64,
    state: Mutex<State>,
}

impl KeptPacks {
    /// Opens the folder, and creates it if it is absent. At most `budget` bytes are kept, and only while
    /// `floor` bytes of the disk stay free.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(dir: &Path, budget: u64, floor: u64) -> io::Result<KeptPacks> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {
                if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                    File::open(parent)?.sync_all()?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let mut state = State::default();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            let Some(pack) = name.to_str().and_then(|name| name.parse().ok()).map(PackNo) else { continue };
            if pack.to_string().as_str() != name {
                continue;
            }
            let found = scan(&dir.join(&name), pack)?;
            state.bytes += found.len;
            let copy = Copy { state: Mutex::new(found), durable: Durable::new(1) };
            state.copies.insert(pack, Arc::new(copy));
        }
        Ok(KeptPacks {
            dir: dir.to_owned(),
            handle: File::open(dir)?,
            names: Durable::new(1),
            budget,
            floor,
            run: base::random::u64(),
            state: Mutex::new(state),
        })
    }

    /// The number of this run.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// The room that copies take.
    pub fn stats(&self) -> KeptStats {
        let state = self.state.lock();
        let packs = state.copies.len() as u64;
        KeptStats { packs, bytes: state.bytes, budget: self.budget, refused: state.refused }
    }

    /// Adds a range of a pack to its copy. It survives a power cut after [`KeptPacks::sync`].
    ///
    /// # Errors
    /// See [`BlobError`]; `Full` when there is no room. Then nothing was added.
    pub fn write(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError> {
        end_of(pack, offset, bytes.len())?;
        let size = (HEADER + bytes.len()) as u64;
        self.reserve(size)?;
        let added = self.append(pack, offset, bytes);
        if !matches!(added, Ok(true)) {
            self.state.lock().bytes -= size;
        }
        added.map(drop)
    }

    fn reserve(&self, size: u64) -> Result<(), BlobError> {
        let space = space_of(&self.handle)?;
        let mut state = self.state.lock();
        if state.bytes + size > self.budget || space.available < self.floor.saturating_add(size) {
            state.refused += 1;
            return Err(BlobError::Full);
        }
        state.bytes += size;
        Ok(())
    }

    /// False if the range is there already.
    fn append(&self, pack: PackNo, offset: u32, bytes: &[u8]) -> Result<bool, BlobError> {
        loop {
            let new = || Arc::new(Copy { state: Mutex::default(), durable: Durable::new(0) });
            let copy = self.state.lock().copies.entry(pack).or_insert_with(new).clone();
            let mut state = copy.state.lock();
            if state.removed {
                continue;
            }
            let crc = crc32c(bytes);
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let is_same =
                |record: &Record| record.own && (record.offset, record.len, record.crc) == (offset, len, crc);
            if state.records.iter().any(is_same) {
                return Ok(false);
            }
            if state.len + (HEADER + bytes.len()) as u64 > FILE_MAX {
                return Err(BlobError::Full);
            }
            let path = self.path(pack);
            let is_new = !path.try_exists()?;
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            if is_new {
                self.names.changed();
            }
            let mut record = header(pack, offset, len, crc).to_vec();
            record.extend_from_slice(bytes);
            let written = file.write_all_at(&record, state.len);
            copy.durable.changed();
            if let Err(error) = written {
                // What was written of it must not look like a record after a restart.
                let _ = file.set_len(state.len);
                return Err(error.into());
            }
            let at = state.len + HEADER as u64;
            state.records.push(Record { offset, len, crc, at, own: true });
            state.len += record.len() as u64;
            state.version += 1;
            return Ok(true);
        }
    }

    /// Makes all that was written to a copy survive a power cut.
    ///
    /// # Errors
    /// See [`BlobError`]; `NotFound` when nothing of it is here. After an error it is unknown what is
    /// durable, and each further sync of the copy fails.
    pub fn sync(&self, pack: PackNo) -> Result<(), BlobError> {
        let copy = self.find(pack).ok_or(absent(pack))?;
        // Opened first, so that a lack of file handles does not count as a failed sync.
        let file = match File::open(self.path(pack)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(absent(pack)),
            file => file?,
        };
        copy.durable.sync(|| file.sync_data())?;
        self.names.sync(|| self.handle.sync_all())?;
        // A copy that was deleted meanwhile keeps nothing.
        if copy.state.lock().removed { Err(absent(pack)) } else { Ok(()) }
    }

    /// Reads the parts of a range that begins at `offset`. Returns where the first damaged record is.
    fn read_parts(
        file: &File,
        parts: &[(Record, u32, u32)],
        offset: u32,
        buf: &mut [u8],
    ) -> io::Result<Option<u64>> {
        for (record, from, to) in parts {
            let mut bytes = vec![0; record.len as usize];
            file.read_exact_at(&mut bytes, record.at)?;
            if crc32c(&bytes) != record.crc {
                return Ok(Some(record.at));
            }
            let part = &bytes[(from - record.offset) as usize..(to - record.offset) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
        Ok(None)
    }

    fn find(&self, pack: PackNo) -> Option<Arc<Copy>> {
        self.state.lock().copies.get(&pack).cloned()
    }

    fn path(&self, pack: PackNo) -> PathBuf {
        self.dir.join(pack.to_string())
    }
}

impl Kept for KeptPacks {
    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<bool, BlobError> {
        let end = end_of(pack, offset, buf.len())?;
        let Some(copy) = self.find(pack) else { return Ok(false) };
        let mut records = copy.state.lock().records.clone();
        let file = match File::open(self.path(pack)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        let mut damaged = None;
        // An older record of the range may be sound: a newer one was perhaps never synced.
        while let Some(parts) = newest(&records, offset, end) {
            let Some(at) = KeptPacks::read_parts(&file, &parts, offset, buf)? else { return Ok(true) };
            damaged = Some(at);
            records.retain(|record| record.at != at);
        }
        damaged.map_or(Ok(false), |at| {
            let what = format!("the copy of pack {pack} on this disk is damaged at byte {at} of its file");
            Err(BlobError::Io(io::Error::new(io::ErrorKind::InvalidData, what)))
        })
    }

    fn ranges(&self, pack: PackNo) -> Vec<(u32, u32)> {
        let Some(copy) = self.find(pack) else { return Vec::new() };
        let mut ranges: Vec<(u32, u32)> =
            copy.state.lock().records.iter().map(|record| (record.offset, record.len)).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let joins = next.0 <= last.0 + last.1;
            if joins {
                last.1 = last.1.max(next.0 + next.1 - last.0);
            }
            joins
        });
        ranges
    }

    fn list(&self) -> Vec<KeptPack> {
        let state = self.state.lock();
        let version = |copy: &Copy| copy.state.lock().version;
        state.copies.iter().map(|(pack, copy)| KeptPack { pack: *pack, version: version(copy) }).collect()
    }

    fn remove(&self, pack: PackNo, version: Option<u64>) -> Result<(), BlobError> {
        let mut state = self.state.lock();
        let Some(copy) = state.copies.get(&pack).cloned() else { return Ok(()) };
        let mut about = copy.state.lock();
        if version.is_some_and(|version| version != about.version) {
            return Ok(());
        }
        match fs::remove_file(self.path(pack)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        about.removed = true;
        state.bytes -= about.len;
        state.copies.remove(&pack);
        Ok(())
    }
}

/// The parts of a range, each with the newest record that holds it. None if some of it is in no record.
fn newest(records: &[Record], offset: u32, end: u32) -> Option<Vec<(Record, u32, u32)>> {
    let (mut left, mut found) = (vec![(offset, end)], Vec::new());
    for record in records.iter().rev() {
        if left.is_empty() {
            break;
        }
        let mut rest = Vec::with_capacity(left.len() + 1);
        for (from, to) in left {
            let (a, b) = (from.max(record.offset), to.min(record.offset + record.len));
            if a >= b {
                rest.push((from, to));
                continue;
            }
            found.push((*record, a, b));
            rest.extend([(from, a), (b, to)].into_iter().filter(|(from, to)| from < to));
        }
        left = rest;
    }
    left.is_empty().then_some(found)
}

fn absent(pack: PackNo) -> BlobError {
    let what = format!("nothing of pack {pack} is kept here");
    BlobError::Io(io::Error::new(io::ErrorKind::NotFound, what))
}

fn header(pack: PackNo, offset: u32, len: u32, crc: u32) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..8].copy_from_slice(&len.to_le_bytes());
    out[8..16].copy_from_slice(&pack.0.to_le_bytes());
    out[16..20].copy_from_slice(&offset.to_le_bytes());
    out[20..24].copy_from_slice(&crc.to_le_bytes());
    let own = crc32c(&out[..24]);
    out[24..].copy_from_slice(&own.to_le_bytes());
    out
}

/// Reads the headers of a copy's file, and cuts off what follows the last sound one.
fn scan(path: &Path, pack: PackNo) -> io::Result<CopyState> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let size = file.metadata()?.len();
    let mut state = CopyState::default();
    let mut head = [0; HEADER];
    while state.len + (HEADER as u64) < size {
        file.read_exact_at(&mut head, state.len)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (len, offset, crc) = (word(4), word(16), word(20));
        let (at, is_in_pack) = (state.len + HEADER as u64, end_of(pack, offset, len as usize).is_ok());
        if head != header(pack, offset, len, crc) || !is_in_pack || at + u64::from(len) > size {
            break;
        }
        state.records.push(Record { offset, len, crc, at, own: false });
        state.len = at + u64::from(len);
    }
    if state.len < size {
        file.set_len(state.len)?;
    }
    state.version = state.records.len() as u64;
    Ok(state)
}

#[cfg(test)]
mod tests;
