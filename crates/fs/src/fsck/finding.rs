//! The findings of a check, and their text.

use std::fmt;

use base::{BlobId, Ino, PackNo};
use meta::audit;

/// A range of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The file.
    pub ino: Ino,
    /// One of its paths, where one is known.
    pub path: Option<String>,
    /// First byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

/// Something that is wrong in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Names disagree with one another.
    Names(audit::Finding),
    /// A sealed pack's blob is missing. Reads of these ranges fail.
    MissingBlob {
        /// The pack.
        pack: PackNo,
        /// The blob.
        blob: BlobId,
        /// What was in it; at most [`RANGES_MAX`].
        files: Vec<FileRange>,
    },
    /// A sealed pack's blob has another hash or another size than it should. Reads of the damaged parts fail.
    DamagedBlob {
        /// The pack.
        pack: PackNo,
        /// The blob.
        blob: BlobId,
        /// What is wrong with it.
        what: String,
        /// What is in it; at most [`RANGES_MAX`].
        files: Vec<FileRange>,
    },
    /// An open pack's file is missing, or shorter than the extents that refer to it. Reads of these ranges
    /// fail.
    LostOpenPack {
        /// The pack.
        pack: PackNo,
        /// How long its file is, if there is one.
        len: Option<u64>,
        /// What was in it; at most [`RANGES_MAX`].
        files: Vec<FileRange>,
    },
    /// Bytes of an open pack are not those that were written. Reads of these ranges fail.
    DamagedOpenPack {
        /// The pack.
        pack: PackNo,
        /// What is damaged; at most [`RANGES_MAX`].
        files: Vec<FileRange>,
    },
    /// Bytes of a shared volume are not in the origin, and the node that has them has not joined the volume.
    /// Reads of these ranges fail until it does.
    OnAbsentNode {
        /// The pack.
        pack: PackNo,
        /// The node.
        node: u32,
        /// The node's machine, if it is known.
        host: Option<String>,
        /// What is in it; at most [`RANGES_MAX`].
        files: Vec<FileRange>,
    },
    /// A published tree needs this blob, and it is missing or its hash is not its name.
    BrokenTree {
        /// The tree's name.
        tree: String,
        /// The blob.
        blob: BlobId,
        /// What is wrong with it.
        what: String,
    },
    /// An open pack that has a row, but no file, and that nothing refers to. Harmless; the repair forgets it.
    DeadPack {
        /// The pack.
        pack: PackNo,
    },
    /// A blob of the origin that no pack refers to. Harmless; the repair deletes it.
    StrayBlob {
        /// The blob.
        blob: BlobId,
        /// The blob's size in bytes.
        size: u64,
    },
}

/// At most so many ranges are listed for a blob.
pub const RANGES_MAX: usize = 1000;

impl Finding {
    /// Whether no file is affected: only space is wasted.
    pub fn is_harmless(&self) -> bool {
        match self {
            Finding::Names(finding) => finding.is_harmless(),
            Finding::DeadPack { .. } | Finding::StrayBlob { .. } => true,
            Finding::MissingBlob { .. }
            | Finding::DamagedBlob { .. }
            | Finding::LostOpenPack { .. }
            | Finding::DamagedOpenPack { .. }
            | Finding::OnAbsentNode { .. }
            | Finding::BrokenTree { .. } => false,
        }
    }

    /// Whether [`super::repair`] can do something about it.
    pub fn can_be_repaired(&self) -> bool {
        match self {
            Finding::Names(finding) => audit::repair(finding).is_some(),
            other => other.is_harmless(),
        }
    }

    /// The ranges of files that cannot be read.
    pub fn files(&self) -> &[FileRange] {
        match self {
            Finding::MissingBlob { files, .. }
            | Finding::DamagedBlob { files, .. }
            | Finding::LostOpenPack { files, .. }
            | Finding::DamagedOpenPack { files, .. }
            | Finding::OnAbsentNode { files, .. } => files,
            Finding::Names(_)
            | Finding::DeadPack { .. }
            | Finding::StrayBlob { .. }
            | Finding::BrokenTree { .. } => &[],
        }
    }
}

impl fmt::Display for FileRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{path}")?,
            None => write!(f, "inode {}", self.ino)?,
        }
        write!(f, " bytes {} to {}", self.offset, self.offset + self.len)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Names(finding) => write!(f, "{finding}"),
            Finding::MissingBlob { pack, blob, .. } => write!(f, "blob {blob} (pack {pack}) is missing"),
            Finding::DamagedBlob { pack, blob, what, .. } => {
                write!(f, "blob {blob} (pack {pack}) is damaged: {what}")
            }
            Finding::LostOpenPack { pack, len: None, .. } => write!(f, "open pack {pack} is missing"),
            Finding::LostOpenPack { pack, len: Some(len), .. } => {
                write!(f, "open pack {pack} has {len} bytes, fewer than are in use")
            }
            Finding::DamagedOpenPack { pack, .. } => write!(f, "open pack {pack} is damaged on this disk"),
            Finding::OnAbsentNode { pack, node, host, .. } => {
                let host = host.as_ref().map(|host| format!(" ({host})")).unwrap_or_default();
                write!(
                    f,
                    "pack {pack} is not in the origin, and node {node}{host}, which wrote it, has not the volume mounted: mount it there with the same folder; if its disk is lost, so are these bytes, and covey fsck --repair --lost-node {node} renames the files"
                )
            }
            Finding::BrokenTree { tree, blob, what } => write!(
                f,
                "the published tree {tree} needs blob {blob}: {what}; publish it again with --afresh"
            ),
            Finding::DeadPack { pack } => write!(f, "pack {pack} was opened and never used (harmless)"),
            Finding::StrayBlob { blob, size } => {
                write!(f, "blob {blob} of {size} bytes is nobody's (harmless)")
            }
        }?;
        match self.files() {
            [] => Ok(()),
            files if files.len() >= RANGES_MAX => {
                write!(f, "; {} ranges or more of files are lost", files.len())
            }
            files => write!(f, "; {} range(s) of files are lost", files.len()),
        }
    }
}
