//! The identity of a volume's folder in its origin, and the failures for published trees that cannot be used.
//!
//! ```text
//!   VOLUME/publisher.json   the identity of this volume's folder, and its signing key
//!                           (created by its first publication; of a shared volume, a row in its database)
//!   origin: owner           who publishes there, and which keys have signed published trees
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use api::error::{Context, Failure, Result};
use blob::Origin;
use serde::{Deserialize, Serialize};
use tree::root::{self, from_hex, hex};
use tree::{Owner, Signer, TreeError};

use crate::volume_dir::VolumeDir;

/// The file with the identity in a volume's folder.
pub const PUBLISHER: &str = "publisher.json";

/// The identity of a volume's folder in its origin.
#[derive(Clone, Serialize, Deserialize)]
pub struct Publisher {
    owner: String,
    secret: String,
    /// How many publications of a name are kept, the newest included. 1 where nothing is said.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    keep: BTreeMap<String, u32>,
}

impl Publisher {
    /// The path of the file.
    pub fn file(dir: &VolumeDir) -> PathBuf {
        dir.path().join(PUBLISHER)
    }

    /// Creates a new identity and stores it in the volume's folder.
    pub fn make(dir: &VolumeDir) -> Result<Publisher> {
        let made = Publisher::fresh();
        made.write(dir)?;
        Ok(made)
    }

    /// A new identity.
    pub fn fresh() -> Publisher {
        crate::secrets::keep_from_dumps();
        let mut seed = [0; 32];
        base::random::fill(&mut seed);
        Publisher { owner: hex(&base::random::id16()), secret: hex(&seed), keep: BTreeMap::new() }
    }

    /// An identity as it is stored. It holds a secret.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Reads a stored identity. None if it is damaged.
    pub fn from_text(text: &[u8]) -> Option<Publisher> {
        let found: Option<Publisher> = serde_json::from_slice(text).ok();
        found.filter(|found| found.owner().is_some() && from_hex::<32>(&found.secret).is_some())
    }

    /// Stores it durably.
    fn write(&self, dir: &VolumeDir) -> Result<()> {
        let file = Publisher::file(dir);
        let new = file.with_extension("json.new");
        let text = self.to_text();
        let write = || {
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut out = api::own::create(&new)?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            fs::rename(&new, &file)?;
            fs::File::open(dir.path())?.sync_all()
        };
        write().at("write", &file)
    }

    /// How many publications of a name are kept, the newest included.
    pub fn kept(&self, name: &str) -> u32 {
        self.keep.get(name).copied().unwrap_or(1).max(1)
    }

    /// Sets how many are kept, for this and later publications.
    pub fn keep(&mut self, dir: &VolumeDir, name: &str, count: u32) -> Result<()> {
        if self.set_keep(name, count) { self.write(dir) } else { Ok(()) }
    }

    /// Sets how many publications of a name are kept, without storing it. Returns whether this changes
    /// anything.
    pub fn set_keep(&mut self, name: &str, count: u32) -> bool {
        if self.kept(name) == count {
            return false;
        }
        match count {
            1 => self.keep.remove(name),
            _ => self.keep.insert(name.to_owned(), count),
        };
        true
    }

    /// The identity of this folder, if it has ever published.
    pub fn of(dir: &VolumeDir) -> Result<Option<Publisher>> {
        let file = Publisher::file(dir);
        let Some(text) = crate::secrets::read(&file)? else { return Ok(None) };
        match Publisher::from_text(&text) {
            Some(found) => Ok(Some(found)),
            // The file holds a secret, so no part of it is shown.
            None => Err(Failure::new("damaged", format!("{} cannot be understood", file.display()))
                .why("it says who this volume is in its origin, and holds the key that it signs with")
                .next(
                    "restore this small file from a backup, or restore the volume elsewhere: covey restore",
                )),
        }
    }

    /// The owner id.
    pub fn owner(&self) -> Option<[u8; 16]> {
        from_hex(&self.owner)
    }

    /// The key that signs for it.
    pub fn signer(&self) -> Result<Signer> {
        let seed = from_hex(&self.secret).unwrap_or([0; 32]);
        Signer::from_seed(&seed).map_err(|error| failure("the volume's key cannot be used", error))
    }
}

/// The place of a volume for people: `host:/srv/volume`.
pub fn place_of(dir: &VolumeDir) -> String {
    format!("{}:{}", host(), dir.path().display())
}

/// Returns the host name of this machine.
pub fn host() -> String {
    let name = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    String::from_utf8_lossy(&name).trim().to_owned()
}

/// Refuses to open a volume for writing if another owner publishes in its origin. An older program made no
/// claims, and only the owner's record shows that it publishes there. A record that is damaged, or written by
/// a newer program, gives no permission. An origin that cannot be asked is no reason to refuse: it is not
/// claimed then, and nothing is stored or deleted in it.
pub fn check_owner(dir: &VolumeDir, origin: &dyn Origin) -> Result<()> {
    let found = match Owner::read(origin) {
        Ok(None) | Err(TreeError::Blob(_)) => return Ok(()),
        Ok(Some(found)) => found,
        Err(error) => {
            return Err(failure(format!("it cannot be seen whose the origin {} is", dir.origin()), error)
                .next("the volume can be read: mount it with -o ro"));
        }
    };
    let me = Publisher::of(dir)?.and_then(|me| me.owner());
    check_is(&found, me, dir)
}

/// Refuses if the owner of an origin is not `me`.
pub fn check_is(found: &Owner, me: Option<[u8; 16]>, dir: &VolumeDir) -> Result<()> {
    if me == Some(found.owner) {
        return Ok(());
    }
    Err(not_owner(tree::publish::not_owner(found, volume_id(dir))))
}

fn not_owner(what: String) -> Failure {
    Failure::new("origin-taken", what)
        .why("two volumes that store to one origin would delete each other's blobs")
        .next("use the other volume; this one can still be read: mount it with -o ro")
        .next("to go on here instead, restore what was published into a new folder: covey restore ORIGIN@NAME FOLDER")
}

/// The volume's id as bytes.
pub fn volume_id(dir: &VolumeDir) -> [u8; 16] {
    from_hex(&dir.format().id).unwrap_or_default()
}

/// Refuses an invalid name for a tree.
pub fn check_name(name: &str) -> Result<()> {
    if root::is_name(name) {
        return Ok(());
    }
    Err(Failure::usage(format!("{name:?} is no name for a published tree"))
        .next("use letters, digits and any of . _ - = (at most 100), like nightly or v1.2"))
}

/// The failure for a tree that is not published.
pub fn not_published(name: &str) -> Failure {
    Failure::new("not-published", format!("no tree is published as {name}"))
        .next("covey published VOLUME lists what is; a name comes into being with covey publish VOLUME NAME")
}

/// The failure for an error with a tree.
pub fn failure(what: impl Into<String>, error: TreeError) -> Failure {
    let why = error.to_string();
    let new = |code: &'static str| Failure::new(code, what).why(why.clone());
    match error {
        TreeError::NotPublished(name) => not_published(&name),
        TreeError::NotOwner(what) => not_owner(what),
        TreeError::Newer { .. } => {
            new("newer-format").next("use the covey that published it, or a newer one")
        }
        TreeError::Untrusted(_) => new("not-trusted").next(
            "covey published shows who signed what; publish again from the volume that owns the origin",
        ),
        TreeError::Damaged(_)
        | TreeError::Blob(blob::BlobError::Damaged { .. } | blob::BlobError::Missing(_)) => {
            new("damaged").next("publish it again from the volume: covey publish --afresh VOLUME NAME")
        }
        TreeError::Store(meta::store::StoreError::Damaged(_)) => {
            new("damaged").next("check the volume: covey fsck VOLUME")
        }
        TreeError::Store(meta::store::StoreError::Full) | TreeError::Blob(blob::BlobError::Full) => {
            new("disk-full").next("free some room, then try again; what was published before is as it was")
        }
        TreeError::Store(meta::store::StoreError::NoSpace(_)) => new("database-full")
            .next("make space there, then try again; what was published before is as it was"),
        TreeError::Stopped => new("stopped").next("what was published before is as it was; try again"),
        _ => new("origin")
            .next("check that the origin answers, then try again; what was published before is as it was"),
    }
}
