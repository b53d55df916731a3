//! A volume's folder: the files in it, the file with the format version, and the lock that allows a single
//! user.
//!
//! ```text
//!   VOLUME/covey.json      format version, id, time of creation, permanent storage of its blobs
//!   VOLUME/lock            flock(2), held by the process that has the volume open; the text names it
//!   VOLUME/control.sock    the daemon's control socket, while mounted
//!   VOLUME/covey.log       the log of a daemon in the background
//!   VOLUME/meta/           metadata
//!   VOLUME/open/           packs that are not sealed yet
//!   VOLUME/blobs/          sealed blobs, unless the origin is elsewhere; with a remote origin, cached blobs
//!   VOLUME/upload/         with a remote origin: a link to each blob that it does not have yet
//!   VOLUME/cache.idx       with a remote origin: which blobs are cached, in which order
//!   VOLUME/claim           the folder's claim on the origin; its inode tells a copy of the folder
//!   VOLUME/node            of a node of a shared volume: its id; the names are in a database then
//!   VOLUME/changes/        of a node of a shared volume: changes that may not be in the database yet
//!   VOLUME/publisher.json  the identity of the folder in its origin, and the key that signs published trees
//! ```
//!
//! The kernel releases the lock when the process ends, whatever the reason. So a crash never leaves a volume
//! locked. The text in the lock is only for messages and means nothing while no process holds it. A folder is
//! a volume if it has a `covey.json`, so a new volume writes that file last. The chapter "The volume folder"
//! of docs/FORMAT.md describes the same.

#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::error::{Context, Failure, Result};
use api::own;
use api::text::utc;
use base::Deadline;
use base::lock::{self, FileLock};
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::mounts;
use crate::others::Others;

/// The newest format that this program reads, and the one that it writes. Version 2 added times of all years,
/// and logs that tell damage from a torn tail. See [`VolumeDir::upgrade`] for volumes of version 1.
pub const FORMAT_VERSION: u32 = 2;

/// The format of a folder whose volume has its names in a database. Older programs must not make a database
/// of their own in it.
pub const SHARED_VERSION: u32 = 3;

/// How long to wait for a daemon that is closing the volume.
const CLOSING: Duration = Duration::from_secs(10);

/// The origin of a volume that keeps its blobs in its own folder.
pub const ORIGIN_INSIDE: &str = "file:blobs";

/// The contents of `covey.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// The version of the format. It is the first field of the file, and the only one whose meaning never
    /// changes.
    pub format: u32,
    /// The volume's id: 32 hexadecimal digits.
    pub id: String,
    /// When it was created, UTC.
    pub created: String,
    /// The permanent storage of its blobs: `file:DIR`, where a relative folder is below the volume's, or
    /// `s3://BUCKET/PREFIX` and similar.
    pub origin: String,
    /// The address of the object store, if it is not the cloud's default. Never a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The bucket's region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The size of the cache of a remote origin's blobs, in bytes, unless a mount overrides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_size: Option<u64>,
    /// The address of the database that holds the names, if the volume is shared. Never a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// Fields that this program does not know.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// The permanent storage of a volume's blobs, as in `covey.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Home {
    /// The origin.
    pub origin: String,
    /// See [`Format::endpoint`].
    pub endpoint: Option<String>,
    /// See [`Format::region`].
    pub region: Option<String>,
    /// See [`Format::cache_size`].
    pub cache_size: Option<u64>,
}

impl From<&str> for Home {
    fn from(origin: &str) -> Home {
        Home { origin: origin.to_owned(), ..Home::default() }
    }
}

/// The process that holds a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// The command: `mount`, `fsck`, `import`, ...
    pub does: String,
    /// The mountpoint, if the command mounts the volume.
    #[serde(default, with = "api::raw_path::option", skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<PathBuf>,
}

/// A volume's folder, in a format that this program reads.
#[derive(Clone, Debug)]
pub struct VolumeDir {
    path: PathBuf,
    format: Format,
}

impl VolumeDir {
    /// Opens the folder of a volume.
    pub fn open(path: &Path) -> Result<VolumeDir> {
        mounts::check_way(path)?;
        let path = canonical(path)?;
        let file = path.join("covey.json");
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(not_a_volume(&path)),
            Err(error) => return Err(Failure::io(format!("cannot read {}", file.display()), &error)),
        };
        let format = read_format(&text).map_err(|why| unreadable(&file, why))?;
        if format.format > SHARED_VERSION {
            return Err(newer(&path, format.format));
        }
        let format: Format =
            serde_json::from_slice(&text).map_err(|error| unreadable(&file, error.to_string()))?;
        if format.format == SHARED_VERSION && format.names.is_none() {
            return Err(newer(&path, format.format));
        }
        Ok(VolumeDir { path, format })
    }

    /// Creates the folder of an empty volume. `fill` writes the metadata, and only then does the folder
    /// become a volume. The folder may exist if it is empty.
    pub fn create(
        path: &Path,
        home: impl Into<Home>,
        fill: impl FnOnce(&VolumeDir) -> Result<()>,
    ) -> Result<VolumeDir> {
        let id: String = base::random::id16().iter().map(|byte| format!("{byte:02x}")).collect();
        VolumeDir::create_as(path, &id, home, fill)
    }

    /// Creates a folder as [`VolumeDir::create`] does, for a volume that already has an id.
    pub fn create_as(
        path: &Path,
        id: &str,
        home: impl Into<Home>,
        fill: impl FnOnce(&VolumeDir) -> Result<()>,
    ) -> Result<VolumeDir> {
        mounts::check_way(path)?;
        limits::check(limits::For::Change)?;
        VolumeDir::make(path, id, home, None, fill)
    }

    /// Creates the folder of a node of the shared volume `id`, whose names are at the address `names`.
    pub fn create_node(path: &Path, id: &str, home: impl Into<Home>, names: String) -> Result<VolumeDir> {
        mounts::check_way(path)?;
        limits::check(limits::For::Change)?;
        VolumeDir::make(path, id, home, Some(names), |_| Ok(()))
    }

    fn make(
        path: &Path,
        id: &str,
        home: impl Into<Home>,
        names: Option<String>,
        fill: impl FnOnce(&VolumeDir) -> Result<()>,
    ) -> Result<VolumeDir> {
        let made = !path.exists();
        private_folder(path)?;
        let path = canonical(path)?;
        check_empty(&path)?;
        close_to_writers(&path)?;
        let created = utc(base::time::now().seconds());
        let Home { origin, endpoint, region, cache_size } = home.into();
        let format = Format {
            format: if names.is_some() { SHARED_VERSION } else { FORMAT_VERSION },
            id: id.to_owned(),
            created,
            origin,
            endpoint,
            region,
            cache_size,
            names,
            other: serde_json::Map::new(),
        };
        let volume = VolumeDir { path, format };
        let outcome = volume.build(fill);
        if outcome.is_err() {
            // An incomplete volume is worthless, and its remains would prevent the next attempt.
            for name in ["meta", "open", "blobs", "upload"] {
                let _ = fs::remove_dir_all(volume.path.join(name));
            }
            for name in ["lock", "claim", "publisher.json"] {
                let _ = fs::remove_file(volume.path.join(name));
            }
            if made {
                let _ = fs::remove_dir(&volume.path);
            }
        }
        outcome.map(|()| volume)
    }

    fn build(&self, fill: impl FnOnce(&VolumeDir) -> Result<()>) -> Result<()> {
        for folder in [self.meta(), self.open_packs()] {
            private_folder(&folder)?;
        }
        fill(self)?;
        self.write_format(&self.format)
    }

    /// Converts a volume from an older format to this program's. From then on programs that know only the
    /// older format refuse it. Nothing else changes: stored data stays as it is, and new versions are written
    /// beside it. The caller holds the lock and is about to write to the volume.
    pub fn upgrade(&self) -> Result<()> {
        if self.format.format >= FORMAT_VERSION || !self.path.join("covey.json").exists() {
            return Ok(());
        }
        self.write_format(&Format { format: FORMAT_VERSION, ..self.format.clone() })
    }

    fn write_format(&self, format: &Format) -> Result<()> {
        let text = serde_json::to_string_pretty(format).or_json()? + "\n";
        let (temporary, file) = (self.path.join("covey.json.new"), self.path.join("covey.json"));
        let write = || {
            let mut out = File::create(&temporary)?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            fs::rename(&temporary, &file)?;
            File::open(&self.path)?.sync_all()
        };
        write().at("write", &file)
    }

    /// The folder with another address of its names: the same database, written in another way or moved.
    pub fn with_names(mut self, names: String) -> Result<VolumeDir> {
        if self.format.names.as_ref() != Some(&names) {
            self.format.names = Some(names);
            self.write_format(&self.format)?;
        }
        Ok(self)
    }

    /// The folder with another place of its volume's blobs, while no process has it open.
    pub fn with_home(mut self, home: Home) -> Result<VolumeDir> {
        if self.origin() != home.origin {
            self.holder()?.map_or(Ok(()), |holder| Err(self.in_use(Some(holder))))?;
            let now = &mut self.format;
            (now.origin, now.endpoint, now.region) = (home.origin, home.endpoint, home.region);
            self.write_format(&self.format)?;
        }
        Ok(self)
    }

    /// Makes the folder of a volume that of a node: its names are at this address from now on, and durably so
    /// when this returns. After an error, the file says whether it was done.
    pub fn become_node(&self, names: &str) -> Result<VolumeDir> {
        let names = Some(names.to_owned());
        let format = Format { format: SHARED_VERSION, names, ..self.format.clone() };
        self.write_format(&format)?;
        Ok(VolumeDir { path: self.path.clone(), format })
    }

    /// Whether the names are in a database that other nodes use too.
    pub fn is_shared(&self) -> bool {
        self.format.names.is_some()
    }

    /// The absolute path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The permanent storage of its blobs, as in `covey.json`, with a relative folder made absolute.
    pub fn home(&self) -> Home {
        let Format { endpoint, region, cache_size, .. } = self.format.clone();
        Home { origin: self.origin(), endpoint, region, cache_size }
    }

    /// The contents of `covey.json`.
    pub fn format(&self) -> &Format {
        &self.format
    }

    /// The folder of the metadata.
    pub fn meta(&self) -> PathBuf {
        self.path.join("meta")
    }

    /// The folder of packs that are not sealed yet.
    pub fn open_packs(&self) -> PathBuf {
        self.path.join("open")
    }

    /// The folder of copies of other nodes' packs, in a shared volume.
    pub fn kept(&self) -> PathBuf {
        self.path.join("kept")
    }

    /// The folder of blobs: all of them, or with a remote origin the cached ones.
    pub fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    /// The folder of links to blobs that a remote origin does not have yet.
    pub fn uploads(&self) -> PathBuf {
        self.path.join("upload")
    }

    /// The number and the bytes of those blobs, according to the folder, while no process has the volume
    /// open.
    pub fn not_uploaded(&self) -> (u64, u64) {
        let entries = fs::read_dir(self.uploads()).into_iter().flatten().flatten();
        let notes =
            entries.filter(|entry| entry.file_name().to_string_lossy().parse::<base::BlobId>().is_ok());
        let sizes = notes.map(|entry| entry.metadata().map_or(0, |meta| meta.len()));
        sizes.fold((0, 0), |(blobs, bytes), size| (blobs + 1, bytes + size))
    }

    /// The index of cached blobs of a remote origin, with their order.
    pub fn cache_index(&self) -> PathBuf {
        self.path.join("cache.idx")
    }

    /// The file that says which claim on the origin belongs to this folder.
    pub fn claim(&self) -> PathBuf {
        self.path.join(crate::claim::memory::FILE)
    }

    /// The log of a daemon in the background.
    pub fn log(&self) -> PathBuf {
        self.path.join("covey.log")
    }

    /// The origin, with a relative folder made absolute: `file:/srv/v/blobs`.
    pub fn origin(&self) -> String {
        match self.format.origin.strip_prefix("file:") {
            Some(folder) => format!("file:{}", self.path.join(folder).display()),
            None => self.format.origin.clone(),
        }
    }

    /// Locks the volume for this process. Waits for a daemon whose mount has ended and that is still writing
    /// its data.
    pub fn lock(&self, holder: &Holder) -> Result<Lock> {
        let path = self.path.join("lock");
        let mut lock = FileLock::new(open_lock(&path).at("open", &path)?);
        let deadline = Deadline::current().within(CLOSING);
        while !lock.exclusive(lock::moment()).at("lock", &path)? {
            let other = self.holder()?;
            let closing = other.as_ref().is_none_or(|other| other.mountpoint.is_some())
                && mounts::of_volume(&self.path).is_none();
            if !closing || deadline.is_over() {
                return Err(self.in_use(other));
            }
        }
        self.check_is_same()?;
        let text = serde_json::to_string(holder).or_json()?;
        // The text is only for messages. A full disk must not prevent a mount.
        let _ = lock.set_len(0).and_then(|()| lock.write_all_at(text.as_bytes(), 0));
        Ok(Lock { _lock: lock })
    }

    /// Fails if the names have moved into a database since the folder was looked at.
    fn check_is_same(&self) -> Result<()> {
        match VolumeDir::open(&self.path) {
            Ok(now) if now.is_shared() != self.is_shared() => Err(Failure::new(
                "changed",
                format!("the volume {} became a shared one just now", self.path.display()),
            )
            .next("run the same command again")),
            // A volume that is being made has no file yet.
            _ => Ok(()),
        }
    }

    /// The process that holds the volume, if any. It has pid 0 if its text cannot be read.
    pub fn holder(&self) -> Result<Option<Holder>> {
        let path = self.path.join("lock");
        let mut lock = match own::open(&path, OpenOptions::new().read(true)) {
            Ok(file) => FileLock::new(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::io(format!("cannot open {}", path.display()), &error)),
        };
        if lock.try_shared().at("lock", &path)? {
            return Ok(None);
        }
        // A process writes the text right after taking the lock.
        for _ in 0..20 {
            let mut text = Vec::new();
            let mut file: &File = &lock;
            file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut text)).at("read", &path)?;
            if let Ok(holder) = serde_json::from_slice(&text) {
                return Ok(Some(holder));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Some(Holder { pid: 0, does: "something".to_owned(), mountpoint: None }))
    }

    /// Waits until no process holds the volume. False if that takes too long.
    pub fn wait_free(&self, patience: Duration) -> Result<bool> {
        let free = || Ok(self.holder()?.is_none());
        lock::retry(Deadline::after(patience), free, |free| matches!(free, Ok(false)))
    }

    /// The failure for a volume in use: by which process, and how to end that.
    pub fn in_use(&self, holder: Option<Holder>) -> Failure {
        let failure = Failure::new("in-use", format!("the volume {} is in use", self.path.display()));
        if let Some(Holder { pid, mountpoint: Some(_), .. }) = &holder
            && mounts::of_volume(&self.path).is_none()
        {
            // The mount is gone from here. Its remaining copies are more useful than the former mountpoint.
            let others = Others::of_volume(&self.path);
            if !others.is_empty() {
                let why = format!("process {pid} serves it, and its mount is gone from here");
                return others.explain(failure.why(why), &self.path);
            }
        }
        match holder {
            Some(Holder { pid, mountpoint: Some(place), .. }) => failure
                .why(format!("process {pid} has it mounted at {}", place.display()))
                .next(format!("use it there, or unmount it first: covey umount {}", place.display())),
            Some(Holder { pid, does, .. }) => failure
                .why(format!("process {pid} is busy with it (covey {does})"))
                .next("wait until that is done, then try again"),
            None => failure.why("another process had it a moment ago").next("try again"),
        }
    }
}

/// The lock on a volume, held until this is dropped.
#[derive(Debug)]
pub struct Lock {
    _lock: FileLock,
}

fn open_lock(path: &Path) -> io::Result<File> {
    own::open(path, OpenOptions::new().read(true).write(true).create(true).truncate(false))
}

/// Creates a folder that only its owner can enter. Folders above it are created with the usual mode.
pub fn private_folder(path: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).at("make the folder", path)
}

fn canonical(path: &Path) -> Result<PathBuf> {
    match fs::canonicalize(path) {
        Ok(full) if full.is_dir() => Ok(full),
        Ok(_) => Err(Failure::new(
            "not-a-volume",
            format!("{} is not a folder, and a volume is one", path.display()),
        )
        .next("name a volume's folder, or make one: covey format FOLDER")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let failure = Failure::new("not-found", format!("there is no volume {}", path.display()))
                .why("no such folder");
            Err(match tree_in_a_folder(path) {
                Some(tree) => failure.next(format!("for what is published in that folder write {tree}")),
                None => failure.next(format!("make one: covey format {}", path.display())),
            })
        }
        Err(error) => Err(Failure::io(format!("cannot open {}", path.display()), &error)),
    }
}

/// `file:DIR@NAME`, if the user wrote `DIR@NAME` for the published tree of an origin in a folder.
fn tree_in_a_folder(path: &Path) -> Option<String> {
    let (folder, name) = path.to_str()?.rsplit_once('@')?;
    let is_one = Path::new(folder).join("covey-origin").is_file();
    is_one.then(|| format!("file:{folder}@{name}"))
}

fn check_empty(path: &Path) -> Result<()> {
    let shown = path.display();
    if path.join("covey.json").exists() {
        return Err(Failure::new("exists", format!("{shown} is a Covey volume already"))
            .next(format!("use it: covey mount {shown} MOUNTPOINT"))
            .next("or remove that folder first, if what it holds is not wanted any more"));
    }
    let found =
        fs::read_dir(path).at("read", path)?.flatten().find(|entry| entry.file_name() != "lost+found");
    match found {
        Some(entry) => Err(Failure::new("exists", format!("the folder {shown} is not empty"))
            .why(format!("it holds {}", entry.file_name().to_string_lossy()))
            .next("name an empty folder, or one that does not exist yet")),
        None => Ok(()),
    }
}

/// Removes write access for other users, who could replace our lock, socket or database.
fn close_to_writers(path: &Path) -> Result<()> {
    let about = fs::metadata(path).at("look at", path)?;
    let mode = about.mode() & 0o7777;
    if mode & 0o022 == 0 {
        return Ok(());
    }
    let shown = path.display();
    if about.uid() == api::caller::euid() {
        return fs::set_permissions(path, Permissions::from_mode(mode & !0o022)).at("close to others", path);
    }
    Err(Failure::new("not-private", format!("others may write to the folder {shown} (mode {mode:04o})"))
        .why("they could exchange what a volume keeps there")
        .next(format!("close it: chmod go-w {shown}"))
        .next("or name a folder that does not exist yet"))
}

/// Only the version, because other fields may mean anything in another version.
#[derive(Deserialize)]
struct Version {
    format: u32,
}

fn read_format(text: &[u8]) -> std::result::Result<Version, String> {
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

fn unreadable(file: &Path, why: String) -> Failure {
    Failure::new("damaged", format!("{} cannot be understood", file.display())).why(why).next(
        "restore this small file from a backup; it holds the format version, the volume's id and its origin",
    )
}

fn newer(path: &Path, version: u32) -> Failure {
    Failure::new("newer-format", format!("the volume {} has format {version}", path.display()))
        .why(format!("this covey reads formats up to {FORMAT_VERSION}, and {SHARED_VERSION} for a shared volume; a newer one wrote it"))
        .next("use the newer covey; nothing was changed")
}

fn not_a_volume(path: &Path) -> Failure {
    let shown = path.display();
    let failure =
        Failure::new("not-a-volume", format!("{shown} is not a Covey volume")).why("it has no covey.json");
    let mounted = mounts::at(path).ok().flatten().filter(mounts::is_covey);
    if let Some(mount) = mounted {
        return failure.next(format!("a volume is mounted there; the volume itself is {}", mount.source));
    }
    if path.join("covey-origin").is_file() {
        return failure
            .why("it is an origin: it holds the blobs of a volume, not its names")
            .next(format!("name the volume's own folder, or what is published here: file:{shown}@NAME"))
            .next(format!("covey published file:{shown} lists the names"));
    }
    match check_empty(path) {
        Ok(()) => failure.next(format!("make one there: covey format {shown}")),
        Err(_) => failure.next("check the path, or make a volume in a new folder: covey format FOLDER"),
    }
}

/// Failing to write JSON is a bug, but no reason to panic.
trait OrJson<T> {
    fn or_json(self) -> Result<T>;
}

impl<T> OrJson<T> for serde_json::Result<T> {
    fn or_json(self) -> Result<T> {
        self.map_err(|error| Failure::new("io", "cannot write JSON").why(error.to_string()))
    }
}

/// Where mounts of trees keep what they fetch, and what they know about origins. It is the named folder,
/// otherwise the user's cache folder, otherwise the system's.
///
/// # Errors
/// Somebody else has made that folder.
pub fn cache_folder(named: Option<&Path>) -> Result<PathBuf> {
    let folder = named.map_or_else(default_cache, Path::to_owned);
    match own::check_folder(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::io(format!("cannot use the cache folder {}", folder.display()), &error)
                .next("name another folder: --cache FOLDER"))
        }
        _ => Ok(folder),
    }
}

fn default_cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
    base.unwrap_or_else(|| PathBuf::from("/var/cache")).join("covey/trees")
}
