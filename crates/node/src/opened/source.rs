//! The sources that can be opened, and how each is written.

use std::path::{Path, PathBuf};

use api::error::{Failure, Result};

use crate::fleet::options::FleetOptions;
use crate::frozen::{self, Named};
use crate::volume_dir::VolumeDir;

/// A source to open.
#[derive(Debug)]
pub enum Source {
    /// `mem:`: a volume that starts empty and ends with the process.
    Memory,
    /// `corpus:`: deterministic random files without a volume.
    Corpus(corpus::Spec),
    /// `ORIGIN@NAME`: a published tree.
    Published(Named),
    /// A folder.
    Folder(VolumeDir),
    /// The folder of a node of a shared volume, and how other nodes reach this one.
    Shared(VolumeDir, Box<FleetOptions>),
}

impl Source {
    /// A source without a folder: `mem:`, `corpus:...`, `ORIGIN@NAME`. `None` for the name of a folder.
    pub fn by_word(text: &Path) -> Result<Option<Source>> {
        Ok(match text.to_str() {
            Some("mem:") => Some(Source::Memory),
            _ if crate::shared::making::is_address(text) => None,
            Some(text) if text.starts_with(corpus::spec::PREFIX) => Some(Source::Corpus(corpus_of(text)?)),
            Some(text) if !frozen::is_folder(Path::new(text)) => Named::parse(text)?.map(Source::Published),
            _ => None,
        })
    }

    /// The volume in a folder, or the shared volume that a folder is a node of.
    pub fn in_folder(dir: VolumeDir, fleet: FleetOptions) -> Source {
        match dir.is_shared() {
            true => Source::Shared(dir, Box::new(fleet)),
            false => Source::Folder(dir),
        }
    }

    /// The folder, if the source is one.
    pub fn dir(&self) -> Option<&VolumeDir> {
        match self {
            Source::Memory | Source::Corpus(_) | Source::Published(_) => None,
            Source::Folder(dir) | Source::Shared(dir, _) => Some(dir),
        }
    }

    /// Whether another user made the files. Their set-user-id bits and device nodes are ignored unless the
    /// mounting user asks for them.
    pub fn is_foreign(&self) -> bool {
        match self {
            Source::Published(_) | Source::Corpus(_) => true,
            Source::Memory | Source::Folder(_) | Source::Shared(..) => false,
        }
    }

    /// The source as written on a command line.
    pub fn name(&self) -> PathBuf {
        match self {
            Source::Memory => "mem:".into(),
            Source::Corpus(spec) => spec.to_string().into(),
            Source::Published(tree) => tree.to_string().into(),
            Source::Folder(dir) | Source::Shared(dir, _) => dir.path().to_owned(),
        }
    }

    /// The log of a daemon in the background.
    pub fn log(&self) -> Option<PathBuf> {
        match self {
            Source::Published(tree) => {
                crate::remote_side::tree::log(tree.cache.as_deref(), &tree.to_string())
            }
            _ => self.dir().map(VolumeDir::log),
        }
    }
}

/// Parses a text that begins with `corpus:`.
fn corpus_of(text: &str) -> Result<corpus::Spec> {
    text.parse().map_err(|error: corpus::SpecError| {
        Failure::usage(format!("there is no corpus {text}"))
            .why(error.to_string())
            .next("covey mount corpus:7,1000,64K MOUNTPOINT serves 1,000 files of 64 KiB")
    })
}
