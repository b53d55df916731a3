//! The mounts of sources: one `covey mount` in the background for each source that is in use on this node.
//!
//! ```text
//!   STATE/mounts/KEY   ◄── covey mount -d SOURCE      KEY: a hash of the source with its options
//!        │ bind mounts of folders of it
//!        ├──► staging places ──► targets               places.rs
//! ```
//!
//! A mount belongs to no driver process: it stays when the driver ends, and the next driver finds it in the
//! kernel's mount table. It ends when no record of a staged volume names its source, and the controller has
//! not used it for [`IDLE`]. A daemon that died is replaced the next time that its source is used, or when
//! the driver looks at it (`recover.rs`).
//!
//! The mount of a shared volume ends only when everything that was written there is in the origin. Other
//! nodes could not read the rest: it would be on the disk of a node that has left.
//!
//! Each source has a lock. It guards the mount, from looking at it until it is as it should be.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Deadline, Must};
use engines::Address;
use fuse::mount::Life;
use node::log;
use node::volume_dir::VolumeDir;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use crate::caches;
use crate::class::TreeOf;
use crate::names;
use crate::places;
use crate::program;
use crate::records::{Records, Staged, TEXT};
use crate::refuse::{self, Answer};
use crate::secrets::{Safe, Secrets};

/// How long a mount that only the controller used stays without use.
pub const IDLE: Duration = Duration::from_secs(60);
/// The longest time for one `covey mount` or `covey umount`.
const COMMAND: Duration = Duration::from_secs(90);
/// The folder in that of the caches for what is read of trees.
const TREES: &str = "trees";
/// The part of the disk that trees leave free: a sixth. The kubelet removes images above 85 %, and pods above
/// 90 %.
const FLOOR: u64 = 6;
/// How long a call waits until what was written is in the origin. The orchestrator waits two minutes.
const FLUSH: Duration = Duration::from_secs(30);
/// How long a call waits until what was written is in the origin, while other calls for the source wait.
const FLUSH_REST: Duration = Duration::from_secs(10);
/// How long to wait for an earlier daemon of the source to end.
const EARLIER: Duration = Duration::from_secs(20);
/// How long a driver runs before it removes caches.
const SETTLED: Duration = Duration::from_secs(3600);
/// How long a call waits while another one mounts the same source.
const TURN: Duration = Duration::from_secs(30);

/// What is mounted: the source of `covey mount`, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The source: an address, a published tree, or the folder of a volume.
    pub what: String,
    /// Further arguments.
    pub args: Vec<String>,
    /// Options, as they follow `-o`.
    pub options: String,
    /// Whether the node needs a folder of its own for it.
    pub keeps: bool,
    /// Whether other nodes reach this one, and need the fleet's secret.
    pub in_fleet: bool,
}

impl Source {
    /// A shared volume.
    pub fn shared(address: &str, options: &str) -> Source {
        let (what, options) = (address.to_owned(), options.to_owned());
        Source { what, args: Vec::new(), options, keeps: true, in_fleet: false }
    }

    /// A published tree.
    pub fn tree(tree: TreeOf, options: &str) -> Source {
        let TreeOf { tree: what, args, in_fleet } = tree;
        Source { what, args, options: options.to_owned(), keeps: true, in_fleet }
    }

    /// A volume in a folder.
    pub fn exclusive(folder: &Path, options: &str) -> Source {
        let (what, options) = (folder.to_string_lossy().into_owned(), options.to_owned());
        Source { what, args: Vec::new(), options, keeps: false, in_fleet: false }
    }

    /// Whether it is a published tree.
    fn is_tree(&self) -> bool {
        self.keeps && Address::parse(&self.what).is_err()
    }

    /// The name of its mount.
    pub fn key(&self) -> String {
        names::hash(&serde_json::to_string(self).must(TEXT))
    }
}

/// How the driver's own calls use a source.
#[derive(Debug, Default)]
struct Using {
    /// Calls under way.
    calls: usize,
    /// When the controller used it last.
    used: Option<Instant>,
}

/// The mounts of this node.
pub struct Mounts {
    folder: PathBuf,
    caches: PathBuf,
    safe: Safe,
    staged: Arc<Records>,
    address: Option<IpAddr>,
    started: Instant,
    using: Mutex<BTreeMap<String, Arc<Mutex<Using>>>>,
}

impl Mounts {
    /// The mounts below the state folder.
    pub fn new(state: &Path, caches: &Path, staged: Arc<Records>, address: Option<IpAddr>) -> Mounts {
        Mounts {
            folder: state.join("mounts"),
            caches: caches.to_owned(),
            safe: Safe::new(state.join("secrets")),
            staged,
            address,
            started: base::time::monotonic(),
            using: Mutex::default(),
        }
    }

    /// Where a source is mounted.
    pub fn place(&self, key: &str) -> PathBuf {
        self.folder.join(key)
    }

    fn using(&self, key: &str) -> Arc<Mutex<Using>> {
        self.using.lock().entry(key.to_owned()).or_default().clone()
    }

    /// Mounts a source, if it is not mounted, and keeps it mounted until the answer is dropped. Without
    /// secrets, those are used that it was mounted with before.
    pub fn hold(self: &Arc<Self>, source: &Source, secrets: &Secrets) -> Answer<Held> {
        let key = source.key();
        let using = self.using(&key);
        {
            let mut using = turn(&using)?;
            self.ensure(source, &key, secrets)?;
            using.calls += 1;
        }
        Ok(Held { place: self.place(&key), using, by_controller: false })
    }

    fn ensure(&self, source: &Source, key: &str, secrets: &Secrets) -> Answer<()> {
        let place = self.place(key);
        if is_mounted(&place)? {
            // The next mount needs them, after a crash too. Whether they are right is not known.
            return if secrets.is_empty() { Ok(()) } else { self.safe.change(key, secrets) };
        }
        let is_new = !secrets.is_empty();
        let kept;
        let secrets = if is_new {
            self.safe.change(key, secrets)?;
            secrets
        } else {
            kept = self.safe.find(key)?;
            &kept
        };
        let mut done = self.mount(source, key, secrets);
        match &done {
            Ok(()) => self.safe.settle(key),
            // Both stay kept: why it failed may have nothing to do with the secrets.
            Err(status) if !is_new && status.code() != Code::DeadlineExceeded => {
                if let Some(earlier) = self.safe.swap(key)? {
                    match self.mount(source, key, &earlier) {
                        Ok(()) => done = Ok(()),
                        Err(_) => drop(self.safe.swap(key)?),
                    }
                }
            }
            Err(_) => {}
        }
        if done.is_err() && places::at(&place).is_none() && self.is_unused(key, None)? {
            places::remove(&place)?;
            self.safe.forget(key);
        }
        done
    }

    /// Mounts a source that is not mounted.
    fn mount(&self, source: &Source, key: &str, secrets: &Secrets) -> Answer<()> {
        let place = self.place(key);
        if source.in_fleet && !secrets.has_fleet() {
            return Err(refuse::invalid(
                "the volume joins a fleet, and there is no secret for it",
                "add fleet-secret to the secret of the class",
            ));
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&place)
            .map_err(|error| refuse::io(format!("cannot make {}", place.display()), &error))?;
        let args = self.arguments(source, key, &place);
        let deadline = Deadline::after(EARLIER);
        loop {
            let failed = match program::run(&args, secrets, COMMAND) {
                Ok(_) => return Ok(()),
                Err(failed) => failed,
            };
            // Another process, of a driver that was killed meanwhile, may have been faster.
            if is_mounted(&place)? {
                return Ok(());
            }
            let passes = matches!(failed.code.as_str(), "in-use" | "busy" | "mountpoint-in-use");
            if !passes || deadline.is_over() {
                return Err(failed.status);
            }
            deadline.sleep(Duration::from_millis(300));
        }
    }

    fn arguments(&self, source: &Source, key: &str, place: &Path) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut args = vec!["mount".to_owned(), "-d".to_owned()];
        if source.keeps {
            // Trees of one volume find the same blobs there, whatever their classes say.
            let name = if source.is_tree() { TREES } else { key };
            args.extend(["--cache".to_owned(), text(&self.caches.join(name))]);
        }
        let options = self.options(source);
        if !options.is_empty() {
            args.extend(["-o".to_owned(), options]);
        }
        if source.in_fleet {
            args.extend(["--secret-file".to_owned(), text(&self.safe.fleet_file(key))]);
            args.extend(self.address.iter().flat_map(|address| {
                ["--listen".to_owned(), std::net::SocketAddr::new(*address, 0).to_string()]
            }));
        }
        args.extend(source.args.iter().cloned());
        args.extend(["--".to_owned(), source.what.clone(), text(place)]);
        args
    }

    /// The options of a mount. What is cached of trees leaves more room than the kubelet wants, which removes
    /// images and then pods when the disk is full.
    fn options(&self, source: &Source) -> String {
        let is_said = source.options.split(',').any(|option| option.starts_with("cache_floor="));
        let floor = match source.is_tree() && !is_said {
            true => rustix::fs::statvfs(&self.caches).ok().map(|disk| disk.f_frsize * disk.f_blocks / FLOOR),
            false => None,
        };
        let floor = floor.map(|bytes| format!("cache_floor={}", bytes.max(base::size::GIB)));
        let said = Some(source.options.clone()).filter(|options| !options.is_empty());
        said.into_iter().chain(floor).collect::<Vec<_>>().join(",")
    }

    /// Whether no record of a staged volume names the source, other than that of `except`.
    fn is_unused(&self, key: &str, except: Option<&str>) -> Answer<bool> {
        let uses = |staged: &Staged| staged.source.key() == key && except != Some(&*staged.id);
        Ok(!self.staged.all::<Staged>()?.iter().any(|(_, staged)| uses(staged)))
    }

    /// Ends the mount of a source, unless it is used.
    pub fn release(&self, key: &str) -> Answer<()> {
        let using = self.using(key);
        let using = turn(&using)?;
        self.end_unless_used(&using, key, None)
    }

    /// Removes the record of a volume. Before that, the mount of its source ends, unless something else uses
    /// it. If that fails, record and secrets stay, and the same call goes on from there.
    pub fn leave(self: &Arc<Self>, staged: &Staged) -> Answer<()> {
        let (key, id) = (staged.source.key(), Some(&*staged.id));
        let is_last = || Ok::<_, Status>(self.is_unused(&key, id)? && self.has_uploads(&key));
        let flushes = is_last()?;
        if flushes {
            // A daemon that died is started again for this. Other calls may use the mount meanwhile.
            match self.hold(&staged.source, &Secrets::default()) {
                Ok(held) => flush(held.place(), FLUSH)?,
                // The shared volume was removed, and nothing of it is to be kept.
                Err(status) if status.code() == Code::NotFound => {}
                Err(status) => return Err(status),
            }
        }
        let using = self.using(&key);
        let using = turn(&using)?;
        if !flushes && is_last()? {
            let text = "another volume of the same source left at this moment; next: send the call again";
            return Err(Status::unavailable(text));
        }
        self.end_unless_used(&using, &key, id)?;
        self.staged.remove(&staged.id)
    }

    fn end_unless_used(&self, using: &Using, key: &str, except: Option<&str>) -> Answer<()> {
        let is_idle = using.used.is_none_or(|used| base::time::monotonic() - used >= IDLE);
        match is_idle && using.calls == 0 && self.is_unused(key, except)? {
            true => self.end(key),
            false => Ok(()),
        }
    }

    /// Ends the mounts that nothing has used for some time. At the end of a driver, `at_once`.
    pub fn sweep(&self, at_once: bool) {
        for key in self.keys() {
            let using = self.using(&key);
            let Some(using) = using.try_lock() else { continue };
            let idle = base::time::monotonic() - using.used.unwrap_or(self.started);
            let ended = match (at_once || idle >= IDLE) && using.calls == 0 {
                true => self.is_unused(&key, None).and_then(|unused| match unused {
                    true => self.end(&key),
                    false => Ok(()),
                }),
                false => Ok(()),
            };
            if let Err(status) = ended {
                log::warn(&format!("a mount that is not used any more stays: {}", status.message()));
            }
        }
    }

    /// Removes what is cached of trees that nothing has used for long. What comes back after a restart, or
    /// after a daemon has died, finds it before that.
    pub fn tidy_caches(&self) {
        let is_settled = base::time::monotonic() - self.started >= SETTLED;
        if is_settled && !self.keys().iter().any(|key| self.is_lost(key)) {
            caches::tidy(&self.caches.join(TREES), caches::UNUSED);
        }
    }

    fn end(&self, key: &str) -> Answer<()> {
        let place = self.place(key);
        if places::at(&place).is_some() {
            if self.has_uploads(key) && places::life(&place) != Some(Life::Dead) {
                flush(&place, FLUSH_REST)?;
            }
            unmount(&place)?;
        }
        places::remove(&place)?;
        self.safe.forget(key);
        Ok(())
    }

    /// Whether the source is a shared volume: bytes may wait in its folder until they are uploaded.
    fn has_uploads(&self, key: &str) -> bool {
        VolumeDir::open(&self.caches.join(key)).is_ok()
    }

    /// The keys of all mounts that are there.
    fn keys(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|key| names::is_part(key))
            .collect()
    }

    /// Whether the mount of a source is not there, or its daemon is dead. A silent daemon is not.
    pub fn is_lost(&self, key: &str) -> bool {
        matches!(places::life(&self.place(key)), None | Some(Life::Dead))
    }

    /// How many sources are mounted.
    pub fn count(&self) -> usize {
        self.keys().iter().filter(|key| places::at(&self.place(key)).is_some()).count()
    }
}

/// Waits for the lock of a source.
fn turn(using: &Mutex<Using>) -> Answer<MutexGuard<'_, Using>> {
    using.try_lock_for(TURN).ok_or_else(|| refuse::aborted("another call mounts or unmounts the same source"))
}

fn unmount(place: &Path) -> Answer<()> {
    let args = ["umount".as_ref(), place.as_os_str()];
    program::run(&args, &Secrets::default(), COMMAND).map(drop).map_err(|failed| failed.status)
}

/// Waits until everything that was written on a mount is in the origin.
fn flush(place: &Path, limit: Duration) -> Answer<()> {
    let seconds = limit.as_secs().to_string();
    let args = ["flush".as_ref(), "--timeout".as_ref(), seconds.as_ref(), "--".as_ref(), place.as_os_str()];
    program::run(&args, &Secrets::default(), COMMAND).map(drop).map_err(|failed| {
        Status::unavailable(format!(
            "the mount at {} stays, because only this node has what was written there last: {}; \
             then send the call again",
            place.display(),
            failed.status.message()
        ))
    })
}

/// Whether a living mount is there. A dead one is taken away.
fn is_mounted(place: &Path) -> Answer<bool> {
    let Some(there) = places::at(place) else { return Ok(false) };
    if !places::is_ours(&there) {
        let what = format!("what is mounted at {} is not Covey's", place.display());
        return Err(refuse::precondition(what, "unmount it"));
    }
    match places::life(place) {
        None => Ok(false),
        Some(Life::Lives(_)) => Ok(true),
        Some(Life::Dead) => {
            log::warn(&format!("the daemon of the mount at {} is gone; mounting again", place.display()));
            unmount(place)?;
            Ok(false)
        }
        Some(Life::Silent) => {
            let what =
                format!("the daemon of the mount at {} does not answer; next: try again", place.display());
            Err(Status::unavailable(what))
        }
    }
}

/// A source that stays mounted.
pub struct Held {
    place: PathBuf,
    using: Arc<Mutex<Using>>,
    by_controller: bool,
}

impl Held {
    /// Where it is mounted.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Keeps the mount for some time after this call, for those that follow.
    pub fn for_controller(mut self) -> Held {
        self.by_controller = true;
        self
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut using = self.using.lock();
        using.calls -= 1;
        if self.by_controller {
            using.used = Some(base::time::monotonic());
        }
    }
}
