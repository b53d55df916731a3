//! A published tree as the source of a mount: `ORIGIN@NAME`. There is no volume and no lock. Metadata and
//! file data come from the origin on demand.

pub mod trust;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use api::status::TreeInfo;
use api::text::utc;
use base::{BlobId, Deadline, PackNo};
use blob::{BlobError, BlobSource, Origin, PackStore, Space};
use fleet::node::Groups;
use fs::volume::Parts;
use meta::MetaStore;
use origin::{Access, Limits, OriginError, Remote};
use tree::root::{PublicKey, Root, from_hex, hex};
use tree::{Tree, TreeError};

use crate::fleet::Grouped;
use crate::fleet::options::FleetOptions;
use crate::foreign::Places;
use crate::origins::{self, Reach};
use crate::publisher;
use crate::remote_side::{ORIGIN_ASKED, passes};
use crate::volume_dir::Home;
use trust::{Accept, Unread};

/// How often the record of a followed name is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval(pub Duration);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Interval, String> {
        let seconds = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
        match seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds)) {
            Some(seconds) => Ok(Interval(Duration::from_secs_f64(seconds))),
            None => Err("write a number of seconds from 0.1 to 86400".to_owned()),
        }
    }
}

/// A published tree, and how it is to be mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The origin, and how it is reached.
    pub home: Home,
    /// The folder for the cache of a mount, if a user named one.
    pub cache: Option<PathBuf>,
    /// The published name.
    pub name: String,
    /// One publication of the name. `None`: the newest.
    pub sequence: Option<u64>,
    /// The only key whose signature is accepted.
    pub key: Option<PublicKey>,
    /// Accept a record older than one that was seen.
    pub older: bool,
    /// Whether a mount follows the name, and how often it reads the record.
    pub follow: Option<Interval>,
    /// Whether a folder that the next tree does not have stays for those who hold it.
    pub keeps: bool,
    /// The fleet that a mount joins, if any.
    pub fleet: Option<Box<FleetOptions>>,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.home.origin, self.name)?;
        self.sequence.map_or(Ok(()), |sequence| write!(f, "#{sequence}"))
    }
}

impl Named {
    /// Parses `ORIGIN@NAME` or `ORIGIN@NAME#SEQUENCE`. `None` if the text does not begin like an origin.
    pub fn parse(text: &str) -> Result<Option<Named>> {
        if !api::source::is_origin(text) {
            return Ok(None);
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return Err(Failure::usage(format!("{text} is the address of a web server, not of an origin"))
                .next(
                    "write s3://BUCKET/PREFIX@NAME (or gs://, az://), and give the server with --endpoint",
                ));
        }
        let (origin, name) = text.rsplit_once('@').ok_or_else(|| {
            // An invalid origin is reported before a missing name.
            let named = origins::address(text, &Reach::default());
            named.err().unwrap_or_else(|| {
                Failure::usage(format!("{text} names an origin and no tree in it"))
                    .next(format!("write {text}@NAME; covey published {text} lists the names"))
            })
        })?;
        let (name, sequence) = match name.split_once(api::source::MARK) {
            Some((name, digits)) => (name, Some(parse_sequence(digits)?)),
            None => (name, None),
        };
        publisher::check_name(name)?;
        let home = origins::address(origin, &Reach::default())?;
        Ok(Some(Named {
            home,
            cache: None,
            name: name.to_owned(),
            sequence,
            key: None,
            older: false,
            follow: None,
            keeps: false,
            fleet: None,
        }))
    }

    /// Sets which records the user accepts.
    pub fn accepting(mut self, accept: &Accept) -> Result<Named> {
        self.key = accept.key.as_deref().map(parse_key).transpose()?;
        self.older = accept.accept_older;
        Ok(self)
    }

    /// Sets how the origin is reached, and the folder of the cache.
    pub fn reached(mut self, reach: &Reach, cache: Option<&Path>) -> Result<Named> {
        self.home = origins::address(&self.home.origin, reach)?;
        self.cache = cache.map(crate::mounts::absolute).transpose()?;
        Ok(self)
    }

    /// Sets whether the name is followed.
    pub fn following(mut self, every: Option<Interval>) -> Result<Named> {
        if let (Some(sequence), Some(_)) = (self.sequence, every) {
            return Err(Failure::usage(format!("{self} is one publication, and --follow shows the newest"))
                .next(format!("leave --follow out, or #{sequence}")));
        }
        self.follow = every;
        Ok(self)
    }

    /// Sets whether folders that are removed stay for those who hold them.
    pub fn keeping(self, keeps: bool) -> Named {
        Named { keeps, ..self }
    }

    /// The record in the origin: of the one publication, if one is named, otherwise of the newest.
    pub fn record(&self, origin: &dyn Origin) -> std::result::Result<Root, TreeError> {
        match self.sequence {
            Some(sequence) => tree::history::read(origin, &self.name, sequence, self.key.as_ref()),
            None => Root::read(origin, &self.name, self.key.as_ref()),
        }
    }

    /// Fails if the name has another tree by now than this one.
    pub fn is_still(&self, root: &Root, origin: &dyn Origin) -> Result<()> {
        let now = self.record(origin).map_err(|error| self.failure(error))?;
        if now.top == root.top {
            return Ok(());
        }
        Err(Failure::new("changed", format!("{self} was published again meanwhile"))
            .why("the volume that was restored would not be the newest")
            .next("run the same command again"))
    }

    /// Sets the fleet to join.
    pub fn in_fleet(mut self, fleet: &FleetOptions) -> Result<Named> {
        fleet.check()?;
        if fleet.is_on() && self.is_local() {
            return Err(Failure::usage(format!(
                "{self} is on this machine: there is nothing to ask others for"
            ))
            .next("leave --join and --listen out; a fleet is for trees in an object store"));
        }
        self.fleet = fleet.is_on().then(|| Box::new(fleet.clone()));
        Ok(self)
    }

    /// Whether the origin is on this machine.
    pub fn is_local(&self) -> bool {
        self.home.origin.starts_with("file:")
    }

    /// The root, and the origin from which it was read.
    pub fn root(&self, access: Access) -> Result<(Root, Arc<dyn Origin>)> {
        let origin = origins::open_origin(&self.home, access)?;
        Ok((trust::read(self, &*origin, self.older)?, origin))
    }

    /// Returns the root of a tree in a remote origin, and that origin, which has figures of its own. While
    /// the origin cannot be used, the root is the newest that was seen here, if this node has it.
    pub fn remote_root(&self, limits: Limits) -> Result<RemoteRoot> {
        let Some(last) = trust::last(self) else { return Ok(self.ask(limits)?) };
        let failure = match Deadline::after(ORIGIN_ASKED).scope(|| self.ask(limits)) {
            Ok(found) => return Ok(found),
            Err(Unread::Refused(failure)) => return Err(failure),
            Err(Unread::Away(failure)) => failure,
        };
        let unseen = origins::try_remote(&self.home, limits, Some(&hex(&last.volume)))?;
        let remote = Arc::new(unseen.map_err(origins::origin_failure)?);
        let why = failure.why.first().unwrap_or(&failure.what).clone();
        Ok(RemoteRoot { root: last, remote, away: Some(why) })
    }

    fn ask(&self, limits: Limits) -> std::result::Result<RemoteRoot, Unread> {
        let remote = origins::try_remote(&self.home, limits, None)?.map_err(|error| {
            let is_away = matches!(&error, OriginError::Remote { mistake, .. } if passes(*mistake));
            let failure = origins::origin_failure(error);
            if is_away { Unread::Away(failure) } else { Unread::Refused(failure) }
        })?;
        let remote = Arc::new(remote);
        let root = trust::try_read(self, &*remote, self.older)?;
        Ok(RemoteRoot { root, remote, away: None })
    }

    fn not_kept(&self) -> Failure {
        Failure::new("not-published", format!("{self} was not published, or is not kept"))
            .next(format!("covey published --all {} lists the publications that are kept", self.home.origin))
            .next("covey publish --keep COUNT VOLUME NAME keeps more than the newest from then on")
    }

    /// The failure for an error with this tree.
    pub fn failure(&self, error: TreeError) -> Failure {
        match error {
            TreeError::NotPublished(_) if self.sequence.is_some() => self.not_kept(),
            TreeError::NotPublished(name) => publisher::not_published(&name)
                .map_next(format!("covey published {} lists what is", self.home.origin)),
            other => publisher::failure(format!("cannot use the published tree {self}"), other),
        }
    }
}

fn parse_sequence(digits: &str) -> Result<u64> {
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
    number.filter(|number| *number > 0).ok_or_else(|| {
        Failure::usage(format!("#{digits} is no number of a publication"))
            .next("write ORIGIN@NAME#NUMBER; covey published --all ORIGIN lists the numbers")
    })
}

fn parse_key(text: &str) -> Result<PublicKey> {
    from_hex(text).ok_or_else(|| {
        Failure::usage("a key is 64 hexadecimal digits").next("covey published ORIGIN shows who signed what")
    })
}

/// The root of a tree in a remote origin.
pub struct RemoteRoot {
    /// The root.
    pub root: Root,
    /// The tree's origin.
    pub remote: Arc<Remote>,
    /// Why the origin cannot be used now. The root is then the newest that was seen here.
    pub away: Option<String>,
}

/// The part of a status about a root.
pub fn tree_info(root: &Root) -> TreeInfo {
    TreeInfo {
        name: root.name.clone(),
        sequence: root.sequence,
        published: utc(root.moment.seconds()),
        root: hex(&root.top.hash),
        nodes: root.nodes,
        key: hex(&root.key),
    }
}

/// The sources from which a tree is read.
#[derive(Clone)]
pub struct ReadFrom {
    /// The source of its records.
    pub origin: Arc<dyn Origin>,
    /// The source of the bytes of files.
    pub bytes: Arc<dyn BlobSource>,
    /// The source of its tree nodes.
    pub names: Arc<dyn BlobSource>,
    /// Where the objects of its files are, if they are in a bucket.
    pub places: Option<Arc<Places>>,
}

/// The parts of a mounted tree.
pub fn parts(root: &Root, from: &ReadFrom, groups: Option<&Groups>) -> Parts {
    let tree = Arc::new(Tree::new(from.names.clone(), root));
    parts_of(grouped(tree, groups), root.bytes, from)
}

/// A tree as a store of rows. In a fleet it reports the groups that it knows.
pub fn grouped(tree: Arc<Tree>, groups: Option<&Groups>) -> Arc<dyn MetaStore> {
    match groups {
        Some(groups) => Arc::new(Grouped::over(tree, groups.clone())),
        None => tree,
    }
}

/// The parts of a mounted tree that is already open. `bytes` is the size of its files.
pub fn parts_of(tree: Arc<dyn MetaStore>, bytes: u64, from: &ReadFrom) -> Parts {
    let packs = Arc::new(NoPacks { bytes });
    Parts { store: tree, packs, source: from.bytes.clone(), origin: from.origin.clone() }
}

/// A store of packs that takes no writes.
struct NoPacks {
    bytes: u64,
}

fn refused<T>() -> std::result::Result<T, BlobError> {
    Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem).into())
}

impl PackStore for NoPacks {
    fn create(&self, _: PackNo) -> std::result::Result<(), BlobError> {
        refused()
    }

    fn write(&self, _: PackNo, _: u32, _: &[u8]) -> std::result::Result<(), BlobError> {
        refused()
    }

    fn read(&self, no: PackNo, _: u32, _: &mut [u8]) -> std::result::Result<(), BlobError> {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("pack {no} of a published tree is open")).into())
    }

    fn sync(&self, _: &[PackNo]) -> std::result::Result<(), BlobError> {
        Ok(())
    }

    fn seal(&self, _: PackNo, _: u32) -> std::result::Result<BlobId, BlobError> {
        refused()
    }

    fn retire(&self, _: &[PackNo]) -> std::result::Result<(), BlobError> {
        Ok(())
    }

    fn discard(&self, _: PackNo) -> std::result::Result<(), BlobError> {
        refused()
    }

    fn open_packs(&self) -> std::result::Result<Vec<(PackNo, u64)>, BlobError> {
        Ok(Vec::new())
    }

    /// The space is the size of the files, and it is full.
    fn space(&self) -> std::result::Result<Space, BlobError> {
        Ok(Space { total: self.bytes, available: 0, reserve: 0 })
    }
}

/// Whether a text is the name of an existing folder, although it looks like a published tree.
pub fn is_folder(text: &Path) -> bool {
    text.join("covey.json").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_told_from_a_folder() {
        assert_eq!(Named::parse("/srv/v@latest").unwrap(), None);
        let named = Named::parse("file:/srv/o@x/blobs@latest").unwrap().unwrap();
        assert_eq!((named.home.origin.as_str(), named.name.as_str()), ("file:/srv/o@x/blobs", "latest"));
        for bad in ["file:/srv/blobs", "file:/srv/blobs@", "file:/srv@a/b"] {
            assert_eq!(Named::parse(bad).unwrap_err().status, 2, "{bad}");
        }
        let accept = |key: &str| Accept { key: Some(key.to_owned()), accept_older: false };
        assert!(named.clone().accepting(&accept("12")).is_err());
        assert!(named.accepting(&accept(&"ab".repeat(32))).unwrap().key.is_some());
        assert_eq!(api::source::tree("file:/srv/o@latest#00ff"), Some("file:/srv/o@latest"));
        assert_eq!(api::source::tree("/srv/o@latest#00ff"), None);
    }

    #[test]
    fn intervals_are_seconds() {
        let read = |text: &str| text.parse::<Interval>().map(|interval| interval.0).ok();
        assert_eq!(read("10"), Some(Duration::from_secs(10)));
        assert_eq!(read("0.5s"), Some(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "soon", "NaN", "1e9", "5m"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
