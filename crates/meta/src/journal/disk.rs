//! The disk under the log: a folder of files that are made at their full length and written in place.
//!
//! Three forms: [`Folder`], the real one; [`sim::SimDisk`], which keeps apart what was synced and what was only written, and so can
//! show what a power cut may leave; and the same with faults switched on.
//!
//! [`LogDisk::create`] writes zeros, and makes them and the name durable: later writes then change no metadata of the
//! filesystem below, which halves what a `fdatasync` costs, and never need room.

pub mod sim;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of the log.
pub trait LogFile: Send + Sync {
    /// Its length in bytes; it never changes.
    fn len(&self) -> u64;

    /// Writes all of `bytes`, within the file. Survives a kill of the process when it returns.
    ///
    /// # Errors
    /// The system's. Any part may then have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Makes everything written survive a power cut.
    ///
    /// # Errors
    /// The system's. What was written since the last success may then be lost, also if a later call succeeds.
    fn sync(&self) -> io::Result<()>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A folder of such files.
pub trait LogDisk: Send + Sync {
    /// The names of all files.
    ///
    /// # Errors
    /// The system's.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;

    /// Makes a file of `len` zero bytes. Its room, its zeros and its name are durable when this returns.
    ///
    /// # Errors
    /// The system's; nothing of the file is then left.
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn LogFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Keeps room in reserve: a share of the disk, given to nobody else until [`LogDisk::release`]; what there is if there is less. `inside` bytes
    /// of new rows need no more of the disk. Answers whether that is enough: the share whole, and something beside it.
    ///
    /// # Errors
    /// The system's.
    fn reserve(&self, inside: u64) -> io::Result<bool>;

    /// Gives the reserve up. Returns whether there was one.
    ///
    /// # Errors
    /// The system's.
    fn release(&self) -> io::Result<bool>;
}

/// The log's folder on a real disk, with the reserve beside it.
pub struct Folder {
    folder: PathBuf,
    reserve: PathBuf,
    /// The reserve's share of the disk is at least and at most this many bytes.
    bounds: (u64, u64),
    /// It counts as whole while there are this many bytes beside it.
    margin: u64,
}

/// The reserve is one part in this many of the disk.
const RESERVE_SHARE: u64 = 32;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Folder {
    /// The folder, made if it is not there. The reserve is a share of the disk, within `bounds` bytes; it is whole while there is `margin` beside it.
    ///
    /// # Errors
    /// The system's.
    pub fn open(folder: &Path, reserve: &Path, bounds: (u64, u64), margin: u64) -> io::Result<Folder> {
        if !folder.is_dir() {
            fs::create_dir_all(folder)?;
            sync_parent(folder)?;
        }
        Ok(Folder { folder: folder.to_owned(), reserve: reserve.to_owned(), bounds, margin })
    }

    fn make(&self, name: &str, len: u64) -> io::Result<Arc<dyn LogFile>> {
        let path = self.folder.join(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        let mut at = 0;
        while at < len {
            let step = (len - at).min(ZEROS.len() as u64);
            file.write_all_at(&ZEROS[..step as usize], at)?;
            at += step;
        }
        file.sync_all()?;
        File::open(&self.folder)?.sync_all()?;
        Ok(Arc::new(RealFile { file, len }))
    }
}

impl LogDisk for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.folder)?.map(|entry| entry.map(|entry| entry.file_name()));
        // A name that is no text is none of ours.
        let texts = names.filter_map(|name| name.map(|name| name.into_string().ok()).transpose());
        texts.collect()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.folder.join(name))?;
        let len = file.metadata()?.len();
        Ok(Arc::new(RealFile { file, len }))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn LogFile>> {
        self.make(name, len).inspect_err(|_| {
            // The error that matters is the one that is returned; a file that cannot be removed is reused later.
            let _ = fs::remove_file(self.folder.join(name));
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.folder.join(name))
    }

    fn reserve(&self, inside: u64) -> io::Result<bool> {
        let disk = rustix::fs::statvfs(&self.folder)?;
        let share = (disk.f_blocks * disk.f_frsize / RESERVE_SHARE).clamp(self.bounds.0, self.bounds.1);
        let kept = self.reserve.metadata().map_or(0, |meta| meta.len());
        let there = kept + disk.f_bavail * disk.f_frsize;
        // What the database has inside saves it from growing, but its log still needs some of the reserve.
        let is_whole = there >= share / 2 && there + inside >= share + self.margin;
        let wanted = share.min(there);
        if kept < wanted {
            let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.reserve)?;
            hold(&file, kept, wanted)?;
        }
        Ok(is_whole)
    }

    fn release(&self) -> io::Result<bool> {
        match fs::remove_file(&self.reserve) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Lengthens the reserve to `wanted` bytes, or as far as there is room.
fn hold(file: &File, kept: u64, wanted: u64) -> io::Result<()> {
    let mut more = wanted - kept;
    while more >= 4096 {
        match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, kept + more) {
            // Somebody else was quicker, or the filesystem needs some of it for itself.
            Err(rustix::io::Errno::NOSPC) => more /= 2,
            // One that cannot keep room: what is free is all there is to go by.
            Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
            done => return Ok(done?),
        }
    }
    Ok(())
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

struct RealFile {
    file: File,
    len: u64,
}

impl LogFile for RealFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
