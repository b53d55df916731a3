//! A published tree as what a mount serves: `ORIGIN@NAME`. There is no volume and no lock: names and bytes come from the origin as they are
//! looked at.

pub mod trust;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{BlobId, Deadline, PackNo};
use blob::{BlobError, BlobSource, Origin, PackStore, Space};
use fs::volume::Parts;
use meta::MetaStore;
use origin::{Access, Limits, OriginError, Remote};
use peer::fleet::Groups;
use serde::{Deserialize, Serialize};
use tree::root::{PublicKey, Root, from_hex, hex};
use tree::{Tree, TreeError};

use crate::error::{Failure, Result};
use crate::far::{ORIGIN_ASKED, passes};
use crate::fleet::Grouped;
use crate::fleet::options::FleetOptions;
use crate::follow::Interval;
use crate::origins;
use crate::publish;
use crate::table::utc;
use crate::volume_dir::Home;
use trust::{Accept, Unread};

/// What tells one mount of a tree from another stands after this in its source.
pub const MARK: char = '#';

/// Which tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The origin, and how it is reached.
    pub home: Home,
    /// Where a mount keeps what it fetched, if somebody said.
    pub cache: Option<PathBuf>,
    /// The name.
    pub name: String,
    /// The only key that may have signed it.
    pub key: Option<PublicKey>,
    /// It may be older than what was seen.
    pub older: bool,
    /// Whether a mount moves to what is published next, and how often it looks.
    pub follow: Option<Interval>,
    /// Of which fleet a mount is a node, if it is of one.
    pub fleet: Option<Box<FleetOptions>>,
}

/// How the store of an origin is reached, beside its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Reach {
    /// Of a tree in an object store: where the store is, when it is not the cloud's own
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Of a tree in an object store: the bucket's region
    #[arg(long)]
    pub region: Option<String>,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.home.origin, self.name)
    }
}

/// Whether a text is an origin's, not a folder's name.
pub fn is_origin(text: &str) -> bool {
    text.starts_with("file:") || text.contains("://")
}

impl Named {
    /// `ORIGIN@NAME`; `None` for what begins like no origin.
    pub fn parse(text: &str) -> Result<Option<Named>> {
        if !is_origin(text) {
            return Ok(None);
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return Err(Failure::usage(format!("{text} is the address of a web server, not of an origin"))
                .next(
                    "write s3://BUCKET/PREFIX@NAME (or gs://, az://), and give the server with --endpoint",
                ));
        }
        let (origin, name) = text.rsplit_once('@').ok_or_else(|| {
            // An origin that is none is refused before anybody is told to add a name to it.
            let named = origins::address(text, &Reach::default());
            named.err().unwrap_or_else(|| {
                Failure::usage(format!("{text} names an origin and no tree in it"))
                    .next(format!("write {text}@NAME; covey published {text} lists the names"))
            })
        })?;
        publish::check_name(name)?;
        let home = origins::address(origin, &Reach::default())?;
        Ok(Some(Named {
            home,
            cache: None,
            name: name.to_owned(),
            key: None,
            older: false,
            follow: None,
            fleet: None,
        }))
    }

    /// With what somebody said of what is accepted.
    pub fn accepting(mut self, accept: &Accept) -> Result<Named> {
        self.key = accept.key.as_deref().map(parse_key).transpose()?;
        self.older = accept.accept_older;
        Ok(self)
    }

    /// Reached as somebody said, and with a cache where somebody said.
    pub fn reached(mut self, reach: &Reach, cache: Option<&Path>) -> Result<Named> {
        self.home = origins::address(&self.home.origin, reach)?;
        self.cache = cache.map(crate::mounts::absolute).transpose()?;
        Ok(self)
    }

    /// Followed, if somebody said so.
    pub fn following(mut self, every: Option<Interval>) -> Named {
        self.follow = every;
        self
    }

    /// A node of a fleet, if somebody said so.
    pub fn in_fleet(mut self, fleet: &FleetOptions) -> Result<Named> {
        fleet.check()?;
        if fleet.is_on() && self.is_near() {
            return Err(Failure::usage(format!(
                "{self} is on this machine: there is nothing to ask others for"
            ))
            .next("leave --join and --listen out; a fleet is for trees in an object store"));
        }
        self.fleet = fleet.is_on().then(|| Box::new(fleet.clone()));
        Ok(self)
    }

    /// The words that say the same on a command line, beside the tree's own.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args = self.fleet.as_deref().map(FleetOptions::to_args).unwrap_or_default();
        args.extend(self.follow.map(|every| format!("--follow={}", every.0.as_secs_f64()).into()));
        args.extend(self.older.then(|| "--accept-older".into()));
        let mut add = |option: &str, value: Option<OsString>| {
            args.extend(value.into_iter().flat_map(|value| [OsString::from(option), value]));
        };
        add("--endpoint", self.home.endpoint.clone().map(Into::into));
        add("--region", self.home.region.clone().map(Into::into));
        add("--cache", self.cache.clone().map(Into::into));
        add("--key", self.key.as_ref().map(|key| hex(key).into()));
        args
    }

    /// Whether it is on this machine.
    pub fn is_near(&self) -> bool {
        self.home.origin.starts_with("file:")
    }

    /// The root, and the origin that it was read from.
    pub fn root(&self, access: Access) -> Result<(Root, Arc<dyn Origin>)> {
        let origin = origins::open_origin(&self.home, access)?;
        Ok((trust::read(self, &*origin, self.older)?, origin))
    }

    /// The same of a tree behind a network, whose origin has figures of its own. While that cannot be used,
    /// it is the newest root that was seen here, if this node has it.
    pub fn far_root(&self, limits: Limits) -> Result<FarRoot> {
        let Some(last) = trust::last(self) else { return Ok(self.ask(limits)?) };
        let failure = match Deadline::after(ORIGIN_ASKED).scope(|| self.ask(limits)) {
            Ok(found) => return Ok(found),
            Err(Unread::Refused(failure)) => return Err(failure),
            Err(Unread::Away(failure)) => failure,
        };
        let unseen = origins::try_remote(&self.home, limits, Some(&hex(&last.volume)))?;
        let remote = Arc::new(unseen.map_err(origins::origin_failure)?);
        let why = failure.why.first().unwrap_or(&failure.what).clone();
        Ok(FarRoot { root: last, remote, away: Some(why) })
    }

    fn ask(&self, limits: Limits) -> std::result::Result<FarRoot, Unread> {
        let remote = origins::try_remote(&self.home, limits, None)?.map_err(|error| {
            let is_away = matches!(&error, OriginError::Remote { mistake, .. } if passes(*mistake));
            let failure = origins::origin_failure(error);
            if is_away { Unread::Away(failure) } else { Unread::Refused(failure) }
        })?;
        let remote = Arc::new(remote);
        let root = trust::try_read(self, &*remote, self.older)?;
        Ok(FarRoot { root, remote, away: None })
    }

    /// What went wrong with this tree.
    pub fn failure(&self, error: TreeError) -> Failure {
        match error {
            TreeError::NotPublished(name) => publish::not_published(&name)
                .map_next(format!("covey published {} lists what is", self.home.origin)),
            other => publish::failure(format!("cannot use the published tree {self}"), other),
        }
    }
}

fn parse_key(text: &str) -> Result<PublicKey> {
    from_hex(text).ok_or_else(|| {
        Failure::usage("a key is 64 hexadecimal digits").next("covey published ORIGIN shows who signed what")
    })
}

/// The root of a tree behind a network.
pub struct FarRoot {
    /// The root.
    pub root: Root,
    /// Its origin.
    pub remote: Arc<Remote>,
    /// Why that cannot be used now: then the root is the newest that was seen here.
    pub away: Option<String>,
}

/// What a status says of a published tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TreeInfo {
    /// Its name.
    pub name: String,
    /// How often the name had been published.
    pub sequence: u64,
    /// When, UTC.
    pub published: String,
    /// The top node's hash.
    pub root: String,
    /// Nodes.
    pub nodes: u64,
    /// Who signed it.
    pub key: String,
}

impl TreeInfo {
    /// Of a root.
    pub fn of(root: &Root) -> TreeInfo {
        TreeInfo {
            name: root.name.clone(),
            sequence: root.sequence,
            published: utc(root.moment.seconds()),
            root: hex(&root.top.hash),
            nodes: root.nodes,
            key: hex(&root.key),
        }
    }
}

/// What a mount of a tree consists of; `names`: where its nodes are read.
pub fn parts(
    root: &Root,
    origin: Arc<dyn Origin>,
    names: Arc<dyn BlobSource>,
    groups: Option<&Groups>,
) -> Parts {
    let tree = Arc::new(Tree::new(names, root));
    parts_of(grouped(tree, groups), root.bytes, origin)
}

/// A tree as a store of rows, which in a fleet says what it knows of groups.
pub fn grouped(tree: Arc<Tree>, groups: Option<&Groups>) -> Arc<dyn MetaStore> {
    match groups {
        Some(groups) => Arc::new(Grouped::over(tree, groups.clone())),
        None => tree,
    }
}

/// What a mount of a tree that is open consists of; `bytes`: what it holds.
pub fn parts_of(tree: Arc<dyn MetaStore>, bytes: u64, origin: Arc<dyn Origin>) -> Parts {
    Parts { store: tree, packs: Arc::new(NoPacks { bytes }), source: origin.clone(), origin }
}

/// Where nothing is written.
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

    /// As large as what it holds, and full.
    fn space(&self) -> std::result::Result<Space, BlobError> {
        Ok(Space { total: self.bytes, available: 0, reserve: 0 })
    }
}

/// Whether a mount's source is a published tree's, and what is typed to mount it again.
pub fn source(text: &str) -> Option<&str> {
    let (tree, _) = text.rsplit_once(MARK)?;
    (is_origin(tree) && tree.contains('@')).then_some(tree)
}

/// Whether a folder's name is meant, though it looks like an origin with a tree: it is there.
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
        assert_eq!(source("file:/srv/o@latest#00ff"), Some("file:/srv/o@latest"));
        assert_eq!(source("/srv/o@latest#00ff"), None);
    }
}
