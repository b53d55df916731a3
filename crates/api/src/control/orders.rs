//! What some requests ask for.

use serde::{Deserialize, Serialize};

use crate::raw_path::RawPath;

/// What becomes of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NewLimit {
    /// The limit stays as it is.
    Keep,
    /// There is none.
    None,
    /// The limit becomes this number.
    Is(u64),
}

/// Where an import goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportOrder {
    /// The form of the bytes that follow.
    pub form: u32,
    /// The mountpoint as the command sees it.
    pub mountpoint: RawPath,
    /// An existing folder, below the volume's root.
    pub folder: RawPath,
    /// The folder's inode number as the command sees it.
    pub ino: u64,
    /// A folder to create in it, into which the import goes. None: it goes into the folder itself.
    pub new: Option<RawPath>,
    /// Replace existing files.
    pub overwrite: bool,
    /// The command's file mode mask.
    pub umask: u32,
}

/// The note with which a daemon accepts an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The inode number of the folder that it goes to.
    pub ino: u64,
}

/// Something in the trash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trashed {
    /// By its inode number.
    Id(u64),
    /// The newest that was at this path, below the volume's root; or what was removed from this folder.
    Path(RawPath),
}

/// What becomes of the trash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrashOrder {
    /// List it. The daemon sends notes, each a list of `TrashEntry`, the newest first. The answer is a
    /// `TrashKept`.
    List,
    /// Set how long it is kept.
    Set {
        /// The time. None: what is removed is deleted at once.
        seconds: Option<u64>,
    },
    /// Restore something. The answer is a `TrashRestored`.
    Restore {
        /// What.
        what: Trashed,
        /// Where to: a path that does not exist, or a folder. None: where it was.
        to: Option<RawPath>,
        /// With a folder, restore whatever was removed from it at any time.
        all: bool,
    },
    /// Delete what is in it. The answer is a `TrashEmptied`.
    Empty {
        /// Only what has been there so long.
        older_seconds: u64,
    },
}
