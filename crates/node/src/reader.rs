//! A published tree that a process reads itself, by paths, without a mount and without the kernel.
//!
//! It is opened as the source of a mount is: the record of the name is checked in the same way, the same
//! folder holds the cache, and the same fleet can be joined. What the kernel does for a mount is missing.
//! Nothing checks permissions, because a process that has the keys of the store can read every byte. No pages
//! are kept, but a whole blob on this disk can be mapped ([`Reader::place`]).
//!
//! Each call ends within the deadline of its options, and then with `ETIMEDOUT`. A failure comes with its
//! reason, and leaves no line in the log.

mod large_pages;

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use api::error::Result;
use api::status::Status;
use base::size::SEGMENT;
use base::{BlobId, Deadline, Ino};
use blob::Sums;
use fs::Errno;
use fs::api::{Attr, FileKind, Filesystem};
use fs::pieces::Piece;
use fs::volume::Volume;
use fs::why;
use parking_lot::Mutex;

use crate::frozen::Named;
use crate::opened::{Node, Source};
use crate::options::NodeOptions;
use crate::remote_side::tree::TreeCache;

/// At most so many blobs are remembered as verified, of 32 bytes each.
const VERIFIED: usize = 1 << 16;
/// Blobs that are verified at a time, each by a thread.
const VERIFIERS: usize = 4;
/// The bytes of a blob that are verified at a time: whole segments.
const AT_ONCE: u32 = 8 * SEGMENT;

/// Bytes read since the tree was opened, by where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BySource {
    /// Read: small files, which are in the names.
    pub names: u64,
    /// Read from this process's memory.
    pub memory: u64,
    /// Read from this machine's disk.
    pub disk: u64,
    /// Of these, from the cache of another process.
    pub beside: u64,
    /// Mapped from this machine's disk, without a copy.
    pub mapped: u64,
    /// Fetched from other nodes of the fleet.
    pub peers: u64,
    /// Fetched from depots.
    pub depot: u64,
    /// Fetched from the origin.
    pub origin: u64,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// The entry's own attributes: a symbolic link is shown as such.
    pub attr: Attr,
}

/// A piece of a file, and where it is on this machine's disk.
pub enum OnDisk {
    /// So many bytes whose blob is not whole on this disk, or is damaged there.
    Elsewhere(u64),
    /// So many zeros that are not stored.
    Hole(u64),
    /// So many bytes of a file, from an offset on.
    File(File, u64, u64),
}

impl OnDisk {
    /// Returns the piece's length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            OnDisk::Elsewhere(len) | OnDisk::Hole(len) | OnDisk::File(_, _, len) => *len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The error number.
    pub errno: Errno,
    /// The reason for a person, if the number does not say everything.
    pub why: Option<String>,
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Failed {
        Failed { errno, why: None }
    }
}

/// The result of a call.
pub type Outcome<T> = std::result::Result<T, Failed>;

/// An open tree. See the [module](self).
pub struct Reader {
    node: Node,
    volume: Arc<Volume>,
    patience: Duration,
    verified: Mutex<Vec<BlobId>>,
    mapped: Mutex<u64>,
}

impl Reader {
    /// Opens a tree. `options` are those of a mount.
    pub fn open(named: &Named, options: &NodeOptions) -> Result<Reader> {
        let node = Node::open_source(&Source::Published(named.clone()), options)?;
        let volume = node.shown();
        let patience = options.deadline;
        Ok(Reader { node, volume, patience, verified: Mutex::default(), mapped: Mutex::default() })
    }

    /// Runs work under the deadline. A failure after it is the deadline's, and so is that of a fetch that
    /// another call had begun.
    fn within<T>(&self, work: impl FnOnce() -> fs::api::Result<T>) -> Outcome<T> {
        let deadline = Deadline::current().within(self.patience);
        let (done, why) = why::asked(|| deadline.scope(work));
        done.map_err(|errno| {
            let is_away = deadline.is_over() || why.as_ref().is_some_and(|why| why.is_away);
            let errno = if errno == Errno::EIO && is_away { Errno::ETIMEDOUT } else { errno };
            Failed { errno, why: why.map(|why| why.text) }
        })
    }

    /// The deadline of a call that begins now, for one that works on several threads.
    pub fn deadline(&self) -> Deadline {
        Deadline::after(self.patience)
    }

    /// The attributes of what a path leads to. `follow`: of what a symbolic link at its end leads to.
    ///
    /// # Errors
    /// As stat(2).
    pub fn info(&self, path: &[u8], follow: bool) -> Outcome<Attr> {
        self.within(|| self.volume.resolve(path, follow))
    }

    /// The entries of a folder without `.` and `..`, with their attributes, in one pass.
    ///
    /// # Errors
    /// As readdir(3).
    pub fn list(&self, folder: Ino) -> Outcome<Vec<Listed>> {
        let mut entries = Vec::new();
        self.within(|| {
            self.volume.readdir_plus(folder, 0, &mut |entry, plus| {
                if let Some(plus) = plus {
                    entries.push(Listed { name: entry.name.to_vec(), attr: plus.attr });
                }
                ControlFlow::Continue(())
            })
        })?;
        // The listing counted each as held, as for a kernel.
        entries.iter().for_each(|entry| self.volume.forget(entry.attr.ino, 1));
        Ok(entries)
    }

    /// Reads at most `buf.len()` bytes of a file; fewer only at its end. Returns how many.
    ///
    /// # Errors
    /// As pread(2).
    pub fn read(&self, file: &Attr, offset: u64, buf: &mut [u8]) -> Outcome<usize> {
        match file.kind {
            FileKind::File => self.within(|| self.volume.read(file.ino, offset, buf)),
            FileKind::Dir => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As readlink(2).
    pub fn readlink(&self, link: Ino) -> Outcome<Vec<u8>> {
        self.within(|| self.volume.readlink(link))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is none.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>> {
        self.within(|| self.volume.getxattr(ino, name))
    }

    /// The names of the extended attributes.
    ///
    /// # Errors
    /// The names could not be read.
    pub fn xattrs(&self, ino: Ino) -> Outcome<Vec<Vec<u8>>> {
        let all = self.within(|| self.volume.listxattr(ino))?;
        Ok(all.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// The files on this disk that hold a range of a file, in order. `None` if a byte of it is in no blob.
    /// With `verify`, the bytes of each blob are compared with its sums, once for each blob.
    ///
    /// # Errors
    /// The names could not be read.
    pub fn place(&self, file: &Attr, offset: u64, len: u64, verify: bool) -> Outcome<Option<Vec<OnDisk>>> {
        let Some(pieces) = self.within(|| self.volume.pieces(file.ino, offset, len))? else {
            return Ok(None);
        };
        let mut places = Vec::with_capacity(pieces.len());
        let mut unverified = Vec::new();
        for piece in pieces {
            places.push(match piece {
                Piece::Hole { len } => OnDisk::Hole(len),
                Piece::Stored { blob, offset, len } => match self.volume.parts().source.file_of(&blob) {
                    Some((file, sums)) => {
                        if verify && self.verified.lock().binary_search(&blob).is_err() {
                            unverified.push((places.len(), blob, sums));
                        }
                        OnDisk::File(file, u64::from(offset), u64::from(len))
                    }
                    None => OnDisk::Elsewhere(u64::from(len)),
                },
            });
        }
        for place in self.damaged(&unverified, &places) {
            places[place] = OnDisk::Elsewhere(places[place].len());
        }
        let bytes = places.iter().map(|place| if let OnDisk::File(_, _, len) = place { *len } else { 0 });
        *self.mapped.lock() += bytes.sum::<u64>();
        Ok(Some(places))
    }

    /// Compares blobs with their sums, several at a time, because a disk is faster then. Returns the places
    /// of those that do not match. A read of a damaged one finds another copy.
    fn damaged(&self, unverified: &[(usize, BlobId, Sums)], places: &[OnDisk]) -> Vec<usize> {
        let damaged = Mutex::new(Vec::new());
        let work = |(place, blob, sums): &(usize, BlobId, Sums)| {
            if !matches!(&places[*place], OnDisk::File(file, _, _) if self.is_sound(blob, file, sums)) {
                damaged.lock().push(*place);
            }
            Ok::<(), ()>(())
        };
        // No work fails.
        let _ = base::thread::for_each("covey-verify", VERIFIERS, unverified, work);
        damaged.into_inner()
    }

    /// Whether the bytes of a blob match its sums.
    fn is_sound(&self, blob: &BlobId, file: &File, sums: &Sums) -> bool {
        large_pages::load(file, sums.size() as usize);
        let mut buffer = vec![0; AT_ONCE.min(sums.size()) as usize];
        let mut at = 0;
        while at < sums.size() {
            let part = &mut buffer[..AT_ONCE.min(sums.size() - at) as usize];
            if file.read_exact_at(part, u64::from(at)).is_err() || sums.check(at, part).is_err() {
                return false;
            }
            at += part.len() as u32;
        }
        let mut verified = self.verified.lock();
        if verified.len() >= VERIFIED {
            verified.clear();
        }
        if let Err(place) = verified.binary_search(blob) {
            verified.insert(place, *blob);
        }
        true
    }

    /// All figures, as `covey status` shows them for a mount.
    pub fn status(&self) -> Result<Status> {
        self.node.status()
    }

    /// Bytes by where they were. Reads a few counters only.
    pub fn by_source(&self) -> BySource {
        let read = self.volume.sources();
        let seen = BySource { names: read.names.bytes, mapped: *self.mapped.lock(), ..BySource::default() };
        let Some(tree) = self.node.tree_cache() else {
            return BySource { disk: read.blobs.bytes, ..seen };
        };
        let (cache, beside) = (tree.status().cache, tree.beside_bytes());
        let seen = BySource { memory: cache.memory_bytes, disk: cache.disk_bytes + beside, beside, ..seen };
        match self.node.tree_cache().and_then(TreeCache::fleet_status) {
            Some(fleet) => {
                let peers = fleet.peer.bytes + fleet.stream.bytes + fleet.part.bytes;
                let depot = fleet.depot.bytes + fleet.depot_part.bytes;
                let origin = fleet.origin.bytes + fleet.origin_part.bytes;
                // A node that knows no other node asks the origin without the fleet, which then counts
                // nothing.
                let without = cache.fetched_bytes.saturating_sub(peers + depot + origin);
                BySource { peers, depot, origin: origin + without, ..seen }
            }
            None => BySource { origin: cache.fetched_bytes, ..seen },
        }
    }

    /// Which publication of its name it is.
    pub fn sequence(&self) -> Option<u64> {
        self.node.root().map(|root| root.sequence)
    }

    /// Stores the cache's index and leaves the fleet.
    pub fn close(&self) -> Result<()> {
        self.node.close()
    }
}
