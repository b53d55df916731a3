//! The disk under the log: a folder of files that are created at full length and written in place.
//!
//! There are two implementations: [`Folder`], the real one, and [`sim::SimDisk`], which separates what was
//! synced from what was only written. So the latter can show what a power cut may leave. It can also inject
//! faults.
//!
//! [`LogDisk::create`] writes zeros, and makes them and the name durable. Later writes then change no
//! metadata of the filesystem below, which halves the cost of an `fdatasync`, and they never need space.

pub mod sim;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of the log.
pub trait LogFile: Send + Sync {
    /// Returns the file's length in bytes; it never changes.
    fn len(&self) -> u64;

    /// Writes all of `bytes`, within the file. When it returns, the bytes survive a kill of the process.
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
    /// The system's. What was written since the last success may then be lost, even if a later call succeeds.
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

    /// Opens an existing file.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, name: &str) -> io::Result<Arc<dyn LogFile>>;

    /// Creates a file of `len` zero bytes. Its space, its zeros and its name are durable when this returns.
    ///
    /// # Errors
    /// The system's. No part of the file then remains.
    fn create(&self, name: &str, len: u64) -> io::Result<Arc<dyn LogFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Reserves space: a share of the disk that nobody else gets until [`LogDisk::release`], or what is free
    /// if that is less. `inside` bytes of new rows need no more of the disk. Returns whether the reserve is
    /// whole: the full share is held, and some space is free beside it.
    ///
    /// # Errors
    /// The system's.
    fn reserve(&self, inside: u64) -> io::Result<bool>;

    /// Releases the reserve. Returns whether there was one.
    ///
    /// # Errors
    /// The system's.
    fn release(&self) -> io::Result<bool>;
}

/// The log's folder on a real disk, with the reserve beside it.
pub struct Folder {
    folder: PathBuf,
    reserve: PathBuf,
    /// The least and the greatest size of the reserve, in bytes.
    bounds: (u64, u64),
    /// The reserve counts as whole while this many bytes are free beside it.
    margin: u64,
}

/// The reserve is one part in this many of the disk.
const RESERVE_SHARE: u64 = 32;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Folder {
    /// Opens the folder and creates it if it is missing. The reserve is a share of the disk, within `bounds`
    /// bytes. It is whole while `margin` bytes are free beside it.
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
        // A name that is not text was not made by the log.
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
            // The first error is the one to return. A file that cannot be removed is reused later.
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
        // Free pages inside the database save it from growing, but its log still needs part of the reserve.
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

/// Extends the reserve to `wanted` bytes, or as far as there is room.
fn hold(file: &File, kept: u64, wanted: u64) -> io::Result<()> {
    let mut more = wanted - kept;
    while more >= 4096 {
        match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, kept + more) {
            // Another writer took the space first, or the filesystem needs some of it for itself.
            Err(rustix::io::Errno::NOSPC) => more /= 2,
            // This filesystem cannot reserve space. Then only the free space counts.
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
