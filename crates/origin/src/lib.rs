//! Origins: where a volume's blobs are stored permanently.
//!
//! - [`Folder`]: `file:DIR`, a folder on this machine or on a filesystem that it mounts; the default.
//! - [`Memory`]: `mem:`, lost when the program ends.
//! - [`remote`]: `s3://`, `gs://`, `az://`, an object store.
//! - [`ForeignOrigin`]: another origin, and a bucket that others fill, from which it only reads.
//! - [`claim`]: which folder may write to an origin.
//!
//! All origins pass one conformance suite (`tests.rs`). A new kind of origin has to pass it too. [`parse`]
//! turns what a user wrote into a [`Spec`]. [`Spec::format`] creates the origin once, and [`Spec::open`]
//! opens it later.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod claim;
mod error;
mod folder;
pub mod foreign;
mod memory;
#[cfg(not(feature = "stores"))]
#[path = "absent.rs"]
pub mod remote;
#[cfg(feature = "stores")]
pub mod remote;
#[cfg(all(test, feature = "stores"))]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use blob::Origin;

pub use error::OriginError;
pub use folder::{Access, Folder};
pub use foreign::{ForeignOrigin, Locate, Location};
pub use memory::Memory;
pub use remote::{
    Bucket, Check, Environment, Limits, Mistake, Object, Remote, RemoteSpec, RemoteStats, Unread,
};

/// An origin as a user writes it and a volume stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// `file:DIR`
    Folder(PathBuf),
    /// `mem:`
    Memory,
    /// `s3://BUCKET/PREFIX`, `gs://..`, `az://..`
    Remote(RemoteSpec),
}

/// Reads `file:DIR`, `mem:` or the URL of an object store. A relative folder stays relative: the caller makes
/// it absolute before storing the spec.
///
/// # Errors
/// [`OriginError::Unknown`], [`OriginError::NoFolder`] and [`OriginError::BadRemote`].
pub fn parse(text: &str) -> Result<Spec, OriginError> {
    if text == "mem:" {
        return Ok(Spec::Memory);
    }
    if RemoteSpec::claims(text) {
        return RemoteSpec::parse(text).map(Spec::Remote);
    }
    let dir = text.strip_prefix("file:").ok_or_else(|| OriginError::Unknown(text.to_owned()))?;
    // In a URL the path follows an empty host.
    let dir = dir.strip_prefix("//").filter(|rest| rest.starts_with('/')).unwrap_or(dir);
    if dir.is_empty() {
        return Err(OriginError::NoFolder(text.to_owned()));
    }
    Ok(Spec::Folder(PathBuf::from(dir)))
}

impl FromStr for Spec {
    type Err = OriginError;

    fn from_str(text: &str) -> Result<Spec, OriginError> {
        parse(text)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Folder(dir) => write!(f, "file:{}", dir.display()),
            Spec::Memory => f.write_str("mem:"),
            Spec::Remote(remote) => remote.fmt(f),
        }
    }
}

impl Spec {
    /// Creates the origin of the volume called `volume`; the place must be new. The keys of a store come from
    /// this process's environment, and the limits are the defaults. For other limits use [`Remote::format`].
    ///
    /// # Errors
    /// See [`OriginError`].
    pub fn format(&self, volume: &str) -> Result<Arc<dyn Origin>, OriginError> {
        match self {
            Spec::Folder(dir) => Ok(Arc::new(Folder::format(dir, volume)?)),
            Spec::Memory => Ok(Arc::new(Memory::new())),
            Spec::Remote(remote) => {
                let environment = Environment::process();
                Ok(Arc::new(Remote::format(remote, &environment, Limits::default(), volume)?))
            }
        }
    }

    /// Opens an existing origin; one in memory is empty.
    ///
    /// # Errors
    /// See [`OriginError`].
    pub fn open(&self, access: Access) -> Result<Arc<dyn Origin>, OriginError> {
        match self {
            Spec::Folder(dir) => Ok(Arc::new(Folder::open(dir, access)?)),
            Spec::Memory => Ok(Arc::new(Memory::new())),
            Spec::Remote(remote) => {
                Ok(Arc::new(Remote::open(remote, &Environment::process(), Limits::default(), access)?))
            }
        }
    }

    /// The folder, if the origin is one.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Spec::Folder(dir) => Some(dir),
            Spec::Memory | Spec::Remote(_) => None,
        }
    }

    /// The place in an object store, if the origin is one.
    pub fn remote(&self) -> Option<&RemoteSpec> {
        match self {
            Spec::Remote(remote) => Some(remote),
            Spec::Folder(_) | Spec::Memory => None,
        }
    }
}
