//! Open packs as files: `DIR/NUMBER`, the number in decimal.
//!
//! **Locks.** A write or a read takes two locks, each only for a lookup: that of one of 16 shards, and that
//! of the pack's file handle. It holds none during disk I/O. Only [`sync`](PackStore::sync) holds a lock
//! during I/O: the pack's own, so that concurrent syncs of one pack share one fdatasync.
//!
//! **Durability.** Each pack counts the writes that have returned, and remembers how many of them the last
//! fdatasync covered. A sync whose writes are covered returns at once. A sync that arrives during another
//! waits for it and checks again. The folder holds the names of new packs and counts in the same way. After a
//! failed fdatasync the kernel may have dropped pages that it now calls clean, so every later sync of that
//! pack fails too. Several syncs run at the same time: each waits for a flush of the disk's cache, and the
//! kernel merges the flushes that wait together (measured on ext4: 64 folders one after the other 185 ms, by
//! four threads 3 to 10 ms).
//!
//! **File handles.** At most 512 are open. A pack whose handle was closed is opened again at its next use.
//! The kernel reports a writeback error to a handle that is opened later too, as long as no handle has
//! reported it.
//!
//! **Reads are verified.** Each write records its sums ([`sums`]). A read compares them, and sealing compares
//! them before it names the bytes by their hash. Bytes that do not match are an error.
//!
//! **After a crash** a pack is what its file holds. [`open_packs`](PackStore::open_packs) finds it. It can be
//! read, synced, sealed and discarded like any other.

mod file;
mod sums;

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::phase::{self, Phase};
use base::size::{GROUP, MIB};
use base::{BlobId, PackNo};
use blob::sums::Builder;
use blob::{BlobError, Origin, PackStore, Space, Sums};
use rustix::fs::StatVfs;

use crate::{end_of, exists_already, no_such_pack, too_short};
pub(crate) use file::Durable;
use file::{Pack, Packs};
use sums::{PackSums, Piece, Pieces, SumsFile, pieces_of};

/// How many files are synced at the same time.
const SYNC_THREADS: usize = 4;

/// Writeback of a sealed pack of at least this many bytes starts at once. Otherwise the next sync starts it,
/// up to a second later, together with all data written by then: a large file that ends with fsync(2) would
/// leave the disk idle for its first half and stall the writer for its second.
const EARLY_MIN: u32 = MIB as u32;

/// A node's open packs in a folder. See the [module](self).
pub struct DiskPacks {
    dir: PathBuf,
    /// The folder itself, for fsync and for the free space.
    handle: File,
    /// Durability of the folder. Each created pack is one change.
    names: Durable,
    packs: Packs,
    sums: SumsFile,
    origin: Arc<dyn Origin>,
}

impl DiskPacks {
    /// Opens the folder of a node's open packs. Creates it if it is absent, but not its parents. Sealed packs
    /// go to `origin`. An origin on the same filesystem makes blobs of them without copying.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(dir: &Path, origin: Arc<dyn Origin>) -> io::Result<DiskPacks> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => {
                if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                    File::open(parent)?.sync_all()?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        // Also fails if the path is not a folder.
        fs::read_dir(dir)?;
        let (packs, sums) = (Packs::new(), SumsFile::new(dir));
        for (no, pieces) in sums.load()? {
            match fs::metadata(dir.join(no.to_string())) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                about => packs.insert_known(no, PackSums::loaded(pieces, about?.len())),
            }
        }
        Ok(DiskPacks {
            dir: dir.to_owned(),
            handle: File::open(dir)?,
            // Packs found here may have been created just before a crash.
            names: Durable::new(1),
            packs,
            sums,
            origin,
        })
    }

    #[cfg(test)]
    pub(crate) fn handles(&self) -> usize {
        self.packs.handles()
    }

    fn path(&self, pack: PackNo) -> PathBuf {
        self.dir.join(pack.to_string())
    }

    /// The pack, if its file exists.
    fn find(&self, no: PackNo) -> Result<Option<Arc<Pack>>, BlobError> {
        if let Some(pack) = self.packs.get(no) {
            return Ok(Some(pack));
        }
        // A pack of a former run of this program.
        match file::open(&self.path(no)) {
            Ok(file) => Ok(Some(self.packs.insert_found(no, file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn get(&self, no: PackNo) -> Result<Arc<Pack>, BlobError> {
        self.find(no)?.ok_or_else(|| no_such_pack(no))
    }

    fn file(&self, no: PackNo, pack: &Pack) -> Result<Arc<File>, BlobError> {
        let (file, opened) = pack.file(|| self.path(no)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => no_such_pack(no),
            _ => error.into(),
        })?;
        if opened {
            self.packs.bound(no);
        }
        Ok(file)
    }

    /// Saves sums to their file. A failure loses no data and therefore fails no sync: the sums stay in memory
    /// while this program runs, and the next sync tries again.
    fn save_sums(&self, unsaved: &[(PackNo, Vec<Piece>)]) {
        if self.sums.save(unsaved).is_err() {
            for (no, pieces) in unsaved {
                if let Some(pack) = self.packs.get(*no) {
                    pack.sums.lock().put_back(pieces);
                }
            }
        } else if self.sums.is_long() {
            // If this fails, the file stays long until a later attempt.
            let _ = self.sums.shorten(|no| self.packs.get(no).is_some());
        }
    }

    fn sync_pack(&self, no: PackNo, pack: &Pack) -> Result<(), BlobError> {
        // Opens the file first, so that a lack of file handles does not count as a failed sync.
        let synced = self.file(no, pack).and_then(|file| Ok(pack.durable.sync(|| file.sync_data())?));
        match synced {
            // Retired or discarded in the meantime.
            Err(_) if !self.path(no).try_exists()? => Ok(()),
            synced => synced,
        }
    }
}

/// A part of a sync.
enum Part {
    Pack(PackNo, Arc<Pack>),
    Names,
    Sums(Vec<(PackNo, Vec<Piece>)>),
}

impl PackStore for DiskPacks {
    fn create(&self, pack: PackNo) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        match file::create(&self.path(pack)) {
            Ok(file) => {
                self.packs.insert_new(pack, file);
                self.names.changed();
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists_already(pack)),
            Err(error) => Err(error.into()),
        }
    }

    fn write(&self, no: PackNo, offset: u32, bytes: &[u8]) -> Result<(), BlobError> {
        self.write_summed(no, offset, bytes).map(drop)
    }

    fn write_summed(&self, no: PackNo, offset: u32, bytes: &[u8]) -> Result<u32, BlobError> {
        let _phase = phase::enter(Phase::Cache);
        end_of(no, offset, bytes.len())?;
        let pack = self.get(no)?;
        let file = self.file(no, &pack)?;
        let (pieces, crc) = pieces_of(offset, bytes);
        let result = file.write_all_at(bytes, u64::from(offset));
        if result.is_ok() {
            // After the bytes: a concurrent read of the neighbouring range must find the bytes that these
            // sums cover.
            sums::renew(&file, &pack.sums, &pieces);
        }
        // Also after an error: part of the bytes may have been written, and disk space was taken.
        pack.durable.changed();
        Ok(result.map(|()| crc)?)
    }

    fn prove(&self, no: PackNo, offset: u32, len: u32, crc: u32) -> Result<bool, BlobError> {
        let _phase = phase::enter(Phase::Cache);
        end_of(no, offset, len as usize)?;
        let Some(pack) = self.find(no)? else { return Ok(false) };
        let mut bytes = vec![0; len as usize];
        let file = self.file(no, &pack)?;
        if file.read_exact_at(&mut bytes, u64::from(offset)).is_err() {
            return Ok(false);
        }
        let (pieces, found) = pieces_of(offset, &bytes);
        if found == crc {
            sums::renew(&file, &pack.sums, &pieces);
        }
        Ok(found == crc)
    }

    fn read(&self, no: PackNo, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        end_of(no, offset, buf.len())?;
        let pack = self.get(no)?;
        let file = self.file(no, &pack)?;
        sums::read(&file, &pack.sums, offset, buf)?.map_err(|piece| damaged(no, &piece))
    }

    fn sync(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        let mut parts = Vec::with_capacity(packs.len() + 2);
        let mut unsaved = Vec::new();
        for no in packs {
            let Some(pack) = self.find(*no)? else { continue };
            let pieces = pack.sums.lock().take_unsaved();
            if !pieces.is_empty() {
                unsaved.push((*no, pieces));
            }
            parts.push(Part::Pack(*no, pack));
        }
        if parts.is_empty() {
            return Ok(());
        }
        parts.push(Part::Names);
        parts.push(Part::Sums(unsaved));
        parts.retain(|part| match part {
            Part::Pack(_, pack) => pack.durable.is_dirty(),
            Part::Names => self.names.is_dirty(),
            Part::Sums(unsaved) => !unsaved.is_empty(),
        });
        base::thread::for_each("covey-sync", SYNC_THREADS, &parts, |part| match part {
            Part::Pack(no, pack) => self.sync_pack(*no, pack),
            Part::Names => Ok(self.names.sync(|| self.handle.sync_all())?),
            Part::Sums(unsaved) => {
                self.save_sums(unsaved);
                Ok(())
            }
        })
    }

    fn seal(&self, no: PackNo, len: u32) -> Result<BlobId, BlobError> {
        let _phase = phase::enter(Phase::Cache);
        end_of(no, 0, len as usize)?;
        let pack = self.get(no)?;
        let file = self.file(no, &pack)?;
        let holds = file.metadata()?.len();
        if holds < u64::from(len) {
            return Err(too_short(no, len, holds));
        }
        if holds > u64::from(len) {
            sums::cut(&file, &pack.sums, len)?.map_err(|piece| damaged(no, &piece))?;
            file.set_len(u64::from(len))?;
            pack.durable.changed();
        }
        if len >= EARLY_MIN {
            start_writing(&file);
        }
        let sums = sums_of(no, &file, len, &pack.sums.lock().all())?;
        self.origin.adopt(&sums.id(), &sums, &self.path(no))?;
        Ok(sums.id())
    }

    fn retire(&self, packs: &[PackNo]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Cache);
        self.sync(packs)?;
        self.origin.sync()?;
        packs.iter().try_for_each(|pack| self.discard(*pack))
    }

    fn discard(&self, pack: PackNo) -> Result<(), BlobError> {
        match fs::remove_file(self.path(pack)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => self.packs.remove(pack),
        }
        // If this fails, the records of removed packs stay for a while.
        let _ = self.sums.clear_if(|| self.packs.is_empty());
        Ok(())
    }

    fn open_packs(&self) -> Result<Vec<(PackNo, u64)>, BlobError> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(no) = name.to_str().and_then(|name| name.parse::<u64>().ok()) else {
                continue;
            };
            // Accepts only the spelling of a number that `path` writes.
            if PackNo(no).to_string().as_str() != name {
                continue;
            }
            match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                metadata => all.push((PackNo(no), metadata?.len())),
            }
        }
        all.sort();
        Ok(all)
    }

    fn space(&self) -> Result<Space, BlobError> {
        Ok(space_of(&self.handle)?)
    }
}

/// Free space of the filesystem that an open file or folder is on.
pub(crate) fn space_of(on: &impl AsFd) -> io::Result<Space> {
    Ok(space(&rustix::fs::fstatvfs(on)?))
}

/// Free space of the filesystem that a path leads to.
pub(crate) fn space_at(path: &Path) -> io::Result<Space> {
    Ok(space(&rustix::fs::statvfs(path)?))
}

fn space(disk: &StatVfs) -> Space {
    let reserve = disk.f_bfree.saturating_sub(disk.f_bavail) * disk.f_frsize;
    Space { total: disk.f_blocks * disk.f_frsize, available: disk.f_bavail * disk.f_frsize, reserve }
}

/// Asks the kernel to start writeback of the file, and does not wait. Only a hint: a later sync handles
/// whatever was not started and reports failed writes.
fn start_writing(file: &File) {
    // SAFETY: sync_file_range(2) on a descriptor that `file` keeps open; it touches no memory of ours.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

fn damaged(no: PackNo, piece: &Piece) -> BlobError {
    let Piece { offset, len, .. } = piece;
    let what = format!(
        "open pack {no} is damaged on this disk: its {len} bytes at {offset} are not those that were written"
    );
    BlobError::Io(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// Reads group by group, so that each group is hashed while it is in the processor's cache. The bytes are
/// compared with `written` before they are hashed.
fn sums_of(no: PackNo, file: &File, len: u32, written: &Pieces) -> Result<Sums, BlobError> {
    let mut builder = Builder::new(len);
    let mut group = vec![0; GROUP as usize];
    let mut at = 0;
    while builder.next_len() > 0 {
        let group = &mut group[..builder.next_len() as usize];
        file.read_exact_at(group, at)?;
        if let Some(piece) = written.wrong(at as u32, group) {
            return Err(damaged(no, &piece));
        }
        at += group.len() as u64;
        builder.push(group);
    }
    Ok(builder.finish())
}
