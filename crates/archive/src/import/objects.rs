//! Objects of a bucket as a source: each becomes a file, and the parts of its key become folders.
//!
//! ```text
//!   Bucket ──list──► Listed ──► parts of at most 8 MiB ──► Reads: parallel threads ──► steps, in order
//!                      └─ keys that cannot be paths, and files that are there already, are left out
//! ```
//!
//! The listing is kept in memory, compressed. So the number of objects is known, and a key that is also the
//! folder of other keys is found wherever it stands. Bytes have a bound: the parts that are being read, or
//! wait for their turn, have at most [`reads::WINDOW`] bytes together.
//!
//! An object that changes meanwhile is left out as a whole, also when a part of it was passed on
//! ([`Step::Abandon`]). An object whose bytes are not those that its store names is read again, and then left
//! out. A file keeps the ETag of its object in the attribute [`ETAG`]. So the next import
//! leaves out what is there.

mod listed;
mod reads;
#[cfg(test)]
mod tests;
pub mod there;

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use api::error::{Failure, Result};
use base::Timestamp;

use self::listed::Listed;
use self::reads::{Part, Reads};
use self::there::{Found, There};
use super::{Item, Kind, Step};
use crate::PIECE;
use crate::transfer::{Feed, Hangup, Source};

/// The attribute in which a file keeps the ETag of its object.
pub const ETAG: &[u8] = b"user.covey.etag";
/// Bytes of one read of a large object.
const PART: u64 = 8 << 20;
/// How often an object is read whose bytes are not those that its store names.
const READS: u32 = 3;
/// If the first objects are refused like this, the keys may read none.
const DENIALS: u32 = 3;

/// An object, as its store lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The key, relative to what was listed.
    pub key: String,
    /// The object's size in bytes.
    pub size: u64,
    /// The object's ETag. Empty if the store lists none.
    pub etag: String,
    /// When it was last modified.
    pub modified: Timestamp,
}

/// Why an object was not read.
#[derive(Clone, Debug)]
pub enum Unread {
    /// The object is another version than the listed one, or was removed.
    Changed,
    /// The store refuses this one.
    Denied(Failure),
    /// The object cannot be read, for this reason.
    Object(String),
    /// None can be read.
    Store(Failure),
}

/// The objects below a prefix. Called from several threads.
pub trait Bucket: Send + Sync {
    /// Returns the bucket's name for people, without a `/` at its end.
    fn shown(&self) -> String;

    /// Lists all objects. `each` returns false to end the listing.
    ///
    /// # Errors
    /// The listing is not complete.
    fn list(&self, each: &mut dyn FnMut(Object) -> bool) -> Result<()>;

    /// Reads a range of an object, which is not empty. Returns exactly its bytes, and only if the object is
    /// the listed one. An object that is read as a whole was compared with what the store says of it.
    ///
    /// # Errors
    /// [`Unread`].
    fn read(&self, object: &Object, range: Range<u64>) -> std::result::Result<Vec<u8>, Unread>;

    /// Reads a range again, past any cache on the way: wrong bytes came.
    ///
    /// # Errors
    /// [`Unread`].
    fn read_again(&self, object: &Object, range: Range<u64>) -> std::result::Result<Vec<u8>, Unread> {
        self.read(object, range)
    }

    /// What compares the bytes of an object that is read in ranges with what the store says of them.
    ///
    /// # Errors
    /// [`Unread`].
    fn check(&self, object: &Object) -> std::result::Result<Box<dyn Check>, Unread>;
}

/// Compares the bytes of an object, from its first to its last.
pub trait Check: Send {
    /// Takes the next bytes.
    fn add(&mut self, bytes: &[u8]);

    /// Says whether they were those of the object.
    ///
    /// # Errors
    /// In words: what differs.
    fn end(self: Box<Self>) -> std::result::Result<(), String>;
}

/// What the files and folders become that are made of objects. Objects have no owners and permissions.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The file mode mask.
    pub umask: u32,
}

/// The objects of a bucket, to import.
pub struct Objects {
    bucket: Arc<dyn Bucket>,
    there: Box<dyn There>,
    owner: Owner,
    overwrite: bool,
}

impl Objects {
    /// `there` looks at the destination. `overwrite`: other versions that are there are replaced.
    pub fn new(bucket: Arc<dyn Bucket>, there: Box<dyn There>, owner: Owner, overwrite: bool) -> Objects {
        Objects { bucket, there, owner, overwrite }
    }
}

impl Source for Objects {
    fn run(&mut self, feed: &Feed) -> Result<()> {
        let hasher = RandomState::new();
        let (mut listed, mut folders, mut full) = (Listed::default(), HashSet::new(), None);
        self.bucket.list(&mut |object| {
            if problem(&object).is_none() {
                folders.extend(above(&object.key).map(|folder| hasher.hash_one(folder)));
            }
            full = listed.add(&object).err();
            full.is_none() && !feed.is_hung_up()
        })?;
        if let Some(failure) = full {
            return Err(failure);
        }
        if listed.is_empty() {
            return Err(Failure::new(
                "not-found",
                format!("there is no object below {}", self.bucket.shown()),
            )
            .next("check the bucket and the prefix: only keys that begin with PREFIX/ are found"));
        }
        feed.counters.expected.store(listed.len(), Ordering::Relaxed);
        let is_folder = |key: &str| folders.contains(&hasher.hash_one(key));
        let mut run = Run {
            source: self,
            feed,
            is_folder: &is_folder,
            reads: None,
            open: None,
            given_up: None,
            check: None,
            again: None,
            read: 0,
            denied: 0,
        };
        match run.all(&listed) {
            Err(End::Failed(failure)) => Err(failure),
            Ok(()) | Err(End::Hangup) => Ok(()),
        }
    }
}

/// The folders of a key: `a` and `a/b` of `a/b/c`, and of `a/b/`.
fn above(key: &str) -> impl Iterator<Item = &str> {
    key.match_indices('/').map(|(at, _)| &key[..at])
}

/// Why a key cannot be the path of a file or a folder.
fn problem(object: &Object) -> Option<String> {
    let folder = object.key.strip_suffix('/');
    if folder.is_some() && object.size > 0 {
        return Some("its key ends with / and it has bytes: it is neither a file nor a folder".to_owned());
    }
    let problem = |part: &str| match part {
        "" => Some("its key has an empty part, which no path has".to_owned()),
        "." | ".." => Some(format!("its key has the part {part}, which leads elsewhere in a path")),
        _ if part.contains('\0') => Some("its key has a NUL, which no name can have".to_owned()),
        _ if part.len() > base::size::NAME_MAX => {
            Some(format!("its key has a part of {} bytes; a name has at most 255", part.len()))
        }
        _ => None,
    };
    let unreadable = || {
        let why = "its key has control characters, with which it cannot be asked for";
        object.key.contains(|c: char| c.is_ascii_control()).then(|| why.to_owned())
    };
    folder.unwrap_or(&object.key).split('/').find_map(problem).or_else(unreadable)
}

/// Why a run ends early.
enum End {
    Hangup,
    Failed(Failure),
}

impl From<Hangup> for End {
    fn from(_: Hangup) -> End {
        End::Hangup
    }
}

/// One pass over the listed objects.
struct Run<'a> {
    source: &'a Objects,
    feed: &'a Feed,
    /// Whether a key is the folder of another one.
    is_folder: &'a dyn Fn(&str) -> bool,
    /// Started when there is something to read.
    reads: Option<Reads>,
    /// The object of which the next parts are to be read, and where.
    open: Option<(Arc<Object>, u64)>,
    /// An object that was left out. Parts of it may still come.
    given_up: Option<Arc<Object>>,
    /// Compares the object that is passed on, if it comes in parts.
    check: Option<Box<dyn Check>>,
    /// The object that is read again, and how often it was read.
    again: Option<(Arc<Object>, u32)>,
    /// Objects of which something was read.
    read: u64,
    /// Objects that were refused.
    denied: u32,
}

impl Run<'_> {
    fn all(&mut self, listed: &Listed) -> std::result::Result<(), End> {
        let mut left = listed.iter();
        loop {
            while self.reads.as_ref().is_none_or(Reads::has_room) {
                if self.open.is_some() {
                    self.ask()?;
                } else if let Some(object) = left.next() {
                    self.begin(object)?;
                } else {
                    break;
                }
            }
            match self.reads.as_mut().and_then(Reads::next) {
                Some((part, read)) => self.deliver(part, read)?,
                None => return Ok(()),
            }
        }
    }

    /// Decides what becomes of an object.
    fn begin(&mut self, object: Object) -> std::result::Result<(), End> {
        // The folder that was listed is the destination itself.
        if object.key.is_empty() {
            self.done();
            return Ok(());
        }
        if let Some(why) = self.left_out(&object) {
            self.skip(&object.key, why);
            return Ok(());
        }
        let is_marker = object.key.ends_with('/');
        let path = PathBuf::from(object.key.trim_end_matches('/'));
        match self.source.there.find(&path).map_err(End::Failed)? {
            Found::Nothing => {}
            Found::Folder if is_marker => {
                self.done();
                return Ok(());
            }
            Found::File { size, etag }
                if !is_marker && size == object.size && etag == object.etag.as_bytes() =>
            {
                self.feed.counters.already.fetch_add(1, Ordering::Relaxed);
                self.done();
                return Ok(());
            }
            Found::File { .. } if self.source.overwrite && !is_marker => {}
            _ => {
                let why = "something else is there already, or another version: --overwrite replaces files";
                self.skip(&object.key, why.to_owned());
                return Ok(());
            }
        }
        if is_marker || object.size == 0 {
            self.feed.send(Step::Item(self.item(&object)))?;
            if !is_marker {
                self.feed.send(Step::End)?;
            }
            self.done();
        } else {
            self.open = Some((Arc::new(object), 0));
        }
        Ok(())
    }

    /// Why an object is left out without a look at anything else.
    fn left_out(&self, object: &Object) -> Option<String> {
        problem(object).or_else(|| {
            let is_file = !object.key.ends_with('/');
            if is_file && (self.is_folder)(&object.key) {
                Some("its key is also the folder of other keys".to_owned())
            } else if is_file && object.etag.is_empty() {
                Some("the store lists no ETag for it, so a change of it would not be seen".to_owned())
            } else {
                None
            }
        })
    }

    /// Begins to read the next part of the open object.
    fn ask(&mut self) -> std::result::Result<(), End> {
        let Some((object, start)) = self.open.take() else { return Ok(()) };
        let end = object.size.min(start + PART);
        if end < object.size {
            self.open = Some((object.clone(), end));
        }
        if self.reads.is_none() {
            self.reads = Some(Reads::start(&self.source.bucket).map_err(End::Failed)?);
        }
        self.reads.iter_mut().for_each(|reads| reads.ask(Part { object: object.clone(), range: start..end }));
        Ok(())
    }

    /// Passes on what was read, in the order in which it was asked for.
    fn deliver(
        &mut self,
        part: Part,
        read: std::result::Result<Vec<u8>, Unread>,
    ) -> std::result::Result<(), End> {
        let Part { object, range } = part;
        if self.given_up.as_ref().is_some_and(|given_up| Arc::ptr_eq(given_up, &object)) {
            return Ok(());
        }
        let bytes = match read {
            Ok(bytes) if bytes.len() as u64 == range.end - range.start => bytes,
            Ok(_) => return self.give_up(&object, &range, "another number of bytes came".to_owned()),
            Err(unread) => {
                let why = self.why(unread).map_err(End::Failed)?;
                return self.give_up(&object, &range, why);
            }
        };
        if range.start == 0 {
            if range.end < object.size {
                match self.source.bucket.check(&object) {
                    Ok(check) => self.check = Some(check),
                    Err(unread) => {
                        let why = self.why(unread).map_err(End::Failed)?;
                        return self.give_up(&object, &range, why);
                    }
                }
            }
            self.read += 1;
            self.feed.send(Step::Item(self.item(&object)))?;
        }
        let mut at = range.start;
        for piece in bytes.chunks(PIECE) {
            self.check.iter_mut().for_each(|check| check.add(piece));
            self.feed.send(Step::Piece(at, piece.to_vec()))?;
            at += piece.len() as u64;
        }
        if range.end == object.size {
            if let Some(Err(why)) = self.check.take().map(|check| check.end()) {
                return self.read_again(object, why);
            }
            self.feed.send(Step::End)?;
            self.done();
        }
        Ok(())
    }

    /// Reads an object again that came with wrong bytes, at once and in the order of its parts. Parts of the
    /// objects behind it wait meanwhile.
    fn read_again(&mut self, object: Arc<Object>, why: String) -> std::result::Result<(), End> {
        self.feed.send(Step::Abandon)?;
        let before = self.again.take().filter(|(again, _)| Arc::ptr_eq(again, &object));
        let reads = before.map_or(1, |(_, reads)| reads) + 1;
        if reads > READS {
            self.skip(&object.key, format!("{why}, in {READS} reads"));
            return Ok(());
        }
        self.again = Some((object.clone(), reads));
        let mut start = 0;
        while start < object.size {
            let range = start..object.size.min(start + PART);
            start = range.end;
            let read = self.source.bucket.read_again(&object, range.clone());
            let failed = read.is_err();
            self.deliver(Part { object: object.clone(), range }, read)?;
            if failed {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The reason to leave out one object, or the failure that ends the import.
    fn why(&mut self, unread: Unread) -> Result<String> {
        match unread {
            Unread::Changed => Ok("it changed while it was copied: import again to get it".to_owned()),
            Unread::Object(why) => Ok(why),
            Unread::Store(failure) => Err(failure),
            Unread::Denied(failure) => {
                self.denied += 1;
                // One object may be refused for a reason of its own.
                if self.read == 0 && self.denied >= DENIALS { Err(failure) } else { Ok(failure.line()) }
            }
        }
    }

    fn give_up(
        &mut self,
        object: &Arc<Object>,
        range: &Range<u64>,
        why: String,
    ) -> std::result::Result<(), End> {
        self.check = None;
        if range.start > 0 {
            self.feed.send(Step::Abandon)?;
        }
        self.skip(&object.key, why);
        self.open.take_if(|(open, _)| Arc::ptr_eq(open, object));
        self.given_up = Some(object.clone());
        Ok(())
    }

    fn skip(&self, key: &str, why: String) {
        self.feed.skip(Path::new(&format!("{}/{key}", self.source.bucket.shown())), why);
        self.done();
    }

    /// One more object needs no further work.
    fn done(&self) {
        self.feed.counters.at.fetch_add(1, Ordering::Relaxed);
    }

    fn item(&self, object: &Object) -> Item {
        let Owner { uid, gid, umask } = self.source.owner;
        let is_marker = object.key.ends_with('/');
        let (kind, perm, xattrs) = match is_marker {
            true => (Kind::Dir, 0o777, Vec::new()),
            false => {
                let etag = (ETAG.to_vec(), object.etag.clone().into_bytes());
                (Kind::File { size: object.size }, 0o666, vec![etag])
            }
        };
        Item {
            path: PathBuf::from(object.key.trim_end_matches('/')),
            kind,
            perm: perm & !umask,
            uid,
            gid,
            atime: object.modified,
            mtime: object.modified,
            xattrs,
        }
    }
}
