//! Why an origin could not be opened or created.
//!
//! An error keeps what happened apart from what to do next, so that callers can show either alone.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::Mistake;
use crate::folder::MARKER;

/// Why an origin is not available. [`fmt::Display`] says what happened and, after a colon, what to do next.
#[derive(Debug)]
pub enum OriginError {
    /// The text is not the name of an origin.
    Unknown(String),
    /// `file:` without a folder.
    NoFolder(String),
    /// A malformed URL of an object store, endpoint or region. The text is not repeated if it may hold a key.
    BadRemote {
        /// What is wrong.
        what: String,
        /// How to write it.
        next: String,
    },
    /// An object store that refuses, is unreachable, or holds something else.
    Remote {
        /// The origin's URL.
        origin: String,
        /// The user's mistake, as far as it can be told.
        mistake: Mistake,
        /// A one-line description of it.
        what: String,
        /// What to do, if known.
        next: Option<String>,
    },
    /// The folder does not exist.
    Absent(PathBuf),
    /// The place is a file or a device.
    NotAFolder(PathBuf),
    /// The folder exists but is not an origin; most often its disk is not mounted.
    NotAnOrigin(PathBuf),
    /// The folder holds other files.
    NotEmpty(PathBuf),
    /// The folder is another volume's origin already.
    Taken(PathBuf),
    /// A newer program made it.
    Newer {
        /// The folder.
        dir: PathBuf,
        /// The version in its marker.
        found: String,
    },
    /// The folder is not writable.
    ReadOnly {
        /// The folder.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Any other error of the system.
    Io {
        /// The folder.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl OriginError {
    /// What happened, without what to do next.
    pub fn what(&self) -> String {
        match self {
            OriginError::Unknown(text) => format!("{text:?} names no origin"),
            OriginError::NoFolder(text) => format!("{text:?} names no folder"),
            OriginError::BadRemote { what, .. } => what.clone(),
            OriginError::Remote { origin, what, .. } => format!("{origin}: {what}"),
            OriginError::Absent(dir) => format!("the origin's folder {} does not exist", dir.display()),
            OriginError::NotAFolder(dir) => format!("{} is not a folder", dir.display()),
            OriginError::NotAnOrigin(dir) => {
                format!("{} is not an origin (it has no file {MARKER})", dir.display())
            }
            OriginError::NotEmpty(dir) => format!("{} holds other files", dir.display()),
            OriginError::Taken(dir) => format!("another volume's origin is in {} already", dir.display()),
            OriginError::Newer { dir, found } => {
                format!("{} was made by a newer covey ({found:?})", dir.display())
            }
            OriginError::ReadOnly { dir, source } => {
                format!("the origin's folder {} cannot be written to ({source})", dir.display())
            }
            OriginError::Io { dir, source } => format!("the origin's folder {}: {source}", dir.display()),
        }
    }

    /// What to do next, if known.
    pub fn next(&self) -> Option<String> {
        let next = match self {
            OriginError::Unknown(text) if is_a_path(text) => {
                return Some(format!("for a folder write file:{text}"));
            }
            OriginError::Unknown(text) if is_web(text) => {
                "for an object store write s3://BUCKET/PREFIX (or gs://, az://) and give this address with --endpoint"
            }
            OriginError::Unknown(_) => {
                "write file:DIR for a folder, s3://BUCKET/PREFIX (or gs://, az://) for an object store, or mem: for memory that ends with the program"
            }
            OriginError::NoFolder(_) => "write file:DIR, for example file:/srv/covey/blobs",
            OriginError::BadRemote { next, .. } => next,
            OriginError::Remote { next, .. } => return next.clone(),
            OriginError::Absent(_) => "mount the disk it lies on, or bring the folder back under this name",
            OriginError::NotAFolder(_) => "give the origin a folder of its own",
            OriginError::NotAnOrigin(_) => {
                "check that its disk is mounted; a new volume's origin is made by `covey format`"
            }
            OriginError::NotEmpty(_) => {
                "give the origin a folder of its own, which is empty or does not exist yet"
            }
            OriginError::Taken(_) => {
                "choose another folder (or, if a `covey format` was cut short and nothing uses it, remove the file covey-origin in it)"
            }
            OriginError::Newer { .. } => "use that version or a later one",
            OriginError::ReadOnly { .. } => "make it writable, or mount with -o ro",
            OriginError::Io { .. } => return None,
        };
        Some(next.to_owned())
    }
}

/// Whether the user wrote the path of a folder and left out `file:`.
fn is_a_path(text: &str) -> bool {
    !text.contains(':') && (text.starts_with(['/', '.']) || text.contains('/'))
}

fn is_web(text: &str) -> bool {
    text.starts_with("https://") || text.starts_with("http://")
}

impl fmt::Display for OriginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        match self.next() {
            Some(next) => write!(f, ": {next}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OriginError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OriginError::ReadOnly { source, .. } | OriginError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
