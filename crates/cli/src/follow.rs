//! `--follow`: a mount of `ORIGIN@NAME` that moves to what is published under the name next.
//!
//! ```text
//!   every 10 s   the record of the name ──► the same root? that is all
//!                another root ──► what is another in its tree (tree::diff) ──► fs::follow begins to move
//!                the kernel forgets those names and folders, one after the other ──► and only then it has moved
//! ```
//!
//! What a node that is open shows, and why no program sees half of a move, stands in [`fs::follow`]. Here is only what is asked for
//! when: a record that cannot be had, that is no good, or that is older than one that was seen ([`trust`]), leaves the mount where it is, with one line in the log until it is
//! good again.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use base::Ino;
use blob::{BlobSource, Origin};
use fs::api::Filesystem;
use fs::follow::{Changed, Following};
use fs::volume::{Options, Volume};
use fuse::Notifier;
use parking_lot::{Condvar, Mutex};
use peer::fleet::Groups;
use tree::diff::{self, Changes};
use tree::{Root, Tree, TreeError};

use crate::error::{Failure, Result};
use crate::frozen::{Named, TreeInfo, grouped, parts_of, trust};
use crate::log;
use crate::node::open_failure;
use crate::table::count;

/// How often the record of a followed name is looked at.
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

/// The tree that is shown.
struct Shown {
    root: Root,
    tree: Arc<Tree>,
    volume: Arc<Volume>,
}

/// Where a tree is read.
#[derive(Clone)]
pub struct ReadFrom {
    /// Its records and the bytes of files.
    pub origin: Arc<dyn Origin>,
    /// Its nodes.
    pub names: Arc<dyn BlobSource>,
}

/// A name that is followed.
pub struct Follow {
    named: Named,
    from: ReadFrom,
    options: Options,
    groups: Option<Groups>,
    /// The origin could not be used when the tree was mounted, and that was said.
    began_away: bool,
    following: Arc<Following>,
    shown: Mutex<Shown>,
}

impl Follow {
    /// Shows the tree of this root for now.
    pub fn new(
        named: &Named,
        root: Root,
        from: ReadFrom,
        options: Options,
        groups: Option<Groups>,
    ) -> Result<Follow> {
        let shown = open(named, root, &from, &options, groups.as_ref())?;
        let following = Arc::new(Following::new(shown.volume.clone()));
        let (named, shown) = (named.clone(), Mutex::new(shown));
        Ok(Follow { named, from, options, groups, began_away: false, following, shown })
    }

    /// The origin cannot be used at the moment, and that was said.
    pub fn away(self, began_away: bool) -> Follow {
        Follow { began_away, ..self }
    }

    /// As the kernel sees it.
    pub fn filesystem(&self) -> Arc<dyn Filesystem> {
        self.following.clone()
    }

    /// The tree that is shown now, as a volume.
    pub fn volume(&self) -> Arc<Volume> {
        self.shown.lock().volume.clone()
    }

    /// Its root.
    pub fn root(&self) -> Root {
        self.shown.lock().root.clone()
    }

    /// Looks at the record, and moves if there is something new. Only one caller at a time.
    fn step(&self, kernel: &Notifier) -> Result<Option<TreeInfo>> {
        // What a person accepted when the mount began was the record of that moment.
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
        let next = open(&self.named, root, &self.from, &self.options, self.groups.as_ref())?;
        let failed = |error: TreeError| self.named.failure(error);
        let changes = diff::changes(&old, &next.tree).map_err(failed)?;
        let changed = changes.inodes.iter().map(|(ino, gone)| Changed { ino: *ino, gone: *gone });
        let moving = self.following.begin(changed.collect());
        let names = diff::names_of(&old, moving.held()).map_err(failed)?;
        forget(kernel, &changes, &names);
        kernel.settle();
        moving.finish(next.volume.clone());
        // A listing that began before may have been put away by the kernel since.
        changes.folders().into_iter().for_each(|dir| kernel.inval_inode(dir, 0, 0));
        kernel.settle();
        // Files that are open may need the old tree for long, but little of it.
        old.trim();
        let info = TreeInfo::of(&next.root);
        *self.shown.lock() = next;
        Ok(Some(info))
    }

    /// Follows from now on, until what is returned is dropped.
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
                        log::line(&format!("{} is shown as published the {sequence}. time", self.named));
                    } else if in_trouble {
                        log::line(&format!("{} can be followed again", self.named));
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

/// Nodes that were started together do not ask together: within a tenth.
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
    let parts = parts_of(grouped(tree.clone(), groups), root.bytes, from.origin.clone());
    let volume = Volume::open(parts, options.clone());
    let volume = volume.map_err(|error| open_failure(std::path::Path::new(&named.to_string()), error))?;
    Ok(Shown { root, tree, volume: Arc::new(volume) })
}

/// Takes from the kernel what is not so any more.
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

/// A name that is being followed; dropped, it is not any more.
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

#[cfg(test)]
mod tests {
    use super::*;

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
