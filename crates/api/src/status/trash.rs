//! The trash of a volume, as its status shows it.

use serde::{Deserialize, Serialize};

/// What is in the trash, and how long it is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrashStatus {
    /// How long what is removed is kept, in seconds. None: it is deleted at once.
    pub keep_seconds: Option<u64>,
    /// Files and folders in it. They are counted at most every few seconds.
    pub files: u64,
    /// The total size of the files and folders, in bytes.
    pub bytes: u64,
}
