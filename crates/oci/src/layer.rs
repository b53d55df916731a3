//! One layer's archive as items in overlayfs form.
//!
//! ```text
//!   in the archive          in the layer's folder
//!   a/.wh.b                 a/b, a character device 0:0: the lower b is gone
//!   a/.wh..wh..opq          a, with the attribute trusted.overlay.opaque=y: all that is lower is gone
//!   a/.wh..wh.x             nothing: records of AUFS
//! ```
//!
//! A whiteout hides what lower layers have, and nothing of its own layer, wherever it is in the archive. So a
//! folder that has a whiteout and is there all the same becomes opaque, and a file just replaces.
//!
//! A name that leads out of the layer is an error: absolute, with `..`, or through a symbolic link or a file
//! of the layer. So are attributes that only overlayfs may set, because they redirect names.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use api::error::{Failure, plain};
use archive::Entry;
use archive::import::bounds::Bounds;
use archive::import::seen::Held;
use archive::import::tar;
use archive::import::{Item, Kind, Step, inside};
use archive::read::Reader;
use archive::transfer::Feed;
use base::Timestamp;

/// The attribute of a folder that hides everything below it.
pub const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// Attributes of overlayfs itself.
const OVERLAY: &[u8] = b"trusted.overlay.";
const WHITEOUT: &[u8] = b".wh.";
const WHOLE_FOLDER: &[u8] = b".wh..wh..opq";
const AUFS: &[u8] = b".wh..wh.";

/// What a path of the layer is so far.
#[derive(Debug)]
enum Met {
    Dir(Box<Item>),
    Link,
    Other,
    Whiteout,
}

/// Why a layer ended early.
#[derive(Debug)]
pub enum Ended {
    /// The sink has ended. It knows why.
    Hangup,
    /// The archive cannot be read. It may be damaged.
    Unreadable(Failure),
    /// Something in the archive is refused.
    Refused(Failure),
}

/// Sends a layer's items below a folder.
pub struct Sender<'a> {
    feed: &'a Feed,
    /// The layer's folder.
    below: &'a Path,
    met: HashMap<PathBuf, Met>,
    /// Folders that the archive leaves out.
    implied: BTreeSet<PathBuf>,
    held: Held,
    /// The layer's name for people.
    name: &'a str,
    bounds: &'a Bounds,
}

type Outcome<T> = std::result::Result<T, Ended>;

impl<'a> Sender<'a> {
    /// Sends everything in an archive without compression to `below`. Returns the folders that the archive
    /// leaves out although something is in them, in order: of these only the name is known. The empty path is
    /// the layer's own folder.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn send(
        from: impl Read,
        below: &'a Path,
        name: &'a str,
        feed: &'a Feed,
        bounds: &'a Bounds,
    ) -> Outcome<Vec<PathBuf>> {
        let (met, held) = (HashMap::new(), Held::default());
        // The layer's own folder, until the archive lists it.
        let implied = BTreeSet::from([PathBuf::new()]);
        let mut sender = Sender { feed, below, met, implied, held, name, bounds };
        // Some builders leave the end mark out. The digest says that the archive is whole.
        let mut reader = Reader::without_end_mark(from);
        sender.dir(folder(PathBuf::new(), Timestamp::from_parts(0, 0)))?;
        let unreadable = |error: std::io::Error| {
            Ended::Unreadable(
                Failure::new("damaged", format!("{name} cannot be read to its end")).why(plain(&error)),
            )
        };
        while let Some(entry) = reader.next_member().map_err(unreadable)? {
            let data = entry.data.clone();
            if !sender.one(entry)? {
                continue;
            }
            let mut outcome = Ok(());
            let shape = Entry { data, ..Entry::default() };
            let each = &mut |offset, piece| {
                outcome = sender.step(Step::Piece(offset, piece));
                outcome.is_ok()
            };
            reader.data(&shape, each).map_err(unreadable)?;
            outcome?;
            sender.step(Step::End)?;
        }
        Ok(sender.implied.into_iter().collect())
    }

    fn step(&self, step: Step) -> Outcome<()> {
        self.feed.send(step).map_err(|_| Ended::Hangup)
    }

    /// The path of what is at `path` in the layer.
    fn at(&self, path: &Path) -> PathBuf {
        at(self.below, path)
    }

    fn refused(&self, path: &Path, why: &str) -> Ended {
        let shown = path.display();
        Ended::Refused(
            Failure::new("refused", format!("{} holds {shown:?}, which is refused", self.name))
                .why(why.to_owned())
                .next("build the image again without it"),
        )
    }

    /// Sends one member. Returns whether its bytes follow.
    fn one(&mut self, mut entry: Entry) -> Outcome<bool> {
        self.bounds.entry().map_err(Ended::Refused)?;
        let named = Path::new(OsStr::from_bytes(&entry.path)).to_owned();
        let Some(path) = inside(&named) else {
            return Err(self.refused(&named, "its path leads out of the layer (..)"));
        };
        // Some builders call the layer's own folder `/`.
        if named.is_absolute() && !path.as_os_str().is_empty() {
            return Err(self.refused(&named, "its path is absolute"));
        }
        let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
        if name.starts_with(WHITEOUT) {
            self.whiteout(&path, &name, entry.mtime)?;
            return Ok(false);
        }
        self.enter(&path, entry.mtime)?;
        let mut notes = Vec::new();
        let made = tar::item(&mut entry, path.clone(), &mut |why| notes.push(why));
        for why in notes {
            self.feed.skip(&self.at(&path), why);
        }
        let mut item = made.map_err(|why| self.refused(&path, &why))?;
        if item.xattrs.iter().any(|(name, _)| name.starts_with(OVERLAY)) {
            return Err(self.refused(&path, "it has an attribute of overlayfs (trusted.overlay.*)"));
        }
        if let Kind::HardLink(first) = &mut item.kind {
            match self.met.get(first) {
                Some(Met::Link | Met::Other) => *first = self.below.join(&*first),
                _ => {
                    let why = format!("it is a hard link to {first:?}, which is no file of the layer");
                    return Err(self.refused(&path, &why));
                }
            }
        }
        if item.kind == Kind::Dir {
            self.implied.remove(&path);
            self.dir(item)?;
            return Ok(false);
        }
        if matches!(self.met.get(&path), Some(Met::Dir(_))) || path.as_os_str().is_empty() {
            return Err(self.refused(&path, "it takes the place of a folder of the same layer"));
        }
        let met = if matches!(item.kind, Kind::Symlink(_)) { Met::Link } else { Met::Other };
        let is_file = matches!(item.kind, Kind::File { .. });
        self.note(&path, met)?;
        item.path = self.at(&path);
        self.step(Step::Item(item))?;
        Ok(is_file)
    }

    /// Keeps what a path is, within a bound.
    fn note(&mut self, path: &Path, met: Met) -> Outcome<()> {
        // A folder is kept as it was sent, with its attributes. One that is sent again counts again.
        if let Met::Dir(item) = &met {
            self.held.add(item).map_err(Ended::Refused)?;
        }
        match self.met.entry(path.to_owned()) {
            Slot::Occupied(mut slot) => drop(slot.insert(met)),
            Slot::Vacant(slot) => {
                self.held.add_path(path).map_err(Ended::Refused)?;
                slot.insert(met);
            }
        }
        Ok(())
    }

    /// Makes sure that everything on the way to a path is a folder of the layer. A folder that the archive
    /// leaves out is that of the layers below, if they have one.
    fn enter(&mut self, path: &Path, mtime: Timestamp) -> Outcome<()> {
        let mut missing = Vec::new();
        for dir in path.ancestors().skip(1).take_while(|dir| !dir.as_os_str().is_empty()) {
            match self.met.get(dir) {
                // So is everything above it, which need not be looked at again for each member.
                Some(Met::Dir(_)) => break,
                Some(Met::Link) => return Err(self.refused(path, "its path leads through a symbolic link")),
                Some(Met::Other) => return Err(self.refused(path, "its path leads through a file")),
                Some(Met::Whiteout) => missing.push((dir, false)),
                None => missing.push((dir, true)),
            }
        }
        for (dir, is_implied) in missing.into_iter().rev() {
            if is_implied {
                self.held.add_path(dir).map_err(Ended::Refused)?;
                self.implied.insert(dir.to_owned());
            }
            self.dir(folder(dir.to_owned(), mtime))?;
        }
        Ok(())
    }

    /// Sends a folder. It stays opaque, and becomes so in the place of a whiteout.
    fn dir(&mut self, mut item: Item) -> Outcome<()> {
        let hides = match self.met.get(&item.path) {
            Some(Met::Whiteout) => true,
            Some(Met::Dir(was)) => is_opaque(was),
            _ => false,
        };
        if hides {
            item.xattrs.push((OPAQUE.to_vec(), b"y".to_vec()));
        }
        let path = item.path.clone();
        self.step(Step::Item(Item { path: self.at(&path), ..item.clone() }))?;
        self.note(&path, Met::Dir(Box::new(item)))
    }

    fn whiteout(&mut self, path: &Path, name: &[u8], mtime: Timestamp) -> Outcome<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if name == WHOLE_FOLDER {
            if parent.as_os_str().is_empty() {
                return Err(self.refused(path, "it hides the whole image, which overlayfs cannot express"));
            }
            self.enter(path, mtime)?;
            return self.make_opaque(parent);
        }
        if name.starts_with(AUFS) {
            return Ok(());
        }
        let rest = &name[WHITEOUT.len()..];
        if matches!(rest, b"" | b"." | b"..") {
            return Err(self.refused(path, "it is a whiteout of the root or of no name"));
        }
        self.enter(path, mtime)?;
        let hidden = parent.join(OsStr::from_bytes(rest));
        match self.met.get(&hidden) {
            Some(Met::Dir(_)) => self.make_opaque(&hidden),
            Some(_) => Ok(()),
            None => {
                self.note(&hidden, Met::Whiteout)?;
                let kind = Kind::Node { format: libc::S_IFCHR, rdev: 0 };
                self.step(Step::Item(Item { kind, perm: 0, ..folder(self.at(&hidden), mtime) }))
            }
        }
    }

    /// Sends a folder once more, now opaque.
    fn make_opaque(&mut self, path: &Path) -> Outcome<()> {
        let Some(Met::Dir(item)) = self.met.get_mut(path) else { return Ok(()) };
        if is_opaque(item) {
            return Ok(());
        }
        item.xattrs.push((OPAQUE.to_vec(), b"y".to_vec()));
        let again = Item { path: at(self.below, path), ..(**item).clone() };
        self.step(Step::Item(again))
    }
}

/// A path below a folder, which the empty path is itself. `join` would add a slash.
fn at(below: &Path, path: &Path) -> PathBuf {
    if path.as_os_str().is_empty() { below.to_owned() } else { below.join(path) }
}

fn is_opaque(item: &Item) -> bool {
    item.xattrs.iter().any(|(name, _)| name == OPAQUE)
}

/// A folder of root that everybody may enter.
fn folder(path: PathBuf, mtime: Timestamp) -> Item {
    Item { path, kind: Kind::Dir, perm: 0o755, uid: 0, gid: 0, atime: mtime, mtime, xattrs: Vec::new() }
}

#[cfg(test)]
mod tests;
