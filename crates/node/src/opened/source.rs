//! What can be opened, by the word that names it.

use std::path::{Path, PathBuf};

use api::error::{Failure, Result};

use crate::frozen::{self, Named};
use crate::volume_dir::VolumeDir;

/// What is to be opened.
#[derive(Debug)]
pub enum Source {
    /// `mem:`: a volume that begins empty and ends with the process.
    Memory,
    /// `corpus:`: deterministic random files, no volume at all.
    Corpus(corpus::Spec),
    /// `ORIGIN@NAME`: a published tree.
    Published(Named),
    /// A folder.
    Folder(VolumeDir),
}

impl Source {
    /// What has no folder, by its word: `mem:`, `corpus:...`, `ORIGIN@NAME`; `None` for a folder's name.
    pub fn by_word(text: &Path) -> Result<Option<Source>> {
        Ok(match text.to_str() {
            Some("mem:") => Some(Source::Memory),
            Some(text) if text.starts_with(corpus::spec::PREFIX) => Some(Source::Corpus(corpus_of(text)?)),
            Some(text) if !frozen::is_folder(Path::new(text)) => Named::parse(text)?.map(Source::Published),
            _ => None,
        })
    }

    /// The folder, if it is one.
    pub fn dir(&self) -> Option<&VolumeDir> {
        match self {
            Source::Memory | Source::Corpus(_) | Source::Published(_) => None,
            Source::Folder(dir) => Some(dir),
        }
    }

    /// Whether somebody else made the files: their set-user-id bits and device nodes count only if the person who mounts says so.
    pub fn is_foreign(&self) -> bool {
        match self {
            Source::Published(_) | Source::Corpus(_) => true,
            Source::Memory | Source::Folder(_) => false,
        }
    }

    /// How it is written on a command line.
    pub fn name(&self) -> PathBuf {
        match self {
            Source::Memory => "mem:".into(),
            Source::Corpus(spec) => spec.to_string().into(),
            Source::Published(tree) => tree.to_string().into(),
            Source::Folder(dir) => dir.path().to_owned(),
        }
    }

    /// Where a daemon in the background writes.
    pub fn log(&self) -> Option<PathBuf> {
        match self {
            Source::Published(tree) => crate::far::tree::log(tree.cache.as_deref(), &tree.to_string()),
            _ => self.dir().map(VolumeDir::log),
        }
    }
}

/// What a text that begins with `corpus:` means.
fn corpus_of(text: &str) -> Result<corpus::Spec> {
    text.parse().map_err(|error: corpus::SpecError| {
        Failure::usage(format!("there is no corpus {text}"))
            .why(error.to_string())
            .next("covey mount corpus:7,1000,64K MOUNTPOINT serves 1,000 files of 64 KiB")
    })
}
