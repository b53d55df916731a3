//! Publishing: the steps from a volume to a root.
//!
//! The owner signs published trees. The claim ([`crate::claim`]) says which folder may write. A publication
//! checks the claim right before it replaces the root, and makes a new claim at the same time. So a folder
//! that is restored to an earlier state is recognized as old. In a shared volume the database says which node
//! may write ([`shared`]).

pub(crate) mod shared;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::fs::errno::Error;
use ::fs::publish::SealedPack;
use api::answers::PublishSummary;
use api::control::Tick;
use api::error::{Failure, Result};
use api::text::count;
use tree::root::{self, hex};
use tree::rows::{Pack, Scope, Selection};
use tree::{Content, Order, Owner, Selected, Signer, TreeError};

use crate::claim::Writer;
use crate::errno::errno_failure;
use crate::opened::Node;
use crate::publisher::{Publisher, check_name, check_owner, failure, not_published, place_of, volume_id};
use crate::volume_dir::VolumeDir;

/// How long the origin may take to receive everything.
const PATIENCE: Duration = Duration::from_secs(600);
/// The most publications of one name that can be kept.
const KEEP_MAX: u32 = 10_000;

/// A volume that may publish.
struct Signed {
    /// How many publications of the name are kept.
    kept: u32,
    signer: Signer,
    volume: [u8; 16],
}

/// What to publish.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The folder. An empty path means the whole volume.
    pub path: PathBuf,
    /// The name of the tree.
    pub name: String,
    /// Build it without what the previous publication left.
    pub afresh: bool,
    /// How many publications of the name are kept from now on, the newest included. `None`: as many as
    /// before.
    pub keep: Option<u32>,
}

impl Node {
    /// Publishes a folder of the volume.
    pub fn publish(&self, wanted: &Wanted, tick: &mut dyn FnMut(Tick) -> bool) -> Result<PublishSummary> {
        check_name(&wanted.name)?;
        check_keep(wanted.keep)?;
        if let Some(shared) = self.shared() {
            return self.publish_shared(shared, wanted, tick);
        }
        let started = base::time::monotonic();
        let Wanted { path, name, afresh, keep } = wanted;
        let (path, name) = (path.as_path(), name.as_str());
        let failed = |error: TreeError| failure(format!("cannot publish {}", self.name()), error);
        self.dir().ok_or_else(|| no_volume(self))?;
        let scope = self.scope(path)?;
        let signed = self.as_publisher(name, *keep)?;
        say(tick, 0, "sealing what is open".to_owned());
        let fs_failed = |error: Error| failed(tree_error(error));
        let mut publication = self.volume().publication(PATIENCE).map_err(fs_failed)?;
        let pack =
            |pack: &SealedPack| Pack { no: pack.no, blob: pack.blob, size: pack.size, live: pack.live };
        let packs: Vec<Pack> = publication.packs().iter().map(pack).collect();
        let selection = Selection::of(publication.rows(), scope, &packs).map_err(|error| match error {
            TreeError::NotAFolder => no_folder(path),
            other => failed(other),
        })?;
        publication.hold(name, &mut selection.packs().iter().map(|pack| pack.blob)).map_err(fs_failed)?;
        let rows = Selected::new(publication.rows(), &selection);
        self.put_root(name, *afresh, &signed, &rows, started, &|| self.before_root(), tick)
    }

    /// Publishes rows that are not the volume's own.
    pub(crate) fn publish_rows(
        &self,
        wanted: &Wanted,
        rows: &dyn Content,
        tick: &mut dyn FnMut(Tick) -> bool,
    ) -> Result<PublishSummary> {
        let started = base::time::monotonic();
        check_name(&wanted.name)?;
        check_keep(wanted.keep)?;
        let _between = self.volume().between_publications();
        let signed = self.as_publisher(&wanted.name, wanted.keep)?;
        self.put_root(&wanted.name, wanted.afresh, &signed, rows, started, &|| self.before_root(), tick)
    }

    /// Makes sure that the volume may publish in its origin.
    fn as_publisher(&self, name: &str, keep: Option<u32>) -> Result<Signed> {
        let dir = self.dir().ok_or_else(|| no_volume(self))?;
        self.writer().map_or(Ok(()), Writer::verify)?;
        let (me, note) = match dir.format().names.clone() {
            Some(address) => (shared::identity(&*self.store(), name, keep)?, address),
            None => (publisher(dir, name, keep)?, place_of(dir)),
        };
        let (kept, signer, volume) = (me.kept(name), me.signer()?, volume_id(dir));
        let owner = me.owner().unwrap_or_default();
        let claim = Owner { volume, owner, generation: 1, note, keys: vec![signer.key()] };
        let failed = |error: TreeError| failure(format!("cannot publish {}", self.name()), error);
        tree::publish::claim(&*self.volume().parts().origin, claim).map_err(failed)?;
        Ok(Signed { kept, signer, volume })
    }

    /// Writes the tree of these rows, and then its root. `before_root` is called when everything is in the
    /// origin.
    #[allow(clippy::too_many_arguments, reason = "each is a different thing, and there are two callers")]
    fn put_root(
        &self,
        name: &str,
        afresh: bool,
        signed: &Signed,
        rows: &dyn Content,
        started: Instant,
        before_root: &dyn Fn() -> Result<()>,
        tick: &mut dyn FnMut(Tick) -> bool,
    ) -> Result<PublishSummary> {
        let failed = |error: TreeError| failure(format!("cannot publish {}", self.name()), error);
        let fs_failed = |error: Error| failed(tree_error(error));
        let origin = self.volume().parts().origin.clone();
        let mut refused = None;
        let order = Order {
            name,
            volume: signed.volume,
            signer: &signed.signer,
            moment: base::time::now(),
            patience: PATIENCE,
            afresh,
            keep: signed.kept > 1,
            hold: &mut |blob| self.volume().hold(name, &mut std::iter::once(blob)).map_err(tree_error),
            before_root: &mut || {
                before_root().map_err(|failure| {
                    refused = Some(failure);
                    TreeError::Stopped
                })
            },
            progress: &mut |rows| say(tick, rows, format!("{} rows of names", count(rows))),
        };
        let done = tree::publish_content(rows, &origin, order);
        let done = done.map_err(|error| refused.unwrap_or_else(|| failed(error)))?;
        // Another node may have published the name since, and then the holds are those of its tree.
        before_root()?;
        let older = tree::history::prune(&*origin, name, signed.kept as usize - 1).map_err(failed)?;
        self.volume().hold_only(name, &done.blobs, older).map_err(fs_failed)?;
        Ok(PublishSummary {
            name: name.to_owned(),
            sequence: done.root.sequence,
            unchanged: done.unchanged,
            root: hex(&done.root.top.hash),
            files: done.root.inodes,
            bytes: done.root.bytes,
            rows: done.rows,
            nodes: done.written.nodes,
            new_nodes: done.written.new_nodes,
            new_blobs: done.written.blobs,
            written_bytes: done.written.bytes,
            blobs: done.blobs.len() as u64,
            seconds: (base::time::monotonic() - started).as_secs_f64(),
        })
    }

    /// Called when everything is in the origin, before the published root is replaced.
    fn before_root(&self) -> Result<()> {
        self.writer().map_or(Ok(()), |writer| writer.verify().and_then(|()| writer.renew()))
    }

    fn scope(&self, path: &Path) -> Result<Scope> {
        if path.as_os_str().is_empty() {
            return Ok(Scope::Whole);
        }
        let shown = path.display();
        let found = self.volume().resolve(path.as_os_str().as_bytes(), true);
        let found = found.map_err(|errno| errno_failure(format!("cannot publish /{shown}"), errno))?;
        if found.kind != ::fs::api::FileKind::Dir {
            return Err(no_folder(path));
        }
        Ok(Scope::Folder(found.ino))
    }

    /// Deletes a published tree. The next garbage collection removes its blobs.
    pub fn unpublish(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let dir = self.dir().ok_or_else(|| no_volume(self))?;
        let failed = |error: TreeError| failure(format!("cannot unpublish {name}"), error);
        let origin = self.volume().parts().origin.clone();
        let _turn = self.shared().map(|shared| self.turn(shared)).transpose()?;
        let _between = self.volume().between_publications();
        self.before_root()?;
        match self.shared() {
            Some(_) => self.check_shared_owner()?,
            None => check_owner(dir, &*origin)?,
        }
        tree::history::prune(&*origin, name, 0).map_err(failed)?;
        let was = root::remove(&*origin, name).map_err(failed)?;
        let held = self.volume().holders().map_err(|error| failed(tree_error(error)))?;
        self.volume().let_go(name).map_err(|error| failed(tree_error(error)))?;
        if was || held.iter().any(|holder| holder == name) { Ok(()) } else { Err(not_published(name)) }
    }

    /// Releases the blobs of trees that are not published any more. Either their records were removed by
    /// hand, or the publication of a new name failed.
    pub fn let_go_of_lost(&self) -> Result<()> {
        if self.dir().is_none_or(|dir| !Publisher::file(dir).exists()) {
            return Ok(());
        }
        // The name of a new tree is not there before its end. The next collection looks again.
        let Some(_between) = self.volume().if_none_is_published() else { return Ok(()) };
        let failed = |error| failure("cannot look at what is published", error);
        let origin = self.volume().parts().origin.clone();
        let there = root::names(&*origin).map_err(failed)?;
        for holder in self.volume().holders().map_err(|error| failed(tree_error(error)))? {
            if !there.contains(&holder) {
                self.volume().let_go(&holder).map_err(|error| failed(tree_error(error)))?;
            }
        }
        Ok(())
    }
}

/// The identity of the folder, made at its first publication. It remembers how many publications are kept.
fn publisher(dir: &VolumeDir, name: &str, keep: Option<u32>) -> Result<Publisher> {
    let mut me = match Publisher::of(dir)? {
        Some(me) => me,
        None => Publisher::make(dir)?,
    };
    keep.map_or(Ok(()), |keep| me.keep(dir, name, keep))?;
    Ok(me)
}

fn check_keep(keep: Option<u32>) -> Result<()> {
    match keep {
        Some(0) => Err(Failure::usage("the newest publication is always kept")
            .next("write --keep 1 to keep no others, or covey unpublish VOLUME NAME")),
        Some(number) if number > KEEP_MAX => Err(Failure::usage(format!(
            "{} publications of one name cannot be kept",
            count(u64::from(number))
        ))
        .next(format!("write a number from 1 to {KEEP_MAX}; other names have their own publications"))),
        _ => Ok(()),
    }
}

fn say(tick: &mut dyn FnMut(Tick) -> bool, done: u64, what: String) -> bool {
    tick(Tick { done, of: 0, what })
}

pub(crate) fn no_volume(node: &Node) -> Failure {
    if node.tree().is_some() {
        return Failure::usage("a published tree is what it is").next(
            "publish the volume that it came from, or restore it first: covey restore ORIGIN@NAME FOLDER",
        );
    }
    Failure::usage("a volume in memory cannot be published")
        .why("its origin ends with the mount, and nobody else can read it")
        .next("make a volume in a folder: covey format FOLDER")
}

fn no_folder(path: &Path) -> Failure {
    Failure::usage(format!("/{} is no folder", path.display())).next("name a folder of the volume")
}

fn tree_error(error: Error) -> TreeError {
    match error {
        Error::Store(error) => TreeError::Store(error),
        Error::Blob(error) => TreeError::Blob(error),
        other => TreeError::Blob(blob::BlobError::Unavailable(other.to_string())),
    }
}
