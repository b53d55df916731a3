//! `file:DIR`: a [`BlobFolder`] with a marker in it.
//!
//! The marker (`covey-origin`: the version of the layout, and the volume's id) distinguishes an origin's
//! folder from the empty directory that is left when its disk is not mounted. Without it, a volume would find
//! every blob missing, and would write new ones to the wrong disk. So when a blob is not found, the marker is
//! checked before the blob is called missing. If the marker is gone too, the whole origin is unavailable and
//! may come back.
//!
//! An origin belongs to one volume, as in an object store. Version 1 of the marker named none. Such a folder
//! can still be read, and the first volume that claims it writes a marker of version 2
//! ([`Folder::adopt_by`]).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base::BlobId;
use base::phase::{self, Phase};
use blob::records::RecordFolder;
use blob::{BlobError, BlobFolder, BlobSource, Origin, Records, Sums};
use parking_lot::Mutex;

use crate::OriginError;
use crate::foreign::own;

/// The file that marks a folder as an origin.
pub(crate) const MARKER: &str = "covey-origin";
const MARKER_LINE: &str = "covey origin 2";
/// Version 1, without the name of a volume.
const EARLIER_LINE: &str = "covey origin 1";

/// The purpose for which an origin is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read blobs; everything else is refused. The folder may be on a read-only disk.
    ReadOnly,
    /// To read, store and remove blobs.
    ReadWrite,
}

/// An origin in a folder. See the [module](self).
pub struct Folder {
    blobs: BlobFolder,
    records: RecordFolder,
    access: Access,
    /// The volume that the marker names; none in a marker of version 1.
    volume: Mutex<Option<String>>,
    /// Opened for inspection although it has no marker.
    unmarked: bool,
}

impl Folder {
    /// Makes `dir` the origin of `volume` and opens it for writing. Creates the folder if it is absent.
    /// Refuses it if it holds anything, including another origin.
    ///
    /// # Errors
    /// See [`OriginError`].
    pub fn format(dir: &Path, volume: &str) -> Result<Folder, OriginError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
                OriginError::NotAFolder(dir.to_owned())
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                OriginError::ReadOnly { dir: dir.to_owned(), source }
            }
            _ => OriginError::Io { dir: dir.to_owned(), source },
        };
        let blobs = BlobFolder::create(dir).map_err(failed)?;
        match check_marker(dir) {
            Ok(_) => return Err(OriginError::Taken(dir.to_owned())),
            Err(OriginError::NotAnOrigin(_)) => {}
            Err(other) => return Err(other),
        }
        for entry in fs::read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // A separate disk has a lost+found. A kill during this function leaves an empty marker, or a
            // temporary one beside it.
            let empty = entry.file_name() == MARKER && entry.metadata().map_err(failed)?.len() == 0;
            let half = empty || entry.file_name().to_string_lossy().starts_with(&format!("{MARKER}~"));
            if !half && entry.file_name() != "lost+found" {
                return Err(OriginError::NotEmpty(dir.to_owned()));
            }
        }
        // Of several concurrent callers one creates the file. What a kill leaves of it does not count as a
        // marker, and is replaced.
        match create_marker(dir, volume) {
            Ok(()) => Ok(Folder::over(blobs, Access::ReadWrite, Some(volume.to_owned()))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(OriginError::Taken(dir.to_owned()))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Opens an origin created by [`Folder::format`].
    ///
    /// # Errors
    /// See [`OriginError`].
    pub fn open(dir: &Path, access: Access) -> Result<Folder, OriginError> {
        let blobs = BlobFolder::open(dir).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => OriginError::Absent(dir.to_owned()),
            io::ErrorKind::NotADirectory => OriginError::NotAFolder(dir.to_owned()),
            _ => OriginError::Io { dir: dir.to_owned(), source },
        })?;
        let volume = check_marker(dir)?;
        if access == Access::ReadWrite {
            let refused = |source| OriginError::ReadOnly { dir: dir.to_owned(), source };
            match blobs.probe() {
                // A full disk is no reason to refuse: its contents can be read and removed.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {}
                probe => probe.map_err(refused)?,
            }
            blobs.sweep().map_err(refused)?;
        }
        Ok(Folder::over(blobs, access, volume))
    }

    /// Opens a folder that may have lost its marker, to inspect it. Nothing can be stored until it has one:
    /// see [`Folder::mark`].
    ///
    /// # Errors
    /// The folder does not exist.
    pub fn unmarked(dir: &Path) -> Result<Folder, OriginError> {
        let blobs = BlobFolder::open(dir).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => OriginError::Absent(dir.to_owned()),
            _ => OriginError::Io { dir: dir.to_owned(), source },
        })?;
        Ok(Folder { unmarked: true, ..Folder::over(blobs, Access::ReadOnly, None) })
    }

    /// Writes the marker of an origin that has lost it; false if it exists. The caller must have checked the
    /// other contents of the folder.
    ///
    /// # Errors
    /// Another volume's marker is there, or it cannot be written.
    pub fn mark(&self, volume: &str) -> Result<bool, OriginError> {
        match check_marker(self.dir()) {
            Ok(Some(found)) if found == volume => return Ok(false),
            Ok(_) => return Err(OriginError::Taken(self.dir().to_owned())),
            Err(OriginError::NotAnOrigin(_)) => {}
            Err(error) => return Err(error),
        }
        let io = |source| OriginError::Io { dir: self.dir().to_owned(), source };
        create_marker(self.dir(), volume).map_err(io).map(|()| true)
    }

    /// The volume it belongs to; none for an origin created before markers named their volume.
    pub fn volume(&self) -> Option<String> {
        self.volume.lock().clone()
    }

    /// Writes the volume's name into a marker of version 1. To be called by the volume that has claimed the
    /// origin.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn adopt_by(&self, volume: &str) -> Result<(), OriginError> {
        let io = |source| OriginError::Io { dir: self.dir().to_owned(), source };
        let mut named = self.volume.lock();
        if named.is_none() {
            replace_marker(self.dir(), volume).map_err(io)?;
            *named = Some(volume.to_owned());
        }
        Ok(())
    }

    /// Removes the marker of an origin that was just created for a volume whose creation then failed.
    pub fn unmake(dir: &Path) {
        let _ = fs::remove_file(dir.join(MARKER));
    }

    fn over(blobs: BlobFolder, access: Access, volume: Option<String>) -> Folder {
        let records = RecordFolder::new(&blobs.dir().join("records"));
        Folder { blobs, records, access, volume: Mutex::new(volume), unmarked: false }
    }

    /// The folder's path.
    pub fn dir(&self) -> &Path {
        self.blobs.dir()
    }

    /// The blob's sums.
    ///
    /// # Errors
    /// See [`BlobError`].
    pub fn sums(&self, id: &BlobId) -> Result<Sums, BlobError> {
        self.blobs.sums(id).map_err(|error| self.explain(error))
    }

    /// A blob may be missing because the whole origin is.
    fn explain(&self, error: BlobError) -> BlobError {
        let absent = match &error {
            BlobError::Missing(_) => true,
            BlobError::Io(error) => error.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        if absent && !self.is_marked() {
            let dir = self.dir().display();
            return BlobError::Unavailable(format!(
                "the origin's folder {dir} is gone: mount the disk it lies on"
            ));
        }
        error
    }

    fn is_marked(&self) -> bool {
        self.unmarked || self.dir().join(MARKER).exists()
    }

    /// Checked before anything is stored: without the marker it would go to the wrong disk.
    fn writable(&self) -> Result<(), BlobError> {
        if self.access == Access::ReadOnly {
            return Err(BlobError::Io(io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        self.reachable()
    }

    /// Without the marker, a blob that is not found is not known to be missing.
    fn reachable(&self) -> Result<(), BlobError> {
        if self.is_marked() {
            return Ok(());
        }
        Err(self.explain(BlobError::Io(io::ErrorKind::NotFound.into())))
    }
}

impl BlobSource for Folder {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.blobs.read_at(id, offset, buf).map_err(|error| self.explain(error))
    }

    /// Always: even that a blob is missing is known on this machine without waiting.
    fn is_local(&self, _: &BlobId) -> bool {
        true
    }

    fn will_need(&self, id: &BlobId) {
        self.blobs.will_need(id);
    }

    fn file_of(&self, id: &BlobId) -> Option<(File, Sums)> {
        self.blobs.file_of(id)
    }
}

impl Records for Folder {
    fn record(&self, name: &str) -> Result<Option<Vec<u8>>, BlobError> {
        self.reachable()?;
        self.records.record(name)
    }

    fn put_record(&self, name: &str, bytes: &[u8]) -> Result<(), BlobError> {
        self.writable()?;
        self.records.put_record(name, bytes)
    }

    fn create_record(&self, name: &str, bytes: &[u8]) -> Result<bool, BlobError> {
        self.writable()?;
        self.records.create_record(name, bytes)
    }

    fn remove_record(&self, name: &str) -> Result<(), BlobError> {
        self.writable()?;
        self.records.remove_record(name)
    }

    fn records(&self, folder: &str) -> Result<Vec<String>, BlobError> {
        self.reachable()?;
        self.records.records(folder)
    }
}

impl Origin for Folder {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &Path) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.writable()?;
        own(id)?;
        self.blobs.adopt(id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.writable()?;
        own(id)?;
        self.blobs.put(id, sums, bytes)
    }

    fn sync(&self) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.blobs.sync().map_err(|error| self.explain(error))
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.writable()?;
        self.blobs.remove(id)
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        match self.blobs.size(id)? {
            None if !self.is_marked() => Err(self.explain(BlobError::Missing(*id))),
            size => Ok(size),
        }
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        self.reachable()?;
        self.blobs.list(each)
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.blobs.verify(id).map_err(|error| self.explain(error))
    }

    fn look(&self) -> Result<Option<String>, BlobError> {
        let wrong = |what: &str| Ok(Some(format!("{}: {what}", self.describe())));
        match check_marker(self.dir()) {
            Ok(found) if self.volume().is_none_or(|volume| found == Some(volume)) => Ok(None),
            Ok(_) => {
                wrong("the origin belongs to another volume now: check the folder and what is mounted there")
            }
            Err(OriginError::NotAnOrigin(_)) => wrong(
                "the origin is gone (it holds no covey-origin any more): mount the disk it lies on, or, if the file alone was lost, \
                 unmount and make it anew: covey origin mark VOLUME",
            ),
            Err(error) => Err(BlobError::Unavailable(error.to_string())),
        }
    }

    fn describe(&self) -> String {
        format!("file:{}", self.dir().display())
    }
}

/// The volume that the marker names, if it names one.
fn check_marker(dir: &Path) -> Result<Option<String>, OriginError> {
    let file = File::open(dir.join(MARKER)).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OriginError::NotAnOrigin(dir.to_owned()),
        _ => OriginError::Io { dir: dir.to_owned(), source },
    })?;
    let mut found = Vec::new();
    file.take(256)
        .read_to_end(&mut found)
        .map_err(|source| OriginError::Io { dir: dir.to_owned(), source })?;
    let found = String::from_utf8_lossy(&found);
    let mut lines = found.lines();
    let first = lines.next().unwrap_or("");
    if first == EARLIER_LINE {
        Ok(None)
    } else if first == MARKER_LINE {
        let volume = lines.find_map(|line| line.strip_prefix("volume "));
        volume.map(|volume| Some(volume.to_owned())).ok_or_else(|| OriginError::NotAnOrigin(dir.to_owned()))
    } else if found.starts_with("covey origin ") {
        Err(OriginError::Newer { dir: dir.to_owned(), found: found.trim_end().to_owned() })
    } else {
        Err(OriginError::NotAnOrigin(dir.to_owned()))
    }
}

/// Writes a temporary file with the marker's text beside the marker.
fn prepare_marker(dir: &Path, volume: &str) -> io::Result<PathBuf> {
    let beside = dir.join(format!("{MARKER}~{:016x}", base::random::u64()));
    let mut marker = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let text = format!("{MARKER_LINE}\nvolume {volume}\n");
    match marker.write_all(text.as_bytes()).and_then(|()| marker.sync_all()) {
        Ok(()) => Ok(beside),
        Err(error) => {
            let _ = fs::remove_file(&beside);
            Err(error)
        }
    }
}

/// Creates the marker if there is none. An empty one, left when an earlier program was killed, counts as
/// none.
fn create_marker(dir: &Path, volume: &str) -> io::Result<()> {
    let (beside, marker) = (prepare_marker(dir, volume)?, dir.join(MARKER));
    let mut made = fs::hard_link(&beside, &marker);
    let is_empty = || fs::metadata(&marker).is_ok_and(|meta| meta.len() == 0);
    match &made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_empty() => {
            made = fs::rename(&beside, &marker);
        }
        // On a filesystem without hard links, the creator of the empty file replaces it with the whole one.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let first = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&marker);
            made = first.and_then(|_| fs::rename(&beside, &marker));
        }
        _ => {}
    }
    let _ = fs::remove_file(&beside);
    made?;
    File::open(dir)?.sync_all()
}

/// Replaces the marker.
fn replace_marker(dir: &Path, volume: &str) -> io::Result<()> {
    let beside = prepare_marker(dir, volume)?;
    if let Err(error) = fs::rename(&beside, dir.join(MARKER)) {
        let _ = fs::remove_file(&beside);
        return Err(error);
    }
    File::open(dir)?.sync_all()
}
