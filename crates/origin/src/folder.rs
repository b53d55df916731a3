//! `file:DIR`: a [`BlobFolder`] with a marker in it.
//!
//! The marker (`covey-origin`, one line with the version of the layout) tells an origin's folder from the empty
//! directory that is left when its disk is not mounted. Without it, a volume would find every blob missing, and would
//! write its new ones to the wrong disk. A blob that is not found is therefore called missing only after a look at the
//! marker; when that is gone too, the whole origin is away and may come back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base::BlobId;
use base::phase::{self, Phase};
use blob::records::RecordFolder;
use blob::{BlobError, BlobFolder, BlobSource, Origin, Records, Sums};

use crate::OriginError;

/// The file that says: this folder is an origin.
pub(crate) const MARKER: &str = "covey-origin";
const MARKER_LINE: &str = "covey origin 1\n";

/// What an origin is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Blobs are read; everything else is refused. The folder may be on a read-only disk.
    ReadOnly,
    /// Blobs are read, stored and removed.
    ReadWrite,
}

/// An origin in a folder. See the [module](self).
pub struct Folder {
    blobs: BlobFolder,
    records: RecordFolder,
    access: Access,
}

impl Folder {
    /// Makes `dir` an origin: creates it if it is absent, refuses it if it holds other files, and opens it for writing. An
    /// origin that is there already is opened as it is.
    ///
    /// # Errors
    /// See [`OriginError`].
    pub fn format(dir: &Path) -> Result<Folder, OriginError> {
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
            Ok(()) => return Folder::open(dir, Access::ReadWrite),
            Err(OriginError::NotAnOrigin(_)) => {}
            Err(other) => return Err(other),
        }
        for entry in fs::read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // A disk of its own has a lost+found; an empty marker is all that a kill in the middle of this leaves.
            let half = entry.file_name() == MARKER && entry.metadata().map_err(failed)?.len() == 0;
            if !half && entry.file_name() != "lost+found" {
                return Err(OriginError::NotEmpty(dir.to_owned()));
            }
        }
        write_marker(dir).map_err(failed)?;
        Ok(Folder::over(blobs, Access::ReadWrite))
    }

    /// Opens an origin that [`Folder::format`] made.
    ///
    /// # Errors
    /// See [`OriginError`].
    pub fn open(dir: &Path, access: Access) -> Result<Folder, OriginError> {
        let blobs = BlobFolder::open(dir).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => OriginError::Absent(dir.to_owned()),
            io::ErrorKind::NotADirectory => OriginError::NotAFolder(dir.to_owned()),
            _ => OriginError::Io { dir: dir.to_owned(), source },
        })?;
        check_marker(dir)?;
        if access == Access::ReadWrite {
            let refused = |source| OriginError::ReadOnly { dir: dir.to_owned(), source };
            match blobs.probe() {
                // A full disk is no reason to refuse: what is there can be read and removed.
                Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {}
                probe => probe.map_err(refused)?,
            }
            blobs.sweep().map_err(refused)?;
        }
        Ok(Folder::over(blobs, access))
    }

    fn over(blobs: BlobFolder, access: Access) -> Folder {
        let records = RecordFolder::new(&blobs.dir().join("records"));
        Folder { blobs, records, access }
    }

    /// Where it is.
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

    /// A blob may be missing because all of them are.
    fn explain(&self, error: BlobError) -> BlobError {
        let absent = match &error {
            BlobError::Missing(_) => true,
            BlobError::Io(error) => error.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        if absent && !self.marker().exists() {
            let dir = self.dir().display();
            return BlobError::Unavailable(format!(
                "the origin's folder {dir} is gone: mount the disk it lies on"
            ));
        }
        error
    }

    fn marker(&self) -> PathBuf {
        self.dir().join(MARKER)
    }

    /// To be asked before anything is stored: without the marker it would go to the wrong disk.
    fn writable(&self) -> Result<(), BlobError> {
        if self.access == Access::ReadOnly {
            return Err(BlobError::Io(io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        self.reachable()
    }

    /// Without the marker nothing that is not found is known to be missing.
    fn reachable(&self) -> Result<(), BlobError> {
        if self.marker().exists() {
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

    /// Always: also that a blob is missing is said by this machine, without waiting.
    fn is_near(&self, _: &BlobId) -> bool {
        true
    }

    fn will_need(&self, id: &BlobId) {
        self.blobs.will_need(id);
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
        self.blobs.adopt(id, sums, file)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.writable()?;
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
            None if !self.marker().exists() => Err(self.explain(BlobError::Missing(*id))),
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

    fn describe(&self) -> String {
        format!("file:{}", self.dir().display())
    }
}

fn check_marker(dir: &Path) -> Result<(), OriginError> {
    let file = File::open(dir.join(MARKER)).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => OriginError::NotAnOrigin(dir.to_owned()),
        _ => OriginError::Io { dir: dir.to_owned(), source },
    })?;
    let mut found = Vec::new();
    file.take(64)
        .read_to_end(&mut found)
        .map_err(|source| OriginError::Io { dir: dir.to_owned(), source })?;
    let found = String::from_utf8_lossy(&found);
    if found == MARKER_LINE {
        Ok(())
    } else if found.starts_with("covey origin ") {
        Err(OriginError::Newer { dir: dir.to_owned(), found: found.trim_end().to_owned() })
    } else {
        Err(OriginError::NotAnOrigin(dir.to_owned()))
    }
}

fn write_marker(dir: &Path) -> io::Result<()> {
    let mut marker =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(dir.join(MARKER))?;
    marker.write_all(MARKER_LINE.as_bytes())?;
    marker.sync_all()?;
    File::open(dir)?.sync_all()
}
