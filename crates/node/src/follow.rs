//! `--follow`: a mount of `ORIGIN@NAME` that moves to each new tree published under the name.
//!
//! ```text
//!   every 10 s   read the record of the name ──► same root: nothing to do
//!                another root ──► find what differs (tree::diff) ──► fs::follow begins the move
//!                the kernel forgets the changed names and folders, one by one ──► the move is complete
//! ```
//!
//! [`fs::follow`] explains what an open node shows during a move, and why no program sees half of one. This
//! module decides when to move. If a record cannot be read, is invalid, or is older than one seen before
//! ([`trust`]), the mount keeps its tree. It writes one line to the log, and no further line until the record
//! is good again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use api::error::{Failure, Result};
use api::status::TreeInfo;
use api::text::count;
use base::Ino;
use fleet::node::Groups;
use fs::api::Filesystem;
use fs::follow::{Changed, Following};
use fs::volume::{Options, Volume};
use fuse::Notifier;
use parking_lot::{Condvar, Mutex};
use tree::diff::{self, Changes};
use tree::{Root, Tree, TreeError};

use crate::frozen::{Named, ReadFrom, grouped, parts_of, tree_info, trust};
use crate::log;
use crate::refused::open_failure;

/// The tree that is shown now.
struct Shown {
    root: Root,
    tree: Arc<Tree>,
    volume: Arc<Volume>,
}

/// A published name that a mount follows.
pub struct Follow {
    named: Named,
    from: ReadFrom,
    options: Options,
    groups: Option<Groups>,
    /// The origin could not be used when the tree was mounted, and a message said so.
    began_away: bool,
    following: Arc<Following>,
    shown: Mutex<Shown>,
}

impl Follow {
    /// Shows the tree of this root first.
    pub fn new(
        named: &Named,
        root: Root,
        from: ReadFrom,
        options: Options,
        groups: Option<Groups>,
    ) -> Result<Follow> {
        let shown = open(named, root, &from, &options, groups.as_ref())?;
        let following = Arc::new(Following::new(shown.volume.clone()).keeping(named.keeps));
        let (named, shown) = (named.clone(), Mutex::new(shown));
        Ok(Follow { named, from, options, groups, began_away: false, following, shown })
    }

    /// Notes whether the origin cannot be used at the moment and a message has said so.
    pub fn away(self, began_away: bool) -> Follow {
        Follow { began_away, ..self }
    }

    /// The filesystem that the kernel sees.
    pub fn filesystem(&self) -> Arc<dyn Filesystem> {
        self.following.clone()
    }

    /// The tree that is shown now, as a volume.
    pub fn volume(&self) -> Arc<Volume> {
        self.shown.lock().volume.clone()
    }

    /// The root of the tree that is shown now.
    pub fn root(&self) -> Root {
        self.shown.lock().root.clone()
    }

    /// Reads the record, and moves to the new tree if there is one. Only one caller at a time.
    fn step(&self, kernel: &Notifier) -> Result<Option<TreeInfo>> {
        // A user who accepted an older record accepted only the one at the time of the mount.
        let root = trust::read(&self.named, &*self.from.origin, false)?;
        let (old_root, old) = {
            let shown = self.shown.lock();
            (shown.root.clone(), shown.tree.clone())
        };
        if root == old_root {
            return Ok(None);
        }
        if root.volume != old_root.volume {
            return Err(Failure::new("another-volume", format!("{} is another volume's by now", self.named))
                .why("numbers of inodes mean something else there")
                .next("unmount it and mount it again to see the new one"));
        }
        if root.source != old_root.source {
            return Err(Failure::new(
                "another-source",
                format!("the files of {} are elsewhere by now", self.named),
            )
            .next("unmount it and mount it again to see the new ones"));
        }
        self.from.places.iter().for_each(|places| places.add(&root));
        let next = open(&self.named, root, &self.from, &self.options, self.groups.as_ref())?;
        let failed = |error: TreeError| self.named.failure(error);
        let changes = diff::changes(&old, &next.tree).map_err(failed)?;
        let changed = changes.inodes.iter().map(|(ino, gone)| Changed { ino: *ino, gone: *gone });
        let moving = self.following.begin(changed.collect());
        let names = diff::names_of(&old, moving.held()).map_err(failed)?;
        forget(kernel, &changes, &names);
        kernel.settle();
        moving.finish(next.volume.clone());
        // The kernel may have cached a listing that began before the move, so it must forget the folder
        // again.
        changes.folders().into_iter().for_each(|dir| kernel.inval_inode(dir, 0, 0));
        kernel.settle();
        // Open files may need the old tree for long, but only a small part of it.
        old.trim();
        let info = tree_info(&next.root);
        *self.shown.lock() = next;
        Ok(Some(info))
    }

    /// Follows the name until the returned value is dropped.
    pub fn start(self: &Arc<Follow>, every: Duration, kernel: Notifier) -> Result<Watching> {
        let stop = Arc::new(Stop::default());
        let (follow, stopped) = (self.clone(), stop.clone());
        let thread = base::thread::spawn("covey-follow", move || follow.run(every, &kernel, &stopped))
            .map_err(|error| Failure::io("cannot start a thread", &error))?;
        Ok(Watching { stop, thread: Some(thread) })
    }

    fn run(&self, every: Duration, kernel: &Notifier, stop: &Stop) {
        let mut in_trouble = self.began_away;
        while !stop.wait(spread(every)) {
            match self.step(kernel) {
                Ok(moved) => {
                    if let Some(info) = moved {
                        let sequence = count(info.sequence);
                        log::line(&format!("{} now shows publication {sequence}", self.named));
                    } else if in_trouble {
                        log::line(&format!("updates of {} can be read again", self.named));
                    }
                    in_trouble = false;
                }
                Err(failure) => {
                    if !in_trouble {
                        let why = failure.in_one_line();
                        log::error(&format!("cannot follow {}, the mount stays as it is: {why}", self.named));
                    }
                    in_trouble = true;
                }
            }
        }
    }
}

/// Varies the interval by up to 10 %, so that nodes started together do not ask together.
fn spread(every: Duration) -> Duration {
    let part = (base::random::u64() % 201) as f64 / 1000.0;
    every.mul_f64(0.9 + part)
}

fn open(
    named: &Named,
    root: Root,
    from: &ReadFrom,
    options: &Options,
    groups: Option<&Groups>,
) -> Result<Shown> {
    let tree = Arc::new(Tree::new(from.names.clone(), &root));
    let parts = parts_of(grouped(tree.clone(), groups), root.bytes, from);
    let volume = Volume::open(parts, options.clone());
    let volume = volume.map_err(|error| open_failure(std::path::Path::new(&named.to_string()), error))?;
    Ok(Shown { root, tree, volume: Arc::new(volume) })
}

/// Makes the kernel forget names and inodes that have changed.
fn forget(kernel: &Notifier, changes: &Changes, names: &[(Ino, Vec<u8>)]) {
    for (parent, name) in changes.names.iter().chain(names) {
        kernel.inval_entry(*parent, name);
    }
    changes.folders().into_iter().for_each(|dir| kernel.inval_inode(dir, 0, 0));
}

#[derive(Default)]
struct Stop {
    is: AtomicBool,
    lock: Mutex<()>,
    set: Condvar,
}

impl Stop {
    fn wait(&self, time: Duration) -> bool {
        let until = base::time::monotonic() + time;
        let mut guard = self.lock.lock();
        while !self.is.load(Ordering::Acquire) {
            if self.set.wait_until(&mut guard, until).timed_out() {
                break;
            }
        }
        self.is.load(Ordering::Acquire)
    }
}

/// The thread that follows a name. It stops when this is dropped.
pub struct Watching {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        {
            let _guard = self.stop.lock.lock();
            self.stop.is.store(true, Ordering::Release);
        }
        self.stop.set.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
