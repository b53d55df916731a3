//! Findings as a person reads them.

use std::fmt;

use super::{FileRange, Finding, RANGES_MAX};

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
