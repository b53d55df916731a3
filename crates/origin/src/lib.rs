//! Origins: where a volume's blobs live for good.
//!
//! - [`Folder`]: `file:DIR`, a folder on this machine or on a filesystem that it mounts; the default.
//! - [`Memory`]: `mem:`, gone when the program ends.
//! - [`remote`]: `s3://`, `gs://`, `az://`, an object store.
//!
//! All pass one conformance suite (`tests.rs`), which is what an origin of another kind has to pass as well. [`parse`]
//! turns what a user wrote into a [`Spec`]; a spec is made once with [`Spec::format`] and found again with
//! [`Spec::open`].

pub mod claim;
mod error;
mod folder;
mod memory;
pub mod remote;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use blob::Origin;

pub use error::OriginError;
pub use folder::{Access, Folder};
pub use memory::Memory;
pub use remote::{Environment, Limits, Mistake, Remote, RemoteSpec, RemoteStats};

/// An origin as a user writes it and a volume remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// `file:DIR`
    Folder(PathBuf),
    /// `mem:`
    Memory,
    /// `s3://BUCKET/PREFIX`, `gs://..`, `az://..`
    Remote(RemoteSpec),
}

/// Reads `file:DIR`, `mem:` or the URL of an object store. A relative folder stays relative: who stores the spec makes it absolute first.
///
/// # Errors
/// [`OriginError::Unknown`], [`OriginError::NoFolder`] and [`OriginError::BadRemote`], which say what is known.
pub fn parse(text: &str) -> Result<Spec, OriginError> {
    if text == "mem:" {
        return Ok(Spec::Memory);
    }
    if RemoteSpec::claims(text) {
        return RemoteSpec::parse(text).map(Spec::Remote);
    }
    let dir = text.strip_prefix("file:").ok_or_else(|| OriginError::Unknown(text.to_owned()))?;
    // A URL has an empty host before the path.
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
    /// Makes the origin of the volume called `volume`; the place must be new. The keys of a store come from this process's environment; other
    /// limits take [`Remote::format`].
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

    /// Opens an origin that was made before; memory is empty.
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

    /// The folder, where the origin is one.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Spec::Folder(dir) => Some(dir),
            Spec::Memory | Spec::Remote(_) => None,
        }
    }

    /// The place in an object store, where the origin is one.
    pub fn remote(&self) -> Option<&RemoteSpec> {
        match self {
            Spec::Remote(remote) => Some(remote),
            Spec::Folder(_) | Spec::Memory => None,
        }
    }
}
