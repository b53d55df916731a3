//! Bringing what is elsewhere into a volume: a folder or an archive on one side, a mount or a closed volume on the other.
//! [`crate::export`] puts other ends to the same queue.
//!
//! ```text
//!   folder ──┐                        ┌── place   (a mounted path: system calls below an open folder)
//!            ├── items, with contents ┤
//!   archive ─┘                        └── direct  (a volume that is not mounted: the filesystem itself)
//! ```
//!
//! A source hands out [`Item`]s, a folder always before what is in it and a hard link after what it links to; a sink makes them.
//! Modes, owners (as root), times, extended attributes, hard links, symbolic links, device nodes and holes arrive as they were.
//! Sinks never follow a symbolic link on the way to a name, so an archive cannot write outside the place it was told.
//!
//! The source reads on one thread and the sink writes on another: contents travel in pieces through a short queue.

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

/// One thing to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Where, relative to the place that everything goes to; empty for that place itself.
    pub path: PathBuf,
    /// What.
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
    /// Extended attributes, names with their namespaces.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an [`Item`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder.
    Dir,
    /// A regular file; its contents follow, holes left out.
    File {
        /// Bytes, holes included.
        size: u64,
    },
    /// A symbolic link.
    Symlink(OsString),
    /// One more name of an item that came before.
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

/// What goes through the queue.
pub enum Step {
    /// Make this.
    Item(Item),
    /// The file last made has holes: these ranges alone hold data, where each begins and how many bytes it has. Comes before any piece.
    Ranges(Vec<(u64, u64)>),
    /// Bytes of the file last made, at this offset.
    Piece(u64, Vec<u8>),
    /// The file last made is complete.
    End,
}

/// How far both sides have come.
#[derive(Debug, Default)]
pub struct Counters {
    /// Items seen by a quick look ahead, 0 while that is not known.
    pub expected: AtomicU64,
    /// How far the source is, in the unit of `expected`.
    pub at: AtomicU64,
    /// Items made.
    pub files: AtomicU64,
    /// Bytes written.
    pub bytes: AtomicU64,
}

/// A thing that was left out, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Where it was.
    pub path: String,
    /// Why.
    pub why: String,
}

/// Texts of so many bytes are listed of what was left out; of the rest only the number is told.
const LISTED_MAX: usize = 8 << 20;

/// What was left out: a list with a bound, since an archive may hold any number of members that are.
#[derive(Debug, Default)]
pub struct LeftOut {
    list: Vec<Skipped>,
    bytes: usize,
    more: u64,
}

impl LeftOut {
    /// Adds one.
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

    /// The list; its last line tells how many more there are.
    pub fn take(&mut self) -> Vec<Skipped> {
        let LeftOut { mut list, more, .. } = std::mem::take(self);
        if more > 0 {
            list.push(Skipped { path: "...".to_owned(), why: format!("and {more} more") });
        }
        list
    }
}

/// What a source writes to: the queue, and the list of what it had to leave out.
pub struct Feed {
    queue: SyncSender<Step>,
    skipped: Arc<Mutex<LeftOut>>,
    /// See [`Counters`].
    pub counters: Arc<Counters>,
}

/// The sink is gone: it failed, and its failure is what the user hears.
#[derive(Debug)]
pub struct Hangup;

impl Feed {
    /// Hands on one step.
    pub fn send(&self, step: Step) -> std::result::Result<(), Hangup> {
        self.queue.send(step).map_err(|_| Hangup)
    }

    /// Notes what was left out.
    pub fn skip(&self, path: &Path, why: impl Into<String>) {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).add(path, why);
    }
}

/// A folder or an archive.
pub trait Source: Send {
    /// Hands everything to the feed. An error ends the import.
    fn run(&mut self, feed: &Feed) -> Result<()>;
}

/// A place that things are made in.
pub trait Sink {
    /// Makes an item; a file is then open for [`Sink::piece`].
    fn item(&mut self, item: Item) -> Result<()>;

    /// The file last made holds data in these ranges only. Who writes at offsets finds out by himself.
    fn ranges(&mut self, _: Vec<(u64, u64)>) -> Result<()> {
        Ok(())
    }

    /// Writes bytes of the file last made.
    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()>;

    /// Completes the file last made.
    fn end(&mut self) -> Result<()>;

    /// Gives folders their times, after everything in them was made, and makes all of it durable.
    fn finish(&mut self) -> Result<()>;

    /// What did not arrive as it was. Asked once, at the end.
    fn left_out(&mut self) -> Vec<Skipped> {
        Vec::new()
    }
}

/// What an import came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Items made: files, folders, links, nodes.
    pub files: u64,
    /// Bytes of contents written, holes not counted.
    pub bytes: u64,
    /// Wall time.
    pub seconds: f64,
    /// What was left out.
    pub skipped: Vec<Skipped>,
}

/// Moves everything from the source to the sink.
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
    // A sink that failed makes the source stop, so the sink's failure is the cause.
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

/// The last line of defence: whatever the source is, nothing is made outside the place that was named.
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

/// Whether it is empty, or names one after the other, each of which can be one.
fn is_below(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.is_empty() || bytes.split(|&byte| byte == b'/').all(meta::key::is_name)
}

/// A path of an archive made relative: no leading `/`, no `.`; none when it climbs with `..`.
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
