//! The folder with the snapshots.
//!
//! ```text
//!   lock                   is locked while a snapshotter runs here
//!   source                 a link to the folder of images
//!   empty/                 an empty folder
//!   records/ID.json        one snapshot; replaced as a whole
//!   snapshots/ID/fs        its folder, or a link to a layer: ../../source/layers/sha256-HEX
//!   snapshots/ID/work      what overlayfs needs beside it, unless it is a link
//! ```
//!
//! A folder is there before its record, and its record is gone before it is. So a record always has a folder,
//! and a folder without a record is a leftover, however the program ended.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use api::error::{Context, Failure, Result};
use base::lock::{self, FileLock};
use oci::digest::Digest;
use oci::folder;

use crate::record::{Record, Used, VERSION};

/// The folder, locked.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    _lock: FileLock,
}

impl Store {
    /// Opens the folder, and makes it if it is not there.
    ///
    /// # Errors
    /// Another snapshotter runs here, or the folder cannot be used.
    pub fn open(root: &Path) -> Result<Store> {
        check_text(root)?;
        for folder in [root.to_owned(), root.join("records"), root.join("snapshots"), root.join("empty")] {
            DirBuilder::new().recursive(true).mode(0o700).create(&folder).at("make", &folder)?;
        }
        let path = root.join("lock");
        let options = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let mut lock = FileLock::new(options.at("open", &path)?);
        if !lock.exclusive(lock::moment()).at("lock", &path)? {
            return Err(Failure::new("in-use", format!("another snapshotter runs with {}", root.display()))
                .next("end it, or name another folder with --root"));
        }
        Ok(Store { root: root.to_owned(), _lock: lock })
    }

    /// `images` (an absolute path) is the folder of images from now on.
    ///
    /// # Errors
    /// The link cannot be made.
    pub fn point_at(&self, images: &Path) -> Result<()> {
        self.link(images, &self.source())
    }

    /// Makes a link, also over one that is there.
    fn link(&self, target: &Path, at: &Path) -> Result<()> {
        let new = self.root.join(".new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).at("remove", &new),
            _ => {}
        }
        std::os::unix::fs::symlink(target, &new).at("make", &new)?;
        fs::rename(&new, at).at("rename", &new)
    }

    fn record(&self, id: u64) -> PathBuf {
        self.root.join(format!("records/{id}.json"))
    }

    fn folder(&self, id: u64) -> PathBuf {
        self.root.join(format!("snapshots/{id}"))
    }

    /// The files of a snapshot: a folder, or a link to one.
    pub fn files(&self, id: u64) -> PathBuf {
        self.folder(id).join("fs")
    }

    /// The link to the folder of images.
    pub fn source(&self) -> PathBuf {
        self.root.join("source")
    }

    /// The folder that overlayfs needs beside them.
    pub fn work(&self, id: u64) -> PathBuf {
        self.folder(id).join("work")
    }

    /// An empty folder.
    pub fn empty(&self) -> PathBuf {
        self.root.join("empty")
    }

    /// All records, in the order of their numbers, after what was not finished is removed.
    ///
    /// # Errors
    /// A record cannot be read. It is not skipped, because its snapshot would be taken for a leftover.
    pub fn load(&self) -> Result<Vec<Record>> {
        let folder = self.root.join("records");
        let mut records = Vec::new();
        for entry in fs::read_dir(&folder).at("list", &folder)? {
            let path = entry.at("list", &folder)?.path();
            if path.extension().is_some_and(|kind| kind == "new") {
                fs::remove_file(&path).at("remove", &path)?;
                continue;
            }
            let bytes = fs::read(&path).at("read", &path)?;
            let record: Record =
                serde_json::from_slice(&bytes).map_err(|error| damaged(&path, &error.to_string()))?;
            if record.version != VERSION {
                let why = format!("it has version {}, and this program knows {VERSION}", record.version);
                return Err(damaged(&path, &why));
            }
            if path != self.record(record.id) {
                return Err(damaged(&path, &format!("it is the record of snapshot {}", record.id)));
            }
            records.push(record);
        }
        records.sort_by_key(|record| record.id);
        let ids: BTreeSet<u64> = records.iter().map(|record| record.id).collect();
        for record in &records {
            if record.parent.is_some_and(|parent| !ids.contains(&parent)) {
                return Err(damaged(&self.record(record.id), "the snapshot below it has no record"));
            }
        }
        Ok(records)
    }

    /// Numbers of folders that belong to no snapshot of `live`.
    ///
    /// # Errors
    /// The folders cannot be listed.
    pub fn leftovers(&self, live: impl Fn(u64) -> bool) -> Result<Vec<u64>> {
        let folder = self.root.join("snapshots");
        let mut left = Vec::new();
        for entry in fs::read_dir(&folder).at("list", &folder)? {
            let name = entry.at("list", &folder)?.file_name();
            // What has another name was not made by this program, and is left alone.
            let id = name.to_str().and_then(|name| name.parse().ok());
            left.extend(id.filter(|id| !live(*id)));
        }
        Ok(left)
    }

    /// Makes the folder of a snapshot that is written. `like` is what the folder below it has: it takes owner
    /// and mode of that one, because it covers it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make_folder(&self, id: u64, like: Option<&Metadata>) -> Result<()> {
        let (files, work) = (self.files(id), self.work(id));
        DirBuilder::new().mode(0o700).create(self.folder(id)).at("make", &self.folder(id))?;
        for (path, mode) in [(&files, 0o755), (&work, 0o711)] {
            fs::create_dir(path).at("make", path)?;
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).at("change the mode of", path)?;
        }
        if let Some(about) = like {
            std::os::unix::fs::chown(&files, Some(about.uid()), Some(about.gid()))
                .at("change the owner of", &files)?;
            let mode = PermissionsExt::from_mode(about.mode() & 0o7777);
            fs::set_permissions(&files, mode).at("change the mode of", &files)?;
        }
        self.sync_folder(id)
    }

    /// Makes the folder of a snapshot that is a layer of the folder of images.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make_link(&self, id: u64, layer: &Digest) -> Result<()> {
        DirBuilder::new().mode(0o700).create(self.folder(id)).at("make", &self.folder(id))?;
        let target = Path::new("../../source").join(folder::layer(layer));
        self.link(&target, &self.files(id))?;
        self.sync_folder(id)
    }

    fn sync_folder(&self, id: u64) -> Result<()> {
        for folder in [self.folder(id), self.root.join("snapshots")] {
            sync(&folder)?;
        }
        Ok(())
    }

    /// Removes the folder of a snapshot that has no record.
    ///
    /// # Errors
    /// Something in it cannot be removed.
    pub fn remove_folder(&self, id: u64) -> Result<()> {
        let folder = self.folder(id);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other.at("remove", &folder),
        }
    }

    /// Writes a record. When this returns, it is durable.
    ///
    /// # Errors
    /// It cannot be written. What was there before is there.
    pub fn put(&self, record: &Record) -> Result<()> {
        let text = serde_json::to_vec_pretty(record)
            .map_err(|error| Failure::new("io", "cannot write a record").why(error.to_string()))?;
        let path = self.record(record.id);
        let new = path.with_extension("new");
        let write = || {
            let mut file = File::create(&new).at("make", &new)?;
            file.write_all(&text).at("write", &new)?;
            file.sync_all().at("sync", &new)?;
            fs::rename(&new, &path).at("rename", &new)
        };
        write().inspect_err(|_| drop(fs::remove_file(&new)))?;
        self.sync_records()
    }

    /// Removes a snapshot that was not made whole, as far as that goes. A start removes the rest.
    pub fn discard(&self, id: u64) {
        match fs::remove_file(self.record(id)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {}
            // As always, the folder goes after the record.
            _ => drop(self.remove_folder(id)),
        }
    }

    /// Removes a record, if it is there. That is durable after [`Store::sync_records`].
    ///
    /// # Errors
    /// It cannot be removed. It is there still.
    pub fn erase(&self, id: u64) -> Result<()> {
        let path = self.record(id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other.at("remove", &path),
        }
    }

    /// Makes durable which records there are.
    ///
    /// # Errors
    /// The disk does not take it.
    pub fn sync_records(&self) -> Result<()> {
        sync(&self.root.join("records"))
    }

    /// Makes the files of all snapshots durable.
    ///
    /// # Errors
    /// The disk does not take them.
    pub fn sync_files(&self) -> Result<()> {
        let root = File::open(&self.root).at("open", &self.root)?;
        rustix::fs::syncfs(&root).map_err(std::io::Error::from).at("sync", &self.root)
    }

    /// What the files of a snapshot take of the disk. A file with several names counts once.
    ///
    /// # Errors
    /// Something of them cannot be looked at.
    pub fn used(&self, id: u64) -> Result<Used> {
        let mut used = Used::default();
        let mut seen = BTreeSet::new();
        let mut folders = vec![self.files(id)];
        while let Some(path) = folders.pop() {
            let about = match path.symlink_metadata() {
                // A container may remove it meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.at("look at", &path)?,
            };
            if seen.insert((about.dev(), about.ino())) {
                used.inodes += 1;
                used.bytes += about.blocks() * 512;
            }
            if about.is_dir() {
                match fs::read_dir(&path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    other => {
                        for entry in other.at("list", &path)? {
                            folders.push(entry.at("list", &path)?.path());
                        }
                    }
                }
            }
        }
        Ok(used)
    }
}

fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|open| open.sync_all()).at("sync", folder)
}

fn damaged(path: &Path, why: &str) -> Failure {
    Failure::new("damaged", format!("{} cannot be used", path.display()))
        .why(why)
        .next("restore it, or start with a new folder: --root DIR; containerd must forget its snapshots then")
}

/// containerd puts the paths into the options of a mount, where some characters have a meaning.
fn check_text(path: &Path) -> Result<()> {
    let special = |byte: &u8| matches!(byte, b':' | b',' | b'\\' | b'"') || byte.is_ascii_control();
    match path.to_str().filter(|_| path.is_absolute() && !path.as_os_str().as_bytes().iter().any(special)) {
        Some(_) => Ok(()),
        None => Err(Failure::usage(format!("{} cannot be part of the options of a mount", path.display()))
            .why("overlayfs separates folders by colons and commas")
            .next("name a folder whose path has none of : , \\ and quotation marks")),
    }
}
