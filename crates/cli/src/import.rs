//! Imports into a volume. The source is a folder or an archive, the sink a mount or a volume that is not
//! mounted. [`crate::export`] adds other sources and sinks for the same queue.
//!
//! ```text
//!   folder ──┐                        ┌── place   (a mounted path: system calls below an open folder)
//!            ├── items, with contents ┤
//!   archive ─┘                        └── direct  (a volume that is not mounted: the filesystem itself)
//! ```
//!
//! A source sends [`Item`]s. A folder always comes before its entries, and a hard link after its target. A
//! sink creates them. These are preserved: modes, owners (as root), times, extended attributes, hard links,
//! symbolic links, device nodes and holes. Sinks never follow a symbolic link on the way to a name, so an
//! archive cannot write outside the destination.
//!
//! The source reads on one thread and the sink writes on another. Contents travel in pieces through a short
//! queue.

pub mod archive;
pub mod direct;
pub mod folder;
pub mod place;
pub mod seen;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use api::error::{Failure, Result};
use base::Timestamp;
use serde::Serialize;

use crate::term::{Progress, Term};

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

pub use ::archive::PIECE;

/// A message in the queue.
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
}

/// The progress of both sides.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of items that a quick count found, 0 while it is not known.
    pub expected: AtomicU64,
    /// The progress of the source, in the unit of `expected`.
    pub at: AtomicU64,
    /// Items created.
    pub files: AtomicU64,
    /// Bytes written.
    pub bytes: AtomicU64,
}

/// An item that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Its path.
    pub path: String,
    /// The reason.
    pub why: String,
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

/// The source's end: the queue, and the list of items that were left out.
pub struct Feed {
    queue: SyncSender<Step>,
    skipped: Arc<Mutex<LeftOut>>,
    /// See [`Counters`].
    pub counters: Arc<Counters>,
}

/// The sink has ended because it failed. The user sees the sink's failure.
#[derive(Debug)]
pub struct Hangup;

impl Feed {
    /// Sends one step.
    pub fn send(&self, step: Step) -> std::result::Result<(), Hangup> {
        self.queue.send(step).map_err(|_| Hangup)
    }

    /// Notes an item that is left out.
    pub fn skip(&self, path: &Path, why: impl Into<String>) {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).add(path, why);
    }
}

/// A source of items.
pub trait Source: Send {
    /// Sends everything to the feed. An error ends the import.
    fn run(&mut self, feed: &Feed) -> Result<()>;
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

    /// Sets the times of folders, after everything in them was created, and makes everything durable.
    fn finish(&mut self) -> Result<()>;

    /// The items that were not preserved exactly. Called once, at the end.
    fn left_out(&mut self) -> Vec<Skipped> {
        Vec::new()
    }
}

/// The result of an import.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Items created: files, folders, links, nodes.
    pub files: u64,
    /// Bytes of contents written, holes not counted.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// What was left out.
    pub skipped: Vec<Skipped>,
}

/// Transfers everything from the source to the sink.
pub fn run(mut source: Box<dyn Source>, sink: &mut dyn Sink, label: &str, term: Term) -> Result<Summary> {
    let counters = Arc::new(Counters::default());
    let skipped = Arc::new(Mutex::new(LeftOut::default()));
    let (queue, steps) = sync_channel(64);
    let feed = Feed { queue, skipped: skipped.clone(), counters: counters.clone() };
    let reader = base::thread::spawn("covey-read", move || source.run(&feed))
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    let mut progress = term.progress(label);
    let written = drain(&steps, sink, &counters, &mut progress);
    drop(steps);
    let read = reader.join().unwrap_or_else(|_| Err(Failure::new("io", "the thread that reads failed")));
    // A failed sink makes the source stop. So the sink's failure is the cause and is reported first.
    written?;
    read?;
    progress.set(u64::MAX, |_| "making it durable ...".to_owned());
    sink.finish()?;
    let seconds = progress.elapsed().as_secs_f64();
    progress.done();
    let mut skipped = skipped.lock().unwrap_or_else(PoisonError::into_inner).take();
    skipped.extend(sink.left_out());
    Ok(Summary {
        files: counters.files.load(Ordering::Relaxed),
        bytes: counters.bytes.load(Ordering::Relaxed),
        seconds,
        skipped,
    })
}

fn drain(
    steps: &Receiver<Step>,
    sink: &mut dyn Sink,
    counters: &Counters,
    progress: &mut Progress,
) -> Result<()> {
    let (mut files, mut bytes) = (0u64, 0u64);
    for step in steps {
        match step {
            Step::Item(item) => {
                files += 1;
                check(&item)?;
                sink.item(item)?;
            }
            Step::Ranges(ranges) => sink.ranges(ranges)?,
            Step::Piece(offset, data) => {
                bytes += data.len() as u64;
                sink.piece(offset, data)?;
            }
            Step::End => sink.end()?,
        }
        counters.files.store(files, Ordering::Relaxed);
        counters.bytes.store(bytes, Ordering::Relaxed);
        let expected = counters.expected.load(Ordering::Relaxed);
        if expected > 0 {
            progress.total(expected);
        }
        progress.set_files(counters.at.load(Ordering::Relaxed), files, bytes);
    }
    Ok(())
}

/// The last check against a bad source: nothing is created outside the destination.
pub(crate) fn check(item: &Item) -> Result<()> {
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
