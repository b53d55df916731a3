//! Publishing, as a node does it: who it is in its origin, and the steps from a volume to a root.
//!
//! ```text
//!   VOLUME/publisher.json   who this volume's folder is, and the key it signs with; made with its first publication
//!   origin: owner           who publishes there, and which keys have signed what is published
//! ```
//!
//! The owner is who signs. Who may write at all is said by the claim ([`crate::claim`]): a publication looks at it right before it replaces the root,
//! and makes a new claim then, so that a folder that is put back as it was before is known to be old.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::fs::errno::Error;
use ::fs::publish::SealedPack;
use api::control::Tick;
use api::error::{Context, Failure, Result};
use api::text::{bytes, count};
use blob::Origin;
use serde::{Deserialize, Serialize};
use tree::root::{self, from_hex, hex};
use tree::rows::{Pack, Scope, Selection};
use tree::{Order, Owner, Signer, TreeError};

use crate::backend::Backend;
use crate::claim::Writer;
use crate::errno::errno_failure;
use crate::log;
use crate::opened::Node;
use crate::volume_dir::VolumeDir;

/// How long the origin may take to have everything.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long what programs wrote is waited for.
const HAND_OVER: Duration = Duration::from_secs(5);
/// At the end of a mount a publication that was told to stop may take so long to do so.
const LAST: Duration = Duration::from_secs(5);

/// The file of a volume's folder that holds it.
pub const PUBLISHER: &str = "publisher.json";

/// Who a volume's folder is, in its origin.
#[derive(Clone, Serialize, Deserialize)]
pub struct Publisher {
    owner: String,
    secret: String,
}

impl Publisher {
    fn file(dir: &VolumeDir) -> PathBuf {
        dir.path().join(PUBLISHER)
    }

    /// A new one, kept in the volume's folder.
    pub fn make(dir: &VolumeDir) -> Result<Publisher> {
        crate::secrets::keep_from_dumps();
        let mut seed = [0; 32];
        base::random::fill(&mut seed);
        let made = Publisher { owner: hex(&base::random::id16()), secret: hex(&seed) };
        let file = Publisher::file(dir);
        let new = file.with_extension("json.new");
        let text = serde_json::to_string(&made).unwrap_or_default() + "\n";
        let write = || {
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut out = crate::own::create(&new)?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            fs::rename(&new, &file)?;
            fs::File::open(dir.path())?.sync_all()
        };
        write().at("write", &file)?;
        Ok(made)
    }

    /// The one of this folder, if it has ever published.
    pub fn of(dir: &VolumeDir) -> Result<Option<Publisher>> {
        let file = Publisher::file(dir);
        let Some(text) = crate::secrets::read(&file)? else { return Ok(None) };
        let found: Option<Publisher> = serde_json::from_slice(&text).ok();
        match found.filter(|found| found.owner().is_some() && from_hex::<32>(&found.secret).is_some()) {
            Some(found) => Ok(Some(found)),
            // What it holds is secret, so nothing of it is shown.
            None => Err(Failure::new("damaged", format!("{} cannot be understood", file.display()))
                .why("it says who this volume is in its origin, and holds the key that it signs with")
                .next(
                    "restore this small file from a backup, or restore the volume elsewhere: covey restore",
                )),
        }
    }

    /// Its name.
    pub fn owner(&self) -> Option<[u8; 16]> {
        from_hex(&self.owner)
    }

    /// What signs for it.
    pub fn signer(&self) -> Result<Signer> {
        let seed = from_hex(&self.secret).unwrap_or([0; 32]);
        Signer::from_seed(&seed).map_err(|error| failure("the volume's key cannot be used", error))
    }
}

/// Where a volume is, for people: `host:/srv/volume`.
pub fn place_of(dir: &VolumeDir) -> String {
    format!("{}:{}", host(), dir.path().display())
}

/// This machine's name.
pub fn host() -> String {
    let name = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    String::from_utf8_lossy(&name).trim().to_owned()
}

/// Refuses to open for writing a volume in whose origin another owner publishes: an older program knew no claims, and only that record says
/// so. One that is damaged, or of a newer program, is no permission. An origin that cannot be asked is no reason to refuse: then it is not
/// claimed either, and nothing is stored or deleted.
pub fn check_owner(dir: &VolumeDir, origin: &dyn Origin) -> Result<()> {
    let found = match Owner::read(origin) {
        Ok(None) | Err(TreeError::Blob(_)) => return Ok(()),
        Ok(Some(found)) => found,
        Err(error) => {
            return Err(failure(format!("it cannot be seen whose the origin {} is", dir.origin()), error)
                .next("the volume can be read: mount it with -o ro"));
        }
    };
    let me = Publisher::of(dir)?.and_then(|me| me.owner());
    if me == Some(found.owner) {
        return Ok(());
    }
    let volume = volume_id(dir);
    Err(not_owner(tree::publish::not_owner(&found, volume)))
}

fn not_owner(what: String) -> Failure {
    Failure::new("origin-taken", what)
        .why("two volumes that store to one origin would delete each other's blobs")
        .next("use the other volume; this one can still be read: mount it with -o ro")
        .next("to go on here instead, restore what was published into a new folder: covey restore ORIGIN@NAME FOLDER")
}

/// The volume's id as bytes.
pub fn volume_id(dir: &VolumeDir) -> [u8; 16] {
    from_hex(&dir.format().id).unwrap_or_default()
}

/// What a publication came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublishSummary {
    /// Under which name.
    pub name: String,
    /// How often it was published, this time included.
    pub sequence: u64,
    /// Nothing had changed since the last time.
    pub unchanged: bool,
    /// The top node's hash: equal trees have equal ones.
    pub root: String,
    /// Files, folders and links.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Rows of names.
    pub rows: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Of these, written now.
    pub new_nodes: u64,
    /// Blobs written for them.
    pub new_blobs: u64,
    /// Bytes of those.
    pub written_bytes: u64,
    /// Blobs that the tree refers to: nodes and files.
    pub blobs: u64,
    /// Wall time.
    pub seconds: f64,
}

impl Node {
    /// Publishes a folder of the volume (an empty path: all of it).
    pub fn publish(
        &self,
        path: &Path,
        name: &str,
        afresh: bool,
        tick: &mut dyn FnMut(Tick) -> bool,
    ) -> Result<PublishSummary> {
        let started = base::time::monotonic();
        check_name(name)?;
        let dir = self.dir().ok_or_else(|| no_volume(self))?;
        let failed = |error: TreeError| failure(format!("cannot publish {}", self.name()), error);
        let scope = self.scope(path)?;
        let origin = self.volume().parts().origin.clone();
        self.writer().map_or(Ok(()), Writer::verify)?;
        let me = match Publisher::of(dir)? {
            Some(me) => me,
            None => Publisher::make(dir)?,
        };
        let signer = me.signer()?;
        let volume = volume_id(dir);
        let owner = me.owner().unwrap_or_default();
        let claim = Owner { volume, owner, generation: 1, note: place_of(dir), keys: vec![signer.key()] };
        tree::publish::claim(&*origin, claim).map_err(failed)?;
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
        let mut refused = None;
        let order = Order {
            name,
            volume,
            signer: &signer,
            moment: base::time::now(),
            patience: PATIENCE,
            afresh,
            hold: &mut |blob| self.volume().hold(name, &mut std::iter::once(blob)).map_err(tree_error),
            before_root: &mut || {
                self.before_root().map_err(|failure| {
                    refused = Some(failure);
                    TreeError::Stopped
                })
            },
            progress: &mut |rows| say(tick, rows, format!("{} rows of names", count(rows))),
        };
        let done = tree::publish(publication.rows(), &selection, &origin, order);
        let done = done.map_err(|error| refused.unwrap_or_else(|| failed(error)))?;
        self.volume().hold_only(name, &done.blobs).map_err(fs_failed)?;
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

    /// Everything is in the origin, and what is published is about to be replaced.
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

    /// Takes a published tree away; its blobs go with the next collection.
    pub fn unpublish(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let dir = self.dir().ok_or_else(|| no_volume(self))?;
        let failed = |error: TreeError| failure(format!("cannot unpublish {name}"), error);
        let origin = self.volume().parts().origin.clone();
        self.before_root()?;
        check_owner(dir, &*origin)?;
        let was = root::remove(&*origin, name).map_err(failed)?;
        let held = self.volume().holders().map_err(|error| failed(tree_error(error)))?;
        self.volume().let_go(name).map_err(|error| failed(tree_error(error)))?;
        if was || held.iter().any(|holder| holder == name) { Ok(()) } else { Err(not_published(name)) }
    }

    /// Lets go of what trees hold that are not published any more: their records were removed by hand, or a publication of
    /// a new name came to nothing.
    pub fn let_go_of_lost(&self) -> Result<()> {
        if self.dir().is_none_or(|dir| !Publisher::file(dir).exists()) {
            return Ok(());
        }
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

fn say(tick: &mut dyn FnMut(Tick) -> bool, done: u64, what: String) -> bool {
    tick(Tick { done, of: 0, what })
}

/// Refuses what no tree can be called.
pub fn check_name(name: &str) -> Result<()> {
    if root::is_name(name) {
        return Ok(());
    }
    Err(Failure::usage(format!("{name:?} is no name for a published tree"))
        .next("use letters, digits and any of . _ - = (at most 100), like nightly or v1.2"))
}

fn no_volume(node: &Node) -> Failure {
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

/// "There is no such tree".
pub fn not_published(name: &str) -> Failure {
    Failure::new("not-published", format!("no tree is published as {name}"))
        .next("covey published VOLUME lists what is; a name comes into being with covey publish VOLUME NAME")
}

fn tree_error(error: Error) -> TreeError {
    match error {
        Error::Store(error) => TreeError::Store(error),
        Error::Blob(error) => TreeError::Blob(error),
        other => TreeError::Blob(blob::BlobError::Unavailable(other.to_string())),
    }
}

/// What went wrong with a tree, in our words.
pub fn failure(what: impl Into<String>, error: TreeError) -> Failure {
    let why = error.to_string();
    let new = |code: &'static str| Failure::new(code, what).why(why.clone());
    match error {
        TreeError::NotPublished(name) => not_published(&name),
        TreeError::NotOwner(what) => not_owner(what),
        TreeError::Newer { .. } => {
            new("newer-format").next("use the covey that published it, or a newer one")
        }
        TreeError::Untrusted(_) => new("not-trusted").next(
            "covey published shows who signed what; publish again from the volume that owns the origin",
        ),
        TreeError::Damaged(_)
        | TreeError::Blob(blob::BlobError::Damaged { .. } | blob::BlobError::Missing(_)) => {
            new("damaged").next("publish it again from the volume: covey publish --afresh VOLUME NAME")
        }
        TreeError::Store(meta::store::StoreError::Damaged(_)) => {
            new("damaged").next("check the volume: covey fsck VOLUME")
        }
        TreeError::Store(meta::store::StoreError::Full) | TreeError::Blob(blob::BlobError::Full) => {
            new("disk-full").next("free some room, then try again; what was published before is as it was")
        }
        TreeError::Stopped => new("stopped").next("what was published before is as it was; try again"),
        _ => new("origin")
            .next("check that the origin answers, then try again; what was published before is as it was"),
    }
}

/// Publishes for a caller who must hear something at least once a second, also while the origin is waited for.
pub fn for_caller(
    node: &Arc<dyn Backend>,
    (path, name, afresh): (PathBuf, String, bool),
    tick: &mut dyn FnMut(Tick),
) -> Result<PublishSummary> {
    let (say, hear) = mpsc::channel();
    let node = node.clone();
    let work = move || node.publish(&path, &name, afresh, &mut |now| say.send(now).is_ok());
    let work = base::thread::spawn("covey-publish", work)
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    let mut last = Tick::default();
    loop {
        match hear.recv_timeout(Duration::from_secs(1)) {
            Ok(now) => last = now,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        tick(last.clone());
    }
    let broken =
        || Failure::new("io", "the publication ended by a panic").next("look at the log, and report it");
    work.join().unwrap_or_else(|_| Err(broken()))
}

/// Publishes a mounted volume again and again.
#[derive(Clone, Debug)]
pub struct Every {
    /// How often, when something has changed; never without it.
    pub publish_every: Option<Duration>,
    /// Under which name.
    pub publish_as: String,
    /// At a clean unmount it is published once more, and waited for so long; 0: not.
    pub publish_last: Duration,
}

impl Every {
    /// Never.
    pub fn never() -> Every {
        Every { publish_every: None, publish_as: "latest".to_owned(), publish_last: Duration::ZERO }
    }

    /// Begins, if it is to.
    pub fn start(&self, node: &Arc<dyn Backend>, mountpoint: &Path) -> Result<Option<Publishing>> {
        let Some(every) = self.publish_every else { return Ok(None) };
        check_name(&self.publish_as)?;
        let stop = Arc::new(AtomicBool::new(false));
        let work = Again {
            node: node.clone(),
            mountpoint: mountpoint.to_owned(),
            name: self.publish_as.clone(),
            every,
            last: self.publish_last,
            stop: stop.clone(),
        };
        let thread = base::thread::spawn("covey-publish", move || work.run())
            .map_err(|error| Failure::io("cannot start a thread", &error))?;
        Ok(Some(Publishing { stop, last: self.publish_last, thread: Some(thread) }))
    }
}

struct Again {
    node: Arc<dyn Backend>,
    mountpoint: PathBuf,
    name: String,
    every: Duration,
    last: Duration,
    stop: Arc<AtomicBool>,
}

impl Again {
    fn run(&self) {
        let mut complained = false;
        let mut next = base::time::monotonic() + self.every;
        while !self.stop.load(Ordering::Acquire) {
            if base::time::monotonic() < next {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            fuse::mount::hand_over(&self.mountpoint, HAND_OVER);
            match self.publish(&|| !self.stop.load(Ordering::Acquire)) {
                Ok(()) => complained = false,
                Err(failure) => {
                    if !complained && !self.stop.load(Ordering::Acquire) {
                        log::warn(&format!("not published, retrying: {}", failure.in_one_line()));
                    }
                    complained = true;
                }
            }
            next = base::time::monotonic() + self.every;
        }
        self.publish_last();
    }

    /// The mount has ended, and everything that programs wrote has come: what was published is to be that.
    fn publish_last(&self) {
        if self.last.is_zero() {
            return;
        }
        let until = base::time::monotonic() + self.last;
        if let Err(failure) = self.publish(&|| base::time::monotonic() < until) {
            log::warn(&format!(
                "not published at the end of the mount; what was published before is as it was: {failure}"
            ));
        }
    }

    fn publish(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let done = self.node.publish(Path::new(""), &self.name, false, &mut |_: Tick| go_on())?;
        if !done.unchanged {
            log::line(&format!(
                "published {} ({}): {} files, {} written in {:.1} s",
                done.name,
                done.sequence,
                count(done.files),
                bytes(done.written_bytes),
                done.seconds
            ));
        }
        Ok(())
    }
}

/// Publications that go on until this is dropped.
pub struct Publishing {
    stop: Arc<AtomicBool>,
    last: Duration,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Publishing {
    /// One under way is given up, and the last one begun; that may be waiting for an origin that does not answer, and is not waited for for
    /// ever.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        let until = base::time::monotonic() + self.last + LAST;
        while !thread.is_finished() && base::time::monotonic() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}
