//! What an import consists of: items, their contents, and the volume that takes them.
//!
//! ```text
//!   folder ──┐                      ┌─► remote   a mounted volume: its daemon creates the items, for root
//!   tar ─────┼─► Step, Step, ... ───┼─► place    a path of this machine: system calls below an open folder
//!   objects ─┘                      └─► direct   the filesystem of a volume itself
//!
//!   wire     the steps as bytes, for a sink in another process
//!   seen     what a sink keeps until the end, within bounds
//!   unpack   what an archive is compressed with
//!   bounds   what an archive may ask for
//! ```
//!
//! [`crate::transfer`] runs a source and a sink, and [`crate::export`] adds others. A daemon uses `direct`
//! too.
//!
//! A source sends [`Item`]s. A folder always comes before its entries, and a hard link after its target. A
//! sink creates them. These are preserved: modes, owners (as root), times, extended attributes, hard links,
//! symbolic links, device nodes and holes. Sinks never follow a symbolic link on the way to a name, so an
//! archive cannot write outside the destination.

pub mod bounds;
pub mod direct;
pub mod folder;
pub mod objects;
pub mod place;
pub mod remote;
pub mod seen;
pub mod tar;
pub mod unpack;
pub mod wire;

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use api::answers::Skipped;
use api::error::{Failure, Result};
use base::Timestamp;

/// One thing to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The path, relative to the destination. Empty for the destination itself.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// Permission bits (07777).
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Extended attributes. Names include their namespaces.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an [`Item`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder.
    Dir,
    /// A regular file. Its contents follow, without the holes.
    File {
        /// The size in bytes, holes included.
        size: u64,
    },
    /// A symbolic link.
    Symlink(OsString),
    /// One more name of an earlier item.
    HardLink(PathBuf),
    /// A pipe, socket or device.
    Node {
        /// The `S_IFMT` bits.
        format: u32,
        /// Device number, as the kernel encodes it.
        rdev: u64,
    },
}

/// A message from a source to a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create this item.
    Item(Item),
    /// The current file has holes. Data is only in these ranges, each given as start and length in bytes.
    /// This step comes before any piece.
    Ranges(Vec<(u64, u64)>),
    /// Bytes of the current file, at this offset.
    Piece(u64, Vec<u8>),
    /// The current file is complete.
    End,
    /// The current file is left out after all. Nothing of it stays.
    Abandon,
}

/// The list of items that were left out holds at most so many bytes of text. The rest is only counted.
const LISTED_MAX: usize = 8 << 20;

/// The items that were left out. The list has a bound, since an archive can hold any number of such members.
#[derive(Debug, Default)]
pub struct LeftOut {
    list: Vec<Skipped>,
    bytes: usize,
    more: u64,
}

impl LeftOut {
    /// Adds one item.
    pub fn add(&mut self, path: &Path, why: impl Into<String>) {
        let (mut path, why) = (path.display().to_string(), why.into());
        path.truncate(path.floor_char_boundary(4096));
        if self.bytes + path.len() + why.len() > LISTED_MAX {
            self.more += 1;
            return;
        }
        self.bytes += path.len() + why.len();
        self.list.push(Skipped { path, why });
    }

    /// The list. If more items were left out than it holds, its last line gives their number.
    pub fn take(&mut self) -> Vec<Skipped> {
        let LeftOut { mut list, more, .. } = std::mem::take(self);
        if more > 0 {
            list.push(Skipped { path: "...".to_owned(), why: format!("and {more} more") });
        }
        list
    }
}

/// A destination in which items are created.
pub trait Sink {
    /// Creates an item. A file then stays open for [`Sink::piece`].
    fn item(&mut self, item: Item) -> Result<()>;

    /// The current file holds data in these ranges only. A sink that writes at offsets needs no such notice.
    fn ranges(&mut self, _: Vec<(u64, u64)>) -> Result<()> {
        Ok(())
    }

    /// Writes bytes of the current file.
    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()>;

    /// Completes the current file.
    fn end(&mut self) -> Result<()>;

    /// Takes the current file back. Only a sink to which sources write that may ask for it can do that.
    fn abandon(&mut self) -> Result<()> {
        Err(Failure::new("damaged", "a file ends early, and this destination cannot take it back"))
    }

    /// Nothing comes from the source at the moment. Fails if the destination is gone.
    fn idle(&mut self) -> Result<()> {
        Ok(())
    }

    /// Sets the times of folders, after everything in them was created, and makes everything durable.
    fn finish(&mut self) -> Result<()>;

    /// Nothing more comes, although the source has not reached its end. Removes the file that is incomplete,
    /// and then does as [`Sink::finish`] for what is there.
    fn stop(&mut self) -> Result<()> {
        Ok(())
    }

    /// The items that were not preserved exactly. Called once, at the end.
    fn left_out(&mut self) -> Vec<Skipped> {
        Vec::new()
    }
}

/// The amount that a sink has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Items: files, folders, links, nodes.
    pub files: u64,
    /// Bytes of contents, holes not counted.
    pub bytes: u64,
    /// How many of these bytes belong to a file that has begun and not ended.
    pub begun: Option<u64>,
}

impl Taken {
    /// Returns the amount without the file that has not ended.
    pub fn whole(self) -> Taken {
        let Some(begun) = self.begun else { return self };
        Taken { files: self.files.saturating_sub(1), bytes: self.bytes.saturating_sub(begun), begun: None }
    }

    /// Passes one step to a sink, after the last check against a bad source, and counts it.
    pub fn pass(&mut self, step: Step, sink: &mut dyn Sink) -> Result<()> {
        match step {
            Step::Item(item) => {
                check(&item)?;
                let begun = matches!(item.kind, Kind::File { .. }).then_some(0);
                sink.item(item)?;
                self.files += 1;
                self.begun = begun;
            }
            Step::Ranges(ranges) => sink.ranges(ranges)?,
            Step::Piece(offset, data) => {
                let len = data.len() as u64;
                sink.piece(offset, data)?;
                self.bytes += len;
                self.begun = self.begun.map(|begun| begun + len);
            }
            Step::End => {
                sink.end()?;
                self.begun = None;
            }
            Step::Abandon => {
                sink.abandon()?;
                *self = Taken { begun: Some(self.begun.unwrap_or(0)), ..*self }.whole();
            }
        }
        Ok(())
    }
}

/// Nothing is created outside the destination.
pub fn check(item: &Item) -> Result<()> {
    let first = match &item.kind {
        Kind::HardLink(first) => first.as_path(),
        _ => Path::new(""),
    };
    match [item.path.as_path(), first].into_iter().find(|path| !is_below(path)) {
        None => Ok(()),
        Some(path) => Err(Failure::new("damaged", format!("{:?} cannot be the path of a file", path))
            .why("it leads out of the place that everything goes to, or holds what no name can hold")
            .next("check the volume that it comes from: covey fsck --repair VOLUME")),
    }
}

/// Whether the path is empty, or a sequence of valid names.
fn is_below(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.is_empty() || bytes.split(|&byte| byte == b'/').all(meta::key::is_name)
}

/// Makes a path of an archive relative: no leading `/`, no `.`. Returns none if the path contains `..`.
pub fn inside(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => return None,
        }
    }
    Some(clean)
}

/// The failure for a name that exists already.
pub fn exists(path: &Path) -> Failure {
    Failure::new("exists", format!("{} is there already", path.display()))
        .next("name another place, or replace what is there with --overwrite")
}

/// A failure with the text of one of the filesystem's error numbers.
pub(crate) fn errno_failure(what: impl Into<String>, errno: fs::Errno) -> Failure {
    Failure::io(what, &io::Error::from_raw_os_error(errno.0))
}
